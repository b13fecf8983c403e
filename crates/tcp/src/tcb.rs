//! The transmission control block (RFC 9293 3.3.1): one connection's variables, how it is opened, and what the
//! application may ask of it.

use mem::{Chain, Side};
use wire::SeqNum;
use wire::tcp::Options;

use crate::cc::Congestion;
use crate::config::Ecn;
use crate::knobs::Knobs;
use crate::loss::recovery::Recovery;
use crate::loss::scoreboard::Scoreboard;
use crate::rcv::Rcv;
use crate::rcv::receiver::Receiver;
use crate::rtt::Rtt;
use crate::snd::Snd;
use crate::snd::sender::Sender;
use crate::stats::Statistics;
use crate::timers::Timers;
use crate::variables::{Negotiated, SegWnd};
use crate::{Config, Context, Error, Notice, Open, State, flag};

/// One connection. What every segment touches comes first and is one cache line; the receive and the send half follow.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Tcb {
    pub(crate) state: State,
    pub(crate) notice: Notice,
    pub(crate) error: Option<Error>,
    pub(crate) flags: u32,
    pub(crate) rcv: Rcv,
    pub(crate) snd: Snd,
    pub(crate) options: Negotiated,

    pub(crate) receiver: Receiver,
    pub(crate) sender: Sender,
    pub(crate) timers: Timers,
    pub(crate) rtt: Rtt,
    pub(crate) board: Scoreboard,
    pub(crate) recovery: Recovery,
    pub(crate) cc: Congestion,
    pub(crate) stats: Statistics,
    pub(crate) knobs: Option<Box<Knobs>>,
    /// An ICMP error that counts only if the connection fails anyhow (RFC 9293 3.9.2.2).
    pub(crate) soft_error: Option<Error>,
}

impl Tcb {
    /// A block for [`Tcb::connect`] or [`Tcb::resume`] to open a connection in.
    pub fn new(config: &Config) -> Tcb {
        let open = Open { iss: SeqNum(0), ts_offset: 0, mss: 536, path_mss: 536, receive_buffer: 0, headers: 40 };
        Tcb::opened(State::Closed, &open, config)
    }

    /// A block as it is when a connection begins.
    #[inline(always)]
    pub(crate) fn opened(state: State, open: &Open, config: &Config) -> Tcb {
        Tcb {
            state,
            notice: Notice::default(),
            error: None,
            flags: if open.receive_buffer > 0 { flag::RCVBUF_LOCKED } else { 0 },
            rcv: Rcv::default(),
            snd: Snd::new(open.iss),
            options: Negotiated::new(open, config),
            receiver: Receiver::new(open, config),
            sender: Sender::new(open, config),
            timers: Timers::new(config),
            rtt: Rtt::new(config),
            board: Scoreboard::new(open.iss),
            recovery: Recovery::new(open.iss),
            cc: Congestion::new(open.iss, config),
            stats: Statistics::default(),
            knobs: Knobs::of(config),
            soft_error: None,
        }
    }

    /// The block is used again: written part by part where it lies, for a copy of it costs as much as what is written.
    #[inline(always)]
    pub(crate) fn renew(&mut self, state: State, open: &Open, config: &Config) {
        self.state = state;
        self.notice = Notice::default();
        self.error = None;
        self.flags = if open.receive_buffer > 0 { flag::RCVBUF_LOCKED } else { 0 };
        self.rcv = Rcv::default();
        self.snd = Snd::new(open.iss);
        self.options = Negotiated::new(open, config);
        self.receiver = Receiver::new(open, config);
        self.sender = Sender::new(open, config);
        self.timers = Timers::new(config);
        self.rtt = Rtt::new(config);
        self.board = Scoreboard::new(open.iss);
        self.recovery = Recovery::new(open.iss);
        self.cc = Congestion::new(open.iss, config);
        self.stats = Statistics::default();
        self.knobs = Knobs::of(config);
        self.soft_error = None;
    }

    /// Active open (RFC 9293 3.10.1): SYN-SENT; [`Tcb::next_segment`] gives the SYN.
    pub fn connect(&mut self, open: &Open, cx: &mut Context) {
        self.renew(State::SynSent, open, cx.config);
        self.timers.heard(cx.now);
        // What the SYN will ask for; a SYN/ACK without the option switches it off again.
        self.set(flag::TIMESTAMPS, cx.config.timestamps);
        self.set(flag::SCALED, cx.config.window_scaling);
        self.set(flag::SACK, cx.config.sack);
        self.set(flag::ECN, cx.config.ecn == Ecn::Always);
    }

    /// Passive open (RFC 9293 3.10.7.2): SYN-RECEIVED from a segment with SYN; [`Tcb::next_segment`] gives the SYN/ACK.
    pub fn accept(&mut self, open: &Open, syn: &wire::tcp::Segment, cx: &mut Context) {
        self.renew(State::SynReceived, open, cx.config);
        self.timers.heard(cx.now);
        self.flags |= flag::PASSIVE;
        self.set(flag::TIMESTAMPS, cx.config.timestamps);
        self.set(flag::SCALED, cx.config.window_scaling);
        self.set(flag::SACK, cx.config.sack);
        self.set(flag::ECN, cx.config.ecn != Ecn::Never);
        self.take_syn(syn, self.snd.una(), cx);
    }

    /// IRS, and what the peer's SYN offers (RFC 9293 3.7.1; RFC 7323 1.3: an option is on only if both SYNs had it).
    pub(crate) fn take_syn(&mut self, syn: &wire::tcp::Segment, ack: SeqNum, cx: &mut Context) {
        let o: &Options = &syn.options;
        self.rcv.synchronise(syn.seq, self.receiver.synchronise(syn.seq));
        self.snd.synchronise(syn.seq, ack, SegWnd::of_syn(syn.window));
        match (self.has(flag::SCALED), o.window_scale) {
            (true, Some(shift)) => self.options.scale_by(shift),
            _ => {
                self.set(flag::SCALED, false);
                self.options.unscale();
            }
        }
        match (self.has(flag::TIMESTAMPS), o.timestamps) {
            (true, Some(ts)) => self.rcv.take_ts(ts.value, cx.now),
            _ => self.set(flag::TIMESTAMPS, false),
        }
        let sack = self.has(flag::SACK) && o.sack_permitted;
        self.set(flag::SACK, sack);
        self.negotiate_ecn(syn);
        self.options.set_smss(self.smss_for(o.mss));
    }

    /// SMSS towards a peer that offers `mss`.
    #[inline(always)]
    pub(crate) fn smss_for(&self, mss: Option<u16>) -> u16 {
        let smss = self.sender.mss_for(mss);
        if self.has(flag::TIMESTAMPS) { smss.saturating_sub(12).max(36) } else { smss }
    }

    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn set(&mut self, flag: u32, on: bool) {
        if on { self.flags |= flag } else { self.flags &= !flag }
    }

    /// The state of RFC 9293 3.3.2.
    pub fn state(&self) -> State {
        self.state
    }

    /// Segments were lost, reordered or marked, or that is feared: none takes the straight path.
    pub fn is_disturbed(&self) -> bool {
        self.has(flag::DISTURBED)
    }

    /// CLOSED or TIME-WAIT.
    #[inline(always)]
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Closed | State::TimeWait)
    }

    /// Whether anything waits for the application.
    pub fn has_notice(&self) -> bool {
        self.notice != Notice::default()
    }

    /// What the application has not been told, and forgets it.
    pub fn take_notice(&mut self) -> Notice {
        core::mem::take(&mut self.notice)
    }

    /// What the application has not been told.
    pub fn notice(&self) -> Notice {
        self.notice
    }

    /// Puts back notices that could not be delivered.
    pub fn put_notice(&mut self, notice: Notice) {
        self.notice.0 |= notice.0;
    }

    /// Why it failed.
    pub fn error(&self) -> Option<Error> {
        self.error
    }

    /// In-order bytes for the application.
    pub fn take_received(&mut self) -> Chain {
        self.receiver.take()
    }

    /// The first of the in-order bytes, which lie in chunks of `from`, copied into the application's, which are `to`: as many as may be while
    /// others come in, too; while memory is scarce, in its `turn`.
    pub fn copy_received(&self, from: &Side, to: &mut Side, turn: bool) -> Chain {
        self.receiver.copy(from, to, turn)
    }

    /// In-order bytes that the application was not given.
    pub fn waiting(&self) -> usize {
        self.receiver.waiting()
    }

    /// The first in-order bytes, which lie in chunks of `pool`, were given to the application as a copy.
    pub fn drop_received(&mut self, pool: &mut Side, bytes: usize) {
        self.receiver.drop_front(pool, bytes);
    }

    /// Puts back bytes that were taken, or a copy of them; nothing may have arrived in between.
    pub fn put_received(&mut self, chain: Chain) {
        self.receiver.put(chain);
    }

    /// Bytes acknowledged since the last call.
    pub fn take_acked(&mut self) -> u32 {
        self.set(flag::TELL_ACKED, false);
        self.sender.take_unreported()
    }

    /// The application waits for every acknowledged byte: what it has not heard of is reported, once there is some.
    pub fn tell_acked(&mut self) {
        self.set(flag::TELL_ACKED, true);
        if self.sender.unreported() > 0 {
            self.put_notice(Notice::ACKED);
        }
    }

    /// Whether the application has closed it.
    pub fn orphaned(&self) -> bool {
        self.has(flag::ORPHAN)
    }

    /// Opened by the peer.
    pub fn passive(&self) -> bool {
        self.has(flag::PASSIVE)
    }

    /// `rcv.nxt`, for TIME-WAIT records.
    pub fn rcv_nxt(&self) -> SeqNum {
        self.rcv.nxt()
    }

    /// `snd.nxt`, for TIME-WAIT records.
    pub fn snd_nxt(&self) -> SeqNum {
        self.snd.nxt()
    }

    /// Segments sent, modulo 2^32.
    pub fn segments_sent(&self) -> u32 {
        self.stats.segs_out
    }

    /// `snd.una`.
    pub fn snd_una(&self) -> SeqNum {
        self.snd.una()
    }

    /// Negotiated timestamps: (our clock's offset, `TS.Recent`).
    pub fn timestamps(&self) -> Option<(u32, u32)> {
        self.has(flag::TIMESTAMPS).then_some((self.options.ts_offset(), self.rcv.ts_recent()))
    }

    /// SEND (RFC 9293 3.10.2). The chain is freed when the connection can send no more.
    pub fn write(&mut self, chain: Chain, more: bool, cx: &mut Context) {
        let closed = matches!(self.state, State::Closed | State::TimeWait) || self.has(flag::SHUTDOWN);
        if closed {
            chain.free(cx.pool);
            return;
        }
        self.begin_to_wait(cx);
        self.sender.append(cx.pool, chain);
        self.set(flag::MORE | flag::UNPUSHED, more);
    }

    /// What is queued ends a record (MSG_EOR).
    pub fn end_record(&mut self) {
        let end = self.sender.end();
        if self.unsent() > 0 && self.knobs_mut().records.back() != Some(&end) {
            self.knobs_mut().records.push_back(end);
        }
    }

    /// CLOSE of the sending half (RFC 9293 3.10.4): FIN after what is queued.
    pub fn shutdown(&mut self, cx: &mut Context) {
        match self.state {
            State::Closed | State::TimeWait | State::Listen => {}
            // RFC 9293 3.10.4: SYN-SENT has nothing to finish.
            State::SynSent => self.close_now(None, cx),
            _ => {
                self.begin_to_wait(cx);
                self.set(flag::SHUTDOWN, true);
                self.set(flag::MORE | flag::CORK, false);
            }
        }
    }

    /// The user timeout counts from here if nothing waited before (RFC 5482 3.1): however long the connection was idle.
    fn begin_to_wait(&mut self, cx: &Context) {
        if self.sender.is_empty() && self.board.is_empty() {
            self.timers.begin_to_wait(cx.now);
        }
    }

    /// The application will neither read nor write again.
    pub fn close(&mut self, unread: bool, cx: &mut Context) {
        self.set(flag::ORPHAN, true);
        self.notice = Notice::default();
        let unread = unread || self.receiver.waiting() > 0;
        self.receiver.drop_queue(cx.pool);
        if unread && !matches!(self.state, State::Closed | State::TimeWait) {
            // RFC 2525 2.17 and RFC 9293 3.10.4: the peer must learn that data was lost. Not instead of what was written just before, which
            // has not had its turn yet: with other stacks it went out at once.
            if self.wants_data() && self.unsent() > 0 {
                self.flags &= !(flag::CORK | flag::MORE);
                self.timers.uncork();
                self.set(flag::RESET_BEHIND, true);
            } else {
                self.abort(cx);
            }
            return;
        }
        self.shutdown(cx);
        if self.state == State::FinWait2 {
            self.timers.live_until(cx.now + cx.config.fin_timeout);
        }
    }

    /// ABORT (RFC 9293 3.10.5): RST unless nothing was exchanged.
    pub fn abort(&mut self, cx: &mut Context) {
        self.set(flag::ORPHAN, true);
        match self.state {
            State::Closed | State::TimeWait | State::Listen | State::SynSent => self.close_now(None, cx),
            _ => {
                self.close_now(None, cx);
                self.set(flag::RST_PENDING, true);
            }
        }
    }

    /// CLOSED: nothing is queued or timed any more.
    pub(crate) fn close_now(&mut self, error: Option<Error>, cx: &mut Context) {
        self.state = State::Closed;
        self.flags &= flag::ORPHAN | flag::PASSIVE | flag::TIMESTAMPS | flag::SCALED | flag::SACK | flag::ECN;
        self.timers.stop();
        self.timers.ack_went();
        self.timers.live_on();
        self.timers.uncork();
        self.recovery.probe.cancel();
        self.recovery.take_head_due();
        self.drop_queues(cx);
        if let Some(error) = error {
            self.error = Some(error);
            if !self.orphaned() {
                self.put_notice(Notice::FAILED);
            }
        }
    }

    /// Gives back everything it holds; the last call on a connection.
    pub fn release(&mut self, cx: &mut Context) {
        self.drop_queues(cx);
        self.receiver.drop_queue(cx.pool);
    }

    /// What waits to be acknowledged, and what came out of order.
    fn drop_queues(&mut self, cx: &mut Context) {
        self.board.clear(cx.sent);
        self.sender.drop_queue(cx.pool);
        if let Some(ooo) = self.receiver.take_out_of_order() {
            ooo.free(cx.pool);
        }
    }
}

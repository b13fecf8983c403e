//! The transmission control block (RFC 9293 3.3.1): one connection's variables, how it is opened, and what the
//! application may ask of it.

use mem::{Chain, Side};
use wire::tcp::Options;
use wire::{Instant, SeqNum};

use crate::config::Ecn;
use crate::info::Statistics;
use crate::knobs::Knobs;
use crate::receiver::Receiver;
use crate::recovery::Recovery;
use crate::rtt::Rtt;
use crate::scoreboard::Scoreboard;
use crate::sender::Sender;
use crate::timers::Timers;
use crate::usage::Congestion;
use crate::variables::{Negotiated, Rcv, Snd};
use crate::window::{self, scale_for};
use crate::{Config, Limits, SentPool, State, TcpInfo};

/// What every call needs from outside.
pub struct Context<'a> {
    /// The turn's clock.
    pub now: Instant,
    /// The stack's side of the chunk pool.
    pub pool: &'a mut Side,
    /// Records of sent segments.
    pub sent: &'a mut SentPool,
    /// Parameters.
    pub config: &'a Config,
    /// Statistics of all connections together.
    pub counters: &'a mut Counters,
    /// What all connections together may do.
    pub limits: &'a mut Limits,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident),* $(,)?) => {
        /// Plain statistics of one stack's connections.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Counters {
            /// Name and value of each.
            pub fn rows(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Ordinary segments, taken by the straight path.
    predicted,
    /// Segments with data in order.
    in_order,
    /// Segments with data out of order, kept.
    out_of_order,
    /// Segments out of order and dropped: queue or pool full.
    out_of_order_dropped,
    /// Segments with nothing new inside the window (RFC 9293 3.10.7.4).
    unacceptable,
    /// Segments older than `TS.Recent` (RFC 7323 PAWS).
    paws,
    /// Segments whose data lay beyond the window and was cut off.
    beyond_window,
    /// In-order data dropped because the chunk pool was dry, or short of chunks and much was unread.
    no_chunks,
    /// ACKs for data never sent, or too old (RFC 5961 5).
    bad_ack,
    /// Duplicate ACKs.
    dup_acks,
    /// Challenge ACKs sent (RFC 5961).
    challenge_acks,
    /// Challenge ACKs and answers to segments out of the window that were not sent: too many.
    acks_limited,
    /// RST accepted.
    resets_in,
    /// RST sent by connections.
    resets_out,
    /// Retransmission timeouts.
    timeouts,
    /// Segments retransmitted after a timeout.
    timeout_retransmits,
    /// Segments retransmitted in fast recovery.
    fast_retransmits,
    /// Retransmissions found lost (RFC 8985).
    lost_retransmits,
    /// Fast recoveries begun.
    recoveries,
    /// Reductions undone because nothing had been lost.
    undone,
    /// Timeouts undone (RFC 5682).
    spurious_timeouts,
    /// Tail loss probes sent (RFC 8985).
    loss_probes,
    /// Losses that a probe repaired.
    probe_recoveries,
    /// Duplicates reported by the peer (RFC 2883).
    dsacks_in,
    /// Duplicates reported to the peer.
    dsacks_out,
    /// SACK blocks that cannot be (RFC 2018).
    sack_discarded,
    /// Peers that forgot what they had SACKed.
    reneged,
    /// Reductions because of ECN (RFC 3168).
    ecn_reductions,
    /// Segments that arrived marked CE.
    ecn_ce,
    /// SYN or SYN/ACK retransmitted.
    syn_retransmits,
    /// Zero-window probes sent.
    window_probes,
    /// Connections given up because their window stayed closed.
    persist_timeouts,
    /// Connections reset because memory was short and their closed window held some (RFC 6429).
    window_hoarders,
    /// Paths found to swallow large segments while small ones arrive (RFC 4821 7.7).
    black_holes,
    /// Keepalive probes sent.
    keepalives,
    /// Times that sending waited because too many segments were outstanding.
    records_full,
    /// ACKs delayed that went out by timer.
    delayed_acks,
    /// Data that came after the application had closed (RFC 2525 2.17).
    data_after_close,
}

/// Why a connection ended badly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Error {
    /// RST in answer to our SYN.
    Refused,
    /// RST.
    Reset,
    /// Retransmissions, probes or the user timeout ran out.
    TimedOut,
    /// The application aborted.
    Aborted,
    /// An ICMP error said so while the connection was being opened.
    Unreachable,
}

/// What the application should be told, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notice(pub u8);

impl Notice {
    /// The handshake is done.
    pub const CONNECTED: Notice = Notice(1);
    /// Bytes are ready.
    pub const DATA: Notice = Notice(2);
    /// The peer's FIN came in order.
    pub const FIN: Notice = Notice(4);
    /// Send-queue room is worth a report.
    pub const ACKED: Notice = Notice(8);
    /// The connection failed.
    pub const FAILED: Notice = Notice(16);
    /// The send buffer has grown.
    pub const ROOM: Notice = Notice(128);

    /// Whether any bit of `other` is set.
    pub fn has(self, other: Notice) -> bool {
        self.0 & other.0 != 0
    }
}

pub(crate) mod flag {
    pub const ACK_NOW: u32 = 1 << 0;
    pub const ACK_DELAYED: u32 = 1 << 1;
    /// The application will send no more; FIN after the queue.
    pub const SHUTDOWN: u32 = 1 << 2;
    pub const FIN_SENT: u32 = 1 << 3;
    pub const FIN_RECEIVED: u32 = 1 << 4;
    pub const NO_DELAY: u32 = 1 << 5;
    pub const CORK: u32 = 1 << 6;
    pub const MORE: u32 = 1 << 7;
    pub const TIMESTAMPS: u32 = 1 << 8;
    pub const SCALED: u32 = 1 << 9;
    /// The application has closed: nobody will read.
    pub const ORPHAN: u32 = 1 << 10;
    pub const RST_PENDING: u32 = 1 << 11;
    /// RFC 2018 on both sides.
    pub const SACK: u32 = 1 << 12;
    pub const PROBE_NOW: u32 = 1 << 13;
    pub const KEEPALIVE: u32 = 1 << 14;
    pub const PASSIVE: u32 = 1 << 15;
    /// Something is amiss: no segment takes the straight path ([`Tcb::judge_disturbance`](super::Tcb::judge_disturbance)).
    pub const DISTURBED: u32 = 1 << 16;
    pub const CWND_LIMITED: u32 = 1 << 17;
    /// A partial segment may go although TCP_CORK or MSG_MORE is on: its limit passed.
    pub const PUSH_NOW: u32 = 1 << 18;
    /// The application is about to hear of it and will probably send: the ACK waits one turn for that.
    pub const ACK_LATER: u32 = 1 << 19;
    /// RFC 3168 on both sides.
    pub const ECN: u32 = 1 << 20;
    /// ECE goes out until the peer says CWR.
    pub const ECE: u32 = 1 << 21;
    /// CWR goes out with the next new data.
    pub const CWR: u32 = 1 << 22;
    /// The segment being worked on was marked CE.
    pub const CE_NOW: u32 = 1 << 23;
    /// New data was sent since the window's use was judged.
    pub const SENT_NEW: u32 = 1 << 24;
    /// Nothing may go before `pace_at`.
    pub const PACED: u32 = 1 << 25;
    /// The last write said that more follows: no PSH at its end.
    pub const UNPUSHED: u32 = 1 << 29;
    /// SO_RCVBUF was set: the receive buffer does not grow by itself.
    pub const RCVBUF_LOCKED: u32 = 1 << 26;
    /// The same for SO_SNDBUF.
    pub const SNDBUF_LOCKED: u32 = 1 << 27;
    /// The application answers what it reads: ACKs can ride on its data (Linux's ping-pong mode).
    pub const PINGPONG: u32 = 1 << 28;
    /// The next acknowledged bytes are reported at once.
    pub const TELL_ACKED: u32 = 1 << 30;
}

/// How a connection is opened.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// Initial send sequence number (RFC 6528, drawn by the stack).
    pub iss: SeqNum,
    /// Random offset of our timestamp clock.
    pub ts_offset: u32,
    /// Largest segment that we can receive, which our SYN offers: the interface's MTU less IP and TCP headers.
    pub mss: u16,
    /// Largest segment that the path to the peer is known to take: a bound of what is sent, not of what is offered.
    pub path_mss: u16,
    /// SO_RCVBUF, bytes; 0: the configuration's, and it may grow by itself.
    pub receive_buffer: u32,
    /// Bytes of IP and TCP header that `mss` left room for, for `pmtu` in snapshots.
    pub headers: u16,
}

impl Open {
    /// Bytes of the receive buffer at first.
    pub(crate) fn buffer(&self, config: &Config) -> u32 {
        if self.receive_buffer > 0 { self.receive_buffer } else { config.receive_buffer }
    }

    /// Bytes that our SYN or SYN/ACK offers.
    pub fn first_window(&self, config: &Config) -> u32 {
        window::initial(self.buffer(config), self.mss)
    }

    /// Our window scale: for all that the buffer may grow to (RFC 7323 2.2).
    pub fn scale(&self, config: &Config) -> u8 {
        let buffer = self.buffer(config);
        scale_for(if self.receive_buffer > 0 { buffer } else { config.receive_buffer_max.max(buffer) }, config)
    }
}

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
            board: Scoreboard::new(),
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
        self.board = Scoreboard::new();
        self.recovery = Recovery::new(open.iss);
        self.cc = Congestion::new(open.iss, config);
        self.stats = Statistics::default();
        self.knobs = Knobs::of(config);
        self.soft_error = None;
    }

    /// Active open (RFC 9293 3.10.1): SYN-SENT; [`Tcb::next_segment`] gives the SYN.
    pub fn connect(&mut self, open: &Open, cx: &mut Context) {
        self.renew(State::SynSent, open, cx.config);
        self.timers.heard_at = cx.now;
        // What the SYN will ask for; a SYN/ACK without the option switches it off again.
        self.set(flag::TIMESTAMPS, cx.config.timestamps);
        self.set(flag::SCALED, cx.config.window_scaling);
        self.set(flag::SACK, cx.config.sack);
        self.set(flag::ECN, cx.config.ecn == Ecn::Always);
    }

    /// Passive open (RFC 9293 3.10.7.2): SYN-RECEIVED from a segment with SYN; [`Tcb::next_segment`] gives the SYN/ACK.
    pub fn accept(&mut self, open: &Open, syn: &wire::tcp::Segment, cx: &mut Context) {
        self.renew(State::SynReceived, open, cx.config);
        self.timers.heard_at = cx.now;
        self.flags |= flag::PASSIVE;
        self.set(flag::TIMESTAMPS, cx.config.timestamps);
        self.set(flag::SCALED, cx.config.window_scaling);
        self.set(flag::SACK, cx.config.sack);
        self.set(flag::ECN, cx.config.ecn != Ecn::Never);
        self.take_syn(syn, cx);
        self.snd.wnd = syn.window as u32;
        self.snd.max_wnd = self.snd.wnd;
    }

    /// IRS, and what the peer's SYN offers (RFC 9293 3.7.1; RFC 7323 1.3: an option is on only if both SYNs had it).
    pub(crate) fn take_syn(&mut self, syn: &wire::tcp::Segment, cx: &mut Context) {
        let o: &Options = &syn.options;
        self.receiver.irs = syn.seq;
        self.rcv.nxt = syn.seq + 1;
        self.rcv.adv = self.rcv.nxt + window::initial(self.receiver.buffer, self.receiver.mss_clamp);
        self.rcv.last_ack_sent = self.rcv.nxt;
        self.snd.wl1 = syn.seq;
        self.snd.wl2 = self.snd.una;
        match (self.has(flag::SCALED), o.window_scale) {
            // RFC 7323 2.3: a shift above 14 counts as 14.
            (true, Some(shift)) => self.options.snd_scale = shift.min(14),
            _ => {
                self.set(flag::SCALED, false);
                self.options.rcv_scale = 0;
                self.options.snd_scale = 0;
            }
        }
        match (self.has(flag::TIMESTAMPS), o.timestamps) {
            (true, Some(ts)) => self.take_ts(ts.value, cx.now),
            _ => self.set(flag::TIMESTAMPS, false),
        }
        let sack = self.has(flag::SACK) && o.sack_permitted;
        self.set(flag::SACK, sack);
        self.negotiate_ecn(syn);
        self.options.smss = self.smss_for(o.mss);
    }

    /// SMSS towards a peer that offers `mss`.
    #[inline(always)]
    pub(crate) fn smss_for(&self, mss: Option<u16>) -> u16 {
        // RFC 9293 3.7.1, MUST-15: without the option the default is 536 (IPv6: 1220, RFC 8200 8.3).
        let default = if self.sender.headers >= 60 { 1220 } else { 536 };
        // Tiny offers would make every byte a packet; Linux's floor of 48 bytes holds.
        let smss = mss.unwrap_or(default).max(48).min(self.sender.path_mss);
        if self.has(flag::TIMESTAMPS) { smss.saturating_sub(12).max(36) } else { smss }
    }

    pub(crate) fn take_ts(&mut self, value: u32, now: Instant) {
        self.rcv.ts_recent = value;
        self.rcv.ts_recent_age = (now.millis() / 1000) as u32;
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
        core::mem::take(&mut self.receiver.queue)
    }

    /// Puts back bytes that could not be delivered (nothing may have arrived in between).
    pub fn put_received(&mut self, chain: Chain) {
        self.receiver.queue = chain;
    }

    /// Bytes acknowledged since the last call.
    pub fn take_acked(&mut self) -> u32 {
        self.set(flag::TELL_ACKED, false);
        core::mem::take(&mut self.sender.unreported)
    }

    /// The application waits for every acknowledged byte: what it has not heard of is reported, once there is some.
    pub fn tell_acked(&mut self) {
        self.set(flag::TELL_ACKED, true);
        if self.sender.unreported > 0 {
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
        self.rcv.nxt
    }

    /// `snd.nxt`, for TIME-WAIT records.
    pub fn snd_nxt(&self) -> SeqNum {
        self.snd.nxt
    }

    /// Segments sent, modulo 2^32.
    pub fn segments_sent(&self) -> u32 {
        self.stats.segs_out
    }

    /// `snd.una`.
    pub fn snd_una(&self) -> SeqNum {
        self.snd.una
    }

    /// Negotiated timestamps: (our clock's offset, `TS.Recent`).
    pub fn timestamps(&self) -> Option<(u32, u32)> {
        self.has(flag::TIMESTAMPS).then_some((self.options.ts_offset, self.rcv.ts_recent))
    }

    /// SEND (RFC 9293 3.10.2). The chain is freed when the connection can send no more.
    pub fn write(&mut self, chain: Chain, more: bool, cx: &mut Context) {
        let closed = matches!(self.state, State::Closed | State::TimeWait) || self.has(flag::SHUTDOWN);
        if closed {
            chain.free(cx.pool);
            return;
        }
        self.begin_to_wait(cx);
        self.sender.queue.append(cx.pool, chain);
        self.set(flag::MORE | flag::UNPUSHED, more);
    }

    /// What is queued ends a record (MSG_EOR).
    pub fn end_record(&mut self) {
        let end = self.tx_end();
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
        if self.sender.queue.is_empty() && self.board.records.is_empty() {
            self.timers.progress_at = cx.now;
        }
    }

    /// The application will neither read nor write again.
    pub fn close(&mut self, unread: bool, cx: &mut Context) {
        self.set(flag::ORPHAN, true);
        self.notice = Notice::default();
        let unread = unread || !self.receiver.queue.is_empty();
        core::mem::take(&mut self.receiver.queue).free(cx.pool);
        if unread && !matches!(self.state, State::Closed | State::TimeWait) {
            // RFC 2525 2.17 and RFC 9293 3.10.4: the peer must learn that data was lost.
            self.abort(cx);
            return;
        }
        self.shutdown(cx);
        if self.state == State::FinWait2 {
            self.timers.life_at = cx.now + cx.config.fin_timeout;
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
        self.stop_transmit_timer();
        self.timers.ack_at = Instant::FAR;
        self.timers.life_at = Instant::FAR;
        self.timers.cork_at = Instant::FAR;
        (self.board.packets_out, self.board.sacked_out, self.board.lost_out, self.board.retrans_out) = (0, 0, 0, 0);
        self.recovery.probe_due = false;
        self.recovery.head_due = false;
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
        core::mem::take(&mut self.receiver.queue).free(cx.pool);
    }

    /// What waits to be acknowledged, and what came out of order.
    fn drop_queues(&mut self, cx: &mut Context) {
        self.board.records.clear(cx.sent);
        core::mem::take(&mut self.sender.queue).free(cx.pool);
        if let Some(ooo) = self.receiver.ooo.take() {
            ooo.free(cx.pool);
        }
    }

    /// The snapshot; fields as Linux fills them.
    pub fn info(&self, now: Instant, config: &Config) -> TcpInfo {
        let ms_since = |at: Instant| now.micros_since(at) / 1000;
        // Where no data has come, Linux counts from the handshake, the last we heard of the peer.
        let data_at = if self.receiver.data_at == Instant::ZERO { self.timers.heard_at } else { self.receiver.data_at };
        TcpInfo {
            state: self.state,
            options: self.has(flag::TIMESTAMPS) as u64
                | (self.has(flag::SACK) as u64) << 1
                | (self.has(flag::SCALED) as u64) << 2
                | (self.has(flag::ECN) as u64) << 3,
            window_scale: (self.options.rcv_scale as u64) << 4 | self.options.snd_scale as u64,
            ca_state: self.recovery.phase as u64,
            backoff: self.rtt.backoff as u64,
            rto_us: self.rtt.rto(config) as u64,
            srtt_us: self.rtt.srtt as u64,
            rttvar_us: self.rtt.rttvar as u64,
            min_rtt_us: if self.rtt.min == u32::MAX { 0 } else { self.rtt.min as u64 },
            snd_mss: self.options.smss as u64,
            rcv_mss: self.receiver.mss as u64,
            pmtu: self.options.smss as u64
                + self.sender.headers as u64
                + if self.has(flag::TIMESTAMPS) { 12 } else { 0 },
            snd_cwnd: self.cc.window.cwnd as u64,
            snd_ssthresh: if self.cc.window.ssthresh == u32::MAX {
                0x7fff_ffff
            } else {
                self.cc.window.ssthresh as u64
            },
            snd_wnd: self.snd.wnd as u64,
            rcv_wnd: self.rcv.adv.since(self.rcv.nxt) as u64,
            unacked_bytes: self.snd.nxt.since(self.snd.una) as u64,
            notsent_bytes: self.unsent() as u64,
            bytes_acked: self.stats.bytes_acked,
            bytes_received: self.stats.bytes_received,
            bytes_sent: self.stats.bytes_sent,
            bytes_retrans: self.stats.bytes_retrans,
            segs_out: self.stats.segs_out as u64,
            segs_in: self.stats.segs_in as u64,
            total_retrans: self.stats.retrans as u64,
            rcv_ooopack: self.stats.ooo_in as u64,
            unacked: self.board.packets_out as u64,
            sacked: self.board.sacked_out as u64,
            lost: self.board.lost_out as u64,
            retrans: self.board.retrans_out as u64,
            reordering: self.recovery.reordering as u64,
            retransmits: self.timers.retries as u64,
            probes: self.timers.probes as u64,
            rcv_space: self.receiver.buffer as u64,
            delivered: self.recovery.delivered as u64,
            dsack_dups: self.recovery.dsack_dups as u64,
            advmss: self.receiver.mss_clamp as u64,
            last_data_sent_ms: ms_since(self.sender.sent_at),
            last_data_recv_ms: ms_since(data_at),
            last_ack_recv_ms: ms_since(self.timers.heard_at),
            reord_seen: self.recovery.reordering_seen as u64,
        }
    }
}

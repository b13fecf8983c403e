//! An idle connection in a third of the space: established, nothing under way in either direction, never in trouble. All
//! that the control block holds beyond this it would hold after being made anew.

use wire::{Instant, SeqNum};

use crate::congestion::Window;
use crate::knobs::Knobs;
use crate::loss::recovery::Recovery;
use crate::loss::scoreboard::Scoreboard;
use crate::rtt::Rtt;
use crate::snd::Idle;
use crate::timers::Keepalive;
use crate::variables::Rcv;
use crate::window::Autotune;
use crate::{Config, Notice, Open, State, Tcb, flag};

/// A time of which milliseconds matter, and not more than 24 days.
#[derive(Clone, Copy, Debug)]
struct Stamp(u32);

impl Stamp {
    fn of(at: Instant) -> Stamp {
        Stamp(at.millis() as u32)
    }

    fn at(self, now: Instant) -> Instant {
        let ago = (now.millis() as u32).wrapping_sub(self.0) as i32;
        Instant::from_micros(now.millis().saturating_sub(ago.max(0) as u64) * 1000)
    }
}

/// What is left of a parked connection's control block.
#[derive(Clone, Debug)]
pub struct Parked {
    knobs: Option<Box<Knobs>>,
    life_at: Instant,
    flags: u32,
    rcv: Rcv,
    occupied: u32,
    receive_buffer: u32,
    snd: Idle,
    unreported: u32,
    send_buffer: u32,
    rtt: Rtt,
    cc: Window,
    delivered: u32,
    tune_copied: u32,
    tune_space: u32,
    tune_rtt: u32,
    tune_echo: u32,
    tune_round: Stamp,
    /// `None` where none came.
    data_at: Option<Stamp>,
    sent_at: Stamp,
    acked_at: Stamp,
    heard_at: Stamp,
    progress_at: Stamp,
    ts_offset: u32,
    user_timeout: u32,
    iss: SeqNum,
    irs: SeqNum,
    segs_in: u32,
    segs_out: u32,
    ooo_in: u32,
    bytes_acked: u32,
    bytes_received: u32,
    bytes_sent: u32,
    rcv_mss: u16,
    smss: u16,
    mss_clamp: u16,
    headers: u16,
    keepalive: Keepalive,
    rcv_scale: u8,
    snd_scale: u8,
    quick_acks: u8,
}

/// None of these may be under way.
const UNDER_WAY: u32 = flag::ACK_NOW
    | flag::ACK_DELAYED
    | flag::ACK_LATER
    | flag::SHUTDOWN
    | flag::FIN_SENT
    | flag::FIN_RECEIVED
    | flag::CORK
    | flag::MORE
    | flag::ORPHAN
    | flag::RST_PENDING
    | flag::PROBE_NOW
    | flag::PUSH_NOW
    | flag::ECE
    | flag::CWR
    | flag::SENT_NEW
    | flag::PACED;

impl Parked {
    /// Earliest time at which the connection has something to do.
    pub fn deadline(&self) -> Instant {
        self.life_at
    }
}

impl Tcb {
    /// Whether nothing is under way: cheap, and mostly right about [`Tcb::park`].
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.state == State::Established
            && self.board.packets_out() == 0
            && self.flags & UNDER_WAY == 0
            && self.sender.is_empty()
    }

    /// When something was last heard or sent.
    pub fn last_active(&self) -> Instant {
        self.timers.heard_at().max(self.sender.sent_at())
    }

    /// What is needed to go on later with a connection that is idle; `None` where there is more to remember. The window is at
    /// most the initial one then, so no use of it is left to be judged (RFC 7661). Nothing in the block needs to be freed
    /// after it but the block.
    pub fn park(&mut self, config: &Config) -> Option<Parked> {
        let plain = self.is_idle()
            && self.notice == Notice::default()
            && self.error.is_none()
            && self.soft_error.is_none()
            && self.timers.are_idle()
            && self.rcv.unacked == 0
            && self.receiver.queue.is_empty()
            && self.receiver.ooo.is_none()
            && self.receiver.dsack.is_none()
            && self.board.is_empty()
            && self.stats.retrans == 0
            && [self.stats.bytes_acked, self.stats.bytes_received, self.stats.bytes_sent]
                .iter()
                .all(|n| *n <= u32::MAX as u64);
        let snd = Idle::of(&self.snd).filter(|_| plain && self.recovery.is_fresh() && self.cc.is_fresh(config))?;
        let tune = &self.receiver.tune;
        Some(Parked {
            knobs: self.knobs.take(),
            life_at: self.timers.life_at(),
            flags: self.flags & !flag::DISTURBED,
            rcv: self.rcv,
            occupied: self.receiver.occupied,
            receive_buffer: self.receiver.buffer,
            snd,
            unreported: self.sender.unreported(),
            send_buffer: self.sender.buffer(),
            rtt: self.rtt.clone(),
            cc: self.cc.window(),
            delivered: self.recovery.delivered(),
            tune_copied: tune.copied,
            tune_space: tune.space,
            tune_rtt: tune.rtt,
            tune_echo: tune.echo,
            tune_round: Stamp::of(tune.round),
            data_at: (self.receiver.data_at != Instant::ZERO).then(|| Stamp::of(self.receiver.data_at)),
            sent_at: Stamp::of(self.sender.sent_at()),
            acked_at: Stamp::of(self.sender.acked_at()),
            heard_at: Stamp::of(self.timers.heard_at()),
            progress_at: Stamp::of(self.timers.progress_at()),
            ts_offset: self.options.ts_offset(),
            user_timeout: self.timers.user_timeout(),
            iss: self.sender.iss(),
            irs: self.receiver.irs,
            segs_in: self.stats.segs_in,
            segs_out: self.stats.segs_out,
            ooo_in: self.stats.ooo_in,
            bytes_acked: self.stats.bytes_acked as u32,
            bytes_received: self.stats.bytes_received as u32,
            bytes_sent: self.stats.bytes_sent as u32,
            rcv_mss: self.receiver.mss,
            smss: self.options.smss,
            mss_clamp: self.receiver.mss_clamp,
            headers: self.sender.headers(),
            keepalive: self.timers.keepalive(),
            rcv_scale: self.options.rcv_scale(),
            snd_scale: self.options.snd_scale(),
            quick_acks: self.receiver.quick_acks,
        })
    }

    /// The connection again: as one that begins, but for what was kept.
    pub fn unpark(p: Parked, now: Instant, config: &Config) -> Tcb {
        let open = Open {
            iss: p.iss,
            ts_offset: p.ts_offset,
            mss: p.mss_clamp,
            path_mss: p.mss_clamp,
            receive_buffer: 0,
            headers: p.headers,
        };
        let mut tcb = Tcb::opened(State::Established, &open, config);
        let sent_at = p.sent_at.at(now);
        tcb.flags = p.flags;
        tcb.rcv = p.rcv;
        tcb.snd = p.snd.snd();
        let nxt = tcb.snd.nxt();
        tcb.options.resume(p.smss, p.rcv_scale, p.snd_scale);
        let receiver = &mut tcb.receiver;
        receiver.occupied = p.occupied;
        receiver.buffer = p.receive_buffer;
        receiver.data_at = p.data_at.map_or(Instant::ZERO, |at| at.at(now));
        receiver.mss = p.rcv_mss;
        receiver.quick_acks = p.quick_acks;
        receiver.irs = p.irs;
        receiver.tune = Autotune {
            copied: p.tune_copied,
            space: p.tune_space,
            round: p.tune_round.at(now),
            rtt: p.tune_rtt,
            timed: None,
            echo: p.tune_echo,
        };
        tcb.sender.resume(nxt, p.unreported, p.send_buffer, sent_at, p.acked_at.at(now));
        let (heard_at, progress_at) = (p.heard_at.at(now), p.progress_at.at(now));
        tcb.timers.resume(p.life_at, heard_at, progress_at, p.user_timeout, p.keepalive);
        tcb.board = Scoreboard::new(nxt);
        tcb.recovery = Recovery::resumed(nxt, p.delivered);
        tcb.cc.resume(p.cc, p.rtt.min(), nxt, sent_at, config);
        tcb.rtt = p.rtt;
        let stats = &mut tcb.stats;
        (stats.segs_in, stats.segs_out, stats.ooo_in) = (p.segs_in, p.segs_out, p.ooo_in);
        stats.bytes_acked = p.bytes_acked.into();
        stats.bytes_received = p.bytes_received.into();
        stats.bytes_sent = p.bytes_sent.into();
        tcb.knobs = p.knobs;
        tcb
    }
}

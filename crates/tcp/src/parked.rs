//! An idle connection in a third of the space: established, nothing under way in either direction, never in trouble. All
//! that the control block holds beyond this it would hold after being made anew.

use wire::{Instant, SeqNum};

use crate::congestion::Window;
use crate::knobs::Knobs;
use crate::loss::recovery::Recovery;
use crate::loss::scoreboard::Scoreboard;
use crate::rcv::{Rcv, receiver};
use crate::rtt::Rtt;
use crate::timers::Keepalive;
use crate::{Config, Notice, Open, State, Tcb, flag, snd};

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
    receiver: receiver::Idle,
    snd: snd::Idle,
    unreported: u32,
    send_buffer: u32,
    rtt: Rtt,
    cc: Window,
    delivered: u32,
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
    segs_in: u32,
    segs_out: u32,
    ooo_in: u32,
    bytes_acked: u32,
    bytes_received: u32,
    bytes_sent: u32,
    smss: u16,
    headers: u16,
    keepalive: Keepalive,
    rcv_scale: u8,
    snd_scale: u8,
}

/// None of these may be under way. Whether the window was the limit lately is not kept: with nothing out the next burst says it anew.
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
            && self.rcv.unacked() == 0
            && self.board.is_empty()
            && self.stats.retrans == 0
            && [self.stats.bytes_acked, self.stats.bytes_received, self.stats.bytes_sent]
                .iter()
                .all(|n| *n <= u32::MAX as u64);
        let snd = snd::Idle::of(&self.snd).filter(|_| plain && self.recovery.is_fresh() && self.cc.is_fresh(config))?;
        let (receiver, round) = self.receiver.keep()?;
        Some(Parked {
            knobs: self.knobs.take(),
            life_at: self.timers.life_at(),
            flags: self.flags & !flag::DISTURBED,
            rcv: self.rcv,
            receiver,
            snd,
            unreported: self.sender.unreported(),
            send_buffer: self.sender.buffer(),
            rtt: self.rtt.clone(),
            cc: self.cc.window(),
            delivered: self.recovery.delivered(),
            tune_round: Stamp::of(round),
            data_at: self.receiver.data_at().map(Stamp::of),
            sent_at: Stamp::of(self.sender.sent_at()),
            acked_at: Stamp::of(self.sender.acked_at()),
            heard_at: Stamp::of(self.timers.heard_at()),
            progress_at: Stamp::of(self.timers.progress_at()),
            ts_offset: self.options.ts_offset(),
            user_timeout: self.timers.user_timeout(),
            iss: self.sender.iss(),
            segs_in: self.stats.segs_in,
            segs_out: self.stats.segs_out,
            ooo_in: self.stats.ooo_in,
            bytes_acked: self.stats.bytes_acked as u32,
            bytes_received: self.stats.bytes_received as u32,
            bytes_sent: self.stats.bytes_sent as u32,
            smss: self.options.smss(),
            headers: self.sender.headers(),
            keepalive: self.timers.keepalive(),
            rcv_scale: self.options.rcv_scale(),
            snd_scale: self.options.snd_scale(),
        })
    }

    /// The connection again: as one that begins, but for what was kept.
    pub fn unpark(p: Parked, now: Instant, config: &Config) -> Tcb {
        let open = Open {
            iss: p.iss,
            ts_offset: p.ts_offset,
            mss: p.receiver.mss_clamp(),
            path_mss: p.receiver.mss_clamp(),
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
        let data_at = p.data_at.map_or(Instant::ZERO, |at| at.at(now));
        tcb.receiver.resume(p.receiver, p.tune_round.at(now), data_at);
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

//! An idle connection in a third of the space: established, nothing under way in either direction, never in trouble. All
//! that the control block holds beyond this it would hold after being made anew.

use wire::{Instant, SeqNum};

use crate::congestion::{Controller, Window};
use crate::knobs::Knobs;
use crate::recovery::{Phase, Recovery};
use crate::rtt::Rtt;
use crate::sent::SentList;
use crate::tcb::{Notice, Tcb, flag};
use crate::timers::Pending;
use crate::window::Autotune;
use crate::{Config, State};

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
    rcv_nxt: SeqNum,
    rcv_adv: SeqNum,
    occupied: u32,
    receive_buffer: u32,
    ts_recent: u32,
    ts_recent_age: u32,
    last_ack_sent: SeqNum,
    snd_una: SeqNum,
    snd_wnd: u32,
    max_wnd: u32,
    snd_wl1: SeqNum,
    snd_wl2: SeqNum,
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
    keep_idle: u16,
    keep_interval: u16,
    rcv_scale: u8,
    snd_scale: u8,
    quick_acks: u8,
    keep_probes: u8,
    keep_count: u8,
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
        self.state == State::Established && self.packets_out == 0 && self.flags & UNDER_WAY == 0 && self.tx.is_empty()
    }

    /// When something was last heard or sent.
    pub fn last_active(&self) -> Instant {
        self.heard_at.max(self.sent_at)
    }

    /// What is needed to go on later with a connection that is idle; `None` where there is more to remember. The window is at
    /// most the initial one then, so no use of it is left to be judged (RFC 7661). Nothing in the block needs to be freed
    /// after it but the block.
    pub fn park(&mut self, config: &Config) -> Option<Parked> {
        let r = &self.recovery;
        let plain = self.is_idle()
            && self.notice == Notice::default()
            && self.error.is_none()
            && self.soft_error.is_none()
            && self.pending == Pending::None
            && [self.rto_at, self.ack_at, self.pace_at, self.cork_at].iter().all(|at| *at == Instant::FAR)
            && self.unacked_in == 0
            && self.rx.is_empty()
            && self.ooo.is_none()
            && self.dsack.is_none()
            && self.sent.is_empty()
            && self.snd_una == self.snd_nxt
            && self.base == self.snd_nxt
            && [self.retries, self.probes, self.zero_probes] == [0; 3]
            && self.invalid_at.is_none()
            && self.retrans == 0
            && [self.bytes_acked, self.bytes_received, self.bytes_sent].iter().all(|n| *n <= u32::MAX as u64);
        let calm = r.phase == Phase::Open
            && r.lost | r.dsack_dups | (r.reordering_seen as u32) == 0
            && r.reordering == 3
            && !(r.frto | r.head_due | r.new_first | r.probe_due)
            && r.undo_marker.is_none()
            && r.retrans_stamp.is_none()
            && r.probe_high.is_none();
        let slow = self.cc.cwnd <= config.initial_window
            && self.control.is_fresh(config.congestion)
            && self.max_pacing == u64::MAX;
        if !(plain && calm && slow) {
            return None;
        }
        let tune = &self.tune;
        Some(Parked {
            knobs: self.knobs.take(),
            life_at: self.life_at,
            flags: self.flags,
            rcv_nxt: self.rcv_nxt,
            rcv_adv: self.rcv_adv,
            occupied: self.occupied,
            receive_buffer: self.receive_buffer,
            ts_recent: self.ts_recent,
            ts_recent_age: self.ts_recent_age,
            last_ack_sent: self.last_ack_sent,
            snd_una: self.snd_una,
            snd_wnd: self.snd_wnd,
            max_wnd: self.max_wnd,
            snd_wl1: self.snd_wl1,
            snd_wl2: self.snd_wl2,
            unreported: self.unreported,
            send_buffer: self.send_buffer,
            rtt: self.rtt.clone(),
            cc: self.cc,
            delivered: r.delivered,
            tune_copied: tune.copied,
            tune_space: tune.space,
            tune_rtt: tune.rtt,
            tune_echo: tune.echo,
            tune_round: Stamp::of(tune.round),
            data_at: (self.data_at != Instant::ZERO).then(|| Stamp::of(self.data_at)),
            sent_at: Stamp::of(self.sent_at),
            acked_at: Stamp::of(self.acked_at),
            heard_at: Stamp::of(self.heard_at),
            progress_at: Stamp::of(self.progress_at),
            ts_offset: self.ts_offset,
            user_timeout: self.user_timeout,
            iss: self.iss,
            irs: self.irs,
            segs_in: self.segs_in,
            segs_out: self.segs_out,
            ooo_in: self.ooo_in,
            bytes_acked: self.bytes_acked as u32,
            bytes_received: self.bytes_received as u32,
            bytes_sent: self.bytes_sent as u32,
            rcv_mss: self.rcv_mss,
            smss: self.smss,
            mss_clamp: self.mss_clamp,
            headers: self.headers,
            keep_idle: self.keep_idle,
            keep_interval: self.keep_interval,
            rcv_scale: self.rcv_scale,
            snd_scale: self.snd_scale,
            quick_acks: self.quick_acks,
            keep_probes: self.keep_probes,
            keep_count: self.keep_count,
        })
    }

    /// The connection again.
    pub fn unpark(p: Parked, now: Instant, config: &Config) -> Tcb {
        let una = p.snd_una;
        let mut recovery = Recovery::new(una);
        recovery.delivered = p.delivered;
        let tx = mem::Chain::default();
        let sent_at = p.sent_at.at(now);
        Tcb {
            state: State::Established,
            notice: Notice::default(),
            error: None,
            pending: Pending::None,
            flags: p.flags,
            rcv_nxt: p.rcv_nxt,
            rcv_adv: p.rcv_adv,
            occupied: p.occupied,
            receive_buffer: p.receive_buffer,
            unacked_in: 0,
            ts_recent: p.ts_recent,
            ts_recent_age: p.ts_recent_age,
            last_ack_sent: p.last_ack_sent,
            rcv_scale: p.rcv_scale,
            snd_scale: p.snd_scale,
            quick_acks: p.quick_acks,
            keep_probes: p.keep_probes,
            rcv_mss: p.rcv_mss,
            rx: mem::Chain::default(),
            ooo: None,
            dsack: None,
            tune: Autotune {
                copied: p.tune_copied,
                space: p.tune_space,
                round: p.tune_round.at(now),
                rtt: p.tune_rtt,
                timed: None,
                echo: p.tune_echo,
            },
            data_at: p.data_at.map_or(Instant::ZERO, |at| at.at(now)),
            snd_una: una,
            snd_nxt: una,
            snd_wnd: p.snd_wnd,
            max_wnd: p.max_wnd,
            snd_wl1: p.snd_wl1,
            snd_wl2: p.snd_wl2,
            snd_sml: una,
            base: una,
            cursor: tx.cursor(),
            tx,
            sent: SentList::new(),
            burst: 0,
            packets_out: 0,
            sacked_out: 0,
            lost_out: 0,
            retrans_out: 0,
            max_packets_out: 0,
            cwnd_usage_seq: una,
            cwnd_used: 0,
            cwnd_stamp: sent_at,
            echo: None,
            smss: p.smss,
            mss_clamp: p.mss_clamp,
            path_mss: p.mss_clamp,
            headers: p.headers,
            retries: 0,
            probes: 0,
            zero_probes: 0,
            soft_error: None,
            unreported: p.unreported,
            send_buffer: p.send_buffer,
            recovery,
            control: Controller::resumed(config.congestion, p.rtt.min),
            rtt: p.rtt,
            cc: p.cc,
            sent_at,
            acked_at: p.acked_at.at(now),
            max_pacing: u64::MAX,
            rto_at: Instant::FAR,
            ack_at: Instant::FAR,
            pace_at: Instant::FAR,
            cork_at: Instant::FAR,
            life_at: p.life_at,
            heard_at: p.heard_at.at(now),
            progress_at: p.progress_at.at(now),
            ts_offset: p.ts_offset,
            user_timeout: p.user_timeout,
            keep_idle: p.keep_idle,
            keep_interval: p.keep_interval,
            keep_count: p.keep_count,
            invalid_at: None,
            knobs: p.knobs,
            iss: p.iss,
            irs: p.irs,
            segs_in: p.segs_in,
            segs_out: p.segs_out,
            retrans: 0,
            ooo_in: p.ooo_in,
            bytes_acked: p.bytes_acked as u64,
            bytes_received: p.bytes_received as u64,
            bytes_sent: p.bytes_sent as u64,
            bytes_retrans: 0,
        }
    }
}

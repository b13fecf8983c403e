//! An idle connection in a sixth of the space: established, nothing under way in either direction. What the control block holds
//! beyond this it would hold after being made anew, or it can be told from what is kept.
//!
//! What most connections have is kept as small as it is there; the whole of it lies beside, in a box, where it does not fit.

use wire::{Instant, SeqNum};

use crate::knobs::Knobs;
use crate::loss::recovery::{Phase, Recovery};
use crate::loss::scoreboard::Scoreboard;
use crate::rcv::receiver;
use crate::rtt::Rtt;
use crate::stats::Statistics;
use crate::timers::Keepalive;
use crate::{Config, Context, Notice, Open, State, Tcb, cc, flag, loss, rcv, rtt, snd};

/// A time that has passed, in units of so many µs, at most 2^32 of them ago: not later than it was, and less than a unit earlier.
#[derive(Clone, Copy, Debug)]
struct Past<const UNIT: u64>(u32);

/// For two years.
type Long = Past<16_000>;
/// For 49 days. Keepalive counts from it, for 18 hours at most.
type Exact = Past<1_000>;

impl<const UNIT: u64> Past<UNIT> {
    fn of(at: Instant) -> Past<UNIT> {
        Past((at.micros() / UNIT) as u32)
    }

    fn at(self, now: Instant) -> Instant {
        let now = now.micros() / UNIT;
        let ago = (now as u32).wrapping_sub(self.0);
        Instant::from_micros(now.saturating_sub(ago as u64) * UNIT)
    }
}

/// A time to come, if any: not earlier than it was, and less than two milliseconds later.
#[derive(Clone, Copy, Debug)]
struct Due(u32);

impl Due {
    const NEVER: u32 = u32::MAX;

    fn of(at: Instant) -> Due {
        match at {
            Instant::FAR => Due(Due::NEVER),
            at => match at.micros().div_ceil(1000) as u32 {
                Due::NEVER => Due(0),
                ms => Due(ms),
            },
        }
    }

    fn at(self, now: Instant) -> Instant {
        if self.0 == Due::NEVER {
            return Instant::FAR;
        }
        let left = self.0.wrapping_sub(now.millis() as u32) as i32;
        Instant::from_micros((now.millis() as i64 + left as i64).max(0) as u64 * 1000)
    }
}

/// What few connections have more to say of than [`Usual`] can.
#[derive(Clone, Debug, PartialEq)]
struct Whole {
    backoff: u8,
    stats: Statistics,
    recovery: loss::recovery::Kept,
    cc: cc::Kept,
    keepalive: Keepalive,
    user_timeout: u32,
    /// When a segment out of the window was answered last, ms, low bits.
    invalid_at: Option<u32>,
    round: Option<rcv::autotune::Round>,
}

/// The same as it mostly is: what is counted fits, and no option is set.
#[derive(Clone, Copy, Debug)]
struct Usual {
    segs_in: u32,
    segs_out: u32,
    bytes_retrans: u32,
    retrans: u8,
    lost: u8,
    dsack_dups: u8,
    reordering_seen: u8,
    reordering: u8,
    rack_steps: u8,
    /// RACK's in the low five bits, the RTO's in the others.
    persist_backoff: u8,
    cwnd: u16,
    w_max: u16,
    ssthresh: u32,
    /// (A `bool` leaves room for what else a slot of a table may hold.)
    past_slow_start: bool,
}

impl Usual {
    /// What of it `whole` has, as far as it fits.
    fn of(whole: &Whole) -> Usual {
        let Whole { backoff, stats, recovery, cc, .. } = whole;
        let loss::recovery::Kept { lost, dsack_dups, reordering_seen, reordering, rack } = *recovery;
        Usual {
            segs_in: stats.segs_in,
            segs_out: stats.segs_out,
            bytes_retrans: stats.bytes_retrans as u32,
            retrans: stats.retrans as u8,
            lost: lost as u8,
            dsack_dups: dsack_dups as u8,
            reordering_seen: reordering_seen as u8,
            reordering: reordering as u8,
            rack_steps: rack.0,
            persist_backoff: rack.1 | *backoff << 5,
            cwnd: cc.cwnd as u16,
            w_max: cc.w_max as u16,
            ssthresh: cc.ssthresh,
            past_slow_start: cc.past_slow_start,
        }
    }

    /// What it stands for on a connection whose first number and next one are these, of ours and of the peer's.
    fn whole(&self, (iss, una): (SeqNum, SeqNum), (irs, nxt): (SeqNum, SeqNum), config: &Config) -> Whole {
        let sent = una.since(iss + 1) as u64;
        Whole {
            backoff: self.persist_backoff >> 5,
            stats: Statistics {
                segs_in: self.segs_in,
                segs_out: self.segs_out,
                retrans: self.retrans.into(),
                ooo_in: 0,
                bytes_acked: sent,
                bytes_received: nxt.since(irs + 1) as u64,
                bytes_sent: sent + self.bytes_retrans as u64,
                bytes_retrans: self.bytes_retrans.into(),
            },
            recovery: loss::recovery::Kept {
                lost: self.lost.into(),
                dsack_dups: self.dsack_dups.into(),
                reordering_seen: self.reordering_seen.into(),
                reordering: self.reordering.into(),
                rack: (self.rack_steps, self.persist_backoff & 31),
            },
            cc: cc::Kept {
                cwnd: self.cwnd.into(),
                ssthresh: self.ssthresh,
                w_max: self.w_max.into(),
                past_slow_start: self.past_slow_start,
                algorithm: config.congestion,
                max_pacing: u64::MAX,
                use_since: None,
            },
            keepalive: Keepalive::new(config),
            user_timeout: 0,
            invalid_at: None,
            round: None,
        }
    }
}

/// Beside [`Usual`], in a box.
#[derive(Clone, Debug)]
struct Rare {
    knobs: Option<Box<Knobs>>,
    whole: Whole,
}

/// What is left of a parked connection's control block.
#[derive(Clone, Debug)]
pub struct Parked {
    rare: Option<Box<Rare>>,
    usual: Usual,
    flags: u32,
    rcv: rcv::Idle,
    receiver: receiver::Idle,
    snd: snd::Idle,
    rtt: rtt::Kept,
    unreported: u32,
    send_buffer: u32,
    delivered: u32,
    life_at: Due,
    data_at: Long,
    sent_at: Long,
    heard_at: Exact,
    ts_offset: u32,
    iss: SeqNum,
    smss: u16,
    /// Ours in the low half, the peer's in the high one.
    scales: u8,
    bits: u8,
}

/// The bits: quick ACKs left, and what else is true of it.
mod bit {
    pub const QUICK_ACKS: u8 = 31;
    /// Headers of IPv6.
    pub const V6: u8 = 1 << 5;
    /// Data has come.
    pub const DATA_CAME: u8 = 1 << 6;
    /// The window was reduced, and the peer has not heard of it.
    pub const REDUCED: u8 = 1 << 7;
}

/// Bytes of IP and TCP headers by the bit.
fn headers(bits: u8) -> u16 {
    if bits & bit::V6 != 0 { 60 } else { 40 }
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
    | flag::RESET_BEHIND
    | flag::PROBE_NOW
    | flag::PUSH_NOW
    | flag::SENT_NEW
    | flag::PACED;

impl Parked {
    /// Bytes that it takes, with what lies beside it.
    pub fn bytes(&self) -> usize {
        let beside = |rare: &Rare| size_of::<Rare>() + rare.knobs.as_ref().map_or(0, |_| size_of::<Knobs>());
        size_of::<Parked>() + self.rare.as_deref().map_or(0, beside)
    }

    /// Earliest time at which the connection has something to do.
    pub fn deadline(&self, now: Instant) -> Instant {
        self.life_at.at(now)
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

    /// Until when what is over may still be answered in a way that counts, if it may: for an RTO after the last that was heard or sent.
    /// Then it is over ([`Tcb::rest`]).
    pub fn lingers_until(&self) -> Option<Instant> {
        // The phase of a reduction that the peer has not heard of stays: its ECE would count twice.
        let reduced = self.recovery.phase() == Phase::Cwr && !self.has(flag::CWR);
        let lingers = self.recovery.lingers() || reduced || !self.board.is_clean();
        lingers.then(|| self.last_active().plus_micros(self.rtt.unbacked() as u64))
    }

    /// No such answer is awaited any more. A reduction has come to its end, as one does whose acknowledgment goes beyond it; a probe that
    /// was a retransmission repaired a loss, or the peer would have reported a duplicate (RFC 8985 7.4).
    pub fn rest(&mut self, cx: &mut Context) {
        if self.recovery.probe.is_again() {
            self.probe_repaired(cx);
        }
        if self.recovery.reducing() {
            self.end_reduction();
        }
        let told = self.recovery.phase() != Phase::Cwr || !self.has(flag::CWR);
        self.recovery.rest(if told { Phase::Open } else { Phase::Cwr }, self.snd.nxt());
        self.board.reset_duplicates();
        self.judge_disturbance();
    }

    /// When something was last heard or sent.
    pub fn last_active(&self) -> Instant {
        self.timers.heard_at().max(self.sender.sent_at())
    }

    /// What is needed to go on later with a connection that is idle; `None` where something is under way. Nothing in the block needs
    /// to be freed after it but the block. `config` is to be the same when it goes on.
    pub fn park(&mut self, now: Instant, config: &Config) -> Option<Parked> {
        let plain = self.is_idle()
            && self.notice == Notice::default()
            && self.error.is_none()
            && self.soft_error.is_none()
            && self.timers.are_idle()
            && self.board.is_empty()
            && self.lingers_until().is_none();
        let snd = snd::Idle::of(&self.snd).filter(|_| plain)?;
        let (rcv, (receiver, quick_acks)) = (rcv::Idle::of(&self.rcv)?, self.receiver.keep()?);
        let whole = Whole {
            backoff: self.rtt.backoff(),
            stats: self.stats.clone(),
            recovery: self.recovery.keep(),
            cc: self.cc.keep(self.sender.sent_at(), now, &self.rtt, config),
            keepalive: self.timers.keepalive(),
            user_timeout: self.timers.user_timeout(),
            invalid_at: self.timers.invalid_at(now.millis() as u32, config.invalid_ratelimit.as_millis() as u32),
            round: self.receiver.round(now),
        };
        let usual = Usual::of(&whole);
        let (ours, theirs) = ((self.sender.iss(), self.snd.una()), (self.receiver.irs(), self.rcv.nxt()));
        let fits = self.knobs.is_none() && usual.whole(ours, theirs, config) == whole;
        let data_at = self.receiver.data_at();
        let on = |bit, on| if on { bit } else { 0 };
        let bits = quick_acks
            | on(bit::V6, self.sender.headers() == headers(bit::V6))
            | on(bit::DATA_CAME, data_at.is_some())
            | on(bit::REDUCED, self.recovery.phase() == Phase::Cwr);
        if quick_acks > bit::QUICK_ACKS || self.sender.headers() != headers(bits) {
            return None;
        }
        Some(Parked {
            rare: if fits { None } else { Some(Box::new(Rare { knobs: self.knobs.take(), whole })) },
            usual,
            flags: self.flags & !flag::DISTURBED,
            rcv,
            receiver,
            snd,
            rtt: self.rtt.keep(),
            unreported: self.sender.unreported(),
            send_buffer: self.sender.buffer(),
            delivered: self.recovery.delivered(),
            life_at: Due::of(self.timers.life_at()),
            data_at: Long::of(data_at.unwrap_or(Instant::ZERO)),
            sent_at: Long::of(self.sender.sent_at()),
            heard_at: Exact::of(self.timers.heard_at()),
            ts_offset: self.options.ts_offset(),
            iss: self.sender.iss(),
            smss: self.options.smss(),
            scales: self.options.rcv_scale() | self.options.snd_scale() << 4,
            bits,
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
            headers: headers(p.bits),
        };
        let mut tcb = Tcb::opened(State::Established, &open, config);
        let sent_at = p.sent_at.at(now);
        tcb.flags = p.flags;
        tcb.rcv = p.rcv.rcv();
        tcb.snd = p.snd.snd();
        let (nxt, irs) = (tcb.snd.nxt(), p.receiver.irs());
        let (knobs, whole) = match p.rare {
            Some(rare) => (rare.knobs, rare.whole),
            None => (None, p.usual.whole((p.iss, nxt), (irs, tcb.rcv.nxt()), config)),
        };
        tcb.options.resume(p.smss, p.scales & 15, p.scales >> 4);
        let data_at = if p.bits & bit::DATA_CAME != 0 { p.data_at.at(now) } else { Instant::ZERO };
        tcb.receiver.resume(p.receiver, p.bits & bit::QUICK_ACKS, whole.round, now, data_at);
        tcb.sender.resume(nxt, p.unreported, p.send_buffer, sent_at);
        tcb.timers.resume(p.life_at.at(now), p.heard_at.at(now), whole.user_timeout, whole.keepalive, whole.invalid_at);
        tcb.board = Scoreboard::new(nxt);
        tcb.recovery = Recovery::resumed(nxt, p.delivered, p.rtt.srtt(), &whole.recovery);
        if p.bits & bit::REDUCED != 0 {
            tcb.recovery.set_phase(Phase::Cwr);
        }
        tcb.cc.resume(&whole.cc, p.rtt.min(), nxt, sent_at);
        tcb.rtt = Rtt::resumed(p.rtt, whole.backoff);
        tcb.stats = whole.stats;
        tcb.knobs = knobs;
        tcb.judge_disturbance();
        tcb
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_was_in_trouble_takes_no_more() {
        // A box more would be beyond what an idle connection may take.
        assert!(size_of::<Parked>() <= 152, "{}", size_of::<Parked>());
    }

    #[test]
    fn times_that_have_passed_are_never_late() {
        const DAY: u64 = 86_400_000_000;
        for ago in [0, 1, 15_999, 16_000, 16_001, 1_000_000, 25 * DAY, 50 * DAY, 700 * DAY] {
            let now = Instant::from_micros(1000 * DAY + 12_345);
            let at = Instant::from_micros(now.micros() - ago);
            let kept = Long::of(at).at(now);
            assert!(kept <= at && at.micros_since(kept) < 16_000, "{ago}: {at:?}, {kept:?}");
            let kept = Exact::of(at).at(now);
            assert!(ago > 49 * DAY || kept <= at && at.micros_since(kept) < 1_000, "{ago}: {at:?}, {kept:?}");
        }
        assert_eq!(Long::of(Instant::ZERO).at(Instant::from_micros(20_000)), Instant::ZERO);
    }

    #[test]
    fn times_to_come_are_never_early() {
        let now = Instant::from_micros(u32::MAX as u64 * 1000 - 5_000);
        for ahead in [0, 1, 999, 1000, 4_999, 5_000, 5_001, 86_400_000_000] {
            let at = now.plus_micros(ahead);
            let kept = Due::of(at).at(now);
            assert!(kept >= at && kept.micros_since(at) < 2000, "{ahead}: {at:?}, {kept:?}");
        }
        assert_eq!(Due::of(Instant::FAR).at(now), Instant::FAR);
        let past = Due::of(now).at(now.plus_micros(3_000_000));
        assert!(past <= now.plus_micros(1000), "{past:?}");
    }
}

//! What the path tells beside acknowledgments: ICMP errors (RFC 9293 3.9.2.2, RFC 5927) and its MTU (RFC 1191, RFC 8201),
//! or that large segments vanish (RFC 4821 7.7).

use core::time::Duration;

use wire::{Instant, SeqNum};

use crate::knobs::{Doubt, Hole};
use crate::loss::recovery::Phase;
use crate::loss::sent::mark;
use crate::{Context, Error, State, Tcb, flag};

/// Smallest packets that a black hole takes us down to: what every host must take (RFC 791, RFC 8200 5).
const LEAST_V4: u16 = 576;
const LEAST_V6: u16 = 1280;
/// How often in a row full segments are lost, and small ones get through, before a path is believed to be a black hole. Each time
/// at least one full segment is lost, besides those whose timeouts raised the suspicion, so loss of a third is taken for a black
/// hole less than once in two thousand suspicions.
const ROUNDS: u8 = 4;
/// Full segments are tried again after this time, and then after twice as long each time, up to RFC 8899's PMTU_RAISE_TIMER.
const FIRST_RAISE: Duration = Duration::from_secs(10);
const LAST_RAISE: Duration = Duration::from_secs(600);

impl Doubt {
    /// Whether what was first sent at `seq` went in full segments.
    fn counts(&self, seq: SeqNum) -> bool {
        let small = !seq.before(self.from) && seq.before(self.to);
        let before = self.raises > 0 && seq.before(self.to);
        !small && !before && self.end.is_none_or(|end| seq.before(end))
    }
}

/// Small segments for a while.
fn found(doubt: Doubt, now: Instant) -> Hole {
    let wait = FIRST_RAISE.saturating_mul(1 << doubt.raises.min(6)).min(LAST_RAISE);
    Hole::Found(Doubt { rounds: ROUNDS - 1, end: None, at: now + wait, ..doubt })
}

impl Tcb {
    /// RFC 5927 4.1: the quoted sequence number must be one that is in flight, SND.UNA <= SEG.SEQ < SND.NXT.
    fn quoted_ours(&self, seq: Option<SeqNum>) -> bool {
        seq.is_none_or(|seq| self.snd.is_out(seq))
    }

    /// An ICMP error about it: fatal while being opened where it is `hard`, else only remembered (RFC 9293 3.9.2.2,
    /// SHLD-25, MUST-56; RFC 5927 5.2: a synchronized connection is not reset). Whether it was about this connection.
    pub fn unreachable(&mut self, hard: bool, seq: Option<SeqNum>, cx: &mut Context) -> bool {
        if !self.quoted_ours(seq) {
            return false;
        }
        match self.state {
            State::SynSent | State::SynReceived if hard => self.close_now(Some(Error::Unreachable), cx),
            State::Closed | State::TimeWait => {}
            _ => self.soft_error = Some(Error::Unreachable),
        }
        true
    }

    /// The path takes segments of at most `mss` bytes, options of the TCP header included (RFC 1191 6.5, RFC 8201 5.4).
    pub fn shrink_mss(&mut self, mss: u16, seq: Option<SeqNum>, cx: &mut Context) -> bool {
        if !self.quoted_ours(seq) {
            return false;
        }
        // What our SYN offers is what we can receive, which is not this path's matter (RFC 9293 3.7.1, MUST-67; RFC 8201 5.4).
        let known = self.sender.narrow(mss) && !self.established();
        let mss = if self.has(flag::TIMESTAMPS) { mss.saturating_sub(12) } else { mss }.max(36);
        if mss >= self.options.smss() {
            // Small only because longer ones may be lost: what is tried again fits as well.
            self.limit_doubt(mss);
            return known;
        }
        if let Some(k) = &mut self.knobs {
            k.hole = Hole::None;
        }
        self.lower_mss(mss, cx);
        true
    }

    fn lower_mss(&mut self, mss: u16, cx: &mut Context) {
        let old = self.options.set_smss(mss) as u32;
        // What was too big is lost for certain and goes again at once, smaller, without being taken for congestion (RFC 1191 6.4).
        let lost = self.board.resize(cx.sent, old, mss as u32, self.snd.una());
        self.note_lost(lost, cx);
        if self.board.lost_out() > 0 && self.recovery.phase() < Phase::Recovery {
            self.cc.keep_borne();
            self.recovery.enter_loss_of_size(self.snd.nxt());
        }
        self.judge_disturbance();
    }

    /// A timeout has come. Where full segments are lost time after time while small ones get through, the path has a smaller MTU
    /// and does not say so (RFC 4821 7.7). Loss that has nothing to do with size must not be taken for that, so timeouts only
    /// raise a suspicion: the lost segment goes in small ones, then full ones are tried again, and only [`ROUNDS`] failures in a row
    /// decide. A segment that arrives and is as long as those that were lost clears the path.
    pub(crate) fn detect_black_hole(&mut self, cx: &mut Context) {
        let after = cx.config.black_hole_timeouts;
        let least = if self.sender.is_v6() { LEAST_V6 } else { LEAST_V4 };
        let floor = least - self.sender.headers() - if self.has(flag::TIMESTAMPS) { 12 } else { 0 };
        let head = self.board.first(cx.sent).map_or(0, |s| s.bytes());
        if after == 0 || !self.established() || head <= floor as u32 {
            return;
        }
        let (nxt, smaller) = (self.snd.nxt(), (self.options.smss() / 2).max(floor));
        let lost = head.min(self.options.smss() as u32) as u16;
        let hole = self.knobs.as_ref().map_or(Hole::None, |k| k.hole);
        let next = match hole {
            Hole::None if self.timers.retries() >= after && self.options.smss() > floor => {
                let (full, small) = (self.options.smss(), smaller);
                let doubt =
                    Doubt { full, small, lost, rounds: 0, raises: 0, from: nxt, to: nxt, end: None, at: Instant::ZERO };
                // What has been SACKed may have arrived before the path became narrower, so it does not speak against it.
                Hole::Suspected(doubt)
            }
            // Nothing gets through: perhaps it is an outage, perhaps even these are too large.
            Hole::Suspected(doubt) if self.options.smss() > floor => Hole::Suspected(Doubt { small: smaller, ..doubt }),
            Hole::Trying(doubt) if head > doubt.small as u32 => {
                let (lost, arrived) = (lost.min(doubt.lost), self.longest_arrived(&doubt, true, cx));
                if arrived >= lost {
                    return self.clear_hole(doubt.full);
                }
                let (small, rounds) = (doubt.small.max(arrived), doubt.rounds.saturating_add(1));
                let doubt = Doubt { small, lost, rounds, ..doubt };
                match doubt.rounds < ROUNDS {
                    true => Hole::Suspected(Doubt { from: nxt, to: nxt, ..doubt }),
                    false => {
                        cx.counters.black_holes += (doubt.raises == 0) as u64;
                        found(doubt, cx.now)
                    }
                }
            }
            // The path has become narrower still, or nothing gets through.
            Hole::Found(doubt) if self.timers.retries() >= after && self.options.smss() > floor => {
                let lost = lost.min(doubt.lost);
                Hole::Suspected(Doubt { small: smaller, lost, rounds: 0, from: nxt, to: nxt, end: None, ..doubt })
            }
            _ => return,
        };
        if let Hole::Suspected(doubt) | Hole::Found(doubt) = next
            && doubt.small < self.options.smss()
        {
            self.lower_mss(doubt.small, cx);
        }
        self.knobs_mut().hole = next;
    }

    /// Whether nothing is believed of black holes.
    #[inline]
    pub(crate) fn path_is_clear(&self) -> bool {
        self.knobs.as_ref().is_none_or(|k| matches!(k.hole, Hole::None))
    }

    /// `snd.una` has advanced, and what was acknowledged still has its records.
    pub(crate) fn judge_black_hole(&mut self, cx: &Context) {
        if !self.path_is_clear() {
            self.judge(cx);
        }
    }

    #[cold]
    fn judge(&mut self, cx: &Context) {
        let (una, nxt) = (self.snd.una(), self.snd.nxt());
        let Some(k) = &self.knobs else { return };
        let hole = k.hole;
        let (Hole::Suspected(doubt) | Hole::Trying(doubt) | Hole::Found(doubt)) = hole else { return };
        let mut known = if let Hole::Suspected(_) = hole { Doubt { to: nxt, ..doubt } } else { doubt };
        if !matches!(hole, Hole::Found(_)) {
            let arrived = self.longest_arrived(&known, false, cx);
            if arrived >= known.lost {
                return self.clear_hole(doubt.full);
            }
            known.small = known.small.max(arrived);
        }
        let (next, size) = match hole {
            // Small segments get through. Perhaps only an outage has ended: full ones are tried once more.
            Hole::Suspected(_) => (Hole::Trying(known), doubt.full),
            Hole::Trying(_) if known.raises > 0 => match known.end {
                Some(end) if !una.before(end) => (found(known, cx.now), known.small),
                Some(_) => return,
                // As many as one acknowledgment lets go, so that a path that still swallows them costs little.
                None if self.full_sent(&known, cx) => (Hole::Trying(Doubt { end: Some(nxt), ..known }), known.small),
                None => return,
            },
            Hole::Trying(_) => (Hole::Trying(known), self.options.smss()),
            // RFC 4821 7.7, RFC 8899 4.3: the path may have changed.
            Hole::Found(d) if d.at <= cx.now => {
                let raises = d.raises.saturating_add(1);
                (Hole::Trying(Doubt { raises, from: una, to: nxt, end: None, ..d }), d.full)
            }
            _ => return,
        };
        self.options.set_smss(size);
        self.knobs_mut().hole = next;
    }

    fn clear_hole(&mut self, full: u16) {
        self.options.set_smss(full);
        self.knobs_mut().hole = Hole::None;
    }

    /// The longest segment, of those that were not sent again in small ones since, that has arrived: SACKed, where `sacked`, or
    /// acknowledged cumulatively. 0 where none has.
    fn longest_arrived(&self, doubt: &Doubt, sacked: bool, cx: &Context) -> u16 {
        let mut longest = 0;
        for s in self.board.iter(cx.sent) {
            let acked = if s.end().after(self.snd.una()) { self.snd.una().since(s.seq) } else { s.bytes() };
            let arrived = match sacked {
                true if s.is(mark::SACKED) => s.bytes(),
                false if s.seq.before(self.snd.una()) => acked,
                true => 0,
                false => break,
            };
            if doubt.counts(s.seq) {
                longest = longest.max(arrived.min(doubt.full as u32) as u16);
            }
        }
        longest
    }

    /// Whether something longer than a small segment has been sent since full ones are tried.
    fn full_sent(&self, doubt: &Doubt, cx: &Context) -> bool {
        self.board.iter(cx.sent).any(|s| s.bytes() > doubt.small as u32 && doubt.counts(s.seq))
    }

    /// TCP_MAXSEG: clamps what is sent.
    pub fn clamp_mss(&mut self, mss: u16) {
        if mss > 0 {
            self.options.set_smss(self.options.smss().min(mss.max(36)));
            self.limit_doubt(mss.max(36));
        }
    }

    /// Full segments are no longer than this, whatever is believed of black holes.
    fn limit_doubt(&mut self, mss: u16) {
        if let Some(Hole::Suspected(d) | Hole::Trying(d) | Hole::Found(d)) = self.knobs.as_mut().map(|k| &mut k.hole) {
            d.full = d.full.min(mss);
        }
    }
}

//! What the path tells beside acknowledgments: ICMP errors (RFC 9293 3.9.2.2, RFC 5927) and its MTU (RFC 1191, RFC 8201),
//! or that large segments vanish (RFC 4821 7.7).

use wire::SeqNum;

use crate::State;
use crate::knobs::Hole;
use crate::tcb::{Context, Error, Tcb, flag};

/// Smallest packets that a black hole takes us down to: what every host must take (RFC 791, RFC 8200 5).
const LEAST_V4: u16 = 576;
const LEAST_V6: u16 = 1280;

impl Tcb {
    /// RFC 5927 4.1: the quoted sequence number must be one that is in flight, SND.UNA <= SEG.SEQ < SND.NXT.
    fn quoted_ours(&self, seq: Option<SeqNum>) -> bool {
        seq.is_none_or(|seq| !seq.before(self.snd_una) && seq.before(self.snd_nxt))
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
        let known = mss < self.path_mss && !self.established();
        self.path_mss = self.path_mss.min(mss.max(48));
        let mss = if self.has(flag::TIMESTAMPS) { mss.saturating_sub(12) } else { mss }.max(36);
        if mss >= self.smss {
            return known;
        }
        if let Some(k) = &mut self.knobs {
            k.hole = Hole::None;
        }
        self.lower_mss(mss, cx);
        true
    }

    fn lower_mss(&mut self, mss: u16, cx: &mut Context) {
        let old = core::mem::replace(&mut self.smss, mss) as u32;
        self.forget_reported();
        // Each record is counted in segments of the new size; what was too big is lost for certain and goes again at
        // once, smaller, without being taken for congestion (RFC 1191 6.4).
        let mut at = self.sent.head();
        while let Some(i) = at {
            let s = self.sent.get(cx.sent, i);
            at = self.sent.next(cx.sent, i);
            // Of several segments the last may have been short, the others were full.
            let largest = if s.segs > 1 { s.bytes().min(old) } else { s.bytes() };
            let too_big = largest > mss as u32;
            let segs = s.bytes().div_ceil(mss as u32).max(1);
            self.recount(s.segs as u32, segs, s.marks);
            self.sent.get_mut(cx.sent, i).segs = segs.min(u16::MAX as u32) as u16;
            if too_big {
                self.mark_lost(i, cx);
            }
        }
        if self.lost_out > 0 && self.recovery.phase < crate::recovery::Phase::Recovery {
            // Linux: Loss without a reduction, so that what is sent again is clocked out.
            self.recovery.high_seq = self.snd_nxt;
            self.cc.ssthresh = self.cc.borne();
            self.recovery.prior_ssthresh = 0;
            self.recovery.undo_marker = None;
            self.recovery.phase = crate::recovery::Phase::Loss;
        }
    }

    /// A timeout has come: if full-sized segments have vanished again and again while small ones pass, the path has a
    /// smaller MTU and does not say so.
    pub(crate) fn detect_black_hole(&mut self, cx: &mut Context) {
        let after = cx.config.black_hole_timeouts;
        let least = if self.headers >= 60 { LEAST_V6 } else { LEAST_V4 };
        let floor = least - self.headers - if self.has(flag::TIMESTAMPS) { 12 } else { 0 };
        if after == 0 || self.retries < after || self.smss <= floor || !self.established() {
            return;
        }
        let large = self.sent.front(cx.sent).is_some_and(|s| s.bytes() > floor as u32);
        if large {
            cx.counters.black_holes += 1;
            let full = self.smss;
            let k = self.knobs_mut();
            k.hole = match k.hole {
                Hole::None => Hole::Suspected { full },
                Hole::Trying { .. } | Hole::Sure => Hole::Sure,
                suspected => suspected,
            };
            let half = (self.smss / 2).max(floor);
            self.lower_mss(half, cx);
        }
    }

    /// Something got through. Perhaps only an outage has ended, so full segments are tried once more: one that vanishes
    /// again settles it, one that arrives clears the path of suspicion.
    pub(crate) fn try_full_segments(&mut self) {
        let (una, nxt) = (self.snd_una, self.snd_nxt);
        let Some(k) = &mut self.knobs else { return };
        match k.hole {
            Hole::Suspected { full } => {
                k.hole = Hole::Trying { full, from: nxt };
                self.smss = full;
            }
            Hole::Trying { full, from } if una.after(from + full as u32) => k.hole = Hole::None,
            Hole::None | Hole::Trying { .. } | Hole::Sure => {}
        }
    }

    /// TCP_MAXSEG: clamps what is sent.
    pub fn clamp_mss(&mut self, mss: u16) {
        if mss > 0 {
            self.smss = self.smss.min(mss.max(36));
            if let Some(Hole::Suspected { full }) = self.knobs.as_mut().map(|k| &mut k.hole) {
                *full = (*full).min(mss.max(36));
            }
        }
    }
}

//! What an acknowledgment does: frees what was sent, measures the path, moves the send window (RFC 9293 3.10.7.4).

use wire::tcp::Segment;

use crate::State;
use crate::congestion::AckSample;
use crate::sent::mark;
use crate::tcb::{Context, Notice, Tcb, flag};

impl Tcb {
    /// Sequence number of the first byte not yet queued.
    pub(crate) fn tx_end(&self) -> wire::SeqNum {
        self.base + self.tx.len() as u32
    }

    /// Queued bytes never sent.
    pub(crate) fn unsent(&self) -> u32 {
        let end = self.tx_end();
        if self.snd_nxt.before(self.base) {
            self.tx.len() as u32
        } else if self.snd_nxt.before(end) {
            end.since(self.snd_nxt)
        } else {
            0
        }
    }

    /// Takes an acceptable acknowledgment; `true` when our FIN is covered by it.
    pub(crate) fn take_ack(&mut self, seg: &Segment, cx: &mut Context) {
        let ack = seg.ack;
        let window = (seg.window as u32) << self.snd_scale;
        if ack.after(self.snd_una) {
            self.advance(ack, cx);
            self.update_window(seg, window);
        } else {
            // RFC 5681 2: outstanding data, no payload, neither SYN nor FIN, same acknowledgment, same window.
            let dup = ack == self.snd_una
                && self.snd_nxt != self.snd_una
                && seg.payload.is_empty()
                && !seg.flags.contains(wire::tcp::Flags::FIN)
                && window == self.snd_wnd;
            self.update_window(seg, window);
            if dup {
                self.on_dup_ack(cx);
            }
        }
    }

    /// RFC 9293 3.10.7.4: SND.WL1 and SND.WL2 keep old segments from setting the window.
    fn update_window(&mut self, seg: &Segment, window: u32) {
        let newer = self.snd_wl1.before(seg.seq) || (self.snd_wl1 == seg.seq && self.snd_wl2.before_eq(seg.ack));
        if !newer || seg.ack.before(self.snd_una) {
            return;
        }
        self.snd_wnd = window;
        self.max_wnd = self.max_wnd.max(window);
        self.snd_wl1 = seg.seq;
        self.snd_wl2 = seg.ack;
        if window > 0 && self.has(flag::PERSIST) {
            self.set(flag::PERSIST | flag::PROBE_NOW, false);
            self.probes = 0;
            self.rtt.backoff = 0;
            self.rto_at = wire::Instant::FAR;
        }
    }

    fn advance(&mut self, ack: wire::SeqNum, cx: &mut Context) {
        let flight = self.snd_nxt.since(self.snd_una);
        self.snd_una = ack;
        self.progress_at = cx.now;
        self.retries = 0;

        let mut timed = None;
        while let Some(s) = self.sent.front(cx.sent) {
            if s.end().after(ack) {
                if s.seq.before(ack) {
                    let cut = ack.since(s.seq);
                    let lost = s.is(mark::LOST);
                    s.seq = ack;
                    s.len -= cut;
                    s.marks &= !mark::SYN;
                    if lost {
                        self.lost -= cut;
                    }
                }
                break;
            }
            let s = self.sent.pop(cx.sent).expect("front exists");
            if s.is(mark::LOST) {
                self.lost -= s.len;
            }
            // RFC 6298 3 (Karn): only what was sent once; the oldest of them, so that a delayed ACK counts.
            if !s.is(mark::AGAIN) && timed.is_none() {
                timed = Some((cx.now.micros() as u32).wrapping_sub(s.at));
            }
        }
        match timed {
            Some(r) => self.rtt.sample(r, cx.config),
            // RFC 6298 5.7 leaves the backed-off RTO until a sample comes; new data acknowledged ends the series.
            None => self.rtt.backoff = 0,
        }

        let end = self.tx_end();
        let data = if ack.before_eq(self.base) { 0 } else { ack.min(end).since(self.base) };
        if data > 0 {
            self.tx.consume(cx.pool, data as usize);
            self.base += data;
            self.bytes_acked += data as u64;
            self.unreported += data;
            // Reported when it is worth an event: a quarter of the buffer.
            if self.unreported >= self.send_buffer / 4 && !self.orphaned() {
                self.put_notice(Notice::ACKED);
            }
            let acked =
                AckSample { acked: data, flight, smss: self.smss as u32, window_limited: self.has(flag::CWND_LIMITED) };
            if self.on_new_ack(data, cx) {
                self.control.get_mut().on_ack(&acked);
            }
        } else {
            self.dup_acks = 0;
        }
        // RFC 6298 5.2, 5.3.
        if self.sent.is_empty() {
            self.rto_at = wire::Instant::FAR;
            self.set(flag::CWND_LIMITED, false);
        } else {
            self.arm_rto(cx);
        }
    }

    /// Whether our FIN was sent and acknowledged.
    pub(crate) fn fin_acked(&self) -> bool {
        self.has(flag::FIN_SENT) && self.snd_una == self.snd_nxt
    }

    /// SO_SNDBUF, for the rhythm of reports.
    pub fn set_send_buffer(&mut self, bytes: u32) {
        self.send_buffer = bytes.max(2048);
    }

    /// Whether the connection exists for the application: past the handshake.
    pub fn established(&self) -> bool {
        !matches!(self.state, State::Closed | State::Listen | State::SynSent | State::SynReceived)
    }
}

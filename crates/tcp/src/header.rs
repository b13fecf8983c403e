//! What an outgoing segment says of the other direction: the window, timestamps, SACK blocks.

use wire::SeqNum;
use wire::tcp::{Options, SackBlocks};

use crate::{Context, State, Tcb, flag};

impl Tcb {
    /// Moves the right edge as far as the buffer allows and gives the window field's value.
    #[inline(always)]
    pub(crate) fn offer_window(&mut self, syn: bool, cx: &Context) -> u16 {
        if syn {
            // RFC 7323 2.2: the window of a segment with SYN is not scaled; of a SYN/ACK it is as when the SYN was taken.
            return match self.state {
                State::SynSent => self.receiver.first_window() as u16,
                _ => self.rcv.window().min(0xffff) as u16,
            };
        }
        let ahead = self.ahead(cx);
        self.receiver.offer(&mut self.rcv, self.options.rcv_scale(), ahead)
    }

    /// Options of an outgoing segment.
    #[inline]
    pub(crate) fn options(&mut self, syn: bool, cx: &mut Context) -> Options {
        let timestamps = self.has(flag::TIMESTAMPS).then(|| {
            let value = self.options.clock(cx.now);
            // RFC 7323 3.2: TSecr is zero while ACK is not set.
            let echo = if self.state == State::SynSent { 0 } else { self.rcv.ts_recent() };
            wire::tcp::Timestamps { value, echo }
        });
        if syn {
            return Options {
                mss: Some(self.receiver.mss_clamp()),
                window_scale: self.has(flag::SCALED).then_some(self.options.rcv_scale()),
                sack_permitted: self.has(flag::SACK),
                timestamps,
                ..Options::default()
            };
        }
        let sack = match self.receiver.has_blocks() {
            true => self.sack_blocks(cx),
            false => SackBlocks::default(),
        };
        Options { timestamps, sack, ..Options::default() }
    }

    #[cold]
    fn sack_blocks(&mut self, cx: &mut Context) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        if self.has(flag::SACK) {
            // RFC 2883 4: a duplicate is reported once, first.
            if let Some((left, right)) = self.receiver.take_duplicate() {
                cx.counters.dsacks_out += 1;
                blocks.push(left, right);
            }
            for (left, right) in self.receiver.blocks() {
                blocks.push(left, right);
            }
        }
        blocks
    }

    /// `left..right` came twice (RFC 2883 4).
    pub(crate) fn note_duplicate(&mut self, left: SeqNum, right: SeqNum) {
        if self.has(flag::SACK) {
            self.receiver.note_duplicate(left, right);
        }
    }
}

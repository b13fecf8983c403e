//! The send half of a control block: what the application has queued, from the first byte that is not acknowledged on.

use mem::{Chain, Cursor};
use wire::{Instant, SeqNum};

use crate::{Config, Open};

#[derive(Debug)]
pub(crate) struct Sender {
    /// From `base` on: sent and not acknowledged, then not sent.
    pub queue: Chain,
    pub cursor: Cursor,
    /// Sequence number of the first byte in `queue`.
    pub base: SeqNum,
    /// End of the last partial segment sent, for Nagle as Minshall amended it.
    pub sml: SeqNum,
    /// Segments of the burst being sent, for PSH.
    pub burst: u32,
    /// Acknowledged bytes not reported to the application.
    pub unreported: u32,
    /// SO_SNDBUF.
    pub buffer: u32,
    /// When data was sent last, and when some was acknowledged last.
    pub sent_at: Instant,
    pub acked_at: Instant,
    /// ISS.
    pub iss: SeqNum,
    /// What the path takes, as far as it is known before the peer's SYN is there; SMSS counts afterwards.
    pub path_mss: u16,
    pub headers: u16,
}

impl Sender {
    #[inline(always)]
    pub fn new(open: &Open, config: &Config) -> Sender {
        let queue = Chain::default();
        Sender {
            cursor: queue.cursor(),
            queue,
            base: open.iss + 1,
            sml: open.iss,
            burst: 0,
            unreported: 0,
            buffer: config.send_buffer,
            sent_at: Instant::ZERO,
            acked_at: Instant::ZERO,
            iss: open.iss,
            path_mss: open.path_mss.min(open.mss),
            headers: open.headers,
        }
    }
}

//! What every call needs from outside: time, memory, parameters and statistics, all of the stack that the connection lives in.

use mem::Side;
use wire::Instant;

use crate::{Config, Limits, SentPool};

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
    /// Windows that were taken back over what was under way and opened again: it was sent again.
    windows_taken_back,
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

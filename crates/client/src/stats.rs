//! What a lane did: a few words that anyone may read at any time, and a full snapshot on request.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! stats {
    ($($(#[$doc:meta])* $field:ident),* $(,)?) => {
        /// One lane's own counters; written by the lane alone, with plain stores.
        // Lines of their own, and their pairs: the lane next door must not feel our stores.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct LaneStats {
            $(
                /// Written by the lane alone.
                #[doc(hidden)]
                pub $field: AtomicU64,
            )*
        }

        impl LaneStats {
            $(
                $(#[$doc])*
                pub fn $field(&self) -> u64 {
                    self.$field.load(Ordering::Relaxed)
                }
            )*

            /// Name and value of each.
            pub fn rows(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field()),)*]
            }
        }
    };
}

stats! {
    /// Turns.
    turns,
    /// Turns that found nothing to do.
    idle_turns,
    /// Times that the lane slept.
    sleeps,
    /// Microseconds asleep.
    slept_us,
    /// Frames received.
    rx_frames,
    /// Frames sent.
    tx_frames,
    /// Jobs done.
    jobs,
    /// Events given.
    events,
    /// Frames handed to other lanes.
    handed_out,
    /// Frames taken from other lanes.
    handed_in,
    /// Frames for other lanes that their ring did not take.
    handed_dropped,
    /// Bursts of these: one publication each.
    handed_batches,
    /// Of the frames handed out those that another lane's listener was given, since this one has none.
    fallback_out,
    /// Connections now.
    connections,
    /// Four-tuples in use now: connections, and those in TIME-WAIT.
    tuples,
    /// Local ports that lead to this lane, from one address towards one remote end, about.
    local_ports,
    /// Wake-ups of the application.
    wakeups,
    /// Times that the guard took the turns over from an application that had not called in (`guarded`).
    takeovers,
    /// Looks of the guard.
    guard_looks,
}

/// Adds to a counter that only this thread writes.
pub fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// Everything one lane counted.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Which lane.
    pub lane: u16,
    /// Name and value.
    pub rows: Vec<(String, u64)>,
}

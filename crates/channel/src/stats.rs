//! What a channel counts.

/// Counters of one channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Completions.
    pub completions: u64,
    /// Connections given to the application.
    pub accepted: u64,
    /// Hand-overs of requests.
    pub batches: u64,
    /// Requests in them.
    pub requests: u64,
    /// System calls that handed over requests or waited.
    pub enters: u64,
    /// Times that the kernel had to put completions aside.
    pub overflows: u64,
    /// Times that a `recv` found no buffer.
    pub no_buffer: u64,
    /// Connections taken from channels that had too many waiting.
    pub taken: u64,
    /// Connections that were closed, or reset, with a registration that ended: nobody else was there for them, or there was no
    /// descriptor to pass them on by.
    pub dropped: u64,
}

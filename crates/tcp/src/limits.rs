//! What all connections of a stack together may do.
//!
//! No limit here may tell one connection about another: challenge ACKs are limited for each connection alone (RFC 5961 7), since
//! whoever counts those of a shared limit learns of other people's connections (CVE-2016-5696).

/// Shared limits of one stack.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Segments by which a window's right edge may be ahead of what was received; `u32::MAX`: no limit.
    pub window: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { window: u32::MAX }
    }
}

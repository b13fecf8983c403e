//! Applications as state machines over events and jobs: a sender of a known pattern and an echo, and one [`App`] for each
//! habit that a connection may meet. A file each.

mod abort;
mod bulk;
mod echo;
mod half_close;
mod ping_pong;
mod sender;
mod slow_reader;
mod stream;

use wire::Instant;

pub use abort::Abort;
pub use bulk::Bulk;
pub use echo::Echo;
pub use half_close::{Answer, Ask};
pub use ping_pong::{Ping, Pong};
pub use sender::{Outcome, Sender};
pub use slow_reader::SlowReader;
pub use stream::Stream;

use crate::host::Host;

/// What one end of a connection does with it. It is over when it has closed its [`Stream`].
pub trait App {
    /// Does what can be done now, after news or at the time that the last call asked for; when to call again at the latest.
    fn poll(&mut self, now: Instant, stream: &mut Stream, host: &mut Host) -> Instant;
}

/// Byte `at` of stream `seed`.
pub fn pattern(seed: u64, at: u64) -> u8 {
    let x = (at / 8).wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((x ^ (x >> 29)) >> ((at % 8) * 8)) as u8
}

/// FNV-1a, for comparing streams.
pub fn digest(seed: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(seed, |h, b| (h ^ *b as u64).wrapping_mul(0x100_0000_01b3))
}

//! The random parts of a [`Plan`](crate::plan::Plan), a file each.

mod host;
mod path;
mod session;

use core::time::Duration;

use io::impair::Random;

pub(crate) use host::hosts;
pub(crate) use path::paths;
pub(crate) use session::sessions;

/// Nothing as often as not, else up to `most`.
fn part(r: &mut Random, most: f64) -> f64 {
    if r.chance(0.5) { 0.0 } else { r.below(1000) as f64 / 1000.0 * most }
}

/// Up to `most` microseconds.
fn micros(r: &mut Random, most: u64) -> Duration {
    Duration::from_micros(r.below(most))
}

/// From `least` up, each power of two as likely as the next, for `powers` of them.
fn scale(r: &mut Random, least: u64, powers: u64) -> u64 {
    let base = least << r.below(powers);
    base + r.below(base)
}

//! What differs between the real thing and a loom model: where shared words and ring slots live.
//!
//! In the real thing both lie in the arena, reached by pointers that the holder's `Arc` keeps valid. Loom cannot watch raw
//! memory, so under `cfg(loom)` the same names keep loom's own atomics and cells on the heap; the algorithms above are
//! the same lines of code in both.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::arena::{Arena, ArenaError};
use std::sync::Arc;

/// A type for which all-zero bytes are the value of `Default`, made of atomics only.
///
/// # Safety
/// Zeroed memory must be a valid value, and the type must have no drop glue.
pub(crate) unsafe trait Shared: Default + Sync {}

#[cfg(loom)]
#[expect(clippy::arc_with_non_send_sync, reason = "the wrappers are Send, each with its reason")]
mod model;
#[cfg(not(loom))]
mod real;

#[cfg(loom)]
pub(crate) use model::{Owned, Placed, Slots, Tracks};
#[cfg(not(loom))]
pub(crate) use real::{Owned, Placed, Slots, Tracks};

//! The memory that the two sides of a lane share, and what moves through it.
//!
//! - [`Arena`]: one reserved mapping, addressed by offset, out of which everything else is cut.
//! - [`Pool`], [`Side`]: 2 KiB chunks, one private magazine on each side, surplus passed over in batches.
//! - [`Chain`]: an owned queue of bytes made of chunks.
//! - [`spsc`]: rings from one producer to one consumer.
//! - [`ring`]: rings of messages; a message is one cache line and carries a chain's ownership.
//! - [`lease`]: the memory that one client in another process shares with the stack.
//! - [`frames`]: a ring of packet frames, for wires in memory.
//! - [`turn`]: a value that two threads use by turns.
//! - [`Counters`], [`prefetch`], [`sum`].
//!
//! This is the only crate below `io` with `unsafe`. Its faces are safe: a chunk belongs to exactly one chain, magazine or
//! ring slot, chains cannot be copied or made up, and every index into the arena comes from one of these.

#![warn(missing_docs)]

mod arena;
mod chain;
mod counters;
mod crossing;
pub mod frames;
mod index;
pub mod lease;
mod paged;
mod pool;
pub mod prefetch;
pub mod ring;
pub mod spsc;
pub mod sum;
mod sync;
pub mod turn;

pub use arena::{Arena, ArenaConfig, ArenaError, Backing, Huge, Pages};
pub use chain::{Chain, Cursor};
pub use counters::Counters;
pub use paged::{Paged, advise};
pub use pool::{Breach, CHUNK_BYTES, Pool, PoolConfig, PoolStats, Side, View};

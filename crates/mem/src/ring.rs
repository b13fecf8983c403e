//! Rings of messages: what the two sides of a lane say to each other, and the bytes that change hands with it.
//!
//! A [`Chain`] in a message changes hands with it, so no safe code can make one up. Messages still in a ring when its consumer goes are
//! forgotten, chains included. Between two processes a message travels as [`Raw`] words: what the other one wrote becomes a message only
//! by [`Side::admit`](crate::Side::admit), which checks it.

use crate::arena::{Arena, ArenaError};
use crate::chain::Chain;
use crate::spsc;
use std::sync::Arc;

/// What travels through a lane's rings: six words whose meaning is the users', and bytes.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Message {
    /// Plain words.
    pub words: [u64; 6],
    /// Bytes that change hands; often empty.
    pub chain: Chain,
}

const _: () = assert!(size_of::<Message>() == 64);

/// The writing end of a ring of messages.
pub type Producer = spsc::Producer<Message>;

/// The reading end of a ring of messages.
pub type Consumer = spsc::Consumer<Message>;

/// A ring of messages in memory of its own. `capacity` is a power of two from 1 to 2^30.
pub fn ring(capacity: usize) -> Result<(Producer, Consumer), ArenaError> {
    spsc::alone::<Message>(capacity)
}

/// As [`ring`], in an arena that has [`ring_bytes`] left.
pub fn ring_in(arena: &Arc<Arena>, capacity: usize) -> Result<(Producer, Consumer), ArenaError> {
    spsc::ends::<Message>(arena, capacity)
}

/// Bytes of arena that [`ring_in`] takes at most.
pub fn ring_bytes(capacity: usize) -> usize {
    spsc::bytes::<Message>(capacity)
}

/// A message in memory that another process writes, too: words of which nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Raw(pub [u64; 8]);

const _: () = assert!(size_of::<Raw>() == size_of::<Message>() && align_of::<Raw>() == align_of::<Message>());

impl spsc::Place<Raw> {
    /// The same ring, for whoever trusts both ends.
    #[cfg(not(any(miri, loom)))]
    pub(crate) fn messages(&self) -> spsc::Place<Message> {
        self.as_kind::<Message>()
    }
}

impl spsc::Consumer<Raw> {
    /// Takes the next message of another process, as words: read once, so that what is checked is what is used.
    #[inline]
    pub fn pop_raw(&mut self) -> Option<Raw> {
        self.pop_copy()
    }
}

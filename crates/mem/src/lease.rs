//! The memory that one client, an application in another process, shares with the stack: a sealed memfd that nobody else maps.
//!
//! It holds a pool of chunks, and for each thread of the client a *seat*: a ring of jobs, a ring of events, and the words by which each
//! says that it sleeps. The stack makes it ([`Lease`]), the client maps it ([`Attached`]); both cut the same parts off it in the same
//! order. The client trusts the stack. The stack trusts nothing that lies there: see [`Side::admit`].
//!
//! ```text
//! header | chunks | the client's records | links of the seats' sides with the stack's | seats: words, jobs, events
//! ```

use crate::arena::{ArenaError, Huge};
use crate::pool::Side;
use crate::ring::{self, Raw};
use crate::spsc;

// Neither miri nor loom maps a file.
#[cfg_attr(any(miri, loom), path = "lease/absent.rs")]
mod mapped;
pub use mapped::{Attached, Lease, Words};

/// How large the parts of a lease are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Chunks of [`CHUNK_BYTES`](crate::CHUNK_BYTES).
    pub chunks: u32,
    /// Threads of the client.
    pub seats: u32,
    /// Jobs that a thread may have under way, a power of two.
    pub jobs: u32,
    /// Events that a thread may have under way, a power of two.
    pub events: u32,
    /// Huge pages to try.
    pub huge: Huge,
}

/// Most seats of a lease.
pub const MOST_SEATS: u32 = 1024;

/// Why memory cannot be attached to.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// It is not what a stack has made.
    #[error("the shared memory is not a stack's")]
    Strange,
    /// It has been attached to before.
    #[error("the shared memory has been attached to before: each client has memory of its own")]
    Taken,
    /// It is that of another version.
    #[error("the stack speaks version {stack} and this program {ours}: both must be of the same corelane")]
    Version {
        /// The stack's.
        stack: String,
        /// This program's.
        ours: String,
    },
    /// It cannot be mapped, or is smaller than it says.
    #[error(transparent)]
    Memory(#[from] ArenaError),
}

/// What the stack has of a seat.
pub struct StackSeat {
    /// What the thread asks for, word by word.
    pub jobs: spsc::Consumer<Raw>,
    /// What it is told.
    pub events: spsc::Producer<Raw>,
    /// Who sleeps.
    pub words: Words,
}

/// What a thread of the client has.
pub struct Seat {
    /// Its side of the pool.
    pub side: Side,
    /// What it asks for.
    pub jobs: ring::Producer,
    /// What it is told.
    pub events: ring::Consumer,
    /// Who sleeps.
    pub words: Words,
}

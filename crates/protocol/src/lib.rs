//! What the two halves of a lane say to each other: jobs from the application to the stack, events back.
//!
//! Both travel as 64-byte [`mem::ring::Message`]s through rings with one producer and one consumer, in one process or between two. Each kind
//! of message is one entry of a table ([`Job`], [`Event`]): its fields, where they lie, who sends it and what answers it. Encoding,
//! decoding, the checks of both and `docs/protocol.md` come from the table. The layout is fixed: integers in the machine's byte order at
//! fixed offsets, no pointers, chunks by number.
//!
//! Byte chains move with their message: whoever holds a chain owns its chunks alone. A message that does not decode is counted and
//! dropped, never trusted.
#![forbid(unsafe_code)]

mod codes;
mod document;
mod event;
mod field;
mod job;
mod layout;
mod names;
mod table;

pub use codes::{CloseMode, ConnOption, Failure};
pub use document::page;
pub use event::Event;
pub use job::Job;
pub use layout::LAYOUT;
pub use names::{ConnId, Endpoint, ListenerId, Token};
pub use table::{Column, Row};

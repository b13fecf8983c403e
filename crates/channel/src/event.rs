//! What a dispatch gives: one completed operation.

use std::io;
use std::os::fd::OwnedFd;

use crate::address::Address;
use crate::buffer::Buffer;
use crate::names::{Handle, LwSocket};

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Command {
    /// A connection was accepted.
    Accept = 1,
    /// A connection was opened.
    Connect = 2,
    /// Bytes were read into memory of the caller.
    Read = 3,
    /// Bytes were written, all of them.
    Write = 4,
    /// Bytes were received into memory of the channel.
    Recv = 5,
    /// A connection was shut down.
    Disconnect = 6,
}

/// A connection, as `accept` was asked for it.
#[derive(Debug)]
pub enum Socket {
    /// A descriptor of the process.
    Fd(OwnedFd),
    /// A socket that only its channel knows. One that is neither registered nor closed stays until the channel ends.
    Light(LwSocket),
}

/// Bytes in memory of the channel, until they are [released](crate::Channel::release).
#[derive(Debug)]
pub struct Received {
    /// Of which channel.
    pub(crate) channel: u32,
    pub(crate) at: *const u8,
    pub(crate) len: usize,
    /// The buffer's number.
    pub(crate) buffer: u32,
}

/// What comes with a completion, beside its result.
#[derive(Debug)]
pub enum Data {
    /// Nothing.
    None,
    /// The connection, and how many more wait to be accepted, in the channel and in the kernel's queue.
    Accepted(Socket, u32),
    /// What was received.
    Received(Received),
    /// The memory of a read.
    Vec(Vec<u8>),
    /// The memory of a read that tells who sent it, and who that was; nobody of a connection, or where it failed.
    From(Vec<u8>, Option<Address>),
    /// The memory of a vectored read.
    Vecs(Vec<Vec<u8>>),
    /// The memory of a write.
    Buffer(Buffer),
    /// The memory of a vectored write.
    Buffers(Vec<Buffer>),
    /// Where memory that stayed the caller's begins.
    Raw(*mut u8),
}

/// What a read gives of a socket that keeps messages apart, as those of datagrams do: bytes of one alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// All of it. With 0 bytes it is an empty one, and no end; of SOCK_SEQPACKET either.
    Whole,
    /// It was longer than the memory that it was read into: the rest is lost.
    Cut,
}

/// A completed operation.
#[derive(Debug)]
pub struct Event {
    /// Of which handle.
    pub handle: Handle,
    /// The handle's.
    pub cookie: u64,
    /// What was asked for.
    pub command: Command,
    /// Bytes read or written (0 of a read: the end, of a stream), or why not. A write that failed half-way says so.
    pub result: io::Result<usize>,
    /// Of a read that succeeded, where it is of a message; `None` of a stream's.
    pub message: Option<Message>,
    /// What comes with it.
    pub data: Data,
}

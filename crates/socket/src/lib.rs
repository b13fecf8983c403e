//! BSD socket semantics, sans-I/O: the application's half of a lane, once for every API.
//!
//! [`Sockets`] turns calls into jobs and events into readiness, as Linux does. No call blocks: where a BSD call would, it
//! says [`Errno::EAGAIN`] (or `EINPROGRESS`), and whoever owns the thread waits and asks again. So all of it is tested
//! without threads.
#![forbid(unsafe_code)]

mod check;
mod chunks;
mod close;
mod counters;
mod epoll;
mod errno;
mod events;
mod listen;
mod locals;
mod moving;
mod options;
mod pipe;
mod readiness;
mod receive;
mod share;
mod sockets;
mod table;
mod transfer;
mod urgent;

pub use counters::Counters;
pub use epoll::{Interest, Ready, Trigger};
pub use errno::Errno;
pub use listen::ListenOptions;
pub use moving::Moved;
pub use options::{Linger, SockOption};
pub use readiness::bits;
pub use receive::RecvFlags;
pub use sockets::{SocketConfig, Sockets};
pub use table::SockId;
pub use transfer::Shutdown;

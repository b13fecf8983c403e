//! Completion channels: MegaPipe's I/O (Han, 2012) over io_uring and over a user-level TCP.
//!
//! A [`Channel`] belongs to one thread. What is registered with it is a [`Handle`], with a cookie that comes with each of its
//! completions. Operations are asked for one at a time, handed over in batches, and told when they are complete, one
//! [`Event`] at a time, in the order in which they were asked for on their handle: reads among reads, and writes among writes
//! with connect and disconnect.
//!
//! There are two engines. The kernel's takes everything that has a descriptor, and accepts connections without making them
//! files ([`LwSocket`]); the lane's is our own TCP, and takes what has a descriptor too, by a ring of the kernel's inside it.
//!
//! ```
//! use channel::{Channel, Command, Data, Options};
//! # fn main() -> std::io::Result<()> {
//! let mut channel = Channel::uring(Options::default())?;
//! let (a, b) = std::os::unix::net::UnixStream::pair()?;
//! let a = channel.register(a.into(), 1)?;
//! let b = channel.register(b.into(), 2)?;
//! channel.read(b, vec![0; 100])?;
//! channel.write(a, b"hello")?;
//! for _ in 0..2 {
//!     let event = channel.dispatch(None)?.expect("no limit, so something came");
//!     if event.command == Command::Read {
//!         let Data::Vec(bytes) = event.data else { unreachable!() };
//!         assert_eq!((event.cookie, &bytes[..event.result?]), (2, &b"hello"[..]));
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod address;
mod beside;
mod buffer;
mod channel;
mod core;
mod event;
mod flow;
mod inherited;
mod lane;
mod listeners;
mod names;
mod options;
mod raw;
mod register;
mod slab;
mod stats;
mod sys;
mod uring;

pub use crate::channel::{Amount, Channel, How};
pub use ::socket::{Linger, SockOption};
pub use address::Address;
pub use beside::{Place, after_packets_under_way, listen_beside, waiting};
pub use buffer::Buffer;
pub use event::{Command, Data, Event, Message, Received, Socket};
pub use listeners::Listener;
pub use names::{Handle, LwSocket};
pub use options::{Capabilities, CpuMask, Options};
pub use stats::Stats;
pub use uring::ring_refused;

fn errno(number: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(number)
}

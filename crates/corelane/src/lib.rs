//! A user-level TCP stack: sockets and polling on per-core lanes.
//!
//! An [`Engine`] opens devices and starts lanes. Each lane belongs to one application thread, which gets its end of it as a
//! [`Lane`] and makes [`TcpListener`]s, [`TcpStream`]s and [`Poller`]s on it. Nothing is shared between lanes; handles of
//! one lane stay on its thread. Instead of sockets a lane can have a completion channel ([`LaneHandle::channel`]).
//!
//! ```
//! use std::io::{Read, Write};
//! use corelane::{Config, Engine, ListenOptions};
//!
//! // Two engines at the two ends of a wire in memory: no NIC, no privileges.
//! let server = Config::memory("10.0.0.1/24")?;
//! let client = Config::memory("10.0.0.2/24")?;
//! let (mut server, mut client) = Engine::memory_pair(&server, &client)?;
//!
//! let end = server.take_lane(0).unwrap();
//! let thread = std::thread::spawn(move || -> std::io::Result<()> {
//!     let lane = end.attach()?;
//!     let listener = lane.listen("10.0.0.1:7".parse().unwrap(), ListenOptions::default())?;
//!     let (mut stream, _peer) = listener.accept()?;
//!     let mut buf = [0; 5];
//!     stream.read_exact(&mut buf)?;
//!     stream.write_all(&buf)?;
//!     // Dropping the stream closes it; the lane goes on for a moment so that the last bytes leave.
//!     drop(stream);
//!     lane.drain(std::time::Duration::from_secs(1));
//!     Ok(())
//! });
//!
//! let lane = client.take_lane(0).unwrap().attach()?;
//! let mut stream = loop {
//!     match lane.connect("10.0.0.1:7".parse().unwrap()) {
//!         Ok(stream) => break stream,
//!         Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => continue, // not listening yet
//!         Err(e) => return Err(e.into()),
//!     }
//! };
//! stream.write_all(b"hello")?;
//! let mut back = String::new();
//! stream.read_to_string(&mut back)?;
//! assert_eq!(back, "hello");
//! drop(stream);
//! lane.drain(std::time::Duration::from_secs(1));
//! thread.join().unwrap()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod chunks;
mod engine;
mod lane;
mod listener;
mod poller;
mod socket;
mod stream;

pub use self::socket::{ConnectOptions, ListenOptions, TcpSocket};
pub use ::channel;
pub use ::socket::{Linger, RecvFlags, SockOption};
pub use chunks::{ChunkReader, Chunks};
pub use engine::{Engine, LaneHandle};
pub use lane::Lane;
pub use listener::TcpListener;
pub use poller::{Event, Events, Interest, Poller, Source, Trigger};
pub use runtime::config::{Cidr, Ecn, SynCookies, TcpConfig};
#[doc(hidden)]
pub use runtime::provoke;
pub use runtime::{
    App, Clock, Config, ConfigError, Device, Error, LaneStats, LocalConnections, MemPort, Model, PortConfig, Snapshot,
    Waker, reset_all,
};
pub use stream::TcpStream;
pub use tcp::congestion::Algorithm;
pub use tcp::{State, TcpInfo};
pub use wire::Ports;

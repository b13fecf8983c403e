//! Deterministic networks and hosts under a virtual clock, for tests.
//!
//! A [`Host`] is one stack with the application's ends of its rings; a [`Net`] joins two hosts by an impaired path in each
//! direction; a [`Machine`] is a stack with its sockets that speaks bare IP packets. A [`plan::Plan`] is a whole run drawn
//! from a seed, and [`world::run`] runs it and watches. Nothing here reads a clock or draws randomness but from its seed,
//! so a seed reproduces a run; except [`real`], which sets the kernel's TCP on the same paths in real time.
#![forbid(unsafe_code)]

pub mod apps;
mod burst;
mod draw;
pub mod flows;
mod host;
mod machine;
mod net;
pub mod offload;
pub mod plan;
pub mod real;
pub mod world;

pub use apps::{Echo, Outcome, Sender, digest, pattern};
pub use burst::{Frames, Sink};
pub use host::{Host, HostConfig, LinkConfig, Ring};
pub use machine::{Machine, MachineConfig};
pub use net::{Net, NetConfig};

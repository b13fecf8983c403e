//! AF_XDP: frames straight from and to an interface's queues, beside the kernel.
//!
//! An [`XdpDevice`] attaches the sharing program and holds its maps; an [`XdpPort`] is one lane's queues. When either the
//! device or the process is gone, the kernel has the whole interface again.

mod active;
mod burst;
mod deliver;
mod device;
mod features;
mod held;
mod holder;
mod kind;
mod large;
mod local;
mod merging;
mod metadata;
mod port;
mod queue;
mod range;
mod ring;
mod sharing;
mod start;
mod tags;
mod umem;
#[cfg(test)]
mod veth;

pub use active::{ActivePorts, PortNews};
pub use deliver::Delivery;
pub use device::{XdpConfig, XdpDevice, ZeroCopy};
pub use features::{LeftOff, undo_left};
pub use held::{Held, free_port};
pub use local::Local;
pub use port::XdpPort;
pub use sharing::{Placeholder, Succession, warnings};

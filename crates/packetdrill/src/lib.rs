//! A plug-in for the original packetdrill (`--so_filename`): its scripts run against this stack, in its process, under a
//! virtual clock.
//!
//! The tool takes a table of functions from `packetdrill_interface_init`: the socket calls, a device to inject packets
//! into and to sniff them from, and a clock. [`Plugin`] answers them with a [`sim::Machine`]. The clock moves only when
//! the tool looks at it (a microsecond), sleeps, or waits for a packet; so a run takes no longer than the tool itself
//! needs, and gives the same verdict each time.
//!
//! ```sh
//! SO=target/debug/libcorelane_packetdrill.so
//! LD_PRELOAD=$SO packetdrill --local_ip=192.168.0.1 --so_filename=$SO --so_flags=script=$PWD/a.pkt a.pkt
//! ```
//!
//! Commands in a script's back quotes are the tool's to run; the plug-in reads them in the file that `script` names, as
//! `corelane-pkt` does, and takes the stack's parameters from them.
//!
//! The tool reads `TCP_INFO` for its code blocks by libc's `getsockopt` and not by the table. Where the plug-in is preloaded as
//! well (`LD_PRELOAD`), its own `getsockopt` answers for the descriptors that it has given out.

mod calls;
mod config;
mod ffi;
mod options;
mod plugin;
mod ready;

pub use ffi::{Interface, packetdrill_interface_init};
pub use plugin::{Plugin, Result};

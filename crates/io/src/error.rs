//! What can go wrong with a port; each message is one line that says what to do.

use std::io;

/// Why a port could not be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// No interface of that name.
    #[error("no interface named {0}: `ip link` lists what there is")]
    NoInterface(String),
    /// The interface is down.
    #[error("interface {0} is down: bring it up with `ip link set {0} up`")]
    Down(String),
    /// The process may not.
    #[error("{what} needs {capability}: run as root, or give the program that capability")]
    Permission {
        /// What was tried.
        what: String,
        /// Which capability is missing.
        capability: &'static str,
    },
    /// The kernel cannot.
    #[error("this kernel has no {feature}: {hint}")]
    Unsupported {
        /// What is missing.
        feature: &'static str,
        /// What to do instead.
        hint: &'static str,
    },
    /// Another XDP program sits on the interface.
    #[error(
        "{dev} already runs the XDP program {program:?} (id {id}): end what holds it (`bpftool link` tells), detach it with \
         `ip link set {dev} xdp off`, or use packet:{dev}"
    )]
    ForeignProgram {
        /// The interface.
        dev: String,
        /// The program's name, as the kernel knows it.
        program: String,
        /// Its id.
        id: u32,
    },
    /// Somebody else has it.
    #[error("{what} is in use by another program: {hint}")]
    Busy {
        /// What is taken.
        what: String,
        /// What to do.
        hint: String,
    },
    /// A table of the XDP program has no room.
    #[error(
        "{dev}: {what} are taken already: close listeners, or listen on single addresses rather than on all of them"
    )]
    Full {
        /// The interface.
        dev: String,
        /// How many of what.
        what: String,
    },
    /// A parameter that cannot be.
    #[error("{0}")]
    Invalid(String),
    /// Memory could not be had.
    #[error("memory for {what}: {source}")]
    Memory {
        /// What it was for.
        what: &'static str,
        /// Why not.
        source: mem::ArenaError,
    },
    /// Anything else the kernel said.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
}

impl PortError {
    /// The kernel's word on `what`, with what is known to help.
    pub fn system(what: impl Into<String>, source: io::Error, capability: &'static str) -> PortError {
        let what = what.into();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => PortError::Permission { what, capability },
            _ => PortError::System { what, source },
        }
    }
}

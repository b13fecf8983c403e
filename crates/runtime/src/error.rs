//! Why something of an engine could not be had.

use std::io as stdio;

use io::PortError;
use mem::ArenaError;

/// Why an engine could not start, in one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A device.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The configuration.
    #[error("{0}")]
    Config(String),
    /// Memory.
    #[error("memory for the lanes: {0}")]
    Memory(#[from] ArenaError),
    /// Anything else the kernel said.
    #[error("{what}: {}", io::word(source))]
    System {
        /// What was tried.
        what: String,
        /// What the kernel said.
        source: stdio::Error,
    },
}

impl Error {
    /// The number of an errno that a program can act on: `EPERM` where a capability, access to a file, or locked memory is missing, else what the system said; `ENODEV`
    /// where a device cannot be used, `EINVAL` where the configuration cannot be.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Port(PortError::Permission { .. } | PortError::Access { .. } | PortError::LockedMemory { .. }) => {
                libc::EPERM
            }
            Error::Port(PortError::System { source, .. }) | Error::System { source, .. } => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
            Error::Memory(_) | Error::Port(PortError::Memory { .. }) => libc::ENOMEM,
            Error::Port(_) => libc::ENODEV,
            Error::Config(_) => libc::EINVAL,
        }
    }

    /// Whether a device is another corelane's, or a queue of it another program's: when that has ended it can be had.
    pub fn is_in_use(&self) -> bool {
        match self {
            Error::Port(PortError::ForeignProgram { program, .. }) => program == "corelane",
            Error::Port(PortError::Busy { .. }) => true,
            _ => false,
        }
    }

    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(stdio::Error) -> Error {
        let what = what.into();
        |source| Error::System { what, source }
    }
}

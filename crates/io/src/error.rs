//! What can go wrong with a port; each message is one line that says what to do.

use std::io;

use crate::capability::{self, Capability};

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
    #[error("{what} {}", capability::advice(missing))]
    Permission {
        /// What was tried.
        what: String,
        /// What the process lacks for it; nothing where it has all that is needed and was refused nevertheless.
        missing: Vec<Capability>,
    },
    /// The process may not open a file.
    #[error("{file} cannot be opened by this user: run as root, or give the user read and write access to it")]
    Access {
        /// Which.
        file: &'static str,
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
    #[error("{dev} already runs the XDP program {}", holder.advice(dev, program, *id))]
    ForeignProgram {
        /// The interface.
        dev: String,
        /// The program's name, as the kernel knows it.
        program: String,
        /// Its id.
        id: u32,
        /// Who keeps it there.
        holder: Holder,
    },
    /// The limit of locked memory is too low.
    #[error(
        "locking {mib} MiB of memory for the frames of {dev}: raise the limit of locked memory (`ulimit -l`, \
         LimitMEMLOCK= of systemd), or give the program CAP_IPC_LOCK"
    )]
    LockedMemory {
        /// The interface.
        dev: String,
        /// Memory for the frames of all its queues.
        mib: u64,
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
    #[error("{what}: {}", word(source))]
    System {
        /// What was tried.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// The kernel's word, and what to do where a limit is reached that an administrator can raise.
pub fn word(source: &io::Error) -> String {
    match source.raw_os_error() {
        Some(libc::EMFILE) => {
            "too many open files: raise this process's limit of open files (ulimit -n, LimitNOFILE= of systemd)".into()
        }
        Some(libc::ENFILE) => {
            "too many open files: raise the machine's limit of open files (sysctl fs.file-max)".into()
        }
        _ => source.to_string(),
    }
}

impl PortError {
    /// The kernel's word on `what`, which needs `capabilities`.
    pub fn system(what: impl Into<String>, source: io::Error, capabilities: &[Capability]) -> PortError {
        let what = what.into();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                PortError::Permission { what, missing: capability::missing(capabilities) }
            }
            _ => PortError::System { what, source },
        }
    }
}

/// Who keeps an XDP program on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A process that has the program's link or the program open.
    Process {
        /// Its number.
        pid: u32,
        /// Its name, as `ps` shows it.
        name: String,
    },
    /// Nobody that can be seen: the program was attached by netlink, or its link is pinned, or the process is another user's.
    Unknown,
}

impl Holder {
    fn advice(&self, dev: &str, program: &str, id: u32) -> String {
        match self {
            Holder::Process { pid, name } if program == "corelane" && name == "corelane" => {
                format!("of another corelane (pid {pid}): end that one first (`kill {pid}`), or use another interface")
            }
            Holder::Process { pid, name } => {
                format!("{program:?} (id {id}) of {name} (pid {pid}): end that first, or use packet:{dev}")
            }
            Holder::Unknown => format!(
                "{program:?} (id {id}): detach it with `ip link set {dev} xdp off`, or where that is refused end what holds \
                 its link (`bpftool link` tells), or use packet:{dev}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_can_be_raised_is_named() {
        let said = |errno| PortError::system("epoll", io::Error::from_raw_os_error(errno), &[]).to_string();
        assert!(said(libc::EMFILE).starts_with("epoll: too many open files: raise this process's limit of open files"));
        assert!(said(libc::ENFILE).contains("sysctl fs.file-max"));
        assert_eq!(said(libc::ENXIO), "epoll: No such device or address (os error 6)");
    }
}

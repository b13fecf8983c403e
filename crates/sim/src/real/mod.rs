//! Simulated paths in real time, with the Linux kernel at one end or both: the same losses for its TCP as for ours.
//!
//! Needs root, iproute2, ethtool and /dev/net/tun. Each kernel end lives in a network namespace of its own, which is gone
//! with it.

mod kernel;
mod link;
mod peer;

pub use kernel::{Kernel, Sysctls};
pub use link::{End, Link};
pub use peer::{Peer, Progress, Transfer};

/// Whether this process may make namespaces and TAP interfaces, and has the tools.
pub fn available() -> bool {
    let tool = |name: &str| {
        let quiet = std::process::Stdio::null;
        std::process::Command::new(name).arg("--version").stdout(quiet()).stderr(quiet()).status().is_ok()
    };
    rustix::process::geteuid().is_root()
        && std::path::Path::new("/dev/net/tun").exists()
        && tool("ip")
        && tool("ethtool")
}

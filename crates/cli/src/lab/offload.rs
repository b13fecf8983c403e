//! Turns TSO off on an interface in another namespace, as `ethtool -K DEV tso off` does, without needing ethtool.

use rustix::fd::{AsFd, AsRawFd};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io;
use std::path::Path;

/// `ETHTOOL_STSO` of linux/ethtool.h.
const SET_TSO: u32 = 0x1f;

/// `struct ethtool_value` of linux/ethtool.h.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// Turns TSO off.
pub fn tso_off(namespace: &Path, interface: &str) -> io::Result<()> {
    let namespace = File::open(namespace)?;
    // A thread of its own: the namespace is the thread's, and ends with it.
    let entered = std::thread::scope(|scope| {
        let work = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            set(interface)
        };
        std::thread::Builder::new().spawn_scoped(scope, work)?.join().map_err(|_| io::Error::other("a thread panicked"))
    });
    entered?
}

fn set(interface: &str) -> io::Result<()> {
    use rustix::net::{AddressFamily, SocketType, socket};
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let mut value = EthtoolValue { command: SET_TSO, data: 0 };
    // SAFETY: ifreq is plain data; all zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: SIOCETHTOOL reads an ifreq whose data points to the command's struct; both live through the call.
    let result = unsafe { libc::ioctl(any.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

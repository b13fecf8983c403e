//! Turns an interface's offloads on or off in another namespace, as `ethtool -K` does, without needing ethtool.

use rustix::fd::{AsFd, AsRawFd};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io;
use std::path::Path;

/// An offload; its number is the command of linux/ethtool.h that sets it.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Feature {
    /// Large segments cut by the device.
    Tso = 0x1f,
    /// Large segments cut by the kernel, late.
    Gso = 0x24,
    /// Segments joined on receipt.
    Gro = 0x2c,
}

/// `struct ethtool_value` of linux/ethtool.h.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// Turns an offload on or off.
pub fn set(namespace: &Path, interface: &str, feature: Feature, on: bool) -> io::Result<()> {
    within(namespace, || set_here(interface, feature, on))
}

/// Does something in a namespace, on a thread of its own: the namespace is the thread's, and ends with it.
pub fn within<T: Send>(namespace: &Path, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let namespace = File::open(namespace)?;
    std::thread::scope(|scope| {
        let work = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            work()
        };
        let thread = std::thread::Builder::new().spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
    })
}

fn set_here(interface: &str, feature: Feature, on: bool) -> io::Result<()> {
    use rustix::net::{AddressFamily, SocketType, socket};
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let mut value = EthtoolValue { command: feature as u32, data: u32::from(on) };
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

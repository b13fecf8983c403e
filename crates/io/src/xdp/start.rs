//! Starts on an interface, one at a time.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

/// Longest wait for another start. Drivers that restart their queues take some seconds; whoever keeps the name for longer is no start.
const LONGEST: Duration = Duration::from_secs(10);
/// Between two tries.
const NAP: Duration = Duration::from_millis(5);

/// A start's turn on an interface: an abstract name, which is the network namespace's and ends with the process. Of two starts that open
/// sockets at the same moment, each could have one that the other wants, and neither would run.
#[derive(Debug)]
pub(super) struct Start {
    _name: Option<OwnedFd>,
}

impl Start {
    /// Waits for the start that is under way on this interface.
    pub fn on(index: u32) -> Start {
        Start::within(index, LONGEST)
    }

    fn within(index: u32, longest: Duration) -> Start {
        let end = Instant::now() + longest;
        loop {
            match name(index) {
                Err(Errno::ADDRINUSE) if Instant::now() < end => std::thread::sleep(NAP),
                name => return Start { _name: name.ok() },
            }
        }
    }
}

fn name(index: u32) -> Result<OwnedFd, Errno> {
    let name = SocketAddrUnix::new_abstract_name(format!("corelane-start-{index}").as_bytes())?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &name)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_waits_for_the_one_before() {
        // No interface's.
        let index = 4_000_000_000 + std::process::id() % 100_000_000;
        let first = Start::on(index);
        // Not for ever, and not for another interface's.
        assert!(Start::within(index, Duration::ZERO)._name.is_none());
        assert!(Start::within(index - 1, Duration::ZERO)._name.is_some());
        std::thread::scope(|s| {
            let second = s.spawn(|| Start::within(index, Duration::from_secs(60)));
            drop(first);
            assert!(second.join().unwrap()._name.is_some());
        });
    }
}

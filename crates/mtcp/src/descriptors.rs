//! Where the engine's descriptors are: out of the way of ids.
//!
//! Ports often keep a close(2) or an ioctl(2) that they should have turned into mTCP's. It did no harm there, since a descriptor
//! with such a number was seldom in use; here it would take a port's socket or a lane's wake-up away. They are not above all
//! ids either: ports that define read(2) and its like themselves take large numbers for ids.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};

/// The first of the engine's: above what a few connections have as ids, with room to the usual limit of 1,024 open files.
const FIRST: usize = 512;

/// All numbers below [`FIRST`], so that what is opened before they are dropped is above.
pub struct Low(Vec<OwnedFd>);

impl Low {
    /// Takes them; none where the limit of open files leaves little above.
    pub fn take() -> Low {
        if getrlimit(Resource::Nofile).current.is_some_and(|most| most < 2 * FIRST as u64) {
            return Low(Vec::new());
        }
        let Ok(null) = File::open("/dev/null") else { return Low(Vec::new()) };
        let mut taken = vec![OwnedFd::from(null)];
        while let Ok(one) = fcntl_dupfd_cloexec(&taken[0], 0)
            && (one.as_raw_fd() as usize) < FIRST
        {
            taken.push(one);
        }
        Low(taken)
    }

    /// Gives them back; the numbers of what was opened meanwhile.
    pub fn release(self) -> Range<usize> {
        let end = File::open("/dev/null").map_or(0, |f| f.as_raw_fd() as usize);
        drop(self.0);
        FIRST..end.max(FIRST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_opened_meanwhile_is_above() {
        let low = Low::take();
        let above = File::open("/dev/null").unwrap();
        assert!(above.as_raw_fd() as usize >= FIRST);
        assert!(low.release().contains(&(above.as_raw_fd() as usize)));
        assert!((File::open("/dev/null").unwrap().as_raw_fd() as usize) < FIRST);
    }
}

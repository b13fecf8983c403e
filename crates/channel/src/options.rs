//! What a channel may be asked for when it is made, and what it can do.

use std::io;

/// CPUs, of at most 1024.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CpuMask {
    words: [u64; 16],
}

impl CpuMask {
    /// None: as for a handle that takes what the others leave.
    pub const NONE: CpuMask = CpuMask { words: [0; 16] };

    /// CPUs that a mask can name.
    pub const MOST: usize = 1024;

    /// One CPU; none where there can be no such one.
    pub fn one(cpu: usize) -> CpuMask {
        let mut mask = CpuMask::NONE;
        if let Some(word) = mask.words.get_mut(cpu / 64) {
            *word |= 1 << (cpu % 64);
        }
        mask
    }

    /// From words of 64 CPUs, the lowest bit of the first one CPU 0. EINVAL where they name a CPU above 1023.
    pub fn from_words(words: &[u64]) -> io::Result<CpuMask> {
        let mut mask = CpuMask::NONE;
        for (i, word) in words.iter().enumerate() {
            match mask.words.get_mut(i) {
                Some(place) => *place = *word,
                None if *word == 0 => {}
                None => return Err(crate::errno(libc::EINVAL)),
            }
        }
        Ok(mask)
    }

    /// Whether it names no CPU.
    pub fn is_empty(&self) -> bool {
        self.words == [0; 16]
    }

    /// Whether a CPU is in both.
    pub fn meets(&self, other: &CpuMask) -> bool {
        self.words.iter().zip(&other.words).any(|(a, b)| a & b != 0)
    }

    /// The CPUs in it.
    pub fn cpus(&self) -> impl Iterator<Item = u32> + '_ {
        (0..CpuMask::MOST as u32).filter(|cpu| self.words[*cpu as usize / 64] & 1 << (cpu % 64) != 0)
    }
}

impl std::fmt::Debug for CpuMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.cpus()).finish()
    }
}

/// How a channel is made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Requests that are gathered before they are handed over together.
    pub batch: u32,
    /// Places for lightweight sockets of the kernel; fewer where the limit of descriptors is lower.
    pub lwsockets: u32,
    /// Memory for `recv`: so many buffers, a power of two of at most 32,768.
    pub buffers: u16,
    /// Bytes of each of them.
    pub buffer_size: u32,
    /// Connections accepted from the kernel before they are asked for; 0: never more than were.
    pub accept_ahead: u32,
    /// Connections that wait at another channel's part of a listener before an idle channel takes some; 0: none are taken.
    pub balance: u32,
    /// Completions that the kernel keeps in its ring before it has to put them aside.
    pub completions: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            batch: 32,
            lwsockets: 65_536,
            buffers: 1024,
            buffer_size: 4096,
            accept_ahead: 64,
            balance: 0,
            completions: 4096,
        }
    }
}

impl Options {
    /// EINVAL where one is out of range.
    pub fn check(&self) -> io::Result<()> {
        let good = (1..=4096).contains(&self.batch)
            && (1..=crate::names::MOST_LIGHT).contains(&self.lwsockets)
            && self.buffers.is_power_of_two()
            && (64..=1 << 20).contains(&self.buffer_size)
            && (1..=65_536).contains(&self.completions);
        if good { Ok(()) } else { Err(crate::errno(libc::EINVAL)) }
    }
}

/// What a channel can do, by bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(pub u32);

impl Capabilities {
    /// Descriptors of the kernel can be registered: sockets, pipes, FIFOs, timers, signals, files.
    pub const KERNEL: Capabilities = Capabilities(1);
    /// TCP is a lane's: listeners and sockets that the channel makes are no files.
    pub const LANE: Capabilities = Capabilities(2);
    /// Sockets that the channel makes or accepts from listeners of its own can be descriptors.
    pub const DESCRIPTORS: Capabilities = Capabilities(4);
    /// An idle channel can take connections that wait at another's part of a listener.
    pub const BALANCE: Capabilities = Capabilities(8);

    /// Whether all of `other` is in it.
    pub fn has(self, other: Capabilities) -> bool {
        self.0 & other.0 == other.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks() {
        let a = CpuMask::from_words(&[0b101, 1]).unwrap();
        assert_eq!(a.cpus().collect::<Vec<_>>(), [0, 2, 64]);
        assert!(a.meets(&CpuMask::one(64)) && !a.meets(&CpuMask::one(1)) && !a.is_empty());
        assert!(CpuMask::one(1024).is_empty());
        assert!(CpuMask::from_words(&[0; 20]).unwrap().is_empty());
        let mut far = [0; 17];
        far[16] = 1;
        assert_eq!(CpuMask::from_words(&far).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}

//! What things of a channel are called: numbers that can be checked, so that a wrong one is an error and nothing worse.

/// A handle of a channel: 20 bits of channel, 20 of generation, 24 of place. One that was unregistered, or is another
/// channel's, is EBADF, until its place was another's a million times.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle(u64);

pub(crate) const MOST_HANDLES: u32 = 1 << 24;
const PLACE: u64 = (1 << 24) - 1;
const GENERATION: u64 = (1 << 20) - 1;
/// Channels count from 1, so no handle is 0.
pub(crate) const CHANNELS: u32 = (1 << 20) - 1;

impl Handle {
    pub(crate) fn new(channel: u32, generation: u32, at: u32) -> Handle {
        Handle(u64::from(channel) << 44 | (u64::from(generation) & GENERATION) << 24 | u64::from(at))
    }

    /// The number, for a language without types; never 0.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// From such a number. Whether it names anything is checked where it is used.
    pub fn from_bits(bits: u64) -> Handle {
        Handle(bits)
    }

    /// Which channel it is of, as [`Channel::id`](crate::Channel::id) says.
    pub fn channel(self) -> u32 {
        (self.0 >> 44) as u32
    }

    pub(crate) fn at(self) -> u32 {
        (self.0 & PLACE) as u32
    }

    pub(crate) fn is_of(self, generation: u32) -> bool {
        self.0 >> 24 & GENERATION == u64::from(generation) & GENERATION
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle({}:{})", self.channel(), self.at())
    }
}

/// A lightweight socket: known to its channel alone, no file of the process. Its number is 2^30 or more, as in the paper
/// (4.1.1), so that it is never taken for a descriptor: 10 bits of generation, 20 of place. One that was closed is EBADF until
/// a million others have been, unless nearly all places are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LwSocket(i32);

pub(crate) const MOST_LIGHT: u32 = 1 << 20;
const FIRST_LIGHT: i32 = 1 << 30;
/// Lightweight sockets that are closed before a place is another's: an int has room for 10 bits of generation only, so that a
/// number means another socket after some million others at the earliest, and not after 1024.
pub(crate) const REST: usize = 1024;

impl LwSocket {
    pub(crate) fn new(generation: u32, at: u32) -> LwSocket {
        LwSocket(FIRST_LIGHT | (generation as i32 & 0x3ff) << 20 | at as i32)
    }

    /// Its number.
    pub fn number(self) -> i32 {
        self.0
    }

    /// From its number; `None` where that is a descriptor's. Whether it names anything is checked where it is used.
    pub fn from_number(number: i32) -> Option<LwSocket> {
        (number >= FIRST_LIGHT).then_some(LwSocket(number))
    }

    pub(crate) fn at(self) -> u32 {
        self.0 as u32 & (MOST_LIGHT - 1)
    }

    pub(crate) fn is_of(self, generation: u32) -> bool {
        self.0 as u32 >> 20 & 0x3ff == generation & 0x3ff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_their_parts() {
        let h = Handle::new(CHANNELS, 0x12_3456, MOST_HANDLES - 1);
        assert_eq!((h.channel(), h.at()), (CHANNELS, MOST_HANDLES - 1));
        assert!(h.is_of(0x12_3456) && h.is_of(0x2_3456) && !h.is_of(0x2_3457));
        assert_eq!(Handle::from_bits(h.to_bits()), h);
        assert_ne!(Handle::new(1, 0, 0).to_bits(), 0);
        let s = LwSocket::new(1023, MOST_LIGHT - 1);
        assert_eq!((s.at(), s.number()), (MOST_LIGHT - 1, i32::MAX));
        assert!(s.is_of(1023) && s.is_of(2047) && !s.is_of(0));
        assert_eq!(LwSocket::from_number(7), None);
    }
}

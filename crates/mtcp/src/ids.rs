//! The ids of a context: small dense numbers that programs index arrays with, one space for sockets, listeners, pipes and
//! epolls.
//!
//! A lane's own descriptors ([`SockId`]) count connections in accept queues too, so they can exceed what a program has room
//! for; an id is always below `max_concurrency`.

use std::collections::VecDeque;
use std::ops::Range;

use capi::{Errno, Result};
use runtime::Claim;
use socket::SockId;

/// What an id stands for.
pub enum Kind {
    /// A TCP socket, connected or not.
    Stream,
    /// A listening one, with the kernel's consent to use its port where that is needed.
    Listener {
        /// Given back before the listener is closed.
        claim: Option<Claim>,
    },
    /// One end of a pipe.
    Pipe,
    /// An epoll.
    Epoll,
}

/// An id in use.
pub struct Entry {
    /// What it is.
    pub kind: Kind,
    /// Its descriptor of the lane.
    pub sock: SockId,
    /// Calls fail with EAGAIN rather than wait.
    pub nonblocking: bool,
    /// The error that a call has told; SO_ERROR tells it once more (in mTCP reads of a reset connection gave 0, and
    /// SO_ERROR the reason).
    pub told: Option<Errno>,
    /// Options that few set, that are kept for who asks, and change nothing.
    pub kept: Option<Box<Kept>>,
}

/// Names of options and their values.
pub type Kept = Vec<(i32, i32)>;

/// Ids that are freed after one before it is given out again, unless none is left: as many as events of one wait. Programs
/// look at what they keep by an id after they have closed it, and at events of ids that they have closed meanwhile; in mTCP
/// the id freed first was given out first.
const REST: usize = MOST_EVENTS;

/// Reports that one wait gives at most; the next gives the rest.
pub const MOST_EVENTS: usize = 1024;

/// Ids to what they stand for.
pub struct Ids {
    entries: Vec<Option<Entry>>,
    /// The one freed first at the front.
    free: VecDeque<u32>,
    /// Numbers to be given out when there are no others: descriptors of the library.
    late: Range<usize>,
    /// Those of them that are free, once it has come to them.
    late_free: Vec<u32>,
    max: usize,
}

impl Ids {
    /// Room for `max` ids; those in `late` are the last to be given out.
    pub fn new(max: usize, late: Range<usize>) -> Ids {
        let late = late.start.min(max)..late.end.min(max);
        Ids { entries: Vec::new(), free: VecDeque::new(), late, late_free: Vec::new(), max }
    }

    /// Whether there is room for `n` more.
    pub fn has_room(&self, n: usize) -> bool {
        self.free.len() + self.late_free.len() + (self.max - self.entries.len()) >= n
    }

    /// Gives an id; `EMFILE` where all are in use.
    pub fn insert(&mut self, kind: Kind, sock: SockId, nonblocking: bool) -> Result<i32> {
        let entry = Some(Entry { kind, sock, nonblocking, told: None, kept: None });
        if self.entries.len() == self.late.start && !self.late.is_empty() {
            self.entries.resize_with(self.late.end, || None);
            self.late_free.extend(self.late.clone().map(|id| id as u32));
        }
        if self.free.len() <= REST && self.entries.len() < self.max {
            self.entries.push(entry);
            return Ok(self.entries.len() as i32 - 1);
        }
        let id = self.free.pop_front().or_else(|| self.late_free.pop()).ok_or(Errno::MFILE)?;
        self.entries[id as usize] = entry;
        Ok(id as i32)
    }

    /// What an id stands for; `EBADF` where it is not in use.
    #[inline]
    pub fn get(&mut self, id: i32) -> Result<&mut Entry> {
        let entry = usize::try_from(id).ok().and_then(|id| self.entries.get_mut(id));
        entry.and_then(Option::as_mut).ok_or(Errno::BADF)
    }

    /// Frees an id.
    pub fn remove(&mut self, id: i32) -> Result<Entry> {
        let slot = usize::try_from(id).ok().and_then(|id| self.entries.get_mut(id));
        let entry = slot.and_then(Option::take).ok_or(Errno::BADF)?;
        if self.late.contains(&(id as usize)) {
            self.late_free.push(id as u32);
        } else {
            self.free.push_back(id as u32);
        }
        Ok(entry)
    }

    /// Frees all of them.
    pub fn drain(&mut self) -> impl Iterator<Item = Entry> + '_ {
        self.free.clear();
        self.late_free.clear();
        self.entries.drain(..).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_dense_and_the_first_freed_comes_first() {
        let mut ids = Ids::new(3, 512..512);
        let give = |ids: &mut Ids, n| ids.insert(Kind::Stream, SockId(n), false);
        assert_eq!((0..3).map(|n| give(&mut ids, 100 + n).unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(give(&mut ids, 9), Err(Errno::MFILE));
        assert!(!ids.has_room(1));
        ids.remove(0).unwrap();
        ids.remove(2).unwrap();
        assert!(ids.has_room(2) && !ids.has_room(3));
        assert_eq!((give(&mut ids, 7), give(&mut ids, 8)), (Ok(0), Ok(2)));
        assert_eq!(ids.get(0).unwrap().sock, SockId(7));
    }

    #[test]
    fn an_id_rests_before_it_is_used_again() {
        let mut ids = Ids::new(usize::MAX, 0..0);
        let mut seen = Vec::new();
        for n in 0..5000 {
            let id = ids.insert(Kind::Stream, SockId(n), false).unwrap();
            ids.remove(id).unwrap();
            assert!(!seen.iter().rev().take(REST).any(|before| *before == id), "{id}");
            seen.push(id);
        }
        assert_eq!(seen.iter().max(), Some(&(REST as i32)));
    }

    #[test]
    fn the_librarys_numbers_are_given_out_last() {
        for (late, order) in [(2..4, [0, 1, 4, 5, 3, 2]), (0..1, [1, 2, 3, 4, 5, 0]), (4..9, [0, 1, 2, 3, 5, 4])] {
            let mut ids = Ids::new(6, late);
            for round in 0..2 {
                assert!(ids.has_room(6) && !ids.has_room(7));
                let given: Vec<_> = (0..6).map(|n| ids.insert(Kind::Stream, SockId(n), false).unwrap()).collect();
                assert_eq!(given, order, "{round}");
                assert!(!ids.has_room(1) && ids.insert(Kind::Stream, SockId(9), false).is_err());
                given.iter().for_each(|id| drop(ids.remove(*id).unwrap()));
                // As they were taken from the end.
                ids.late_free.sort_unstable();
            }
        }
    }

    #[test]
    fn what_was_never_given_is_no_id() {
        let mut ids = Ids::new(10, 0..0);
        ids.insert(Kind::Epoll, SockId(1), false).unwrap();
        for id in [-1, i32::MIN, 1, 9, 10, i32::MAX] {
            assert_eq!(ids.get(id).err(), Some(Errno::BADF), "{id}");
            assert_eq!(ids.remove(id).err(), Some(Errno::BADF), "{id}");
        }
        ids.remove(0).unwrap();
        assert_eq!(ids.remove(0).err(), Some(Errno::BADF));
        assert_eq!(ids.drain().count(), 0);
    }
}

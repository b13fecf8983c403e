//! Ports for active opens: RFC 6056 3.3.4 (algorithm 4, double-hash), so that successive connections to one peer take
//! successive ports from an offset that nobody outside can guess.

use wire::{Addr, Ports};

use crate::FlowKey;
use crate::keyed::Keyed;

const COUNTERS: usize = 256;

pub(crate) struct LocalPorts {
    ports: Ports,
    hasher: Keyed,
    counters: [u32; COUNTERS],
    /// The remote end that was looked for last, and its hash: whoever opens many connections opens them to few.
    last: Option<((Addr, Addr, u16), u64)>,
}

impl LocalPorts {
    /// Where counting begins comes of `start` (RFC 6056 3.3.4 initialises the table at random): a
    /// secret may be older than this process, and what a peer has seen of one start says nothing of the next.
    pub fn new(ports: Ports, secret: [u8; 16], start: u64) -> LocalPorts {
        let mut key = secret;
        key.rotate_left(7);
        let hasher = Keyed::of(key);
        let counters = core::array::from_fn(|i| hasher.sip([start, i as u64]) as u32);
        LocalPorts { ports, hasher, counters, last: None }
    }

    /// Whether a port is one of these.
    pub fn has(&self, port: u16) -> bool {
        self.ports.has(port)
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.ports.count()
    }

    /// Connections leave from these ports from now on.
    pub fn replace(&mut self, ports: Ports) {
        self.ports = ports;
    }

    /// Begins to look for a port towards a remote end: [`LocalPorts::next`] gives each of them once.
    #[inline]
    pub fn round(&mut self, local: Addr, remote: Addr, remote_port: u16) -> Round {
        let end = (local, remote, remote_port);
        let hash = match self.last {
            Some((last, hash)) if last == end => hash,
            _ => self.hash(end),
        };
        let counter = (hash >> 32) as usize % COUNTERS;
        let count = self.ports.count();
        let start = (hash as u32).wrapping_add(self.counters[counter]).checked_rem(count).unwrap_or(0);
        Round { at: start, left: count, counter }
    }

    #[inline(never)]
    fn hash(&mut self, end: (Addr, Addr, u16)) -> u64 {
        let (local, remote, remote_port) = end;
        let interface = crate::InterfaceId(0);
        let hash = self.hasher.tuple(&FlowKey { interface, local, remote, local_port: 0, remote_port });
        self.last = Some((end, hash));
        hash
    }

    /// The next port of a round; `None` after the last.
    pub fn next(&mut self, round: &mut Round) -> Option<u16> {
        round.left = round.left.checked_sub(1)?;
        let port = self.ports.nth(round.at)?;
        round.at = if round.at + 1 == self.ports.count() { 0 } else { round.at + 1 };
        // The counter passes what is taken too, so that it is not tried again soon.
        self.counters[round.counter] = self.counters[round.counter].wrapping_add(1);
        Some(port)
    }
}

/// A look at all ports towards one remote end.
pub(crate) struct Round {
    /// Of the ports, the one that is next.
    at: u32,
    left: u32,
    counter: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    impl LocalPorts {
        fn pick(&mut self, local: Addr, remote: Addr, port: u16, mut usable: impl FnMut(u16) -> bool) -> Option<u16> {
            let mut round = self.round(local, remote, port);
            core::iter::from_fn(|| self.next(&mut round)).find(|port| usable(*port))
        }
    }

    #[test]
    fn every_port_once_then_none_and_cheap_in_between() {
        let (a, b) = (Addr::from_v4([10, 0, 0, 1]), Addr::from_v4([10, 0, 0, 2]));
        let mut ports = LocalPorts::new(Ports::new(50_000, 50_999), [3; 16], 0);
        let mut taken = HashSet::new();
        let mut tries = 0;
        for _ in 0..1000 {
            let port = ports.pick(a, b, 80, |p| {
                tries += 1;
                !taken.contains(&p)
            });
            assert!(taken.insert(port.unwrap()));
        }
        assert_eq!(tries, 1000);
        assert!(taken.iter().all(|p| (50_000..51_000).contains(p)));
        assert_eq!(ports.pick(a, b, 80, |p| !taken.contains(&p)), None);
        // What is given back is found, wherever the counter stands.
        assert!(taken.remove(&50_123));
        assert_eq!(ports.pick(a, b, 80, |p| !taken.contains(&p)), Some(50_123));
    }

    /// Where a round begins depends on its own end, whichever was looked for before.
    #[test]
    fn each_end_has_its_own_offset() {
        let [a, b, c] = [1, 2, 3].map(|n| Addr::from_v4([10, 0, 0, n]));
        let ends = [(a, b, 80), (a, c, 80), (a, b, 81), (c, b, 80)];
        let mut ports = LocalPorts::new(Ports::new(1024, 65_535), [3; 16], 0);
        let mut at = |(local, remote, port)| ports.round(local, remote, port).at;
        let first = ends.map(&mut at);
        assert_eq!(first.iter().collect::<HashSet<_>>().len(), ends.len(), "{first:?}");
        for n in [3, 0, 0, 2, 1, 3] {
            assert_eq!(at(ends[n]), first[n]);
        }
    }

    /// RFC 6056 3.2: all of the dynamic ports, at least.
    #[test]
    fn the_default_range_is_wide() {
        let mut ports = LocalPorts::new(crate::StackConfig::default().ports, [3; 16], 0);
        let (a, b) = (Addr::from_v4([10, 0, 0, 1]), Addr::from_v4([10, 0, 0, 2]));
        let mut taken = HashSet::new();
        while let Some(port) = ports.pick(a, b, 80, |p| !taken.contains(&p)) {
            taken.insert(port);
        }
        assert!((49_152..=65_535).all(|port| taken.contains(&port)));
        assert!(taken.iter().all(|port| *port >= 1024));
    }

    #[test]
    fn each_remote_end_has_its_own_start() {
        let (a, b) = (Addr::from_v4([10, 0, 0, 1]), Addr::from_v4([10, 0, 0, 2]));
        let first =
            |secret, remote, port| LocalPorts::new(Ports::new(1024, 65_535), secret, 0).pick(a, remote, port, |_| true);
        let mut starts = HashSet::new();
        for port in 0..200 {
            starts.insert(first([3; 16], b, port));
            starts.insert(first([3; 16], a, port));
            starts.insert(first([4; 16], b, port));
        }
        // 600 draws out of 64,512: a few may meet.
        assert!(starts.len() > 580, "{}", starts.len());
    }

    #[test]
    fn another_start_begins_elsewhere_for_each_peer_by_itself() {
        let (a, range) = (Addr::from_v4([10, 0, 0, 1]), Ports::new(16_384, 65_535));
        let first = |start, peer| {
            LocalPorts::new(range.clone(), [3; 16], start)
                .pick(a, Addr::from_v4([10, 0, 1, peer]), 80, |_| true)
                .unwrap()
        };
        let apart = |peer| first(7, peer).wrapping_sub(first(8, peer));
        let all: HashSet<u16> = (0..100).map(apart).collect();
        assert!(all.len() > 60 && !all.contains(&0), "{all:?}");
        assert_eq!(first(7, 1), first(7, 1));
    }

    #[test]
    fn the_whole_round_is_looked_at_where_the_offset_overflows() {
        let a = Addr::from_v4([10, 0, 0, 1]);
        // A range that does not divide 2^32, and sums of offset and counter all over it.
        let mut ports = LocalPorts::new(Ports::new(10_000, 10_999), [5; 16], 0);
        for peer in 0..=255 {
            ports.counters = [u32::MAX - 500; COUNTERS];
            let mut seen = HashSet::new();
            assert_eq!(ports.pick(a, Addr::from_v4([10, 0, 1, peer]), 80, |p| !seen.insert(p)), None);
            assert_eq!(seen.len(), 1000);
        }
    }

    #[test]
    fn a_round_goes_through_all_stretches() {
        let a = Addr::from_v4([10, 0, 0, 1]);
        let both: Ports = (10_240..11_264).chain(64_512..=65_535).collect();
        let mut ports = LocalPorts::new(both.clone(), [5; 16], 0);
        let mut seen = HashSet::new();
        assert_eq!(ports.pick(a, a, 80, |p| !seen.insert(p)), None);
        assert_eq!(seen, both.iter().collect());
        assert!(ports.has(65_535) && !ports.has(11_264));
    }

    #[test]
    fn other_ports_are_taken_from_then_on() {
        let a = Addr::from_v4([10, 0, 0, 1]);
        let mut ports = LocalPorts::new(Ports::default(), [5; 16], 0);
        assert_eq!(ports.pick(a, a, 80, |_| true), None);
        ports.replace(Ports::new(7, 7));
        assert_eq!((ports.pick(a, a, 80, |_| true), ports.count()), (Some(7), 1));
        ports.replace(Ports::new(8, 9));
        let mut seen = HashSet::new();
        assert_eq!(ports.pick(a, a, 80, |p| !seen.insert(p)), None);
        assert_eq!(seen, HashSet::from([8, 9]));
    }

    #[test]
    fn a_range_of_one_and_the_last_port() {
        let a = Addr::from_v4([10, 0, 0, 1]);
        assert_eq!(LocalPorts::new(Ports::new(65_535, 65_535), [0; 16], 0).pick(a, a, 1, |_| true), Some(65_535));
    }
}

//! Connections that lanes open, entered into the kernel's connection tracking where the machine has NAT, which draws local ports for the
//! connections of others and sees none of ours.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::collections::hash_map::{self, HashMap};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ::io::Bell;
use ::io::bpf::OwnFlow;
use ::io::netlink::{Conntrack, Ends, nat_is_used};
use mem::ArenaError;
use mem::spsc::{self, Consumer, Producer};

use super::tuples::ActiveTuples;

/// Entries stay so long: as the kernel's own do in TIME-WAIT, and twice as long as a peer that runs Linux has a connection there.
const STAY: Duration = Duration::from_secs(120);
/// After this time those that are open, or opened again, are entered again.
const AGAIN: Duration = Duration::from_secs(60);
/// Between two turns, while connections are opened.
const TICK: Duration = Duration::from_millis(20);
/// Entries made in a turn, 6 µs each.
const AT_ONCE: usize = 1024;
/// Between two questions for NAT.
const ASK: Duration = Duration::from_secs(30);
/// Connections that a lane opens on an interface between two turns; of more the rest is not entered.
const OPENED: usize = 1 << 13;

/// The machine's NAT, as far as is known.
#[derive(Default)]
pub(crate) struct Nat {
    is_used: AtomicBool,
    asked: Mutex<Option<Instant>>,
    /// A lane had no room for a connection.
    is_behind: AtomicBool,
}

impl Nat {
    fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Asks the kernel, unless it was asked a moment ago.
    pub fn look(&self) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.is_some_and(|asked| asked.elapsed() < ASK) {
            return;
        }
        let first = asked.replace(Instant::now()).is_none();
        match nat_is_used() {
            Ok(used) => self.is_used.store(used, Ordering::Relaxed),
            Err(error) if first => tracing::warn!("asking for NAT: {error}: it may give our ports to others"),
            Err(_) => {}
        }
    }
}

/// A lane's end: it tells each connection that it opens on an interface.
pub(crate) struct Opened {
    nat: Arc<Nat>,
    bell: Arc<Bell>,
    ring: RefCell<Producer<OwnFlow>>,
}

impl Opened {
    #[inline]
    pub fn tell(&self, tuple: &OwnFlow) {
        if self.nat.is_used() {
            self.push(tuple);
        }
    }

    fn push(&self, tuple: &OwnFlow) {
        let mut ring = self.ring.borrow_mut();
        match ring.push(*tuple) {
            Ok(()) => drop(ring.publish()),
            Err(_) => self.nat.is_behind.store(true, Ordering::Relaxed),
        }
        self.bell.ring_if_sleeping();
    }
}

/// The control thread's end.
pub(crate) struct Source {
    tuples: ActiveTuples,
    ring: Consumer<OwnFlow>,
}

/// Both ends for a lane and an interface.
pub(super) fn ends(nat: &Arc<Nat>, bell: &Arc<Bell>, tuples: &ActiveTuples) -> Result<(Opened, Source), ArenaError> {
    let (producer, ring) = spsc::queue(OPENED)?;
    let opened = Opened { nat: nat.clone(), bell: bell.clone(), ring: RefCell::new(producer) };
    Ok((opened, Source { tuples: tuples.clone(), ring }))
}

/// The kernel's table of connections.
pub(super) trait Table {
    /// Entries that there is room for.
    fn room(&self) -> usize;

    /// Enters connections as [`Conntrack::enter`] does.
    fn enter(&mut self, flows: &[Ends], again: bool, refused: &mut Vec<usize>) -> io::Result<()>;
}

impl Table for Conntrack {
    fn room(&self) -> usize {
        Conntrack::room()
    }

    fn enter(&mut self, flows: &[Ends], again: bool, refused: &mut Vec<usize>) -> io::Result<()> {
        Conntrack::enter(self, flows, STAY, again, refused)
    }
}

/// A connection, and the place of the source that it comes from.
type Entry = (usize, OwnFlow);

/// Enters connections for the lanes.
pub(super) struct Mirror<T> {
    nat: Arc<Nat>,
    bell: Arc<Bell>,
    sources: Vec<Source>,
    /// None where the kernel has none.
    table: Option<T>,
    /// Connections that are there, and when they were entered.
    entered: HashMap<Entry, Instant>,
    /// In the order of these times: those that may be open still, and those that were over after a while.
    open: VecDeque<(Instant, Entry)>,
    over: VecDeque<(Instant, Entry)>,
    /// Until the next turn, where connections came in the last one.
    rest: Option<Duration>,
    /// Told why some are not entered.
    is_told: bool,
}

impl<T: Table> Mirror<T> {
    pub fn new(nat: Arc<Nat>, bell: Arc<Bell>, sources: Vec<Source>, table: Option<T>) -> Mirror<T> {
        let (entered, open, over) = (HashMap::new(), VecDeque::new(), VecDeque::new());
        Mirror { nat, bell, sources, table, entered, open, over, rest: None, is_told: false }
    }

    /// Asks for NAT, now and then.
    pub fn look(&self) {
        self.nat.look();
    }

    /// Time until the next turn. While nothing is opened, lanes ring for the next connection.
    pub fn patience(&self, now: Instant) -> Option<Duration> {
        if self.rest.is_some() {
            return self.rest;
        }
        if self.nat.is_used() {
            self.bell.arm();
        }
        if self.sources.iter().any(|source| !source.ring.is_empty()) {
            return Some(Duration::ZERO);
        }
        let due = |queue: &VecDeque<(Instant, Entry)>, age| queue.front().map(|(entered, _)| *entered + age);
        let next = due(&self.open, AGAIN).into_iter().chain(due(&self.over, STAY)).min();
        next.map(|next| next.saturating_duration_since(now))
    }

    /// Enters what was opened, and what is open for long.
    pub fn work(&mut self, now: Instant) {
        let (mut new, mut again) = (Vec::new(), Vec::new());
        self.forget(now);
        self.take_due(now, &mut again);
        self.take_opened(now, &mut new, &mut again);
        self.enter(now, new, false);
        self.enter(now, again, true);
        if self.nat.is_behind.load(Ordering::Relaxed) {
            self.tell("more connections are opened than can be told to the kernel's connection tracking");
        }
    }

    /// Forgets entries that the kernel has no more.
    fn forget(&mut self, now: Instant) {
        while let Some((entered, entry)) = self.over.pop_front_if(|(entered, _)| now.duration_since(*entered) >= STAY) {
            if self.entered.get(&entry) == Some(&entered) {
                self.entered.remove(&entry);
            }
        }
    }

    /// Takes connections that are open after a while.
    fn take_due(&mut self, now: Instant, again: &mut Vec<Entry>) {
        while again.len() < AT_ONCE
            && let Some((entered, entry)) = self.open.pop_front_if(|(entered, _)| now.duration_since(*entered) >= AGAIN)
        {
            // Others were entered again when they were opened again.
            if self.entered.get(&entry) == Some(&entered) {
                match self.nat.is_used() && self.sources[entry.0].tuples.is_open(&entry.1) {
                    true => {
                        self.entered.insert(entry, now);
                        again.push(entry);
                    }
                    false => self.over.push_back((entered, entry)),
                }
            }
        }
    }

    /// Takes connections that lanes have opened, as far as they are not entered, or are for long.
    fn take_opened(&mut self, now: Instant, new: &mut Vec<Entry>, again: &mut Vec<Entry>) {
        self.rest = None;
        for (at, source) in self.sources.iter_mut().enumerate() {
            while new.len().max(again.len()) < AT_ONCE
                && let Some(tuple) = source.ring.pop()
            {
                self.rest = Some(TICK);
                match self.entered.entry((at, tuple)) {
                    hash_map::Entry::Vacant(entry) => {
                        new.push(*entry.key());
                        entry.insert(now);
                    }
                    hash_map::Entry::Occupied(mut entry) if now.duration_since(*entry.get()) >= AGAIN => {
                        again.push(*entry.key());
                        entry.insert(now);
                    }
                    hash_map::Entry::Occupied(_) => {}
                }
            }
            source.ring.release();
        }
        if new.len().max(again.len()) == AT_ONCE {
            self.rest = Some(Duration::ZERO);
        }
    }

    fn enter(&mut self, now: Instant, mut entries: Vec<Entry>, again: bool) {
        if entries.is_empty() {
            return;
        }
        let Some(table) = &mut self.table else { return self.entered.clear() };
        // Those that are there take no more room.
        let room = if again { usize::MAX } else { table.room() };
        let rest = entries.split_off(room.min(entries.len()));
        let flows: Vec<Ends> = entries.iter().map(|(_, tuple)| ends_of(tuple)).collect();
        let mut refused = Vec::new();
        let done = table.enter(&flows, again, &mut refused);
        let mut refused = refused.into_iter().peekable();
        for (at, entry) in entries.into_iter().enumerate() {
            if refused.next_if_eq(&at).is_some() {
                self.entered.remove(&entry);
            } else {
                self.entered.insert(entry, now);
                self.open.push_back((now, entry));
            }
        }
        if !rest.is_empty() {
            for entry in rest {
                self.entered.remove(&entry);
            }
            self.tell("connection tracking is half full (net.netfilter.nf_conntrack_max)");
        }
        if let Err(error) = done {
            // Until it is asked for the next time.
            self.nat.is_used.store(false, Ordering::Relaxed);
            self.tell(&format!("entering connections into connection tracking: {error}"));
        }
    }

    fn tell(&mut self, why: &str) {
        if !std::mem::replace(&mut self.is_told, true) {
            tracing::warn!("{why}: NAT may give local ports to others from which connections are open here");
        }
    }
}

fn ends_of(tuple: &OwnFlow) -> Ends {
    let local = SocketAddr::new(tuple.local.addr.to_ip(), tuple.local.port);
    (local, SocketAddr::new(tuple.remote.to_ip(), tuple.remote_port))
}

#[cfg(test)]
mod tests {
    use ::io::bpf::{Maps, OwnKey};
    use wire::Addr;

    use super::*;

    /// A table that holds so many, and refuses some ports.
    #[derive(Default)]
    struct Fake {
        room: usize,
        refused: Vec<u16>,
        fails: bool,
        /// First local port of each call, number of ports, and whether they are there.
        calls: Vec<(u16, usize, bool)>,
    }

    impl Table for Fake {
        fn room(&self) -> usize {
            self.room
        }

        fn enter(&mut self, flows: &[Ends], again: bool, refused: &mut Vec<usize>) -> io::Result<()> {
            self.calls.push((flows[0].0.port(), flows.len(), again));
            assert!(flows.iter().all(|(_, remote)| remote.to_string() == "10.0.0.2:80"));
            let fails = |local: &SocketAddr| self.fails || self.refused.contains(&local.port());
            refused.extend(flows.iter().enumerate().filter(|(_, (local, _))| fails(local)).map(|(at, _)| at));
            if self.fails { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(()) }
        }
    }

    fn tuple(port: u16) -> OwnFlow {
        let local = OwnKey { vlan: 0, addr: Addr::from_v4([10, 0, 0, 1]), port };
        OwnFlow { local, remote: Addr::from_v4([10, 0, 0, 2]), remote_port: 80 }
    }

    /// A lane, and its mirror over a table with room for 10,000.
    fn pair() -> (Opened, Mirror<Fake>, Arc<Nat>) {
        let (nat, bell) = (Arc::new(Nat::default()), Arc::new(Bell::new().unwrap()));
        nat.is_used.store(true, Ordering::Relaxed);
        let (opened, source) = ends(&nat, &bell, &ActiveTuples::of(0)).unwrap();
        let table = Fake { room: 10_000, ..Fake::default() };
        (opened, Mirror::new(nat.clone(), bell, vec![source], Some(table)), nat)
    }

    impl Mirror<Fake> {
        /// Calls of a turn.
        fn turn(&mut self, now: Instant) -> Vec<(u16, usize, bool)> {
            self.work(now);
            std::mem::take(&mut self.table.as_mut().unwrap().calls)
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn connections_are_entered_once_a_minute_however_often_a_port_is_used() {
        let (lane, mut mirror, _) = pair();
        let begin = Instant::now();
        assert_eq!((mirror.turn(begin), mirror.patience(begin)), (vec![], None));
        (5000..5010).for_each(|port| lane.tell(&tuple(port)));
        assert_eq!(mirror.patience(begin), Some(Duration::ZERO));
        assert_eq!((mirror.turn(begin), mirror.patience(begin)), (vec![(5000, 10, false)], Some(TICK)));
        // A port a second: 5000 is used at 0, 10, ..., 590.
        for second in 1..600 {
            lane.tell(&tuple(5000 + second as u16 % 10));
            let now = begin + second * SECOND;
            let expected = match (second / 10 % 6, second > 9) {
                (0, true) => vec![(5000 + second as u16 % 10, 1, true)],
                _ => vec![],
            };
            assert_eq!(mirror.turn(now), expected, "{second}");
        }
        let now = begin + 599 * SECOND;
        assert_eq!((mirror.turn(now), mirror.patience(now)), (vec![], Some(SECOND)));
        // The kernel has forgotten them by then, and so has the mirror.
        for second in 600..800 {
            mirror.turn(begin + second * SECOND);
        }
        assert_eq!((mirror.entered.len(), mirror.open.len(), mirror.over.len()), (0, 0, 0));
        assert_eq!(mirror.patience(begin + 800 * SECOND), None);
        lane.tell(&tuple(5000));
        assert_eq!(mirror.turn(begin + 800 * SECOND), [(5000, 1, false)]);
    }

    #[test]
    fn connections_that_are_open_for_long_stay_entered() {
        let Ok(table) = Maps::new(1).and_then(|maps| maps.open_tuples()) else { return testing::skip("no BPF maps") };
        let (lane, mut mirror, _) = pair();
        let begin = Instant::now();
        (5000..5004).for_each(|port| lane.tell(&tuple(port)));
        assert_ne!(table.claim(&tuple(5000)), ::io::bpf::Claim::Full);
        assert_ne!(table.claim(&tuple(5002)), ::io::bpf::Claim::Full);
        mirror.sources[0].tuples.set(table);
        mirror.turn(begin);
        mirror.turn(begin + SECOND);
        assert_eq!(mirror.patience(begin + SECOND), Some(59 * SECOND));
        assert_eq!(mirror.turn(begin + 59 * SECOND), []);
        // Opened again just then, by its TIME-WAIT.
        lane.tell(&tuple(5000));
        assert_eq!(mirror.turn(begin + 60 * SECOND), [(5000, 2, true)]);
        assert_eq!(mirror.turn(begin + 119 * SECOND), []);
        assert_eq!(mirror.turn(begin + 121 * SECOND), [(5000, 2, true)]);
        assert_eq!(mirror.entered.len(), 2);
    }

    #[test]
    fn tuples_of_others_and_those_without_room_are_asked_for_again() {
        let (lane, mut mirror, nat) = pair();
        let begin = Instant::now();
        let open = || (5000..5008).for_each(|port| lane.tell(&tuple(port)));
        *mirror.table.as_mut().unwrap() = Fake { room: 6, refused: vec![5001, 5004], ..Fake::default() };
        open();
        assert_eq!(mirror.turn(begin), [(5000, 6, false)]);
        mirror.table.as_mut().unwrap().room = 10;
        open();
        assert_eq!(mirror.turn(begin), [(5001, 4, false)]);
        assert!(mirror.entered.len() == 6 && mirror.is_told);
        // After an error nothing is told any more, until NAT is asked for again.
        mirror.table.as_mut().unwrap().fails = true;
        open();
        assert_eq!((mirror.turn(begin).len(), nat.is_used()), (1, false));
        open();
        assert_eq!((mirror.turn(begin), mirror.entered.len()), (vec![], 6));
    }

    #[test]
    fn a_turn_enters_a_bounded_number() {
        let (lane, mut mirror, nat) = pair();
        let begin = Instant::now();
        (0..OPENED as u16 + 10).for_each(|port| lane.tell(&tuple(1000 + port)));
        assert!(nat.is_behind.load(Ordering::Relaxed));
        for turn in 0..OPENED / AT_ONCE {
            assert_eq!(mirror.turn(begin), [(1000 + (turn * AT_ONCE) as u16, AT_ONCE, false)]);
            assert_eq!(mirror.patience(begin), Some(Duration::ZERO));
        }
        assert!(mirror.is_told && mirror.turn(begin).is_empty());
    }
}

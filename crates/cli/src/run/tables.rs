//! Local listen tables of a program: for each address a group of listeners, a worker's part each, selected by core.
//!
//! The program's own socket, which its first process listens with, stays in the group as the paper's global listen socket: what no
//! part can take waits there. What waits there once a worker has its part goes to the parts ([`Tables::drain`]).

use super::How;
use super::processes::{affinity, parent, socket_of};
use super::report::{Listener, Part, Report};
use crate::failure::{Failure, words};
use ::io::bpf::{ListenGroup, Selected, Slot};
use ::io::netlink::{Handshakes, listening_cookies};
use channel::{Place, after_packets_under_way, listen_beside, waiting};
use claims::Verdict;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{fcntl_getfl, fcntl_setfl};
use rustix::net::sockopt;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

/// Handshakes that are under way with a listener are waited for no longer.
const HANDSHAKES: Duration = Duration::from_millis(500);

/// A request about a listener.
pub struct Claim {
    /// Process that asks.
    pub pid: u32,
    /// Its thread.
    pub tid: u32,
    /// Its descriptor of the listener.
    pub fd: u16,
    /// The listener.
    pub listener: OwnedFd,
}

/// Answer to a request, with the part.
pub type Answer = (Verdict, Option<OwnedFd>);

/// All groups.
pub struct Tables {
    ports: Vec<u16>,
    pin: bool,
    /// Cores that workers are pinned to, in this order.
    cores: Vec<u32>,
    cpus: u32,
    /// Of this process, to know sockets of another namespace.
    here: Place,
    groups: Vec<Group>,
    /// Sockets that began to listen, by cookie: the process that did it.
    listeners: HashMap<u64, u32>,
    draining: Vec<Draining>,
    /// Places and sockets to which the program has attached a program of its own.
    foreign: (Vec<Place>, Vec<u64>),
    /// Where processes wait without a part.
    shared: Vec<Place>,
    notes: Vec<String>,
}

struct Group {
    place: Place,
    table: ListenGroup,
    members: Vec<Member>,
    /// Parts that have ended.
    past: Vec<Part>,
    /// The program's own socket, while no worker has a part: it would be one of all that listen else, among them parts that close.
    shared: Option<Shared>,
    /// Connections that it had.
    to_shared: u64,
}

/// The program's own socket in the table.
struct Shared {
    slot: u32,
    cookie: u64,
    before: Selected,
}

/// A worker's listener in the table.
struct Member {
    slot: u32,
    cookie: u64,
    /// Of the program's own socket, in whose place it is; none where it is the process's own.
    whole: Option<u64>,
    /// Counted in the slot before.
    before: Selected,
    /// Core that the worker is pinned to as soon as it is not alone.
    core: Option<u32>,
    part: Part,
}

/// A listener that new connections no longer come to, with handshakes under way.
struct Draining {
    listener: OwnedFd,
    port: u16,
    /// Those that were under way when connections came to it last; none before that is known.
    handshakes: Option<Handshakes>,
    since: Instant,
    then: Then,
}

/// End of a drain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    /// A part whose process has closed it: closes.
    Close,
    /// The program's own socket: what waits there moves, and it listens on.
    Listen,
}

impl Tables {
    /// Fails where the kernel or the rights do not allow a local listen table.
    pub fn new(how: &How, program: u32) -> Result<Tables, Failure> {
        let cpus = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
        let cpus = crate::args::core_list(cpus.trim()).ok().and_then(|list| list.0.into_iter().max()).unwrap_or(1023)
            as u32
            + 1;
        // Tried before the program starts, which could not be told later.
        ListenGroup::open(cpus).map_err(Failure::told)?;
        let cores = match &how.cores {
            None => affinity(program).unwrap_or_default(),
            Some(list) => list.0.iter().map(|core| *core as u32).collect(),
        };
        let here = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None)
            .map_err(io::Error::from)
            .and_then(|socket| Place::of(socket.as_fd()))
            .map_err(|error| Failure::told(format!("helper: {}", words(&error))))?;
        Ok(Tables {
            ports: how.ports.clone(),
            pin: !how.no_pin,
            cores,
            cpus,
            here,
            groups: Vec::new(),
            listeners: HashMap::new(),
            draining: Vec::new(),
            foreign: (Vec::new(), Vec::new()),
            shared: Vec::new(),
            notes: Vec::new(),
        })
    }

    /// Keeps a line for the report.
    pub fn note(&mut self, text: &str) {
        if !self.notes.iter().any(|note| note == text) {
            self.notes.push(text.into());
        }
    }

    /// Where a socket listens, if it is one that is to be partitioned.
    fn place(&self, listener: BorrowedFd<'_>) -> Option<Place> {
        let place = Place::of(listener).ok()?;
        let wanted = self.ports.is_empty() || self.ports.contains(&place.port);
        (wanted && place.is_beside(&self.here)).then_some(place)
    }

    /// Before a socket listens: it becomes one that others may stand beside.
    pub fn prepare(&mut self, claim: Claim) -> Result<Answer, String> {
        if self.place(claim.listener.as_fd()).is_none() {
            return Ok((Verdict::Leave, None));
        }
        sockopt::set_socket_reuseport(&claim.listener, true).map_err(|error| format!("SO_REUSEPORT: {error}"))?;
        if let Ok(cookie) = sockopt::socket_cookie(&claim.listener) {
            self.listeners.insert(cookie, claim.pid);
        }
        Ok((Verdict::Keep, None))
    }

    /// Before a thread waits for connections: its process gets its part. One that listens for itself keeps its socket as its part.
    pub fn claim(&mut self, claim: Claim) -> Result<Answer, String> {
        let listener = claim.listener.as_fd();
        let Some(place) = self.place(listener) else { return Ok((Verdict::Leave, None)) };
        if !sockopt::socket_acceptconn(listener).unwrap_or(false) {
            return Ok((Verdict::Leave, None));
        }
        let failed = |what: &str, error: io::Error| format!("{place}: {what}: {}", words(&error));
        let cookie = sockopt::socket_cookie(listener).map_err(|error| failed("cookie", error.into()))?;
        let own = self.listeners.get(&cookie) == Some(&claim.pid);
        if self.foreign.0.contains(&place) || self.foreign.1.contains(&cookie) {
            return Err(format!(
                "{place}: the program selects its listeners by itself (SO_ATTACH_REUSEPORT_CBPF, _EBPF)"
            ));
        }
        self.listeners.entry(cookie).or_insert(0);
        let core = self.core(claim.tid);
        let at = match self.groups.iter().position(|group| group.place == place) {
            Some(at) => at,
            None => {
                let table = ListenGroup::open(self.cpus).map_err(|error| format!("{place}: {error}"))?;
                self.groups.push(Group::new(place.clone(), table));
                self.groups.len() - 1
            }
        };
        let group = &mut self.groups[at];
        group.refresh();
        if own && group.members.iter().any(|member| member.cookie == cookie) {
            return Ok((Verdict::Keep, None));
        }
        let part = if own {
            None
        } else {
            let made = listen_beside(listener).and_then(|part| {
                fcntl_setfl(&part, fcntl_getfl(listener)?)?;
                Ok(part)
            });
            Some(made.map_err(|error| failed("no part", error))?)
        };
        let socket = part.as_ref().map_or(listener, AsFd::as_fd);
        let part_of = Part { pid: claim.pid, tid: claim.tid, core: None, local: 0, elsewhere: 0, migrated: 0 };
        let whole = part.as_ref().map(|_| cookie);
        group.add(socket, whole, core, part_of).map_err(|error| failed("no place in the table", error))?;
        group.pin(self.pin);
        group.assign().map_err(|error| failed("assigning cores", error))?;
        let Some(part) = part else { return Ok((Verdict::Keep, None)) };
        self.drain_later(claim.listener, place.port, Then::Listen);
        Ok((Verdict::Replace, Some(part)))
    }

    fn drain_later(&mut self, listener: OwnedFd, port: u16, then: Then) {
        self.draining.push(Draining { listener, port, handshakes: None, since: Instant::now(), then });
    }

    /// Before a process closes its part: connections go to the others, and it closes once those under way have come, which then move. The
    /// last part closes at once, as a listener does.
    pub fn leave(&mut self, claim: Claim) -> Result<Answer, String> {
        let nothing = Ok((Verdict::Leave, None));
        let Ok(cookie) = sockopt::socket_cookie(&claim.listener) else { return nothing };
        for group in &mut self.groups {
            let found = group.members.iter().position(|member| member.cookie == cookie && member.part.pid == claim.pid);
            if let Some(at) = found
                && group.members.len() > 1
            {
                group.remove(at);
                let _ = group.assign();
                let port = group.place.port;
                self.drain_later(claim.listener, port, Then::Close);
                break;
            }
        }
        nothing
    }

    /// A process has taken its part out of its epoll sets: what came to it would wait until it returns, if ever. So it gets the program's own
    /// socket back, which all of its workers share, and has a part again when it waits again.
    pub fn away(&mut self, claim: Claim) -> Result<Answer, String> {
        let keep = Ok((Verdict::Keep, None));
        let Ok(cookie) = sockopt::socket_cookie(&claim.listener) else { return keep };
        for group in &mut self.groups {
            let is_part = |member: &Member| member.cookie == cookie && member.part.pid == claim.pid;
            let Some(at) = group.members.iter().position(is_part) else { continue };
            let Some(cookie) = group.members[at].whole else { return keep };
            // Who has forked the workers has the socket at their number; the helper keeps none.
            let others = [parent(claim.pid), self.listeners.get(&cookie).copied()];
            let found = others.into_iter().flatten().find_map(|pid| socket_of(pid, claim.fd, cookie));
            let Some(whole) = found else { return keep };
            group.remove(at);
            if group.members.is_empty() {
                // Without a place in the table it is selected by hash, as one of all that listen.
                let _ = group.share(whole.as_fd(), cookie);
            }
            let _ = group.assign();
            let port = group.place.port;
            self.drain_later(claim.listener, port, Then::Close);
            return Ok((Verdict::Replace, Some(whole)));
        }
        keep
    }

    /// The program selects the listeners of an address by itself: they are left alone.
    pub fn leave_alone(&mut self, claim: Claim) -> Result<Answer, String> {
        let bound = Place::of(claim.listener.as_fd()).ok().filter(|place| place.port != 0);
        self.foreign.0.extend(bound);
        self.foreign.1.extend(sockopt::socket_cookie(&claim.listener).ok());
        Ok((Verdict::Leave, None))
    }

    /// A process waits in a way of those that serve one connection at a time: it shares the program's own socket.
    pub fn share(&mut self, claim: Claim) -> Result<Answer, String> {
        if let Some(place) = self.place(claim.listener.as_fd())
            && !self.shared.contains(&place)
        {
            self.shared.push(place);
        }
        Ok((Verdict::Keep, None))
    }

    /// The core of a thread's part: that of its other parts, the only one that it may use, or the one with the fewest workers.
    fn core(&self, tid: u32) -> Option<u32> {
        let members = || self.groups.iter().flat_map(|group| &group.members);
        if let Some(member) = members().find(|member| member.part.tid == tid) {
            return member.core;
        }
        let may = affinity(tid)?;
        if let [core] = may[..] {
            return Some(core);
        }
        let workers = |core: u32| {
            let tids = members().filter(|member| member.core == Some(core)).map(|member| member.part.tid);
            tids.collect::<std::collections::BTreeSet<_>>().len()
        };
        self.cores.iter().copied().filter(|core| may.contains(core)).min_by_key(|core| workers(*core))
    }

    /// A process has ended: what it had in the tables is no more selected.
    pub fn ended(&mut self, pid: u32) {
        for group in &mut self.groups {
            for member in group.members.iter().filter(|member| member.part.pid == pid) {
                // A child of it may have the socket still, and nobody accepts from it.
                let _ = group.table.remove(member.slot);
            }
            group.refresh();
            let _ = group.assign();
        }
    }

    /// True while a socket of the program listens still, whoever has it.
    pub fn listens(&self) -> io::Result<bool> {
        Ok(listening_cookies()?.iter().any(|cookie| self.listeners.contains_key(cookie)))
    }

    /// True while [`drain`](Tables::drain) has something to do.
    pub fn drains(&self) -> bool {
        !self.draining.is_empty()
    }

    /// Moves what waits at listeners that new connections no longer come to. The handshakes that are under way are let finish: one whose
    /// last ACK meets a socket that stops listening is lost.
    pub fn drain(&mut self, now: Instant) {
        self.draining.retain_mut(|draining| {
            let for_now = now.saturating_duration_since(draining.since);
            let left = match &mut draining.handshakes {
                Some(handshakes) => handshakes.left().unwrap_or(0),
                None => {
                    after_packets_under_way();
                    draining.handshakes = Handshakes::under_way(draining.port).ok();
                    draining.handshakes.as_ref().map_or(0, Handshakes::seen)
                }
            };
            if left > 0 && for_now < HANDSHAKES {
                return true;
            }
            let listener = draining.listener.as_fd();
            if draining.then == Then::Listen
                && let Ok((1.., most)) = waiting(listener)
            {
                // The program moves its queue. From then on it listens as what is left when all parts have gone.
                let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Read);
                let _ = rustix::net::listen(listener, most as i32);
            }
            false
        });
    }

    /// All that was counted.
    pub fn report(&mut self) -> Report {
        let listeners = self.groups.iter_mut().map(|group| {
            group.refresh();
            let live = group.members.iter().map(|member| member.counted(&group.table));
            Listener {
                address: group.place.to_string(),
                parts: group.past.iter().cloned().chain(live).collect(),
                shared: group.shared_connections(),
            }
        });
        let listeners = listeners.collect();
        for place in self.shared.iter().filter(|place| self.groups.iter().all(|group| group.place != **place)) {
            let how = "its processes wait by accept, poll or select, and share the listener as without corelane";
            self.notes.push(format!("{place}: {how}"));
        }
        Report::new(listeners, self.notes.clone())
    }
}

impl Member {
    fn counted(&self, table: &ListenGroup) -> Part {
        let now = table.selected(self.slot).unwrap_or(self.before);
        Part {
            local: now.local.saturating_sub(self.before.local),
            elsewhere: now.elsewhere.saturating_sub(self.before.elsewhere),
            migrated: now.migrated.saturating_sub(self.before.migrated),
            ..self.part.clone()
        }
    }
}

impl Group {
    fn new(place: Place, table: ListenGroup) -> Group {
        Group { place, table, members: Vec::new(), past: Vec::new(), shared: None, to_shared: 0 }
    }

    fn has(&self, slot: u32, cookie: u64) -> bool {
        self.table.cookie(slot).is_ok_and(|there| there == Some(cookie))
    }

    /// Forgets members whose listener has closed.
    fn refresh(&mut self) {
        for at in (0..self.members.len()).rev() {
            if !self.has(self.members[at].slot, self.members[at].cookie) {
                self.remove(at);
            }
        }
        if self.shared.as_ref().is_some_and(|shared| !self.has(shared.slot, shared.cookie)) {
            self.unshare();
        }
    }

    /// Puts a listener into the table, in place of the shared one.
    fn add(&mut self, listener: BorrowedFd<'_>, whole: Option<u64>, core: Option<u32>, part: Part) -> io::Result<()> {
        let slot = self.table.free()?.ok_or(rustix::io::Errno::NOSPC)?;
        let (before, cookie) = (self.table.selected(slot)?, sockopt::socket_cookie(listener)?);
        self.table.put(slot, listener)?;
        self.members.push(Member { slot, cookie, whole, before, core, part });
        self.unshare();
        self.table.attach(listener)
    }

    /// Takes a member out of the table. A worker that comes and goes is one part.
    fn remove(&mut self, at: usize) {
        let member = self.members.remove(at);
        let part = member.counted(&self.table);
        if self.has(member.slot, member.cookie) {
            let _ = self.table.remove(member.slot);
        }
        match self.past.iter_mut().find(|past| (past.pid, past.tid) == (part.pid, part.tid)) {
            Some(past) => past.join(part),
            None => self.past.push(part),
        }
    }

    /// Puts the program's own socket into the table, which has no other.
    fn share(&mut self, whole: BorrowedFd<'_>, cookie: u64) -> io::Result<()> {
        let slot = self.table.free()?.ok_or(rustix::io::Errno::NOSPC)?;
        let before = self.table.selected(slot)?;
        self.table.put(slot, whole)?;
        self.shared = Some(Shared { slot, cookie, before });
        Ok(())
    }

    fn unshare(&mut self) {
        self.to_shared = self.shared_connections();
        if let Some(shared) = self.shared.take()
            && self.has(shared.slot, shared.cookie)
        {
            let _ = self.table.remove(shared.slot);
        }
    }

    /// Connections of the program's own socket so far.
    fn shared_connections(&self) -> u64 {
        let now = self.shared.as_ref().map_or(0, |shared| {
            let now = self.table.selected(shared.slot).unwrap_or(shared.before);
            now.elsewhere.saturating_sub(shared.before.elsewhere)
        });
        self.to_shared + now
    }

    /// Pins workers, where there are several: who is alone has nobody to share cores with. Those that are pinned already stay there.
    fn pin(&mut self, pin: bool) {
        let alone = self.members.iter().all(|member| member.part.tid == self.members[0].part.tid);
        for member in self.members.iter_mut().filter(|member| member.part.core.is_none()) {
            let Some(may) = affinity(member.part.tid) else { continue };
            member.part.core = match (&may[..], member.core) {
                ([only], _) => Some(*only),
                (_, Some(core)) if pin && !alone => {
                    let mut set = CpuSet::new();
                    set.set(core as usize);
                    let thread = Pid::from_raw(member.part.tid as i32);
                    thread.and_then(|thread| sched_setaffinity(Some(thread), &set).ok()).map(|()| core)
                }
                _ => None,
            };
        }
    }

    /// Tells the program whose the cores are.
    fn assign(&self) -> io::Result<()> {
        let slot = |member: &Member| Slot { at: member.slot, cpu: member.part.core };
        let shared = self.shared.iter().map(|shared| Slot { at: shared.slot, cpu: None });
        self.table.assign(&self.members.iter().map(slot).chain(shared).collect::<Vec<_>>())
    }
}

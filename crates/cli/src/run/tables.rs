//! Local listen tables of a program: for each address a group of listeners, a worker's part each, selected by core.
//!
//! The program's own socket, which its first process listens with, stays in the group as the paper's global listen socket: what no
//! part can take waits there. What waits there once a worker has its part goes to the parts ([`Tables::drain`]).

use super::How;
use super::group::{Group, Member, Worker};
use super::report::{Listener, Opened, Part, Queues, Report};
use super::turns::Turns;
use crate::failure::{Failure, words};
use crate::processes::{affinity, parent, socket_of};
use ::io::bpf::ListenGroup;
use ::io::netlink::{Handshakes, accept_queues};
use channel::{Place, after_packets_under_way, listen_beside, waiting};
use claims::Verdict;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{fcntl_getfl, fcntl_setfl};
use rustix::net::sockopt;
use std::collections::{HashMap, HashSet};
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
    turns: Turns,
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
    /// The program's own sockets at which something waited at the last look, by cookie.
    left_behind: HashSet<u64>,
    notes: Vec<String>,
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
    /// The program's own socket, or a part that nobody accepts from: what waits there moves, and it listens on.
    Listen,
}

impl Tables {
    /// Fails where the kernel or the rights do not allow a local listen table.
    pub fn new(how: &How, cores: Vec<u32>, cpus: u32) -> Result<Tables, Failure> {
        // Tried before the program starts, which could not be told later.
        ListenGroup::open(cpus).map_err(Failure::told)?;
        let here = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None)
            .map_err(io::Error::from)
            .and_then(|socket| Place::of(socket.as_fd()))
            .map_err(|error| Failure::told(format!("helper: {}", words(&error))))?;
        Ok(Tables {
            ports: how.ports.clone(),
            pin: !how.no_pin,
            cores,
            turns: Turns::default(),
            cpus,
            here,
            groups: Vec::new(),
            listeners: HashMap::new(),
            draining: Vec::new(),
            foreign: (Vec::new(), Vec::new()),
            shared: Vec::new(),
            left_behind: HashSet::new(),
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
        let worker =
            Worker { fd: claim.fd, whole: part.as_ref().map(|_| cookie), core, part: Part::new(claim.pid, claim.tid) };
        group.add(socket, worker).map_err(|error| failed("no place in the table", error))?;
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
            let is_part = |member: &Member| member.cookie == cookie && member.worker.part.pid == claim.pid;
            if let Some(at) = group.members.iter().position(is_part)
                && group.has_others()
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
            let is_part = |member: &Member| member.cookie == cookie && member.worker.part.pid == claim.pid;
            let Some(at) = group.members.iter().position(is_part) else { continue };
            let Some(cookie) = group.members[at].worker.whole else { return keep };
            let Some(whole) = whole(&self.listeners, claim.pid, claim.fd, cookie) else { return keep };
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

    /// The core of a thread's part: that of its other parts, the only one that it may use, or the one with the fewest workers ([`Turns`]).
    fn core(&mut self, tid: u32) -> Option<u32> {
        let members = || self.groups.iter().flat_map(|group| &group.members);
        if let Some(member) = members().find(|member| member.worker.part.tid == tid) {
            return member.worker.core;
        }
        let may = affinity(tid)?;
        if let [core] = may[..] {
            self.turns.given(core);
            return Some(core);
        }
        let workers = |core: u32| {
            let tids = members().filter(|member| member.worker.core == Some(core)).map(|member| member.worker.part.tid);
            tids.collect::<std::collections::BTreeSet<_>>().len()
        };
        self.turns.take(self.cores.iter().copied().filter(|core| may.contains(core)), workers)
    }

    /// A process has ended: what it had in the tables is no more selected.
    pub fn ended(&mut self, pid: u32) {
        for group in &mut self.groups {
            group.refresh();
            // A child of it may have the socket still, and nobody accepts from it.
            while let Some(at) = group.members.iter().position(|member| member.worker.part.pid == pid) {
                group.remove(at);
            }
            let _ = group.assign();
        }
    }

    /// True while a socket of the program listens still, whoever has it.
    pub fn listens(&self) -> io::Result<bool> {
        Ok(accept_queues()?.keys().any(|cookie| self.listeners.contains_key(cookie)))
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
                // The kernel moves its queue. From then on it listens as what is left when all others have gone.
                let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Read);
                let _ = rustix::net::listen(listener, most as i32);
                self.groups.iter().for_each(|group| group.put_back(listener));
            }
            false
        });
    }

    /// True where [`look`](Tables::look) could find something.
    pub fn may_stall(&self) -> bool {
        self.groups.iter().any(|group| group.has_others() || !group.wholes().is_empty())
    }

    /// Moves what waits at parts whose workers accept nothing, and at the program's own sockets: handshakes that began there may take
    /// longer than they are waited for.
    pub fn look(&mut self, now: Instant) {
        let Ok(queues) = accept_queues() else { return };
        let mut left_behind = HashSet::new();
        for at in 0..self.groups.len() {
            let port = self.groups[at].place.port;
            for (pid, fd, cookie) in self.groups[at].look(&queues, now) {
                if let Some(part) = socket_of(pid, fd, cookie) {
                    self.drain_later(part, port, Then::Listen);
                }
            }
            if self.shared.contains(&self.groups[at].place) {
                continue;
            }
            for (cookie, (pid, fd)) in self.groups[at].wholes() {
                if queues.get(&cookie).is_some_and(|waiting| *waiting > 0)
                    && left_behind.insert(cookie)
                    && self.left_behind.contains(&cookie)
                    && let Some(whole) = whole(&self.listeners, pid, fd, cookie)
                {
                    self.drain_later(whole, port, Then::Listen);
                }
            }
        }
        self.left_behind = left_behind;
    }

    /// All that was counted.
    pub fn report(&mut self, opened: Option<Opened>, queues: Vec<Queues>) -> Report {
        let listeners = self.groups.iter_mut().map(|group| {
            let (parts, shared) = group.counted();
            Listener { address: group.place.to_string(), parts, shared }
        });
        let listeners = listeners.collect();
        for place in self.shared.iter().filter(|place| self.groups.iter().all(|group| group.place != **place)) {
            let how = "its processes wait by accept, poll or select, and share the listener as without corelane";
            self.notes.push(format!("{place}: {how}"));
        }
        Report::new(listeners, opened, queues, self.notes.clone())
    }
}

/// The program's own socket, in whose place a worker has its part: who has forked the worker has it at the same number, or who listened
/// with it. The helper keeps none: one that the program has closed would listen on.
fn whole(listeners: &HashMap<u64, u32>, worker: u32, fd: u16, cookie: u64) -> Option<OwnedFd> {
    let others = [parent(worker), listeners.get(&cookie).copied()];
    others.into_iter().flatten().find_map(|pid| socket_of(pid, fd, cookie))
}

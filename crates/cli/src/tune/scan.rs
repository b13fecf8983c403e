//! Listeners of a port, and the threads that accept from them, as sock_diag and /proc show them.

use crate::processes::{Thread, affinity, has_preload, socket_of, threads};
use ::io::netlink::listeners_on;
use channel::Place;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::sockopt;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Looks at the system calls of threads, where a process has several: one that is busy is in none at most of them.
const LOOKS: u32 = 100;
/// Looks in any case, so that all threads that wait for one event set are seen.
const FIRST_LOOKS: u32 = 3;
const BETWEEN: Duration = Duration::from_millis(5);

/// System calls that wait for an event set.
#[cfg(target_arch = "x86_64")]
const WAITS: &[i64] = &[libc::SYS_epoll_wait, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2];
#[cfg(not(target_arch = "x86_64"))]
const WAITS: &[i64] = &[libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2];
/// System calls that wait for a connection.
const ACCEPTS: &[i64] = &[libc::SYS_accept, libc::SYS_accept4];

/// Listeners among which the kernel selects: a SO_REUSEPORT group, or one that stands alone.
#[derive(Debug)]
pub struct Group {
    /// Where they listen.
    pub place: Place,
    /// Members, in the order of their workers.
    pub listeners: Vec<Listener>,
}

/// A listener, and who accepts from it.
#[derive(Debug)]
pub struct Listener {
    /// SO_COOKIE.
    pub cookie: u64,
    /// Another descriptor of it.
    pub socket: OwnedFd,
    /// Threads that accept from it; where that cannot be seen, all threads of the processes that have it.
    pub threads: Vec<Worker>,
    /// A process that has it, under `corelane run`.
    pub preloaded: Option<u32>,
}

/// A thread that accepts connections.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Worker {
    /// The thread.
    pub thread: Thread,
    /// Cores that it may use.
    pub cores: Vec<u32>,
}

impl Worker {
    /// The core that it is pinned to.
    pub fn only_core(&self) -> Option<u32> {
        match self.cores[..] {
            [core] => Some(core),
            _ => None,
        }
    }
}

/// A process that has listeners.
#[derive(Debug, Default)]
struct Process {
    pid: u32,
    /// Files of listeners, by descriptor.
    listeners: Vec<(u16, u64)>,
    /// Descriptors of event sets (epoll), with the files of listeners in them.
    sets: Vec<(u32, BTreeSet<u64>)>,
}

/// Groups of a port in this network namespace. Fails where the kernel tells nothing, or a listener's process cannot be looked into.
pub fn groups(port: u16) -> io::Result<Vec<Group>> {
    let cookies = listeners_on(port)?;
    let processes = holders(&cookies);
    let mut waits = Waits::default();
    let mut groups: HashMap<_, Group> = HashMap::new();
    for (file, cookie) in &cookies {
        let with_it: Vec<_> = having(&processes, *file).collect();
        let Some(socket) = socket(&processes, *file, *cookie) else {
            // One that has closed meanwhile is none.
            match listeners_on(port)?.contains_key(file) {
                true => return Err(unseen()),
                false => continue,
            }
        };
        let place = Place::of(socket.as_fd())?;
        let alone = !sockopt::socket_reuseport(&socket)?;
        let owner = rustix::fs::fstat(&socket)?.st_uid;
        let listener = Listener {
            cookie: *cookie,
            socket,
            threads: accepting(&processes, *file, &with_it, &mut waits),
            preloaded: with_it.iter().map(|(pid, _)| *pid).find(|pid| has_preload(*pid)),
        };
        let key = (place.clone(), owner, alone.then_some(*cookie));
        let group = groups.entry(key).or_insert_with(|| Group { place, listeners: Vec::new() });
        group.listeners.push(listener);
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    for group in &mut groups {
        let order = |listener: &Listener| listener.threads.first().map(|worker| worker.thread.tid);
        group.listeners.sort_by_key(|listener| (order(listener), listener.cookie));
    }
    groups.sort_by_key(|group| (group.place.to_string(), group.listeners.first().map(|first| first.cookie)));
    Ok(groups)
}

/// Error of a listener whose process does not let this one look into it.
pub fn unseen() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "a process that listens there cannot be looked into")
}

/// Listeners of a port, by cookie, as far as their processes can be looked into.
pub fn sockets(port: u16) -> io::Result<HashMap<u64, OwnedFd>> {
    let cookies = listeners_on(port)?;
    let processes = holders(&cookies);
    Ok(cookies.iter().filter_map(|(file, cookie)| Some((*cookie, socket(&processes, *file, *cookie)?))).collect())
}

/// Processes that have the listener of a file, with their descriptors of it.
fn having(processes: &[Process], file: u64) -> impl Iterator<Item = (u32, u16)> + '_ {
    let of = move |process: &'_ Process| {
        let listeners = process.listeners.iter().filter(move |(_, of)| *of == file);
        listeners.map(|(fd, _)| (process.pid, *fd)).collect::<Vec<_>>()
    };
    processes.iter().flat_map(of)
}

fn socket(processes: &[Process], file: u64, cookie: u64) -> Option<OwnedFd> {
    having(processes, file).find_map(|(pid, fd)| socket_of(pid, fd, cookie))
}

/// Processes that have listeners, by the files of these.
fn holders(listeners: &HashMap<u64, u64>) -> Vec<Process> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let mut process = Process { pid, ..Process::default() };
        let mut sets = Vec::new();
        for entry in fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten() {
            let (Ok(link), Some(fd)) = (fs::read_link(entry.path()), number(&entry.file_name())) else { continue };
            let link = link.to_string_lossy();
            let file = link.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')?.parse().ok());
            match (file, u16::try_from(fd)) {
                (Some(file), Ok(fd)) if listeners.contains_key(&file) => process.listeners.push((fd, file)),
                _ if link == "anon_inode:[eventpoll]" => sets.push(fd),
                _ => {}
            }
        }
        if !process.listeners.is_empty() {
            let of = |fd: u32| {
                let text =
                    fs::read_to_string(Path::new("/proc").join(format!("{pid}/fdinfo/{fd}"))).unwrap_or_default();
                files_in(&text).filter(|file| listeners.contains_key(file)).collect()
            };
            process.sets = sets.into_iter().map(|fd| (fd, of(fd))).collect();
            found.push(process);
        }
    }
    found
}

fn number(name: &std::ffi::OsStr) -> Option<u32> {
    name.to_str()?.parse().ok()
}

/// Numbers of the files in an event set, as `/proc/PID/fdinfo/FD` shows it.
fn files_in(text: &str) -> impl Iterator<Item = u64> + '_ {
    let targets = text.lines().filter(|line| line.starts_with("tfd:"));
    targets.filter_map(|line| {
        let file = line.split_whitespace().find_map(|word| word.strip_prefix("ino:"))?;
        u64::from_str_radix(file, 16).ok()
    })
}

/// Threads that accept from the listener of a file, which processes have at these descriptors.
fn accepting(processes: &[Process], file: u64, with_it: &[(u32, u16)], waits: &mut Waits) -> Vec<Worker> {
    let sets: BTreeSet<_> = processes
        .iter()
        .flat_map(|process| {
            let sets = process.sets.iter().filter(|(_, files)| files.contains(&file));
            sets.map(|(fd, _)| (process.pid, u64::from(*fd)))
        })
        .collect();
    let (calls, at) = match sets.is_empty() {
        false => (WAITS, sets),
        true => (ACCEPTS, with_it.iter().map(|(pid, fd)| (*pid, u64::from(*fd))).collect()),
    };
    let pids: BTreeSet<u32> = at.iter().map(|(pid, _)| *pid).collect();
    let mut all: Vec<_> = pids.iter().flat_map(|pid| threads(*pid)).collect();
    if all.len() > 1 {
        let seen = waits.seen(&pids, |call, pid, first| calls.contains(&call) && at.contains(&(pid, first)));
        if !seen.is_empty() {
            all = seen;
        }
    }
    let workers = all.into_iter();
    workers.filter_map(|thread| Some(Worker { cores: affinity(thread.tid)?, thread })).collect()
}

/// A thread, and the system call in which it was seen, with the first argument of that.
type Waiting = (Thread, i64, u64);

/// System calls in which threads were seen to wait.
#[derive(Debug, Default)]
struct Waits {
    /// By process, with how often it was looked at.
    seen: BTreeMap<u32, (u32, BTreeSet<Waiting>)>,
}

impl Waits {
    /// Threads of these processes that were seen in such a call. Looks again until there is one.
    fn seen(&mut self, pids: &BTreeSet<u32>, is: impl Fn(i64, u32, u64) -> bool) -> Vec<Thread> {
        loop {
            let known = || pids.iter().filter_map(|pid| self.seen.get(pid));
            let looks = known().map(|(looks, _)| *looks).min().filter(|_| known().count() == pids.len()).unwrap_or(0);
            let calls = known().flat_map(|(_, calls)| calls).filter(|(of, call, first)| is(*call, of.pid, *first));
            let found: BTreeSet<_> = calls.map(|(of, ..)| of.clone()).collect();
            if (looks >= FIRST_LOOKS && !found.is_empty()) || looks >= LOOKS {
                return found.into_iter().collect();
            }
            for pid in pids {
                let waiting = |of: Thread| of.waits_in().map(|(call, first)| (of, call, first));
                let (looks, calls) = self.seen.entry(*pid).or_default();
                *looks += 1;
                calls.extend(threads(*pid).into_iter().filter_map(waiting));
            }
            std::thread::sleep(BETWEEN);
        }
    }
}

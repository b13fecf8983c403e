//! Processes and threads of unmodified programs, seen from outside.

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};
use std::io;

/// A thread, as long as it has its number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Thread {
    /// Its process.
    pub pid: u32,
    /// Its own number.
    pub tid: u32,
    /// Its start, in clock ticks since the machine's: a later one with its number has another.
    pub started: u64,
    /// Name that it has given itself.
    pub name: String,
}

impl Thread {
    /// A thread of a process, while it is there.
    pub fn of(pid: u32, tid: u32) -> Option<Thread> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
        let (name, started) = name_and_start(&stat)?;
        Some(Thread { pid, tid, started, name })
    }

    /// True where both are one thread, which may have another name by now.
    pub fn is(&self, other: &Thread) -> bool {
        (self.tid, self.started) == (other.tid, other.started)
    }

    /// True while it has not ended.
    pub fn lives(&self) -> bool {
        Thread::of(self.pid, self.tid).is_some_and(|there| there.is(self))
    }

    /// System call in which it waits, and the first argument of that: none while it runs. Needs CAP_SYS_PTRACE for other users'.
    pub fn waits_in(&self) -> Option<(i64, u64)> {
        let text = std::fs::read_to_string(format!("/proc/{}/task/{}/syscall", self.pid, self.tid)).ok()?;
        let mut words = text.split_whitespace();
        let (number, first) = (words.next()?.parse().ok()?, words.next()?);
        Some((number, u64::from_str_radix(first.strip_prefix("0x")?, 16).ok()?))
    }
}

impl std::fmt::Display for Thread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pid == self.tid {
            true => write!(f, "{} (pid {})", self.name, self.pid),
            false => write!(f, "{} (pid {}, thread {})", self.name, self.pid, self.tid),
        }
    }
}

/// Fields 2 and 22 of proc_pid_stat(5), of a thread that has not ended. A name may have parentheses and spaces in it.
fn name_and_start(stat: &str) -> Option<(String, u64)> {
    let (before, rest) = stat.rsplit_once(')')?;
    let name = before.split_once('(')?.1;
    let ended = matches!(rest.split_whitespace().next()?, "Z" | "X");
    let started = rest.split_whitespace().nth(19)?.parse().ok()?;
    (!ended).then(|| (name.to_owned(), started))
}

/// Threads of a process.
pub fn threads(pid: u32) -> Vec<Thread> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut tids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    tids.sort_unstable();
    tids.into_iter().filter_map(|tid| Thread::of(pid, tid)).collect()
}

/// True where a program runs under `corelane run`: its preload library is in the process.
pub fn has_preload(pid: u32) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    crate::run::LIBRARY.iter().any(|library| maps.lines().any(|line| line.ends_with(library)))
}

fn number(pid: u32) -> io::Result<Pid> {
    Ok(i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?)
}

/// A descriptor that becomes readable when the process has ended.
pub fn open(pid: u32) -> io::Result<OwnedFd> {
    Ok(pidfd_open(number(pid)?, PidfdFlags::empty())?)
}

/// Cores that a thread may use.
pub fn affinity(tid: u32) -> Option<Vec<u32>> {
    let set = sched_getaffinity(Some(number(tid).ok()?)).ok()?;
    Some((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).map(|cpu| cpu as u32).collect())
}

/// Lets a thread use these cores and no others.
pub fn set_affinity(tid: u32, cores: &[u32]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core as usize));
    Ok(sched_setaffinity(Some(number(tid)?), &set)?)
}

/// CPUs that this machine can have.
pub fn possible_cpus() -> u32 {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = crate::args::core_list(text.trim()).ok().and_then(|list| list.0.into_iter().max());
    last.unwrap_or(1023) as u32 + 1
}

/// Parent of a process.
pub fn parent(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok().filter(|parent| *parent != 0)
}

/// True where a process is stopped (SIGSTOP, SIGTSTP, a debugger).
pub fn is_stopped(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| state.trim_start().starts_with(['T', 't']))
}

/// Another descriptor of the socket that a process has at a number, if it is the one with this cookie (pidfd_getfd(2)).
pub fn socket_of(pid: u32, fd: u16, cookie: u64) -> Option<OwnedFd> {
    let socket = pidfd_getfd(open(pid).ok()?, i32::from(fd), PidfdGetfdFlags::empty()).ok()?;
    (sockopt::socket_cookie(&socket).ok()? == cookie).then_some(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_threads_may_have_parentheses() {
        let stat = |state| format!("71 (a) (b c) {state} {} 4711 9", "1 ".repeat(18).trim());
        assert_eq!(name_and_start(&stat("S")), Some(("a) (b c".into(), 4711)));
        // Nobody has waited for it yet.
        assert_eq!(name_and_start(&stat("Z")), None);
        assert_eq!(name_and_start("71 (x) S 1"), None);
    }

    #[test]
    fn threads_are_known_until_they_end() {
        let pid = std::process::id();
        let own = threads(pid).into_iter().find(|thread| thread.tid == pid).unwrap();
        assert!(own.lives() && own.pid == pid, "{own:?}");
        assert!(!Thread { started: own.started + 1, ..own.clone() }.lives());
        let tid = std::thread::spawn(|| rustix::thread::gettid().as_raw_nonzero().get() as u32).join().unwrap();
        // The kernel lets it go a moment after it was waited for.
        while Thread::of(pid, tid).is_some() {
            std::thread::yield_now();
        }
        assert!(!has_preload(pid));
    }
}

//! Processes of the program, seen from the helper.

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::io;

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

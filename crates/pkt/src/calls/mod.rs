//! System calls, each tried until it gives an answer: a call that would block is tried again whenever something happened.

mod args;
mod options;
mod poll;
mod sockets;
mod transfer;

use socket::{Errno, SockId};

use crate::ast::{Call, Event, Expr, Time};
use crate::run::{Due, Runner, Stop};
use crate::symbols;

use args::Args;

/// A descriptor of the script.
#[derive(Clone, Debug)]
pub(crate) struct Fd {
    pub id: SockId,
    /// O_NONBLOCK.
    pub nonblocking: bool,
    pub kind: Kind,
    /// Bytes written and read, which tell where in the streams the next ones are.
    pub written: u64,
    pub read: u64,
}

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Socket,
    Epoll,
}

/// A call that has begun and not returned.
pub(crate) struct Pending<'a> {
    pub line: u32,
    pub call: &'a Call,
    progress: Progress,
    /// When it must return.
    due: Option<(u64, u64)>,
}

impl Pending<'_> {
    /// When it gives up waiting, µs since the script's start.
    pub fn until(&self) -> Option<u64> {
        self.progress.until
    }
}

/// What a call keeps from one try to the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// The stack has been asked.
    pub asked: bool,
    /// Bytes moved.
    pub moved: usize,
    /// What was received of them.
    pub buffer: Vec<u8>,
    /// When it gives up waiting.
    pub until: Option<u64>,
}

/// What a try gives.
pub(crate) enum Try {
    /// The call returns.
    Done(Answer),
    /// Nothing yet.
    Wait,
}

/// What a call returns.
pub(crate) struct Answer {
    /// As in `errno` when negative.
    result: Result<i64, &'static str>,
    /// What it wrote into the caller's memory that the script has otherwise: what, expected, got.
    outputs: Vec<(String, String, String)>,
}

impl From<Result<i64, Errno>> for Try {
    fn from(result: Result<i64, Errno>) -> Try {
        Try::Done(Answer { result: result.map_err(Errno::name), outputs: Vec::new() })
    }
}

impl From<Result<(), Errno>> for Try {
    fn from(result: Result<(), Errno>) -> Try {
        result.map(|()| 0).into()
    }
}

impl Try {
    fn errno(name: &'static str) -> Try {
        Try::Done(Answer { result: Err(name), outputs: Vec::new() })
    }

    /// A result with an output that must be as expected.
    fn with(result: i64, what: &str, expected: impl ToString, got: impl ToString) -> Try {
        let (expected, got) = (expected.to_string(), got.to_string());
        let outputs = if expected == got { Vec::new() } else { vec![(what.into(), expected, got)] };
        Try::Done(Answer { result: Ok(result), outputs })
    }
}

impl<'a> Runner<'a> {
    /// An event with a call.
    pub(crate) fn call(&mut self, event: &'a Event, call: &'a Call, due: Due) -> Result<(), Stop> {
        // One call at a time; the one before gets a moment to return.
        let limit = self.now() + 1_000_000;
        while self.pending.is_some() && self.step(limit)? {}
        if let (Some(pending), true) = (&self.pending, call.end.is_some()) {
            return Err(Stop::fail("one call at a time", format!("{} of line {}", pending.call.name, pending.line)));
        }
        self.wait_for(due)?;
        let blocking = call.end.map(|end| match event.time {
            // Both times count from the same moment.
            Time::After(t) => (self.now(), self.now().saturating_sub(t) + end),
            _ => (self.now(), end),
        });
        let mut progress = Progress::default();
        match self.attempt(call, &mut progress)? {
            Try::Done(answer) => self.judge(call, answer, blocking),
            Try::Wait => {
                let before = self.pending.replace(Pending { line: event.line, call, progress, due: blocking });
                if before.is_some() {
                    return Err(Stop::fail("one call at a time", "a call that blocks while another does"));
                }
                if blocking.is_some() {
                    return Ok(());
                }
                // It blocks although the script does not say so: until something lets it go on.
                let limit = self.now() + 3600 * 1_000_000;
                while self.pending.is_some() && self.machine_moves() && self.step(limit)? {}
                match &self.pending {
                    Some(_) => Err(Stop::fail(format!("{} to return", call.name), "that it blocks")),
                    None => Ok(()),
                }
            }
        }
    }

    /// Whether time can bring anything.
    fn machine_moves(&self) -> bool {
        self.machine.next_deadline().is_some() || self.pending.as_ref().is_some_and(|p| p.progress.until.is_some())
    }

    /// Tries the call that blocks again.
    pub(crate) fn retry(&mut self) -> Result<(), Stop> {
        let Some(mut pending) = self.pending.take() else { return Ok(()) };
        let line = pending.line;
        match self.attempt(pending.call, &mut pending.progress).map_err(|stop| stop.at(line))? {
            Try::Wait => self.pending = Some(pending),
            Try::Done(answer) => self.judge(pending.call, answer, pending.due).map_err(|stop| stop.at(line))?,
        }
        Ok(())
    }

    /// Compares what a call returned with what the script says.
    fn judge(&mut self, call: &Call, answer: Answer, blocking: Option<(u64, u64)>) -> Result<(), Stop> {
        let name = &call.name;
        let expected = args::integer(&call.result)?;
        let makes_fd = matches!(name.as_str(), "socket" | "accept" | "epoll_create" | "epoll_create1");
        let same = match answer.result {
            Ok(_) if makes_fd => expected >= 0,
            Ok(n) => n == expected,
            Err(_) => expected == -1,
        };
        let number = |errno: &str| symbols::number(errno);
        let errno_same = match (&answer.result, &call.errno) {
            (Err(got), Some(wanted)) if number(wanted).is_none() => {
                return Err(Stop::fail(format!("the name of an error, not {wanted}"), *got));
            }
            (Err(got), Some(wanted)) => number(got) == number(wanted),
            _ => true,
        };
        if !same || !errno_same {
            let wanted = call.errno.as_ref().map_or(String::new(), |e| format!(" {e}"));
            let got = match answer.result {
                Ok(n) => n.to_string(),
                Err(errno) => format!("-1 {errno}"),
            };
            return Err(Stop::fail(format!("{name} to return {expected}{wanted}"), got));
        }
        if let Some((what, expected, got)) = answer.outputs.into_iter().next() {
            return Err(Stop::fail(format!("{what} {expected} from {name}"), got));
        }
        let Some((began, end)) = blocking else { return Ok(()) };
        let slack = self.options.tolerance(end.saturating_sub(began));
        let now = self.now();
        if now.abs_diff(end) > slack {
            let expected = format!("{name} to return at {:.6}", end as f64 / 1e6);
            return Err(Stop::fail(
                expected,
                format!("it at {:.6} (tolerance {:.6})", now as f64 / 1e6, slack as f64 / 1e6),
            ));
        }
        Ok(())
    }

    /// Tries a call.
    fn attempt(&mut self, call: &Call, progress: &mut Progress) -> Result<Try, Stop> {
        let args = Args::new(call);
        let outcome = match call.name.as_str() {
            "socket" => self.sys_socket(&args),
            "bind" => self.sys_bind(&args),
            "listen" => self.sys_listen(&args),
            "accept" => self.sys_accept(&args),
            "connect" => self.sys_connect(&args, progress),
            "close" => self.sys_close(&args, progress),
            "shutdown" => self.sys_shutdown(&args),
            "fcntl" => self.sys_fcntl(&args),
            "ioctl" => self.sys_ioctl(&args),
            "read" | "readv" | "recv" | "recvfrom" | "recvmsg" => self.sys_receive(&args, progress),
            "write" | "writev" | "send" | "sendto" | "sendmsg" => self.sys_send(&args, progress),
            "getsockopt" => self.sys_getsockopt(&args),
            "setsockopt" => self.sys_setsockopt(&args),
            "poll" => self.sys_poll(&args, progress),
            "epoll_create" | "epoll_create1" => self.sys_epoll_create(&args),
            "epoll_ctl" => self.sys_epoll_ctl(&args),
            "epoll_wait" => self.sys_epoll_wait(&args, progress),
            "dup" | "dup2" | "open" | "pipe" | "splice" | "sendfile" | "cap_set" | "psp_rx_assoc" | "psp_tx_assoc" => {
                Err(Stop::unsupported(format!("{} of Linux", call.name)))
            }
            other => Err(Stop::fail("the name of a system call", other)),
        };
        self.machine.settle();
        outcome
    }

    /// The descriptor that an argument names.
    fn fd(&mut self, args: &Args, index: usize) -> Result<(i64, Fd), Stop> {
        let number = args.int(index)?;
        self.fd_by_number(number)
    }

    fn fd_by_number(&mut self, number: i64) -> Result<(i64, Fd), Stop> {
        let fd = self.fds.get(&number).cloned();
        fd.map(|fd| (number, fd)).ok_or_else(|| Stop::fail("a descriptor of the script", number.to_string()))
    }

    /// Gives a new descriptor the script's number for it.
    fn name_fd(&mut self, call: &Call, fd: Fd) -> Result<(), Stop> {
        let number = args::integer(&call.result)?;
        if number < 0 {
            return Ok(());
        }
        // A number that is taken from now on means the new one, as in the original.
        self.fds.insert(number, fd);
        Ok(())
    }

    /// Until when a call with a timeout of `ms` waits; for ever when it is negative.
    fn until(&self, progress: &mut Progress, ms: i64) {
        if progress.until.is_none() && ms >= 0 {
            progress.until = Some(self.now().saturating_add((ms as u64).saturating_mul(1000)));
        }
    }

    fn timed_out(&self, progress: &Progress) -> bool {
        progress.until.is_some_and(|t| self.now() >= t)
    }
}

/// Whether an argument is a buffer, and not NULL.
fn is_buffer(expr: &Expr) -> bool {
    !matches!(expr, Expr::Int(0)) && !matches!(expr, Expr::Word(w) if w == "NULL")
}

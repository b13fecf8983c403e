//! The loop over a script's events on the machine's clock.

use std::collections::BTreeMap;
use std::time::Duration;

use sim::Machine;
use socket::SockId;
use wire::Instant;

use crate::ast::{Action, Direction, Event, Script, Time};
use crate::calls::{Fd, Pending};
use crate::conn::Conn;
use crate::info;
use crate::kernel::Kernel;
use crate::options::Options;
use crate::parser::Defines;
use crate::python::{Python, Trouble};
use crate::report::{Report, Verdict};
use crate::setup::{Setup, Unreadable};
use crate::sysctl::Settings;
use crate::system::System;

/// Why a script ends before its end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Stop {
    /// Something is not as the script says.
    Fail {
        /// The event's, if not that of the event being run.
        line: Option<u32>,
        expected: String,
        got: String,
    },
    /// Something cannot be done here.
    Unsupported(String),
}

impl Stop {
    pub fn fail(expected: impl Into<String>, got: impl Into<String>) -> Stop {
        Stop::Fail { line: None, expected: expected.into(), got: got.into() }
    }

    pub fn unsupported(reason: impl Into<String>) -> Stop {
        Stop::Unsupported(reason.into())
    }

    /// The same, said of another line.
    pub fn at(self, line: u32) -> Stop {
        match self {
            Stop::Fail { expected, got, .. } => Stop::Fail { line: Some(line), expected, got },
            stop => stop,
        }
    }

    /// The same, with what it is about.
    pub fn about(self, what: &str) -> Stop {
        match self {
            Stop::Fail { line, expected, got } => Stop::Fail { line, expected: format!("{expected}: {what}"), got },
            stop => stop,
        }
    }
}

/// When an event is due, µs since the script's start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    /// Not before; `None` is any time.
    earliest: Option<u64>,
    /// The end of a range; as `earliest` where there is none.
    end: u64,
    /// When the event before was.
    pub last: u64,
}

impl Due {
    /// The last moment, without tolerance; `None` when there is none.
    pub fn latest(&self) -> Option<u64> {
        self.earliest.map(|_| self.end)
    }
}

/// What a script runs against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Under {
    /// Our stack, in virtual time.
    #[default]
    Stack,
    /// This machine's kernel, in real time. Needs root's privileges; the calling thread moves to another network namespace.
    Kernel,
    /// Nothing: it is only parsed.
    Nothing,
}

/// The longest script that is run in real time, µs.
const LONGEST: u64 = 120_000_000;

/// Runs the text of a script. The options `given` have the last word over the script's own.
pub fn run(path: &str, text: &str, given: &[(&str, Option<&str>)], defines: &Defines, under: Under) -> Report {
    let mut report = Report { path: path.into(), ..Report::default() };
    let setup = match Setup::read(text, given, defines) {
        Ok(setup) => setup,
        Err(Unreadable(line, column, message)) => {
            report.verdict = Verdict::Syntax { line, column, message };
            return report;
        }
    };
    report.over = setup.options.ip_version;
    if under == Under::Nothing {
        return report;
    }
    let reason = if under == Under::Stack { setup.settings.unsupported.clone() } else { None };
    let system = match reason {
        None => system(&setup, under),
        Some(reason) => Err(reason),
    };
    let system = match system {
        Ok(system) => system,
        Err(reason) => {
            report.verdict = Verdict::Unsupported { line: 1, reason };
            return report;
        }
    };
    let Setup { script, options, settings } = setup;
    let mut runner = Runner::new(options, settings, system);
    report.verdict = match runner.script(&script) {
        Ok(()) => Verdict::Pass,
        Err((line, Stop::Unsupported(reason))) => Verdict::Unsupported { line, reason },
        Err((line, Stop::Fail { line: own, expected, got })) => {
            Verdict::Fail { line: own.unwrap_or(line), expected, got }
        }
    };
    report.notices = runner.settings.notices;
    report.trace = runner.trace;
    report.printed = runner.python.printed;
    report
}

/// What the script runs against, made as it wants it; the error says why it cannot be.
fn system(setup: &Setup, under: Under) -> Result<Box<dyn System>, String> {
    if under != Under::Kernel {
        return Ok(Box::new(Machine::new(setup.machine())));
    }
    let duration = setup.duration();
    if duration > LONGEST {
        return Err(format!("{} s of real time", duration / 1_000_000));
    }
    let limit = Duration::from_micros(duration) + Duration::from_secs(5);
    let mut kernel =
        Kernel::new(setup.options.local(), setup.mtu(), &setup.settings.tcp, setup.settings.cookies, limit)
            .map_err(|e| format!("a network of the kernel's own: {e}"))?;
    if let Some((_, command)) = &setup.script.init {
        // What the kernel does not know, the script may not need.
        let _ = kernel.command(command);
    }
    Ok(Box::new(kernel))
}

/// A script being run.
pub(crate) struct Runner<'a> {
    pub options: Options,
    pub settings: Settings,
    pub machine: Box<dyn System>,
    /// Zero of the script's clock.
    pub start: Instant,
    /// Descriptors by the script's numbers.
    pub fds: BTreeMap<i64, Fd>,
    pub conns: Vec<Conn>,
    /// The connection that packets belong to: of the last socket made, or called from outside.
    pub under_test: Option<usize>,
    /// The call that blocks.
    pub pending: Option<Pending<'a>>,
    pub python: Python,
    /// Packets, when they are to be written down.
    trace: Vec<String>,
}

impl<'a> Runner<'a> {
    fn new(options: Options, settings: Settings, machine: Box<dyn System>) -> Runner<'a> {
        let start = machine.now();
        Runner {
            options,
            settings,
            machine,
            start,
            fds: BTreeMap::new(),
            conns: Vec::new(),
            under_test: None,
            pending: None,
            python: Python::default(),
            trace: Vec::new(),
        }
    }

    /// Writes a packet down.
    pub fn note(&mut self, at: u64, packet: impl FnOnce() -> String) {
        if self.options.verbose {
            self.trace.push(format!("{:.6} {}", at as f64 / 1e6, packet()));
        }
    }

    fn script(&mut self, script: &'a Script) -> Result<(), (u32, Stop)> {
        let mut before: Option<(&Event, u64)> = None;
        let mut line = 1;
        for event in &script.events {
            line = event.line;
            let due = self.due(event, before);
            let at = due.earliest.unwrap_or_else(|| self.now());
            self.event(event, due).map_err(|stop| (event.line, stop))?;
            before = Some((event, at));
        }
        self.finish().map_err(|stop| (line, stop))
    }

    /// When an event is due. Times after the event before count from now, but for packets that come one after the other: from
    /// the time of the one before, so that small delays do not add up.
    fn due(&self, event: &Event, before: Option<(&Event, u64)>) -> Due {
        let inbound = |e: &Event| matches!(&e.action, Action::Packet(p) if p.direction == Direction::In);
        let last = before.map_or(0, |(_, at)| at);
        let origin = if before.is_some_and(|(e, _)| inbound(e)) && inbound(event) { last } else { self.now() };
        let (earliest, end) = match event.time {
            Time::Any => return Due { earliest: None, end: 0, last },
            Time::At(t) => (t, t),
            Time::Between(a, b) => (a, b),
            Time::After(t) => (origin + t, origin + t),
            Time::AfterBetween(a, b) => (origin + a, origin + b),
        };
        Due { earliest: Some(earliest), end, last }
    }

    fn event(&mut self, event: &'a Event, due: Due) -> Result<(), Stop> {
        match &event.action {
            Action::Packet(packet) => self.packet(packet, due),
            Action::Call(call) => self.call(event, call, due),
            Action::Command(command) => {
                self.wait_for(due)?;
                if let Some(done) = self.machine.command(command) {
                    return done.map_err(|e| Stop::fail("the command to be done", e));
                }
                let mut after = self.settings.clone();
                after.command(command);
                if let Some(reason) = after.unsupported {
                    return Err(Stop::Unsupported(reason));
                }
                if after.mtu != self.settings.mtu {
                    return Err(Stop::unsupported("a route changed while the stack runs"));
                }
                let changed = format!("{:?}", after.tcp) != format!("{:?}", self.settings.tcp)
                    || after.cookies != self.settings.cookies;
                if changed && !self.machine.set_tcp(&after.tcp, after.cookies) {
                    return Err(Stop::unsupported("a parameter changed while a handshake was under way"));
                }
                self.settings = after;
                Ok(())
            }
            Action::Code(code) => {
                self.wait_for(due)?;
                self.code(code)
            }
        }
    }

    /// Now, µs since the script's start.
    pub fn now(&self) -> u64 {
        self.machine.now().micros_since(self.start)
    }

    /// Lets time pass to an event; it must not have passed already.
    pub fn wait_for(&mut self, due: Due) -> Result<(), Stop> {
        let Some(at) = due.earliest else { return Ok(()) };
        while self.now() < at {
            if !self.step(at)? {
                break;
            }
        }
        self.on_time(due, self.now(), "the event")
    }

    /// Moves the clock to the next thing that happens, at most to `limit`; whether the clock could move.
    pub fn step(&mut self, limit: u64) -> Result<bool, Stop> {
        if self.now() >= limit {
            return Ok(false);
        }
        let limit = self.start.plus_micros(limit);
        let next = self.machine.now().plus_micros(1);
        let timer = self.machine.next_deadline().map(|at| at.max(next));
        let timeout = self.pending.as_ref().and_then(|p| p.until()).map(|us| self.start.plus_micros(us).max(next));
        let to = [timer, timeout].into_iter().flatten().fold(limit, Instant::min);
        self.machine.advance_to(to);
        self.retry()?;
        Ok(true)
    }

    /// Whether something that happened at `at` was in time.
    pub fn on_time(&self, due: Due, at: u64, what: &str) -> Result<(), Stop> {
        let Some(earliest) = due.earliest else { return Ok(()) };
        let slack = self.options.tolerance(earliest.saturating_sub(due.last));
        if at + slack >= earliest && at <= due.end + slack {
            return Ok(());
        }
        let seconds = |us: u64| us as f64 / 1e6;
        let expected = match due.end == earliest {
            true => format!("{what} at {:.6}", seconds(earliest)),
            false => format!("{what} from {:.6} to {:.6}", seconds(earliest), seconds(due.end)),
        };
        Err(Stop::fail(expected, format!("it at {:.6} (tolerance {:.6})", seconds(at), seconds(slack))))
    }

    /// A block of Python, over what is known now of the connection under test.
    fn code(&mut self, code: &str) -> Result<(), Stop> {
        let sock = self.under_test.and_then(|c| self.conns[c].sock);
        let Some(sock) = sock else { return Err(Stop::fail("a socket for tcp_info", "none")) };
        let info = self.info(sock);
        info::set(&mut self.python, &info);
        self.python.run(code).map_err(|trouble| match trouble {
            Trouble::Assertion { condition, got } => Stop::fail(condition, got),
            Trouble::Unknown(name) if name.starts_with("tcpi_") => Stop::unsupported(format!("{name} of tcp_info")),
            other => Stop::fail("an assertion", other.to_string()),
        })
    }

    /// `tcp_info`; of a connection that is gone, that it is closed.
    pub fn info(&mut self, sock: SockId) -> tcp::TcpInfo {
        self.machine.info(sock).unwrap_or_default()
    }

    /// A call may be under way a little longer; then nothing may be left that nobody expected.
    fn finish(&mut self) -> Result<(), Stop> {
        let limit = self.now() + 1_000_000;
        while self.pending.is_some() && self.step(limit)? {}
        if let Some(pending) = &self.pending {
            return Err(Stop::fail(format!("{} to return", pending.call.name), "that it still blocks").at(pending.line));
        }
        match self.options.exact.then(|| self.left_over()).flatten() {
            Some(packet) => Err(Stop::fail("nothing more", packet)),
            None => Ok(()),
        }
    }
}

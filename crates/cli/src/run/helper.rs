//! The helper: beside a program for as long as it runs, with the rights that it was started with.
//!
//! Listeners are made ready as they begin to listen, workers get their parts, and the ends of processes are noticed. No listener is kept
//! open for longer than handshakes take: one whose program has gone is gone.

use super::How;
use super::ports::Ports;
use super::report::{self, Opened, Queues, Report};
use super::tables::{Claim, Tables};
use crate::failure::{Failure, words};
use crate::processes;
use crate::say::tell;
use crate::sys::{block_signals, raise_descriptor_limit};
use crate::zone::{Zone, enter_all};
use channel::Place;
use claims::{Kind, Request, Token, Verdict};
use clap::Args;
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Said on standard output once processes may ask.
pub const READY: &str = "ready";
/// Said where they may ask for ports too.
pub const READY_WITH_PORTS: &str = "ready with ports";
/// Said, with the reason behind it, where ports were to be dealt and are not.
pub const READY_WITHOUT_PORTS: &str = "ready without ports: ";

/// Between looks whether anybody listens still, where no process is known any more: a daemon's first process has ended, and its
/// workers have not come.
const LOOK: Duration = Duration::from_secs(1);
/// After the program's end, for the line on standard error. A daemon goes on longer, and its helper must not hold what others read.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Connections whose request has not come, at most: whoever is in the network namespace may open them.
const MOST_ASKED: usize = 256;
/// Between looks at what waits at a listener whose workers have their parts.
const DRAIN: Duration = Duration::from_millis(10);
/// Between looks at the accept queues of parts.
const QUEUES: Duration = Duration::from_millis(250);

/// Arguments of `run-helper`.
#[derive(Debug, Args)]
pub struct HelperArgs {
    /// Number of the process that becomes the program
    #[arg(long)]
    program: u32,
    /// Start the helper, and end
    #[arg(long)]
    detach: bool,
    /// Options of `run`.
    #[command(flatten)]
    how: How,
}

/// Runs until the program and its workers have ended. Standard input is the socket on which processes ask.
pub fn run(args: &HelperArgs) -> Result<(), Failure> {
    if args.detach {
        return detach();
    }
    match Helper::new(args) {
        Ok((mut helper, ready)) => {
            // Signals are the program's, with which the helper ends.
            let _ = rustix::process::setsid();
            block_signals();
            answer_starter(&ready);
            let _ = rustix::stdio::dup2_stdin(File::open("/dev/null").map_err(Failure::told)?);
            let _ = std::env::set_current_dir("/");
            helper.serve().map_err(|error| Failure::told(format!("helper: {}", words(&error))))?;
            helper.finish();
            Ok(())
        }
        Err(failure) => {
            answer_starter(&failure.to_string());
            Ok(())
        }
    }
}

/// Says one line to who waits for it, and nothing any more.
fn answer_starter(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
}

/// Starts this command once more, as nobody's child: this process ends, and the program that it was started by waits for it.
fn detach() -> Result<(), Failure> {
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != "--detach");
    let failed = |error: io::Error| Failure::told(format!("no helper: {}", words(&error)));
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(arguments).arg0("corelane-run").stdin(Stdio::inherit()).spawn().map_err(failed)?;
    Ok(())
}

/// Whose event it is, in the helper's epoll set.
const ASKS: u64 = 0;
const PROCESS: u64 = 1 << 32;
const ASKED: u64 = 2 << 32;

struct Helper {
    epoll: OwnedFd,
    socket: OwnedFd,
    token: Token,
    tables: Tables,
    /// Interfaces whose queues are set to cores.
    zones: Vec<Zone>,
    /// Ports of connections that the program opens.
    ports: Option<Ports>,
    /// Processes whose end is waited for: the program, and those that have asked.
    processes: HashMap<u32, OwnedFd>,
    /// Connections whose request has not come.
    asked: BTreeMap<u32, OwnedFd>,
    next: u32,
    /// Number of the program's first process, and since when it has ended.
    program: (u32, Option<Instant>),
    report: Option<(File, String)>,
    told: bool,
}

impl Helper {
    /// A helper, and what it says to who has started it.
    fn new(args: &HelperArgs) -> Result<(Helper, String), Failure> {
        let told = |error: io::Error| Failure::told(format!("helper: {}", words(&error)));
        let variable = std::env::var(claims::VARIABLE).unwrap_or_default();
        let claims::Helper { token, .. } = claims::Helper::read(variable.as_bytes())
            .ok_or_else(|| Failure::new("run-helper is started by corelane run", "type corelane run -- PROGRAM"))?;
        let socket = rustix::stdio::stdin().try_clone_to_owned().map_err(told)?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).map_err(|errno| told(errno.into()))?;
        // No reason not to partition, nor to keep the program from starting.
        let report = args.how.report.as_ref().and_then(|path| {
            let name = path.display().to_string();
            let made = File::create(path);
            made.map_err(|error| tell(format!("{name}: {}: no report is written", words(&error))))
                .ok()
                .map(|file| (file, name))
        });
        let (cpus, cores) = (processes::possible_cpus(), args.how.cores.as_ref());
        let cores = match cores {
            None => processes::affinity(args.program).unwrap_or_default(),
            Some(list) => list.0.iter().map(|core| *core as u32).collect(),
        };
        let devices = &args.how.dev;
        let ports = (!devices.is_empty()).then(|| Ports::new(devices, &cores, cpus));
        let mut tables = Tables::new(&args.how, cores.clone(), cpus)?;
        let (ports, ready) = match ports {
            None => (None, READY.to_owned()),
            Some(Ok(ports)) => (Some(ports), READY_WITH_PORTS.to_owned()),
            Some(Err(failure)) => {
                tables.note(&failure.to_string());
                (None, format!("{READY_WITHOUT_PORTS}{failure}"))
            }
        };
        // After the XDP programs: a driver may set queues anew as it takes one.
        let (zones, notes) = match devices.is_empty() {
            true => Default::default(),
            false => enter_all(devices, &cores, ports.as_ref().map(Ports::blocks), args.program),
        };
        notes.iter().for_each(|note| tables.note(note));
        // A descriptor for each process that has asked.
        raise_descriptor_limit();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|errno| told(errno.into()))?;
        let mut helper = Helper {
            epoll,
            socket,
            token,
            tables,
            zones,
            ports,
            processes: HashMap::new(),
            asked: BTreeMap::new(),
            next: 0,
            program: (args.program, None),
            report,
            told: ready.starts_with(READY_WITHOUT_PORTS),
        };
        helper.watch(helper.socket.as_fd(), ASKS).map_err(told)?;
        helper.follow(args.program).map_err(told)?;
        Ok((helper, ready))
    }

    fn watch(&self, fd: rustix::fd::BorrowedFd<'_>, data: u64) -> io::Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(data), epoll::EventFlags::IN)?;
        Ok(())
    }

    /// Waits for the end of a process from now on.
    fn follow(&mut self, pid: u32) -> io::Result<()> {
        if self.processes.contains_key(&pid) {
            return Ok(());
        }
        let fd = processes::open(pid)?;
        self.watch(fd.as_fd(), PROCESS | u64::from(pid))?;
        self.processes.insert(pid, fd);
        Ok(())
    }

    fn serve(&mut self) -> io::Result<()> {
        let (mut events, mut looked) = (Vec::with_capacity(64), Instant::now());
        loop {
            if self.processes.is_empty() && !self.tables.drains() && !self.tables.listens()? {
                return Ok(());
            }
            let waits = [
                self.tables.drains().then_some(DRAIN),
                self.tables.may_stall().then_some(QUEUES),
                self.processes.is_empty().then_some(LOOK),
                self.program.1.map(|_| LAST_WORDS),
            ];
            let wait = waits
                .into_iter()
                .flatten()
                .min()
                .map(|wait| Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() });
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), wait.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                let data = event.data.u64();
                match (data & !u64::from(u32::MAX), data as u32) {
                    (PROCESS, pid) => {
                        if pid == self.program.0 {
                            self.program.1 = Some(Instant::now());
                        }
                        self.processes.remove(&pid);
                        self.tables.ended(pid);
                    }
                    (ASKED, number) => self.answer(number),
                    _ => self.accept(),
                }
            }
            let now = Instant::now();
            if self.tables.may_stall() && now.saturating_duration_since(looked) >= QUEUES {
                looked = now;
                self.tables.look(now);
            }
            self.tables.drain(now);
            if self.program.1.is_some_and(|ended| now.saturating_duration_since(ended) >= LAST_WORDS) {
                self.program.1 = None;
                if let Ok(null) = File::options().write(true).open("/dev/null") {
                    let _ = rustix::stdio::dup2_stderr(null);
                }
            }
        }
    }

    fn accept(&mut self) {
        let flags = rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK;
        while let Ok(connection) = rustix::net::accept_with(&self.socket, flags) {
            self.next = self.next.wrapping_add(1);
            if self.watch(connection.as_fd(), ASKED | u64::from(self.next)).is_ok() {
                self.asked.insert(self.next, connection);
                if self.asked.len() > MOST_ASKED {
                    self.asked.pop_first();
                }
            }
        }
    }

    /// Answers one request. What is no request of ours is closed without an answer.
    fn answer(&mut self, number: u32) {
        let Some(connection) = self.asked.remove(&number) else { return };
        let Ok((request, listener)) = receive(&connection) else { return };
        let Some(request) = request.filter(|request| request.token == self.token) else { return };
        let Ok(peer) = rustix::net::sockopt::socket_peercred(&connection) else { return };
        let pid = peer.pid.as_raw_nonzero().get() as u32;
        let (verdict, part) = match (listener, self.follow(pid)) {
            (Some(listener), Ok(())) => {
                // Of another namespace of processes its number is another thread's here.
                let known = Path::new(&format!("/proc/{pid}/task/{}", request.tid)).exists();
                let claim = Claim { pid, tid: if known { request.tid } else { pid }, fd: request.fd, listener };
                if let (Kind::Listen | Kind::Poll, Some(ports)) = (request.kind, &self.ports)
                    && let Ok(place) = Place::of(claim.listener.as_fd())
                {
                    ports.listens(place.port);
                    self.zones.iter_mut().for_each(|zone| zone.listens(place.port));
                }
                let answered = match request.kind {
                    Kind::Listen => self.tables.prepare(claim),
                    Kind::Poll => self.tables.claim(claim),
                    Kind::Close => self.tables.leave(claim),
                    Kind::Attach => self.tables.leave_alone(claim),
                    Kind::Away => self.tables.away(claim),
                    Kind::Share => self.tables.share(claim),
                    Kind::Ports => Ok(match self.ports.as_ref().and_then(|ports| ports.share().ok()) {
                        Some(memory) => (Verdict::Ports, Some(memory)),
                        None => (Verdict::Leave, None),
                    }),
                };
                answered.unwrap_or_else(|error| {
                    self.tell(&error);
                    (Verdict::Leave, None)
                })
            }
            _ => (Verdict::Leave, None),
        };
        let _ = send(&connection, verdict, part);
    }

    /// One line of all that could not be had; the report has the others.
    fn tell(&mut self, text: &str) {
        self.tables.note(text);
        if !std::mem::replace(&mut self.told, true) {
            tell(format!("run: {text}; the program goes on as without corelane"));
        }
    }

    fn finish(mut self) {
        let zones = self.zones.iter().map(Queues::of).collect();
        self.zones.drain(..).flat_map(Zone::leave).for_each(|line| self.tables.note(&line));
        let report: Report = self.tables.report(self.ports.as_ref().map(Ports::opened), zones);
        let lines = [report.line(), report.opened.as_ref().and_then(Opened::line)];
        if lines.iter().any(Option::is_some) {
            lines.into_iter().flatten().for_each(tell);
        } else if let Some(note) = report.notes.first().filter(|_| !self.told) {
            tell(format!("run: {note}"));
        }
        if let Some((file, name)) = &mut self.report
            && let Err(error) = report::write(file, &report)
        {
            tell(format!("{name}: {}", words(&error)));
        }
    }
}

fn receive(connection: &OwnedFd) -> rustix::io::Result<(Option<Request>, Option<OwnedFd>)> {
    let (mut bytes, mut space) = ([0; claims::REQUEST + 1], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(connection, &mut [IoSliceMut::new(&mut bytes)], &mut beside, flags)?;
    let mut listener = None;
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            listener = fds.last();
        }
    }
    Ok((bytes.get(..got.bytes).and_then(Request::decode), listener))
}

fn send(connection: &OwnedFd, verdict: Verdict, part: Option<OwnedFd>) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = part.iter().map(AsFd::as_fd).collect();
    if !fds.is_empty() {
        beside.push(SendAncillaryMessage::ScmRights(&fds));
    }
    rustix::net::sendmsg(connection, &[IoSlice::new(&verdict.encode())], &mut beside, SendFlags::NOSIGNAL)?;
    Ok(())
}

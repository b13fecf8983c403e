//! `corelane serve`: one server a lane over devices.

use crate::args::{KernelServer, ServeArgs};
use crate::device;
use crate::failure::{Failure, words};
use crate::gone::Gone;
use crate::http::files::{Files, Missing};
use crate::http::fixed::Fixed;
use crate::http::session::Handler;
use crate::http::site::{Show, Site};
use crate::log;
use crate::net::Net;
use crate::net::kernel::{self, Kernel, Manner};
use crate::net::lane::OnLane;
use crate::net::mtcp::OnMtcp;
use crate::net::uring;
use crate::say::{say_on, tell};
use crate::seldom;
use crate::server::channel::{self, Parts};
use crate::server::{Counts, Limits, Server, reset};
use crate::sys::{self, Stop};
use ::io::xdp::Succession;
use corelane::channel::{Address, Channel, CpuMask, Listener};
use corelane::{Config, Device, Engine, LaneHandle, LaneStats, PortConfig, Snapshot};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use clap::ValueEnum;
use rustix::fd::{AsFd, OwnedFd};

/// How long the last segments of a stopping lane may take to leave.
const DRAIN: Duration = Duration::from_secs(2);
/// Between two looks at a device that another has.
const LOOK: Duration = Duration::from_millis(5);
/// Between two looks at threads that should serve, where nothing is told of their end.
const ALIVE: Duration = Duration::from_secs(1);

/// What every request is answered from.
#[derive(Clone)]
pub enum Content {
    /// Files.
    Directory(PathBuf, Show),
    /// So many bytes.
    Message(usize),
    /// A reset, before there is a request.
    Reset,
}

/// Serves until a signal.
pub fn run(args: &ServeArgs, stop: &Stop) -> Result<(), Failure> {
    let content = match (&args.dir, args.message) {
        _ if args.reset => Content::Reset,
        (_, Some(bytes)) => Content::Message(bytes),
        (Some(dir), None) => Content::Directory(dir.clone(), Show { dotfiles: args.dotfiles, lists: args.list }),
        (None, None) => return Err(Failure::usage("nothing to serve", "name a directory, or --message BYTES")),
    };
    if let Content::Directory(dir, _) = &content {
        open_directory(dir)?;
    }
    if let Some(how) = args.kernel {
        sys::raise_descriptor_limit();
        return finish(args, on_kernel(args, how, &content, stop)?, &[], &[]);
    }
    let config = device::config(&args.device)?;
    sys::raise_descriptor_limit();
    let mut succession = None;
    let Some(mut engine) = start(args, &config, stop, &mut succession)? else {
        return finish(args, Counts::default(), &[], &[]);
    };
    for warning in engine.warnings() {
        tell(format!("note: {warning}"));
    }
    let lanes = engine.stats();
    let gone = Gone::watch(&engine, stop);
    let served = serve(&mut engine, &config, args, &content, stop, succession);
    engine.shutdown();
    let (counts, snapshots) = served?;
    finish(args, counts, &lanes, &snapshots)?;
    gone.check()
}

/// Starts the engine; where another corelane has a device, once that has ended, within the time that was asked for. Meanwhile its ports on
/// `xdp` are held, as soon as the other lets them be. None where a stop came before.
fn start(
    args: &ServeArgs,
    config: &Config,
    stop: &Stop,
    succession: &mut Option<Succession>,
) -> Result<Option<Engine>, Failure> {
    let name = |port: &PortConfig| match &port.device {
        Device::Xdp(name) => Some(name.clone()),
        _ => None,
    };
    let names: Vec<String> = config.ports.iter().filter_map(name).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut end = None;
    let over = |end: Option<Instant>| end.is_some_and(|end| Instant::now() >= end);
    loop {
        match Engine::start(config) {
            Err(error) if error.is_in_use() && args.wait > 0.0 && !over(end) => {
                if end.is_none() {
                    tell(format!("waiting for another corelane to end, {} s at most", args.wait));
                    end = Some(Instant::now() + Duration::from_secs_f64(args.wait));
                }
                let held = succession.get_or_insert_with(|| Succession::to(args.port));
                // Looking is cheaper than trying.
                while held.hold(&names).map_err(failed)? && !stop.is_set() && !over(end) {
                    thread::sleep(LOOK);
                }
                thread::sleep(LOOK);
            }
            started => return started.map(Some).map_err(Failure::told),
        }
        if stop.is_set() {
            return Ok(None);
        }
    }
}

/// The line at the end.
fn finish(args: &ServeArgs, counts: Counts, lanes: &[Arc<LaneStats>], snapshots: &[Snapshot]) -> Result<(), Failure> {
    match args.json {
        true => {
            let lanes: Vec<_> = lanes.iter().map(|lane| lane.rows().into_iter().collect::<BTreeMap<_, _>>()).collect();
            // What never happened is left out.
            let counted = |s: &Snapshot| s.rows.iter().filter(|(_, n)| *n > 0).cloned().collect::<BTreeMap<_, _>>();
            let counters: Vec<_> = snapshots.iter().map(counted).collect();
            say_on(serde_json::json!({
                "event": "stopped", "counts": counts, "lanes": lanes, "counters": counters, "log_lines_lost": log::lost(),
            }))
        }
        false => {
            let lost = match log::lost() {
                0 => String::new(),
                n => format!(", {n} lines of the log were lost"),
            };
            say_on(format!("served {} requests on {} connections{lost}", counts.requests, counts.connections))
        }
    }
}

/// The same server on the kernel's TCP: a thread a lane, with a listener of its own (SO_REUSEPORT) or a shared one.
fn on_kernel(args: &ServeArgs, how: KernelServer, content: &Content, stop: &Stop) -> Result<Counts, Failure> {
    if let Some(parts) = parts(how) {
        return on_channels(args, how, parts, content, stop);
    }
    let ring = match (how, content) {
        (KernelServer::Uring, Content::Directory(..)) => {
            return Err(Failure::usage("--kernel=uring serves no directory", "add --message BYTES or --reset"));
        }
        (KernelServer::Uring, Content::Message(bytes)) => Some(uring::Work::Message(*bytes)),
        (KernelServer::Uring, Content::Reset) => Some(uring::Work::Reset),
        _ => None,
    };
    let manner = Manner {
        plain: matches!(how, KernelServer::Plain | KernelServer::Single),
        shared: how == KernelServer::Single,
        reset: matches!(content, Content::Reset),
    };
    let cores = args.device.cores.as_ref().map(|c| c.0.clone()).unwrap_or_default();
    let lanes = args.device.lanes.map_or(cores.len().max(1), usize::from);
    let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), args.port);
    let (ready, told) = mpsc::channel();
    let limits = limits(args);
    let mut threads = Vec::new();
    let mut first: Option<OwnedFd> = None;
    for index in 0..lanes {
        let listener = match &first {
            Some(first) if manner.shared => first.try_clone().map_err(failed)?,
            _ => kernel::listen(address, manner).map_err(|error| refused(args.port, error))?.0,
        };
        if manner.shared && first.is_none() {
            first = Some(listener.try_clone().map_err(failed)?);
        }
        let (content, stop, core, ready) = (content.clone(), stop.clone(), cores.get(index).copied(), ready.clone());
        let body = move || {
            core.map(sys::pin);
            let serve = || match ring {
                Some(work) => {
                    ready.send(()).unwrap_or(());
                    uring::serve(listener, work, &stop).map_err(no_ring)
                }
                None => {
                    let opened = content.open()?;
                    let net = Kernel::server(listener, manner).map_err(failed)?;
                    ready.send(()).unwrap_or(());
                    opened.serve(net, limits, &stop)
                }
            };
            let counts = serve();
            drop(ready);
            if counts.is_err() {
                stop.set();
            }
            counts
        };
        let thread = thread::Builder::new().name(format!("serve-{index}")).spawn(body);
        threads
            .push(thread.map_err(|error| Failure::new(format!("no thread: {error}"), "raise the limit of processes"))?);
    }
    drop(ready);
    if told.iter().take(lanes).count() == lanes {
        announce_kernel(args, how, content, lanes)?;
    }
    join(threads)
}

fn limits(args: &ServeArgs) -> Limits {
    Limits { least_rate: args.min_rate, grace: Duration::from_secs_f64(args.grace), ..Limits::default() }
}

fn announce_kernel(args: &ServeArgs, how: KernelServer, content: &Content, lanes: usize) -> Result<(), Failure> {
    let (what, port) = (content.describe(), args.port);
    content.note();
    let how = how.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    let engine = format!("the kernel's TCP, {how}, {lanes} thread(s)");
    match args.json {
        true => say_on(serde_json::json!({ "event": "ready", "serving": what, "port": port, "engine": engine })),
        false => say_on(format!("serving {what} on port {port} ({engine})")),
    }
}

fn join(threads: Vec<thread::JoinHandle<Result<Counts, Failure>>>) -> Result<Counts, Failure> {
    threads.into_iter().try_fold(Counts::default(), |sum, thread| {
        let panicked = |_| Err(Failure::told("a server's thread panicked: please report this"));
        Ok(sum.plus(thread.join().unwrap_or_else(panicked)?))
    })
}

/// What a server on channels has of MegaPipe.
fn parts(how: KernelServer) -> Option<Parts> {
    match how {
        KernelServer::Channel => Some(Parts::ALL),
        KernelServer::ChannelPb => Some(Parts { light: false, ..Parts::ALL }),
        KernelServer::ChannelP => Some(Parts { light: false, batched: false, ..Parts::ALL }),
        KernelServer::Epoll | KernelServer::Plain | KernelServer::Single | KernelServer::Uring => None,
    }
}

/// A listener for all channels of this process.
fn listener(port: u16) -> Result<Listener, Failure> {
    let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
    Listener::at(Address::from(address), 65_535).map_err(|error| refused(port, error))
}

/// The server on completion channels over the kernel: a thread a core, which takes the connections that come in there.
fn on_channels(
    args: &ServeArgs,
    how: KernelServer,
    parts: Parts,
    content: &Content,
    stop: &Stop,
) -> Result<Counts, Failure> {
    let Content::Message(bytes) = *content else {
        return Err(Failure::usage("channels serve no directory, and reset nothing", "add --message BYTES"));
    };
    let Some(cores) = args.device.cores.as_ref().map(|cores| cores.0.clone()) else {
        return Err(Failure::usage("channels take the connections of their cores", "name them with --cores"));
    };
    // The same as the expert's on epoll: a connection is worth a wake-up once its request is there.
    let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), args.port);
    let (listener, _) = kernel::listen(address, Manner::default()).map_err(|error| refused(args.port, error))?;
    let (listener, port, lanes) = (Arc::new(listener), args.port, cores.len());
    let (ready, told) = mpsc::channel();
    let mut threads = Vec::new();
    for (index, core) in cores.into_iter().enumerate() {
        let (stop, ready, listener) = (stop.clone(), ready.clone(), listener.clone());
        let body = move || {
            sys::pin(core);
            let served = Channel::uring(parts.options()).map_err(no_ring).and_then(|channel| {
                let register = |channel: &mut Channel, cookie| {
                    let mut handles = Vec::new();
                    if parts.partitioned {
                        handles.push(channel.register_part(listener.as_fd(), cookie, CpuMask::one(core))?);
                    }
                    // What comes in on other CPUs is the first one's.
                    if !parts.partitioned || index == 0 {
                        handles.push(channel.register(listener.try_clone()?, cookie)?);
                    }
                    // The receiver leaves early only when another thread failed.
                    ready.send(()).unwrap_or(());
                    Ok(handles)
                };
                channel::serve(channel, parts, bytes, register, &stop).map_err(|error| refused(port, error))
            });
            if served.is_err() {
                stop.set();
            }
            served
        };
        let thread = thread::Builder::new().name(format!("serve-{core}")).spawn(body);
        threads
            .push(thread.map_err(|error| Failure::new(format!("no thread: {error}"), "raise the limit of processes"))?);
    }
    drop(ready);
    if told.iter().take(lanes).count() == lanes {
        announce_kernel(args, how, content, lanes)?;
    }
    join(threads)
}

fn open_directory(dir: &Path) -> Result<Files, Failure> {
    Files::open(dir).map_err(|errno| {
        let remedy = match errno {
            rustix::io::Errno::NOSYS => "openat2 is needed: Linux 5.6 or later, not filtered by seccomp",
            rustix::io::Errno::ACCESS => "give this user the right to read it",
            rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR => "name a directory that exists",
            _ => seldom::remedy(&errno.into()),
        };
        Failure::new(format!("{}: {}", dir.display(), words(&errno.into())), remedy)
    })
}

/// A thread that serves: what it counted, and what its lane did.
type Serving = thread::JoinHandle<Result<(Counts, Option<Snapshot>), Failure>>;

/// Starts a thread for each lane and waits for their ends.
fn serve(
    engine: &mut Engine,
    config: &Config,
    args: &ServeArgs,
    content: &Content,
    stop: &Stop,
    succession: Option<Succession>,
) -> Result<(Counts, Vec<Snapshot>), Failure> {
    let (tell, told) = mpsc::channel();
    let through = if args.channel { Some(listener(args.port)?) } else { None };
    let mut threads = Vec::new();
    for index in 0..engine.lanes() {
        let Some(handle) = engine.take_lane(index) else { continue };
        let (content, stop, tell, port) = (content.clone(), stop.clone(), tell.clone(), args.port);
        let (mtcp, limits) = (args.mtcp, limits(args));
        let core = config.cores.get(index).copied().unwrap_or(index);
        let body = move || {
            let result = match (content, through) {
                (Content::Message(bytes), Some(listener)) => {
                    serve_channel(handle, bytes, (listener, core), &stop, &tell).map(|counts| (counts, None))
                }
                (content, _) if mtcp => serve_mtcp(handle, &content, (port, limits), &stop, &tell),
                (content, _) => serve_lane(handle, &content, (port, limits), &stop, &tell),
            };
            if result.is_err() {
                // One lane's failure ends the others, so that the process does not serve by half.
                stop.set();
            }
            result
        };
        let thread = thread::Builder::new().name(format!("serve-{index}")).spawn(body);
        threads
            .push(thread.map_err(|error| Failure::new(format!("no thread: {error}"), "raise the limit of processes"))?);
    }
    drop(tell);
    let count = threads.len();
    let listening = told.iter().take(count).count() == count;
    // Our own ports are held now.
    drop(succession);
    if listening && await_network(engine, stop) {
        let local = serve_this_machine(engine, args, content, stop);
        if local.is_err() {
            stop.set();
        }
        threads.extend(local?);
        if !stop.is_set() {
            announce(config, args, content, threads.len() > count)?;
        }
    }
    while !stop.is_set() && !threads.iter().any(|thread| thread.is_finished()) {
        stop.wait(ALIVE);
    }
    // Where one thread has ended, the others do not serve by half.
    stop.set();
    engine.let_successor_in();
    let mut served = Ok((Counts::default(), Vec::new()));
    for thread in threads {
        let panicked = |_| Err(Failure::told("a lane's thread panicked: please report this"));
        match (thread.join().unwrap_or_else(panicked), &mut served) {
            (Ok((counts, snapshot)), Ok((sum, snapshots))) => {
                *sum = sum.plus(counts);
                snapshots.extend(snapshot);
            }
            (Err(failure), Ok(_)) => served = Err(failure),
            (_, Err(_)) => {}
        }
    }
    served
}

/// Where an interface is shared with the kernel, a thread for connections from this machine: they come by `lo`, which no
/// lane has, and are the kernel's. The loopback addresses are served, too, where no other program has the port there.
fn serve_this_machine(
    engine: &Engine,
    args: &ServeArgs,
    content: &Content,
    stop: &Stop,
) -> Result<Option<Serving>, Failure> {
    let Some(connections) = engine.local_connections() else { return Ok(None) };
    let manner = Manner { shared: true, ..Manner::default() };
    let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
    let listen = |ip| kernel::listen(SocketAddr::new(ip, args.port), manner).ok();
    let listeners = loopback.into_iter().filter_map(listen).map(|(listener, _)| listener).collect();
    let (content, limits, stop) = (content.clone(), limits(args), stop.clone());
    let (ready, told) = mpsc::channel();
    let body = move || {
        let serve = || {
            let opened = content.open()?;
            let net = Kernel::local(connections, listeners, &stop).map_err(failed)?;
            ready.send(()).unwrap_or(());
            opened.serve(net, limits, &stop)
        };
        let counts = serve();
        drop(ready);
        if counts.is_err() {
            stop.set();
        }
        counts.map(|counts| (counts, None))
    };
    let thread = thread::Builder::new().name("serve-lo".into()).spawn(body);
    let thread = thread.map_err(|error| Failure::new(format!("no thread: {error}"), "raise the limit of processes"))?;
    // Where it failed it has asked all others to stop, and says why at the end.
    let _ = told.recv();
    Ok(Some(thread))
}

/// Waits until there is an address to be reached at, or a stop; whether it is the former.
fn await_network(engine: &Engine, stop: &Stop) -> bool {
    while !stop.is_set() && !engine.is_reachable() {
        thread::sleep(Duration::from_millis(50));
    }
    !stop.is_set()
}

/// The line that says that connections are taken from now on; `local` ones, from this machine, by the kernel's TCP.
fn announce(config: &Config, args: &ServeArgs, content: &Content, local: bool) -> Result<(), Failure> {
    let what = content.describe();
    content.note();
    let (port, engine) = (args.port, device::describe(config));
    if args.json {
        return say_on(serde_json::json!({
            "event": "ready", "serving": what, "port": port, "engine": engine, "this_machine_by_kernel": local,
        }));
    }
    let local = if local { "; programs on this machine through the kernel" } else { "" };
    say_on(format!("serving {what} on port {port} ({engine}{local})"))
}

impl Content {
    /// Tells what a user may wonder about.
    fn note(&self) {
        let Content::Directory(dir, show) = self else { return };
        let without = |mut files: Files| files.find(b"index.html", 0).err() == Some(Missing::Absent);
        if !show.lists && open_directory(dir).is_ok_and(without) {
            tell(format!("note: {} has no index.html: / answers 403 (--list shows what is there)", dir.display()));
        }
    }

    fn describe(&self) -> String {
        match self {
            Content::Directory(dir, _) => dir.display().to_string(),
            Content::Message(bytes) => format!("{bytes}-byte messages"),
            Content::Reset => "resets".to_owned(),
        }
    }
}

/// An error of a thread that starts to serve.
fn failed(error: io::Error) -> Failure {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) => {
            Failure::new(words(&error), seldom::remedy(&error))
        }
        _ => Failure::told(words(&error)),
    }
}

fn no_ring(error: io::Error) -> Failure {
    let remedy = match error.raw_os_error() {
        Some(libc::ENOMEM) => "raise the limit of locked memory (ulimit -l)",
        _ => "io_uring of Linux 6.1 or later is needed, allowed by kernel.io_uring_disabled",
    };
    Failure::new(format!("io_uring: {}", words(&error)), remedy)
}

fn serve_lane(
    handle: LaneHandle,
    content: &Content,
    (port, limits): (u16, Limits),
    stop: &Stop,
    ready: &Sender<()>,
) -> Result<(Counts, Option<Snapshot>), Failure> {
    let lane = handle.attach().map_err(failed)?;
    let mut net = OnLane::new(lane.clone()).map_err(failed)?;
    let opened = content.open()?;
    listen(&mut net, port)?;
    // The receiver leaves early only when another lane failed.
    ready.send(()).unwrap_or(());
    let counts = opened.serve(net, limits, stop);
    lane.drain(DRAIN);
    Ok((counts?, lane.snapshot()))
}

/// The same through libmtcp's functions.
fn serve_mtcp(
    handle: LaneHandle,
    content: &Content,
    (port, limits): (u16, Limits),
    stop: &Stop,
    ready: &Sender<()>,
) -> Result<(Counts, Option<Snapshot>), Failure> {
    let app = handle.app().map_err(failed)?;
    let opened = content.open()?;
    let net = OnMtcp::new(app, port).map_err(|error| refused(port, error))?;
    ready.send(()).unwrap_or(());
    opened.serve(net, limits, stop).map(|counts| (counts, None))
}

/// The same through a channel.
fn serve_channel(
    handle: LaneHandle,
    bytes: usize,
    (listener, core): (Listener, usize),
    stop: &Stop,
    ready: &Sender<()>,
) -> Result<Counts, Failure> {
    let channel = handle.channel(Parts::ALL.options()).map_err(failed)?;
    let register = |channel: &mut Channel, cookie| {
        let handle = channel.register_listener(listener, cookie, CpuMask::one(core))?;
        ready.send(()).unwrap_or(());
        Ok(vec![handle])
    };
    channel::serve(channel, Parts::ALL, bytes, register, stop).map_err(failed)
}

/// Content that one thread has opened: from here on nothing about it can fail before the first request.
enum Opened {
    Site(Box<Site>),
    Fixed(Fixed),
    Reset,
}

impl Content {
    fn open(&self) -> Result<Opened, Failure> {
        Ok(match self {
            Content::Message(bytes) => Opened::Fixed(Fixed::new(*bytes)),
            Content::Directory(dir, show) => {
                Opened::Site(Box::new(Site::new(open_directory(dir)?, *show, SystemTime::now())))
            }
            Content::Reset => Opened::Reset,
        })
    }
}

impl Opened {
    /// Serves from one thread until stopped.
    fn serve<N: Net>(self, net: N, limits: Limits, stop: &Stop) -> Result<Counts, Failure> {
        let counts = match self {
            Opened::Fixed(fixed) => serve_with(net, fixed, limits, stop),
            Opened::Site(site) => serve_with(net, *site, limits, stop),
            Opened::Reset => reset::run(net, stop),
        };
        counts.map_err(|error| Failure::told(format!("waiting for connections: {}", words(&error))))
    }
}

/// Serves from one thread until stopped, with the usual limits.
pub fn serve_content<N: Net>(net: N, content: &Content, stop: &Stop) -> Result<Counts, Failure> {
    content.open()?.serve(net, Limits::default(), stop)
}

fn serve_with<N: Net, H: Handler>(net: N, handler: H, limits: Limits, stop: &Stop) -> io::Result<Counts> {
    let mut server = Server::with_limits(net, handler, limits);
    server.run(stop)?;
    Ok(server.counts)
}

/// One wildcard listener for both families, on all addresses of all devices.
fn listen(net: &mut OnLane, port: u16) -> Result<(), Failure> {
    let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
    net.listen(address).map_err(|error| refused(port, error))
}

fn refused(port: u16, error: io::Error) -> Failure {
    match error.kind() {
        // The runtime's own errors say what to do.
        _ if error.get_ref().is_some() => Failure::told(error),
        io::ErrorKind::AddrInUse => Failure::new(format!("port {port} is in use"), "choose another --port"),
        _ => Failure::new(format!("port {port}: {}", words(&error)), "see whether the device has an address"),
    }
}

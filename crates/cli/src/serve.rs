//! `corelane serve`: one server a lane over devices.

use crate::args::{KernelServer, ServeArgs};
use crate::device;
use crate::failure::{Failure, words};
use crate::http::files::Files;
use crate::http::fixed::Fixed;
use crate::http::session::Handler;
use crate::http::site::Site;
use crate::net::Net;
use crate::net::kernel::{self, Kernel, Manner};
use crate::net::lane::OnLane;
use crate::net::mtcp::OnMtcp;
use crate::net::uring;
use crate::say::{say, tell};
use crate::server::channel::{self, Parts};
use crate::server::{Counts, Server, reset};
use crate::sys::{self, Stop};
use corelane::channel::{Address, Channel, CpuMask, Listener};
use corelane::{Config, Engine, LaneHandle, LaneStats, Snapshot};
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, SystemTime};

use clap::ValueEnum;
use rustix::fd::{AsFd, OwnedFd};

/// How long the last segments of a stopping lane may take to leave.
const DRAIN: Duration = Duration::from_secs(2);

/// What every request is answered from.
#[derive(Clone)]
pub enum Content {
    /// Files.
    Directory(PathBuf),
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
        (Some(dir), None) => Content::Directory(dir.clone()),
        (None, None) => return Err(Failure::usage("nothing to serve", "name a directory, or --message BYTES")),
    };
    if let Content::Directory(dir) = &content {
        open_directory(dir)?;
    }
    if let Some(how) = args.kernel {
        sys::raise_descriptor_limit();
        return finish(args, on_kernel(args, how, &content, stop)?, &[], &[]);
    }
    let config = device::config(&args.device)?;
    sys::raise_descriptor_limit();
    let mut engine = Engine::start(&config).map_err(Failure::told)?;
    for warning in engine.warnings() {
        tell(format!("note: {warning}"));
    }
    let lanes = engine.stats();
    let served = serve(&mut engine, &config, args, &content, stop);
    engine.shutdown();
    let (counts, snapshots) = served?;
    finish(args, counts, &lanes, &snapshots)
}

/// The line at the end.
fn finish(args: &ServeArgs, counts: Counts, lanes: &[Arc<LaneStats>], snapshots: &[Snapshot]) -> Result<(), Failure> {
    match args.json {
        true => {
            let lanes: Vec<_> = lanes.iter().map(|lane| lane.rows().into_iter().collect::<BTreeMap<_, _>>()).collect();
            // What never happened is left out.
            let counted = |s: &Snapshot| s.rows.iter().filter(|(_, n)| *n > 0).cloned().collect::<BTreeMap<_, _>>();
            let counters: Vec<_> = snapshots.iter().map(counted).collect();
            say(serde_json::json!({ "event": "stopped", "counts": counts, "lanes": lanes, "counters": counters }))
        }
        false => say(format!("served {} requests on {} connections", counts.requests, counts.connections)),
    }
}

/// The same server on the kernel's TCP: a thread a lane, with a listener of its own (SO_REUSEPORT) or a shared one.
fn on_kernel(args: &ServeArgs, how: KernelServer, content: &Content, stop: &Stop) -> Result<Counts, Failure> {
    if let Some(parts) = parts(how) {
        return on_channels(args, how, parts, content, stop);
    }
    let ring = match (how, content) {
        (KernelServer::Uring, Content::Directory(_)) => {
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
    let failed = |error: io::Error| Failure::told(words(&error));
    let cores = args.device.cores.as_ref().map(|c| c.0.clone()).unwrap_or_default();
    let lanes = args.device.lanes.map_or(cores.len().max(1), usize::from);
    let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), args.port);
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
        let (content, stop, core) = (content.clone(), stop.clone(), cores.get(index).copied());
        let body = move || {
            core.map(sys::pin);
            let counts = match ring {
                Some(work) => uring::serve(listener, work, &stop).map_err(no_ring),
                None => serve_content(Kernel::server(listener, manner).map_err(failed)?, &content, &stop),
            };
            if counts.is_err() {
                stop.set();
            }
            counts
        };
        let thread = thread::Builder::new().name(format!("serve-{index}")).spawn(body);
        threads
            .push(thread.map_err(|error| Failure::new(format!("no thread: {error}"), "raise the limit of processes"))?);
    }
    announce_kernel(args, how, content, lanes)?;
    join(threads)
}

fn announce_kernel(args: &ServeArgs, how: KernelServer, content: &Content, lanes: usize) -> Result<(), Failure> {
    let (what, port) = (content.describe(), args.port);
    let how = how.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    let engine = format!("the kernel's TCP, {how}, {lanes} thread(s)");
    match args.json {
        true => say(serde_json::json!({ "event": "ready", "serving": what, "port": port, "engine": engine })),
        false => say(format!("serving {what} on port {port} ({engine})")),
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
            _ => "name a directory that exists",
        };
        Failure::new(format!("{}: {}", dir.display(), words(&errno.into())), remedy)
    })
}

/// Starts a thread for each lane and waits for their ends.
fn serve(
    engine: &mut Engine,
    config: &Config,
    args: &ServeArgs,
    content: &Content,
    stop: &Stop,
) -> Result<(Counts, Vec<Snapshot>), Failure> {
    let (tell, told) = mpsc::channel();
    let through = if args.channel { Some(listener(args.port)?) } else { None };
    let mut threads = Vec::new();
    for index in 0..engine.lanes() {
        let Some(handle) = engine.take_lane(index) else { continue };
        let (content, stop, tell, port) = (content.clone(), stop.clone(), tell.clone(), args.port);
        let mtcp = args.mtcp;
        let core = config.cores.get(index).copied().unwrap_or(index);
        let body = move || {
            let result = match (content, through) {
                (Content::Message(bytes), Some(listener)) => {
                    serve_channel(handle, bytes, (listener, core), &stop, &tell).map(|counts| (counts, None))
                }
                (content, _) if mtcp => serve_mtcp(handle, &content, port, &stop, &tell),
                (content, _) => serve_lane(handle, &content, port, &stop, &tell),
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
    if told.iter().take(count).count() == count && !stop.is_set() {
        announce(config, args, content)?;
    }
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

/// The line that says that connections are taken from now on.
fn announce(config: &Config, args: &ServeArgs, content: &Content) -> Result<(), Failure> {
    let what = content.describe();
    let (port, engine) = (args.port, device::describe(config));
    match args.json {
        true => say(serde_json::json!({ "event": "ready", "serving": what, "port": port, "engine": engine })),
        false => say(format!("serving {what} on port {port} ({engine})")),
    }
}

impl Content {
    fn describe(&self) -> String {
        match self {
            Content::Directory(dir) => dir.display().to_string(),
            Content::Message(bytes) => format!("{bytes}-byte messages"),
            Content::Reset => "resets".to_owned(),
        }
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
    port: u16,
    stop: &Stop,
    ready: &Sender<()>,
) -> Result<(Counts, Option<Snapshot>), Failure> {
    let lane_failed = |error: io::Error| Failure::told(words(&error));
    let lane = handle.attach().map_err(lane_failed)?;
    let mut net = OnLane::new(lane.clone()).map_err(lane_failed)?;
    listen(&mut net, port)?;
    // The receiver leaves early only when another lane failed.
    ready.send(()).unwrap_or(());
    let counts = serve_content(net, content, stop);
    lane.drain(DRAIN);
    Ok((counts?, lane.snapshot()))
}

/// The same through libmtcp's functions.
fn serve_mtcp(
    handle: LaneHandle,
    content: &Content,
    port: u16,
    stop: &Stop,
    ready: &Sender<()>,
) -> Result<(Counts, Option<Snapshot>), Failure> {
    let app = handle.app().map_err(|error| Failure::told(words(&error)))?;
    let net = OnMtcp::new(app, port).map_err(|error| refused(port, error))?;
    ready.send(()).unwrap_or(());
    serve_content(net, content, stop).map(|counts| (counts, None))
}

/// The same through a channel.
fn serve_channel(
    handle: LaneHandle,
    bytes: usize,
    (listener, core): (Listener, usize),
    stop: &Stop,
    ready: &Sender<()>,
) -> Result<Counts, Failure> {
    let failed = |error: io::Error| Failure::told(words(&error));
    let channel = handle.channel(Parts::ALL.options()).map_err(failed)?;
    let register = |channel: &mut Channel, cookie| {
        let handle = channel.register_listener(listener, cookie, CpuMask::one(core))?;
        ready.send(()).unwrap_or(());
        Ok(vec![handle])
    };
    channel::serve(channel, Parts::ALL, bytes, register, stop).map_err(failed)
}

/// Serves from one thread until stopped.
pub fn serve_content<N: Net>(net: N, content: &Content, stop: &Stop) -> Result<Counts, Failure> {
    let counts = match content {
        Content::Message(bytes) => serve_with(net, Fixed::new(*bytes), stop),
        Content::Directory(dir) => serve_with(net, Site::new(open_directory(dir)?, SystemTime::now()), stop),
        Content::Reset => reset::run(net, stop),
    };
    counts.map_err(|error| Failure::told(format!("waiting for connections: {}", words(&error))))
}

fn serve_with<N: Net, H: Handler>(net: N, handler: H, stop: &Stop) -> io::Result<Counts> {
    let mut server = Server::new(net, handler);
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

//! `corelane demo`: server and load over the memory wire, then the same work on the Linux kernel, in one run.
//!
//! Both systems run the same server and the same generator, one thread for each end of each lane, pinned alike; only the
//! network under them differs. Each is warmed up, then measured for the same time.

mod linux;
mod memory;
mod report;

use crate::args::DemoArgs;
use crate::failure::Failure;
use crate::http::session::Handler;
use crate::load::plan::{Plan, Shared};
use crate::load::report::Tally;
use crate::load::talk::Fetch;
use crate::load::target::Http;
use crate::net::Net;
use crate::say::{say, say_json};
use crate::server::Server;
use crate::sys::{self, Machine, Stop, Usage};
use indicatif::{ProgressBar, ProgressStyle};
pub use report::grouped;
use report::{Comparison, Work};
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Load before the measurement, so that pools and tables have their size.
const WARM_UP: Duration = Duration::from_secs(1);

/// Cores of the threads: servers first, then clients; none where there are too few to give each its own.
struct Cores(Vec<usize>);

impl Cores {
    fn for_lanes(lanes: usize) -> Cores {
        let cores = sys::allowed_cores();
        Cores(if cores.len() >= 2 * lanes { cores[..2 * lanes].to_vec() } else { Vec::new() })
    }

    fn servers(&self) -> &[usize] {
        &self.0[..self.0.len() / 2]
    }

    fn clients(&self) -> &[usize] {
        &self.0[self.0.len() / 2..]
    }
}

/// Runs the demo and prints what it found.
pub fn run(args: &DemoArgs, stop: &Stop) -> Result<(), Failure> {
    sys::raise_descriptor_limit();
    let cores = Cores::for_lanes(args.lanes);
    let memory = memory::run(args, &cores, stop)?;
    let linux = if stop.is_set() { None } else { Some(linux::run(args, &cores, stop)?) };
    let Some(linux) = linux.filter(|_| !stop.is_set()) else {
        return Err(Failure::new("demo was interrupted", "let it run to the end to see a comparison"));
    };
    let work = Work {
        message_bytes: args.message,
        messages_per_connection: args.messages_per_connection,
        connections_at_once: args.connections,
        lanes: args.lanes,
        seconds: args.seconds,
        loss_percent: args.loss,
        pinned: !cores.0.is_empty(),
    };
    let comparison = Comparison::new(work, memory, linux, Machine::here());
    match args.json {
        true => say_json(&comparison),
        false => say(&comparison),
    }
}

/// The work of one client thread.
fn plan(args: &DemoArgs, thread: usize) -> Plan {
    let share = args.connections / args.lanes + usize::from(thread < args.connections % args.lanes);
    Plan {
        concurrent: share.max(1),
        total: None,
        per_connection: args.messages_per_connection,
        hold: false,
        rate: None,
        connect_timeout: Duration::from_secs(30),
        timeout: Duration::from_secs(30),
    }
}

/// What it asks for.
fn fetch(args: &DemoArgs, target: SocketAddr) -> Fetch {
    Fetch::new(&Http::at(target, "/"), Some(args.message as u64))
}

/// CPU time of a server thread within the measurement.
#[derive(Default)]
struct Meter {
    phase: u8,
    begun: Duration,
    used: Duration,
}

impl Meter {
    fn observe(&mut self, phase: u8) {
        if phase != self.phase {
            match phase {
                1 => self.begun = sys::thread_cpu_time(),
                _ => self.used = sys::thread_cpu_time().saturating_sub(self.begun),
            }
            self.phase = phase;
        }
    }
}

/// Serves until stopped; the CPU time of the measurement.
fn serve<N: Net, H: Handler>(server: &mut Server<N, H>, shared: &Shared, stop: &Stop) -> io::Result<Duration> {
    let mut meter = Meter::default();
    while !stop.is_set() {
        server.turn()?;
        meter.observe(shared.phase());
    }
    Ok(meter.used)
}

/// Paces one system through warm-up and measurement while its threads run, showing how it goes.
/// Gives the cores that other programs kept busy meanwhile.
fn conduct(name: &str, args: &DemoArgs, shared: &Shared, end: &Stop, interrupted: &Stop) -> Option<f64> {
    let bar = progress_bar(args.seconds, args.json);
    let measured = Duration::from_secs_f64(args.seconds);
    let start = Instant::now();
    let (mut last, mut last_at) = (shared.progress(), start);
    let mut before = None;
    while !interrupted.is_set() && !end.is_set() {
        let gone = start.elapsed();
        if shared.phase() == 0 && gone >= WARM_UP {
            shared.measure();
            before = Usage::now();
        }
        if gone >= WARM_UP + measured {
            break;
        }
        let left = if gone < WARM_UP { WARM_UP - gone } else { WARM_UP + measured - gone };
        thread::sleep(left.min(Duration::from_millis(200)));
        if last_at.elapsed() >= Duration::from_millis(190) {
            let now = shared.progress();
            let rate = (now.connections - last.connections) as f64 / last_at.elapsed().as_secs_f64();
            let errors = if now.errors > 0 { format!(", {} errors", now.errors) } else { String::new() };
            bar.set_position((start.elapsed().as_secs_f64() * 1e3) as u64);
            bar.set_message(format!("{name}: {} connections/s{errors}", grouped(rate)));
            (last, last_at) = (now, Instant::now());
        }
    }
    let foreign = Usage::now().zip(before).map(|(now, before)| now.foreign_cores(before));
    shared.end();
    // Threads note the end of the measurement before they are told to leave.
    thread::sleep(Duration::from_millis(150));
    end.set();
    bar.finish_and_clear();
    foreign
}

/// A bar on the terminal; nothing where there is none.
fn progress_bar(seconds: f64, quiet: bool) -> ProgressBar {
    if quiet || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(((seconds + WARM_UP.as_secs_f64()) * 1e3) as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {msg}") {
        bar.set_style(style);
    }
    bar
}

/// A thread that reports its end, whatever it is, so that nobody waits for the others.
fn ending<T>(end: &Stop, what: &str, result: io::Result<T>) -> Result<T, Failure> {
    result.map_err(|error| {
        end.set();
        Failure::new(format!("{what}: {}", crate::failure::words(&error)), "see whether memory and descriptors suffice")
    })
}

/// Everything one system's threads measured.
struct Measured {
    tally: Tally,
    server_cpu: Duration,
    /// Warm-up included.
    all_connections: u64,
    foreign_cores: Option<f64>,
}

/// Runs `lanes` servers and clients to the end of the measurement.
fn run_threads<S, C>(
    name: &str,
    args: &DemoArgs,
    interrupted: &Stop,
    servers: Vec<S>,
    clients: Vec<C>,
) -> Result<Measured, Failure>
where
    S: FnOnce(&Shared, &Stop, &dyn Fn()) -> io::Result<Duration> + Send,
    C: FnOnce(Arc<Shared>, &Stop) -> io::Result<Tally> + Send,
{
    let shared = Arc::new(Shared::default());
    // Clients end first, so that servers are there until the last connection is closed.
    let (clients_end, servers_end) = (Stop::default(), Stop::default());
    thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel::<()>();
        let count = servers.len();
        let mut serving = Vec::new();
        for server in servers {
            let (shared, end, all, tell) = (shared.clone(), servers_end.clone(), clients_end.clone(), tell.clone());
            let body = move || {
                // The receiver is gone only when nobody waits any more.
                let ready = || tell.send(()).unwrap_or(());
                let result = server(&shared, &end, &ready);
                if result.is_err() {
                    // Nobody shall wait for a server that failed, nor load one.
                    all.set();
                    ready();
                }
                ending(&end, "server", result)
            };
            serving.push(thread::Builder::new().name("server".into()).spawn_scoped(scope, body));
        }
        drop(tell);
        for _ in 0..count {
            if told.recv().is_err() {
                break;
            }
        }
        let mut loading = Vec::new();
        for client in clients {
            let (shared, end) = (shared.clone(), clients_end.clone());
            let body = move || ending(&end, "client", client(shared, &end));
            loading.push(thread::Builder::new().name("client".into()).spawn_scoped(scope, body));
        }
        let foreign_cores = conduct(name, args, &shared, &clients_end, interrupted);
        let mut tally = Tally::default();
        let mut failure = None;
        for thread in loading {
            match join(thread) {
                Ok(measured) => tally.add(&measured),
                Err(error) => failure = Some(error),
            }
        }
        servers_end.set();
        let mut server_cpu = Duration::ZERO;
        for thread in serving {
            match join(thread) {
                Ok(used) => server_cpu += used,
                Err(error) => failure = Some(error),
            }
        }
        let all_connections = shared.progress().connections;
        failure.map_or(Ok(Measured { tally, server_cpu, all_connections, foreign_cores }), Err)
    })
}

fn join<T>(thread: io::Result<thread::ScopedJoinHandle<'_, Result<T, Failure>>>) -> Result<T, Failure> {
    let handle = thread.map_err(|error| Failure::new(format!("no thread: {error}"), "raise the limit of processes"))?;
    handle.join().unwrap_or_else(|_| Err(Failure::told("a thread of the demo panicked: please report this")))
}

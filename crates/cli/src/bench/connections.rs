//! Many idle connections in one process: what memory one costs, and how fast others come and go meanwhile.
//!
//! The server is a stack on a memory wire. At the other end is a peer without memory of connections: it opens them from many
//! addresses and answers every segment from what the segment itself says, so that all that grows is the server's.

use super::Settings;
use super::case::{Case, System, Wire, Work};
use super::child::Child;
use super::figures::systems;
use super::measure::{Layout, Measurement, list, watch_alone};
use super::part::{Announced, Window};
use super::place;
use super::rounds;
use crate::args::{CoreList, ModelArg, core_list};
use crate::failure::{Failure, words};
use crate::say::{say, say_json};
use crate::sys::{self, Stop};
use clap::Args;
use corelane::{
    Config, Engine, Events, Interest, Lane, LaneHandle, ListenOptions, MemPort, Poller, SockOption, TcpStream, Trigger,
};
use peer::{Peer, Progress};
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

mod peer;

/// The server's address, and the router behind which all clients are.
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PORT: u16 = 80;
/// A request that leaves its connection open, and one that asks for its end.
const STAY: u8 = b's';
const END: u8 = b'e';
const ANSWER: [u8; 64] = [b'x'; 64];
/// Bytes that a connection may take at most, all told, before it is not even tried.
const ROOM: u64 = 1100;

/// After so long a connection that was left alone is parked, and so are all whose second was over.
const SETTLED: Duration = Duration::from_millis(1500);

/// Arguments of the part.
#[derive(Debug, Args)]
pub struct ConnectionsArgs {
    /// Connections that stay
    #[arg(long)]
    held: u64,
    /// Short connections at once, and handshakes under way while others are opened
    #[arg(long, default_value_t = 256)]
    window: usize,
    /// Seconds to measure short connections
    #[arg(long)]
    duration: f64,
    /// Seconds before
    #[arg(long, default_value_t = 0.0)]
    warm_up: f64,
    /// The peer's core
    #[arg(long, value_parser = core_list)]
    cores: CoreList,
    /// The server's core
    #[arg(long, value_parser = core_list)]
    server_cores: CoreList,
}

/// The cases: none held, then many.
pub fn cases(
    settings: &Settings,
    _: &mut rounds::Progress,
    notes: &mut Vec<String>,
    _: &Stop,
) -> Result<Vec<Case>, Failure> {
    let most = if settings.quick { vec![0, 100_000] } else { vec![0, 1_000_000, 10_000_000] };
    let mut counts = settings.concurrent.map_or(most, |count| vec![0, count]);
    let available = available_bytes();
    counts.retain(|held| {
        let fits = *held as u64 * ROOM <= available;
        if !fits {
            let (need, have) = ((*held as u64 * ROOM) >> 20, available >> 20);
            notes.push(format!("{held} connections left out: they may take {need} MiB, {have} MiB are available"));
        }
        fits
    });
    let all =
        systems(settings, &[System::Corelane(ModelArg::Inline)]).into_iter().filter(|(_, wire)| *wire == Wire::Mem);
    let of = |(system, wire)| {
        counts.iter().map(move |held| {
            let addresses = addresses(*held as u64);
            Case::new(system, wire, Work::default()).label("held", *held).label("client_addresses", addresses)
        })
    };
    Ok(all.flat_map(of).collect())
}

/// Measures one: the part in a process of its own, whose memory is the server's.
pub fn measure(case: &Case, settings: &Settings) -> Result<Measurement, Failure> {
    let layout = Layout::new(&settings.all_cores, case.cores, case.wire);
    let held = case.labels.iter().find(|(name, _)| *name == "held").map_or(0, |(_, held)| held.as_u64().unwrap_or(0));
    let mut command = Command::new(place::this_program());
    command.args(["bench-part", "connections", "--held", &held.to_string()]);
    command.args(["--duration", &settings.seconds.to_string(), "--warm-up", &settings.warm_up.to_string()]);
    command.args(["--cores", &list(&layout.client), "--server-cores", &list(&layout.server)]);
    let mut child = Child::spawn(command, "the connections")?;
    // Opening them takes its time.
    child.event("started", Duration::from_secs(60 + held / 20_000))?;
    watch_alone(case, settings, layout, child, &mut |_, _| {})
}

/// Announces on standard output.
struct Aloud;

impl Announced for Aloud {
    fn tell(&self, event: &str) -> Result<(), Failure> {
        say(serde_json::json!({ "event": event }))
    }
}

/// Memory that can be had without swapping.
fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    // Where it is not told, let it be tried.
    kib.map_or(u64::MAX, |kib| kib << 10)
}

/// Bytes of memory that this process has.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// Runs the part.
pub fn part(args: &ConnectionsArgs, stop: &Stop) -> Result<(), Failure> {
    let room = u32::try_from(args.held).ok().and_then(|held| held.checked_add(65_536));
    let room = room.filter(|room| *room <= i32::MAX as u32);
    let room = room.ok_or_else(|| Failure::usage("--held is too many", "a lane has at most 2,147,483,647 sockets"))?;
    let mut config = Config::memory(&format!("{SERVER}/24")).map_err(Failure::told)?;
    config.ports[0].gateways = vec![ROUTER.into()];
    config.cores = args.server_cores.0[..1].to_vec();
    (config.max_connections, config.max_sockets) = (room, room);
    let (mut engine, mut ports) = Engine::memory_end(&config).map_err(Failure::told)?;
    let (handle, port) = engine.take_lane(0).zip(ports.pop()).ok_or_else(|| Failure::told("no lane"))?;
    let end = Stop::default();
    let stats = engine.stats();
    let (server, outcome) = thread::scope(|scope| {
        let (tell, ready) = std::sync::mpsc::channel();
        let (end, stop_server) = (end.clone(), end.clone());
        let server = scope.spawn(move || serve(handle, &stop_server, || tell.send(()).unwrap_or(())));
        let outcome = match ready.recv() {
            Ok(()) => load(args, port, stop),
            // Its own error says why.
            Err(_) => Err(Failure::told("the server did not start")),
        };
        end.set();
        (server.join(), outcome)
    });
    let served = server.unwrap_or_else(|_| Err(io::Error::other("it panicked: please report this")));
    served.map_err(|error| Failure::told(format!("the server: {}", words(&error))))?;
    let mut report = outcome?;
    report.insert("server", serde_json::json!({ "lanes": super::part::lane_rows(&stats) }));
    say_json(&report)
}

/// Opens what stays, then measures what comes and goes.
fn load(
    args: &ConnectionsArgs,
    port: MemPort,
    stop: &Stop,
) -> Result<BTreeMap<&'static str, serde_json::Value>, Failure> {
    sys::pin(args.cores.0[0]);
    let mut peer = Peer::new(port, args.window);
    // Pools and tables have their first size, and the neighbour is known.
    peer.hold(1000, stop)?;
    peer.settle(SETTLED, stop)?;
    let before = resident();
    let mut opening = 0.0;
    let halves = [args.held / 2, args.held - args.held / 2];
    let mut grown = [0.0; 2];
    for (half, grown) in halves.into_iter().zip(&mut grown) {
        let (begun, from) = (Instant::now(), resident());
        peer.hold(half, stop)?;
        opening += begun.elapsed().as_secs_f64();
        if args.held > 0 {
            peer.settle(SETTLED, stop)?;
        }
        *grown = resident().saturating_sub(from) as f64 / (half as f64).max(1.0);
    }
    let bytes = resident().saturating_sub(before) as f64 / (args.held as f64).max(1.0);
    let window =
        Window { warm_up: Duration::from_secs_f64(args.warm_up), duration: Duration::from_secs_f64(args.duration) };
    Aloud.tell("started")?;
    peer.churn(window.warm_up, stop)?;
    Aloud.tell("measuring")?;
    let Progress { ended, resets, seconds } = peer.churn(window.duration, stop)?;
    Aloud.tell("measured")?;
    let mut report = BTreeMap::new();
    let mut add = |name, value: f64| drop(report.insert(name, serde_json::json!(value)));
    add("seconds", seconds);
    add("connections", ended as f64);
    add("connections_per_s", ended as f64 / seconds);
    add("messages_per_s", ended as f64 / seconds);
    add("resets", resets as f64);
    add("held", args.held as f64);
    add("open_s", opening);
    if args.held > 0 {
        add("bytes_per_connection", bytes);
        add("bytes_per_further_connection", grown[1]);
        add("opened_per_s", args.held as f64 / opening);
    }
    Ok(report)
}

/// Answers one request after the other, until it is told to stop.
fn serve(handle: LaneHandle, stop: &Stop, ready: impl FnOnce()) -> io::Result<()> {
    let lane: Lane = handle.attach()?;
    let poller = lane.poller()?;
    let options = ListenOptions { backlog: 65_535, ..ListenOptions::default() };
    let mut listener = lane.listen(SocketAddr::new(SERVER.into(), PORT), options)?;
    listener.set_nonblocking(true);
    listener.set_option(SockOption::KeepAlive(true))?;
    poller.add(&listener, u64::MAX, Interest::READ, Trigger::Edge)?;
    ready();
    let mut streams: Vec<Option<TcpStream>> = Vec::new();
    let mut free: Vec<u32> = Vec::new();
    let mut events = Events::with_capacity(512);
    while !stop.is_set() {
        poller.wait(&mut events, Some(Duration::from_millis(100)))?;
        for event in events.iter() {
            if event.key != u64::MAX {
                let at = event.key as usize;
                if let Some(stream) = streams.get_mut(at).and_then(Option::take) {
                    match answer(stream) {
                        Some(stream) => streams[at] = Some(stream),
                        None => free.push(at as u32),
                    }
                }
                continue;
            }
            while let Ok((stream, _)) = listener.accept() {
                // Most have their request already; one that ends with it never waits.
                let Some(stream) = answer(stream) else { continue };
                let at = free.pop().unwrap_or_else(|| {
                    streams.push(None);
                    streams.len() as u32 - 1
                });
                watch(&poller, &stream, at)?;
                streams[at as usize] = Some(stream);
            }
        }
    }
    // A million closes at the end would take a while, and tell nobody anything.
    streams.into_iter().for_each(std::mem::forget);
    Ok(())
}

fn watch(poller: &Poller, stream: &TcpStream, at: u32) -> io::Result<()> {
    poller.add(stream, u64::from(at), Interest::READ, Trigger::Edge)
}

/// Answers what is there; nothing when the connection ends.
fn answer(stream: TcpStream) -> Option<TcpStream> {
    let mut buffer = [0; 256];
    loop {
        let n = match stream.read(&mut buffer) {
            Ok(0) => return None,
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(stream),
            Err(_) => return None,
        };
        if buffer[..n].contains(&END) {
            // FIN rides on the answer; a peer that has gone needs none.
            let _ = stream.write_more(&ANSWER);
            return None;
        }
        if buffer[..n].contains(&STAY) && stream.write(&ANSWER).is_err() {
            return None;
        }
    }
}

/// What the address of a client says.
pub(crate) fn source(network: u8, number: u64) -> (Ipv4Addr, u16) {
    // Ports 1024 to 61023 of one address after the other.
    let (address, port) = (number / 60_000, number % 60_000);
    let [.., b, c, d] = (address as u32 + 1).to_be_bytes();
    (Ipv4Addr::new(network, b, c, d), 1024 + port as u16)
}

/// The number of the client that has such an address, the other way round.
fn number((address, port): (Ipv4Addr, u16)) -> u64 {
    let [_, b, c, d] = address.octets();
    let address = u64::from(u32::from_be_bytes([0, b, c, d]));
    (address * 60_000 + u64::from(port)).saturating_sub(60_000 + 1024)
}

/// How many addresses so many connections come from.
pub fn addresses(held: u64) -> u64 {
    held.div_ceil(60_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_distinct() {
        let at = |n| source(11, n);
        assert_eq!(at(0), (Ipv4Addr::new(11, 0, 0, 1), 1024));
        assert_eq!(at(59_999), (Ipv4Addr::new(11, 0, 0, 1), 61_023));
        assert_eq!(at(60_000), (Ipv4Addr::new(11, 0, 0, 2), 1024));
        assert_eq!(at(10_000_000).0, Ipv4Addr::new(11, 0, 0, 167));
        assert!([0, 59_999, 60_000, 10_000_000].iter().all(|n| number(at(*n)) == *n));
        assert_eq!(addresses(10_000_000), 167);
    }

    #[test]
    fn idle_connections_stay_while_others_come_and_go() {
        let mut config = Config::memory(&format!("{SERVER}/24")).expect("an address");
        config.ports[0].gateways = vec![ROUTER.into()];
        let (mut engine, mut ports) = Engine::memory_end(&config).expect("memory");
        let handle = engine.take_lane(0).expect("a lane");
        let stats = engine.stats();
        let (end, stop) = (Stop::default(), Stop::default());
        thread::scope(|scope| {
            let (tell, ready) = std::sync::mpsc::channel();
            let flag = end.clone();
            let server = scope.spawn(move || serve(handle, &flag, || tell.send(()).unwrap_or(())));
            ready.recv().expect("it listens");
            let mut peer = Peer::new(ports.pop().expect("a port"), 64);
            peer.hold(5000, &stop).expect("all answered");
            let begun = Instant::now();
            peer.settle(Duration::from_millis(20), &stop).expect("nothing happens");
            assert!(begun.elapsed() >= Duration::from_millis(20));
            let progress = peer.churn(Duration::from_millis(100), &stop).expect("all answered");
            assert!(progress.ended > 100 && progress.resets == 0, "{progress:?}");
            let held = stats[0].connections();
            assert!((5000..6000).contains(&held), "{held}");
            end.set();
            server.join().expect("no panic").expect("no error");
        });
    }
}

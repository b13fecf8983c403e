//! Programs that rounds are made of and nobody types: both ends of a memory wire, echoes, blasters.

use super::fastsocket::descriptors;
use super::limit::{self, Ends, Mix, PORTS};
use super::{bulk, connections};
use crate::args::{CoreList, LoadArgs, core_list};
use crate::failure::{Failure, words};
use crate::load;
use crate::net::lane::OnLane;
use crate::say::{say, say_json};
use crate::serve::{Content, serve_content};
use crate::server::Counts;
use crate::sys::{self, Stop};
use clap::{Args, Subcommand};
use corelane::{Cidr, Config, Device, Engine, LaneStats};
use io::bpf::{OwnFlags, OwnKey};
use io::memwire::{self, MemConfig};
use io::netlink::Netlink;
use io::xdp::{Placeholder, XdpConfig, XdpDevice};
use io::{AnyPort, Port};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use wire::MacAddr;

/// The programs.
#[derive(Debug, Subcommand)]
pub enum Part {
    /// Server and load over a wire in memory
    Memory(Box<MemoryArgs>),
    /// Frames echoed over a wire in memory
    Limit(LimitArgs),
    /// Frames echoed on a device
    Echo(EchoArgs),
    /// Frames to an echo
    Blast(BlastArgs),
    /// Many idle connections, a peer that remembers none
    Connections(connections::ConnectionsArgs),
    /// An end of bulk to a server
    #[command(subcommand)]
    Bulk(bulk::Part),
    /// Sockets that are opened and closed
    Descriptors(descriptors::DescriptorsArgs),
}

/// Arguments of `memory`.
#[derive(Debug, Args)]
pub struct MemoryArgs {
    /// The client's.
    #[command(flatten)]
    load: LoadArgs,
    /// Bytes of a response's body
    #[arg(long, default_value_t = 64)]
    message: usize,
    /// Reset every connection once it is accepted
    #[arg(long)]
    reset: bool,
    /// The server's cores
    #[arg(long, value_parser = core_list)]
    server_cores: CoreList,
}

/// What frames look like, and for how long they are sent.
#[derive(Debug, Args)]
struct MixArgs {
    /// Requests on each connection
    #[arg(long, default_value_t = 1)]
    messages: u32,
    /// Bytes of a response's body
    #[arg(long, default_value_t = 64)]
    message: usize,
}

/// How long frames are sent.
#[derive(Debug, Args)]
struct TimeArgs {
    /// Frames awaited, at least; up to 16 times as many are tried in the warm-up
    #[arg(long, default_value_t = 256)]
    window: usize,
    /// Seconds to measure
    #[arg(long)]
    duration: f64,
    /// Seconds before
    #[arg(long, default_value_t = 0.0)]
    warm_up: f64,
}

/// Arguments of `limit`.
#[derive(Debug, Args)]
pub struct LimitArgs {
    #[command(flatten)]
    mix: MixArgs,
    #[command(flatten)]
    time: TimeArgs,
    /// The client's cores
    #[arg(long, value_parser = core_list)]
    cores: CoreList,
    /// The server's cores
    #[arg(long, value_parser = core_list)]
    server_cores: CoreList,
}

/// Arguments of `echo`.
#[derive(Debug, Args)]
pub struct EchoArgs {
    #[command(flatten)]
    mix: MixArgs,
    /// Device
    #[arg(long)]
    dev: Device,
    /// A core a queue
    #[arg(long, value_parser = core_list)]
    cores: CoreList,
}

/// Arguments of `blast`.
#[derive(Debug, Args)]
pub struct BlastArgs {
    #[command(flatten)]
    mix: MixArgs,
    #[command(flatten)]
    time: TimeArgs,
    /// Device
    #[arg(long)]
    dev: Device,
    /// A core a queue
    #[arg(long, value_parser = core_list)]
    cores: CoreList,
    /// The other end's hardware address
    #[arg(long)]
    to: String,
}

/// Says what happens.
pub trait Announced {
    /// A line of JSON.
    fn tell(&self, event: &str) -> Result<(), Failure>;
}

/// On standard output.
pub struct Aloud;

impl Announced for Aloud {
    fn tell(&self, event: &str) -> Result<(), Failure> {
        say(serde_json::json!({ "event": event }))
    }
}

/// Nowhere: another thread does.
struct Mute;

impl Announced for Mute {
    fn tell(&self, _: &str) -> Result<(), Failure> {
        Ok(())
    }
}

/// When to measure.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Before.
    pub warm_up: Duration,
    /// Then.
    pub duration: Duration,
}

impl From<&TimeArgs> for Window {
    fn from(args: &TimeArgs) -> Window {
        Window { warm_up: Duration::from_secs_f64(args.warm_up), duration: Duration::from_secs_f64(args.duration) }
    }
}

/// Runs one.
pub fn run(part: &Part, stop: &Stop) -> Result<(), Failure> {
    match part {
        Part::Memory(args) => memory(args, stop),
        Part::Limit(args) => limit_in_memory(args),
        Part::Echo(args) => echo(args, stop),
        Part::Blast(args) => blast(args),
        Part::Connections(args) => connections::part(args, stop),
        Part::Bulk(end) => bulk::part(end, stop),
        Part::Descriptors(args) => descriptors::part(args),
    }
}

/// The client's addresses on a memory wire: enough that a port comes up again only after many connections.
const SOURCES: u8 = 16;

fn memory(args: &MemoryArgs, stop: &Stop) -> Result<(), Failure> {
    sys::raise_descriptor_limit();
    let Some(cores) = &args.load.device.cores else {
        return Err(Failure::usage("no cores", "name the client's with --cores"));
    };
    let config = |address: &str, cores: &CoreList| {
        let mut config = Config::memory(address).map_err(Failure::told)?;
        config.lanes = cores.0.len() as u16;
        config.cores = cores.0.clone();
        config.model = args.load.device.model.map(Into::into).unwrap_or_default();
        let connections = args.load.connections.unwrap_or(64) as u64;
        let bytes = connections * (args.message as u64).min(1 << 17) * 2 + connections * 8192;
        config.buffers_mib = config.buffers_mib.max((bytes >> 20) as u32).min(2048);
        Ok::<_, Failure>(config)
    };
    let server_config = config("10.99.0.2/16", &args.server_cores)?;
    let mut client_config = config("10.99.1.1/16", cores)?;
    let sources: Vec<IpAddr> = (1..=SOURCES).map(|last| Ipv4Addr::new(10, 99, 1, last).into()).collect();
    let more = sources[1..].iter().map(|addr| Cidr { addr: *addr, prefix: 16 });
    client_config.ports[0].addresses.extend(more);
    let (mut server, mut client) = Engine::memory_pair(&server_config, &client_config).map_err(Failure::told)?;
    let stats = server.stats();
    let end = Stop::default();
    let target = SocketAddr::new(Ipv4Addr::new(10, 99, 0, 2).into(), 80);
    let content = if args.reset { Content::Reset } else { Content::Message(args.message) };
    let (tell, told) = std::sync::mpsc::channel();
    let mut threads = Vec::new();
    for index in 0..server.lanes() {
        let Some(handle) = server.take_lane(index) else { continue };
        let (end, content, tell) = (end.clone(), content.clone(), tell.clone());
        let named = thread::Builder::new().name(format!("serve-{index}"));
        let thread = named.spawn(move || {
            let failed = |error: std::io::Error| Failure::told(words(&error));
            let mut net = OnLane::new(handle.attach().map_err(failed)?).map_err(failed)?;
            net.listen(target).map_err(failed)?;
            // Whoever waits for it is there until all have listened.
            let _ = tell.send(());
            serve_content(net, &content, &end)
        });
        threads
            .push(thread.map_err(|error| Failure::new(format!("no thread: {error}"), "raise the limit of processes"))?);
    }
    drop(tell);
    // A server that fails drops its end, and the count falls short.
    let ready = told.iter().take(threads.len()).count();
    let measured = match ready == threads.len() {
        true => load::command::measure(&args.load, &sources, &client_config, &mut client, stop),
        false => Err(Failure::told("a server did not start")),
    };
    client.shutdown();
    end.set();
    let mut counts = Counts::default();
    for thread in threads {
        let panicked = |_| Err(Failure::told("a server's thread panicked: please report this"));
        counts = counts.plus(thread.join().unwrap_or_else(panicked)?);
    }
    let (_, tally) = measured?;
    server.shutdown();
    let frames: u64 = stats.iter().map(|lane| lane.rx_frames() + lane.tx_frames()).sum();
    let mut report = serde_json::to_value(tally.report()).map_err(Failure::told)?;
    report["server"] = serde_json::json!({
        "connections": counts.connections, "requests": counts.requests, "frames": frames, "lanes": lane_rows(&stats),
    });
    say_json(&report)
}

/// Every lane's counters.
pub fn lane_rows(stats: &[Arc<LaneStats>]) -> Vec<BTreeMap<&'static str, u64>> {
    stats.iter().map(|lane| lane.rows().into_iter().collect()).collect()
}

/// Runs one echo and one blaster a queue; the sums, announced by the first.
fn blast_all<P: Port + Send>(
    ports: &mut [P],
    cores: &[usize],
    mix: &Mix,
    ends: &Ends,
    time: &TimeArgs,
) -> Result<limit::Blasted, Failure> {
    let window = time.window.div_ceil(ports.len()).max(1);
    let times = Window::from(time);
    thread::scope(|scope| {
        let threads = ports.iter_mut().enumerate().map(|(at, port)| {
            scope.spawn(move || {
                sys::pin(cores[at % cores.len()]);
                match at {
                    0 => limit::blast(port, mix, ends, window, times, &Aloud),
                    _ => limit::blast(port, mix, ends, window, times, &Mute),
                }
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().try_fold(limit::Blasted::default(), |sum, thread| {
            let one = thread.join().unwrap_or_else(|_| Err(Failure::told("a blaster panicked: please report this")))?;
            Ok(limit::Blasted {
                seconds: one.seconds,
                connections: sum.connections + one.connections,
                connections_per_s: sum.connections_per_s + one.connections_per_s,
                frames_per_s: sum.frames_per_s + one.frames_per_s,
                lost: sum.lost + one.lost,
                window: sum.window + one.window,
            })
        })
    })
}

fn echo_all<P: Port + Send>(
    ports: &mut [P],
    cores: &[usize],
    mix: &Mix,
    ends: &Ends,
    stop: &Stop,
) -> Result<(u64, u64), Failure> {
    thread::scope(|scope| {
        let threads = ports.iter_mut().enumerate().map(|(at, port)| {
            scope.spawn(move || {
                sys::pin(cores[at % cores.len()]);
                limit::echo(port, mix, ends, stop)
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().try_fold((0, 0), |sum, thread| {
            let one = thread.join().unwrap_or_else(|_| Err(Failure::told("an echo panicked: please report this")))?;
            Ok((sum.0 + one.0, sum.1 + one.1))
        })
    })
}

fn limit_in_memory(args: &LimitArgs) -> Result<(), Failure> {
    let mix = Mix::new(args.mix.messages, args.mix.message);
    let queues = args.server_cores.0.len() as u16;
    let config = MemConfig { queues, trust: true, ..MemConfig::default() };
    let (mut client, mut server) = memwire::wire(&config).map_err(Failure::told)?;
    let ends = Ends { macs: memwire::MACS, addresses: [[10, 99, 0, 1].into(), [10, 99, 0, 2].into()] };
    let stop = Stop::default();
    let blasted = thread::scope(|scope| {
        let echo = scope.spawn(|| echo_all(&mut server, &args.server_cores.0, &mix, &ends, &stop));
        let blasted = blast_all(&mut client, &args.cores.0, &mix, &ends, &args.time);
        stop.set();
        echo.join().unwrap_or_else(|_| Err(Failure::told("an echo panicked: please report this")))?;
        blasted
    })?;
    let mut report = serde_json::to_value(blasted).map_err(Failure::told)?;
    report["server"] =
        serde_json::json!({ "connections": blasted.connections, "frames": blasted.connections * mix.frames() as f64 });
    say_json(&report)
}

/// An interface taken for frames to one port of its first address.
struct Taken {
    ports: Vec<AnyPort>,
    mac: MacAddr,
    _device: XdpDevice,
    _placeholder: Placeholder,
}

fn take(device: &Device, lanes: usize, port: u16) -> Result<Taken, Failure> {
    let Device::Xdp(name) = device else {
        return Err(Failure::usage("no xdp device", "name one with --dev xdp:IFACE"));
    };
    let config = XdpConfig { lanes: lanes as u16, ..XdpConfig::default() };
    let (device, ports) = XdpDevice::attach(name, &config).map_err(Failure::told)?;
    let netlink = Netlink::open().and_then(|mut netlink| netlink.addresses());
    let addresses = netlink.map_err(|error| Failure::told(format!("netlink: {}", words(&error))))?;
    let index = device.link().index;
    let own = addresses.iter().find(|address| address.link == index && address.addr.is_ipv4());
    let own = own.ok_or_else(|| Failure::new(format!("{name} has no address"), "give it one with `ip addr add`"))?.addr;
    let placeholder = Placeholder::hold(SocketAddr::new(own, port)).map_err(Failure::told)?;
    let key = OwnKey { vlan: 0, addr: own.into(), port };
    device.own(key, OwnFlags::LISTENING).map_err(Failure::told)?;
    let mac = device.link().mac;
    let ports = ports.into_iter().map(AnyPort::Xdp).collect();
    Ok(Taken { ports, mac, _device: device, _placeholder: placeholder })
}

fn addresses() -> [Ipv4Addr; 2] {
    // As `place` gives them.
    [Ipv4Addr::new(10, 99, 0, 10), Ipv4Addr::new(10, 99, 0, 2)]
}

fn echo(args: &EchoArgs, stop: &Stop) -> Result<(), Failure> {
    let mut taken = take(&args.dev, args.cores.0.len(), PORTS[1])?;
    let mix = Mix::new(args.mix.messages, args.mix.message);
    Aloud.tell("ready")?;
    // The client's address on the link is in its first frame.
    let Some(client) = first_sender(&mut taken.ports, stop) else { return say_json(&serde_json::json!({})) };
    let ends = Ends { macs: [client, taken.mac], addresses: addresses() };
    let (received, sent) = echo_all(&mut taken.ports, &args.cores.0, &mix, &ends, stop)?;
    say_json(&serde_json::json!({ "received": received, "sent": sent }))
}

fn first_sender(ports: &mut [AnyPort], stop: &Stop) -> Option<MacAddr> {
    use wire::burst::RxBurst;
    while !stop.is_set() {
        for port in &mut *ports {
            if port.receive(1) > 0 {
                let sender = port.frame(0).data.get(6..12).and_then(|mac| mac.try_into().ok());
                port.release();
                return sender.map(MacAddr);
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
    None
}

fn blast(args: &BlastArgs) -> Result<(), Failure> {
    let mut taken = take(&args.dev, args.cores.0.len(), PORTS[0])?;
    let mac = parse_mac(&args.to).ok_or_else(|| Failure::usage(format!("{:?} is no hardware address", args.to), ""))?;
    let ends = Ends { macs: [taken.mac, mac], addresses: addresses() };
    let mix = Mix::new(args.mix.messages, args.mix.message);
    say_json(&blast_all(&mut taken.ports, &args.cores.0, &mix, &ends, &args.time)?)
}

fn parse_mac(text: &str) -> Option<MacAddr> {
    let bytes: Vec<u8> = text.split(':').map_while(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes.try_into().ok().map(MacAddr)
}

//! The demo's first half: two engines at the ends of a memory wire.

use super::{Cores, Measured, fetch, plan, run_threads, serve};
use crate::args::DemoArgs;
use crate::demo::report::Outcome;
use crate::failure::Failure;
use crate::http::fixed::Fixed;
use crate::load::generator::Generator;
use crate::load::plan::Shared;
use crate::load::report::Tally;
use crate::net::lane::OnLane;
use crate::server::Server;
use crate::sys::Stop;
use corelane::{Config, Engine, LaneHandle, LaneStats};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
const PORT: u16 = 80;
const TIME_WAIT: Duration = Duration::from_secs(60);
/// Client addresses: enough that a port comes up again only after many connections.
const SOURCES: u8 = 16;

fn config(args: &DemoArgs, address: &str, cores: &[usize]) -> Result<Config, Failure> {
    let mut config = Config::memory(address).map_err(Failure::told)?;
    config.lanes = args.lanes as u16;
    config.cores = cores.to_vec();
    config.model = args.model.into();
    config.tcp.time_wait_ms = Some(TIME_WAIT.as_millis() as u64);
    config.impairment.loss = args.loss / 100.0;
    let bytes = args.connections as u64 * (args.message as u64 + 4096) * 2;
    config.buffers_mib = config.buffers_mib.max((bytes >> 20) as u32).min(1024);
    Ok(config)
}

/// Measures corelane.
pub fn run(args: &DemoArgs, cores: &Cores, interrupted: &Stop) -> Result<Outcome, Failure> {
    let server = config(args, &format!("{SERVER}/16"), cores.servers())?;
    let mut client = config(args, "10.99.1.1/16", cores.clients())?;
    let sources: Vec<IpAddr> = (1..=SOURCES).map(|last| IpAddr::V4(Ipv4Addr::new(10, 99, 1, last))).collect();
    let more = sources[1..].iter().map(|addr| corelane::Cidr { addr: *addr, prefix: 16 });
    client.ports.iter_mut().for_each(|port| port.addresses.extend(more.clone()));
    let (mut server, mut client) = Engine::memory_pair(&server, &client).map_err(Failure::told)?;
    let target = SocketAddr::new(SERVER.into(), PORT);
    let mut servers = Vec::new();
    let mut clients = Vec::new();
    for index in 0..args.lanes {
        let missing = || Failure::told("a lane is missing: please report this");
        let handle = server.take_lane(index).ok_or_else(missing)?;
        let message = args.message;
        servers.push(move |shared: &Shared, stop: &Stop, ready: &dyn Fn()| {
            serve_lane(handle, target, message, shared, stop, ready)
        });
        let handle = client.take_lane(index).ok_or_else(missing)?;
        let (plan, fetch, sources) = (plan(args, index), fetch(args, target), sources.clone());
        clients.push(move |shared: Arc<Shared>, stop: &Stop| -> io::Result<Tally> {
            let mut net = OnLane::new(handle.attach()?)?;
            net.aim(target, sources);
            let mut generator = Generator::new(net, fetch, plan, shared);
            let tally = generator.run(stop)?;
            generator.net().lane().drain(Duration::from_millis(200));
            Ok(tally)
        });
    }
    let stats = server.stats();
    let measured = run_threads("corelane", args, interrupted, servers, clients)?;
    let frames = frames_per_connection(&stats, &measured);
    client.shutdown();
    server.shutdown();
    Ok(Outcome::new(&measured, frames, TIME_WAIT.as_secs_f64()))
}

fn serve_lane(
    handle: LaneHandle,
    target: SocketAddr,
    message: usize,
    shared: &Shared,
    stop: &Stop,
    ready: &dyn Fn(),
) -> io::Result<Duration> {
    let mut net = OnLane::new(handle.attach()?)?;
    net.listen(target)?;
    ready();
    let mut server = Server::new(net, Fixed::new(message));
    serve(&mut server, shared, stop)
}

/// Frames both ways over all connections since the start, warm-up included.
fn frames_per_connection(stats: &[Arc<LaneStats>], measured: &Measured) -> Option<f64> {
    let frames: u64 = stats.iter().map(|lane| lane.rx_frames() + lane.tx_frames()).sum();
    let connections = measured.all_connections;
    (connections > 0).then(|| frames as f64 / connections as f64)
}

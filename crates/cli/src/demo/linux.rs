//! The demo's second half: the kernel's TCP over loopback.

use super::{Cores, fetch, plan, run_threads, serve};
use crate::args::DemoArgs;
use crate::demo::report::Outcome;
use crate::failure::{Failure, words};
use crate::http::fixed::Fixed;
use crate::load::generator::Generator;
use crate::load::plan::Shared;
use crate::load::report::Tally;
use crate::net::kernel::{self, Kernel, Manner};
use crate::server::Server;
use crate::sys::{self, Stop};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// Fixed in the kernel (TCP_TIMEWAIT_LEN).
const TIME_WAIT_S: f64 = 60.0;
/// Client addresses, each with its own ports.
const SOURCES: usize = 64;

/// Measures the kernel.
pub fn run(args: &DemoArgs, cores: &Cores, interrupted: &Stop) -> Result<Outcome, Failure> {
    let listening = |error: io::Error| {
        Failure::new(format!("the kernel's loopback: {}", words(&error)), "is lo up? try: ip link set lo up")
    };
    // The first listener learns a free port; the others share it.
    let (first, target) =
        kernel::listen(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0), Manner::default()).map_err(listening)?;
    let mut listeners = vec![first];
    for _ in 1..args.lanes {
        listeners.push(kernel::listen(target, Manner::default()).map_err(listening)?.0);
    }
    let mut servers = Vec::new();
    let mut clients = Vec::new();
    for (index, listener) in listeners.into_iter().enumerate() {
        let (core, message) = (cores.servers().get(index).copied(), args.message);
        servers.push(move |shared: &Shared, stop: &Stop, ready: &dyn Fn()| {
            core.map(sys::pin);
            ready();
            let mut server = Server::new(Kernel::server(listener, Manner::default())?, Fixed::new(message));
            serve(&mut server, shared, stop)
        });
        let (core, plan, fetch) = (cores.clients().get(index).copied(), plan(args, index), fetch(args, target));
        clients.push(move |shared: Arc<Shared>, stop: &Stop| -> io::Result<Tally> {
            core.map(sys::pin);
            let net = Kernel::client(target, Kernel::loopback_sources(index, SOURCES))?;
            Generator::new(net, fetch, plan, shared).run(stop)
        });
    }
    let before = segments_sent();
    let measured = run_threads("Linux", args, interrupted, servers, clients)?;
    let connections = measured.all_connections;
    let frames = before.zip(segments_sent()).filter(|_| connections > 0);
    let frames = frames.map(|(before, after)| after.saturating_sub(before) as f64 / connections as f64);
    Ok(Outcome::new(&measured, frames, TIME_WAIT_S))
}

/// TCP segments this network namespace has sent: on loopback, those of both ends.
fn segments_sent() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/net/snmp").ok()?;
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let at = lines.next()?.split_whitespace().position(|name| name == "OutSegs")?;
    lines.next()?.split_whitespace().nth(at)?.parse().ok()
}

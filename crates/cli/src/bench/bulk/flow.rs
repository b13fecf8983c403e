//! Both ends of bulk to a server: what sends on the kernel's TCP, and what receives on either. One loop for all: non-blocking,
//! edge-triggered, a bounded number of tries for each flow in turn.

use super::super::part::{Aloud, Announced, Window};
use crate::args::{CoreList, DeviceArgs, core_list};
use crate::device;
use crate::failure::{Failure, words};
use crate::net::kernel::{self, Kernel, Manner};
use crate::net::lane::OnLane;
use crate::net::{LISTENER, Net, Ready};
use crate::say::say_json;
use crate::sys::{self, Stop};
use clap::{Args, Subcommand};
use corelane::Engine;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

/// Bytes of a read or write.
const PIECE: usize = 128 << 10;
/// Reads or writes of a flow before the next one's.
const TRIES: usize = 16;
/// Longest wait before a look at whether to stop.
const LOOK: Duration = Duration::from_millis(100);

/// The ends.
#[derive(Debug, Subcommand)]
pub enum Part {
    /// Bytes from the kernel's TCP, until the receiver ends
    Send(SendArgs),
    /// Bytes read and counted
    Receive(Box<ReceiveArgs>),
}

/// Arguments of `send`.
#[derive(Debug, Args)]
pub struct SendArgs {
    /// The receiver
    #[arg(long)]
    to: SocketAddr,
    /// Flows
    #[arg(long)]
    connections: usize,
    /// The first is used
    #[arg(long, value_parser = core_list)]
    cores: CoreList,
}

/// Arguments of `receive`.
#[derive(Debug, Args)]
pub struct ReceiveArgs {
    /// Devices and lanes: one.
    #[command(flatten)]
    device: DeviceArgs,
    /// On the kernel's TCP instead
    #[arg(long)]
    kernel: bool,
    /// Port to listen on
    #[arg(long)]
    port: u16,
    /// Seconds to measure
    #[arg(long)]
    duration: f64,
    /// Seconds before, from the first byte on
    #[arg(long, default_value_t = 0.0)]
    warm_up: f64,
}

/// Runs one.
pub fn part(part: &Part, stop: &Stop) -> Result<(), Failure> {
    sys::raise_descriptor_limit();
    match part {
        Part::Send(args) => send(args, stop),
        Part::Receive(args) => receive(args, stop),
    }
}

/// Connections, and which of them may have something to do.
struct Flows<N: Net> {
    net: N,
    streams: Vec<N::Stream>,
    /// Flows that can go on, each once: a flag of each flow says that it is there.
    due: Vec<usize>,
    is_due: Vec<bool>,
    ready: Vec<Ready>,
}

impl<N: Net> Flows<N> {
    fn new(net: N) -> Flows<N> {
        Flows { net, streams: Vec::new(), due: Vec::new(), is_due: Vec::new(), ready: Vec::new() }
    }

    /// Waits until a flow can go on, `can` says by what; takes connections.
    fn wait(&mut self, can: fn(&Ready) -> bool) -> io::Result<()> {
        self.ready.clear();
        let limit = if self.due.is_empty() { LOOK } else { Duration::ZERO };
        self.net.wait(&mut self.ready, Some(limit))?;
        for ready in &self.ready {
            if ready.key >= LISTENER {
                while let Some(stream) = self.net.accept(0)? {
                    self.net.watch(&stream, self.streams.len() as u64)?;
                    self.streams.push(stream);
                }
            } else if can(ready) {
                let at = ready.key as usize;
                self.is_due.resize(self.streams.len(), false);
                if !std::mem::replace(&mut self.is_due[at], true) {
                    self.due.push(at);
                }
            }
        }
        Ok(())
    }

    /// Reads or writes, by `step`, on each flow that can go on; bytes, or that one has ended.
    fn each(&mut self, mut step: impl FnMut(&mut N, &N::Stream) -> io::Result<usize>) -> io::Result<u64> {
        let (mut bytes, net, streams, is_due) = (0, &mut self.net, &self.streams, &mut self.is_due);
        let mut failed = None;
        self.due.retain(|at| {
            for _ in 0..TRIES {
                match step(net, &streams[*at]) {
                    Ok(0) => failed = Some(io::ErrorKind::UnexpectedEof.into()),
                    Ok(n) => bytes += n as u64,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        is_due[*at] = false;
                        return false;
                    }
                    Err(error) => failed = Some(error),
                }
            }
            true
        });
        failed.map_or(Ok(bytes), Err)
    }
}

fn send(args: &SendArgs, stop: &Stop) -> Result<(), Failure> {
    sys::pin(args.cores.0[0]);
    let failed = |error: io::Error| Failure::told(format!("{}: {}", args.to, words(&error)));
    let mut flows = Flows::new(Kernel::client(args.to, Vec::new()).map_err(failed)?);
    for key in 0..args.connections {
        let stream = flows.net.connect(key as u64).map_err(failed)?;
        flows.streams.push(stream);
    }
    let mut open = vec![false; args.connections];
    while !open.iter().all(|open| *open) && !stop.is_set() {
        flows.wait(|ready| ready.write).map_err(failed)?;
        for key in &flows.due {
            flows.net.connected(&flows.streams[*key]).map_err(failed)?;
            open[*key] = true;
        }
    }
    Aloud.tell("connected")?;
    let piece = vec![0; PIECE];
    while !stop.is_set() {
        let sent = flows.each(|net, stream| net.write(stream, &piece, false));
        // Whoever has read enough resets what it has not.
        if sent.and_then(|_| flows.wait(|ready| ready.write)).is_err() {
            break;
        }
    }
    Ok(())
}

fn receive(args: &ReceiveArgs, stop: &Stop) -> Result<(), Failure> {
    let window =
        Window { warm_up: Duration::from_secs_f64(args.warm_up), duration: Duration::from_secs_f64(args.duration) };
    let failed = |error: io::Error| Failure::told(format!("port {}: {}", args.port, words(&error)));
    let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), args.port);
    if args.kernel {
        if let Some(cores) = &args.device.cores {
            sys::pin(cores.0[0]);
        }
        let manner = Manner { plain: true, ..Manner::default() };
        let (listener, _) = kernel::listen(address, manner).map_err(failed)?;
        let net = Kernel::server(listener, manner).map_err(failed)?;
        return count(net, window, || None, stop);
    }
    let mut engine = Engine::start(&device::config(&args.device)?).map_err(Failure::told)?;
    let stats = engine.stats();
    let handle = engine.take_lane(0).ok_or_else(|| Failure::told("no lane: please report this"))?;
    let counted = handle.attach().and_then(OnLane::new).and_then(|mut net| net.listen(address).map(|()| net));
    let counted =
        counted.map_err(failed).and_then(|net| count(net, window, || stats.first().map(|lane| lane.rx_frames()), stop));
    engine.shutdown();
    counted
}

/// Reads all that comes and reports what came in the window, and in how many of `frames`.
fn count<N: Net>(net: N, window: Window, frames: impl Fn() -> Option<u64>, stop: &Stop) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::told(format!("a flow that should go on: {}", words(&error)));
    let mut flows = Flows::new(net);
    let mut buffer = vec![0; PIECE];
    let mut received = 0;
    let (mut first, mut begun) = (None, None);
    Aloud.tell("ready")?;
    loop {
        if stop.is_set() {
            return Err(super::super::rounds::interrupted());
        }
        flows.wait(|ready| ready.read).map_err(failed)?;
        received += flows.each(|net, stream| net.read(stream, &mut buffer)).map_err(failed)?;
        let now = Instant::now();
        match (first, begun) {
            (None, _) if received > 0 => first = Some(now),
            (Some(first), None) if now - first >= window.warm_up => {
                begun = Some((now, received, frames()));
                Aloud.tell("measuring")?;
            }
            (_, Some((at, before, then))) if now - at >= window.duration => {
                Aloud.tell("measured")?;
                let (seconds, bytes) = ((now - at).as_secs_f64(), received - before);
                let each = frames().zip(then).map(|(now, then)| bytes as f64 / (now - then).max(1) as f64);
                return say_json(&serde_json::json!({
                    "seconds": seconds, "bytes_per_s": bytes as f64 / seconds, "bytes_per_frame": each,
                    "flows": flows.streams.len(),
                }));
            }
            _ => {}
        }
    }
}

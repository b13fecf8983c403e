//! One stack with its interfaces, and the application's ends of its rings.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::VecDeque;

use mem::ring::{Consumer, Producer};
use mem::{Chain, Pool, PoolConfig, Side};
use protocol::{Event, Job};
use stack::{Counters, InterfaceConfig, InterfaceId, Mode, Route, Stack, StackConfig};
use wire::burst::TxCaps;
use wire::{Instant, MacAddr, ethernet, ipv4, ipv6};

use crate::burst::{Frames, Sink};
use crate::offload::join;

/// The ring into which a host's device receives.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// Frames that it holds; those that come when it is full are lost.
    pub slots: u32,
    /// Frames that the host works off in a second.
    pub rate: u64,
    /// Whether the stack hears how full it is.
    pub told: bool,
}

/// Connections that a turn pays a check for.
pub(crate) const CHECKED: usize = 16;
/// Frames taken from a ring in a turn.
const BURST: usize = 64;

/// An interface beside a host's first one. What is not said here is as with the first one.
#[derive(Clone)]
pub struct LinkConfig {
    /// Its addresses with prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Its hardware address.
    pub mac: MacAddr,
    /// Tag of its frames.
    pub vlan: Option<u16>,
}

/// What a host is made of.
#[derive(Clone)]
pub struct HostConfig {
    /// Its addresses with prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Its hardware address.
    pub mac: MacAddr,
    /// Its interface's MTU, bytes.
    pub mtu: u16,
    /// Who answers for its addresses.
    pub mode: Mode,
    /// How often it asks for an address before it has it.
    pub dad: u8,
    /// Whether it looks for routers.
    pub autoconf: bool,
    /// Tag of its frames.
    pub vlan: Option<u16>,
    /// Its interfaces but the first.
    pub links: Vec<LinkConfig>,
    /// Where to send, beside the routes that come with addresses. The interface is a number: 0 is the first, then `links`.
    pub routes: Vec<Route>,
    /// Its stack.
    pub stack: StackConfig,
    /// Chunks in its pool.
    pub chunks: u32,
    /// Jobs that wait for its next turn at most; a power of two.
    pub jobs: usize,
    /// Frames that its port takes in one turn.
    pub tx_room: usize,
    /// Its port finishes checksums and cuts large frames into segments.
    pub gso: bool,
    /// Frames that its port cuts, and those that go behind them, wait a turn in a queue past which the others go.
    pub queue: bool,
    /// Its port puts segments together (GRO).
    pub gro: bool,
    /// Where frames wait until it has time for them; without one it takes all at once.
    pub ring: Option<Ring>,
}

impl HostConfig {
    /// Host `n` of a small network: 10.0.0.n and fd00::n.
    pub fn new(n: u8) -> HostConfig {
        // Every other host parks connections whenever nothing is under way.
        let park_after = Duration::from_secs(if n % 2 == 1 { 0 } else { 1 });
        let stack = StackConfig { secret: [n; 16], max_connections: 65_536, park_after, ..StackConfig::default() };
        HostConfig {
            addresses: vec![
                (IpAddr::from([10, 0, 0, n]), 24),
                (IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, n as u16]), 64),
            ],
            mac: MacAddr([2, 0, 0, 0, 0, n]),
            mtu: 1500,
            mode: Mode::Dedicated,
            dad: 0,
            autoconf: false,
            vlan: None,
            links: Vec::new(),
            routes: Vec::new(),
            stack,
            chunks: 1 << 14,
            jobs: 1 << 16,
            tx_room: 256,
            gso: false,
            queue: false,
            gro: false,
            ring: None,
        }
    }
}

/// An interface's device.
struct Device {
    interface: InterfaceId,
    caps: TxCaps,
    /// Frames that it takes in one turn.
    room: usize,
    /// What waits in the queue of cut frames.
    queued: Vec<Vec<u8>>,
}

/// One stack with its interfaces, and the application's ends of its rings.
pub struct Host {
    /// The stack.
    pub stack: Stack,
    /// The application's side of the pool.
    pub side: Side,
    jobs: Producer,
    events: Consumer,
    /// The second half of the event given last.
    rest: Option<Event>,
    devices: Vec<Device>,
    ring: VecDeque<Vec<u8>>,
    /// When it is through with the frames that it took last.
    free_at: Instant,
    /// Frames that its ring had no room for.
    pub overflows: u64,
    /// What it was made of.
    pub config: HostConfig,
}

impl Host {
    /// A host with the interfaces that the configuration names.
    pub fn new(mut config: HostConfig) -> Host {
        config.stack = config.stack.clamped();
        let pool = PoolConfig { chunks: config.chunks, ..PoolConfig::default() };
        let (stack_side, side) = Pool::new(&pool).expect("memory for the pool");
        let (jobs, stack_jobs) = mem::ring::ring(config.jobs).expect("memory for jobs");
        let (stack_events, events) = mem::ring::ring(4096).expect("memory for events");
        let mut stack = Stack::new(config.stack.clone(), stack_side, stack_jobs, stack_events);
        let max_gso = if config.gso { 65_535 } else { 0 };
        let caps = TxCaps { max_frame: config.mtu as usize + 18, checksum: config.gso, max_gso };
        let first = LinkConfig { addresses: config.addresses.clone(), mac: config.mac, vlan: config.vlan };
        let mut devices = Vec::new();
        for (n, link) in core::iter::once(&first).chain(&config.links).enumerate() {
            let interface = stack.add_interface(InterfaceConfig {
                name: format!("sim{n}"),
                mac: link.mac,
                mtu: config.mtu,
                vlan: link.vlan,
                mode: config.mode,
                caps,
                dad: config.dad,
                autoconf: config.autoconf,
            });
            for (addr, prefix) in &link.addresses {
                stack.add_address(interface, *addr, *prefix);
            }
            devices.push(Device { interface, caps, room: config.tx_room, queued: Vec::new() });
        }
        config.routes.iter().for_each(|route| assert!(stack.add_route(*route), "{route:?}"));
        let (ring, free_at) = (VecDeque::new(), Instant::ZERO);
        Host { stack, side, jobs, events, rest: None, devices, ring, free_at, overflows: 0, config }
    }

    /// Its first interface.
    pub fn interface(&self) -> InterfaceId {
        self.devices[0].interface
    }

    /// How many interfaces it has.
    pub fn interfaces(&self) -> usize {
        self.devices.len()
    }

    /// Its interface `n` takes so many frames in a turn from now on.
    pub fn set_room(&mut self, n: usize, room: usize) {
        self.devices[n].room = room;
    }

    /// Hands a job over; the next turn does it.
    pub fn job(&mut self, job: Job) {
        assert!(self.jobs.push(job.into_message()).is_ok(), "the job ring is full");
        self.jobs.publish();
    }

    /// Leaves a job behind, as who may not come back soon: the stack does it when it has waited long enough.
    pub fn leave(&mut self, job: Job) {
        assert!(self.jobs.push(job.into_message()).is_ok(), "the job ring is full");
        self.jobs.offer();
    }

    /// The next event.
    pub fn event(&mut self) -> Option<Event> {
        if let Some(rest) = self.rest.take() {
            return Some(rest);
        }
        let message = self.events.pop()?;
        let Ok(event) = Event::from_message(message) else { panic!("an event that does not decode") };
        // Those that say two things are taken apart, so that each is met by itself.
        let (first, rest) = match event {
            Event::Accepted { listener, conn, local, remote, chain } => {
                let rest = (!chain.is_empty()).then_some(Event::Data { conn, chain, fin: false });
                (Event::Accepted { listener, conn, local, remote, chain: Chain::default() }, rest)
            }
            Event::Data { conn, chain, fin } => {
                (Event::Data { conn, chain, fin: false }, fin.then_some(Event::Fin { conn }))
            }
            other => (other, None),
        };
        self.rest = rest;
        Some(first)
    }

    /// Whether only time, or a frame, brings anything about: no job, no event and nothing to send waits.
    pub fn is_quiet(&self) -> bool {
        let events = self.rest.is_some() || !self.events.is_empty();
        let queued = self.ring.len() + self.devices.iter().map(|d| d.queued.len()).sum::<usize>();
        !events && queued == 0 && !self.stack.has_jobs() && !self.stack.output_pending()
    }

    /// Chunks that nobody owns up to.
    pub fn leaked(&mut self) -> u32 {
        self.side.outstanding(self.stack.pool_mut())
    }

    /// When it takes frames that wait in its ring.
    pub fn takes_at(&self) -> Option<Instant> {
        (!self.ring.is_empty()).then_some(self.free_at)
    }

    /// What it takes now, of what came before and of `frames`.
    fn take(&mut self, now: Instant, frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let Some(ring) = self.config.ring else { return frames };
        for frame in frames {
            match self.ring.len() < ring.slots as usize {
                true => self.ring.push_back(frame),
                false => self.overflows += 1,
            }
        }
        if now < self.free_at || self.ring.is_empty() {
            return Vec::new();
        }
        let taken: Vec<_> = self.ring.drain(..self.ring.len().min(BURST)).collect();
        self.free_at = now.plus_micros(taken.len() as u64 * 1_000_000 / ring.rate);
        if ring.told {
            self.stack.note_backlog(now, taken.len(), (self.ring.len() as u32, ring.slots));
        }
        taken
    }

    /// One turn: frames in and frames out by the first interface.
    pub fn turn(&mut self, now: Instant, frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        self.turn_all(now, vec![frames]).swap_remove(0)
    }

    /// One turn: frames in and frames out, by interface. What is not given for the last ones is nothing.
    pub fn turn_all(&mut self, now: Instant, frames: Vec<Vec<Vec<u8>>>) -> Vec<Vec<Vec<u8>>> {
        let before = self.stack.counters().clone();
        let mut seen = Seen::default();
        for (n, frames) in frames.into_iter().enumerate() {
            let frames = if n == 0 { self.take(now, frames) } else { frames };
            if !frames.is_empty() {
                let burst = if self.config.gro { Frames { frames: join(frames) } } else { Frames::plain(frames) };
                seen.bursts += 1;
                seen.came.0 += burst.frames.len() as u64;
                seen.came.1 += burst.frames.iter().map(|f| f.data.len() as u64).sum::<u64>();
                self.stack.receive(now, self.devices[n].interface, &burst);
            }
        }
        self.stack.expire(now);
        seen.jobs = self.stack.run_jobs(now) as u64;
        let mut sent = Vec::new();
        let pending = self.stack.output_pending();
        for device in &mut self.devices {
            let mut frames = core::mem::take(&mut device.queued);
            if pending {
                let mut sink = Sink::with(device.caps, device.room);
                sink.apart = self.config.queue;
                let went = self.stack.transmit(now, device.interface, &mut sink);
                assert_eq!(went as u64, sink.given.0, "frames that a port was given");
                seen.went = (seen.went.0 + sink.given.0, seen.went.1 + sink.given.1);
                seen.segments += sink.frames.iter().chain(&sink.large).filter(|f| is_tcp(f)).count() as u64;
                frames.append(&mut sink.frames);
                device.queued = sink.large;
            }
            sent.push(frames);
        }
        self.events.release();
        seen.events = self.stack.flush_events(now) as u64;
        seen.judge(&before, self.stack.counters());
        self.stack.check_in_turn(CHECKED);
        sent
    }
}

/// What a host has seen of one turn, for its stack's counters to be held against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    bursts: u64,
    /// Frames and bytes.
    came: (u64, u64),
    went: (u64, u64),
    /// Of TCP, as they are on the link.
    segments: u64,
    jobs: u64,
    events: u64,
}

impl Seen {
    fn judge(&self, before: &Counters, after: &Counters) {
        let [a, b] = [before, after].map(|c| Seen {
            bursts: c.bursts,
            came: (c.frames_in, c.bytes_in),
            went: (c.frames_out, c.bytes_out),
            segments: c.segments_out,
            jobs: c.jobs,
            events: c.events,
        });
        let counted = Seen {
            bursts: b.bursts - a.bursts,
            came: (b.came.0 - a.came.0, b.came.1 - a.came.1),
            went: (b.went.0 - a.went.0, b.went.1 - a.went.1),
            segments: b.segments - a.segments,
            jobs: b.jobs - a.jobs,
            events: b.events - a.events,
        };
        assert_eq!(counted, *self, "counted, and seen");
    }
}

fn is_tcp(frame: &[u8]) -> bool {
    let eth = ethernet::Frame::parse(frame).expect("what a stack sends is sound");
    match eth.ethertype {
        ethernet::IPV4 => ipv4::Packet::parse(eth.payload).is_ok_and(|ip| ip.protocol == ipv4::TCP),
        ethernet::IPV6 => ipv6::Packet::parse(eth.payload).is_ok_and(|ip| ip.next_header == ipv6::TCP),
        _ => false,
    }
}

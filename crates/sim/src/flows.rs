//! Many bulk flows through one bottleneck: what each gets. For goodput and fairness, where the bytes do not matter.

use core::time::Duration;

use io::impair::{Impairment, Queue};
use mem::Chain;
use protocol::{ConnId, Endpoint, Event, Job, Token};
use tcp::congestion::Algorithm;
use wire::Addr;

use crate::host::{Host, HostConfig};
use crate::net::{Net, NetConfig};

const PORT: u16 = 80;
/// Bytes of one write.
const WRITE: usize = 64 * 1024;
const MOST_BUFFER: u32 = 64 * 1024 * 1024;

/// A link that everything passes; the way back is as long and never full.
#[derive(Clone, Copy, Debug)]
pub struct Bottleneck {
    /// Bits a second.
    pub rate: u64,
    /// Round-trip time when nothing waits.
    pub rtt: Duration,
    /// Loss of what passes towards the receiver, 0 to 1.
    pub loss: f64,
}

impl Bottleneck {
    /// Its queue: what fills the round trip, and at least 20 frames.
    pub fn queue(&self) -> usize {
        let product = self.rate as u128 / 8 * self.rtt.as_micros() / 1_000_000;
        (product as usize).max(20 * 1514)
    }

    /// What both directions suffer.
    pub fn paths(&self) -> [Impairment; 2] {
        let delay = self.rtt / 2;
        let there = Impairment {
            loss: self.loss,
            delay,
            rate: self.rate,
            queue: Queue::bytes(self.queue()),
            ..Impairment::default()
        };
        [there, Impairment { delay, ..Impairment::default() }]
    }
}

/// A number of flows from one host to another.
pub struct Flows {
    net: Net,
    senders: Vec<Sender>,
    /// By connection of the receiver: how much has arrived.
    received: Vec<u64>,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Default)]
struct Sender {
    conn: Option<ConnId>,
    window: u64,
    queued: u64,
}

impl Flows {
    /// Opens `count` flows, each a little after the one before, so that not all start at once.
    pub fn open(bottleneck: Bottleneck, congestion: Algorithm, count: u32, seed: u64) -> Flows {
        Flows::between(bottleneck, congestion, count, seed, |_, _| {})
    }

    /// The same, once `adapt` has seen to sender and receiver.
    pub fn between(
        bottleneck: Bottleneck,
        congestion: Algorithm,
        count: u32,
        seed: u64,
        adapt: impl FnOnce(&mut HostConfig, &mut HostConfig),
    ) -> Flows {
        let host = |n| {
            let mut h = HostConfig::new(n);
            h.chunks = 1 << 18;
            h.tx_room = 4096;
            h.stack.tcp.congestion = congestion;
            h.stack.tcp.receive_buffer_max = MOST_BUFFER;
            h.stack.tcp.send_buffer_max = MOST_BUFFER;
            h
        };
        let [a_to_b, b_to_a] = bottleneck.paths();
        let (mut a, mut b) = (host(1), host(2));
        adapt(&mut a, &mut b);
        let mut net = Net::new(NetConfig { a, b, a_to_b, b_to_a, seed });
        net.acquaint();
        net.b.job(Job::Listen {
            token: Token(u32::MAX),
            local: Endpoint { addr: Addr::UNSPECIFIED_V4, port: PORT },
            backlog: count,
            v6_only: false,
            reuse_port: false,
            receive_buffer: 0,
        });
        net.turn();
        let window = net.a.config.stack.tcp.send_buffer as u64;
        let senders = vec![Sender { window, ..Sender::default() }; count as usize];
        let mut flows = Flows { net, senders, received: vec![0; count as usize], bytes: vec![0; WRITE] };
        for i in 0..count {
            flows.net.a.job(Job::Connect {
                token: Token(i),
                local: Endpoint { addr: Addr::UNSPECIFIED_V4, port: 0 },
                remote: Endpoint { addr: Addr::from_v4([10, 0, 0, 2]), port: PORT },
                receive_buffer: 0,
            });
            flows.run(Duration::from_millis(1), u64::MAX);
        }
        flows
    }

    /// Lets `time` pass, or `most` bytes arrive; how long that took.
    pub fn run(&mut self, time: Duration, most: u64) -> Duration {
        let Flows { net, senders, received, bytes } = self;
        let (start, until) = (net.now, net.now + time);
        let enough = received.iter().sum::<u64>().saturating_add(most);
        net.run(until, |net| {
            while let Some(event) = net.a.event() {
                if let Some(s) = hear(senders, event) {
                    s.write(&mut net.a, bytes);
                }
            }
            while let Some(event) = net.b.event() {
                take(&mut net.b, received, event);
            }
            most < u64::MAX && received.iter().sum::<u64>() >= enough
        });
        net.now - start
    }

    /// Frames that the receiver's ring had no room for.
    pub fn overflows(&self) -> u64 {
        self.net.b.overflows
    }

    /// Bytes that each flow has delivered so far.
    pub fn received(&self) -> &[u64] {
        &self.received
    }
}

/// Takes an event; the sender that may write now.
fn hear(senders: &mut [Sender], event: Event) -> Option<&mut Sender> {
    match event {
        Event::Opened { token, conn, .. } => {
            senders[token.0 as usize].conn = Some(conn);
            None
        }
        Event::Connected { conn } => Some(find(senders, conn)),
        Event::Acked { conn, bytes } => {
            let s = find(senders, conn);
            s.queued -= bytes as u64;
            Some(s)
        }
        Event::Room { conn, bytes } => {
            let s = find(senders, conn);
            s.window = bytes as u64;
            Some(s)
        }
        Event::Failed { failure, .. } | Event::Refused { failure, .. } => panic!("a flow ended: {failure:?}"),
        _ => None,
    }
}

/// Connections are numbered as they are opened, mostly.
fn find(senders: &mut [Sender], conn: ConnId) -> &mut Sender {
    let at = match senders.get(conn.0 as usize) {
        Some(s) if s.conn == Some(conn) => conn.0 as usize,
        _ => senders.iter().position(|s| s.conn == Some(conn)).expect("a connection that was opened"),
    };
    &mut senders[at]
}

fn take(host: &mut Host, received: &mut [u64], event: Event) {
    match event {
        Event::Accepted { listener, .. } => host.job(Job::Taken { listener, count: 1 }),
        Event::Data { conn, chain, .. } => {
            let bytes = chain.len() as u32;
            received[conn.0 as usize] += bytes as u64;
            chain.free(&mut host.side);
            host.job(Job::Consumed { conn, bytes });
        }
        _ => {}
    }
}

impl Sender {
    fn write(&mut self, host: &mut Host, bytes: &[u8]) {
        let Some(conn) = self.conn else { return };
        // Whole writes, as an application that waits for room makes them.
        while self.queued + (bytes.len() as u64) <= self.window {
            let mut chain = Chain::default();
            let took = chain.push_slice(&mut host.side, bytes);
            assert_eq!(took, bytes.len(), "the pool is dry");
            self.queued += took as u64;
            host.job(Job::Write { conn, chain, more: false, close: false });
        }
    }
}

/// Jain's index of shares: 1 where all are equal, 1/n where one has all.
pub fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|x| *x as f64).sum();
    let squares: f64 = shares.iter().map(|x| (*x as f64).powi(2)).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

/// Goodput in Mbit/s of one flow that lasts `time`, or until `most` bytes are over.
pub fn goodput(bottleneck: Bottleneck, congestion: Algorithm, time: Duration, most: u64, seed: u64) -> f64 {
    let mut flows = Flows::open(bottleneck, congestion, 1, seed);
    let took = flows.run(time, most);
    flows.received()[0] as f64 * 8.0 / took.as_micros() as f64
}

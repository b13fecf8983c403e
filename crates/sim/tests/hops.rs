//! Connections that wait for the hardware address of their next hop: each waits for its own hop, whatever was there before it
//! under the same number.
//!
//! `CORELANE_SEED=S` replays a run of the random test, `CORELANE_SEEDS=N` makes N.

mod common;
use common::*;
use core::time::Duration;
use std::collections::HashMap;
use std::net::IpAddr;
use std::panic::{catch_unwind, resume_unwind};

use io::impair::Random;
use sim::{Host, HostConfig, LinkConfig};
use stack::channel::{CloseMode, ConnId, Endpoint, Event, Failure, Job, Token};
use stack::{InterfaceId, Route};
use wire::{Addr, Instant, MacAddr, arp, ethernet, ipv4};

/// An ARP reply that says where `ip` is, for the host that asked.
fn arp_reply(ours: (MacAddr, Addr), theirs: (MacAddr, Addr), vlan: Option<u16>) -> Vec<u8> {
    let mut frame = vec![0; 64];
    let at = ethernet::emit(&mut frame, ours.0, theirs.0, vlan, ethernet::ARP);
    let (sender_ip, target_ip) = (theirs.1.v4_octets(), ours.1.v4_octets());
    let packet = arp::Packet { op: arp::Op::Reply, sender_mac: theirs.0, sender_ip, target_mac: ours.0, target_ip };
    packet.emit(&mut frame[at..]);
    frame
}

#[test]
fn a_connection_does_not_wait_for_the_hop_of_the_one_before_it() {
    let mut b = Bench::new(|_| {});
    let to = |n: u8| Endpoint { addr: Addr::from_v4([10, 0, 0, n]), port: 80 };
    let local = Endpoint { addr: Addr::UNSPECIFIED_V4, port: 0 };
    // Nobody has 10.0.0.77.
    b.job(Job::Connect { token: Token(7), local, remote: to(77), receive_buffer: 0 });
    let dead = b.opened.take().unwrap();
    b.job(Job::Close { conn: dead, mode: CloseMode::Graceful });
    assert_eq!(b.host.stack.connections(), 0);
    b.failed = None;
    // 10.0.0.50 is there, and answers the question for it at once.
    b.job(Job::Connect { token: Token(8), local, remote: to(50), receive_buffer: 0 });
    assert_eq!(b.opened.take(), Some(dead), "the number is used again");
    let reply = arp_reply((b.host.config.mac, ours()), (PEER_MAC, to(50).addr), None);
    let syns = b.turn(vec![reply]);
    assert_eq!(syns.iter().map(|s| (s.to, s.flags)).collect::<Vec<_>>(), [(to(50).addr, SYN)]);
    // The silence of the first hop says nothing about the second.
    b.wait(Duration::from_secs(6));
    assert_eq!(b.failed, None);
}

#[test]
fn a_connection_does_not_wait_for_a_hop_that_routes_have_left() {
    let mut b = Bench::new(|_| {});
    let interface = b.host.interface();
    let gateway = |n: u8| Route {
        dst: [0, 0, 0, 0].into(),
        prefix: 0,
        gateway: Some([10, 0, 0, n].into()),
        interface,
        metric: 0,
    };
    b.host.stack.add_route(gateway(77));
    let local = Endpoint { addr: Addr::UNSPECIFIED_V4, port: 0 };
    let remote = Endpoint { addr: Addr::from_v4([203, 0, 113, 5]), port: 80 };
    let sent = b.job(Job::Connect { token: Token(7), local, remote, receive_buffer: 0 });
    assert!(sent.is_empty(), "the router does not answer: {sent:?}");
    // The way is by another router now, whose hardware address is known: the SYN leaves at once.
    b.host.stack.remove_route(&gateway(77));
    b.host.stack.add_route(gateway(2));
    assert_eq!(b.host.stack.next_deadline(), Some(Instant::ZERO));
    assert_eq!(b.turn(Vec::new()).len(), 1);
    b.wait(Duration::from_millis(3500));
    assert_eq!(b.failed, None);
}

#[test]
fn what_connections_leave_in_queues_does_not_pile_up() {
    // The port takes no frames, and the hop does not answer: nobody looks at the queues while connections come and go. The
    // check after each turn counts the entries.
    let mut b = Bench::new(|c| c.tx_room = 0);
    let local = Endpoint { addr: Addr::UNSPECIFIED_V4, port: 0 };
    for n in 0..2000 {
        let known = n % 2 == 0;
        let remote = Endpoint { addr: Addr::from_v4([10, 0, 0, if known { 2 } else { 77 }]), port: 80 };
        b.job(Job::Connect { token: Token(7), local, remote, receive_buffer: 0 });
        let conn = b.opened.take().unwrap();
        b.job(Job::Close { conn, mode: CloseMode::Graceful });
    }
    assert_eq!(b.host.stack.connections(), 0);
}

/// Neighbours on the two links, and who of them is reached through which.
const NEAR: usize = 8;
/// Tag of the second link's frames.
const VLAN: u16 = 7;

struct Hop {
    addr: Addr,
    mac: MacAddr,
    link: usize,
    /// How long it thinks about a question; `None` where nobody is there.
    delay: Option<Duration>,
    answers_at: Option<Instant>,
    /// Its answer has arrived.
    known: bool,
}

struct Open {
    conn: Option<ConnId>,
    to: Addr,
    port: u16,
    syn: bool,
    failed: Option<Failure>,
    closed: bool,
}

struct World {
    host: Host,
    now: Instant,
    hops: Vec<Hop>,
    opens: Vec<Open>,
    /// Which of the first link's neighbours is the router to everybody else.
    router: usize,
}

fn far() -> Addr {
    Addr::from_v4([203, 0, 113, 5])
}

fn default_route(router: &Hop) -> Route {
    let interface = InterfaceId(router.link as u8);
    Route { dst: [0, 0, 0, 0].into(), prefix: 0, gateway: Some(router.addr.to_ip()), interface, metric: 0 }
}

impl World {
    fn new(r: &mut Random) -> World {
        let mut config = HostConfig::new(1);
        config.addresses = vec![(IpAddr::from([10, 0, 0, 1]), 24)];
        let mac = MacAddr([2, 0, 0, 0, 7, 1]);
        config.links = vec![LinkConfig { addresses: vec![([10, 0, 7, 1].into(), 24)], mac, vlan: Some(VLAN) }];
        config.stack.max_connections = 8;
        let host = Host::new(config);
        let hops = (0..NEAR).map(|n| {
            let link = n % 2;
            let delay = (n < 2 || r.chance(0.6)).then(|| Duration::from_millis(r.pick(&[0, 300, 900, 1700])));
            let addr = Addr::from_v4([10, 0, 7 * link as u8, 100 + n as u8]);
            Hop { addr, mac: MacAddr([2, 0, 0, 0, 8, n as u8]), link, delay, answers_at: None, known: false }
        });
        let mut w =
            World { host, now: Instant::from_micros(1_000_000), hops: hops.collect(), opens: Vec::new(), router: 0 };
        w.host.stack.add_route(default_route(&w.hops[0]));
        w
    }

    fn hop_of(&self, to: Addr) -> usize {
        if to == far() { self.router } else { self.hops.iter().position(|h| h.addr == to).unwrap() }
    }

    fn ends(&self, link: usize) -> (MacAddr, Addr, Option<u16>) {
        let second = &self.host.config.links[0];
        match link {
            0 => (self.host.config.mac, self.host.config.addresses[0].0.into(), None),
            _ => (second.mac, second.addresses[0].0.into(), second.vlan),
        }
    }

    /// A turn with the answers that are due, and another, so that what was asked for leaves.
    fn turn(&mut self) {
        let mut frames = vec![Vec::new(), Vec::new()];
        for n in 0..self.hops.len() {
            let hop = &mut self.hops[n];
            if hop.answers_at.take_if(|at| *at <= self.now).is_some() {
                hop.known = true;
                let (link, theirs) = (hop.link, (hop.mac, hop.addr));
                let (mac, addr, vlan) = self.ends(link);
                frames[link].push(arp_reply((mac, addr), theirs, vlan));
            }
        }
        for frames in [frames, Vec::new()] {
            let sent = self.host.turn_all(self.now, frames);
            while let Some(event) = self.host.event() {
                self.hear(event);
            }
            for (link, frames) in sent.iter().enumerate() {
                frames.iter().for_each(|frame| self.look(link, frame));
            }
        }
        self.judge();
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Opened { token, conn, local } => {
                let open = &mut self.opens[token.0 as usize];
                (open.conn, open.port) = (Some(conn), local.port);
            }
            Event::Refused { token, failure } => {
                assert_eq!(failure, Failure::NoBuffers);
                self.opens[token.0 as usize].closed = true;
            }
            Event::Failed { conn, failure } => {
                let open = self.opens.iter_mut().find(|o| o.conn == Some(conn) && !o.closed).expect("it is open");
                open.failed = Some(failure);
            }
            other => panic!("{other:?}"),
        }
    }

    /// A frame that the host sent: it leaves by its own link, for its own hop.
    fn look(&mut self, link: usize, frame: &[u8]) {
        let eth = ethernet::Frame::parse(frame).unwrap();
        let (mac, addr, vlan) = self.ends(link);
        assert_eq!((eth.src, eth.vlan.map(|v| v.id)), (mac, vlan));
        if eth.ethertype == ethernet::ARP {
            let question = arp::Packet::parse(eth.payload).unwrap();
            let target = Addr::from_v4(question.target_ip);
            let asked =
                self.hops.iter_mut().find(|h| h.addr == target).expect("a hop is asked for, not the remote end");
            assert_eq!(asked.link, link);
            // Of several questions the first is answered.
            asked.answers_at = asked.answers_at.or(asked.delay.map(|delay| self.now + delay));
            return;
        }
        let ip = ipv4::Packet::parse(eth.payload).unwrap();
        let hop = self.hop_of(ip.dst);
        assert_eq!((ip.src, eth.dst, link), (addr, self.hops[hop].mac, self.hops[hop].link), "to {:?}", ip.dst);
        let port = u16::from_be_bytes([ip.payload[0], ip.payload[1]]);
        let open = self.opens.iter_mut().find(|o| o.port == port && o.to == ip.dst && !o.closed);
        open.expect("a closed connection sends nothing more").syn = true;
    }

    /// Nobody waits for another's hop, nor is refused by its silence.
    fn judge(&self) {
        for open in self.opens.iter().filter(|o| !o.closed) {
            let hop = &self.hops[self.hop_of(open.to)];
            assert!(!hop.known || open.syn || open.failed.is_some(), "{:?} waits for a hop that has answered", open.to);
            // The router may have been a dead one before.
            assert!(open.failed.is_none() || hop.delay.is_none() || open.to == far(), "{:?} is refused", open.to);
        }
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            let answers = self.hops.iter().filter_map(|h| h.answers_at);
            let next = self.host.stack.next_deadline().into_iter().chain(answers).min().unwrap_or(end);
            self.now = next.max(self.now.plus_micros(1)).min(end);
            self.turn();
        }
    }
}

fn run(seed: u64) {
    let mut r = Random::new(seed ^ 0x40b5);
    let mut w = World::new(&mut r);
    let mut numbers: HashMap<ConnId, usize> = HashMap::new();
    for _ in 0..60 {
        match r.below(10) {
            0..=3 => {
                let near = r.below(NEAR as u64) as usize;
                let to = if r.chance(0.2) { far() } else { w.hops[near].addr };
                w.opens.push(Open { conn: None, to, port: 0, syn: false, failed: None, closed: false });
                let local = Endpoint { addr: Addr::UNSPECIFIED_V4, port: 0 };
                let token = Token(w.opens.len() as u32 - 1);
                let remote = Endpoint { addr: to, port: 80 };
                w.host.job(Job::Connect { token, local, remote, receive_buffer: 0 });
            }
            4..=6 => {
                let live: Vec<usize> =
                    (0..w.opens.len()).filter(|n| w.opens[*n].conn.is_some() && !w.opens[*n].closed).collect();
                if !live.is_empty() {
                    let open = &mut w.opens[live[r.below(live.len() as u64) as usize]];
                    open.closed = true;
                    let conn = open.conn.unwrap();
                    *numbers.entry(conn).or_default() += 1;
                    w.host.job(Job::Close { conn, mode: CloseMode::Graceful });
                }
            }
            7 => {
                w.host.stack.remove_route(&default_route(&w.hops[w.router]));
                // Of the first link: a connection stays on its interface.
                w.router = 2 * r.below(NEAR as u64 / 2) as usize;
                w.host.stack.add_route(default_route(&w.hops[w.router]));
            }
            _ => {
                let ms = r.pick(&[1, 200, 700, 1500]);
                w.wait(Duration::from_millis(ms));
            }
        }
        if r.chance(0.7) {
            w.turn();
        }
    }
    w.wait(Duration::from_secs(8));
    for open in w.opens.iter().filter(|o| !o.closed) {
        let dead = w.hops[w.hop_of(open.to)].delay.is_none();
        assert!(dead || open.syn || open.to == far(), "no SYN to {:?}", open.to);
        assert!(!dead || open.failed == Some(Failure::HostUnreachable) || open.syn, "{:?} waits for ever", open.to);
    }
    assert!(numbers.len() <= 8);
}

#[test]
fn nobody_waits_for_the_hop_of_another() {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    if let Some(seed) = number("CORELANE_SEED") {
        return run(seed);
    }
    for seed in 0..number("CORELANE_SEEDS").unwrap_or(400) {
        if let Err(cause) = catch_unwind(|| run(seed)) {
            eprintln!("replay with: CORELANE_SEED={seed} cargo test -p sim --test hops");
            resume_unwind(cause);
        }
    }
}

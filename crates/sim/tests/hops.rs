//! Connections that wait for the hardware address of their next hop: each waits for its own hop, whatever was there before it
//! under the same number.
//!
//! `CORELANE_SEED=S` replays a run of the random test, `CORELANE_SEEDS=N` makes N.

mod common;
use common::*;
use core::time::Duration;
use std::collections::HashMap;

use common::families::{Family, Packet, Resolution, answer};
use io::impair::Random;
use protocol::{CloseMode, ConnId, Endpoint, Event, Failure, Job, Token};
use sim::{Host, HostConfig, LinkConfig};
use stack::{InterfaceId, Route};
use wire::{Addr, Instant, MacAddr, ethernet};

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
    let reply = answer((b.host.config.mac, ours()), (PEER_MAC, to(50).addr), None);
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
    link: usize,
    to: Addr,
    port: u16,
    syn: bool,
    failed: Option<Failure>,
    closed: bool,
}

struct World {
    family: Family,
    host: Host,
    now: Instant,
    hops: Vec<Hop>,
    opens: Vec<Open>,
    /// Which of the first link's neighbours is the router to everybody else.
    router: usize,
}

/// The address `last` of a link. Link-local ones are the same on both.
fn on(family: Family, link: usize, last: u8) -> Addr {
    let net = 7 * link as u8;
    match family {
        Family::V4 => Addr::from_v4([10, 0, net, last]),
        Family::V6 => Addr::from_words([0x2001_0db8 << 32 | net as u64, last as u64]),
        Family::Local => Addr::from_words([0xfe80 << 48, last as u64]),
    }
}

/// The host's own, by which it chooses a link.
fn own(family: Family, link: usize) -> Addr {
    on(family, link, 1 + link as u8)
}

/// Somebody beyond the links, of IPv6 where their addresses are.
fn far(family: Family) -> Addr {
    match family {
        Family::V4 => Addr::from_v4([203, 0, 113, 5]),
        _ => Addr::from_words([0x2001_0db8_0113 << 16, 5]),
    }
}

fn default_route(router: &Hop) -> Route {
    let interface = InterfaceId(router.link as u8);
    let dst = if router.addr.is_v4() { Addr::UNSPECIFIED_V4 } else { Addr::UNSPECIFIED_V6 };
    Route { dst: dst.to_ip(), prefix: 0, gateway: Some(router.addr.to_ip()), interface, metric: 0 }
}

impl World {
    fn new(r: &mut Random) -> World {
        let family = Family::draw(r);
        let mut config = HostConfig::new(1);
        let families = [Family::V4, Family::V6, Family::Local];
        let addresses = |link| families.map(|f| (own(f, link).to_ip(), f.prefix())).to_vec();
        config.addresses = addresses(0);
        let mac = MacAddr([2, 0, 0, 0, 7, 1]);
        config.links = vec![LinkConfig { addresses: addresses(1), mac, vlan: Some(VLAN) }];
        config.stack.max_connections = 8;
        let host = Host::new(config);
        let hops = (0..NEAR).map(|n| {
            let link = n % 2;
            let delay = (n < 2 || r.chance(0.6)).then(|| Duration::from_millis(r.pick(&[0, 300, 900, 1700])));
            // Twins on the two links, where addresses are the links' own.
            let last = if family == Family::Local { n / 2 } else { n };
            let addr = on(family, link, 100 + last as u8);
            Hop { addr, mac: MacAddr([2, 0, 0, 0, 8, n as u8]), link, delay, answers_at: None, known: false }
        });
        let (now, hops) = (Instant::from_micros(1_000_000), hops.collect());
        let mut w = World { family, host, now, hops, opens: Vec::new(), router: 0 };
        w.host.stack.add_route(default_route(&w.hops[0]));
        w
    }

    fn hop_of(&self, link: usize, to: Addr) -> usize {
        let to_far = to == far(self.family);
        if to_far { self.router } else { self.hops.iter().position(|h| (h.link, h.addr) == (link, to)).unwrap() }
    }

    /// Of a link: our hardware address and the tag.
    fn end(&self, link: usize) -> (MacAddr, Option<u16>) {
        let second = &self.host.config.links[0];
        if link == 0 { (self.host.config.mac, None) } else { (second.mac, second.vlan) }
    }

    fn is_own(&self, link: usize, addr: Addr) -> bool {
        [self.family, Family::V6].iter().any(|f| own(*f, link) == addr)
    }

    /// A turn with the answers that are due, and another, so that what was asked for leaves.
    fn turn(&mut self) {
        let mut frames = vec![Vec::new(), Vec::new()];
        for n in 0..self.hops.len() {
            let hop = &mut self.hops[n];
            if hop.answers_at.take_if(|at| *at <= self.now).is_some() {
                hop.known = true;
                let (link, theirs) = (hop.link, (hop.mac, hop.addr));
                let (mac, vlan) = self.end(link);
                frames[link].push(answer((mac, own(self.family, link)), theirs, vlan));
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
        let (mac, vlan) = self.end(link);
        assert_eq!((eth.src, eth.vlan.map(|v| v.id)), (mac, vlan));
        if let Some(Resolution { source, target, .. }) = Resolution::of(&eth) {
            assert!(self.is_own(link, source), "{source:?} asks on link {link}");
            let asked = self.hops.iter_mut().find(|h| (h.link, h.addr) == (link, target));
            let asked = asked.expect("a hop of this link is asked for, not the remote end");
            // Of several questions the first is answered.
            asked.answers_at = asked.answers_at.or(asked.delay.map(|delay| self.now + delay));
            return;
        }
        let ip = Packet::of(&eth);
        assert!(self.is_own(link, ip.src), "a packet of another link: {:?}", ip.src);
        let hop = self.hop_of(link, ip.dst);
        assert_eq!((eth.dst, link), (self.hops[hop].mac, self.hops[hop].link), "to {:?}", ip.dst);
        let port = u16::from_be_bytes([ip.payload[0], ip.payload[1]]);
        let open = self.opens.iter_mut().find(|o| (o.port, o.link, o.to) == (port, link, ip.dst) && !o.closed);
        open.expect("a closed connection sends nothing more").syn = true;
    }

    /// Nobody waits for another's hop, nor is refused by its silence.
    fn judge(&self) {
        for open in self.opens.iter().filter(|o| !o.closed) {
            let hop = &self.hops[self.hop_of(open.link, open.to)];
            let far = far(self.family);
            assert!(!hop.known || open.syn || open.failed.is_some(), "{:?} waits for a hop that has answered", open.to);
            // The router may have been a dead one before.
            assert!(open.failed.is_none() || hop.delay.is_none() || open.to == far, "{:?} is refused", open.to);
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
                let (link, to) = (w.hops[near].link, w.hops[near].addr);
                let (link, to) = if r.chance(0.2) { (0, far(w.family)) } else { (link, to) };
                w.opens.push(Open { conn: None, link, to, port: 0, syn: false, failed: None, closed: false });
                // The best way to a link-local address need not be the one that is meant.
                let chosen = to.is_link_local() || to != far(w.family) && r.chance(0.3);
                let addr = if chosen { own(w.family, link) } else { Addr::UNSPECIFIED_V6 };
                let local = Endpoint { addr, port: 0 };
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
    // What was asked for last begins now.
    w.turn();
    w.wait(Duration::from_secs(8));
    for open in w.opens.iter().filter(|o| !o.closed) {
        let dead = w.hops[w.hop_of(open.link, open.to)].delay.is_none();
        assert!(dead || open.syn || open.to == far(w.family), "no SYN to {:?}", open.to);
        assert!(!dead || open.failed == Some(Failure::HostUnreachable) || open.syn, "{:?} waits for ever", open.to);
    }
    assert!(numbers.len() <= 8);
}

#[test]
fn nobody_waits_for_the_hop_of_another() {
    testing::seeds("sim --test hops", 400, testing::cores(), run);
}

//! A host with three links on one wire, in a small world: neighbours on each link, two uplinks to far hosts, a twin of the first
//! link with the same addresses, neighbours that are not there, frames of other networks, ports that take no frames for a while,
//! routes that come and go, and paths of several MTUs, which become narrower or wider. Whatever happens every stream arrives whole,
//! every frame leaves by its own link for its own next hop, as long as its path takes and no shorter, and the stack agrees with
//! itself after each turn.
//!
//! `CORELANE_SEEDS=N` runs N seeds, `CORELANE_SEED=S` replays one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::panic::{catch_unwind, resume_unwind};

use io::impair::Random;
use sim::{Echo, Host, HostConfig, LinkConfig, Outcome, Sender};
use stack::channel::{CloseMode, ConnId, Endpoint, Event, Failure, Job, Token};
use stack::{InterfaceId, Route};
use wire::tcp::{Flags, Segment};
use wire::{Addr, Instant, MacAddr, SeqNum, arp, ethernet, icmpv4, ipv4};

/// The host's address and the tag on each link. The third link has the first one's addresses.
const LINKS: [([u8; 4], Option<u16>); 3] = [([10, 0, 0, 1], None), ([10, 0, 7, 1], Some(7)), ([10, 0, 0, 1], Some(8))];
/// The one hardware address of all three.
const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// The router of a link, on each of its sides.
const ROUTER: MacAddr = MacAddr([2, 0, 0, 0, 0, 254]);
const FIRST_DECOY: u32 = 1 << 20;
const PORT: u16 = 80;
/// Flags of a reset for a segment with an ACK.
const RST: u8 = 4;
const MTU: u16 = 1500;
/// For so long at least a path's MTU is remembered, µs: nearly the ten minutes of RFC 1191 6.3.
const REMEMBERED: u64 = 590_000_000;
/// So much of a full packet SACK blocks may take.
const BLOCKS: u16 = 40;

/// The address `last` of link `link`.
fn on(link: usize, last: u8) -> Addr {
    let [a, b, c, _] = LINKS[link].0;
    Addr::from_v4([a, b, c, last])
}

/// Far host `n`.
fn far(n: u8) -> Addr {
    Addr::from_v4([203, 0, 113, 5 + n])
}

fn uplink(link: u8) -> Route {
    let (gateway, interface) = (Some(on(link as usize, 254).to_ip()), InterfaceId(link));
    Route { dst: [0, 0, 0, 0].into(), prefix: 0, gateway, interface, metric: 100 * link as u32 }
}

/// Who a peer is.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Near(usize),
    Far,
}

struct Peer {
    host: Host,
    place: Place,
    mac: MacAddr,
    addr: Addr,
    echo: Echo,
    senders: Vec<Sender>,
    inbox: Vec<Vec<u8>>,
}

impl Peer {
    fn new(n: u8, place: Place, addr: Addr, alike: Option<u8>) -> Peer {
        let mut config = HostConfig::new(alike.unwrap_or(n));
        config.mac = MacAddr([2, 0, 0, 0, 1, n]);
        config.addresses = vec![(addr.to_ip(), 24)];
        if alike.is_none() {
            // No two have one port, so that tuples are the same only where that is meant.
            config.stack.ports = wire::Ports::new(20_000 + 1000 * n as u16, 20_999 + 1000 * n as u16);
        }
        let gateway = match place {
            Place::Near(link) => on(link, 254),
            Place::Far => Addr::from_v4([203, 0, 113, 254]),
        };
        let (dst, gateway) = ([0, 0, 0, 0].into(), Some(gateway.to_ip()));
        config.routes = vec![Route { dst, prefix: 0, gateway, interface: InterfaceId(0), metric: 0 }];
        let mac = config.mac;
        let mut host = Host::new(config);
        let echo = Echo::start(&mut host, Endpoint { addr: Addr::UNSPECIFIED_V4, port: PORT });
        Peer { host, place, mac, addr, echo, senders: Vec::new(), inbox: Vec::new() }
    }
}

/// Where a frame is under way to.
#[derive(Clone, Copy)]
enum To {
    /// The host's wire, on which all its links are.
    Us,
    /// The same with news of a packet of ours that was too big for its path.
    Told(Tuple),
    Peer(usize),
}

/// A connection of ours: link, peer, our port, the peer's.
type Tuple = (usize, Addr, u16, u16);

/// The way from us to a peer by one link.
struct Way {
    /// What it takes.
    mtu: u16,
    /// What it took when it was narrowest.
    least: u16,
    /// When we last heard that it takes no more.
    told: Option<Instant>,
}

/// What a connection has sent.
struct Flow {
    iss: SeqNum,
    /// Bytes in order that left, lost ones too.
    bytes: u32,
    /// Its longest packet that was not too long.
    longest: u16,
    /// Since then nothing too long may come.
    told: bool,
}

struct World {
    r: Random,
    now: Instant,
    us: Host,
    echo: Echo,
    senders: Vec<Sender>,
    /// Connections to nobody: when each is closed, and by which number it is known.
    decoys: Vec<(Instant, Option<ConnId>)>,
    peers: Vec<Peer>,
    under_way: BTreeMap<(Instant, u64), (To, Vec<u8>)>,
    sent: u64,
    inbox: Vec<Vec<u8>>,
    /// Frames of other networks come by the wire; else the twin's tuples are the first link's.
    leaks: bool,
    loss: f64,
    ways: BTreeMap<(usize, Addr), Way>,
    flows: BTreeMap<Tuple, Flow>,
    /// Which of the uplinks there are.
    up: [bool; 2],
    /// A route was away: opens may have heard so.
    rerouted: bool,
}

impl World {
    fn new(seed: u64) -> World {
        let mut r = Random::new(seed ^ 0x11b6);
        let leaks = r.chance(0.5);
        let mut config = HostConfig::new(1);
        let link = |n: usize| (vec![(IpAddr::from(LINKS[n].0), 24)], LINKS[n].1);
        (config.addresses, config.mac) = (link(0).0, MAC);
        config.links = [1, 2].map(|n| LinkConfig { addresses: link(n).0, mac: MAC, vlan: link(n).1 }).to_vec();
        config.routes = vec![uplink(0), uplink(1)];
        config.stack.park_after = core::time::Duration::from_secs(r.below(2));
        config.stack.time_wait = core::time::Duration::from_secs(2);
        let mut us = Host::new(config);
        let echo = Echo::start(&mut us, Endpoint { addr: Addr::UNSPECIFIED_V4, port: PORT });
        // The twin's host is the first link's, to the last secret, where that one's frames do not leak.
        let twin = (!leaks).then_some(2);
        let peers = vec![
            Peer::new(2, Place::Near(0), on(0, 2), twin),
            Peer::new(3, Place::Near(1), on(1, 2), None),
            Peer::new(4, Place::Near(2), on(2, 2), twin),
            Peer::new(5, Place::Far, far(0), None),
            Peer::new(6, Place::Far, far(1), None),
        ];
        let loss = r.pick(&[0.0, 0.0, 0.02]);
        let mut way = |at| {
            let mtu = r.pick(&[MTU, MTU, 1400, 1000, 600]);
            (at, Way { mtu, least: mtu, told: None })
        };
        let near = (0..LINKS.len()).map(|link| (link, on(link, 2)));
        let far = [(0, far(0)), (0, far(1)), (1, far(0)), (1, far(1))];
        let ways = near.chain(far).map(&mut way).collect();
        World {
            r,
            now: Instant::from_micros(1_000_000),
            us,
            echo,
            senders: Vec::new(),
            decoys: Vec::new(),
            peers,
            under_way: BTreeMap::new(),
            sent: 0,
            inbox: Vec::new(),
            leaks,
            loss,
            ways,
            flows: BTreeMap::new(),
            up: [true; 2],
            rerouted: false,
        }
    }

    /// Something new in the world.
    fn stir(&mut self) {
        let total = self.r.below(20_000);
        let seed = self.r.below(1 << 20);
        match self.r.below(13) {
            0..=2 => {
                // We connect, where another's stillborn connections may have had the number.
                let to = self.r.pick(&[on(0, 2), on(1, 2), far(0), far(1)]);
                let token = self.senders.len() as u32;
                let remote = Endpoint { addr: to, port: PORT };
                self.senders.push(Sender::start(&mut self.us, token, remote, total, seed));
            }
            3..=6 => {
                let n = self.r.below(self.peers.len() as u64) as usize;
                let link = match self.peers[n].place {
                    Place::Near(link) => link,
                    Place::Far => self.r.below(2) as usize,
                };
                // Alike hosts connect at the same time, so that their ports and numbers are the same.
                let both = if [0, 2].contains(&n) && !self.leaks { vec![0, 2] } else { vec![n] };
                for n in both {
                    let peer = &mut self.peers[n];
                    let remote = Endpoint { addr: Addr::from_v4(LINKS[link].0), port: PORT };
                    let token = peer.senders.len() as u32;
                    // Each says something else.
                    peer.senders.push(Sender::start(&mut peer.host, token, remote, total, seed + n as u64));
                }
            }
            7..=9 => {
                let link = self.r.below(2) as usize;
                let token = Token(FIRST_DECOY + self.decoys.len() as u32);
                let local = Endpoint { addr: Addr::UNSPECIFIED_V4, port: 0 };
                let remote = Endpoint { addr: on(link, 77), port: PORT };
                self.us.job(Job::Connect { token, local, remote, receive_buffer: 0 });
                let life = self.r.pick(&[0, 1, 500_000, 5_000_000]);
                self.decoys.push((self.now.plus_micros(life), None));
            }
            10 => {
                // A port takes no frames, or does again.
                let (n, room) = (self.r.below(3) as usize, self.r.pick(&[0, 256]));
                self.us.set_room(n, room);
            }
            11 => {
                let (which, mtu) =
                    (self.r.below(self.ways.len() as u64) as usize, self.r.pick(&[MTU, 1400, 1000, 600]));
                let (at, way) = self.ways.iter_mut().nth(which).expect("there are as many");
                if mtu < way.mtu {
                    way.told = None;
                    self.flows.iter_mut().filter(|(t, _)| (t.0, t.1) == *at).for_each(|(_, flow)| flow.told = false);
                }
                (way.mtu, way.least) = (mtu, way.least.min(mtu));
            }
            _ => {
                let link = self.r.below(2) as usize;
                self.up[link] ^= true;
                self.rerouted |= !self.up[link];
                match self.up[link] {
                    true => self.us.stack.add_route(uplink(link as u8)),
                    false => assert!(self.us.stack.remove_route(&uplink(link as u8))),
                }
            }
        }
    }

    fn send(&mut self, to: To, frame: Vec<u8>) {
        let resolution = ethernet::Frame::parse(&frame).is_ok_and(|f| f.ethertype == ethernet::ARP);
        // Questions for hardware addresses are not lost: who is there is heard.
        if !resolution && self.r.chance(self.loss) {
            return;
        }
        let at = self.now.plus_micros(if resolution { 1000 } else { 1000 + self.r.below(3000) });
        self.sent += 1;
        self.under_way.insert((at, self.sent), (to, frame));
    }

    /// A packet that we sent by `link`: whether its way takes it. It must, once we were told what that takes; and a connection that
    /// sends enough sends full packets.
    fn fits(&mut self, link: usize, ip: &ipv4::Packet<'_>, bytes: &[u8]) -> bool {
        let segment = Segment::parse(ip.payload).unwrap();
        let tuple = (link, ip.dst, segment.src_port, segment.dst_port);
        let Some(way) = self.ways.get(&(link, ip.dst)) else { return true };
        let opens = segment.flags.contains(Flags::SYN);
        if opens && self.flows.get(&tuple).is_none_or(|flow| flow.iss != segment.seq) {
            let told = way.told.is_some_and(|at| self.now < at.plus_micros(REMEMBERED));
            let before = self.flows.insert(tuple, Flow { iss: segment.seq, bytes: 0, longest: 0, told });
            before.into_iter().for_each(|flow| flow.judge(tuple, way));
        }
        let Some(flow) = self.flows.get_mut(&tuple) else { return true };
        let (length, text) = (bytes.len() as u16, segment.payload.len() as u32);
        if length > way.mtu {
            let mtu = way.mtu;
            assert!(!flow.told, "{length} bytes on {tuple:?}, which is known to take {mtu}");
            let mut quote = [0; 8 + 28];
            icmpv4::emit_too_big(&mut quote, mtu, &bytes[..28]);
            let error = router_error(link, &quote);
            self.send(To::Told(tuple), error);
            return false;
        }
        if text > 0 {
            flow.bytes = flow.bytes.max(segment.seq.since(flow.iss) + text - 1);
            flow.longest = flow.longest.max(length);
        }
        if self.leaks && link != 1 && text > 0 && self.r.chance(0.05) {
            // The other of the two that are alike says so of a way of its own.
            let mut quote = [0; 8 + 28];
            icmpv4::emit_too_big(&mut quote, 576, &bytes[..28]);
            let error = retag(&router_error(link, &quote), LINKS[2 - link].1);
            self.send(To::Us, error);
        }
        true
    }

    /// A frame that we sent by `link`: with that one's tag and address, and to a next hop that is there.
    fn leave(&mut self, link: usize, frame: &[u8]) {
        let eth = ethernet::Frame::parse(frame).unwrap();
        let (ours, tag) = LINKS[link];
        assert_eq!((eth.src, eth.vlan.map(|v| (v.kind, v.id))), (MAC, tag.map(|id| (ethernet::Tag::Customer, id))));
        let untagged = retag(frame, None);
        if eth.ethertype == ethernet::ARP {
            let question = arp::Packet::parse(eth.payload).unwrap();
            let target = Addr::from_v4(question.target_ip);
            assert_eq!(question.sender_ip, ours, "the question is of another link");
            assert_eq!(target.v4_octets()[..3], ours[..3], "{target:?} is not on link {link}");
            if target == on(link, 254) && question.op == arp::Op::Request {
                let answer = router_says(target, MAC, ours);
                self.send(To::Us, retag(&answer, tag));
            }
        } else {
            let ip = ipv4::Packet::parse(eth.payload).unwrap();
            assert_eq!(ip.src, Addr::from_v4(ours), "a packet of another link");
            let bytes = &eth.payload[..20 + ip.payload.len()];
            if !self.fits(link, &ip, bytes) {
                return;
            }
            if eth.dst == ROUTER {
                if link == 2 {
                    // The twin has no router: this is a reset for a stranger's frame.
                    return assert!(self.leaks && ip.payload[13] == RST, "the twin has no router");
                }
                let n = self.peers.iter().position(|p| p.addr == ip.dst && p.place == Place::Far);
                let n = n.expect("a near host is not reached by the router");
                let to = self.peers[n].mac;
                return self.send(To::Peer(n), rewrite(&untagged, to, ROUTER));
            }
        }
        for n in (0..self.peers.len()).filter(|n| self.peers[*n].place == Place::Near(link)).collect::<Vec<_>>() {
            self.send(To::Peer(n), untagged.clone());
        }
    }

    /// A frame that peer `n` sent.
    fn arrive(&mut self, n: usize, frame: &[u8]) {
        let eth = ethernet::Frame::parse(frame).unwrap();
        let (place, mac, addr) = (self.peers[n].place, self.peers[n].mac, self.peers[n].addr);
        let link = match place {
            Place::Near(link) => link,
            Place::Far if eth.ethertype == ethernet::ARP => {
                let question = arp::Packet::parse(eth.payload).unwrap();
                let router = Addr::from_v4(question.target_ip);
                let answer = router_says(router, mac, addr.v4_octets());
                return self.send(To::Peer(n), answer);
            }
            Place::Far => {
                let ip = ipv4::Packet::parse(eth.payload).unwrap();
                (0..2).find(|link| Addr::from_v4(LINKS[*link].0) == ip.dst).expect("one of ours")
            }
        };
        let frame = if place == Place::Far { rewrite(frame, MAC, ROUTER) } else { frame.to_vec() };
        if self.leaks && self.r.chance(0.2) {
            self.leak(link, &frame);
        }
        self.send(To::Us, retag(&frame, LINKS[link].1));
    }

    /// The same from another network: a stranger with these addresses says something else, or ends the connection.
    fn leak(&mut self, link: usize, frame: &[u8]) {
        let eth = ethernet::Frame::parse(frame).unwrap();
        if eth.ethertype != ethernet::IPV4 {
            return;
        }
        let ip = ipv4::Packet::parse(eth.payload).unwrap();
        let segment = Segment::parse(ip.payload).unwrap();
        if segment.flags.contains(Flags::SYN) || segment.flags.contains(Flags::RST) {
            return;
        }
        let mut evil = frame[..14 + 20 + ip.payload.len()].to_vec();
        let text = evil.len() - segment.payload.len();
        evil[text..].iter_mut().for_each(|b| *b ^= 0x55);
        if segment.payload.is_empty() {
            evil[14 + 20 + 13] = Flags::RST.bits() as u8;
        }
        wire::tcp::fill_checksum(ip.src, ip.dst, &mut evil[34..]);
        let service = |id: u16| [&evil[..12], &[0x88, 0xa8], &id.to_be_bytes()[..], &evil[12..]].concat();
        let other = match link {
            0 => retag(&evil, LINKS[2].1),
            1 => service(7),
            _ if self.r.chance(0.5) => service(8),
            _ => retag(&evil, None),
        };
        self.send(To::Us, other);
    }

    fn turn(&mut self) {
        while let Some(first) = self.under_way.first_entry().filter(|e| e.key().0 <= self.now) {
            let (to, frame) = first.remove();
            match to {
                To::Us => self.inbox.push(frame),
                To::Told(tuple) => {
                    self.inbox.push(frame);
                    let way = self.ways.get_mut(&(tuple.0, tuple.1)).expect("it has one");
                    let mtu = told_mtu(self.inbox.last().expect("just come"));
                    // Not where it has become narrower meanwhile.
                    if mtu <= way.mtu {
                        way.told = Some(self.now);
                        self.flows.get_mut(&tuple).expect("it sent").told = true;
                    }
                }
                To::Peer(n) => self.peers[n].inbox.push(frame),
            }
        }
        // Every interface hears the whole wire.
        let heard = core::mem::take(&mut self.inbox);
        let sent = self.us.turn_all(self.now, vec![heard; LINKS.len()]);
        while let Some(event) = self.us.event() {
            self.hear(event);
        }
        self.senders.iter_mut().for_each(|s| s.poll(&mut self.us));
        for (link, frames) in sent.iter().enumerate() {
            frames.iter().for_each(|frame| self.leave(link, frame));
        }
        for (at, conn) in self.decoys.iter_mut().filter(|(at, conn)| *at <= self.now && conn.is_some()) {
            let conn = conn.take().unwrap();
            *at = Instant::FAR;
            self.us.job(Job::Close { conn, mode: CloseMode::Graceful });
        }
        for n in 0..self.peers.len() {
            let peer = &mut self.peers[n];
            let frames = core::mem::take(&mut peer.inbox);
            let sent = peer.host.turn(self.now, frames);
            while let Some(event) = peer.host.event() {
                let Peer { host, senders, echo, .. } = peer;
                if let Ok(event) = senders.iter_mut().try_fold(event, |e, s| s.on_event(host, e).ok_or(())) {
                    echo.on_event(host, event);
                }
            }
            let Peer { host, senders, .. } = peer;
            senders.iter_mut().for_each(|s| s.poll(host));
            sent.iter().for_each(|frame| self.arrive(n, frame));
        }
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Opened { token, conn, .. } if token.0 >= FIRST_DECOY => {
                self.decoys[(token.0 - FIRST_DECOY) as usize].1 = Some(conn);
                return;
            }
            Event::Refused { token, .. } if token.0 >= FIRST_DECOY => return,
            Event::Failed { conn, failure } if self.decoys.iter().any(|d| d.1 == Some(conn)) => {
                assert!(matches!(failure, Failure::HostUnreachable), "{failure:?}");
                let decoy = self.decoys.iter_mut().find(|d| d.1 == Some(conn)).unwrap();
                *decoy = (Instant::FAR, None);
                self.us.job(Job::Close { conn, mode: CloseMode::Graceful });
                return;
            }
            _ => {}
        }
        let (us, senders) = (&mut self.us, &mut self.senders);
        if let Ok(event) = senders.iter_mut().try_fold(event, |e, s| s.on_event(us, e).ok_or(())) {
            self.echo.on_event(&mut self.us, event);
        }
    }

    /// When something happens next.
    fn next_at(&self) -> Instant {
        let frame = self.under_way.first_key_value().map(|((at, _), _)| *at);
        let hosts = || core::iter::once(&self.us).chain(self.peers.iter().map(|p| &p.host));
        let timers = hosts().filter_map(|h| h.stack.next_deadline());
        let decoys = self.decoys.iter().filter(|d| d.1.is_some()).map(|d| d.0);
        let next = timers.chain(frame).chain(decoys).min().unwrap_or(Instant::FAR);
        let pending = hosts().any(|h| h.stack.output_pending() || h.stack.has_jobs());
        if pending { next.min(self.now.plus_micros(1000)) } else { next }.max(self.now.plus_micros(1))
    }

    fn running(&self) -> usize {
        let all = self.peers.iter().flat_map(|p| &p.senders).chain(&self.senders);
        all.filter(|s| s.outcome == Outcome::Running).count()
    }

    fn pass(&mut self, until: Instant) {
        while self.now < until {
            self.turn();
            self.now = self.next_at().min(until);
        }
    }

    /// How many streams came back whole.
    fn run(mut self) -> usize {
        // When all ports took frames last.
        let mut open = self.now;
        for _ in 0..self.r.below(40) + 20 {
            self.stir();
            let pause = self.r.pick(&[0, 0, 100, 3000, 50_000, 700_000]);
            let until = self.now.plus_micros(pause);
            self.turn();
            self.pass(until);
            // For two seconds at most: longer than that nobody is asked for.
            if self.r.chance(0.3) || self.now >= open.plus_micros(1_300_000) {
                (0..LINKS.len()).for_each(|n| self.us.set_room(n, 256));
                open = self.now;
            }
        }
        (0..LINKS.len()).for_each(|n| self.us.set_room(n, 256));
        (0..2).filter(|n| !self.up[*n as usize]).for_each(|n| self.us.stack.add_route(uplink(n)));
        let end = self.now.plus_micros(900_000_000);
        while self.running() > 0 && self.now < end {
            let next = self.now.plus_micros(10_000_000);
            self.pass(next);
        }
        let outcomes = self.peers.iter().flat_map(|p| &p.senders).chain(&self.senders).map(|s| s.outcome);
        let outcomes: Vec<Outcome> = outcomes.collect();
        for outcome in &outcomes {
            let away = self.rerouted && *outcome == Outcome::Failed(Failure::NetworkUnreachable);
            assert!(*outcome == Outcome::Complete || away, "{outcome:?} of {outcomes:?}");
        }
        let end = self.now.plus_micros(10_000_000);
        self.pass(end);
        assert_eq!((self.us.stack.connections(), self.us.stack.time_waits()), (0, 0), "left behind");
        assert_eq!((self.us.stack.sent_records(), self.us.leaked()), (0, 0), "leaked");
        self.flows.iter().for_each(|(tuple, flow)| flow.judge(*tuple, &self.ways[&(tuple.0, tuple.1)]));
        outcomes.iter().filter(|o| **o == Outcome::Complete).count()
    }
}

impl Flow {
    /// A connection that sent much sent as much at a time as its way has always taken.
    fn judge(&self, tuple: Tuple, way: &Way) {
        let (bytes, longest, least) = (self.bytes, self.longest, way.least);
        let enough = bytes < 3 * MTU as u32 || longest >= least - BLOCKS;
        assert!(enough, "{bytes} bytes on {tuple:?} in packets of at most {longest}, where {least} always passed");
    }
}

/// An ICMP error from a router on `link`, as a frame.
fn router_error(link: usize, icmp: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 34];
    ethernet::emit(&mut frame, MAC, ROUTER, None, ethernet::IPV4);
    let (src, dst) = (on(link, 254), Addr::from_v4(LINKS[link].0));
    ipv4::Header { src, dst, protocol: ipv4::ICMP, ..Default::default() }.emit(&mut frame[14..], icmp.len());
    frame.extend(icmp);
    retag(&frame, LINKS[link].1)
}

/// What such a frame says.
fn told_mtu(frame: &[u8]) -> u16 {
    let icmp = ethernet::Frame::parse(frame).unwrap().payload[20..].to_vec();
    u16::from_be_bytes([icmp[6], icmp[7]])
}

/// `frame`, whose tag this is from now on.
fn retag(frame: &[u8], tag: Option<u16>) -> Vec<u8> {
    let tagged = frame[12..14] == [0x81, 0];
    let rest = &frame[if tagged { 16 } else { 12 }..];
    match tag {
        None => [&frame[..12], rest].concat(),
        Some(id) => [&frame[..12], &[0x81, 0], &id.to_be_bytes()[..], rest].concat(),
    }
}

/// `frame` with other hardware addresses.
fn rewrite(frame: &[u8], to: MacAddr, from: MacAddr) -> Vec<u8> {
    [&to.0[..], &from.0, &frame[12..]].concat()
}

/// The router's answer to who has its address.
fn router_says(router: Addr, mac: MacAddr, ip: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![0; 60];
    let at = ethernet::emit(&mut frame, mac, ROUTER, None, ethernet::ARP);
    let sender_ip = router.v4_octets();
    let packet = arp::Packet { op: arp::Op::Reply, sender_mac: ROUTER, sender_ip, target_mac: mac, target_ip: ip };
    packet.emit(&mut frame[at..]);
    frame
}

#[test]
fn every_stream_goes_its_own_way() {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    if let Some(seed) = number("CORELANE_SEED") {
        println!("{} streams", World::new(seed).run());
        return;
    }
    let seeds = number("CORELANE_SEEDS").unwrap_or(120);
    let mut complete = 0;
    for seed in 0..seeds {
        match catch_unwind(|| World::new(seed).run()) {
            Ok(streams) => complete += streams,
            Err(cause) => {
                eprintln!("replay with: CORELANE_SEED={seed} cargo test -p sim --test links");
                resume_unwind(cause);
            }
        }
    }
    assert!(complete as u64 > 5 * seeds, "{complete} streams of {seeds} seeds");
}

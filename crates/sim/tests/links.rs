//! A host with three links on one wire, in a small world: neighbours on each link, two uplinks to far hosts, a twin of the first
//! link with the same addresses, link-local addresses that are the same on all three, neighbours that are not there, frames of other
//! networks, ports that take no frames for a while, routes that come and go, and paths of several MTUs, which become narrower or
//! wider; over IPv4 and IPv6. Whatever happens every stream arrives whole, every frame leaves by its own link for its own next hop,
//! as long as its path takes and no shorter, and the stack agrees with itself after each turn.
//!
//! `CORELANE_SEEDS=N` runs N seeds, `CORELANE_SEED=S` replays one.

mod common;
use std::collections::BTreeMap;

use common::families::{Family, Packet, Resolution, answer, error, told_mtu};
use io::impair::Random;
use protocol::{CloseMode, ConnId, Endpoint, Event, Failure, Job, Token};
use sim::{Echo, Host, HostConfig, LinkConfig, Outcome, Sender};
use stack::{InterfaceId, Route};
use wire::tcp::{Flags, Segment};
use wire::{Addr, Instant, MacAddr, SeqNum, ethernet};

/// The tag of each link.
const TAGS: [Option<u16>; 3] = [None, Some(7), Some(8)];
const FAMILIES: [Family; 3] = [Family::V4, Family::V6, Family::Local];
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

/// The address `last` of link `link`. The third link has the first one's addresses, and link-local ones are the same on all.
fn on(family: Family, link: usize, last: u8) -> Addr {
    let net = if link == 1 { 7 } else { 0 };
    match family {
        Family::V4 => Addr::from_v4([10, 0, net, last]),
        Family::V6 => Addr::from_words([0x2001_0db8 << 32 | net as u64, last as u64]),
        Family::Local => Addr::from_words([0xfe80 << 48, last as u64]),
    }
}

/// The host's address on a link.
fn ours(family: Family, link: usize) -> Addr {
    on(family, link, 1)
}

/// Whether an address is in one of a link's prefixes.
fn is_on(link: usize, addr: Addr) -> bool {
    FAMILIES.iter().any(|f| on(*f, link, addr.octets()[15]) == addr)
}

/// Far host `n`, which has no link-local address that we could reach.
fn far(family: Family, n: u8) -> Addr {
    match family {
        Family::V4 => Addr::from_v4([203, 0, 113, 5 + n]),
        _ => Addr::from_words([0x2001_0db8_0113 << 16, 5 + n as u64]),
    }
}

/// A link's router, on each of its sides. Those of IPv6 have one address on all links.
fn router(family: Family, link: usize) -> Addr {
    if family == Family::V4 { on(Family::V4, link, 254) } else { on(Family::Local, link, 254) }
}

/// The way to everybody.
fn default_route(v4: bool, gateway: Addr, interface: u8, metric: u32) -> Route {
    let dst = if v4 { Addr::UNSPECIFIED_V4 } else { Addr::UNSPECIFIED_V6 };
    let (dst, gateway, interface) = (dst.to_ip(), Some(gateway.to_ip()), InterfaceId(interface));
    Route { dst, prefix: 0, gateway, interface, metric }
}

fn uplink(family: Family, link: usize) -> Route {
    default_route(family == Family::V4, router(family, link), link as u8, 100 * link as u32)
}

/// What a path to `to` may take.
fn draw_mtu(r: &mut Random, to: Addr) -> u16 {
    r.pick(if to.is_v4() { &[MTU, MTU, 1400, 1000, 600] } else { &[MTU, MTU, 1400, 1300, 1280] })
}

/// Who a peer is.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// On this link.
    Near(usize),
    /// Which of the far hosts.
    Far(u8),
}

struct Peer {
    host: Host,
    place: Place,
    mac: MacAddr,
    addrs: Vec<Addr>,
    echo: Echo,
    senders: Vec<Sender>,
    inbox: Vec<Vec<u8>>,
}

impl Peer {
    fn new(n: u8, place: Place, alike: Option<u8>) -> Peer {
        let mut config = HostConfig::new(alike.unwrap_or(n));
        config.mac = MacAddr([2, 0, 0, 0, 1, n]);
        if alike.is_none() {
            // No two have one port, so that tuples are the same only where that is meant.
            config.stack.ports = wire::Ports::new(20_000 + 1000 * n as u16, 20_999 + 1000 * n as u16);
        }
        let (addrs, v4) = match place {
            Place::Near(link) => (FAMILIES.map(|f| on(f, link, 2)), on(Family::V4, link, 254)),
            Place::Far(n) => {
                let local = on(Family::Local, 0, 5 + n);
                ([far(Family::V4, n), far(Family::V6, n), local], Addr::from_v4([203, 0, 113, 254]))
            }
        };
        config.addresses = addrs.iter().zip(FAMILIES).map(|(a, f)| (a.to_ip(), f.prefix())).collect();
        config.routes = vec![default_route(true, v4, 0, 0), default_route(false, on(Family::Local, 0, 254), 0, 0)];
        let mac = config.mac;
        let mut host = Host::new(config);
        let echo = Echo::start(&mut host, Endpoint { addr: Addr::UNSPECIFIED_V6, port: PORT });
        Peer { host, place, mac, addrs: addrs.to_vec(), echo, senders: Vec::new(), inbox: Vec::new() }
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
    /// Which of the uplinks there are, of IPv4 and of IPv6.
    up: [[bool; 2]; 2],
    /// Most streams have addresses of this kind.
    mostly: Family,
    /// A route was away: opens may have heard so.
    rerouted: bool,
}

impl World {
    fn new(seed: u64) -> World {
        let mut r = Random::new(seed ^ 0x11b6);
        let leaks = r.chance(0.5);
        let mut config = HostConfig::new(1);
        let addresses = |n: usize| FAMILIES.map(|f| (ours(f, n).to_ip(), f.prefix())).to_vec();
        (config.addresses, config.mac) = (addresses(0), MAC);
        config.links = [1, 2].map(|n| LinkConfig { addresses: addresses(n), mac: MAC, vlan: TAGS[n] }).to_vec();
        config.routes = [Family::V4, Family::V6].iter().flat_map(|f| [0, 1].map(|link| uplink(*f, link))).collect();
        config.stack.park_after = core::time::Duration::from_secs(r.below(2));
        config.stack.time_wait = core::time::Duration::from_secs(2);
        let mut us = Host::new(config);
        let echo = Echo::start(&mut us, Endpoint { addr: Addr::UNSPECIFIED_V6, port: PORT });
        // Near hosts are alike, to the last secret, where frames of one link do not leak into another.
        let alike = (!leaks).then_some(2);
        let peers = vec![
            Peer::new(2, Place::Near(0), alike),
            Peer::new(3, Place::Near(1), alike),
            Peer::new(4, Place::Near(2), alike),
            Peer::new(5, Place::Far(0), None),
            Peer::new(6, Place::Far(1), None),
        ];
        let loss = r.pick(&[0.0, 0.0, 0.02]);
        let near = FAMILIES.iter().flat_map(|f| (0..TAGS.len()).map(|link| (link, on(*f, link, 2))));
        let far = |f| [(0, far(f, 0)), (0, far(f, 1)), (1, far(f, 0)), (1, far(f, 1))];
        let mut way = |at: (usize, Addr)| {
            let mtu = draw_mtu(&mut r, at.1);
            (at, Way { mtu, least: mtu, told: None })
        };
        let ways = near.chain(far(Family::V4)).chain(far(Family::V6)).map(&mut way).collect();
        let mostly = Family::draw(&mut r);
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
            up: [[true; 2]; 2],
            mostly,
            rerouted: false,
        }
    }

    /// The kind of addresses of something new.
    fn family(&mut self) -> Family {
        if self.r.chance(0.7) { self.mostly } else { Family::draw(&mut self.r) }
    }

    /// Something new in the world.
    fn stir(&mut self) {
        let family = self.family();
        let total = self.r.below(20_000);
        let seed = self.r.below(1 << 20);
        match self.r.below(13) {
            0..=2 => {
                // We connect, where another's stillborn connections may have had the number.
                let to = match family {
                    // The best route to link-local addresses is the first link's.
                    Family::Local => on(family, 0, 2),
                    _ => self.r.pick(&[on(family, 0, 2), on(family, 1, 2), far(family, 0), far(family, 1)]),
                };
                let token = self.senders.len() as u32;
                let remote = Endpoint { addr: to, port: PORT };
                self.senders.push(Sender::start(&mut self.us, token, remote, total, seed));
            }
            3..=6 => {
                let peers = if family == Family::Local { TAGS.len() } else { self.peers.len() };
                let n = self.r.below(peers as u64) as usize;
                let link = match self.peers[n].place {
                    Place::Near(link) => link,
                    Place::Far(_) => self.r.below(2) as usize,
                };
                // Hosts of the same address connect at the same time, so that their ports and numbers are the same.
                let together = match family {
                    _ if self.leaks => vec![n],
                    Family::Local => vec![0, 1, 2],
                    _ if [0, 2].contains(&n) => vec![0, 2],
                    _ => vec![n],
                };
                for n in together {
                    let peer = &mut self.peers[n];
                    let remote = Endpoint { addr: ours(family, link), port: PORT };
                    let token = peer.senders.len() as u32;
                    // Each says something else.
                    peer.senders.push(Sender::start(&mut peer.host, token, remote, total, seed + n as u64));
                }
            }
            7..=9 => {
                let link = self.r.below(2) as usize;
                let token = Token(FIRST_DECOY + self.decoys.len() as u32);
                let local = Endpoint { addr: Addr::UNSPECIFIED_V4, port: 0 };
                let remote = Endpoint { addr: on(family, link, 77), port: PORT };
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
                let which = self.r.below(self.ways.len() as u64) as usize;
                let (at, way) = self.ways.iter_mut().nth(which).expect("there are as many");
                let mtu = draw_mtu(&mut self.r, at.1);
                if mtu < way.mtu {
                    way.told = None;
                    self.flows.iter_mut().filter(|(t, _)| (t.0, t.1) == *at).for_each(|(_, flow)| flow.told = false);
                }
                (way.mtu, way.least) = (mtu, way.least.min(mtu));
            }
            _ => {
                let (link, route) = (self.r.below(2) as usize, (family == Family::V4) as usize);
                let up = &mut self.up[route][link];
                *up ^= true;
                self.rerouted |= !*up;
                match *up {
                    true => assert!(self.us.stack.add_route(uplink(family, link))),
                    false => assert!(self.us.stack.remove_route(&uplink(family, link))),
                }
            }
        }
    }

    fn send(&mut self, to: To, frame: Vec<u8>) {
        let resolution = Resolution::of(&ethernet::Frame::parse(&frame).unwrap()).is_some();
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
    fn fits(&mut self, link: usize, ip: &Packet<'_>) -> bool {
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
        let (length, text) = (ip.bytes.len() as u16, segment.payload.len() as u32);
        if length > way.mtu {
            let mtu = way.mtu;
            assert!(!flow.told, "{length} bytes on {tuple:?}, which is known to take {mtu}");
            let error = router_error(link, TAGS[link], mtu, ip);
            self.send(To::Told(tuple), error);
            return false;
        }
        if text > 0 {
            flow.bytes = flow.bytes.max(segment.seq.since(flow.iss) + text - 1);
            flow.longest = flow.longest.max(length);
        }
        let others = twins(link, ip.dst);
        if self.leaks && !others.is_empty() && text > 0 && self.r.chance(0.05) {
            // Another of those that are alike says so of a way of its own.
            let narrow = if ip.dst.is_v4() { 576 } else { 1280 };
            let error = router_error(link, TAGS[self.r.pick(others)], narrow, ip);
            self.send(To::Us, error);
        }
        true
    }

    /// A frame that we sent by `link`: with that one's tag and address, and to a next hop that is there.
    fn leave(&mut self, link: usize, frame: &[u8]) {
        let eth = ethernet::Frame::parse(frame).unwrap();
        let tag = TAGS[link];
        assert_eq!((eth.src, eth.vlan.map(|v| (v.kind, v.id))), (MAC, tag.map(|id| (ethernet::Tag::Customer, id))));
        let untagged = retag(frame, None);
        let mine = |addr: Addr| FAMILIES.iter().any(|f| ours(*f, link) == addr);
        if let Some(Resolution { source, target, asks }) = Resolution::of(&eth) {
            assert!(mine(source), "the question is of another link: {source:?} asks for {target:?} on link {link}");
            assert!(is_on(link, target), "{target:?} is not on link {link}");
            let router = router(if target.is_v4() { Family::V4 } else { Family::V6 }, link);
            if target == router && asks {
                self.send(To::Us, answer((MAC, source), (ROUTER, router), tag));
            }
        } else {
            let ip = Packet::of(&eth);
            assert!(mine(ip.src), "a packet of another link: {:?} on link {link}", ip.src);
            assert_eq!(ip.src.is_link_local(), ip.dst.is_link_local(), "{:?} to {:?}", ip.src, ip.dst);
            if !self.fits(link, &ip) {
                return;
            }
            if eth.dst == ROUTER {
                if link == 2 {
                    // The twin has no router: this is a reset for a stranger's frame.
                    return assert!(self.leaks && ip.payload[13] == RST, "the twin has no router");
                }
                let far = |p: &Peer| matches!(p.place, Place::Far(_)) && p.addrs.contains(&ip.dst);
                let n = self.peers.iter().position(far).expect("a near host is not reached by the router");
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
        let (place, mac) = (self.peers[n].place, self.peers[n].mac);
        let link = match place {
            Place::Near(link) => link,
            Place::Far(_) => match Resolution::of(&eth) {
                Some(Resolution { source, target, asks: true }) => {
                    return self.send(To::Peer(n), answer((mac, source), (ROUTER, target), None));
                }
                Some(_) => return,
                None => {
                    let to = Packet::of(&eth).dst;
                    (0..2).find(|link| FAMILIES.iter().any(|f| ours(*f, *link) == to)).expect("one of ours")
                }
            },
        };
        let frame = if let Place::Far(_) = place { rewrite(frame, MAC, ROUTER) } else { frame.to_vec() };
        if self.leaks && self.r.chance(0.2) {
            self.leak(link, &frame);
        }
        self.send(To::Us, retag(&frame, TAGS[link]));
    }

    /// The same from another network: a stranger with these addresses says something else, or ends the connection.
    fn leak(&mut self, link: usize, frame: &[u8]) {
        let eth = ethernet::Frame::parse(frame).unwrap();
        if Resolution::of(&eth).is_some() {
            return;
        }
        let ip = Packet::of(&eth);
        let segment = Segment::parse(ip.payload).unwrap();
        if segment.flags.contains(Flags::SYN) || segment.flags.contains(Flags::RST) {
            return;
        }
        let tcp = 14 + ip.header;
        let mut evil = frame[..14 + ip.bytes.len()].to_vec();
        let text = evil.len() - segment.payload.len();
        evil[text..].iter_mut().for_each(|b| *b ^= 0x55);
        if segment.payload.is_empty() {
            evil[tcp + 13] = Flags::RST.bits() as u8;
        }
        wire::tcp::fill_checksum(ip.src, ip.dst, &mut evil[tcp..]);
        let service = |id: u16| [&evil[..12], &[0x88, 0xa8], &id.to_be_bytes()[..], &evil[12..]].concat();
        let others = twins(link, ip.src);
        let other = match TAGS[link] {
            Some(id) if others.is_empty() || self.r.chance(0.5) => service(id),
            _ => retag(&evil, TAGS[self.r.pick(others)]),
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
        let sent = self.us.turn_all(self.now, vec![heard; TAGS.len()]);
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
                (0..TAGS.len()).for_each(|n| self.us.set_room(n, 256));
                open = self.now;
            }
        }
        (0..TAGS.len()).for_each(|n| self.us.set_room(n, 256));
        for (route, family) in [Family::V6, Family::V4].into_iter().enumerate() {
            (0..2).filter(|n| !self.up[route][*n]).for_each(|n| assert!(self.us.stack.add_route(uplink(family, n))));
        }
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

/// The links that have a host of the same address, and one of ours.
fn twins(link: usize, peer: Addr) -> &'static [usize] {
    match (link, peer.is_link_local()) {
        (0, false) => &[2],
        (1, false) => &[],
        (_, false) => &[0],
        (0, true) => &[1, 2],
        (1, true) => &[0, 2],
        (_, true) => &[0, 1],
    }
}

/// The word of a router on `link` that a packet of ours was too big, with this tag.
fn router_error(link: usize, tag: Option<u16>, mtu: u16, ip: &Packet) -> Vec<u8> {
    let family = if ip.src.is_v4() { Family::V4 } else { Family::V6 };
    error((MAC, ip.src), (ROUTER, router(family, link)), tag, Some(mtu), ip.bytes)
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

#[test]
fn every_stream_goes_its_own_way() {
    let streams = testing::seeds("sim --test links", 120, testing::cores(), |seed| World::new(seed).run());
    let (seeds, complete) = (streams.len(), streams.iter().sum::<usize>());
    assert!(seeds == 1 || complete > 5 * seeds, "{complete} streams of {seeds} seeds");
}

//! Active opens from several addresses and on one of several lanes: every port that fits is found, the reply comes back to
//! the same lane, and only then there is none.

use std::collections::{HashMap, HashSet};

use protocol::{ConnId, Endpoint, Event, Failure, Job, Token};
use sim::{Host, HostConfig};
use stack::{Asked, OtherLanes, Sought, Stack, Steering};
use wire::burst::RxFrame;
use wire::tcp::{Flags, Header, Options, Segment};
use wire::{Addr, Instant, MacAddr, Ports, SeqNum, ethernet, ipv4, ipv6};

const FIRST: u16 = 50_000;
const LAST: u16 = 50_199;
const LANE: u16 = 2;

fn ip(s: &str) -> std::net::IpAddr {
    s.parse().unwrap()
}

struct Bench {
    host: Host,
    now: Instant,
    steering: Steering,
}

impl Bench {
    fn new(lanes: u16, addresses: &[&str]) -> Bench {
        Bench::with(lanes, addresses, |_| {})
    }

    fn with(lanes: u16, addresses: &[&str], change: impl FnOnce(&mut HostConfig)) -> Bench {
        let steering = Steering::spread(lanes);
        let mut config = HostConfig::new(1);
        config.addresses = addresses.iter().map(|a| (ip(a), if a.contains(':') { 64 } else { 24 })).collect();
        config.stack.ports = Ports::new(FIRST, LAST);
        config.stack.steering = steering.clone();
        config.stack.lane = if lanes == 1 { 0 } else { LANE };
        change(&mut config);
        let mut host = Host::new(config);
        let now = Instant::from_micros(1_000_000);
        for peer in ["10.0.0.9", "10.0.0.8", "fd00::9", "fd00::8"] {
            host.stack.set_neighbor(now, host.interface(), ip(peer), MacAddr([2, 0, 0, 0, 0, 9]));
        }
        Bench { host, now, steering }
    }

    /// One active open: its number and local end.
    fn connect(&mut self, local: &str, remote: &str) -> Result<(ConnId, Endpoint), Failure> {
        let local = Endpoint { addr: ip(local).into(), port: 0 };
        let remote = Endpoint { addr: ip(remote).into(), port: 80 };
        self.host.job(Job::Connect { token: Token(7), local, remote, receive_buffer: 0 });
        self.host.turn(self.now, vec![]);
        self.now = self.now.plus_micros(10);
        match self.host.event() {
            Some(Event::Opened { conn, local, .. }) => Ok((conn, local)),
            Some(Event::Refused { failure, .. }) => Err(failure),
            other => panic!("{other:?}"),
        }
    }

    /// An active open whose SYN/ACK comes by the queue that `queue` says for our port.
    fn opened(&mut self, local: &str, remote: &str, queue: impl Fn(u16) -> u16) {
        let (local, remote): (Addr, Addr) = (ip(local).into(), ip(remote).into());
        let (from, to) = (Endpoint { addr: local, port: 0 }, Endpoint { addr: remote, port: 80 });
        self.host.job(Job::Connect { token: Token(7), local: from, remote: to, receive_buffer: 0 });
        let syn = self.host.turn(self.now, vec![]).remove(0);
        let (tcp_at, ours) = (if local.is_v4() { 34 } else { 54 }, self.host.config.mac);
        let syn = Segment::parse(&syn[tcp_at..]).unwrap();
        let header = Header {
            src_port: 80,
            dst_port: syn.src_port,
            seq: SeqNum(77),
            ack: syn.seq + 1,
            flags: Flags::SYN | Flags::ACK,
            window: 9000,
            urgent: 0,
            options: Options::default(),
        };
        let mut frame = vec![0; tcp_at + 60];
        let ethertype = if local.is_v4() { ethernet::IPV4 } else { ethernet::IPV6 };
        ethernet::emit(&mut frame, ours, MacAddr([2, 0, 0, 0, 0, 9]), None, ethertype);
        let len = header.emit(&mut frame[tcp_at..], true);
        if local.is_v4() {
            ipv4::Header { src: remote, dst: local, ..ipv4::Header::default() }.emit(&mut frame[14..], len);
        } else {
            ipv6::Header { src: remote, dst: local, ..ipv6::Header::default() }.emit(&mut frame[14..], len);
        }
        wire::tcp::fill_checksum(remote, local, &mut frame[tcp_at..tcp_at + len]);
        frame.truncate(tcp_at + len);
        let interface = self.host.interface();
        let burst = sim::Frames::plain(vec![frame]);
        self.host.stack.receive_own(self.now, interface, &burst, &mut By(queue(syn.src_port)));
        self.host.turn(self.now, vec![]);
        self.now = self.now.plus_micros(10);
        let connected = core::iter::from_fn(|| self.host.event()).any(|e| matches!(e, Event::Connected { .. }));
        assert!(connected, "{remote}");
    }

    /// As many as there can be.
    fn all(&mut self, local: &str, remote: &str) -> Vec<(ConnId, Endpoint)> {
        let mut opened = Vec::new();
        loop {
            match self.connect(local, remote) {
                Ok(one) => opened.push(one),
                Err(failure) => {
                    assert_eq!(failure, Failure::AddressNotAvailable);
                    return opened;
                }
            }
            assert!(opened.len() < 10_000);
        }
    }

    /// Ports of an address whose replies come back to this lane.
    fn fitting(&self, local: &str, remote: &str) -> usize {
        let (local, remote): (Addr, Addr) = (ip(local).into(), ip(remote).into());
        (FIRST..=LAST).filter(|port| self.steering.lane_of(remote, local, 80, *port) == self.lane()).count()
    }

    fn lane(&self) -> u16 {
        self.host.config.stack.lane
    }
}

/// A burst of one frame that came by some lane's queue.
struct By(u16);

impl OtherLanes for By {
    fn asked(&self) -> Asked {
        Asked::Unknown
    }

    fn came_by(&self) -> Option<u16> {
        Some(self.0)
    }

    fn take(&mut self, _: &Stack, _: usize, _: RxFrame, _: Sought) -> bool {
        false
    }
}

/// A NIC that hides its key: where the answers come is learnt from some, and then ports are taken by which they come straight to this
/// lane, as long as there are any; after these the others.
#[test]
fn ports_are_taken_whose_answers_come_straight() {
    let key = core::array::from_fn(|i| (i as u8).wrapping_mul(151) ^ 0x5c);
    let table: Vec<u16> = (0..128).map(|i| i % 4).collect();
    let nic = Steering::predicted(key, &table, 4).unwrap();
    for (local, near, far) in [("10.0.0.1", "10.0.0.8", "10.0.0.9"), ("fd00::1", "fd00::8", "fd00::9")] {
        let mut b = Bench::with(4, &[local], |config| config.stack.learn = true);
        let queue = |remote, port| nic.lane_of(ip(remote).into(), ip(local).into(), 80, port);
        for remote in [near; 40].into_iter().chain([far]) {
            b.opened(local, remote, |port| queue(remote, port));
        }
        let counters = b.host.stack.counters();
        assert_eq!((counters.lanes_learnt, counters.lanes_mistaken), (1, 0));
        assert_eq!(counters.answers_own + counters.answers_handed, 41);
        assert_eq!((b.host.stack.take_learnt(), b.host.stack.take_learnt()), (Some(b.host.interface()), None));
        let ports: Vec<u16> = b.all(local, far).iter().map(|(_, local)| local.port).collect();
        assert_eq!(ports.len() + 1, b.fitting(local, far));
        let straight = ports.iter().take_while(|port| queue(far, **port) == LANE).count();
        assert!(
            straight > 0 && ports[straight..].iter().all(|port| queue(far, *port) != LANE),
            "{straight}: {ports:?}"
        );
    }
}

#[test]
fn every_port_of_every_address_that_returns_here() {
    let v4 = ["10.0.0.1", "10.0.0.3", "10.0.0.4", "10.0.0.5"];
    let v6 = ["fd00::1", "fd00::3", "fd00::4"];
    for (addresses, remote, any) in [(&v4[..], "10.0.0.9", "0.0.0.0"), (&v6[..], "fd00::9", "::")] {
        for lanes in [1, 4] {
            let mut b = Bench::new(lanes, addresses);
            let opened = b.all(any, remote);
            // One address after the other.
            let of: Vec<Addr> = opened.iter().map(|(_, local)| local.addr).collect();
            assert_eq!(of.chunk_by(|a, b| a == b).count(), addresses.len(), "{of:?}");
            let ends: HashSet<_> = opened.iter().map(|(_, local)| (local.addr, local.port)).collect();
            assert_eq!(ends.len(), opened.len());
            for (addr, port) in &ends {
                assert_eq!(b.steering.lane_of(ip(remote).into(), *addr, 80, *port), b.lane());
            }
            let mut count: HashMap<Addr, usize> = HashMap::new();
            ends.iter().for_each(|(addr, _)| *count.entry(*addr).or_default() += 1);
            for addr in addresses {
                let fitting = b.fitting(addr, remote);
                assert!(fitting > 20);
                assert_eq!(count.get(&ip(addr).into()), Some(&fitting), "{addr}, {lanes} lanes");
            }
        }
    }
}

#[test]
fn one_that_was_named_is_the_only_one() {
    let mut b = Bench::new(4, &["10.0.0.1", "10.0.0.3"]);
    assert_eq!(b.all("10.0.0.3", "10.0.0.9").len(), b.fitting("10.0.0.3", "10.0.0.9"));
    // The other is as free as ever, and another remote end is another matter.
    assert!(b.connect("0.0.0.0", "10.0.0.9").is_ok());
    assert!(b.connect("10.0.0.3", "10.0.0.8").is_ok());
}

/// Looking for a port where there is none costs nothing until one is free again, and then it is found.
#[test]
fn a_port_that_is_free_again_is_found() {
    let mut b = Bench::new(4, &["10.0.0.1", "10.0.0.3", "10.0.0.4"]);
    let opened = b.all("0.0.0.0", "10.0.0.9");
    for (conn, local) in [opened[0], opened[opened.len() / 2], opened[opened.len() - 1]] {
        assert_eq!(b.connect("0.0.0.0", "10.0.0.9"), Err(Failure::AddressNotAvailable));
        b.host.job(Job::Abort { conn });
        b.host.turn(b.now, vec![]);
        assert_eq!(b.connect("0.0.0.0", "10.0.0.9").unwrap().1, local);
    }
    assert!(b.connect("0.0.0.0", "10.0.0.8").is_ok());
}

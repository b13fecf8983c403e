//! Active opens from several addresses and on one of several lanes: every port that fits is found, the reply comes back to
//! the same lane, and only then there is none.

use std::collections::{HashMap, HashSet};

use sim::{Host, HostConfig};
use stack::Steering;
use stack::channel::{ConnId, Endpoint, Event, Failure, Job, Token};
use wire::{Addr, Instant, MacAddr, Ports};

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
        let steering = Steering::spread(lanes);
        let mut config = HostConfig::new(1);
        config.addresses = addresses.iter().map(|a| (ip(a), if a.contains(':') { 64 } else { 24 })).collect();
        config.stack.ports = Ports::new(FIRST, LAST);
        config.stack.steering = steering.clone();
        config.stack.lane = if lanes == 1 { 0 } else { LANE };
        let mut host = Host::new(config);
        let now = Instant::from_micros(1_000_000);
        for peer in ["10.0.0.9", "10.0.0.8", "fd00::9"] {
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

#[test]
fn every_port_of_every_address_that_returns_here() {
    let v4 = ["10.0.0.1", "10.0.0.3", "10.0.0.4", "10.0.0.5"];
    let v6 = ["fd00::1", "fd00::3", "fd00::4"];
    for (addresses, remote, any) in [(&v4[..], "10.0.0.9", "0.0.0.0"), (&v6[..], "fd00::9", "::")] {
        for lanes in [1, 4] {
            let mut b = Bench::new(lanes, addresses);
            let opened = b.all(any, remote);
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

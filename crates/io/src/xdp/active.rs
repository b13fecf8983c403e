//! Local ports of active opens on a machine whose kernel has its own.

use std::io;
use std::time::{Duration, Instant};

use wire::Ports;

use super::held::Held;
use super::range::{KernelPorts, Words};
use crate::capability::Capability;
use crate::error::PortError;

/// Ports below are services': they come after the others.
const LEAST: u16 = 8192;
/// Ports below are privileged, and nobody's unless he names them.
const PRIVILEGED: u16 = 1024;
/// Ports of others that are met before it gives up, where there are some already.
const TRIES: usize = 256;
/// Between two looks that find none.
const REST: Duration = Duration::from_millis(100);
/// Looks without a connection after which ports are withdrawn, and given back with the next one.
const QUIET: u32 = 5;

/// Mark of a port from which connections are opened.
const CHOSEN: u8 = 1;
/// Mark of one that who opens a connection has named.
const NAMED: u8 = 2;
/// Mark of one that is held by a socket.
const HELD: u8 = 4;
/// Mark of one that the kernel chooses since a moment ago, and that nothing holds.
const LOOSE: u8 = 8;
/// Looks at what is loose: a lane may have been about to open a connection in the first.
const LOOKS: u32 = 2;

/// Ports from which connections are opened beside the kernel. None at first; then, as they are needed, those that the kernel does not
/// choose for its own sockets (outside `net.ipv4.ip_local_port_range`, or in `ip_local_reserved_ports`), and after these its own,
/// which are held by bound sockets. Two of 32 stay with the rest of the machine. Some time after the last connection there are none
/// again.
/// Where the kernel's range grows, ports that are not held stay with those connections alone that they have.
///
/// A port in which others listen is no worse than another: of a port only the segments of our connections are taken.
#[derive(Debug)]
pub struct ActivePorts {
    named: Option<(u16, u16)>,
    ports: Ports,
    held: Held,
    /// By port; empty before the first one.
    marks: Vec<u8>,
    /// Of the kernel's ports the one that is tried next, from above.
    next: u16,
    /// No look before.
    rest: Option<Instant>,
    /// The kernel's that may be had beside these.
    possible: usize,
    /// Range of the kernel's when it was looked at last; `None` where ports were taken since.
    known: Option<Words>,
    /// Looks at what is loose that are to come.
    looks: u32,
    /// Looks since the last connection.
    quiet: u32,
    /// No connection is opened from the ports that are marked, until one is needed.
    withdrawn: bool,
}

/// Outcome of a look at the ports.
#[derive(Debug, Default)]
pub struct PortNews {
    /// Connections are opened from others now.
    pub changed: bool,
    /// More are to be held at once.
    pub rest: bool,
    /// Why connections are left on ports that the kernel chooses by now, and that could not be held.
    pub failed: Option<PortError>,
    /// Ports that are given back, by the end of these, which takes a while.
    pub over: Option<Held>,
}

impl ActivePorts {
    /// No port yet; later ports from a first to a last one, where these are named.
    pub fn new(named: Option<(u16, u16)>) -> ActivePorts {
        ActivePorts {
            named,
            ports: Ports::default(),
            held: Held::default(),
            marks: Vec::new(),
            next: u16::MAX,
            rest: None,
            possible: 0,
            known: None,
            looks: 0,
            quiet: 0,
            withdrawn: false,
        }
    }

    /// Those that there are.
    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Number of ports that there can be, if others have none of the kernel's.
    pub fn most(&self) -> usize {
        self.ports.count() as usize + self.possible
    }

    /// True while some are to be looked after: followed, and given back.
    pub fn are_used(&self) -> bool {
        !self.marks.is_empty()
    }

    /// Those that there are without asking: none of the kernel's.
    pub fn free(&self) -> Ports {
        let (first, last) = self.span();
        let kernel = KernelPorts::read();
        (first..=last).filter(|port| !kernel.chooses(*port) && !self.leaves(*port)).collect()
    }

    /// First and last of all that there can be.
    fn span(&self) -> (u16, u16) {
        self.named.unwrap_or((PRIVILEGED, u16::MAX))
    }

    /// True of a port that stays with the kernel, and with NAT, which gives up where 128 ports in a row are taken
    /// (`nf_nat_l4proto_unique_tuple`).
    fn leaves(&self, port: u16) -> bool {
        self.named.is_none() && port % 32 >= 30
    }

    fn mark(&self, port: u16) -> u8 {
        self.marks.get(port as usize).copied().unwrap_or(0)
    }

    fn add_mark(&mut self, port: u16, mark: u8) {
        self.marks.resize(1 << 16, 0);
        self.marks[port as usize] |= mark;
    }

    fn marked(&self, mark: u8) -> impl Iterator<Item = u16> + '_ {
        (0..=u16::MAX).zip(&self.marks).filter(move |(_, marks)| *marks & mark != 0).map(|(port, _)| port)
    }

    /// Takes more of them, of the kernel's own `most`; how many there were, 0 where there are none, and for a moment after that. An error
    /// tells why there is none at all, or what keeps it from the kernel's.
    pub fn more(&mut self, most: usize) -> Result<usize, PortError> {
        self.quiet = 0;
        if self.withdrawn && self.restore() > 0 {
            return Ok(self.ports.count() as usize);
        }
        match self.rest.is_some_and(|rest| Instant::now() < rest) {
            true => Ok(0),
            false => self.take(&KernelPorts::read(), most),
        }
    }

    fn take(&mut self, kernel: &KernelPorts, most: usize) -> Result<usize, PortError> {
        let (first, last) = self.span();
        let free = |port: &u16| self.mark(*port) & CHOSEN == 0 && !kernel.chooses(*port) && !self.leaves(*port);
        let mut new: Vec<u16> = match self.named {
            Some(_) => (first..=last).filter(free).collect(),
            None => (LEAST..=last).filter(free).collect(),
        };
        if new.len() < most && self.named.is_none() {
            new.extend((first..LEAST).filter(free));
        }
        let (mut held, mut failed) = (Vec::new(), None);
        let mut possible = self.kernels(kernel).count();
        if new.len() < most {
            let next = self.next.clamp(first, last);
            let wanted: Vec<u16> = self.kernels(kernel).collect();
            let (above, below) = wanted.split_at(wanted.partition_point(|port| *port <= next));
            let mut tried = next;
            let all = above.iter().rev().chain(below.iter().rev()).copied().inspect(|port| tried = *port);
            let enough = !self.ports.is_empty() || !new.is_empty();
            (held, failed) = self.held.hold(all, most - new.len(), TRIES, enough);
            self.next = tried;
            possible -= held.len();
        }
        if new.is_empty() && held.is_empty() {
            self.possible = 0;
            self.rest = Some(Instant::now() + REST);
            return match failed {
                Some((port, source)) => Err(cannot_hold(port, source)),
                None if self.ports.is_empty() => Err(PortError::Busy {
                    what: match first == last {
                        true => format!("local port {first}"),
                        false => format!("every local port from {first} to {last}"),
                    },
                    hint: "`ss -tan` shows who has it; local_ports names those from which connections leave".into(),
                }),
                None => Ok(0),
            };
        }
        let count = new.len() + held.len();
        self.possible = possible;
        // The range may have been another one when they were taken.
        self.known = None;
        new.into_iter().for_each(|port| self.add_mark(port, CHOSEN));
        held.into_iter().for_each(|port| self.add_mark(port, CHOSEN | HELD));
        self.choose();
        Ok(count)
    }

    /// Ports of the kernel's that may be had beside those that there are.
    fn kernels(&self, kernel: &KernelPorts) -> impl Iterator<Item = u16> {
        let (first, last) = self.span();
        let is_new = |port: &u16| self.mark(*port) & (CHOSEN | HELD) == 0;
        (first..=last).filter(move |port| is_new(port) && kernel.chooses(*port) && !self.leaves(*port))
    }

    /// Connections are opened from what is marked so.
    fn choose(&mut self) {
        self.ports = if self.withdrawn { Ports::default() } else { self.marked(CHOSEN).collect() };
    }

    /// Makes sure that a connection may leave from this port, which is named by who opens it.
    pub fn hold(&mut self, port: u16) -> Result<(), PortError> {
        self.quiet = 0;
        if self.mark(port) & (CHOSEN | NAMED | HELD) != 0 {
            return Ok(());
        }
        if port >= PRIVILEGED && !KernelPorts::read().chooses(port) {
            self.known = None;
            self.add_mark(port, NAMED);
            return Ok(());
        }
        match self.held.hold([port], 1, 1, true) {
            (held, _) if !held.is_empty() => {
                self.add_mark(port, NAMED | HELD);
                Ok(())
            }
            (_, Some((port, source))) => Err(cannot_hold(port, source)),
            (_, None) => Err(PortError::Busy {
                what: format!("local port {port}"),
                hint: format!("`ss -tanp 'sport = :{port}'` shows which; choose another"),
            }),
        }
    }

    /// Looks after the ports, now and then, where `used` tells from which there are connections. Ports that the kernel chooses by now are
    /// held, `most` at once, where they have any, and left otherwise. Where no port has any, they are given back.
    pub fn look(&mut self, most: usize, used: impl Fn(u16) -> bool) -> PortNews {
        let words = Words::read();
        // Where the range is not known for a moment, it is no other one.
        if !words.are_known() {
            return self.give_back(used);
        }
        let kernel = (self.looks > 0 || self.known.as_ref() != Some(&words)).then(|| KernelPorts::of(&words));
        if self.known.as_ref() != Some(&words) {
            (self.known, self.looks) = (Some(words), LOOKS);
        }
        let followed = kernel.map(|kernel| self.follow(&kernel, most, &used)).unwrap_or_default();
        if followed.rest {
            return followed;
        }
        let PortNews { changed, over, .. } = self.give_back(used);
        PortNews { changed: changed || followed.changed, over, ..followed }
    }

    /// Holds what has become the kernel's, as far as it is used.
    fn follow(&mut self, kernel: &KernelPorts, most: usize, used: impl Fn(u16) -> bool) -> PortNews {
        let loose = |port: &u16| self.mark(*port) & HELD == 0 && kernel.chooses(*port);
        let loose: Vec<u16> = self.marked(CHOSEN | NAMED | LOOSE).filter(loose).collect();
        loose.iter().for_each(|port| self.marks[*port as usize] = LOOSE);
        let needed: Vec<u16> = loose.into_iter().filter(|port| used(*port)).collect();
        let (now, later) = needed.split_at(most.min(needed.len()));
        let (held, failed) = self.held.hold(now.iter().copied(), now.len(), usize::MAX, true);
        now.iter().for_each(|port| self.marks[*port as usize] = 0);
        for port in held {
            self.add_mark(port, if self.leaves(port) { HELD } else { HELD | CHOSEN });
        }
        let rest = failed.is_none() && !later.is_empty();
        self.looks = self.looks.saturating_sub(u32::from(!rest));
        if self.looks == 0 {
            self.marks.iter_mut().for_each(|mark| *mark &= !LOOSE);
        }
        let before = self.ports.count();
        self.choose();
        self.possible = self.kernels(kernel).count();
        let failed = failed.map(|(port, source)| cannot_hold(port, source));
        PortNews { changed: self.ports.count() != before, rest, failed, over: None }
    }

    /// Gives ports back some time after the last connection. Lanes may still be about to open one from a port that they were told of: so
    /// they are withdrawn first.
    fn give_back(&mut self, used: impl Fn(u16) -> bool) -> PortNews {
        self.quiet = if self.marked(u8::MAX).any(used) { 0 } else { self.quiet + 1 };
        let mut news = PortNews::default();
        match (self.quiet >= QUIET, self.withdrawn) {
            (false, false) => {}
            (false, true) => news.changed = self.restore() > 0,
            (true, false) => {
                self.withdrawn = true;
                let chosen = std::mem::take(&mut self.ports);
                self.possible += chosen.count() as usize;
                news.changed = !chosen.is_empty();
            }
            (true, true) => {
                let new = ActivePorts { possible: self.possible, ..ActivePorts::new(self.named) };
                news.over = Some(std::mem::replace(self, new).held);
            }
        }
        news
    }

    /// Opens connections from what was withdrawn; how many ports.
    fn restore(&mut self) -> usize {
        self.withdrawn = false;
        self.choose();
        let count = self.ports.count() as usize;
        self.possible = self.possible.saturating_sub(count);
        count
    }
}

fn cannot_hold(port: u16, source: io::Error) -> PortError {
    PortError::system(format!("holding local port {port}"), source, &[Capability::NetBindService])
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: usize = 1024;

    fn kernel(range: &str, reserved: &str) -> KernelPorts {
        KernelPorts::of(&Words::of(Some(range), Some(reserved)))
    }

    /// Ports in steps: those that nobody chooses, above 8192 first; then what the kernel has, but for what stays with it.
    #[test]
    fn ports_are_taken_as_they_are_needed() {
        let mut active = ActivePorts::new(None);
        assert!(active.ports().is_empty() && active.most() == 0);
        let kernel = kernel("20000 22999", "20100-20199");
        let steps: Vec<Ports> =
            core::iter::from_fn(|| (active.take(&kernel, STEP).unwrap() > 0).then(|| active.ports().clone()))
                .inspect(|ports| assert!(ports.iter().all(|port| port >= PRIVILEGED)))
                .collect();
        assert_eq!(active.most(), active.ports().count() as usize);
        let chosen = |port: &u16| kernel.chooses(*port);
        let free = |first: u16| (first..=65_535).filter(|port| !chosen(port) && port % 32 < 30);
        assert!(steps[0].iter().eq(free(8192)), "{}", steps[0]);
        assert!(steps[1].iter().eq(free(1024)), "{}", steps[1]);
        let all = steps.last().unwrap();
        let held: Vec<u16> = all.iter().filter(chosen).collect();
        assert!(steps.len() > 4 && held.len() > 2500 && held.iter().all(|port| port % 32 < 30), "{}", steps.len());
        assert!(steps[2].iter().filter(chosen).count() == STEP);
        // Another engine, which has other addresses, can hold them too.
        assert_eq!(Held::default().hold(held, 1, usize::MAX, false).0.len(), 1);
    }

    /// A named range is taken whole, wherever it lies, as far as others have none of it.
    #[test]
    fn a_named_range_is_taken_wherever_it_lies() {
        let kernel = kernel("22000 22999", "");
        let mut active = ActivePorts::new(Some((21_990, 22_100)));
        assert_eq!((active.take(&kernel, 50).unwrap(), active.most()), (50, 111), "{}", active.ports());
        assert_eq!((active.take(&kernel, 200).unwrap(), active.most()), (61, 111), "{}", active.ports());
        assert!(active.ports().iter().eq(21_990..=22_100), "{}", active.ports());
        assert_eq!((active.take(&kernel, 200).unwrap(), active.more(200).unwrap()), (0, 0));
        // A server has one of them, in the kernel's range.
        let Ok(server) = std::net::TcpListener::bind("127.0.0.1:22500") else { return testing::skip("no 127.0.0.1") };
        let mut none = ActivePorts::new(Some((22_500, 22_500)));
        let busy = none.take(&kernel, 1).unwrap_err().to_string();
        assert!(busy.starts_with("local port 22500 is in use by another program"), "{busy}");
        assert!(none.more(1).unwrap() == 0 && none.ports().is_empty());
        drop(server);
        assert!(none.take(&kernel, 1).unwrap() == 1 && none.ports().iter().eq([22_500]));
    }

    #[test]
    fn a_port_that_somebody_names_is_held() {
        let Ok(server) = std::net::TcpListener::bind("127.0.0.1:0") else { return testing::skip("no 127.0.0.1") };
        let port = server.local_addr().unwrap().port();
        let mut active = ActivePorts::new(None);
        let busy = active.hold(port).unwrap_err().to_string();
        assert!(busy.starts_with(&format!("local port {port} is in use")), "{busy}");
        drop(server);
        active.hold(port).unwrap();
        active.hold(port).unwrap();
        assert!(active.mark(port) == NAMED | HELD && active.ports().is_empty());
    }

    /// State of a port: one from which connections are opened that is `held` or `free`, one that only is `kept`, or `none`.
    fn is(active: &ActivePorts, port: u16) -> &'static str {
        match (active.ports().has(port), active.mark(port) & HELD != 0) {
            (true, true) => "held",
            (true, false) => "free",
            (false, true) => "kept",
            (false, false) => "none",
        }
    }

    /// A range that grows over ports that are used: those with connections are held, but for what others have, and the rest is left.
    #[test]
    fn ports_that_become_the_kernels_are_held_or_left() {
        let mut active = ActivePorts::new(None);
        active.take(&kernel("40000 40010", ""), STEP).unwrap();
        active.hold(7000).unwrap();
        let Ok(server) = std::net::TcpListener::bind("127.0.0.1:0") else { return testing::skip("no 127.0.0.1") };
        let taken = server.local_addr().unwrap().port();
        let chosen = |port: u16| port % 32 < 30;
        let (first, last) = (taken - 600, taken + if chosen(taken + 600) { 600 } else { 598 });
        let grown = kernel(&format!("{first} {last}"), &format!("{}", last - 1));
        // Every second one; that of the last begins a moment later.
        let used = |port: u16| port % 2 == taken % 2 && (chosen(port) || port == taken);
        active.looks = LOOKS;
        let news: Vec<PortNews> =
            (0..4).map(|_| active.follow(&grown, 256, |port| used(port) && port < last)).collect();
        let said: Vec<(bool, bool)> = news.iter().map(|news| (news.changed, news.rest)).collect();
        assert_eq!(said, [(true, true), (true, true), (true, false), (false, false)], "{news:?}");
        assert!(news.iter().all(|news| news.failed.is_none()) && active.looks == 0 && is(&active, last) == "none");
        active.looks = 1;
        active.marks[last as usize] = LOOSE;
        assert!(active.follow(&grown, 256, used).changed);
        let expected = |port: u16| match (chosen(port), grown.chooses(port), used(port) && port != taken) {
            (false, ..) | (true, true, false) => "none",
            (true, false, _) => "free",
            (true, true, true) => "held",
        };
        let all = (first - 10..=last + 10).map(|port| (port, is(&active, port), expected(port)));
        // Another test may have one for a moment.
        let wrong: Vec<_> = all.filter(|(_, is, expected)| is != expected).collect();
        assert!(wrong.len() < 5 && is(&active, taken) != "held", "{wrong:?}");
        // A port that is asked for again is asked for of the kernel.
        assert!(active.follow(&kernel("6999 7001", ""), STEP, |port| port == 7000).rest.eq(&false));
        assert_eq!((active.mark(7000) & HELD, active.ports().has(40_005)), (HELD, false));
    }

    #[test]
    fn the_machine_keeps_ports_where_all_are_used() {
        let mut active = ActivePorts::new(None);
        active.take(&kernel("40000 40010", ""), STEP).unwrap();
        active.follow(&kernel("20000 21023", ""), usize::MAX, |port| port % 32 < 30);
        let of = |what| (20_000..21_024).filter(|port| is(&active, *port) == what).count();
        // Another test may have one for a moment.
        assert!(of("none") >= 64 && of("held") > 900, "{} {}", of("none"), of("held"));
        let longest = (0..=u16::MAX).fold((0, 0), |(longest, row), port| {
            let row = if active.ports().has(port) { row + 1 } else { 0 };
            (longest.max(row), row)
        });
        assert_eq!(longest.0, 30);
    }

    #[test]
    fn ports_are_given_back_some_time_after_the_last_connection() {
        let kernel = kernel("20000 65535", "");
        let mut active = ActivePorts::new(Some((20_100, 20_199)));
        assert!(!active.are_used());
        active.take(&kernel, 50).unwrap();
        let one = *active.ports().iter().collect::<Vec<_>>().last().unwrap();
        let looks = |active: &mut ActivePorts, open: &[bool]| -> Vec<PortNews> {
            open.iter().map(|open| active.give_back(|port| *open && port == one)).collect()
        };
        let open = [false, false, false, false, true, false, false, false, false];
        assert!(looks(&mut active, &open).iter().all(|news| !news.changed && news.over.is_none()));
        assert!(looks(&mut active, &[false])[0].changed && active.ports().is_empty() && active.most() == 100);
        // A connection was about to be opened, or is wanted now: they are back.
        assert!(looks(&mut active, &[true])[0].changed);
        assert_eq!((active.ports().count(), active.most()), (50, 100));
        looks(&mut active, &[false; 5]);
        assert!(active.ports().is_empty() && active.more(10).unwrap() == 50 && active.most() == 100);
        looks(&mut active, &[false; 5]);
        active.hold(20_190).unwrap();
        assert!(looks(&mut active, &[false])[0].changed && active.ports().count() == 50);
        let news = looks(&mut active, &[false; 5]);
        assert!(news[3].changed && news[4].over.is_some());
        drop(news);
        assert!(!active.are_used() && active.ports().is_empty() && active.most() == 100);
        // By a program that shares its port with nobody.
        let alone = |port: u16| {
            use rustix::net::{AddressFamily, SocketType, bind, socket};
            let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            bind(&socket, &std::net::SocketAddr::from(([127, 0, 0, 1], port))).is_ok()
        };
        assert!((20_100..20_200).all(alone));
        assert!(active.take(&kernel, 50).unwrap() == 50 && !active.ports().iter().any(alone));
    }
}

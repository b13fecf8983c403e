//! Local ports of active opens on a machine whose kernel has its own.

use std::io;
use std::time::{Duration, Instant};

use wire::Ports;

use super::held::Held;
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

/// Ports from which connections are opened beside the kernel. None at first; then, as they are needed, those that the kernel does not
/// choose for its own sockets (outside `net.ipv4.ip_local_port_range`, or in `ip_local_reserved_ports`), and after these its own,
/// which are held by bound sockets: all but two of 32, which stay the kernel's.
///
/// A port in which others listen is no worse than another: of a port only the segments of our connections are taken.
#[derive(Debug)]
pub struct ActivePorts {
    named: Option<(u16, u16)>,
    ports: Ports,
    held: Held,
    /// Of the kernel's ports the one that is tried next, from above.
    next: u16,
    /// No look before.
    rest: Option<Instant>,
    /// Held since somebody named them; never chosen.
    asked: Ports,
    /// The kernel's that may be had beside these.
    possible: usize,
}

impl ActivePorts {
    /// No port yet; later ports from a first to a last one, where these are named.
    pub fn new(named: Option<(u16, u16)>) -> ActivePorts {
        let (ports, asked) = (Ports::default(), Ports::default());
        ActivePorts { named, ports, held: Held::default(), next: u16::MAX, rest: None, asked, possible: 0 }
    }

    /// Those that there are.
    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Number of ports that there can be, if others have none of the kernel's.
    pub fn most(&self) -> usize {
        self.ports.count() as usize + self.possible
    }

    /// Those that there are without asking: none of the kernel's.
    pub fn free(&self) -> Ports {
        let (first, last) = self.named.unwrap_or((PRIVILEGED, u16::MAX));
        let kernel = KernelPorts::read();
        (first..=last).filter(|port| !kernel.chooses(*port)).collect()
    }

    /// Takes more of them, of the kernel's own `most`; how many there were, 0 where there are none, and for a moment after that. An error
    /// tells why there is none at all, or what keeps it from the kernel's.
    pub fn more(&mut self, most: usize) -> Result<usize, PortError> {
        match self.rest.is_some_and(|rest| Instant::now() < rest) {
            true => Ok(0),
            false => self.take(&KernelPorts::read(), most),
        }
    }

    fn take(&mut self, kernel: &KernelPorts, most: usize) -> Result<usize, PortError> {
        let (first, last) = self.named.unwrap_or((PRIVILEGED, u16::MAX));
        let is_new = |port: &u16| !self.ports.has(*port);
        let free = |port: &u16| is_new(port) && !kernel.chooses(*port);
        let mut new: Vec<u16> = match self.named {
            Some(_) => (first..=last).filter(free).collect(),
            None => (LEAST..=last).filter(free).collect(),
        };
        if new.len() < most && self.named.is_none() {
            new.extend((first..LEAST).filter(free));
        }
        let mut failed = None;
        let left = |port: &u16| self.named.is_none() && port % 32 >= 30;
        let kernels = |port: &u16| is_new(port) && kernel.chooses(*port) && !left(port);
        let mut possible = (first..=last).filter(kernels).count();
        if new.len() < most {
            let next = self.next.clamp(first, last);
            let all = (first..=next).rev().chain((next..=last).skip(1).rev()).filter(kernels);
            let mut tried = next;
            let all = all.inspect(|port| tried = *port);
            let enough = !self.ports.is_empty() || !new.is_empty();
            let (held, error) = self.held.hold(all, most - new.len(), TRIES, enough);
            self.next = tried;
            failed = error;
            possible -= held.len();
            new.extend(held);
        }
        if new.is_empty() {
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
        let count = new.len();
        self.possible = possible;
        self.ports = self.ports.iter().chain(new).collect();
        Ok(count)
    }

    /// Makes sure that a connection may leave from this port, which is named by who opens it.
    pub fn hold(&mut self, port: u16) -> Result<(), PortError> {
        let known = self.ports.has(port) || self.asked.has(port);
        if known || port >= PRIVILEGED && !KernelPorts::read().chooses(port) {
            return Ok(());
        }
        match self.held.hold([port], 1, 1, true) {
            (held, _) if !held.is_empty() => {
                self.asked = self.asked.iter().chain(held).collect();
                Ok(())
            }
            (_, Some((port, source))) => Err(cannot_hold(port, source)),
            (_, None) => Err(PortError::Busy {
                what: format!("local port {port}"),
                hint: format!("`ss -tanp 'sport = :{port}'` shows which; choose another"),
            }),
        }
    }
}

fn cannot_hold(port: u16, source: io::Error) -> PortError {
    PortError::system(format!("holding local port {port}"), source, &[Capability::NetBindService])
}

/// Ports that the kernel itself chooses for its sockets.
struct KernelPorts(Ports);

impl KernelPorts {
    fn read() -> KernelPorts {
        let text = |name| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok();
        KernelPorts::parse(text("ip_local_port_range").as_deref(), text("ip_local_reserved_ports").as_deref())
    }

    /// Of the words of `ip_local_port_range` and `ip_local_reserved_ports`. Any port may be the kernel's where it is not known.
    fn parse(range: Option<&str>, reserved: Option<&str>) -> KernelPorts {
        let mut numbers = range.unwrap_or("").split_whitespace().map_while(|n| n.parse::<u16>().ok());
        let (Some(first), Some(last)) = (numbers.next(), numbers.next()) else {
            return KernelPorts(Ports::new(1, u16::MAX));
        };
        let stretch = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            Some(first.trim().parse::<u16>().ok()?..=last.trim().parse().ok()?)
        };
        let reserved: Ports = reserved.unwrap_or("").split(',').filter_map(stretch).flatten().collect();
        KernelPorts((first..=last).filter(|port| !reserved.has(*port)).collect())
    }

    fn chooses(&self, port: u16) -> bool {
        self.0.has(port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: usize = 1024;

    fn kernel(range: &str, reserved: &str) -> KernelPorts {
        KernelPorts::parse(Some(range), Some(reserved))
    }

    #[test]
    fn what_the_kernel_never_chooses_is_free() {
        let usual = kernel("32768\t60999\n", "8080,40000-49151\n");
        for (first, last, chosen) in [
            (1024, 32_767, false),
            (32_768, 39_999, true),
            (40_000, 49_151, false),
            (49_152, 60_999, true),
            (61_000, 65_535, false),
        ] {
            assert!((first..=last).all(|port| usual.chooses(port) == chosen), "{first} to {last}");
        }
        let reserved = kernel("32768 60999", "1-65535");
        assert!((1..=65_535).all(|port| !reserved.chooses(port)));
        let one = kernel("40000 40000", "");
        assert!((0..=65_535).filter(|port| one.chooses(*port)).eq([40_000]));
    }

    /// The kernel's range is not guessed.
    #[test]
    fn any_port_may_be_the_kernels_where_its_range_is_not_known() {
        for range in [None, Some(""), Some("32768"), Some("x y"), Some("1 70000")] {
            let unknown = KernelPorts::parse(range, Some("9000-9999"));
            assert!((1..=65_535).all(|port| unknown.chooses(port)), "{range:?}");
        }
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
        let free: Vec<u16> = (8192..=65_535).filter(|port| !chosen(port)).collect();
        assert!(steps[0].iter().eq(free), "{}", steps[0]);
        assert!(steps[1].iter().eq((1024..=65_535).filter(|port| !chosen(port))), "{}", steps[1]);
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
        assert!(active.asked.has(port) && active.ports().is_empty());
    }
}

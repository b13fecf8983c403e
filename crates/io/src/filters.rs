//! Receive rules of a NIC (ntuple filters): frames to a range of TCP ports go to a queue, set by ethtool's ioctl.
//!
//! `struct ethtool_rxnfc` and what follows it are handled as 32-bit words. A range is a value and a mask of the destination port, which
//! few drivers honour: most refuse a mask that leaves bits out, and some take it and compare nothing ([`take_ranges`]).

use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;

use crate::rss::{self, TCP_V4, TCP_V6};

/// Drivers of Linux whose sources compare the port under the rule's mask. Others refuse such a rule (i40e, ice, igb), or take it and
/// ignore the port (macb).
const DRIVERS: [&str; 2] = ["ixgbe", "mlx5_core"];

// Commands.
const GFLAGS: u32 = 0x25;
const COUNT: u32 = 0x2e;
const GET: u32 = 0x2f;
const LIST: u32 = 0x30;
const DELETE: u32 = 0x31;
const INSERT: u32 = 0x32;
/// Bit of GFLAGS: rules are on (`ethtool -K NAME ntuple on`).
const NTUPLE: u32 = 1 << 27;
/// Bits of a flow type that say which optional fields it has (FLOW_EXT, FLOW_MAC_EXT).
const OPTIONAL: u32 = 0xc000_0000;

// Words of struct ethtool_rxnfc.
const FLOW_TYPE: usize = 4;
const VALUE: usize = 5;
const MASK: usize = 23;
const MASK_END: usize = 41;
const COOKIE: usize = 42;
const LOCATION: usize = 44;
const RULES: usize = 46;
const LOCATIONS: usize = 47;
const WORDS: usize = 48;
/// Words from a header's first to the one whose second half is the destination port: struct ethtool_tcpip4_spec, ethtool_tcpip6_spec.
const PORT: [usize; 2] = [2, 8];
/// Rules that a driver has at most. mlx5 takes 1024, ixgbe 8190.
const MOST: u32 = 1 << 16;

/// True where the driver of an interface, as /sys under `root` shows it, has rules by range of ports.
pub fn take_ranges(root: &Path, interface: &str) -> bool {
    let driver = std::fs::read_link(root.join("sys/class/net").join(interface).join("device/driver"));
    driver.is_ok_and(|driver| driver.file_name().is_some_and(|name| DRIVERS.iter().any(|known| name == *known)))
}

/// Frames to a range of TCP ports go to a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Family: IPv6, else IPv4.
    pub ipv6: bool,
    /// First port of the range. The range is one of 2^n ports that share their high bits.
    pub first: u16,
    /// Last port of the range.
    pub last: u16,
    /// Receive queue.
    pub queue: u32,
}

impl Rule {
    /// Ports that the range has.
    pub fn ports(&self) -> RangeInclusive<u16> {
        self.first..=self.last
    }

    fn encode(&self, location: u32) -> [u32; WORDS] {
        let mut words = [0; WORDS];
        words[0] = INSERT;
        words[FLOW_TYPE] = if self.ipv6 { TCP_V6 } else { TCP_V4 };
        let at = PORT[usize::from(self.ipv6)];
        words[VALUE + at] = in_second_half(self.first);
        words[MASK + at] = in_second_half(!(self.first ^ self.last));
        words[COOKIE..LOCATION].copy_from_slice(&halves(self.queue.into()));
        words[LOCATION] = location;
        words
    }

    /// None of a rule of another kind.
    fn decode(words: &[u32; WORDS]) -> Option<Rule> {
        let ipv6 = match words[FLOW_TYPE] & !OPTIONAL {
            TCP_V4 => false,
            TCP_V6 => true,
            _ => return None,
        };
        let at = PORT[usize::from(ipv6)];
        let (first, mask) = (of_second_half(words[VALUE + at])?, of_second_half(words[MASK + at])?);
        let alone = words[MASK..MASK_END].iter().enumerate().all(|(word, mask)| word == at || *mask == 0);
        let queue = u32::try_from(u64_of([words[COOKIE], words[COOKIE + 1]])).ok()?;
        let rule = Rule { ipv6, first: first & mask, last: first | !mask, queue };
        (alone && rule.is_range()).then_some(rule)
    }

    fn is_range(&self) -> bool {
        let low = self.first ^ self.last;
        low & low.wrapping_add(1) == 0 && self.first & low == 0
    }
}

/// A port in network order, behind two bytes of another field.
fn in_second_half(port: u16) -> u32 {
    let [high, low] = port.to_be_bytes();
    u32::from_ne_bytes([0, 0, high, low])
}

/// None where the field before it is set.
fn of_second_half(word: u32) -> Option<u16> {
    match word.to_ne_bytes() {
        [0, 0, high, low] => Some(u16::from_be_bytes([high, low])),
        _ => None,
    }
}

/// A 64-bit number as it lies in two words.
fn halves(number: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = number.to_ne_bytes();
    [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
}

fn u64_of([first, second]: [u32; 2]) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// Text of the form `tcp4 32768-33791 queue 1`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tcp{} {}-{} queue {}", if self.ipv6 { 6 } else { 4 }, self.first, self.last, self.queue)
    }
}

impl FromStr for Rule {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Rule> {
        let parsed = || {
            let (family, rest) = text.split_once(' ')?;
            let (ports, queue) = rest.split_once(" queue ")?;
            let (first, last) = ports.split_once('-')?;
            let ipv6 = [("tcp4", false), ("tcp6", true)].into_iter().find(|(name, _)| *name == family)?.1;
            Some(Rule { ipv6, first: first.parse().ok()?, last: last.parse().ok()?, queue: queue.parse().ok()? })
        };
        parsed().filter(Rule::is_range).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// One request of struct ethtool_rxnfc, which is answered in place.
type Call = Box<dyn FnMut(&mut [u32]) -> io::Result<()> + Send>;

/// Rules of one interface.
pub struct Filters(Call);

impl fmt::Debug for Filters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Filters")
    }
}

impl Filters {
    /// Those of an interface of this network namespace.
    pub fn of(interface: &str) -> io::Result<Filters> {
        let (socket, name) = (rss::socket()?, interface.to_owned());
        Ok(Filters::over(Box::new(move |words| rss::ethtool(&socket, &name, words))))
    }

    /// Those behind a function that answers as ethtool's ioctl does.
    pub fn over(call: Call) -> Filters {
        Filters(call)
    }

    /// True where rules have their effect (`ethtool -K NAME ntuple on`).
    pub fn are_on(&mut self) -> io::Result<bool> {
        let mut words = [GFLAGS, 0];
        (self.0)(&mut words)?;
        Ok(words[1] & NTUPLE != 0)
    }

    /// Inserts rules in their order, up to the first that is refused. Returns the number of those that were taken, and the error. Rules
    /// that are there already are left out of `rules` before.
    pub fn insert(&mut self, rules: &[Rule]) -> (usize, Option<io::Error>) {
        let free = |filters: &mut Filters| {
            let (size, taken) = filters.locations()?;
            // From the end, as ethtool(8) does: a rule at a lower place comes before it.
            Ok((0..size).rev().filter(move |location| !taken.contains(location)))
        };
        let mut free = match free(self) {
            Ok(free) => free,
            Err(error) => return (0, Some(error)),
        };
        for (taken, rule) in rules.iter().enumerate() {
            let inserted = match free.next() {
                Some(location) => (self.0)(&mut rule.encode(location)),
                None => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            };
            if let Err(error) = inserted {
                return (taken, Some(error));
            }
        }
        (rules.len(), None)
    }

    /// Rules by range of ports, and their places. Others are left out.
    pub fn rules(&mut self) -> io::Result<Vec<(u32, Rule)>> {
        let (_, locations) = self.locations()?;
        let mut rules = Vec::new();
        for location in locations {
            let mut words = [0; WORDS];
            (words[0], words[LOCATION]) = (GET, location);
            match (self.0)(&mut words) {
                Ok(()) => rules.extend(Rule::decode(&words).map(|rule| (location, rule))),
                // Removed since.
                Err(error) if [Some(libc::ENOENT), Some(libc::EINVAL)].contains(&error.raw_os_error()) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(rules)
    }

    /// Removes the rules that `is` names. Returns their number.
    pub fn remove(&mut self, is: impl Fn(&Rule) -> bool) -> io::Result<usize> {
        let found = self.rules()?.into_iter().filter(|(_, rule)| is(rule)).map(|(location, _)| location);
        let found: Vec<u32> = found.collect();
        for location in &found {
            let mut words = [0; WORDS];
            (words[0], words[LOCATION]) = (DELETE, *location);
            (self.0)(&mut words)?;
        }
        Ok(found.len())
    }

    /// Number of places, and those that are taken.
    fn locations(&mut self) -> io::Result<(u32, Vec<u32>)> {
        let mut words = [0; WORDS];
        words[0] = COUNT;
        (self.0)(&mut words)?;
        let count = words[RULES].min(MOST);
        let mut words = vec![0; WORDS + count as usize];
        (words[0], words[RULES]) = (LIST, count);
        (self.0)(&mut words)?;
        let size = u32::try_from(u64_of([words[2], words[3]])).unwrap_or(MOST).min(MOST);
        let taken = words[LOCATIONS..].iter().copied().take(words[RULES].min(count) as usize);
        Ok((size, taken.collect()))
    }
}

#[cfg(test)]
mod tests;

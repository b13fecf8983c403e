//! The kernel's table of neighbours, as it has told of it, and what of it lanes use. Nothing is kept in that table for them: an
//! entry is used as by a packet of the kernel's own, and ages and is collected like any other.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ::io::netlink::{KernelNeighbor, Netlink, Nud};
use stack::{InterfaceId, Stack};

/// Least time between two messages to the kernel about a stale entry whose hardware address is the same.
const REST: Duration = Duration::from_secs(30);
/// Time for an answer: the kernel asks three times, a second apart, before it says that there is none (RFC 4861 10).
const ASKING: Duration = Duration::from_secs(4);
/// Least time between two lines about a full table.
const SILENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
struct Entry {
    nud: Nud,
    /// Last use that the kernel was told of, and the hardware address then.
    used: Option<(Instant, Option<[u8; 6]>)>,
}

/// The kernel's side: its own table.
pub trait Kernel {
    /// Tells of the use of a next hop, as [`Netlink::use_neighbor`].
    fn use_neighbor(&mut self, link: u32, addr: IpAddr) -> io::Result<()>;
    /// Its entry, as [`Netlink::neighbor`].
    fn neighbor(&mut self, link: u32, addr: IpAddr) -> io::Result<Option<KernelNeighbor>>;
}

impl Kernel for Netlink {
    fn use_neighbor(&mut self, link: u32, addr: IpAddr) -> io::Result<()> {
        Netlink::use_neighbor(self, link, addr)
    }

    fn neighbor(&mut self, link: u32, addr: IpAddr) -> io::Result<Option<KernelNeighbor>> {
        Netlink::neighbor(self, link, addr)
    }
}

/// News of one neighbour for lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// An entry of the kernel's table.
    Is(Nud),
    /// No room in that table.
    NoRoom,
}

impl Word {
    /// Tells a lane's stack.
    pub fn tell(self, stack: &mut Stack, now: wire::Instant, interface: InterfaceId, addr: IpAddr) {
        match self {
            Word::Is(Nud::Confirmed(mac) | Nud::Fixed(mac)) => stack.set_neighbor(now, interface, addr, mac),
            Word::Is(Nud::Stale(mac)) => stack.set_stale_neighbor(now, interface, addr, mac),
            Word::Is(Nud::Incomplete | Nud::Failed) => stack.remove_neighbor(interface, addr),
            Word::NoRoom => stack.refuse_neighbor(now, interface, addr),
        }
    }
}

/// By interface and address.
#[derive(Default)]
pub struct Neighbors {
    all: HashMap<(u32, IpAddr), Entry>,
    refused: Refused,
}

/// Uses for which the kernel's table had no room.
#[derive(Default)]
struct Refused {
    since: u64,
    warned: Option<Instant>,
}

/// An answer to a lane that uses a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Nothing need be asked: this is known.
    Known(Nud),
    /// The kernel is to be told of the use.
    Tell,
    /// The kernel's answer is to come. Lanes ask again after a second without it: then the table is looked at, since messages may
    /// be out of order.
    Look,
}

fn mac(nud: Nud) -> Option<[u8; 6]> {
    match nud {
        Nud::Confirmed(mac) | Nud::Fixed(mac) | Nud::Stale(mac) => Some(mac.0),
        Nud::Incomplete | Nud::Failed => None,
    }
}

impl Neighbors {
    /// The kernel's word on one of them.
    pub fn told(&mut self, n: &KernelNeighbor) {
        let key = (n.link, n.addr);
        if n.nud == Nud::Failed {
            self.all.remove(&key);
            return;
        }
        let entry = self.all.entry(key).or_insert(Entry { nud: n.nud, used: None });
        entry.nud = n.nud;
        // An answer to the use.
        if let Some((_, was @ None)) = &mut entry.used {
            *was = mac(n.nud);
        }
    }

    /// The kernel's whole table, in place of what it has told before.
    pub fn replace(&mut self, all: &[KernelNeighbor]) {
        let before = std::mem::take(&mut self.all);
        for n in all {
            self.told(n);
        }
        for (key, entry) in &mut self.all {
            entry.used = before.get(key).and_then(|e| e.used);
        }
    }

    /// A lane uses a next hop that it does not know, or knows as stale; what to tell all lanes now. An answer that is to come is
    /// told by the kernel as a change of its table. `behind`: changes wait that were not told yet, so the table is looked at first;
    /// an entry that the administrator has made since is none to use.
    pub fn uses(
        &mut self,
        now: Instant,
        link: u32,
        addr: IpAddr,
        behind: bool,
        kernel: &mut impl Kernel,
    ) -> io::Result<Option<Word>> {
        if behind
            && self.wants(now, link, addr) == Use::Tell
            && let Some(n) = kernel.neighbor(link, addr)?
        {
            self.told(&n);
        }
        match self.wants(now, link, addr) {
            Use::Known(nud) => Ok(Some(Word::Is(nud))),
            Use::Look => {
                let found = kernel.neighbor(link, addr)?.filter(|n| mac(n.nud).is_some());
                Ok(found.map(|n| {
                    self.told(&n);
                    Word::Is(n.nud)
                }))
            }
            Use::Tell => match kernel.use_neighbor(link, addr) {
                Ok(()) => Ok(self.used(now, link, addr).map(Word::Is)),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    if let Some(line) = self.refused(now, addr, Table::of) {
                        tracing::warn!("{line}");
                    }
                    Ok(Some(Word::NoRoom))
                }
                Err(error) => Err(error),
            },
        }
    }

    fn wants(&self, now: Instant, link: u32, addr: IpAddr) -> Use {
        let Some(entry) = self.all.get(&(link, addr)) else { return Use::Tell };
        let since = entry.used.map(|(at, mac)| (now.saturating_duration_since(at), mac));
        match (entry.nud, since) {
            (Nud::Confirmed(_) | Nud::Fixed(_), _) => Use::Known(entry.nud),
            (Nud::Incomplete | Nud::Failed, Some((since, _))) if since < ASKING => Use::Look,
            // A client costs one message each half a minute; one that has moved is looked at at once.
            (Nud::Stale(_), Some((since, was))) if since < REST && was == mac(entry.nud) => Use::Known(entry.nud),
            (Nud::Stale(_) | Nud::Incomplete | Nud::Failed, _) => Use::Tell,
        }
    }

    /// The kernel was told of the use of a next hop; what lanes may take it for. Of one that was stale it says what it finds
    /// (NUD_DELAY): its address serves until then.
    fn used(&mut self, now: Instant, link: u32, addr: IpAddr) -> Option<Nud> {
        let entry = self.all.entry((link, addr)).or_insert(Entry { nud: Nud::Incomplete, used: None });
        if let Nud::Stale(mac) = entry.nud {
            entry.nud = Nud::Confirmed(mac);
        }
        entry.used = Some((now, mac(entry.nud)));
        (entry.nud != Nud::Incomplete).then_some(entry.nud)
    }

    /// The kernel's table had no room for a next hop; a line for the user, now and then.
    fn refused(&mut self, now: Instant, addr: IpAddr, table: impl FnOnce(IpAddr) -> Table) -> Option<String> {
        self.refused.since += 1;
        if self.refused.warned.is_some_and(|at| now.saturating_duration_since(at) < SILENCE) {
            return None;
        }
        self.refused.warned = Some(now);
        let refused = std::mem::take(&mut self.refused.since);
        let family = if addr.is_ipv4() { "ipv4" } else { "ipv6" };
        let name = format!("net.{family}.neigh.default.gc_thresh3");
        let Table { entries, limit } = table(addr);
        let entries = entries.map_or(String::new(), |n| format!(" at {n} entries"));
        // Its sysctls are not shown in other network namespaces than the first, which count in the same table.
        let (limit, more, place) = match limit {
            Some(limit) => (format!("{name} is {limit}"), (limit * 4).to_string(), ""),
            None => (format!("{name} of the machine"), "65536".to_string(), " in its first network namespace"),
        };
        Some(format!(
            "the kernel's table of neighbours is full{entries} ({limit}), for everything on this machine: {addr} was not \
             resolved ({refused} refused since the last such line); `sysctl -w {name}={more}`{place} makes room"
        ))
    }
}

/// The kernel's table of neighbours of one family, which all network namespaces share; `None` where it cannot be read.
struct Table {
    entries: Option<u64>,
    limit: Option<u64>,
}

impl Table {
    /// Of this address's family.
    fn of(addr: IpAddr) -> Table {
        let (cache, family) = if addr.is_ipv4() { ("arp_cache", "ipv4") } else { ("ndisc_cache", "ipv6") };
        let read = |path: String| -> io::Result<String> { std::fs::read_to_string(path) };
        let stat = read(format!("/proc/net/stat/{cache}")).ok();
        // A line of names, then one for each CPU, in hexadecimal, of which each begins with the number of entries.
        let entries = stat.and_then(|s| u64::from_str_radix(s.lines().nth(1)?.split_whitespace().next()?, 16).ok());
        // Only in the first network namespace.
        let limit = read(format!("/proc/sys/net/{family}/neigh/default/gc_thresh3")).ok();
        Table { entries, limit: limit.and_then(|s| s.trim().parse().ok()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::MacAddr;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn addr(n: u32) -> IpAddr {
        std::net::Ipv4Addr::from(0x0a00_0000 + n).into()
    }

    fn neighbor(n: u32, nud: Nud) -> KernelNeighbor {
        KernelNeighbor { link: 1, addr: addr(n), nud }
    }

    #[test]
    fn a_client_costs_one_message_each_half_minute() {
        let (mut n, begin) = (Neighbors::default(), Instant::now());
        let at = |s| begin + Duration::from_secs(s);
        let mut messages = 0;
        n.told(&neighbor(1, Nud::Stale(MAC)));
        // Three lanes use it each second; the kernel confirms it after five, for fifteen.
        let mut confirms = None;
        for s in 0..3_000 {
            if confirms == Some(s) {
                n.told(&neighbor(1, Nud::Confirmed(MAC)));
            } else if confirms.is_some_and(|at| at + 15 == s) {
                n.told(&neighbor(1, Nud::Stale(MAC)));
                confirms = None;
            }
            for _lane in 0..3 {
                match n.wants(at(s), 1, addr(1)) {
                    Use::Tell => {
                        messages += 1;
                        confirms = Some(s + 5);
                        assert_eq!(n.used(at(s), 1, addr(1)), Some(Nud::Confirmed(MAC)));
                    }
                    Use::Known(nud) => assert_eq!(mac(nud), Some(MAC.0)),
                    Use::Look => panic!("its address is known"),
                }
            }
        }
        assert_eq!(messages, 100);
    }

    #[test]
    fn one_that_has_moved_is_looked_at_at_once() {
        let (mut n, now) = (Neighbors::default(), Instant::now());
        n.told(&neighbor(1, Nud::Stale(MAC)));
        n.used(now, 1, addr(1));
        n.told(&neighbor(1, Nud::Stale(MAC)));
        assert_eq!(n.wants(now, 1, addr(1)), Use::Known(Nud::Stale(MAC)));
        n.told(&neighbor(1, Nud::Stale(OTHER)));
        assert_eq!(n.wants(now, 1, addr(1)), Use::Tell);
        // The administrator's word is not the kernel's to doubt.
        n.told(&neighbor(1, Nud::Fixed(OTHER)));
        assert_eq!(n.wants(now, 1, addr(1)), Use::Known(Nud::Fixed(OTHER)));
    }

    #[test]
    fn one_that_is_asked_for_is_not_asked_for_again() {
        let (mut n, now) = (Neighbors::default(), Instant::now());
        assert_eq!(n.wants(now, 1, addr(1)), Use::Tell);
        assert_eq!(n.used(now, 1, addr(1)), None);
        assert_eq!(n.wants(now + Duration::from_secs(1), 1, addr(1)), Use::Look);
        // Nobody answers, or the kernel's word was lost.
        assert_eq!(n.wants(now + ASKING, 1, addr(1)), Use::Tell);
        n.used(now, 1, addr(1));
        n.told(&neighbor(1, Nud::Failed));
        assert_eq!((n.wants(now, 1, addr(1)), n.all.len()), (Use::Tell, 0));
        // Of another interface is another one.
        n.told(&neighbor(1, Nud::Confirmed(MAC)));
        assert_eq!(n.wants(now, 2, addr(1)), Use::Tell);
    }

    #[test]
    fn a_table_read_whole_keeps_when_entries_were_used() {
        let (mut n, now) = (Neighbors::default(), Instant::now());
        n.told(&neighbor(1, Nud::Stale(MAC)));
        n.told(&neighbor(2, Nud::Stale(MAC)));
        n.used(now, 1, addr(1));
        n.replace(&[neighbor(1, Nud::Stale(MAC)), neighbor(3, Nud::Stale(MAC))]);
        assert_eq!(n.wants(now, 1, addr(1)), Use::Known(Nud::Stale(MAC)));
        assert_eq!((n.wants(now, 1, addr(3)), n.all.len()), (Use::Tell, 2));
    }

    #[test]
    fn a_full_table_is_told_of_once_a_minute() {
        let (mut n, now) = (Neighbors::default(), Instant::now());
        let table = |_| Table { entries: Some(1023), limit: Some(1024) };
        let line = n.refused(now, addr(1), table).expect("the first one");
        for part in ["at 1023 entries", "net.ipv4.neigh.default.gc_thresh3 is 1024", "gc_thresh3=4096`", "(1 refused"] {
            assert!(line.contains(part), "{part:?} in {line:?}");
        }
        for ms in 0..59_000 {
            assert_eq!(n.refused(now + Duration::from_millis(ms), addr(2), table), None);
        }
        let line = n.refused(now + SILENCE, addr(3), |_| Table { entries: None, limit: None }).expect("a minute later");
        assert!(line.contains("(59001 refused") && line.contains("gc_thresh3=65536` in its first"), "{line:?}");
    }
}

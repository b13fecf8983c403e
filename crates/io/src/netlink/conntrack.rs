//! The kernel's connection tracking (ctnetlink), and the NAT that draws ports by it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::{
    CREATE, EXCLUSIVE, NLMSG_ERROR, Netlink, attribute, attributes, messages, nested, text, u32_at, write_message,
};

const CT_NEW: u16 = 1 << 8;
const GET_TABLE: u16 = 10 << 8 | 1;
const GET_CHAIN: u16 = 10 << 8 | 4;
const NFTA_TABLE_NAME: u16 = 1;
const NFTA_CHAIN_TYPE: u16 = 7;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_PROTOINFO: u16 = 4;
const CTA_TIMEOUT: u16 = 7;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const CTA_PROTOINFO_TCP: u16 = 1;
const CTA_PROTOINFO_TCP_STATE: u16 = 1;
const TCP_CONNTRACK_ESTABLISHED: u8 = 3;
/// Bytes of a netfilter message before its attributes (`struct nfgenmsg`).
const NFGENMSG: usize = 4;
/// Entries of one system call: with as many errors they fit into a socket's buffers as they are.
const BATCH: usize = 128;

/// Local and remote end of a connection.
pub type Ends = (SocketAddr, SocketAddr);

/// Names of nftables' tables, of all families.
pub(crate) fn nft_tables() -> io::Result<Vec<String>> {
    let mut tables = Vec::new();
    nft(GET_TABLE, |b| {
        tables.extend(attributes(b, NFGENMSG).find(|(kind, _)| *kind == NFTA_TABLE_NAME).map(|(_, name)| text(name)));
    })?;
    Ok(tables)
}

/// Calls `f` for each answer to a dump of nftables.
fn nft(kind: u16, mut f: impl FnMut(&[u8])) -> io::Result<()> {
    Netlink::with_groups(libc::NETLINK_NETFILTER, 0)?.dump(kind, &[0; NFGENMSG], |_, b| f(b))
}

/// True where the network namespace has NAT: a chain of nftables (or of iptables over it) of that type, or iptables' own table.
/// Errors: EPERM without CAP_NET_ADMIN.
pub fn nat_is_used() -> io::Result<bool> {
    // A question to nftables would load its module where nothing is tracked at all.
    if !Path::new(COUNT).exists() {
        return Ok(false);
    }
    let has_nat = |file: &str| std::fs::read_to_string(file).is_ok_and(|tables| tables.lines().any(|t| t == "nat"));
    if has_nat("/proc/net/ip_tables_names") || has_nat("/proc/net/ip6_tables_names") {
        return Ok(true);
    }
    let mut found = false;
    let asked = nft(GET_CHAIN, |b| {
        found |= attributes(b, NFGENMSG).any(|(kind, name)| kind == NFTA_CHAIN_TYPE && text(name) == "nat");
    });
    match asked {
        // A kernel without nftables.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        other => other.map(|()| found),
    }
}

const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
const MOST: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

/// A socket for entries of connections that the kernel does not see.
#[derive(Debug)]
pub struct Conntrack(Netlink);

impl Conntrack {
    /// A socket.
    pub fn open() -> io::Result<Conntrack> {
        Netlink::with_groups(libc::NETLINK_NETFILTER, 0).map(Conntrack)
    }

    /// Entries that the table may be given: half of it stays the machine's.
    pub fn room() -> usize {
        let read = |file| std::fs::read_to_string(file).ok()?.trim().parse::<usize>().ok();
        let (Some(count), Some(most)) = (read(COUNT), read(MOST)) else { return 0 };
        (most / 2).saturating_sub(count)
    }

    /// Enters connections for `time`, as established ones that may be dropped where the table is full. `again` says that they are there,
    /// and stay longer. Places of those that are not entered are added to `refused`, in their order: somebody else has the tuple, or
    /// there is an error. Errors: EPERM without CAP_NET_ADMIN, ENOMEM where there is no room; those of send(2) and recv(2).
    pub fn enter(&mut self, flows: &[Ends], time: Duration, again: bool, refused: &mut Vec<usize>) -> io::Result<()> {
        let flags = if again { CREATE } else { CREATE | EXCLUSIVE };
        let (all, mut failed) = (flows.len(), None);
        for (batch, flows) in flows.chunks(BATCH).enumerate() {
            let mut b = Vec::with_capacity(flows.len() * 224);
            let first = self.0.sequence.wrapping_add(1);
            for flow in flows {
                self.0.sequence = self.0.sequence.wrapping_add(1);
                write_message(&mut b, CT_NEW, flags, self.0.sequence, |b| write_entry(b, flow, time));
            }
            // The kernel has done all when it comes back, and tells of errors alone.
            if let Err(error) = send(&self.0.fd, &b, SendFlags::empty()) {
                refused.extend(batch * BATCH..all);
                return Err(error.into());
            }
            for (sequence, error) in self.errors()? {
                let at = sequence.wrapping_sub(first) as usize;
                if at < flows.len() {
                    refused.push(batch * BATCH + at);
                    failed = (error != libc::EEXIST).then_some(error).or(failed);
                }
            }
        }
        failed.map_or(Ok(()), |error| Err(io::Error::from_raw_os_error(error)))
    }

    /// Errors that wait, by the number of the message.
    fn errors(&mut self) -> io::Result<Vec<(u32, i32)>> {
        let mut buf = [0; 8192];
        let mut all = Vec::new();
        loop {
            match recv(&self.0.fd, &mut buf[..], RecvFlags::DONTWAIT) {
                Ok((n, _)) => all.extend(
                    messages(&buf[..n])
                        .filter(|(kind, ..)| *kind == NLMSG_ERROR)
                        .map(|(_, _, sequence, body)| (sequence, -(u32_at(body, 0) as i32)))
                        .filter(|(_, error)| *error != 0),
                ),
                Err(rustix::io::Errno::AGAIN) => return Ok(all),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// `struct nfgenmsg`, and both directions of a connection.
fn write_entry(b: &mut Vec<u8>, (local, remote): &Ends, time: Duration) {
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    b.extend([family as u8, 0, 0, 0]);
    write_tuple(b, CTA_TUPLE_ORIG, local, remote);
    write_tuple(b, CTA_TUPLE_REPLY, remote, local);
    attribute(b, CTA_TIMEOUT, &(time.as_secs() as u32).to_be_bytes());
    nested(b, CTA_PROTOINFO, |b| {
        nested(b, CTA_PROTOINFO_TCP, |b| attribute(b, CTA_PROTOINFO_TCP_STATE, &[TCP_CONNTRACK_ESTABLISHED]));
    });
}

fn write_tuple(b: &mut Vec<u8>, kind: u16, from: &SocketAddr, to: &SocketAddr) {
    nested(b, kind, |b| {
        nested(b, CTA_TUPLE_IP, |b| {
            for (at, end) in [from, to].into_iter().enumerate() {
                // CTA_IP_V4_SRC, CTA_IP_V4_DST, CTA_IP_V6_SRC, CTA_IP_V6_DST
                match end.ip() {
                    IpAddr::V4(addr) => attribute(b, 1 + at as u16, &addr.octets()),
                    IpAddr::V6(addr) => attribute(b, 3 + at as u16, &addr.octets()),
                }
            }
        });
        nested(b, CTA_TUPLE_PROTO, |b| {
            attribute(b, CTA_PROTO_NUM, &[libc::IPPROTO_TCP as u8]);
            attribute(b, CTA_PROTO_SRC_PORT, &from.port().to_be_bytes());
            attribute(b, CTA_PROTO_DST_PORT, &to.port().to_be_bytes());
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Local and remote ports of the table's entries of a destination port, and the seconds that they stay.
    fn entries(port: u16) -> Vec<(u16, u32)> {
        let mut all = Vec::new();
        let find = |b: &[u8], kinds: &[u16]| {
            kinds
                .iter()
                .try_fold(b.to_vec(), |b, kind| attributes(&b, 0).find(|(k, _)| k == kind).map(|(_, v)| v.to_vec()))
        };
        let mut netlink = Netlink::with_groups(libc::NETLINK_NETFILTER, 0).unwrap();
        let dumped = netlink.dump(CT_NEW | 1, &[0; NFGENMSG], |_, b| {
            let b = &b[NFGENMSG..];
            let port_of = |kind| {
                Some(u16::from_be_bytes(find(b, &[CTA_TUPLE_ORIG, CTA_TUPLE_PROTO, kind])?[..].try_into().ok()?))
            };
            if port_of(CTA_PROTO_DST_PORT) == Some(port) {
                let left = find(b, &[CTA_TIMEOUT]).unwrap();
                all.push((port_of(CTA_PROTO_SRC_PORT).unwrap(), u32::from_be_bytes(left[..].try_into().unwrap())));
            }
        });
        dumped.unwrap();
        all.sort();
        all
    }

    #[test]
    fn entries_are_made_once_and_stay_longer_when_asked() {
        let Ok(mut conntrack) = Conntrack::open() else { return testing::skip("no netfilter") };
        let time = Duration::from_secs;
        // A port that no other test's connections go to.
        let flow = |local: &str, port, remote: &str| {
            (SocketAddr::new(local.parse().unwrap(), port), SocketAddr::new(remote.parse().unwrap(), 9))
        };
        let of = |ports: std::ops::Range<u16>| ports.map(|port| flow("10.9.9.1", port, "10.9.9.2")).collect::<Vec<_>>();
        let mut refused = Vec::new();
        match conntrack.enter(&of(2000..2300), time(2), false, &mut refused) {
            Err(error) if [Some(libc::EPERM), Some(libc::EINVAL)].contains(&error.raw_os_error()) => {
                return testing::skip(format!("no ctnetlink: {error}"));
            }
            entered => entered.unwrap(),
        }
        conntrack.enter(&[flow("fd99::1", 3000, "fd99::2")], time(2), false, &mut refused).unwrap();
        assert_eq!((refused.len(), entries(9).len()), (0, 301));
        // Others go on; and a connection is taken in either direction.
        conntrack.enter(&of(2295..2305), time(2), false, &mut refused).unwrap();
        assert_eq!((std::mem::take(&mut refused), entries(9).len()), (vec![0, 1, 2, 3, 4], 306));
        conntrack.enter(&of(2000..2300), time(2), false, &mut refused).unwrap();
        assert_eq!(std::mem::take(&mut refused), (0..300).collect::<Vec<_>>());
        let (local, remote) = flow("10.9.9.1", 2000, "10.9.9.2");
        conntrack.enter(&[(remote, local)], time(2), false, &mut refused).unwrap();
        assert_eq!(std::mem::take(&mut refused), [0]);
        conntrack.enter(&of(2000..2200), time(1000), true, &mut refused).unwrap();
        assert_eq!((refused.len(), entries(9).len()), (0, 306));
        let long: Vec<u16> = entries(9).into_iter().filter(|(_, left)| *left > 900).map(|(port, _)| port).collect();
        assert_eq!(long, (2000..2200).collect::<Vec<_>>());
        conntrack.enter(&of(2000..2200), time(0), true, &mut refused).unwrap();
    }

    #[test]
    fn half_of_the_table_stays_the_machines() {
        let Ok(most) = std::fs::read_to_string(MOST) else { return testing::skip("no connection tracking") };
        let most: usize = most.trim().parse().unwrap();
        assert!((1..=most / 2).contains(&Conntrack::room()), "{} of {most}", Conntrack::room());
    }
}

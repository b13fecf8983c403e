//! Neighbours in the kernel's table, and their use.

use std::io;
use std::net::IpAddr;

use wire::MacAddr;

use super::{ACK, CREATE, Netlink, RTM_GETNEIGH, RTM_NEWNEIGH, attribute, attributes, ip, u16_at, u32_at};

/// Neighbour unreachability detection: how far the kernel trusts a neighbour's hardware address (RFC 4861 7.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nud {
    /// NUD_REACHABLE, and NUD_DELAY and NUD_PROBE, whose end the kernel tells.
    Confirmed(MacAddr),
    /// NUD_PERMANENT and NUD_NOARP: the administrator's word.
    Fixed(MacAddr),
    /// NUD_STALE: usable, and confirmed by the kernel only once it is used.
    Stale(MacAddr),
    /// NUD_NONE and NUD_INCOMPLETE: no answer yet.
    Incomplete,
    /// NUD_FAILED, or no entry: nobody answers, or nobody was asked.
    Failed,
}

/// A next hop in the kernel's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelNeighbor {
    /// Number of its interface.
    pub link: u32,
    /// IP address.
    pub addr: IpAddr,
    /// Hardware address, and how far it is to be trusted.
    pub nud: Nud,
}

const NUD_REACHABLE: u16 = 0x02;
const NUD_STALE: u16 = 0x04;
const NUD_DELAY: u16 = 0x08;
const NUD_PROBE: u16 = 0x10;
const NUD_FAILED: u16 = 0x20;
const NUD_NOARP: u16 = 0x40;
const NUD_PERMANENT: u16 = 0x80;
const NTF_USE: u8 = 1;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;

impl Netlink {
    /// All neighbours.
    pub fn neighbors(&mut self) -> io::Result<Vec<KernelNeighbor>> {
        let mut all = Vec::new();
        self.dump(RTM_GETNEIGH, &[0; 12], |kind, b| {
            if kind == RTM_NEWNEIGH {
                all.extend(neighbor(b));
            }
        })?;
        Ok(all)
    }

    /// Tells the kernel that a next hop is used, as by a packet of its own: one that is not known it asks for, one that is stale
    /// it confirms, and neither outlives its use. Not for [`Nud::Fixed`], which it would take for learned from then on.
    /// Errors: ENOBUFS where its table is full, ENETDOWN, ENODEV.
    pub fn use_neighbor(&mut self, link: u32, addr: IpAddr) -> io::Result<()> {
        self.send(RTM_NEWNEIGH, ACK | CREATE, &request(link, addr, NTF_USE))?;
        self.collect(&mut Vec::new()).map(drop)
    }

    /// The table's entry of one next hop.
    pub fn neighbor(&mut self, link: u32, addr: IpAddr) -> io::Result<Option<KernelNeighbor>> {
        let answer = self.one(RTM_GETNEIGH, &request(link, addr, 0), libc::ENOENT)?;
        Ok(answer.iter().filter(|(kind, _)| *kind == RTM_NEWNEIGH).find_map(|(_, b)| neighbor(b)))
    }
}

/// `ndmsg` (family, …, ifindex, state, flags, type) with its destination.
fn request(link: u32, addr: IpAddr, flags: u8) -> Vec<u8> {
    let mut body = vec![0; 12];
    body[0] = if addr.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 };
    body[4..8].copy_from_slice(&link.to_ne_bytes());
    body[10] = flags;
    match addr {
        IpAddr::V4(a) => attribute(&mut body, NDA_DST, &a.octets()),
        IpAddr::V6(a) => attribute(&mut body, NDA_DST, &a.octets()),
    }
    body
}

/// The neighbour of a message's body.
pub(super) fn neighbor(b: &[u8]) -> Option<KernelNeighbor> {
    // A bridge's and a VXLAN's forwarding entries (AF_BRIDGE) are hardware addresses, whose destination is a tunnel's end.
    if !b.first().is_some_and(|family| [libc::AF_INET, libc::AF_INET6].contains(&i32::from(*family))) {
        return None;
    }
    let state = u16_at(b, 8);
    let (mut addr, mut mac) = (None, None);
    for (kind, v) in attributes(b, 12) {
        match kind {
            NDA_DST => addr = Some(ip(v)?),
            NDA_LLADDR => mac = v.try_into().ok().map(MacAddr),
            _ => {}
        }
    }
    let nud = match mac {
        Some(mac) if state & (NUD_PERMANENT | NUD_NOARP) != 0 => Nud::Fixed(mac),
        Some(mac) if state & (NUD_REACHABLE | NUD_DELAY | NUD_PROBE) != 0 => Nud::Confirmed(mac),
        Some(mac) if state & NUD_STALE != 0 => Nud::Stale(mac),
        _ if state & NUD_FAILED != 0 => Nud::Failed,
        _ => Nud::Incomplete,
    };
    Some(KernelNeighbor { link: u32_at(b, 4), addr: addr?, nud })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_told_apart() {
        let of_family = |family: i32, state: u16, mac: &[u8]| {
            let mut b = vec![family as u8, 0, 0, 0, 7, 0, 0, 0];
            b.extend(state.to_ne_bytes());
            b.extend([0, 0]);
            attribute(&mut b, NDA_DST, &[10, 0, 0, 1]);
            attribute(&mut b, NDA_LLADDR, mac);
            let KernelNeighbor { link: 7, addr, nud } = neighbor(&b)? else { panic!("of link 7") };
            assert_eq!(addr, IpAddr::from([10, 0, 0, 1]));
            Some(nud)
        };
        let told = |state, mac: &[u8]| of_family(libc::AF_INET, state, mac);
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        for (state, nud) in [
            (NUD_REACHABLE, Nud::Confirmed(mac)),
            (NUD_DELAY, Nud::Confirmed(mac)),
            (NUD_PROBE, Nud::Confirmed(mac)),
            (NUD_STALE, Nud::Stale(mac)),
            (NUD_PERMANENT, Nud::Fixed(mac)),
            (NUD_NOARP, Nud::Fixed(mac)),
            // An entry that failed keeps its last address.
            (NUD_FAILED, Nud::Failed),
            (1, Nud::Incomplete),
            (0, Nud::Incomplete),
        ] {
            assert_eq!(told(state, &mac.0), Some(nud), "{state:#x}");
        }
        // No Ethernet address.
        assert_eq!(told(NUD_REACHABLE, &[1, 2, 3, 4]), Some(Nud::Incomplete));
        assert_eq!(neighbor(&[0; 12]), None);
        // A VXLAN's forwarding entry.
        assert_eq!(of_family(libc::AF_BRIDGE, NUD_PERMANENT, &mac.0), None);
    }
}

//! Interfaces: addresses, and what waits to leave through each.

use core::net::IpAddr;
use std::collections::VecDeque;

use foldhash::HashMap;
use wire::burst::TxCaps;
use wire::{Addr, Instant, MacAddr};

use crate::link::autoconf::Autoconf;
use crate::link::replies::{Raw, Reply};
use crate::schedule::queues::Waiters;

/// Who answers for the interface's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// We do: ARP, NDP and ICMP echo are answered here, next hops resolved here.
    Dedicated,
    /// The kernel does, and tells us its neighbours.
    Shared,
}

/// An interface as the runtime describes it.
#[derive(Clone, Debug)]
pub struct InterfaceConfig {
    /// For messages and statistics.
    pub name: String,
    /// Our hardware address.
    pub mac: MacAddr,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Frames carry this 802.1Q tag.
    pub vlan: Option<u16>,
    /// Who answers for its addresses.
    pub mode: Mode,
    /// What its transmit side can do.
    pub caps: TxCaps,
    /// In dedicated mode: how often an address is asked for before it is ours (RFC 4862 5.1, RFC 5227 1.1); 0 believes
    /// that nobody else has it.
    pub dad: u8,
    /// In dedicated mode: form a link-local address, look for routers and believe them (RFC 4861 6.3, RFC 4862 5).
    pub autoconf: bool,
}

/// How far an address is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Being asked for, `left` more times: not used yet (RFC 4862 5.4, RFC 5227 2.1).
    Tentative { left: u8, next: Instant },
    /// Ours; `left` announcements are still to be made (RFC 5227 2.3).
    Ours { left: u8, next: Instant },
    /// Somebody else's.
    Duplicate,
}

/// An address of an interface.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    pub addr: Addr,
    pub prefix: u8,
    pub phase: Phase,
    /// Not for new connections after this (RFC 4862 5.5.4).
    pub preferred: Instant,
    pub deprecated: bool,
    /// Gone after this.
    pub valid: Instant,
    /// Formed here, after so many that somebody else had (RFC 7217 5's DAD_Counter).
    pub formed: Option<u8>,
}

impl Address {
    /// An address for ever; asked for `dad` times first.
    pub fn new(addr: Addr, prefix: u8, dad: u8) -> Address {
        let phase = match dad {
            0 => Phase::Ours { left: 0, next: Instant::FAR },
            left => Phase::Tentative { left, next: Instant::ZERO },
        };
        let (preferred, valid) = (Instant::FAR, Instant::FAR);
        Address { addr, prefix, phase, preferred, deprecated: false, valid, formed: None }
    }
}

/// RFC 6724 5's rules 2 and 3, whether nobody else has it, and rule 8: bits shared.
type Rank = (bool, bool, bool, u32);

impl Address {
    fn speaks_to(&self, to: Addr) -> bool {
        self.addr.is_v4() == to.is_v4() && self.phase != Phase::Duplicate
    }

    fn rank(&self, to: Addr) -> Rank {
        let bits = |a: Addr| u128::from_be_bytes(a.octets());
        let ours = matches!(self.phase, Phase::Ours { .. });
        let scope = self.addr.is_link_local() == to.is_link_local();
        (scope, ours, !self.deprecated, (bits(self.addr) ^ bits(to)).leading_zeros())
    }
}

/// No link is taken to carry less: the headers of IPv6 and TCP with all options, and a little text.
pub(crate) const LEAST_MTU: u16 = 148;

/// The addresses of an interface: a list, and an index into it, since every segment asks.
#[derive(Default)]
pub(crate) struct Addresses {
    list: Vec<Address>,
    /// Those that are ours or about to be, and which of the two; `None` after a change, until somebody asks.
    index: Option<HashMap<Addr, bool>>,
}

impl Addresses {
    /// The list, to change.
    pub fn edit(&mut self) -> &mut Vec<Address> {
        self.index = None;
        &mut self.list
    }

    /// Whether packets may come to `dst` from `src`: it is ours and the other is not, nor about to be.
    #[inline(always)]
    pub fn admits(&mut self, src: Addr, dst: Addr) -> bool {
        match &self.list[..] {
            [only] => only.addr == dst && matches!(only.phase, Phase::Ours { .. }) && src != dst,
            _ => self.admits_among(src, dst),
        }
    }

    fn admits_among(&mut self, src: Addr, dst: Addr) -> bool {
        let list = &self.list;
        let index = self.index.get_or_insert_with(|| {
            let known = list.iter().filter(|a| a.phase != Phase::Duplicate);
            known.map(|a| (a.addr, matches!(a.phase, Phase::Ours { .. }))).collect()
        });
        index.get(&dst) == Some(&true) && !index.contains_key(&src)
    }
}

impl core::ops::Deref for Addresses {
    type Target = [Address];
    fn deref(&self) -> &[Address] {
        &self.list
    }
}

pub(crate) struct Interface {
    pub config: InterfaceConfig,
    pub(super) addresses: Addresses,
    pub(super) auto: Autoconf,
    /// What waits to leave for no connection, and the frames among it.
    pub(super) replies: VecDeque<Reply>,
    pub(super) frames: VecDeque<Raw>,
}

impl Interface {
    pub fn new(mut config: InterfaceConfig) -> Interface {
        config.mtu = config.mtu.max(LEAST_MTU);
        if config.mode == Mode::Shared {
            (config.dad, config.autoconf) = (0, false);
        }
        Interface {
            config,
            addresses: Addresses::default(),
            auto: Autoconf::default(),
            replies: VecDeque::with_capacity(512),
            frames: VecDeque::new(),
        }
    }

    #[inline(always)]
    pub fn mac(&self) -> MacAddr {
        self.config.mac
    }

    /// The 802.1Q tag of its frames.
    #[inline(always)]
    pub fn vlan(&self) -> Option<u16> {
        self.config.vlan
    }

    /// Whether we, and not the kernel, answer for its addresses.
    pub fn is_dedicated(&self) -> bool {
        self.config.mode == Mode::Dedicated
    }

    /// The hop limit that IPv6's routers suggest.
    pub fn hop_limit(&self) -> u8 {
        self.auto.hop_limit
    }

    /// Whether some address is being asked for: its connections wait.
    #[inline(always)]
    pub fn is_asking(&self) -> bool {
        self.auto.asking
    }

    /// Connections that wait until it is decided about their addresses, for checks.
    pub fn held(&self) -> &Waiters {
        &self.auto.held
    }

    /// Whether frames wait to leave for no connection.
    #[inline(always)]
    pub fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Its addresses, each with whether packets may come to and go from it now.
    pub fn addresses(&self) -> impl Iterator<Item = (IpAddr, bool)> {
        self.addresses.iter().map(|a| (a.addr.to_ip(), matches!(a.phase, Phase::Ours { .. })))
    }

    /// Whether packets may come to and go from `addr`.
    pub fn has(&self, addr: Addr) -> bool {
        self.addresses.iter().any(|a| a.addr == addr && matches!(a.phase, Phase::Ours { .. }))
    }

    /// Whether `addr` is ours or is about to be.
    pub fn owns(&self, addr: Addr) -> bool {
        self.addresses.iter().any(|a| a.addr == addr && a.phase != Phase::Duplicate)
    }

    pub fn address(&self, addr: Addr) -> Option<&Address> {
        self.addresses.iter().find(|a| a.addr == addr)
    }

    /// Whether `to` is a neighbour by the prefixes of our addresses. Those that were formed here say nothing of what is on the
    /// link (RFC 5942 4).
    pub fn reaches(&self, to: Addr) -> bool {
        let told = |a: &Address| a.phase != Phase::Duplicate && (a.formed.is_none() || a.addr.is_link_local());
        let covers = |a: &Address| {
            a.addr.is_v4() == to.is_v4() && network(a.addr.to_ip(), a.prefix) == network(to.to_ip(), a.prefix)
        };
        self.addresses.iter().any(|a| told(a) && covers(a))
    }

    /// Largest packet towards `to`: routers may say less than the link (RFC 4861 6.3.4).
    pub fn mtu(&self, to: Addr) -> u16 {
        if to.is_v4() { self.config.mtu } else { self.config.mtu.min(self.auto.mtu) }
    }

    /// The address to speak from towards `to`: same family, link-local only to link-local, not deprecated, longest common
    /// prefix (RFC 6724 5, rules 2, 3 and 8). One that is still being asked for is taken where there is no other.
    pub fn source_for(&self, to: Addr) -> Option<Addr> {
        self.addresses.iter().filter(|a| a.speaks_to(to)).max_by_key(|a| a.rank(to)).map(|a| a.addr)
    }

    /// All addresses that will do as well, but for how much of their prefix they share with `to`; the best first.
    pub fn sources_for(&self, to: Addr) -> Vec<Addr> {
        let mut all: Vec<_> = self.addresses.iter().filter(|a| a.speaks_to(to)).map(|a| (a.rank(to), a.addr)).collect();
        // Of equals the last, as above.
        all.reverse();
        all.sort_by_key(|(rank, _)| core::cmp::Reverse(*rank));
        let class = |(scope, ours, fresh, _): Rank| (scope, ours, fresh);
        let Some(best) = all.first().map(|(rank, _)| class(*rank)) else { return Vec::new() };
        all.into_iter().take_while(|(rank, _)| class(*rank) == best).map(|(_, addr)| addr).collect()
    }
}

/// The subnet of `ip`/`prefix`.
pub(crate) fn network(ip: IpAddr, prefix: u8) -> IpAddr {
    match ip {
        IpAddr::V4(a) => {
            let mask = u32::MAX.checked_shl(32 - prefix.min(32) as u32).unwrap_or(0);
            IpAddr::V4((u32::from(a) & mask).into())
        }
        IpAddr::V6(a) => {
            let mask = u128::MAX.checked_shl(128 - prefix.min(128) as u32).unwrap_or(0);
            IpAddr::V6((u128::from(a) & mask).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Addr {
        text.parse::<IpAddr>().unwrap().into()
    }

    fn interface(addresses: &[(&str, u8)]) -> Interface {
        let caps = TxCaps { max_frame: 1514, checksum: false, max_gso: 0 };
        let (name, mac, mode) = (String::new(), MacAddr([2; 6]), Mode::Dedicated);
        let config = InterfaceConfig { name, mac, mtu: 1500, vlan: None, mode, caps, dad: 0, autoconf: false };
        let mut i = Interface::new(config);
        let all = addresses.iter().map(|(addr, prefix)| Address::new(ip(addr), *prefix, 0));
        i.addresses.edit().extend(all);
        i
    }

    #[test]
    fn neighbours_are_those_of_the_prefixes_that_were_told() {
        let mut i = interface(&[("10.0.0.1", 24), ("10.1.0.1", 16), ("fd00::1", 64), ("fd01::1", 64), ("fe80::1", 64)]);
        let list = i.addresses.edit();
        list[1].phase = Phase::Duplicate;
        (list[3].formed, list[4].formed) = (Some(0), Some(0));
        for (to, reached) in [
            ("10.0.0.200", true),
            ("10.0.1.1", false),
            ("10.1.0.2", false),
            ("fd00::2", true),
            ("fd00:0:0:1::2", false),
            ("fd01::2", false),
            ("fe80::2", true),
            ("::10.0.0.200", false),
        ] {
            assert_eq!(i.reaches(ip(to)), reached, "{to}");
        }
        i.addresses.edit()[0].phase = Phase::Tentative { left: 1, next: Instant::ZERO };
        assert!(i.reaches(ip("10.0.0.200")), "it is about to be ours");
    }

    #[test]
    fn an_index_says_what_the_list_says() {
        let mut few = interface(&[("10.0.0.1", 24)]);
        let mut many = interface(&[("10.0.0.1", 24), ("10.0.0.2", 24), ("10.0.0.3", 24)]);
        many.addresses.edit()[1].phase = Phase::Tentative { left: 1, next: Instant::ZERO };
        many.addresses.edit()[2].phase = Phase::Duplicate;
        let all = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"].map(ip);
        for i in [&mut few, &mut many] {
            for (src, dst) in all.iter().flat_map(|src| all.map(|dst| (*src, dst))) {
                assert_eq!(i.addresses.admits(src, dst), i.has(dst) && !i.owns(src), "{src} to {dst}");
            }
            // A change is heard of.
            i.addresses.edit()[0].phase = Phase::Duplicate;
            assert!(!i.addresses.admits(all[3], all[0]));
        }
    }
}

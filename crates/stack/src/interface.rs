//! Interfaces: addresses, and what waits to leave through each.

use core::net::IpAddr;
use std::collections::VecDeque;

use wire::burst::TxCaps;
use wire::{Addr, MacAddr};

use crate::InterfaceId;
use crate::output::Raw;

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
}

pub(crate) struct Interface {
    pub config: InterfaceConfig,
    pub addresses: Vec<(Addr, u8)>,
    /// Replies outside connections.
    pub raw: VecDeque<Raw>,
    /// The paper's control, ACK and data lists: connection ids.
    pub control: VecDeque<u32>,
    pub acks: VecDeque<u32>,
    pub data: VecDeque<u32>,
}

impl Interface {
    pub fn new(config: InterfaceConfig) -> Interface {
        Interface {
            config,
            addresses: Vec::new(),
            raw: VecDeque::with_capacity(64),
            control: VecDeque::with_capacity(256),
            acks: VecDeque::with_capacity(256),
            data: VecDeque::with_capacity(256),
        }
    }

    pub fn has(&self, addr: Addr) -> bool {
        self.addresses.iter().any(|(a, _)| *a == addr)
    }

    pub fn waiting(&self) -> bool {
        !(self.raw.is_empty() && self.control.is_empty() && self.acks.is_empty() && self.data.is_empty())
    }

    /// The address to speak from towards `to`: same family, longest common prefix, link-local only to link-local
    /// (RFC 6724 rules 2 and 8).
    pub fn source_for(&self, to: Addr) -> Option<Addr> {
        let bits = |a: Addr| u128::from_be_bytes(a.octets());
        self.addresses
            .iter()
            .map(|(a, _)| *a)
            .filter(|a| a.is_v4() == to.is_v4())
            .max_by_key(|a| (a.is_link_local() == to.is_link_local(), (bits(*a) ^ bits(to)).leading_zeros()))
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

impl InterfaceId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

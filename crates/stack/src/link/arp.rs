//! ARP input (RFC 826, RFC 5227): questions for our addresses, answers to ours, and other hosts that claim what is ours.

use wire::{Addr, Instant, arp};

use crate::InterfaceId;
use crate::counters::{Counters, DropReason};
use crate::link::Link;
use crate::link::neighbor::{Claim, Strength};
use crate::link::replies::Raw;

impl Link {
    pub fn take_arp(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        packet: &arp::Packet,
        counters: &mut Counters,
    ) -> Result<(), DropReason> {
        let i = &self[interface];
        let our_mac = i.config.mac;
        if !i.is_dedicated() || packet.sender_mac == our_mac {
            return Ok(());
        }
        let (sender, target) = (Addr::from_v4(packet.sender_ip), Addr::from_v4(packet.target_ip));
        if packet.sender_mac.is_multicast() || sender.is_multicast() || sender.is_broadcast() || sender.is_loopback() {
            return Err(DropReason::Neighbor);
        }
        let probe = sender.is_unspecified();
        // RFC 5227 2.1.1 and 2.4: somebody has the address, or asks for it as we do.
        let claimed = if probe { target } else { sender };
        if i.owns(claimed) && !(probe && i.has(claimed)) {
            self.conflict(now, interface, claimed, packet.sender_mac, counters);
            return Err(DropReason::Neighbor);
        }
        let for_us = i.has(target);
        let request = packet.op == arp::Op::Request;
        if !probe {
            let claim = Claim {
                mac: Some(packet.sender_mac),
                solicited: !request && for_us && packet.target_mac == our_mac,
                strength: Strength::Weak,
                create: request && for_us,
            };
            self.neighbors.claim(now, interface, sender, claim);
        }
        // Every lane hears ARP; one answers.
        if for_us && request && self.lane == 0 {
            let reply = arp::Packet {
                op: arp::Op::Reply,
                sender_mac: our_mac,
                sender_ip: packet.target_ip,
                target_mac: packet.sender_mac,
                target_ip: packet.sender_ip,
            };
            self.push(interface, Raw::Arp { mac: packet.sender_mac, packet: reply }, counters);
        }
        Ok(())
    }
}

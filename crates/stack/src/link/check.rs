//! What holds of the links between calls, and what the stack's own check asks of them.

use core::cmp::Reverse;

use wire::Addr;

use crate::link::Link;
use crate::link::hop::NO_NEIGHBOR;
use crate::link::interface::network;
use crate::link::neighbor::Waiter;
use crate::link::route::NextHop;
use crate::schedule::queues::Waiters;
use crate::{InterfaceId, Route};

impl Link {
    /// Panics where the links contradict themselves.
    pub fn check(&self) {
        self.check_neighbors();
        self.check_ways();
    }

    /// Each neighbour is found by its interface and address, and nobody else is.
    fn check_neighbors(&self) {
        for i in 0..self.neighbors.len() as u32 {
            let (interface, addr) = self.neighbors.at(i).expect("there are as many");
            let found = self.neighbors.find(interface, addr);
            assert_eq!(found, Some(i), "neighbour {addr:?} of {interface:?}");
        }
        assert_eq!(self.neighbors.known(), self.neighbors.len(), "neighbours that are found");
    }

    /// What is remembered of routes is what they say.
    fn check_ways(&self) {
        for (beside, to, hop, (neighbor, epoch)) in self.routes.remembered() {
            let found = if beside { self.routes.lookup_by(hop.interface, to) } else { self.routes.lookup(to) };
            assert_eq!(found, Some(hop), "the way to {to:?} that is remembered");
            if neighbor != NO_NEIGHBOR && epoch == self.neighbors.epoch {
                let NextHop { interface, gateway } = hop;
                let at = self.neighbors.at(neighbor);
                assert_eq!(at, Some((interface, gateway.unwrap_or(to))), "the neighbour on the way to {to:?}");
            }
        }
    }

    /// Who waits for each hop: its index and interface, and the connections.
    pub fn each_waiting(&self) -> impl Iterator<Item = (u32, InterfaceId, &Waiters)> {
        self.neighbors.each_waiting()
    }

    /// Who has just been told of his hop, and is still to look.
    pub fn told(&self) -> impl Iterator<Item = &Waiter> {
        self.neighbors.resolved.iter().chain(&self.neighbors.failed)
    }

    /// The next hop of this index.
    pub fn neighbor(&self, hop: u32) -> Option<(InterfaceId, Addr)> {
        self.neighbors.at(hop)
    }

    /// The next hop to `remote` by `interface`: that of the best route by it; where none covers the peer, the peer itself as far as the
    /// interface's prefixes reach; else none.
    pub fn expected_hop(&self, interface: InterfaceId, remote: Addr) -> Option<(InterfaceId, Addr)> {
        let to = remote.to_ip();
        let covers =
            |r: &&Route| r.interface == interface && r.dst.is_ipv4() == to.is_ipv4() && network(to, r.prefix) == r.dst;
        let best = self.routes.iter().filter(covers).min_by_key(|r| (Reverse(r.prefix), r.metric));
        match best {
            Some(route) => Some((interface, route.gateway.map_or(remote, Addr::from))),
            None if self[interface].reaches(remote) => Some((interface, remote)),
            None => None,
        }
    }
}

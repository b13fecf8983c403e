//! What can be asked of a stack: counts, and views of its connections.

use core::net::IpAddr;

use mem::Side;
use tcp::Tcb;

use crate::counters::Counters;
use crate::engine::Stack;
use crate::{FlowKey, InterfaceId};
use protocol::Endpoint;

impl Stack {
    /// Statistics.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// An interface's addresses, each with whether packets may come to and go from it now.
    pub fn addresses(&self, interface: InterfaceId) -> impl Iterator<Item = (IpAddr, bool)> {
        self.link.get(interface).into_iter().flat_map(|i| i.addresses())
    }

    /// Of the connections those that have been idle and are parked.
    pub fn parked(&self) -> usize {
        self.conns.parked()
    }

    /// Connections now, TIME-WAIT aside.
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// Handshakes under way that have no connection yet.
    pub fn half_open(&self) -> usize {
        self.demux.handshakes().len()
    }

    /// Closed four-tuples being remembered.
    pub fn time_waits(&self) -> usize {
        self.demux.time_waits().len()
    }

    /// Four-tuples in use: connections, and those that are being remembered.
    pub fn tuples(&self) -> usize {
        self.connections() + self.time_waits()
    }

    /// Local ports that active opens may leave from, of each address towards each remote end, if all lead to this lane.
    pub fn active_ports(&self) -> u32 {
        self.demux.local_ports()
    }

    /// The part of them that leads to this lane, about.
    pub fn lane_ports(&self) -> u32 {
        self.active_ports() / u32::from(self.config.steering.lanes())
    }

    /// Connections that the application has closed, and that are not over.
    pub fn orphans(&self) -> usize {
        self.orphans as usize
    }

    /// Listeners now.
    pub fn listeners(&self) -> usize {
        self.demux.listeners.len()
    }

    /// Whether a listener covers `local`.
    pub fn listening(&self, local: Endpoint) -> bool {
        self.demux.listeners.covers(local)
    }

    /// The stack's side of the chunks of its own process.
    pub fn pool(&self) -> &Side {
        self.clients.home()
    }

    /// Segments sent and not acknowledged, of all connections.
    pub fn sent_records(&self) -> usize {
        self.sent.used()
    }

    /// Ids, tuples and states of all connections, for `ss`-like views and tests.
    pub fn each_connection(&self, mut f: impl FnMut(u32, &FlowKey, &Tcb)) {
        for id in self.conns.iter_ids() {
            self.conns.view(id, |key, tcb| f(id, key, tcb));
        }
    }

    /// The tuples of all connections, TIME-WAIT and handshakes aside.
    pub fn each_flow(&self, mut f: impl FnMut(&FlowKey)) {
        (0..self.conns.slots()).filter_map(|id| self.conns.key(id)).for_each(|key| f(&key));
    }
}

//! Connections that lanes open on an interface shared with the kernel, as its XDP program knows them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use ::io::PortError;
use ::io::bpf::{Claim, OwnFlow, OwnKey, Phase, Tuples};
use ::io::xdp::XdpDevice;
use stack::{FlowKey, OpenTuples};

use super::nat::Opened;

/// An interface's table, which is made when the first connection is about to be opened.
#[derive(Clone)]
pub(crate) struct ActiveTuples {
    vlan: u16,
    table: Arc<OnceLock<Tuples>>,
}

impl ActiveTuples {
    /// No connection yet, of an interface's VLAN.
    pub fn of(vlan: u16) -> ActiveTuples {
        ActiveTuples { vlan, table: Arc::default() }
    }

    /// Makes the table, if there is none.
    pub fn make(&self, device: &XdpDevice) -> Result<(), PortError> {
        if self.table.get().is_none() {
            // One thread at a time makes one: the others have it from there.
            let _ = self.table.set(device.open_tuples()?);
        }
        Ok(())
    }

    /// Takes a table that is made, if there is none.
    #[cfg(test)]
    pub fn set(&self, table: Tuples) {
        let _ = self.table.set(table);
    }

    /// True of a connection that a lane has, TIME-WAIT included.
    pub fn is_open(&self, tuple: &OwnFlow) -> bool {
        self.table.get().is_some_and(|table| table.is_open(tuple))
    }

    fn tuple(&self, key: &FlowKey) -> OwnFlow {
        let local = OwnKey { vlan: self.vlan, addr: key.local, port: key.local_port };
        OwnFlow { local, remote: key.remote, remote_port: key.remote_port }
    }
}

/// Number of tuples that a lane has claimed, by local port. The lane alone writes it.
#[derive(Clone)]
pub(crate) struct PortUse(Arc<[AtomicU32]>);

impl PortUse {
    pub fn new() -> PortUse {
        PortUse((0..1 << 16).map(|_| AtomicU32::new(0)).collect())
    }

    fn change(&self, port: u16, by: u32) {
        let count = &self.0[port as usize];
        count.store(count.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }

    /// Where another lane has released what this one has claimed, only the sum of both means something.
    fn count(&self, port: u16) -> u32 {
        self.0[port as usize].load(Ordering::Relaxed)
    }
}

/// True where one of the lanes has a connection that was opened from a port, or TIME-WAIT of one.
pub(super) fn is_used(lanes: &[PortUse], port: u16) -> bool {
    lanes.iter().fold(0u32, |sum, lane| sum.wrapping_add(lane.count(port))) != 0
}

/// A lane's view of an interface's table.
pub(crate) struct LaneTuples {
    tuples: ActiveTuples,
    used: PortUse,
    opened: Opened,
}

impl LaneTuples {
    pub fn new(tuples: ActiveTuples, used: PortUse, opened: Opened) -> LaneTuples {
        LaneTuples { tuples, used, opened }
    }

    fn enter(&self, key: &FlowKey, phase: Phase) {
        if let Some(table) = self.tuples.table.get() {
            table.enter(&self.tuples.tuple(key), phase);
        }
    }
}

impl OpenTuples for LaneTuples {
    fn claim(&self, key: &FlowKey) -> bool {
        let Some(table) = self.tuples.table.get() else { return false };
        let tuple = self.tuples.tuple(key);
        match table.claim(&tuple) {
            Claim::New => self.used.change(key.local_port, 1),
            Claim::Again => {}
            Claim::Full => return false,
        }
        self.opened.tell(&tuple);
        true
    }

    fn synchronized(&self, key: &FlowKey) {
        self.enter(key, Phase::Synchronized);
    }

    fn time_wait(&self, key: &FlowKey) {
        self.enter(key, Phase::TimeWait);
    }

    fn release(&self, key: &FlowKey) {
        if let Some(table) = self.tuples.table.get()
            && table.release(&self.tuples.tuple(key))
        {
            self.used.change(key.local_port, 1u32.wrapping_neg());
        }
    }
}

#[cfg(test)]
mod tests {
    use ::io::bpf::Maps;
    use stack::InterfaceId;
    use wire::Addr;

    use super::super::nat;
    use super::*;

    #[test]
    fn connections_are_counted_by_their_local_port() {
        let Ok(table) = Maps::new(1).and_then(|maps| maps.open_tuples()) else { return testing::skip("no BPF maps") };
        let tuples = ActiveTuples::of(0);
        tuples.set(table);
        let used = [PortUse::new(), PortUse::new()];
        let (nat, bell) = (Arc::default(), Arc::new(::io::Bell::new().unwrap()));
        let opened = || nat::ends(&nat, &bell, &tuples).unwrap().0;
        let lanes = used.clone().map(|used| LaneTuples::new(tuples.clone(), used, opened()));
        let key = |local_port, remote_port| FlowKey {
            interface: InterfaceId(0),
            local: Addr::from_v4([10, 0, 0, 1]),
            remote: Addr::from_v4([10, 0, 0, 2]),
            local_port,
            remote_port,
        };
        let ports = || (0..=u16::MAX).filter(|port| is_used(&used, *port)).collect::<Vec<_>>();
        assert!(lanes[0].claim(&key(5000, 80)) && lanes[0].claim(&key(5000, 81)) && lanes[1].claim(&key(6000, 80)));
        // Out of TIME-WAIT it is one connection still.
        lanes[0].time_wait(&key(5000, 80));
        assert!(lanes[0].claim(&key(5000, 80)));
        assert_eq!(ports(), [5000, 6000]);
        lanes[0].release(&key(5000, 80));
        // Neither connections that others open, nor any twice.
        lanes[0].release(&key(5000, 80));
        lanes[1].release(&key(7000, 80));
        assert_eq!(ports(), [5000, 6000]);
        // Another lane may end it.
        lanes[1].release(&key(5000, 81));
        assert_eq!(ports(), [6000]);
        lanes[1].release(&key(6000, 80));
        assert!(ports().is_empty());
    }
}

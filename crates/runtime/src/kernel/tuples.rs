//! Connections that lanes open on an interface shared with the kernel, as its XDP program knows them.

use std::sync::{Arc, OnceLock};

use ::io::PortError;
use ::io::bpf::{Claim, OwnFlow, OwnKey, Phase, Tuples};
use ::io::xdp::XdpDevice;
use stack::{FlowKey, OpenTuples};

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

    fn tuple(&self, key: &FlowKey) -> OwnFlow {
        let local = OwnKey { vlan: self.vlan, addr: key.local, port: key.local_port };
        OwnFlow { local, remote: key.remote, remote_port: key.remote_port }
    }
}

impl OpenTuples for ActiveTuples {
    fn claim(&self, key: &FlowKey) -> bool {
        self.table.get().is_some_and(|table| table.claim(&self.tuple(key)) != Claim::Full)
    }

    fn synchronized(&self, key: &FlowKey) {
        if let Some(table) = self.table.get() {
            table.enter(&self.tuple(key), Phase::Synchronized);
        }
    }

    fn time_wait(&self, key: &FlowKey) {
        if let Some(table) = self.table.get() {
            table.enter(&self.tuple(key), Phase::TimeWait);
        }
    }

    fn release(&self, key: &FlowKey) {
        if let Some(table) = self.table.get() {
            let _ = table.release(&self.tuple(key));
        }
    }
}

//! Local ports of the connections that lanes open beside the kernel.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use stack::PortSource;
use wire::Ports;

use super::state::{State, lock};

/// A lane's view of the ports that the engine has, which all lanes share.
pub(crate) struct LanePorts {
    state: Arc<Mutex<State>>,
    /// How often the ports have changed.
    generation: Arc<AtomicU32>,
    seen: u32,
}

impl LanePorts {
    pub(super) fn of(state: &Arc<Mutex<State>>) -> LanePorts {
        LanePorts { state: state.clone(), generation: lock(state).generation.clone(), seen: 0 }
    }
}

impl PortSource for LanePorts {
    #[inline]
    fn changed(&mut self) -> Option<Ports> {
        let generation = self.generation.load(Ordering::Acquire);
        if generation == self.seen && generation != 0 {
            return None;
        }
        let mut state = lock(&self.state);
        if generation == 0 {
            state.open();
        }
        self.seen = self.generation.load(Ordering::Acquire);
        Some(state.active.ports().clone())
    }

    fn more(&mut self) -> bool {
        let mut state = lock(&self.state);
        // Another lane may have been here.
        self.generation.load(Ordering::Acquire) != self.seen || state.more_ports()
    }
}

//! Local ports of the connections that lanes open beside the kernel.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use stack::PortSource;
use wire::Ports;

use super::state::{State, lock};

/// News of the ports, for the lanes.
#[derive(Default)]
pub(super) struct Published {
    /// Changes of the ports so far; 0 before the first connection.
    generation: AtomicU32,
    /// Number of ports that there can be.
    most: AtomicU32,
}

impl Published {
    /// There are more ports now, and can be so many.
    pub fn publish(&self, most: usize) {
        self.expect(most);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// There can be so many.
    pub fn expect(&self, most: usize) {
        self.most.store(most as u32, Ordering::Relaxed);
    }
}

/// A lane's view of the ports that the engine has, which all lanes share.
pub(crate) struct LanePorts {
    state: Arc<Mutex<State>>,
    published: Arc<Published>,
    /// The generation that it has.
    seen: u32,
}

impl LanePorts {
    pub(super) fn of(state: &Arc<Mutex<State>>) -> LanePorts {
        LanePorts { state: state.clone(), published: lock(state).published.clone(), seen: 0 }
    }
}

impl PortSource for LanePorts {
    #[inline]
    fn changed(&mut self) -> Option<Ports> {
        let generation = self.published.generation.load(Ordering::Acquire);
        if generation == self.seen && generation != 0 {
            return None;
        }
        let mut state = lock(&self.state);
        if generation == 0 {
            state.open();
        }
        self.seen = self.published.generation.load(Ordering::Acquire);
        Some(state.active.ports().clone())
    }

    fn most(&self) -> u32 {
        self.published.most.load(Ordering::Relaxed)
    }

    fn more(&mut self) -> bool {
        let mut state = lock(&self.state);
        // Another lane may have been here.
        self.published.generation.load(Ordering::Acquire) != self.seen || state.more_ports()
    }
}

//! What is known of paths, each by one interface: lowered MTUs (RFC 1191, RFC 8201), bounded and forgotten after ten minutes.

use core::time::Duration;

use foldhash::HashMap;
use wire::{Addr, Instant};

use crate::route::InterfaceId;

const LIMIT: usize = 4096;
const LIFETIME: Duration = Duration::from_secs(600);

#[derive(Default)]
pub(crate) struct PathMtus {
    map: HashMap<(InterfaceId, Addr), (u16, Instant)>,
}

impl PathMtus {
    pub fn lower(&mut self, now: Instant, to: (InterfaceId, Addr), mtu: u16) {
        if self.map.len() >= LIMIT {
            self.map.retain(|_, (_, until)| *until > now);
            if self.map.len() >= LIMIT {
                return;
            }
        }
        let entry = self.map.entry(to).or_insert((mtu, now + LIFETIME));
        *entry = (entry.0.min(mtu), now + LIFETIME);
    }

    /// Whether nothing is known of any.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    pub fn get(&self, now: Instant, to: (InterfaceId, Addr)) -> Option<u16> {
        self.map.get(&to).filter(|(_, until)| *until > now).map(|(mtu, _)| *mtu)
    }
}

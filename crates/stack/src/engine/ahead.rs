//! Reading ahead over a burst (mTCP 3.2's prefetching): the flow-table slots and connections of a group of frames come from
//! memory together, instead of one after the other as the frames are worked on.

use wire::burst::RxBurst;
use wire::quick;

use crate::FlowKey;
use crate::InterfaceId;
use crate::engine::Stack;

/// So many connections stay in the caches by themselves.
const FEW: usize = 2048;
/// Frames that are looked at together: as many misses as a core has under way at once.
pub(crate) const GROUP: usize = 8;

/// The hashes of a group's tuples, where their frames have the common shape.
pub(crate) type Hashes = [Option<u32>; GROUP];

impl Stack {
    /// Looks at the frames of a burst from `from` on.
    pub(super) fn look_ahead<B: RxBurst + ?Sized>(&self, interface: InterfaceId, burst: &B, from: usize) -> Hashes {
        let mut hashes = [None; GROUP];
        let n = GROUP.min(burst.len() - from);
        // A lone frame has nobody to share the wait with.
        if n < 3 || self.conns.len() <= FEW || self.link[interface].vlan().is_some() {
            return hashes;
        }
        for (i, hash) in hashes.iter_mut().enumerate().take(n) {
            burst.prefetch(from + GROUP + i);
            *hash = quick::tuple(burst.frame(from + i).data).map(|t| {
                let key =
                    FlowKey { interface, local: t.dst, remote: t.src, local_port: t.dst_port, remote_port: t.src_port };
                self.demux.hash(&key)
            });
            if let Some(hash) = *hash {
                self.demux.prefetch(hash);
            }
        }
        let mut ids = [None; GROUP];
        for (hash, id) in hashes.iter().zip(&mut ids) {
            *id = hash.and_then(|hash| self.demux.prefetch_owner(hash, &self.conns));
        }
        ids.into_iter().flatten().for_each(|id| self.conns.prefetch_active(id));
        hashes
    }
}

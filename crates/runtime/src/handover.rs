//! Frames that arrived on the wrong lane go to their own: copied into a ring between each pair of lanes, published and
//! announced once a burst. Where the NIC's hash is known this path stays empty.

use std::sync::Arc;

use io::Bell;
use mem::ArenaError;
use mem::frames::{FrameRx, FrameTx};
use wire::burst::{RxBurst, RxChecksum, RxFrame};

/// Frames that a pair of lanes may have under way in one direction.
const SLOTS: usize = 512;

/// One lane's ends of the rings to and from every other.
#[derive(Default)]
pub(crate) struct Handover {
    /// By lane; none to itself.
    out: Vec<Option<(FrameTx, Arc<Bell>)>>,
    inn: Vec<FrameRx>,
}

/// Rings between all pairs of lanes; `bells` wake them.
pub(crate) fn mesh(bells: &[Arc<Bell>], max_frame: usize) -> Result<Vec<Handover>, ArenaError> {
    let n = bells.len();
    let mut all: Vec<Handover> = (0..n).map(|_| Handover::default()).collect();
    for from in 0..n {
        for to in 0..n {
            if from == to {
                all[from].out.push(None);
                continue;
            }
            // The word beside a frame says which port it came by and what is known of its checksum.
            let (tx, rx) = mem::frames::ring(SLOTS, max_frame)?;
            all[from].out.push(Some((tx, bells[to].clone())));
            all[to].inn.push(rx);
        }
    }
    Ok(all)
}

fn encode(port: usize, checksum: RxChecksum, mss: u16) -> u64 {
    (port as u64) << 24
        | (mss as u64) << 8
        | match checksum {
            RxChecksum::Unknown => 0,
            RxChecksum::Verified => 1,
            RxChecksum::MayBePartial => 2,
        }
}

fn decode(meta: u64) -> (usize, RxChecksum, u16) {
    let checksum = match meta & 0xff {
        1 => RxChecksum::Verified,
        2 => RxChecksum::MayBePartial,
        _ => RxChecksum::Unknown,
    };
    ((meta >> 24) as usize, checksum, (meta >> 8) as u16)
}

impl Handover {
    /// Copies a frame for `lane`; `false` when the ring is full.
    pub fn give(&mut self, lane: u16, port: usize, frame: RxFrame) -> bool {
        let Some(Some((tx, _))) = self.out.get_mut(lane as usize) else { return false };
        let Some(slot) = tx.reserve(frame.data.len()) else { return false };
        slot.copy_from_slice(frame.data);
        tx.commit(frame.data.len(), encode(port, frame.checksum, frame.mss))
    }

    /// Lets the other lanes see what they were given.
    pub fn publish(&mut self) {
        for (tx, bell) in self.out.iter_mut().flatten() {
            if tx.publish() {
                bell.ring_if_sleeping();
            }
        }
    }

    /// Calls `f` with each port's frames from other lanes, at most `max` from each lane; how many there were.
    pub fn take(&mut self, max: usize, mut f: impl FnMut(usize, &Handed)) -> usize {
        let mut total = 0;
        for rx in &mut self.inn {
            let n = rx.burst(max);
            let mut at = 0;
            // Runs of one port's frames form a burst.
            while at < n {
                let (port, ..) = decode(rx.frame(at).1);
                let mut end = at + 1;
                while end < n && decode(rx.frame(end).1).0 == port {
                    end += 1;
                }
                f(port, &Handed { rx, at, len: end - at });
                at = end;
            }
            rx.release();
            total += n;
        }
        total
    }

    pub fn is_empty(&self) -> bool {
        self.inn.iter().all(FrameRx::is_empty)
    }
}

/// Frames handed over by one lane from one port.
pub(crate) struct Handed<'a> {
    rx: &'a FrameRx,
    at: usize,
    len: usize,
}

impl RxBurst for Handed<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn frame(&self, index: usize) -> RxFrame<'_> {
        let (data, meta) = self.rx.frame(self.at + index);
        let (_, checksum, mss) = decode(meta);
        RxFrame { data, checksum, mss }
    }
}

/// Some frames of a burst.
pub(crate) struct Picked<'a, B> {
    pub burst: &'a B,
    pub which: &'a [u16],
}

impl<B: RxBurst> RxBurst for Picked<'_, B> {
    fn len(&self) -> usize {
        self.which.len()
    }

    fn frame(&self, index: usize) -> RxFrame<'_> {
        self.burst.frame(self.which[index] as usize)
    }
}

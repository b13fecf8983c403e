//! Frames that arrived on the wrong lane go to their own: copied into a ring between each pair of lanes, published and
//! announced once a burst. Where the NIC's hash is known this path stays empty.

use std::sync::Arc;

use io::Bell;
use mem::ArenaError;
use mem::frames::{FrameRx, FrameTx};
use wire::burst::{RxBurst, RxChecksum, RxFrame};
use wire::cut::Cut;

/// Frames that a pair of lanes may have under way in one direction.
const SLOTS: usize = if cfg!(loom) { 4 } else { 512 };
/// The same where a frame may be many segments together.
const LARGE_SLOTS: usize = 128;
/// From here on a frame is large, bytes.
const LARGE: usize = 16_384;

/// One lane's ends of the rings to and from every other.
#[derive(Default)]
pub(crate) struct Handover {
    pub out: Out,
    /// With the lanes from which they come.
    inn: Vec<(u16, FrameRx)>,
}

/// The rings to the others, by lane; none to itself.
#[derive(Default)]
pub(crate) struct Out(Vec<Option<(FrameTx, Arc<Bell>)>>);

/// A lane was chosen for the frame, which is not to look for another.
const CHOSEN: u64 = 0x80;

/// Rings between all pairs of lanes; `bells` wake them.
pub(crate) fn mesh(bells: &[Arc<Bell>], max_frame: usize) -> Result<Vec<Handover>, ArenaError> {
    let n = bells.len();
    let slots = if max_frame < LARGE { SLOTS } else { LARGE_SLOTS };
    let mut all: Vec<Handover> = (0..n).map(|_| Handover::default()).collect();
    for from in 0..n {
        for to in 0..n {
            if from == to {
                all[from].out.0.push(None);
                continue;
            }
            // The word beside a frame says which port it came by and what is known of its checksum.
            let (tx, rx) = mem::frames::ring(slots, max_frame)?;
            all[from].out.0.push(Some((tx, bells[to].clone())));
            all[to].inn.push((from as u16, rx));
        }
    }
    Ok(all)
}

fn encode(port: usize, checksum: RxChecksum, mss: u16, chosen: bool) -> u64 {
    (port as u64) << 24
        | (mss as u64) << 8
        | if chosen { CHOSEN } else { 0 }
        | match checksum {
            RxChecksum::Unknown => 0,
            RxChecksum::Verified => 1,
            RxChecksum::MayBePartial => 2,
        }
}

fn decode(meta: u64) -> (usize, RxChecksum, u16) {
    let checksum = match meta & 0x7f {
        1 => RxChecksum::Verified,
        2 => RxChecksum::MayBePartial,
        _ => RxChecksum::Unknown,
    };
    ((meta >> 24) as usize, checksum, (meta >> 8) as u16)
}

impl Out {
    /// Copies a frame for `lane`, which was `chosen` for it or is its own; `false` when the ring is full. What the kernel has
    /// put together, and is longer than the ring's slots, goes as the segments it was.
    pub fn give(&mut self, lane: u16, port: usize, frame: RxFrame, chosen: bool) -> bool {
        let Some(Some((tx, _))) = self.0.get_mut(lane as usize) else { return false };
        if frame.data.len() > tx.max_frame() {
            let cut = Cut::parse(frame.data, frame.mss).filter(|cut| cut.is_sound(frame.checksum));
            let Some(cut) = cut else { return false };
            return (0..cut.count()).all(|i| match tx.reserve(cut.len(i)) {
                Some(slot) => {
                    cut.write(i, slot);
                    tx.commit(cut.len(i), encode(port, RxChecksum::Verified, 0, chosen))
                }
                None => false,
            });
        }
        let Some(slot) = tx.reserve(frame.data.len()) else { return false };
        slot.copy_from_slice(frame.data);
        tx.commit(frame.data.len(), encode(port, frame.checksum, frame.mss, chosen))
    }

    /// Lets the other lanes see what they were given; how many were given something.
    pub fn publish(&mut self) -> u64 {
        let mut batches = 0;
        for (tx, bell) in self.0.iter_mut().flatten() {
            if tx.publish() {
                batches += 1;
                bell.ring_if_sleeping();
            }
        }
        batches
    }
}

impl Handover {
    /// Calls `f` with each port's frames from other lanes, at most `max` from each lane; how many there were.
    pub fn take(&mut self, max: usize, mut f: impl FnMut(&mut Out, usize, &Handed)) -> usize {
        let mut total = 0;
        let Handover { out, inn } = self;
        for (from, rx) in inn {
            let n = rx.burst(max);
            let mut at = 0;
            // Runs of one port's frames form a burst.
            while at < n {
                let (port, ..) = decode(rx.frame(at).1);
                let mut end = at + 1;
                while end < n && decode(rx.frame(end).1).0 == port {
                    end += 1;
                }
                f(out, port, &Handed { from: *from, rx, at, len: end - at });
                at = end;
            }
            rx.release();
            total += n;
        }
        total
    }

    pub fn is_empty(&self) -> bool {
        self.inn.iter().all(|(_, rx)| rx.is_empty())
    }
}

/// Frames handed over by one lane from one port.
pub(crate) struct Handed<'a> {
    from: u16,
    rx: &'a FrameRx,
    at: usize,
    len: usize,
}

impl Handed<'_> {
    /// The lane that gave them.
    pub fn giver(&self) -> u16 {
        self.from
    }

    /// Whether the lane that gave a frame chose us for it.
    pub fn chosen(&self, index: usize) -> bool {
        self.rx.frame(self.at + index).1 & CHOSEN != 0
    }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use wire::tcp::{Flags, Header, Options, Segment};
    use wire::{Addr, MacAddr, SeqNum, ethernet, ipv4};

    /// A frame of `len` bytes of text, as a kernel puts them together.
    fn large(len: usize) -> Vec<u8> {
        let mut b = vec![0; 54 + len];
        ethernet::emit(&mut b, MacAddr([2; 6]), MacAddr([4; 6]), None, ethernet::IPV4);
        let (src, dst) = (Addr::from_v4([10, 0, 0, 1]), Addr::from_v4([10, 0, 0, 2]));
        ipv4::Header { src, dst, ..ipv4::Header::default() }.emit(&mut b[14..], 20 + len);
        let (seq, ack, flags, options) = (SeqNum(7), SeqNum(2), Flags::ACK | Flags::PSH, Options::default());
        let header = Header { src_port: 1, dst_port: 2, seq, ack, flags, window: 3, urgent: 0, options };
        header.emit(&mut b[34..], false);
        b[54..].iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
        b
    }

    /// Lanes of a device whose frames are the link's get four times the slots.
    #[test]
    fn a_ring_holds_as_many_as_its_frames_allow() {
        let bells = [0, 1].map(|_| Arc::new(Bell::new().unwrap()));
        for (max_frame, slots) in [(1518, 512), (9018, 512), (65_553, 128)] {
            let mut here = mesh(&bells, max_frame).unwrap().swap_remove(0);
            let frame = vec![7; max_frame];
            let taken = (0..).take_while(|_| here.out.give(1, 0, RxFrame::new(&frame, RxChecksum::Unknown), false));
            assert_eq!(taken.count(), slots, "{max_frame}");
        }
    }

    #[test]
    fn large_frames_are_handed_over_in_segments() {
        let bells = [0, 1].map(|_| Arc::new(Bell::new().unwrap()));
        let mut mesh = mesh(&bells, 1518).unwrap();
        let mut there = mesh.pop().unwrap();
        let mut here = mesh.pop().unwrap();
        let frame = large(4000);
        let whole = RxFrame { data: &frame, checksum: RxChecksum::Verified, mss: 1460 };
        assert!(here.out.give(1, 3, whole, true));
        // One whose sum is wrong, or that cannot be cut, is not given: nobody could tell any more.
        for checksum in [RxChecksum::Unknown, RxChecksum::MayBePartial] {
            assert!(!here.out.give(1, 3, RxFrame { checksum, ..whole }, true));
        }
        assert!(!here.out.give(1, 3, RxFrame { mss: 0, ..whole }, true));
        // Sums as the kernel leaves them where it merges, and as they are on a wire.
        let (src, dst) = (Addr::from_v4([10, 0, 0, 1]), Addr::from_v4([10, 0, 0, 2]));
        let mut sound = frame.clone();
        wire::tcp::fill_pseudo(src, dst, 20 + 4000, &mut sound[34..]);
        let vouched = RxFrame { data: &sound, checksum: RxChecksum::MayBePartial, mss: 1460 };
        assert!(here.out.give(1, 3, vouched, true));
        assert!(!here.out.give(1, 3, RxFrame { checksum: RxChecksum::Unknown, ..vouched }, true));
        wire::tcp::fill_checksum(src, dst, &mut sound[34..]);
        for checksum in [RxChecksum::Unknown, RxChecksum::MayBePartial] {
            assert!(here.out.give(1, 3, RxFrame { data: &sound, checksum, mss: 1460 }, true));
        }
        here.out.publish();
        let mut seen = Vec::new();
        there.take(64, |_, port, frames| {
            for i in 0..frames.len() {
                let f = frames.frame(i);
                assert_eq!((port, f.checksum, f.mss, frames.chosen(i)), (3, RxChecksum::Verified, 0, true));
                let ip = ipv4::Packet::parse(&f.data[14..]).unwrap();
                let seg = Segment::parse(ip.payload).unwrap();
                seen.push((seg.seq.0, seg.payload.to_vec(), seg.flags));
            }
        });
        let text = &frame[54..];
        let expected = [
            (7, text[..1460].to_vec(), Flags::ACK),
            (1467, text[1460..2920].to_vec(), Flags::ACK),
            (2927, text[2920..].to_vec(), Flags::ACK | Flags::PSH),
        ];
        assert_eq!(seen.len(), 4 * expected.len());
        assert!(seen.chunks(3).all(|segments| segments == expected));
    }
}

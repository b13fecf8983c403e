//! Packets of one burst, as the descriptors of a receive ring describe them.
//!
//! A packet longer than a buffer lies in several, one descriptor each (XDP_USE_SG, Linux 6.6). So do segments that the kernel has
//! put together (GRO), and those that a sender on this machine never cut (TSO). Such a packet is copied together, since a stack
//! reads frames that are contiguous; its buffers go back to the kernel with the burst, however long its bytes are kept.

use wire::cut;

use super::ring::{CONTINUED, Desc};
use super::umem::longest_frame;

/// Bytes that are copied together for one burst, before it ends.
const MOST: usize = 256 << 10;
/// Longest frame there can be: an IP packet behind an Ethernet header with a tag.
const LONGEST: usize = 65_535 + 18;

/// A packet of the burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packet {
    /// In one buffer.
    Frame { addr: u64, len: u32 },
    /// Copied together. Payload bytes of its segments; 0 where it is one.
    Joined { at: usize, len: usize, mss: u16 },
}

/// Packets of the present burst.
pub(super) struct Burst {
    /// Largest packet of the link, bytes.
    mtu: usize,
    /// Longest frame of the link, bytes: what is longer was put together.
    longest: usize,
    packets: Vec<Packet>,
    joined: Vec<u8>,
    /// Descriptors of the packets, and of those that were left out.
    taken: u32,
    /// Packets that were left out since the beginning: longer than IP allows, as no kernel gives them.
    long: u64,
}

impl Burst {
    pub fn new(mtu: u32) -> Burst {
        let (mtu, longest) = (mtu as usize, longest_frame(mtu));
        Burst { mtu, longest, packets: Vec::with_capacity(256), joined: Vec::new(), taken: 0, long: 0 }
    }

    pub fn clear(&mut self) {
        self.packets.clear();
        self.joined.clear();
        self.taken = 0;
    }

    /// Takes at most `max` packets of the `n` descriptors that are there. `peek` reads one by its place, `bytes` a buffer's part.
    #[inline]
    pub fn fill<'a>(
        &mut self,
        n: u32,
        max: usize,
        peek: impl Fn(u32) -> Desc,
        bytes: impl Fn(u64, usize) -> &'a [u8],
    ) -> usize {
        self.clear();
        while self.taken < n && self.packets.len() < max {
            let Desc { addr, len, options } = peek(self.taken);
            if options & CONTINUED == 0 && len as usize <= self.longest {
                self.packets.push(Packet::Frame { addr, len });
                self.taken += 1;
            } else if self.joined.len() >= MOST || !self.join(n, &peek, &bytes) {
                break;
            }
        }
        self.packets.len()
    }

    /// Copies the next packet together, or leaves it out where it is longer than any; `false` where not all of it is there yet.
    #[cold]
    fn join<'a>(&mut self, n: u32, peek: impl Fn(u32) -> Desc, bytes: impl Fn(u64, usize) -> &'a [u8]) -> bool {
        let at = self.joined.len();
        for end in self.taken..n {
            let Desc { addr, len, options } = peek(end);
            // One byte more than there can be tells, whatever follows.
            let room = (LONGEST + 1).saturating_sub(self.joined.len() - at);
            self.joined.extend_from_slice(bytes(addr, (len as usize).min(room)));
            if options & CONTINUED == 0 {
                self.taken = end + 1;
                if self.joined.len() - at > LONGEST {
                    self.joined.truncate(at);
                    self.long += 1;
                    return true;
                }
                let frame = &self.joined[at..];
                let mss = if frame.len() > self.longest { cut::estimated_mss(frame, self.mtu) } else { 0 };
                self.packets.push(Packet::Joined { at, len: frame.len(), mss });
                return true;
            }
        }
        self.joined.truncate(at);
        false
    }

    /// Packets that were left out, since the beginning: longer than any can be.
    pub fn long(&self) -> u64 {
        self.long
    }

    /// Descriptors of the packets, and of those that were left out.
    pub fn taken(&self) -> u32 {
        self.taken
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Packet `i`, and payload bytes of the segments of which it was put together; 0 where it was not.
    #[inline]
    pub fn packet<'a>(&'a self, i: usize, bytes: impl FnOnce(u64, usize) -> &'a [u8]) -> (&'a [u8], u16) {
        match self.packets[i] {
            Packet::Frame { addr, len } => (bytes(addr, len as usize), 0),
            Packet::Joined { at, len, mss } => (&self.joined[at..at + len], mss),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::tcp::{Flags, Header, Options};
    use wire::{Addr, MacAddr, SeqNum, ethernet, ipv4};

    const SIZE: usize = 2048;

    /// Memory of `frames` in buffers of 1,792 bytes behind 256, in the order of the ring, and their descriptors.
    fn laid_out(frames: &[Vec<u8>]) -> (Vec<u8>, Vec<Desc>) {
        let (mut memory, mut descs) = (Vec::new(), Vec::new());
        for frame in frames {
            let parts = frame.chunks(SIZE - 256);
            let last = parts.len() - 1;
            for (i, part) in parts.enumerate() {
                let addr = memory.len() as u64 + 256;
                memory.resize(memory.len() + SIZE, 0);
                memory[addr as usize..][..part.len()].copy_from_slice(part);
                descs.push(Desc { addr, len: part.len() as u32, options: if i < last { CONTINUED } else { 0 } });
            }
        }
        (memory, descs)
    }

    fn segment(text: usize) -> Vec<u8> {
        let mut b = vec![0; 54 + text];
        ethernet::emit(&mut b, MacAddr([2; 6]), MacAddr([4; 6]), None, ethernet::IPV4);
        let (src, dst) = (Addr::from_v4([10, 0, 0, 1]), Addr::from_v4([10, 0, 0, 2]));
        ipv4::Header { src, dst, ..ipv4::Header::default() }.emit(&mut b[14..], 20 + text);
        let (seq, ack, flags, options) = (SeqNum(7), SeqNum(2), Flags::ACK, Options::default());
        Header { src_port: 1, dst_port: 2, seq, ack, flags, window: 3, urgent: 0, options }.emit(&mut b[34..], false);
        b[54..].iter_mut().enumerate().for_each(|(i, b)| *b = (i ^ i >> 8) as u8);
        b
    }

    /// All packets of a ring, burst by burst, each of at most `max`.
    fn taken(burst: &mut Burst, memory: &[u8], descs: &[Desc], max: usize) -> Vec<(Vec<u8>, u16)> {
        let (mut all, mut at) = (Vec::new(), 0);
        while at < descs.len() {
            let n = burst.fill(
                (descs.len() - at) as u32,
                max,
                |i| descs[at + i as usize],
                |addr, len| &memory[addr as usize..][..len],
            );
            assert!(n > 0 && n <= max && n == burst.len(), "a burst of {n}");
            let bytes = |addr: u64, len: usize| &memory[addr as usize..][..len];
            all.extend((0..n).map(|i| burst.packet(i, bytes)).map(|(data, mss)| (data.to_vec(), mss)));
            at += burst.taken() as usize;
        }
        all
    }

    proptest! {
        #[test]
        fn every_packet_comes_once_and_whole(
            texts in proptest::collection::vec(prop_oneof![0usize..1460, 1400usize..2000, 0usize..65_000], 1..40),
            max in 1usize..70,
        ) {
            let frames: Vec<_> = texts.iter().map(|n| segment(*n)).collect();
            let (memory, descs) = laid_out(&frames);
            let all = taken(&mut Burst::new(1500), &memory, &descs, max);
            prop_assert_eq!(all.len(), frames.len());
            for ((data, mss), frame) in all.iter().zip(&frames) {
                prop_assert_eq!(data, frame);
                // 18 bytes may be an Ethernet header with a tag.
                prop_assert_eq!(*mss, if frame.len() > 1518 { 1460 } else { 0 });
            }
        }
    }

    /// The kernel shows all parts of a packet at once; what it has shown in part all the same waits.
    #[test]
    fn a_packet_that_is_not_all_there_waits() {
        let frames = [segment(100), segment(4000)];
        let (memory, descs) = laid_out(&frames);
        let bytes = |addr: u64, len: usize| &memory[addr as usize..][..len];
        let mut burst = Burst::new(1500);
        assert_eq!((burst.fill(3, 64, |i| descs[i as usize], bytes), burst.taken()), (1, 1));
        assert_eq!((burst.fill(4, 64, |i| descs[i as usize], bytes), burst.taken()), (2, 4));
    }

    /// A packet of as many parts as a ring has costs no more memory than the longest, and those around it come.
    #[test]
    fn a_packet_longer_than_ip_allows_is_left_out_and_counted() {
        let of = |len: usize| vec![7; len];
        let frames = [of(154), of(LONGEST + 1), of(4054), of(LONGEST), of(4 << 20), of(254)];
        let (memory, descs) = laid_out(&frames);
        let mut burst = Burst::new(1500);
        let lengths: Vec<usize> = taken(&mut burst, &memory, &descs, 64).iter().map(|(data, _)| data.len()).collect();
        assert_eq!((lengths, burst.long()), (vec![154, 4054, LONGEST, 254], 2));
        assert!(burst.joined.capacity() < 2 * (MOST + LONGEST));
    }

    #[test]
    fn a_burst_ends_when_enough_is_copied() {
        let frames = vec![segment(60_000); 20];
        let (memory, descs) = laid_out(&frames);
        let bytes = |addr: u64, len: usize| &memory[addr as usize..][..len];
        assert_eq!(Burst::new(1500).fill(descs.len() as u32, 64, |i| descs[i as usize], bytes), MOST.div_ceil(60_054));
    }

    /// A jumbo frame is one segment, in however many buffers it lies.
    #[test]
    fn frames_of_the_link_are_not_taken_for_merged_ones() {
        let frames = [segment(8960), segment(9000)];
        let (memory, descs) = laid_out(&frames);
        let mss: Vec<u16> = taken(&mut Burst::new(9000), &memory, &descs, 64).iter().map(|(_, mss)| *mss).collect();
        assert_eq!(mss, [0, 8960]);
    }
}

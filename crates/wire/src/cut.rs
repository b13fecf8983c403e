//! The opposite of GRO: a frame in which TCP segments were put together becomes frames of one segment again, where it must
//! pass through memory cut for frames of a link.

use crate::burst::RxChecksum;
use crate::tcp::{self, Flags, Segment};
use crate::{Addr, SeqNum, checksum, ethernet, ipv4, ipv6};

/// Payload bytes of each segment but the last in a TCP frame longer than a link's, of which nobody told: as many as a packet of
/// `mtu` bytes with these headers has. 0 for a frame that cannot be cut.
pub fn estimated_mss(frame: &[u8], mtu: usize) -> u16 {
    Cut::parse(frame, 1).map_or(0, |cut| mtu.saturating_sub(cut.head.len() - cut.ip).min(u16::MAX.into()) as u16)
}

/// A frame that holds several segments.
#[derive(Clone, Copy, Debug)]
pub struct Cut<'a> {
    head: &'a [u8],
    text: &'a [u8],
    segment: &'a [u8],
    src: Addr,
    dst: Addr,
    mss: usize,
    ip: usize,
    tcp: usize,
    v4: bool,
    seq: SeqNum,
    flags: Flags,
}

impl<'a> Cut<'a> {
    /// Reads a frame whose segments but the last have `mss` bytes of text; `None` for one that cannot be cut.
    pub fn parse(frame: &'a [u8], mss: u16) -> Option<Cut<'a>> {
        let eth = ethernet::Frame::parse(frame).ok()?;
        let ip = frame.len() - eth.payload.len();
        let (v4, tcp, src, dst, segment) = match eth.ethertype {
            ethernet::IPV4 => {
                let p = ipv4::Packet::parse(eth.payload).ok()?;
                let tcp = ip + p.header.len();
                (p.protocol == ipv4::TCP && !p.is_fragment()).then_some((true, tcp, p.src, p.dst, p.payload))?
            }
            ethernet::IPV6 => {
                let p = ipv6::Packet::parse(eth.payload).ok()?;
                // Extension headers are nobody's who puts segments together.
                let tcp = ip + ipv6::Header::LEN;
                (frame.get(ip + 6) == Some(&ipv6::TCP)).then_some((false, tcp, p.src, p.dst, p.payload))?
            }
            _ => return None,
        };
        let seg = Segment::parse(segment).ok()?;
        let text = seg.payload;
        let start = tcp + segment.len() - text.len();
        let head = frame.get(..start)?;
        let (mss, seq, flags) = ((mss > 0).then_some(mss as usize)?, seg.seq, seg.flags);
        Some(Cut { head, text, segment, src, dst, mss, ip, tcp, v4, seq, flags })
    }

    /// True where the sum of the whole is right (RFC 9293 3.1, MUST-3), or vouched for: `checksum` is known of the frame.
    pub fn is_sound(&self, checksum: RxChecksum) -> bool {
        let &Cut { src, dst, segment, .. } = self;
        match checksum {
            RxChecksum::Verified => true,
            RxChecksum::MayBePartial if tcp::is_pseudo_only(src, dst, segment) => true,
            _ => tcp::checksum_ok(src, dst, segment),
        }
    }

    /// How many frames it becomes.
    pub fn count(&self) -> usize {
        self.text.len().div_ceil(self.mss).max(1)
    }

    fn part(&self, i: usize) -> &'a [u8] {
        let from = (i * self.mss).min(self.text.len());
        &self.text[from..(from + self.mss).min(self.text.len())]
    }

    /// Bytes of frame `i`.
    pub fn len(&self, i: usize) -> usize {
        self.head.len() + self.part(i).len()
    }

    /// Writes frame `i` into `to`, which has its length. Its TCP checksum is not computed: whoever gets it is told that it
    /// was verified.
    pub fn write(&self, i: usize, to: &mut [u8]) {
        let (head, part) = (self.head.len(), self.part(i));
        to[..head].copy_from_slice(self.head);
        to[head..].copy_from_slice(part);
        if self.v4 {
            to[self.ip + 2..self.ip + 4].copy_from_slice(&((head - self.ip + part.len()) as u16).to_be_bytes());
            to[self.ip + 10..self.ip + 12].fill(0);
            let sum = checksum::sum(&to[self.ip..self.tcp]).finish();
            to[self.ip + 10..self.ip + 12].copy_from_slice(&sum.to_be_bytes());
        } else {
            to[self.ip + 4..self.ip + 6].copy_from_slice(&((head - self.tcp + part.len()) as u16).to_be_bytes());
        }
        let seq = self.seq + (i * self.mss) as u32;
        to[self.tcp + 4..self.tcp + 8].copy_from_slice(&seq.0.to_be_bytes());
        let mut flags = self.flags;
        if i > 0 {
            flags = flags.without(Flags::CWR);
        }
        if i + 1 < self.count() {
            flags = flags.without(Flags::FIN | Flags::PSH);
        }
        let word = u16::from_be_bytes([to[self.tcp + 12], to[self.tcp + 13]]) & 0xf000 | flags.bits();
        to[self.tcp + 12..self.tcp + 14].copy_from_slice(&word.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200), mss in 0u16..100, v6: bool) {
            let mut frame = vec![0; 12];
            frame.extend(if v6 { ethernet::IPV6 } else { ethernet::IPV4 }.to_be_bytes());
            frame.extend(&bytes);
            if let Some(cut) = Cut::parse(&frame, mss) {
                for i in 0..cut.count() {
                    cut.write(i, &mut vec![0; cut.len(i)]);
                }
            }
        }
    }
}

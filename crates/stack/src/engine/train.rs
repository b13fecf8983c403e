//! Segments of one flow that follow one another in a burst, as bulk transfer sends them.
//!
//! The headers of the second and later ones differ from the first's in little more than the sequence number. They are held
//! against those of the frame before, byte by byte, instead of being parsed; no flow is looked up, and what the connection
//! wants is asked once, after the last. Unlike a kernel's GRO nothing is merged: the connection hears of each segment by
//! itself, so acknowledgments, the estimate of the peer's segment size and the counters are what they would be.

use wire::burst::{RxChecksum, RxFrame};
use wire::tcp::Flags;
use wire::{Addr, Instant, SeqNum, checksum, ethernet, ipv4, ipv6};

use crate::engine::headers::sum;
use crate::engine::input::CE;
use crate::engine::{Stack, context};

/// The frame that was taken last, and where its parts lie.
pub(crate) struct Train<'a> {
    /// Its connection, which is not settled.
    pub id: u32,
    frame: &'a [u8],
    /// Where the IP header begins, where TCP's, and where its text.
    ip: usize,
    tcp: usize,
    text: usize,
    v4: bool,
}

/// Whether `next` may be of the flow of `frame`: of frames of the common shape, which nearly all are, the ports tell.
#[inline(always)]
pub(super) fn may_follow(frame: &RxFrame, next: &RxFrame) -> bool {
    let (Some(a), Some(b)) = (frame.data.first_chunk::<38>(), next.data.first_chunk::<38>()) else { return false };
    a[12..15] != [0x08, 0x00, 0x45] || a[34..] == b[34..]
}

impl<'a> Train<'a> {
    /// `frame` was predicted, so it is sound.
    pub fn new(id: u32, frame: &RxFrame<'a>) -> Train<'a> {
        let data = frame.data;
        let tagged = [ethernet::VLAN, ethernet::SERVICE_VLAN].iter().any(|tag| data[12..14] == tag.to_be_bytes());
        let ip = if tagged { 18 } else { 14 };
        let v4 = data[ip - 2..ip] == ethernet::IPV4.to_be_bytes();
        // Options of IP, fragments, extension headers, marks and what was put together before: not followed.
        let (plain, ecn) = match v4 {
            true => (data[ip] == 0x45 && data[ip + 6] & 0x3f == 0 && data[ip + 7] == 0, data[ip + 1] & 3),
            false => (data[ip + 6] == ipv4::TCP, data[ip + 1] >> 4 & 3),
        };
        let tcp = ip + if v4 { ipv4::Header::LEN } else { ipv6::Header::LEN };
        if !plain || ecn == CE || frame.mss != 0 {
            return Train { id, frame: &[], ip, tcp, text: 0, v4 };
        }
        let text = tcp + (data[tcp + 12] >> 4) as usize * 4;
        Train { id, frame: data, ip, tcp, text, v4 }
    }

    /// The text of `frame`, and where it belongs, if nothing else tells it from the frame before.
    #[inline]
    fn next(&self, frame: &RxFrame<'a>) -> Option<(SeqNum, &'a [u8])> {
        let (old, new) = (self.frame, frame.data);
        if self.text == 0 || new.len() < self.text || frame.mss != 0 {
            return None;
        }
        let (a, b) = (old.get(self.tcp..)?, new.get(self.tcp..)?);
        let (a, b) = (a.first_chunk::<20>()?, b.first_chunk::<20>()?);
        // Ports first: with many flows these differ.
        let psh = Flags::PSH.bits() as u8;
        if a[..4] != b[..4] || a[8..13] != b[8..13] || (a[13] ^ b[13]) & !psh != 0 {
            return None;
        }
        // Window and urgent pointer, options; the link's header.
        let options = self.tcp + 20..self.text;
        if a[14..16] != b[14..16] || a[18..] != b[18..] || old[options.clone()] != new[options] {
            return None;
        }
        if old[..14] != new[..14] || old[14..self.ip] != new[14..self.ip] {
            return None;
        }
        let (a, b) = (&old[self.ip..self.tcp], &new[self.ip..self.tcp]);
        let end = match self.v4 {
            true => {
                let (a, b) = (a.first_chunk::<20>()?, b.first_chunk::<20>()?);
                let same = a[..2] == b[..2] && a[6..10] == b[6..10] && a[12..] == b[12..];
                if !same || !checksum::sum_20(b).is_ok() {
                    return None;
                }
                self.ip + u16::from_be_bytes([b[2], b[3]]) as usize
            }
            false => {
                let (a, b) = (a.first_chunk::<40>()?, b.first_chunk::<40>()?);
                if a[..4] != b[..4] || a[6..] != b[6..] {
                    return None;
                }
                self.tcp + u16::from_be_bytes([b[4], b[5]]) as usize
            }
        };
        let segment = new.get(self.tcp..end)?;
        let text = segment.get(self.text - self.tcp..)?;
        let seq = SeqNum(u32::from_be_bytes([segment[4], segment[5], segment[6], segment[7]]));
        (frame.checksum == RxChecksum::Verified || self.sum_ok(frame, segment)).then_some((seq, text))
    }

    /// RFC 9293 3.1, MUST-3.
    fn sum_ok(&self, frame: &RxFrame, segment: &[u8]) -> bool {
        let (src, dst) = self.addresses();
        frame.checksum == RxChecksum::MayBePartial && wire::tcp::is_pseudo_only(src, dst, segment)
            || wire::tcp::sum_ok(src, dst, segment.len(), sum(segment))
    }

    fn addresses(&self) -> (Addr, Addr) {
        let ip = &self.frame[self.ip..self.tcp];
        match self.v4 {
            true => {
                let at = |i: usize| Addr::from_v4([ip[i], ip[i + 1], ip[i + 2], ip[i + 3]]);
                (at(12), at(16))
            }
            false => {
                let at = |i: usize| Addr::from_v6(core::array::from_fn(|k| ip[i + k]));
                (at(8), at(24))
            }
        }
    }
}

impl Stack {
    /// Takes `frame` if it continues the train; `false`, and nothing is done, where it does not.
    #[inline]
    pub(super) fn follow<'a>(&mut self, now: Instant, train: &mut Train<'a>, frame: &RxFrame<'a>) -> bool {
        let Some((seq, text)) = train.next(frame) else { return false };
        let Some(c) = self.conns.get_mut(train.id) else { return false };
        let mut cx = context!(self, now, c.pool);
        if !c.tcb.on_following(seq, text, &mut cx) {
            return false;
        }
        self.counters.segments_in += 1;
        self.counters.followed += 1;
        train.frame = frame.data;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(len: usize, set: &[(usize, u8)]) -> Vec<u8> {
        let mut bytes = vec![0; len];
        bytes[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        set.iter().for_each(|(at, byte)| bytes[*at] = *byte);
        bytes
    }

    #[test]
    fn who_may_follow_has_the_same_ports() {
        let may = |a: &[u8], b: &[u8]| {
            let [a, b] = [a, b].map(|data| RxFrame::new(data, RxChecksum::Unknown));
            may_follow(&a, &b)
        };
        let usual = frame(60, &[(34, 7), (37, 9)]);
        assert!(may(&usual, &frame(80, &[(34, 7), (37, 9), (50, 1)])));
        assert!((34..38).all(|at| !may(&usual, &frame(60, &[(34, 7), (37, 9), (at, 1)]))));
        // Where the ports lie elsewhere it is found out later: a tag, options, IPv6.
        for odd in [(12, 0x81), (14, 0x46), (12, 0x86)] {
            assert!(may(&frame(60, &[odd, (34, 7)]), &usual), "{odd:?}");
        }
        assert!(!may(&usual[..37], &usual) && !may(&usual, &usual[..37]));
    }
}

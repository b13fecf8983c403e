//! Reassembly of IPv4 and IPv6 fragments (RFC 791 3.2, RFC 8200 4.5) within limits. Overlaps end the datagram (RFC 5722, for
//! IPv4 too), so a fragment can never rewrite what an earlier one said.

use core::time::Duration;
use std::collections::HashMap;

use wire::{Addr, Instant, ethernet, ipv4, ipv6};

/// Limits of reassembly.
#[derive(Clone, Debug)]
pub struct FragmentLimits {
    /// Datagrams under way at once.
    pub datagrams: usize,
    /// Bytes held by all of them.
    pub bytes: usize,
    /// How long the rest of a datagram may take (RFC 1122 3.3.2; Linux's 30 s).
    pub timeout: Duration,
}

impl Default for FragmentLimits {
    fn default() -> FragmentLimits {
        FragmentLimits { datagrams: 64, bytes: 4 << 20, timeout: Duration::from_secs(30) }
    }
}

/// What became of a fragment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fragment {
    /// Kept until the rest comes, or known already.
    Kept,
    /// The whole frame.
    Complete(Vec<u8>),
    /// Not kept.
    Dropped,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    src: Addr,
    dst: Addr,
    id: u32,
    protocol: u8,
    vlan: u16,
}

struct Datagram {
    /// Pieces by offset, disjoint.
    pieces: Vec<(u16, Vec<u8>)>,
    /// Link and IP headers of the first fragment, extension headers before the fragment header included.
    head: Option<Vec<u8>>,
    /// Where the last fragment ends.
    end: Option<usize>,
    bytes: usize,
    until: Instant,
}

pub(crate) struct Reassembler {
    limits: FragmentLimits,
    map: HashMap<Key, Datagram>,
    bytes: usize,
}

struct Piece<'a> {
    key: Key,
    offset: u16,
    more: bool,
    data: &'a [u8],
    /// Link and IP headers, without the fragment header.
    head: Vec<u8>,
    tcp: bool,
}

impl Reassembler {
    pub fn new(limits: FragmentLimits) -> Reassembler {
        Reassembler { limits, map: HashMap::new(), bytes: 0 }
    }

    /// Takes an Ethernet frame that carries a fragment.
    pub fn push(&mut self, now: Instant, frame: &[u8]) -> Fragment {
        let Some(piece) = parse(frame) else { return Fragment::Dropped };
        let len = piece.data.len();
        let end = piece.offset as usize + len;
        // Middle pieces come in eights; nothing reaches past 64 KiB; a first fragment holds the whole TCP header
        // (RFC 1858, RFC 7112).
        let tiny = piece.offset == 0 && piece.tcp && len < 20;
        if len == 0 || (piece.more && !len.is_multiple_of(8)) || end + piece.head.len() > 65_535 || tiny {
            self.forget(&piece.key);
            return Fragment::Dropped;
        }
        self.make_room(len, &piece.key);
        let until = now + self.limits.timeout;
        let d = self.map.entry(piece.key).or_insert_with(|| Datagram {
            pieces: Vec::new(),
            head: None,
            end: None,
            bytes: 0,
            until,
        });
        let at = d.pieces.partition_point(|(offset, _)| *offset < piece.offset);
        if d.pieces.get(at).is_some_and(|(offset, data)| *offset == piece.offset && data == piece.data) {
            return Fragment::Kept;
        }
        let before = at.checked_sub(1).map(|i| &d.pieces[i]);
        let overlaps = before.is_some_and(|(o, data)| *o as usize + data.len() > piece.offset as usize)
            || d.pieces.get(at).is_some_and(|(o, _)| (*o as usize) < end)
            || d.end.is_some_and(|e| end > e || (!piece.more && end != e))
            || (!piece.more && d.pieces.last().is_some_and(|(o, data)| *o as usize + data.len() > end));
        if overlaps {
            self.forget(&piece.key);
            return Fragment::Dropped;
        }
        d.pieces.insert(at, (piece.offset, piece.data.to_vec()));
        d.bytes += len;
        self.bytes += len;
        if !piece.more {
            d.end = Some(end);
        }
        if piece.offset == 0 {
            d.head = Some(piece.head);
        }
        if d.end != Some(d.bytes) || d.head.is_none() {
            return Fragment::Kept;
        }
        let Some(done) = self.forget(&piece.key) else { return Fragment::Dropped };
        match whole(done) {
            Some(frame) => Fragment::Complete(frame),
            None => Fragment::Dropped,
        }
    }

    fn forget(&mut self, key: &Key) -> Option<Datagram> {
        let d = self.map.remove(key)?;
        self.bytes -= d.bytes;
        Some(d)
    }

    /// The oldest give way to a newcomer.
    fn make_room(&mut self, len: usize, key: &Key) {
        while self.bytes + len > self.limits.bytes
            || (self.map.len() >= self.limits.datagrams && !self.map.contains_key(key))
        {
            let Some(oldest) = self.map.iter().min_by_key(|(_, d)| d.until).map(|(k, _)| *k) else { return };
            self.forget(&oldest);
        }
    }

    /// Drops what was never completed; how many datagrams.
    pub fn expire(&mut self, now: Instant) -> usize {
        let late: Vec<Key> = self.map.iter().filter(|(_, d)| d.until <= now).map(|(k, _)| *k).collect();
        late.iter().for_each(|k| drop(self.forget(k)));
        late.len()
    }

    /// When [`Reassembler::expire`] has something to do.
    pub fn next(&self) -> Option<Instant> {
        self.map.values().map(|d| d.until).min()
    }
}

fn parse(frame: &[u8]) -> Option<Piece<'_>> {
    let eth = ethernet::Frame::parse(frame).ok()?;
    let vlan = eth.vlan.map_or(0, |v| v.id);
    let link = frame.len() - eth.payload.len();
    match eth.ethertype {
        ethernet::IPV4 => {
            let ip = ipv4::Packet::parse(eth.payload).ok()?;
            Some(Piece {
                key: Key { src: ip.src, dst: ip.dst, id: ip.id as u32, protocol: ip.protocol, vlan },
                offset: ip.fragment_offset,
                more: ip.more_fragments,
                data: ip.payload,
                head: frame[..link + ip.header.len()].to_vec(),
                tcp: ip.protocol == ipv4::TCP,
            })
        }
        ethernet::IPV6 => {
            let ip = ipv6::Packet::parse(eth.payload).ok()?;
            let f = ip.fragment?;
            // The fragment header is found by walking, as the parser did; what follows it in the first fragment is
            // payload like the rest.
            let (at, slot) = walk(eth.payload)?;
            let end = ip.upper_offset + ip.payload.len();
            let mut head = frame[..link + at].to_vec();
            // The header before names what the fragment header named.
            let next = eth.payload[at];
            head[link + slot] = next;
            Some(Piece {
                // RFC 8200 4.5: protocol is no part of the key.
                key: Key { src: ip.src, dst: ip.dst, id: f.id, protocol: 0, vlan },
                offset: f.offset,
                more: f.more,
                data: &eth.payload[at + 8..end],
                head,
                tcp: next == ipv6::TCP,
            })
        }
        _ => None,
    }
}

const FRAGMENT: u8 = 44;

/// Walks the extension headers of a packet that the parser accepted: (offset of the fragment header, offset of the byte that
/// names it).
fn walk(packet: &[u8]) -> Option<(usize, usize)> {
    let (mut next, mut slot, mut at) = (packet[6], 6, 40);
    while next != FRAGMENT {
        if !matches!(next, 0 | 43 | 60) {
            return None;
        }
        slot = at;
        next = *packet.get(at)?;
        at += 8 + *packet.get(at + 1)? as usize * 8;
    }
    (packet.len() >= at + 8).then_some((at, slot))
}

/// Puts the pieces behind the first one's headers and makes the headers say so.
fn whole(d: Datagram) -> Option<Vec<u8>> {
    let mut frame = d.head?;
    let link = frame.len() - {
        let eth = ethernet::Frame::parse(&frame).ok()?;
        eth.payload.len()
    };
    let headers = frame.len() - link;
    d.pieces.iter().for_each(|(_, data)| frame.extend_from_slice(data));
    let ip = &mut frame[link..];
    if ip[0] >> 4 == 4 {
        let total = (headers + d.bytes) as u16;
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        ip[6..8].fill(0);
        ip[10..12].fill(0);
        let sum = wire::checksum::sum(&ip[..headers]).finish();
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        let payload = (headers - 40 + d.bytes) as u16;
        ip[4..6].copy_from_slice(&payload.to_be_bytes());
    }
    Some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::MacAddr;

    fn frame(v6: bool, id: u32, offset: usize, more: bool, data: &[u8]) -> Vec<u8> {
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let mut b = vec![0; 14];
        if v6 {
            ethernet::emit(&mut b, mac, mac, None, ethernet::IPV6);
            let a = Addr::from_v6([0xfd; 16]);
            let mut h = [0; 40];
            ipv6::Header { src: a, dst: a, next_header: FRAGMENT, ..Default::default() }.emit(&mut h, 8 + data.len());
            b.extend(h);
            let word = offset as u16 | more as u16;
            b.extend([ipv6::TCP, 0]);
            b.extend(word.to_be_bytes());
            b.extend(id.to_be_bytes());
        } else {
            ethernet::emit(&mut b, mac, mac, None, ethernet::IPV4);
            let a = Addr::from_v4([10, 0, 0, 1]);
            let mut h = [0; 20];
            ipv4::Header { src: a, dst: a, id: id as u16, dont_fragment: false, ..Default::default() }
                .emit(&mut h, data.len());
            h[6..8].copy_from_slice(&((offset / 8) as u16 | (more as u16) << 13).to_be_bytes());
            h[10..12].fill(0);
            let sum = wire::checksum::sum(&h).finish();
            h[10..12].copy_from_slice(&sum.to_be_bytes());
            b.extend(h);
        }
        b.extend(data);
        b
    }

    fn payload(whole: &[u8]) -> Vec<u8> {
        let eth = ethernet::Frame::parse(whole).unwrap();
        match eth.ethertype {
            ethernet::IPV4 => {
                let ip = ipv4::Packet::parse(eth.payload).unwrap();
                assert!(!ip.is_fragment());
                ip.payload.to_vec()
            }
            _ => {
                let ip = ipv6::Packet::parse(eth.payload).unwrap();
                assert_eq!((ip.fragment, ip.next_header), (None, ipv6::TCP));
                ip.payload.to_vec()
            }
        }
    }

    proptest! {
        #[test]
        fn any_order_with_duplicates_gives_the_datagram(v6: bool, len in 21usize..3000, step in 3usize..60, order: u64) {
            let step = step * 8;
            let data: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            let mut pieces: Vec<_> = data.chunks(step).enumerate()
                .map(|(i, c)| frame(v6, 9, i * step, (i + 1) * step < len, c)).collect();
            prop_assume!(pieces.len() > 1);
            let n = pieces.len();
            let mut x = order;
            for i in (1..n).rev() {
                x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                pieces.swap(i, (x >> 33) as usize % (i + 1));
            }
            let mut r = Reassembler::new(FragmentLimits::default());
            for (i, p) in pieces.iter().enumerate() {
                let got = r.push(Instant::ZERO, p);
                if i + 1 < n {
                    prop_assert_eq!(got, Fragment::Kept);
                    prop_assert_eq!(r.push(Instant::ZERO, p), Fragment::Kept);
                } else {
                    let Fragment::Complete(whole) = got else { panic!("not complete") };
                    prop_assert_eq!(payload(&whole), data.clone());
                }
            }
            prop_assert_eq!((r.bytes, r.map.len()), (0, 0));
        }

        #[test]
        fn memory_is_bounded(frames in proptest::collection::vec((any::<bool>(), 0u32..400, 0usize..400, any::<bool>(), 1usize..1200), 0..400)) {
            let mut r = Reassembler::new(FragmentLimits { datagrams: 8, bytes: 10_000, ..FragmentLimits::default() });
            for (v6, id, at, more, len) in frames {
                r.push(Instant::ZERO, &frame(v6, id, at * 8, more, &vec![0; len]));
                prop_assert!(r.bytes <= 10_000 && r.map.len() <= 8);
                prop_assert_eq!(r.bytes, r.map.values().map(|d| d.bytes).sum::<usize>());
            }
            r.expire(Instant::FAR);
            prop_assert_eq!((r.bytes, r.map.len(), r.next()), (0, 0, None));
        }
    }

    #[test]
    fn overlaps_tiny_firsts_and_late_ends_are_dropped() {
        for v6 in [false, true] {
            let mut r = Reassembler::new(FragmentLimits::default());
            assert_eq!(r.push(Instant::ZERO, &frame(v6, 1, 0, true, &[1; 64])), Fragment::Kept);
            assert_eq!(r.push(Instant::ZERO, &frame(v6, 1, 56, false, &[2; 64])), Fragment::Dropped);
            // The datagram is gone: its other half alone completes nothing.
            assert_eq!(r.push(Instant::ZERO, &frame(v6, 1, 64, false, &[2; 64])), Fragment::Kept);
            assert_eq!(r.push(Instant::ZERO, &frame(v6, 2, 0, true, &[1; 16])), Fragment::Dropped);
            assert_eq!(r.push(Instant::ZERO, &frame(v6, 3, 64, false, &[1; 8])), Fragment::Kept);
            assert_eq!(r.push(Instant::ZERO, &frame(v6, 3, 128, true, &[1; 8])), Fragment::Dropped);
            assert_eq!(r.push(Instant::ZERO, &frame(v6, 4, 65_528, false, &[1; 64])), Fragment::Dropped);
            assert_eq!(r.expire(Instant::from_micros(30_000_000)), 1);
        }
    }
}

//! Reassembly of IPv4 and IPv6 fragments (RFC 791 3.2, RFC 8200 4.5) within limits. Overlaps end the datagram (RFC 5722, for
//! IPv4 too), so a fragment can never rewrite what an earlier one said.

use std::collections::BTreeMap;

use wire::{Addr, Instant, ethernet, icmpv6, ipv4, ipv6};

use crate::{DropReason, FragmentLimits, InterfaceId};

/// What became of a fragment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fragment {
    /// Kept until the rest comes, or known already.
    Kept,
    /// The whole frame.
    Complete(Vec<u8>),
    /// Not kept.
    Dropped(DropReason),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    interface: u8,
    src: Addr,
    dst: Addr,
    id: u32,
    protocol: u8,
    vlan: u16,
}

struct Datagram {
    /// Pieces by offset, disjoint.
    pieces: Vec<(u16, Box<[u8]>)>,
    head: Option<Head>,
    /// Where the last fragment ends.
    end: Option<usize>,
    /// Bytes of the pieces.
    bytes: usize,
    /// What it counts against the limit.
    cost: usize,
    /// The ECN fields met, a bit for each of the four.
    ecn: u8,
    /// Pieces overlapped: what else comes is dropped as well.
    dead: bool,
    until: Instant,
    /// Order of arrival, among those of one time.
    serial: u64,
}

/// What stands before the first fragment's payload: link and IP headers, extension headers before the fragment header
/// included, which itself is cut out.
struct Head {
    bytes: Vec<u8>,
    /// Bytes of the link header.
    link: usize,
    /// IPv6: the fragment header, and the byte of the packet that named it.
    cut: Option<([u8; 8], usize)>,
}

impl Head {
    /// The first fragment's frame as it came.
    fn with(&self, data: &[u8]) -> Vec<u8> {
        let mut frame = self.bytes.clone();
        if let Some((header, slot)) = self.cut {
            frame[self.link + slot] = FRAGMENT;
            frame.extend_from_slice(&header);
        }
        frame.extend_from_slice(data);
        frame
    }
}

/// For a piece's place, its allocation, and its share of the datagram's.
const PIECE_COST: usize = 64;
const BAD: Fragment = Fragment::Dropped(DropReason::Fragment);
const NOT_ECT: u8 = 1 << 0;
const CE: u8 = 1 << 3;

pub(crate) struct Reassembler {
    limits: FragmentLimits,
    // Ordered, so that the same frames always have the same fate.
    map: BTreeMap<Key, Datagram>,
    bytes: usize,
    serial: u64,
    /// Datagrams that gave way to newer ones.
    pub evicted: usize,
}

struct Piece<'a> {
    key: Key,
    offset: u16,
    more: bool,
    data: &'a [u8],
    ecn: u8,
    head: Head,
    /// A first fragment that hides what it begins, or begins what may not come in pieces.
    refused: bool,
}

impl Reassembler {
    pub fn new(limits: FragmentLimits) -> Reassembler {
        Reassembler { limits, map: BTreeMap::new(), bytes: 0, serial: 0, evicted: 0 }
    }

    /// Takes an Ethernet frame that carries a fragment.
    pub fn push(&mut self, now: Instant, interface: InterfaceId, frame: &[u8]) -> Fragment {
        let Some(piece) = parse(interface.0, frame) else { return BAD };
        let len = piece.data.len();
        let end = piece.offset as usize + len;
        // Middle pieces come in eights; a first fragment holds the whole TCP header (RFC 1858, RFC 7112).
        if len == 0 || (piece.more && !len.is_multiple_of(8)) || end > 65_535 || piece.refused {
            return BAD;
        }
        let ecn = 1 << piece.ecn;
        if piece.offset == 0 && !piece.more {
            // RFC 6946: whole by itself, whatever else has its id.
            return finish(piece.head, [piece.data].into_iter(), len, ecn);
        }
        if let Some(d) = self.map.get_mut(&piece.key) {
            if d.dead {
                return Fragment::Dropped(DropReason::FragmentOverlap);
            }
            let at = d.pieces.partition_point(|(offset, _)| *offset < piece.offset);
            let next = d.pieces.get(at);
            if next.is_some_and(|(offset, data)| *offset == piece.offset && **data == *piece.data)
                && (d.end == Some(end)) != piece.more
            {
                return Fragment::Kept;
            }
            let before = at.checked_sub(1).map(|i| &d.pieces[i]);
            let overlaps = before.is_some_and(|(o, data)| *o as usize + data.len() > piece.offset as usize)
                || next.is_some_and(|(o, _)| (*o as usize) < end)
                // Behind the last one, or a second last one, or one that is not behind all others.
                || d.end.is_some_and(|e| end > e || (!piece.more && end != e))
                || (!piece.more && next.is_some());
            if overlaps {
                self.bury(&piece.key);
                return Fragment::Dropped(DropReason::FragmentOverlap);
            }
        }
        let cost = len + PIECE_COST + if piece.offset == 0 { piece.head.bytes.len() } else { 0 };
        if !self.make_room(cost, &piece.key) {
            self.forget(&piece.key);
            return Fragment::Dropped(DropReason::FragmentLimit);
        }
        self.serial += 1;
        let d = self.map.entry(piece.key).or_insert_with(|| Datagram {
            pieces: Vec::new(),
            head: None,
            end: None,
            bytes: 0,
            cost: 0,
            ecn: 0,
            dead: false,
            until: now + self.limits.timeout,
            serial: self.serial,
        });
        let at = d.pieces.partition_point(|(offset, _)| *offset < piece.offset);
        d.pieces.insert(at, (piece.offset, piece.data.into()));
        d.bytes += len;
        d.cost += cost;
        d.ecn |= ecn;
        self.bytes += cost;
        if !piece.more {
            d.end = Some(end);
        }
        if piece.offset == 0 {
            d.head = Some(piece.head);
        }
        if d.end != Some(d.bytes) || d.head.is_none() {
            return Fragment::Kept;
        }
        match self.forget(&piece.key) {
            Some(Datagram { head: Some(head), pieces, bytes, ecn, .. }) => {
                finish(head, pieces.iter().map(|(_, data)| &**data), bytes, ecn)
            }
            _ => BAD,
        }
    }

    fn forget(&mut self, key: &Key) -> Option<Datagram> {
        let d = self.map.remove(key)?;
        self.bytes -= d.cost;
        Some(d)
    }

    /// RFC 5722 4: the datagram is discarded with the fragments not yet received, so its place stays until its time is up.
    fn bury(&mut self, key: &Key) {
        let Some(d) = self.map.get_mut(key) else { return };
        self.bytes -= d.cost;
        (d.pieces, d.head, d.bytes, d.cost, d.dead) = (Vec::new(), None, 0, 0, true);
    }

    /// The oldest others give way to a newcomer; whether that made room.
    fn make_room(&mut self, cost: usize, key: &Key) -> bool {
        let room = |r: &Reassembler| {
            r.bytes + cost <= r.limits.bytes && (r.map.len() < r.limits.datagrams || r.map.contains_key(key))
        };
        while !room(self) {
            let others = self.map.iter().filter(|(k, _)| *k != key);
            let Some(oldest) = others.min_by_key(|(_, d)| (d.until, d.serial)).map(|(k, _)| *k) else { return false };
            self.forget(&oldest);
            self.evicted += 1;
        }
        true
    }

    /// Drops what was never completed, but for what an overlap had ended before: where each came in, and the frame of its
    /// first fragment if that is there.
    pub fn expire(&mut self, now: Instant) -> Vec<(InterfaceId, Option<Vec<u8>>)> {
        let late: Vec<Key> = self.map.iter().filter(|(_, d)| d.until <= now).map(|(k, _)| *k).collect();
        let gone = late.iter().filter_map(|k| Some((InterfaceId(k.interface), self.forget(k)?)));
        let first = |d: &Datagram| Some(d.head.as_ref()?.with(&d.pieces.first()?.1));
        gone.filter(|(_, d)| !d.dead).map(|(i, d)| (i, first(&d))).collect()
    }

    /// When [`Reassembler::expire`] has something to do.
    pub fn next(&self) -> Option<Instant> {
        self.map.values().map(|d| d.until).min()
    }
}

fn parse(interface: u8, frame: &[u8]) -> Option<Piece<'_>> {
    let eth = ethernet::Frame::parse(frame).ok()?;
    let vlan = eth.vlan.map_or(0, |v| v.id);
    let link = frame.len() - eth.payload.len();
    match eth.ethertype {
        ethernet::IPV4 => {
            let ip = ipv4::Packet::parse(eth.payload).ok()?;
            Some(Piece {
                key: Key { interface, src: ip.src, dst: ip.dst, id: ip.id as u32, protocol: ip.protocol, vlan },
                offset: ip.fragment_offset,
                more: ip.more_fragments,
                data: ip.payload,
                ecn: ip.tos & 3,
                head: Head { bytes: frame[..link + ip.header.len()].to_vec(), link, cut: None },
                refused: ip.fragment_offset == 0 && ip.protocol == ipv4::TCP && cuts_tcp(ip.payload),
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
            let cut = eth.payload[at..].first_chunk().map(|header| (*header, slot));
            Some(Piece {
                // RFC 8200 4.5: protocol is no part of the key.
                key: Key { interface, src: ip.src, dst: ip.dst, id: f.id, protocol: 0, vlan },
                offset: f.offset,
                more: f.more,
                data: &eth.payload[at + 8..end],
                ecn: ip.traffic_class & 3,
                head: Head { bytes: head, link, cut },
                refused: f.offset == 0
                    && match ip.next_header {
                        ipv6::TCP => cuts_tcp(ip.payload),
                        // RFC 6980 5: neighbour discovery comes whole. RFC 7112 5: what it is must be seen.
                        ipv6::ICMPV6 => ip.payload.first().is_none_or(|kind| icmpv6::NDP.contains(kind)),
                        _ => false,
                    },
            })
        }
        _ => None,
    }
}

/// Whether a TCP header does not end within `segment`.
fn cuts_tcp(segment: &[u8]) -> bool {
    segment.get(12).is_none_or(|word| segment.len() < (word >> 4) as usize * 4) || segment.len() < 20
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

/// Puts the pieces, `len` bytes in all, behind the first one's headers and makes the headers say so.
fn finish<'a>(head: Head, pieces: impl Iterator<Item = &'a [u8]>, len: usize, ecn: u8) -> Fragment {
    let Head { bytes: mut frame, link, .. } = head;
    let headers = frame.len() - link;
    let v4 = frame[link] >> 4 == 4;
    // The fixed IPv6 header does not count itself.
    let Ok(length) = u16::try_from(headers + len - if v4 { 0 } else { 40 }) else { return BAD };
    // RFC 3168 5.3: congestion met by any fragment was met by the packet, which must be ECN-capable throughout.
    if ecn & CE != 0 && ecn & NOT_ECT != 0 {
        return BAD;
    }
    frame.reserve_exact(len);
    pieces.for_each(|data| frame.extend_from_slice(data));
    let ip = &mut frame[link..];
    if v4 {
        ip[1] |= if ecn & CE != 0 { 3 } else { 0 };
        ip[2..4].copy_from_slice(&length.to_be_bytes());
        ip[6..8].fill(0);
        ip[10..12].fill(0);
        let sum = wire::checksum::sum(&ip[..headers]).finish();
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        ip[1] |= if ecn & CE != 0 { 0x30 } else { 0 };
        ip[4..6].copy_from_slice(&length.to_be_bytes());
    }
    Fragment::Complete(frame)
}

#[cfg(test)]
mod tests;

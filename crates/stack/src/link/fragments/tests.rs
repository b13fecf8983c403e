//! Fragments in every order, too many, too large, contradicting each other.

use super::*;
use proptest::prelude::*;
use wire::MacAddr;

const I: InterfaceId = InterfaceId(0);
const OVERLAP: Fragment = Fragment::Dropped(DropReason::FragmentOverlap);

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

/// A whole datagram's payload.
fn payload(whole: &[u8]) -> Vec<u8> {
    let (protocol, payload) = datagram(whole);
    assert_eq!(protocol, ipv6::TCP);
    payload
}

/// A whole datagram's protocol and payload.
fn datagram(whole: &[u8]) -> (u8, Vec<u8>) {
    let eth = ethernet::Frame::parse(whole).unwrap();
    match eth.ethertype {
        ethernet::IPV4 => {
            let ip = ipv4::Packet::parse(eth.payload).unwrap();
            assert!(!ip.is_fragment());
            (ip.protocol, ip.payload.to_vec())
        }
        _ => {
            let ip = ipv6::Packet::parse(eth.payload).unwrap();
            assert_eq!(ip.fragment, None);
            (ip.next_header, ip.payload.to_vec())
        }
    }
}

proptest! {
    #[test]
    fn any_order_with_duplicates_gives_the_datagram(v6: bool, len in 21usize..3000, step in 3usize..60, order: u64) {
        let step = step * 8;
        let mut data: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        data[12] = 0x50;
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
            let got = r.push(Instant::ZERO, I, p);
            if i + 1 < n {
                prop_assert_eq!(got, Fragment::Kept);
                prop_assert_eq!(r.push(Instant::ZERO, I, p), Fragment::Kept);
            } else {
                let Fragment::Complete(whole) = got else { panic!("not complete") };
                prop_assert_eq!(payload(&whole), data.clone());
            }
        }
        prop_assert_eq!((r.bytes, r.map.len()), (0, 0));
    }

    #[test]
    fn memory_is_bounded(
        frames in proptest::collection::vec((any::<bool>(), 0u32..40, 0usize..400, any::<bool>(), 1usize..1200), 0..400),
        bytes in 500usize..10_000,
    ) {
        let mut r = Reassembler::new(FragmentLimits { datagrams: 8, bytes, ..FragmentLimits::default() });
        for (i, (v6, id, at, more, len)) in frames.into_iter().enumerate() {
            let len = if more { len.next_multiple_of(8) } else { len };
            r.push(Instant::from_micros(i as u64 / 3), I, &frame(v6, id, at * 8, more, &vec![0x50; len]));
            prop_assert!(r.bytes <= bytes && r.map.len() <= 8);
            prop_assert_eq!(r.bytes, r.map.values().map(|d| d.cost).sum::<usize>());
            for d in r.map.values() {
                prop_assert_eq!(d.bytes, d.pieces.iter().map(|p| p.1.len()).sum::<usize>());
                prop_assert!(d.pieces.is_sorted_by(|a, b| a.0 as usize + a.1.len() <= b.0 as usize));
            }
        }
        r.expire(Instant::FAR);
        prop_assert_eq!((r.bytes, r.map.len(), r.next()), (0, 0, None));
    }

    #[test]
    fn any_frame(bytes in proptest::collection::vec(any::<u8>(), 0..200), v6: bool, cut in 0usize..200) {
        // Noise, noise behind good link headers, and a good fragment whose tail is noise or missing.
        let mut r = Reassembler::new(FragmentLimits::default());
        r.push(Instant::ZERO, I, &bytes);
        let mut good = frame(v6, 1, 8, true, &[0; 64]);
        r.push(Instant::ZERO, I, &good[..cut.min(good.len())]);
        let at = 14 + cut % (good.len() - 14);
        let n = bytes.len().min(good.len() - at);
        good[at..at + n].copy_from_slice(&bytes[..n]);
        // Noise may name any protocol.
        if let Fragment::Complete(whole) = r.push(Instant::ZERO, I, &good) {
            datagram(&whole);
        }
    }
}

#[test]
fn a_fragment_that_is_alone_may_be_of_any_protocol() {
    for protocol in 0..=255 {
        let mut atomic = frame(true, 1, 0, false, &[0; 64]);
        atomic[14 + 40] = protocol;
        if let Fragment::Complete(whole) = Reassembler::new(FragmentLimits::default()).push(Instant::ZERO, I, &atomic) {
            datagram(&whole);
        }
    }
}

const T: Instant = Instant::ZERO;

fn reassembler() -> Reassembler {
    Reassembler::new(FragmentLimits::default())
}

/// The start of a segment with a TCP header of twenty bytes.
fn first(len: usize) -> Vec<u8> {
    let mut b = vec![1; len];
    b[12] = 0x50;
    b
}

#[test]
fn an_overlap_ends_the_datagram_for_good() {
    for v6 in [false, true] {
        let overlaps: [(usize, bool, Vec<u8>); 6] = [
            (56, false, vec![2; 64]),
            (0, true, vec![2; 64]),
            (0, true, first(56)),
            (48, true, vec![1; 8]),
            // The same bytes, but now said to be the last.
            (32, false, vec![1; 32]),
            (64, true, vec![1; 96]),
        ];
        for (at, more, data) in overlaps {
            let mut r = reassembler();
            let push = |r: &mut Reassembler, at, more, data: &[u8]| r.push(T, I, &frame(v6, 1, at, more, data));
            assert_eq!(push(&mut r, 0, true, &first(32)), Fragment::Kept);
            assert_eq!(push(&mut r, 32, true, &[1; 32]), Fragment::Kept);
            assert_eq!(push(&mut r, 128, true, &[1; 8]), Fragment::Kept);
            assert_eq!(push(&mut r, at, more, &data), OVERLAP, "{at}");
            // Not even a full set completes it now.
            assert_eq!(push(&mut r, 0, true, &first(32)), OVERLAP);
            assert_eq!(push(&mut r, 32, false, &[1; 32]), OVERLAP);
            assert_eq!((r.bytes, r.map.len()), (0, 1));
            // Counted once already; after its time the id is free.
            assert_eq!(
                (r.next(), r.expire(Instant::from_micros(30_000_000)).len()),
                (Some(Instant::from_micros(30_000_000)), 0)
            );
            assert_eq!(push(&mut r, 0, true, &first(32)), Fragment::Kept);
            assert!(matches!(push(&mut r, 32, false, &[1; 32]), Fragment::Complete(_)));
        }
    }
}

#[test]
fn what_contradicts_the_end_is_an_overlap() {
    for v6 in [false, true] {
        for (at, more) in [(128, true), (128, false), (8, false)] {
            let mut r = reassembler();
            assert_eq!(r.push(T, I, &frame(v6, 3, 64, false, &[1; 8])), Fragment::Kept);
            assert_eq!(r.push(T, I, &frame(v6, 3, at, more, &[1; 8])), OVERLAP);
            assert_eq!(r.push(T, I, &frame(v6, 3, 0, true, &first(64))), OVERLAP);
        }
    }
}

#[test]
fn bad_pieces_are_dropped_alone() {
    for v6 in [false, true] {
        let mut r = reassembler();
        let mut long_header = vec![1; 24];
        long_header[12] = 0x70;
        let bad: [(usize, bool, &[u8]); 5] = [
            // No whole TCP header; half of its options; nothing; no multiple of eight; past 64 KiB.
            (0, true, &[0x50; 16]),
            (0, true, &long_header),
            (8, true, &[]),
            (8, true, &[1; 20]),
            (65_528, false, &[1; 8]),
        ];
        for (at, more, data) in bad {
            assert_eq!(r.push(T, I, &frame(v6, 1, at, more, data)), BAD, "{at} {}", data.len());
        }
        assert_eq!((r.bytes, r.map.len()), (0, 0));
    }
}

#[test]
fn the_largest_packet_and_one_byte_more() {
    // 65,535 bytes: all of an IPv4 packet, only the payload of an IPv6 one.
    for (v6, most) in [(false, 65_515), (true, 65_535)] {
        for over in [0, 1] {
            let mut r = reassembler();
            let data: Vec<u8> = first(65_536)[..most + over].to_vec();
            let mut last = None;
            for (i, c) in data.chunks(1400).enumerate() {
                let end = i * 1400 + c.len();
                last = Some(r.push(T, I, &frame(v6, 5, i * 1400, end < data.len(), c)));
            }
            match (over, last.unwrap()) {
                (0, Fragment::Complete(whole)) => assert_eq!(payload(&whole), data),
                (1, BAD) => {}
                (_, other) => panic!("{v6} {over} {other:?}"),
            }
        }
    }
}

fn with_ecn(mut frame: Vec<u8>, v6: bool, ecn: u8) -> Vec<u8> {
    if v6 {
        frame[15] |= ecn << 4;
    } else {
        frame[15] |= ecn;
        frame[24..26].fill(0);
        let sum = wire::checksum::sum(&frame[14..34]).finish();
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

#[test]
fn congestion_met_by_one_fragment_is_not_lost() {
    let ecn_of = |whole: &[u8]| {
        let eth = ethernet::Frame::parse(whole).unwrap();
        match eth.ethertype {
            ethernet::IPV4 => ipv4::Packet::parse(eth.payload).unwrap().tos & 3,
            _ => ipv6::Packet::parse(eth.payload).unwrap().traffic_class & 3,
        }
    };
    for v6 in [false, true] {
        for (a, b, whole) in
            [(0, 0, Some(0)), (2, 2, Some(2)), (2, 3, Some(3)), (3, 1, Some(3)), (0, 3, None), (3, 0, None)]
        {
            let mut r = reassembler();
            assert_eq!(r.push(T, I, &with_ecn(frame(v6, 1, 0, true, &first(64)), v6, a)), Fragment::Kept);
            let got = match r.push(T, I, &with_ecn(frame(v6, 1, 64, false, &[1; 5]), v6, b)) {
                Fragment::Complete(f) => Some(ecn_of(&f)),
                _ => None,
            };
            assert_eq!(got, whole, "{a} {b}");
        }
    }
}

#[test]
fn an_atomic_fragment_is_whole_whatever_else_waits() {
    let mut r = reassembler();
    assert_eq!(r.push(T, I, &frame(true, 1, 0, true, &first(64))), Fragment::Kept);
    let Fragment::Complete(whole) = r.push(T, I, &frame(true, 1, 0, false, &first(33))) else { panic!("not whole") };
    assert_eq!(payload(&whole), first(33));
    assert!(matches!(r.push(T, I, &frame(true, 1, 64, false, &[1; 5])), Fragment::Complete(_)));
}

#[test]
fn link_and_extension_headers_stay() {
    // VLAN 7, a destination options header, then the fragment header.
    let mac = MacAddr([2, 0, 0, 0, 0, 1]);
    let a = Addr::from_v6([0xfd; 16]);
    let piece = |at: u16, more: bool, vlan: u16, data: &[u8]| {
        let mut b = vec![0; 58];
        ethernet::emit(&mut b, mac, mac, Some(vlan), ethernet::IPV6);
        let h = ipv6::Header { src: a, dst: a, next_header: 60, ..Default::default() };
        h.emit(&mut b[18..], 16 + data.len());
        b.extend([FRAGMENT, 0, 1, 4, 0, 0, 0, 0, ipv6::TCP, 0]);
        b.extend((at | more as u16).to_be_bytes());
        b.extend([0, 0, 0, 9]);
        b.extend(data);
        b
    };
    let mut r = reassembler();
    assert_eq!(r.push(T, I, &piece(64, false, 7, &[2; 3])), Fragment::Kept);
    // Another VLAN is another network.
    assert_eq!(r.push(T, I, &piece(0, true, 8, &first(64))), Fragment::Kept);
    let Fragment::Complete(whole) = r.push(T, I, &piece(0, true, 7, &first(64))) else { panic!("not whole") };
    assert_eq!(ethernet::Frame::parse(&whole).unwrap().vlan.unwrap().id, 7);
    assert_eq!(payload(&whole), [first(64), vec![2; 3]].concat());
}

#[test]
fn the_oldest_gives_way_and_the_rest_time_out() {
    let limits = FragmentLimits { datagrams: 2, ..FragmentLimits::default() };
    let mut r = Reassembler::new(limits);
    let at = |s: u64| Instant::from_micros(s * 1_000_000);
    for id in 1..=3 {
        assert_eq!(r.push(at(id as u64), I, &frame(false, id, 0, true, &first(64))), Fragment::Kept);
    }
    // 1 went, so its end waits alone; that made 2 go.
    assert_eq!(r.push(at(4), I, &frame(false, 1, 64, false, &[1; 5])), Fragment::Kept);
    assert!(matches!(r.push(at(4), I, &frame(false, 3, 64, false, &[1; 5])), Fragment::Complete(_)));
    assert_eq!(r.evicted, 2);
    assert_eq!((r.next(), r.expire(at(33))), (Some(at(34)), vec![]));
    // The first fragment never came.
    assert_eq!((r.expire(at(34)), r.next()), (vec![(I, None)], None));
    // A piece that can never fit is not kept.
    let mut r = Reassembler::new(FragmentLimits { bytes: 100, ..FragmentLimits::default() });
    assert_eq!(r.push(T, I, &frame(false, 1, 0, true, &first(64))), Fragment::Dropped(DropReason::FragmentLimit));
    assert_eq!((r.bytes, r.map.len()), (0, 0));
}

/// What stands before the first piece is kept once, with it.
#[test]
fn each_piece_is_charged_what_it_takes() {
    for (v6, head) in [(false, 34), (true, 54)] {
        let mut r = reassembler();
        assert_eq!(r.push(T, I, &frame(v6, 1, 64, true, &[1; 8])), Fragment::Kept);
        assert_eq!(r.bytes, 8 + PIECE_COST);
        assert_eq!(r.push(T, I, &frame(v6, 1, 0, true, &first(64))), Fragment::Kept);
        assert_eq!(r.bytes, 72 + 2 * PIECE_COST + head);
    }
}

#[test]
fn interfaces_do_not_mix() {
    for v6 in [false, true] {
        let mut r = reassembler();
        assert_eq!(r.push(T, InterfaceId(0), &frame(v6, 1, 0, true, &first(64))), Fragment::Kept);
        assert_eq!(r.push(T, InterfaceId(1), &frame(v6, 1, 64, false, &[1; 5])), Fragment::Kept);
        assert!(matches!(r.push(T, InterfaceId(0), &frame(v6, 1, 64, false, &[1; 5])), Fragment::Complete(_)));
        assert_eq!(r.map.len(), 1);
    }
}

#[test]
fn neighbour_messages_come_whole() {
    let icmp = |kind: u8, more| {
        let mut f = frame(true, 1, 0, more, &[kind, 0, 0, 0, 0, 0, 0, 0]);
        f[54] = ipv6::ICMPV6;
        f
    };
    for kind in 133..=137 {
        assert_eq!(reassembler().push(T, I, &icmp(kind, true)), BAD);
    }
    assert_eq!(reassembler().push(T, I, &icmp(128, true)), Fragment::Kept);
    // Destination options that hide what follows them.
    let mut hidden = frame(true, 1, 0, true, &[ipv6::ICMPV6, 0, 1, 4, 0, 0, 0, 0]);
    hidden[54] = 60;
    assert_eq!(reassembler().push(T, I, &hidden), BAD);
}

#[test]
fn the_first_fragment_is_given_back_as_it_came() {
    for v6 in [false, true] {
        let mut r = reassembler();
        let came = frame(v6, 1, 0, true, &first(64));
        assert_eq!(r.push(T, InterfaceId(3), &frame(v6, 1, 64, true, &[1; 8])), Fragment::Kept);
        assert_eq!(r.push(T, InterfaceId(3), &came), Fragment::Kept);
        assert_eq!(r.expire(Instant::from_micros(30_000_000)), [(InterfaceId(3), Some(came))]);
    }
}

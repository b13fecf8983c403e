use super::*;
use wire::{Addr, checksum, ethernet, icmpv4, icmpv6, ipv4, ipv6};

/// A frame with an IP header and `payload` bytes of which the first four are `i`.
fn packet(v6: bool, ecn: u8, i: u32, payload: usize) -> Vec<u8> {
    let header = if v6 { 40 } else { 20 };
    let mut f = vec![0; 14 + header + payload];
    f[..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    f[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    f[12..14].copy_from_slice(&if v6 { ethernet::IPV6 } else { ethernet::IPV4 }.to_be_bytes());
    if v6 {
        let (src, dst) = (Addr::from_v6([1; 16]), Addr::from_v6([2; 16]));
        ipv6::Header { src, dst, traffic_class: ecn, ..Default::default() }.emit(&mut f[14..], payload);
    } else {
        let (src, dst) = (Addr::from_v4([10, 0, 0, 1]), Addr::from_v4([10, 0, 0, 2]));
        ipv4::Header { src, dst, tos: ecn, ..Default::default() }.emit(&mut f[14..], payload);
    }
    f[14 + header..][..4].copy_from_slice(&i.to_be_bytes());
    f
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[34..38].try_into().unwrap())
}

fn drain(path: &mut Path) -> Vec<(u64, Vec<u8>)> {
    let mut out = Vec::new();
    while let Some(at) = path.next_at() {
        assert!(path.pop(Instant::from_micros(at.micros() - 1)).is_none());
        out.push((at.micros(), path.pop(at).unwrap()));
    }
    out
}

fn run(config: &Impairment, seed: u64, n: u32) -> (Vec<(u64, Vec<u8>)>, PathCounters) {
    let mut path = Path::new(config.clone(), seed);
    for i in 0..n {
        path.push(Instant::from_micros(1 + i as u64 * 10), &packet(false, 0, i, 40));
    }
    (drain(&mut path), path.counters())
}

#[test]
fn a_clean_path_is_a_delay_line() {
    let config = Impairment { delay: Duration::from_millis(5), ..Impairment::default() };
    let (out, _) = run(&config, 1, 100);
    for (i, (at, frame)) in out.iter().enumerate() {
        assert_eq!((*at, number(frame)), (5001 + i as u64 * 10, i as u32));
    }
    assert_eq!(out.len(), 100);
}

#[test]
fn a_seed_repeats_and_another_differs() {
    let ms = Duration::from_millis;
    let config = Impairment {
        loss: 0.1,
        burst: Some(Burst { enter: 0.01, leave: 0.2, loss: 0.9 }),
        duplicate: 0.05,
        reorder: 0.1,
        reorder_by: ms(3),
        corrupt: 0.05,
        delay: ms(2),
        jitter: ms(1),
        ..Impairment::default()
    };
    assert_eq!(run(&config, 7, 5000), run(&config, 7, 5000));
    let (_, c) = run(&config, 7, 5000);
    assert_ne!(c, run(&config, 8, 5000).1);
    // 10 % and the bursts' share of about 4 %; the others of what is left.
    assert!((500..1000).contains(&c.lost), "{c:?}");
    assert!((150..300).contains(&c.duplicated) && (150..300).contains(&c.corrupted), "{c:?}");
    assert!((300..550).contains(&c.reordered), "{c:?}");
}

#[test]
fn bursts_lose_neighbours() {
    let burst = Burst { enter: 0.01, leave: 0.1, loss: 1.0 };
    let (out, c) = run(&Impairment { burst: Some(burst), ..Impairment::default() }, 3, 20_000);
    let lost = 20_000 - out.len() as u64;
    assert_eq!(c.lost, lost);
    // A tenth of the time is bad, ten frames at a stretch.
    assert!((1200..2500).contains(&lost), "{lost}");
    let gaps = out.windows(2).filter(|w| number(&w[1].1) != number(&w[0].1) + 1).count() as u64;
    assert!((6..15).contains(&(lost / gaps)), "{lost} lost in {gaps} gaps");
}

#[test]
fn a_rate_spreads_frames_and_its_queue_overflows() {
    let full = [Queue::bytes(740), Queue { frames: 10, ..Queue::default() }];
    for queue in full {
        let mut path = Path::new(Impairment { rate: 8 * 74 * 10_000, queue, ..Impairment::default() }, 1);
        (0..20).for_each(|i| assert_eq!(path.push(Instant::ZERO, &packet(false, 0, i, 40)), None));
        assert_eq!((path.len(), path.counters().overflow), (10, 10));
        assert_eq!(path.next_at(), Some(Instant::from_micros(100)));
        // Half of them have left.
        (0..20).for_each(|i| assert_eq!(path.push(Instant::from_micros(500), &packet(false, 0, i, 40)), None));
        assert_eq!((path.len(), path.counters().overflow), (15, 25));
    }
}

#[test]
fn a_rate_is_kept_to_the_nanosecond() {
    let mut path = Path::new(Impairment { rate: 1_000_000_000, ..Impairment::default() }, 1);
    for i in 0..1000 {
        path.push(Instant::ZERO, &packet(false, 0, i, 1480));
    }
    // 12.112 µs each.
    assert_eq!(drain(&mut path).last().unwrap().0, 12_112);
}

#[test]
fn a_long_queue_marks_what_can_be_marked() {
    for v6 in [false, true] {
        for (ecn, marks) in [(0, 0), (1, 5), (2, 5), (3, 5)] {
            let queue = Queue { mark: 5 * packet(v6, 0, 0, 100).len(), ..Queue::default() };
            let mut path = Path::new(Impairment { rate: 1_000_000, queue, ..Impairment::default() }, 1);
            (0..10).for_each(|i| assert_eq!(path.push(Instant::ZERO, &packet(v6, ecn | 0x20, i, 100)), None));
            assert_eq!(path.counters().marked, marks, "v6 {v6} ecn {ecn}");
            for (i, (_, f)) in drain(&mut path).into_iter().enumerate() {
                let class = if v6 {
                    ipv6::Packet::parse(&f[14..]).unwrap().traffic_class
                } else {
                    // Its checksum was mended, or it would not parse.
                    ipv4::Packet::parse(&f[14..]).unwrap().tos
                };
                let expected = if ecn > 0 && i >= 5 { 3 } else { ecn };
                assert_eq!(class, expected | 0x20, "v6 {v6} ecn {ecn} frame {i}");
            }
        }
    }
}

#[test]
fn a_packet_that_is_too_big_is_answered_or_swallowed() {
    for v6 in [false, true] {
        let header = if v6 { 40 } else { 20 };
        let fits = packet(v6, 0, 1, 1400 - header);
        let long = packet(v6, 0, 2, 1401 - header);
        let config = Impairment { mtu: 1400, ..Impairment::default() };
        let mut hole = Path::new(Impairment { silent: true, ..config.clone() }, 1);
        assert_eq!((hole.push(Instant::ZERO, &fits), hole.push(Instant::ZERO, &long)), (None, None));
        assert_eq!((hole.len(), hole.counters().too_big), (1, 1));

        let mut path = Path::new(config, 1);
        let answer = path.push(Instant::ZERO, &long).expect("an answer");
        assert_eq!((&answer[..6], &answer[6..12], &answer[12..14]), (&long[6..12], &long[..6], &long[12..14]));
        if v6 {
            let p = ipv6::Packet::parse(&answer[14..]).unwrap();
            let message = icmpv6::Message::parse(p.src, p.dst, p.payload).unwrap();
            let icmpv6::Message::PacketTooBig { mtu, quoted } = message else { panic!("{message:?}") };
            assert_eq!((mtu, quoted.dst_port, answer.len()), (1400, 2, 14 + 1280));
        } else {
            let p = ipv4::Packet::parse(&answer[14..]).unwrap();
            let message = icmpv4::Message::parse(p.payload).unwrap();
            let icmpv4::Message::Unreachable { code, mtu, quoted } = message else { panic!("{message:?}") };
            assert_eq!((code, mtu, quoted.dst_port, answer.len()), (4, 1400, 2, 14 + 576));
            // What may be cut up is nobody's fault.
            let mut loose = long.clone();
            loose[20] = 0;
            assert_eq!(path.push(Instant::ZERO, &loose), None);
        }
    }
}

#[test]
fn nothing_passes_while_it_is_down() {
    let mut path = Path::new(Impairment::default(), 1);
    path.push(Instant::ZERO, &packet(false, 0, 1, 40));
    path.set(Impairment { down: true, ..Impairment::default() });
    path.push(Instant::ZERO, &packet(false, 0, 2, 40));
    path.set(Impairment::default());
    path.push(Instant::ZERO, &packet(false, 0, 3, 40));
    // What was under way arrives.
    let mut numbers = Vec::new();
    while let Some(f) = path.pop(Instant::ZERO) {
        numbers.push(number(&f));
    }
    assert_eq!((numbers, path.counters().cut), (vec![1, 3], 1));
}

#[test]
fn damage_never_passes_a_checksum() {
    let config = Impairment { corrupt: 1.0, ..Impairment::default() };
    let mut path = Path::new(config, 5);
    for i in 0..2000 {
        let mut f = packet(i % 2 == 1, 0, i, 60);
        let at = if i % 2 == 1 { 54 } else { 34 };
        f[at + 4..at + 6].fill(0);
        let sum = checksum::sum(&f[at..]).finish();
        f[at + 4..at + 6].copy_from_slice(&sum.to_be_bytes());
        path.push(Instant::ZERO, &f);
    }
    let mut damaged = 0;
    while let Some(f) = path.pop(Instant::ZERO) {
        let ok = match Ip::find(&f) {
            Some(Ip::V4(at)) => checksum::sum(&f[at..at + 20]).is_ok() && checksum::sum(&f[at + 20..]).is_ok(),
            Some(Ip::V6(at)) => checksum::sum(&f[at + 40..]).is_ok(),
            None => panic!("the Ethernet header changed"),
        };
        assert!(!ok);
        damaged += 1;
    }
    assert_eq!((damaged, path.counters().corrupted), (2000, 2000));
    let mut frame = vec![7; 60];
    frame[12..14].copy_from_slice(&ethernet::ARP.to_be_bytes());
    path.push(Instant::ZERO, &frame);
    assert_eq!(path.pop(Instant::ZERO), Some(frame), "no checksum guards ARP, so it is left alone");
}

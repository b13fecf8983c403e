//! Links of other kinds: 802.1Q tags, and frames of nine thousand bytes.

use protocol::Endpoint;
use sim::{Echo, Host, HostConfig, Outcome, Sender};
use stack::DropReason;
use wire::{Addr, Instant, ethernet};

/// What went over the link: bytes of each frame and its tag.
type Seen = Vec<(usize, Option<u16>)>;

/// `bytes` from host 1 to host 2 and back by both families; the frames that it took.
fn transfer(config: impl Fn(u8) -> HostConfig, bytes: u64) -> Seen {
    let mut seen = Seen::new();
    for family in [0, 1] {
        let (mut a, mut b) = (Host::new(config(1)), Host::new(config(2)));
        let to = Endpoint { addr: Addr::from(b.config.addresses[family].0), port: 80 };
        let mut echo = Echo::start(&mut b, to);
        let mut sender = Sender::start(&mut a, 1, to, bytes, 7);
        let (mut to_a, mut to_b) = (Vec::new(), Vec::new());
        for ms in 1.. {
            assert!(ms < 60_000, "not done in a minute");
            let now = Instant::from_micros(ms * 1000);
            let (from_a, from_b) = (a.turn(now, to_a), b.turn(now, to_b));
            for f in from_a.iter().chain(&from_b) {
                seen.push((f.len(), ethernet::Frame::parse(f).unwrap().vlan.map(|v| v.id)));
            }
            (to_a, to_b) = (from_b, from_a);
            while let Some(e) = a.event() {
                sender.on_event(&mut a, e);
            }
            while let Some(e) = b.event() {
                echo.on_event(&mut b, e);
            }
            sender.poll(&mut a);
            if sender.outcome != Outcome::Running {
                assert_eq!(sender.outcome, Outcome::Complete);
                break;
            }
        }
        // Nothing was sent twice.
        let tcp = &a.stack.counters().tcp;
        assert_eq!((tcp.timeouts, tcp.fast_retransmits, b.stack.counters().tcp.beyond_window), (0, 0, 0));
    }
    seen
}

#[test]
fn a_tagged_interface_speaks_and_hears_its_tag_alone() {
    let tagged = |n| HostConfig { vlan: Some(7), ..HostConfig::new(n) };
    let seen = transfer(tagged, 100_000);
    assert!(seen.iter().all(|(len, vlan)| *len <= 1518 && *vlan == Some(7)));
    assert!(seen.iter().any(|(len, _)| *len == 1518));

    // The same question with another tag, with none, and with a priority tag, which is none.
    let (ask, plain) = (question(Some(7)), question(None));
    let answers = |vlan, frame: &[u8]| {
        let mut host = Host::new(HostConfig { vlan, ..HostConfig::new(2) });
        let answers = host.turn(Instant::from_micros(1), vec![frame.to_vec()]).len();
        (answers, host.stack.counters().dropped(DropReason::NotOurLink))
    };
    let retagged = |tag: u16| {
        let mut f = ask.clone();
        f[14..16].copy_from_slice(&tag.to_be_bytes());
        f
    };
    assert_eq!(answers(Some(7), &ask), (1, 0));
    // The priority is no part of the tag.
    assert_eq!(answers(Some(7), &retagged(0xe007)), (1, 0));
    assert_eq!(answers(Some(7), &retagged(8)), (0, 1));
    assert_eq!(answers(Some(7), &plain), (0, 1));
    assert_eq!(answers(None, &ask), (0, 1));
    assert_eq!(answers(None, &plain), (1, 0));
    assert_eq!(answers(None, &retagged(0)), (1, 0));
}

/// Host 1 asks for host 2's hardware address.
fn question(vlan: Option<u16>) -> Vec<u8> {
    let mut a = Host::new(HostConfig { vlan, ..HostConfig::new(1) });
    let to = Endpoint { addr: Addr::from_v4([10, 0, 0, 2]), port: 80 };
    Sender::start(&mut a, 1, to, 1, 1);
    a.turn(Instant::from_micros(1), vec![]).remove(0)
}

#[test]
fn jumbo_frames_are_filled() {
    for vlan in [None, Some(9)] {
        let link = if vlan.is_some() { 18 } else { 14 };
        let jumbo = |n| HostConfig { mtu: 9000, vlan, ..HostConfig::new(n) };
        let seen = transfer(jumbo, 2_000_000);
        assert!(seen.iter().all(|(len, _)| *len <= link + 9000));
        // Most of it went in full frames: each family two megabytes there and back.
        let full = seen.iter().filter(|(len, _)| *len == link + 9000).count();
        assert!(full > 3 * 2_000_000 / 9000, "{full} full frames of {}", seen.len());
    }
}

/// Segmentation and its opposite, by the port or not: what crosses the link are full frames.
#[test]
fn offloads_end_at_the_port() {
    for (gso, gro, mtu) in [(true, false, 1500), (false, true, 1500), (true, true, 1500), (true, true, 9000)] {
        for vlan in [None, Some(9)] {
            let link = if vlan.is_some() { 18 } else { 14 };
            let seen = transfer(|n| HostConfig { gso, gro, mtu, vlan, ..HostConfig::new(n) }, 1_000_000);
            assert!(seen.iter().all(|(len, _)| *len <= link + mtu as usize));
            let full = seen.iter().filter(|(len, _)| *len == link + mtu as usize).count();
            assert!(full > 3 * 1_000_000 / mtu as usize, "{full} full frames of {}", seen.len());
        }
    }
}

#[test]
fn the_smaller_link_decides() {
    let mixed = |n| HostConfig { mtu: if n == 1 { 9000 } else { 1500 }, ..HostConfig::new(n) };
    let seen = transfer(mixed, 500_000);
    assert!(seen.iter().all(|(len, _)| *len <= 1514));
    assert!(seen.iter().any(|(len, _)| *len == 1514));
}

#[test]
fn the_segment_size_is_the_link_s_less_headers() {
    for (mtu, v4, v6) in [(9000, 8960, 8940), (1500, 1460, 1440), (576, 536, 516)] {
        for (family, expected) in [(0, v4), (1, v6)] {
            let mut a = Host::new(HostConfig { mtu, ..HostConfig::new(1) });
            let to = HostConfig::new(2);
            let (ip, mac) = (to.addresses[family].0, to.mac);
            let now = Instant::from_micros(1);
            a.stack.set_neighbor(now, a.interface(), ip, mac);
            Sender::start(&mut a, 1, Endpoint { addr: ip.into(), port: 80 }, 1, 1);
            let syn = a.turn(now, vec![]).remove(0);
            let tcp = &syn[14 + if family == 0 { 20 } else { 40 }..];
            assert_eq!(wire::tcp::Segment::parse(tcp).unwrap().options.mss, Some(expected));
        }
    }
}

/// Where frames to be cut go another way, past a queue, what a connection sends after them does not overtake them.
#[test]
fn nothing_overtakes_frames_that_are_cut() {
    for (family, vlan, mtu) in [(0, None, 1500), (1, None, 1500), (0, Some(7), 9000)] {
        let config = |n| HostConfig { gso: true, queue: true, vlan, mtu, ..HostConfig::new(n) };
        let (mut a, mut b) = (Host::new(config(1)), Host::new(config(2)));
        let to = Endpoint { addr: Addr::from(b.config.addresses[family].0), port: 80 };
        let mut echo = Echo::start(&mut b, to);
        let mut senders: Vec<_> = (0..4).map(|i| Sender::start(&mut a, i, to, 300_000, i.into())).collect();
        let (mut to_a, mut to_b) = (Vec::new(), Vec::new());
        // A quarter of a millisecond: replies come while frames wait.
        for step in 1.. {
            assert!(step < 240_000, "not done in a minute");
            let now = Instant::from_micros(step * 250);
            let (from_a, from_b) = (a.turn(now, to_a), b.turn(now, to_b));
            (to_a, to_b) = (from_b, from_a);
            while let Some(e) = a.event() {
                senders.iter_mut().try_fold(e, |e, s| s.on_event(&mut a, e));
            }
            while let Some(e) = b.event() {
                echo.on_event(&mut b, e);
            }
            senders.iter_mut().for_each(|s| s.poll(&mut a));
            if senders.iter().all(|s| s.outcome != Outcome::Running) {
                break;
            }
        }
        assert!(senders.iter().all(|s| s.outcome == Outcome::Complete));
        for host in [&a, &b] {
            let c = host.stack.counters();
            assert!(c.segments_out > 2 * c.frames_out, "{} segments in {} frames", c.segments_out, c.frames_out);
            assert_eq!((c.tcp.out_of_order, c.tcp.out_of_order_dropped, c.tcp.fast_retransmits), (0, 0, 0));
        }
    }
}

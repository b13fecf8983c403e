//! Passive opens by record and by cookie, with peers made by hand.

mod common;

use core::time::Duration;

use common::{ACK, Bench, FIN, PORT, Peer, RST, SYN, usual};
use protocol::{ConnOption, Job};
use stack::{DropReason, SynCookies};
use wire::SeqNum;
use wire::tcp::{Flags, Options};

fn plain() -> Options {
    Options { mss: Some(1460), ..Options::default() }
}

#[test]
fn an_ordinary_handshake() {
    let mut b = Bench::listening(10, &[], |_| {});
    let mut p = Peer::new(2, 4000);
    p.ts = Some((1000, 0));
    let answers = b.send_with(&p, SYN, &[], usual());
    let [synack] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((synack.flags, synack.ack, synack.src_port), (SYN | ACK, p.seq + 1, PORT));
    assert_eq!(synack.options.mss, Some(1460));
    assert!(synack.options.window_scale.is_some());
    assert_eq!(synack.options.timestamps.map(|ts| ts.echo), Some(1000));
    assert_eq!((b.host.stack.half_open(), b.host.stack.connections()), (1, 0));
    p.answer(synack);
    // Data may ride on the ACK.
    let answers = b.send(&p, ACK, b"hello");
    assert_eq!((b.accepted.len(), &b.bytes[..]), (1, &b"hello"[..]));
    assert_eq!(answers.last().map(|s| s.ack), Some(p.seq + 5));
    assert_eq!((b.host.stack.half_open(), b.host.stack.connections()), (0, 1));
    // Nothing is left to repeat.
    assert!(b.wait(Duration::from_secs(5)).is_empty());
}

#[test]
fn the_synack_is_repeated_with_back_off_and_then_forgotten() {
    let mut b = Bench::listening(10, &[], |_| {});
    let p = Peer::new(2, 4000);
    let first = b.send_with(&p, SYN, &[], plain()).remove(0);
    let sent = b.wait(Duration::from_secs(200));
    let at: Vec<u64> = sent.iter().map(|(at, _)| at.as_secs()).collect();
    assert_eq!(at, [1, 3, 7, 15, 31]);
    assert!(sent.iter().all(|(_, s)| (s.flags, s.seq, s.ack) == (SYN | ACK, first.seq, first.ack)));
    assert_eq!(b.host.stack.half_open(), 0);
    let counters = b.host.stack.counters();
    assert_eq!((counters.half_open_expired, counters.tcp.syn_retransmits), (1, 5));
    // TCP_SYNCNT of the listener counts for it.
    let mut b = Bench::listening(10, &[(ConnOption::SynCount, 2)], |_| {});
    b.send_with(&p, SYN, &[], plain());
    assert_eq!(b.wait(Duration::from_secs(200)).len(), 2);
    // Data that would be waited for longer changes nothing while nobody acknowledges.
    let mut b = Bench::listening(10, &[(ConnOption::SynCount, 2), (ConnOption::DeferAccept, 10)], |_| {});
    b.send_with(&p, SYN, &[], plain());
    assert_eq!((b.wait(Duration::from_secs(200)).len(), b.host.stack.half_open()), (2, 0));
}

/// RFC 9293 3.10.7.2, fourth; with FIN as Linux does.
#[test]
fn a_listener_takes_a_syn_and_nothing_else() {
    let mut b = Bench::listening(10, &[], |_| {});
    let p = Peer::new(2, 4000);
    for flags in [SYN | FIN, FIN, Flags::PSH, Flags::from_bits(0)] {
        assert!(b.send_with(&p, flags, &[], plain()).is_empty(), "{flags:?}");
    }
    assert_eq!((b.host.stack.half_open(), b.host.stack.counters().dropped(DropReason::NoSocket)), (0, 4));
    assert!(b.send(&p, RST, &[]).is_empty() && b.send(&p, RST | SYN, &[]).is_empty());
    assert_eq!(b.host.stack.half_open(), 0);
    // What acknowledges has never been ours.
    for flags in [ACK, SYN | ACK, FIN | ACK] {
        let sent = b.send_with(&p, flags, &[], plain());
        assert!(matches!(&sent[..], [s] if s.flags == RST && s.seq == p.ack), "{flags:?}: {sent:?}");
    }
    assert_eq!(b.host.stack.counters().resets_out, 3);
    assert_eq!(b.send_with(&p, SYN, &[], plain()).len(), 1);
}

#[test]
fn a_repeated_syn_is_answered_but_not_too_often() {
    let mut b = Bench::listening(10, &[], |_| {});
    let p = Peer::new(2, 4000);
    let first = b.send_with(&p, SYN, &[], plain()).remove(0);
    let again = b.send_with(&p, SYN, &[], plain());
    assert_eq!((again.len(), again[0].seq), (1, first.seq));
    for limited in 1..4 {
        assert!(b.send_with(&p, SYN, &[], plain()).is_empty());
        assert_eq!(b.host.stack.counters().tcp.acks_limited, limited);
    }
    b.wait(Duration::from_millis(520));
    assert_eq!(b.send_with(&p, SYN, &[], plain()).len(), 1);
    assert_eq!(b.host.stack.half_open(), 1);
}

#[test]
fn what_does_not_fit_a_handshake() {
    let mut b = Bench::listening(10, &[], |c| c.stack.tcp.invalid_ratelimit = Duration::ZERO);
    let mut p = Peer::new(2, 4000);
    let synack = b.send_with(&p, SYN, &[], plain()).remove(0);
    p.answer(&synack);
    // RFC 9293 3.10.7.4: an acknowledgment of something never sent is reset, the handshake stays.
    let wrong = Peer { ack: p.ack + 1, ..p };
    let answers = b.send(&wrong, ACK, &[]);
    assert_eq!((answers[0].flags, answers[0].seq), (RST, wrong.ack));
    // RFC 5961: a RST or SYN in the window is challenged, one outside is dropped.
    let challenge = |s: &common::Sent| (s.flags, s.seq, s.ack) == (ACK, synack.seq + 1, p.seq);
    assert!(challenge(&b.send(&Peer { seq: p.seq + 5, ..p }, RST, &[])[0]));
    assert!(challenge(&b.send(&Peer { seq: p.seq + 5, ..p }, SYN, &[])[0]));
    assert!(b.send(&Peer { seq: p.seq + 70_000, ..p }, RST, &[]).is_empty());
    // Out of the window: told what is expected.
    assert!(challenge(&b.send(&Peer { seq: p.seq + 70_000, ..p }, ACK, b"x")[0]));
    assert!(b.send(&p, FIN, &[]).is_empty());
    assert_eq!((b.host.stack.half_open(), b.accepted.len()), (1, 0));
    // The exact one ends it.
    assert!(b.send(&p, RST, &[]).is_empty());
    let counters = &b.host.stack.counters().tcp;
    assert_eq!((b.host.stack.half_open(), counters.resets_in, counters.challenge_acks), (0, 1, 3));
    assert_eq!(b.send(&p, ACK, &[])[0].flags, RST);
}

#[test]
fn old_timestamps_do_not_establish() {
    let mut b = Bench::listening(10, &[], |_| {});
    let mut p = Peer::new(2, 4000);
    p.ts = Some((1000, 0));
    let synack = b.send_with(&p, SYN, &[], usual()).remove(0);
    p.answer(&synack);
    let old = Peer { ts: Some((999, p.ts.unwrap().1)), ..p };
    assert_eq!(b.send(&old, ACK, &[]).len(), 1);
    assert_eq!(b.accepted.len(), 0);
    b.send(&p, ACK, &[]);
    assert_eq!(b.accepted.len(), 1);
}

#[test]
fn a_full_accept_queue_keeps_the_handshake() {
    let mut b = Bench::listening(1, &[], |c| c.stack.syn_cookies = SynCookies::Never);
    let mut waiting: Vec<Peer> = Vec::new();
    // Two may be ready (Linux's `>`); their handshakes are done one after the other.
    for n in 0..2 {
        b.establish(2, 4000 + n, plain());
    }
    let mut p = Peer::new(2, 5000);
    assert!(b.send_with(&p, SYN, &[], plain()).is_empty(), "a SYN waits for room");
    let listener = b.listener.unwrap();
    b.job(Job::Taken { listener, count: 1 });
    p.answer(&b.send_with(&p, SYN, &[], plain()).remove(0));
    waiting.push(p);
    // Full again before the ACK comes.
    let mut q = Peer::new(3, 5001);
    b.job(Job::SetBacklog { listener, backlog: 2 });
    q.answer(&b.send_with(&q, SYN, &[], plain()).remove(0));
    b.send(&q, ACK, &[]);
    b.job(Job::SetBacklog { listener, backlog: 1 });
    assert!(b.send(&p, ACK, &[]).is_empty());
    assert_eq!((b.accepted.len(), b.host.stack.counters().accept_overflows), (3, 1));
    // The SYN/ACK comes again; its ACK counts once there is room.
    b.job(Job::Taken { listener, count: 2 });
    let again = b.wait(Duration::from_millis(1100));
    assert_eq!(again[0].1.flags, SYN | ACK);
    b.send(&p, ACK, &[]);
    assert_eq!(b.accepted.len(), 4);
}

#[test]
fn or_resets_it_where_that_is_wanted() {
    let mut b = Bench::listening(1, &[], |c| c.stack.abort_on_overflow = true);
    let mut p = Peer::new(2, 5000);
    let mut others: Vec<Peer> = (0..2).map(|n| Peer::new(3, 4000 + n)).collect();
    let listener = b.listener.unwrap();
    b.job(Job::SetBacklog { listener, backlog: 9 });
    for q in others.iter_mut().chain([&mut p]) {
        let synack = b.send_with(q, SYN, &[], plain()).remove(0);
        q.answer(&synack);
    }
    b.job(Job::SetBacklog { listener, backlog: 1 });
    for q in &others {
        b.send(q, ACK, &[]);
    }
    let answers = b.send(&p, ACK, &[]);
    assert_eq!((answers[0].flags, answers[0].seq), (RST, p.ack));
    assert_eq!((b.accepted.len(), b.host.stack.half_open()), (2, 0));
}

#[test]
fn a_deferred_accept_waits_for_data() {
    let mut b = Bench::listening(10, &[(ConnOption::DeferAccept, 2)], |_| {});
    let mut p = Peer::new(2, 4000);
    let synack = b.send_with(&p, SYN, &[], plain()).remove(0);
    p.answer(&synack);
    assert!(b.send(&p, ACK, &[]).is_empty());
    assert_eq!((b.accepted.len(), b.host.stack.counters().accepts_deferred), (0, 1));
    b.send(&p, ACK, b"x");
    assert_eq!((b.accepted.len(), &b.bytes[..]), (1, &b"x"[..]));
    // Without any, nothing is repeated until the last time, and then an ACK is enough.
    let mut p = Peer::new(2, 4001);
    let synack = b.send_with(&p, SYN, &[], plain()).remove(0);
    p.answer(&synack);
    b.send(&p, ACK, &[]);
    let sent = b.wait(Duration::from_secs(4));
    let of_p = sent.iter().filter(|(_, s)| s.dst_port == p.port);
    assert_eq!(of_p.map(|(at, _)| at.as_secs()).collect::<Vec<_>>(), [3]);
    b.send(&p, ACK, &[]);
    assert_eq!(b.accepted.len(), 2);
}

#[test]
fn accepted_connections_inherit() {
    let options = [
        (ConnOption::MaxSegment, 700),
        (ConnOption::TrafficClass, 0x28),
        (ConnOption::HopLimit, 9),
        (ConnOption::WindowClamp, 5000),
    ];
    let mut b = Bench::listening(10, &options, |_| {});
    let mut p = Peer::new(2, 4000);
    let synack = b.send_with(&p, SYN, &[], usual()).remove(0);
    assert_eq!((synack.class, synack.hops, synack.window, synack.options.mss), (0x28, 9, 4900, Some(700)));
    p.answer(&synack);
    b.send(&p, ACK, &[]);
    let sent = b.write(b.accepted[0], &[7; 1000]);
    assert_eq!((sent[0].class, sent[0].hops, sent[0].payload.len()), (0x28, 9, 700));
}

fn cookie_bench(when: SynCookies) -> Bench {
    Bench::listening(1 << 20, &[], |c| c.stack.syn_cookies = when)
}

#[test]
fn a_cookie_needs_no_record() {
    for options in [usual(), plain(), Options::default(), Options { sack_permitted: false, ..usual() }] {
        let mut b = cookie_bench(SynCookies::Always);
        b.now = b.now.plus_micros(77_777_000);
        let mut p = Peer::new(2, 4000);
        p.ts = options.timestamps.map(|ts| (ts.value, 0));
        let synack = b.send_with(&p, SYN, &[], options).remove(0);
        assert_eq!((b.host.stack.half_open(), b.host.stack.connections()), (0, 0));
        // Without timestamps nothing but the segment size would come back.
        assert_eq!(synack.options.window_scale.is_some(), options.timestamps.is_some());
        p.answer(&synack);
        b.now = b.now.plus_micros(50_000);
        b.send(&p, ACK, b"request");
        assert_eq!((b.accepted.len(), &b.bytes[..]), (1, &b"request"[..]));
        let mut windows = Vec::new();
        b.host.stack.each_connection(|_, _, t| {
            let info = t.info(wire::Instant::ZERO, &Default::default());
            windows.push((info.snd_wnd, info.snd_mss, info.options));
        });
        let scale = if options.timestamps.is_some() { 7 } else { 0 };
        let mss = options.mss.unwrap_or(536) as u64 - if options.timestamps.is_some() { 12 } else { 0 };
        assert_eq!((windows[0].0, windows[0].1), (0xffff << scale, mss));
        p.seq += 7;
        let sent = b.write(b.accepted[0], b"answer");
        assert_eq!(sent[0].payload, b"answer");
        let c = b.host.stack.counters();
        assert_eq!((c.cookies_sent, c.cookies_received, c.cookies_failed), (1, 1, 0));
    }
}

#[test]
fn only_our_own_cookies_count_and_only_for_a_while() {
    let mut b = cookie_bench(SynCookies::Always);
    let mut p = Peer::new(2, 4000);
    // None was sent: an ACK from nowhere is refused without a look.
    assert_eq!(b.send(&p, ACK, &[])[0].flags, RST);
    assert_eq!(b.host.stack.counters().cookies_failed, 0);
    p.answer(&b.send_with(&p, SYN, &[], plain()).remove(0));
    for wrong in [Peer { ack: p.ack + 1, ..p }, Peer { seq: p.seq + 1, ..p }, Peer { port: 4001, ..p }] {
        assert_eq!(b.send(&wrong, ACK, &[])[0].flags, RST);
    }
    assert_eq!((b.host.stack.counters().cookies_failed, b.accepted.len()), (3, 0));
    b.wait(Duration::from_secs(121));
    assert_eq!(b.send(&p, ACK, &[])[0].flags, RST);
    assert_eq!((b.host.stack.counters().cookies_failed, b.accepted.len()), (4, 0));
}

/// A client whose cookie finds the queue full writes three times. What comes first carries the cookie, and is sent again; what comes
/// behind it must not end the connection before (field: 1,821 of 2,000 reset).
#[test]
fn behind_a_cookie_that_finds_the_accept_queue_full_nothing_is_reset() {
    let mut b = Bench::listening(1, &[], |c| c.stack.syn_cookies = SynCookies::Always);
    // Two may be ready (Linux's `>`); the last of three comes too late.
    let [first, second, p] = [4000, 4001, 4002].map(|port| {
        let mut p = Peer::new(2, port);
        p.answer(&b.send_with(&p, SYN, &[], plain()).remove(0));
        p
    });
    let behind = Peer { seq: p.seq + 10, ..p };
    assert_eq!(b.send(&behind, ACK, b"0123456789")[0].flags, RST, "nobody was turned away yet");
    b.send(&first, ACK, &[]);
    b.send(&second, ACK, &[]);
    for (peer, data) in [(&p, &b""[..]), (&p, b"0123456789"), (&behind, b"0123456789"), (&behind, b"")] {
        assert!(b.send(peer, ACK, data).is_empty());
    }
    let c = b.host.stack.counters();
    assert_eq!((c.accept_overflows, c.cookies_failed, c.dropped(DropReason::Backlog)), (2, 3, 4));
    // There is room before it comes again.
    b.job(Job::Taken { listener: b.listener.unwrap(), count: 1 });
    assert!(b.send(&behind, ACK, b"0123456789").is_empty());
    b.send(&p, ACK, b"0123456789");
    b.send(&behind, ACK, b"0123456789");
    assert_eq!((b.accepted.len(), b.bytes.len()), (3, 20));
    // When no cookie of then is good any more, who has none is told.
    b.wait(Duration::from_secs(121));
    assert_eq!(b.send(&Peer { port: 4009, ..behind }, ACK, b"x")[0].flags, RST);
}

/// A flood of SYNs from everywhere takes the memory it is given, and no more; who means it comes through.
#[test]
fn a_million_spoofed_syns() {
    for when in [SynCookies::WhenFull, SynCookies::Never] {
        let mut b = Bench::listening(1 << 20, &[], |c| {
            c.stack.syn_cookies = when;
            c.stack.max_half_open = 1000;
            c.stack.syn_backlog = 1 << 20;
            c.tx_room = 512;
        });
        let mut n = 0u32;
        for round in 0..4000u32 {
            let frames: Vec<Vec<u8>> = (0..250)
                .map(|_| {
                    n += 1;
                    let p = Peer::new(16 + n * 13 % (1 << 24), (n >> 8) as u16 | 1024);
                    b.frame(&p, SYN, &[], usual())
                })
                .collect();
            b.now = b.now.plus_micros(250);
            b.turn(frames);
            assert!(b.host.stack.half_open() <= 1000);
            if round % 1000 == 500 {
                let p = b.establish(2, 20_000 + round as u16, usual());
                b.bytes.clear();
                b.send(&p, ACK, b"I mean it");
                assert_eq!(b.bytes, b"I mean it");
            }
        }
        assert_eq!((b.accepted.len(), b.host.stack.connections()), (4, 4));
        let c = b.host.stack.counters();
        match when {
            SynCookies::Never => assert!(c.half_open_evicted > 990_000, "{}", c.half_open_evicted),
            _ => assert!(c.cookies_sent > 990_000 && c.cookies_received > 0, "{}", c.cookies_sent),
        }
        // It passes, and leaves nothing.
        b.wait(Duration::from_secs(100));
        assert_eq!(b.host.stack.half_open(), 0);
        assert_eq!(b.host.leaked(), 0);
    }
}

#[test]
fn a_listeners_backlog_bounds_its_handshakes() {
    let mut b = Bench::listening(3, &[], |c| c.stack.syn_cookies = SynCookies::Never);
    for n in 0..10 {
        b.send_with(&Peer::new(2, 4000 + n), SYN, &[], plain());
    }
    assert_eq!(b.host.stack.half_open(), 3);
    assert_eq!(b.host.stack.counters().dropped(DropReason::SynBacklog), 7);
    // A closed listener takes its handshakes along.
    let listener = b.listener.unwrap();
    b.job(Job::CloseListener { listener });
    assert_eq!(b.host.stack.half_open(), 0);
    assert!(b.wait(Duration::from_secs(5)).is_empty());
}

#[test]
fn only_a_hard_error_that_quotes_us_ends_a_handshake() {
    let mut b = Bench::listening(10, &[], |_| {});
    let p = Peer::new(2, 4000);
    let synack = b.send_with(&p, SYN, &[], plain()).remove(0);
    // Somebody else's number; a host unreachable for the moment.
    for (code, seq) in [(3, synack.seq + 1), (3, synack.seq - 1), (1, synack.seq)] {
        let frame = b.unreachable(&p, code, seq);
        b.turn(vec![frame]);
        assert_eq!(b.host.stack.half_open(), 1, "{code}");
    }
    let frame = b.unreachable(&p, 3, synack.seq);
    b.turn(vec![frame]);
    assert_eq!(b.host.stack.half_open(), 0);
    assert_eq!(b.host.stack.counters().dropped(DropReason::IcmpUnmatched), 2);
}

/// RFC 6528 3: a clock for each tuple, apart from any other's by what nobody can guess.
#[test]
fn initial_sequence_numbers_are_a_clock_with_a_secret_offset() {
    let isn = |secret: u8, now_us: u64, peer: u32, port: u16| {
        let mut b = Bench::listening(10, &[], |c| c.stack.secret = [secret; 16]);
        b.now = b.now.plus_micros(now_us);
        b.send_with(&Peer::new(peer, port), SYN, &[], plain()).remove(0).seq
    };
    let first = isn(1, 0, 2, 4000);
    for seconds in [1, 60, 4000] {
        assert_eq!(isn(1, seconds * 1_000_000, 2, 4000).since(first) as u64, seconds * 250_000);
    }
    let others = [isn(1, 0, 2, 4001), isn(1, 0, 3, 4000), isn(2, 0, 2, 4000)];
    let near = |other: &SeqNum| other.since(first).min(first.since(*other)) < 1 << 20;
    assert!(!others.iter().any(near), "{first:?} {others:?}");
}

#[test]
fn a_syn_from_nowhere_is_dropped() {
    let mut b = Bench::listening(10, &[], |_| {});
    for addr in [[0, 0, 0, 0], [127, 0, 0, 1], [224, 0, 0, 1], [255, 255, 255, 255]] {
        let p = Peer { addr: wire::Addr::from_v4(addr), ..Peer::new(2, 4000) };
        assert!(b.send_with(&p, SYN, &[], plain()).is_empty(), "{addr:?}");
    }
    assert_eq!((b.host.stack.half_open(), b.host.stack.counters().dropped(DropReason::BadSource)), (0, 4));
}

#[test]
fn ipv6_shakes_hands_the_same_way() {
    let v6 = |n| wire::Addr::from_v6([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n]);
    for when in [SynCookies::WhenFull, SynCookies::Always] {
        let mut b = Bench::new(|c| {
            c.addresses.push((v6(1).to_ip(), 64));
            c.stack.syn_cookies = when;
        });
        let interface = b.host.interface();
        b.host.stack.set_neighbor(b.now, interface, v6(2).to_ip(), common::PEER_MAC);
        let local = protocol::Endpoint { addr: wire::Addr::UNSPECIFIED_V6, port: PORT };
        let token = protocol::Token(1);
        b.job(Job::Listen { token, local, backlog: 9, v6_only: false, reuse_port: false, receive_buffer: 0 });
        let mut p = Peer { addr: v6(2), ..Peer::new(2, 4000) };
        p.ts = Some((1000, 0));
        let synack = b.send_with(&p, SYN, &[], usual()).remove(0);
        assert_eq!((synack.flags, synack.to, synack.options.mss), (SYN | ACK, v6(2), Some(1440)));
        p.answer(&synack);
        b.send(&p, ACK, b"six");
        assert_eq!((b.accepted.len(), &b.bytes[..]), (1, &b"six"[..]), "{when:?}");
        p.seq += 3;
        assert_eq!(b.write(b.accepted[0], &[1; 2000])[0].payload.len(), 1428);
    }
}

/// RFC 1122 3.2.1.3: a packet from the link that names our own address as its source is nobody's ("LAND"); RFC 1122 3.3.6:
/// one sent to everybody on the link does not speak to us alone.
#[test]
fn what_nobody_can_have_sent_us_is_dropped() {
    let mut b = Bench::listening(10, &[], |_| {});
    let land = Peer { addr: common::ours(), port: PORT, ..Peer::new(2, 1) };
    assert!(b.send_with(&land, SYN, &[], usual()).is_empty());
    assert_eq!((b.host.stack.counters().dropped(DropReason::BadSource), b.host.stack.half_open()), (1, 0));

    let mut all = b.frame(&Peer::new(2, 4000), SYN, &[], usual());
    all[..6].fill(0xff);
    assert!(b.turn(vec![all]).is_empty());
    // A ping as well: it would be answered by everybody.
    let mut echo = vec![0; 14 + 20 + 16];
    let at = wire::ethernet::emit(&mut echo, wire::MacAddr::BROADCAST, common::PEER_MAC, None, wire::ethernet::IPV4);
    let (src, dst) = (common::peer(2), common::ours());
    let ip = wire::ipv4::Header { src, dst, protocol: wire::ipv4::ICMP, ..Default::default() };
    ip.emit(&mut echo[at..], 16);
    wire::icmpv4::Message::EchoRequest { id: 1, seq: 1, data: &[7; 8] }.emit(&mut echo[at + 20..]);
    b.turn(vec![echo.clone()]);
    assert_eq!((b.host.stack.counters().dropped(DropReason::NotOurLink), b.host.stack.counters().echoes), (2, 0));
    echo[..6].copy_from_slice(&b.host.config.mac.0);
    b.turn(vec![echo]);
    assert_eq!(b.host.stack.counters().echoes, 1);
}

/// A cookie carries options in our timestamp: where we send none, none is agreed on, or the two ends would disagree about
/// what a window means.
#[test]
fn a_cookie_agrees_on_nothing_that_it_cannot_carry() {
    let mut b = Bench::listening(10, &[], |c| {
        c.stack.syn_cookies = SynCookies::Always;
        c.stack.tcp.timestamps = false;
    });
    let mut p = Peer::new(2, 4000);
    p.ts = Some((1000, 0));
    let answers = b.send_with(&p, SYN, &[], usual());
    let [synack] = &answers[..] else { panic!("{answers:?}") };
    let agreed = synack.options;
    assert_eq!((agreed.window_scale, agreed.sack_permitted, agreed.timestamps), (None, false, None));
    p.answer(synack);
    // Nor by a timestamp that comes all the same.
    b.send(&p, ACK, &[]);
    assert_eq!(b.accepted.len(), 1);
    let mut options = Vec::new();
    let config = b.host.config.stack.tcp.clone();
    let now = b.now;
    b.host.stack.each_connection(|_, _, t| options.push(t.info(now, &config).options));
    assert_eq!(options, [0]);
}

#[test]
fn all_connections_are_looked_through() {
    let mut b = Bench::listening(10, &[], |_| {});
    for port in 4000..4007 {
        let mut p = Peer::new(2, port);
        let synack = b.send_with(&p, SYN, &[], plain()).remove(0);
        p.answer(&synack);
        b.send(&p, ACK, b"");
    }
    let mut found = Vec::new();
    b.host.stack.each_flow(|key| found.push(key.remote_port));
    found.sort();
    assert_eq!(found, Vec::from_iter(4000..4007));
    // Where a listener has come or gone is told once, as it is then.
    let mut changed = Vec::new();
    b.host.stack.take_changed_listeners(|at, v6_only, there| changed.push((at.port, v6_only, there)));
    assert_eq!(changed, [(80, false, true)]);
    b.host.stack.take_changed_listeners(|at, _, _| panic!("{at:?} again"));
    b.job(Job::CloseListener { listener: b.listener.unwrap() });
    b.host.stack.take_changed_listeners(|at, v6_only, there| changed.push((at.port, v6_only, there)));
    assert_eq!(changed[1..], [(80, false, false)]);
}

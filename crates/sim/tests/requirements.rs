//! Requirements that lie with the stack around a connection: initial sequence numbers, addresses, TIME-WAIT, ICMP, and the
//! IP header. `docs/conformance.md` names each.

mod common;

use core::net::IpAddr;
use core::time::Duration;

use common::{ACK, Bench, FIN, PEER_MAC, PORT, Peer, RST, SYN, Sent, ours};
use protocol::{CloseMode, ConnOption, Endpoint, Failure, Job, Token};
use wire::tcp::{Header, Options, Timestamps};
use wire::{Addr, SeqNum, ethernet, ipv4, ipv6};

fn plain() -> Options {
    Options { mss: Some(1460), ..Options::default() }
}

/// The initial sequence number for a SYN of `p`, whose handshake is then forgotten.
fn isn(b: &mut Bench, p: &Peer) -> SeqNum {
    let synack = b.send_with(p, SYN, &[], plain()).remove(0);
    assert_eq!(synack.flags, SYN | ACK);
    b.send(&Peer { seq: p.seq + 1, ..*p }, RST, &[]);
    synack.seq
}

/// RFC 6528 3, RFC 9293 3.4.1: a clock of 4 µs, and an offset for each tuple that only the secret tells.
#[test]
fn initial_sequence_numbers() {
    let mut b = Bench::listening(10, &[], |_| {});
    let (p, q) = (Peer::new(2, 4000), Peer::new(2, 4001));
    let first = isn(&mut b, &p);
    let other = isn(&mut b, &q);
    b.now += Duration::from_millis(100);
    assert_eq!(isn(&mut b, &p).since(first), 25_000);
    assert_eq!(isn(&mut b, &q).since(other), 25_000);
    // Neither the next port nor the next host is near.
    let near = |a: SeqNum, b: SeqNum| a.since(b).min(b.since(a)) < 1 << 16;
    assert!(!near(first, other) && !near(first, isn(&mut b, &Peer::new(3, 4000))));
    // Nor another port or address of ours.
    let local = Endpoint { addr: Addr::UNSPECIFIED_V4, port: PORT + 1 };
    b.job(Job::Listen { token: Token(2), local, backlog: 10, v6_only: false, reuse_port: false, receive_buffer: 0 });
    let now = isn(&mut b, &p);
    assert!(!near(now, isn(&mut b, &Peer { local_port: PORT + 1, ..p })));
    let interface = b.host.interface();
    b.host.stack.add_address(interface, IpAddr::from([10, 0, 0, 7]), 8);
    let mac = b.host.config.mac;
    let elsewhere = b.turn(vec![syn_between(mac, [10, 0, 0, 2], [10, 0, 0, 7])]).remove(0);
    assert!(elsewhere.flags == SYN | ACK && !near(now, elsewhere.seq));
    // Another secret, another offset.
    let mut b = Bench::listening(10, &[], |c| c.stack.secret = [77; 16]);
    assert!(!near(first, isn(&mut b, &p)));
}

/// A frame with a SYN between any two addresses.
fn syn_between(mac: wire::MacAddr, src: [u8; 4], dst: [u8; 4]) -> Vec<u8> {
    let header = Header {
        src_port: 4000,
        dst_port: PORT,
        seq: SeqNum(1),
        ack: SeqNum(0),
        flags: SYN,
        window: 1000,
        urgent: 0,
        options: plain(),
    };
    let (src, dst) = (Addr::from_v4(src), Addr::from_v4(dst));
    let mut buf = vec![0; 14 + 20 + 60];
    let at = ethernet::emit(&mut buf, mac, PEER_MAC, None, ethernet::IPV4);
    let end = at + 20 + header.emit(&mut buf[at + 20..], true);
    ipv4::Header { src, dst, ..ipv4::Header::default() }.emit(&mut buf[at..], end - at - 20);
    wire::tcp::fill_checksum(src, dst, &mut buf[at + 20..end]);
    buf.truncate(end);
    buf
}

/// RFC 9293 3.9.1.1 (MUST-41): others that open, fail to open and end on the same port change nothing for a connection.
#[test]
fn a_passive_open_disturbs_no_other_connection() {
    let mut b = Bench::listening(64, &[], |_| {});
    let mut p = b.establish(2, 4000, plain());
    let conn = b.accepted[0];
    for n in 0..40 {
        let sent = b.write(conn, &[n; 100]);
        assert!(sent.len() == 1 && sent[0].seq == p.ack && sent[0].payload == [n; 100], "{sent:?}");
        match n % 4 {
            0 => drop(b.establish(3, 5000 + n as u16, plain())),
            1 => drop(b.send_with(&Peer::new(2, 5000 + n as u16), SYN, &[], plain())),
            2 => drop(isn(&mut b, &Peer::new(2, 4000 + n as u16))),
            // The same numbers from another host.
            _ => drop(b.send_with(&Peer { addr: Peer::new(4, 0).addr, ..p }, SYN, &[], plain())),
        }
        p.answer(&sent[0]);
        b.bytes.clear();
        let answers = b.send(&p, ACK, &[n; 10]);
        p.seq += 10;
        assert_eq!(b.bytes, [n; 10]);
        assert!(answers.iter().all(|s| s.to == p.addr && s.seq == p.ack && s.ack == p.seq), "{answers:?}");
    }
    assert_eq!(b.failed, None);
}

/// RFC 9293 3.9.2.3 (MUST-57, MUST-63): SYNs to or from broadcast and multicast addresses are dropped without a word.
#[test]
fn group_addresses_open_nothing() {
    let mut b = Bench::listening(10, &[], |_| {});
    let mac = b.host.config.mac;
    let good = syn_between(mac, [10, 0, 0, 2], [10, 0, 0, 1]);
    assert_eq!(b.turn(vec![good]).len(), 1);
    let (half_open, group) = (b.host.stack.half_open(), wire::MacAddr([1, 0, 0x5e, 0, 0, 1]));
    for (mac, src, dst) in [
        (mac, [10, 0, 0, 2], [224, 0, 0, 1]),
        (mac, [10, 0, 0, 2], [255, 255, 255, 255]),
        (mac, [10, 0, 0, 2], [10, 255, 255, 255]),
        (mac, [224, 0, 0, 1], [10, 0, 0, 1]),
        (mac, [255, 255, 255, 255], [10, 0, 0, 1]),
        (mac, [0, 0, 0, 0], [10, 0, 0, 1]),
        (mac, [127, 0, 0, 1], [10, 0, 0, 1]),
        (group, [10, 0, 0, 2], [10, 0, 0, 1]),
        (wire::MacAddr([0xff; 6]), [10, 0, 0, 2], [10, 0, 0, 1]),
    ] {
        let frame = syn_between(mac, src, dst);
        assert!(b.turn(vec![frame]).is_empty(), "{src:?} {dst:?}");
        assert_eq!(b.host.stack.half_open(), half_open);
    }
}

/// RFC 9293 3.9.1.1 (MUST-46): no connection to a group.
#[test]
fn groups_cannot_be_connected_to() {
    let groups: [IpAddr; 4] =
        [[224, 0, 0, 1].into(), [255, 255, 255, 255].into(), [0xff02, 0, 0, 0, 0, 0, 0, 1].into(), [0, 0, 0, 0].into()];
    for addr in groups {
        let mut b = Bench::new(|_| {});
        let remote = Endpoint { addr: addr.into(), port: 80 };
        let local =
            Endpoint { addr: if remote.addr.is_v4() { Addr::UNSPECIFIED_V4 } else { Addr::UNSPECIFIED_V6 }, port: 0 };
        b.job(Job::Connect { token: Token(1), local, remote, receive_buffer: 0 });
        assert_eq!(b.failed, Some(Failure::AddressNotAvailable), "{addr}");
    }
}

/// A connection that we closed first: in TIME-WAIT, and what the peer would send next.
fn time_wait(options: Options) -> (Bench, Peer, SeqNum) {
    let mut b = Bench::listening(10, &[], |_| {});
    let mut p = b.establish(2, 4000, options);
    let conn = b.accepted[0];
    let fin = b.job(Job::Close { conn, mode: CloseMode::Graceful }).remove(0);
    assert!(fin.flags.contains(FIN));
    p.answer(&fin);
    let answers = b.send(&p, FIN | ACK, &[]);
    assert_eq!(answers.last().unwrap().flags, ACK);
    p.seq += 1;
    (b, p, fin.seq + 1)
}

fn ack_of(p: &Peer, nxt: SeqNum) -> impl Fn(&Sent) -> bool {
    let seq = p.seq;
    move |s| (s.flags, s.seq, s.ack) == (ACK, nxt, seq)
}

/// RFC 1337 3: a RST does not end TIME-WAIT; RFC 9293 3.6.1: it lasts, and answers what comes again.
#[test]
fn a_reset_does_not_end_time_wait() {
    let (mut b, p, nxt) = time_wait(plain());
    assert!(b.send(&p, RST, &[]).is_empty());
    assert!(b.send(&Peer { seq: p.seq + 5, ..p }, RST, &[]).is_empty());
    let answers = b.send(&Peer { seq: p.seq - 1, ..p }, FIN | ACK, &[]);
    assert!(answers.len() == 1 && ack_of(&p, nxt)(&answers[0]), "{answers:?}");
    // MUST-13: gone after 2 MSL, counted from the last FIN.
    b.wait(Duration::from_secs(59));
    assert_eq!(b.send(&Peer { seq: p.seq - 1, ..p }, ACK, b"x")[0].flags, ACK);
    b.wait(Duration::from_secs(2));
    assert_eq!(b.send(&Peer { seq: p.seq - 1, ..p }, ACK, b"x")[0].flags, RST);
}

/// RFC 6191 2: what opens a tuple anew in TIME-WAIT: a newer timestamp, or a higher sequence number.
#[test]
fn what_reopens_a_tuple() {
    let stamped = |value| Options { timestamps: Some(Timestamps { value, echo: 0 }), ..plain() };
    // (timestamps then, the SYN's, its number beyond what was received, whether it opens)
    for (old, new, ahead, opens) in [
        (None, None, 1, true),
        (None, None, 100_000, true),
        (None, None, 0, false),
        (None, None, -1, false),
        (Some(1000), Some(1001), -5000, true),
        (Some(1000), Some(1000), 1, true),
        (Some(1000), Some(1000), 0, false),
        (Some(1000), Some(999), 100_000, false),
        (Some(1000), None, 1, true),
        (Some(1000), None, -1, false),
        (None, Some(1), 1, true),
    ] {
        let (mut b, p, nxt) = time_wait(old.map_or(plain(), stamped));
        let seq = SeqNum(p.seq.0.wrapping_add(ahead as u32));
        let syn = Peer { seq, ts: new.map(|v| (v, 0)), ..p };
        let answers = b.send_with(&syn, SYN, &[], new.map_or(plain(), stamped));
        let what = (old, new, ahead);
        assert_eq!(answers.len(), 1, "{what:?}");
        if opens {
            assert_eq!((answers[0].flags, answers[0].ack), (SYN | ACK, seq + 1), "{what:?}");
            // RFC 9293 3.6.1 MAY-2: beyond whatever the old connection may have sent.
            assert!(answers[0].seq.after(nxt), "{what:?}");
        } else {
            assert!(ack_of(&p, nxt)(&answers[0]), "{what:?}: {answers:?}");
        }
    }
}

/// RFC 9293 3.9.1.9, 3.9.2 (MUST-48, MUST-49, SHLD-21, SHLD-22): the application sets Diffserv and TTL, also later.
#[test]
fn the_application_sets_diffserv_and_ttl() {
    let mut b = Bench::listening(10, &[], |_| {});
    b.establish(2, 4000, plain());
    let conn = b.accepted[0];
    let sent = b.write(conn, b"a").remove(0);
    assert_eq!((sent.class, sent.hops), (0, 64));
    for (class, hops) in [(0xb8, 7), (0x48, 255), (0, 64)] {
        b.host.job(Job::SetOption { conn, option: ConnOption::TrafficClass, value: class });
        b.host.job(Job::SetOption { conn, option: ConnOption::HopLimit, value: hops });
        let sent = b.wait(Duration::from_secs(3));
        let last = &sent.last().expect("it is sent again").1;
        assert_eq!((last.class as u32, last.hops as u32), (class, hops));
    }
    // As a listener's, for what it accepts, in both families.
    for n in [1, 6] {
        let options = [(ConnOption::TrafficClass, 0x28), (ConnOption::HopLimit, 9)];
        let mut b = Bench::new(|c| c.addresses.push((v6(1).to_ip(), 64)));
        options.iter().for_each(|(option, value)| b.host.job(Job::Prepare { option: *option, value: *value }));
        let local = Endpoint { addr: Addr::UNSPECIFIED_V6, port: PORT };
        let (token, reuse_port, receive_buffer) = (Token(1), false, 0);
        b.job(Job::Listen { token, local, backlog: 9, v6_only: false, reuse_port, receive_buffer });
        let (now, interface) = (b.now, b.host.interface());
        b.host.stack.set_neighbor(now, interface, v6(9).to_ip(), PEER_MAC);
        let mut p = Peer::new(2, 4000);
        if n == 6 {
            p.addr = v6(9);
        }
        let synack = b.send_with(&p, SYN, &[], plain()).remove(0);
        assert_eq!((synack.class, synack.hops), (0x28, 9), "IPv{n}");
        p.answer(&synack);
        b.send(&p, ACK, &[]);
        let conn = b.accepted[0];
        let sent = b.write(conn, b"a").remove(0);
        assert_eq!((sent.class, sent.hops), (0x28, 9), "IPv{n}");
    }
}

/// The IP packet of what the host sent, made again for an ICMP error to quote: header and eight bytes.
fn quote(from: Addr, to: Addr, s: &Sent) -> Vec<u8> {
    let v4 = from.is_v4();
    let ip = if v4 { 20 } else { 40 };
    let mut buf = vec![0; ip + 20];
    if v4 {
        ipv4::Header { src: from, dst: to, ..ipv4::Header::default() }.emit(&mut buf, 1480);
    } else {
        ipv6::Header { src: from, dst: to, ..ipv6::Header::default() }.emit(&mut buf, 1440);
    }
    buf[ip..ip + 2].copy_from_slice(&s.src_port.to_be_bytes());
    buf[ip + 2..ip + 4].copy_from_slice(&s.dst_port.to_be_bytes());
    buf[ip + 4..ip + 8].copy_from_slice(&s.seq.0.to_be_bytes());
    buf
}

/// An ICMP message about `s` from a router, its type and code, and the 32 bits after the checksum.
fn icmp(b: &Bench, s: &Sent, kind: u8, code: u8, word: u32) -> Vec<u8> {
    let v4 = s.to.is_v4();
    let (from, router) = match v4 {
        true => (ours(), Addr::from_v4([10, 0, 0, 9])),
        false => (v6(1), v6(9)),
    };
    let quoted = quote(from, s.to, s);
    let mut message = vec![kind, code, 0, 0];
    message.extend(word.to_be_bytes());
    message.extend(&quoted);
    let mut buf = vec![0; 14 + 40 + message.len()];
    let at =
        ethernet::emit(&mut buf, b.host.config.mac, PEER_MAC, None, if v4 { ethernet::IPV4 } else { ethernet::IPV6 });
    let ip = match v4 {
        true => ipv4::Header { src: router, dst: from, protocol: ipv4::ICMP, ..ipv4::Header::default() }
            .emit(&mut buf[at..], message.len()),
        false => ipv6::Header { src: router, dst: from, next_header: ipv6::ICMPV6, ..ipv6::Header::default() }
            .emit(&mut buf[at..], message.len()),
    };
    let sum = match v4 {
        true => wire::checksum::sum(&message).finish(),
        false => wire::checksum::pseudo(router, from, ipv6::ICMPV6, message.len())
            .add(wire::checksum::sum(&message))
            .finish(),
    };
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let end = at + ip + message.len();
    buf[at + ip..end].copy_from_slice(&message);
    buf.truncate(end);
    buf
}

fn v6(n: u8) -> Addr {
    let mut a = [0; 16];
    (a[0], a[15]) = (0xfd, n);
    Addr::from_v6(a)
}

/// What a router does that says that the path takes `mtu`: how large the segments are that are sent again, which MSS the next
/// connection from there is offered, and how large its segments are.
fn after_too_big(v4: bool, mtu: u32) -> (usize, u16, usize) {
    let mut b = Bench::listening(10, &[], |c| c.addresses.push((IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]), 64)));
    let now = b.now;
    let interface = b.host.interface();
    let mut p = Peer::new(2, 4000);
    if !v4 {
        p.addr = v6(2);
        b.host.stack.set_neighbor(now, interface, [0xfd00, 0, 0, 0, 0, 0, 0, 2].into(), PEER_MAC);
        b.job(Job::Listen {
            token: Token(9),
            local: Endpoint { addr: Addr::UNSPECIFIED_V6, port: 81 },
            backlog: 9,
            v6_only: true,
            reuse_port: false,
            receive_buffer: 0,
        });
        p.local_port = 81;
    }
    let synack = b.send_with(&p, SYN, &[], plain()).remove(0);
    p.answer(&synack);
    b.send(&p, ACK, &[]);
    let conn = b.accepted[0];
    let sent = b.write(conn, &[7; 4000]);
    let error = match v4 {
        true => icmp(&b, &sent[0], 3, 4, mtu),
        false => icmp(&b, &sent[0], 2, 0, mtu),
    };
    let again = b.turn(vec![error]);
    let size = again.first().map_or(0, |s| s.payload.len());
    // What the next connection to that host is told.
    let mut q = Peer { port: 4001, ..p };
    q.seq = SeqNum(9);
    let synack = b.send_with(&q, SYN, &[], plain()).remove(0);
    q.answer(&synack);
    b.send(&q, ACK, &[]);
    let conn = b.accepted[1];
    let sent = b.write(conn, &[7; 4000]);
    (size, synack.options.mss.unwrap(), sent[0].payload.len())
}

/// RFC 1191 3, 5, RFC 8201 4: what a path takes, with floors against nonsense; the next connection knows. What it offers to
/// receive stays the interface's (RFC 9293 3.7.1, MUST-67).
#[test]
fn path_mtus() {
    assert_eq!(after_too_big(true, 1400), (1360, 1460, 1360));
    assert_eq!(after_too_big(true, 552), (512, 1460, 512));
    assert_eq!(after_too_big(true, 551), (512, 1460, 512));
    assert_eq!(after_too_big(true, 68), (512, 1460, 512));
    // A router from before RFC 1191 names none.
    assert_eq!(after_too_big(true, 0), (512, 1460, 512));
    assert_eq!(after_too_big(true, 1500).0, 0);
    assert_eq!(after_too_big(false, 1400), (1340, 1440, 1340));
    assert_eq!(after_too_big(false, 1280), (1220, 1440, 1220));
    // RFC 8201 4: less than any IPv6 link carries is discarded.
    assert_eq!(after_too_big(false, 1279), (0, 1440, 1440));
}

/// RFC 1191 6.3: what was learned is forgotten after ten minutes.
#[test]
fn path_mtus_are_forgotten() {
    let mut b = Bench::listening(10, &[], |_| {});
    let p = b.establish(2, 4000, plain());
    let conn = b.accepted[0];
    let sent = b.write(conn, &[7; 4000]);
    let error = icmp(&b, &sent[0], 3, 4, 1400);
    b.turn(vec![error]);
    let used = |b: &mut Bench, port| {
        let mut q = Peer { port, ..p };
        let synack = b.send_with(&q, SYN, &[], plain()).remove(0);
        q.answer(&synack);
        b.send(&q, ACK, &[]);
        let conn = *b.accepted.last().unwrap();
        b.write(conn, &[7; 4000])[0].payload.len()
    };
    assert_eq!(used(&mut b, 5000), 1360);
    b.wait(Duration::from_secs(599));
    assert_eq!(used(&mut b, 5001), 1360);
    b.wait(Duration::from_secs(2));
    assert_eq!(used(&mut b, 5002), 1460);
}

/// RFC 9293 3.10.7.4, MUST-58, MUST-59: frames that wait together are all processed before an ACK goes, so there is one.
#[test]
fn a_burst_of_frames_is_acknowledged_once() {
    let mut b = Bench::listening(10, &[], |_| {});
    let mut p = b.establish(2, 4000, plain());
    let start = p.seq;
    for count in [5, 8] {
        let mut frames = Vec::new();
        for _ in 0..count {
            frames.push(b.frame(&p, ACK, &[7; 1000], Options::default()));
            p.seq += 1000;
        }
        let answers = b.turn(frames);
        assert_eq!(answers.iter().map(|s| s.ack).collect::<Vec<_>>(), [p.seq], "{count} frames");
    }
    assert_eq!(b.bytes.len() as u32, p.seq.since(start));
}

/// A port that does not cut takes some frames of each connection in turn, however much one has to send.
#[test]
fn connections_send_by_turns() {
    let mut b = Bench::listening(10, &[], |c| c.stack.tcp.initial_window = 200);
    let options = Options { mss: Some(536), ..plain() };
    for port in [4000, 4001] {
        b.establish(2, port, options);
    }
    for conn in b.accepted.clone() {
        let mut chain = mem::Chain::default();
        chain.push_slice(&mut b.host.side, &[7; 536 * 50]);
        b.host.job(Job::Write { conn, chain, more: false, close: false });
    }
    let ports: Vec<u16> = b.turn(Vec::new()).iter().map(|s| s.dst_port).collect();
    let runs: Vec<(u16, usize)> = ports.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect();
    assert_eq!(runs, [(4000, 32), (4001, 32), (4000, 18), (4001, 18)]);
}

/// While a port takes nothing answers wait, so many at most, and who brings frames can ask before that whether they will find room.
#[test]
fn answers_that_find_no_room_are_foreseen_and_counted() {
    let mut b = Bench::new(|_| {});
    let interface = b.host.interface();
    b.host.set_room(0, 0);
    for n in 0..600u16 {
        let queued = (n as usize).min(512);
        assert_eq!(b.host.stack.can_answer(interface), queued <= 256, "{n}");
        assert_eq!(b.host.stack.counters().dropped(stack::DropReason::ReplyQueue), (n as u64).saturating_sub(512));
        b.send(&Peer::new(2, 1024 + n), SYN, &[]);
    }
    assert!(b.host.stack.can_answer(stack::InterfaceId(7)), "nobody answers there");
    b.host.set_room(0, 1000);
    let sent = b.turn(Vec::new());
    assert!(sent.len() == 512 && sent.iter().all(|s| s.flags.contains(RST)));
    assert!(b.host.stack.can_answer(interface));
}

/// RFC 5927 4.1: SND.UNA <= SEG.SEQ < SND.NXT, so nothing that quotes an idle connection's next number is believed.
#[test]
fn an_idle_connection_hears_no_icmp() {
    let mut b = Bench::listening(10, &[], |_| {});
    let p = b.establish(2, 4000, plain());
    let unmatched = |b: &Bench| b.host.stack.counters().dropped(stack::DropReason::IcmpUnmatched);
    for seq in [p.ack, p.ack - 1] {
        let (before, error) = (unmatched(&b), b.unreachable(&p, 1, seq));
        b.turn(vec![error]);
        assert_eq!(unmatched(&b), before + 1);
    }
}

/// A parked connection stays parked when a timer of before comes to nothing, and its own are kept.
#[test]
fn a_parked_connection_rests_until_it_has_something_to_do() {
    for keepalive in [false, true] {
        let options = [(ConnOption::KeepAlive, keepalive as u32), (ConnOption::KeepIdle, 12)];
        let mut b = Bench::listening(10, &options, |c| c.stack.park_after = Duration::from_millis(50));
        let mut p = b.establish(2, 4000, plain());
        let conn = b.accepted[0];
        p.answer(&b.write(conn, b"hello")[0]);
        b.send(&p, ACK, &[]);
        b.wait(Duration::from_millis(120));
        // It would have been sent again after 200 ms.
        for ms in 120..300 {
            assert_eq!(b.host.stack.parked(), 1, "after {ms} ms");
            assert!(b.wait(Duration::from_millis(1)).is_empty());
        }
        let probes = b.wait(Duration::from_secs(15));
        assert_eq!(
            probes.first().map(|(at, s)| (at.as_millis() + 300, s.seq)),
            keepalive.then_some((12_000, p.ack - 1))
        );
    }
}

/// RFC 5961 5.2, bounded by what was ever acknowledged: an ACK of what was never sent brings no text, neither right after the
/// handshake nor where the connection was parked in between.
#[test]
fn an_ack_of_what_was_never_sent_brings_nothing() {
    let options = Options { window_scale: Some(7), sack_permitted: true, ..plain() };
    for parked in [false, true] {
        // A whole connection rests for a second before it is parked.
        let idle = Duration::from_secs(if parked { 5 } else { 0 });
        let mut b = Bench::listening(10, &[], |c| c.stack.park_after = Duration::from_secs(1));
        let mut p = b.establish(2, 4000, options);
        b.send(&p, ACK, b"hello");
        p.seq += 5;
        b.wait(idle);
        assert_eq!((b.host.stack.parked(), &b.bytes[..]), (parked as usize, &b"hello"[..]));
        let nxt = p.ack;
        for back in [1, 30_000, 8_000_000] {
            p.ack = nxt - back;
            b.send(&p, ACK, b"evil");
        }
        assert_eq!(b.bytes, b"hello");
        assert_eq!(b.host.stack.counters().tcp.bad_ack, 3);
        // What was acknowledged once may be acknowledged again, parked or not.
        p.ack = nxt;
        let conn = b.accepted[0];
        b.write(conn, b"0123456789");
        p.ack = nxt + 10;
        b.send(&p, ACK, &[]);
        b.wait(idle);
        p.ack = nxt;
        b.send(&p, ACK, b"old");
        assert_eq!(b.bytes, b"helloold");
        p.seq += 3;
        p.ack = nxt - 1;
        b.send(&p, ACK, b"evil");
        assert_eq!(b.bytes, b"helloold");
    }
}

/// RFC 5961 7 (CVE-2016-5696): what the peer of one connection is answered does not depend on what another is sent.
#[test]
fn challenge_acks_do_not_tell_of_other_connections() {
    let mut answers = [0, 1].map(|attacked| {
        let mut b = Bench::listening(1000, &[], |_| {});
        let p = b.establish(2, 4000, plain());
        let others: Vec<_> = (0..400).map(|n| b.establish(3 + n % 5, 5000 + n as u16, plain())).collect();
        let mut heard = Vec::new();
        for _ in 0..20 {
            for other in others.iter().filter(|_| attacked == 1) {
                let mut other = *other;
                other.seq += 100;
                for _ in 0..3 {
                    b.send(&other, RST, &[]);
                    b.send(&other, SYN, &[]);
                }
            }
            let mut own = p;
            own.seq += 100;
            heard.push(b.send(&own, RST, &[]).len());
            b.wait(Duration::from_millis(250));
        }
        heard
    });
    assert_eq!(answers[0], answers[1]);
    // And its own limit is not what makes them equal.
    answers[0].sort();
    answers[0].dedup();
    assert_eq!(answers[0], [0, 1]);
}

/// RFC 9293 3.9.2.2 (MUST-55): source quench is dropped; what is not in flight is no error about us (RFC 5927 4.1).
#[test]
fn icmp_that_changes_nothing() {
    let mut b = Bench::listening(10, &[], |_| {});
    b.establish(2, 4000, plain());
    let conn = b.accepted[0];
    let sent = b.write(conn, &[7; 4000]);
    let windows = |b: &Bench| {
        let mut found = (0, 0);
        b.host.stack.each_connection(|_, _, tcb| {
            let info = tcb.info(b.now, &b.host.config.stack.tcp);
            found = (info.snd_cwnd, info.snd_ssthresh);
        });
        found
    };
    let before = windows(&b);
    let quench = icmp(&b, &sent[0], 4, 0, 0);
    assert!(b.turn(vec![quench]).is_empty());
    assert_eq!(windows(&b), before, "RFC 6633 3: no reaction");
    let mut forged = sent[0].clone();
    forged.seq = forged.seq - 2;
    let error = icmp(&b, &forged, 3, 4, 600);
    assert!(b.turn(vec![error]).is_empty());
    let hard = icmp(&b, &sent[0], 3, 3, 0);
    assert!(b.turn(vec![hard]).is_empty());
    assert_eq!((b.failed, b.host.stack.connections()), (None, 1));
}

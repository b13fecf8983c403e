//! What socket options do on the wire.

mod common;

use core::time::Duration;

use common::{ACK, Bench, PORT, Peer, SYN, usual};
use protocol::{ConnOption, Endpoint, Job, Token};
use wire::tcp::{Flags, Options};

fn connect(b: &mut Bench, options: &[(ConnOption, u32)]) -> Vec<common::Sent> {
    for (option, value) in options {
        b.host.job(Job::Prepare { option: *option, value: *value });
    }
    let local = Endpoint { addr: common::ours(), port: 7000 };
    let remote = Endpoint { addr: common::peer(0x0a00_0002), port: PORT };
    b.job(Job::Connect { token: Token(1), local, remote, receive_buffer: 0 })
}

#[test]
fn a_syn_knows_its_options() {
    let mut b = Bench::new(|_| {});
    let syn = connect(
        &mut b,
        &[
            (ConnOption::MaxSegment, 1000),
            (ConnOption::TrafficClass, 0x10),
            (ConnOption::HopLimit, 3),
            (ConnOption::WindowClamp, 8000),
        ],
    )
    .remove(0);
    assert_eq!((syn.options.mss, syn.class, syn.hops), (Some(1000), 0x10, 3));
    assert!(syn.window <= 8000 && syn.window > 6000, "{}", syn.window);
}

#[test]
fn the_number_of_syns_can_be_set() {
    let mut b = Bench::new(|c| c.stack.tcp.syn_linear_timeouts = 0);
    connect(&mut b, &[(ConnOption::SynCount, 2)]);
    let again = b.wait(Duration::from_secs(100));
    let at: Vec<u64> = again.iter().map(|(at, _)| at.as_secs()).collect();
    assert_eq!(at, [1, 3]);
    assert_eq!(b.failed, Some(protocol::Failure::TimedOut));
}

/// Sent by RFC 6093's reading: the pointer names the byte after the last urgent one.
#[test]
fn urgent_bytes_are_marked_until_they_are_acknowledged() {
    let mut b = Bench::listening(10, &[], |_| {});
    let mut p = b.establish(2, 4000, Options { mss: Some(1000), ..Options::default() });
    let conn = b.accepted[0];
    b.host.job(Job::Urgent { conn, bytes: 1500 });
    let sent = b.write(conn, &[1; 1500]);
    let marks: Vec<_> = sent.iter().map(|s| (s.flags.contains(Flags::URG), s.urgent, s.payload.len())).collect();
    assert_eq!(marks, [(true, 1500, 1000), (true, 500, 500)]);
    p.answer(&sent[1]);
    b.send(&p, ACK, &[]);
    let sent = b.write(conn, b"calm");
    assert!(!sent[0].flags.contains(Flags::URG) && sent[0].urgent == 0);
}

#[test]
fn an_urgent_byte_is_announced_before_it_comes() {
    let mut b = Bench::listening(10, &[], |_| {});
    let mut p = b.establish(2, 4000, Options { mss: Some(1000), ..Options::default() });
    // Its pointer lies 20 bytes ahead of a segment of 5.
    let mut frame = b.frame(&p, ACK | Flags::URG, b"hello", Options::default());
    let tcp = 14 + 20;
    frame[tcp + 18..tcp + 20].copy_from_slice(&20u16.to_be_bytes());
    frame[tcp + 16..tcp + 18].fill(0);
    wire::tcp::fill_checksum(p.addr, common::ours(), &mut frame[tcp..]);
    b.turn(vec![frame]);
    assert_eq!((b.urgent, &b.bytes[..]), (Some(19), &b"hello"[..]));
    p.seq += 5;
    b.send(&p, ACK, &[2; 30]);
    assert_eq!(b.bytes.len(), 35);
}

#[test]
fn unsent_bytes_are_reported_below_the_mark() {
    let mut b = Bench::listening(10, &[], |_| {});
    let mut p = b.establish(2, 4000, usual());
    p.window = 0;
    b.send(&p, ACK, &[]);
    let conn = b.accepted[0];
    b.job(Job::SetOption { conn, option: ConnOption::NotSentLow, value: 2000 });
    b.write(conn, &[1; 3000]);
    assert_eq!(b.sent, Some(0));
    p.window = 100;
    b.send(&p, ACK, &[]);
    assert_eq!(b.sent, Some(3000));
}

/// What a runtime asks of a stack, before and after something listens.
#[test]
fn who_listens_can_be_asked() {
    let mut b = Bench::new(|_| {});
    let at = |addr, port| Endpoint { addr, port };
    let places = [at(common::ours(), PORT), at(common::ours(), PORT + 1), at(common::peer(2), PORT)];
    let told = |b: &Bench| {
        let mut all = Vec::new();
        b.host.stack.each_listener(|local, v6_only| all.push((local, v6_only)));
        (b.host.stack.listener_changes(), all, places.map(|local| b.host.stack.listening(local)))
    };
    assert_eq!(told(&b), (0, vec![], [false; 3]));
    let (token, local, v6_only) = (Token(1), places[0], true);
    b.job(Job::Listen { token, local, backlog: 9, v6_only, reuse_port: false, receive_buffer: 0 });
    assert_eq!(told(&b), (1, vec![(local, true)], [true, false, false]));
    b.job(Job::CloseListener { listener: b.listener.unwrap() });
    assert_eq!(told(&b), (2, vec![], [false; 3]));
    assert_eq!(b.host.stack.active_ports(), b.host.config.stack.ports.count());
}

#[test]
fn a_handshake_with_every_option_refused_still_works() {
    let mut b = Bench::listening(10, &[], |c| {
        (c.stack.tcp.timestamps, c.stack.tcp.window_scaling, c.stack.tcp.sack) = (false, false, false);
    });
    let mut p = Peer::new(2, 4000);
    p.ts = Some((1, 0));
    let synack = b.send_with(&p, SYN, &[], usual()).remove(0);
    let o = synack.options;
    assert_eq!((o.timestamps, o.window_scale, o.sack_permitted, o.mss), (None, None, false, Some(1460)));
    p.answer(&synack);
    p.ts = None;
    b.send(&p, ACK, b"hi");
    assert_eq!(b.bytes, b"hi");
}

#[test]
fn an_icmp_error_says_why_an_open_failed() {
    use protocol::Failure;
    for (code, failure) in [
        (2, Some(Failure::ProtocolUnreachable)),
        (3, Some(Failure::Refused)),
        (9, Some(Failure::NetworkUnreachable)),
        (13, Some(Failure::HostUnreachable)),
        (0, None),
        (1, None),
        (5, None),
    ] {
        let mut b = Bench::new(|_| {});
        let syn = connect(&mut b, &[]).remove(0);
        let mut p = Peer::new(2, PORT);
        p.local_port = 7000;
        let frame = b.unreachable(&p, code, syn.seq);
        b.turn(vec![frame]);
        assert_eq!(b.failed, failure, "{code}");
        if failure.is_none() {
            // A soft one is remembered until nothing else is left to say (RFC 9293 3.9.2.2).
            b.wait(Duration::from_secs(1000));
            let soft = if code == 0 { Failure::NetworkUnreachable } else { Failure::HostUnreachable };
            assert_eq!(b.failed, Some(soft));
        }
    }
}

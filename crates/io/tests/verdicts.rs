//! The sharing program over a table of frames (BPF_PROG_TEST_RUN): what is ours, what passes, and why.
//!
//! Needs CAP_BPF; skipped without.

mod common;

use std::time::Duration;

use common::{Action, Bench, Setting, in_a_namespace, sequences, stay_on_this_core, syn_cookies};
use io::bpf::{Claim, OwnFlags, OwnFlow, OwnKey, Phase, Verdict};
use wire::tcp::{Flags, Header, Options};
use wire::{Addr, MacAddr, SeqNum, ethernet, icmpv4, icmpv6, ipv4, ipv6};

fn addr(text: &str) -> Addr {
    text.parse::<std::net::IpAddr>().unwrap().into()
}

fn link(vlan: Option<u16>, ethertype: u16) -> Vec<u8> {
    let mut b = vec![0; 18];
    let n = ethernet::emit(&mut b, MacAddr([2; 6]), MacAddr([4; 6]), vlan, ethertype);
    b.truncate(n);
    b
}

fn segment(sport: u16, dport: u16, flags: Flags) -> Vec<u8> {
    let header = Header {
        src_port: sport,
        dst_port: dport,
        seq: SeqNum(1),
        ack: SeqNum(1),
        flags,
        window: 100,
        urgent: 0,
        options: Options::default(),
    };
    let mut b = vec![0; 60];
    let n = header.emit(&mut b, false);
    b.truncate(n);
    b.resize(n + 40, 7);
    b
}

/// An IP packet of either family.
fn packet(src: Addr, dst: Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut b = vec![0; 40];
    let n = match src.is_v4() {
        true => ipv4::Header { src, dst, protocol, ..Default::default() }.emit(&mut b, payload.len()),
        false => ipv6::Header { src, dst, next_header: protocol, ..Default::default() }.emit(&mut b, payload.len()),
    };
    b.truncate(n);
    b.extend_from_slice(payload);
    b
}

fn frame(vlan: Option<u16>, packet: &[u8]) -> Vec<u8> {
    let mut b = link(vlan, if packet[0] >> 4 == 4 { ethernet::IPV4 } else { ethernet::IPV6 });
    b.extend_from_slice(packet);
    b
}

#[test]
fn the_table() {
    let Some(b) = Bench::new() else { return };
    let none = OwnFlags::LISTENING;
    let families = [("10.0.0.1", "10.0.0.2", "10.0.0.9"), ("fd00::1", "fd00::2", "fd00::9")];
    let table = b.maps.open_tuples().unwrap();
    for (us, peer, other) in families.map(|(a, b, c)| (addr(a), addr(b), addr(c))) {
        b.maps.own(OwnKey { vlan: 0, addr: us, port: 80 }, none).unwrap();
        b.maps.own(OwnKey { vlan: 7, addr: us, port: 81 }, none).unwrap();
        let opened = OwnFlow { local: OwnKey { vlan: 0, addr: us, port: 20_400 }, remote: peer, remote_port: 5000 };
        assert_eq!(table.claim(&opened), Claim::New);
        table.enter(&opened, Phase::Synchronized);
        let tcp = |dst: Addr, vlan, port, flags| frame(vlan, &packet(peer, dst, 6, &segment(5000, port, flags)));
        let v = |f: &[u8]| b.verdict(f);

        assert_eq!(v(&tcp(us, None, 80, Flags::SYN)), Verdict::Listen);
        assert_eq!(v(&tcp(us, None, 80, Flags::ACK)), Verdict::Listen);
        // Another port, another address with the same port (transit, containers), another VLAN.
        assert_eq!(v(&tcp(us, None, 22, Flags::SYN)), Verdict::Pass);
        assert_eq!(v(&tcp(other, None, 80, Flags::SYN)), Verdict::Pass);
        assert_eq!(v(&tcp(us, Some(7), 80, Flags::SYN)), Verdict::Pass);
        assert_eq!(v(&tcp(us, Some(7), 81, Flags::SYN)), Verdict::Listen);
        assert_eq!(v(&tcp(us, None, 81, Flags::SYN)), Verdict::Pass);
        // All parts of the tuple count for what lanes have opened.
        let to = |from: Addr, dst: Addr, vlan, ports: [u16; 2]| {
            v(&frame(vlan, &packet(from, dst, 6, &segment(ports[0], ports[1], Flags::ACK))))
        };
        assert_eq!(to(peer, us, None, [5000, 20_400]), Verdict::Active);
        for (from, dst, vlan, ports) in [
            (other, us, None, [5000, 20_400]),
            (peer, other, None, [5000, 20_400]),
            (peer, us, Some(7), [5000, 20_400]),
            (peer, us, None, [5001, 20_400]),
            (peer, us, None, [5000, 20_401]),
        ] {
            assert_eq!(to(from, dst, vlan, ports), Verdict::Pass, "{from} {dst} {vlan:?} {ports:?}");
        }
        // Other protocols, and frames cut short.
        assert_eq!(v(&frame(None, &packet(peer, us, 17, &segment(5000, 80, Flags::SYN)))), Verdict::Pass);
        let whole = tcp(us, None, 80, Flags::SYN);
        for n in 14..whole.len().min(14 + if us.is_v4() { 40 } else { 60 }) {
            assert_eq!(v(&whole[..n]), Verdict::Pass, "{n} bytes");
        }
        // ICMP errors about what we sent from an owned port or on a connection that we opened; not about others; not echo.
        for (sport, ours) in [(80, Verdict::Listen), (20_400, Verdict::Active), (22, Verdict::Pass)] {
            let quoted = packet(us, peer, 6, &segment(sport, 5000, Flags::ACK));
            let mut error = vec![0; 8 + quoted.len()];
            let protocol = if us.is_v4() {
                icmpv4::emit_too_big(&mut error, 1400, &quoted);
                1
            } else {
                icmpv6::emit_too_big(peer, us, &mut error, 1400, &quoted);
                58
            };
            assert_eq!(v(&frame(None, &packet(other, us, protocol, &error))), ours, "{sport}");
        }
        let echo = if us.is_v4() { (1, [8, 0, 0, 0, 0, 1, 0, 1]) } else { (58, [128, 0, 0, 0, 0, 1, 0, 1]) };
        assert_eq!(v(&frame(None, &packet(peer, us, echo.0, &[&echo.1[..], &[0; 60]].concat()))), Verdict::Pass);
    }
    assert_eq!(b.verdict(&link(None, ethernet::ARP).into_iter().chain([0; 46]).collect::<Vec<u8>>()), Verdict::Pass);
}

#[test]
fn fragments_follow_their_first() {
    let Some(b) = Bench::new() else { return };
    let none = OwnFlags::LISTENING;
    let (us4, us6) = (addr("10.0.0.1"), addr("fd00::1"));
    for us in [us4, us6] {
        b.maps.own(OwnKey { vlan: 0, addr: us, port: 80 }, none).unwrap();
    }
    let v4 = |id: u16, offset: u16, more: bool, payload: &[u8]| {
        let mut p = packet(addr("10.0.0.2"), us4, 6, payload);
        p[4..6].copy_from_slice(&id.to_be_bytes());
        p[6..8].copy_from_slice(&((offset / 8) | ((more as u16) << 13)).to_be_bytes());
        frame(None, &p)
    };
    let v6 = |id: u32, offset: u16, more: bool, payload: &[u8]| {
        let mut fragment = vec![6, 0];
        fragment.extend((offset | more as u16).to_be_bytes());
        fragment.extend(id.to_be_bytes());
        fragment.extend(payload);
        frame(None, &packet(addr("fd00::2"), us6, 44, &fragment))
    };
    let first = segment(5000, 80, Flags::ACK);
    let foreign = segment(5000, 22, Flags::ACK);
    // Before its first fragment nobody knows whose it is: the kernel's.
    assert_eq!(b.verdict(&v4(1, 64, false, &[0; 40])), Verdict::Pass);
    assert_eq!(b.verdict(&v4(1, 0, true, &first)), Verdict::Listen);
    assert_eq!(b.verdict(&v4(1, 64, false, &[0; 40])), Verdict::Fragment);
    assert_eq!(b.verdict(&v4(2, 64, false, &[0; 40])), Verdict::Pass);
    assert_eq!(b.verdict(&v4(3, 0, true, &foreign)), Verdict::Pass);
    assert_eq!(b.verdict(&v4(3, 64, false, &[0; 40])), Verdict::Pass);
    assert_eq!(b.verdict(&v6(1, 64, false, &[0; 40])), Verdict::Pass);
    assert_eq!(b.verdict(&v6(1, 0, true, &first)), Verdict::Listen);
    assert_eq!(b.verdict(&v6(1, 64, false, &[0; 40])), Verdict::Fragment);
    assert_eq!(b.verdict(&v6(2, 64, false, &[0; 40])), Verdict::Pass);
    // An atomic fragment is a whole packet.
    assert_eq!(b.verdict(&v6(9, 0, false, &first)), Verdict::Listen);
    // Extension headers in front: destination options, then TCP; hop-by-hop, then a fragment.
    let options = [&[6u8, 0, 1, 4, 0, 0, 0, 0][..], &first].concat();
    assert_eq!(b.verdict(&frame(None, &packet(addr("fd00::2"), us6, 60, &options))), Verdict::Listen);
    let mut chained = vec![44, 0, 1, 4, 0, 0, 0, 0, 6, 0, 0, 1, 0, 0, 0, 77];
    chained.extend(&first);
    assert_eq!(b.verdict(&frame(None, &packet(addr("fd00::2"), us6, 0, &chained))), Verdict::Listen);
    assert_eq!(b.verdict(&v6(77, 96, false, &[0; 8])), Verdict::Fragment);
}

#[test]
fn the_kernel_keeps_the_connections_it_has() {
    let Some(b) = Bench::new() else { return };
    // A connection of the kernel's on loopback; the program is asked about its segments.
    for (ip, text) in [("127.0.0.1", "127.0.0.1:0"), ("::1", "[::1]:0")] {
        let Ok(listener) = std::net::TcpListener::bind(text) else {
            testing::skip(format_args!("no {ip} here"));
            continue;
        };
        let local = listener.local_addr().unwrap();
        let client = std::net::TcpStream::connect(local).unwrap();
        let (server, _) = listener.accept().unwrap();
        let (us, peer) = (addr(ip), addr(ip));
        let key = OwnKey { vlan: 0, addr: us, port: local.port() };
        let peer_port = client.local_addr().unwrap().port();
        let with = |port, flags| frame(None, &packet(peer, us, 6, &segment(port, local.port(), flags)));

        b.maps.own(key, OwnFlags::BESIDE_KERNEL).unwrap();
        assert_eq!(b.verdict(&with(peer_port, Flags::ACK)), Verdict::KernelFlow);
        assert_eq!(b.verdict(&with(peer_port, Flags::ACK | Flags::FIN)), Verdict::KernelFlow);
        // A SYN too: one four-tuple has one owner.
        assert_eq!(b.verdict(&with(peer_port, Flags::SYN)), Verdict::KernelFlow);
        // Another peer's segments are ours although the kernel listens there too.
        assert_eq!(b.verdict(&with(1, Flags::ACK)), Verdict::Listen);
        assert_eq!(b.verdict(&with(1, Flags::SYN)), Verdict::Listen);
        // Once the kernel holds nothing, nobody asks it.
        b.maps.own(key, OwnFlags::LISTENING).unwrap();
        assert_eq!(b.verdict(&with(peer_port, Flags::ACK)), Verdict::Listen);
        // Until it is known what a listener that has gone leaves behind, the kernel has what it knows, and new ones.
        b.maps.own(key, OwnFlags::CLOSING).unwrap();
        assert_eq!(b.verdict(&with(1, Flags::ACK)), Verdict::Listen);
        assert_eq!(b.verdict(&with(1, Flags::SYN)), Verdict::Pass);
        assert_eq!(b.verdict(&with(peer_port, Flags::ACK)), Verdict::KernelFlow);
        // Then only the connections that are left are ours. An ACK with a SYN cookie of the kernel's listener is not.
        b.maps.own(key, OwnFlags::DRAINING).unwrap();
        let left = OwnFlow { local: key, remote: peer, remote_port: 2 };
        b.maps.keep_flow(left).unwrap();
        for flags in [Flags::SYN, Flags::ACK, Flags::FIN | Flags::ACK, Flags::RST] {
            assert_eq!(b.verdict(&with(1, flags)), Verdict::Pass, "{flags:?}");
            assert_eq!(b.verdict(&with(peer_port, flags)), Verdict::Pass, "{flags:?}");
            assert_eq!(b.verdict(&with(2, flags)), Verdict::Listen, "{flags:?}");
        }
        b.maps.give_flow_back(left).unwrap();
        assert_eq!(b.verdict(&with(2, Flags::ACK)), Verdict::Pass);
        b.maps.disown(key).unwrap();
        assert_eq!(b.verdict(&with(peer_port, Flags::ACK)), Verdict::Pass);
        // What the kernel only remembers is not its own while we listen: not the SYN of the tuple, and not what follows.
        drop(server);
        drop(client);
        while io::netlink::kernel_flows(local.port(), |_| true).unwrap().live > 0 {
            std::thread::yield_now();
        }
        b.maps.own(key, OwnFlags::BESIDE_KERNEL).unwrap();
        for flags in [Flags::SYN, Flags::ACK, Flags::ACK | Flags::FIN, Flags::RST] {
            assert_eq!(b.verdict(&with(peer_port, flags)), Verdict::Listen, "{flags:?}");
        }
        // When we have stopped listening, it may be of the kernel's next server.
        b.maps.own(key, OwnFlags::CLOSING).unwrap();
        assert_eq!(b.verdict(&with(peer_port, Flags::ACK)), Verdict::KernelFlow);
    }
}

/// A port may be one of a listener's that has gone, and one that connections are opened from.
#[test]
fn a_port_that_drains_is_open_to_connections_from_it() {
    let Some(b) = Bench::new() else { return };
    let table = b.maps.open_tuples().unwrap();
    for (us, peer) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")].map(|(us, peer)| (addr(us), addr(peer))) {
        for (port, other) in [(20_003, Verdict::Active), (80, Verdict::Pass)] {
            let key = OwnKey { vlan: 0, addr: us, port };
            if other == Verdict::Active {
                let opened = OwnFlow { local: key, remote: peer, remote_port: 1 };
                assert_eq!(table.claim(&opened), Claim::New);
                table.enter(&opened, Phase::Synchronized);
            }
            let with = |remote, flags| b.verdict(&frame(None, &packet(peer, us, 6, &segment(remote, port, flags))));
            let error = |remote| {
                let quoted = packet(us, peer, 6, &segment(port, remote, Flags::ACK));
                let mut error = vec![0; 8 + quoted.len()];
                let protocol = if us.is_v4() { 1 } else { 58 };
                match us.is_v4() {
                    true => drop(icmpv4::emit_too_big(&mut error, 1400, &quoted)),
                    false => drop(icmpv6::emit_too_big(peer, us, &mut error, 1400, &quoted)),
                }
                b.verdict(&frame(None, &packet(peer, us, protocol, &error)))
            };
            b.maps.own(key, OwnFlags::DRAINING).unwrap();
            b.maps.keep_flow(OwnFlow { local: key, remote: peer, remote_port: 2 }).unwrap();
            // What answers, and what the peer opens at the same time.
            for flags in [Flags::SYN | Flags::ACK, Flags::ACK, Flags::FIN | Flags::ACK, Flags::RST, Flags::SYN] {
                assert_eq!(with(1, flags), other, "{port}, {flags:?}");
                assert_eq!(with(2, flags), Verdict::Listen, "{port}, {flags:?}");
            }
            assert_eq!((error(1), error(2)), (other, Verdict::Listen), "{port}");
            // While it is not known what is left, everything is ours but what opens a connection to nobody.
            b.maps.own(key, OwnFlags::CLOSING).unwrap();
            assert_eq!(with(1, Flags::SYN | Flags::ACK), Verdict::Listen, "{port}");
            assert_eq!(with(1, Flags::SYN), other, "{port}");
            b.maps.disown(key).unwrap();
        }
    }
}

#[test]
fn a_cookie_of_the_kernels_next_listener_is_the_kernels() {
    let Some(b) = Bench::new() else { return };
    in_a_namespace(|| {
        syn_cookies(2);
        for (ip, text) in [("127.0.0.1", "127.0.0.1:0"), ("::1", "[::1]:0")] {
            let listener = std::net::TcpListener::bind(text).unwrap();
            let local = listener.local_addr().unwrap();
            let client = std::net::TcpStream::connect(local).unwrap();
            let peer_port = client.local_addr().unwrap().port();
            // What came in the handshake, whose connections are gone without a trace.
            let (server, _) = listener.accept().unwrap();
            let (send, receive) = sequences(&client);
            sequences(&server);
            drop((client, server));
            let (us, peer) = (addr(ip), addr(ip));
            let of = |seq: u32, ack: u32, flags| {
                let mut tcp = segment(peer_port, local.port(), flags);
                tcp[4..8].copy_from_slice(&seq.to_be_bytes());
                tcp[8..12].copy_from_slice(&ack.to_be_bytes());
                tcp
            };
            let with = |seq, ack, flags| frame(None, &packet(peer, us, 6, &of(seq, ack, flags)));
            let key = OwnKey { vlan: 0, addr: us, port: local.port() };
            b.maps.own(key, OwnFlags::CLOSING).unwrap();
            assert_eq!(b.verdict(&with(send, receive, Flags::ACK)), Verdict::KernelFlow);
            assert_eq!(b.verdict(&with(send, receive, Flags::ACK | Flags::PSH)), Verdict::KernelFlow);
            // What is no cookie may be of a connection that a lane still has.
            assert_eq!(b.verdict(&with(send, receive ^ 1 << 20, Flags::ACK)), Verdict::Listen);
            assert_eq!(b.verdict(&with(send ^ 1 << 20, receive, Flags::ACK)), Verdict::Listen);
            assert_eq!(b.verdict(&with(send, receive, Flags::ACK | Flags::RST)), Verdict::Listen);
            // As is an ICMP error about such a segment.
            let quoted = |seq, ack| {
                let mut tcp = of(seq, ack, Flags::ACK);
                tcp[..4].rotate_left(2);
                packet(us, peer, 6, &tcp)
            };
            let error = match us.is_v4() {
                true => [&[3, 1, 0, 0, 0, 0, 0, 0][..], &quoted(send, receive)].concat(),
                false => [&[1, 0, 0, 0, 0, 0, 0, 0][..], &quoted(send, receive)].concat(),
            };
            let icmp = if us.is_v4() { 1 } else { 58 };
            assert_eq!(b.verdict(&frame(None, &packet(peer, us, icmp, &error))), Verdict::Listen);
            // Behind options, too.
            if !us.is_v4() {
                let options = [&[6u8, 0, 1, 4, 0, 0, 0, 0][..], &of(send, receive, Flags::ACK)].concat();
                assert_eq!(b.verdict(&frame(None, &packet(peer, us, 60, &options))), Verdict::KernelFlow);
            }
            b.maps.own(key, OwnFlags::BESIDE_KERNEL).unwrap();
            assert_eq!(b.verdict(&with(send, receive, Flags::ACK)), Verdict::Listen, "we listen");
            b.maps.disown(key).unwrap();
        }
    });
}

/// A fragment of `payload` from 10.0.0.2 to 10.0.0.1.
fn fragment4(protocol: u8, id: u16, offset: u16, more: bool, payload: &[u8]) -> Vec<u8> {
    let mut p = packet(addr("10.0.0.2"), addr("10.0.0.1"), protocol, payload);
    p[4..6].copy_from_slice(&id.to_be_bytes());
    p[6..8].copy_from_slice(&((offset / 8) | ((more as u16) << 13)).to_be_bytes());
    frame(None, &p)
}

/// The same from fd00::2 to fd00::1.
fn fragment6(protocol: u8, id: u32, offset: u16, more: bool, payload: &[u8]) -> Vec<u8> {
    let mut fragment = vec![protocol, 0];
    fragment.extend((offset | more as u16).to_be_bytes());
    fragment.extend(id.to_be_bytes());
    fragment.extend(payload);
    frame(None, &packet(addr("fd00::2"), addr("fd00::1"), 44, &fragment))
}

fn own_port_80(b: &Bench) {
    for us in ["10.0.0.1", "fd00::1"] {
        b.maps.own(OwnKey { vlan: 0, addr: addr(us), port: 80 }, OwnFlags::LISTENING).unwrap();
    }
}

#[test]
fn fragments_of_another_protocol_are_another_datagram() {
    let Some(b) = Bench::new() else { return };
    own_port_80(&b);
    let first = segment(5000, 80, Flags::ACK);
    assert_eq!(b.verdict(&fragment6(6, 9, 0, true, &first)), Verdict::Listen);
    assert_eq!(b.verdict(&fragment6(17, 9, 64, false, &[0; 40])), Verdict::Pass, "of a UDP datagram");
    assert_eq!(b.verdict(&fragment6(6, 9, 64, false, &[0; 40])), Verdict::Fragment);
    assert_eq!(b.verdict(&fragment4(6, 9, 0, true, &first)), Verdict::Listen);
    assert_eq!(b.verdict(&fragment4(17, 9, 64, false, &[0; 40])), Verdict::Pass, "of a UDP datagram");
}

#[test]
fn an_identification_that_is_used_again_by_the_kernels_datagram_is_the_kernels() {
    let Some(b) = Bench::new() else { return };
    own_port_80(&b);
    let (ours, other) = (segment(5000, 80, Flags::ACK), segment(5000, 22, Flags::ACK));
    for first in [fragment4(6, 1, 0, true, &other), fragment4(6, 1, 0, true, &other[..8])] {
        assert_eq!(b.verdict(&fragment4(6, 1, 0, true, &ours)), Verdict::Listen);
        assert_eq!(b.verdict(&fragment4(6, 1, 64, false, &[0; 40])), Verdict::Fragment);
        assert_eq!(b.verdict(&first), Verdict::Pass);
        assert_eq!(b.verdict(&fragment4(6, 1, 64, false, &[0; 40])), Verdict::Pass);
    }
    assert_eq!(b.verdict(&fragment6(6, 1, 0, true, &ours)), Verdict::Listen);
    assert_eq!(b.verdict(&fragment6(6, 1, 0, true, &other)), Verdict::Pass);
    assert_eq!(b.verdict(&fragment6(6, 1, 64, false, &[0; 40])), Verdict::Pass);
}

#[test]
fn what_is_remembered_of_a_first_fragment_ends() {
    // A life of nothing: whatever follows comes too late.
    let Some(b) = Bench::with(Setting { fragment_life: Duration::ZERO, ..Setting::default() }) else { return };
    own_port_80(&b);
    for n in 0..2u16 {
        if n == 1 {
            let local = OwnKey { vlan: 0, addr: addr("10.0.0.1"), port: 80 };
            b.maps.sends_fragments(OwnFlow { local, remote: addr("10.0.0.2"), remote_port: 5000 }).unwrap();
        }
        assert_eq!(b.verdict(&fragment4(6, n, 0, true, &segment(5000, 80, Flags::ACK))), Verdict::Listen);
        assert_eq!(b.verdict(&fragment4(6, n, 64, false, &[0; 40])), Verdict::Pass);
    }
}

#[test]
fn forged_first_fragments_do_not_push_out_those_of_a_connection() {
    let Some(b) = Bench::new() else { return };
    // An LRU map keeps the newest entries of each CPU apart, where other CPUs' entries do not push them out.
    stay_on_this_core();
    own_port_80(&b);
    let local = |us| OwnKey { vlan: 0, addr: addr(us), port: 80 };
    b.maps.sends_fragments(OwnFlow { local: local("10.0.0.1"), remote: addr("10.0.0.2"), remote_port: 5000 }).unwrap();
    b.maps.sends_fragments(OwnFlow { local: local("fd00::1"), remote: addr("fd00::2"), remote_port: 5000 }).unwrap();
    let first = segment(5000, 80, Flags::ACK);
    assert_eq!(b.verdict(&fragment4(6, 1, 0, true, &first)), Verdict::Listen);
    assert_eq!(b.verdict(&fragment6(6, 1, 0, true, &first)), Verdict::Listen);
    let stranger = segment(5001, 80, Flags::ACK);
    for id in 2..20_000u16 {
        b.verdict(&fragment4(6, id, 0, true, &stranger));
    }
    assert_eq!(b.verdict(&fragment4(6, 1, 64, false, &[0; 40])), Verdict::Fragment);
    assert_eq!(b.verdict(&fragment6(6, 1, 64, false, &[0; 40])), Verdict::Fragment);
    assert_eq!(b.verdict(&fragment4(6, 2, 64, false, &[0; 40])), Verdict::Pass, "4,096 strangers are remembered");
}

#[test]
fn another_kind_of_tag_is_another_link() {
    let Some(b) = Bench::new() else { return };
    let (us, peer) = (addr("10.0.0.1"), addr("10.0.0.2"));
    b.maps.own(OwnKey { vlan: 7, addr: us, port: 80 }, OwnFlags::LISTENING).unwrap();
    let mut f = frame(Some(7), &packet(peer, us, 6, &segment(5000, 80, Flags::SYN)));
    assert_eq!(b.verdict(&f), Verdict::Listen);
    f[12..14].copy_from_slice(&ethernet::SERVICE_VLAN.to_be_bytes());
    assert_eq!(b.verdict(&f), Verdict::Pass);
}

#[test]
fn what_no_socket_takes_passes_as_it_came() {
    // As on a queue that has no socket yet, or none any more. A tag in the frame and one beside it are two to the kernel.
    let Some(mut b) = Bench::with(Setting { beside: true, ..Setting::default() }) else { return };
    let (us, peer) = (addr("10.0.0.1"), addr("10.0.0.2"));
    b.maps.own(OwnKey { vlan: 7, addr: us, port: 80 }, OwnFlags::LISTENING).unwrap();
    let packet = packet(peer, us, 6, &segment(5000, 80, Flags::SYN));
    let (bare, tagged) = (frame(None, &packet), frame(Some(7), &packet));
    let beside = Some((0x8100, 7));
    assert_eq!(b.run(&bare, (0, 0), beside), (Verdict::Listen, Action::Pass, bare.clone()));
    b.listen(0);
    assert_eq!(b.run(&bare, (0, 0), beside), (Verdict::Listen, Action::Redirect, tagged.clone()));
    assert_eq!(b.run(&tagged, (0, 0), None), (Verdict::Listen, Action::Redirect, tagged));
    assert_eq!(b.run(&bare, (0, 0), None), (Verdict::Pass, Action::Pass, bare));
}

#[test]
fn a_source_route_is_the_kernels() {
    let Some(b) = Bench::new() else { return };
    own_port_80(&b);
    for (left, verdict) in [(1, Verdict::Pass), (0, Verdict::Listen)] {
        // A segment routing header: 24 bytes, TCP next.
        let mut srh = vec![6, 2, 4, left, 0, 0, 0, 0];
        srh.extend([0xfd; 16]);
        srh.extend(segment(5000, 80, Flags::SYN));
        let f = frame(None, &packet(addr("fd00::2"), addr("fd00::1"), 43, &srh));
        assert_eq!(b.verdict(&f), verdict, "{left} segments left");
    }
}

#[test]
fn frames_to_another_hardware_address_pass() {
    let Some(b) = Bench::new() else { return };
    own_port_80(&b);
    let mut f = frame(None, &packet(addr("10.0.0.2"), addr("10.0.0.1"), 6, &segment(5000, 80, Flags::SYN)));
    let ours: [u8; 6] = f[..6].try_into().unwrap();
    assert_eq!(b.verdict(&f), Verdict::Listen, "as long as no address is known");
    b.maps.set_mac(MacAddr(ours)).unwrap();
    assert_eq!(b.verdict(&f), Verdict::Listen);
    for at in 0..6 {
        f[at] ^= 4;
        assert_eq!(b.verdict(&f), Verdict::Pass, "byte {at} differs");
        f[at] ^= 4;
    }
    for group in [[0xff; 6], [0x01, 0, 0x5e, 0, 0, 1]] {
        f[..6].copy_from_slice(&group);
        assert_eq!(b.verdict(&f), Verdict::Pass, "{group:x?}");
    }
    // The interface's address changes.
    b.maps.set_mac(MacAddr([2, 9, 9, 9, 9, 9])).unwrap();
    f[..6].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
    assert_eq!(b.verdict(&f), Verdict::Listen);
    f[..6].copy_from_slice(&ours);
    assert_eq!(b.verdict(&f), Verdict::Pass);
}

#[test]
fn a_full_map_of_ports_says_so() {
    let Some(b) = Bench::new() else { return };
    let key = |n: u32| OwnKey { vlan: 0, addr: addr("10.0.0.1"), port: 1024 + n as u16 };
    for n in 0..io::bpf::MOST_OWNED {
        b.maps.own(key(n), OwnFlags::LISTENING).unwrap();
    }
    let error = b.maps.own(key(io::bpf::MOST_OWNED), OwnFlags::LISTENING).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    b.maps.disown(key(0)).unwrap();
    b.maps.own(key(io::bpf::MOST_OWNED), OwnFlags::LISTENING).unwrap();
}

#[test]
fn three_capabilities_are_enough() {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    // A thread's capabilities are its own.
    let answer = std::thread::spawn(|| {
        let three = CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::BPF;
        let sets = CapabilitySets { effective: three, permitted: three, inheritable: CapabilitySet::empty() };
        if let Err(e) = set_capabilities(None, sets) {
            testing::skip(format_args!("needs root ({e})"));
            return None;
        }
        let b = Bench::new()?;
        own_port_80(&b);
        Some(b.verdict(&frame(None, &packet(addr("10.0.0.2"), addr("10.0.0.1"), 6, &segment(5000, 80, Flags::SYN)))))
    });
    assert!(matches!(answer.join().unwrap(), None | Some(Verdict::Listen)));
}

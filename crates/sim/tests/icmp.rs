//! What a host that owns its addresses answers to packets that it does not understand.

use sim::{Host, HostConfig};
use wire::{Addr, Instant, MacAddr, ethernet, icmpv4, icmpv6, ipv4, ipv6};

const NOW: Instant = Instant::from_micros(1_000_000);
const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

fn addr(text: &str) -> Addr {
    text.parse::<std::net::IpAddr>().unwrap().into()
}

/// An IPv6 frame from fd00::9.
fn frame(host: &Host, to: (&str, MacAddr), next_header: u8, hop_limit: u8, body: &[u8]) -> Vec<u8> {
    let mut b = vec![0; 54];
    ethernet::emit(&mut b, to.1, PEER_MAC, None, ethernet::IPV6);
    let header =
        ipv6::Header { src: addr("fd00::9"), dst: addr(to.0), next_header, hop_limit, ..ipv6::Header::default() };
    header.emit(&mut b[14..], body.len());
    b.extend(body);
    assert_eq!(host.config.mac, MacAddr([2, 0, 0, 0, 0, 1]));
    b
}

/// The parameter problems that a frame calls forth: code and pointer.
fn problems(host: &mut Host, frame: Vec<u8>) -> Vec<(u8, u32)> {
    let parse = |f: Vec<u8>| {
        let eth = ethernet::Frame::parse(&f).unwrap();
        assert_eq!(eth.dst, PEER_MAC);
        let ip = ipv6::Packet::parse(eth.payload).unwrap();
        assert_eq!((ip.src, ip.dst), (addr("fd00::1"), addr("fd00::9")));
        let ip_len = ip.payload.len();
        assert!(40 + ip_len <= 1280);
        match icmpv6::Message::parse(ip.src, ip.dst, ip.payload) {
            Ok(icmpv6::Message::ParameterProblem { code, pointer, .. }) => (code, pointer),
            // What is quoted has no ports.
            Err(wire::Malformed::Truncated) if ip.payload[0] == 4 => {
                (ip.payload[1], u32::from_be_bytes(ip.payload[4..8].try_into().unwrap()))
            }
            other => panic!("{other:?}"),
        }
    };
    host.turn(NOW, vec![frame]).into_iter().map(parse).collect()
}

#[test]
fn headers_that_are_not_understood_are_named() {
    let mut host = Host::new(HostConfig::new(1));
    let us = ("fd00::1", host.config.mac);
    let all = ("ff02::1", MacAddr([0x33, 0x33, 0, 0, 0, 1]));
    let mut ask = |to, next, body: &[u8]| {
        let f = frame(&host, to, next, 64, body);
        problems(&mut host, f)
    };
    // RFC 8200 4: an unknown next header, named by the fixed header or by an extension header.
    assert_eq!(ask(us, 200, &[0; 16]), [(1, 6)]);
    assert_eq!(ask(us, 60, &[200, 0, 1, 4, 0, 0, 0, 0, 9, 9]), [(1, 40)]);
    // RFC 8200 4.1 and 4.4.
    assert_eq!(ask(us, 60, &[0, 0, 1, 4, 0, 0, 0, 0, 58, 0, 1, 4, 0, 0, 0, 0]), [(1, 40)]);
    assert_eq!(ask(us, 43, &[6, 0, 0, 1, 0, 0, 0, 0]), [(0, 42)]);
    // RFC 8200 4.2: unknown options.
    for (kind, alone, group) in [(0x1e, false, false), (0x5e, false, false), (0x9e, true, true), (0xde, true, false)] {
        let body = [59, 0, kind, 4, 0, 0, 0, 0];
        let expect = |answered| if answered { vec![(2, 42)] } else { vec![] };
        assert_eq!(ask(us, 0, &body), expect(alone), "{kind:x}");
        assert_eq!(ask(all, 0, &body), expect(group), "{kind:x} to all");
    }
    // RFC 4443 2.4 e: nothing about what came to a group's hardware address.
    assert_eq!(ask((us.0, all.1), 200, &[0; 16]), []);
    // Another host's.
    assert_eq!(ask(("fd00::2", us.1), 43, &[6, 0, 0, 1, 0, 0, 0, 0]), []);
    // As much is quoted as may be.
    assert_eq!(ask(us, 200, &[0; 1460]), [(1, 6)]);
}

#[test]
fn a_datagram_that_is_never_whole_is_reported() {
    let later = NOW.plus_micros(30_000_000);
    let mut host = Host::new(HostConfig::new(1));
    let us = host.config.mac;
    // The start of a segment from port 1000 to 80, more to follow.
    let segment = |len: usize| {
        let mut tcp = vec![0; len];
        tcp[..4].copy_from_slice(&[3, 232, 0, 80]);
        tcp[12] = 0x50;
        tcp
    };
    let v6 = frame(&host, ("fd00::1", us), 44, 64, &[&[6, 0, 0, 1, 0, 0, 0, 7][..], &segment(64)].concat());
    assert_eq!(host.turn(NOW, vec![v6.clone()]).len(), 0);
    let answer = host.turn(later, vec![]).remove(0);
    let ip = ipv6::Packet::parse(&answer[14..]).unwrap();
    let message = icmpv6::Message::parse(ip.src, ip.dst, ip.payload).unwrap();
    assert!(
        matches!(message, icmpv6::Message::TimeExceeded { code: 1, quoted } if quoted.src_port == 1000),
        "{message:?}"
    );
    assert_eq!(ip.payload[8..], v6[14..]);
    // A later fragment alone is not worth a word.
    let end = frame(&host, ("fd00::1", us), 44, 64, &[&[6, 0, 0, 8, 0, 0, 0, 8][..], &segment(64)].concat());
    assert_eq!(host.turn(later, vec![end]).len(), 0);
    assert_eq!(host.turn(later.plus_micros(30_000_000), vec![]).len(), 0);
    assert_eq!(host.stack.counters().dropped(stack::DropReason::FragmentTimeout), 2);

    let mut v4 = vec![0; 34];
    ethernet::emit(&mut v4, us, PEER_MAC, None, ethernet::IPV4);
    let ends = (addr("10.0.0.9"), addr("10.0.0.1"));
    ipv4::Header { src: ends.0, dst: ends.1, dont_fragment: false, ..Default::default() }.emit(&mut v4[14..], 64);
    v4[20] = 0x20;
    v4[24..26].fill(0);
    let sum = wire::checksum::sum(&v4[14..34]).finish();
    v4[24..26].copy_from_slice(&sum.to_be_bytes());
    v4.extend(segment(64));
    assert_eq!(host.turn(NOW, vec![v4.clone()]).len(), 0);
    let answer = host.turn(later.plus_micros(60_000_000), vec![]).remove(0);
    let ip = ipv4::Packet::parse(&answer[14..]).unwrap();
    assert_eq!((ip.src, ip.dst), (ends.1, ends.0));
    assert!(matches!(icmpv4::Message::parse(ip.payload), Ok(icmpv4::Message::TimeExceeded { code: 1, .. })));
    assert_eq!(ip.payload[8..], v4[14..]);
}

/// What fills a packet of the link is answered with as much.
#[test]
fn the_longest_echo_comes_back() {
    for mtu in [576, 1500, 9000] {
        let mut host = Host::new(HostConfig { mtu, ..HostConfig::new(1) });
        for v6 in [false, true] {
            let (from, to) = if v6 { ("fd00::9", "fd00::1") } else { ("10.0.0.9", "10.0.0.1") };
            let (from, to) = (addr(from), addr(to));
            let header = if v6 { 40 } else { 20 };
            let mut ask = vec![0; 14 + mtu as usize];
            let data: Vec<u8> = (0..mtu as usize - header - 8).map(|i| i as u8).collect();
            let (id, seq) = (7, 9);
            let ethertype = if v6 { ethernet::IPV6 } else { ethernet::IPV4 };
            ethernet::emit(&mut ask, host.config.mac, PEER_MAC, None, ethertype);
            if v6 {
                let ip = ipv6::Header { src: from, dst: to, next_header: ipv6::ICMPV6, ..ipv6::Header::default() };
                ip.emit(&mut ask[14..], 8 + data.len());
                icmpv6::Message::EchoRequest { id, seq, data: &data }.emit(from, to, &mut ask[54..]);
            } else {
                let ip = ipv4::Header { src: from, dst: to, protocol: ipv4::ICMP, ..ipv4::Header::default() };
                ip.emit(&mut ask[14..], 8 + data.len());
                icmpv4::Message::EchoRequest { id, seq, data: &data }.emit(&mut ask[34..]);
            }
            let answers = host.turn(NOW, vec![ask]);
            let [answer] = &answers[..] else { panic!("{} answers of {mtu}", answers.len()) };
            let body = &answer[14 + header..];
            let back = match v6 {
                true => {
                    matches!(icmpv6::Message::parse(to, from, body), Ok(icmpv6::Message::EchoReply { id: 7, seq: 9, data: d }) if d == data)
                }
                false => {
                    matches!(icmpv4::Message::parse(body), Ok(icmpv4::Message::EchoReply { id: 7, seq: 9, data: d }) if d == data)
                }
            };
            assert!(back && answer.len() == 14 + mtu as usize, "{mtu}");
        }
        assert_eq!(host.stack.counters().echoes, 2);
    }
}

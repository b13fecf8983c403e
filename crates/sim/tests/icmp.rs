//! What a host that owns its addresses answers to packets that it does not understand.

use sim::{Host, HostConfig};
use wire::{Addr, Instant, MacAddr, ethernet, icmpv6, ipv6};

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

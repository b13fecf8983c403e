//! Any bytes into every parser: nothing panics, nothing reads past its input, and what was parsed lies inside it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::{Addr, arp, ethernet, icmpv4, icmpv6, ipv4, ipv6, quoted::Quoted, tcp, udp};

fuzz_target!(|data: &[u8]| {
    if let Ok(frame) = ethernet::Frame::parse(data) {
        let p = frame.payload;
        let _ = arp::Packet::parse(p);
        if let Ok(ip) = ipv4::Packet::parse(p) {
            assert!(ip.header.len() + ip.payload.len() <= p.len());
            let _ = icmpv4::Message::parse(ip.payload);
            let _ = tcp::Segment::parse(ip.payload);
        }
        if let Ok(ip) = ipv6::Packet::parse(p) {
            assert!(ip.upper_offset + ip.payload.len() <= p.len());
            let _ = icmpv6::Message::parse(ip.src, ip.dst, ip.payload);
            let _ = tcp::Segment::parse(ip.payload);
        }
    }
    let (a, b) = (Addr::from_v4([10, 0, 0, 1]), Addr::from_v4([10, 0, 0, 2]));
    if let Ok(segment) = tcp::Segment::parse(data) {
        assert!(segment.payload.len() + 20 <= data.len());
        let _ = tcp::checksum_ok(a, b, data);
        let _ = tcp::is_pseudo_only(a, b, data);
    }
    let _ = Quoted::parse_v4(data);
    let _ = Quoted::parse_v6(data);
    let _ = udp::Header::parse(data);
    let _ = icmpv4::Message::parse(data);
    let _ = icmpv6::Message::parse(a, b, data);
    // Options survive being written again.
    if data.len() <= 40 {
        let options = tcp::Options::parse(data);
        let mut out = [0; 40];
        let _ = options.emit(&mut out, false);
    }
});

//! The sharing program over a table of frames (BPF_PROG_TEST_RUN): what is ours, what passes, and why.
//!
//! Needs CAP_BPF; says so and passes as skipped without.

use io::bpf::{Maps, OwnFlags, OwnKey, Program, VERDICTS, Verdict, steer};
use wire::tcp::{Flags, Header, Options};
use wire::{Addr, MacAddr, SeqNum, ethernet, icmpv4, icmpv6, ipv4, ipv6};

struct Bench {
    maps: Maps,
    program: Program,
}

impl Bench {
    fn new() -> Option<Bench> {
        let maps = match Maps::new(4) {
            Ok(maps) => maps,
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
                eprintln!("SKIPPED: no CAP_BPF here ({e})");
                return None;
            }
            Err(e) => panic!("maps: {e}"),
        };
        let program = Program::load_xdp("corelane", &steer(&maps), true).expect("the verifier accepts the program");
        Some(Bench { maps, program })
    }

    fn verdict(&self, frame: &[u8]) -> Verdict {
        let before = VERDICTS.map(|v| self.maps.verdict(v).unwrap());
        // No socket on the queue: whatever the program thinks, the frame passes.
        assert_eq!(self.program.run(frame).unwrap(), 2, "XDP_PASS");
        let after = VERDICTS.map(|v| self.maps.verdict(v).unwrap());
        let changed: Vec<Verdict> =
            (0..VERDICTS.len()).filter(|i| after[*i] != before[*i]).map(|i| VERDICTS[i]).collect();
        assert_eq!(changed.len(), 1, "one verdict a frame");
        changed[0]
    }
}

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
    for (us, peer, other) in families.map(|(a, b, c)| (addr(a), addr(b), addr(c))) {
        b.maps.own(OwnKey { vlan: 0, addr: us, port: 80 }, none).unwrap();
        b.maps.own(OwnKey { vlan: 7, addr: us, port: 81 }, none).unwrap();
        b.maps.set_active(0, us, (20_000, 20_999)).unwrap();
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
        // The active range and its edges.
        for (port, verdict) in
            [(19_999, Verdict::Pass), (20_000, Verdict::Active), (20_999, Verdict::Active), (21_000, Verdict::Pass)]
        {
            assert_eq!(v(&tcp(us, None, port, Flags::SYN | Flags::ACK)), verdict, "{port}");
        }
        assert_eq!(v(&tcp(other, None, 20_500, Flags::ACK)), Verdict::Pass);
        // Other protocols, and frames cut short.
        assert_eq!(v(&frame(None, &packet(peer, us, 17, &segment(5000, 80, Flags::SYN)))), Verdict::Pass);
        let whole = tcp(us, None, 80, Flags::SYN);
        for n in 14..whole.len().min(14 + if us.is_v4() { 40 } else { 60 }) {
            assert_eq!(v(&whole[..n]), Verdict::Pass, "{n} bytes");
        }
        // ICMP errors about what we sent from an owned port or the active range; not about others; not echo.
        for (sport, ours) in [(80, Verdict::Listen), (20_500, Verdict::Active), (22, Verdict::Pass)] {
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
            eprintln!("SKIPPED: no {ip} here");
            continue;
        };
        let local = listener.local_addr().unwrap();
        let client = std::net::TcpStream::connect(local).unwrap();
        let (server, _) = listener.accept().unwrap();
        let (us, peer) = (addr(ip), addr(ip));
        let key = OwnKey { vlan: 0, addr: us, port: local.port() };
        let peer_port = client.local_addr().unwrap().port();
        let with = |port, flags| frame(None, &packet(peer, us, 6, &segment(port, local.port(), flags)));

        b.maps.own(key, OwnFlags { kernel_may_hold: true, draining: false }).unwrap();
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
        // A listener that has gone leaves its connections behind, and only those.
        b.maps.own(key, OwnFlags::DRAINING).unwrap();
        assert_eq!(b.verdict(&with(1, Flags::ACK)), Verdict::Listen);
        assert_eq!(b.verdict(&with(1, Flags::SYN)), Verdict::Pass);
        assert_eq!(b.verdict(&with(peer_port, Flags::ACK)), Verdict::KernelFlow);
        b.maps.disown(key).unwrap();
        assert_eq!(b.verdict(&with(peer_port, Flags::ACK)), Verdict::Pass);
        // What the kernel only remembers is not its own while we listen: not the SYN of the tuple, and not what follows.
        drop(server);
        drop(client);
        while io::netlink::kernel_flows(local.port(), |_| true).unwrap().live > 0 {
            std::thread::yield_now();
        }
        b.maps.own(key, OwnFlags { kernel_may_hold: true, draining: false }).unwrap();
        for flags in [Flags::SYN, Flags::ACK, Flags::ACK | Flags::FIN, Flags::RST] {
            assert_eq!(b.verdict(&with(peer_port, flags)), Verdict::Listen, "{flags:?}");
        }
    }
}

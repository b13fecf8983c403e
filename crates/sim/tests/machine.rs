//! A machine spoken to in bare IP packets: instants, determinism, both families.

use protocol::Endpoint;
use sim::{Machine, MachineConfig};
use socket::{Errno, ListenOptions, SockId, bits};
use wire::tcp::{Flags, Header, Options, Segment, fill_checksum};
use wire::{Addr, Instant, SeqNum, ipv4, ipv6};

const PORT: u16 = 8080;
const PEER_PORT: u16 = 5555;

/// A peer in one family, which acknowledges what it is told to.
struct Peer {
    ours: Addr,
    theirs: Addr,
    seq: u32,
    ack: u32,
}

impl Peer {
    fn v4() -> Peer {
        Peer { ours: Addr::from_v4([192, 0, 2, 1]), theirs: Addr::from_v4([192, 168, 0, 1]), seq: 1000, ack: 0 }
    }

    fn v6() -> Peer {
        let at = |text: &str| Addr::from(text.parse::<core::net::IpAddr>().unwrap());
        Peer { ours: at("2001:db8::1"), theirs: at("fd3d::1"), seq: 1000, ack: 0 }
    }

    fn packet(&self, flags: Flags, payload: &[u8]) -> Vec<u8> {
        let mut tcp = vec![0; 60];
        let syn = flags.contains(Flags::SYN);
        let options = Options { mss: syn.then_some(1000), ..Options::default() };
        let (seq, ack) = (SeqNum(self.seq), SeqNum(self.ack));
        let header =
            Header { src_port: PEER_PORT, dst_port: PORT, seq, ack, flags, window: 60_000, urgent: 0, options };
        let len = header.emit(&mut tcp, syn);
        tcp.truncate(len);
        tcp.extend(payload);
        fill_checksum(self.ours, self.theirs, &mut tcp);
        let mut ip = vec![0; 40];
        let len = match self.ours.is_v4() {
            true => ipv4::Header { src: self.ours, dst: self.theirs, ..Default::default() }.emit(&mut ip, tcp.len()),
            false => {
                let header =
                    ipv6::Header { src: self.ours, dst: self.theirs, next_header: ipv4::TCP, ..Default::default() };
                header.emit(&mut ip, tcp.len())
            }
        };
        ip.truncate(len);
        ip.extend(tcp);
        ip
    }

    /// An accepted connection.
    fn open(&mut self, m: &mut Machine) -> SockId {
        let v6 = !self.ours.is_v4();
        let listener = m.sockets().socket(v6).unwrap();
        m.sockets().bind(listener, Endpoint { addr: self.theirs, port: PORT }).unwrap();
        m.sockets().listen(listener, ListenOptions { backlog: 4 }).unwrap();
        m.settle();
        assert_eq!(m.sockets().listen_result(listener), Some(Ok(())));
        assert_eq!(m.sockets().accept(listener), Err(Errno::EAGAIN));
        m.inject(&self.packet(Flags::SYN, b""));
        let sent = all(m);
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0].flags, Flags::SYN | Flags::ACK);
        (self.seq, self.ack) = (self.seq + 1, sent[0].seq.wrapping_add(1));
        m.inject(&self.packet(Flags::ACK, b""));
        let (id, from) = m.sockets().accept(listener).unwrap();
        assert_eq!(from, Endpoint { addr: self.ours, port: PEER_PORT });
        m.settle();
        id
    }
}

#[derive(Debug, PartialEq)]
struct Sent {
    at: Instant,
    flags: Flags,
    seq: u32,
    ack: u32,
    payload: Vec<u8>,
}

/// Everything sent since the last call; only TCP is ever seen.
fn all(m: &mut Machine) -> Vec<Sent> {
    let mut out = Vec::new();
    while let Some((at, packet)) = m.pop() {
        let tcp = match packet[0] >> 4 {
            4 => ipv4::Packet::parse(&packet).unwrap().payload,
            _ => &packet[40..],
        };
        let s = Segment::parse(tcp).unwrap();
        out.push(Sent { at, flags: s.flags, seq: s.seq.0, ack: s.ack.0, payload: s.payload.to_vec() });
    }
    out
}

#[test]
fn bytes_go_both_ways_in_both_families_without_a_question_for_a_neighbour() {
    for mut peer in [Peer::v4(), Peer::v6()] {
        let mut m = Machine::new(MachineConfig::default());
        let id = peer.open(&mut m);
        assert!(all(&mut m).is_empty());
        m.inject(&peer.packet(Flags::PSH | Flags::ACK, b"ping"));
        assert_eq!(m.sockets().readiness(id).unwrap() & bits::IN, bits::IN);
        let mut buf = [0; 8];
        assert_eq!(m.sockets().read(id, &mut buf), Ok(4));
        assert_eq!(&buf[..4], b"ping");
        m.sockets().write(id, b"pong", false).unwrap();
        m.settle();
        let info = m.info(id).unwrap();
        assert_eq!((info.bytes_received, info.unacked_bytes), (4, 4));
        let last = all(&mut m).pop().unwrap();
        assert_eq!((last.at, last.payload.as_slice(), last.ack), (m.now(), &b"pong"[..], peer.seq + 4));
    }
}

#[test]
fn each_timer_runs_at_its_own_instant() {
    let mut peer = Peer::v4();
    let mut m = Machine::new(MachineConfig::default());
    let id = peer.open(&mut m);
    m.sockets().write(id, b"lost", false).unwrap();
    m.settle();
    let start = m.now();
    let far = start.plus_micros(10_000_000);
    assert!(m.next_deadline().unwrap() <= start.plus_micros(1_000_000));
    m.advance_to(far);
    assert_eq!(m.now(), far);
    // RFC 6298 5.5: each retransmission waits twice as long as the one before.
    let again: Vec<_> = all(&mut m).into_iter().filter(|s| s.payload == b"lost").collect();
    assert!(again.len() >= 4, "{again:?}");
    let gaps: Vec<_> = again.windows(2).map(|w| w[1].at.micros_since(w[0].at)).collect();
    for pair in gaps.windows(2).skip(1) {
        assert!(pair[1].abs_diff(2 * pair[0]) <= 4_000, "{gaps:?}");
    }
    // The clock never goes back.
    m.advance_to(start);
    assert_eq!(m.now(), far);
}

#[test]
fn one_long_step_is_many_short_ones_and_a_seed_is_a_run() {
    let run = |seed: u64, step: u64| {
        let mut peer = Peer::v4();
        let mut m = Machine::new(MachineConfig { seed, ..MachineConfig::default() });
        let id = peer.open(&mut m);
        m.sockets().write(id, &[7; 5000], false).unwrap();
        m.settle();
        let end = m.now().plus_micros(30_000_000);
        while m.now() < end {
            m.advance_to(m.now().plus_micros(step).min(end));
        }
        all(&mut m)
    };
    let long = run(1, u64::MAX / 2);
    assert!(long.len() > 8);
    assert_eq!(long, run(1, 777));
    assert_ne!(long[0].seq, run(2, 777)[0].seq);
}

#[test]
fn what_is_no_ip_packet_is_dropped() {
    let mut m = Machine::new(MachineConfig::default());
    for packet in [&b""[..], b"\0", b"\x50 garbage", b"\x45", b"\x60"] {
        m.inject(packet);
    }
    assert_eq!(m.pop(), None);
    assert_eq!(m.next_sent(), None);
}

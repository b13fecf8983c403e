//! Frames of other lanes that come by this one's port: what belongs to no connection goes to the lane that its tuple names,
//! and nobody is asked about what does.

mod common;

use std::collections::HashSet;
use std::sync::LazyLock;
use std::time::Duration;

use common::*;
use protocol::{CloseMode, Job};
use stack::{Asked, DropReason, FlowKey, InterfaceId, OtherLanes, Sought, Stack, Steering};
use wire::burst::{RxBurst, RxChecksum, RxFrame};
use wire::tcp::Options;
use wire::{MacAddr, arp, ethernet, ipv4};

struct Burst(Vec<Vec<u8>>);

impl RxBurst for Burst {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn frame(&self, index: usize) -> RxFrame<'_> {
        RxFrame::new(&self.0[index], RxChecksum::Unknown)
    }
}

/// Three other lanes.
struct Others {
    when: Asked,
    steering: Steering,
    asked: Vec<usize>,
    /// How often about what was put together here.
    whole: usize,
    /// Index, lane and what is said of the checksum.
    given: Vec<(usize, u16, RxChecksum)>,
}

impl OtherLanes for Others {
    fn asked(&self) -> Asked {
        self.when
    }

    fn came_by(&self) -> Option<u16> {
        Some(0)
    }

    fn take(&mut self, stack: &Stack, index: usize, frame: RxFrame, sought: Sought) -> bool {
        self.asked.push(index);
        self.whole += (sought == Sought::Reassembled) as usize;
        let lane = self.steering.named_lane(frame.data).unwrap_or(0);
        let theirs = lane != 0 && (sought == Sought::InVain || !stack.serves(InterfaceId(0), frame.data));
        // Fragments stay, as if they were this lane's.
        let fragment = ipv4::Packet::parse(&frame.data[14..]).is_ok_and(|ip| ip.is_fragment());
        if theirs && !fragment {
            self.given.push((index, lane, frame.checksum));
        }
        theirs && !fragment
    }
}

fn others(when: Asked) -> Others {
    Others { when, steering: Steering::spread(4), asked: Vec::new(), whole: 0, given: Vec::new() }
}

/// The lane of a peer's segments.
fn lane(p: &Peer) -> u16 {
    // Its table takes long to make, and ports are looked for by the thousand.
    static STEERING: LazyLock<Steering> = LazyLock::new(|| Steering::spread(4));
    STEERING.lane_of(p.addr, ours(), p.port, p.local_port)
}

/// The first port of a peer from `from` on whose lane `is` so.
fn port(from: u16, is: impl Fn(u16) -> bool) -> u16 {
    (from..).find(|port| is(lane(&Peer::new(9, *port)))).unwrap()
}

fn receive(b: &mut Bench, others: &mut Others, frames: Vec<Vec<u8>>) -> Vec<Sent> {
    let interface = b.host.interface();
    b.host.stack.receive_own(b.now, interface, &Burst(frames), others);
    b.turn(Vec::new())
}

#[test]
fn what_is_unknown_goes_to_its_lane_and_nothing_else() {
    let mut b = Bench::listening(512, &[], |_| ());
    let syns: Vec<Peer> = (0..400).map(|n| Peer::new(9, 20_000 + n)).collect();
    let of = |n: u16| syns.iter().filter(|p| lane(p) == n).count();
    assert!((0..4).all(|n| of(n) > 50));
    let mut all = others(Asked::Unknown);
    let (mut answered, mut given) = (HashSet::new(), [0; 4]);
    for p in &syns {
        let syn = b.frame(p, SYN, &[], usual());
        let sent = receive(&mut b, &mut all, vec![syn]);
        answered.extend(sent.iter().map(|s| s.dst_port));
    }
    for (_, lane, checksum) in &all.given {
        given[*lane as usize] += 1;
        // It was summed here.
        assert_eq!(*checksum, RxChecksum::Verified);
    }
    assert_eq!(given, [0, of(1), of(2), of(3)]);
    assert_eq!(answered, syns.iter().filter(|p| lane(p) == 0).map(|p| p.port).collect());
    // Nobody counts what is another's.
    let c = b.host.stack.counters();
    assert_eq!((c.frames_in, c.segments_in), (of(0) as u64, of(0) as u64));
}

#[test]
fn nobody_is_asked_about_a_connection_that_is_known() {
    let mut b = Bench::listening(16, &[], |_| ());
    // Its tuple names another lane: it was given to this one.
    let p = b.establish(9, port(30_000, |lane| lane != 0), usual());
    let foreign = Peer::new(9, port(40_000, |lane| lane != 0));
    let known = b.frame(&p, ACK, b"text", Options::default());
    let strange = b.frame(&foreign, SYN, &[], usual());
    let mut o = others(Asked::Unknown);
    receive(&mut b, &mut o, vec![known.clone(), strange.clone()]);
    assert_eq!((&o.asked[..], o.given.len(), &b.bytes[..]), (&[1][..], 1, &b"text"[..]));
    // Nor does what came before in a burst change whose it is.
    let mut o = others(Asked::Unknown);
    receive(&mut b, &mut o, vec![strange.clone(), known.clone(), strange.clone()]);
    assert_eq!((&o.asked[..], o.given.len()), (&[0, 2][..], 2));
    // Uncommon frames are asked about, and the connection is looked for then: here with an option (a NOP, and the list's end).
    let (head, text) = known.split_at(34);
    let mut optional = [head, &[1, 0, 0, 0], text].concat();
    optional[14] = 0x46;
    let length = u16::from_be_bytes([optional[16], optional[17]]) + 4;
    optional[16..18].copy_from_slice(&length.to_be_bytes());
    optional[24..26].fill(0);
    let sum = wire::checksum::sum(&optional[14..38]).finish();
    optional[24..26].copy_from_slice(&sum.to_be_bytes());
    let segments = b.host.stack.counters().segments_in;
    let mut o = others(Asked::Unknown);
    receive(&mut b, &mut o, vec![optional]);
    assert_eq!((&o.asked[..], o.given.len(), b.host.stack.counters().segments_in), (&[0][..], 0, segments + 1));
    // Where all are asked about, it is looked for then.
    let mut o = others(Asked::First);
    receive(&mut b, &mut o, vec![known.clone(), strange.clone()]);
    assert_eq!((&o.asked[..], o.given.len()), (&[0, 1][..], 1));
    let mut o = others(Asked::Never);
    let sent = receive(&mut b, &mut o, vec![strange]);
    assert_eq!((o.asked.len(), sent[0].flags), (0, SYN | ACK));
}

/// A frame's packet in two fragments, of which the first has the header whole.
fn fragments(frame: &[u8], id: u16) -> Vec<Vec<u8>> {
    let ip = ipv4::Packet::parse(&frame[14..]).unwrap();
    let header = ((ip.payload[12] >> 4) as usize * 4).next_multiple_of(8);
    let (head, tail) = ip.payload.split_at(header);
    let parts = [(head, 0x2000), (tail, header as u16 / 8)];
    let fragment = |(text, offset): (&[u8], u16)| {
        let mut b = [&frame[..34], text].concat();
        let header = ipv4::Header { src: ip.src, dst: ip.dst, protocol: ip.protocol, ..ipv4::Header::default() };
        header.emit(&mut b[14..], text.len());
        b[18..20].copy_from_slice(&id.to_be_bytes());
        b[20..22].copy_from_slice(&offset.to_be_bytes());
        b[24..26].fill(0);
        let sum = wire::checksum::sum(&b[14..34]).finish();
        b[24..26].copy_from_slice(&sum.to_be_bytes());
        b
    };
    parts.map(fragment).to_vec()
}

#[test]
fn what_is_put_together_here_is_asked_about() {
    for when in [Asked::Never, Asked::Unknown, Asked::First] {
        let mut b = Bench::listening(16, &[], |_| ());
        // Its tuple names another lane: it was given to this one, and stays.
        let p = b.establish(9, port(30_000, |lane| lane != 0), usual());
        let known = b.frame(&p, ACK, b"a text in two", Options::default());
        let next = b.frame(&Peer { seq: p.seq + 13, ..p }, ACK, b", and one", Options::default());
        let mut o = others(when);
        let burst = [fragments(&known, 7), vec![next]].concat();
        receive(&mut b, &mut o, burst);
        assert_eq!((&b.bytes[..], o.whole, o.given.len()), (&b"a text in two, and one"[..], 1, 0), "{when:?}");
        // Nobody's here: the segment goes where its tuple says, its fragments and all else of the burst are taken.
        let strange = Peer::new(9, port(40_000, |lane| lane != 0));
        let own = Peer::new(9, port(50_000, |lane| lane == 0));
        let syn = |b: &Bench, p| b.frame(p, SYN, b"text", usual());
        let mut o = others(when);
        let burst = [fragments(&syn(&b, &strange), 8), vec![syn(&b, &own)]].concat();
        let frames = b.host.stack.counters().frames_in;
        let sent = receive(&mut b, &mut o, burst);
        let answered: Vec<u16> = sent.iter().filter(|s| s.flags == SYN | ACK).map(|s| s.dst_port).collect();
        assert_eq!(answered, [own.port], "{when:?}");
        assert_eq!((o.whole, &o.given[..]), (1, &[(1, lane(&strange), RxChecksum::Unknown)][..]), "{when:?}");
        assert_eq!(b.host.stack.counters().frames_in, frames + 3, "{when:?}");
        // This lane's.
        let mut o = others(when);
        let frames = fragments(&syn(&b, &Peer::new(9, port(60_000, |lane| lane == 0))), 9);
        assert_eq!((receive(&mut b, &mut o, frames).len(), o.whole, o.given.len()), (1, 1, 0), "{when:?}");
        assert_eq!(b.host.stack.counters().dropped(DropReason::NoSocket), 0);
    }
}

/// Who sends nothing but fragments makes another thread no work for each of them.
#[test]
fn who_sends_fragments_is_told_of_now_and_then() {
    let mut b = Bench::listening(64, &[], |_| ());
    let peers: Vec<Peer> = (0..20).map(|n| b.establish(9 + n / 4, 30_000 + n as u16, usual())).collect();
    let burst = |b: &Bench, peers: &[Peer]| -> Vec<Vec<u8>> {
        let whole = |n: usize, p: &Peer| fragments(&b.frame(p, ACK, b"some text", Options::default()), n as u16);
        peers.iter().enumerate().flat_map(|(n, p)| whole(n, p)).collect()
    };
    let told = |b: &mut Bench, frames: Vec<Vec<u8>>| {
        b.turn(frames);
        let mut ports = Vec::new();
        b.host.stack.take_fragmenting(|key| ports.push(key.remote_port));
        ports
    };
    let one = burst(&b, &peers[..1]);
    assert_eq!(told(&mut b, one.clone()), [30_000]);
    for _ in 0..100 {
        assert_eq!(told(&mut b, one.clone()), [0; 0], "it was told of");
    }
    let all = burst(&b, &peers);
    assert_eq!(told(&mut b, all.clone()), Vec::from_iter(30_001..30_016), "sixteen in all");
    assert_eq!(told(&mut b, all[32..].to_vec()), [0; 0]);
    b.wait(Duration::from_millis(100));
    assert_eq!(told(&mut b, all[32..].to_vec()), Vec::from_iter(30_016..30_020));
    assert_eq!(told(&mut b, one), [30_000], "the program may have forgotten it");
    // One peer with many connections, and another one.
    let mut peers: Vec<Peer> = (0..16).map(|n| b.establish(30, 40_000 + n, usual())).collect();
    peers.push(b.establish(31, 50_000, usual()));
    b.wait(Duration::from_millis(100));
    let all = burst(&b, &peers);
    assert_eq!(told(&mut b, all), [40_000, 40_001, 40_002, 40_003, 50_000]);
}

#[test]
fn an_ended_connection_may_have_come_back_elsewhere() {
    let mut b = Bench::listening(16, &[], |_| ());
    let mut p = b.establish(9, port(30_000, |lane| lane == 0), usual());
    let conn = b.accepted[0];
    let sent = b.job(Job::Close { conn, mode: CloseMode::Graceful });
    p.answer(&sent[0]);
    b.send(&p, ACK | FIN, &[]);
    assert_eq!(b.host.stack.time_waits(), 1);
    let again = b.frame(&p, ACK | FIN, &[], Options::default());
    let mut o = others(Asked::Unknown);
    let sent = receive(&mut b, &mut o, vec![again]);
    // It is not theirs either.
    assert_eq!((&o.asked[..], o.given.len(), sent.len()), (&[0][..], 0, 1));
}

#[test]
fn uncommon_frames_are_asked_about_and_damaged_ones_counted() {
    let mut b = Bench::listening(16, &[], |_| ());
    let mut claim = vec![0; 60];
    let at = ethernet::emit(&mut claim, b.host.config.mac, PEER_MAC, None, ethernet::ARP);
    arp::Packet {
        op: arp::Op::Request,
        sender_mac: PEER_MAC,
        sender_ip: peer(9).v4_octets(),
        target_mac: MacAddr([0; 6]),
        target_ip: ours().v4_octets(),
    }
    .emit(&mut claim[at..]);
    // Of this lane and common, but for a byte of its text.
    let own = Peer::new(9, port(50_000, |lane| lane == 0));
    let mut damaged = b.frame(&own, ACK, b"text", Options::default());
    *damaged.last_mut().unwrap() ^= 1;
    let mut o = others(Asked::Unknown);
    receive(&mut b, &mut o, vec![claim, damaged]);
    assert_eq!(o.asked, [0]);
    assert_eq!(b.host.stack.counters().dropped(DropReason::TcpChecksum), 1);
    assert_eq!(b.host.stack.counters().frames_in, 2);
}

/// Of several lanes that listen each has its share of connections, and always the same.
#[test]
fn lanes_share_connections_evenly() {
    let b = Bench::listening(64, &[], |_| ());
    let key = |port| FlowKey {
        interface: InterfaceId(0),
        local: ours(),
        remote: peer(9),
        local_port: PORT,
        remote_port: port,
    };
    for lanes in [1, 2, 3, 7] {
        let mut share = vec![0; lanes];
        for port in 0..7_000 {
            let lane = b.host.stack.choose(&key(port), lanes);
            assert_eq!(b.host.stack.choose(&key(port), lanes), lane);
            share[lane] += 1;
        }
        let fair = 7_000 / lanes;
        assert!(share.iter().all(|n| *n > fair * 4 / 5 && *n < fair * 6 / 5 + 1), "{share:?}");
    }
    assert_eq!(b.host.stack.choose(&key(1), 0), 0);
}

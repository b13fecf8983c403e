//! A host with two interfaces, the second with VLAN tag 7: what leaves by which, and what each hears.

mod common;
use core::time::Duration;

use common::*;
use protocol::{CloseMode, ConnId, Endpoint, Failure, Job, Token};
use sim::LinkConfig;
use stack::{DropReason, InterfaceId, Route};
use wire::tcp::{Flags, Header, Options};
use wire::{Addr, MacAddr, SeqNum, ethernet, ipv4};

const MAC_B: MacAddr = MacAddr([2, 0, 0, 0, 7, 1]);
const VLAN: u16 = 7;

/// A host that listens, with a second interface of this address.
fn bench(addr: [u8; 4], prefix: u8) -> Bench {
    let link = LinkConfig { addresses: vec![(addr.into(), prefix)], mac: MAC_B, vlan: Some(VLAN) };
    Bench::listening(10, &[], |c| c.links = vec![link])
}

/// The second interface's peer at the other end of a connection.
struct Far {
    src: Addr,
    dst: Addr,
    seq: u32,
    ack: u32,
}

impl Far {
    fn new(src: [u8; 4], dst: [u8; 4]) -> Far {
        Far { src: Addr::from_v4(src), dst: Addr::from_v4(dst), seq: 1000, ack: 0 }
    }

    fn frame(&self, seq: u32, flags: Flags, payload: &[u8]) -> Vec<u8> {
        let header = Header {
            src_port: 9000,
            dst_port: PORT,
            seq: SeqNum(seq),
            ack: SeqNum(if flags.contains(ACK) { self.ack } else { 0 }),
            flags,
            window: 60000,
            urgent: 0,
            options: Options::default(),
        };
        let mut buf = vec![0; 18 + 20 + 60 + payload.len()];
        let at = ethernet::emit(&mut buf, MAC_B, PEER_MAC, Some(VLAN), ethernet::IPV4);
        let tcp = at + 20;
        let end = tcp + header.emit(&mut buf[tcp..], false) + payload.len();
        buf[end - payload.len()..end].copy_from_slice(payload);
        ipv4::Header { src: self.src, dst: self.dst, ..Default::default() }.emit(&mut buf[at..], end - tcp);
        wire::tcp::fill_checksum(self.src, self.dst, &mut buf[tcp..end]);
        buf.truncate(end);
        buf
    }

    /// Sends a SYN and reads the SYN/ACK.
    fn begin(&mut self, b: &mut Bench) {
        let sent = b.turn_all(vec![vec![], vec![self.frame(self.seq, SYN, b"")]]);
        let [synack] = &sent[1][..] else { panic!("{sent:x?}") };
        self.ack = u32::from_be_bytes(synack[38 + 4..38 + 8].try_into().unwrap()) + 1;
        self.seq += 1;
    }
}

/// A connection of the first interface ends while it is on that one's lists, and one of the second interface has its number.
/// What leaves by the first, where that one takes frames or not, and how often the second's peer has the answer.
fn by_each(takes: bool) -> (Vec<Vec<u8>>, usize) {
    let mut b = bench([192, 168, 7, 1], 24);
    let (now, second) = (b.now, InterfaceId(1));
    b.host.stack.set_neighbor(now, second, [192, 168, 7, 2].into(), PEER_MAC);
    // A connection on the first interface: its peer's window is shut, its application has written and closed.
    let mut p = b.establish(2, 4000, Options { mss: Some(1460), ..Options::default() });
    let one = b.accepted[0];
    p.window = 0;
    b.send(&p, ACK, &[]);
    b.send(&p, ACK, b"x");
    p.seq += 1;
    b.write(one, b"first");
    b.job(Job::Close { conn: one, mode: CloseMode::Graceful });
    assert_eq!(b.host.stack.connections(), 1);
    // A handshake on the second one.
    let mut far = Far::new([192, 168, 7, 2], [192, 168, 7, 1]);
    far.begin(&mut b);
    // One turn: the window opens and the connection is reset on the first; the handshake ends on the second.
    p.window = 60_000;
    let opens = b.frame(&p, ACK, &[], Options::default());
    let reset = b.frame(&p, RST, &[], Options::default());
    b.host.set_room(0, if takes { 64 } else { 0 });
    let seq = far.seq;
    let frames = vec![far.frame(seq, ACK, b""), far.frame(seq, ACK, b"hello"), far.frame(seq + 7, ACK, b"hole")];
    let mut sent = b.turn_all(vec![vec![opens, reset], frames]);
    assert_eq!(b.host.stack.connections(), 1);
    let [_, two]: [ConnId; 2] = b.accepted[..].try_into().unwrap();
    assert_eq!(one, two, "the number is used again");
    // The application answers.
    let mut chain = mem::Chain::default();
    chain.push_slice(&mut b.host.side, b"an answer");
    b.host.job(Job::Write { conn: two, chain, more: false, close: false });
    for _ in 0..3 {
        let more = b.turn_all(Vec::new());
        sent.iter_mut().zip(more).for_each(|(all, more)| all.extend(more));
    }
    let second = sent.pop().unwrap().iter().filter(|f| f.ends_with(b"an answer")).count();
    (sent.pop().unwrap(), second)
}

#[test]
fn a_connection_sends_by_its_own_interface_only() {
    let (first, second) = by_each(true);
    let wrong: Vec<_> =
        first.iter().map(|f| format!("from {:x?}, type {:x?}, to {:?}", &f[6..12], &f[12..14], &f[30..34])).collect();
    assert!(wrong.is_empty(), "by the first: {wrong:?}; by the second: {second}");
    assert_eq!(second, 1);
}

#[test]
fn an_interface_that_takes_no_frames_holds_up_no_connection_of_another() {
    assert_eq!(by_each(false).1, 1);
}

/// A router of this metric to everybody, by one of the two interfaces.
fn router(gateway: [u8; 4], interface: u8, metric: u32) -> Route {
    let interface = InterfaceId(interface);
    Route { dst: [0, 0, 0, 0].into(), prefix: 0, gateway: Some(gateway.into()), interface, metric }
}

const ROUTER_B: MacAddr = MacAddr([2, 0, 0, 0, 7, 254]);

/// A host with a default router by each interface, the second of the higher metric and at [`ROUTER_B`].
fn two_uplinks() -> Bench {
    let mut b = bench([192, 168, 7, 1], 24);
    b.host.stack.add_route(router([10, 0, 0, 9], 0, 0));
    b.host.stack.add_route(router([192, 168, 7, 254], 1, 100));
    b.host.stack.set_neighbor(b.now, InterfaceId(1), [192, 168, 7, 254].into(), ROUTER_B);
    b
}

/// A route by an interface that is not there is not taken: nobody is sent by it.
#[test]
fn a_route_by_no_interface_is_refused() {
    let mut b = two_uplinks();
    let before = router([10, 0, 0, 9], 0, 0);
    assert!(b.host.stack.remove_route(&before));
    assert!(!b.host.stack.add_route(router([10, 0, 0, 8], 2, 0)));
    assert!(b.host.stack.add_route(before));
    client_by_second(&mut b);
}

/// A client from far away that came by the second interface, through [`ROUTER_B`] or `from`.
fn client_by_second(b: &mut Bench) -> Far {
    let mut far = Far::new([203, 0, 113, 5], [192, 168, 7, 1]);
    far.begin(b);
    let ack = far.frame(far.seq, ACK, b"");
    b.turn_all(vec![vec![], vec![ack]]);
    assert_eq!(b.accepted.len(), 1);
    far
}

/// What the second interface sends to `far`: hardware address and flags, ARP told apart.
fn answers(b: &mut Bench, frames: Vec<Vec<u8>>) -> Vec<(MacAddr, Option<Flags>)> {
    let sent = b.turn_all(vec![vec![], frames]);
    assert!(sent[0].is_empty(), "by the first interface: {sent:x?}");
    let read = |f: &Vec<u8>| {
        let eth = ethernet::Frame::parse(f).unwrap();
        let ip = (eth.ethertype == ethernet::IPV4).then(|| ipv4::Packet::parse(eth.payload).unwrap());
        (eth.dst, ip.map(|ip| Flags::from_bits(ip.payload[13] as u16)))
    };
    sent[1].iter().map(read).collect()
}

/// A question, and a segment behind a hole, which is acknowledged at once.
fn question(far: &Far) -> Vec<Vec<u8>> {
    vec![far.frame(far.seq, ACK, b"a question"), far.frame(far.seq + 20, ACK, b"hole")]
}

#[test]
fn a_client_that_came_by_the_other_router_is_answered_through_it() {
    let mut b = two_uplinks();
    let far = client_by_second(&mut b);
    let sent = answers(&mut b, question(&far));
    assert!(sent.contains(&(ROUTER_B, Some(ACK))), "{sent:?}");
    assert!(sent.iter().all(|(to, flags)| *to == ROUTER_B && flags.is_some()), "{sent:?}");
}

#[test]
fn a_connection_stays_on_its_interface_when_the_best_route_moves() {
    let mut b = two_uplinks();
    // The second interface is the better one while the client comes.
    b.host.stack.remove_route(&router([10, 0, 0, 9], 0, 0));
    let far = client_by_second(&mut b);
    let conn = b.accepted[0];
    b.host.stack.add_route(router([10, 0, 0, 9], 0, 0));
    let sent = answers(&mut b, question(&far));
    assert!(sent.contains(&(ROUTER_B, Some(ACK))), "{sent:?}");
    // Its own interface has no route any more: the way back is the one by which it came.
    b.host.stack.remove_route(&router([192, 168, 7, 254], 1, 100));
    let mut chain = mem::Chain::default();
    chain.push_slice(&mut b.host.side, b"an answer");
    b.host.job(Job::Write { conn, chain, more: false, close: false });
    let sent = answers(&mut b, Vec::new());
    assert!(!sent.is_empty() && sent.iter().all(|(to, flags)| *to == PEER_MAC && flags.is_some()), "{sent:?}");
    assert_eq!(b.failed, None);
}

#[test]
fn a_client_beyond_all_routes_is_answered_to_where_it_came_from() {
    let mut b = bench([192, 168, 7, 1], 24);
    let far = client_by_second(&mut b);
    let sent = answers(&mut b, question(&far));
    assert!(sent.contains(&(PEER_MAC, Some(ACK))), "{sent:?}");
    assert!(sent.iter().all(|(to, flags)| *to == PEER_MAC && flags.is_some()), "nobody is asked for it: {sent:?}");
    // It stays so however long nothing is said, with a hole or with nothing left to do.
    b.wait(Duration::from_secs(10));
    let sent = answers(&mut b, vec![far.frame(far.seq + 10, ACK, b"fills the hole")]);
    assert!(sent.contains(&(PEER_MAC, Some(ACK))), "{sent:?}");
    b.wait(Duration::from_secs(10));
    let sent = answers(&mut b, vec![far.frame(far.seq + 24, ACK, b"x"), far.frame(far.seq + 30, ACK, b"hole")]);
    assert!(sent.contains(&(PEER_MAC, Some(ACK))), "{sent:?}");
}

#[test]
fn a_connection_is_opened_by_the_interface_of_its_address() {
    let mut b = two_uplinks();
    let remote = Endpoint { addr: Addr::from_v4([203, 0, 113, 5]), port: 80 };
    let by = |b: &mut Bench, local: [u8; 4]| {
        let local = Endpoint { addr: Addr::from_v4(local), port: 0 };
        b.host.job(Job::Connect { token: Token(9), local, remote, receive_buffer: 0 });
        b.turn_all(Vec::new()).iter().map(Vec::len).collect::<Vec<_>>()
    };
    b.host.stack.set_neighbor(b.now, InterfaceId(0), [10, 0, 0, 9].into(), PEER_MAC);
    assert_eq!(by(&mut b, [192, 168, 7, 1]), [0, 1]);
    assert_eq!(by(&mut b, [10, 0, 0, 1]), [1, 0]);
    assert_eq!(by(&mut b, [0, 0, 0, 0]), [1, 0], "without one by the best route");
    assert_eq!(b.failed, None);
    b.host.stack.remove_route(&router([192, 168, 7, 254], 1, 100));
    assert_eq!(by(&mut b, [192, 168, 7, 1]), [0, 0]);
    assert_eq!(b.failed, Some(Failure::NetworkUnreachable));
}

#[test]
fn an_open_whose_route_goes_away_hears_so() {
    let mut b = two_uplinks();
    let remote = Endpoint { addr: Addr::from_v4([203, 0, 113, 5]), port: 80 };
    let local = Endpoint { addr: Addr::from_v4([192, 168, 7, 1]), port: 0 };
    b.host.job(Job::Connect { token: Token(9), local, remote, receive_buffer: 0 });
    assert_eq!(b.turn_all(Vec::new())[1].len(), 1);
    b.host.stack.remove_route(&router([192, 168, 7, 254], 1, 100));
    // The SYN's first repetition finds no way.
    let sent = b.wait(Duration::from_secs(2));
    assert_eq!((sent.len(), b.failed), (0, Some(Failure::NetworkUnreachable)));
    assert!(b.host.stack.counters().dropped(DropReason::NoRoute) > 0);
}

#[test]
fn a_service_tag_is_another_link() {
    let mut b = Bench::listening(10, &[], |c| c.vlan = Some(VLAN));
    let untagged = b.frame(&Peer::new(2, 4000), SYN, &[], Options::default());
    let tagged =
        |kind: u16, id: u16| [&untagged[..12], &kind.to_be_bytes(), &id.to_be_bytes(), &untagged[12..]].concat();
    let dropped = |b: &Bench| b.host.stack.counters().dropped(DropReason::NotOurLink);
    for (n, other) in
        [tagged(0x88a8, VLAN), tagged(0x88a8, 0), tagged(0x8100, 0), tagged(0x8100, 8)].into_iter().enumerate()
    {
        b.turn(vec![other]);
        assert_eq!((b.host.stack.half_open(), dropped(&b)), (0, n as u64 + 1), "a SYN of another link was taken");
    }
    b.turn(vec![untagged.clone()]);
    assert_eq!((b.host.stack.half_open(), dropped(&b)), (0, 5));
    b.turn(vec![tagged(0x8100, VLAN | 3 << 13)]);
    assert_eq!(b.host.stack.half_open(), 1);
    // Without a VLAN a priority tag is none, and a service tag is another link's all the same.
    let mut b = Bench::listening(10, &[], |_| {});
    b.turn(vec![tagged(0x88a8, 0)]);
    assert_eq!(b.host.stack.half_open(), 0);
    b.turn(vec![tagged(0x8100, 5 << 13)]);
    assert_eq!(b.host.stack.half_open(), 1);
}

/// A frame for the first interface as it would come by the second.
fn by_second(frame: &[u8]) -> Vec<u8> {
    [&MAC_B.0[..], &frame[6..12], &[0x81, 0, 0, VLAN as u8], &frame[12..]].concat()
}

#[test]
fn a_connection_hears_its_own_interface_only() {
    let mut b = bench([10, 0, 0, 1], 8);
    b.host.stack.set_neighbor(b.now, InterfaceId(1), [10, 0, 0, 2].into(), PEER_MAC);
    let p = b.establish(2, 4000, Options { mss: Some(1460), ..Options::default() });
    // Data, a reset, an ICMP error that says the path is narrow: all as they should be, from the other link.
    let data = b.frame(&p, ACK, b"from another VLAN", Options::default());
    let answer = b.turn_all(vec![vec![], vec![by_second(&data)]]);
    let [refused] = &answer[1][..] else { panic!("{answer:x?}") };
    assert_eq!((answer[0].len(), refused[18 + 20 + 13] as u16), (0, RST.bits()), "nobody has this connection there");
    let reset = b.frame(&p, RST, b"", Options::default());
    let error = b.unreachable(&p, 3, p.ack);
    b.turn_all(vec![vec![], vec![by_second(&reset), by_second(&error)]]);
    assert_eq!((b.bytes.len(), b.failed, b.host.stack.connections()), (0, None, 1));
    // The same tuple on the other link is another connection.
    let mut q = Peer::new(2, 4000);
    q.seq += 100_000_000;
    let syn = b.frame(&q, SYN, &[], Options::default());
    let answer = b.turn_all(vec![vec![], vec![by_second(&syn)]]);
    let iss = u32::from_be_bytes(answer[1][0][38 + 4..38 + 8].try_into().unwrap());
    (q.seq, q.ack) = (q.seq + 1, SeqNum(iss + 1));
    let ack = b.frame(&q, ACK, b"of its own", Options::default());
    // The first link's peer does not end that handshake.
    b.turn_all(vec![vec![ack.clone()], vec![]]);
    assert_eq!(b.accepted.len(), 1);
    b.turn_all(vec![vec![], vec![by_second(&ack)]]);
    assert_eq!((b.accepted.len(), &b.bytes[..]), (2, &b"of its own"[..]));
    // Each goes on by itself, and ends in a TIME-WAIT of its own.
    b.send(&p, ACK, b" and mine");
    assert_eq!(b.bytes, b"of its own and mine");
    for conn in b.accepted.clone() {
        b.job(Job::Close { conn, mode: CloseMode::Graceful });
    }
    let (mut p, mut q) = (p, q);
    (p.seq, q.seq) = (p.seq + 9, q.seq + 10);
    (p.ack, q.ack) = (p.ack + 1, q.ack + 1);
    let [fin_p, fin_q] = [p, q].map(|p| b.frame(&p, FIN | ACK, &[], Options::default()));
    b.turn_all(vec![vec![fin_p], vec![]]);
    assert_eq!((b.host.stack.connections(), b.host.stack.time_waits()), (1, 1));
    b.turn_all(vec![vec![], vec![by_second(&fin_q)]]);
    assert_eq!((b.host.stack.connections(), b.host.stack.time_waits()), (0, 2));
}

/// A connection of the second interface's peer, which has the first one's address.
fn establish_by_second(b: &mut Bench, port: u16) -> (Peer, ConnId) {
    let mut p = Peer::new(2, port);
    let syn = b.frame(&p, SYN, &[], Options { mss: Some(1460), ..Options::default() });
    let answer = b.turn_all(vec![vec![], vec![by_second(&syn)]]);
    p.ack = SeqNum(u32::from_be_bytes(answer[1][0][38 + 4..38 + 8].try_into().unwrap())) + 1;
    p.seq += 1;
    let ack = b.frame(&p, ACK, &[], Options::default());
    b.turn_all(vec![vec![], vec![by_second(&ack)]]);
    (p, b.accepted.pop().expect("accepted"))
}

/// Writes so much that segments are full.
fn write(b: &mut Bench, conn: ConnId) {
    let mut chain = mem::Chain::default();
    chain.push_slice(&mut b.host.side, &[7; 4000]);
    b.host.job(Job::Write { conn, chain, more: false, close: false });
}

/// The longest frame that leaves by each interface.
fn longest(b: &mut Bench) -> [usize; 2] {
    let sent = b.turn_all(Vec::new());
    [0, 1].map(|n: usize| sent[n].iter().map(Vec::len).max().unwrap_or(0))
}

/// A link's MTU falls and rises again under a connection that has sent a flight, and under one that is idle.
#[test]
fn a_links_mtu_is_followed() {
    let mut b = bench([10, 0, 0, 1], 8);
    b.host.stack.set_neighbor(b.now, InterfaceId(1), [10, 0, 0, 2].into(), PEER_MAC);
    let (_, busy) = establish_by_second(&mut b, 4000);
    let (_, idle) = establish_by_second(&mut b, 4001);
    b.establish(2, 4002, Options { mss: Some(1460), ..Options::default() });
    let other = b.accepted.pop().expect("accepted");
    write(&mut b, busy);
    assert_eq!(longest(&mut b), [0, 1500 + 18]);
    b.host.stack.set_mtu(b.now, InterfaceId(1), 1280);
    // What was too long goes again at once, and is no congestion.
    assert_eq!(longest(&mut b), [0, 1280 + 18]);
    write(&mut b, idle);
    assert_eq!(longest(&mut b), [0, 1280 + 18]);
    write(&mut b, other);
    assert_eq!(longest(&mut b), [1500 + 14, 0]);
    b.host.stack.set_mtu(b.now, InterfaceId(1), 1500);
    // A handshake that was under way while the link became narrower.
    let mut p = Peer::new(2, 4004);
    let syn = b.frame(&p, SYN, &[], Options { mss: Some(1460), ..Options::default() });
    let answer = b.turn_all(vec![vec![], vec![by_second(&syn)]]);
    p.ack = SeqNum(u32::from_be_bytes(answer[1][0][38 + 4..38 + 8].try_into().unwrap())) + 1;
    p.seq += 1;
    b.host.stack.set_mtu(b.now, InterfaceId(1), 1280);
    let ack = b.frame(&p, ACK, &[], Options::default());
    b.turn_all(vec![vec![], vec![by_second(&ack)]]);
    let conn = b.accepted.pop().expect("accepted");
    write(&mut b, conn);
    assert_eq!(longest(&mut b), [0, 1280 + 18]);
    b.host.stack.set_mtu(b.now, InterfaceId(1), 1500);
    let (_, later) = establish_by_second(&mut b, 4003);
    write(&mut b, later);
    assert_eq!(longest(&mut b), [0, 1500 + 18]);
}

#[test]
fn what_the_path_of_one_link_takes_says_nothing_of_another() {
    let mut b = bench([10, 0, 0, 1], 8);
    b.host.stack.set_neighbor(b.now, InterfaceId(1), [10, 0, 0, 2].into(), PEER_MAC);
    let longest = |b: &mut Bench, conn| {
        write(b, conn);
        longest(b)
    };
    let (p, conn) = establish_by_second(&mut b, 4000);
    assert_eq!(longest(&mut b, conn), [0, 1500 + 18]);
    let narrow = b.unreachable(&p, 4, p.ack);
    b.turn_all(vec![vec![], vec![by_second(&narrow)]]);
    assert_eq!(b.host.stack.counters().path_mtu, 1);
    let (_, conn) = establish_by_second(&mut b, 4001);
    assert!(longest(&mut b, conn)[1] < 1000, "the path is narrow for whoever takes it");
    b.establish(2, 4002, Options { mss: Some(1460), ..Options::default() });
    let conn = b.accepted.pop().expect("accepted");
    assert_eq!(longest(&mut b, conn), [1500 + 14, 0]);
}

/// Who is on the link by our own prefix is asked for there, though no route says so.
#[test]
fn a_client_of_our_prefix_is_a_neighbour_without_a_route() {
    let mut b = Bench::listening(10, &[], |_| {});
    let (interface, dst) = (InterfaceId(0), [10, 0, 0, 0].into());
    assert!(b.host.stack.remove_route(&Route { dst, prefix: 8, gateway: None, interface, metric: 0 }));
    b.establish(50, 4000, Options::default());
    let mut chain = mem::Chain::default();
    chain.push_slice(&mut b.host.side, b"an answer");
    b.host.job(Job::Write { conn: b.accepted[0], chain, more: false, close: false });
    let sent = b.turn_all(Vec::new()).swap_remove(0);
    let [frame] = &sent[..] else { panic!("{sent:x?}") };
    let eth = ethernet::Frame::parse(frame).unwrap();
    let asked = wire::arp::Packet::parse(eth.payload).map(|p| Addr::from_v4(p.target_ip));
    assert_eq!((eth.ethertype, asked), (ethernet::ARP, Ok(peer(50))));
}

//! A host that owns its addresses among others on the link: address resolution, duplicate address detection, routers.

use std::net::IpAddr;

use protocol::{Endpoint, Event, Failure, Job, Token};
use sim::{Echo, Host, HostConfig, Net, NetConfig, Outcome, Sender};
use stack::{Conflict, DropReason, Mode};
use wire::icmpv6::{Message, Prefix, Prefixes};
use wire::{Addr, Instant, MacAddr, arp, ethernet, ipv4, ipv6};

const US: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 10]);

fn addr(text: &str) -> Addr {
    ip(text).into()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn at(ms: u64) -> Instant {
    Instant::from_micros(1_000_000 + ms * 1000)
}

/// A frame with an NDP message.
fn ndp(from: (&str, MacAddr), to: (&str, MacAddr), message: Message) -> Vec<u8> {
    let (src, dst) = (addr(from.0), addr(to.0));
    let mut b = vec![0; 14 + 40 + 288];
    let n = message.emit(src, dst, &mut b[54..]);
    ethernet::emit(&mut b, to.1, from.1, None, ethernet::IPV6);
    let header = ipv6::Header { src, dst, next_header: ipv6::ICMPV6, hop_limit: 255, ..ipv6::Header::default() };
    header.emit(&mut b[14..], n);
    b.truncate(54 + n);
    b
}

fn arp_frame(op: arp::Op, from: (&str, MacAddr), to: (&str, MacAddr)) -> Vec<u8> {
    let v4 = |text: &str| addr(text).v4_octets();
    let packet = arp::Packet { op, sender_mac: from.1, sender_ip: v4(from.0), target_mac: to.1, target_ip: v4(to.0) };
    let mut b = vec![0; 42];
    let dst = if op == arp::Op::Request { MacAddr::BROADCAST } else { to.1 };
    ethernet::emit(&mut b, dst, from.1, None, ethernet::ARP);
    packet.emit(&mut b[14..]);
    b
}

/// A frame that a host sent, as far as these tests look into it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sent {
    Arp { op: arp::Op, sender: Addr, target: Addr, to: MacAddr },
    Solicit { src: Addr, target: Addr, to: MacAddr },
    Advert { dst: Addr, target: Addr, solicited: bool },
    RouterSolicit { src: Addr },
    Tcp { src: Addr, dst: Addr, to: MacAddr, hops: u8 },
    Else,
}

fn read(frame: &[u8]) -> Sent {
    let eth = ethernet::Frame::parse(frame).unwrap();
    assert_eq!(eth.src, US);
    if eth.ethertype == ethernet::ARP {
        let p = arp::Packet::parse(eth.payload).unwrap();
        let (sender, target) = (Addr::from_v4(p.sender_ip), Addr::from_v4(p.target_ip));
        return Sent::Arp { op: p.op, sender, target, to: eth.dst };
    }
    if eth.ethertype == ethernet::IPV4 {
        let p = ipv4::Packet::parse(eth.payload).unwrap();
        return Sent::Tcp { src: p.src, dst: p.dst, to: eth.dst, hops: p.ttl };
    }
    let p = ipv6::Packet::parse(eth.payload).unwrap();
    if p.next_header == ipv6::TCP {
        return Sent::Tcp { src: p.src, dst: p.dst, to: eth.dst, hops: p.hop_limit };
    }
    match Message::parse(p.src, p.dst, p.payload).unwrap() {
        Message::NeighborSolicit { target, .. } => Sent::Solicit { src: p.src, target, to: eth.dst },
        Message::NeighborAdvert { target, solicited, .. } => Sent::Advert { dst: p.dst, target, solicited },
        Message::RouterSolicit { .. } => Sent::RouterSolicit { src: p.src },
        _ => Sent::Else,
    }
}

fn turn(host: &mut Host, ms: u64, frames: Vec<Vec<u8>>) -> Vec<Sent> {
    host.turn(at(ms), frames).iter().map(|f| read(f)).collect()
}

fn connect(host: &mut Host, remote: &str) {
    let remote = Endpoint { addr: addr(remote), port: 80 };
    let any = if remote.addr.is_v4() { Addr::UNSPECIFIED_V4 } else { Addr::UNSPECIFIED_V6 };
    host.job(Job::Connect { token: Token(1), local: Endpoint { addr: any, port: 0 }, remote, receive_buffer: 0 });
}

fn group(target: Addr) -> MacAddr {
    let o = target.octets();
    MacAddr([0x33, 0x33, 0xff, o[13], o[14], o[15]])
}

#[test]
fn an_advertisement_cannot_move_an_ipv4_neighbour() {
    let mut host = Host::new(HostConfig::new(1));
    turn(&mut host, 0, vec![arp_frame(arp::Op::Request, ("10.0.0.9", PEER), ("10.0.0.1", MacAddr([0; 6])))]);
    for target in ["::ffff:10.0.0.9", "ff02::9"] {
        let target = Addr::from_v6(target.parse::<std::net::Ipv6Addr>().unwrap().octets());
        let (target_mac, r#override) = (Some(OTHER), true);
        let message = Message::NeighborAdvert { target, target_mac, router: false, solicited: false, r#override };
        turn(&mut host, 1, vec![ndp(("fd00::a", OTHER), ("ff02::1", MacAddr([0x33, 0x33, 0, 0, 0, 1])), message)]);
    }
    assert_eq!(host.stack.counters().dropped(DropReason::Malformed), 2);
    connect(&mut host, "10.0.0.9");
    let sent = turn(&mut host, 2, vec![]);
    assert!(matches!(sent[..], [Sent::Tcp { to: PEER, .. }]), "{sent:?}");
}

#[test]
fn neighbour_messages_from_beyond_the_link_are_not_believed() {
    let mut host = Host::new(HostConfig::new(1));
    let ask = Message::NeighborSolicit { target: addr("fd00::1"), source_mac: Some(PEER) };
    let mut frame = ndp(("fd00::9", PEER), ("fd00::1", US), ask);
    assert_eq!(
        turn(&mut host, 0, vec![frame.clone()]),
        [Sent::Advert { dst: addr("fd00::9"), target: addr("fd00::1"), solicited: true }]
    );
    // The hop limit that only a neighbour can give.
    frame[21] = 254;
    assert_eq!(turn(&mut host, 0, vec![frame.clone()]), []);
    // An atomic fragment (RFC 6980).
    frame[21] = 255;
    frame[20] = 44;
    frame[18..20].copy_from_slice(&40u16.to_be_bytes());
    frame.splice(54..54, [ipv6::ICMPV6, 0, 0, 0, 0, 0, 0, 7]);
    assert_eq!(turn(&mut host, 0, vec![frame]), []);
    assert_eq!(host.stack.counters().dropped(DropReason::Neighbor), 2);
}

/// RFC 826 knows no senders that are groups: nobody is answered there, and nothing of it is remembered.
#[test]
fn an_arp_message_of_a_group_is_dropped() {
    let mut host = Host::new(HostConfig::new(1));
    let nobody = MacAddr([0; 6]);
    let group = MacAddr([0x33, 0x33, 0, 0, 0, 1]);
    let senders = [
        ("10.0.0.9", group),
        ("10.0.0.9", MacAddr::BROADCAST),
        ("224.0.0.9", PEER),
        ("255.255.255.255", PEER),
        ("127.0.0.1", PEER),
    ];
    for (n, from) in (1..).zip(senders) {
        assert_eq!(turn(&mut host, 0, vec![arp_frame(arp::Op::Request, from, ("10.0.0.1", nobody))]), [], "{from:?}");
        assert_eq!(host.stack.counters().dropped(DropReason::Neighbor), n);
    }
    // What we said ourselves is no message either, nor a fault.
    assert_eq!(turn(&mut host, 0, vec![arp_frame(arp::Op::Request, ("10.0.0.9", US), ("10.0.0.1", nobody))]), []);
    assert_eq!(host.stack.counters().dropped(DropReason::Neighbor), 5);
    connect(&mut host, "10.0.0.9");
    assert!(matches!(turn(&mut host, 0, vec![])[..], [Sent::Arp { op: arp::Op::Request, .. }]));
}

#[test]
fn addresses_are_asked_for_before_they_are_used() {
    let mut host = Host::new(HostConfig { dad: 2, ..HostConfig::new(1) });
    let (v4, v6) = (addr("10.0.0.1"), addr("fd00::1"));
    let probes = [
        Sent::Arp { op: arp::Op::Request, sender: Addr::UNSPECIFIED_V4, target: v4, to: MacAddr::BROADCAST },
        Sent::Solicit { src: Addr::UNSPECIFIED_V6, target: v6, to: group(v6) },
    ];
    connect(&mut host, "fd00::9");
    let ask =
        || ndp(("fd00::9", PEER), ("fd00::1", US), Message::NeighborSolicit { target: v6, source_mac: Some(PEER) });
    assert_eq!(turn(&mut host, 0, vec![]), probes);
    // RFC 4862 5.4.3: nobody is answered yet, nobody is asked.
    assert_eq!(turn(&mut host, 1, vec![ask()]), []);
    assert_eq!(host.stack.addresses(host.interface()).filter(|(_, usable)| *usable).count(), 0);
    assert_eq!(turn(&mut host, 1000, vec![]), probes);
    assert_eq!(turn(&mut host, 1999, vec![]), []);
    // IPv6 is ours, and who waited for it goes on.
    assert_eq!(
        turn(&mut host, 2000, vec![]),
        [Sent::Solicit { src: v6, target: addr("fd00::9"), to: group(addr("fd00::9")) }]
    );
    let answer = turn(&mut host, 2001, vec![ask()]);
    assert_eq!(answer[0], Sent::Advert { dst: addr("fd00::9"), target: v6, solicited: true });
    assert!(matches!(answer[1], Sent::Tcp { to: PEER, .. }), "{answer:?}");
    // RFC 5227 2.3: IPv4 two seconds after the last probe, announced twice.
    let announcement = Sent::Arp { op: arp::Op::Request, sender: v4, target: v4, to: MacAddr::BROADCAST };
    let arps = |host: &mut Host, ms| {
        turn(host, ms, vec![]).into_iter().filter(|s| matches!(s, Sent::Arp { .. })).collect::<Vec<_>>()
    };
    assert_eq!(arps(&mut host, 2999), []);
    assert_eq!(arps(&mut host, 3000), [announcement]);
    assert_eq!(arps(&mut host, 4999), []);
    assert_eq!(arps(&mut host, 5000), [announcement]);
    assert_eq!(arps(&mut host, 60_000), []);
    assert_eq!(host.stack.addresses(host.interface()).filter(|(_, usable)| *usable).count(), 2);
}

#[test]
fn an_address_that_somebody_has_is_not_used() {
    let all = ("ff02::1", MacAddr([0x33, 0x33, 0, 0, 0, 1]));
    let v6 = addr("fd00::1");
    let advert = Message::NeighborAdvert {
        target: v6,
        target_mac: Some(PEER),
        router: false,
        solicited: false,
        r#override: true,
    };
    let probe = Message::NeighborSolicit { target: v6, source_mac: None };
    let solicited_node = ("ff02::1:ff00:1", group(v6));
    let nobody = MacAddr([0; 6]);
    let cases = [
        (ndp(("fd00::1", PEER), all, advert), "fd00::1", "fd00::9"),
        (ndp(("::", PEER), solicited_node, probe), "fd00::1", "fd00::9"),
        (arp_frame(arp::Op::Reply, ("10.0.0.1", PEER), ("0.0.0.0", US)), "10.0.0.1", "10.0.0.9"),
        (arp_frame(arp::Op::Request, ("10.0.0.1", PEER), ("10.0.0.1", nobody)), "10.0.0.1", "10.0.0.9"),
        (arp_frame(arp::Op::Request, ("0.0.0.0", PEER), ("10.0.0.1", nobody)), "10.0.0.1", "10.0.0.9"),
    ];
    for (frame, lost, remote) in cases {
        let mut host = Host::new(HostConfig { dad: 1, ..HostConfig::new(1) });
        connect(&mut host, remote);
        assert_eq!(turn(&mut host, 0, vec![]).len(), 2);
        turn(&mut host, 500, vec![frame]);
        turn(&mut host, 10_000, vec![]);
        turn(&mut host, 20_000, vec![]);
        let usable: Vec<_> =
            host.stack.addresses(host.interface()).filter(|(_, usable)| *usable).map(|(a, _)| a).collect();
        assert!(usable.len() == 1 && usable[0] != ip(lost), "{usable:?}");
        let conflict = Conflict { interface: host.interface(), addr: ip(lost), mac: PEER, lost: true };
        assert_eq!(host.stack.take_conflicts(), [conflict]);
        let c = host.stack.counters();
        assert_eq!((c.address_conflicts, c.addresses_lost), (1, 1));
        // What waited for the address fails, and nothing more starts from it.
        connect(&mut host, remote);
        turn(&mut host, 20_001, vec![]);
        turn(&mut host, 20_002, vec![]);
        let events: Vec<_> = core::iter::from_fn(|| host.event()).collect();
        let failed = |e: &Event| matches!(e, Event::Failed { failure: Failure::HostUnreachable, .. });
        let refused = |e: &Event| matches!(e, Event::Refused { failure: Failure::AddressNotAvailable, .. });
        assert!(events.iter().any(failed) && events.iter().any(refused), "{events:?}");
    }
}

#[test]
fn an_address_in_use_is_defended_once_in_a_while() {
    let mut host = Host::new(HostConfig::new(1));
    let claim = || arp_frame(arp::Op::Request, ("10.0.0.1", PEER), ("10.0.0.1", MacAddr([0; 6])));
    let v4 = addr("10.0.0.1");
    let defence = Sent::Arp { op: arp::Op::Request, sender: v4, target: v4, to: MacAddr::BROADCAST };
    assert_eq!(turn(&mut host, 0, vec![claim()]), [defence]);
    assert_eq!(turn(&mut host, 5000, vec![claim()]), []);
    assert_eq!(turn(&mut host, 10_000, vec![claim()]), [defence]);
    let conflict = Conflict { interface: host.interface(), addr: ip("10.0.0.1"), mac: PEER, lost: false };
    assert_eq!(host.stack.take_conflicts(), [conflict; 2]);
    assert_eq!((host.stack.counters().address_conflicts, host.stack.counters().addresses_lost), (3, 0));
    // Who asks whether it is free is told (RFC 5227 2.6).
    let probe = arp_frame(arp::Op::Request, ("0.0.0.0", PEER), ("10.0.0.1", MacAddr([0; 6])));
    assert!(matches!(turn(&mut host, 10_001, vec![probe])[..], [Sent::Arp { op: arp::Op::Reply, to: PEER, .. }]));
    assert_eq!(host.stack.addresses(host.interface()).filter(|(_, usable)| *usable).count(), 2);
}

fn prefix(text: &str, on_link: bool, autonomous: bool, valid: u32, preferred: u32) -> Prefix {
    let IpAddr::V6(prefix) = ip(text) else { panic!("{text}") };
    Prefix { prefix, len: 64, on_link, autonomous, valid, preferred }
}

const ROUTER: &str = "fe80::9";

fn advert(lifetime: u16, mtu: Option<u32>, list: &[Prefix]) -> Vec<u8> {
    advert_from((ROUTER, PEER), lifetime, mtu, list)
}

fn advert_from(router: (&str, MacAddr), lifetime: u16, mtu: Option<u32>, list: &[Prefix]) -> Vec<u8> {
    let mut prefixes = Prefixes::default();
    list.iter().for_each(|p| prefixes.push(*p));
    let message = Message::RouterAdvert { lifetime, hop_limit: 33, source_mac: Some(router.1), mtu, prefixes };
    ndp(router, ("ff02::1", MacAddr([0x33, 0x33, 0, 0, 0, 1])), message)
}

/// A host with no address but what it forms itself.
fn alone(dad: u8) -> Host {
    Host::new(HostConfig { dad, autoconf: true, addresses: vec![], ..HostConfig::new(1) })
}

/// Its addresses that may be used now, in a prefix.
fn usable(host: &Host, prefix: &str) -> Vec<Addr> {
    let high = addr(prefix).as_words()[0];
    let list = host.stack.addresses(host.interface()).filter(|(_, usable)| *usable).map(|(a, _)| Addr::from(a));
    list.filter(|a| a.as_words()[0] == high).collect()
}

#[test]
fn a_host_configures_itself() {
    let mut host = alone(1);
    let Sent::Solicit { src, target: link_local, .. } = turn(&mut host, 0, vec![]).remove(0) else {
        panic!("no probe")
    };
    assert!(src.is_unspecified() && link_local.is_link_local());
    turn(&mut host, 1000, vec![]);
    assert_eq!(usable(&host, "fe80::"), [link_local]);
    // RFC 4861 6.3.7: three questions, four seconds apart, the first within a second.
    let asked: Vec<u64> = (1000..30_000)
        .step_by(100)
        .filter(|ms| turn(&mut host, *ms, vec![]).contains(&Sent::RouterSolicit { src: link_local }))
        .collect();
    assert!(
        asked.len() == 3 && asked[0] <= 2000 && asked[1] - asked[0] == 4000 && asked[2] - asked[1] == 4000,
        "{asked:?}"
    );
    // The same where addresses need not be asked for.
    let mut at_once = alone(0);
    let asks = |host: &mut Host, ms| matches!(turn(host, ms, vec![])[..], [Sent::RouterSolicit { .. }]);
    let asked: Vec<u64> = (0..30_000).step_by(100).filter(|ms| asks(&mut at_once, *ms)).collect();
    assert!(
        asked.len() == 3 && asked[0] <= 1000 && asked[1] - asked[0] == 4000 && asked[2] - asked[1] == 4000,
        "{asked:?}"
    );
    // A prefix is asked for like any address; two that no link has are not taken.
    let list = [
        prefix("2001:db8:1::", true, true, 86_400, 3600),
        prefix("fe80::", true, true, 86_400, 3600),
        prefix("::", true, true, 86_400, 3600),
    ];
    let Sent::Solicit { target, .. } = turn(&mut host, 30_000, vec![advert(1800, Some(1400), &list)]).remove(0) else {
        panic!("no probe")
    };
    assert_eq!(usable(&host, "2001:db8:1::"), []);
    turn(&mut host, 31_000, vec![]);
    assert_eq!(usable(&host, "2001:db8:1::"), [target]);
    assert_eq!(host.stack.addresses(host.interface()).count(), 2);
    // Beyond the link by the router, whose hardware address came along; on the link directly.
    connect(&mut host, "2001:db8:2::5");
    let sent = turn(&mut host, 31_001, vec![]);
    assert_eq!(sent, [Sent::Tcp { src: target, dst: addr("2001:db8:2::5"), to: PEER, hops: 33 }]);
    connect(&mut host, "2001:db8:1::5");
    let sent = turn(&mut host, 31_002, vec![]);
    assert!(
        sent.contains(&Sent::Solicit { src: target, target: addr("2001:db8:1::5"), to: group(addr("::5")) }),
        "{sent:?}"
    );
    // RFC 4861 6.3.4: the link carries less than it could.
    connect(&mut host, "2001:db8:2::6");
    let syn = host.turn(at(31_003), vec![]).remove(0);
    assert_eq!(wire::tcp::Segment::parse(&syn[54..]).unwrap().options.mss, Some(1340));
}

#[test]
fn what_routers_say_ends() {
    let mut host = alone(0);
    let lasting = [prefix("2001:db8:1::", true, true, 10_000, 20)];
    turn(&mut host, 0, vec![advert(60, None, &lasting)]);
    let [a] = usable(&host, "2001:db8:1::")[..] else { panic!("no address") };
    let way = |host: &mut Host, ms: u64, to: &str| {
        connect(host, to);
        turn(host, ms, vec![]);
        let events: Vec<_> = core::iter::from_fn(|| host.event()).collect();
        !events.iter().any(|e| matches!(e, Event::Refused { failure: Failure::NetworkUnreachable, .. }))
    };
    assert!(way(&mut host, 1, "2001:db8:2::1"));
    // RFC 4862 5.5.3 e: an advertisement cannot end an address within two hours, only make it deprecated.
    turn(&mut host, 2, vec![advert(60, None, &[prefix("2001:db8:1::", true, true, 1, 0)])]);
    turn(&mut host, 7_000_000, vec![]);
    assert_eq!(usable(&host, "2001:db8:1::"), [a]);
    // The router's minute is over.
    assert!(!way(&mut host, 7_000_001, "2001:db8:2::1"));
    turn(&mut host, 7_200_003, vec![]);
    assert_eq!(usable(&host, "2001:db8:1::"), []);
    // A router that says so itself, or is no router any more.
    for last in [
        advert(0, None, &[]),
        ndp(
            (ROUTER, PEER),
            ("ff02::1", MacAddr([0x33, 0x33, 0, 0, 0, 1])),
            Message::NeighborAdvert {
                target: addr(ROUTER),
                target_mac: Some(PEER),
                router: false,
                solicited: false,
                r#override: true,
            },
        ),
    ] {
        turn(&mut host, 7_300_000, vec![advert(1800, None, &[prefix("2001:db8:3::", true, true, 10_000, 9_000)])]);
        assert!(way(&mut host, 7_300_001, "2001:db8:2::1"));
        turn(&mut host, 7_300_002, vec![last]);
        assert!(!way(&mut host, 7_300_003, "2001:db8:2::1"));
        assert!(way(&mut host, 7_300_004, "2001:db8:3::1"));
    }
    // A deprecated address gives way to another (RFC 6724 5, rule 3).
    let list = [prefix("2001:db8:4::", true, true, 10_000, 10), prefix("2001:db8:5::", true, true, 10_000, 9_000)];
    turn(&mut host, 7_400_000, vec![advert(1800, None, &list)]);
    turn(&mut host, 7_420_000, vec![]);
    connect(&mut host, "2001:db8:4::1");
    turn(&mut host, 7_420_001, vec![]);
    let mut from = Vec::new();
    host.stack.each_connection(|_, key, _| from.push((key.remote, key.local)));
    let used = from.iter().find(|(to, _)| *to == addr("2001:db8:4::1")).unwrap().1;
    assert_ne!(used.as_words()[0], addr("2001:db8:4::").as_words()[0], "{used}");
}

/// RFC 4862 5.5.3 e, all of it: a lifetime above two hours is taken, and one that is longer than what remains; a shorter one
/// leaves two hours, or what remains where that is less.
#[test]
fn the_lifetime_of_a_formed_address_follows_its_router() {
    let hours = |h: f64| (h * 3600.0) as u32;
    for (first, later, then) in
        [(10.0, 5.0, 5.0), (1.0, 1.5, 1.5), (10.0, 1.0, 2.0), (1.5, 1.0, 1.5), (1.0, 10.0, 10.0)]
    {
        let mut host = alone(0);
        for hours in [hours(first), hours(later)] {
            turn(&mut host, 0, vec![advert(9000, None, &[prefix("2001:db8:1::", false, true, hours, 0)])]);
        }
        let end = hours(then) as u64 * 1000;
        turn(&mut host, end - 1, vec![]);
        assert_eq!(usable(&host, "2001:db8:1::").len(), 1, "{first} {later}");
        turn(&mut host, end, vec![]);
        assert_eq!(usable(&host, "2001:db8:1::"), [], "{first} {later}");
    }
}

#[test]
fn a_formed_address_that_is_taken_is_formed_anew() {
    let mut host = alone(1);
    let mut tried = Vec::new();
    let mut frames = turn(&mut host, 0, vec![]);
    while let Some(Sent::Solicit { target, .. }) = frames.first().copied() {
        assert!(!tried.contains(&target));
        tried.push(target);
        // RFC 4291 2.7.1.
        let low = target.as_words()[1] & 0xff_ffff;
        let to = Addr::from_words([0xff02 << 48, 0x1_ff00_0000 | low]).to_string();
        let probe = Message::NeighborSolicit { target, source_mac: None };
        frames = turn(&mut host, 1, vec![ndp(("::", PEER), (&to, group(target)), probe)]);
    }
    // RFC 7217 7: three more, then none.
    assert_eq!((tried.len(), host.stack.counters().addresses_lost), (4, 4));
    turn(&mut host, 20_000, vec![]);
    assert_eq!(usable(&host, "fe80::"), []);
}

#[test]
fn routers_cannot_fill_the_memory() {
    let mut host = alone(0);
    for n in 0..200u16 {
        let list: Vec<_> = (0..8).map(|k| prefix(&format!("2001:db8:{n:x}:{k}::"), true, true, 9000, 9000)).collect();
        turn(&mut host, n as u64, vec![advert_from((&format!("fe80::{n:x}"), PEER), 1800, None, &list)]);
    }
    assert_eq!(host.stack.addresses(host.interface()).count(), 8);
    assert_eq!(host.stack.counters().router_adverts, 200);
    // Of the first eight prefixes each is on the link, of the others none; and four routers lead on.
    let asked = |host: &mut Host, to: &str| {
        connect(host, to);
        turn(host, 300, vec![]).into_iter().find_map(|s| match s {
            Sent::Solicit { target, .. } => Some(target),
            Sent::Tcp { to, .. } => Some(Addr::from_v4([to.0[5]; 4])),
            _ => None,
        })
    };
    for k in 0..8 {
        let to = format!("2001:db8:0:{k}::5");
        assert_eq!(asked(&mut host, &to), Some(addr(&to)));
    }
    let by_router = Some(Addr::from_v4([PEER.0[5]; 4]));
    assert_eq!(asked(&mut host, "2001:db8:1:0::5"), by_router);
    for n in 0..200u16 {
        assert_eq!(asked(&mut host, "2001:db9::5"), if n < 4 { by_router } else { None }, "{n}");
        if n < 4 {
            turn(&mut host, 300, vec![advert_from((&format!("fe80::{n:x}"), PEER), 0, None, &[])]);
        }
    }
    // One that is none any more, and was none before, is none.
    let [gone, ended] =
        [advert_from(("fe80::77", PEER), 0, None, &[]), advert(0, None, &[prefix("2001:dba::", true, true, 0, 0)])];
    turn(&mut host, 301, vec![gone, ended]);
    assert_eq!(asked(&mut host, "2001:dba::5"), None);
}

#[test]
fn only_the_first_hop_redirects() {
    let mut host = alone(0);
    let list = [prefix("2001:db8:1::", true, true, 10_000, 10_000)];
    turn(&mut host, 0, vec![advert(1800, None, &list)]);
    let us = usable(&host, "2001:db8:1::")[0].to_string();
    let redirect = |from: (&str, MacAddr), target: &str, destination: &str| {
        let message =
            Message::Redirect { target: addr(target), destination: addr(destination), target_mac: Some(OTHER) };
        ndp(from, (&us, US), message)
    };
    let to = |host: &mut Host, ms: u64, frame: Vec<u8>, destination: &str| {
        turn(host, ms, vec![frame]);
        connect(host, destination);
        let sent = turn(host, ms + 1, vec![]);
        sent.iter().find_map(|s| match s {
            Sent::Tcp { dst, to, .. } if *dst == addr(destination) => Some(*to),
            _ => None,
        })
    };
    // Another neighbour has no say.
    assert_eq!(
        to(&mut host, 10, redirect(("fe80::a", OTHER), "fe80::a", "2001:db8:2::1"), "2001:db8:2::1"),
        Some(PEER)
    );
    // The router has: to another router, and to the destination itself.
    assert_eq!(to(&mut host, 20, redirect((ROUTER, PEER), "fe80::a", "2001:db8:2::2"), "2001:db8:2::2"), Some(OTHER));
    assert_eq!(
        to(&mut host, 30, redirect((ROUTER, PEER), "2001:db8:2::3", "2001:db8:2::3"), "2001:db8:2::3"),
        Some(OTHER)
    );
    assert_eq!((host.stack.counters().redirects, host.stack.counters().dropped(DropReason::Neighbor)), (2, 1));
    // One that redirected once is no first hop for it any more.
    assert_eq!(to(&mut host, 40, redirect((ROUTER, PEER), ROUTER, "2001:db8:2::2"), "2001:db8:2::9"), Some(PEER));
    assert_eq!(host.stack.counters().redirects, 2);
}

/// RFC 4861 7.3.3: a hop that answers no more is no hop any more. What was redirected to it goes by the router again, and nothing
/// else does.
#[test]
fn a_redirect_ends_with_its_hop() {
    let mut host = alone(0);
    let list = [prefix("2001:db8:1::", true, true, 90_000, 90_000)];
    turn(&mut host, 0, vec![advert(9000, None, &list)]);
    let us = usable(&host, "2001:db8:1::")[0];
    // To a neighbour that falls silent, to one that does not, and to a router that falls silent.
    let places = [
        ("2001:db8:2::3", "2001:db8:2::3", OTHER),
        ("2001:db8:2::4", "2001:db8:2::4", MacAddr([2, 0, 0, 0, 0, 11])),
        ("2001:db8:2::5", "fe80::a", MacAddr([2, 0, 0, 0, 0, 12])),
    ];
    for (destination, target, mac) in places {
        let (target, destination) = (addr(target), addr(destination));
        let message = Message::Redirect { target, destination, target_mac: Some(mac) };
        turn(&mut host, 1, vec![ndp((ROUTER, PEER), (&us.to_string(), US), message)]);
    }
    places.iter().for_each(|(destination, ..)| connect(&mut host, destination));
    let mut ways = vec![Vec::new(); 3];
    let mut answers = Vec::new();
    for ms in (2..60_000).step_by(250) {
        for s in turn(&mut host, ms, core::mem::take(&mut answers)) {
            match s {
                Sent::Tcp { dst, to, .. } => {
                    let n = places.iter().position(|p| addr(p.0) == dst).expect("one of them");
                    if ways[n].last() != Some(&to) {
                        ways[n].push(to);
                    }
                }
                Sent::Solicit { target, src, .. } => {
                    let alive = [(ROUTER, PEER), (places[1].0, places[1].2)];
                    for who in alive.into_iter().filter(|(text, _)| addr(text) == target) {
                        let (target_mac, router) = (Some(who.1), who.0 == ROUTER);
                        let r#override = false;
                        let message =
                            Message::NeighborAdvert { target, target_mac, router, solicited: true, r#override };
                        answers.push(ndp(who, (&src.to_string(), US), message));
                    }
                }
                _ => {}
            }
        }
    }
    assert_eq!(ways, [vec![OTHER, PEER], vec![places[1].2], vec![places[2].2, PEER]]);
}

/// Where the only router is silent an open fails, as soon as that is known.
#[test]
fn an_open_by_a_silent_router_fails() {
    let mut host = Host::new(HostConfig::new(1));
    let (dst, gateway) = (ip("0.0.0.0"), Some(ip("10.0.0.9")));
    let interface = host.interface();
    host.stack.add_route(stack::Route { dst, prefix: 0, gateway, interface, metric: 0 });
    let mut formed = alone(0);
    turn(&mut formed, 0, vec![advert(9000, None, &[prefix("2001:db8:1::", true, true, 9000, 9000)])]);
    for (mut host, to, repeated) in [(host, "192.0.2.1", 0), (formed, "2001:db8:2::1", 1)] {
        connect(&mut host, to);
        let failed = (1..60_000).step_by(250).find(|ms| {
            // Asked for directly in vain, and now once more: another one has to wait.
            if *ms == 9001 {
                connect(&mut host, to);
            }
            turn(&mut host, *ms, vec![]);
            core::iter::from_fn(|| host.event())
                .any(|e| matches!(e, Event::Failed { failure: Failure::HostUnreachable, .. }))
        });
        assert!(failed.is_some(), "{to}");
        // Who waited is told by the hop and sends nothing; the first one's SYN is due again in that moment.
        assert_eq!(host.stack.counters().dropped(DropReason::NoNeighbor), repeated, "{to}");
    }
}

/// RFC 826 and RFC 4861 7.2.3, as far as ARP tells it: an answer to our question confirms a neighbour, whatever else it says makes
/// it known at most, and who speaks of others is not remembered.
#[test]
fn what_arp_confirms_and_creates() {
    let (us, nobody) = (("10.0.0.1", US), MacAddr([0; 6]));
    let from = ("10.0.0.9", PEER);
    let direct = |s: &Sent| matches!(s, Sent::Arp { op: arp::Op::Request, to: PEER, .. });
    for (frame, confirms) in [
        (arp_frame(arp::Op::Reply, from, us), true),
        (arp_frame(arp::Op::Reply, from, ("10.0.0.7", US)), false),
        (arp_frame(arp::Op::Reply, from, ("10.0.0.1", MacAddr::BROADCAST)), false),
        (arp_frame(arp::Op::Request, from, ("10.0.0.1", nobody)), false),
        (arp_frame(arp::Op::Request, from, us), false),
    ] {
        let mut host = Host::new(HostConfig::new(1));
        connect(&mut host, "10.0.0.9");
        turn(&mut host, 0, vec![]);
        let sent = turn(&mut host, 1, vec![frame]);
        assert!(sent.iter().any(|s| matches!(s, Sent::Tcp { to: PEER, .. })), "{sent:?}");
        // In use and not confirmed, it is asked directly.
        let asked = (2..20_000).step_by(250).any(|ms| turn(&mut host, ms, vec![]).iter().any(direct));
        assert_eq!(asked, !confirms);
    }
    for (frame, known) in [
        (arp_frame(arp::Op::Request, from, ("10.0.0.1", nobody)), true),
        (arp_frame(arp::Op::Request, from, ("10.0.0.7", nobody)), false),
        (arp_frame(arp::Op::Reply, from, us), false),
    ] {
        let mut host = Host::new(HostConfig::new(1));
        turn(&mut host, 0, vec![frame]);
        connect(&mut host, "10.0.0.9");
        let sent = turn(&mut host, 1, vec![]);
        assert_eq!(sent.iter().any(|s| matches!(s, Sent::Tcp { .. })), known, "{sent:?}");
    }
}

#[test]
fn another_router_has_its_turn_when_one_is_silent() {
    let mut host = alone(0);
    let list = [prefix("2001:db8:1::", true, true, 10_000, 10_000)];
    turn(&mut host, 0, vec![advert(9000, None, &list), advert_from(("fe80::a", OTHER), 9000, None, &[])]);
    connect(&mut host, "2001:db8:2::1");
    let mut macs = Vec::new();
    for ms in (0..60_000).step_by(250) {
        for s in turn(&mut host, ms, vec![]) {
            if let Sent::Tcp { to, .. } = s
                && macs.last() != Some(&to)
            {
                macs.push(to);
            }
        }
    }
    assert_eq!(macs[..2], [PEER, OTHER], "{macs:?}");
}

/// Two hosts that form their addresses talk to each other.
#[test]
fn two_hosts_meet_by_their_formed_addresses() {
    let host = |n| HostConfig { dad: 1, autoconf: true, addresses: vec![], ..HostConfig::new(n) };
    let clean = Default::default;
    let mut net = Net::new(NetConfig { a: host(1), b: host(2), a_to_b: clean(), b_to_a: clean(), seed: 1 });
    net.run(at(1500), |_| false);
    let b = Addr::from(net.b.stack.addresses(net.b.interface()).next().unwrap().0);
    let mut echo = Echo::start(&mut net.b, Endpoint { addr: b, port: 7 });
    let mut sender = Sender::start(&mut net.a, 1, Endpoint { addr: b, port: 7 }, 100_000, 3);
    let done = net.run(at(30_000), |net| {
        while let Some(e) = net.b.event() {
            echo.on_event(&mut net.b, e);
        }
        while let Some(e) = net.a.event() {
            sender.on_event(&mut net.a, e);
        }
        sender.poll(&mut net.a);
        sender.outcome != Outcome::Running
    });
    assert!(done && sender.outcome == Outcome::Complete, "{:?}", sender.outcome);
}

/// Frames that a host of its own would answer or learn from.
fn everything() -> Vec<Vec<u8>> {
    let all = ("ff02::1", MacAddr([0x33, 0x33, 0, 0, 0, 1]));
    let solicit = Message::NeighborSolicit { target: addr("fd00::1"), source_mac: Some(PEER) };
    let claim = Message::NeighborAdvert {
        target: addr("fd00::1"),
        target_mac: Some(PEER),
        router: false,
        solicited: false,
        r#override: true,
    };
    vec![
        arp_frame(arp::Op::Request, ("10.0.0.9", PEER), ("10.0.0.1", MacAddr([0; 6]))),
        arp_frame(arp::Op::Request, ("10.0.0.1", PEER), ("10.0.0.1", MacAddr([0; 6]))),
        ndp(("fd00::9", PEER), ("fd00::1", US), solicit),
        ndp(("fd00::9", PEER), all, claim),
        advert(1800, None, &[prefix("2001:db8:1::", true, true, 9000, 9000)]),
    ]
}

#[test]
fn in_shared_mode_the_kernel_does_all_this() {
    let config = HostConfig { mode: Mode::Shared, dad: 3, autoconf: true, ..HostConfig::new(1) };
    let mut host = Host::new(config);
    let ready = |host: &Host| host.stack.addresses(host.interface()).filter(|(_, usable)| *usable).count();
    assert_eq!((turn(&mut host, 0, vec![]), ready(&host)), (vec![], 2));
    assert_eq!(turn(&mut host, 1, everything()), []);
    assert_eq!((turn(&mut host, 60_000, vec![]), ready(&host)), (vec![], 2));
    let c = host.stack.counters();
    assert_eq!((c.address_conflicts, c.router_adverts), (0, 0));
    // What was heard is not known: the kernel is asked.
    connect(&mut host, "10.0.0.9");
    assert_eq!(turn(&mut host, 60_001, vec![]), []);
    let mut wanted = Vec::new();
    host.stack.wanted_neighbors(&mut wanted);
    assert_eq!(wanted, [(host.interface(), ip("10.0.0.9"))]);
}

#[test]
fn of_several_lanes_one_speaks_for_the_addresses() {
    let mut config = HostConfig { dad: 1, autoconf: true, ..HostConfig::new(1) };
    (config.stack.lane, config.stack.steering) = (1, stack::Steering::spread(2));
    let mut host = Host::new(config);
    for ms in (0..20_000).step_by(100) {
        assert_eq!(turn(&mut host, ms, vec![]), []);
    }
    assert!(host.stack.addresses(host.interface()).all(|(_, usable)| usable));
    assert_eq!(turn(&mut host, 20_000, everything()), []);
    // But it learns as the first one does: a router, a prefix, and who asked for us.
    turn(&mut host, 25_000, vec![]);
    assert_eq!(usable(&host, "2001:db8:1::").len(), 1);
    let (local, remote) = (addr("10.0.0.1"), Endpoint { addr: addr("10.0.0.9"), port: 80 });
    let local = Endpoint { addr: local, port: 0 };
    host.job(Job::Connect { token: Token(1), local, remote, receive_buffer: 0 });
    assert!(matches!(turn(&mut host, 25_001, vec![])[..], [Sent::Tcp { to: PEER, .. }]));
    // By IPv6 as well, a new hardware address too.
    let ask = Message::NeighborSolicit { target: addr("fd00::1"), source_mac: Some(OTHER) };
    assert_eq!(turn(&mut host, 26_000, vec![ndp(("fd00::77", OTHER), ("fd00::1", US), ask)]), []);
    let (local, remote) = (addr("fd00::1"), Endpoint { addr: addr("fd00::77"), port: 80 });
    let local = Endpoint { addr: local, port: 0 };
    host.job(Job::Connect { token: Token(2), local, remote, receive_buffer: 0 });
    let sent = turn(&mut host, 26_001, vec![]);
    // The other connection's SYN goes again as well.
    assert!(matches!(sent.last(), Some(Sent::Tcp { to: OTHER, .. })), "{sent:?}");
    assert_eq!(host.stack.take_conflicts(), []);
}

#[test]
fn an_address_on_the_way_changes_the_way() {
    let mut host = Host::new(HostConfig::new(1));
    let interface = host.interface();
    let (dst, gateway) = (ip("0.0.0.0"), Some(ip("10.0.0.9")));
    host.stack.add_route(stack::Route { dst, prefix: 0, gateway, interface, metric: 0 });
    host.stack.set_neighbor(at(0), interface, ip("10.0.0.9"), PEER);
    host.stack.set_neighbor(at(0), interface, ip("192.0.2.5"), OTHER);
    connect(&mut host, "192.0.2.5");
    let mut next = |ms: u64, change: &dyn Fn(&mut Host)| {
        change(&mut host);
        let sent = turn(&mut host, ms, vec![]);
        sent.iter().find_map(|s| if let Sent::Tcp { to, .. } = s { Some(*to) } else { None })
    };
    // The SYN, and those that repeat it.
    assert_eq!(next(0, &|_| ()), Some(PEER));
    assert_eq!(next(1001, &|h| h.stack.add_address(interface, ip("192.0.2.1"), 24)), Some(OTHER));
    assert_eq!(next(3002, &|h| h.stack.remove_address(interface, ip("192.0.2.1"))), Some(PEER));
    // What the kernel said of its neighbours is forgotten on the interfaces that are shared with it only.
    assert_eq!(next(7003, &|h| h.stack.forget_neighbors()), Some(PEER));
}

#[test]
fn what_the_kernel_said_is_forgotten_together() {
    let mut host = Host::new(HostConfig { mode: Mode::Shared, ..HostConfig::new(1) });
    let interface = host.interface();
    host.stack.set_neighbor(at(0), interface, ip("10.0.0.9"), PEER);
    connect(&mut host, "10.0.0.9");
    assert!(matches!(turn(&mut host, 0, vec![])[..], [Sent::Tcp { to: PEER, .. }]));
    host.stack.forget_neighbors();
    // The SYN that is due waits until the kernel was asked, and has answered.
    assert_eq!(turn(&mut host, 1001, vec![]), []);
    let mut wanted = Vec::new();
    host.stack.wanted_neighbors(&mut wanted);
    assert_eq!(wanted, [(interface, ip("10.0.0.9"))]);
    host.stack.set_neighbor(at(1002), interface, ip("10.0.0.9"), OTHER);
    assert!(matches!(turn(&mut host, 1002, vec![])[..], [Sent::Tcp { to: OTHER, .. }]));
    // Who waits for an answer that may have been thrown away asks again, and is served.
    connect(&mut host, "10.0.0.10");
    turn(&mut host, 1003, vec![]);
    let mut wanted = || {
        let mut all = Vec::new();
        host.stack.wanted_neighbors(&mut all);
        (host.stack.forget_neighbors(), all).1
    };
    assert_eq!([wanted(), wanted()], [[(interface, ip("10.0.0.10"))]; 2]);
    host.stack.set_neighbor(at(1004), interface, ip("10.0.0.10"), PEER);
    assert!(turn(&mut host, 1004, vec![]).iter().any(|s| matches!(s, Sent::Tcp { to: PEER, .. })));
}

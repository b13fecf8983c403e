//! ICMPv6 (RFC 4443) and neighbour discovery (RFC 4861).

use core::net::Ipv6Addr;

use crate::quoted::Quoted;
use crate::{Addr, MacAddr, Malformed, array, be16, be32, checksum};

/// Types of neighbour discovery messages.
pub const NDP: core::ops::RangeInclusive<u8> = 133..=137;

/// A prefix that a router announces (RFC 4861 4.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The prefix.
    pub prefix: Ipv6Addr,
    /// Its length, bits.
    pub len: u8,
    /// L: addresses in it are on the link.
    pub on_link: bool,
    /// A: addresses may be made from it.
    pub autonomous: bool,
    /// Valid for, seconds.
    pub valid: u32,
    /// Preferred for, seconds.
    pub preferred: u32,
}

/// The prefixes of one router advertisement; more than eight are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefixes {
    list: [Option<Prefix>; 8],
}

impl Prefixes {
    /// Adds one if there is room.
    pub fn push(&mut self, prefix: Prefix) {
        if let Some(slot) = self.list.iter_mut().find(|p| p.is_none()) {
            *slot = Some(prefix);
        }
    }

    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = Prefix> {
        self.list.into_iter().flatten()
    }
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Type 128.
    EchoRequest {
        /// Identifier.
        id: u16,
        /// Sequence number.
        seq: u16,
        /// What to send back.
        data: &'a [u8],
    },
    /// Type 129.
    EchoReply {
        /// Identifier.
        id: u16,
        /// Sequence number.
        seq: u16,
        /// What was sent.
        data: &'a [u8],
    },
    /// Type 1.
    Unreachable {
        /// Which kind.
        code: u8,
        /// What could not be delivered.
        quoted: Quoted,
    },
    /// Type 2.
    PacketTooBig {
        /// Next-hop MTU, bytes.
        mtu: u32,
        /// What could not be forwarded.
        quoted: Quoted,
    },
    /// Type 3.
    TimeExceeded {
        /// 0 in transit, 1 in reassembly.
        code: u8,
        /// What was dropped.
        quoted: Quoted,
    },
    /// Type 4.
    ParameterProblem {
        /// Which kind.
        code: u8,
        /// Where the trouble is.
        pointer: u32,
        /// What was dropped.
        quoted: Quoted,
    },
    /// Type 133.
    RouterSolicit {
        /// Source link-layer address option.
        source_mac: Option<MacAddr>,
    },
    /// Type 134.
    RouterAdvert {
        /// Default router for so long, seconds.
        lifetime: u16,
        /// Suggested hop limit; 0 says nothing.
        hop_limit: u8,
        /// Source link-layer address option.
        source_mac: Option<MacAddr>,
        /// MTU option.
        mtu: Option<u32>,
        /// Prefix options.
        prefixes: Prefixes,
    },
    /// Type 135.
    NeighborSolicit {
        /// Whose hardware address is asked for.
        target: Addr,
        /// Source link-layer address option.
        source_mac: Option<MacAddr>,
    },
    /// Type 136.
    NeighborAdvert {
        /// Whose hardware address it is.
        target: Addr,
        /// Target link-layer address option.
        target_mac: Option<MacAddr>,
        /// R.
        router: bool,
        /// S.
        solicited: bool,
        /// O.
        r#override: bool,
    },
    /// Type 137.
    Redirect {
        /// The better first hop; the destination itself where it is on the link.
        target: Addr,
        /// For packets to it.
        destination: Addr,
        /// Target link-layer address option.
        target_mac: Option<MacAddr>,
    },
    /// Anything else.
    Other {
        /// Its type.
        kind: u8,
    },
}

/// Calls `f` for each NDP option; a length of zero makes the message invalid (RFC 4861 7.1.1).
fn options<'a>(mut b: &'a [u8], mut f: impl FnMut(u8, &'a [u8])) -> Result<(), Malformed> {
    while !b.is_empty() {
        let len = *b.get(1).ok_or(Malformed::BadOption)? as usize * 8;
        if len == 0 || len > b.len() {
            return Err(Malformed::BadOption);
        }
        f(b[0], &b[..len]);
        b = &b[len..];
    }
    Ok(())
}

fn link_layer(o: &[u8]) -> MacAddr {
    MacAddr(array(o, 2))
}

/// The target of a neighbour message: one host's address (RFC 4861 7.1.1, 7.1.2), and no mapped one, which would speak
/// for an IPv4 neighbour.
fn target(b: &[u8]) -> Result<Addr, Malformed> {
    let target = Addr::from_v6(array(b, 8));
    if target.is_v4() || target.is_multicast() { Err(Malformed::BadField) } else { Ok(target) }
}

/// ff02::1:ff00:0/104 (RFC 4291 2.7.1).
fn is_solicited_node(a: Addr) -> bool {
    let [high, low] = a.as_words();
    high == 0xff02 << 48 && low >> 24 == 0x1ff
}

impl<'a> Message<'a> {
    /// Reads a message and verifies its checksum.
    pub fn parse(src: Addr, dst: Addr, b: &'a [u8]) -> Result<Message<'a>, Malformed> {
        if b.len() < 8 {
            return Err(Malformed::Truncated);
        }
        let sum = checksum::pseudo(src, dst, crate::ipv6::ICMPV6, b.len()).add(checksum::sum(b));
        if !sum.is_ok() {
            return Err(Malformed::BadChecksum);
        }
        let quoted = || Quoted::parse_v6(&b[8..]).ok_or(Malformed::Truncated);
        let mut source_mac = None;
        let mut target_mac = None;
        let mut lla = |kind, o: &'a [u8]| match kind {
            1 => source_mac = Some(link_layer(o)),
            2 => target_mac = Some(link_layer(o)),
            _ => {}
        };
        // RFC 4861 7.1: the code of every NDP message is zero.
        if NDP.contains(&b[0]) && b[1] != 0 {
            return Err(Malformed::BadField);
        }
        let long = |n| if b.len() < n { Err(Malformed::Truncated) } else { Ok(()) };
        Ok(match b[0] {
            128 => Message::EchoRequest { id: be16(b, 4), seq: be16(b, 6), data: &b[8..] },
            129 => Message::EchoReply { id: be16(b, 4), seq: be16(b, 6), data: &b[8..] },
            1 => Message::Unreachable { code: b[1], quoted: quoted()? },
            2 => Message::PacketTooBig { mtu: be32(b, 4), quoted: quoted()? },
            3 => Message::TimeExceeded { code: b[1], quoted: quoted()? },
            4 => Message::ParameterProblem { code: b[1], pointer: be32(b, 4), quoted: quoted()? },
            133 => {
                options(&b[8..], lla)?;
                // RFC 4861 6.1.1: who has no address yet cannot be answered there.
                if src.is_unspecified() && source_mac.is_some() {
                    return Err(Malformed::BadOption);
                }
                Message::RouterSolicit { source_mac }
            }
            134 => {
                long(16)?;
                // RFC 4861 6.1.2.
                if !src.is_link_local() {
                    return Err(Malformed::BadField);
                }
                let (mut mtu, mut prefixes) = (None, Prefixes::default());
                options(&b[16..], |kind, o| match (kind, o.len()) {
                    (5, 8) => mtu = Some(be32(o, 4)),
                    (3, 32) if o[2] <= 128 => {
                        prefixes.push(Prefix {
                            len: o[2],
                            on_link: o[3] & 0x80 != 0,
                            autonomous: o[3] & 0x40 != 0,
                            valid: be32(o, 4),
                            preferred: be32(o, 8),
                            prefix: Ipv6Addr::from(array::<16>(o, 16)),
                        });
                    }
                    _ => lla(kind, o),
                })?;
                Message::RouterAdvert { lifetime: be16(b, 6), hop_limit: b[4], source_mac, mtu, prefixes }
            }
            135 => {
                long(24)?;
                options(&b[24..], lla)?;
                // RFC 4861 7.1.1: a probe for duplicates goes to the group and has no address to be answered at.
                if src.is_unspecified() && !is_solicited_node(dst) {
                    return Err(Malformed::BadField);
                }
                if src.is_unspecified() && source_mac.is_some() {
                    return Err(Malformed::BadOption);
                }
                Message::NeighborSolicit { target: target(b)?, source_mac }
            }
            136 => {
                long(24)?;
                options(&b[24..], lla)?;
                let bit = |n: u8| b[4] & n != 0;
                // RFC 4861 7.1.2: what goes to a group answers nobody.
                if bit(0x40) && dst.is_multicast() {
                    return Err(Malformed::BadField);
                }
                Message::NeighborAdvert {
                    target: target(b)?,
                    target_mac,
                    router: bit(0x80),
                    solicited: bit(0x40),
                    r#override: bit(0x20),
                }
            }
            137 => {
                long(40)?;
                options(&b[40..], lla)?;
                // RFC 4861 8.1.
                let (target, destination) = (target(b)?, Addr::from_v6(array(b, 24)));
                let foreign = destination.is_v4() || destination.is_multicast();
                if !src.is_link_local() || foreign || !(target.is_link_local() || target == destination) {
                    return Err(Malformed::BadField);
                }
                Message::Redirect { target, destination, target_mac }
            }
            kind => Message::Other { kind },
        })
    }

    /// Writes an echo or NDP message; its length, at most 288 for NDP. `b` must have room. Errors are written by
    /// [`emit_unreachable`] and its like, which quote a packet; they and the rest give 0.
    pub fn emit(&self, src: Addr, dst: Addr, b: &mut [u8]) -> usize {
        let n = match *self {
            Message::EchoRequest { id, seq, data } => echo(b, 128, id, seq, data),
            Message::EchoReply { id, seq, data } => echo(b, 129, id, seq, data),
            Message::NeighborSolicit { target, source_mac } => neighbor(b, 135, 0, target, 1, source_mac),
            Message::NeighborAdvert { target, target_mac, router, solicited, r#override } => {
                let flags = (router as u8) << 7 | (solicited as u8) << 6 | (r#override as u8) << 5;
                neighbor(b, 136, flags, target, 2, target_mac)
            }
            Message::RouterSolicit { source_mac } => {
                b[..8].copy_from_slice(&[133, 0, 0, 0, 0, 0, 0, 0]);
                8 + link_layer_option(&mut b[8..], 1, source_mac)
            }
            Message::RouterAdvert { lifetime, hop_limit, source_mac, mtu, prefixes } => {
                b[..16].fill(0);
                b[0] = 134;
                b[4] = hop_limit;
                b[6..8].copy_from_slice(&lifetime.to_be_bytes());
                let mut n = 16 + link_layer_option(&mut b[16..], 1, source_mac);
                if let Some(mtu) = mtu {
                    b[n..n + 4].copy_from_slice(&[5, 1, 0, 0]);
                    b[n + 4..n + 8].copy_from_slice(&mtu.to_be_bytes());
                    n += 8;
                }
                for p in prefixes.iter() {
                    n += p.emit(&mut b[n..]);
                }
                n
            }
            Message::Redirect { target, destination, target_mac } => {
                b[..8].copy_from_slice(&[137, 0, 0, 0, 0, 0, 0, 0]);
                b[8..24].copy_from_slice(&target.octets());
                b[24..40].copy_from_slice(&destination.octets());
                40 + link_layer_option(&mut b[40..], 2, target_mac)
            }
            Message::Unreachable { .. }
            | Message::PacketTooBig { .. }
            | Message::TimeExceeded { .. }
            | Message::ParameterProblem { .. }
            | Message::Other { .. } => return 0,
        };
        seal(src, dst, &mut b[..n]);
        n
    }
}

impl Prefix {
    fn emit(&self, b: &mut [u8]) -> usize {
        b[..4].copy_from_slice(&[3, 4, self.len, (self.on_link as u8) << 7 | (self.autonomous as u8) << 6]);
        b[4..8].copy_from_slice(&self.valid.to_be_bytes());
        b[8..12].copy_from_slice(&self.preferred.to_be_bytes());
        b[12..16].fill(0);
        b[16..32].copy_from_slice(&self.prefix.octets());
        32
    }
}

fn echo(b: &mut [u8], kind: u8, id: u16, seq: u16, data: &[u8]) -> usize {
    b[..4].copy_from_slice(&[kind, 0, 0, 0]);
    b[4..6].copy_from_slice(&id.to_be_bytes());
    b[6..8].copy_from_slice(&seq.to_be_bytes());
    b[8..8 + data.len()].copy_from_slice(data);
    8 + data.len()
}

fn neighbor(b: &mut [u8], kind: u8, flags: u8, target: Addr, option: u8, mac: Option<MacAddr>) -> usize {
    b[..8].copy_from_slice(&[kind, 0, 0, 0, flags, 0, 0, 0]);
    b[8..24].copy_from_slice(&target.octets());
    24 + link_layer_option(&mut b[24..], option, mac)
}

fn link_layer_option(b: &mut [u8], kind: u8, mac: Option<MacAddr>) -> usize {
    let Some(mac) = mac else { return 0 };
    b[..2].copy_from_slice(&[kind, 1]);
    b[2..8].copy_from_slice(&mac.0);
    8
}

fn seal(src: Addr, dst: Addr, b: &mut [u8]) {
    b[2..4].fill(0);
    let sum = checksum::pseudo(src, dst, crate::ipv6::ICMPV6, b.len()).add(checksum::sum(b)).finish();
    b[2..4].copy_from_slice(&sum.to_be_bytes());
}

fn error(src: Addr, dst: Addr, b: &mut [u8], kind: u8, code: u8, word: u32, packet: &[u8]) -> usize {
    let n = 8 + packet.len();
    b[..4].copy_from_slice(&[kind, code, 0, 0]);
    b[4..8].copy_from_slice(&word.to_be_bytes());
    b[8..n].copy_from_slice(packet);
    seal(src, dst, &mut b[..n]);
    n
}

/// Writes "destination unreachable" with a quoted packet; its length. `b` must have room for 8 bytes and the packet.
pub fn emit_unreachable(src: Addr, dst: Addr, b: &mut [u8], code: u8, packet: &[u8]) -> usize {
    error(src, dst, b, 1, code, 0, packet)
}

/// Writes "packet too big" with a quoted packet; its length.
pub fn emit_too_big(src: Addr, dst: Addr, b: &mut [u8], mtu: u32, packet: &[u8]) -> usize {
    error(src, dst, b, 2, 0, mtu, packet)
}

/// Writes "time exceeded" (0 in transit, 1 in reassembly) with a quoted packet; its length.
pub fn emit_time_exceeded(src: Addr, dst: Addr, b: &mut [u8], code: u8, packet: &[u8]) -> usize {
    error(src, dst, b, 3, code, 0, packet)
}

/// Writes a parameter problem at byte `pointer` of a quoted packet; its length.
pub fn emit_parameter_problem(src: Addr, dst: Addr, b: &mut [u8], code: u8, pointer: u32, packet: &[u8]) -> usize {
    error(src, dst, b, 4, code, pointer, packet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ends() -> (Addr, Addr) {
        (Addr::from_v6([0xfd; 16]), Addr::from_v6([0xfe; 16]))
    }

    #[test]
    fn neighbour_messages_round_trip() {
        let (a, b) = ends();
        let mac = Some(MacAddr([2, 0, 0, 0, 0, 1]));
        let all = [
            Message::NeighborSolicit { target: b, source_mac: mac },
            Message::NeighborSolicit { target: b, source_mac: None },
            Message::NeighborAdvert { target: a, target_mac: mac, router: false, solicited: true, r#override: true },
        ];
        for m in all {
            let mut buf = [0; 32];
            let n = m.emit(a, b, &mut buf);
            assert_eq!(Message::parse(a, b, &buf[..n]), Ok(m));
            buf[9] ^= 1;
            assert_eq!(Message::parse(a, b, &buf[..n]), Err(Malformed::BadChecksum));
        }
    }

    #[test]
    fn an_option_of_length_zero_is_refused() {
        let (a, b) = ends();
        let mut buf = [0; 32];
        Message::NeighborSolicit { target: b, source_mac: Some(MacAddr([2; 6])) }.emit(a, b, &mut buf);
        buf[25] = 0;
        seal(a, b, &mut buf);
        assert_eq!(Message::parse(a, b, &buf), Err(Malformed::BadOption));
    }

    #[test]
    fn redirects() {
        let router = Addr::from(core::net::IpAddr::V6(MacAddr([2; 6]).link_local()));
        let other = Addr::from(core::net::IpAddr::V6(MacAddr([4; 6]).link_local()));
        let (a, b) = ends();
        let parse = |src, target, destination| {
            let m = Message::Redirect { target, destination, target_mac: Some(MacAddr([4; 6])) };
            let mut buf = [0; 48];
            assert_eq!(m.emit(src, b, &mut buf), 48);
            assert_eq!(Message::parse(src, b, &buf).unwrap_or(m), m);
            Message::parse(src, b, &buf).map(|_| ())
        };
        assert_eq!(parse(router, other, a), Ok(()));
        assert_eq!(parse(router, a, a), Ok(()));
        // From no router of the link, to no router of the link, about a group, about IPv4.
        assert_eq!(parse(a, other, a), Err(Malformed::BadField));
        assert_eq!(parse(router, b, a), Err(Malformed::BadField));
        assert_eq!(parse(router, other, Addr::from_v6([0xff; 16])), Err(Malformed::BadField));
        assert_eq!(parse(router, other, Addr::from_v4([10, 0, 0, 1])), Err(Malformed::BadField));
    }

    /// What a message parses to once `change` is made to its bytes.
    fn changed(m: Message, (a, b): (Addr, Addr), change: impl Fn(&mut [u8])) -> Result<(), Malformed> {
        let mut buf = [0; 64];
        let n = m.emit(a, b, &mut buf);
        change(&mut buf[..n]);
        seal(a, b, &mut buf[..n]);
        Message::parse(a, b, &buf[..n]).map(|_| ())
    }

    #[test]
    fn neighbour_messages_that_may_not_be() {
        let (a, b) = ends();
        let mac = Some(MacAddr([2; 6]));
        let solicit = |target, source_mac| Message::NeighborSolicit { target, source_mac };
        let advert = |target, solicited| Message::NeighborAdvert {
            target,
            target_mac: mac,
            router: false,
            solicited,
            r#override: true,
        };
        let as_it_is = |_: &mut [u8]| {};
        // A mapped target would rewrite an IPv4 neighbour; a group has no hardware address of its own.
        for bad in [Addr::from_v4([10, 0, 0, 1]), Addr::from_v6([0xff; 16])] {
            assert_eq!(changed(solicit(bad, mac), (a, b), as_it_is), Err(Malformed::BadField));
            assert_eq!(changed(advert(bad, false), (a, b), as_it_is), Err(Malformed::BadField));
        }
        assert_eq!(changed(advert(a, true), (a, b), as_it_is), Ok(()));
        assert_eq!(changed(advert(a, true), (a, Addr::from_v6([0xff; 16])), as_it_is), Err(Malformed::BadField));
        assert_eq!(changed(advert(a, false), (a, b), |m| m[1] = 1), Err(Malformed::BadField));
        // Probes for duplicates.
        let group = Addr::from("ff02::1:ff12:3456".parse::<core::net::IpAddr>().unwrap());
        let nobody = Addr::UNSPECIFIED_V6;
        assert_eq!(changed(solicit(b, None), (nobody, group), as_it_is), Ok(()));
        assert_eq!(changed(solicit(b, mac), (nobody, group), as_it_is), Err(Malformed::BadOption));
        assert_eq!(changed(solicit(b, None), (nobody, b), as_it_is), Err(Malformed::BadField));
        assert_eq!(
            changed(Message::RouterSolicit { source_mac: mac }, (nobody, group), as_it_is),
            Err(Malformed::BadOption)
        );
        // Only routers of this link announce.
        let quiet = Message::RouterAdvert {
            lifetime: 1,
            hop_limit: 0,
            source_mac: None,
            mtu: None,
            prefixes: Prefixes::default(),
        };
        assert_eq!(changed(quiet, (a, group), as_it_is), Err(Malformed::BadField));
    }

    #[test]
    fn errors_name_the_connection() {
        use crate::{SeqNum, ipv6};
        let (a, b) = ends();
        let mut packet = [0; 48];
        ipv6::Header { src: b, dst: a, ..Default::default() }.emit(&mut packet, 1400);
        packet[40..].copy_from_slice(&[0x1f, 0x90, 0, 80, 0, 0, 1, 0]);
        let quoted = Quoted { src: b, dst: a, protocol: 6, src_port: 8080, dst_port: 80, seq: Some(SeqNum(256)) };
        let mut buf = [0; 56];
        assert_eq!(emit_too_big(a, b, &mut buf, 1280, &packet), 56);
        assert_eq!(Message::parse(a, b, &buf), Ok(Message::PacketTooBig { mtu: 1280, quoted }));
        emit_unreachable(a, b, &mut buf, 4, &packet);
        assert_eq!(Message::parse(a, b, &buf), Ok(Message::Unreachable { code: 4, quoted }));
        emit_parameter_problem(a, b, &mut buf, 1, 40, &packet);
        assert_eq!(Message::parse(a, b, &buf), Ok(Message::ParameterProblem { code: 1, pointer: 40, quoted }));
        buf[0] = 3;
        seal(a, b, &mut buf);
        assert_eq!(Message::parse(a, b, &buf), Ok(Message::TimeExceeded { code: 1, quoted }));
        // Too little is quoted to name it.
        let n = emit_too_big(a, b, &mut buf, 1280, &packet[..47]);
        assert_eq!(Message::parse(a, b, &buf[..n]), Err(Malformed::Truncated));
    }

    fn mac() -> impl Strategy<Value = Option<MacAddr>> {
        proptest::option::of(any::<[u8; 6]>().prop_map(MacAddr))
    }

    prop_compose! {
        fn prefix()(prefix: [u8; 16], len in 0u8..=128, on_link: bool, autonomous: bool, valid: u32, preferred: u32) -> Prefix {
            Prefix { prefix: Ipv6Addr::from(prefix), len, on_link, autonomous, valid, preferred }
        }
    }

    proptest! {
        #[test]
        fn router_messages_round_trip(
            lifetime: u16, hop_limit: u8, source_mac in mac(), mtu in proptest::option::of(any::<u32>()),
            list in proptest::collection::vec(prefix(), 0..=8),
        ) {
            let mut prefixes = Prefixes::default();
            list.into_iter().for_each(|p| prefixes.push(p));
            let (a, b) = (Addr::from(core::net::IpAddr::V6(MacAddr([2; 6]).link_local())), ends().1);
            for m in [Message::RouterSolicit { source_mac }, Message::RouterAdvert { lifetime, hop_limit, source_mac, mtu, prefixes }] {
                let mut buf = [0xff; 288];
                let n = m.emit(a, b, &mut buf);
                prop_assert_eq!(Message::parse(a, b, &buf[..n]), Ok(m));
            }
        }

        #[test]
        fn echo_round_trip_and_oracle(id: u16, seq: u16, data in proptest::collection::vec(any::<u8>(), 0..100), reply: bool) {
            let (a, b) = ends();
            let m = match reply {
                true => Message::EchoReply { id, seq, data: &data },
                false => Message::EchoRequest { id, seq, data: &data },
            };
            let mut buf = vec![0; 8 + data.len()];
            m.emit(a, b, &mut buf);
            prop_assert_eq!(Message::parse(a, b, &buf), Ok(m));
            let oracle = etherparse::Icmpv6Slice::from_slice(&buf).unwrap();
            prop_assert!(oracle.is_checksum_valid(a.octets(), b.octets()));
        }

        #[test]
        fn any_bytes(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..120), kind in prop_oneof![1u8..5, 128u8..140],
            word: u32, sizes: [u8; 4],
        ) {
            let a = Addr::from(core::net::IpAddr::V6(MacAddr([2; 6]).link_local()));
            let b = ends().1;
            if bytes.len() >= 8 {
                bytes[..8].copy_from_slice(&[kind, 0, 0, 0, 0, 0, 0, 0]);
                bytes[4..8].copy_from_slice(&word.to_be_bytes());
                // Options of lengths that could be, so that walks go past the first.
                for (at, size) in [9, 17, 25, 33].into_iter().zip(sizes) {
                    if let Some(len) = bytes.get_mut(at) {
                        *len = size & 3;
                    }
                }
                seal(a, b, &mut bytes);
            }
            let _ = Message::parse(a, b, &bytes);
        }
    }
}

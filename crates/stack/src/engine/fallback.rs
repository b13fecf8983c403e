//! What a runtime with several lanes asks of one, so that a connection for which nobody listens here finds a listener
//! elsewhere (Fastsocket 3.2.1's global table, without a table that lanes share).

use wire::tcp::Flags;
use wire::{Addr, Instant, ethernet, icmpv4, icmpv6, ipv4, ipv6};

use crate::demux::Owner;
use crate::engine::Stack;
use crate::{FlowKey, InterfaceId};
use protocol::Endpoint;

/// The connection that a frame is about, as this end sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// Its four-tuple.
    pub key: FlowKey,
    /// A SYN that opens it.
    pub opens: bool,
}

/// The connection that a frame received by `interface` is about: a TCP segment's own, or the one that an ICMP error quotes. `None` for all
/// else, fragments included.
pub fn tuple_of(interface: InterfaceId, frame: &[u8]) -> Option<Tuple> {
    let eth = ethernet::Frame::parse(frame).ok()?;
    match eth.ethertype {
        ethernet::IPV4 => {
            let ip = ipv4::Packet::parse(eth.payload).ok()?;
            match ip.protocol {
                _ if ip.is_fragment() => None,
                ipv4::TCP => segment(interface, ip.src, ip.dst, ip.payload),
                ipv4::ICMP => match icmpv4::Message::parse(ip.payload).ok()? {
                    icmpv4::Message::Unreachable { quoted, .. }
                    | icmpv4::Message::TimeExceeded { quoted, .. }
                    | icmpv4::Message::ParameterProblem { quoted, .. } => Some(sent(interface, quoted)),
                    _ => None,
                },
                _ => None,
            }
        }
        ethernet::IPV6 => {
            let ip = ipv6::Packet::parse(eth.payload).ok()?;
            match ip.next_header {
                _ if ip.fragment.is_some_and(|f| f.more || f.offset != 0) => None,
                ipv6::TCP => segment(interface, ip.src, ip.dst, ip.payload),
                ipv6::ICMPV6 => match icmpv6::Message::parse(ip.src, ip.dst, ip.payload).ok()? {
                    icmpv6::Message::Unreachable { quoted, .. }
                    | icmpv6::Message::PacketTooBig { quoted, .. }
                    | icmpv6::Message::TimeExceeded { quoted, .. }
                    | icmpv6::Message::ParameterProblem { quoted, .. } => Some(sent(interface, quoted)),
                    _ => None,
                },
                _ => None,
            }
        }
        _ => None,
    }
}

fn segment(interface: InterfaceId, remote: Addr, local: Addr, bytes: &[u8]) -> Option<Tuple> {
    let [a, b, c, d, .., flags] = *bytes.get(..14)? else { return None };
    let (remote_port, local_port) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    let flags = Flags::from_bits(flags as u16);
    let opens = flags.contains(Flags::SYN) && !flags.contains(Flags::ACK) && !flags.contains(Flags::RST);
    Some(Tuple { key: FlowKey { interface, local, remote, local_port, remote_port }, opens })
}

/// What is quoted was sent by us.
fn sent(interface: InterfaceId, q: wire::quoted::Quoted) -> Tuple {
    let (local_port, remote_port) = (q.src_port, q.dst_port);
    let key = FlowKey { interface, local: q.src, remote: q.dst, local_port, remote_port };
    Tuple { key, opens: false }
}

/// Connections that are told of in [`NOTED_US`] at most, and of one peer: it keeps nobody else's from being told of.
const MOST_NOTED: usize = 16;
const MOST_OF_A_PEER: usize = 4;
/// Each of them makes work for another thread, so peers that send nothing but fragments must not bring about more than so much of it.
const NOTED_US: u64 = 100_000;

/// An IPv6 peer has all addresses of its network.
fn same_peer(a: Addr, b: Addr) -> bool {
    a == b || !a.is_v4() && !b.is_v4() && a.octets()[..8] == b.octets()[..8]
}

/// Connections whose peers send fragments, for the program of a shared interface, which remembers them.
#[derive(Debug, Default)]
pub(crate) struct Fragmenting {
    /// Not taken yet.
    new: Vec<FlowKey>,
    /// Since `begun`, those that were taken among them: a connection is told of once in that time.
    told: Vec<FlowKey>,
    begun: Instant,
}

impl Stack {
    /// Counts up whenever a listener comes or goes.
    pub fn listener_changes(&self) -> u64 {
        self.demux.listeners.changes
    }

    /// Where each listener listens, and whether a wildcard takes IPv6 alone.
    pub fn each_listener(&self, mut f: impl FnMut(Endpoint, bool)) {
        self.demux.listeners.each(|l| f(l.local, l.v6_only));
    }

    /// Where listeners have come or gone since this was asked last, whether of a wildcard for IPv6 alone, and whether one is there now.
    pub fn take_changed_listeners(&mut self, mut f: impl FnMut(Endpoint, bool, bool)) {
        for (at, v6_only) in core::mem::take(&mut self.demux.listeners.changed) {
            f(at, v6_only, self.demux.listeners.is_at(at, v6_only));
        }
    }

    /// The flow table's hash of a tuple: what follows from it nobody outside may see.
    pub fn tuple_hash(&self, key: &FlowKey) -> u32 {
        self.demux.hash(key)
    }

    /// One of so many for a connection, evenly and always the same.
    pub fn choose(&self, key: &FlowKey, count: usize) -> usize {
        self.demux.listeners.choose(key, count)
    }

    /// Whether this lane has the connection, its handshake, or what is remembered of it; what is remembered stands in no
    /// SYN's way.
    pub fn knows(&self, tuple: &Tuple) -> bool {
        self.finds(&tuple.key).is_some_and(|ended| !ended || !tuple.opens)
    }

    /// Whether a frame that came by `interface` is about a connection or a handshake of this lane. What is only remembered may have come back on another.
    pub fn serves(&self, interface: InterfaceId, frame: &[u8]) -> bool {
        tuple_of(interface, frame).is_some_and(|tuple| self.finds(&tuple.key) == Some(false))
    }

    /// Notes whose datagram came in fragments.
    pub(super) fn note_fragmenting(&mut self, now: Instant, interface: InterfaceId, whole: &[u8]) {
        if now.micros_since(self.fragmenting.begun) >= NOTED_US {
            self.fragmenting.begun = now;
            self.fragmenting.told.clear();
        }
        let told = &self.fragmenting.told;
        if told.len() < MOST_NOTED
            && let Some(Tuple { key, .. }) = tuple_of(interface, whole)
            && !told.contains(&key)
            && told.iter().filter(|other| same_peer(key.remote, other.remote)).count() < MOST_OF_A_PEER
            && self.is_alive(&key)
        {
            self.fragmenting.told.push(key);
            self.fragmenting.new.push(key);
        }
    }

    /// Connections whose peers have sent fragments since this was asked last; at most 16 in a tenth of a second, each once, and four of a
    /// peer.
    pub fn take_fragmenting(&mut self, f: impl FnMut(FlowKey)) {
        self.fragmenting.new.drain(..).for_each(f);
    }

    /// Whether [`Stack::take_fragmenting`] has any.
    #[inline]
    pub fn has_fragmenting(&self) -> bool {
        !self.fragmenting.new.is_empty()
    }

    /// Whether this lane has the connection or its handshake, TIME-WAIT aside.
    pub fn is_alive(&self, key: &FlowKey) -> bool {
        self.finds(key) == Some(false)
    }

    /// Whether a connection that this lane has in its table is only remembered.
    fn finds(&self, key: &FlowKey) -> Option<bool> {
        self.demux.look_up(&self.conns, key).map(Owner::is_over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::tcp::{Header, Options};
    use wire::{Addr, MacAddr, SeqNum};

    const I: InterfaceId = InterfaceId(0);

    fn frame(src: &str, dst: &str, flags: Flags) -> Vec<u8> {
        let (src, dst): (Addr, Addr) =
            (src.parse::<core::net::IpAddr>().unwrap().into(), dst.parse::<core::net::IpAddr>().unwrap().into());
        let header = Header {
            src_port: 5000,
            dst_port: 80,
            seq: SeqNum(1),
            ack: SeqNum(2),
            flags,
            window: 9,
            urgent: 0,
            options: Options::default(),
        };
        let mut tcp = [0; 60];
        let n = header.emit(&mut tcp, false);
        let mac = MacAddr([2; 6]);
        let mut b = vec![0; 14 + if src.is_v4() { 20 } else { 40 }];
        ethernet::emit(&mut b, mac, mac, None, if src.is_v4() { ethernet::IPV4 } else { ethernet::IPV6 });
        if src.is_v4() {
            ipv4::Header { src, dst, protocol: ipv4::TCP, ..Default::default() }.emit(&mut b[14..], n);
        } else {
            ipv6::Header { src, dst, next_header: ipv6::TCP, ..Default::default() }.emit(&mut b[14..], n);
        }
        b.extend(&tcp[..n]);
        b
    }

    #[test]
    fn a_segment_is_seen_from_its_receiver() {
        for (src, dst) in [("10.0.0.2", "10.0.0.1"), ("fd00::2", "fd00::1")] {
            let ip = |s: &str| Addr::from(s.parse::<core::net::IpAddr>().unwrap());
            let key = FlowKey { interface: I, local: ip(dst), remote: ip(src), local_port: 80, remote_port: 5000 };
            let opens = |flags| tuple_of(I, &frame(src, dst, flags)).map(|t| (t.key, t.opens));
            assert_eq!(opens(Flags::SYN), Some((key, true)));
            assert_eq!(opens(Flags::ACK), Some((key, false)));
            assert_eq!(opens(Flags::from_bits(Flags::SYN.bits() | Flags::ACK.bits())), Some((key, false)));
        }
    }

    /// An error is about what it quotes, and that was ours.
    #[test]
    fn an_error_is_seen_from_the_sender_of_what_it_quotes() {
        let mac = MacAddr([2; 6]);
        for (ours, theirs, router) in [("10.0.0.1", "10.0.0.2", "10.0.0.9"), ("fd00::1", "fd00::2", "fd00::9")] {
            let ip = |s: &str| Addr::from(s.parse::<core::net::IpAddr>().unwrap());
            let (us, router) = (ip(ours), ip(router));
            // Ports change places: the frame here is from us.
            let key = FlowKey { interface: I, local: us, remote: ip(theirs), local_port: 5000, remote_port: 80 };
            let quoted = &frame(ours, theirs, Flags::SYN)[14..];
            let mut errors: Vec<Vec<u8>> = Vec::new();
            let mut icmp = [0; 200];
            if us.is_v4() {
                let n = icmpv4::emit_unreachable(&mut icmp, 3, quoted);
                errors.push(icmp[..n].to_vec());
                let n = icmpv4::emit_time_exceeded(&mut icmp, 0, quoted);
                errors.push(icmp[..n].to_vec());
            } else {
                let n = icmpv6::emit_unreachable(router, us, &mut icmp, 4, quoted);
                errors.push(icmp[..n].to_vec());
                let n = icmpv6::emit_too_big(router, us, &mut icmp, 1280, quoted);
                errors.push(icmp[..n].to_vec());
                let n = icmpv6::emit_time_exceeded(router, us, &mut icmp, 0, quoted);
                errors.push(icmp[..n].to_vec());
                let n = icmpv6::emit_parameter_problem(router, us, &mut icmp, 1, 6, quoted);
                errors.push(icmp[..n].to_vec());
            }
            for error in errors {
                let mut b = vec![0; 14 + if us.is_v4() { 20 } else { 40 }];
                ethernet::emit(&mut b, mac, mac, None, if us.is_v4() { ethernet::IPV4 } else { ethernet::IPV6 });
                if us.is_v4() {
                    let ip = ipv4::Header { src: router, dst: us, protocol: ipv4::ICMP, ..Default::default() };
                    ip.emit(&mut b[14..], error.len());
                } else {
                    let ip = ipv6::Header { src: router, dst: us, next_header: ipv6::ICMPV6, ..Default::default() };
                    ip.emit(&mut b[14..], error.len());
                }
                b.extend(error);
                assert_eq!(tuple_of(I, &b), Some(Tuple { key, opens: false }), "{ours}");
            }
        }
    }

    /// Of a packet in pieces nobody knows what a piece is about; of one that is in one piece, whatever header it has.
    #[test]
    fn a_fragment_is_about_nothing() {
        let v4 = frame("10.0.0.2", "10.0.0.1", Flags::ACK);
        let v6 = frame("fd00::2", "fd00::1", Flags::ACK);
        assert!(tuple_of(I, &v4).is_some() && tuple_of(I, &v6).is_some());
        for (offset, more) in [(0u16, false), (0, true), (8, false), (8, true)] {
            let mut part = v4.clone();
            part[20..22].copy_from_slice(&((offset / 8) | ((more as u16) << 13)).to_be_bytes());
            part[24..26].fill(0);
            let sum = wire::checksum::sum(&part[14..34]).finish();
            part[24..26].copy_from_slice(&sum.to_be_bytes());
            assert_eq!(tuple_of(I, &part).is_some(), offset == 0 && !more, "{offset} {more}");
            let mut part = v6.clone();
            let [high, low] = (offset | more as u16).to_be_bytes();
            part.splice(54..54, [ipv6::TCP, 0, high, low, 0, 0, 0, 9]);
            part[20] = 44;
            let len = part.len() as u16 - 54;
            part[18..20].copy_from_slice(&len.to_be_bytes());
            assert_eq!(tuple_of(I, &part).is_some(), offset == 0 && !more, "{offset} {more}");
        }
    }

    proptest! {
        #[test]
        fn any_frame(bytes in proptest::collection::vec(any::<u8>(), 0..120), kind in 0usize..3) {
            let mut bytes = bytes;
            if bytes.len() > 14 {
                bytes[12..14].copy_from_slice(&[[8u8, 0], [0x86, 0xdd], [8, 6]][kind]);
            }
            let _ = tuple_of(I, &bytes);
        }
    }
}

//! Which lane a flow belongs to: symmetric receive-side scaling, computed as a NIC would (Woo and Park's repeated key).

use wire::{Addr, arp, ethernet, icmpv4, icmpv6, ipv4, ipv6};

/// The map from flows to lanes.
#[derive(Clone, Debug)]
pub enum Steering {
    /// One lane takes everything.
    Single,
    /// Toeplitz hash over the tuple, then an indirection table.
    Hash(Box<Toeplitz>),
}

/// A Toeplitz hash with its indirection table.
#[derive(Clone)]
pub struct Toeplitz {
    /// Hash contribution of each value of each input byte.
    bytes: Box<[[u32; 256]; 36]>,
    table: [u16; 128],
}

/// The key whose 16-bit period makes both directions of a flow hash alike.
pub const SYMMETRIC_KEY: [u8; 40] = {
    let mut key = [0; 40];
    let mut i = 0;
    while i < 40 {
        key[i] = if i % 2 == 0 { 0x6d } else { 0x5a };
        i += 1;
    }
    key
};

impl core::fmt::Debug for Toeplitz {
    fn fmt(&self, f: &mut core::fmt::Formatter) -> core::fmt::Result {
        f.debug_struct("Toeplitz").field("table", &self.table).finish_non_exhaustive()
    }
}

impl Toeplitz {
    /// A hash under `key` whose low seven bits index `table`.
    pub fn new(key: [u8; 40], table: [u16; 128]) -> Toeplitz {
        let mut bytes = Box::new([[0u32; 256]; 36]);
        for (at, row) in bytes.iter_mut().enumerate() {
            for (value, slot) in row.iter_mut().enumerate() {
                for bit in 0..8 {
                    if value & (0x80 >> bit) != 0 {
                        *slot ^= window(&key, at * 8 + bit);
                    }
                }
            }
        }
        Toeplitz { bytes, table }
    }

    fn hash(&self, input: impl Iterator<Item = u8>) -> u32 {
        input.zip(self.bytes.iter()).fold(0, |h, (b, row)| h ^ row[b as usize])
    }

    /// The hash of a tuple as it stands in a received packet.
    pub fn tuple(&self, src: Addr, dst: Addr, src_port: u16, dst_port: u16) -> u32 {
        let ports = src_port.to_be_bytes().into_iter().chain(dst_port.to_be_bytes());
        if src.is_v4() {
            self.hash(src.v4_octets().into_iter().chain(dst.v4_octets()).chain(ports))
        } else {
            self.hash(src.octets().into_iter().chain(dst.octets()).chain(ports))
        }
    }

    /// Lanes that the table names.
    pub fn lanes(&self) -> u16 {
        self.table.iter().max().map_or(1, |l| l + 1)
    }

    fn lane(&self, hash: u32) -> u16 {
        self.table[hash as usize & 127]
    }
}

/// 32 bits of the key from bit `at` on.
fn window(key: &[u8; 40], at: usize) -> u32 {
    (0..32).fold(0, |w, i| {
        let bit = at + i;
        w << 1 | (key.get(bit / 8).map_or(0, |b| b >> (7 - bit % 8)) & 1) as u32
    })
}

impl Steering {
    /// An even spread over `lanes` under the symmetric key.
    pub fn spread(lanes: u16) -> Steering {
        if lanes <= 1 {
            return Steering::Single;
        }
        let mut table = [0; 128];
        for (i, slot) in table.iter_mut().enumerate() {
            *slot = i as u16 % lanes;
        }
        Steering::Hash(Box::new(Toeplitz::new(SYMMETRIC_KEY, table)))
    }

    /// The lane of a packet's tuple.
    #[inline]
    pub fn lane_of(&self, src: Addr, dst: Addr, src_port: u16, dst_port: u16) -> u16 {
        match self {
            Steering::Single => 0,
            Steering::Hash(t) => t.lane(t.tuple(src, dst, src_port, dst_port)),
        }
    }

    /// The lane of a received frame: TCP by its tuple, an ICMP error by the tuple it quotes, fragments by their datagram,
    /// everything else on lane 0.
    pub fn lane_of_frame(&self, frame: &[u8]) -> u16 {
        match self {
            Steering::Single => 0,
            Steering::Hash(_) => self.classify(frame).unwrap_or(0),
        }
    }

    fn classify(&self, frame: &[u8]) -> Option<u16> {
        let eth = ethernet::Frame::parse(frame).ok()?;
        match eth.ethertype {
            ethernet::IPV4 => {
                let ip = ipv4::Packet::parse(eth.payload).ok()?;
                if ip.is_fragment() {
                    return Some(self.lane_of(ip.src, ip.dst, ip.id, ip.protocol as u16));
                }
                match ip.protocol {
                    ipv4::TCP => self.ports(ip.src, ip.dst, ip.payload),
                    ipv4::ICMP => self.quoted(match icmpv4::Message::parse(ip.payload).ok()? {
                        icmpv4::Message::Unreachable { quoted, .. }
                        | icmpv4::Message::TimeExceeded { quoted, .. }
                        | icmpv4::Message::ParameterProblem { quoted, .. } => quoted,
                        _ => return None,
                    }),
                    _ => None,
                }
            }
            ethernet::IPV6 => {
                let ip = ipv6::Packet::parse(eth.payload).ok()?;
                if let Some(f) = ip.fragment.filter(|f| f.more || f.offset != 0) {
                    return Some(self.lane_of(ip.src, ip.dst, f.id as u16, (f.id >> 16) as u16));
                }
                match ip.next_header {
                    ipv6::TCP => self.ports(ip.src, ip.dst, ip.payload),
                    ipv6::ICMPV6 => {
                        self.quoted(match icmpv6::Message::parse(ip.src, ip.dst, ip.payload).ok()? {
                            icmpv6::Message::Unreachable { quoted, .. }
                            | icmpv6::Message::PacketTooBig { quoted, .. }
                            | icmpv6::Message::TimeExceeded { quoted, .. }
                            | icmpv6::Message::ParameterProblem { quoted, .. } => quoted,
                            _ => return None,
                        })
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn ports(&self, src: Addr, dst: Addr, segment: &[u8]) -> Option<u16> {
        let [a, b, c, d, ..] = *segment else { return None };
        Some(self.lane_of(src, dst, u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
    }

    /// The quoted packet went out; its answers come in with the ends exchanged.
    fn quoted(&self, q: wire::quoted::Quoted) -> Option<u16> {
        Some(self.lane_of(q.dst, q.src, q.dst_port, q.src_port))
    }
}

/// Frames that every lane must see: neighbour discovery keeps each lane's table fresh.
pub fn is_for_all(frame: &[u8]) -> bool {
    let Ok(eth) = ethernet::Frame::parse(frame) else { return false };
    match eth.ethertype {
        ethernet::ARP => arp::Packet::parse(eth.payload).is_ok_and(|p| p.op == arp::Op::Reply),
        ethernet::IPV6 => ipv6::Packet::parse(eth.payload).is_ok_and(|ip| {
            ip.next_header == ipv6::ICMPV6 && ip.payload.first() == Some(&136)
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The key of Microsoft's "Verifying the RSS Hash Calculation".
    const MICROSOFT: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca,
        0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b,
        0xbe, 0xac, 0x01, 0xfa,
    ];

    fn ip(s: &str) -> Addr {
        s.parse::<core::net::IpAddr>().unwrap().into()
    }

    #[test]
    fn published_vectors() {
        let t = Toeplitz::new(MICROSOFT, [0; 128]);
        let v = [
            ("66.9.149.187", 2794, "161.142.100.80", 1766, 0x51cc_c178),
            ("199.92.111.2", 14230, "65.69.140.83", 4739, 0xc626_b0ea),
            ("24.19.198.95", 12898, "12.22.207.184", 38024, 0x5c2b_394a),
            ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x4020_7d3d),
            ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0xdde5_1bbf),
        ];
        for (src, sport, dst, dport, hash) in v {
            assert_eq!(t.tuple(ip(src), ip(dst), sport, dport), hash, "{src}");
        }
    }

    proptest! {
        #[test]
        fn both_directions_agree(a: [u8; 4], b: [u8; 4], x: [u8; 16], y: [u8; 16], p: u16, q: u16, lanes in 2u16..9) {
            let s = Steering::spread(lanes);
            for (a, b) in [(Addr::from_v4(a), Addr::from_v4(b)), (Addr::from_v6(x), Addr::from_v6(y))] {
                let lane = s.lane_of(a, b, p, q);
                prop_assert!(lane < lanes);
                prop_assert_eq!(lane, s.lane_of(b, a, q, p));
            }
        }

        #[test]
        fn any_frame(bytes in proptest::collection::vec(any::<u8>(), 0..120), kind in 0usize..3) {
            let mut bytes = bytes;
            if bytes.len() > 14 {
                bytes[12..14].copy_from_slice(&[[8u8, 0], [0x86, 0xdd], [8, 6]][kind]);
            }
            prop_assert!(Steering::spread(4).lane_of_frame(&bytes) < 4);
        }
    }
}

//! Which lane a flow belongs to: symmetric receive-side scaling, computed as a NIC would (Woo and Park's repeated key).

use wire::{Addr, ethernet, icmpv4, icmpv6, ipv4, ipv6};

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
    /// The key repeats itself every 16 bits, so that the hash of the input is that of its 16-bit words together.
    periodic: bool,
    /// A power of two of them.
    table: Box<[u16]>,
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
    /// A hash under `key` whose low bits index `table`; entries beyond the largest power of two are left out.
    pub fn new(key: [u8; 40], table: &[u16]) -> Toeplitz {
        let whole = if table.is_empty() { 0 } else { 1 << table.len().ilog2() };
        let table: Box<[u16]> = if whole == 0 { Box::new([0]) } else { table[..whole].into() };
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
        let periodic = key.iter().enumerate().all(|(at, byte)| *byte == key[at % 2]);
        Toeplitz { bytes, periodic, table }
    }

    #[inline]
    fn hash<const N: usize>(&self, input: &[u8; N]) -> u32 {
        if self.periodic {
            let (words, _) = input.as_chunks::<4>();
            let all = words.iter().fold(0, |all, word| all ^ u32::from_be_bytes(*word));
            return self.folded(all);
        }
        input.iter().zip(self.bytes.iter()).fold(0, |h, (b, row)| h ^ row[*b as usize])
    }

    /// The hash of input whose 32-bit words together are `all`, under a key with a period.
    #[inline]
    fn folded(&self, all: u32) -> u32 {
        let [high, low] = ((all >> 16 ^ all) as u16).to_be_bytes();
        self.bytes[0][high as usize] ^ self.bytes[1][low as usize]
    }

    /// The hash of a tuple as it stands in a received packet.
    #[inline]
    pub fn tuple(&self, src: Addr, dst: Addr, src_port: u16, dst_port: u16) -> u32 {
        let ports = (src_port as u32) << 16 | dst_port as u32;
        if self.periodic && src.is_v4() == dst.is_v4() {
            // What marks an address as IPv4's is in both, and cancels itself.
            let ([a, b], [c, d]) = (src.as_words(), dst.as_words());
            let all = a ^ b ^ c ^ d;
            return self.folded((all >> 32) as u32 ^ all as u32 ^ ports);
        }
        if src.is_v4() {
            let mut input = [0; 12];
            input[..4].copy_from_slice(&src.v4_octets());
            input[4..8].copy_from_slice(&dst.v4_octets());
            input[8..].copy_from_slice(&ports.to_be_bytes());
            self.hash(&input)
        } else {
            let mut input = [0; 36];
            input[..16].copy_from_slice(&src.octets());
            input[16..32].copy_from_slice(&dst.octets());
            input[32..].copy_from_slice(&ports.to_be_bytes());
            self.hash(&input)
        }
    }

    /// The lane of a frame that is plainly TCP: no tag, no IP options or extension headers, no fragment. There source,
    /// destination and ports lie side by side.
    #[inline]
    fn plain(&self, frame: &[u8]) -> Option<u16> {
        let head = frame.first_chunk::<38>()?;
        let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        // Ethertype, version and header length; more to follow or an offset, protocol.
        let hash = if word(12) >> 8 == 0x0008_0045 && word(20) & 0x3fff_00ff == ipv4::TCP as u32 {
            self.hash(head[26..].first_chunk::<12>()?)
        } else if word(12) >> 12 == 0x0008_6dd6 && head[20] == ipv6::TCP {
            self.hash(frame.get(22..)?.first_chunk::<36>()?)
        } else {
            return None;
        };
        Some(self.lane(hash))
    }

    /// Lanes that the table names.
    pub fn lanes(&self) -> u16 {
        self.table.iter().max().map_or(1, |l| l + 1)
    }

    fn lane(&self, hash: u32) -> u16 {
        self.table[hash as usize & (self.table.len() - 1)]
    }
}

/// 32 bits of the key from bit `at` on.
fn window(key: &[u8; 40], at: usize) -> u32 {
    (0..32).fold(0, |w, i| {
        let bit = at + i;
        w << 1 | (key.get(bit / 8).map_or(0, |b| b >> (7 - bit % 8)) & 1) as u32
    })
}

/// Entries for each lane in a table of our own: then none has above a 64th more than its share.
const ENTRIES: usize = 64;
/// Entries of such a table at most: as many as 128 lanes need.
const MOST_ENTRIES: usize = 8192;

/// Lanes in turn.
fn even_table(lanes: u16) -> Vec<u16> {
    let entries = (lanes as usize * ENTRIES).next_power_of_two().min(MOST_ENTRIES);
    (0..entries).map(|i| (i % lanes as usize) as u16).collect()
}

impl Steering {
    /// An even spread over `lanes` under the symmetric key.
    pub fn spread(lanes: u16) -> Steering {
        if lanes <= 1 {
            return Steering::Single;
        }
        Steering::Hash(Box::new(Toeplitz::new(SYMMETRIC_KEY, &even_table(lanes))))
    }

    /// As a NIC does with this key and table of lanes; `None` where a lane of `lanes` would get nothing.
    pub fn predicted(key: [u8; 40], table: &[u16], lanes: u16) -> Option<Steering> {
        let all = (0..lanes).all(|lane| table.contains(&lane)) && table.iter().all(|lane| *lane < lanes);
        if lanes <= 1 {
            return Some(Steering::Single);
        }
        (all && table.len().is_power_of_two()).then(|| Steering::Hash(Box::new(Toeplitz::new(key, table))))
    }

    /// How many lanes there are.
    pub fn lanes(&self) -> u16 {
        match self {
            Steering::Single => 1,
            Steering::Hash(t) => t.lanes(),
        }
    }

    /// The lane of a packet's tuple.
    #[inline]
    pub fn lane_of(&self, src: Addr, dst: Addr, src_port: u16, dst_port: u16) -> u16 {
        match self {
            Steering::Single => 0,
            Steering::Hash(t) => t.lane(t.tuple(src, dst, src_port, dst_port)),
        }
    }

    /// The lane of a frame that is plainly TCP; `None` for all others, whose lane [`Steering::named_lane`] finds.
    #[inline]
    pub fn lane_of_plain(&self, frame: &[u8]) -> Option<u16> {
        match self {
            Steering::Single => Some(0),
            Steering::Hash(t) => t.plain(frame),
        }
    }

    /// The lane that a received frame names: TCP by its tuple, an ICMP error by the tuple it quotes, fragments by their datagram;
    /// `None` for all else.
    pub fn named_lane(&self, frame: &[u8]) -> Option<u16> {
        if matches!(self, Steering::Single) {
            return Some(0);
        }
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
                    ipv6::ICMPV6 => self.quoted(match icmpv6::Message::parse(ip.src, ip.dst, ip.payload).ok()? {
                        icmpv6::Message::Unreachable { quoted, .. }
                        | icmpv6::Message::PacketTooBig { quoted, .. }
                        | icmpv6::Message::TimeExceeded { quoted, .. }
                        | icmpv6::Message::ParameterProblem { quoted, .. } => quoted,
                        _ => return None,
                    }),
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

/// Frames that every lane must see: each has its own table of neighbours, routers and addresses.
pub fn is_for_all(frame: &[u8]) -> bool {
    let Ok(eth) = ethernet::Frame::parse(frame) else { return false };
    match eth.ethertype {
        ethernet::ARP => true,
        ethernet::IPV6 => ipv6::Packet::parse(eth.payload).is_ok_and(|ip| {
            // Routers' advertisements, neighbours' and redirects; solicitations from nobody ask for an address. In fragments
            // they are nobody's (RFC 6980).
            let kind = ip.payload.first().filter(|_| ip.next_header == ipv6::ICMPV6 && ip.fragment.is_none());
            matches!(kind, Some(134 | 136 | 137)) || (kind == Some(&135) && ip.src.is_unspecified())
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::MacAddr;

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
        let t = Toeplitz::new(MICROSOFT, &[0; 128]);
        let v = [
            ("66.9.149.187", 2794, "161.142.100.80", 1766, 0x51cc_c178),
            ("199.92.111.2", 14230, "65.69.140.83", 4739, 0xc626_b0ea),
            ("24.19.198.95", 12898, "12.22.207.184", 38024, 0x5c2b_394a),
            ("38.27.205.30", 48228, "209.142.163.6", 2217, 0xafc7_327f),
            ("153.39.163.191", 44251, "202.188.127.2", 1303, 0x10e8_28a2),
            ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x4020_7d3d),
            ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0xdde5_1bbf),
            ("3ffe:1900:4545:3:200:f8ff:fe21:67cf", 44251, "fe80::200:f8ff:fe21:67cf", 38024, 0x02d1_feef),
        ];
        for (src, sport, dst, dport, hash) in v {
            assert_eq!(t.tuple(ip(src), ip(dst), sport, dport), hash, "{src}");
        }
    }

    /// A NIC's own key is not symmetric; the lane of a frame that comes in is all that is ever asked for.
    #[test]
    fn a_nic_is_predicted_or_not_at_all() {
        let table: Vec<u16> = (0..512).map(|i| (i % 3) as u16).collect();
        let s = Steering::predicted(MICROSOFT, &table, 3).unwrap();
        // Microsoft's first vector: 0x51ccc178.
        assert_eq!(s.lane_of(ip("66.9.149.187"), ip("161.142.100.80"), 2794, 1766), (0x178 % 3) as u16);
        assert_eq!(s.lanes(), 3);
        assert!(Steering::predicted(MICROSOFT, &table, 4).is_none(), "nothing for lane 3");
        assert!(Steering::predicted(MICROSOFT, &table, 2).is_none(), "something for nobody");
        assert!(Steering::predicted(MICROSOFT, &table[..500], 3).is_none());
        assert!(matches!(Steering::predicted(MICROSOFT, &table, 1), Some(Steering::Single)));
    }

    #[test]
    fn plain_segments_are_recognised() {
        let s = Steering::spread(4);
        let v4 = eth(None, ethernet::IPV4, &packet(false, ipv4::TCP, &segment(5000, 80), None));
        assert_eq!(s.lane_of_plain(&v4), Some(s.lane_of(ip(A[0]), ip(B[0]), 5000, 80)));
        let mut v6 = vec![0; 40];
        let header = ipv6::Header { src: ip(A[1]), dst: ip(B[1]), next_header: ipv6::TCP, ..Default::default() };
        header.emit(&mut v6, 20);
        v6.extend(segment(5000, 80));
        let v6 = eth(None, ethernet::IPV6, &v6);
        assert_eq!(s.lane_of_plain(&v6), Some(s.lane_of(ip(A[1]), ip(B[1]), 5000, 80)));
        let udp = eth(None, ethernet::IPV4, &packet(false, 17, &segment(5000, 80), None));
        let tagged = eth(Some(5), ethernet::IPV4, &packet(false, ipv4::TCP, &segment(5000, 80), None));
        let part = eth(None, ethernet::IPV4, &packet(false, ipv4::TCP, &segment(5000, 80), Some((1, 0, true))));
        for frame in [&udp, &tagged, &part, &v4[..37].to_vec(), &v6[..57].to_vec()] {
            assert_eq!(s.lane_of_plain(frame), None);
        }
    }

    /// A key with a period is hashed in one step; the same key as any other gives the same.
    #[test]
    fn a_period_is_a_short_cut() {
        let short = Toeplitz::new(SYMMETRIC_KEY, &[0]);
        let long = Toeplitz { periodic: false, ..short.clone() };
        assert!(short.periodic && !Toeplitz::new(MICROSOFT, &[0]).periodic);
        for port in 0..500 {
            for (a, b) in [("10.1.2.3", "192.168.77.9"), ("fd00::1:2:3", "2001:db8:77::9")] {
                assert_eq!(short.tuple(ip(a), ip(b), port, 80), long.tuple(ip(a), ip(b), port, 80));
            }
        }
        // Not all the same, either.
        assert_ne!(
            short.tuple(ip("10.0.0.1"), ip("10.0.0.2"), 1, 80),
            short.tuple(ip("10.0.0.1"), ip("10.0.0.2"), 2, 80)
        );
    }

    #[test]
    fn a_spread_uses_its_lanes_alike() {
        assert_eq!(Steering::spread(1).lane_of(ip("10.0.0.1"), ip("10.0.0.2"), 1, 2), 0);
        let s = Steering::spread(4);
        let mut flows = [0; 4];
        for port in 0..4000 {
            flows[s.lane_of(ip("10.0.0.1"), ip("10.0.0.2"), 16_384 + port, 80) as usize] += 1;
        }
        assert!(flows.iter().all(|n| (900..1100).contains(n)), "{flows:?}");
    }

    /// All ports of a peer: under this key each value of the hash comes once.
    #[test]
    fn no_lane_has_much_more_than_its_share() {
        let (a, b) = (ip("10.0.0.1"), ip("10.0.0.2"));
        for lanes in 1..=128u16 {
            let s = Steering::spread(lanes);
            let mut flows = vec![0u32; lanes as usize];
            (0..=u16::MAX).for_each(|port| flows[s.lane_of(a, b, port, 80) as usize] += 1);
            let share = 65_536.0 / lanes as f64;
            assert!(flows.iter().all(|n| (0.97..1.03).contains(&(*n as f64 / share))), "{lanes}: {flows:?}");
        }
    }

    const A: [&str; 2] = ["10.0.0.1", "fd00::1"];
    const B: [&str; 2] = ["10.0.0.2", "fd00::2"];

    fn eth(vlan: Option<u16>, ethertype: u16, packet: &[u8]) -> Vec<u8> {
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let mut b = vec![0; 18];
        let n = ethernet::emit(&mut b, mac, mac, vlan, ethertype);
        b.truncate(n);
        b.extend(packet);
        b
    }

    /// A packet from A to B; `fragment` is its id, offset and whether more follow.
    fn packet(v6: bool, protocol: u8, payload: &[u8], fragment: Option<(u32, u16, bool)>) -> Vec<u8> {
        let (src, dst) = (ip(A[v6 as usize]), ip(B[v6 as usize]));
        let mut b = vec![0; if v6 { 40 } else { 20 }];
        if v6 {
            let mut ext = Vec::new();
            // Always through a hop-by-hop header.
            let next_header = match fragment {
                Some((id, offset, more)) => {
                    ext.extend([44, 0, 1, 4, 0, 0, 0, 0, protocol, 0]);
                    ext.extend((offset | more as u16).to_be_bytes());
                    ext.extend(id.to_be_bytes());
                    0
                }
                None => {
                    ext.extend([protocol, 0, 1, 4, 0, 0, 0, 0]);
                    0
                }
            };
            ipv6::Header { src, dst, next_header, ..Default::default() }.emit(&mut b, ext.len() + payload.len());
            b.extend(ext);
        } else {
            let (id, offset, more) = fragment.unwrap_or_default();
            let h = ipv4::Header { src, dst, protocol, id: id as u16, dont_fragment: false, ..Default::default() };
            h.emit(&mut b, payload.len());
            b[6..8].copy_from_slice(&((offset / 8) | ((more as u16) << 13)).to_be_bytes());
            b[10..12].fill(0);
            let sum = wire::checksum::sum(&b).finish();
            b[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        b.extend(payload);
        b
    }

    fn segment(sport: u16, dport: u16) -> Vec<u8> {
        let mut b = vec![0; 20];
        b[..2].copy_from_slice(&sport.to_be_bytes());
        b[2..4].copy_from_slice(&dport.to_be_bytes());
        b[12] = 5 << 4;
        b
    }

    #[test]
    fn frames_find_their_flow_s_lane() {
        let s = Steering::spread(4);
        for (v6, ethertype) in [(false, ethernet::IPV4), (true, ethernet::IPV6)] {
            let (a, b) = (ip(A[v6 as usize]), ip(B[v6 as usize]));
            let mut lanes = std::collections::HashSet::new();
            for port in 5000..5064 {
                let lane = s.lane_of(a, b, port, 80);
                lanes.insert(lane);
                let tcp = packet(v6, ipv4::TCP, &segment(port, 80), None);
                for vlan in [None, Some(7)] {
                    assert_eq!(s.named_lane(&eth(vlan, ethertype, &tcp)), Some(lane));
                    // Someone on the way says that what A sent did not fit: the error goes to B's peer, whose flow is
                    // quoted the other way round.
                    let mut error = vec![0; 600];
                    let n = if v6 {
                        icmpv6::emit_too_big(a, b, &mut error, 1280, &tcp)
                    } else {
                        icmpv4::emit_too_big(&mut error, 1280, &tcp)
                    };
                    let protocol = if v6 { ipv6::ICMPV6 } else { ipv4::ICMP };
                    let error = packet(v6, protocol, &error[..n], None);
                    assert_eq!(s.named_lane(&eth(vlan, ethertype, &error)), Some(s.lane_of(b, a, 80, port)));
                }
            }
            assert_eq!(lanes.len(), 4);
        }
    }

    #[test]
    fn an_asymmetric_key_needs_the_quoted_tuple_turned() {
        let table: [u16; 128] = core::array::from_fn(|i| i as u16);
        let s = Steering::Hash(Box::new(Toeplitz::new(MICROSOFT, &table)));
        let (a, b) = (ip(A[0]), ip(B[0]));
        assert_ne!(s.lane_of(a, b, 5000, 80), s.lane_of(b, a, 80, 5000));
        let mut error = vec![0; 600];
        let n = icmpv4::emit_unreachable(&mut error, 1, &packet(false, ipv4::TCP, &segment(5000, 80), None));
        let frame = eth(None, ethernet::IPV4, &packet(false, ipv4::ICMP, &error[..n], None));
        // A sent it; what comes back on that flow comes from B.
        assert_eq!(s.named_lane(&frame), Some(s.lane_of(b, a, 80, 5000)));
    }

    #[test]
    fn all_fragments_of_a_datagram_meet() {
        let s = Steering::spread(4);
        for (v6, ethertype) in [(false, ethernet::IPV4), (true, ethernet::IPV6)] {
            let mut lanes = std::collections::HashSet::new();
            for id in 0..64 {
                // The first holds ports, which must not count; the others hold anything.
                let first = packet(v6, ipv4::TCP, &segment(id as u16, 80), Some((id, 0, true)));
                let lane = s.named_lane(&eth(None, ethertype, &first)).unwrap();
                for (offset, more) in [(16, true), (32, false)] {
                    let next = packet(v6, ipv4::TCP, &[id as u8; 16], Some((id, offset, more)));
                    assert_eq!(s.named_lane(&eth(Some(9), ethertype, &next)), Some(lane));
                }
                lanes.insert(lane);
            }
            assert!(lanes.len() > 1);
        }
        // RFC 6946: alone in its datagram, it is no fragment.
        let atomic = packet(true, ipv6::TCP, &segment(5000, 80), Some((3, 0, false)));
        let lane = s.lane_of(ip(A[1]), ip(B[1]), 5000, 80);
        assert_eq!(s.named_lane(&eth(None, ethernet::IPV6, &atomic)), Some(lane));
    }

    #[test]
    fn what_belongs_to_no_flow_names_no_lane() {
        let table = [3; 128];
        let s = Steering::Hash(Box::new(Toeplitz::new(SYMMETRIC_KEY, &table)));
        let tcp = packet(false, ipv4::TCP, &segment(1, 2), None);
        assert_eq!(s.named_lane(&eth(None, ethernet::IPV4, &tcp)), Some(3));
        let udp = packet(false, 17, &segment(1, 2), None);
        let mut echo = vec![0; 64];
        let n = icmpv4::Message::EchoRequest { id: 1, seq: 2, data: &[1; 8] }.emit(&mut echo);
        let echo = packet(false, ipv4::ICMP, &echo[..n], None);
        let short = packet(false, ipv4::TCP, &[1, 2, 3], None);
        for p in [udp, echo, short] {
            assert_eq!(s.named_lane(&eth(None, ethernet::IPV4, &p)), None);
        }
        assert_eq!(s.named_lane(&eth(None, ethernet::ARP, &[0; 28])), None);
        assert_eq!(s.named_lane(&[]), None);
    }

    proptest! {
        /// What is found at a glance is what a whole look finds.
        #[test]
        fn plain_segments(ports: (u16, u16), v6: bool, cut in 0usize..80, vlan: bool, more: bool, periodic: bool) {
            let table: [u16; 128] = core::array::from_fn(|i| i as u16);
            let key = if periodic { SYMMETRIC_KEY } else { MICROSOFT };
            let s = Steering::Hash(Box::new(Toeplitz::new(key, &table)));
            let fragment = more.then_some((7, 0, true));
            let packet = packet(v6, ipv4::TCP, &segment(ports.0, ports.1), fragment);
            let frame = eth(vlan.then_some(5), if v6 { ethernet::IPV6 } else { ethernet::IPV4 }, &packet);
            let frame = &frame[..frame.len().min(cut.max(14))];
            if let Some(lane) = s.lane_of_plain(frame) {
                prop_assert!(!more && !vlan);
                prop_assert_eq!(lane, s.lane_of(ip(A[v6 as usize]), ip(B[v6 as usize]), ports.0, ports.1));
            }
        }

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
            prop_assert!(Steering::spread(4).named_lane(&bytes).is_none_or(|lane| lane < 4));
        }
    }

    #[test]
    fn what_every_lane_hears() {
        let icmp = |kind: u8, src: Addr| {
            let dst = Addr::from_v6([0xfd; 16]);
            let mut b = vec![0; 54];
            ethernet::emit(&mut b, MacAddr([2; 6]), MacAddr([4; 6]), None, ethernet::IPV6);
            ipv6::Header { src, dst, next_header: ipv6::ICMPV6, ..Default::default() }.emit(&mut b[14..], 8);
            b.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
            b
        };
        let somebody = Addr::from_v6([0xfe; 16]);
        for (kind, all) in [(128, false), (133, false), (134, true), (135, false), (136, true), (137, true)] {
            assert_eq!(is_for_all(&icmp(kind, somebody)), all, "{kind}");
        }
        assert!(is_for_all(&icmp(135, Addr::UNSPECIFIED_V6)));
        // The middle of a datagram is anything.
        let middle = packet(true, ipv6::ICMPV6, &[136; 16], Some((7, 16, true)));
        assert!(!is_for_all(&eth(None, ethernet::IPV6, &middle)));
        let mut arp = vec![0; 42];
        ethernet::emit(&mut arp, MacAddr::BROADCAST, MacAddr([4; 6]), None, ethernet::ARP);
        assert!(is_for_all(&arp) && !is_for_all(&arp[..13]));
    }
}

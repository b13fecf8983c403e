//! Packets as bytes: what the other side sends, and what the stack has sent.

use std::net::IpAddr;

use wire::{Addr, checksum, ipv4, tcp};

use crate::ast::{Direction, Ip, TcpOption, Tos};
use crate::wire_options;

const ICMPV6: u8 = 58;

/// The header of a segment with its payload's length: sequence numbers as they are on the wire, or as a script has them.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// Source and destination.
    pub ports: (u16, u16),
    /// First byte.
    pub seq: u32,
    /// Next byte expected.
    pub ack: u32,
    /// FIN to AE.
    pub flags: u16,
    /// Bits that nobody defined.
    pub reserved: u8,
    /// Unscaled.
    pub window: u16,
    /// Urgent pointer.
    pub urgent: u16,
    /// In order.
    pub options: Vec<TcpOption>,
    /// Bytes.
    pub payload: usize,
}

impl Segment {
    /// The timestamps it carries.
    pub fn timestamps(&self) -> Option<(u32, u32)> {
        self.options.iter().find_map(|o| if let TcpOption::Timestamps(v, e) = o { Some((*v, *e)) } else { None })
    }

    /// Changes sequence numbers by `seq`, acknowledged and SACKed ones by `ack`.
    pub fn shift(&mut self, seq: u32, ack: u32) {
        self.seq = self.seq.wrapping_add(seq);
        if self.flags & flag::ACK != 0 {
            self.ack = self.ack.wrapping_add(ack);
        }
        for option in &mut self.options {
            if let TcpOption::Sack(blocks) = option {
                for (left, right) in blocks {
                    (*left, *right) = (left.wrapping_add(ack), right.wrapping_add(ack));
                }
            }
        }
    }

    /// As a script writes it.
    pub fn show(&self, direction: Direction) -> String {
        let mut out = String::from(if direction == Direction::In { "< " } else { "> " });
        let letters = [
            (0x2, 'S'),
            (0x1, 'F'),
            (0x4, 'R'),
            (0x8, 'P'),
            (0x20, 'U'),
            (0x40, 'E'),
            (0x80, 'W'),
            (0x100, 'A'),
            (0x10, '.'),
        ];
        let before = out.len();
        out.extend(letters.iter().filter(|(bit, _)| self.flags & bit != 0).map(|(_, c)| c));
        if out.len() == before {
            out.push('-');
        }
        let end = self.seq.wrapping_add(self.payload as u32);
        out.push_str(&format!(" {}:{end}({})", self.seq, self.payload));
        if self.flags & flag::ACK != 0 {
            out.push_str(&format!(" ack {}", self.ack));
        }
        out.push_str(&format!(" win {}", self.window));
        if self.urgent != 0 {
            out.push_str(&format!(" urg {}", self.urgent));
        }
        if !self.options.is_empty() {
            out.push_str(&format!(" <{}>", wire_options::show(&self.options)));
        }
        out
    }

    /// The segment's bytes with a right checksum; `data` fills its payload.
    pub fn emit(&self, from: IpAddr, to: IpAddr, data: impl Iterator<Item = u8>) -> Vec<u8> {
        let options = wire_options::emit(&self.options);
        let header = 20 + options.len();
        let mut b = vec![0; header + self.payload];
        b[..2].copy_from_slice(&self.ports.0.to_be_bytes());
        b[2..4].copy_from_slice(&self.ports.1.to_be_bytes());
        b[4..8].copy_from_slice(&self.seq.to_be_bytes());
        b[8..12].copy_from_slice(&self.ack.to_be_bytes());
        let word = ((header / 4) as u16) << 12 | self.flags;
        b[12..14].copy_from_slice(&word.to_be_bytes());
        b[14..16].copy_from_slice(&self.window.to_be_bytes());
        b[18..20].copy_from_slice(&self.urgent.to_be_bytes());
        b[20..header].copy_from_slice(&options);
        for (slot, byte) in b[header..].iter_mut().zip(data) {
            *slot = byte;
        }
        tcp::fill_checksum(from.into(), to.into(), &mut b);
        b
    }

    fn parse(b: &[u8]) -> Option<(Segment, &[u8])> {
        let be16 = |at: usize| Some(u16::from_be_bytes([*b.get(at)?, *b.get(at + 1)?]));
        let be32 = |at: usize| Some((be16(at)? as u32) << 16 | be16(at + 2)? as u32);
        let word = be16(12)?;
        let header = (word >> 12) as usize * 4;
        let segment = Segment {
            ports: (be16(0)?, be16(2)?),
            seq: be32(4)?,
            ack: be32(8)?,
            flags: word & 0x1ff,
            reserved: (word >> 9 & 7) as u8,
            window: be16(14)?,
            urgent: be16(18)?,
            options: wire_options::parse(b.get(20..header)?)?,
            payload: b.len() - header,
        };
        Some((segment, &b[header..]))
    }
}

/// Bits of a TCP header.
pub mod flag {
    /// No more data.
    pub const FIN: u16 = 0x001;
    /// Synchronize.
    pub const SYN: u16 = 0x002;
    /// Reset.
    pub const RST: u16 = 0x004;
    /// Push.
    pub const PSH: u16 = 0x008;
    /// The acknowledgment number counts.
    pub const ACK: u16 = 0x010;
    /// The urgent pointer counts.
    pub const URG: u16 = 0x020;
    /// ECN echo.
    pub const ECE: u16 = 0x040;
    /// Congestion window reduced.
    pub const CWR: u16 = 0x080;
    /// Accurate ECN.
    pub const AE: u16 = 0x100;
}

/// An IP packet around `payload`.
pub fn ip_packet(from: IpAddr, to: IpAddr, protocol: u8, ip: Ip, payload: &[u8]) -> Vec<u8> {
    let tos = match ip.tos {
        Tos::Unsaid | Tos::Ect01 => 0,
        Tos::Ecn(bits) | Tos::Byte(bits) => bits,
    };
    let ttl = ip.ttl.unwrap_or(64);
    let (src, dst) = (Addr::from(from), Addr::from(to));
    let mut b;
    if from.is_ipv4() {
        b = vec![0; ipv4::Header::LEN];
        ipv4::Header { src, dst, protocol, ttl, tos, id: 0, dont_fragment: true }.emit(&mut b, payload.len());
    } else {
        let word = 6 << 28 | (tos as u32) << 20 | ip.flow_label.unwrap_or(0);
        b = word.to_be_bytes().to_vec();
        b.extend((payload.len() as u16).to_be_bytes());
        b.extend([protocol, ttl]);
        b.extend(src.octets());
        b.extend(dst.octets());
    }
    b.extend(payload);
    b
}

/// An ICMP message of `kind` and `code`, with the word after the checksum, about a packet.
pub fn icmp(from: IpAddr, to: IpAddr, kind: u8, code: u8, word: u32, about: &[u8]) -> (u8, Vec<u8>) {
    let mut b = vec![kind, code, 0, 0];
    b.extend(word.to_be_bytes());
    b.extend(about);
    let (protocol, pseudo) = match from.is_ipv4() {
        true => (ipv4::ICMP, checksum::Sum::ZERO),
        false => (ICMPV6, checksum::pseudo(from.into(), to.into(), ICMPV6, b.len())),
    };
    let sum = pseudo.add(checksum::sum(&b)).finish();
    b[2..4].copy_from_slice(&sum.to_be_bytes());
    (protocol, b)
}

/// A packet that the stack has sent.
#[derive(Clone, Debug)]
pub struct Sent {
    /// When, µs since the script's start.
    pub at: u64,
    /// From the stack.
    pub from: IpAddr,
    /// To the other side.
    pub to: IpAddr,
    /// DSCP and ECN.
    pub tos: u8,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// IPv6's.
    pub flow_label: u32,
    /// What it carries.
    pub body: SentBody,
}

/// What a sent packet carries.
#[derive(Clone, Debug)]
pub enum SentBody {
    /// A segment with its payload.
    Segment(Segment, Vec<u8>),
    /// Type and code.
    Icmp(u8, u8),
    /// Another protocol.
    Other(u8),
}

impl Sent {
    /// Takes a packet apart and verifies its checksums; what is wrong otherwise.
    pub fn parse(at: u64, packet: &[u8]) -> Result<Sent, String> {
        let v4 = packet.first().is_some_and(|b| b >> 4 == 4);
        let minimum = if v4 { 20 } else { 40 };
        if packet.len() < minimum {
            return Err(format!("a packet of {} bytes", packet.len()));
        }
        let be16 = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
        let (tos, ttl, flow_label, protocol, len, header, from, to);
        if v4 {
            header = (packet[0] & 15) as usize * 4;
            (tos, ttl, flow_label, protocol, len) = (packet[1], packet[8], 0, packet[9], be16(2) as usize);
            (from, to) = (Addr::from_v4(bytes(packet, 12)).to_ip(), Addr::from_v4(bytes(packet, 16)).to_ip());
            if header < 20 || !packet.get(..header).is_some_and(|h| checksum::sum(h).is_ok()) {
                return Err("a wrong checksum of the IPv4 header".into());
            }
        } else {
            header = 40;
            (tos, ttl, protocol, len) = ((be16(0) >> 4) as u8, packet[7], packet[6], 40 + be16(4) as usize);
            flow_label = (packet[1] as u32 & 15) << 16 | be16(2) as u32;
            (from, to) = (Addr::from_v6(bytes(packet, 8)).to_ip(), Addr::from_v6(bytes(packet, 24)).to_ip());
        }
        if len != packet.len() {
            return Err(format!("a packet of {} bytes that says {len}", packet.len()));
        }
        let payload = &packet[header..];
        let (src, dst) = (Addr::from(from), Addr::from(to));
        let body = match protocol {
            ipv4::TCP => {
                if !tcp::checksum_ok(src, dst, payload) {
                    return Err("a wrong checksum of the segment".into());
                }
                let (segment, data) = Segment::parse(payload).ok_or("a malformed segment")?;
                SentBody::Segment(segment, data.to_vec())
            }
            ipv4::ICMP if payload.len() >= 8 && checksum::sum(payload).is_ok() => {
                SentBody::Icmp(payload[0], payload[1])
            }
            ICMPV6 if payload.len() >= 8 => {
                let sum = checksum::pseudo(src, dst, ICMPV6, payload.len()).add(checksum::sum(payload));
                if !sum.is_ok() {
                    return Err("a wrong checksum of the ICMPv6 message".into());
                }
                SentBody::Icmp(payload[0], payload[1])
            }
            ipv4::ICMP => return Err("a wrong checksum of the ICMP message".into()),
            other => SentBody::Other(other),
        };
        Ok(Sent { at, from, to, tos, ttl, flow_label, body })
    }
}

fn bytes<const N: usize>(packet: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&packet[at..at + N]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment() -> Segment {
        Segment {
            ports: (80, 9),
            seq: 7,
            ack: 8,
            flags: flag::ACK | flag::PSH | flag::AE,
            reserved: 0,
            window: 10,
            urgent: 3,
            options: vec![TcpOption::Nop, TcpOption::Nop, TcpOption::Sack(vec![(10, 20)])],
            payload: 5,
        }
    }

    #[test]
    fn there_and_back_over_both_versions() {
        for (from, to) in [("1.2.3.4", "5.6.7.8"), ("fd::1", "2001:db8::2")] {
            let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
            let ip = Ip { tos: Tos::Ecn(3), flow_label: Some(0xabcde), ttl: Some(9) };
            let mut packet = ip_packet(from, to, 6, ip, &segment().emit(from, to, 1..));
            let sent = Sent::parse(1, &packet).unwrap();
            assert_eq!((sent.from, sent.to, sent.tos, sent.ttl), (from, to, 3, 9));
            assert_eq!(sent.flow_label, if from.is_ipv6() { 0xabcde } else { 0 });
            assert!(matches!(sent.body, SentBody::Segment(s, data) if s == segment() && data == [1, 2, 3, 4, 5]));
            *packet.last_mut().unwrap() ^= 1;
            assert_eq!(Sent::parse(1, &packet).unwrap_err(), "a wrong checksum of the segment");
            let (protocol, message) = icmp(from, to, 3, 4, 1400, &[1; 28]);
            let sent = Sent::parse(1, &ip_packet(from, to, protocol, Ip::default(), &message)).unwrap();
            assert!(matches!(sent.body, SentBody::Icmp(3, 4)));
        }
        assert!(Sent::parse(0, &[0x45]).is_err());
    }

    #[test]
    fn shown_as_scripts_write_and_shifted() {
        let mut s = segment();
        assert_eq!(s.show(Direction::Out), "> PA. 7:12(5) ack 8 win 10 urg 3 <nop,nop,sack 10:20>");
        s.shift(1, 2);
        assert_eq!((s.seq, s.ack, &s.options[2]), (8, 10, &TcpOption::Sack(vec![(12, 22)])));
    }
}

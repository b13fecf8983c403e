//! ICMP for IPv4 (RFC 792, RFC 1191).

use crate::quoted::Quoted;
use crate::{Malformed, be16, checksum};

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Type 8.
    EchoRequest {
        /// Identifier.
        id: u16,
        /// Sequence number.
        seq: u16,
        /// What to send back.
        data: &'a [u8],
    },
    /// Type 0.
    EchoReply {
        /// Identifier.
        id: u16,
        /// Sequence number.
        seq: u16,
        /// What was sent.
        data: &'a [u8],
    },
    /// Type 3.
    Unreachable {
        /// Which kind; 4 is "fragmentation needed".
        code: u8,
        /// Next-hop MTU of code 4; 0 where the router does not say.
        mtu: u16,
        /// What could not be delivered.
        quoted: Quoted,
    },
    /// Type 11.
    TimeExceeded {
        /// 0 in transit, 1 in reassembly.
        code: u8,
        /// What was dropped.
        quoted: Quoted,
    },
    /// Type 12.
    ParameterProblem {
        /// Where the trouble is.
        pointer: u8,
        /// What was dropped.
        quoted: Quoted,
    },
    /// Anything else.
    Other {
        /// Its type.
        kind: u8,
    },
}

impl<'a> Message<'a> {
    /// Reads a message and verifies its checksum.
    pub fn parse(b: &'a [u8]) -> Result<Message<'a>, Malformed> {
        if b.len() < 8 {
            return Err(Malformed::Truncated);
        }
        if !checksum::sum(b).is_ok() {
            return Err(Malformed::BadChecksum);
        }
        let quoted = || Quoted::parse_v4(&b[8..]).ok_or(Malformed::Truncated);
        Ok(match b[0] {
            0 => Message::EchoReply { id: be16(b, 4), seq: be16(b, 6), data: &b[8..] },
            8 => Message::EchoRequest { id: be16(b, 4), seq: be16(b, 6), data: &b[8..] },
            3 => Message::Unreachable { code: b[1], mtu: be16(b, 6), quoted: quoted()? },
            11 => Message::TimeExceeded { code: b[1], quoted: quoted()? },
            12 => Message::ParameterProblem { pointer: b[4], quoted: quoted()? },
            kind => Message::Other { kind },
        })
    }

    /// Writes an echo message; its length. `b` must have room for 8 bytes and the data. Errors are written by
    /// [`emit_unreachable`], which quotes a packet; the rest is never sent and gives 0.
    pub fn emit(&self, b: &mut [u8]) -> usize {
        let (kind, id, seq, data) = match *self {
            Message::EchoRequest { id, seq, data } => (8, id, seq, data),
            Message::EchoReply { id, seq, data } => (0, id, seq, data),
            _ => return 0,
        };
        let n = 8 + data.len();
        b[..4].copy_from_slice(&[kind, 0, 0, 0]);
        b[4..6].copy_from_slice(&id.to_be_bytes());
        b[6..8].copy_from_slice(&seq.to_be_bytes());
        b[8..n].copy_from_slice(data);
        seal(&mut b[..n]);
        n
    }
}

fn seal(b: &mut [u8]) {
    b[2..4].fill(0);
    let sum = checksum::sum(b).finish();
    b[2..4].copy_from_slice(&sum.to_be_bytes());
}

/// Writes "destination unreachable" with a quoted packet; its length. `b` must have room for 8 bytes and the packet.
pub fn emit_unreachable(b: &mut [u8], code: u8, packet: &[u8]) -> usize {
    emit_error(b, 3, code, 0, packet)
}

/// Writes "fragmentation needed" with a quoted packet; its length.
pub fn emit_too_big(b: &mut [u8], mtu: u16, packet: &[u8]) -> usize {
    emit_error(b, 3, 4, mtu, packet)
}

/// Writes "time exceeded" (0 in transit, 1 in reassembly) with a quoted packet; its length.
pub fn emit_time_exceeded(b: &mut [u8], code: u8, packet: &[u8]) -> usize {
    emit_error(b, 11, code, 0, packet)
}

fn emit_error(b: &mut [u8], kind: u8, code: u8, low: u16, packet: &[u8]) -> usize {
    let n = 8 + packet.len();
    b[..6].copy_from_slice(&[kind, code, 0, 0, 0, 0]);
    b[6..8].copy_from_slice(&low.to_be_bytes());
    b[8..n].copy_from_slice(packet);
    seal(&mut b[..n]);
    n
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Addr, SeqNum, ipv4};
    use proptest::prelude::*;

    #[test]
    fn an_error_names_the_connection() {
        let (src, dst) = (Addr::from_v4([10, 0, 0, 1]), Addr::from_v4([10, 0, 0, 2]));
        let mut packet = [0; 28];
        ipv4::Header { src, dst, ..Default::default() }.emit(&mut packet, 8);
        packet[20..28].copy_from_slice(&[0x1f, 0x90, 0, 80, 0, 0, 1, 0]);
        let mut b = [0; 36];
        assert_eq!(emit_too_big(&mut b, 1400, &packet), 36);
        let quoted = Quoted { src, dst, protocol: 6, src_port: 8080, dst_port: 80, seq: Some(SeqNum(256)) };
        assert_eq!(Message::parse(&b), Ok(Message::Unreachable { code: 4, mtu: 1400, quoted }));
        b[20] ^= 1;
        assert_eq!(Message::parse(&b), Err(Malformed::BadChecksum));
        b[20] ^= 1;
        emit_unreachable(&mut b, 3, &packet);
        assert_eq!(Message::parse(&b), Ok(Message::Unreachable { code: 3, mtu: 0, quoted }));
        for (kind, message) in [
            (11, Message::TimeExceeded { code: 3, quoted }),
            (12, Message::ParameterProblem { pointer: 9, quoted }),
            (5, Message::Other { kind: 5 }),
        ] {
            (b[0], b[4]) = (kind, 9);
            seal(&mut b);
            assert_eq!(Message::parse(&b), Ok(message));
        }
        let n = emit_unreachable(&mut b, 3, &packet[..27]);
        assert_eq!(Message::parse(&b[..n]), Err(Malformed::Truncated));
    }

    proptest! {
        #[test]
        fn echo_round_trip_and_oracle(id: u16, seq: u16, data in proptest::collection::vec(any::<u8>(), 0..100), reply: bool) {
            let m = match reply {
                true => Message::EchoReply { id, seq, data: &data },
                false => Message::EchoRequest { id, seq, data: &data },
            };
            let mut b = vec![0; 8 + data.len()];
            m.emit(&mut b);
            prop_assert_eq!(Message::parse(&b), Ok(m));
            let oracle = etherparse::Icmpv4Slice::from_slice(&b).unwrap();
            prop_assert_eq!(oracle.icmp_type().calc_checksum(&data), oracle.checksum());
        }

        #[test]
        fn any_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..100), kind in 0u8..14, sealed: bool) {
            if sealed && bytes.len() >= 9 {
                (bytes[0], bytes[8]) = (kind, 0x45 | bytes[8] & 2);
                seal(&mut bytes);
            }
            let _ = Message::parse(&bytes);
        }
    }
}

//! What a connection hands out to be framed, and the lists that it waits in for that.

use wire::SeqNum;
use wire::tcp::{Flags, Header, Options, Segment};

/// A segment of a connection, ready to be framed.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    /// `seg.seq`.
    pub seq: SeqNum,
    /// `seg.ack`.
    pub ack: SeqNum,
    /// Control bits.
    pub flags: Flags,
    /// The window field as it goes on the wire.
    pub window: u16,
    /// The two ECN bits of the IP header (RFC 3168 5): 0, or 2 for ECT(0).
    pub ecn: u8,
    /// Options.
    pub options: Options,
    /// Where the payload starts in the send queue.
    pub(crate) offset: u32,
    /// Payload bytes.
    pub len: u32,
    /// Taken from the cursor, in order, rather than from the middle of the queue.
    pub(crate) fresh: bool,
}

/// A segment outside any connection's flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// `seg.seq`.
    pub seq: SeqNum,
    /// `seg.ack`.
    pub ack: SeqNum,
    /// Control bits.
    pub flags: Flags,
}

/// RFC 9293 3.10.7.1: the RST that answers a segment for which there is no connection; none answers a RST.
pub fn reset_for(seg: &Segment) -> Option<Reply> {
    if seg.flags.contains(Flags::RST) {
        return None;
    }
    if seg.flags.contains(Flags::ACK) {
        return Some(Reply { seq: seg.ack, ack: SeqNum(0), flags: Flags::RST });
    }
    let len = seg.payload.len() as u32 + seg.flags.contains(Flags::SYN) as u32 + seg.flags.contains(Flags::FIN) as u32;
    Some(Reply { seq: SeqNum(0), ack: seg.seq + len, flags: Flags::RST | Flags::ACK })
}

/// What a connection has to send: the paper's three lists (mTCP 3.2).
pub mod wants {
    /// SYN, FIN or RST without data.
    pub const CONTROL: u8 = 1;
    /// An acknowledgment.
    pub const ACK: u8 = 2;
    /// Data, a FIN behind it, or a probe.
    pub const DATA: u8 = 4;
}

impl Outgoing {
    /// Piece `n` of the `count` of at most `bytes` of text that it is cut into, as a NIC does: FIN and PSH are the last one's,
    /// CWR is the first one's.
    pub fn piece(&self, n: u32, count: u32, bytes: u32) -> Outgoing {
        let mut piece = *self;
        let at = n * bytes;
        piece.len = (self.len - at).min(bytes);
        if n > 0 {
            piece.seq += at;
            piece.offset += at;
            piece.flags = piece.flags.without(Flags::CWR);
        }
        if n + 1 < count {
            piece.flags = piece.flags.without(Flags::FIN | Flags::PSH);
        }
        piece
    }

    /// The header, for `src_port` → `dst_port`.
    pub fn header(&self, src_port: u16, dst_port: u16) -> Header {
        Header {
            src_port,
            dst_port,
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            window: self.window,
            urgent: 0,
            options: self.options,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_what_a_nic_makes() {
        let whole = Outgoing {
            seq: SeqNum(u32::MAX - 999),
            ack: SeqNum(7),
            flags: Flags::ACK | Flags::PSH | Flags::FIN | Flags::CWR,
            window: 9,
            ecn: 2,
            options: Options::default(),
            offset: 500,
            len: 2500,
            fresh: true,
        };
        let pieces = [0, 1, 2].map(|n| whole.piece(n, 3, 1000)).map(|p| (p.seq.0, p.offset, p.len, p.flags));
        let expected = [
            (u32::MAX - 999, 500, 1000, Flags::ACK | Flags::CWR),
            (0, 1500, 1000, Flags::ACK),
            (1000, 2500, 500, Flags::ACK | Flags::PSH | Flags::FIN),
        ];
        assert_eq!(pieces, expected);
        let same = |p: Outgoing| (p.seq, p.offset, p.len, p.flags);
        assert_eq!(same(whole.piece(0, 1, u32::MAX)), same(whole));
        let ack = Outgoing { len: 0, ..whole };
        assert_eq!(same(ack.piece(0, 1, 1000)), same(ack));
    }
}

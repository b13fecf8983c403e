//! A connection as the script sees it and as it is: sequence numbers, ports and timestamps of the two.

use std::collections::HashMap;

use socket::SockId;

use crate::segment::Segment;

/// How far a connection has got, as far as matters to mapping its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// A socket.
    New,
    /// A listener.
    Listening,
    /// The script has sent something that opens it from outside.
    Called,
    /// The stack has answered with SYN and ACK.
    Answered,
    /// The last ACK of the handshake came.
    Established,
    /// `connect` was called.
    Connecting,
    /// The script expects, or has seen, the stack's SYN.
    SynSent,
    /// The other side's SYN came.
    SynAcked,
}

/// A connection under test.
#[derive(Clone, Debug)]
pub struct Conn {
    /// How far it has got.
    pub phase: Phase,
    /// Its socket, once the application has one.
    pub sock: Option<SockId>,
    /// The stack's port; 0 while nobody knows it.
    pub local_port: u16,
    /// The other side's.
    pub remote_port: u16,
    /// The stack's initial sequence number as the script writes it.
    pub script_isn: u32,
    /// The same as it is.
    pub live_isn: u32,
    /// The other side's, as the script gave it.
    pub remote_isn: u32,
    /// The stack's timestamps by what the script wrote.
    timestamps: HashMap<u32, u32>,
    /// The first of them: as written, as it is.
    first_timestamp: Option<(u32, u32)>,
    /// An urgent byte came.
    pub urgent: bool,
    /// IPv6's flow label: as written, as it is.
    pub flow_label: Option<(u32, u32)>,
}

impl Conn {
    /// One that nothing is known of yet.
    pub fn new(phase: Phase, sock: Option<SockId>) -> Conn {
        Conn {
            phase,
            sock,
            local_port: 0,
            remote_port: 0,
            script_isn: 0,
            live_isn: 0,
            remote_isn: 0,
            timestamps: HashMap::new(),
            first_timestamp: None,
            urgent: false,
            flow_label: None,
        }
    }

    /// What to add to the script's sequence numbers of the stack: a SYN's are absolute, all others relative.
    pub fn local_offset(&self, syn: bool) -> u32 {
        if syn { self.live_isn.wrapping_sub(self.script_isn) } else { self.live_isn }
    }

    /// The same for the other side's.
    pub fn remote_offset(&self, syn: bool) -> u32 {
        if syn { 0 } else { self.remote_isn }
    }

    /// Notes that the stack's timestamp `live` is what the script calls `script`.
    pub fn note_timestamp(&mut self, script: u32, live: u32) {
        self.timestamps.insert(script, live);
        self.first_timestamp.get_or_insert((script, live));
    }

    /// What the script would call the stack's timestamp.
    pub fn script_timestamp(&self, live: u32) -> u32 {
        let (first_script, first_live) = self.first_timestamp.unwrap_or((live, live));
        first_script.wrapping_add(live.wrapping_sub(first_live))
    }

    /// The stack's timestamp that the script means; `scaled` puts it on the line through the first.
    pub fn live_timestamp(&self, script: u32, scaled: bool) -> Option<u32> {
        let known = self.timestamps.get(&script).copied();
        let (first_script, first_live) = self.first_timestamp.unwrap_or_default();
        let on_line = first_live.wrapping_add(script.wrapping_sub(first_script));
        known.or((scaled && self.first_timestamp.is_some()).then_some(on_line))
    }

    /// A segment of the stack in the script's numbers.
    pub fn to_script(&self, segment: &mut Segment) {
        let syn = segment.flags & crate::segment::flag::SYN != 0;
        segment.shift(self.local_offset(syn).wrapping_neg(), self.remote_offset(syn).wrapping_neg());
    }
}

/// The byte that all streams have at a (relative) sequence number, so that one in a wrong place is seen.
pub fn pattern(seq: u32) -> u8 {
    (seq ^ seq >> 8 ^ seq.wrapping_mul(7) >> 16) as u8
}

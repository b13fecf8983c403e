//! The state of a connection (RFC 9293 3.3.2).

/// The state of RFC 9293 3.3.2, with Linux's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// Both directions open.
    Established = 1,
    /// Active open, SYN sent.
    SynSent = 2,
    /// SYN received, ours not yet acknowledged.
    SynReceived = 3,
    /// Our FIN sent, not yet acknowledged.
    FinWait1 = 4,
    /// Our FIN acknowledged; the peer may still send.
    FinWait2 = 5,
    /// 2 MSL wait.
    TimeWait = 6,
    /// No connection.
    #[default]
    Closed = 7,
    /// The peer's FIN received; we may still send.
    CloseWait = 8,
    /// As CLOSE-WAIT, our FIN sent.
    LastAck = 9,
    /// Waiting for connections.
    Listen = 10,
    /// Both FINs sent, ours not yet acknowledged.
    Closing = 11,
}

impl State {
    /// Linux's name of it.
    pub fn name(self) -> &'static str {
        match self {
            State::Established => "ESTAB",
            State::SynSent => "SYN-SENT",
            State::SynReceived => "SYN-RECV",
            State::FinWait1 => "FIN-WAIT-1",
            State::FinWait2 => "FIN-WAIT-2",
            State::TimeWait => "TIME-WAIT",
            State::Closed => "UNCONN",
            State::CloseWait => "CLOSE-WAIT",
            State::LastAck => "LAST-ACK",
            State::Listen => "LISTEN",
            State::Closing => "CLOSING",
        }
    }

    /// The state with this number.
    pub(crate) fn from_number(n: u64) -> State {
        use State::*;
        [Established, SynSent, SynReceived, FinWait1, FinWait2, TimeWait, CloseWait, LastAck, Listen, Closing]
            .into_iter()
            .find(|s| *s as u64 == n)
            .unwrap_or(Closed)
    }
}

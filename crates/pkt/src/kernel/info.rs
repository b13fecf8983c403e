//! The kernel's `struct tcp_info`.

use tcp::{State, TcpInfo};

/// Room for the structure of any kernel so far.
pub const ROOM: usize = 512;

const STATES: [State; 12] = [
    State::Closed,
    State::Established,
    State::SynSent,
    State::SynReceived,
    State::FinWait1,
    State::FinWait2,
    State::TimeWait,
    State::Closed,
    State::CloseWait,
    State::LastAck,
    State::Listen,
    State::Closing,
];

/// Reads it (`<linux/tcp.h>`); what an older kernel does not have is zero.
#[allow(clippy::needless_update, reason = "what the snapshot learns to tell is not always in the structure")]
pub fn parse(bytes: &[u8]) -> TcpInfo {
    let byte = |at: usize| bytes.get(at).copied().unwrap_or(0) as u64;
    let word =
        |at: usize| bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, |b| u32::from_ne_bytes(b) as u64);
    let long = |at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes);
    let (snd_mss, unacked) = (word(16), word(24));
    TcpInfo {
        state: STATES.get(byte(0) as usize).copied().unwrap_or(State::Closed),
        ca_state: byte(1),
        backoff: byte(4),
        options: byte(5),
        window_scale: byte(6),
        rto_us: word(8),
        snd_mss,
        rcv_mss: word(20),
        unacked,
        // The kernel counts segments.
        unacked_bytes: unacked * snd_mss,
        retransmits: byte(2),
        probes: byte(3),
        sacked: word(28),
        lost: word(32),
        retrans: word(36),
        reordering: word(88),
        rcv_space: word(96),
        delivered: word(192),
        dsack_dups: word(216),
        last_data_sent_ms: word(44),
        last_data_recv_ms: word(52),
        last_ack_recv_ms: word(56),
        advmss: word(84),
        reord_seen: word(220),
        pmtu: word(60),
        srtt_us: word(68),
        rttvar_us: word(72),
        snd_ssthresh: word(76),
        snd_cwnd: word(80),
        total_retrans: word(100),
        bytes_acked: long(120),
        bytes_received: long(128),
        segs_out: word(136),
        segs_in: word(140),
        notsent_bytes: word(144),
        min_rtt_us: word(148),
        bytes_sent: long(200),
        bytes_retrans: long(208),
        rcv_ooopack: word(224),
        snd_wnd: word(228),
        rcv_wnd: word(232),
        ..TcpInfo::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::raw;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsFd, AsRawFd};

    #[test]
    fn of_a_connection_over_the_loopback() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"hello").unwrap();
        server.read_exact(&mut [0; 5]).unwrap();
        let info = |socket: &dyn AsFd| {
            parse(&raw::option(socket.as_fd().as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, ROOM).unwrap())
        };
        let (ours, theirs) = (info(&client), info(&server));
        assert_eq!((ours.state, theirs.state), (State::Established, State::Established));
        assert_eq!((ours.bytes_sent, theirs.bytes_received), (5, 5));
        assert!(ours.snd_mss > 500 && ours.snd_cwnd >= 10 && ours.segs_out >= 3);
        assert_eq!(info(&listener).state, State::Listen);
    }
}

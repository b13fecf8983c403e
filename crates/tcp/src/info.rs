//! One snapshot of a connection for the API, `ss` and the tests; fields mean what Linux's `struct tcp_info` says.

use wire::Instant;

use crate::{Config, State, Tcb, flag};

macro_rules! info {
    ($($(#[$doc:meta])* $field:ident),* $(,)?) => {
        /// A snapshot of one connection.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct TcpInfo {
            /// The connection's state.
            pub state: State,
            $($(#[$doc])* pub $field: u64,)*
        }

        impl TcpInfo {
            /// Bytes of the encoded form.
            pub const BYTES: usize = 8 * (1 $(+ { let _ = stringify!($field); 1 })*);

            /// Writes the encoded form: little-endian words, the state first.
            pub fn to_bytes(&self) -> [u8; TcpInfo::BYTES] {
                let words = [self.state as u64, $(self.$field),*];
                let mut out = [0; TcpInfo::BYTES];
                for (slot, word) in out.chunks_exact_mut(8).zip(words) {
                    slot.copy_from_slice(&word.to_le_bytes());
                }
                out
            }

            /// Reads the encoded form; `None` when it is too short.
            pub fn from_bytes(bytes: &[u8]) -> Option<TcpInfo> {
                let mut words = bytes.chunks_exact(8).map(|c| c.iter().rev().fold(0u64, |w, b| w << 8 | *b as u64));
                let state = State::from_number(words.next()?);
                Some(TcpInfo { state, $($field: words.next()?),* })
            }
        }
    };
}

info! {
    /// TCPI_OPT_* bits: 1 timestamps, 2 SACK, 4 window scale, 8 ECN.
    options,
    /// Our window scale (low 4 bits: theirs).
    window_scale,
    /// Congestion state: 0 open, 1 disorder, 2 CWR, 3 recovery, 4 loss.
    ca_state,
    /// Unacknowledged retransmission timeouts in a row.
    backoff,
    /// Retransmission timeout, µs.
    rto_us,
    /// Smoothed round-trip time, µs.
    srtt_us,
    /// Its mean deviation, µs.
    rttvar_us,
    /// Smallest round trip seen, µs.
    min_rtt_us,
    /// Sender maximum segment size, bytes.
    snd_mss,
    /// Largest segment received, bytes.
    rcv_mss,
    /// Path MTU, bytes.
    pmtu,
    /// Congestion window, segments.
    snd_cwnd,
    /// Slow-start threshold, segments.
    snd_ssthresh,
    /// Send window, bytes.
    snd_wnd,
    /// Receive window offered, bytes.
    rcv_wnd,
    /// Bytes sent and not acknowledged.
    unacked_bytes,
    /// Bytes queued and not sent.
    notsent_bytes,
    /// Bytes the peer acknowledged.
    bytes_acked,
    /// Bytes received in order.
    bytes_received,
    /// Bytes sent, retransmissions included.
    bytes_sent,
    /// Bytes retransmitted.
    bytes_retrans,
    /// Segments sent.
    segs_out,
    /// Segments received.
    segs_in,
    /// Segments retransmitted.
    total_retrans,
    /// Segments that arrived out of order.
    rcv_ooopack,
    /// Segments sent and not acknowledged.
    unacked,
    /// Of these those SACKed (without SACK: the duplicate ACKs that stand for them).
    sacked,
    /// Of these those judged lost.
    lost,
    /// Of these those sent again.
    retrans,
    /// Segments by which the path reorders.
    reordering,
    /// Retransmission timeouts in a row.
    retransmits,
    /// Zero-window or keepalive probes unanswered.
    probes,
    /// Receive buffer, bytes.
    rcv_space,
    /// Segments delivered in all.
    delivered,
    /// Duplicates reported by the peer.
    dsack_dups,
    /// The segment size that our SYN offered, bytes.
    advmss,
    /// Time since data was sent, ms.
    last_data_sent_ms,
    /// Time since data came, or the handshake, ms.
    last_data_recv_ms,
    /// Time since any segment came, ms: each acknowledges.
    last_ack_recv_ms,
    /// How often segments were seen to overtake each other.
    reord_seen,
}

impl Tcb {
    /// The snapshot; fields as Linux fills them.
    pub fn info(&self, now: Instant, config: &Config) -> TcpInfo {
        let ms_since = |at: Instant| now.micros_since(at) / 1000;
        // Where no data has come, Linux counts from the handshake, the last we heard of the peer.
        let data_at = self.receiver.data_at().unwrap_or(self.timers.heard_at());
        TcpInfo {
            state: self.state,
            options: self.has(flag::TIMESTAMPS) as u64
                | (self.has(flag::SACK) as u64) << 1
                | (self.has(flag::SCALED) as u64) << 2
                | (self.has(flag::ECN) as u64) << 3,
            window_scale: (self.options.rcv_scale() as u64) << 4 | self.options.snd_scale() as u64,
            ca_state: self.recovery.phase() as u64,
            backoff: self.rtt.backoff() as u64,
            rto_us: self.rtt.rto(config) as u64,
            srtt_us: self.rtt.srtt() as u64,
            rttvar_us: self.rtt.rttvar() as u64,
            min_rtt_us: self.rtt.least() as u64,
            snd_mss: self.options.smss() as u64,
            rcv_mss: self.receiver.mss() as u64,
            pmtu: self.options.smss() as u64
                + self.sender.headers() as u64
                + if self.has(flag::TIMESTAMPS) { 12 } else { 0 },
            snd_cwnd: self.cc.cwnd() as u64,
            snd_ssthresh: if self.cc.ssthresh() == u32::MAX { 0x7fff_ffff } else { self.cc.ssthresh() as u64 },
            snd_wnd: self.snd.wnd() as u64,
            rcv_wnd: self.rcv.window() as u64,
            unacked_bytes: self.snd.outstanding() as u64,
            notsent_bytes: self.unsent() as u64,
            bytes_acked: self.stats.bytes_acked,
            bytes_received: self.stats.bytes_received,
            bytes_sent: self.stats.bytes_sent,
            bytes_retrans: self.stats.bytes_retrans,
            segs_out: self.stats.segs_out as u64,
            segs_in: self.stats.segs_in as u64,
            total_retrans: self.stats.retrans as u64,
            rcv_ooopack: self.stats.ooo_in as u64,
            unacked: self.board.packets_out() as u64,
            sacked: self.board.sacked_out() as u64,
            lost: self.board.lost_out() as u64,
            retrans: self.board.retrans_out() as u64,
            reordering: self.recovery.reordering() as u64,
            retransmits: self.timers.retries() as u64,
            probes: self.timers.probes() as u64,
            rcv_space: self.receiver.buffer() as u64,
            delivered: self.recovery.delivered() as u64,
            dsack_dups: self.recovery.duplicates() as u64,
            advmss: self.receiver.mss_clamp() as u64,
            last_data_sent_ms: ms_since(self.sender.sent_at()),
            last_data_recv_ms: ms_since(data_at),
            last_ack_recv_ms: ms_since(self.timers.heard_at()),
            reord_seen: self.recovery.reordering_seen() as u64,
        }
    }
}

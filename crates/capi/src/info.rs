//! The `struct tcp_info` of Linux's `<linux/tcp.h>`, and `SO_MEMINFO`.

use tcp::TcpInfo;

use crate::options::{MOST_BYTES, Value};

/// Bytes of Linux 6.18's `struct tcp_info`.
pub const BYTES: usize = MOST_BYTES;

/// Writes integers one after the other, in the machine's byte order.
struct Layout {
    bytes: [u8; BYTES],
    len: usize,
}

impl Layout {
    fn new() -> Layout {
        Layout { bytes: [0; BYTES], len: 0 }
    }

    fn bytes(&mut self, values: &[u8]) -> &mut Layout {
        self.bytes[self.len..self.len + values.len()].copy_from_slice(values);
        self.len += values.len();
        self
    }

    fn words(&mut self, values: &[u64]) -> &mut Layout {
        for value in values {
            self.bytes(&u32::try_from(*value).unwrap_or(u32::MAX).to_ne_bytes());
        }
        self
    }

    fn longs(&mut self, values: &[u64]) -> &mut Layout {
        for value in values {
            self.bytes(&value.to_ne_bytes());
        }
        self
    }
}

/// The structure's bytes; what the stack does not keep is zero.
pub fn tcp_info(i: &TcpInfo) -> Value {
    let small = |v: u64| v.min(255) as u8;
    let head = [
        i.state as u8,
        small(i.ca_state),
        small(i.retransmits),
        small(i.probes),
        small(i.backoff),
        small(i.options),
        // Linux keeps the peer's shift in the low half.
        small(i.window_scale),
        0,
    ];
    let mut out = Layout::new();
    out.bytes(&head)
        // rto, ato, snd_mss, rcv_mss.
        .words(&[i.rto_us, 0, i.snd_mss, i.rcv_mss])
        // unacked, sacked, lost, retrans, fackets.
        .words(&[i.unacked, i.sacked, i.lost, i.retrans, 0])
        // last_data_sent, last_ack_sent, last_data_recv, last_ack_recv.
        .words(&[i.last_data_sent_ms, 0, i.last_data_recv_ms, i.last_ack_recv_ms])
        // pmtu, rcv_ssthresh, rtt, rttvar, snd_ssthresh, snd_cwnd, advmss, reordering.
        .words(&[i.pmtu, i.rcv_wnd, i.srtt_us, i.rttvar_us, i.snd_ssthresh, i.snd_cwnd, i.advmss, i.reordering])
        // rcv_rtt, rcv_space, total_retrans.
        .words(&[0, i.rcv_space, i.total_retrans])
        // pacing_rate, max_pacing_rate, bytes_acked, bytes_received.
        .longs(&[0, u64::MAX, i.bytes_acked, i.bytes_received])
        // segs_out, segs_in, notsent_bytes, min_rtt, data_segs_in, data_segs_out.
        .words(&[i.segs_out, i.segs_in, i.notsent_bytes, i.min_rtt_us, 0, 0])
        // delivery_rate, busy_time, rwnd_limited, sndbuf_limited.
        .longs(&[0; 4])
        // delivered, delivered_ce.
        .words(&[i.delivered, 0])
        // bytes_sent, bytes_retrans.
        .longs(&[i.bytes_sent, i.bytes_retrans])
        // dsack_dups, reord_seen, rcv_ooopack, snd_wnd, rcv_wnd.
        .words(&[i.dsack_dups, i.reord_seen, i.rcv_ooopack, i.snd_wnd, i.rcv_wnd]);
    // Behind these there is what the stack does not keep.
    Value::of(&out.bytes)
}

/// What a socket's buffers hold: bytes to read, SO_RCVBUF, bytes to send, SO_SNDBUF.
pub fn meminfo(received: u64, receive_buffer: u64, queued: u64, send_buffer: u64) -> Value {
    let mut out = Layout::new();
    // RMEM_ALLOC, RCVBUF, WMEM_ALLOC, SNDBUF, FWD_ALLOC, WMEM_QUEUED, OPTMEM, BACKLOG, DROPS.
    out.words(&[received, receive_buffer, queued, send_buffer, 0, queued, 0, 0, 0]);
    Value::of(&out.bytes[..out.len])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_linux_has_them() {
        let info = TcpInfo {
            state: tcp::State::CloseWait,
            rto_us: 204_000,
            snd_mss: 1460,
            unacked: 3,
            snd_cwnd: 12,
            bytes_received: 1 << 40,
            notsent_bytes: 77,
            bytes_sent: 5,
            snd_wnd: 65_535,
            ..TcpInfo::default()
        };
        let value = tcp_info(&info);
        let bytes = value.as_bytes();
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        use std::mem::offset_of;
        assert_eq!(bytes.len(), BYTES);
        assert_eq!(bytes[offset_of!(libc::tcp_info, tcpi_state)], 8);
        assert_eq!(word(offset_of!(libc::tcp_info, tcpi_rto)), 204_000);
        assert_eq!(word(offset_of!(libc::tcp_info, tcpi_snd_mss)), 1460);
        assert_eq!(word(offset_of!(libc::tcp_info, tcpi_unacked)), 3);
        assert_eq!(word(offset_of!(libc::tcp_info, tcpi_snd_cwnd)), 12);
        // Behind what libc's structure has: Linux 4.2, 4.6, 4.19 and 6.1.
        assert_eq!(long(128), 1 << 40);
        assert_eq!(word(144), 77);
        assert_eq!(long(200), 5);
        assert_eq!(word(228), 65_535);
    }
}

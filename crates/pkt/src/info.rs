//! `tcp_info` by Linux's names, for the assertions of scripts.

use tcp::TcpInfo;

use crate::python::Python;

/// Linux's numbers that assertions name.
const CONSTANTS: [(&str, i128); 27] = [
    ("TCP_ESTABLISHED", 1),
    ("TCP_SYN_SENT", 2),
    ("TCP_SYN_RECV", 3),
    ("TCP_FIN_WAIT1", 4),
    ("TCP_FIN_WAIT2", 5),
    ("TCP_TIME_WAIT", 6),
    ("TCP_CLOSE", 7),
    ("TCP_CLOSE_WAIT", 8),
    ("TCP_LAST_ACK", 9),
    ("TCP_LISTEN", 10),
    ("TCP_CLOSING", 11),
    ("TCP_CA_Open", 0),
    ("TCP_CA_Disorder", 1),
    ("TCP_CA_CWR", 2),
    ("TCP_CA_Recovery", 3),
    ("TCP_CA_Loss", 4),
    ("TCP_CA_OPEN", 0),
    ("TCP_CA_DISORDER", 1),
    ("TCP_CA_RECOVERY", 3),
    ("TCP_CA_LOSS", 4),
    ("TCPI_OPT_TIMESTAMPS", 1),
    ("TCPI_OPT_SACK", 2),
    ("TCPI_OPT_WSCALE", 4),
    ("TCPI_OPT_ECN", 8),
    ("TCPI_OPT_ECN_SEEN", 16),
    ("TCPI_OPT_SYN_DATA", 32),
    ("TCP_INFINITE_SSTHRESH", 0x7fff_ffff),
];

/// Gives the names their meanings of now.
pub fn set(python: &mut Python, info: &TcpInfo) {
    for (name, value) in CONSTANTS {
        python.set(name, value);
    }
    let fields = [
        ("state", info.state as u64),
        ("ca_state", info.ca_state),
        ("backoff", info.backoff),
        ("options", info.options),
        ("snd_wscale", info.window_scale & 15),
        ("rcv_wscale", info.window_scale >> 4),
        ("rto", info.rto_us),
        ("snd_mss", info.snd_mss),
        ("rcv_mss", info.rcv_mss),
        ("unacked", info.unacked),
        ("sacked", info.sacked),
        ("lost", info.lost),
        ("retrans", info.retrans),
        ("reordering", info.reordering),
        ("retransmits", info.retransmits),
        ("probes", info.probes),
        ("rcv_space", info.rcv_space),
        ("delivered", info.delivered),
        ("dsack_dups", info.dsack_dups),
        ("pmtu", info.pmtu),
        ("rtt", info.srtt_us),
        ("rttvar", info.rttvar_us),
        ("min_rtt", info.min_rtt_us),
        ("snd_ssthresh", info.snd_ssthresh),
        ("snd_cwnd", info.snd_cwnd),
        ("total_retrans", info.total_retrans),
        ("bytes_acked", info.bytes_acked),
        ("bytes_received", info.bytes_received),
        ("bytes_sent", info.bytes_sent),
        ("bytes_retrans", info.bytes_retrans),
        ("segs_out", info.segs_out),
        ("segs_in", info.segs_in),
        ("notsent_bytes", info.notsent_bytes),
        ("rcv_ooopack", info.rcv_ooopack),
        ("snd_wnd", info.snd_wnd),
        ("rcv_wnd", info.rcv_wnd),
        ("advmss", info.advmss),
        ("last_data_sent", info.last_data_sent_ms),
        ("last_data_recv", info.last_data_recv_ms),
        ("last_ack_recv", info.last_ack_recv_ms),
        ("reord_seen", info.reord_seen),
    ];
    for (name, value) in fields {
        python.set(&format!("tcpi_{name}"), value as i128);
    }
}

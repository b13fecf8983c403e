//! What an administrator may set about TCP, with Linux's defaults.

use core::time::Duration;

/// Parameters of every connection of a stack.
#[derive(Clone, Debug)]
pub struct Config {
    /// Largest receive window, bytes (SO_RCVBUF unless the socket says otherwise).
    pub receive_buffer: u32,
    /// Largest send queue, bytes (SO_SNDBUF unless the socket says otherwise); paces reports of acknowledged bytes.
    pub send_buffer: u32,
    /// Offer timestamps (RFC 7323).
    pub timestamps: bool,
    /// Offer window scaling (RFC 7323).
    pub window_scaling: bool,
    /// Initial window, segments (RFC 6928).
    pub initial_window: u32,
    /// RTO before the first measurement (RFC 6298 2.1).
    pub initial_rto: Duration,
    /// Smallest RTO; Linux's 200 ms rather than RFC 6298's 1 s.
    pub min_rto: Duration,
    /// Largest RTO (RFC 6298 2.5).
    pub max_rto: Duration,
    /// Delayed acknowledgment (RFC 9293 3.8.6.3: below 500 ms).
    pub delayed_ack: Duration,
    /// SYN retransmissions before an active open fails.
    pub syn_retries: u8,
    /// SYN/ACK retransmissions before a passive open is forgotten.
    pub synack_retries: u8,
    /// Retransmissions of data before the connection fails (RFC 9293 3.8.3, R2).
    pub retries: u8,
    /// How long an orphaned FIN-WAIT-2 waits for the peer's FIN.
    pub fin_timeout: Duration,
    /// Idle time before the first keepalive probe.
    pub keep_idle: Duration,
    /// Time between keepalive probes.
    pub keep_interval: Duration,
    /// Unanswered keepalive probes before the connection fails.
    pub keep_count: u8,
    /// Longest a partial segment waits under TCP_CORK or MSG_MORE.
    pub cork_limit: Duration,
    /// Congestion control of new connections.
    pub congestion: crate::congestion::Algorithm,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            receive_buffer: 256 * 1024,
            send_buffer: 256 * 1024,
            timestamps: true,
            window_scaling: true,
            initial_window: 10,
            initial_rto: Duration::from_secs(1),
            min_rto: Duration::from_millis(200),
            max_rto: Duration::from_secs(120),
            delayed_ack: Duration::from_millis(40),
            syn_retries: 6,
            synack_retries: 5,
            retries: 15,
            fin_timeout: Duration::from_secs(60),
            keep_idle: Duration::from_secs(7200),
            keep_interval: Duration::from_secs(75),
            keep_count: 9,
            cork_limit: Duration::from_millis(200),
            congestion: crate::congestion::Algorithm::NewReno,
        }
    }
}

//! What an administrator may set about TCP, with Linux's defaults.

use core::time::Duration;

/// Most segments of a burst.
pub(crate) const MOST_BURST: u8 = 64;

/// Who may turn on ECN (RFC 3168), as Linux's `tcp_ecn`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// Nobody.
    Never,
    /// The peer: we answer.
    #[default]
    Passive,
    /// We ask for it, too.
    Always,
}

/// Parameters of every connection of a stack, which takes them as [`Config::clamped`] leaves them.
#[derive(Clone, Debug)]
pub struct Config {
    /// Receive buffer at the start, bytes (SO_RCVBUF unless the socket says otherwise).
    pub receive_buffer: u32,
    /// What it grows to where the application keeps up, bytes; also sets the window scale.
    pub receive_buffer_max: u32,
    /// Send queue at the start, bytes (SO_SNDBUF unless the socket says otherwise); paces reports of acknowledged bytes.
    pub send_buffer: u32,
    /// What it grows to where the window does, bytes.
    pub send_buffer_max: u32,
    /// TCP_NOTSENT_LOWAT of sockets that do not set it, bytes; 0: none.
    pub not_sent_low: u32,
    /// Offer timestamps (RFC 7323).
    pub timestamps: bool,
    /// Offer window scaling (RFC 7323).
    pub window_scaling: bool,
    /// Offer SACK (RFC 2018).
    pub sack: bool,
    /// ECN (RFC 3168).
    pub ecn: Ecn,
    /// Probe tails before the RTO (RFC 8985 7).
    pub tail_loss_probe: bool,
    /// Find out whether a timeout was spurious (RFC 5682).
    pub frto: bool,
    /// Start again from the initial window after an idle RTO (RFC 5681 4.1).
    pub slow_start_after_idle: bool,
    /// Spread segments over the round trip instead of sending bursts.
    pub pacing: bool,
    /// Segments that are probed for vanishing when large, so that the path MTU may be lower than told (RFC 4821): after
    /// this many timeouts in a row; 0: never.
    pub black_hole_timeouts: u8,
    /// Segments of a burst, at least, before PSH ends it (Linux's tcp_min_tso_segs).
    pub min_burst: u8,
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
    /// SYN retransmissions, beside the steady ones, before an active open fails (RFC 9293 3.8.3, MUST-23: three minutes).
    pub syn_retries: u8,
    /// Least time between answers to segments out of the window.
    pub invalid_ratelimit: Duration,
    /// Of the SYN retransmissions the first that are not backed off (Linux's tcp_syn_linear_timeouts).
    pub syn_linear_timeouts: u8,
    /// SYN/ACK retransmissions before a passive open is forgotten.
    pub synack_retries: u8,
    /// Retransmissions of data before the connection fails (RFC 9293 3.8.3, R2).
    pub retries: u8,
    /// The same when the application has closed.
    pub orphan_retries: u8,
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
            receive_buffer: 64 * 1024,
            receive_buffer_max: 6 * 1024 * 1024,
            send_buffer: 256 * 1024,
            send_buffer_max: 4 * 1024 * 1024,
            not_sent_low: 0,
            timestamps: true,
            window_scaling: true,
            sack: true,
            ecn: Ecn::Passive,
            tail_loss_probe: true,
            frto: true,
            slow_start_after_idle: true,
            pacing: false,
            black_hole_timeouts: 2,
            min_burst: 2,
            initial_window: 10,
            initial_rto: Duration::from_secs(1),
            min_rto: Duration::from_millis(200),
            max_rto: Duration::from_secs(120),
            delayed_ack: Duration::from_millis(40),
            syn_retries: 7,
            invalid_ratelimit: Duration::from_millis(500),
            syn_linear_timeouts: 4,
            synack_retries: 5,
            retries: 15,
            orphan_retries: 8,
            fin_timeout: Duration::from_secs(60),
            keep_idle: Duration::from_secs(7200),
            keep_interval: Duration::from_secs(75),
            keep_count: 9,
            cork_limit: Duration::from_millis(200),
            congestion: crate::congestion::Algorithm::Cubic,
        }
    }
}

impl Config {
    /// Largest buffer: halves of the sequence space are compared (RFC 9293 3.4), and the window scale ends here (RFC 7323
    /// 2.3).
    pub(crate) const MOST_BYTES: u32 = 1 << 30;

    /// The same within the limits where every formula holds and no timer runs wild: what a program sets by itself has not
    /// passed the configuration file's stricter checks.
    pub fn clamped(mut self) -> Config {
        const LEAST_BYTES: u32 = 256;
        /// Differences of µs in 32 bits keep their sign.
        const LONGEST: Duration = Duration::from_secs(1800);
        const MS: Duration = Duration::from_millis(1);
        const DAY: Duration = Duration::from_secs(86_400);
        let bytes = |n: &mut u32, least: u32| *n = (*n).clamp(least, Config::MOST_BYTES);
        bytes(&mut self.receive_buffer, LEAST_BYTES);
        bytes(&mut self.receive_buffer_max, self.receive_buffer);
        bytes(&mut self.send_buffer, LEAST_BYTES);
        bytes(&mut self.send_buffer_max, self.send_buffer);
        self.initial_window = self.initial_window.clamp(1, 65_535);
        self.min_burst = self.min_burst.clamp(1, MOST_BURST);
        self.max_rto = self.max_rto.clamp(MS, LONGEST);
        self.min_rto = self.min_rto.clamp(MS, self.max_rto);
        self.initial_rto = self.initial_rto.clamp(MS, self.max_rto);
        // RFC 9293 3.8.6.3, MUST-40.
        self.delayed_ack = self.delayed_ack.min(Duration::from_millis(500));
        self.invalid_ratelimit = self.invalid_ratelimit.min(Duration::from_secs(60));
        self.fin_timeout = self.fin_timeout.min(DAY);
        self.cork_limit = self.cork_limit.clamp(MS, Duration::from_secs(60));
        let seconds = |d: &mut Duration| *d = (*d).clamp(Duration::from_secs(1), Duration::from_secs(32_767));
        seconds(&mut self.keep_idle);
        seconds(&mut self.keep_interval);
        self.keep_count = self.keep_count.clamp(1, 127);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_within_the_limits() {
        let (default, clamped) = (Config::default(), Config::default().clamped());
        assert_eq!(format!("{default:?}"), format!("{clamped:?}"));
    }

    #[test]
    fn what_depends_on_another_follows_it() {
        let odd = Config {
            receive_buffer: 1 << 20,
            receive_buffer_max: 0,
            send_buffer: u32::MAX,
            send_buffer_max: 5,
            max_rto: Duration::from_millis(50),
            ..Config::default()
        };
        let c = odd.clamped();
        assert_eq!((c.receive_buffer, c.receive_buffer_max), (1 << 20, 1 << 20));
        assert_eq!((c.send_buffer, c.send_buffer_max), (1 << 30, 1 << 30));
        assert_eq!((c.min_rto, c.initial_rto), (c.max_rto, c.max_rto));
    }
}

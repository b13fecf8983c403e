//! TCP's parameters in the configuration; what is missing keeps its default, which is Linux's.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de};
use tcp::congestion::Algorithm;

use super::check::{Fault, Place, within};

/// When SYNs are answered by cookies (RFC 4987).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SynCookies {
    /// Not at all.
    Never,
    /// When there is no room for another handshake.
    WhenFull,
    /// Always.
    Always,
}

impl From<SynCookies> for stack::SynCookies {
    fn from(when: SynCookies) -> stack::SynCookies {
        match when {
            SynCookies::Never => stack::SynCookies::Never,
            SynCookies::WhenFull => stack::SynCookies::WhenFull,
            SynCookies::Always => stack::SynCookies::Always,
        }
    }
}

/// Who may turn on ECN (RFC 3168).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ecn {
    /// Nobody.
    Never,
    /// The peer: we answer.
    Passive,
    /// We ask for it, too.
    Always,
}

impl From<Ecn> for tcp::Ecn {
    fn from(who: Ecn) -> tcp::Ecn {
        match who {
            Ecn::Never => tcp::Ecn::Never,
            Ecn::Passive => tcp::Ecn::Passive,
            Ecn::Always => tcp::Ecn::Always,
        }
    }
}

/// TCP's parameters; what is missing keeps its default.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TcpConfig {
    /// Congestion control of new connections, where listener and socket name none: `cubic` or `reno`.
    #[serde(default, deserialize_with = "algorithm")]
    pub congestion: Option<Algorithm>,
    /// Spread segments over the round trip instead of sending bursts.
    pub pacing: Option<bool>,
    /// Initial window, segments (RFC 6928).
    pub initial_window: Option<u32>,
    /// Start again from the initial window after an idle RTO (RFC 5681 4.1).
    pub slow_start_after_idle: Option<bool>,
    /// Receive buffer at first, bytes.
    pub receive_buffer: Option<u32>,
    /// What it may grow to, bytes.
    pub receive_buffer_max: Option<u32>,
    /// Send buffer at first, bytes.
    pub send_buffer: Option<u32>,
    /// What it may grow to, bytes.
    pub send_buffer_max: Option<u32>,
    /// TCP_NOTSENT_LOWAT of sockets that do not set it, bytes; 0 is none.
    pub not_sent_low: Option<u32>,
    /// RFC 7323 timestamps.
    pub timestamps: Option<bool>,
    /// RFC 7323 window scaling.
    pub window_scaling: Option<bool>,
    /// RFC 2018 selective acknowledgments.
    pub sack: Option<bool>,
    /// RFC 3168 explicit congestion notification.
    pub ecn: Option<Ecn>,
    /// Probe tails before the RTO (RFC 8985 7).
    pub tail_loss_probe: Option<bool>,
    /// Find spurious timeouts (RFC 5682).
    pub frto: Option<bool>,
    /// Timeouts in a row after which the path is believed to swallow large segments; 0 never.
    pub black_hole_timeouts: Option<u8>,
    /// Retransmission timeout before a round trip was measured, ms.
    pub initial_rto_ms: Option<u64>,
    /// Smallest retransmission timeout, ms.
    pub min_rto_ms: Option<u64>,
    /// Largest retransmission timeout, ms.
    pub max_rto_ms: Option<u64>,
    /// Delayed acknowledgment, ms.
    pub delayed_ack_ms: Option<u64>,
    /// SYN retransmissions, with back-off, before an active open fails.
    pub syn_retries: Option<u8>,
    /// SYN retransmissions a second apart before those.
    pub syn_linear_timeouts: Option<u8>,
    /// SYN/ACK retransmissions before a handshake is forgotten.
    pub synack_retries: Option<u8>,
    /// Retransmissions of data before a connection fails.
    pub retries: Option<u8>,
    /// The same once the application has closed.
    pub orphan_retries: Option<u8>,
    /// Idle time before the first keepalive probe, s.
    pub keep_idle_s: Option<u16>,
    /// Time between keepalive probes, s.
    pub keep_interval_s: Option<u16>,
    /// Keepalive probes without an answer before a connection fails.
    pub keep_count: Option<u8>,
    /// TIME-WAIT, ms.
    pub time_wait_ms: Option<u64>,
    /// FIN-WAIT-2 of orphans, ms.
    pub fin_timeout_ms: Option<u64>,
    /// When SYNs are answered by cookies; `when_full` when missing.
    pub syn_cookies: Option<SynCookies>,
    /// A handshake that ends while the accept queue is full is reset, rather than kept waiting.
    pub abort_on_overflow: Option<bool>,
    /// Least time between answers of a connection to segments out of the window, ms (RFC 5961 7).
    pub invalid_ratelimit_ms: Option<u64>,
}

fn algorithm<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Algorithm>, D::Error> {
    let name = String::deserialize(d)?;
    Algorithm::from_name(&name).map(Some).ok_or_else(|| {
        let known: Vec<&str> = Algorithm::ALL.iter().map(|(_, name)| *name).collect();
        de::Error::custom(format!("congestion {name:?}: expected one of {}", known.join(", ")))
    })
}

impl TcpConfig {
    /// All parameters, the defaults filled in.
    pub fn parameters(&self) -> tcp::Config {
        let mut t = tcp::Config::default();
        macro_rules! take {
            ($($field:ident),*) => {$( if let Some(value) = self.$field { t.$field = value } )*};
        }
        macro_rules! take_time {
            ($($from:ident => $to:ident in $unit:ident),*) => {
                $( if let Some(value) = self.$from { t.$to = Duration::$unit(value.into()) } )*
            };
        }
        take!(congestion, pacing, initial_window, slow_start_after_idle);
        take!(receive_buffer, receive_buffer_max, send_buffer, send_buffer_max, not_sent_low);
        take!(timestamps, window_scaling, sack, tail_loss_probe, frto, black_hole_timeouts);
        take!(syn_retries, syn_linear_timeouts, synack_retries, retries, orphan_retries, keep_count);
        take_time!(
            initial_rto_ms => initial_rto in from_millis,
            min_rto_ms => min_rto in from_millis,
            max_rto_ms => max_rto in from_millis,
            delayed_ack_ms => delayed_ack in from_millis,
            fin_timeout_ms => fin_timeout in from_millis,
            invalid_ratelimit_ms => invalid_ratelimit in from_millis,
            keep_idle_s => keep_idle in from_secs,
            keep_interval_s => keep_interval in from_secs
        );
        t.ecn = self.ecn.map_or(t.ecn, Into::into);
        // Of the two sizes of a buffer the one that is set goes before the other's default.
        match self.receive_buffer {
            None => t.receive_buffer = t.receive_buffer.min(t.receive_buffer_max),
            Some(_) => t.receive_buffer_max = t.receive_buffer_max.max(t.receive_buffer),
        }
        match self.send_buffer {
            None => t.send_buffer = t.send_buffer.min(t.send_buffer_max),
            Some(_) => t.send_buffer_max = t.send_buffer_max.max(t.send_buffer),
        }
        t
    }

    /// What the types cannot say.
    pub(super) fn check(&self) -> Result<(), Fault> {
        const GIB: u32 = 1 << 30;
        let tcp = Place::Tcp;
        within(tcp, "initial_window", self.initial_window, 1, 100)?;
        within(tcp, "receive_buffer", self.receive_buffer, 2048, GIB)?;
        within(tcp, "receive_buffer_max", self.receive_buffer_max, 2048, GIB)?;
        within(tcp, "send_buffer", self.send_buffer, 4096, GIB)?;
        within(tcp, "send_buffer_max", self.send_buffer_max, 4096, GIB)?;
        within(tcp, "initial_rto_ms", self.initial_rto_ms, 10, 60_000)?;
        within(tcp, "min_rto_ms", self.min_rto_ms, 1, 60_000)?;
        within(tcp, "max_rto_ms", self.max_rto_ms, 1000, 120_000)?;
        // RFC 9293 3.8.6.3, MUST-40.
        within(tcp, "delayed_ack_ms", self.delayed_ack_ms, 1, 500)?;
        within(tcp, "keep_idle_s", self.keep_idle_s, 1, 32_767)?;
        within(tcp, "keep_interval_s", self.keep_interval_s, 1, 32_767)?;
        within(tcp, "keep_count", self.keep_count, 1, 127)?;
        within(tcp, "time_wait_ms", self.time_wait_ms, 0, 600_000)?;
        within(tcp, "fin_timeout_ms", self.fin_timeout_ms, 0, 600_000)?;
        within(tcp, "invalid_ratelimit_ms", self.invalid_ratelimit_ms, 0, 60_000)?;
        within(tcp, "syn_retries", self.syn_retries, 1, 127)?;
        within(tcp, "syn_linear_timeouts", self.syn_linear_timeouts, 0, 127)?;
        within(tcp, "synack_retries", self.synack_retries, 0, 127)?;
        within(tcp, "retries", self.retries, 1, 127)?;
        within(tcp, "orphan_retries", self.orphan_retries, 0, 127)?;
        let t = self.parameters();
        for (key, from, max) in [("min_rto_ms", t.min_rto, t.max_rto), ("initial_rto_ms", t.initial_rto, t.max_rto)] {
            if from > max {
                return Err(tcp(key).fault(format!("{key}: expected at most max_rto_ms, which is {}", max.as_millis())));
            }
        }
        // A default gives way; what was asked for does not.
        let buffers = [
            ("receive_buffer", self.receive_buffer, self.receive_buffer_max),
            ("send_buffer", self.send_buffer, self.send_buffer_max),
        ];
        for (key, at_first, max) in buffers {
            if let (Some(at_first), Some(max)) = (at_first, max)
                && at_first > max
            {
                return Err(tcp(key).fault(format!("{key} is {at_first}: expected at most {key}_max, which is {max}")));
            }
        }
        Ok(())
    }
}

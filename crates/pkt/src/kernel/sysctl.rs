//! The kernel is given the parameters that our stack has, whatever the machine's administrator has set.

use std::fs;

use stack::SynCookies;
use tcp::{Config, Ecn};

/// Sets the calling thread's namespace as `tcp` says. Parameters that this kernel does not have are left out.
pub fn set(tcp: &Config, cookies: SynCookies) {
    for (name, value) in parameters(tcp, cookies) {
        // An older kernel has fewer of them.
        let _ = fs::write(format!("/proc/sys/net/ipv4/{name}"), value);
    }
}

/// Names and values under `net.ipv4` (Linux's ip-sysctl.rst).
fn parameters(tcp: &Config, cookies: SynCookies) -> Vec<(&'static str, String)> {
    let buffer = |middle: u32, most: u32| format!("4096 {middle} {}", most.max(middle));
    let ecn = match tcp.ecn {
        Ecn::Never => 0,
        Ecn::Always => 1,
        Ecn::Passive => 2,
    };
    let numbers = [
        ("tcp_timestamps", tcp.timestamps as u64),
        ("tcp_syncookies", cookies as u64),
        ("tcp_window_scaling", tcp.window_scaling as u64),
        ("tcp_sack", tcp.sack as u64),
        ("tcp_ecn", ecn),
        ("tcp_early_retrans", if tcp.tail_loss_probe { 3 } else { 0 }),
        ("tcp_frto", if tcp.frto { 2 } else { 0 }),
        ("tcp_slow_start_after_idle", tcp.slow_start_after_idle as u64),
        ("tcp_mtu_probing", (tcp.black_hole_timeouts > 0) as u64),
        // RFC 1337, which our stack always follows.
        ("tcp_rfc1337", 1),
        ("tcp_invalid_ratelimit", tcp.invalid_ratelimit.as_millis() as u64),
        ("tcp_syn_linear_timeouts", tcp.syn_linear_timeouts.into()),
        ("tcp_syn_retries", tcp.syn_retries.into()),
        ("tcp_synack_retries", tcp.synack_retries.into()),
        ("tcp_retries2", tcp.retries.into()),
        ("tcp_orphan_retries", tcp.orphan_retries.into()),
        ("tcp_fin_timeout", tcp.fin_timeout.as_secs()),
        ("tcp_keepalive_time", tcp.keep_idle.as_secs()),
        ("tcp_keepalive_intvl", tcp.keep_interval.as_secs()),
        ("tcp_keepalive_probes", tcp.keep_count.into()),
        ("tcp_rto_min_us", tcp.min_rto.as_micros() as u64),
        ("tcp_rto_max_ms", tcp.max_rto.as_millis() as u64),
        // What one connection has learned says nothing to the next.
        ("tcp_no_metrics_save", 1),
        ("tcp_fastopen", 0),
    ];
    let buffers = [
        // Linux counts the memory of buffers, of which half is for data.
        ("tcp_rmem", buffer(tcp.receive_buffer.saturating_mul(2), tcp.receive_buffer_max)),
        ("tcp_wmem", buffer(tcp.send_buffer, tcp.send_buffer_max)),
    ];
    numbers.into_iter().map(|(name, n)| (name, n.to_string())).chain(buffers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names are those that scripts use, and are understood alike.
    #[test]
    fn as_scripts_set_them() {
        let tcp = Config { timestamps: false, sack: false, keep_count: 3, ecn: Ecn::Always, ..Config::default() };
        let mut settings = crate::Settings::default();
        for (name, value) in parameters(&tcp, SynCookies::Always) {
            settings.command(&format!("sysctl -q net.ipv4.{name}='{value}'"));
        }
        assert_eq!(settings.cookies, SynCookies::Always);
        let got = settings.tcp;
        assert_eq!((got.timestamps, got.sack, got.keep_count, got.ecn), (false, false, 3, Ecn::Always));
        assert_eq!((got.receive_buffer, got.receive_buffer_max), (tcp.receive_buffer, tcp.receive_buffer_max));
        assert_eq!((got.send_buffer, got.send_buffer_max), (tcp.send_buffer, tcp.send_buffer_max));
        assert_eq!((got.min_rto, got.fin_timeout, got.retries), (tcp.min_rto, tcp.fin_timeout, tcp.retries));
    }
}

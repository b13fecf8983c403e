//! Commands in back quotes: what they set is read into the stack's parameters, and nothing is run.

use std::time::Duration;

use stack::SynCookies;
use tcp::congestion::Algorithm;
use tcp::{Config, Ecn};

/// What the commands before the first event have set.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// TCP's parameters.
    pub tcp: Config,
    /// The interface's or the route's MTU, bytes.
    pub mtu: Option<u16>,
    /// When listeners answer by cookies.
    pub cookies: SynCookies,
    /// What was not understood, for the report.
    pub notices: Vec<String>,
    /// Something without which the script makes no sense.
    pub unsupported: Option<String>,
}

/// What Google's suite sets before each of its scripts, where it differs from what is set here anyway.
const SUITE_DEFAULTS: [(&str, &str); 11] = [
    ("tcp_rmem", "4096 540000 15728640"),
    ("tcp_wmem", "4096 262144 4194304"),
    ("tcp_timestamps", "1"),
    ("tcp_sack", "1"),
    ("tcp_syn_retries", "5"),
    ("tcp_synack_retries", "5"),
    ("tcp_congestion_control", "cubic"),
    ("tcp_slow_start_after_idle", "0"),
    ("tcp_ecn", "0"),
    ("tcp_frto", "2"),
    ("tcp_early_retrans", "4"),
];

impl Settings {
    /// Reads a command line, which may be several.
    pub fn command(&mut self, text: &str) {
        let text = text.replace("\\\n", " ");
        for line in text.split(['\n', ';']).flat_map(|line| line.split("&&")) {
            let words = words(line);
            let Some((program, arguments)) = words.split_first() else { continue };
            let program = program.rsplit('/').next().unwrap_or(program);
            match program {
                "defaults.sh" => SUITE_DEFAULTS.iter().for_each(|(key, value)| self.set(key, value)),
                "set_sysctls.py" => arguments.iter().for_each(|a| self.assignment(a)),
                "sysctl" => arguments.iter().filter(|a| a.contains('=')).for_each(|a| self.assignment(a)),
                "echo" => self.echo(arguments),
                "ip" => self.ip(arguments),
                "tc" if line.contains("limit 0") => {
                    self.unsupported = Some("a queue that drops everything (tc)".into())
                }
                // Undoes what a script has set; nothing outlives it here.
                _ if program.starts_with("sysctl_restore") || program == "true" => {}
                _ => self.notices.push(format!("not run: {}", line.trim())),
            }
        }
    }

    fn assignment(&mut self, text: &str) {
        let Some((key, value)) = text.split_once('=') else {
            self.notices.push(format!("not understood: {text}"));
            return;
        };
        self.set(key, value);
    }

    /// `echo value > /proc/sys/…`.
    fn echo(&mut self, arguments: &[String]) {
        match arguments {
            [value, sign, path] if sign == ">" => self.set(path, value),
            _ => self.notices.push(format!("not run: echo {}", arguments.join(" "))),
        }
    }

    /// `ip link set … mtu n`, `ip route change … mtu lock n initcwnd n`.
    fn ip(&mut self, arguments: &[String]) {
        let mut rest = arguments.iter();
        while let Some(word) = rest.next() {
            let mut number = || rest.find(|w| *w != "lock").and_then(|w| w.parse::<u32>().ok());
            match word.as_str() {
                "mtu" => self.mtu = number().and_then(|n| u16::try_from(n).ok()),
                "initcwnd" => self.tcp.initial_window = number().unwrap_or(self.tcp.initial_window),
                "tcp_metrics" => return,
                "advmss" | "rto_min" | "initrwnd" | "quickack" | "window" => {
                    self.notices.push(format!("not known: {word} of ip"));
                }
                _ => {}
            }
        }
    }

    /// Sets a parameter by the last part of its name.
    fn set(&mut self, key: &str, value: &str) {
        let name = key.rsplit(['.', '/']).next().unwrap_or(key);
        let value = value.trim_matches(['"', '\'']);
        let numbers: Vec<u64> = value.split_whitespace().filter_map(|w| w.parse().ok()).collect();
        let bits = value.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        // Data in a SYN is taken without a cookie.
        if name == "tcp_fastopen" && bits.or(numbers.first().copied()).is_some_and(|bits| bits & 0x200 != 0) {
            self.unsupported = Some("Fast Open".into());
        }
        let Some(first) = numbers.first().copied() else {
            if !self.named(name, value) {
                self.notices.push(format!("not known: {name}={value}"));
            }
            return;
        };
        let small = u8::try_from(first).unwrap_or(u8::MAX);
        let size = |at: usize| numbers.get(at).map(|n| u32::try_from(*n).unwrap_or(u32::MAX));
        let tcp = &mut self.tcp;
        match name {
            "tcp_rmem" => {
                // Linux counts the memory of buffers, of which half is for data.
                tcp.receive_buffer = size(1).map_or(tcp.receive_buffer, |n| n / 2);
                tcp.receive_buffer_max = size(2).unwrap_or(tcp.receive_buffer_max);
            }
            "tcp_wmem" => {
                tcp.send_buffer = size(1).unwrap_or(tcp.send_buffer);
                tcp.send_buffer_max = size(2).unwrap_or(tcp.send_buffer_max);
            }
            "tcp_timestamps" => tcp.timestamps = first != 0,
            "tcp_syncookies" => {
                self.cookies = match first {
                    0 => SynCookies::Never,
                    1 => SynCookies::WhenFull,
                    _ => SynCookies::Always,
                }
            }
            "tcp_min_tso_segs" => tcp.min_burst = small,
            "tcp_window_scaling" => tcp.window_scaling = first != 0,
            "tcp_notsent_lowat" => tcp.not_sent_low = size(0).filter(|n| *n < u32::MAX).unwrap_or(0),
            "tcp_sack" => tcp.sack = first != 0,
            "tcp_ecn" => {
                tcp.ecn = match first {
                    0 => Ecn::Never,
                    1 => Ecn::Always,
                    _ => Ecn::Passive,
                }
            }
            "tcp_early_retrans" => tcp.tail_loss_probe = first != 0,
            "tcp_frto" => tcp.frto = first != 0,
            "tcp_slow_start_after_idle" => tcp.slow_start_after_idle = first != 0,
            "tcp_mtu_probing" if first == 0 => tcp.black_hole_timeouts = 0,
            "tcp_invalid_ratelimit" => tcp.invalid_ratelimit = Duration::from_millis(first),
            "tcp_syn_linear_timeouts" => tcp.syn_linear_timeouts = small,
            "tcp_syn_retries" => tcp.syn_retries = small,
            "tcp_synack_retries" => tcp.synack_retries = small,
            "tcp_retries2" => tcp.retries = small,
            "tcp_orphan_retries" => tcp.orphan_retries = small,
            "tcp_fin_timeout" => tcp.fin_timeout = Duration::from_secs(first),
            "tcp_keepalive_time" => tcp.keep_idle = Duration::from_secs(first),
            "tcp_keepalive_intvl" => tcp.keep_interval = Duration::from_secs(first),
            "tcp_keepalive_probes" => tcp.keep_count = small,
            "tcp_rto_min_us" => tcp.min_rto = Duration::from_micros(first),
            "tcp_rto_max_ms" => tcp.max_rto = Duration::from_millis(first),
            _ => self.notices.push(format!("not known: {name}={value}")),
        }
    }

    /// Parameters that are names.
    fn named(&mut self, name: &str, value: &str) -> bool {
        match (name, value) {
            ("tcp_congestion_control", "reno") => self.tcp.congestion = Algorithm::NewReno,
            ("tcp_congestion_control", "cubic") => self.tcp.congestion = Algorithm::Cubic,
            _ => return false,
        }
        true
    }
}

/// The words of a command line; quotes hold words together.
fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let (mut quote, mut word) = (None, None::<String>);
    for c in line.chars() {
        match (c, quote) {
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (_, Some(q)) if c == q => quote = None,
            (_, None) if c.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_set_parameters() {
        let mut s = Settings::default();
        s.command("../common/defaults.sh\n set_sysctls.py /proc/sys/net/ipv4/tcp_timestamps=0 \\\n  x/tcp_wmem=\"4096 50000 9\"");
        assert_eq!((s.tcp.receive_buffer, s.tcp.receive_buffer_max), (270_000, 15_728_640));
        assert_eq!((s.tcp.send_buffer, s.tcp.timestamps, s.tcp.ecn), (50_000, false, Ecn::Never));
        assert_eq!(s.tcp.syn_retries, 5);
        s.command("sysctl -q net.ipv4.tcp_syn_retries=2; ip route change 192.0.2.1 dev tun0 mtu lock 640 initcwnd 11 && echo 9 > a/tcp_fin_timeout");
        assert_eq!((s.tcp.syn_retries, s.mtu, s.tcp.initial_window), (2, Some(640), 11));
        assert_eq!(s.tcp.fin_timeout, Duration::from_secs(9));
        for (value, cookies) in [(2, SynCookies::Always), (0, SynCookies::Never), (1, SynCookies::WhenFull)] {
            s.command(&format!("sysctl -q net.ipv4.tcp_syncookies={value}"));
            assert_eq!(s.cookies, cookies);
        }
        s.notices.clear();
        s.command("ethtool -K tun0 tso off; sysctl -w tcp_nothing=1; /tmp/sysctl_restore_${PPID}.sh");
        assert_eq!(s.notices, ["not run: ethtool -K tun0 tso off", "not known: tcp_nothing=1"]);
    }
}

//! Socket options as the stack sees them: on a connection, for the next request, on a listener.

use tcp::congestion::Algorithm;

use crate::conns::conn::Conn;
use protocol::ConnOption;

/// Options that wait for a connection: each at most once, so their number is bounded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options(Vec<(ConnOption, u32)>);

impl Options {
    pub fn set(&mut self, option: ConnOption, value: u32) {
        match self.0.iter_mut().find(|(o, _)| *o == option) {
            Some((_, v)) => *v = value,
            None => self.0.push((option, value)),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, option: ConnOption) -> Option<u32> {
        self.0.iter().find(|(o, _)| *o == option).map(|(_, v)| *v)
    }

    /// What a SYN must know before there is a connection: the largest segment and the receive buffer, 0 where nobody set
    /// one and `default` is where it starts.
    pub fn limit(&self, mss: u16, receive_buffer: u32, default: u32) -> (u16, u32) {
        let positive = |option| self.get(option).filter(|v| *v > 0);
        let mss = positive(ConnOption::MaxSegment).map_or(mss, |v| mss.min(short(v).max(36)));
        let buffer = positive(ConnOption::ReceiveBuffer).unwrap_or(receive_buffer);
        match positive(ConnOption::WindowClamp) {
            Some(clamp) if buffer > 0 => (mss, buffer.min(clamp)),
            Some(clamp) if clamp < default => (mss, clamp),
            _ => (mss, buffer),
        }
    }

    /// Sets them all on a connection.
    pub fn apply(&self, conn: &mut Conn, cx: &mut tcp::Context) {
        for (option, value) in &self.0 {
            apply(conn, *option, *value, cx);
        }
    }
}

fn short(value: u32) -> u16 {
    value.min(u16::MAX as u32) as u16
}

/// Sets one option on a connection.
pub(crate) fn apply(conn: &mut Conn, option: ConnOption, value: u32, cx: &mut tcp::Context) {
    let tcb = &mut conn.tcb;
    match option {
        ConnOption::NoDelay => tcb.set_nodelay(value != 0),
        ConnOption::Cork => tcb.set_cork(value != 0),
        ConnOption::ReceiveBuffer => tcb.set_receive_buffer(value),
        ConnOption::SendBuffer => tcb.set_send_buffer(value),
        ConnOption::KeepAlive => tcb.set_keepalive(Some(value != 0), None, None, None, cx),
        ConnOption::KeepIdle => tcb.set_keepalive(None, Some(short(value)), None, None, cx),
        ConnOption::KeepInterval => tcb.set_keepalive(None, None, Some(short(value)), None, cx),
        ConnOption::KeepCount => tcb.set_keepalive(None, None, None, Some(value.min(127) as u8), cx),
        ConnOption::UserTimeout => tcb.set_user_timeout(value),
        ConnOption::QuickAck => tcb.set_quickack(value != 0),
        ConnOption::MaxSegment => tcb.clamp_mss(short(value)),
        ConnOption::SynCount => tcb.set_syn_retries(value.min(127) as u8),
        ConnOption::Linger2 => tcb.set_linger2(value as i32),
        // The listener's alone.
        ConnOption::DeferAccept => {}
        ConnOption::WindowClamp => tcb.set_window_clamp(value),
        ConnOption::Congestion => {
            if let Some(algorithm) = Algorithm::from_number(value) {
                tcb.set_congestion(algorithm);
            }
        }
        ConnOption::NotSentLow => tcb.set_not_sent_low(value),
        // RFC 3168 5: the two low bits are TCP's.
        ConnOption::TrafficClass => conn.traffic_class = value as u8 & !3,
        ConnOption::MaxPacing if value == u32::MAX => tcb.set_max_pacing_rate(u64::MAX),
        ConnOption::MaxPacing => tcb.set_max_pacing_rate(value.into()),
        // IP_PMTUDISC_DONT, _INTERFACE and _OMIT.
        ConnOption::MtuDiscover => conn.fragments = matches!(value, 0 | 4 | 5),
        ConnOption::HopLimit => conn.hop_limit = value.min(255) as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_syn_says_of_sizes() {
        use ConnOption::{MaxSegment, ReceiveBuffer, WindowClamp};
        let limit = |list: &[(ConnOption, u32)], buffer| {
            let mut options = Options::default();
            list.iter().for_each(|(option, value)| options.set(*option, *value));
            options.limit(1460, buffer, 10_000)
        };
        // The smaller segment, but none that is absurdly small; 0 is none.
        for (asked, mss) in [(0, 1460), (1, 36), (36, 36), (37, 37), (1459, 1459), (1461, 1460), (70_000, 1460)] {
            assert_eq!(limit(&[(MaxSegment, asked)], 0), (mss, 0));
        }
        // The option's buffer before the socket's.
        assert_eq!(limit(&[], 7000).1, 7000);
        for (asked, buffer) in [(0, 7000), (1, 1), (9000, 9000)] {
            assert_eq!(limit(&[(ReceiveBuffer, asked)], 7000).1, buffer);
        }
        // A clamp bounds what was set, and the default where nothing was.
        for (clamp, buffer) in [(0, 7000), (6999, 6999), (7000, 7000), (7001, 7000)] {
            assert_eq!(limit(&[(WindowClamp, clamp)], 7000).1, buffer);
        }
        for (clamp, buffer) in [(0, 0), (1, 1), (9999, 9999), (10_000, 0), (10_001, 0)] {
            assert_eq!(limit(&[(WindowClamp, clamp)], 0).1, buffer);
        }
        assert_eq!(limit(&[(WindowClamp, 500), (WindowClamp, 400), (ReceiveBuffer, 600)], 0).1, 400);
    }
}

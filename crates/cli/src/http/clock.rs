//! The date of responses, formatted once a second.

use std::time::{Duration, SystemTime};

/// The current time as an HTTP date.
#[derive(Debug)]
pub struct DateClock {
    second: u64,
    text: String,
}

impl DateClock {
    /// A clock showing `now`.
    pub fn new(now: SystemTime) -> DateClock {
        let mut clock = DateClock { second: u64::MAX, text: String::new() };
        clock.set(now);
        clock
    }

    /// Moves the clock; formats only when the second changed.
    pub fn set(&mut self, now: SystemTime) {
        let second = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if second != self.second {
            self.second = second;
            self.text = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(second));
        }
    }

    /// The date's text, IMF-fixdate.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Seconds since the epoch.
    pub fn second(&self) -> u64 {
        self.second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_follows_the_second() {
        let mut clock = DateClock::new(SystemTime::UNIX_EPOCH + Duration::from_millis(784_111_777_900));
        assert_eq!(clock.text(), "Sun, 06 Nov 1994 08:49:37 GMT");
        clock.set(SystemTime::UNIX_EPOCH + Duration::from_millis(784_111_778_000));
        assert_eq!(clock.text(), "Sun, 06 Nov 1994 08:49:38 GMT");
        assert_eq!(clock.second(), 784_111_778);
    }
}

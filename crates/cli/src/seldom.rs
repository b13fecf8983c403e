//! Warnings about what may happen with every request: at most one a minute, with how often it happened since.

use crate::failure::words;
use std::io;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_secs(60);

/// Decides when a condition that repeats is told again.
#[derive(Debug, Default)]
pub struct Seldom {
    next: Option<Instant>,
    /// Not told yet.
    count: u64,
}

impl Seldom {
    /// Counts an event; how many there were since the last warning, where it is time for one.
    pub fn count(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        if self.next.is_some_and(|next| now < next) {
            return None;
        }
        self.next = Some(now + PAUSE);
        Some(std::mem::take(&mut self.count))
    }
}

/// What an administrator can do about an error that says that the system, or this process, is short of something.
pub fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => "raise this process's limit of open files (ulimit -n, or LimitNOFILE= of its unit)",
        Some(libc::ENFILE) => "raise the machine's limit of open files (sysctl fs.file-max)",
        Some(libc::ENOMEM | libc::ENOBUFS) => "the machine is short of memory",
        _ => "the system refused it",
    }
}

/// The line for an event that was counted.
pub fn line(what: &str, count: u64, error: &io::Error) -> String {
    let times = if count == 1 { String::new() } else { format!(" ({count} times since the last warning)") };
    format!("{what}: {}{times}: {}", words(error), remedy(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_warning_a_minute_counts_what_happened_meanwhile() {
        let (mut seldom, start) = (Seldom::default(), Instant::now());
        assert_eq!(seldom.count(start), Some(1));
        assert_eq!(seldom.count(start + PAUSE / 2), None);
        assert_eq!(seldom.count(start + PAUSE / 2), None);
        assert_eq!(seldom.count(start + PAUSE), Some(3));
        assert_eq!(seldom.count(start + PAUSE), None);
        let error = io::Error::from_raw_os_error(libc::EMFILE);
        let said = line("answered 503", 3, &error);
        assert!(said.starts_with("answered 503: too many open files (3 times since the last warning): "), "{said}");
        assert!(said.contains("ulimit -n"), "{said}");
    }
}

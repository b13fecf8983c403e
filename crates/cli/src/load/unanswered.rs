//! Requests, connects and starts that had no answer when the measurement ended.
//!
//! A stall that lasts to the end has no latency, so it would be seen nowhere (coordinated omission, and worse): what is under way is
//! counted, with its age.

use super::latency::{Latency, Percentiles};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// A server that answers nothing for so long is told of, whatever its answers took before.
const SILENCE: Duration = Duration::from_secs(1);
/// Values that starts which never came are recorded as, at most.
const STEPS: u64 = 10_000;

/// Under way at the end of a measurement, of one generator or several together.
#[derive(Clone, Debug, Default)]
pub struct Unanswered {
    requests: u64,
    connects: u64,
    starts: u64,
    oldest: Duration,
    ages: Latency,
    /// From the last answer to the end; of several generators, the shortest. None: nothing was measured.
    silence: Option<Duration>,
    /// The slowest answer.
    slowest: Duration,
}

impl Unanswered {
    /// Begins to count at the end of a measurement: how long nothing had been answered, and what the slowest answer had taken.
    pub fn since(silence: Duration, slowest: Duration) -> Unanswered {
        Unanswered { silence: Some(silence), slowest, ..Unanswered::default() }
    }

    /// Counts a request whose answer is not whole, of this age.
    pub fn request(&mut self, age: Duration) {
        self.requests += 1;
        self.count_age(age, 1);
    }

    /// Counts a connection whose handshake is not over, of this age.
    pub fn connect(&mut self, age: Duration) {
        self.connects += 1;
        self.count_age(age, 1);
    }

    /// Counts connections of an open loop that were due and had not been started, the first of them `age` ago; their ages go to
    /// `total` as well.
    pub fn not_started(&mut self, n: u64, age: Duration, total: &mut Latency) {
        self.starts += n;
        let (step, mut left) = (n.div_ceil(STEPS).max(1), n);
        while left > 0 {
            let some = step.min(left);
            // They were due evenly: those that are left begin this much later.
            let age = age.mul_f64(left as f64 / n as f64);
            self.count_age(age, some);
            total.record_n(age, some);
            left -= some;
        }
    }

    fn count_age(&mut self, age: Duration, n: u64) {
        self.oldest = self.oldest.max(age);
        self.ages.record_n(age, n);
    }

    /// Adds another thread's.
    pub fn add(&mut self, other: &Unanswered) {
        self.requests += other.requests;
        self.connects += other.connects;
        self.starts += other.starts;
        self.oldest = self.oldest.max(other.oldest);
        self.ages.add(&other.ages);
        self.silence = self.silence.into_iter().chain(other.silence).min();
        self.slowest = self.slowest.max(other.slowest);
    }

    /// Requests and connects.
    pub fn count(&self) -> u64 {
        self.requests + self.connects
    }

    /// Connections of an open loop that were due and had not been started.
    pub fn starts(&self) -> u64 {
        self.starts
    }

    /// Silence of the server at the end, where it had stopped answering: longer than any answer had taken.
    pub fn stall(&self) -> Option<Duration> {
        self.silence.filter(|silence| self.count() > 0 && *silence >= SILENCE && *silence > self.slowest)
    }

    /// The report.
    pub fn report(&self) -> UnansweredReport {
        UnansweredReport {
            requests: self.requests,
            connects: self.connects,
            not_started: self.starts,
            oldest_s: self.oldest.as_secs_f64(),
            stall_s: self.stall().map(|time| time.as_secs_f64()),
            age_us: self.ages.summary(),
            is_notable: self.oldest >= SILENCE || self.oldest > self.slowest,
        }
    }
}

/// Under way at the end of a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct UnansweredReport {
    /// Requests whose answer was not whole.
    pub requests: u64,
    /// Connections whose handshake was not over.
    pub connects: u64,
    /// Open loop: connections that were due and had not been started, as all that may be open at once were open.
    pub not_started: u64,
    /// Age of the oldest, in seconds.
    pub oldest_s: f64,
    /// Seconds for which nothing at all had been answered, where the server had stopped answering.
    pub stall_s: Option<f64>,
    /// Ages of all of them, in microseconds.
    pub age_us: Percentiles,
    /// Older than what is always under way: people are told.
    #[serde(skip)]
    pub is_notable: bool,
}

impl fmt::Display for UnansweredReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |n: u64, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let kinds = [(self.requests, "request"), (self.connects, "connect")];
        let some: Vec<String> = kinds.iter().filter(|(n, _)| *n > 0).map(|(n, what)| of(*n, what)).collect();
        if !some.is_empty() {
            let were = if self.requests + self.connects == 1 { "was" } else { "were" };
            write!(f, "{} {were} still unanswered at the end, the oldest for ", some.join(" and "))?;
            match self.oldest_s {
                s if s < 0.1 => write!(f, "{:.1} ms", s * 1e3)?,
                s => write!(f, "{s:.1} s")?,
            }
        }
        if self.not_started > 0 {
            let comma = if some.is_empty() { "" } else { "; " };
            let were = if self.not_started == 1 { "was" } else { "were" };
            let starts = of(self.not_started, "connection");
            write!(f, "{comma}{starts} {were} due and not started, as no more may be open (-c)")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_that_never_came_have_the_ages_at_which_they_were_due() {
        for n in [1, 7, 300, STEPS + 1, 3 * STEPS - 5] {
            let (mut unanswered, mut total) = (Unanswered::default(), Latency::default());
            unanswered.not_started(n, Duration::from_secs(10), &mut total);
            let (ages, report) = (total.summary(), unanswered.report());
            assert_eq!((ages.samples, report.age_us.samples, report.not_started), (n, n, n));
            assert!((9.9..=10.0).contains(&report.oldest_s) && (9.9e6..10.1e6).contains(&ages.max), "{n}: {ages:?}");
            let middle = 5e6 + 5e6 / n as f64;
            assert!((ages.mean / middle - 1.0).abs() < 0.01, "{n}: {ages:?}");
        }
    }

    #[test]
    fn a_server_is_silent_when_all_its_lanes_are_and_longer_than_answers_take() {
        let second = Duration::from_secs(1);
        let mut one = Unanswered::since(3 * second, second / 10);
        assert_eq!(one.stall(), None, "nothing is under way");
        one.request(3 * second);
        assert_eq!(one.stall(), Some(3 * second));
        let mut both = Unanswered::default();
        both.add(&one);
        assert_eq!(both.stall(), Some(3 * second));
        both.add(&Unanswered::since(second / 2, second / 10));
        assert_eq!(both.stall(), None, "another lane had answers");
        let mut slow = Unanswered::since(3 * second, 4 * second);
        slow.connect(3 * second);
        assert_eq!(slow.stall(), None, "answers take longer");
    }

    #[test]
    fn the_line_counts_each_kind() {
        let mut some = Unanswered::since(Duration::ZERO, Duration::from_secs(9));
        some.request(Duration::from_millis(2));
        let line = "1 request was still unanswered at the end, the oldest for 2.0 ms";
        assert_eq!((some.report().to_string().as_str(), some.report().is_notable), (line, false));
        some.connect(Duration::from_secs(3));
        some.not_started(4, Duration::from_secs(2), &mut Latency::default());
        let line = "1 request and 1 connect were still unanswered at the end, the oldest for 3.0 s; \
                    4 connections were due and not started, as no more may be open (-c)";
        assert_eq!((some.report().to_string().as_str(), some.report().is_notable), (line, true));
    }
}

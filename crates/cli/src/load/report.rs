//! What load measured, for people and for programs.

use super::cause::Cause;
use super::latency::{Latency, Percentiles};
use super::unanswered::{Unanswered, UnansweredReport};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// What one generator, or several together, measured.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Connections completed.
    pub connections: u64,
    /// Responses received and found right.
    pub messages: u64,
    /// Bytes received, heads included.
    pub bytes: u64,
    /// Connections started.
    pub starts: u64,
    /// Of these, later than intended.
    pub late_starts: u64,
    /// Start to established.
    pub connect: Latency,
    /// Start (of the connection, or of a later request) to the first byte.
    pub first_byte: Latency,
    /// The same start to the last byte.
    pub total: Latency,
    /// Established to the last byte of the first response.
    pub processing: Latency,
    /// Connections kept open.
    pub held: u64,
    /// Keys that were not there.
    pub misses: u64,
    /// Bytes that each place for a connection received: how many places, their sum, the sum of their squares.
    pub shares: (u64, f64, f64),
    /// Under way when the measurement ended.
    pub unanswered: Unanswered,
    /// Connections that the server was asked to end and did not, so that the generator closed them.
    pub ends_outstanding: u64,
    /// `--hold`: the measurement never began, as only so many connections of so many were open.
    pub not_held: Option<(u64, u64)>,
    errors: BTreeMap<Cause, u64>,
    wall: Duration,
    cpu: Duration,
    /// The busiest generator's share of its core.
    busiest: f64,
}

impl Tally {
    /// Counts a failure.
    pub fn error(&mut self, cause: Cause) {
        *self.errors.entry(cause).or_default() += 1;
    }

    /// Failures, all causes together.
    pub fn failures(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Says if a server answered something, right or wrong.
    pub fn answered(&self) -> bool {
        use Cause::{Answer, Length, Malformed, Status, Surplus};
        let answer = |cause: &Cause| matches!(cause, Status(_) | Malformed(_) | Length | Surplus | Answer);
        self.messages > 0 || self.errors.keys().any(answer)
    }

    /// Notes how long the measurement took and the generator's own CPU time in it.
    pub fn measured(&mut self, wall: Duration, cpu: Duration) {
        self.wall = wall;
        self.cpu = cpu;
        self.busiest = cpu.as_secs_f64() / wall.as_secs_f64().max(1e-9);
    }

    /// Counts the work of a stack thread on the same core, from the time that it slept.
    pub fn stack_slept(&mut self, slept: Duration, wall: Duration) {
        self.busiest = self.busiest.max(1.0 - slept.as_secs_f64() / wall.as_secs_f64().max(1e-9));
    }

    /// Adds another thread's.
    pub fn add(&mut self, other: &Tally) {
        self.connections += other.connections;
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.starts += other.starts;
        self.late_starts += other.late_starts;
        self.connect.add(&other.connect);
        self.first_byte.add(&other.first_byte);
        self.total.add(&other.total);
        self.processing.add(&other.processing);
        self.held += other.held;
        self.misses += other.misses;
        self.unanswered.add(&other.unanswered);
        self.ends_outstanding += other.ends_outstanding;
        let (n, sum, squares) = other.shares;
        self.shares = (self.shares.0 + n, self.shares.1 + sum, self.shares.2 + squares);
        for (cause, count) in &other.errors {
            *self.errors.entry(*cause).or_default() += count;
        }
        self.wall = self.wall.max(other.wall);
        self.cpu += other.cpu;
        self.busiest = self.busiest.max(other.busiest);
    }

    /// Jain's index of fairness over the bytes that each place for a connection received: 1 when all have the same.
    fn jain(&self) -> Option<f64> {
        let (n, sum, squares) = self.shares;
        (squares > 0.0).then(|| sum * sum / (n as f64 * squares))
    }

    /// Starts of an open loop that were late, and those that were due and had not come at the end.
    fn missed_starts(&self) -> u64 {
        self.late_starts + self.unanswered.starts()
    }

    /// Says if an open loop did not start its connections when they were due: more than one of a hundred was late.
    pub fn missed_rate(&self) -> bool {
        self.missed_starts() * 100 > self.starts + self.unanswered.starts()
    }

    /// Says if nothing was answered, though something was asked for.
    pub fn is_useless(&self) -> bool {
        let asked = self.failures() + self.unanswered.count() > 0;
        asked && self.connections == 0 && self.messages == 0 && self.held == 0
    }

    /// The report.
    pub fn report(&self) -> Report {
        let seconds = self.wall.as_secs_f64().max(1e-9);
        // Failing and waiting are no work: where most connections failed, or the server stopped answering, the generator held nobody up.
        let worked = self.failures() <= self.connections && self.unanswered.stall().is_none();
        Report {
            seconds,
            connections: self.connections,
            messages: self.messages,
            connections_per_s: self.connections as f64 / seconds,
            messages_per_s: self.messages as f64 / seconds,
            bytes_per_s: self.bytes as f64 / seconds,
            latency_us: Latencies {
                connect: self.connect.summary(),
                first_byte: self.first_byte.summary(),
                total: self.total.summary(),
                processing: self.processing.summary(),
            },
            unanswered: self.unanswered.report(),
            ends_outstanding: self.ends_outstanding,
            held: self.held,
            misses: self.misses,
            jain: self.jain(),
            errors: self.errors.iter().map(|(cause, count)| (cause.to_string(), *count)).collect(),
            late_starts: self.late_starts,
            generator_cpu_us_per_connection: self.cpu.as_secs_f64() * 1e6 / (self.connections as f64).max(1.0),
            generator_busy: self.busiest,
            generator_was_bottleneck: worked && (self.busiest > 0.95 || self.missed_rate()),
            interrupted: false,
        }
    }
}

/// Latencies of the parts of a connection.
#[derive(Clone, Debug, Serialize)]
pub struct Latencies {
    /// Start to established.
    pub connect: Percentiles,
    /// Start to the first byte.
    pub first_byte: Percentiles,
    /// Start to the last byte.
    pub total: Percentiles,
    /// Established to the last byte of the first response.
    pub processing: Percentiles,
}

/// The result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Seconds measured.
    pub seconds: f64,
    /// Connections completed.
    pub connections: u64,
    /// Responses received and found right.
    pub messages: u64,
    /// Connections a second.
    pub connections_per_s: f64,
    /// Responses a second.
    pub messages_per_s: f64,
    /// Bytes received a second.
    pub bytes_per_s: f64,
    /// In microseconds. With a rate, what was unanswered at the end is in them with its age.
    pub latency_us: Latencies,
    /// Under way when the measurement ended.
    pub unanswered: UnansweredReport,
    /// Connections that the server was asked to end and did not, so that the generator closed them.
    pub ends_outstanding: u64,
    /// Connections kept open.
    pub held: u64,
    /// Keys that were not there.
    pub misses: u64,
    /// Jain's index over the bytes that each of the connections at once received (closed loop).
    pub jain: Option<f64>,
    /// Failures by cause.
    pub errors: BTreeMap<String, u64>,
    /// Open loop: starts later than intended.
    pub late_starts: u64,
    /// The generator's own CPU time for each connection.
    pub generator_cpu_us_per_connection: f64,
    /// The busiest generator's share of its core.
    pub generator_busy: f64,
    /// The numbers say more about the generator than about the server.
    pub generator_was_bottleneck: bool,
    /// A signal ended the run before its time.
    pub interrupted: bool,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (c, m, s) = (self.connections, self.messages, self.seconds);
        if self.held > 0 {
            writeln!(f, "{} connections held", self.held)?;
        }
        writeln!(f, "{c} connections, {m} responses in {s:.2} s")?;
        let mib = self.bytes_per_s / 1_048_576.0;
        writeln!(
            f,
            "{:.0} connections/s, {:.0} responses/s, {mib:.1} MiB/s",
            self.connections_per_s, self.messages_per_s
        )?;
        writeln!(f, "{:<12}{:>10}{:>10}{:>10}{:>10}{:>10}", "latency µs", "p50", "p90", "p99", "p99.9", "max")?;
        let parts = &self.latency_us;
        for (name, part) in [("connect", parts.connect), ("first byte", parts.first_byte), ("total", parts.total)] {
            writeln!(f, "{name:<12}{part}")?;
        }
        if self.unanswered.is_notable {
            writeln!(f, "{:<12}{}", "unanswered", self.unanswered.age_us)?;
        }
        let list: Vec<_> = self.errors.iter().map(|(cause, count)| format!("{count} × {cause}")).collect();
        let ends = self.ends_outstanding;
        let lines = [
            (self.misses > 0).then(|| format!("{} keys were not there", self.misses)),
            (ends > 0)
                .then(|| format!("{ends} connections were closed here: the server was asked to end them, and did not")),
            self.unanswered.is_notable.then(|| self.unanswered.to_string()),
            (!list.is_empty()).then(|| format!("errors: {}", list.join(", "))),
        ];
        let said = lines.iter().flatten().map(String::as_str).collect::<Vec<_>>().join("\n");
        let failed = self.unanswered.is_notable || !list.is_empty();
        f.write_str(&said)?;
        if !failed {
            write!(f, "{}no errors", if said.is_empty() { "" } else { "\n" })?;
        }
        if self.generator_was_bottleneck {
            let (busy, late) = (self.generator_busy * 100.0, self.late_starts);
            let remedy = match self.generator_busy > 0.8 {
                true => "use more lanes",
                false => "other programs had its core",
            };
            write!(f, "\nthe generator was the bottleneck ({busy:.0} % of its core, {late} late starts): {remedy}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_no_number_and_nobodys_fault() {
        let mut none = Tally { starts: 500, ..Tally::default() };
        (0..500).for_each(|_| none.error(Cause::Refused));
        none.measured(Duration::from_secs(1), Duration::from_secs(1));
        let report = none.report();
        assert!(!report.generator_was_bottleneck, "{report}");
        let text = report.to_string();
        let connect = text.lines().find(|line| line.starts_with("connect ")).expect("its latencies");
        assert_eq!(connect.split_whitespace().skip(1).collect::<Vec<_>>(), ["-"; 5], "{text}");
    }

    #[test]
    fn tallies_add_up() {
        let mut all = Tally::default();
        for thread in 1..=2u64 {
            let mut one = Tally { connections: 10 * thread, messages: 30, starts: 100, ..Tally::default() };
            one.total.record(Duration::from_micros(100 * thread));
            one.error(Cause::Status(404));
            one.error(Cause::Refused);
            one.measured(Duration::from_secs(2), Duration::from_secs(thread));
            all.add(&one);
        }
        let report = all.report();
        assert_eq!((report.connections_per_s, report.messages_per_s), (15.0, 30.0));
        assert_eq!(report.errors["status 404"], 2);
        assert_eq!(all.failures(), 4);
        assert!((report.latency_us.total.max - 200.0).abs() < 0.2);
        assert!(report.generator_was_bottleneck, "one thread was always busy");
        assert!(report.to_string().contains("2 × connection refused"));
        let mut paired = Tally { starts: 200, ..Tally::default() };
        paired.measured(Duration::from_secs(2), Duration::from_secs(1));
        assert!(!paired.report().generator_was_bottleneck);
        paired.late_starts = 3;
        assert!(paired.report().generator_was_bottleneck);
        paired.late_starts = 0;
        paired.stack_slept(Duration::from_millis(1), Duration::from_secs(2));
        assert!(paired.report().generator_was_bottleneck);
    }
}

//! What load measured, for people and for programs.

use super::cause::Cause;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Latencies to three digits.
#[derive(Clone, Debug)]
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Latency {
        // Three digits is a valid precision, the only way this could fail.
        let histogram = Histogram::new_with_bounds(1, 3_600_000_000_000, 3).unwrap_or_else(|_| unreachable!());
        Latency(histogram)
    }
}

impl Latency {
    /// Counts one.
    pub fn record(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    /// Adds another thread's.
    pub fn add(&mut self, other: &Latency) {
        // Equal bounds: every value fits.
        let _ = self.0.add(&other.0);
    }

    /// Its percentiles.
    pub fn summary(&self) -> Percentiles {
        let micros = |quantile| self.0.value_at_quantile(quantile) as f64 / 1e3;
        Percentiles {
            samples: self.0.len(),
            min: if self.0.is_empty() { 0.0 } else { self.0.min() as f64 / 1e3 },
            mean: self.0.mean() / 1e3,
            stdev: self.0.stdev() / 1e3,
            p50: micros(0.5),
            p90: micros(0.9),
            p99: micros(0.99),
            p999: micros(0.999),
            max: self.0.max() as f64 / 1e3,
        }
    }
}

/// A latency distribution in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Percentiles {
    /// How many were measured; where that is 0, so is all else.
    pub samples: u64,
    /// The smallest.
    pub min: f64,
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub stdev: f64,
    /// Median.
    pub p50: f64,
    /// 90 of 100 are at most this.
    pub p90: f64,
    /// 99 of 100.
    pub p99: f64,
    /// 999 of 1000.
    pub p999: f64,
    /// The largest.
    pub max: f64,
}

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

    /// Whether a server answered something, right or wrong.
    pub fn answered(&self) -> bool {
        let answer =
            |cause: &Cause| matches!(cause, Cause::Status(_) | Cause::Malformed | Cause::Length | Cause::Answer);
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

    /// Whether an open loop did not start its connections when they were due: more than one of a hundred was late.
    pub fn missed_rate(&self) -> bool {
        self.late_starts * 100 > self.starts
    }

    /// The report.
    pub fn report(&self) -> Report {
        let seconds = self.wall.as_secs_f64().max(1e-9);
        // Failing is no work: where most connections failed, how busy the generator was says nothing.
        let worked = self.failures() <= self.connections;
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
    /// In microseconds.
    pub latency_us: Latencies,
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
            let Percentiles { samples, p50, p90, p99, p999, max, .. } = part;
            write!(f, "{name:<12}")?;
            for number in [p50, p90, p99, p999, max] {
                match samples {
                    0 => write!(f, "{:>10}", "-")?,
                    _ => write!(f, "{number:>10.0}")?,
                }
            }
            writeln!(f)?;
        }
        if self.misses > 0 {
            writeln!(f, "{} keys were not there", self.misses)?;
        }
        match self.errors.len() {
            0 => write!(f, "no errors")?,
            _ => {
                let list: Vec<_> = self.errors.iter().map(|(cause, count)| format!("{count} × {cause}")).collect();
                write!(f, "errors: {}", list.join(", "))?;
            }
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

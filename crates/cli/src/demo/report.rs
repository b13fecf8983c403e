//! What the demo found.

use super::Measured;
use crate::load::latency::Percentiles;
use crate::sys::Machine;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// What both systems did.
#[derive(Clone, Debug, Serialize)]
pub struct Work {
    /// Body bytes of a response.
    pub message_bytes: usize,
    /// Requests on each connection.
    pub messages_per_connection: u32,
    /// Connections open at once.
    pub connections_at_once: usize,
    /// Server threads, and as many client threads.
    pub lanes: usize,
    /// Seconds measured, after one of warm-up.
    pub seconds: f64,
    /// Frames lost on the memory wire, percent; the kernel's loopback loses none.
    pub loss_percent: f64,
    /// Every thread has a core of its own.
    pub pinned: bool,
}

/// How one system did.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Connections a second.
    pub connections_per_s: f64,
    /// Responses a second.
    pub messages_per_s: f64,
    /// From the start of a connection (or of a later request) to the last byte of the response.
    pub latency_us: Percentiles,
    /// CPU time of the server's threads for each connection.
    pub cpu_us_per_connection: f64,
    /// CPU time of the client's threads for each connection.
    pub client_cpu_us_per_connection: f64,
    /// Segments of both ends for each connection, warm-up included.
    pub frames_per_connection: Option<f64>,
    /// Failures by cause.
    pub errors: BTreeMap<String, u64>,
    /// How long the server, which closes first, keeps a closed connection's addresses.
    pub time_wait_s: f64,
    /// Cores that other programs kept busy meanwhile: what they took is missing above.
    pub foreign_cores: Option<f64>,
}

impl Outcome {
    /// From what the threads measured.
    pub fn new(measured: &Measured, frames_per_connection: Option<f64>, time_wait_s: f64) -> Outcome {
        let report = measured.tally.report();
        let server_cpu = measured.server_cpu;
        Outcome {
            connections_per_s: report.connections_per_s,
            messages_per_s: report.messages_per_s,
            latency_us: report.latency_us.total,
            cpu_us_per_connection: server_cpu.as_secs_f64() * 1e6 / (report.connections as f64).max(1.0),
            client_cpu_us_per_connection: report.generator_cpu_us_per_connection,
            frames_per_connection,
            errors: report.errors,
            time_wait_s,
            foreign_cores: measured.foreign_cores,
        }
    }
}

/// Both beside each other.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Over the memory wire.
    pub corelane: Outcome,
    /// Over loopback.
    pub linux: Outcome,
    /// Connections a second, corelane over Linux; none when only one side lost frames.
    pub ratio: Option<f64>,
    /// What the ratio is worth.
    pub ratio_is: &'static str,
    /// What the CPU times include.
    pub cpu_is: &'static str,
    /// Who closes first and so keeps TIME_WAIT.
    pub closes_first: &'static str,
    /// What both did.
    pub work: Work,
    /// Where.
    pub machine: Machine,
}

/// More foreign work than this is worth a line.
const BUSY: f64 = 0.1;

const RATIO_IS: &str = "connections/s, corelane over Linux; no NIC: an upper bound";
const CPU_IS: &str = "CPU time of the threads; Linux: softirq work counts where it ran, mostly in the thread that sent";

impl Comparison {
    /// Puts them together.
    pub fn new(work: Work, corelane: Outcome, linux: Outcome, machine: Machine) -> Comparison {
        let comparable = work.loss_percent == 0.0 && linux.connections_per_s > 0.0;
        let ratio = comparable.then(|| corelane.connections_per_s / linux.connections_per_s);
        let closes_first = "server (FIN with the response)";
        Comparison { corelane, linux, ratio, ratio_is: RATIO_IS, cpu_is: CPU_IS, closes_first, work, machine }
    }
}

/// A number in groups of three digits, rounded.
pub fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Work { message_bytes, messages_per_connection, connections_at_once, lanes, seconds, loss_percent, pinned } =
            &self.work;
        let (a, b) = (&self.corelane, &self.linux);
        let pinning = if *pinned { "each pinned to its core" } else { "not pinned: too few cores" };
        writeln!(
            f,
            "{message_bytes}-byte responses, {messages_per_connection} a connection, {connections_at_once} connections at \
             once, {seconds} s each"
        )?;
        writeln!(f, "{lanes} server and {lanes} client threads, {pinning}")?;
        writeln!(f, "{}, {} cores, {}\n", self.machine.cpu, self.machine.cores, self.machine.kernel)?;
        writeln!(f, "{:<30}{:>14}{:>14}", "", "corelane", "Linux")?;
        writeln!(f, "{:<30}{:>14}{:>14}", "", "memory wire", "loopback")?;
        let row = |f: &mut fmt::Formatter<'_>, name: &str, a: f64, b: f64, digits: usize| {
            let show = |value: f64| if digits == 0 { grouped(value) } else { format!("{value:.digits$}") };
            writeln!(f, "{name:<30}{:>14}{:>14}", show(a), show(b))
        };
        row(f, "connections/s", a.connections_per_s, b.connections_per_s, 0)?;
        row(f, "messages/s", a.messages_per_s, b.messages_per_s, 0)?;
        row(f, "latency p50, µs", a.latency_us.p50, b.latency_us.p50, 0)?;
        row(f, "latency p99, µs", a.latency_us.p99, b.latency_us.p99, 0)?;
        row(f, "latency max, µs", a.latency_us.max, b.latency_us.max, 0)?;
        row(f, "server CPU, µs/connection", a.cpu_us_per_connection, b.cpu_us_per_connection, 2)?;
        row(f, "client CPU, µs/connection", a.client_cpu_us_per_connection, b.client_cpu_us_per_connection, 2)?;
        if let (Some(a), Some(b)) = (a.frames_per_connection, b.frames_per_connection) {
            row(f, "segments/connection", a, b, 2)?;
        }
        row(f, "TIME_WAIT of the server, s", a.time_wait_s, b.time_wait_s, 0)?;
        for (name, outcome) in [("corelane", a), ("Linux", b)] {
            for (cause, count) in &outcome.errors {
                writeln!(f, "{name}: {count} × {cause}")?;
            }
        }
        let foreign = [a, b].into_iter().filter_map(|outcome| outcome.foreign_cores).fold(0.0, f64::max);
        if foreign > BUSY {
            writeln!(f, "other programs kept up to {foreign:.2} cores busy: the numbers suffer from it")?;
        }
        match self.ratio {
            Some(ratio) => writeln!(f, "\n{ratio:.1} × the connections/s (no NIC: an upper bound)")?,
            None => writeln!(f, "\nno ratio: the memory wire lost {loss_percent} % of its frames, loopback none")?,
        }
        write!(f, "The server closes first, its FIN rides on the response. {CPU_IS}.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [(0.0, "0"), (999.4, "999"), (1000.0, "1,000"), (1_234_567.0, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }
}

//! What a benchmark found: rows, for people and for programs.

use super::case::System;
use super::measure::{FULL, Measurement};
use super::statistics::{interval, median};
use crate::demo::grouped;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

/// Where and under which conditions everything in a report was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Processor, cores, kernel, memory.
    #[serde(flatten)]
    pub machine: crate::sys::Machine,
    /// Frequency governor of the first core, where there is one.
    pub governor: Option<String>,
    /// Whether this is a virtual machine.
    pub hypervisor: bool,
    /// Mitigations that the kernel was told of, its command line's word.
    pub mitigations: Option<String>,
    /// Version of this program.
    pub version: &'static str,
    /// Built for speed.
    pub optimised: bool,
}

impl Machine {
    /// This one.
    pub fn here() -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let word =
            |text: String| text.split_whitespace().find_map(|w| w.strip_prefix("mitigations=").map(str::to_owned));
        Machine {
            machine: crate::sys::Machine::here(),
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").map(|text| text.trim().to_owned()),
            hypervisor: read("/proc/cpuinfo")
                .is_some_and(|text| text.split_whitespace().any(|flag| flag == "hypervisor")),
            mitigations: read("/proc/cmdline").and_then(word),
            version: crate::args::VERSION,
            optimised: !cfg!(debug_assertions),
        }
    }

    /// In words, for people.
    pub fn describe(&self) -> String {
        let memory = (self.machine.memory_mib + 512) / 1024;
        let mut text =
            format!("{}, {} cores, {memory} GiB, {}", self.machine.cpu, self.machine.cores, self.machine.kernel);
        for (name, value) in [("governor", &self.governor), ("mitigations", &self.mitigations)] {
            if let Some(value) = value {
                let _ = write!(text, ", {name} {value}");
            }
        }
        if self.hypervisor {
            text.push_str(", virtual");
        }
        if !self.optimised {
            text.push_str(", NOT OPTIMISED (build with --release)");
        }
        text
    }
}

/// What holds for every row.
#[derive(Clone, Debug, Serialize)]
pub struct Method {
    /// Rounds of each row.
    pub rounds: usize,
    /// Seconds of a measurement.
    pub seconds: f64,
    /// Seconds of load before.
    pub warm_up_s: f64,
    /// Who closes first, and so keeps TIME-WAIT.
    pub closes_first: &'static str,
    /// How long.
    pub time_wait_s: u32,
    /// Addresses of the client on a veth; of the server there is one.
    pub client_addresses: usize,
    /// Order of rounds, and what a number is.
    pub statistics: &'static str,
    /// What server CPU is.
    pub cpu: &'static str,
    /// How the veth is set up.
    pub veth: &'static str,
    /// When it was begun, as HTTP writes dates.
    pub date: String,
    /// What was typed.
    pub command: String,
    /// Only a look: too few and too short rounds to compare by.
    pub quick: bool,
}

/// One row.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// What identifies it.
    pub keys: Map<String, Value>,
    /// Medians by name.
    pub values: BTreeMap<String, f64>,
    /// 95 % intervals of the medians.
    pub intervals: BTreeMap<String, (f64, f64)>,
    /// Measurements that count.
    pub rounds: usize,
    /// Measurements thrown away: others had the machine.
    pub discarded: usize,
    /// Nothing quiet was left, so the noisy ones count.
    pub noisy: bool,
    /// In most rounds the client had nothing left to give, and the server had.
    pub client_was_limit: bool,
    /// Failed connections, all rounds.
    pub errors: BTreeMap<String, u64>,
    /// What a reader must know.
    pub remarks: BTreeSet<String>,
}

const CLIENT_WAS_LIMIT: &str =
    "The client's core was the limit and the server had time left, so the rate is a lower bound";

const NOT_FILLED: &str = "The wire was not filled: no core of either end was 95 % busy, so this is less than the bound";

/// Always there, if only as null.
const ALWAYS: [&str; 4] =
    ["connections_per_s", "messages_per_s", "server_cpu_us_per_connection", "frames_per_connection"];

impl Row {
    /// From measurements: the quiet ones, or the noisy ones where there are no others.
    pub fn new(keys: Map<String, Value>, measured: Vec<Measurement>) -> Row {
        let all = measured.len();
        let (noisy, quiet): (Vec<_>, Vec<_>) = measured.into_iter().partition(Measurement::is_noisy);
        let is_noisy = quiet.is_empty();
        let used = if is_noisy { noisy } else { quiet };
        let mut row =
            Row { keys, noisy: is_noisy && all > 0, rounds: used.len(), discarded: all - used.len(), ..Row::default() };
        let names: BTreeSet<&String> = used.iter().flat_map(|found| found.values.keys()).collect();
        for name in names {
            let values: Vec<f64> = used.iter().filter_map(|found| found.values.get(name).copied()).collect();
            row.values.extend(median(&values).map(|middle| (name.clone(), middle)));
            row.intervals.extend(interval(&values).map(|ends| (name.clone(), ends)));
        }
        row.client_was_limit = used.iter().filter(|found| found.client_was_limit).count() * 2 > used.len();
        for found in &used {
            row.remarks.extend(found.remarks.iter().cloned());
            for (cause, count) in &found.errors {
                *row.errors.entry(cause.clone()).or_default() += count;
            }
        }
        let busiest = [row.values.get("server_busy"), row.values.get("client_busy")];
        let busiest = busiest.into_iter().flatten().copied().reduce(f64::max);
        if row.key("system") == System::Limit.name() && busiest.is_some_and(|share| share < FULL) {
            row.remarks.insert(NOT_FILLED.into());
        }
        let worst = |of: fn(&Measurement) -> f64| used.iter().map(of).fold(0.0, f64::max);
        row.values.insert("steal_share".into(), worst(|found| found.steal));
        row.values.insert("foreign_cores".into(), worst(|found| found.foreign));
        row
    }

    /// A key's text.
    pub fn key(&self, name: &str) -> String {
        match &self.keys.get(name) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => match number.as_f64() {
                Some(number) => grouped(number),
                None => number.to_string(),
            },
            Some(other) => other.to_string(),
            None => String::new(),
        }
    }

    /// A key's number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.keys.get(name).and_then(Value::as_f64)
    }

    /// As it is printed: keys, medians, and the spread of `main`.
    pub fn json(&self, main: &str) -> Value {
        let mut object = self.keys.clone();
        for name in ALWAYS {
            object.insert(name.to_owned(), Value::Null);
        }
        for (name, value) in self.values.iter().filter(|(name, _)| !self.keys.contains_key(*name)) {
            object.insert(name.clone(), serde_json::json!(rounded(*value)));
        }
        let ends = self.intervals.get(main);
        object.insert(
            "spread".into(),
            serde_json::json!({
                "of": main, "low": ends.map(|ends| rounded(ends.0)), "high": ends.map(|ends| rounded(ends.1)),
                "rounds": self.rounds, "discarded": self.discarded,
            }),
        );
        object.insert("noisy".into(), self.noisy.into());
        object.insert("client_was_limit".into(), self.client_was_limit.into());
        object.insert("errors".into(), serde_json::json!(self.errors));
        object.insert("remarks".into(), serde_json::json!(self.remarks));
        Value::Object(object)
    }
}

/// To four or more digits: more is noise.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10f64.powf((5.0 - value.abs().log10().ceil()).clamp(0.0, 12.0));
    (value * scale).round() / scale
}

/// A column of the table: a key or a value, its heading, digits after the point.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Key or value.
    pub name: &'static str,
    /// Over it.
    pub heading: &'static str,
    /// After the point.
    pub digits: usize,
    /// What a value is multiplied by.
    pub scale: f64,
}

/// A column of a number.
pub const fn column(name: &'static str, heading: &'static str, digits: usize) -> Column {
    Column { name, heading, digits, scale: 1.0 }
}

/// A column of a share, in percent.
pub const fn percent(name: &'static str, heading: &'static str) -> Column {
    Column { name, heading, digits: 1, scale: 100.0 }
}

/// How a plot is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A bar a row, with its interval.
    Bars,
    /// A line a system, over a number.
    Lines,
    /// Bars made of several values.
    Stacked,
}

/// One plot.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Over it.
    pub title: &'static str,
    /// How.
    pub shape: Shape,
    /// What a line goes over, or what groups bars.
    pub x: &'static str,
    /// What is shown; several when stacked.
    pub y: Vec<&'static str>,
    /// What the axis says.
    pub unit: &'static str,
}

/// This stack over another system, at the same work on the same wire.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Of which system of ours.
    pub system: String,
    /// The other.
    pub over: String,
    /// By which name the values go.
    pub of: &'static str,
    /// Of the medians.
    pub ratio: f64,
    /// The other's own CPU of a connection over this stack's, where both were seen; of a frame against the echo, and on a
    /// memory wire of the server's core.
    pub cpu: Option<f64>,
    /// What both did.
    pub at: Map<String, Value>,
}

/// A benchmark's result.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its name.
    pub name: &'static str,
    /// After which figure or table.
    pub after: &'static str,
    /// What it shows.
    pub about: &'static str,
    /// Where.
    pub machine: Machine,
    /// How.
    pub method: Method,
    /// The value whose spread is told.
    pub main: &'static str,
    /// Of the table.
    pub columns: Vec<Column>,
    /// Of the page.
    pub plots: Vec<Plot>,
    /// What was found.
    pub rows: Vec<Row>,
    /// What could not be done, and what else is worth knowing.
    pub notes: Vec<String>,
    /// Who took part.
    pub systems: Vec<System>,
}

impl Report {
    /// As one object.
    pub fn json(&self) -> Value {
        let systems: BTreeMap<_, _> = self.systems.iter().map(|system| (system.name(), system.describe())).collect();
        serde_json::json!({
            "name": self.name,
            "after": self.after,
            "about": self.about,
            "machine": self.machine,
            "method": self.method,
            "systems": systems,
            "rows": self.rows.iter().map(|row| row.json(self.main)).collect::<Vec<_>>(),
            "ratios": self.ratios(),
            "notes": self.notes,
        })
    }

    /// The cells of the table, headings first; columns that no row has are left out.
    pub fn cells(&self) -> Vec<Vec<String>> {
        let has = |column: &&Column| {
            self.rows.iter().any(|row| row.keys.contains_key(column.name) || row.values.contains_key(column.name))
        };
        let columns: Vec<&Column> = self.columns.iter().filter(has).collect();
        let mut cells = vec![columns.iter().map(|column| column.heading.to_owned()).collect::<Vec<_>>()];
        for row in &self.rows {
            cells.push(columns.iter().map(|column| self.cell(row, column)).collect());
        }
        cells
    }

    fn cell(&self, row: &Row, column: &Column) -> String {
        if row.keys.contains_key(column.name) {
            return row.key(column.name);
        }
        let Some(value) = row.values.get(column.name) else { return "–".into() };
        let show = |value: f64| match column.digits {
            0 => grouped(value * column.scale),
            digits => format!("{:.digits$}", value * column.scale),
        };
        match row.intervals.get(column.name).filter(|(low, high)| column.name == self.main && low != high) {
            Some((low, high)) => format!("{} ({}–{})", show(*value), show(*low), show(*high)),
            None => show(*value),
        }
    }

    /// This stack over every other system that did the same on the same wire; against the echo, frames over frames.
    pub fn ratios(&self) -> Vec<Ratio> {
        let at = |row: &Row| {
            let mut keys = row.keys.clone();
            keys.remove("system");
            keys
        };
        let mut ratios = Vec::new();
        let is_ours =
            |row: &Row| self.systems.iter().any(|system| system.is_ours() && system.name() == row.key("system"));
        for row in self.rows.iter().filter(|row| is_ours(row)) {
            let system = row.key("system");
            for other in self.rows.iter().filter(|other| !is_ours(other) && at(other) == at(row)) {
                let over = other.key("system");
                let echo = over == System::Limit.name();
                let frames =
                    |row: &Row| Some(row.values.get("connections_per_s")? * row.values.get("frames_per_connection")?);
                let value = |row: &Row| if echo { frames(row) } else { row.values.get(self.main).copied() };
                let (Some(a), Some(b)) = (value(row), value(other).filter(|value| *value > 0.0)) else { continue };
                let of = if echo { "frames_per_s" } else { self.main };
                let us = |name: &str, row: &Row| {
                    let us = row.values.get(name).copied().filter(|us| *us > 0.0)?;
                    Some(if echo { us / row.values.get("frames_per_connection")? } else { us })
                };
                let both = |name: &str| us(name, other).zip(us(name, row)).map(|(other, ours)| rounded(other / ours));
                let core = || both("server_cpu_us_per_connection").filter(|_| echo);
                let cpu = both("server_own_us_per_connection").or_else(core);
                ratios.push(Ratio { system: system.clone(), over, of, ratio: rounded(a / b), cpu, at: at(row) });
            }
        }
        ratios
    }

    /// The ratios in lines, one for each work.
    fn ratio_lines(&self) -> Vec<String> {
        let mut lines: Vec<(String, Map<String, Value>, String)> = Vec::new();
        let is_rate = self.main.ends_with("_per_s");
        for Ratio { system, over, ratio, cpu, at, .. } in self.ratios() {
            let by_cpu = cpu.filter(|_| is_rate).map_or_else(String::new, |cpu| format!(" ({cpu:.2} by own CPU)"));
            let words = match over == System::Limit.name() {
                true => {
                    let by_cpu = cpu.filter(|cpu| *cpu > 0.0 && is_rate);
                    let by_cpu = by_cpu
                        .map_or_else(String::new, |cpu| format!(" ({:.0} % by server CPU of a frame)", cpu * 100.0));
                    format!("{:.0} % of the bare wire's frames{by_cpu}", ratio * 100.0)
                }
                false => format!("{ratio:.2} × {over}{by_cpu}"),
            };
            match lines.iter_mut().find(|(who, work, _)| *who == system && *work == at) {
                Some((_, _, line)) => line.push_str(&format!(", {words}")),
                None => {
                    let row = self
                        .rows
                        .iter()
                        .find(|row| row.key("system") == system && at.iter().all(|(k, v)| row.keys.get(k) == Some(v)));
                    let name = row.map_or_else(String::new, |row| self.name(row));
                    lines.push((system, at, format!("{}, {name}: {words}", self.main.replace('_', " "))));
                }
            }
        }
        lines.into_iter().map(|(_, _, line)| line).collect()
    }

    /// A row in a few words: its system, its wire, and what tells it from the other rows of both.
    fn name(&self, row: &Row) -> String {
        let alike = |other: &&Row| ["system", "wire"].iter().all(|key| other.key(key) == row.key(key));
        // Zero: rows of the same table that have no such thing.
        let there = |key: &&String| row.number(key) != Some(0.0);
        let differs = |key: &&String| self.rows.iter().filter(alike).any(|other| other.key(key) != row.key(key));
        let more = row
            .keys
            .keys()
            .filter(there)
            .filter(differs)
            .map(|key| format!(", {} {}", key.replace('_', " "), row.key(key)));
        format!("{} on {}{}", row.key("system"), row.key("wire"), more.collect::<String>())
    }

    /// Lines under the table: what a reader must know of single rows, and of all.
    pub fn footnotes(&self) -> Vec<String> {
        let mut lines = self.ratio_lines();
        // What many rows have in common is said once.
        let mut said: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for row in &self.rows {
            if row.client_was_limit {
                said.entry(CLIENT_WAS_LIMIT).or_default().push(self.name(row));
            }
            for remark in &row.remarks {
                said.entry(remark).or_default().push(self.name(row));
            }
            if row.discarded > 0 {
                lines.push(format!("{}: {} noisy round(s) discarded", self.name(row), row.discarded));
            }
            if !row.errors.is_empty() {
                let causes: Vec<String> =
                    row.errors.iter().map(|(cause, count)| format!("{count} × {cause}")).collect();
                lines.push(format!("{}: {}", self.name(row), causes.join(", ")));
            }
        }
        lines.extend(said.into_iter().map(|(what, rows)| format!("{what}: {}", rows.join("; "))));
        let noisy: Vec<&Row> = self.rows.iter().filter(|row| row.noisy).collect();
        if !noisy.is_empty() {
            let worst =
                |name: &str| noisy.iter().filter_map(|row| row.values.get(name)).fold(0.0, |a: f64, b| a.max(*b));
            let (steal, foreign) = (worst("steal_share") * 100.0, worst("foreign_cores"));
            let (some, all) = (noisy.len(), self.rows.len());
            lines.push(format!(
                "NOISY: no quiet round for {some} of {all} rows: up to {steal:.1} % steal, {foreign:.2} cores of other programs"
            ));
        }
        lines.extend(self.notes.iter().cloned());
        let Method { rounds, seconds, warm_up_s, closes_first, time_wait_s, client_addresses, .. } = &self.method;
        lines.push(format!(
            "{rounds} round(s) of {seconds} s after {warm_up_s} s of load; {closes_first}; TIME-WAIT {time_wait_s} s; \
             {client_addresses} client address(es) on the veth, one of the server"
        ));
        lines.push(format!("{}. {}. {}.", self.method.statistics, self.method.cpu, self.method.veth));
        lines.push(self.method.command.clone());
        if self.method.quick {
            lines.push("A quick look: too short to compare by.".into());
        }
        lines
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} — {} ({})", self.name, self.about, self.after)?;
        writeln!(f, "{}\ncorelane {}, {}\n", self.machine.describe(), self.machine.version, self.method.date)?;
        let cells = self.cells();
        let columns = cells.first().map_or(0, Vec::len);
        let width = |at: usize| cells.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &cells {
            let mut line = String::new();
            for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let gap = " ".repeat(width - cell.chars().count());
                let cell = if at < 2 { format!("{cell}{gap}") } else { format!("{gap}{cell}") };
                line.push_str(if at == 0 { "" } else { "  " });
                line.push_str(&cell);
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        let footnotes = self.footnotes();
        for (at, line) in footnotes.iter().enumerate() {
            write!(f, "{}{line}", if at == 0 { "\n" } else { "" })?;
            if at + 1 < footnotes.len() {
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

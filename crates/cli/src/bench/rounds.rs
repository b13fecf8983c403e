//! Rounds: every case once, in ABBA order, and again where others had the machine.

use super::Settings;
use super::case::Case;
use super::measure::Measurement;
use super::report::Row;
use super::statistics::order;
use crate::failure::Failure;
use crate::sys::Stop;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// A noisy measurement is repeated so often in its round.
const RETRIES: usize = 1;

/// Shows on a terminal how far a benchmark has come.
pub struct Progress {
    bar: ProgressBar,
    name: &'static str,
}

impl Progress {
    /// Of a benchmark.
    pub fn new(name: &'static str) -> Progress {
        let bar = if std::io::stderr().is_terminal() { ProgressBar::new(0) } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {msg}") {
            bar.set_style(style);
        }
        Progress { bar, name }
    }

    /// So many steps are to come.
    pub fn expect(&self, steps: usize) {
        self.bar.inc_length(steps as u64);
    }

    /// A step begins.
    pub fn begin(&self, what: &str) {
        self.bar.set_message(format!("{}: {what}", self.name));
    }

    /// It is over.
    pub fn end(&self) {
        self.bar.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// How a case is measured.
pub type Measure = fn(&Case, &Settings) -> Result<Measurement, Failure>;

/// What ends a run that was stopped.
pub fn interrupted() -> Failure {
    Failure::new("bench was interrupted", "let it run to the end")
}

fn describe(case: &Case) -> String {
    let labels: String = case.labels.iter().map(|(name, value)| format!(", {name} {value}")).collect();
    format!("{} on {}{labels}", case.system.name(), case.wire.name())
}

/// Measures all cases; a row for each that could be measured. What failed is noted, once, and left out from then on. The
/// rounds that were done when it is stopped count, and a note says so.
pub fn run(
    cases: Vec<Case>,
    mut measure: impl FnMut(&Case, &Settings) -> Result<Measurement, Failure>,
    settings: &Settings,
    progress: &mut Progress,
    notes: &mut Vec<String>,
    stop: &Stop,
) -> Result<Vec<Row>, Failure> {
    progress.expect(cases.len() * settings.rounds);
    let mut found: Vec<Vec<Measurement>> = cases.iter().map(|_| Vec::new()).collect();
    let mut failed: Vec<bool> = vec![false; cases.len()];
    let mut first = None;
    'rounds: for round in 0..settings.rounds {
        for at in order(cases.len(), round) {
            if failed[at] {
                progress.end();
                continue;
            }
            let case = &cases[at];
            progress.begin(&format!("round {} of {}, {}", round + 1, settings.rounds, describe(case)));
            for _ in 0..=if settings.quick { 0 } else { RETRIES } {
                let measured = measure(case, settings);
                if stop.is_set() {
                    notes.push(format!("INTERRUPTED in round {} of {}", round + 1, settings.rounds));
                    first = Some(interrupted());
                    break 'rounds;
                }
                match measured {
                    Ok(measurement) => {
                        let quiet = !measurement.is_noisy();
                        found[at].push(measurement);
                        if quiet {
                            break;
                        }
                    }
                    Err(failure) => {
                        let note = format!("{}: not measured: {failure}", describe(case));
                        if !notes.contains(&note) {
                            notes.push(note);
                        }
                        failed[at] = true;
                        first.get_or_insert(failure);
                        break;
                    }
                }
            }
            progress.end();
        }
    }
    let rows: Vec<Row> = cases
        .iter()
        .zip(found)
        .filter(|(_, found)| !found.is_empty())
        .map(|(case, found)| Row::new(case.keys(), found))
        .collect();
    match (rows.is_empty(), first) {
        (true, Some(failure)) => Err(failure),
        _ => Ok(rows),
    }
}

#[cfg(test)]
mod tests {
    use super::super::case::{System, Wire, Work};
    use super::*;
    use crate::args::{KernelServer, ModelArg};

    fn fake(case: &Case, _: &Settings) -> Result<Measurement, Failure> {
        let mut found = Measurement::default();
        match case.system {
            System::Nginx => return Err(Failure::told("nginx is not there")),
            System::Limit => found.steal = 0.5,
            _ => {}
        }
        found.set("connections_per_s", case.work.concurrent as f64);
        Ok(found)
    }

    #[test]
    fn what_fails_is_noted_once_and_what_is_noisy_is_told() {
        let work = |n| Work { concurrent: n, ..Work::default() };
        let systems =
            [System::Corelane(ModelArg::Inline), System::Kernel(KernelServer::Epoll), System::Nginx, System::Limit];
        let cases = systems.iter().enumerate().map(|(at, s)| Case::new(*s, Wire::Mem, work(at + 1))).collect();
        let settings = Settings { rounds: 3, ..Settings::default() };
        let mut notes = Vec::new();
        let mut progress = Progress::new("test");
        let rows = run(cases, fake, &settings, &mut progress, &mut notes, &Stop::default()).expect("rows");
        assert_eq!(notes, ["nginx on mem: not measured: nginx is not there"]);
        let names: Vec<String> = rows.iter().map(|row| row.key("system")).collect();
        assert_eq!(names, ["corelane", "linux-epoll", "limit"]);
        assert_eq!((rows[0].rounds, rows[0].discarded, rows[0].noisy), (3, 0, false));
        assert_eq!((rows[2].rounds, rows[2].noisy), (6, true));
        assert_eq!(rows[1].values["connections_per_s"], 2.0);
    }

    #[test]
    fn a_run_that_is_stopped_keeps_the_rows_it_has() {
        let stop = Stop::default();
        let case = |n| Case::new(System::Limit, Wire::Mem, Work { concurrent: n, ..Work::default() });
        let settings = Settings { rounds: 3, quick: true, ..Settings::default() };
        let measure = |at_most: usize| {
            let (mut notes, mut left) = (Vec::new(), at_most);
            let counted = |case: &Case, settings: &Settings| {
                match left {
                    0 => stop.set(),
                    _ => left -= 1,
                }
                fake(case, settings)
            };
            let cases = vec![case(1), case(2)];
            let rows = run(cases, counted, &settings, &mut Progress::new("test"), &mut notes, &stop);
            (rows, notes)
        };
        let (rows, notes) = measure(3);
        let rows = rows.expect("rows of the first round");
        // 1 2, 2 1 by turns: the second was measured twice.
        assert_eq!(rows.iter().map(|row| row.rounds).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(notes, ["INTERRUPTED in round 2 of 3"]);
        let (rows, _) = measure(0);
        assert_eq!(rows.expect_err("nothing").to_string(), interrupted().to_string());
    }
}

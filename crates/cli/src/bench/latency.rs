//! Open loop: the knee of each system by search, then latency at shares of it.
//!
//! Past its knee a system collapses: the backlog grows, and what is measured is the length of the run. So the load is never
//! offered there; and all systems are offered shares of Linux's knee too, where their latencies compare.

use super::Settings;
use super::case::{Case, System, Wire, Work};
use super::figures::systems;
use super::measure;
use super::rounds::Progress;
use crate::args::{KernelServer, ModelArg};
use crate::demo::grouped;
use crate::failure::Failure;
use crate::sys::Stop;

const OURS: System = System::Corelane(ModelArg::Inline);
const LINUX: System = System::Kernel(KernelServer::Epoll);
const URING: System = System::Kernel(KernelServer::Uring);
/// Of what was offered, at least this much must be done.
const DONE: f64 = 0.98;
/// Half of the connections must be done within this, or within a few times what a single one takes where the machine is
/// that slow: more is a queue that grows.
const QUEUE_US: f64 = 5000.0;
const QUEUE_TIMES: f64 = 4.0;
/// Steps more of a search that has found no rate at all.
const MORE: usize = 3;
/// An open loop's connections at most: a server that stalls is not buried.
const AT_MOST: usize = 8000;

/// The cases: unloaded (a connection with its message, and a message of a connection that stays), then shares of Linux's knee for everybody, then shares of everybody's own.
pub fn cases(
    settings: &Settings,
    progress: &mut Progress,
    notes: &mut Vec<String>,
    stop: &Stop,
) -> Result<Vec<Case>, Failure> {
    let everybody = systems(settings, &[OURS, LINUX, URING]);
    let steps = if settings.quick { 3 } else { 6 };
    progress.expect(everybody.len() * (steps + 2));
    let mut knees = Vec::new();
    for (system, wire) in everybody {
        match knee(system, wire, settings, steps, progress, stop) {
            Ok(knee) => {
                let (name, wire_name) = (system.name(), wire.name());
                notes.push(format!("knee of {name} on {wire_name}: {} connections/s", grouped(knee)));
                knees.push((system, wire, knee));
            }
            Err(failure) if !stop.is_set() => {
                notes.push(format!("{} on {}: no knee found: {failure}", system.name(), wire.name()));
            }
            Err(failure) => return Err(failure),
        }
    }
    let of_linux: &[f64] = if settings.quick { &[0.1, 0.7] } else { &[0.01, 0.1, 0.3, 0.5, 0.7, 0.9] };
    let of_own: &[f64] = if settings.quick { &[0.9] } else { &[0.3, 0.5, 0.7, 0.9, 1.0] };
    let linux = knees.iter().find(|(system, wire, _)| *system == LINUX && *wire == Wire::Xdp).map(|knee| knee.2);
    let open = |rate: f64| Work { rate: Some(rate), concurrent: AT_MOST, ..Work::default() };
    let mut cases = Vec::new();
    for (system, wire, _) in &knees {
        let one = Work { concurrent: 1, ..Work::default() };
        let established = Work { messages: 1_000_000, ..one.clone() };
        cases.push(Case::new(*system, *wire, one).label("load", "one connection at a time"));
        cases.push(Case::new(*system, *wire, established).label("load", "one message at a time"));
    }
    for share in of_linux.iter().filter(|_| linux.is_some()) {
        for (system, wire, _) in knees.iter().filter(|(_, wire, _)| *wire == Wire::Xdp) {
            let rate = linux.unwrap_or_default() * share;
            let load = format!("{:.0} % of Linux's knee", share * 100.0);
            cases.push(Case::new(*system, *wire, open(rate)).label("load", load));
        }
    }
    for share in of_own {
        for (system, wire, knee) in &knees {
            let load = format!("{:.0} % of its knee", share * 100.0);
            cases.push(Case::new(*system, *wire, open(knee * share)).label("load", load));
        }
    }
    Ok(cases)
}

/// The highest rate at which a system keeps up, by bisection below what a closed loop reaches.
fn knee(
    system: System,
    wire: Wire,
    settings: &Settings,
    steps: usize,
    progress: &Progress,
    stop: &Stop,
) -> Result<f64, Failure> {
    let short = Settings { seconds: settings.seconds.min(2.0), ..settings.clone() };
    let run = |work: Work| {
        if stop.is_set() {
            return Err(Failure::new("bench was interrupted", "let it run to the end"));
        }
        measure::measure(&Case::new(system, wire, work), &short)
    };
    progress.begin(&format!("what {} reaches on {}", system.name(), wire.name()));
    let closed = run(Work::default())?;
    progress.end();
    let alone = run(Work { concurrent: 1, ..Work::default() })?;
    progress.end();
    let single = alone.values.get("latency_p50_us").copied().unwrap_or(0.0);
    let queue = QUEUE_US.max(single * QUEUE_TIMES);
    let most = closed.values.get("connections_per_s").copied().unwrap_or(0.0);
    let (mut low, mut high) = (0.0, most * 1.1);
    for step in 0..steps + MORE {
        if step >= steps && low > 0.0 {
            break;
        }
        let rate = match low > 0.0 {
            true => (low + high) / 2.0,
            // Near what a closed loop reaches, then ever further below.
            false => high * if step == 0 { 0.8 } else { 0.5 },
        };
        progress.begin(&format!("knee of {} on {}, {} offered", system.name(), wire.name(), grouped(rate)));
        let found = run(Work { rate: Some(rate), concurrent: AT_MOST, ..Work::default() })?;
        progress.end();
        let value = |name: &str| found.values.get(name).copied().unwrap_or(f64::NAN);
        let keeps_up = value("connections_per_s") >= rate * DONE && value("latency_p50_us") < queue;
        if keeps_up && found.errors.is_empty() {
            low = rate;
        } else {
            high = rate;
        }
    }
    match low > 0.0 {
        true => Ok(low),
        false => Err(Failure::told(format!("it kept up with none of the rates tried, the lowest {}", grouped(high)))),
    }
}

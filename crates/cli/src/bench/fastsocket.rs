//! Fastsocket's steps (ASPLOS'16, figs. 3 to 5 and table 1) with unmodified nginx and HAProxy on today's kernel.
//!
//! | the paper's part | here |
//! |---|---|
//! | V, VFS fast path | the kernel's own since; [`descriptors`] measures what is left of it |
//! | L, local listen table | `corelane run` |
//! | R, Receive Flow Deliver, and the process zone | `corelane run --dev` |
//! | E, local established table | a table of the server's namespace; mainline has none a core |

pub mod descriptors;
mod probe;
mod programs;

use super::Settings;
use super::case::{Case, STEPS, Step, System, Wire, Work};
use super::child::Child;
use super::cpu;
use super::measure::{Layout, Measurement, START, Watch, list, load_options};
use super::numbers::take_report;
use super::place::{self, Place, SERVER, Side};
use crate::failure::{Failure, words};
use crate::processes::possible_cpus;
use io::bpf::{Locality, Watched};
use probe::{Counters, Workers};
use programs::{BACKEND, Program};
use std::time::Duration;

/// The paper's connections at once for each core.
const CONCURRENT: usize = 500;
/// Connections a second at which balance is measured.
const RATE: f64 = 5000.0;
/// Seconds in which local packets are counted, at most; they end so long before the measurement begins.
const PROBE: f64 = 2.0;
const MARGIN: f64 = 0.3;

/// The cases: what descriptors cost, then each program with each step.
pub fn cases(settings: &Settings, notes: &mut Vec<String>) -> Result<Vec<Case>, Failure> {
    let asked = |system: System| settings.systems.is_empty() || settings.systems.iter().any(|s| s == system.name());
    let mut cases = if asked(System::Descriptors) { descriptors::cases(settings) } else { Vec::new() };
    let steps: Vec<Step> = STEPS.into_iter().filter(|step| asked(System::Step(*step))).collect();
    if steps.is_empty() || !settings.wires.contains(&Wire::Xdp) {
        return Ok(cases);
    }
    // A worker a core, and two workers at least: with fewer than four cores the client is on the same ones.
    let together = settings.all_cores.len() < 4;
    let most = if together { settings.all_cores.len() } else { settings.cores };
    if together {
        notes.push("Client, server and (for HAProxy) backend share all cores: rates are of the three together".into());
    }
    notes.push(
        "V, the paper's VFS fast path, is the kernel's own and in every row; local packets are segments with data that a program read \
         on the core that received them, counted in the warm-up; lock waits are those of the whole machine; `own µs` is the program's \
         processes and the threads that receive for it"
            .into(),
    );
    let counts: Vec<usize> = if settings.quick || most == 1 { vec![most] } else { vec![1, most] };
    for program in [Program::Nginx, Program::Haproxy] {
        if program.path().is_none() {
            notes.push(format!("{} left out: it is not installed", program.name()));
            continue;
        }
        let mut works: Vec<(usize, Option<f64>)> = counts.iter().map(|cores| (*cores, None)).collect();
        if !settings.quick {
            works.push((most, Some(RATE)));
        }
        for (cores, rate) in works {
            let concurrent = settings.concurrent.unwrap_or(CONCURRENT * cores);
            // Local packets are counted before what is measured.
            let warm_up = Some(settings.warm_up + settings.seconds.min(PROBE) + MARGIN);
            let work = Work { concurrent, rate, warm_up, ..Work::default() };
            let name = match (rate, cores == most) {
                (Some(_), _) => format!("{} at 5,000/s", program.name()),
                (None, true) => program.name().to_owned(),
                (None, false) => format!("{}, 1 core", program.name()),
            };
            let case = |step: &Step| {
                let case = Case { cores, together, ..Case::new(System::Step(*step), Wire::Xdp, work.clone()) };
                case.label("work", name.as_str())
            };
            cases.extend(steps.iter().map(case));
        }
    }
    Ok(cases)
}

/// Measures one.
pub fn measure(case: &Case, settings: &Settings) -> Result<Measurement, Failure> {
    let System::Step(step) = case.system else { return descriptors::measure(case, settings) };
    let program = Program::of(case);
    let layout = Layout::of(case, settings);
    let queues = layout.client.len().max(layout.server.len());
    // The last address is the backend's.
    let mut place = Place::with_table(queues, settings.addresses + 1, step == Step::Established)?;
    let _tidy = super::nginx::Tidy;
    let backend = match program {
        Program::Nginx => None,
        Program::Haproxy => Some(programs::backend(&place, &layout.client, &case.work)?),
    };
    let server = programs::start(&place, program, step, &layout.server, &case.work)?;
    let mut load = load(&place, case, settings, &layout)?;
    let napi = place.pin(&layout.client, &layout.server)?;
    let serving = cpu::family(server.pid());
    let mut found = Measurement::default();
    let cpus = possible_cpus();
    let seconds = case.work.seconds.unwrap_or(settings.seconds).min(PROBE);
    std::thread::sleep(Duration::from_secs_f64(settings.warm_up));
    let watched = Watched {
        address: SERVER.parse().map_err(Failure::told)?,
        listens: 80,
        connects_to: backend.as_ref().map(|_| BACKEND),
    };
    match Locality::watch(watched, cpus) {
        Ok(locality) => {
            std::thread::sleep(Duration::from_secs_f64(seconds));
            let read = locality.read().map_err(|error| Failure::told(format!("local packets: {}", words(&error))))?;
            probe::take_locality(&read, &layout.server, &mut found);
        }
        Err(error) => drop(found.remarks.insert(error.to_string())),
    }
    // Threads that carry frames to a core for an XDP program work for the server, too.
    let moving = if matches!(step, Step::Deliver | Step::Established) { cpu::named("cpumap/") } else { Vec::new() };
    let own = || {
        let threads = serving.iter().chain(&napi.server).chain(&moving);
        threads.copied().map(cpu::process_time).sum::<Duration>()
    };
    let pids = serving.iter().copied().chain([load.pid()]).chain(backend.iter().map(Child::pid)).chain(moving.clone());
    let mut watch = Watch::new(layout.clone(), pids.collect(), napi.clone());
    load.event("measuring", START + settings.patience(&case.work))?;
    watch.begin();
    let (counters, workers) = (Counters::open(cpus, &mut found), Workers::of(&serving));
    let (served, frames) = (own(), place.frames());
    load.event("measured", settings.patience(&case.work))?;
    let busy = watch.end(&mut found);
    let (served, after) = (own().saturating_sub(served), place.frames());
    let counted = counters.counts();
    workers.take(layout.server.len(), &mut found);
    let report = load.finish(settings.patience(&case.work))?;
    take_report(&report, busy, &mut found);
    if case.together {
        // Of the cores, the client has a part.
        found
            .values
            .retain(|name, _| !matches!(name.as_str(), "server_cpu_us_per_connection" | "server_cpu_us_per_message"));
        found.client_was_limit = false;
    }
    let connections = found.values.get("connections").copied().unwrap_or(0.0);
    if connections > 0.0 {
        found.set("server_own_us_per_connection", served.as_secs_f64() * 1e6 / connections);
        let crossed = after.received + after.sent - frames.received - frames.sent;
        found.set("frames_per_connection", crossed as f64 / connections);
        for (name, count) in counted {
            found.set(&format!("{name}_per_connection"), count as f64 / connections);
        }
    }
    programs::stop(server)?;
    if let Some(backend) = backend {
        backend.stop()?;
    }
    Ok(found)
}

fn load(place: &Place, case: &Case, settings: &Settings, layout: &Layout) -> Result<Child, Failure> {
    let mut command = place.command(Side::Client, &place::this_program());
    let device = format!("xdp:{}", place.interface(Side::Client));
    command.args(["load", &format!("http://{SERVER}/"), "--dev", &device]);
    command.args(load_options(&case.work, settings, true));
    let (_, sources) = place.sources.split_last().unwrap_or((&place.sources[0], &[]));
    command.args(sources.iter().flat_map(|source| ["--source", source]));
    command.args(["--cores", &list(&layout.client)]);
    let mut load = Child::spawn(command, "the load")?;
    load.event("started", START)?;
    Ok(load)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_is_measured_with_every_step() {
        let settings =
            Settings { all_cores: vec![0, 1, 2, 3], cores: 2, wires: vec![Wire::Xdp], ..Settings::default() };
        let mut notes = Vec::new();
        let cases = cases(&settings, &mut notes).expect("cases");
        let rows = |program: Program, cores: usize, rate: Option<f64>| {
            let of = |case: &&Case| {
                matches!(case.system, System::Step(_))
                    && (Program::of(case), case.cores, case.work.rate) == (program, cores, rate)
            };
            cases.iter().filter(of).map(|case| case.system.name()).collect::<Vec<_>>()
        };
        for program in [Program::Nginx, Program::Haproxy] {
            if program.path().is_none() {
                testing::skip("needs nginx and HAProxy");
                continue;
            }
            for (cores, rate) in [(1, None), (2, None), (2, Some(RATE))] {
                assert_eq!(rows(program, cores, rate), ["baseline", "by-hand", "VL", "VLR", "VLRE"]);
            }
        }
        assert!(cases.iter().all(|case| case.together == (case.system == System::Descriptors)));
        assert!(cases.iter().any(|case| case.system == System::Descriptors));
        let narrow = Settings { cores: 1, ..settings.clone() };
        let narrow = super::cases(&narrow, &mut notes).expect("cases");
        assert!(
            narrow.iter().all(|case| case.system == System::Descriptors || (case.cores, case.together) == (1, false))
        );
        let one = Settings { systems: vec!["VL".into()], quick: true, ..settings };
        let cases = super::cases(&one, &mut notes).expect("cases");
        assert!(cases.len() <= 2 && cases.iter().all(|case| case.system == System::Step(Step::Listen)), "{cases:?}");
    }
}

//! `corelane bench`: the papers' experiments, every system on the same wire in one run.
//!
//! | file | what it knows |
//! |---|---|
//! | `figures`, `columns` | the experiments: which cases, plots and columns |
//! | `case` | a row: system, wire, work |
//! | `rounds` | rounds in ABBA order, noise, failures |
//! | `measure`, `numbers` | one measurement of one case, and what programs report of it |
//! | `place`, `cpu`, `child` | namespaces and veth; time by core; programs that are started |
//! | `part`, `limit`, `connections`, `nginx`, `kv` | those programs: both ends of a memory wire, frames without TCP, idle connections |
//! | `bulk` | large transfers, both ways |
//! | `fastsocket` | unmodified nginx and HAProxy, step by step, and what the kernel's descriptors cost |
//! | `foreign`, `quota` | clients of key-value servers that are somebody else's; a limit to the server's CPU time |
//! | `latency`, `profile` | search for the knee; where the CPU goes |
//! | `statistics`, `report`, `plot`, `html` | medians and intervals; tables, JSON; a page |

mod bulk;
mod case;
mod child;
mod columns;
mod connections;
mod cpu;
mod fastsocket;
mod figures;
mod foreign;
mod html;
mod kv;
mod latency;
mod limit;
mod measure;
mod nginx;
mod numbers;
pub mod part;
mod place;
mod plot;
mod profile;
mod quota;
mod report;
mod rounds;
mod statistics;

pub use case::Wire;

use crate::args::BenchArgs;
use crate::failure::{Failure, words};
use crate::say::{say, say_json, tell};
use crate::sys::{self, Stop};
use case::Work;
use figures::{BENCHMARKS, Benchmark};
use foreign::Foreign;
use report::{Machine, Method, Report};
use rounds::Progress;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What every measurement follows.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Cores there are: the client's first, the server's last.
    pub all_cores: Vec<usize>,
    /// Rounds of each case.
    pub rounds: usize,
    /// Seconds of a measurement.
    pub seconds: f64,
    /// Seconds of load before.
    pub warm_up: f64,
    /// The client's addresses on a veth.
    pub addresses: usize,
    /// Only a look.
    pub quick: bool,
    /// Wires to use.
    pub wires: Vec<Wire>,
    /// Systems to use, by name; all when empty.
    pub systems: Vec<String>,
    /// Cores of the server at most.
    pub cores: usize,
    /// Connections at once, where an experiment does not say.
    pub concurrent: Option<usize>,
    /// The key-value server of examples/c.
    pub kv: Option<PathBuf>,
    /// Somebody else's client of key-value servers.
    pub client: Option<Foreign>,
    /// What a server has of its cores' time under such a client.
    pub share: f64,
}

impl Settings {
    /// How long a program may take for a piece of work before something must be wrong.
    fn patience(&self, work: &Work) -> Duration {
        let load = work.warm_up.unwrap_or(self.warm_up) + work.seconds.unwrap_or(self.seconds);
        Duration::from_secs_f64(60.0 + load)
    }
}

/// Names that can be asked for, with a word on each.
pub fn names() -> impl clap::builder::TypedValueParser<Value = String> {
    use clap::builder::PossibleValue;
    let all = PossibleValue::new("all").help("Every one of them");
    let one = |bench: &Benchmark| PossibleValue::new(bench.name).help(bench.about);
    let values: Vec<PossibleValue> = BENCHMARKS.iter().map(one).chain([all]).collect();
    clap::builder::TypedValueParser::map(clap::builder::PossibleValuesParser::new(values), |name: String| name)
}

/// Systems that can be asked for.
pub fn system_names() -> impl clap::builder::TypedValueParser<Value = String> {
    let mut systems = figures::EVERYBODY.to_vec();
    systems.extend(figures::MEGAPIPE.iter().filter(|system| !figures::EVERYBODY.contains(system)));
    systems.extend(figures::KEEPERS);
    systems.push(case::System::Descriptors);
    systems.extend(case::STEPS.map(case::System::Step));
    let systems: Vec<_> =
        systems.iter().map(|s| clap::builder::PossibleValue::new(s.name()).help(s.describe())).collect();
    clap::builder::TypedValueParser::map(clap::builder::PossibleValuesParser::new(systems), |name: String| name)
}

fn settings(args: &BenchArgs) -> Result<Settings, Failure> {
    let all_cores = args.on.as_ref().map_or_else(sys::allowed_cores, |cores| cores.0.clone());
    if let Some(core) = sys::refused_core(&all_cores) {
        let here = sys::allowed_cores().iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let what = format!("--on: core {core} does not exist or may not be used");
        return Err(Failure::usage(what, format!("name some of {here} (`taskset` and cpusets limit these)")));
    }
    if all_cores.len() < 2 {
        let remedy =
            "let this process use another core (--on, taskset); a server and its load on one core measure nothing";
        return Err(Failure::new("bench needs two cores", remedy));
    }
    let most = all_cores.len() / 2;
    let cores = args.cores.unwrap_or(most);
    if cores > most {
        let what = format!("{cores} server cores of {}", all_cores.len());
        return Err(Failure::usage(what, format!("the client needs as many: at most {most} here")));
    }
    let mut wires = if args.wire.is_empty() { vec![Wire::Mem, Wire::Xdp] } else { args.wire.clone() };
    if wires.contains(&Wire::Xdp)
        && let Err(failure) = place::available()
    {
        if !args.wire.is_empty() {
            return Err(failure);
        }
        tell(format!("note: {failure}"));
        wires.retain(|wire| *wire == Wire::Mem);
    }
    Ok(Settings {
        rounds: args.rounds.unwrap_or(if args.quick { 1 } else { 10 }),
        seconds: args.seconds.unwrap_or(if args.quick { 0.5 } else { 5.0 }),
        warm_up: if args.quick { 0.4 } else { 1.0 },
        addresses: args.addresses,
        quick: args.quick,
        systems: args.system.clone(),
        concurrent: args.connections,
        kv: args.kv.clone(),
        client: args.client.as_deref().map(Foreign::new).transpose()?,
        share: f64::from(args.share) / 100.0,
        all_cores,
        wires,
        cores,
    })
}

/// Runs what was asked for and prints what it found.
pub fn run(args: &BenchArgs, stop: &Stop) -> Result<(), Failure> {
    let settings = settings(args)?;
    let _page = args.html.as_deref().map(Page::open).transpose()?;
    // Before this process stays on some of the cores.
    let machine = Machine::here();
    // Programs that are started, and their helping threads, stay off the server's cores until they pin themselves.
    let (clients, _) = settings.all_cores.split_at(settings.all_cores.len() - settings.cores);
    stay_on(clients);
    let wanted = BENCHMARKS.iter().filter(|bench| args.name == "all" || bench.name == args.name);
    let (mut reports, mut unwritten) = (Vec::new(), None);
    for bench in wanted {
        match measure(bench, &settings, &machine, stop) {
            Ok(report) => {
                if !args.json {
                    say(format!("{}{report}", if reports.is_empty() { "" } else { "\n" }))?;
                }
                reports.push(report);
            }
            // The others are worth having all the same.
            Err(failure) if args.name == "all" && !stop.is_set() => tell(format!("{}: {failure}", bench.name)),
            // So is what was found before it was stopped.
            Err(_) if stop.is_set() && !reports.is_empty() => break,
            Err(failure) => return Err(failure),
        }
        // Written each time: a run of hours that is cut short leaves what it had.
        if let Some(path) = &args.html {
            unwritten = std::fs::write(path, html::page(&reports)).err().map(|error| cannot_write(path, &error));
        }
        if stop.is_set() {
            break;
        }
    }
    if reports.is_empty() {
        return Err(Failure::told("nothing could be measured"));
    }
    if args.json {
        match (args.name.as_str(), reports.as_slice()) {
            ("all", reports) => {
                let reports: Vec<_> = reports.iter().map(Report::json).collect();
                say_json(&serde_json::json!({ "reports": reports }))?;
            }
            (_, reports) => reports.iter().try_for_each(|report| say_json(&report.json()))?,
        }
    }
    match unwritten {
        Some(failure) => Err(failure),
        None if stop.is_set() => Err(rounds::interrupted()),
        None => Ok(()),
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{}: {}", path.display(), words(error)), "name a file that can be written")
}

/// Whether a file can be written is better known before than after hours of measuring. What is in it stays until then; one
/// that was made for nothing goes again.
struct Page<'a> {
    path: &'a Path,
    made: bool,
}

impl Page<'_> {
    fn open(path: &Path) -> Result<Page<'_>, Failure> {
        let made = !path.exists();
        let open = std::fs::OpenOptions::new().append(true).create(true).open(path);
        open.map(|_| Page { path, made }).map_err(|error| cannot_write(path, &error))
    }
}

impl Drop for Page<'_> {
    fn drop(&mut self) {
        if self.made && std::fs::metadata(self.path).is_ok_and(|file| file.len() == 0) {
            let _ = std::fs::remove_file(self.path);
        }
    }
}

fn stay_on(cores: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    // Without it the numbers are a little noisier, and /proc/stat tells.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

fn measure(bench: &Benchmark, settings: &Settings, machine: &Machine, stop: &Stop) -> Result<Report, Failure> {
    let mut progress = Progress::new(bench.name);
    let mut notes = Vec::new();
    let cases = (bench.cases)(settings, &mut progress, &mut notes, stop)?;
    let mut systems = Vec::new();
    for case in &cases {
        if !systems.contains(&case.system) && !systems.iter().any(|s: &case::System| s.name() == case.system.name()) {
            systems.push(case.system);
        }
    }
    if cases.is_empty() {
        return Err(Failure::new(
            format!("{} has nothing to measure with these wires and systems", bench.name),
            "leave out --wire and --system, or run it as root",
        ));
    }
    let rows = rounds::run(cases, bench.measure, settings, &mut progress, &mut notes, stop)?;
    Ok(Report {
        name: bench.name,
        after: bench.after,
        about: bench.about,
        machine: machine.clone(),
        method: Method {
            rounds: settings.rounds,
            seconds: settings.seconds,
            warm_up_s: settings.warm_up,
            closes_first: bench.closes_first,
            time_wait_s: 60,
            client_addresses: settings.addresses,
            statistics: "Medians with 95 % bootstrap intervals, rounds in ABBA order, those with more than 1 % steal or 0.1 \
                         cores of other programs discarded",
            cpu: "Server CPU is its whole core, softirq and the NAPI thread of its end of the veth included; a veth frees a \
                  frame's memory at the receiver, so what the server sent is freed on the client's core",
            veth: "Each round on the veth: fresh namespaces, threaded NAPI pinned to its own side's core, the devices' TSO and GSO \
                   off, GRO on, pfifo of 10,000, CUBIC, no XDP program at the kernel's end; so the wire has frames of one segment, but the \
                   kernel's TCP hands down many at once and has them cut just before the device, and so does corelane where \
                   several follow each other (by a packet socket with vnet_hdr); in rows that say `a frame each` neither \
                   does (offload = false; gso_max_segs 1)",
            date: httpdate::fmt_http_date(std::time::SystemTime::now()),
            command: std::iter::once("corelane".to_owned())
                .chain(std::env::args().skip(1))
                .collect::<Vec<_>>()
                .join(" "),
            quick: settings.quick,
        },
        main: bench.main,
        columns: bench.columns.to_vec(),
        plots: (bench.plots)(),
        rows,
        notes,
        systems,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_cannot_be_written_is_told_at_once() {
        let dir = std::env::temp_dir().join(format!("corelane-html-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let (page, missing) = (dir.join("page.html"), dir.join("missing/page.html"));
        std::fs::write(&page, "what was there").expect("a file");
        drop(Page::open(&page).expect("it can be written"));
        assert_eq!(std::fs::read_to_string(&page).expect("a file"), "what was there");
        let fresh = dir.join("fresh.html");
        for (text, stays) in [("", false), ("a page", true)] {
            let open = Page::open(&fresh).expect("it can be written");
            std::fs::write(&fresh, text).expect("a file");
            drop(open);
            assert_eq!(fresh.exists(), stays);
        }
        for path in [dir.as_path(), missing.as_path()] {
            let failure = Page::open(path).err().expect("no file").to_string();
            assert!(failure.contains("name a file that can be written") && !failure.contains('\n'), "{failure}");
        }
        std::fs::remove_dir_all(&dir).expect("ours");
    }
}

//! socket() and close() in a loop: the thesis's microbenchmarks of descriptors and of the VFS (MegaPipe 2.1), which are what is left
//! in today's kernel of the locks that Fastsocket's V removed.

use super::super::Settings;
use super::super::case::{Case, System, Wire, Work};
use super::super::child::Child;
use super::super::measure::{Layout, Measurement, list, watch_alone};
use super::super::part::{Aloud, Announced};
use super::super::place;
use crate::args::{CoreList, core_list};
use crate::demo::grouped;
use crate::failure::{Failure, words};
use crate::say::say_json;
use crate::sys;
use clap::Args;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::io;
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Pairs of calls between two looks at the clock.
const BATCH: u32 = 64;
/// Seconds of a measurement at most: nothing changes after that.
const SECONDS: f64 = 1.0;

/// Arguments of the part.
#[derive(Debug, Args)]
pub struct DescriptorsArgs {
    /// Cores, each with a thread
    #[arg(long, value_parser = core_list)]
    cores: CoreList,
    /// Descriptors that are open meanwhile
    #[arg(long, default_value_t = 0)]
    open: usize,
    /// A table of descriptors for each thread, as processes have
    #[arg(long)]
    own_tables: bool,
    /// Seconds
    #[arg(long)]
    duration: f64,
}

/// Cases: over open descriptors on one core, then over cores with one table and with a table each.
pub fn cases(settings: &Settings) -> Vec<Case> {
    let all = settings.all_cores.len();
    let counts: &[usize] = if settings.quick { &[0, 1000] } else { &[0, 1000, 10_000, 100_000] };
    let case = |cores: usize, open: usize, tables: &str| {
        let case = Case { cores, together: true, ..Case::new(System::Descriptors, Wire::Mem, Work::default()) };
        let work = match cores {
            1 => format!("{} open", grouped(open as f64)),
            _ if tables == "one" => format!("{cores} cores, one table"),
            _ => format!("{cores} cores, a table each"),
        };
        case.label("work", work).label("descriptors", open).label("tables", tables)
    };
    let powers = std::iter::successors(Some(2), |n| Some(n * 2)).take_while(|n| *n < all).chain([all]);
    let over_cores = powers.filter(|n| *n > 1).flat_map(|n| [case(n, 0, "one"), case(n, 0, "a core")]);
    counts.iter().map(|open| case(1, *open, "one")).chain(over_cores).collect()
}

/// Measures one.
pub fn measure(case: &Case, settings: &Settings) -> Result<Measurement, Failure> {
    let layout = Layout { client: Vec::new(), ..Layout::of(case, settings) };
    let label = |name: &str| case.labels.iter().find(|(label, _)| *label == name).map(|(_, value)| value);
    let mut command = Command::new("taskset");
    command.args(["-c", &list(&layout.server)]).arg(place::this_program());
    command.args(["bench-part", "descriptors", "--cores", &list(&layout.server)]);
    command.args(["--open", &label("descriptors").map_or(0, |open| open.as_u64().unwrap_or(0)).to_string()]);
    command.args(["--duration", &settings.seconds.min(SECONDS).to_string()]);
    if label("tables").is_some_and(|tables| tables == "a core") {
        command.arg("--own-tables");
    }
    let child = Child::spawn(command, "the descriptors")?;
    watch_alone(case, settings, layout, child, &mut |_, _| {})
}

/// Runs the part.
pub fn part(args: &DescriptorsArgs) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::told(format!("sockets: {}", words(&error)));
    let limit = sys::raise_descriptor_limit();
    if (args.open + 64) as u64 > limit {
        return Err(Failure::new(format!("{} descriptors of {limit}", args.open), "raise the limit (ulimit -n)"));
    }
    let cores = &args.cores.0;
    let duration = Duration::from_secs_f64(args.duration);
    let (begin, end) = (Barrier::new(cores.len() + 1), Barrier::new(cores.len() + 1));
    let pairs: Result<Vec<f64>, Failure> = thread::scope(|scope| {
        let worker = |core: usize| {
            let (begin, end) = (&begin, &end);
            move || {
                sys::pin(core);
                let ready = prepare(args);
                begin.wait();
                let measured = ready.and_then(|_held| pairs(duration));
                end.wait();
                measured
            }
        };
        let threads: Vec<_> = cores.iter().map(|core| scope.spawn(worker(*core))).collect();
        begin.wait();
        let said = Aloud.tell("measuring");
        end.wait();
        said.and_then(|()| Aloud.tell("measured"))?;
        let join = |thread: thread::ScopedJoinHandle<'_, io::Result<f64>>| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked: please report this")))
        };
        threads.into_iter().map(|thread| join(thread).map_err(failed)).collect()
    });
    let pairs = pairs?;
    // Nanoseconds of a pair on its core, the mean of the cores.
    let mean = pairs.iter().sum::<f64>() / pairs.len().max(1) as f64;
    say_json(&serde_json::json!({ "socket_close_ns": mean, "seconds": args.duration }))
}

/// Opens what is to be open; with tables of their own each thread for itself.
fn prepare(args: &DescriptorsArgs) -> io::Result<Vec<OwnedFd>> {
    if args.own_tables {
        // SAFETY: this thread uses no descriptor but those that it opens from here on, which no other thread uses.
        unsafe { unshare_unsafe(UnshareFlags::FILES) }?;
    }
    let Some(first) = (args.open > 0).then(open).transpose()? else { return Ok(Vec::new()) };
    // Each has a place in the table of its own; the socket behind it is one.
    (1..args.open).map(|_| first.try_clone()).chain([Ok(first.try_clone()?)]).collect()
}

fn open() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Nanoseconds of opening and closing a socket.
fn pairs(duration: Duration) -> io::Result<f64> {
    let begun = Instant::now();
    let mut done = 0u64;
    while begun.elapsed() < duration {
        for _ in 0..BATCH {
            drop(open()?);
        }
        done += u64::from(BATCH);
    }
    Ok(begun.elapsed().as_secs_f64() * 1e9 / done.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_and_open_descriptors_are_as_asked_for() {
        let args = |open, own_tables| DescriptorsArgs { cores: CoreList(vec![0]), open, own_tables, duration: 0.01 };
        assert_eq!(prepare(&args(0, false)).expect("none").len(), 0);
        assert_eq!(prepare(&args(7, false)).expect("descriptors").len(), 7);
        // A descriptor that a thread opens in a table of its own is none of the process's.
        let table = |args: DescriptorsArgs| {
            thread::spawn(move || {
                let held = prepare(&args).expect("descriptors");
                let here = rustix::thread::gettid().as_raw_nonzero();
                let of = |task: String| std::fs::read_dir(task).map_or(0, Iterator::count);
                let (own, process) = (of(format!("/proc/self/task/{here}/fd")), of("/proc/self/fd".into()));
                drop(held);
                (own, process)
            })
            .join()
            .expect("no panic")
        };
        let (own, process) = table(args(500, true));
        assert!(own >= 500 && process < 500, "{own}, {process}");
        assert!(pairs(Duration::from_millis(5)).expect("sockets") > 0.0);
    }

    #[test]
    fn cores_are_compared_with_one_table_and_with_a_table_each() {
        let settings = Settings { all_cores: vec![0, 1, 2, 3], quick: true, ..Settings::default() };
        let of = |case: Case| {
            let keys = case.keys();
            (case.cores, keys["descriptors"].as_u64().unwrap_or(9), keys["tables"].as_str().unwrap_or("").to_owned())
        };
        let rows: Vec<_> = cases(&settings).into_iter().map(of).collect();
        let expected =
            [(1, 0, "one"), (1, 1000, "one"), (2, 0, "one"), (2, 0, "a core"), (4, 0, "one"), (4, 0, "a core")];
        assert_eq!(rows, expected.map(|(cores, open, tables)| (cores, open, tables.to_owned())));
    }
}

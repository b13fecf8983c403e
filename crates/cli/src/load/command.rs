//! `corelane load`: generators on the lanes of devices.

use super::generator::Generator;
use super::memcached::Mix;
use super::plan::{Plan, Shared};
use super::report::{Report, Tally};
use super::talk::{Fetch, Talk};
use super::target::Service;
use crate::args::LoadArgs;
use crate::demo::grouped;
use crate::device;
use crate::failure::{Failure, words};
use crate::gone::Gone;
use crate::net::lane::OnLane;
use crate::say::{say, say_json, tell};
use crate::sys::{self, Machine, Stop};
use corelane::{Config, Engine, LaneHandle, LaneStats, Model};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::thread;
use std::time::{Duration, Instant};

const DEFAULT_SECONDS: f64 = 10.0;
const DEFAULT_CONNECTIONS: usize = 64;
/// Connections that an open loop may have open.
const OPEN_LOOP_CONNECTIONS: usize = 100_000;

/// What `--json` prints.
#[derive(Serialize)]
struct Printed<'a> {
    url: String,
    connections_at_once: usize,
    messages_per_connection: u32,
    rate: Option<f64>,
    engine: String,
    #[serde(flatten)]
    report: &'a Report,
    /// Counters of each.
    lanes: Vec<BTreeMap<&'static str, u64>>,
    machine: Machine,
}

/// Loads a server, prints what was measured.
pub fn run(args: &LoadArgs, stop: &Stop) -> Result<(), Failure> {
    let config = device::config(&args.device)?;
    let target = target(args)?;
    if target.ip().to_canonical().is_loopback() {
        let what = format!("{} is this machine's own loopback, to which no device leads", target.ip());
        return Err(Failure::usage(what, "give the address of a server on the device's link, as in http://10.99.0.2/"));
    }
    sys::raise_descriptor_limit();
    let mut engine = Engine::start(&config).map_err(Failure::told)?;
    for warning in engine.warnings() {
        tell(format!("note: {warning}"));
    }
    let lanes = engine.stats();
    let gone = Gone::watch(&engine, stop);
    let measured = measure(args, &args.source, &config, &mut engine, stop);
    engine.shutdown();
    gone.check()?;
    let (at_once, tally) = measured?;
    let mut report = tally.report();
    report.interrupted = stop.signal().is_some();
    match args.json {
        false => say(&report)?,
        true => {
            let printed = Printed {
                url: args.url.url.clone(),
                connections_at_once: at_once,
                messages_per_connection: args.messages,
                rate: args.rate,
                engine: device::describe(&config),
                report: &report,
                lanes: lanes.iter().map(|lane| lane.rows().into_iter().collect()).collect(),
                machine: Machine::here(),
            };
            say_json(&printed)?;
        }
    }
    let failed = tally.failures();
    let all = failed + report.connections;
    if let Some(signal) = stop.signal() {
        let of = |n: u64| grouped(n as f64);
        let how_far = match args.total {
            Some(total) => format!("{} of {} connections", of(all), of(total)),
            None => format!("{} connections", of(all)),
        };
        return Err(Failure::interrupted(signal, how_far));
    }
    verdict(&tally, args.rate)
}

/// Failure of a load that came to its end, if it is one.
fn verdict(tally: &Tally, rate: Option<f64>) -> Result<(), Failure> {
    let (failed, unanswered) = (tally.failures(), tally.unanswered.count());
    let all = failed + tally.connections;
    let useless = tally.is_useless();
    let failures = match useless {
        true => Some(format!("none of {} connections was of use", failed + unanswered)),
        false => (failed > 0).then(|| format!("{failed} of {all} connections failed")),
    };
    let stall = tally.unanswered.stall().filter(|_| !useless);
    let stalled = stall.map(|time| format!("nothing was answered in the last {:.1} s", time.as_secs_f64()));
    let not_held =
        tally.not_held.map(|(held, all)| format!("{held} of {all} connections were held, so nothing was measured"));
    let missed = rate.filter(|_| tally.missed_rate()).map(|rate| {
        let (late, never) = (tally.late_starts, tally.unanswered.starts());
        let never = if never > 0 { format!(", {never} never came") } else { String::new() };
        format!("{rate} connections a second were not kept: {late} starts were late{never}")
    });
    let causes = "the causes are listed above";
    let remedy = match () {
        () if useless && tally.answered() => format!("a server answers, but not what was asked for; {causes}"),
        () if useless || not_held.is_some() => format!("see whether a server is there; {causes}"),
        () if stall.is_some() => "see whether the server is still there".to_owned(),
        () if failed > 0 => causes.to_owned(),
        () => "lower --rate, or use more --lanes".to_owned(),
    };
    let what: Vec<String> = [not_held, failures, stalled, missed].into_iter().flatten().collect();
    if what.is_empty() { Ok(()) } else { Err(Failure::new(what.join(", and "), remedy)) }
}

fn target(args: &LoadArgs) -> Result<SocketAddr, Failure> {
    args.url.resolve().map_err(|what| Failure::new(what, "give an address, as in http://10.99.0.2/"))
}

/// Loads the target from all lanes of an engine, from each of `sources` in turn (from what it has when empty); the connections at once, and what was measured.
pub fn measure(
    args: &LoadArgs,
    sources: &[IpAddr],
    config: &Config,
    engine: &mut Engine,
    stop: &Stop,
) -> Result<(usize, Tally), Failure> {
    if args.length.is_some() && matches!(args.url.service, Service::Memcached(_)) {
        return Err(Failure::usage("--length is of HTTP's answers", "say value=BYTES in the URL"));
    }
    let target = target(args)?;
    let plans = plans(args, engine.lanes());
    let at_once = plans.iter().flatten().map(|plan| plan.concurrent).sum();
    let shared = Arc::new(Shared::default());
    let stats = engine.stats();
    let filled: Arc<AtomicU32> = Arc::default();
    let mut threads = Vec::new();
    for (index, plan) in plans.into_iter().enumerate() {
        // One without work is dropped: the engine runs it for the others.
        let (Some(handle), Some(plan)) = (engine.take_lane(index), plan) else { continue };
        let (shared, stop, sources) = (shared.clone(), stop.clone(), sources.to_vec());
        let (service, length, filled) = (args.url.service.clone(), args.length, filled.clone());
        let lane_stats = stats.get(index).filter(|_| config.model == Model::Paired).cloned();
        let body = move || {
            let to = (target, sources);
            let result = match &service {
                Service::Http(http) => load_lane(handle, to, Fetch::new(http, length), plan, shared, &stop, lane_stats),
                Service::Memcached(workload) => {
                    load_lane(handle, to, Mix::new(workload, filled, index as u64), plan, shared, &stop, lane_stats)
                }
            };
            if result.is_err() {
                stop.set();
            }
            result
        };
        let thread = thread::Builder::new().name(format!("load-{index}")).spawn(body);
        threads
            .push(thread.map_err(|error| Failure::new(format!("no thread: {error}"), "raise the limit of processes"))?);
    }
    let mut tally = Tally::default();
    tally.not_held = watch(args, at_once as u64, &shared, stop, || threads.iter().all(thread::JoinHandle::is_finished));
    let mut failure = None;
    for thread in threads {
        match thread.join() {
            Ok(Ok(lane)) => tally.add(&lane),
            Ok(Err(error)) => failure = Some(Failure::told(format!("a lane failed: {}", words(&error)))),
            Err(_) => failure = Some(Failure::told("a lane's thread panicked: please report this")),
        }
    }
    failure.map_or(Ok((at_once, tally)), Err)
}

/// Each lane's share; none for a lane that has nothing to do.
fn plans(args: &LoadArgs, lanes: usize) -> Vec<Option<Plan>> {
    let default = if args.rate.is_some() { OPEN_LOOP_CONNECTIONS } else { DEFAULT_CONNECTIONS };
    let connections = args.connections.unwrap_or(default);
    // The first lanes take what does not divide; a closed loop keeps no lane without a connection.
    let busy = connections.min(lanes).max(1) as u64;
    let share = |all: u64, lane: u64| all / busy + u64::from(lane < all % busy);
    let plan = |lane: u64| Plan {
        concurrent: share(connections as u64, lane) as usize,
        total: args.total.map(|total| share(total, lane)),
        per_connection: args.messages,
        hold: args.hold,
        rate: args.rate.map(|rate| rate / busy as f64),
        connect_timeout: Duration::from_secs_f64(args.connect_timeout.unwrap_or(args.timeout)),
        timeout: Duration::from_secs_f64(args.timeout),
    };
    let useful = |lane: &u64| *lane < busy && args.total.is_none_or(|total| share(total, *lane) > 0);
    (0..lanes as u64).map(|lane| Some(lane).filter(useful).map(plan)).collect()
}

fn load_lane(
    handle: LaneHandle,
    (target, sources): (SocketAddr, Vec<IpAddr>),
    talk: impl Talk,
    plan: Plan,
    shared: Arc<Shared>,
    stop: &Stop,
    stack: Option<Arc<LaneStats>>,
) -> io::Result<Tally> {
    let lane = handle.attach()?;
    let mut net = OnLane::new(lane.clone())?;
    net.aim(target, sources);
    let mut generator = Generator::new(net, talk, plan, shared);
    let slept = |stack: &Arc<LaneStats>| Duration::from_micros(stack.slept_us());
    let (begun, before) = (Instant::now(), stack.as_ref().map(slept));
    let mut tally = generator.run(stop)?;
    // A stack thread beside this one shares its core: the core is busy while the stack does not sleep.
    if let Some((stack, before)) = stack.as_ref().zip(before) {
        tally.stack_slept(slept(stack).saturating_sub(before), begun.elapsed());
    }
    drop(generator);
    lane.drain(Duration::from_millis(500));
    Ok(tally)
}

/// Where a run with `--warm-up` or `--hold` stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Load that does not count: until then, or until so many are held.
    Before,
    /// What counts.
    Measuring,
}

/// Shows progress, and stops when the time is over. Gives how many connections of how many were held, where they never all were.
fn watch(
    args: &LoadArgs,
    at_once: u64,
    shared: &Shared,
    stop: &Stop,
    finished: impl Fn() -> bool,
) -> Option<(u64, u64)> {
    let event = |name: &str| {
        if args.events {
            // Whoever reads these has gone when it fails; the load ends all the same.
            let _ = say(serde_json::json!({ "event": name }));
        }
    };
    let seconds = args.duration.or(args.total.is_none().then_some(DEFAULT_SECONDS));
    let limit = seconds.map(Duration::from_secs_f64);
    let warm_up = Duration::from_secs_f64(args.warm_up);
    let length = args.total.or(limit.map(|limit| (warm_up + limit).as_millis() as u64)).unwrap_or(0);
    let bar = if io::stderr().is_terminal() { ProgressBar::new(length) } else { ProgressBar::hidden() };
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {msg}") {
        bar.set_style(style);
    }
    let start = Instant::now();
    let (mut last, mut last_at) = (shared.progress(), start);
    let mut stage = Stage::Measuring;
    let mut begun = start;
    // Connections are held one after the other: a server that holds no more of them is not waited for without end.
    let patience = Duration::from_secs_f64(args.timeout + args.connect_timeout.unwrap_or(args.timeout));
    let mut not_held = None;
    let (mut most_held, mut grown) = (0, start);
    event("started");
    if args.hold || !warm_up.is_zero() {
        stage = Stage::Before;
    } else {
        event("measuring");
    }
    while !stop.is_set() && !finished() {
        if stage == Stage::Before && start.elapsed() >= warm_up && (!args.hold || shared.progress().held >= at_once) {
            (stage, begun) = (Stage::Measuring, Instant::now());
            shared.measure();
            event("measuring");
        }
        if stage == Stage::Before && args.hold {
            let held = shared.progress().held;
            if held > most_held {
                (most_held, grown) = (held, Instant::now());
            }
            if grown.elapsed() > patience {
                not_held = Some((held, at_once));
                stop.set();
                break;
            }
        }
        let left = match stage {
            Stage::Before => Some(warm_up.saturating_sub(start.elapsed()).max(Duration::from_millis(2))),
            Stage::Measuring => limit.map(|limit| limit.saturating_sub(begun.elapsed())),
        };
        if left.is_some_and(|left| left.is_zero()) {
            shared.end();
            event("measured");
            // Load goes on until every thread has noted the end, so that none is measured idle.
            thread::sleep(Duration::from_millis(30));
            stop.set();
            break;
        }
        thread::sleep(left.unwrap_or(Duration::MAX).min(Duration::from_millis(100)));
        if last_at.elapsed() >= Duration::from_millis(490) {
            let now = shared.progress();
            let rate = (now.connections - last.connections) as f64 / last_at.elapsed().as_secs_f64();
            let held = if args.hold { format!("{} held, ", now.held) } else { String::new() };
            bar.set_position(args.total.map_or(start.elapsed().as_millis() as u64, |_| now.connections + now.errors));
            bar.set_message(format!("{held}{rate:.0} connections/s, {} errors", now.errors));
            (last, last_at) = (now, Instant::now());
        }
    }
    bar.finish_and_clear();
    not_held
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use crate::load::plan::Progress;
    use clap::Parser;

    /// Connections at once, in all, and a second.
    type Share = (usize, Option<u64>, Option<f64>);

    fn shares(options: &str, lanes: usize) -> Vec<Option<Share>> {
        let words =
            ["corelane", "load", "http://10.0.0.1/", "--dev", "tap:t"].into_iter().chain(options.split_whitespace());
        let Command::Load(args) = Cli::try_parse_from(words).expect("good options").command else { panic!("load") };
        plans(&args, lanes).into_iter().map(|plan| plan.map(|plan| (plan.concurrent, plan.total, plan.rate))).collect()
    }

    #[test]
    fn lanes_share_the_work() {
        assert_eq!(
            shares("-c 7 -n 10", 3),
            [Some((3, Some(4), None)), Some((2, Some(3), None)), Some((2, Some(3), None))]
        );
        assert_eq!(shares("-c 1", 2), [Some((1, None, None)), None]);
        assert_eq!(shares("-c 9 -n 1", 2), [Some((5, Some(1), None)), None]);
        assert_eq!(shares("--rate 100", 2), [Some((50_000, None, Some(50.0))); 2]);
    }

    #[test]
    fn connections_that_are_never_held_are_not_waited_for_without_end() {
        let words = ["corelane", "load", "http://10.0.0.1/", "--dev", "tap:t", "--hold", "--timeout", "0.2"];
        let Command::Load(args) = Cli::try_parse_from(words).expect("good options").command else { panic!("load") };
        let (shared, stop) = (Shared::default(), Stop::default());
        shared.publish(Progress { held: 3, ..Progress::default() }, Progress::default());
        assert_eq!(watch(&args, 8, &shared, &stop, || false), Some((3, 8)));
        assert!(stop.is_set() && shared.phase() == 0);
    }

    #[test]
    fn the_last_line_says_what_went_wrong() {
        use crate::load::cause::Cause;
        use crate::load::unanswered::Unanswered;
        let said = |tally: &Tally, rate| verdict(tally, rate).map_err(|failure| failure.to_string());
        let failed = |cause| {
            let mut tally = Tally::default();
            tally.error(cause);
            tally
        };
        let mut good = Tally::default();
        (good.connections, good.messages, good.starts) = (3, 3, 3);
        assert_eq!(said(&good, Some(1.0)), Ok(()));
        let refused = "none of 1 connections was of use: see whether a server is there; the causes are listed above";
        assert_eq!(said(&failed(Cause::Refused), None), Err(refused.into()));
        // It is there, whatever it says; and the rate was not kept all the same.
        let mut wrong = failed(Cause::Status(404));
        (wrong.starts, wrong.late_starts) = (2, 1);
        let line = "none of 1 connections was of use, and 9 connections a second were not kept: 1 starts were late: a server \
                    answers, but not what was asked for; the causes are listed above";
        assert_eq!(said(&wrong, Some(9.0)), Err(line.into()));
        let (mut some, second) = (good.clone(), Duration::from_secs(1));
        some.add(&failed(Cause::Timeout));
        assert_eq!(said(&some, None), Err("1 of 4 connections failed: the causes are listed above".into()));
        some.late_starts = 3;
        assert!(said(&some, Some(2.5)).unwrap_err().contains("failed, and 2.5 connections a second were not kept"));
        // Silence is a failure: from the start, or at the end.
        let mut silent = Tally::default();
        silent.unanswered = Unanswered::since(3 * second, Duration::ZERO);
        silent.unanswered.connect(3 * second);
        silent.unanswered.request(3 * second);
        assert_eq!(said(&silent, None), Err(refused.replace("none of 1", "none of 2")));
        let mut fell_silent = good;
        fell_silent.add(&silent);
        let line = "nothing was answered in the last 3.0 s: see whether the server is still there";
        assert_eq!(said(&fell_silent, None), Err(line.into()));
        fell_silent.unanswered.add(&Unanswered::since(second / 10, Duration::ZERO));
        assert_eq!(said(&fell_silent, None), Ok(()), "another lane had answers");
        let mut not_held = Tally::default();
        (not_held.messages, not_held.held, not_held.not_held) = (5, 5, Some((5, 8)));
        let line = "5 of 8 connections were held, so nothing was measured: see whether a server is there; the causes are listed above";
        assert_eq!(said(&not_held, None), Err(line.into()));
        not_held.not_held = None;
        assert_eq!(said(&not_held, None), Ok(()));
    }
}

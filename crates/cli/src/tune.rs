//! `corelane tune`: programs that run already, and settings that a killed process has left.

mod attach;
mod plan;
mod scan;

use crate::args::{CoreList, core_list};
use crate::failure::{Failure, words};
use crate::machine::Machine;
use crate::say::say;
use crate::zone;
use ::io::bpf::Selected;
use ::io::xdp::LeftOff;
use clap::Args;
use plan::{Choice, Cores};
use scan::Group;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;

/// Arguments of `tune`.
#[derive(Debug, Args)]
#[command(
    after_help = "For programs whose workers have a listener each (nginx: listen … reuseport; HAProxy: shards by-thread). Without \
                        --apply nothing is changed. docs/run.md tells what it does."
)]
pub struct TuneArgs {
    /// Ports whose listeners are selected by the core on which a connection comes in
    #[arg(value_name = "PORT", required_unless_present = "undo", value_parser = clap::value_parser!(u16).range(1..))]
    pub ports: Vec<u16>,
    /// Do it; without this option it is said, and nothing is changed
    #[arg(long, conflicts_with = "undo")]
    pub apply: bool,
    /// Cores that workers are pinned to, as in 0,2,3 or 0-3 [default: all that a worker may use]
    #[arg(long, value_name = "LIST", value_parser = core_list, conflicts_with = "undo")]
    pub cores: Option<CoreList>,
    /// Leave workers on the cores that the scheduler gives them
    #[arg(long, conflicts_with = "undo")]
    pub no_pin: bool,
    /// Undo what was applied to these ports; without a port all of it, and what killed processes have left on interfaces
    #[arg(long)]
    pub undo: bool,
}

/// Does what is asked for.
pub fn run(args: &TuneArgs) -> Result<(), Failure> {
    let what = if args.undo { "settings cannot be undone" } else { "listeners cannot be looked at" };
    let machine = Machine::here().map_err(|error| Failure::told(format!("{what}: {}", words(&error))))?;
    match args.undo {
        true => undo(&machine, &args.ports),
        false => select(&machine, args),
    }
}

fn select(machine: &Machine, args: &TuneArgs) -> Result<(), Failure> {
    let only: Option<Vec<u32>> =
        args.cores.as_ref().map(|CoreList(cores)| cores.iter().map(|core| *core as u32).collect());
    let mut cores = Cores::new(only.as_deref(), !args.no_pin);
    let mut failures = Vec::new();
    let mut all_known = true;
    let ports: std::collections::BTreeSet<u16> = args.ports.iter().copied().collect();
    for port in ports {
        let failed = |error: io::Error| attach::cannot(port, &error);
        let groups = scan::groups(port).map_err(failed)?;
        let mut planned = Vec::new();
        for group in &groups {
            match cores.choose(group) {
                Ok(choices) => planned.push((group, choices)),
                Err(why) => say(format!("{}: left as it is: {why}", group.place))?,
            }
        }
        if planned.is_empty() {
            failures.push(match groups.is_empty() {
                true => format!("port {port}: nothing listens there in this network namespace"),
                false => format!("port {port}: no listeners that can be selected by core"),
            });
            continue;
        }
        if args.apply {
            failures.extend(attach::attach(machine, port, &planned)?);
        }
        for (group, choices) in &planned {
            let counted = attach::counted(machine, port, group).map_err(failed)?;
            all_known &= counted.as_ref().is_some_and(|counted| is_done(choices, counted)) || args.apply;
            say(text(group, choices, counted.as_ref(), args.apply))?;
        }
    }
    if !args.apply && !all_known {
        say("nothing was changed: it is done with --apply")?;
    }
    let last = failures.pop();
    failures.into_iter().for_each(crate::say::tell);
    last.map_or(Ok(()), |failure| Err(Failure::told(failure)))
}

/// True where all listeners are in the table, and their workers are pinned.
fn is_done(choices: &[Choice], counted: &BTreeMap<u64, Selected>) -> bool {
    choices.iter().all(|choice| choice.pin.is_none() && counted.contains_key(&choice.cookie))
}

/// A group's lines: what it is, and a line for each listener.
fn text(group: &Group, choices: &[Choice], counted: Option<&BTreeMap<u64, Selected>>, applied: bool) -> String {
    let mut text = format!("{}: {} listeners", group.place, choices.len());
    match counted {
        None => text.push_str(", to be selected by core"),
        Some(counted) => {
            let mut sum = Selected::default();
            counted.values().for_each(|selected| sum += *selected);
            let all = sum.local + sum.elsewhere;
            let _ = write!(text, ", selected by core");
            if all > 0 {
                // Not 100 % where one is missing.
                let share = (sum.local as f64 / all as f64 * 10_000.0).floor() / 100.0;
                let _ = write!(text, ": {all} connections so far, {share:.2} % on their own core");
            }
        }
    }
    for Choice { cookie, thread, core, pin } in choices {
        let core = core.map_or("no core".to_owned(), |core| format!("core {core}"));
        let _ = write!(text, "\n  {core}: {thread}");
        match pin {
            Some(was) if !applied => {
                let _ = write!(text, ", to be pinned (may use {})", list(was));
            }
            _ => {}
        }
        if counted.is_some_and(|counted| !counted.contains_key(cookie)) {
            text.push_str(", not selected yet: no connection comes to it");
        }
    }
    text
}

/// Numbers as in 0-3,6.
fn list(cores: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for core in cores {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *core => *last = *core,
            _ => runs.push((*core, *core)),
        }
    }
    let run = |(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

fn undo(machine: &Machine, ports: &[u16]) -> Result<(), Failure> {
    let failed =
        |error: io::Error| Failure::new(format!("settings cannot be undone: {}", words(&error)), "start it as root");
    let selections = attach::undo(machine, ports).map_err(failed)?;
    let interfaces = match ports {
        [] => zone::undo_left(machine).map_err(failed)?,
        _ => Vec::new(),
    };
    let features = match ports {
        [] => ::io::xdp::undo_left(),
        _ => Vec::new(),
    };
    if selections.is_empty() && interfaces.is_empty() && features.is_empty() {
        say("nothing to undo")?;
    }
    let mut failures = Vec::new();
    for attach::Found { port, end } in selections {
        say(selection(port, &end))?;
        if let attach::End::Undone(undone) = end {
            failures.extend(undone.failed);
        }
    }
    for found in interfaces {
        say(interface(&found))?;
        if let zone::End::Undone(undone) = found.end {
            failures.extend(undone.failed);
        }
    }
    for LeftOff { interface, features } in features {
        say(format!("{interface}: {} on again, which a killed process left off", features.join(", ")))?;
    }
    failures.into_iter().next().map_or(Ok(()), |line| Err(Failure::told(line)))
}

fn plural(n: usize, word: &str) -> String {
    format!("{n} {word}{}", if n == 1 { "" } else { "s" })
}

fn selection(port: u16, end: &attach::End) -> String {
    match end {
        attach::End::Held => format!("port {port}: left to another corelane tune, which is at it"),
        attach::End::Elsewhere(namespace) => {
            format!("port {port}: left, since it is of the network namespace {namespace}: undo it there")
        }
        attach::End::Undone(attach::Undone { detached, gone, unpinned, changed, failed }) => {
            let mut parts = Vec::new();
            for (addresses, what) in [(detached, "selected by hash again"), (gone, "gone with its listeners")] {
                parts.extend((!addresses.is_empty()).then(|| format!("{} {what}", addresses.join(", "))));
            }
            for (count, what) in [(*unpinned, "no longer pinned"), (*changed, "set by others since and left")] {
                parts.extend((count > 0).then(|| format!("{} {what}", plural(count, "thread"))));
            }
            parts.extend((!failed.is_empty()).then(|| format!("{} failed", failed.len())));
            format!("port {port}: {}", if parts.is_empty() { "nothing is left".into() } else { parts.join("; ") })
        }
    }
}

fn interface(zone::Found { interface, program, end }: &zone::Found) -> String {
    let of = format!("corelane run (pid {program})");
    match end {
        zone::End::Held => format!("{interface}: left to {of}, which undoes its settings as it ends"),
        zone::End::Elsewhere(namespace) => {
            format!("{interface}: left, since it is of the network namespace {namespace}: undo it there")
        }
        zone::End::Undone(zone::Undone { undone, changed, gone, failed }) => {
            let mut line = format!("{interface}: {undone} settings of {of} undone");
            for (count, what) in
                [(*changed, "changed since and left"), (*gone, "gone with their queue"), (failed.len(), "failed")]
            {
                if count > 0 {
                    let _ = write!(line, ", {count} {what}");
                }
            }
            line
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_what_became_of_an_interface() {
        let line = |end| interface(&zone::Found { interface: "eth1".into(), program: 7, end });
        assert_eq!(
            line(zone::End::Undone(zone::Undone { undone: 12, ..zone::Undone::default() })),
            "eth1: 12 settings of corelane run (pid 7) undone"
        );
        assert_eq!(
            line(zone::End::Undone(zone::Undone { undone: 0, changed: 1, gone: 2, failed: vec!["x".into()] })),
            "eth1: 0 settings of corelane run (pid 7) undone, 1 changed since and left, 2 gone with their queue, 1 failed"
        );
        assert!(line(zone::End::Held).ends_with("which undoes its settings as it ends"));
        assert!(line(zone::End::Elsewhere(4)).contains("network namespace 4"));
    }

    #[test]
    fn lines_say_what_became_of_a_selection() {
        let undone = attach::Undone {
            detached: vec!["0.0.0.0:80".into(), "[::]:80".into()],
            gone: vec!["10.0.0.1:80".into()],
            unpinned: 2,
            changed: 1,
            failed: vec!["x".into()],
        };
        assert_eq!(
            selection(80, &attach::End::Undone(undone)),
            "port 80: 0.0.0.0:80, [::]:80 selected by hash again; 10.0.0.1:80 gone with its listeners; \
             2 threads no longer pinned; 1 thread set by others since and left; 1 failed"
        );
        assert_eq!(selection(80, &attach::End::Undone(attach::Undone::default())), "port 80: nothing is left");
        assert!(selection(80, &attach::End::Held).starts_with("port 80: left to another corelane tune"));
        assert!(selection(80, &attach::End::Elsewhere(4)).contains("network namespace 4"));
    }

    #[test]
    fn cores_are_listed_by_runs() {
        assert_eq!((list(&[0, 1, 2, 5, 7, 8]).as_str(), list(&[3]).as_str()), ("0-2,5,7-8", "3"));
    }
}

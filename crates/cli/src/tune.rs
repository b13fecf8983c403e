//! `corelane tune`: settings of the machine.

use crate::failure::{Failure, words};
use crate::machine::Machine;
use crate::say::say;
use crate::zone::{End, Found, Undone, undo_left};
use clap::Args;
use std::fmt::Write;

/// Arguments of `tune`.
#[derive(Debug, Args)]
pub struct TuneArgs {
    /// Give interfaces of this network namespace the settings that they had before a `corelane run --dev` that was killed
    #[arg(long, required = true)]
    pub undo: bool,
}

/// Does what is asked for.
pub fn run(_: &TuneArgs) -> Result<(), Failure> {
    let failed = |error| Failure::new(format!("settings cannot be undone: {}", words(&error)), "start it as root");
    let all = undo_left(&Machine::here().map_err(failed)?).map_err(failed)?;
    if all.is_empty() {
        say("nothing to undo")?;
    }
    for found in &all {
        say(line(found))?;
    }
    let mut failed = all.iter().filter_map(|found| match &found.end {
        End::Undone(Undone { failed, .. }) => failed.first(),
        _ => None,
    });
    failed.next().map_or(Ok(()), |line| Err(Failure::told(line)))
}

fn line(Found { interface, program, end }: &Found) -> String {
    let of = format!("corelane run (pid {program})");
    match end {
        End::Held => format!("{interface}: left to {of}, which undoes its settings as it ends"),
        End::Elsewhere(namespace) => {
            format!("{interface}: left, since it is of the network namespace {namespace}: undo it there")
        }
        End::Undone(Undone { undone, changed, gone, failed }) => {
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
        let line = |end| line(&Found { interface: "eth1".into(), program: 7, end });
        assert_eq!(
            line(End::Undone(Undone { undone: 12, ..Undone::default() })),
            "eth1: 12 settings of corelane run (pid 7) undone"
        );
        assert_eq!(
            line(End::Undone(Undone { undone: 0, changed: 1, gone: 2, failed: vec!["x".into()] })),
            "eth1: 0 settings of corelane run (pid 7) undone, 1 changed since and left, 2 gone with their queue, 1 failed"
        );
        assert!(line(End::Held).ends_with("which undoes its settings as it ends"));
        assert!(line(End::Elsewhere(4)).contains("network namespace 4"));
    }
}

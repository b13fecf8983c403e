//! Process zone of an interface (Fastsocket 3.1): each queue's interrupts, receive and transmit work stay on one core of a program.
//!
//! Settings are written down before they are changed ([`record`]), so that they can be undone after a kill of everything, too.

mod mask;
mod plan;
mod steer;

use crate::failure::words;
use crate::machine::Machine;
use crate::record::{self, Locked, Taken};
use ::io::bpf::Blocks;
use ::io::netlink::Netlink;
use mask::CpuMask;
use plan::{Facts, Setting};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use steer::Steering;

/// Folder of the records.
const FOLDER: &str = "zones";

/// Settings of an interface, and who has made them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// Name of the interface.
    interface: String,
    /// Number of the interface.
    index: u32,
    /// Number of the network namespace.
    namespace: u64,
    /// Process that became the program.
    program: u32,
    /// All that was, or was to be, set.
    settings: Vec<Setting>,
    /// Receive rules that were, or were to be, inserted.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    rules: Vec<String>,
}

/// An interface whose queues are set to cores. Dropping it undoes that.
#[derive(Debug)]
pub struct Zone {
    interface: String,
    settings: Vec<Setting>,
    steering: Option<Steering>,
    record: Option<Locked>,
}

impl Zone {
    /// Sets the queues of an interface, of number `index`, to `cores`, for the program of a process. With `blocks` an XDP program hands
    /// frames to the cores of their ports; rules of the NIC bring them there before where its driver takes such. Also returns what could
    /// not be had.
    pub fn enter(
        machine: &Machine,
        (interface, index): (&str, u32),
        cores: &[u32],
        blocks: Option<&Blocks>,
        program: u32,
    ) -> (Option<Zone>, Vec<String>) {
        let cannot = |why: String| (None, vec![format!("queues of {interface} stay as they are: {why}")]);
        if machine.index(interface) != Some(index) {
            return cannot("/sys shows another network namespace".into());
        }
        let (mut locked, earlier) = match take(machine, index) {
            Ok(taken) => taken,
            Err(why) => return cannot(why),
        };
        if let Some(Record { rules, .. }) = &earlier
            && let Err(error) = steer::remove(machine, interface, rules)
        {
            return cannot(format!("rules of an earlier program cannot be removed: {}", words(&error)));
        }
        let facts = Facts::read(machine.root(), interface);
        let settings = facts.plan(cores, blocks.is_some());
        let mut notes = Vec::new();
        let rules = blocks.map_or_else(Vec::new, |blocks| facts.rules(cores, blocks));
        let mut steering = match Steering::new(machine, interface, rules) {
            Ok(steering) => steering,
            Err(why) => {
                notes.push(format!("{interface} has no rules by port: {why}"));
                None
            }
        };
        let rules = steering.as_ref().map_or_else(Vec::new, Steering::written);
        let mut record =
            Record { interface: interface.into(), index, namespace: machine.namespace(), program, settings, rules };
        record.follow(earlier);
        if let Err(error) = locked.write(&record) {
            return cannot(format!("{}: {}", machine.records(FOLDER).display(), words(&error)));
        }
        if facts.has_interrupts() && machine.balances_interrupts() {
            notes.push(format!("irqbalance runs, and may move the interrupts of {interface} to other cores: stop it"));
        }
        if facts.has_unnamed() {
            notes.push(format!("interrupts of {interface} do not name their queues: they stay as they are"));
        }
        let failed =
            record.settings.iter().filter_map(|setting| Some((setting, write(&setting.file, &setting.now).err()?)));
        let failed: Vec<_> = failed.collect();
        if let Some((Setting { file, was, .. }, error)) = failed.first() {
            let (count, all) = (failed.len(), record.settings.len());
            let first = format!("{} stays {was}: {}", file.display(), words(error));
            notes.push(format!("{interface}: {count} of {all} settings not made: {first}"));
        }
        if let Some(steering) = &mut steering {
            let stays = |queue: u32| {
                failed.iter().any(|(setting, _)| facts.files_of(queue as usize).any(|file| file == setting.file))
            };
            notes.extend(steering.insert(|rule| !stays(rule.queue)).map(|why| format!("{interface}: {why}")));
        }
        (Some(Zone { interface: record.interface, settings: record.settings, steering, record: Some(locked) }), notes)
    }

    /// Name of the interface.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Number of settings that were changed.
    pub fn settings(&self) -> usize {
        self.settings.len()
    }

    /// Number of rules by port that the NIC has.
    pub fn rules(&self) -> usize {
        self.steering.as_ref().map_or(0, Steering::rules)
    }

    /// Gives up the rules of a port: somebody listens on it, whose connections stay where the NIC brings them.
    pub fn listens(&mut self, port: u16) {
        if let Some(steering) = &mut self.steering {
            steering.listens(port);
        }
    }

    /// Undoes them. Returns lines on those that could not be undone, which stay written down for `corelane tune --undo`.
    pub fn leave(mut self) -> Vec<String> {
        self.end()
    }

    fn end(&mut self) -> Vec<String> {
        let Some(record) = self.record.take() else { return Vec::new() };
        let rules = self.steering.take().map_or(Ok(()), Steering::end);
        let mut failed = undo(&self.settings).failed;
        failed.extend(rules.err().map(|error| format!("rules of {}: {}", self.interface, words(&error))));
        if failed.is_empty()
            && let Err(error) = record.remove()
        {
            failed.push(format!("record of {}: {}", self.interface, words(&error)));
        }
        failed
    }
}

impl Drop for Zone {
    fn drop(&mut self) {
        self.end();
    }
}

/// Sets the queues of all of `devices` as [`Zone::enter`] does, after what earlier programs left behind is undone. Also returns what
/// could not be had. A name that no interface has, and loopback, are left out.
pub fn enter_all(devices: &[String], cores: &[u32], blocks: Option<&Blocks>, program: u32) -> (Vec<Zone>, Vec<String>) {
    let failed = |error: io::Error| (Vec::new(), vec![format!("queues stay as they are: {}", words(&error))]);
    let links = match Netlink::open().and_then(|mut netlink| netlink.links()) {
        Ok(links) => links,
        Err(error) => return failed(error),
    };
    let machine = match Machine::here() {
        Ok(machine) => machine,
        Err(error) => return failed(error),
    };
    let mut notes = Vec::new();
    match undo_left(&machine) {
        Err(error) => notes.push(format!("{}: {}", machine.records(FOLDER).display(), words(&error))),
        Ok(found) => notes.extend(found.into_iter().filter_map(|found| match found.end {
            End::Undone(Undone { failed, .. }) => failed.into_iter().next(),
            _ => None,
        })),
    }
    let links = links.iter().filter(|link| devices.contains(&link.name) && !link.loopback);
    let entered = links.filter_map(|link| {
        let (zone, more) = Zone::enter(&machine, (&link.name, link.index), cores, blocks, program);
        notes.extend(more);
        zone
    });
    (entered.collect(), notes)
}

/// Takes the record of an interface, and the one that an earlier process has left there, since it could not be undone.
fn take(machine: &Machine, index: u32) -> Result<(Locked, Option<Record>), String> {
    let folder = machine.records(FOLDER);
    let failed = |error: io::Error| format!("{}: {}", folder.display(), words(&error));
    record::make_folder(&folder).map_err(failed)?;
    match record::take::<Record>(&record::path(&folder, machine.namespace(), index), true).map_err(failed)? {
        Taken::Free(mut locked) => {
            let earlier = locked.read().map_err(failed)?;
            Ok((locked, earlier))
        }
        Taken::Held(holder) => {
            let pid = holder.map_or(String::new(), |holder| format!(" (pid {})", holder.program));
            Err(format!("another corelane run{pid} has set them"))
        }
    }
}

/// Never makes a file.
fn write(file: &Path, text: &str) -> io::Result<()> {
    File::options().write(true).truncate(true).open(file)?.write_all(text.as_bytes())
}

/// Outcome of undoing settings. Those that are as before already count nowhere.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Undone {
    /// Settings that have their old mask again.
    pub undone: usize,
    /// Changed since by somebody else, and left.
    pub changed: usize,
    /// With their queue or interrupt.
    pub gone: usize,
    /// Lines on those that could not be written.
    pub failed: Vec<String>,
}

fn undo(settings: &[Setting]) -> Undone {
    let mut all = Undone::default();
    for Setting { file, handler, was, now } in settings {
        let there = handler.as_ref().is_none_or(|name| file.with_file_name(name).is_dir());
        let current = fs::read_to_string(file).ok().filter(|_| there).and_then(|text| text.parse::<CpuMask>().ok());
        match current {
            None => all.gone += 1,
            current if current == was.parse().ok() => {}
            current if current != now.parse().ok() => all.changed += 1,
            _ => match write(file, was) {
                Ok(()) => all.undone += 1,
                Err(error) => all.failed.push(format!("{}: {}", file.display(), words(&error))),
            },
        }
    }
    all
}

/// A record that was found.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// Name of the interface.
    pub interface: String,
    /// Process of the program.
    pub program: u32,
    /// Its end.
    pub end: End,
}

/// End of a record.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// Its process had ended, and its settings are undone.
    Undone(Undone),
    /// Its process lives, and undoes them as it ends.
    Held,
    /// Another network namespace's, of this number, where it can be undone.
    Elsewhere(u64),
}

/// Undoes the settings of processes that have ended without doing it.
pub fn undo_left(machine: &Machine) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for (mut record, locked) in record::take_all::<Record>(&machine.records(FOLDER))? {
        let Some(locked) = locked else {
            found.push(record.found(End::Held));
            continue;
        };
        if record.namespace != machine.namespace() && machine.has_namespace(record.namespace) {
            found.push(record.found(End::Elsewhere(record.namespace)));
            continue;
        }
        let there = record.namespace == machine.namespace() && machine.index(&record.interface) == Some(record.index);
        // Interrupts are the machine's, and stay when their interface has moved on.
        let kept = record.settings.len();
        record.settings.retain(|setting| there || setting.handler.is_some());
        let mut undone = undo(&record.settings);
        undone.gone += kept - record.settings.len();
        if there {
            match steer::remove(machine, &record.interface, &record.rules) {
                Ok(removed) => undone.undone += removed,
                Err(error) => undone.failed.push(format!("rules of {}: {}", record.interface, words(&error))),
            }
        }
        if undone.failed.is_empty() {
            locked.remove()?;
        }
        found.push(record.found(End::Undone(undone)));
    }
    Ok(found)
}

impl Record {
    /// Keeps the masks that were there before an earlier process.
    fn follow(&mut self, earlier: Option<Record>) {
        for old in earlier.map_or_else(Vec::new, |earlier| earlier.settings) {
            match self.settings.iter_mut().find(|new| new.file == old.file && new.handler == old.handler) {
                Some(new) => new.was = old.was,
                None => self.settings.push(old),
            }
        }
    }

    fn found(&self, end: End) -> Found {
        Found { interface: self.interface.clone(), program: self.program, end }
    }
}

#[cfg(test)]
mod tests;

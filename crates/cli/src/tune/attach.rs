//! Selection by core for groups that programs have made: attached, written down, undone.
//!
//! The kernel keeps the selection for as long as the group has a listener. What was done is written down before, by port.

use super::plan::Choice;
use super::scan::Group;
use crate::failure::{Failure, words};
use crate::machine::Machine;
use crate::processes::{Thread, affinity, possible_cpus, set_affinity};
use crate::record::{self, Locked, Taken};
use ::io::bpf::{ListenGroup, Selected, Slot};
use rustix::fd::AsFd;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;

/// Folder of the records.
const FOLDER: &str = "tuned";

/// Selections on a port, and threads that were pinned for them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    port: u16,
    /// Number of the network namespace.
    namespace: u64,
    groups: Vec<Attached>,
    pins: Vec<Pin>,
}

/// A group with a selection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Attached {
    address: String,
    /// Numbers of its maps.
    maps: [u32; 3],
    /// Members (SO_COOKIE).
    listeners: Vec<u64>,
}

/// A thread that was pinned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Pin {
    thread: Thread,
    /// Cores that it might use before.
    was: Vec<u32>,
    /// The core that it was pinned to.
    core: u32,
}

impl Attached {
    /// Maps of the selection, while the group has it.
    fn find(&self) -> io::Result<Option<ListenGroup>> {
        let found = match ListenGroup::attached(self.maps) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            found => found?,
        };
        // A number may be another map's by now, of another group.
        let ours = slots(&found)?.keys().any(|cookie| self.listeners.contains(cookie));
        Ok(ours.then_some(found))
    }

    fn is_of(&self, group: &Group) -> bool {
        group.listeners.iter().any(|listener| self.listeners.contains(&listener.cookie))
    }
}

/// Slots of a table, by the cookie of their listener.
fn slots(table: &ListenGroup) -> io::Result<HashMap<u64, u32>> {
    let slots = (0..ListenGroup::SLOTS).map(|slot| Ok(table.cookie(slot)?.map(|cookie| (cookie, slot))));
    slots.filter_map(Result::transpose).collect()
}

fn path(machine: &Machine, port: u16) -> PathBuf {
    record::path(&machine.records(FOLDER), machine.namespace(), port.into())
}

/// Failure that names a port.
pub fn cannot(port: u16, error: &io::Error) -> Failure {
    let what = format!("port {port}: {}", words(error));
    match error.kind() {
        io::ErrorKind::PermissionDenied => Failure::new(what, "start it as root"),
        _ => Failure::told(what),
    }
}

/// Connections of a group's listeners since they were attached, by cookie; none where the group has no selection of ours.
pub fn counted(machine: &Machine, port: u16, group: &Group) -> io::Result<Option<BTreeMap<u64, Selected>>> {
    let record = match record::take::<Record>(&path(machine, port), false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
        Ok(Taken::Held(record)) => record,
        Ok(Taken::Free(mut locked)) => locked.read()?,
    };
    let attached = record.iter().flat_map(|record| &record.groups).find(|attached| attached.is_of(group));
    let Some(table) = attached.map(Attached::find).transpose()?.flatten() else { return Ok(None) };
    let counted = slots(&table)?.into_iter().map(|(cookie, slot)| Ok((cookie, table.selected(slot)?)));
    counted.collect::<io::Result<_>>().map(Some)
}

/// Makes the kernel select a port's listeners by core. Returns lines on what could not be done.
pub fn attach(machine: &Machine, port: u16, planned: &[(&Group, Vec<Choice>)]) -> Result<Vec<String>, Failure> {
    let failed = |error: io::Error| cannot(port, &error);
    record::make_folder(&machine.records(FOLDER)).map_err(failed)?;
    let mut locked = match record::take::<Record>(&path(machine, port), true).map_err(failed)? {
        Taken::Free(locked) => locked,
        Taken::Held(_) => {
            return Err(Failure::new(
                format!("port {port}: another corelane tune is at work on it"),
                "wait until it has ended",
            ));
        }
    };
    let earlier: Option<Record> = locked.read().map_err(failed)?;
    let mut record = Record { port, namespace: machine.namespace(), groups: Vec::new(), pins: Vec::new() };
    let mut kept = earlier.map_or_else(Vec::new, |earlier| {
        record.pins = earlier.pins.into_iter().filter(|pin| pin.thread.lives()).collect();
        earlier.groups
    });
    let mut tables = Vec::new();
    for (group, choices) in planned {
        let known = kept.iter().position(|attached| attached.is_of(group)).map(|at| kept.swap_remove(at));
        let (table, old) = match known.as_ref().map(Attached::find).transpose().map_err(failed)?.flatten() {
            Some(table) => (table, true),
            None => (
                ListenGroup::open(possible_cpus())
                    .map_err(|error| Failure::told(format!("{}: {error}", group.place)))?,
                false,
            ),
        };
        let listeners = choices.iter().map(|choice| choice.cookie).collect();
        let maps = table.ids().map_err(failed)?;
        // Nothing is attached that could not be undone: another process finds it by these numbers.
        ListenGroup::attached(maps).map_err(failed)?;
        record.groups.push(Attached { address: group.place.to_string(), maps, listeners });
        for choice in choices {
            let (Some(core), Some(was)) = (choice.core, &choice.pin) else { continue };
            match record.pins.iter_mut().find(|pin| pin.thread.is(&choice.thread)) {
                Some(pin) => pin.core = core,
                None => record.pins.push(Pin { thread: choice.thread.clone(), was: was.clone(), core }),
            }
        }
        tables.push((table, old));
    }
    for attached in kept {
        if attached.find().map_err(failed)?.is_some() {
            record.groups.push(attached);
        }
    }
    locked.write(&record).map_err(failed)?;
    let mut notes = Vec::new();
    for ((group, choices), (table, old)) in planned.iter().zip(&tables) {
        if let Err(error) = fill(table, *old, group, choices) {
            let why = match error.raw_os_error() {
                Some(libc::EBUSY) => "one of its listeners is in another program's table".to_owned(),
                _ => words(&error),
            };
            notes.push(format!("{}: {why}", group.place));
            continue;
        }
        for choice in choices {
            if let (Some(core), true) = (choice.core, choice.pin.is_some())
                && let Err(error) = set_affinity(choice.thread.tid, &[core])
                && choice.thread.lives()
            {
                notes.push(format!("{} stays unpinned: {}", choice.thread, words(&error)));
            }
        }
    }
    Ok(notes)
}

/// Puts listeners into a table, and has the kernel select from it.
fn fill(table: &ListenGroup, old: bool, group: &Group, choices: &[Choice]) -> io::Result<()> {
    let before = slots(table)?;
    let mut all = Vec::new();
    for (choice, listener) in choices.iter().zip(&group.listeners) {
        let at = match before.get(&choice.cookie) {
            Some(slot) => *slot,
            None => {
                let slot = table.free()?.ok_or(io::Error::from_raw_os_error(libc::ENOSPC))?;
                table.put(slot, listener.socket.as_fd())?;
                slot
            }
        };
        all.push(Slot { at, cpu: choice.core });
    }
    table.assign(&all)?;
    match (old, group.listeners.first()) {
        (false, Some(member)) => table.attach(member.socket.as_fd()),
        _ => Ok(()),
    }
}

/// Selection that was found written down.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// Its port.
    pub port: u16,
    /// Its end.
    pub end: End,
}

/// End of a selection.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// Undone.
    Undone(Undone),
    /// Another `corelane tune` is at work on it.
    Held,
    /// Another network namespace's, of this number, where it can be undone.
    Elsewhere(u64),
}

/// Undone parts of a selection.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Undone {
    /// Addresses whose listeners the kernel selects by hash again.
    pub detached: Vec<String>,
    /// Addresses without the listeners that were selected.
    pub gone: Vec<String>,
    /// Number of threads that may use their cores of before.
    pub unpinned: usize,
    /// Threads that somebody else has set since.
    pub changed: usize,
    /// Lines on what could not be undone.
    pub failed: Vec<String>,
}

/// Undoes selections: those on `ports`, or all where there are none.
pub fn undo(machine: &Machine, ports: &[u16]) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for (record, locked) in record::take_all::<Record>(&machine.records(FOLDER))? {
        if !wanted(ports, record.port) {
            continue;
        }
        let (port, here) = (record.port, record.namespace == machine.namespace());
        let end = match locked {
            None => End::Held,
            // A number may be another namespace's by now.
            Some(locked) if here || record.is_over() || !machine.has_namespace(record.namespace) => {
                End::Undone(record.undo(here, locked))
            }
            Some(_) => End::Elsewhere(record.namespace),
        };
        found.push(Found { port, end });
    }
    Ok(found)
}

fn wanted(ports: &[u16], port: u16) -> bool {
    ports.is_empty() || ports.contains(&port)
}

impl Record {
    /// True where nothing of it is left, in whichever namespace.
    fn is_over(&self) -> bool {
        let gone = |attached: &Attached| matches!(attached.find(), Ok(None));
        self.groups.iter().all(gone) && !self.pins.iter().any(|pin| pin.thread.lives())
    }

    fn undo(mut self, here: bool, mut locked: Locked) -> Undone {
        let mut all = Undone::default();
        let sockets = match here {
            true => super::scan::sockets(self.port),
            false => Ok(HashMap::new()),
        };
        let detach = |attached: &Attached| match (attached.find()?, &sockets) {
            (None, _) => Ok(false),
            (Some(_), Err(error)) => Err(io::Error::other(words(error))),
            (Some(_), Ok(sockets)) => match attached.listeners.iter().find_map(|cookie| sockets.get(cookie)) {
                Some(member) => ListenGroup::detach(member.as_fd()).map(|()| true),
                None => Err(super::scan::unseen()),
            },
        };
        self.groups.retain(|attached| {
            match detach(attached) {
                Ok(true) => all.detached.push(attached.address.clone()),
                Ok(false) => all.gone.push(attached.address.clone()),
                Err(error) => {
                    all.failed.push(format!("{}: {}", attached.address, words(&error)));
                    return true;
                }
            }
            false
        });
        self.pins.retain(|pin| {
            match affinity(pin.thread.tid).filter(|_| pin.thread.lives()) {
                None => {}
                Some(now) if now == pin.was => {}
                Some(now) if now != [pin.core] => all.changed += 1,
                Some(_) => match set_affinity(pin.thread.tid, &pin.was) {
                    Ok(()) => all.unpinned += 1,
                    Err(error) => {
                        all.failed.push(format!("{}: {}", pin.thread, words(&error)));
                        return true;
                    }
                },
            }
            false
        });
        let kept = match all.failed.is_empty() {
            true => locked.remove(),
            false => locked.write(&self),
        };
        all.failed.extend(kept.err().map(|error| format!("record of port {}: {}", self.port, words(&error))));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::threads;
    use rustix::thread::gettid;
    use std::sync::mpsc::{Sender, channel};

    /// A thread that waits until it may end.
    fn thread() -> (Thread, Sender<()>) {
        let ((tell, told), (end, ended)) = (channel(), channel());
        std::thread::spawn(move || {
            tell.send(gettid().as_raw_nonzero().get() as u32).unwrap();
            let _ = ended.recv();
        });
        (Thread::of(std::process::id(), told.recv().unwrap()).unwrap(), end)
    }

    #[test]
    fn threads_that_somebody_else_has_set_since_are_left() {
        let (may, pid) = (affinity(std::process::id()).unwrap(), std::process::id());
        let [first, second, ..] = may[..] else { return testing::skip("needs two cores") };
        let root = std::env::temp_dir().join(format!("corelane-cli-tune-{pid}"));
        let machine = Machine::made(root, 40, ::io::filters::Filters::of);
        record::make_folder(&machine.records(FOLDER)).unwrap();
        let (pinned, set_since) = (thread(), thread());
        for (of, core) in [(&pinned, first), (&set_since, second)] {
            set_affinity(of.0.tid, &[core]).unwrap();
        }
        let ended = Thread { started: pinned.0.started + 1, ..threads(pid).remove(0) };
        let pin = |thread: &Thread| Pin { thread: thread.clone(), was: may.clone(), core: first };
        let pins = [&pinned.0, &set_since.0, &ended].map(pin).into();
        let record = Record { port: 80, namespace: 40, groups: Vec::new(), pins };
        let Taken::Free(mut locked) = record::take::<Record>(&path(&machine, 80), true).unwrap() else { panic!() };
        locked.write(&record).unwrap();
        assert_eq!(undo(&machine, &[80]).unwrap(), [Found { port: 80, end: End::Held }]);
        assert!(attach(&machine, 80, &[]).unwrap_err().to_string().ends_with("wait until it has ended"));
        drop(locked);
        assert_eq!(undo(&machine, &[81]).unwrap(), []);
        let end = End::Undone(Undone { unpinned: 1, changed: 1, ..Undone::default() });
        assert_eq!(undo(&machine, &[]).unwrap(), [Found { port: 80, end }]);
        assert_eq!((affinity(pinned.0.tid), affinity(set_since.0.tid)), (Some(may.clone()), Some(vec![second])));
        assert_eq!(undo(&machine, &[]).unwrap(), []);
        std::fs::remove_dir_all(machine.root()).unwrap();
    }
}

//! Features of interfaces (`ethtool -k`) that are kept off while an interface is served, and turned on again afterwards: at the end, or
//! after a kill by the next start.
//!
//! Each interface has a record: a file with the names of what was turned off, which is written before. Everybody who needs something
//! off there holds a shared lock on it, in whichever process. Whoever gets the exclusive lock is the last, turns on what stands there and
//! removes the file.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::record;
use crate::rss::{self, ethtool};
use crate::sys::option_of_64_bits;

const GSTRINGS: u32 = 0x1b;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
const SFEATURES: u32 = 0x3b;
/// ETH_SS_FEATURES.
const FEATURES: u32 = 4;
/// Features that are believed.
const MOST: u32 = 1024;
/// Folder of the records. A restart of the machine clears it, and all that was set.
const FOLDER: &str = "/run/corelane/features";

/// Features that are kept off as long as this lives.
#[derive(Debug)]
pub(super) struct Off {
    interface: Interface,
    /// The kernel's names of the features.
    names: &'static [&'static str],
    /// Turned off by this or by an earlier one that needed it.
    off: Vec<String>,
    /// On all the same.
    on: Vec<String>,
    record: Option<Record>,
    /// Nothing could be written down, for this reason: after a kill the features stay off.
    unrecorded: Option<io::Error>,
}

impl Off {
    /// Turns features of interface number `index` off, by the kernel's names (`ethtool -k` has its own for some). Those that the interface
    /// does not have are off. Fails where this process may not, and where the interface is gone.
    pub fn keep(index: u32, names: &'static [&'static str]) -> io::Result<Off> {
        let interface = Interface { socket: rss::socket()?, index };
        let (off, on) = (Vec::new(), Vec::new());
        let mut kept = Off { interface, names, off, on, record: None, unrecorded: None };
        kept.keep_again()?;
        Ok(kept)
    }

    /// Turns off what has been turned on meanwhile.
    pub fn keep_again(&mut self) -> io::Result<()> {
        // Before the features are read: while it is held nobody turns any on.
        self.take_record(false);
        let mut table = self.interface.features()?;
        if self.names.iter().any(|name| table.is_on(name)) {
            self.take_record(true);
            table = self.interface.features()?;
        }
        let names = self.names.iter().filter(|name| table.is_on(name) && table.changes(name));
        let turn: Vec<String> = names.map(|name| name.to_string()).collect();
        if let Some(record) = &mut self.record
            && let Err(error) = record.add(&turn)
        {
            // Undone by this one then, whoever else needs them off.
            (self.record, self.unrecorded) = (None, Some(error));
        }
        for name in &turn {
            match self.interface.set(&table, name, false) {
                Err(e) if e.raw_os_error() == Some(libc::EPERM) => return Err(e),
                // A feature that stays on is told of.
                _ => {}
            }
        }
        let after = self.interface.features()?;
        (self.on, self.off) = (Vec::new(), self.record.as_mut().map_or_else(|| self.off.clone(), Record::names));
        for name in self.names {
            if after.is_on(name) {
                self.on.push(name.to_string());
            }
        }
        self.off.extend(turn);
        self.off.retain(|name| self.names.contains(&name.as_str()) && !self.on.contains(name));
        self.off.sort_unstable();
        self.off.dedup();
        Ok(())
    }

    fn take_record(&mut self, create: bool) {
        if self.record.is_some() || self.unrecorded.is_some() {
            return;
        }
        match Record::take(&self.interface, create) {
            Ok(record) => self.record = record,
            // Errors are told once there is something to write.
            Err(error) if create => self.unrecorded = Some(error),
            Err(_) => {}
        }
    }

    /// Features that are off for this, by the kernel's names.
    pub fn off(&self) -> &[String] {
        &self.off
    }

    /// Features that cannot be turned off, by the kernel's names.
    pub fn on(&self) -> &[String] {
        &self.on
    }

    /// Reason why a kill would leave the features off.
    pub fn unrecorded(&self) -> Option<&io::Error> {
        self.unrecorded.as_ref().filter(|_| !self.off.is_empty())
    }
}

impl Drop for Off {
    fn drop(&mut self) {
        let of_this: Vec<String> = match self.record {
            Some(_) => Vec::new(),
            None => std::mem::take(&mut self.off),
        };
        if let Some(record) = self.record.take() {
            record.undo_if_last(&self.interface);
        }
        self.interface.turn_on(&of_this);
    }
}

/// Features of an interface that a killed process had left off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOff {
    /// Name of the interface.
    pub interface: String,
    /// Features that are on again, by the kernel's names.
    pub features: Vec<String>,
}

/// Turns on what killed processes have left off in this network namespace, but for what somebody needs off now.
pub fn undo_left() -> Vec<LeftOff> {
    let mut undone = Vec::new();
    let Ok(entries) = fs::read_dir(FOLDER) else { return undone };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some((of, index)) = name.to_str().and_then(|name| name.split_once('-')) else { continue };
        let (Ok(of), Ok(index)) = (of.parse::<u64>(), index.parse::<u32>()) else { continue };
        let Ok(socket) = rss::socket() else { continue };
        let interface = Interface { socket, index };
        if namespace(&interface.socket) == Some(of)
            && let Ok(Some(record)) = Record::take(&interface, false)
            && let Some(features) = record.undo_if_last(&interface)
            && !features.is_empty()
            && let Ok(interface) = interface.name()
        {
            undone.push(LeftOff { interface, features });
        }
    }
    undone
}

/// Number of a socket's network namespace, which no other has until the machine restarts; before Linux 5.14 one that the next may have.
fn namespace(socket: &OwnedFd) -> Option<u64> {
    const SO_NETNS_COOKIE: i32 = 71;
    let cookie = option_of_64_bits(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE).ok();
    cookie.or_else(|| Some(fs::metadata("/proc/thread-self/ns/net").ok()?.ino()))
}

/// A record, with a shared lock on it.
#[derive(Debug)]
struct Record {
    path: PathBuf,
    file: File,
}

impl Record {
    /// Takes the record of an interface; `None` where there is none and none is to be made.
    fn take(interface: &Interface, create: bool) -> io::Result<Option<Record>> {
        let namespace = namespace(&interface.socket).ok_or(io::ErrorKind::Unsupported)?;
        let path = Path::new(FOLDER).join(format!("{namespace}-{}", interface.index));
        if create {
            record::make_folder(Path::new(FOLDER))?;
        } else if !path.exists() {
            return Ok(None);
        }
        record::is_ours(Path::new(FOLDER))?;
        match record::lock(&path, create, FlockOperation::LockShared) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(locked) => Ok(locked.ok().map(|file| Record { path, file })),
        }
    }

    fn names(&mut self) -> Vec<String> {
        let mut text = String::new();
        let read = self.file.rewind().and_then(|()| self.file.read_to_string(&mut text));
        read.map_or_else(|_| Vec::new(), |_| text.lines().map(str::to_owned).collect())
    }

    fn add(&mut self, names: &[String]) -> io::Result<()> {
        let known = self.names();
        let new: String = names.iter().filter(|name| !known.contains(name)).map(|name| format!("{name}\n")).collect();
        self.file.seek(io::SeekFrom::End(0))?;
        self.file.write_all(new.as_bytes())
    }

    /// Turns on what stands there, where nobody else needs it off; `None` where that is left to others.
    fn undo_if_last(mut self, interface: &Interface) -> Option<Vec<String>> {
        flock(self.file.as_fd(), FlockOperation::NonBlockingLockExclusive).ok()?;
        let names = self.names();
        if !interface.turn_on(&names) {
            // The next start tries again.
            return None;
        }
        let _ = fs::remove_file(&self.path);
        Some(names)
    }
}

/// An interface of the network namespace of a socket, whatever its name.
#[derive(Debug)]
struct Interface {
    socket: OwnedFd,
    index: u32,
}

/// Features of an interface: names by number, and blocks of 32.
#[derive(Debug, Default)]
struct Table {
    names: Vec<String>,
    blocks: Vec<Block>,
}

/// A block of 32 features as ETHTOOL_GFEATURES tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    available: u32,
    active: u32,
    never_changed: u32,
}

impl Block {
    fn of(words: &[u32]) -> Option<Block> {
        let [available, _requested, active, never_changed] = *words else { return None };
        Some(Block { available, active, never_changed })
    }
}

impl Table {
    fn number(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| known == name)
    }

    fn bit(&self, name: &str, of: impl Fn(&Block) -> u32) -> bool {
        let Some(at) = self.number(name) else { return false };
        self.blocks.get(at / 32).is_some_and(|block| of(block) & 1 << (at % 32) != 0)
    }

    fn is_on(&self, name: &str) -> bool {
        self.bit(name, |block| block.active)
    }

    fn changes(&self, name: &str) -> bool {
        self.bit(name, |block| block.available & !block.never_changed)
    }
}

impl Interface {
    fn name(&self) -> io::Result<String> {
        Ok(rustix::net::netdevice::index_to_name(&self.socket, self.index)?)
    }

    fn ethtool(&self, words: &mut [u32]) -> io::Result<()> {
        ethtool(&self.socket, &self.name()?, words)
    }

    /// No features where there is no ethtool.
    fn features(&self) -> io::Result<Table> {
        // struct ethtool_sset_info: cmd, reserved, sset_mask, data.
        let mut info = [GSSET_INFO, 0, 0, 0, 0];
        info[if cfg!(target_endian = "little") { 2 } else { 3 }] = 1 << FEATURES;
        match self.ethtool(&mut info) {
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(Table::default()),
            other => other?,
        }
        let n = info[4].min(MOST);
        // struct ethtool_gstrings: cmd, string_set, len, and 32 bytes for each.
        let mut words = vec![0; 3 + n as usize * 8];
        words[..3].copy_from_slice(&[GSTRINGS, FEATURES, n]);
        self.ethtool(&mut words)?;
        let bytes: Vec<u8> = words[3..].iter().flat_map(|w| w.to_ne_bytes()).collect();
        let name = |name: &[u8]| String::from_utf8_lossy(name.split(|b| *b == 0).next().unwrap_or_default()).into();
        let names = bytes.chunks(32).map(name).collect();
        // struct ethtool_gfeatures: cmd, size, and four words for each block; the kernel sets size to what there is.
        let mut words = vec![0; 2 + (MOST / 32) as usize * 4];
        words[..2].copy_from_slice(&[GFEATURES, MOST / 32]);
        self.ethtool(&mut words)?;
        let blocks = words[2..].chunks(4).take(words[1] as usize).filter_map(Block::of).collect();
        Ok(Table { names, blocks })
    }

    fn set(&self, table: &Table, name: &str, on: bool) -> io::Result<()> {
        let Some(at) = table.number(name) else { return Ok(()) };
        let n = table.blocks.len();
        // struct ethtool_sfeatures: cmd, size, and (valid, requested) for each block, all blocks.
        let mut words = vec![0; 2 + n * 2];
        words[..2].copy_from_slice(&[SFEATURES, n as u32]);
        words[2 + at / 32 * 2] = 1 << (at % 32);
        words[3 + at / 32 * 2] = (on as u32) << (at % 32);
        self.ethtool(&mut words)
    }

    /// `false` where some may be off still, and the interface is there.
    fn turn_on(&self, names: &[String]) -> bool {
        if names.is_empty() {
            return true;
        }
        let done = |r: io::Result<()>| match r {
            Ok(()) => true,
            // The interface is gone.
            Err(e) => matches!(e.raw_os_error(), Some(libc::ENODEV | libc::ENXIO)),
        };
        match self.features() {
            Err(e) => done(Err(e)),
            // All of them, whatever becomes of the first.
            Ok(table) => names.iter().filter(|name| !done(self.set(&table, name, true))).count() == 0,
        }
    }
}

#[cfg(test)]
mod tests;

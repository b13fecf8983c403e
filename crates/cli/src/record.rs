//! Records of what was set, which outlive the process that set it: files that are locked while their process lives.

use ::io::record::{is_ours, lock};
use rustix::fs::FlockOperation;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

pub use ::io::record::make_folder;

/// A record's file, locked.
#[derive(Debug)]
pub struct Locked {
    path: PathBuf,
    file: File,
}

/// Outcome of taking a record.
#[derive(Debug)]
pub enum Taken<T> {
    /// Nobody else has it.
    Free(Locked),
    /// Its process lives. Holds what stands there, if it can be read.
    Held(Option<T>),
}

/// File of an object, by its number in a network namespace.
pub fn path(folder: &Path, namespace: u64, number: u32) -> PathBuf {
    folder.join(format!("{namespace}-{number}.json"))
}

/// Records of a folder, each with its file where nobody else has that. Files with nothing in them are removed. Without a folder there are
/// no records.
pub fn take_all<T: DeserializeOwned>(folder: &Path) -> io::Result<Vec<(T, Option<Locked>)>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    is_ours(folder)?;
    let mut paths: Vec<_> = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    paths.sort_unstable();
    let mut all = Vec::new();
    for path in paths {
        match take(&path, false) {
            // Removed meanwhile by somebody else.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(Taken::Held(record)) => all.extend(record.map(|record| (record, None))),
            Ok(Taken::Free(mut locked)) => match locked.read()? {
                Some(record) => all.push((record, Some(locked))),
                None => locked.remove()?,
            },
        }
    }
    Ok(all)
}

/// Takes a record, where `create` says so a new one.
pub fn take<T: DeserializeOwned>(path: &Path, create: bool) -> io::Result<Taken<T>> {
    match lock(path, create, FlockOperation::NonBlockingLockExclusive)? {
        Ok(file) => Ok(Taken::Free(Locked { path: path.into(), file })),
        Err(mut file) => Ok(Taken::Held(read(&mut file)?)),
    }
}

/// None where nothing stands there, or half of it: then nothing was set yet.
fn read<T: DeserializeOwned>(file: &mut File) -> io::Result<Option<T>> {
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text).ok())
}

impl Locked {
    /// Record of an earlier process.
    pub fn read<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        read(&mut self.file)
    }

    /// Writes a record in place of what stands there.
    pub fn write(&mut self, record: &impl Serialize) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(serde_json::to_string(record)?.as_bytes())
    }

    /// Removes the file: all was undone.
    pub fn remove(self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

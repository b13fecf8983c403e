//! Files below a root: opened so that nothing outside it can be reached, small ones kept in memory.
//!
//! One cache a lane, bounded in bytes, entries and descriptors. An entry is believed for the rest of the second in which
//! it was checked; after that the file is opened again and kept when inode, size and both times are the same.

use super::conditional::{Validators, whole_seconds};
use super::mime;
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

/// Files up to this many bytes are kept in memory.
const SMALL: u64 = 256 * 1024;
/// Bytes kept in memory.
const MAX_BYTES: u64 = 64 * 1024 * 1024;
/// Files known.
const MAX_ENTRIES: usize = 1024;
/// Large files kept open.
const MAX_OPEN: usize = 64;

/// A regular file that can be sent.
#[derive(Debug)]
pub struct File {
    /// Length in bytes.
    pub size: u64,
    /// For conditional requests.
    pub validators: Validators,
    /// The header lines that come with every answer that shows this file, each ended by CRLF.
    pub fields: String,
    /// Media type.
    pub mime: &'static str,
    /// Where its bytes are.
    pub content: Content,
    identity: Identity,
}

/// A file's bytes.
#[derive(Debug)]
pub enum Content {
    /// In memory.
    Small(Rc<[u8]>),
    /// Read as it is sent.
    Large(Rc<OwnedFd>),
}

/// Why a path gives no file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// Nothing there.
    Absent,
    /// A directory.
    Directory,
    /// There, but not to be shown: permissions, a way out of the root, no regular file.
    Forbidden,
    /// The system is short of something.
    Busy,
}

/// Changes when the file does.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

struct Entry {
    file: Rc<File>,
    checked: u64,
    used: u64,
}

/// A directory and the cache of what it holds.
pub struct Files {
    root: OwnedFd,
    entries: HashMap<Vec<u8>, Entry>,
    bytes: u64,
    open: usize,
    tick: u64,
}

impl Files {
    /// Opens a root. Errors: the kernel's, `NOTDIR` among them; `NOSYS` where `openat2` is missing or filtered.
    pub fn open(root: &Path) -> Result<Files, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(root, flags, Mode::empty())?;
        open_beneath(&root, b".", flags)?;
        Ok(Files { root, entries: HashMap::new(), bytes: 0, open: 0, tick: 0 })
    }

    /// The file at a path relative to the root. `second` is the current time: entries are checked once a second.
    pub fn find(&mut self, path: &[u8], second: u64) -> Result<Rc<File>, Missing> {
        self.tick += 1;
        if let Some(entry) = self.entries.get_mut(path)
            && entry.checked == second
        {
            entry.used = self.tick;
            return Ok(entry.file.clone());
        }
        let opened = open_file(&self.root, path);
        let (descriptor, stat) = match opened {
            Ok(opened) => opened,
            Err(missing) => {
                self.forget(path);
                return Err(missing);
            }
        };
        if let Some(entry) = self.entries.get_mut(path)
            && entry.file.identity == identity(&stat)
        {
            entry.used = self.tick;
            entry.checked = second;
            return Ok(entry.file.clone());
        }
        self.forget(path);
        let file = Rc::new(load(path, descriptor, &stat, second)?);
        self.remember(path, file.clone(), second);
        Ok(file)
    }

    fn forget(&mut self, path: &[u8]) {
        if let Some(entry) = self.entries.remove(path) {
            match entry.file.content {
                Content::Small(_) => self.bytes -= entry.file.size,
                Content::Large(_) => self.open -= 1,
            }
        }
    }

    fn remember(&mut self, path: &[u8], file: Rc<File>, second: u64) {
        match file.content {
            Content::Small(_) => self.bytes += file.size,
            Content::Large(_) => self.open += 1,
        }
        self.entries.insert(path.to_vec(), Entry { file, checked: second, used: self.tick });
        while self.bytes > MAX_BYTES || self.entries.len() > MAX_ENTRIES {
            self.evict(|_| true);
        }
        while self.open > MAX_OPEN {
            self.evict(|content| matches!(content, Content::Large(_)));
        }
    }

    /// Forgets the entry that was used longest ago.
    fn evict(&mut self, which: impl Fn(&Content) -> bool) {
        let candidates = self.entries.iter().filter(|(_, entry)| which(&entry.file.content));
        let oldest = candidates.min_by_key(|(_, entry)| entry.used).map(|(path, _)| path.clone());
        if let Some(path) = oldest {
            self.forget(&path);
        }
    }
}

/// The kernel resolves the path and refuses every way out: `..`, absolute links, links that leave, /proc magic.
fn open_beneath(root: &OwnedFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let mut tries = 0;
    loop {
        // EAGAIN: something was renamed during the walk, and the kernel cannot vouch for it.
        match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) if tries < 8 => tries += 1,
            other => return other,
        }
    }
}

fn open_file(root: &OwnedFd, path: &[u8]) -> Result<(OwnedFd, Stat), Missing> {
    // Non-blocking: opening a FIFO must not wait for its writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let path = if path.is_empty() { b".".as_slice() } else { path };
    let descriptor = open_beneath(root, path, flags).map_err(missing)?;
    let stat = rustix::fs::fstat(&descriptor).map_err(missing)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok((descriptor, stat)),
        FileType::Directory => Err(Missing::Directory),
        _ => Err(Missing::Forbidden),
    }
}

fn missing(errno: Errno) -> Missing {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => Missing::Absent,
        Errno::ACCESS | Errno::PERM | Errno::XDEV | Errno::LOOP | Errno::NXIO | Errno::NODEV => Missing::Forbidden,
        _ => Missing::Busy,
    }
}

fn identity(stat: &Stat) -> Identity {
    Identity {
        device: stat.st_dev,
        inode: stat.st_ino,
        size: stat.st_size as u64,
        modified: (stat.st_mtime, stat.st_mtime_nsec),
        changed: (stat.st_ctime, stat.st_ctime_nsec),
    }
}

fn load(path: &[u8], descriptor: OwnedFd, stat: &Stat, second: u64) -> Result<File, Missing> {
    let identity = identity(stat);
    let size = identity.size;
    let (seconds, nanos) = identity.modified;
    // RFC 9110 8.8.2.1: no time in the future is sent.
    let seconds_shown = u64::try_from(seconds).unwrap_or(0).min(second);
    let modified = whole_seconds(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds_shown));
    let etag = format!("\"{:x}-{seconds:x}.{nanos:x}-{size:x}\"", identity.inode);
    let fields = format!(
        "Last-Modified: {}\r\nETag: {etag}\r\nAccept-Ranges: bytes\r\nX-Content-Type-Options: nosniff\r\n",
        httpdate::fmt_http_date(modified)
    );
    let content = match size <= SMALL {
        true => Content::Small(read_all(&descriptor, size as usize).map_err(missing)?),
        false => Content::Large(Rc::new(descriptor)),
    };
    // A file that changed between stat and read is shown as it was read.
    let size = if let Content::Small(bytes) = &content { bytes.len() as u64 } else { size };
    Ok(File { size, validators: Validators { etag, modified }, fields, mime: mime::of(path), content, identity })
}

fn read_all(descriptor: &OwnedFd, size: usize) -> Result<Rc<[u8]>, Errno> {
    let mut bytes = vec![0; size];
    let mut at = 0;
    while at < size {
        match rustix::io::retry_on_intr(|| rustix::io::pread(descriptor, &mut bytes[at..], at as u64))? {
            0 => break,
            n => at += n,
        }
    }
    bytes.truncate(at);
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_bounded() {
        let dir = std::env::temp_dir().join(format!("corelane-cli-bounded-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let sized = |name: String, size: u64| {
            let file = std::fs::File::create(dir.join(name)).expect("a file");
            file.set_len(size).expect("a sparse file");
        };
        (0..MAX_OPEN + 9).for_each(|at| sized(format!("large{at}"), SMALL + 1));
        (0..MAX_ENTRIES + 9).for_each(|at| sized(format!("small{at}"), at as u64 % 200_000));
        let mut files = Files::open(&dir).expect("the root opens");
        for at in 0..MAX_OPEN + 9 {
            let file = files.find(format!("large{at}").as_bytes(), 7).expect("it is there");
            assert_eq!(file.size, SMALL + 1);
        }
        assert_eq!((files.open, files.entries.len(), files.bytes), (MAX_OPEN, MAX_OPEN, 0));
        for at in 0..MAX_ENTRIES + 9 {
            files.find(format!("small{at}").as_bytes(), 7).expect("it is there");
        }
        assert_eq!(files.entries.len(), MAX_ENTRIES);
        let known: u64 = files.entries.values().map(|entry| entry.file.size).sum();
        assert_eq!((files.open, files.bytes), (0, known), "the oldest went first");
        std::fs::remove_dir_all(&dir).expect("it was there");
        for path in files.entries.keys().cloned().collect::<Vec<_>>() {
            assert_eq!(files.find(&path, 8).err(), Some(Missing::Absent));
        }
        assert_eq!((files.entries.len(), files.bytes), (0, 0));
    }
}

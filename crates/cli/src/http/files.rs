//! Files below a root: opened so that nothing outside it can be reached, small ones kept in memory.
//!
//! One cache a lane, bounded in bytes, entries and descriptors. An entry is believed for the rest of the second in which
//! it was checked; after that the file is opened again, and the entry is kept when inode, size and both times are the same.
//! A file that changed within [`GRANULARITY`] before it was read is read again at the next check: kernels before 6.13 stamp
//! files with the time of the last tick, so a second write of the same length may leave both times as they were.

use super::conditional::{Validators, whole_seconds};
use super::listing::Entry as Listed;
use super::{mime, path};
use rustix::fd::OwnedFd;
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Files up to this many bytes are kept in memory.
const SMALL: u64 = 256 * 1024;
/// Bytes kept in memory.
const MAX_BYTES: u64 = 64 * 1024 * 1024;
/// Files known.
const MAX_ENTRIES: usize = 1024;
/// Large files kept open.
const MAX_OPEN: usize = 64;
/// Entries of a directory that are listed.
const MAX_LISTED: usize = 10_000;
/// The times of a file tell two writes apart that lie further from each other than this: ten ticks of a kernel of 100 Hz.
const GRANULARITY: Duration = Duration::from_millis(100);

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
    /// The system is short of something: descriptors, memory.
    Busy(Errno),
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
    /// When its bytes were read, by the clock that stamps files; since 1970.
    read: Duration,
    checked: u64,
    used: u64,
}

impl Entry {
    /// Whether a file with this identity still has the bytes of this entry.
    fn is(&self, identity: &Identity) -> bool {
        let (seconds, nanos) = identity.modified.max(identity.changed);
        let changed = Duration::new(u64::try_from(seconds).unwrap_or(0), u32::try_from(nanos).unwrap_or(0));
        self.file.identity == *identity && self.read > changed + GRANULARITY
    }
}

/// A directory and the cache of what it holds.
pub struct Files {
    path: PathBuf,
    root: OwnedFd,
    entries: HashMap<Vec<u8>, Entry>,
    bytes: u64,
    open: usize,
    tick: u64,
}

impl Files {
    /// Opens a root. Errors: the kernel's, `NOTDIR` among them; `NOSYS` where `openat2` is missing or filtered.
    pub fn open(root: &Path) -> Result<Files, Errno> {
        let path = root.to_path_buf();
        Ok(Files { root: open_root(root)?, path, entries: HashMap::new(), bytes: 0, open: 0, tick: 0 })
    }

    /// Opens the root's path again, which may lead elsewhere by now (a link that was swapped), and forgets what was cached.
    /// Errors: as [`Files::open`]; then the old root stays.
    pub fn reopen(&mut self) -> Result<(), Errno> {
        self.root = open_root(&self.path)?;
        self.entries.clear();
        (self.bytes, self.open) = (0, 0);
        Ok(())
    }

    /// The root's path, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
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
            && entry.is(&identity(&stat))
        {
            entry.used = self.tick;
            entry.checked = second;
            return Ok(entry.file.clone());
        }
        self.forget(path);
        // Before the bytes are read: a write in the middle is then later than this.
        let read = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let file = Rc::new(load(path, descriptor, &stat, second)?);
        self.remember(path, Entry { file: file.clone(), read, checked: second, used: self.tick });
        Ok(file)
    }

    /// What is in a directory, sorted, and whether that is all of it; names that begin with a dot only with `hidden`.
    pub fn list(&self, directory: &[u8], hidden: bool) -> Result<(Vec<Listed>, bool), Missing> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = if directory.is_empty() { b".".as_slice() } else { directory };
        let opened = open_beneath(&self.root, directory, flags).map_err(missing)?;
        let (mut entries, mut whole) = (Vec::new(), true);
        for entry in Dir::new(opened).map_err(missing)? {
            let entry = entry.map_err(missing)?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") || (!hidden && path::is_hidden(name)) {
                continue;
            }
            if entries.len() == MAX_LISTED {
                whole = false;
                break;
            }
            entries.push(Listed { is_file: entry.file_type() != FileType::Directory, name: name.to_vec() });
        }
        entries.sort();
        Ok((entries, whole))
    }

    fn forget(&mut self, path: &[u8]) {
        if let Some(entry) = self.entries.remove(path) {
            match entry.file.content {
                Content::Small(_) => self.bytes -= entry.file.size,
                Content::Large(_) => self.open -= 1,
            }
        }
    }

    fn remember(&mut self, path: &[u8], entry: Entry) {
        match entry.file.content {
            Content::Small(_) => self.bytes += entry.file.size,
            Content::Large(_) => self.open += 1,
        }
        self.entries.insert(path.to_vec(), entry);
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

fn open_root(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(path, flags, Mode::empty())?;
    // Whether there is openat2 at all.
    open_beneath(&root, b".", flags)?;
    Ok(root)
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
        errno => Missing::Busy(errno),
    }
}

fn identity(stat: &Stat) -> Identity {
    // Tests see times that move by ticks of 100 Hz, as kernels before 6.13 show them, whatever the kernel.
    let ticks = |nanos: i64| if cfg!(test) { nanos - nanos % 10_000_000 } else { nanos };
    Identity {
        device: stat.st_dev,
        inode: stat.st_ino,
        size: stat.st_size as u64,
        modified: (stat.st_mtime, ticks(stat.st_mtime_nsec)),
        changed: (stat.st_ctime, ticks(stat.st_ctime_nsec)),
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

    /// As on a kernel whose times move by a tick: the second write leaves size and times as they were.
    #[test]
    fn a_write_in_the_tick_of_the_read_is_seen() {
        let dir = std::env::temp_dir().join(format!("corelane-cli-tick-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let mut files = Files::open(&dir).expect("the root opens");
        let bytes = |file: &File| match &file.content {
            Content::Small(bytes) => bytes.to_vec(),
            Content::Large(_) => panic!("it is small"),
        };
        std::fs::write(dir.join("f"), "old").expect("a file");
        assert_eq!(bytes(&files.find(b"f", 7).expect("it is there")), b"old");
        std::fs::write(dir.join("f"), "new").expect("a file");
        let (_, stat) = open_file(&files.root, b"f").expect("it is there");
        let entry = files.entries.get_mut(b"f".as_slice()).expect("cached");
        Rc::get_mut(&mut entry.file).expect("nobody else has it").identity = identity(&stat);
        assert_eq!(bytes(&files.find(b"f", 8).expect("it is there")), b"new");
        // Long after the last write what was read is believed.
        let entry = files.entries.get_mut(b"f".as_slice()).expect("cached");
        entry.read += Duration::from_secs(3600);
        let kept = entry.file.clone();
        assert!(Rc::ptr_eq(&kept, &files.find(b"f", 9).expect("it is there")));
        std::fs::remove_dir_all(&dir).expect("it was there");
    }

    #[test]
    fn a_root_that_was_swapped_is_opened_again() {
        let dir = std::env::temp_dir().join(format!("corelane-cli-swap-{}", std::process::id()));
        let (one, two, link) = (dir.join("v1"), dir.join("v2"), dir.join("cur"));
        for version in [&one, &two] {
            std::fs::create_dir_all(version).expect("a directory");
        }
        std::fs::write(one.join("f"), "first").expect("a file");
        std::fs::write(two.join("f"), "second one").expect("a file");
        std::os::unix::fs::symlink("v1", &link).expect("a link");
        let mut files = Files::open(&link).expect("the root opens");
        assert_eq!(files.find(b"f", 7).expect("it is there").size, 5);
        std::fs::remove_file(&link).expect("it was there");
        // Nothing to open: the old root stays.
        assert_eq!(files.reopen(), Err(Errno::NOENT));
        assert_eq!(files.find(b"f", 8).expect("it is there").size, 5);
        std::os::unix::fs::symlink("v2", &link).expect("a link");
        assert_eq!(files.find(b"f", 9).expect("it is there").size, 5);
        files.reopen().expect("it leads somewhere");
        assert_eq!(files.find(b"f", 9).expect("it is there").size, 10);
        std::fs::remove_dir_all(&dir).expect("it was there");
    }
}

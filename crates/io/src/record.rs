//! Files that tell of what was set and outlive the process that set it: in a folder of this user's own, locked while they are used.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

/// Makes a folder, where it is missing.
pub fn make_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).recursive(true).create(folder)?;
    is_ours(folder)
}

/// Fails where another user can write to a folder: lines of theirs would be written to the kernel's files.
pub fn is_ours(folder: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(folder)?;
    let ours =
        metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o022 == 0;
    match ours {
        true => Ok(()),
        false => Err(io::Error::other("others may write to it")),
    }
}

/// Opens a file and locks it, where `create` says so a new one; `Err` of the file where somebody else has a lock that excludes this one,
/// and `operation` does not wait.
pub fn lock(path: &Path, create: bool, operation: FlockOperation) -> io::Result<Result<File, File>> {
    let mut open = File::options();
    open.read(true).write(true).create(create).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    loop {
        let file = open.open(path)?;
        match flock(&file, operation) {
            Ok(()) => {}
            Err(Errno::INTR) => continue,
            Err(Errno::WOULDBLOCK) => return Ok(Err(file)),
            Err(errno) => return Err(errno.into()),
        }
        // Its last holder may have removed the file before we had the lock.
        if fs::symlink_metadata(path).is_ok_and(|there| file.metadata().is_ok_and(|ours| ours.ino() == there.ino())) {
            return Ok(Ok(file));
        }
    }
}

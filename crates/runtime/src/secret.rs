//! Secrets of an engine: drawn anew, or kept from one process to the next.

use std::io;

/// The key of ISNs, timestamp offsets, port choice and the flow table. RFC 6528 and RFC 7323 want the first two to go on
/// where an earlier process left off, so that a peer which still remembers a tuple (TIME-WAIT) takes its next SYN for new:
/// where this user may, the key is kept until the machine restarts.
pub fn kept() -> io::Result<[u8; 16]> {
    let bytes = random()?;
    Ok(kept_or(bytes).unwrap_or(bytes))
}

/// Bytes that nobody can guess.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())? {
        n if n == N => Ok(bytes),
        _ => Err(io::Error::other("it gave too little")),
    }
}

/// The key in `/run/corelane`, which is `fresh` if there was none.
fn kept_or(fresh: [u8; 16]) -> io::Result<[u8; 16]> {
    use std::io::{Read, Write};
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
    const DIR: &str = "/run/corelane";
    const FILE: &str = "/run/corelane/secret";
    std::fs::DirBuilder::new().mode(0o700).recursive(true).create(DIR)?;
    let mut open = std::fs::OpenOptions::new();
    let made = open.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(FILE);
    if let Ok(mut file) = made {
        file.write_all(&fresh)?;
        return Ok(fresh);
    }
    let mut file = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(FILE)?;
    let meta = file.metadata()?;
    // Nobody else may have written or read it.
    if meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o077 != 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut kept = [0; 16];
    file.read_exact(&mut kept)?;
    Ok(kept)
}

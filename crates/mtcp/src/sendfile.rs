//! `mtcp_sendfile`: from a file of the kernel's to a socket.

use core::ffi::c_int;

use capi::buffers::MOST_BYTES;
use capi::{Errno, Result};

use crate::context::Context;
use crate::transfer::{Stream, send};

/// Bytes read at a time.
const PIECE: usize = 65_536;

/// Reads from `at` on; how many bytes, 0 at the end of the file.
fn read(fd: c_int, out: &mut [u8], at: i64) -> Result<usize> {
    // SAFETY: the buffer is ours and as long as is said.
    let n = unsafe { libc::pread(fd, out.as_mut_ptr().cast(), out.len(), at) };
    usize::try_from(n).map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// As sendfile(2): at most `count` bytes of file `fd` from `offset` on, which moves; without one from the file's own position,
/// which moves then. What does not fit the send buffer of a socket that does not wait stays for the next call.
pub fn sendfile(c: &mut Context, of: Stream, fd: c_int, offset: Option<&mut i64>, count: usize) -> Result<usize> {
    let start = match &offset {
        Some(at) if **at < 0 => return Err(Errno::INVAL),
        Some(at) => **at,
        // SAFETY: moves nothing.
        None => match unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) } {
            -1 if Errno::from_io_error(&std::io::Error::last_os_error()) == Some(Errno::BADF) => {
                return Err(Errno::BADF);
            }
            // Linux: what cannot be read at a place is no file to send.
            -1 => return Err(Errno::INVAL),
            at => at,
        },
    };
    let count = count.min(MOST_BYTES);
    let mut buffer = core::mem::take(&mut c.file);
    buffer.resize(PIECE, 0);
    let mut sent = 0;
    let end = loop {
        let room = PIECE.min(count - sent);
        if room == 0 {
            break Ok(());
        }
        let n = match read(fd, &mut buffer[..room], start.saturating_add(sent as i64)) {
            Ok(0) => break Ok(()),
            Ok(n) => n,
            Err(Errno::SPIPE | Errno::ISDIR) => break Err(Errno::INVAL),
            Err(e) => break Err(e),
        };
        // More follows at once, unless the file ends with this.
        match send(c, of, &buffer[..n], n == room && sent + n < count) {
            Ok(taken) => {
                sent += taken;
                if taken < n {
                    break Ok(());
                }
            }
            Err(e) => break Err(e),
        }
    };
    c.file = buffer;
    if sent == 0 {
        end?;
    }
    let now = start + sent as i64;
    match offset {
        Some(at) => *at = now,
        // SAFETY: moves the file's position to where the bytes sent end.
        None => unsafe {
            libc::lseek(fd, now, libc::SEEK_SET);
        },
    }
    Ok(sent)
}

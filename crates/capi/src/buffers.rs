//! Buffers and `struct iovec` as slices.

use core::ffi::{c_int, c_void};
use core::slice;

use libc::iovec;

use crate::errno::{Errno, Result};

/// Linux's UIO_MAXIOV: most parts of one call.
pub const MOST_PARTS: usize = 1024;
/// Linux's MAX_RW_COUNT: most bytes of one call.
pub const MOST_BYTES: usize = 0x7fff_f000;
/// Parts that need no memory of their own.
const FEW: usize = 16;

/// A buffer to read from: `EFAULT` where there is none; what is longer than a call can take is cut.
///
/// # Safety
/// `at` is null or has `len` readable bytes, which stay as they are while the slice is used.
#[inline]
pub unsafe fn bytes<'a>(at: *const c_void, len: usize) -> Result<&'a [u8]> {
    match (at.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Errno::FAULT),
        // SAFETY: not null; the rest is the caller's word.
        _ => Ok(unsafe { slice::from_raw_parts(at.cast(), len.min(MOST_BYTES)) }),
    }
}

/// A buffer to write to: `EFAULT` where there is none; what is longer than a call can take is cut.
///
/// # Safety
/// `at` is null or has `len` writable bytes, which nobody else touches while the slice is used.
#[inline]
pub unsafe fn bytes_mut<'a>(at: *mut c_void, len: usize) -> Result<&'a mut [u8]> {
    match (at.is_null(), len) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(Errno::FAULT),
        // SAFETY: not null; the rest is the caller's word.
        _ => Ok(unsafe { slice::from_raw_parts_mut(at.cast(), len.min(MOST_BYTES)) }),
    }
}

/// The parts of a vector: `EINVAL` for a number out of range or more bytes than a call can count, `EFAULT` where there are
/// none, or where one of them has a length and no place.
///
/// # Safety
/// `iov` is null or has `n` readable elements, if `n` is in range.
pub unsafe fn parts<'a>(iov: *const iovec, n: c_int) -> Result<&'a [iovec]> {
    let n = usize::try_from(n).ok().filter(|n| *n <= MOST_PARTS).ok_or(Errno::INVAL)?;
    if n == 0 {
        return Ok(&[]);
    }
    if iov.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: not null; the rest is the caller's word.
    let parts = unsafe { slice::from_raw_parts(iov, n) };
    let mut total = 0usize;
    for part in parts {
        total = total.checked_add(part.iov_len).filter(|t| *t <= isize::MAX as usize).ok_or(Errno::INVAL)?;
        if part.iov_base.is_null() && part.iov_len > 0 {
            return Err(Errno::FAULT);
        }
    }
    Ok(parts)
}

/// Lends the parts of a vector to read from to `f`.
///
/// # Safety
/// `iov` is null or has `n` readable elements, if `n` is in range; each part is as in [`bytes`].
pub unsafe fn with_parts<T>(iov: *const iovec, n: c_int, f: impl FnOnce(&[&[u8]]) -> Result<T>) -> Result<T> {
    // SAFETY: the caller's word.
    let parts = unsafe { parts(iov, n) }?;
    // SAFETY: the caller's word; `parts` has found a place for each.
    let slice = |part: &iovec| unsafe { bytes(part.iov_base, part.iov_len) };
    if parts.len() <= FEW {
        let mut few: [&[u8]; FEW] = [&[]; FEW];
        for (to, part) in few.iter_mut().zip(parts) {
            *to = slice(part)?;
        }
        return f(&few[..parts.len()]);
    }
    f(&parts.iter().map(slice).collect::<Result<Vec<_>>>()?)
}

/// Fills the parts of a vector in order, one after the other, since they may overlap: as long as `f` fills one whole. `f` hears
/// how many bytes came before. What was filled before an error counts; `f` is called at least once.
///
/// # Safety
/// `iov` is null or has `n` readable elements, if `n` is in range; each part is as in [`bytes_mut`].
pub unsafe fn fill_parts(
    iov: *const iovec,
    n: c_int,
    mut f: impl FnMut(&mut [u8], usize) -> Result<usize>,
) -> Result<usize> {
    // SAFETY: the caller's word.
    let parts = unsafe { parts(iov, n) }?;
    let mut total = 0;
    for part in parts.iter().filter(|p| p.iov_len > 0) {
        // SAFETY: the caller's word; `parts` has found a place for it, and the last one's slice is gone.
        let room = unsafe { bytes_mut(part.iov_base, part.iov_len.min(MOST_BYTES - total)) }?;
        let len = room.len();
        match f(room, total) {
            Ok(n) => {
                total += n;
                if n < len || total == MOST_BYTES {
                    return Ok(total);
                }
            }
            Err(_) if total > 0 => return Ok(total),
            Err(e) => return Err(e),
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr;

    fn part(of: &[u8]) -> iovec {
        iovec { iov_base: of.as_ptr().cast_mut().cast(), iov_len: of.len() }
    }

    fn joined(iov: &[iovec]) -> Result<Vec<u8>> {
        // SAFETY: parts of slices that live.
        unsafe { with_parts(iov.as_ptr(), iov.len() as c_int, |parts| Ok(parts.concat())) }
    }

    #[test]
    fn few_and_many_parts_are_lent_in_order() {
        let text = b"abcdefghijklmnopqrstuvwxyz";
        for cut in [1, 2, 26] {
            let iov: Vec<iovec> = text.chunks(cut).map(part).collect();
            assert_eq!(joined(&iov).unwrap(), text, "pieces of {cut}");
        }
        assert_eq!(joined(&[part(b""), part(b"x")]).unwrap(), b"x");
    }

    #[test]
    fn numbers_and_places_that_cannot_be_are_refused() {
        let one = [part(b"x")];
        for n in [-1, MOST_PARTS as c_int + 1, c_int::MAX] {
            // SAFETY: the number is refused before anything is read.
            assert_eq!(unsafe { with_parts(one.as_ptr(), n, |_| Ok(())) }, Err(Errno::INVAL));
        }
        // SAFETY: null is what is tried.
        assert_eq!(unsafe { with_parts(ptr::null(), 1, |_| Ok(())) }, Err(Errno::FAULT));
        // SAFETY: the same.
        assert_eq!(unsafe { with_parts(ptr::null(), 0, |parts| Ok(parts.len())) }, Ok(0));
        let nowhere = iovec { iov_base: ptr::null_mut(), iov_len: 1 };
        assert_eq!(joined(&[one[0], nowhere]), Err(Errno::FAULT));
        let endless = iovec { iov_base: ptr::dangling_mut::<c_void>(), iov_len: usize::MAX };
        assert_eq!(joined(&[one[0], endless]), Err(Errno::INVAL));
        // SAFETY: null is what is tried.
        assert_eq!(unsafe { bytes(ptr::null(), 1) }, Err(Errno::FAULT));
        // SAFETY: the same.
        assert_eq!(unsafe { bytes_mut(ptr::null_mut(), 0) }.map(|b| b.len()), Ok(0));
    }

    #[test]
    fn parts_are_filled_until_one_is_not_full() {
        let mut room = *b"--------";
        // The second lies over the first.
        let part = |at: usize, len| iovec { iov_base: room.as_ptr().wrapping_add(at).cast_mut().cast(), iov_len: len };
        let iov = [part(0, 3), part(1, 3), part(4, 0), part(5, 3)];
        let mut source = &b"abcdefg"[..];
        let mut fill = |to: &mut [u8], _: usize| {
            let n = to.len().min(source.len());
            to[..n].copy_from_slice(&source[..n]);
            source = &source[n..];
            if n == 0 { Err(Errno::AGAIN) } else { Ok(n) }
        };
        // SAFETY: parts of an array that lives, and that nobody looks at meanwhile.
        assert_eq!(unsafe { fill_parts(iov.as_ptr(), 4, &mut fill) }, Ok(7));
        // SAFETY: the same.
        assert_eq!(unsafe { fill_parts(iov.as_ptr(), 4, &mut fill) }, Err(Errno::AGAIN));
        room[7] = b'!';
        assert_eq!(&room, b"adef-g-!");
    }
}

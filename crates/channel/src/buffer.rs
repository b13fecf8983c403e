//! Memory that operations read and write: owned by the operation until its completion.

use std::sync::Arc;

use crate::address::Address;

/// Bytes to be written. They go with the operation and come back with its completion.
#[derive(Clone, Debug)]
pub enum Buffer {
    /// Of its own.
    Vec(Vec<u8>),
    /// For ever there.
    Static(&'static [u8]),
    /// Together with others.
    Shared(Arc<[u8]>),
}

impl std::ops::Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Buffer::Vec(bytes) => bytes,
            Buffer::Static(bytes) => bytes,
            Buffer::Shared(bytes) => bytes,
        }
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Buffer {
        Buffer::Vec(bytes)
    }
}

impl From<&'static [u8]> for Buffer {
    fn from(bytes: &'static [u8]) -> Buffer {
        Buffer::Static(bytes)
    }
}

impl<const N: usize> From<&'static [u8; N]> for Buffer {
    fn from(bytes: &'static [u8; N]) -> Buffer {
        Buffer::Static(bytes)
    }
}

impl From<Arc<[u8]>> for Buffer {
    fn from(bytes: Arc<[u8]>) -> Buffer {
        Buffer::Shared(bytes)
    }
}

/// Who keeps the memory of an operation alive.
pub(crate) enum Owner {
    /// The caller, by promise.
    Caller,
    Vec(Vec<u8>),
    Vecs(Vec<Vec<u8>>),
    Buffer(Buffer),
    Buffers(Vec<Buffer>),
    /// Of a read that tells who sent it.
    From(Vec<u8>),
    /// The same, of the caller's: where the address goes, which has room for as many bytes as its length says.
    CallerFrom(*mut libc::sockaddr, *mut libc::socklen_t),
}

/// Where an operation's bytes lie.
pub(crate) enum Place {
    One { at: *mut u8, len: usize },
    Many(Box<Parts>),
}

/// Several stretches, and the message header that names them to the kernel; boxed, so that it has an address.
pub(crate) struct Parts {
    pub iov: Vec<libc::iovec>,
    /// Stretches that are done.
    pub first: usize,
    pub header: libc::msghdr,
    /// Whom a datagram is for, or who sent it.
    pub name: Option<Address>,
}

impl Parts {
    pub fn new(iov: Vec<libc::iovec>) -> Box<Parts> {
        // SAFETY: a message header of nulls names nothing.
        let header = unsafe { std::mem::zeroed() };
        Box::new(Parts { iov, first: 0, header, name: None })
    }

    /// One stretch, with an address: an empty one is for who sends.
    pub fn named(part: libc::iovec, name: Address) -> Box<Parts> {
        let mut parts = Parts::new(vec![part]);
        parts.name = Some(name);
        parts
    }

    /// Who sent what was received; nobody of a connection.
    pub fn from(&self) -> Option<Address> {
        let len = if self.header.msg_name.is_null() { 0 } else { self.header.msg_namelen };
        self.name.filter(|_| len > 0).map(|name| name.cut(len))
    }

    /// Passes over `n` bytes that are done.
    fn skip(&mut self, mut n: usize) {
        while let Some(part) = self.iov.get_mut(self.first) {
            if n < part.iov_len {
                part.iov_base = part.iov_base.cast::<u8>().wrapping_add(n).cast();
                part.iov_len -= n;
                return;
            }
            n -= part.iov_len;
            self.first += 1;
        }
    }

    /// Where the first stretch begins.
    pub fn first_part(&self) -> *mut u8 {
        self.iov.first().map_or(std::ptr::null_mut(), |part| part.iov_base.cast())
    }

    /// What is left.
    pub fn left(&self) -> &[libc::iovec] {
        &self.iov[self.first.min(self.iov.len())..]
    }

    /// The header with what is left.
    pub fn header(&mut self) -> *mut libc::msghdr {
        let first = self.first.min(self.iov.len());
        self.header.msg_iov = self.iov[first..].as_mut_ptr();
        self.header.msg_iovlen = self.iov.len() - first;
        if let Some(name) = &mut self.name {
            (self.header.msg_name, self.header.msg_namelen) = name.as_mut_ptr();
        }
        &mut self.header
    }
}

impl Place {
    /// Bytes left.
    pub fn len(&self) -> usize {
        match self {
            Place::One { len, .. } => *len,
            Place::Many(parts) => parts.left().iter().map(|part| part.iov_len).sum(),
        }
    }

    /// Copies into it as many bytes as fit: how many.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        let mut done = 0;
        let mut put = |at: *mut u8, len: usize| {
            let n = len.min(bytes.len() - done);
            // SAFETY: a place that is read into has room for its length, and is its operation's alone.
            unsafe { at.copy_from_nonoverlapping(bytes[done..].as_ptr(), n) };
            done += n;
        };
        match self {
            Place::One { at, len } => put(*at, *len),
            Place::Many(parts) => parts.left().iter().for_each(|part| put(part.iov_base.cast(), part.iov_len)),
        }
        done
    }

    /// Passes over `n` bytes that are done.
    pub fn skip(&mut self, n: usize) {
        match self {
            Place::One { at, len } => {
                let n = n.min(*len);
                *at = at.wrapping_add(n);
                *len -= n;
            }
            Place::Many(parts) => parts.skip(n),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_passed_over_at_any_byte() {
        let mut bytes = [0u8; 10];
        let base = bytes.as_mut_ptr();
        let part = |at: usize, len| libc::iovec { iov_base: base.wrapping_add(at).cast(), iov_len: len };
        for skip in 0..=10 {
            let mut place = Place::Many(Parts::new(vec![part(0, 3), part(3, 0), part(3, 5), part(8, 2)]));
            place.skip(skip);
            assert_eq!(place.len(), 10 - skip);
            let Place::Many(mut parts) = place else { unreachable!() };
            if let Some(first) = parts.left().first() {
                assert_eq!(first.iov_base.cast::<u8>(), base.wrapping_add(skip));
            }
            // SAFETY: the header is of live parts.
            let header = unsafe { &*parts.header() };
            assert_eq!(header.msg_iovlen, parts.left().len());
        }
    }
}

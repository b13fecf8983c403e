//! Socket addresses as the kernel has them.

use std::ffi::OsStr;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::errno;

/// A `struct sockaddr` of any family.
#[derive(Clone, Copy)]
pub struct Address {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl Address {
    /// Of no family.
    pub(crate) fn empty() -> Address {
        // SAFETY: a socket address of zeros is one of no family.
        Address { storage: unsafe { zeroed() }, len: 0 }
    }

    /// From the bytes of a `struct sockaddr`; EINVAL where they are too few or too many.
    pub fn from_bytes(bytes: &[u8]) -> io::Result<Address> {
        let mut address = Address::empty();
        if bytes.len() < size_of::<libc::sa_family_t>() || bytes.len() > size_of::<libc::sockaddr_storage>() {
            return Err(errno(libc::EINVAL));
        }
        // SAFETY: there is room for as many bytes, and any bytes are a `sockaddr_storage`.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut address.storage).cast::<u8>(), bytes.len());
        }
        address.len = bytes.len() as libc::socklen_t;
        Ok(address)
    }

    /// A UNIX socket's path; EINVAL where it is too long or has a zero byte.
    pub fn unix(path: impl AsRef<Path>) -> io::Result<Address> {
        let path: &OsStr = path.as_ref().as_os_str();
        let mut bytes = (libc::AF_UNIX as libc::sa_family_t).to_ne_bytes().to_vec();
        bytes.extend_from_slice(path.as_bytes());
        if path.as_bytes().contains(&0) || bytes.len() >= size_of::<libc::sockaddr_un>() {
            return Err(errno(libc::EINVAL));
        }
        bytes.push(0);
        Address::from_bytes(&bytes)
    }

    /// What a call that gives an address wrote.
    pub(crate) fn filled(f: impl FnOnce(*mut libc::sockaddr, *mut libc::socklen_t) -> i32) -> io::Result<Address> {
        let mut address = Address::empty();
        address.len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        let len = &raw mut address.len;
        match f((&raw mut address.storage).cast(), len) {
            0 => Ok(address),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The bytes of the `struct sockaddr`.
    pub fn as_bytes(&self) -> &[u8] {
        let len = (self.len as usize).min(size_of::<libc::sockaddr_storage>());
        // SAFETY: the storage was zeroed before it was filled, so that all its bytes are initialised.
        unsafe { std::slice::from_raw_parts((&raw const self.storage).cast(), len) }
    }

    /// For the kernel to read it, or to fill it where it is empty.
    pub(crate) fn as_mut_ptr(&mut self) -> (*mut libc::c_void, libc::socklen_t) {
        let len = if self.len == 0 { size_of::<libc::sockaddr_storage>() as libc::socklen_t } else { self.len };
        ((&raw mut self.storage).cast(), len)
    }

    /// As many bytes of it as the kernel has filled.
    pub(crate) fn cut(mut self, len: libc::socklen_t) -> Address {
        self.len = len.min(size_of::<libc::sockaddr_storage>() as libc::socklen_t);
        self
    }

    pub(crate) fn as_ptr(&self) -> (*const libc::sockaddr, libc::socklen_t) {
        ((&raw const self.storage).cast(), self.len)
    }

    /// Copies as much of an address as fits, and says how long it is; 0 of none.
    ///
    /// # Safety
    ///
    /// `len` holds a length, and `to` has as many writable bytes.
    pub(crate) unsafe fn give(address: Option<&Address>, to: *mut libc::sockaddr, len: *mut libc::socklen_t) {
        let bytes = address.map_or(&[][..], Address::as_bytes);
        // SAFETY: the caller's promise.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len().min(*len as usize));
            *len = bytes.len() as libc::socklen_t;
        }
    }

    /// Its family, as AF_INET.
    pub fn family(&self) -> i32 {
        i32::from(self.storage.ss_family)
    }

    /// The IP address and port; EAFNOSUPPORT where it is none, EINVAL where it is cut short.
    pub fn ip(&self) -> io::Result<SocketAddr> {
        let has = |bytes: usize| if self.len as usize >= bytes { Ok(()) } else { Err(errno(libc::EINVAL)) };
        match self.family() {
            libc::AF_INET => {
                has(size_of::<libc::sockaddr_in>())?;
                // SAFETY: the family and the length say what it is, and storage is aligned for all.
                let a = unsafe { &*(&raw const self.storage).cast::<libc::sockaddr_in>() };
                let ip = Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr));
                Ok(SocketAddr::new(IpAddr::V4(ip), u16::from_be(a.sin_port)))
            }
            libc::AF_INET6 => {
                has(size_of::<libc::sockaddr_in6>())?;
                // SAFETY: as above.
                let a = unsafe { &*(&raw const self.storage).cast::<libc::sockaddr_in6>() };
                let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
                let v6 = SocketAddrV6::new(ip, u16::from_be(a.sin6_port), a.sin6_flowinfo, a.sin6_scope_id);
                Ok(SocketAddr::V6(v6))
            }
            _ => Err(errno(libc::EAFNOSUPPORT)),
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Address {
        let mut address = Address::empty();
        match addr {
            SocketAddr::V4(v4) => {
                // SAFETY: storage is aligned and long enough for every family's address.
                let a = unsafe { &mut *(&raw mut address.storage).cast::<libc::sockaddr_in>() };
                a.sin_family = libc::AF_INET as libc::sa_family_t;
                a.sin_port = v4.port().to_be();
                a.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
                address.len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            }
            SocketAddr::V6(v6) => {
                // SAFETY: as above.
                let a = unsafe { &mut *(&raw mut address.storage).cast::<libc::sockaddr_in6>() };
                a.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                a.sin6_port = v6.port().to_be();
                a.sin6_addr.s6_addr = v6.ip().octets();
                a.sin6_flowinfo = v6.flowinfo();
                a.sin6_scope_id = v6.scope_id();
                address.len = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            }
        }
        address
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.ip() {
            Ok(ip) => ip.fmt(f),
            Err(_) => write!(f, "an address of family {}", self.family()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for text in ["10.1.2.3:80", "[fd00::1%7]:443", "[::ffff:10.0.0.1]:1"] {
            let addr: SocketAddr = text.parse().unwrap();
            let address = Address::from(addr);
            assert_eq!(address.ip().unwrap(), addr);
            assert_eq!(Address::from_bytes(address.as_bytes()).unwrap().ip().unwrap(), addr);
            assert!(Address::from_bytes(&address.as_bytes()[..7]).unwrap().ip().is_err());
        }
        assert!(Address::from_bytes(&[1]).is_err() && Address::from_bytes(&[0; 200]).is_err());
        let unix = Address::unix("/tmp/x").unwrap();
        assert_eq!((unix.family(), unix.as_bytes().len()), (libc::AF_UNIX, 9));
        assert!(unix.ip().is_err() && Address::unix("x".repeat(108)).is_err());
    }
}

//! `struct sockaddr_in` and `sockaddr_in6`, in and out.

use core::ffi::c_int;

use libc::{sockaddr, socklen_t};
use stack::channel::Endpoint;
use wire::Addr;

use crate::errno::{Errno, Result};

const FAMILY_V4: u16 = libc::AF_INET as u16;
const FAMILY_V6: u16 = libc::AF_INET6 as u16;
/// Bytes of a `struct sockaddr_in`.
const V4_BYTES: usize = size_of::<libc::sockaddr_in>();
/// Bytes of a `struct sockaddr_in6`.
const V6_BYTES: usize = size_of::<libc::sockaddr_in6>();
/// As Linux has it: an IPv6 address may come without its scope (RFC 2133's structure).
const V6_LEAST: usize = 24;

/// Whether what socket(2) is asked for is TCP over IPv6; `EAFNOSUPPORT`, `ESOCKTNOSUPPORT` or `EPROTONOSUPPORT` where it is not TCP.
pub fn is_v6(domain: c_int, kind: c_int, protocol: c_int) -> Result<bool> {
    let v6 = match domain {
        libc::AF_INET => false,
        libc::AF_INET6 => true,
        _ => return Err(Errno::AFNOSUPPORT),
    };
    if kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != libc::SOCK_STREAM {
        return Err(Errno::SOCKTNOSUPPORT);
    }
    if !matches!(protocol, 0 | libc::IPPROTO_TCP) {
        return Err(Errno::PROTONOSUPPORT);
    }
    Ok(v6)
}

/// Reads an address: `EINVAL` where it is too short, `EAFNOSUPPORT` where it is neither IPv4 nor IPv6.
pub fn parse(address: &[u8]) -> Result<Endpoint> {
    let family = address.get(..2).and_then(|f| f.try_into().ok()).map(u16::from_ne_bytes).ok_or(Errno::INVAL)?;
    let port = |a: &[u8]| u16::from_be_bytes([a[2], a[3]]);
    match family {
        FAMILY_V4 if address.len() >= V4_BYTES => {
            let octets: [u8; 4] = address[4..8].try_into().map_err(|_| Errno::INVAL)?;
            Ok(Endpoint { addr: Addr::from_v4(octets), port: port(address) })
        }
        FAMILY_V6 if address.len() >= V6_LEAST => {
            let octets: [u8; 16] = address[8..24].try_into().map_err(|_| Errno::INVAL)?;
            Ok(Endpoint { addr: core::net::IpAddr::from(octets).into(), port: port(address) })
        }
        FAMILY_V4 | FAMILY_V6 => Err(Errno::INVAL),
        _ => Err(Errno::AFNOSUPPORT),
    }
}

/// Reads the address that a program passes: `EFAULT` where there is none.
///
/// # Safety
/// `at` is null, or has `len` readable bytes.
pub unsafe fn read(at: *const sockaddr, len: socklen_t) -> Result<Endpoint> {
    if at.is_null() {
        return Err(Errno::FAULT);
    }
    // Linux: no address is longer.
    let len = Some(len as usize).filter(|len| *len <= size_of::<libc::sockaddr_storage>()).ok_or(Errno::INVAL)?;
    // SAFETY: not null; the rest is the caller's word.
    parse(unsafe { core::slice::from_raw_parts(at.cast(), len) })
}

/// An address as C has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SockAddr {
    bytes: [u8; V6_BYTES],
    len: usize,
}

impl SockAddr {
    /// The structure for an endpoint of a socket, which for one of IPv6 has IPv4 addresses as mapped ones (RFC 4291
    /// 2.5.5.2).
    pub fn new(of: Endpoint, v6: bool) -> SockAddr {
        let mut bytes = [0; V6_BYTES];
        bytes[2..4].copy_from_slice(&of.port.to_be_bytes());
        let len = match (v6, of.addr.is_v4()) {
            (false, true) => {
                bytes[..2].copy_from_slice(&FAMILY_V4.to_ne_bytes());
                bytes[4..8].copy_from_slice(&of.addr.v4_octets());
                V4_BYTES
            }
            (_, v4) => {
                bytes[..2].copy_from_slice(&FAMILY_V6.to_ne_bytes());
                match v4 {
                    true if of.addr.is_unspecified() => {}
                    true => {
                        bytes[18..20].fill(0xff);
                        bytes[20..24].copy_from_slice(&of.addr.v4_octets());
                    }
                    false => bytes[8..24].copy_from_slice(&of.addr.octets()),
                }
                V6_BYTES
            }
        };
        SockAddr { bytes, len }
    }

    /// The structure's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Copies what fits to `out`, and the whole length to `len`, as accept(2) and getsockname(2) do. `EFAULT` where one of them
    /// is null, `EINVAL` for a length below zero.
    ///
    /// # Safety
    /// `len` is null or holds a length; `out` is null or has as many writable bytes.
    pub unsafe fn write(&self, out: *mut sockaddr, len: *mut socklen_t) -> Result<()> {
        if out.is_null() || len.is_null() {
            return Err(Errno::FAULT);
        }
        // SAFETY: not null; the rest is the caller's word.
        unsafe {
            let room = usize::try_from(*len as i32).map_err(|_| Errno::INVAL)?;
            core::ptr::copy_nonoverlapping(self.bytes.as_ptr(), out.cast(), self.len.min(room));
            *len = self.len as socklen_t;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Endpoint {
        let a: core::net::SocketAddr = text.parse().unwrap();
        Endpoint { addr: a.ip().into(), port: a.port() }
    }

    #[test]
    fn both_families_there_and_back() {
        for text in ["10.0.0.1:80", "0.0.0.0:0", "[fd00::1]:443", "[::]:65535"] {
            let raw = SockAddr::new(at(text), text.starts_with('['));
            assert_eq!(parse(raw.as_bytes()), Ok(at(text)), "{text}");
        }
        // An IPv4 peer of an IPv6 socket.
        let mapped = SockAddr::new(at("10.1.2.3:4"), true);
        assert_eq!(&mapped.as_bytes()[8..24], &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3]);
        assert_eq!(SockAddr::new(at("0.0.0.0:9"), true).as_bytes()[8..24], [0; 16]);
    }

    #[test]
    fn short_and_strange_addresses_are_refused() {
        let whole = SockAddr::new(at("10.0.0.1:80"), false);
        for n in 0..V4_BYTES {
            assert_eq!(parse(&whole.as_bytes()[..n]), Err(Errno::INVAL), "{n}");
        }
        let whole = SockAddr::new(at("[fd00::1]:80"), true);
        assert_eq!(parse(&whole.as_bytes()[..23]), Err(Errno::INVAL));
        assert_eq!(parse(&whole.as_bytes()[..24]), Ok(at("[fd00::1]:80")));
        assert_eq!(parse(&[libc::AF_UNIX as u8, 0, 0, 0]), Err(Errno::AFNOSUPPORT));
        // SAFETY: null is what is tried.
        assert_eq!(unsafe { read(core::ptr::null(), 16) }, Err(Errno::FAULT));
    }

    #[test]
    fn what_does_not_fit_is_cut_and_its_length_told() {
        let raw = SockAddr::new(at("10.0.0.1:80"), false);
        let mut room = [0xee_u8; 16];
        let mut len = 4;
        // SAFETY: room for more than the four bytes that are said.
        assert_eq!(unsafe { raw.write(room.as_mut_ptr().cast(), &mut len) }, Ok(()));
        assert_eq!((&room[..4], room[4], len), (&raw.as_bytes()[..4], 0xee, 16));
        let mut below = -1i32 as socklen_t;
        // SAFETY: nothing is written.
        assert_eq!(unsafe { raw.write(room.as_mut_ptr().cast(), &mut below) }, Err(Errno::INVAL));
        // SAFETY: null is what is tried.
        assert_eq!(unsafe { raw.write(core::ptr::null_mut(), &mut len) }, Err(Errno::FAULT));
    }
}

//! `struct sockaddr_in` and `sockaddr_in6`, in and out.

use core::ffi::c_int;

use libc::{sockaddr, socklen_t};
use protocol::Endpoint;
use wire::Addr;

use crate::errno::{Errno, Result};

const FAMILY_V4: u16 = libc::AF_INET as u16;
const FAMILY_V6: u16 = libc::AF_INET6 as u16;
/// Bytes of a `struct sockaddr_in`.
pub const V4_BYTES: usize = size_of::<libc::sockaddr_in>();
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

/// Whether it is of AF_UNSPEC, which names none; a bare family is enough for that.
pub fn is_unspec(address: &[u8]) -> bool {
    address.get(..2) == Some(&(libc::AF_UNSPEC as u16).to_ne_bytes()[..])
}

/// Reads an address for a socket of IPv6 or of IPv4, as Linux does: `EINVAL` where it is too short for that, or of a link that is
/// not named, `EAFNOSUPPORT` where it is another family's.
pub fn parse(address: &[u8], v6: bool) -> Result<Endpoint> {
    if address.len() < if v6 { V6_LEAST } else { V4_BYTES } {
        return Err(Errno::INVAL);
    }
    let (family, own) = (u16::from_ne_bytes([address[0], address[1]]), if v6 { FAMILY_V6 } else { FAMILY_V4 });
    if family != own {
        return Err(Errno::AFNOSUPPORT);
    }
    let port = u16::from_be_bytes([address[2], address[3]]);
    if !v6 {
        return Ok(Endpoint { addr: Addr::from_v4([address[4], address[5], address[6], address[7]]), port });
    }
    let octets: [u8; 16] = address[8..24].try_into().map_err(|_| Errno::INVAL)?;
    let scope = address.get(24..28).is_some_and(|scope| scope != [0; 4]);
    // RFC 4291 2.5.6: fe80::/10.
    if octets[0] == 0xfe && octets[1] & 0xc0 == 0x80 && !scope {
        return Err(Errno::INVAL);
    }
    Ok(Endpoint { addr: core::net::IpAddr::from(octets).into(), port })
}

/// The bytes of the address that a program passes: `EFAULT` where there is none.
///
/// # Safety
/// `at` is null, or has `len` readable bytes that stay as they are.
pub unsafe fn bytes<'a>(at: *const sockaddr, len: socklen_t) -> Result<&'a [u8]> {
    if at.is_null() {
        return Err(Errno::FAULT);
    }
    // Linux: no address is longer.
    let len = Some(len as usize).filter(|len| *len <= size_of::<libc::sockaddr_storage>()).ok_or(Errno::INVAL)?;
    // SAFETY: not null; the rest is the caller's word.
    Ok(unsafe { core::slice::from_raw_parts(at.cast(), len) })
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
            assert_eq!(parse(raw.as_bytes(), text.starts_with('[')), Ok(at(text)), "{text}");
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
            assert_eq!(parse(&whole.as_bytes()[..n], false), Err(Errno::INVAL), "{n}");
        }
        let six = SockAddr::new(at("[fd00::1]:80"), true);
        assert_eq!(parse(&six.as_bytes()[..23], true), Err(Errno::INVAL));
        assert_eq!(parse(&six.as_bytes()[..24], true), Ok(at("[fd00::1]:80")));
        // The other family's, and others.
        assert_eq!(parse(six.as_bytes(), false), Err(Errno::AFNOSUPPORT));
        assert_eq!(parse(whole.as_bytes(), true), Err(Errno::INVAL));
        let mut strange = [0; V6_BYTES];
        strange[0] = libc::AF_UNIX as u8;
        assert_eq!(parse(&strange, true), Err(Errno::AFNOSUPPORT));
        assert_eq!(parse(&strange, false), Err(Errno::AFNOSUPPORT));
        // SAFETY: null is what is tried.
        assert_eq!(unsafe { bytes(core::ptr::null(), 16) }, Err(Errno::FAULT));
        // SAFETY: it is refused for its length, unread.
        assert_eq!(unsafe { bytes(strange.as_ptr().cast(), 129) }, Err(Errno::INVAL));
    }

    #[test]
    fn a_link_local_address_names_its_link() {
        let mut raw = SockAddr::new(at("[fe80::1]:80"), true).as_bytes().to_vec();
        assert_eq!(parse(&raw, true), Err(Errno::INVAL));
        assert_eq!(parse(&raw[..24], true), Err(Errno::INVAL));
        raw[24] = 2;
        assert_eq!(parse(&raw, true), Ok(at("[fe80::1]:80")));
    }

    #[test]
    fn no_family_is_seen_in_two_bytes() {
        assert!(is_unspec(&[0, 0]) && is_unspec(&[0; 16]));
        assert!(!is_unspec(&[0]) && !is_unspec(&[]) && !is_unspec(&[2, 0]));
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

//! IP addresses of both families in sixteen bytes: IPv4 in its mapped form (RFC 4291 2.5.5.2), which the IPv6 parser
//! refuses from the wire, so the two never meet.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An IPv4 or IPv6 address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Addr([u64; 2]);

const MAPPED: u64 = 0xffff << 32;

impl Addr {
    /// 0.0.0.0.
    pub const UNSPECIFIED_V4: Addr = Addr([0, MAPPED]);
    /// ::.
    pub const UNSPECIFIED_V6: Addr = Addr([0, 0]);

    /// From four bytes.
    pub const fn from_v4(b: [u8; 4]) -> Addr {
        Addr([0, MAPPED | u32::from_be_bytes(b) as u64])
    }
    /// From sixteen bytes.
    pub fn from_v6(b: [u8; 16]) -> Addr {
        let v = u128::from_be_bytes(b);
        Addr([(v >> 64) as u64, v as u64])
    }
    /// The standard library's form.
    pub fn to_ip(self) -> IpAddr {
        match self.is_v4() {
            true => IpAddr::V4(Ipv4Addr::from(self.v4_octets())),
            false => IpAddr::V6(Ipv6Addr::from(self.octets())),
        }
    }
    /// Whether it is IPv4.
    pub const fn is_v4(self) -> bool {
        self.0[0] == 0 && self.0[1] >> 32 == 0xffff
    }
    /// The last four bytes: an IPv4 address's own.
    pub const fn v4_octets(self) -> [u8; 4] {
        (self.0[1] as u32).to_be_bytes()
    }
    /// All sixteen bytes.
    pub const fn octets(self) -> [u8; 16] {
        ((self.0[0] as u128) << 64 | self.0[1] as u128).to_be_bytes()
    }
    /// As two words, high half first.
    pub const fn as_words(self) -> [u64; 2] {
        self.0
    }
    /// From [`Addr::as_words`].
    pub const fn from_words(w: [u64; 2]) -> Addr {
        Addr(w)
    }
    /// 0.0.0.0 or ::.
    pub const fn is_unspecified(self) -> bool {
        self.0[0] == 0 && (self.0[1] == 0 || self.0[1] == MAPPED)
    }
    /// 224.0.0.0/4 or ff00::/8.
    pub const fn is_multicast(self) -> bool {
        if self.is_v4() { (self.0[1] >> 28) & 0xf == 0xe } else { self.0[0] >> 56 == 0xff }
    }
    /// 255.255.255.255.
    pub const fn is_broadcast(self) -> bool {
        self.0[0] == 0 && self.0[1] == MAPPED | 0xffff_ffff
    }
    /// 127.0.0.0/8 or ::1.
    pub const fn is_loopback(self) -> bool {
        if self.is_v4() { (self.0[1] >> 24) & 0xff == 127 } else { self.0[0] == 0 && self.0[1] == 1 }
    }
    /// 169.254.0.0/16 or fe80::/10.
    pub const fn is_link_local(self) -> bool {
        if self.is_v4() { (self.0[1] >> 16) & 0xffff == 0xa9fe } else { self.0[0] >> 54 == 0x3fa }
    }
}

impl From<IpAddr> for Addr {
    fn from(ip: IpAddr) -> Addr {
        match ip {
            IpAddr::V4(a) => Addr::from_v4(a.octets()),
            IpAddr::V6(a) => Addr::from_v6(a.octets()),
        }
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        fmt::Display::fmt(&self.to_ip(), f)
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        fmt::Display::fmt(&self.to_ip(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_standard_library() {
        let all = [
            "0.0.0.0",
            "10.1.2.3",
            "127.0.0.1",
            "224.0.0.5",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "169.254.1.1",
            "::",
            "::1",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "2001:db8::1",
        ];
        for text in all {
            let ip: IpAddr = text.parse().unwrap();
            let a = Addr::from(ip);
            assert_eq!(a.to_ip(), ip);
            assert_eq!(a.to_string(), text);
            assert_eq!(Addr::from_words(a.as_words()), a);
            assert_eq!(a.is_v4(), ip.is_ipv4());
            assert_eq!(a.is_unspecified(), ip.is_unspecified(), "{text}");
            assert_eq!(a.is_multicast(), ip.is_multicast(), "{text}");
            assert_eq!(a.is_loopback(), ip.is_loopback(), "{text}");
            let link_local = match ip {
                IpAddr::V4(v) => v.is_link_local(),
                IpAddr::V6(v) => v.is_unicast_link_local(),
            };
            assert_eq!(a.is_link_local(), link_local, "{text}");
        }
        assert!(Addr::from_v4([255; 4]).is_broadcast());
    }
}

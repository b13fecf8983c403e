//! Hardware addresses.

use core::fmt;
use core::net::Ipv6Addr;
use core::str::FromStr;

/// An Ethernet address.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// All ones.
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);

    /// A group's, broadcast included.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }
    /// All ones.
    pub fn is_broadcast(self) -> bool {
        self == MacAddr::BROADCAST
    }
    /// The group address for an IPv6 multicast address (RFC 2464 7).
    pub fn multicast_v6(to: Ipv6Addr) -> MacAddr {
        let o = to.octets();
        MacAddr([0x33, 0x33, o[12], o[13], o[14], o[15]])
    }
    /// The link-local address with this interface identifier (RFC 4291 appendix A).
    pub fn link_local(self) -> Ipv6Addr {
        let m = self.0;
        Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]])
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Not six hexadecimal bytes with colons between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadMac;

impl fmt::Display for BadMac {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("expected six hexadecimal bytes, like 02:00:00:00:00:01")
    }
}

impl FromStr for MacAddr {
    type Err = BadMac;
    fn from_str(s: &str) -> Result<MacAddr, BadMac> {
        let mut out = [0; 6];
        let mut parts = s.split(':');
        for slot in &mut out {
            let part =
                parts.next().filter(|p| p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit())).ok_or(BadMac)?;
            *slot = u8::from_str_radix(part, 16).map_err(|_| BadMac)?;
        }
        if parts.next().is_some() { Err(BadMac) } else { Ok(MacAddr(out)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trip_and_refusals() {
        let m = MacAddr([2, 0xab, 0, 0xff, 9, 0x10]);
        assert_eq!(m.to_string(), "02:ab:00:ff:09:10");
        assert_eq!(m.to_string().parse(), Ok(m));
        for bad in
            ["", "02:ab:00:ff:09", "02:ab:00:ff:09:10:11", "2:ab:00:ff:09:10", "zz:ab:00:ff:09:10", "+2:ab:00:ff:09:10"]
        {
            assert_eq!(bad.parse::<MacAddr>(), Err(BadMac), "{bad}");
        }
    }
}

//! Ports that the kernel chooses for its own sockets.

use std::fs::read_to_string;

use wire::Ports;

/// Words of `net.ipv4.ip_local_port_range` and `ip_local_reserved_ports`, as far as they can be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Words {
    range: Option<String>,
    reserved: Option<String>,
}

impl Words {
    pub fn read() -> Words {
        let text = |name| read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok();
        Words { range: text("ip_local_port_range"), reserved: text("ip_local_reserved_ports") }
    }

    /// True where they say which ports the kernel chooses.
    pub fn are_known(&self) -> bool {
        self.range.is_some() && self.reserved.is_some()
    }

    #[cfg(test)]
    pub fn of(range: Option<&str>, reserved: Option<&str>) -> Words {
        Words { range: range.map(Into::into), reserved: reserved.map(Into::into) }
    }
}

/// Ports that the kernel itself chooses for its sockets.
pub(super) struct KernelPorts(Ports);

impl KernelPorts {
    pub fn read() -> KernelPorts {
        KernelPorts::of(&Words::read())
    }

    /// Any port may be the kernel's where its range is not known.
    pub fn of(words: &Words) -> KernelPorts {
        let mut numbers = words.range.iter().flat_map(|r| r.split_whitespace()).map_while(|n| n.parse::<u16>().ok());
        let (Some(first), Some(last)) = (numbers.next(), numbers.next()) else {
            return KernelPorts(Ports::new(1, u16::MAX));
        };
        let stretch = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            Some(first.trim().parse::<u16>().ok()?..=last.trim().parse().ok()?)
        };
        let reserved = words.reserved.iter().flat_map(|r| r.split(','));
        let reserved: Ports = reserved.filter_map(stretch).flatten().collect();
        KernelPorts((first..=last).filter(|port| !reserved.has(*port)).collect())
    }

    pub fn chooses(&self, port: u16) -> bool {
        self.0.has(port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(range: &str, reserved: &str) -> KernelPorts {
        KernelPorts::of(&Words::of(Some(range), Some(reserved)))
    }

    #[test]
    fn what_the_kernel_never_chooses_is_free() {
        let usual = kernel("32768\t60999\n", "8080,40000-49151\n");
        for (first, last, chosen) in [
            (1024, 32_767, false),
            (32_768, 39_999, true),
            (40_000, 49_151, false),
            (49_152, 60_999, true),
            (61_000, 65_535, false),
        ] {
            assert!((first..=last).all(|port| usual.chooses(port) == chosen), "{first} to {last}");
        }
        let reserved = kernel("32768 60999", "1-65535");
        assert!((1..=65_535).all(|port| !reserved.chooses(port)));
        let one = kernel("40000 40000", "");
        assert!((0..=65_535).filter(|port| one.chooses(*port)).eq([40_000]));
    }

    /// The kernel's range is not guessed.
    #[test]
    fn any_port_may_be_the_kernels_where_its_range_is_not_known() {
        for range in [None, Some(""), Some("32768"), Some("x y"), Some("1 70000")] {
            let unknown = KernelPorts::of(&Words::of(range, Some("9000-9999")));
            assert!((1..=65_535).all(|port| unknown.chooses(port)), "{range:?}");
        }
    }
}

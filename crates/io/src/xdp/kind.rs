//! Kinds of interfaces: who hands them frames, and which cannot be taken.

use crate::error::PortError;
use crate::netlink::Link;
use crate::rss;

/// Kinds to which frames come from a wire or out of a packet, with what tags they have in them; hardware has no kind.
const OF_A_WIRE: [&str; 9] = ["", "veth", "tun", "vlan", "vxlan", "geneve", "gretap", "ip6gretap", "dummy"];

/// True where frames come to an interface by way of others: to a bond or bridge from those that belong to it, to a macvlan from the one
/// that it is on. There the kernel takes a tag out of the frame and leaves it beside it before it hands the frame on, whatever
/// rx-vlan-offload says, and in generic mode no program sees what is beside a frame.
pub(super) fn is_handed_frames(link: &Link, all: &[Link]) -> bool {
    !OF_A_WIRE.contains(&link.kind.as_str()) || all.iter().any(|l| l.master == link.index)
}

pub(super) fn queues_of(link: &Link) -> u16 {
    let path = format!("/sys/class/net/{}/queues", link.name);
    let n = std::fs::read_dir(path)
        .map_or(0, |dir| dir.flatten().filter(|e| e.file_name().to_string_lossy().starts_with("rx-")).count());
    // Outside the namespace that /sys shows, the kernel's count has to do.
    if n > 0 { n as u16 } else { link.rx_queues.max(1) as u16 }
}

/// Driver of an interface by ethtool's word, whatever /sys shows.
pub(super) fn driver_of(name: &str) -> Option<String> {
    const GDRVINFO: u32 = 0x3;
    // struct ethtool_drvinfo: cmd, and first of all names the driver's, of 32 bytes.
    let mut words = [0; 49];
    words[0] = GDRVINFO;
    rss::ethtool(&rss::socket().ok()?, name, &mut words).ok()?;
    let driver: Vec<u8> = words[1..9].iter().flat_map(|word| word.to_ne_bytes()).take_while(|b| *b != 0).collect();
    String::from_utf8(driver).ok().filter(|driver| !driver.is_empty())
}

/// Refuses interfaces on which nothing would ever come in, with the one to name instead.
pub(super) fn check_kind(link: &Link, all: &[Link]) -> Result<(), PortError> {
    let name = &link.name;
    if link.loopback {
        return Err(PortError::Invalid(format!(
            "no other machine's frames come by {name}, and no lane takes this machine's own: name the interface that \
             others reach; for programs on this machine use the kernel's TCP (corelane serve --kernel)"
        )));
    }
    let Some(master) = all.iter().find(|l| l.index == link.master) else { return Ok(()) };
    let part = match master.kind.as_str() {
        "bond" => "a slave of the bond",
        "team" => "a port of the team",
        "bridge" => "a port of the bridge",
        "openvswitch" => "a port of the Open vSwitch",
        // One in a VRF has its own addresses.
        _ => return Ok(()),
    };
    Err(PortError::Invalid(format!("{name} is {part} {0}, which has the addresses: use xdp:{0}", master.name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdp::veth::{NAME, beside_a_veth};

    #[test]
    fn a_driver_is_known_in_a_namespace_that_sys_does_not_show() {
        beside_a_veth(1, || {
            assert_eq!(driver_of(NAME).as_deref(), Some("veth"));
            assert_eq!(driver_of("lo"), None);
            assert_eq!(driver_of("none"), None);
        });
    }
}

//! Merging of segments (GRO, LRO) by the interfaces that another has its frames from, kept off while that is served. Before Linux 6.6
//! AF_XDP takes no packets of several buffers, and in generic mode the program is given what has been merged.

use std::io;

use super::features::Off;
use crate::netlink::Link;

/// The kernel's names of what merges, and those of ethtool(8).
const MERGING: [&str; 3] = ["rx-gro", "rx-lro", "rx-gro-hw"];
const WORDS: [&str; 3] = ["gro", "lro", "rx-gro-hw"];

/// Interfaces that do not merge as long as this lives.
#[derive(Debug)]
pub(super) struct Unmerged {
    /// Name of the interface that is served.
    of: String,
    kept: Vec<(String, Off)>,
    /// Interfaces whose features cannot be turned off, and why.
    refused: Vec<(String, io::Error)>,
    /// Interfaces whose lower one is in another network namespace.
    elsewhere: Vec<String>,
    /// Interfaces by which this machine's own programs send, too.
    uncut: Vec<String>,
}

/// `link` and the interfaces by which its frames come: members of a bond or bridge, and the one below a VLAN or macvlan.
fn by_which_frames_come<'a>(link: &'a Link, all: &'a [Link]) -> Vec<&'a Link> {
    let mut found = vec![link];
    let mut at = 0;
    while let Some(upper) = found.get(at).copied() {
        at += 1;
        for lower in all {
            let below = lower.master == upper.index || upper.kind != "veth" && upper.lower == Some(lower.index);
            if below && found.iter().all(|known| known.index != lower.index) {
                found.push(lower);
            }
        }
    }
    found
}

impl Unmerged {
    /// Turns merging off for `link`, and for all by which its frames come.
    pub fn keep(link: &Link, all: &[Link]) -> Unmerged {
        let (mut kept, mut refused) = (Vec::new(), Vec::new());
        let links = by_which_frames_come(link, all);
        for link in &links {
            match Off::keep(link.index, &MERGING) {
                // Hundreds of members of a bridge may merge nothing.
                Ok(off) if off.off().is_empty() && off.on().is_empty() => {}
                Ok(off) => kept.push((link.name.clone(), off)),
                Err(error) => refused.push((link.name.clone(), error)),
            }
        }
        let named = |which: &dyn Fn(&Link) -> bool| {
            links.iter().filter(|link| which(link)).map(|link| link.name.clone()).collect::<Vec<_>>()
        };
        let elsewhere = named(&|link| link.kind != "veth" && link.lower_is_elsewhere);
        let uncut = named(&|link| matches!(link.kind.as_str(), "veth" | "tun" | "macvlan"));
        Unmerged { of: link.name.clone(), kept, refused, elsewhere, uncut }
    }

    /// Notes on what is off, and on what is lost all the same.
    pub fn notes(&self) -> Vec<String> {
        let Unmerged { of, .. } = self;
        let why = "AF_XDP takes packets of several buffers from Linux 6.6 on";
        let mut notes = Vec::new();
        let of_each = |names: &dyn Fn(&Off) -> Vec<&'static str>| {
            let each = self.kept.iter().map(|(name, off)| (name, names(off))).filter(|(_, names)| !names.is_empty());
            each.map(|(name, features)| format!("{name} ({})", features.join(", "))).collect::<Vec<_>>().join(", ")
        };
        let off = of_each(&|off| words(off.off()));
        if !off.is_empty() {
            notes.push(format!(
                "merging of segments is off while {of} is served, since {why}: on {off}; it costs more for each segment"
            ));
        }
        notes.extend(self.kept.iter().filter_map(|(name, off)| unrecorded(name, off)));
        let mut lost = Vec::new();
        let on = of_each(&|off| words(off.on()));
        if !on.is_empty() {
            lost.push(format!("what {on} merges, which cannot be turned off"));
        }
        for (name, error) in &self.refused {
            lost.push(format!("what {name} merges ({error}): `ethtool -K {name} gro off lro off`"));
        }
        for name in &self.elsewhere {
            lost.push(format!(
                "what the interface below {name} merges, in another network namespace: `ethtool -K IFACE gro off lro off` there"
            ));
        }
        if !self.uncut.is_empty() {
            let names = self.uncut.join(", ");
            lost.push(format!(
                "what programs of this machine send by {names} in bursts: `ethtool -K IFACE tso off` on their own interface"
            ));
        }
        notes.extend(
            lost.into_iter()
                .map(|what| format!("{of} loses frames that are longer than a buffer, since {why}: {what}")),
        );
        notes
    }
}

/// Note on features that stay off after a kill.
pub(super) fn unrecorded(name: &str, off: &Off) -> Option<String> {
    let error = off.unrecorded()?;
    let features = off.off().join(" off, ");
    Some(format!(
        "{name}: nothing can be written down in /run/corelane ({error}), so after a kill it stays so: {features} off"
    ))
}

fn words(names: &[String]) -> Vec<&'static str> {
    let word = |name: &String| MERGING.iter().position(|known| known == name).map(|at| WORDS[at]);
    names.iter().filter_map(word).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::netlink::Netlink;
    use crate::xdp::veth::{NAME, beside_a_veth};

    #[test]
    fn frames_come_by_members_and_by_what_is_below() {
        let link = |index, kind: &str, master, lower| Link {
            index,
            kind: kind.into(),
            name: format!("{kind}{index}"),
            master,
            lower,
            ..Link::default()
        };
        let all = [
            link(1, "", 3, None),
            link(2, "veth", 4, Some(9)),
            link(3, "bond", 4, None),
            link(4, "bridge", 0, None),
            link(5, "vlan", 0, Some(4)),
            link(6, "macvlan", 0, Some(5)),
            link(9, "veth", 0, Some(2)),
            link(10, "", 0, None),
        ];
        let below = |at: usize| by_which_frames_come(&all[at], &all).iter().map(|link| link.index).collect::<Vec<_>>();
        assert_eq!(below(5), [6, 5, 4, 2, 3, 1]);
        assert_eq!(below(3), [4, 2, 3, 1]);
        assert_eq!(below(6), [9], "a veth's other end is no part of it");
        assert_eq!(below(7), [10]);
    }

    #[test]
    fn nothing_merges_below_a_bridge_that_is_served() {
        beside_a_veth(1, || {
            let sh = |command: &str| assert!(Command::new("sh").args(["-c", command]).status().unwrap().success());
            sh(&format!("ip link add br7 type bridge && ip link set {NAME} master br7 && ethtool -K {NAME} gro on"));
            let gro = |name: &str| {
                let out = Command::new("ethtool").args(["-k", name]).output().unwrap();
                String::from_utf8_lossy(&out.stdout).contains("generic-receive-offload: on")
            };
            let all = Netlink::open().unwrap().links().unwrap();
            let bridge = all.iter().find(|link| link.name == "br7").unwrap();
            assert!(gro("br7") && gro(NAME));
            let unmerged = Unmerged::keep(bridge, &all);
            assert!(!gro("br7") && !gro(NAME));
            let [off, lost] = &unmerged.notes()[..] else { panic!("{:?}", unmerged.notes()) };
            assert!(off.contains(&format!("on br7 (gro), {NAME} (gro);")), "{off}");
            assert!(lost.contains(&format!("programs of this machine send by {NAME} in bursts")), "{lost}");
            drop(unmerged);
            assert!(gro("br7") && gro(NAME));
        });
    }

    #[test]
    fn what_is_in_another_namespace_is_named() {
        beside_a_veth(1, || {
            let mut link = Netlink::open().unwrap().link(NAME).unwrap().unwrap();
            (link.kind, link.lower_is_elsewhere) = ("macvlan".into(), true);
            let notes = Unmerged::keep(&link, &[]).notes();
            assert!(
                notes.iter().any(|note| note.contains(&format!("below {NAME} merges, in another network namespace"))),
                "{notes:?}"
            );
        });
    }
}

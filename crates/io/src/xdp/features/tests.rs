use std::process::Command;

use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::*;
use crate::netlink::Netlink;
use crate::xdp::veth::{NAME, beside_a_veth};

/// On by default on a veth.
const STRIPS: &[&str] = &["rx-vlan-hw-parse", "rx-vlan-stag-hw-parse", "no-such-feature"];

fn interface(name: &str) -> Interface {
    let index = Netlink::open().unwrap().link(name).unwrap().unwrap().index;
    Interface { socket: rss::socket().unwrap(), index }
}

fn is_on(interface: &Interface) -> bool {
    interface.features().unwrap().is_on(STRIPS[0])
}

fn has_record(interface: &Interface) -> bool {
    Record::take(interface, false).unwrap().is_some()
}

/// Leaves features off as a killed process does: they are written down, and nobody has the record.
fn leave_off(interface: &Interface) {
    let mut record = Record::take(interface, true).unwrap().unwrap();
    record.add(&STRIPS[..2].iter().map(|name| name.to_string()).collect::<Vec<_>>()).unwrap();
    let table = interface.features().unwrap();
    STRIPS[..2].iter().for_each(|name| interface.set(&table, name, false).unwrap());
}

#[test]
fn features_are_on_again_after_the_last_who_needed_them_off() {
    beside_a_veth(1, || {
        let veth = interface(NAME);
        assert!(is_on(&veth) && !has_record(&veth));
        let first = Off::keep(veth.index, STRIPS).unwrap();
        assert_eq!(
            (first.off(), first.on()),
            (&STRIPS[..2].iter().map(|s| s.to_string()).collect::<Vec<_>>()[..], &[][..])
        );
        let second = Off::keep(veth.index, STRIPS).unwrap();
        assert_eq!(second.off(), first.off(), "one needs them off whoever has turned them off");
        // Leaves other features alone.
        let mut third = Off::keep(veth.index, &["rx-gro"]).unwrap();
        drop(first);
        assert_eq!(undo_left(), []);
        assert!(!is_on(&veth));
        // Somebody turns it on by hand.
        let table = veth.features().unwrap();
        veth.set(&table, STRIPS[0], true).unwrap();
        third.keep_again().unwrap();
        assert!(is_on(&veth));
        let mut second = second;
        second.keep_again().unwrap();
        assert!(!is_on(&veth));
        drop(third);
        assert!(!is_on(&veth) && has_record(&veth));
        drop(second);
        assert!(is_on(&veth) && !has_record(&veth));
    });
}

#[test]
fn a_killed_process_is_undone_by_the_next() {
    beside_a_veth(1, || {
        let veth = interface(NAME);
        leave_off(&veth);
        let features = STRIPS[..2].iter().map(|name| name.to_string()).collect();
        assert_eq!(undo_left(), [LeftOff { interface: NAME.into(), features }]);
        assert!(is_on(&veth) && !has_record(&veth));
        leave_off(&veth);
        let next = Off::keep(veth.index, STRIPS).unwrap();
        assert_eq!(next.off(), &STRIPS[..2]);
        assert_eq!(undo_left(), []);
        assert!(!is_on(&veth), "somebody needs it off");
        // Under another name by now.
        let rename = format!("ip link set {NAME} down && ip link set {NAME} name other");
        assert!(Command::new("sh").args(["-c", &rename]).status().unwrap().success());
        drop(next);
        assert!(is_on(&veth) && !has_record(&veth));
        // A record of an interface that is gone goes, too.
        leave_off(&veth);
        assert!(Command::new("ip").args(["link", "del", "other"]).status().unwrap().success());
        assert_eq!(undo_left(), []);
        assert!(!has_record(&veth));
    });
}

#[test]
fn an_interface_without_the_features_needs_no_record() {
    beside_a_veth(1, || {
        let lo = interface("lo");
        let off = Off::keep(lo.index, STRIPS).unwrap();
        assert!(off.off().is_empty() && off.on().is_empty() && !has_record(&lo));
        assert!(Off::keep(9999, STRIPS).is_err());
        // `loopback` never changes there.
        let both = Off::keep(lo.index, &["rx-gro", "loopback"]).unwrap();
        assert_eq!((both.on(), both.off()), (&["loopback".to_owned()][..], &["rx-gro".to_owned()][..]));
    });
}

#[test]
fn where_nothing_can_be_written_down_it_is_told_and_undone_all_the_same() {
    let full = "size=4k none /run/corelane && head -c 4096 /dev/zero >/run/corelane/full";
    for (mount, error) in [("ro none /run/corelane", libc::EROFS), (full, libc::ENOSPC)] {
        beside_a_veth(1, || {
            // SAFETY: this thread's descriptors stay; it has its own view of the mounts from here on, and ends.
            unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
            let mount =
                format!("mount --make-rprivate / && mkdir -p /run/corelane && mount -t tmpfs -o mode=700,{mount}");
            assert!(Command::new("sh").args(["-c", &mount]).status().unwrap().success());
            let veth = interface(NAME);
            let off = Off::keep(veth.index, STRIPS).unwrap();
            assert!(!is_on(&veth) && off.off().len() == 2);
            assert_eq!(off.unrecorded().unwrap().raw_os_error(), Some(error));
            drop(off);
            assert!(is_on(&veth));
        });
    }
}

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::*;
use crate::xdp::veth::{NAME, beside_a_veth};

/// More than are opened at once.
const QUEUES: u16 = 40;
const RINGS: Rings = Rings { receive: 64, send: 64 };

fn link() -> Link {
    Netlink::open().unwrap().link(NAME).unwrap().unwrap()
}

fn config() -> XdpConfig {
    XdpConfig { receive_ring: 64, send_ring: 64, ..XdpConfig::default() }
}

/// Another program's socket on a queue.
fn take(link: &Link, queue: u16) -> Queue {
    let umem = Umem::new(frame_size(link.mtu, None), RINGS).unwrap();
    Queue::open(At { ifindex: link.index, queue, mtu: link.mtu, sg: false }, umem, RINGS, &config(), &Opening::begin())
        .unwrap()
}

/// From here on this thread has no other capabilities.
fn keep(capabilities: CapabilitySet) {
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: capabilities, permitted: capabilities, inheritable }).unwrap();
}

/// Memory can be locked for a few queues, of which the first is in use.
#[test]
fn a_missing_capability_is_told_before_queues_that_are_in_use() {
    beside_a_veth(QUEUES, || {
        let link = link();
        let _other = take(&link, 0);
        let limit = getrlimit(Resource::Memlock);
        let few = 4 * (RINGS.receive + RINGS.send) as u64 * frame_size(link.mtu, None) as u64;
        setrlimit(Resource::Memlock, Rlimit { current: Some(few), ..limit }).unwrap();
        let without = || {
            keep(CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::BPF);
            XdpDevice::attach(NAME, &config()).map(drop)
        };
        let failed = std::thread::scope(|s| s.spawn(without).join());
        setrlimit(Resource::Memlock, limit).unwrap();
        assert!(matches!(failed, Ok(Err(PortError::LockedMemory { .. }))), "{failed:?}");
    });
}

#[test]
fn a_failure_ends_the_rest() {
    beside_a_veth(QUEUES, || {
        let link = link();
        let maps = Maps::new(QUEUES.into()).unwrap();
        let mut by_lane = vec![Vec::new()];
        let fails = || Err::<(), _>(PortError::Down(NAME.into()));
        let failed = open_queues(0..QUEUES, (&link, false), &config(), &maps, &mut by_lane, fails);
        assert!(matches!(failed, Err(PortError::Down(_))), "{failed:?}");
        // What waiting would not mend is told of the one queue, whatever is in use.
        let other = take(&link, 0);
        let no_such = QUEUES..QUEUES + 1;
        let failed = open_queues(0..no_such.end, (&link, false), &config(), &maps, &mut by_lane, || Ok(()));
        assert!(matches!(&failed, Err(PortError::System { what, .. }) if what.contains("queue 40")), "{failed:?}");
        assert!(by_lane[0].is_empty());
        // And nothing is left open.
        drop(other);
        drop(XdpDevice::attach(NAME, &config()).unwrap());
    });
}

#[test]
fn queues_that_are_in_use_are_told_and_those_that_come_free_are_waited_for() {
    beside_a_veth(QUEUES, || {
        let link = link();
        let others: Vec<Queue> = (0..QUEUES).map(|queue| take(&link, queue)).collect();
        let failed = XdpDevice::attach(NAME, &config()).map(drop);
        assert!(matches!(failed, Err(PortError::Busy { .. })), "{failed:?}");
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(Duration::from_millis(200));
                sys::at_once(others.into_iter().map(|queue| Box::new(|| drop(queue)) as Job).collect());
            });
            let (device, _ports) = XdpDevice::attach(NAME, &config()).unwrap();
            assert_eq!(device.queues(), QUEUES);
        });
    });
}

/// Queues that are opened together wait together: not from when it is their turn, and not when it is known that it was for nothing.
#[test]
fn all_queues_wait_once() {
    let opening = Opening::begin();
    assert!(opening.may_wait() && !opening.has_failed());
    while opening.may_wait() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let opening = Opening::begin();
    opening.fail();
    assert!(!opening.may_wait() && opening.has_failed());
}

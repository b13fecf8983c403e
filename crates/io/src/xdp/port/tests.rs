use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::xdp::veth::{NAME, beside_a_veth};
use crate::xdp::{XdpConfig, XdpDevice};

const SLOTS: u32 = 64;

/// Takes the interface down, or up again. One that is down takes nothing, and leaves what is in the ring there.
fn set(state: &str) {
    assert!(Command::new("ip").args(["link", "set", NAME, state]).status().unwrap().success());
}

/// What a lane does at the end of a turn, and before it sleeps; whether it may.
fn send(port: &mut XdpPort, frames: usize) -> bool {
    for _ in 0..frames {
        port.reserve(60).unwrap()[..60].fill(0xff);
        port.commit(60, TxOffload::default());
    }
    // Of an interface that is down it says so.
    let _ = port.flush();
    port.prepare_sleep()
}

/// Polls the port as a sleeping lane does, but without waiting; `true` where that lane would be woken.
fn wakes(port: &XdpPort) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(port.wake_fd(), PollFlags::IN)], Some(&now)).unwrap() > 0
}

/// With one queue its socket is waited for, with two an epoll descriptor.
#[test]
fn a_port_sleeps_while_the_kernel_takes_nothing() {
    for queues in [1, 2] {
        beside_a_veth(queues, || {
            let config = XdpConfig { receive_ring: SLOTS, send_ring: SLOTS, offload: false, ..XdpConfig::default() };
            let (_device, mut ports) = XdpDevice::attach(NAME, &config).unwrap();
            let mut port = ports.remove(0);
            assert_eq!((port.queues.len(), port.epoll.is_some()), (queues as usize, queues > 1));
            assert!(send(&mut port, 3));
            assert_eq!((port.due_us(), wakes(&port)), (None, false));

            set("down");
            // Half of the ring and more, then all of it.
            assert!(send(&mut port, SLOTS as usize / 2 + 1));
            assert_eq!((port.due_us(), wakes(&port)), (Some(AGAIN_US), false));
            assert!(send(&mut port, SLOTS as usize / 2 - 1));
            assert!(port.room() == 0 && !wakes(&port));
            std::thread::sleep(std::time::Duration::from_micros(LATEST_US));
            assert!(send(&mut port, 0));
            // No more often than it makes sense, however long it lasts.
            assert_eq!((port.due_us(), wakes(&port)), (Some(LATEST_US), false));

            set("up");
            // Room that nobody asks for wakes nobody.
            assert!(send(&mut port, 0));
            assert_eq!((port.due_us(), wakes(&port)), (None, false));
            assert_eq!(port.counters().tx_dropped, 0);
        });
    }
}

/// A large frame that met a full queue; room for another frame; a driver that goes on by itself; how long nothing was taken; and then.
#[test]
fn the_kernel_is_asked_again_as_late_as_it_makes_sense() {
    const LONG: u64 = 60_000_000;
    for (turned_away, no_room, waits_for_call, lasted_us, again_us) in [
        // As long again as it has lasted, within bounds.
        (false, true, true, 0, AGAIN_US),
        (false, true, true, 99, AGAIN_US),
        (false, true, true, 5_000, 5_000),
        (false, true, true, LONG, LATEST_US),
        // There is room, but the kernel goes on only when it is called: where it copies, or its driver stands still.
        (false, false, true, 0, AGAIN_US),
        (false, false, true, 5_000, 5_000),
        (false, false, true, LONG, LATEST_US),
        // A driver without copies that goes on by itself: nothing is there to ask for, but room is where there is none.
        (false, false, false, 0, LATEST_US),
        (false, false, false, LONG, LATEST_US),
        (false, true, false, 0, AGAIN_US),
        (false, true, false, 5_000, 5_000),
        (false, true, false, LONG, LATEST_US),
        // Each try counts, and there are not many.
        (true, true, true, LONG, AGAIN_US),
        (true, true, false, LONG, AGAIN_US),
    ] {
        let left = Left { turned_away, no_room, waits_for_call };
        assert_eq!(left.again_us(lasted_us), again_us, "{left:?} for {lasted_us} µs");
    }
}

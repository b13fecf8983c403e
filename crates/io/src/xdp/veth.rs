//! A veth for tests that take an interface.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

pub const NAME: &str = "clveth";
pub const PEER: &str = "clveth-peer";

/// Runs `f` on a thread whose network is a new namespace with a veth of so many queues, both ends up.
pub fn beside_a_veth(queues: u16, f: impl FnOnce() + Send) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let sh = |command: &str| Command::new("sh").args(["-c", command]).status().is_ok_and(|s| s.success());
    let ns = format!("clveth-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    if !rustix::process::geteuid().is_root() || !sh(&format!("ip netns add {ns}")) {
        return testing::skip("needs root and iproute2");
    }
    let made = sh(&format!(
        "ip -n {ns} link add {NAME} numrxqueues {queues} numtxqueues {queues} type veth \
         peer name {PEER} numrxqueues {queues} numtxqueues {queues} && \
         ip -n {ns} link set {NAME} up && ip -n {ns} link set {PEER} up"
    ));
    let space = File::open(format!("/run/netns/{ns}"));
    // The open file keeps it.
    sh(&format!("ip netns del {ns}"));
    assert!(made, "a veth");
    let run = || {
        move_into_link_name_space(space.unwrap().as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        f();
    };
    if let Err(cause) = std::thread::scope(|s| s.spawn(run).join()) {
        std::panic::resume_unwind(cause);
    }
}

//! Connects where no local port is left: the call itself says so, however late the lane's thread comes to it.

use std::sync::atomic::{AtomicBool, Ordering};

use protocol::Endpoint;
use runtime::{Config, Engine, Model};
use rustix::process::{Pid, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use socket::Errno;
use wire::Addr;

const CONNECTS: usize = 100;

/// This process's thread of that name, which it takes as its first step.
fn thread(name: &str) -> Pid {
    loop {
        for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
            if std::fs::read_to_string(task.path().join("comm")).is_ok_and(|n| n.trim() == name) {
                let id = task.file_name().to_str().and_then(|n| n.parse().ok());
                return id.and_then(Pid::from_raw).unwrap();
            }
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_connect_without_a_port_waits_for_a_lane_that_others_keep_from_its_core() {
    let config =
        Config { model: Model::Paired, local_ports: Some((50_000, 50_003)), ..Config::memory("10.0.0.1/24").unwrap() };
    let (mut engine, _silent) = Engine::memory_end(&config).unwrap();
    let mut app = engine.take_app(0).unwrap().into_app();
    let allowed = sched_getaffinity(None).unwrap();
    let mut core = CpuSet::new();
    core.set((0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap());
    let lane = thread("lane-0");
    sched_setaffinity(Some(lane), &core).unwrap();
    // A thread that mostly sleeps would be let through at once.
    setpriority_process(Some(lane), 5).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        // Three others take their turns before it.
        for _ in 0..3 {
            s.spawn(|| {
                sched_setaffinity(None, &core).unwrap();
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let remote = Endpoint { addr: Addr::from_v4([10, 0, 0, 2]), port: 80 };
        let mut answers = Vec::new();
        for _ in 0..4 + CONNECTS {
            let socket = app.sockets.socket(false).unwrap();
            answers.push(app.begin_connect(socket, remote));
        }
        over.store(true, Ordering::Relaxed);
        let (begun, refused) = answers.split_at(4);
        assert_eq!(begun, [Err(Errno::EINPROGRESS); 4]);
        assert_eq!(refused, [Err(Errno::EADDRNOTAVAIL); CONNECTS]);
    });
}

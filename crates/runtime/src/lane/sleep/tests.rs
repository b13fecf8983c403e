//! Sleeps of a lane whose port takes nothing to send. Those over AF_XDP need root and iproute2, and are skipped without.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use io::packet::{self, PacketPort};
use rustix::thread::{
    CpuSet, LinkNameSpaceType, Pid, gettid, move_into_link_name_space, sched_getaffinity, sched_setaffinity,
};
use wire::burst::{TxOffload, TxSink};
use wire::tcp::{Flags, Header, Options};
use wire::{Addr, MacAddr, SeqNum, arp, ethernet, ipv4};

use super::*;
use crate::lane::{BURST, HOLD_US};
use crate::{App, Clock, Config, Engine, Model, PortConfig};

const OURS: [u8; 4] = [10, 98, 0, 1];
const THEIRS: [u8; 4] = [10, 98, 0, 2];
const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
/// Nobody waits for so long where nothing is wrong.
const LONG_US: u64 = 10_000_000;

fn inline(device: &str) -> Config {
    let ports = vec![PortConfig::new(device.parse().unwrap())];
    Config { model: Model::Inline, ports, ..Config::default() }
}

/// The lane of an application that runs it.
fn lane_of(app: &mut App) -> &mut Lane {
    let waiter: &mut dyn std::any::Any = app.waiter();
    waiter.downcast_mut::<crate::waits::Inline>().unwrap().lane()
}

fn send(port: &mut impl Port, frame: &[u8]) {
    port.reserve(frame.len()).unwrap()[..frame.len()].copy_from_slice(frame);
    port.commit(frame.len(), TxOffload::default());
}

/// Who has our address?
fn question() -> Vec<u8> {
    let mut b = vec![0; 60];
    ethernet::emit(&mut b, MacAddr([0xff; 6]), PEER, None, ethernet::ARP);
    let packet = arp::Packet {
        op: arp::Op::Request,
        sender_mac: PEER,
        sender_ip: THEIRS,
        target_mac: MacAddr([0; 6]),
        target_ip: OURS,
    };
    packet.emit(&mut b[14..]);
    b
}

fn syn(to: MacAddr, port: u16) -> Vec<u8> {
    let mut b = vec![0; 60];
    ethernet::emit(&mut b, to, PEER, None, ethernet::IPV4);
    let (src, dst) = (Addr::from_v4(THEIRS), Addr::from_v4(OURS));
    ipv4::Header { src, dst, ..ipv4::Header::default() }.emit(&mut b[14..], 20);
    let (seq, ack, options) = (SeqNum(7), SeqNum(0), Options::default());
    let header = Header { src_port: 9, dst_port: port, seq, ack, flags: Flags::SYN, window: 9, urgent: 0, options };
    header.emit(&mut b[34..], true);
    b
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(std::time::Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether whoever waits without the turn wakes up within this time.
fn wakes(watch: &OwnedFd, within_us: u64) -> bool {
    let within = Timespec { tv_sec: (within_us / 1_000_000) as i64, tv_nsec: (within_us % 1_000_000 * 1000) as i64 };
    poll(&mut [PollFd::new(watch, PollFlags::IN)], Some(&within)).unwrap() > 0
}

#[test]
fn a_lane_sleeps_beside_frames_that_it_cannot_answer() {
    let us = Arc::new(AtomicU64::new(LONG_US));
    let mut config = Config { clock: Clock::Told(us.clone()), ..inline("mem:a") };
    config.ports[0].addresses = vec!["10.98.0.1/24".parse().unwrap()];
    let (mut engine, mut peers) = Engine::memory_end(&config).unwrap();
    let mut app = engine.take_app(0).unwrap().into_app();
    let (lane, peer) = (lane_of(&mut app), &mut peers[0]);
    let mut ask = |frames: usize| {
        (0..frames).for_each(|_| send(peer, &question()));
        peer.flush().unwrap();
    };
    // Nobody takes the answers.
    let full = (0..10_000).any(|_| {
        ask(if lane.held[0].is_none() { BURST } else { 0 });
        lane.turn().is_idle()
    });
    assert!(full && lane.held[0].is_some());

    us.fetch_add(HOLD_US, Ordering::Relaxed);
    assert_eq!(lane.turn().rx, BURST);
    assert!(lane.turn().is_idle() && lane.held[0].is_some());
    // Nothing is there that could be left.
    assert_eq!((lane.prepare(None), lane.unread), (Some(Some(FULL_US)), 0));
    lane.awake();
    ask(2 * BURST);
    us.fetch_add(HOLD_US - 10, Ordering::Relaxed);
    assert!(lane.turn().is_idle());
    assert_eq!((lane.prepare(None), lane.poll(None, Some(0))), (Some(Some(10)), Ok(None)));
    lane.awake();
    us.fetch_add(10, Ordering::Relaxed);
    assert_eq!(lane.prepare(None), None);
    lane.awake();
    assert_eq!(lane.turn().rx, BURST);
    // The rest is left anew.
    assert!(lane.turn().is_idle());
    assert_eq!((lane.prepare(None), lane.unread), (Some(Some(FULL_US)), 1));
    lane.awake();
}

#[test]
fn a_lane_sleeps_beside_frames_that_were_handed_over_to_be_left() {
    let us = Arc::new(AtomicU64::new(LONG_US));
    let config = Config { lanes: 2, clock: Clock::Told(us.clone()), ..inline("mem:a") };
    let (mut engine, mut peers) = Engine::memory_end(&config).unwrap();
    let mut apps = [0, 1].map(|lane| engine.take_app(lane).unwrap().into_app());
    let [giver, taker] = apps.each_mut().map(lane_of);
    ready(taker);
    taker.awake();
    // It is for all lanes.
    send(&mut peers[0], &question());
    peers[0].flush().unwrap();
    assert_eq!(giver.turn().rx, 1);
    assert_eq!(taker.prepare(None), None);
    taker.awake();
    taker.held_handed = Some(taker.clock.now());
    us.fetch_add(HOLD_US - 10, Ordering::Relaxed);
    assert_eq!(taker.prepare(None), Some(Some(10)));
    taker.awake();
    us.fetch_add(10, Ordering::Relaxed);
    assert_eq!(taker.prepare(None), None);
    taker.awake();
    assert_eq!(taker.turn().rx, 1);
}

/// Runs `f` in a network namespace of its own with a lane on one end of a veth, both ends up.
fn on_a_veth(name: &str, f: impl FnOnce(&mut App, &dyn Fn(&str)) + Send) {
    let sh = |command: &str| Command::new("sh").args(["-c", command]).status().is_ok_and(|s| s.success());
    let ns = format!("cll-{name}-{}", std::process::id());
    if !rustix::process::geteuid().is_root() || !sh(&format!("ip netns add {ns}")) {
        return testing::skip("needs root and iproute2");
    }
    let made = sh(&format!(
        "ip -n {ns} link add va numrxqueues 1 numtxqueues 1 type veth peer name vb numrxqueues 1 numtxqueues 1 && \
         ip -n {ns} link set va up && ip -n {ns} link set vb up && ip -n {ns} addr add 10.98.0.1/24 dev va"
    ));
    let space = File::open(format!("/run/netns/{ns}"));
    // The open file keeps it.
    sh(&format!("ip netns del {ns}"));
    assert!(made, "a veth");
    let run = || {
        move_into_link_name_space(space.unwrap().as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        let mut engine = Engine::start(&inline("xdp:va")).unwrap();
        let mut app = engine.take_app(0).unwrap().into_app();
        // What the control plane has to say is to wake nobody here.
        lane_of(&mut app).bell = Arc::new(Bell::new().unwrap());
        f(&mut app, &|command| assert!(sh(command), "{command}"));
    };
    if let Err(cause) = std::thread::scope(|s| s.spawn(run).join()) {
        std::panic::resume_unwind(cause);
    }
}

/// Turns until nothing is left to do, and has the lane ready to sleep; for how long.
fn ready(lane: &mut Lane) -> Option<u64> {
    let mut wait = None;
    until("the lane has nothing to do", || {
        lane.awake();
        wait = if lane.turn().is_idle() { lane.prepare(None) } else { None };
        wait.is_some()
    });
    wait.unwrap()
}

/// A link that is down takes nothing. Fills the ring.
fn fill_while_down(lane: &mut Lane, sh: &dyn Fn(&str)) {
    sh("ip link set va down");
    until("the lane hears that its link is down", || {
        lane.turn();
        lane.link_down == 1
    });
    while let Some(room) = lane.ports[0].reserve(60) {
        room[..60].fill(0xff);
        lane.ports[0].commit(60, TxOffload::default());
    }
}

#[test]
fn room_to_send_wakes_nobody() {
    on_a_veth("room", |app, sh| {
        let lane = lane_of(app);
        let watch = lane.watch().unwrap();
        fill_while_down(lane, sh);
        // However often it is asked, a link that is down takes nothing.
        assert_eq!(ready(lane), Some(DOWN_US));
        assert_eq!((lane.poll(None, Some(0)), wakes(&watch, 0)), (Ok(None), false));
        sh("ip link set va up");
        until("the lane hears that its link is up", || {
            lane.turn();
            lane.link_down == 0
        });
        assert_eq!(ready(lane), None);
        assert_eq!((lane.poll(None, Some(0)), wakes(&watch, 0)), (Ok(None), false));
        lane.awake();
    });
}

/// Threads of the kernel that receive for an interface.
fn napi_threads(interface: &str) -> Vec<Pid> {
    let prefix = format!("napi/{interface}-");
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|e| e.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let named = pids
        .filter(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with(&prefix)));
    named.filter_map(Pid::from_raw).collect()
}

/// Moves threads to one core.
fn to_core(threads: &[Pid], core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    threads.iter().for_each(|thread| sched_setaffinity(Some(*thread), &set).unwrap());
}

/// Where AF_XDP copies, poll(2) sends, and a frame that the interface turns away is freed in that call, which wakes whoever waits for
/// room (sock_wfree): the call then goes round without end, and without leaving its core to the thread that would make room.
#[test]
fn a_lane_leaves_its_core_while_its_link_is_full() {
    let allowed = sched_getaffinity(None).unwrap();
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    let (Some(here), Some(elsewhere)) = (cores.next(), cores.next()) else {
        return testing::skip_in_ci_too("needs two cores");
    };
    on_a_veth("full", |app, sh| {
        // A qdisc has the veth turn frames away, and a program at the other end has it receive in a thread.
        sh("tc qdisc replace dev va root pfifo");
        let _peer = Engine::start(&inline("xdp:vb")).unwrap();
        sh("unshare --mount sh -c 'mount -t sysfs sysfs /sys && echo 1 >/sys/class/net/vb/threaded'");
        let receivers = napi_threads("vb");
        assert!(!receivers.is_empty(), "vb has no NAPI thread");
        to_core(&receivers, here);
        let mut others: PacketPort = packet::open("va", 1, false).unwrap().remove(0);
        let lane = lane_of(app);
        let watch = lane.watch().unwrap();
        let (over, freed) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|s| {
            let rescue = s.spawn(|| {
                to_core(&[gettid()], elsewhere);
                let end = std::time::Instant::now() + Duration::from_secs(10);
                while !over.load(Ordering::Relaxed) && std::time::Instant::now() < end {
                    std::thread::sleep(Duration::from_millis(10));
                }
                // A lane that is still in its call comes out of it once there is room.
                freed.store(!over.load(Ordering::Relaxed), Ordering::Relaxed);
                to_core(&receivers, elsewhere);
            });
            to_core(&[gettid()], here);
            let mut full = [0; 2];
            for round in 0..40 {
                // More than the 256 slots of the veth's ring.
                for _ in 0..5 {
                    (0..others.room()).for_each(|_| send(&mut others, &[0xff; 60]));
                    let _ = others.flush();
                }
                while let Some(room) = lane.ports[0].reserve(60) {
                    room[..60].fill(0xff);
                    lane.ports[0].commit(60, TxOffload::default());
                }
                lane.turn();
                // The thread that receives may have had the core in between, and then nothing is left.
                if lane.prepare(None).is_some() && lane.ports[0].due_us().is_some() {
                    // Room is made while somebody sleeps: one a round.
                    let without_the_turn = round % 2;
                    match without_the_turn {
                        0 => drop(lane.poll(None, Some(1000)).unwrap()),
                        _ => drop(wakes(&watch, 1000)),
                    }
                    full[without_the_turn] += 1;
                    assert!(!freed.load(Ordering::Relaxed), "the core was kept, in round {round}");
                }
                lane.awake();
            }
            over.store(true, Ordering::Relaxed);
            rescue.join().unwrap();
            if full.contains(&0) {
                testing::skip("the veth of a kernel before 6.16 turns no frame away");
            }
        });
    });
}

#[test]
fn a_sleeping_lane_does_not_hear_of_frames_that_it_leaves() {
    on_a_veth("left", |app, _| {
        let _claim = app.claim((OURS, 80).into(), false).unwrap();
        let lane = lane_of(app);
        let watch = lane.watch().unwrap();
        let mut peer: PacketPort = packet::open("vb", 1, false).unwrap().remove(0);
        let syn = syn(lane.ports[0].caps_of().mac, 80);
        let mut come = || {
            send(&mut peer, &syn);
            peer.flush().unwrap();
        };
        ready(lane);
        come();
        until("a frame comes", || !lane.ports[0].prepare_sleep());
        lane.awake();
        assert_eq!(lane.prepare(None), None);
        lane.awake();
        // From a time that is to come, so that it is not over where this thread has to wait.
        lane.held[0] = Some(lane.clock.now().plus_micros(60 * LONG_US));
        assert_eq!((lane.prepare(None), lane.unread), (Some(Some(HOLD_US)), 1));
        assert_eq!((lane.poll(None, Some(0)), wakes(&watch, 0)), (Ok(None), false));
        lane.awake();
        lane.held[0] = None;
        assert_eq!(lane.turn().rx, 1);
        ready(lane);
        assert_eq!(lane.unread, 0);
        come();
        assert_eq!(lane.poll(None, Some(LONG_US)), Ok(Some(0)), "who has the turn hears of frames again");
        assert!(wakes(&watch, LONG_US), "who has not does");
        lane.awake();
    });
}

#[test]
fn a_port_that_is_gone_wakes_nobody() {
    on_a_veth("gone", |app, sh| {
        let lane = lane_of(app);
        let watch = lane.watch().unwrap();
        fill_while_down(lane, sh);
        assert_eq!(ready(lane), Some(DOWN_US));
        lane.awake();
        sh("ip link del va");
        until("the lane hears that its device is gone", || {
            lane.turn();
            lane.gone == 1
        });
        assert_eq!((ready(lane), lane.poll(None, Some(0)), wakes(&watch, 0)), (None, Ok(None), false));
        lane.awake();
    });
}

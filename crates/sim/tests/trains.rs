//! A burst is worth what its frames are worth one by one: following a train of segments saves work and changes nothing.

use io::impair::Random;
use protocol::{Endpoint, Event};
use sim::offload::join;
use sim::{Echo, Frames, Host, HostConfig, Outcome, Sender};
use wire::cut::Cut;
use wire::{Addr, Instant};

const BYTES: u64 = 400_000;

/// Adds to a word of a segment with text, and mends the checksum.
fn change(f: &mut [u8], ip: usize, word: usize, add: u16) {
    let tcp = ip + if f[ip] >> 4 == 4 { 20 } else { 40 };
    // An option is only there where there is room for it.
    if f.len() < tcp + 100 || f[tcp + 12] >> 4 < (word as u8).div_ceil(4) {
        return;
    }
    let get = |f: &[u8], at: usize| u16::from_be_bytes([f[at], f[at + 1]]);
    let (old, sum) = (get(f, tcp + word), get(f, tcp + 16));
    let new = old.wrapping_add(add);
    f[tcp + word..tcp + word + 2].copy_from_slice(&new.to_be_bytes());
    f[tcp + 16..tcp + 18].copy_from_slice(&wire::checksum::update16(sum, old, new).to_be_bytes());
}

/// What the link does to a burst: losses, other orders, copies, damage, marks, padding, other routes.
fn mangle(r: &mut Random, frames: Vec<Vec<u8>>, at: usize) -> Vec<Vec<u8>> {
    let mut out: Vec<Vec<u8>> = Vec::new();
    for mut f in frames {
        let v4 = f[at] >> 4 == 4;
        match r.below(60) {
            0 => continue,
            1 => out.push(f.clone()),
            2 => {
                let i = r.below(f.len() as u64) as usize;
                f[i] ^= 1 << r.below(8);
            }
            // Congestion experienced; another hop limit.
            3 if v4 => f[at + 1] |= 3,
            3 => f[at + 1] |= 0x30,
            4 if v4 => f[at + 8] -= 1,
            4 => f[at + 7] -= 1,
            5 => f.extend([0; 6]),
            // Another window, an older acknowledgment, another timestamp, each alone.
            6 => change(&mut f, at, 14, 1),
            7 => change(&mut f, at, 10, u16::MAX),
            8 => change(&mut f, at, 26, 1),
            _ => {}
        }
        if v4 && f[at] == 0x45 && r.below(60) != 0 {
            f[at + 10..at + 12].fill(0);
            let sum = wire::checksum::sum(&f[at..at + 20]).finish();
            f[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
        }
        match r.below(60) {
            0 if !out.is_empty() => out.insert(out.len() - 1, f),
            _ => out.push(f),
        }
    }
    out
}

/// Two senders on host 1; host 2 exists twice, and hears bursts and single frames. How many segments followed another.
fn run(seed: u64) -> u64 {
    let mut r = Random::new(seed);
    let vlan = r.chance(0.3).then_some(7);
    let family = r.below(2) as usize;
    let timestamps = r.chance(0.5);
    let scarce = r.chance(0.2);
    let config = |n| {
        let mut c = HostConfig { vlan, ..HostConfig::new(n) };
        c.stack.tcp.timestamps = timestamps;
        c.stack.tcp.ecn = tcp::Ecn::Always;
        if n == 2 && scarce {
            c.chunks = 160;
        }
        c
    };
    let mut a = Host::new(config(1));
    let mut twins = [Host::new(config(2)), Host::new(config(2))];
    let to = Endpoint { addr: Addr::from(a.config.addresses[family].0), port: 80 };
    let to = Endpoint { addr: Addr::from(twins[0].config.addresses[family].0), ..to };
    let mut echoes = twins.each_mut().map(|b| Echo::start(b, to));
    let mut senders = [Sender::start(&mut a, 1, to, BYTES, 7), Sender::start(&mut a, 2, to, BYTES, 8)];
    let ip_at = if vlan.is_some() { 18 } else { 14 };
    let (mut to_a, mut to_b, mut held) = (Vec::new(), Vec::<Vec<u8>>::new(), Vec::new());
    for step in 1.. {
        if scarce && step > 20_000 {
            // Memory for one of them was never there.
            break;
        }
        assert!(step < 200_000, "seed {seed}: not done");
        let now = Instant::from_micros(step * 2500);
        let from_a = a.turn(now, to_a);
        for frame in &to_b {
            let interface = twins[1].interface();
            twins[1].stack.receive(now, interface, &Frames::plain(vec![frame.clone()]));
        }
        let from_b = twins[0].turn(now, to_b);
        assert_eq!(from_b, twins[1].turn(now, Vec::new()), "seed {seed}, step {step}");
        for (twin, echo) in twins.iter_mut().zip(&mut echoes) {
            while let Some(e) = twin.event() {
                echo.on_event(twin, e);
            }
        }
        let rows = twins
            .each_ref()
            .map(|t| t.stack.counters().rows().filter(|r| !["bursts", "followed"].contains(&r.0)).collect::<Vec<_>>());
        assert_eq!(rows[0], rows[1], "seed {seed}, step {step}");
        to_a = mangle(&mut r, from_b, ip_at);
        // A burst may hold what was sent at several times, with other acknowledgments, windows and timestamps.
        held.extend(mangle(&mut r, from_a, ip_at));
        to_b = if r.chance(0.5) { core::mem::take(&mut held) } else { Vec::new() };
        while let Some(e) = a.event() {
            // What neither cares for is a larger send buffer.
            let left = senders.iter_mut().try_fold(e, |e, s| s.on_event(&mut a, e));
            assert!(matches!(left, None | Some(Event::Room { .. })), "an event of nobody: {left:?}");
        }
        senders.iter_mut().for_each(|s| s.poll(&mut a));
        if senders.iter().all(|s| s.outcome != Outcome::Running) {
            let complete = senders.iter().all(|s| s.outcome == Outcome::Complete);
            assert!(complete || scarce, "seed {seed}");
            break;
        }
    }
    twins[0].stack.counters().followed
}

/// What was put together is cut into the frames it was made of, but for the checksum, which is verified by then.
#[test]
fn joined_frames_come_apart_again() {
    for (family, vlan, timestamps) in [(0, None, true), (1, None, true), (0, Some(9), false), (1, Some(9), false)] {
        let config = |n| {
            let mut c = HostConfig { vlan, ..HostConfig::new(n) };
            c.stack.tcp.timestamps = timestamps;
            c
        };
        let (mut a, mut b) = (Host::new(config(1)), Host::new(config(2)));
        let to = Endpoint { addr: Addr::from(b.config.addresses[family].0), port: 80 };
        let mut echo = Echo::start(&mut b, to);
        let mut sender = Sender::start(&mut a, 1, to, BYTES, 7);
        let (mut to_a, mut to_b, mut joined) = (Vec::new(), Vec::new(), 0);
        let sum_at = if vlan.is_some() { 18 } else { 14 } + if family == 0 { 20 } else { 40 } + 16;
        for ms in 1.. {
            assert!(ms < 60_000, "not done in a minute");
            let now = Instant::from_micros(ms * 1000);
            let (from_a, from_b) = (a.turn(now, to_a), b.turn(now, to_b));
            for j in join(from_a.clone()).into_iter().filter(|j| j.mss > 0) {
                let cut = Cut::parse(&j.data, j.mss).expect("it was put together");
                joined += 1;
                for i in 0..cut.count() {
                    let mut f = vec![0; cut.len(i)];
                    cut.write(i, &mut f);
                    let same = |g: &Vec<u8>| {
                        g.len() == f.len() && g[..sum_at] == f[..sum_at] && g[sum_at + 2..] == f[sum_at + 2..]
                    };
                    assert!(from_a.iter().any(same), "frame {i} of {}", cut.count());
                }
            }
            (to_a, to_b) = (from_b, from_a);
            while let Some(e) = a.event() {
                sender.on_event(&mut a, e);
            }
            while let Some(e) = b.event() {
                echo.on_event(&mut b, e);
            }
            sender.poll(&mut a);
            if sender.outcome != Outcome::Running {
                break;
            }
        }
        assert!(joined > 9, "{joined}");
    }
}

#[test]
fn bursts_are_worth_their_frames() {
    let followed: u64 = (0..40).map(run).sum();
    // Most of the data of 40 runs, but for what was mangled.
    assert!(followed > 40 * 2 * BYTES / 1448 / 4, "{followed}");
}

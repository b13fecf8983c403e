//! Two stacks over a bad network: every byte arrives once and in order, or the connection ends with an error; nothing leaks.
//!
//! `CORELANE_SEEDS=N` runs N seeds, `CORELANE_SEED=S` replays one.

use core::time::Duration;

use io::impair::{Burst, Impairment, Queue, Random};
use sim::{Echo, HostConfig, Net, NetConfig, Outcome, Sender};
use stack::channel::Endpoint;
use wire::{Addr, Instant};

fn impairment(r: &mut Random) -> Impairment {
    let part = |r: &mut Random, most: f64| if r.chance(0.4) { 0.0 } else { r.below(1000) as f64 / 1000.0 * most };
    let us = |r: &mut Random, most: u64| Duration::from_micros(r.below(most));
    Impairment {
        loss: part(r, 0.1),
        burst: r.chance(0.2).then_some(Burst { enter: 0.005, leave: 0.3, loss: 0.8 }),
        duplicate: part(r, 0.05),
        reorder: part(r, 0.2),
        reorder_by: us(r, 20_000),
        corrupt: part(r, 0.05),
        delay: us(r, 50_000),
        jitter: us(r, 5_000),
        rate: if r.chance(0.3) { 1_000_000 + r.below(80_000_000) } else { 0 },
        queue: Queue::bytes(64 * 1024),
        ..Impairment::default()
    }
}

/// How many of its connections completed, of how many.
fn run(seed: u64) -> (usize, usize) {
    let mut r = Random::new(seed ^ 0x5eed);
    let mut a = HostConfig::new(1);
    let mut b = HostConfig::new(2);
    for h in [&mut a, &mut b] {
        h.mtu = [1500, 1500, 1280, 9000][r.below(4) as usize];
        h.tx_room = 1 + r.below(64) as usize;
        h.stack.tcp.timestamps = r.chance(0.7);
        h.stack.tcp.window_scaling = r.chance(0.7);
        h.stack.tcp.receive_buffer = 4096 << r.below(7);
    }
    // Without path MTU discovery on a link there is one MTU.
    b.mtu = a.mtu;
    let (a_to_b, b_to_a) = (impairment(&mut r), impairment(&mut r));
    let v6 = r.chance(0.5);
    let mut net = Net::new(NetConfig { a, b, a_to_b, b_to_a, seed });
    let b_addr = if v6 { Addr::from(net.b.config.addresses[1].0) } else { Addr::from(net.b.config.addresses[0].0) };
    let server = Endpoint { addr: b_addr, port: 80 };
    let mut echo = Echo::start(&mut net.b, server);
    net.turn();
    let count = 1 + r.below(6) as u32;
    let mut senders: Vec<Sender> = (0..count)
        .map(|i| {
            let total = r.below(60_000);
            Sender::start(&mut net.a, i, server, total, seed * 100 + i as u64)
        })
        .collect();
    let until = Instant::from_micros(3_600_000_000 * 2);
    let done = net.run(until, |net| {
        while let Some(event) = net.b.event() {
            echo.on_event(&mut net.b, event);
        }
        while let Some(event) = net.a.event() {
            let mut event = Some(event);
            for s in &mut senders {
                event = event.take().and_then(|e| s.on_event(&mut net.a, e));
                if event.is_none() {
                    break;
                }
            }
        }
        for s in &mut senders {
            s.poll(&mut net.a);
        }
        senders.iter().all(|s| s.outcome != Outcome::Running)
    });
    if !done {
        let mut text = String::new();
        for (name, host) in [("a", &net.a), ("b", &net.b)] {
            host.stack.each_connection(|id, key, tcb| {
                text += &format!("{name}{id} {key:?} {tcb:#?}\n");
            });
        }
        panic!("seed {seed}: stuck at {:?}\n{text}", net.now);
    }
    // Everything ends: connections by their timers, then TIME-WAIT, and no chunk is missing.
    let quiet = net.now.plus_micros(3_600_000_000);
    net.run(quiet, |net| {
        while let Some(event) = net.b.event() {
            echo.on_event(&mut net.b, event);
        }
        while net.a.event().is_some() {}
        net.a.stack.connections() == 0
            && net.b.stack.connections() == 0
            && net.a.stack.time_waits() + net.b.stack.time_waits() == 0
    });
    assert_eq!(net.a.stack.connections(), 0, "seed {seed}: connections left on a");
    assert_eq!(net.b.stack.connections(), echo.open(), "seed {seed}: connections left on b");
    for h in [&mut net.a, &mut net.b] {
        assert_eq!(h.leaked(), 0, "seed {seed}: chunks leaked");
    }
    (senders.iter().filter(|s| s.outcome == Outcome::Complete).count(), senders.len())
}

#[test]
fn every_byte_once_and_in_order() {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    if let Some(seed) = number("CORELANE_SEED") {
        run(seed);
        return;
    }
    let (mut complete, mut all) = (0, 0);
    for seed in 0..number("CORELANE_SEEDS").unwrap_or(300) {
        match std::panic::catch_unwind(|| run(seed)) {
            Ok((c, n)) => (complete, all) = (complete + c, all + n),
            Err(cause) => {
                eprintln!("replay with: CORELANE_SEED={seed} cargo test -p sim --test lossy");
                std::panic::resume_unwind(cause);
            }
        }
    }
    println!("{complete} of {all} connections completed");
    // Some paths are so bad that giving up is right; most are not.
    assert!(complete * 100 >= all * 98, "only {complete} of {all} connections completed");
}

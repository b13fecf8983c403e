//! Lanes side by side, each with its own peer on the memory wire, and both ends of a lane on one core: what a lane does must
//! not depend on how many others there are. The lanes' time is told, by the first of
//! them.
//!
//! ```sh
//! cargo build --release -p corelane --example lanes
//! target/release/examples/lanes 2 1000000
//! valgrind --tool=callgrind --fair-sched=yes --toggle-collect='lanes::run' target/release/examples/lanes 2 20000
//! ```
//!
//! Arguments: lanes, and connections of each. Prints connections a second of each lane. Under callgrind, what is collected
//! divided by lanes times connections is what a connection costs.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Instant;

use corelane::{Clock, Config, Engine, LaneHandle};
use echo::{Client, Server};

mod echo;

fn main() {
    let mut args = std::env::args().skip(1).map(|n| n.parse::<usize>().expect("a number"));
    let (lanes, n) = (args.next().unwrap_or(1), args.next().unwrap_or(200_000));
    let time = Arc::new(AtomicU64::new(1_000_000));
    let config = |address: &str| {
        let mut c = Config::memory(address).expect("an address");
        (c.lanes, c.max_time_wait, c.clock) = (lanes as u16, 8192, Clock::Told(time.clone()));
        // A core for each, where there are as many.
        if thread::available_parallelism().is_ok_and(|cores| cores.get() >= lanes) {
            c.cores = (0..lanes).collect();
        }
        c
    };
    let (mut server, mut client) =
        Engine::memory_pair(&config("10.0.0.1/24"), &config("10.0.0.2/24")).expect("a pair of engines");
    let together = Barrier::new(lanes);
    let rates: Vec<f64> = thread::scope(|scope| {
        let ends = (0..lanes).map(|i| (server.take_lane(i).expect("a lane"), client.take_lane(i).expect("a lane")));
        let first = std::iter::once(Some(&*time)).chain(std::iter::repeat(None));
        let together = &together;
        let threads: Vec<_> =
            ends.zip(first).map(|(ends, time)| scope.spawn(move || lane(ends, n, together, time))).collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    });
    for (i, rate) in rates.iter().enumerate() {
        println!("lane {i}: {rate:.0} connections/s");
    }
    println!("all: {:.0} connections/s", rates.iter().sum::<f64>());
    for stats in server.stats().iter().chain(&client.stats()) {
        // What both ends of a flow agree on needs no hand-over; what all lanes hear of is a frame or two.
        assert!(stats.handed_out() < 1000 && stats.handed_dropped() == 0, "frames went astray");
    }
}

fn lane((server, client): (LaneHandle, LaneHandle), n: usize, together: &Barrier, time: Option<&AtomicU64>) -> f64 {
    let untold = AtomicU64::new(0);
    let time = time.unwrap_or(&untold);
    let (server, client) = (server.attach().expect("attached"), client.attach().expect("attached"));
    let (mut server, mut client) = (Server::new(&server), Client::new(&client));
    // Every lane listens before any asks.
    together.wait();
    // Tables get their size before anything is counted.
    echo::run(&mut server, &mut client, 10_000, time);
    together.wait();
    let start = Instant::now();
    run(&mut server, &mut client, n, time);
    let took = start.elapsed();
    together.wait();
    n as f64 / took.as_secs_f64()
}

/// The counted part.
#[inline(never)]
fn run(server: &mut Server, client: &mut Client, n: usize, time: &AtomicU64) {
    echo::run(server, client, n, time);
}

//! Short transactions over the memory wire in one thread, for instruction counts: nothing waits and the lanes'
//! time is told, so a run repeats exactly.
//!
//! ```sh
//! cargo build --release -p corelane --example transactions
//! valgrind --tool=callgrind target/release/examples/transactions 20000
//! ```
//!
//! Each transaction is a connection: 64 bytes there, 64 back, the server closes first. Both ends run in turns; what it prints
//! is the count of transactions, to divide by.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use corelane::{Clock, Config, Engine, Model};
use echo::{Client, Server};

mod echo;

fn main() {
    let n = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(20_000);
    let time = Arc::new(AtomicU64::new(1_000_000));
    let config = |address: &str| {
        let mut c = Config::memory(address).expect("an address");
        (c.model, c.clock) = (Model::Inline, Clock::Told(time.clone()));
        c.max_time_wait = 8192;
        c
    };
    let (mut server, mut client) =
        Engine::memory_pair(&config("10.0.0.1/24"), &config("10.0.0.2/24")).expect("a pair of engines");
    let server = server.take_lane(0).expect("a lane").attach().expect("attached");
    let client = client.take_lane(0).expect("a lane").attach().expect("attached");
    let mut server = Server::new(&server);
    let mut client = Client::new(&client);
    // Tables get their size before anything is counted.
    run(&mut server, &mut client, 10_000, &time);
    run(&mut server, &mut client, n, &time);
    println!("{n}");
}

/// The counted part: callgrind's `--toggle-collect=transactions::run`.
#[inline(never)]
fn run(server: &mut Server, client: &mut Client, n: usize, time: &AtomicU64) {
    echo::run(server, client, n, time);
}

//! Bulk transfer over the memory wire in one thread, for instruction counts: nothing waits and the lanes' time is told, so a
//! run repeats exactly.
//!
//! ```sh
//! cargo build --release -p corelane --example bulk
//! valgrind --tool=callgrind --toggle-collect='bulk::send' target/release/examples/bulk 256
//! valgrind --tool=callgrind --toggle-collect='bulk::take' target/release/examples/bulk 256
//! ```
//!
//! The one end writes MiB after MiB (the first argument, and 32 before, in which windows grow), the other reads them; `send` is
//! all that the sending end does, its ACKs' processing and its application's copy included, `take` all of the receiving end.
//! What it prints are all bytes and the frames of the sender, to divide by. Further arguments: `mtu=N`, and `offload=false`, with which checksums
//! are computed and verified.

use std::hint::black_box;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use corelane::{
    Clock, Config, ConnectOptions, Engine, Events, Interest, Lane, ListenOptions, Model, Poller, TcpStream, Trigger,
};

/// Bytes of one write and of one read.
const PIECE: usize = 128 << 10;
/// Time between two turns, µs: about what they take.
const TURN_US: u64 = 50;

fn main() {
    let mut mib = 64;
    let (mut mtu, mut offload) = (None, None);
    for arg in std::env::args().skip(1) {
        match arg.split_once('=') {
            None => mib = arg.parse().expect("MiB"),
            Some(("mtu", n)) => mtu = Some(n.parse().expect("bytes")),
            Some(("offload", yes)) => offload = Some(yes.parse().expect("true or false")),
            Some((name, _)) => panic!("no such argument: {name}"),
        }
    }
    let time = Arc::new(AtomicU64::new(1_000_000));
    let config = |address: &str| {
        let mut c = Config::memory(address).expect("an address");
        (c.model, c.clock) = (Model::Inline, Clock::Told(time.clone()));
        (c.ports[0].mtu, c.ports[0].offload) = (mtu, offload);
        c
    };
    let (mut one, mut other) =
        Engine::memory_pair(&config("10.0.0.1/24"), &config("10.0.0.2/24")).expect("a pair of engines");
    let one = one.take_lane(0).expect("a lane").attach().expect("attached");
    let other = other.take_lane(0).expect("a lane").attach().expect("attached");
    let (mut sender, mut receiver) = connect(&one, &other);
    let bytes = (32 + mib) << 20;
    run(&mut sender, &mut receiver, bytes, &time);
    println!("{bytes} bytes, {} frames", one.stats().tx_frames());
}

fn run(sender: &mut End, receiver: &mut End, bytes: usize, time: &AtomicU64) {
    (sender.done, receiver.done) = (0, 0);
    while receiver.done < bytes {
        time.fetch_add(TURN_US, Ordering::Relaxed);
        send(sender, bytes);
        take(receiver);
    }
}

#[inline(never)]
fn send(end: &mut End, bytes: usize) {
    end.poller.wait(&mut end.events, Some(Duration::ZERO)).expect("a wait");
    while end.done < bytes {
        match end.stream.write(&end.buffer[..PIECE.min(bytes - end.done)]) {
            Ok(n) => end.done += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            Err(e) => panic!("{e}"),
        }
    }
}

#[inline(never)]
fn take(end: &mut End) {
    end.poller.wait(&mut end.events, Some(Duration::ZERO)).expect("a wait");
    loop {
        match end.stream.read(&mut end.buffer) {
            Ok(0) => panic!("the stream ended"),
            Ok(n) => end.done += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            Err(e) => panic!("{e}"),
        }
    }
    black_box(&end.buffer);
}

struct End {
    poller: Poller,
    events: Events,
    stream: TcpStream,
    buffer: Vec<u8>,
    done: usize,
}

impl End {
    fn new(lane: &Lane, stream: TcpStream) -> End {
        let poller = lane.poller().expect("a poller");
        poller.add(&stream, 0, Interest::BOTH, Trigger::Edge).expect("added");
        stream.set_nonblocking(true);
        End { poller, events: Events::with_capacity(8), stream, buffer: vec![7; PIECE], done: 0 }
    }
}

fn connect(one: &Lane, other: &Lane) -> (End, End) {
    let at = SocketAddr::from(([10, 0, 0, 2], 80));
    let mut listener = other.listen(at, ListenOptions::default()).expect("a listener");
    listener.set_nonblocking(true);
    let stream = one.connect_nonblocking(at, ConnectOptions::default()).expect("a connection");
    let sender = End::new(one, stream);
    let poller = other.poller().expect("a poller");
    let mut events = Events::with_capacity(8);
    let mut mine = Events::with_capacity(8);
    loop {
        sender.poller.wait(&mut mine, Some(Duration::ZERO)).expect("a wait");
        poller.wait(&mut events, Some(Duration::ZERO)).expect("a wait");
        if let Ok((stream, _)) = listener.accept() {
            return (sender, End::new(other, stream));
        }
    }
}

//! Many established connections in one process, one exchange done on each: how much memory one costs.
//!
//! `cargo run --release -p corelane --example connections -- 100000`

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use corelane::{Config, ConnectOptions, Engine, Events, Interest, Lane, ListenOptions, Poller, TcpStream, Trigger};

/// One remote port takes at most this many from one address.
const PER_PORT: usize = 40_000;

fn resident() -> io::Result<usize> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: usize = text.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    Ok(pages * 4096)
}

/// Gives a byte back for each byte until it is told to stop.
fn serve(lane: &Lane, ports: usize, stop: &AtomicBool) -> io::Result<()> {
    let poller = lane.poller()?;
    let mut listeners = Vec::new();
    for i in 0..ports {
        let addr = SocketAddr::from(([10, 0, 0, 1], 1000 + i as u16));
        let mut listener = lane.listen(addr, ListenOptions::default())?;
        listener.set_nonblocking(true);
        poller.add(&listener, i as u64, Interest::READ, Trigger::Level)?;
        listeners.push(listener);
    }
    let mut streams: Vec<TcpStream> = Vec::new();
    let mut events = Events::with_capacity(256);
    while !stop.load(Ordering::Relaxed) {
        poller.wait(&mut events, Some(Duration::from_millis(100)))?;
        for event in events.iter() {
            if let Some(listener) = listeners.get(event.key as usize) {
                while let Ok((stream, _)) = listener.accept() {
                    poller.add(&stream, (ports + streams.len()) as u64, Interest::READ, Trigger::Edge)?;
                    streams.push(stream);
                }
                continue;
            }
            let stream = &streams[event.key as usize - ports];
            let mut byte = [0];
            while let Ok(1) = stream.read(&mut byte) {
                stream.write(&byte)?;
            }
        }
    }
    Ok(())
}

fn open(lane: &Lane, poller: &Poller, first_key: usize, n: usize) -> io::Result<Vec<TcpStream>> {
    let mut streams: Vec<TcpStream> = Vec::with_capacity(n);
    let mut events = Events::with_capacity(256);
    let mut done = 0;
    let begun = Instant::now();
    while done < n {
        while streams.len() < n && streams.len() < done + 512 {
            let addr = SocketAddr::from(([10, 0, 0, 1], 1000 + (streams.len() / PER_PORT) as u16));
            let stream = lane.connect_nonblocking(addr, ConnectOptions::default())?;
            poller.add(&stream, (first_key + streams.len()) as u64, Interest::BOTH, Trigger::Edge)?;
            streams.push(stream);
        }
        if poller.wait(&mut events, Some(Duration::from_secs(5)))? == 0 {
            return Err(io::Error::other(format!("stuck after {done} exchanges")));
        }
        for event in events.iter() {
            let Some(stream) = (event.key as usize).checked_sub(first_key).and_then(|i| streams.get(i)) else {
                continue;
            };
            if let Some(error) = stream.take_error()? {
                return Err(error);
            }
            let mut byte = [0];
            match stream.read(&mut byte) {
                Ok(1) => done += 1,
                Ok(_) => return Err(io::Error::other("closed by the server")),
                Err(_) if event.is_writable() => {
                    stream.write(b"x")?;
                }
                Err(_) => {}
            }
        }
    }
    println!("{n} connections, one exchange each, in {:.2} s", begun.elapsed().as_secs_f64());
    Ok(streams)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let n: usize = std::env::args().nth(1).map_or(Ok(100_000), |a| a.parse())?;
    let ports = n.div_ceil(PER_PORT);
    let (server, client) = (Config::memory("10.0.0.1/24")?, Config::memory("10.0.0.2/24")?);
    let (mut server, mut client) = Engine::memory_pair(&server, &client)?;
    let stop = Arc::new(AtomicBool::new(false));
    let end = server.take_lane(0).ok_or("no lane")?;
    let flag = stop.clone();
    let thread = std::thread::spawn(move || serve(&end.attach()?, ports, &flag));

    let lane = client.take_lane(0).ok_or("no lane")?.attach()?;
    let poller = lane.poller()?;
    // The listeners open meanwhile.
    std::thread::sleep(Duration::from_millis(200));
    let warm = open(&lane, &poller, 0, 1000)?;
    let before = resident()?;
    let streams = open(&lane, &poller, warm.len(), n)?;
    // What has nothing under way for a second is parked.
    let mut events = Events::with_capacity(256);
    let idle = Instant::now() + Duration::from_millis(2500);
    while Instant::now() < idle {
        poller.wait(&mut events, Some(Duration::from_millis(100)))?;
    }
    let bytes = resident()?.saturating_sub(before);
    println!(
        "{} MiB more resident for {n} connections whose both ends are here: {} bytes an end (stack, sockets, and this \
         program's own handle)",
        bytes >> 20,
        bytes / n / 2
    );
    stop.store(true, Ordering::Relaxed);
    thread.join().map_err(|_| "the server panicked")??;
    drop((streams, warm));
    Ok(())
}

//! No allocation for a packet or a connection once everything is warm.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use corelane::{Config, ConnectOptions, Engine, Events, Interest, Lane, ListenOptions, TcpStream, Trigger};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's pointer and layout.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: the caller's pointer, layout and size.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PORT: u16 = 80;

/// Answers each connection with what it sent, and closes; the place of a stream is its key.
fn serve(lane: &Lane, stop: &AtomicBool, allocated: &AtomicU64) {
    let mut listener = lane.listen(SocketAddr::from(([10, 0, 0, 1], PORT)), ListenOptions::default()).unwrap();
    listener.set_nonblocking(true);
    let poller = lane.poller().unwrap();
    poller.add(&listener, u64::MAX, Interest::READ, Trigger::Level).unwrap();
    let mut streams: Vec<Option<TcpStream>> = (0..1024).map(|_| None).collect();
    let mut events = Events::with_capacity(256);
    while !stop.load(Ordering::Relaxed) {
        allocated.store(COUNT.with(Cell::get), Ordering::Relaxed);
        poller.wait(&mut events, Some(Duration::from_millis(50))).unwrap();
        for event in events.iter() {
            if event.key == u64::MAX {
                while let Ok((stream, _)) = listener.accept() {
                    let at = streams.iter().position(Option::is_none).expect("room");
                    poller.add(&stream, at as u64, Interest::READ, Trigger::Edge).unwrap();
                    streams[at] = Some(stream);
                }
                continue;
            }
            let Some(stream) = &streams[event.key as usize] else { continue };
            let mut buf = [0; 64];
            if let Ok(n @ 1..) = stream.read(&mut buf) {
                stream.write(&buf[..n]).unwrap();
                streams[event.key as usize] = None;
            }
        }
    }
}

/// Makes `n` connections, 64 at a time, one exchange each.
fn load(lane: &Lane, events: &mut Events, n: usize) {
    let poller = lane.poller().unwrap();
    let mut streams: [Option<TcpStream>; 64] = [const { None }; 64];
    let (mut begun, mut done) = (0, 0);
    while done < n {
        for (key, slot) in streams.iter_mut().enumerate().filter(|(_, s)| s.is_none()) {
            if begun == n {
                break;
            }
            let to = SocketAddr::from(([10, 0, 0, 1], PORT));
            let stream = match lane.connect_nonblocking(to, ConnectOptions::default()) {
                Ok(stream) => stream,
                Err(e) => panic!("{e}"),
            };
            poller.add(&stream, key as u64, Interest::BOTH, Trigger::Edge).unwrap();
            *slot = Some(stream);
            begun += 1;
        }
        assert!(poller.wait(events, Some(Duration::from_secs(10))).unwrap() > 0, "stuck at {done}");
        for event in events.iter() {
            let Some(stream) = &streams[event.key as usize] else { continue };
            let mut buf = [0; 64];
            match stream.read(&mut buf) {
                Ok(n) => {
                    assert_eq!(n, 64);
                    streams[event.key as usize] = None;
                    done += 1;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if event.is_writable() {
                        stream.write(&[1; 64]).unwrap();
                    }
                }
                Err(e) => panic!("{e}"),
            }
        }
    }
}

#[test]
fn a_warm_lane_allocates_nothing() {
    let config = |a: &str| {
        let mut c = Config::memory(a).unwrap();
        c.max_time_wait = 4096;
        c
    };
    let (mut server, mut client) = Engine::memory_pair(&config("10.0.0.1/24"), &config("10.0.0.2/24")).unwrap();
    static STOP: AtomicBool = AtomicBool::new(false);
    static ALLOCATED: AtomicU64 = AtomicU64::new(0);
    let end = server.take_lane(0).unwrap();
    let thread = std::thread::spawn(move || serve(&end.attach().unwrap(), &STOP, &ALLOCATED));
    let lane = client.take_lane(0).unwrap().attach().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let mut events = Events::with_capacity(256);
    // Past the limit of TIME-WAIT records, so that tables have their size.
    load(&lane, &mut events, 20_000);
    let counts = || [COUNT.with(Cell::get), ALLOCATED.load(Ordering::Relaxed)];
    let mut rounds = Vec::new();
    // What comes out of order is kept in memory of its own, and a machine that stalls lets the wire lose frames: that is no
    // fault of the round after.
    for _ in 0..5 {
        load(&lane, &mut events, 1000);
        let before = counts();
        load(&lane, &mut events, 10_000);
        let after = counts();
        rounds.push([after[0] - before[0], after[1] - before[1]]);
    }
    STOP.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    // A queue may still grow once; ten thousand connections and sixty thousand packets must not show.
    assert!(rounds.iter().any(|round| round.iter().all(|n| *n <= 8)), "allocations by client and server: {rounds:?}");
}

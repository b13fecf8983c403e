//! Reading and writing without copies, over the memory wire.

use std::io::{BufRead, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use corelane::{Chunks, Config, Engine, Lane, ListenOptions, Model, TcpStream};

fn addr() -> SocketAddr {
    "10.0.0.1:80".parse().unwrap()
}

fn pair(buffers_mib: u32) -> (Engine, Engine) {
    let config = |address: &str| Config { model: Model::Inline, buffers_mib, ..Config::memory(address).unwrap() };
    Engine::memory_pair(&config("10.0.0.1/24"), &config("10.0.0.2/24")).unwrap()
}

fn connect(lane: &Lane) -> TcpStream {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match lane.connect(addr()) {
            Ok(stream) => return stream,
            // The server's thread is not there yet.
            Err(e) if e.kind() == ErrorKind::ConnectionRefused && Instant::now() < end => thread::yield_now(),
            Err(e) => panic!("connect: {e}"),
        }
    }
}

/// Everything that was taken of the lane's memory is back.
fn all_back(lane: &Lane) {
    lane.drain(Duration::from_secs(5));
    let rows = lane.snapshot().unwrap().rows;
    let used = rows.iter().find(|r| r.0 == "chunks_in_use").unwrap().1;
    // What lies in the magazines is known roughly; what leaks here leaks by the thousand.
    assert!(used < 64, "{used} chunks are missing");
}

/// A server that runs `f` on one connection and looks for its memory afterwards.
fn server(engine: &mut Engine, f: impl FnOnce(&Lane, &TcpStream) + Send + 'static) -> thread::JoinHandle<()> {
    let end = engine.take_lane(0).unwrap();
    thread::spawn(move || {
        let lane = end.attach().unwrap();
        let listener = lane.listen(addr(), ListenOptions::default()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        f(&lane, &stream);
        drop((stream, listener));
        all_back(&lane);
    })
}

fn byte(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b1) >> 13) as u8
}

#[test]
fn a_proxy_touches_no_byte() {
    let (mut a, mut b) = pair(16);
    let thread = server(&mut a, |_, stream| {
        loop {
            let chunks = stream.read_chunks().unwrap();
            if chunks.is_empty() {
                break;
            }
            assert_eq!(chunks.slices().map(<[u8]>::len).sum::<usize>(), chunks.len());
            stream.write_chunks(chunks).map_err(|(e, _)| e).unwrap();
        }
    });
    let lane = b.take_lane(0).unwrap().attach().unwrap();
    let stream = connect(&lane);
    let total = 8 << 20;
    let (mut sent, mut got) = (0, 0);
    stream.set_nonblocking(true);
    while got < total {
        if sent < total {
            // Filled in place, in pieces of many sizes.
            let mut chunks = lane.chunks();
            while chunks.len() < 20_000 && sent < total {
                let room = chunks.reserve().unwrap();
                let n = room.len().min(1 + sent % 1777).min(total - sent);
                room[..n].iter_mut().enumerate().for_each(|(i, b)| *b = byte(sent + i));
                chunks.commit(n);
                sent += n;
            }
            let len = chunks.len();
            if let Err((e, back)) = stream.write_chunks(chunks) {
                assert_eq!((e.kind(), back.len()), (ErrorKind::WouldBlock, len));
                sent -= len;
            }
            if sent == total {
                stream.shutdown(Shutdown::Write).unwrap();
            }
        }
        match stream.read_chunks() {
            Ok(chunks) => {
                assert!(!chunks.is_empty(), "the stream ended at {got}");
                for b in chunks.slices().flatten() {
                    assert_eq!(*b, byte(got), "at {got}");
                    got += 1;
                }
            }
            Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
        }
        lane.advance();
    }
    stream.set_nonblocking(false);
    assert!(stream.read_chunks().unwrap().is_empty());
    drop(stream);
    all_back(&lane);
    thread.join().unwrap();
}

#[test]
fn lines_are_read_where_they_lie() {
    let (mut a, mut b) = pair(16);
    let thread = server(&mut a, |lane, stream| {
        for i in 0..10_000 {
            let mut chunks = lane.chunks();
            writeln!(chunks, "line {i} {}", "x".repeat(i % 300)).unwrap();
            stream.write_chunks(chunks).map_err(|(e, _)| e).unwrap();
        }
    });
    let lane = b.take_lane(0).unwrap().attach().unwrap();
    let stream = connect(&lane);
    let mut reader = stream.chunk_reader();
    let mut line = String::new();
    for i in 0..9_000 {
        line.clear();
        reader.read_line(&mut line).unwrap();
        assert_eq!(line, format!("line {i} {}\n", "x".repeat(i % 300)));
    }
    // The rest by other means: what was taken, then what comes.
    let mut rest = Vec::new();
    let mut taken = reader.into_chunks().unwrap();
    taken.read_to_end(&mut rest).unwrap();
    assert!(taken.is_empty());
    (&stream).read_to_end(&mut rest).unwrap();
    assert_eq!(rest.iter().filter(|b| **b == b'\n').count(), 1_000);
    assert!(rest.starts_with(b"line 9000 "));
    drop((taken, stream));
    all_back(&lane);
    thread.join().unwrap();
}

#[test]
fn bytes_are_cut_joined_and_given_back() {
    let (mut a, _b) = pair(16);
    let lane = a.take_lane(0).unwrap().attach().unwrap();
    let text: Vec<u8> = (0..10_000).map(byte).collect();
    let all = |c: &Chunks| c.slices().flatten().copied().collect::<Vec<u8>>();
    let mut chunks = lane.chunks();
    assert_eq!((chunks.len(), chunks.is_empty(), all(&chunks)), (0, true, vec![]));
    assert!(chunks.fill_buf().unwrap().is_empty());
    chunks.write_all(&text).unwrap();
    let mut front = chunks.split_to(3000);
    assert_eq!((all(&front), all(&chunks)), (text[..3000].to_vec(), text[3000..].to_vec()));
    front.append(chunks);
    assert_eq!(all(&front), text);
    let mut some = [0; 5000];
    assert_eq!(front.read(&mut some).unwrap(), 5000);
    assert_eq!(some, text[..5000]);
    assert_eq!(front.fill_buf().unwrap()[0], text[5000]);
    front.consume(1);
    assert_eq!(all(&front), text[5001..]);
    // Room that is not used is no byte, and no leak.
    front.reserve().unwrap();
    front.commit(0);
    assert_eq!(front.len(), 4999);
    let mut empty = lane.chunks();
    empty.reserve().unwrap();
    assert!(all(&empty).is_empty());
    front.append(empty);
    let whole = front.split_to(usize::MAX);
    assert_eq!((whole.len(), front.len()), (4999, 0));
    let mut unused = lane.chunks();
    unused.reserve().unwrap();
    drop((front, whole, unused));
    all_back(&lane);
}

/// Memory that is used up is an error, and comes back.
#[test]
fn short_memory_is_told() {
    let (mut a, _b) = pair(1);
    let lane = a.take_lane(0).unwrap().attach().unwrap();
    let mut chunks = lane.chunks();
    let error = loop {
        match chunks.reserve() {
            Ok(room) => {
                let n = room.len();
                chunks.commit(n);
            }
            Err(e) => break e,
        }
    };
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(chunks.len() > 500_000, "{}", chunks.len());
    assert_eq!(chunks.write(&[1]).unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(chunks.write(&[]).unwrap(), 0);
    chunks.consume(100_000);
    assert_eq!(chunks.write(&[1; 100]).unwrap(), 100);
    drop(chunks);
    all_back(&lane);
}

#[test]
#[should_panic(expected = "another pool")]
fn another_lane_s_are_refused() {
    let (mut a, mut b) = pair(16);
    let one = a.take_lane(0).unwrap().attach().unwrap();
    let other = b.take_lane(0).unwrap().attach().unwrap();
    let (mut mine, mut foreign) = (one.chunks(), other.chunks());
    mine.write_all(b"mine").unwrap();
    foreign.write_all(b"foreign").unwrap();
    mine.append(foreign);
}

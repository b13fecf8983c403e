//! Applications that stop: with the stack on a thread of its own (`paired`), or a guard beside them (`guarded`), their peers
//! notice nothing until buffers are full. What the peer saw is what counts; time enters only as an application's own ten
//! seconds, within which everything must have happened.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use corelane::{Config, Engine, Lane, ListenOptions, Model, TcpStream};

/// Less than the first receive buffer: what the application does not read is all acknowledged.
const TO_SERVER: usize = 40_000;
/// Less than the first send buffer: all of it is written before the application stops.
const TO_CLIENT: usize = 200_000;
const STALL: Duration = Duration::from_secs(10);

fn addr() -> SocketAddr {
    "10.0.0.1:80".parse().unwrap()
}

fn pair(model: Model, loss: f64) -> (Engine, Engine) {
    let config = |address: &str, model| {
        let mut c = Config { model, ..Config::memory(address).unwrap() };
        c.impairment.loss = loss;
        c.impairment.delay = Duration::from_millis(2);
        c
    };
    let server = config("10.0.0.1/24", model);
    Engine::memory_pair(&server, &config("10.0.0.2/24", Model::Inline)).unwrap()
}

fn connect(lane: &Lane) -> TcpStream {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match lane.connect(addr()) {
            Ok(stream) => return stream,
            Err(e) if Instant::now() < end => drop(e),
            Err(e) => panic!("connect: {e}"),
        }
    }
}

/// How far the server's application is.
#[derive(Default)]
struct Stage {
    /// It has stopped, or is about to.
    stopped: AtomicBool,
    /// It goes on by itself after [`STALL`], or when this says so.
    go_on: AtomicBool,
    /// It went on.
    over: AtomicBool,
}

/// How an application stops.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stop {
    /// It computes.
    Computing,
    /// A signal reaches it in a computation, and the handler does not return.
    Handler,
    /// A signal reaches it in a wait, and the handler does not return.
    HandlerInWait,
}

static PARKED: AtomicUsize = AtomicUsize::new(0);
static RELEASE: AtomicUsize = AtomicUsize::new(0);

/// Parks until it is released, or ten seconds are over: only what a handler may call.
extern "C" fn park(_: libc::c_int) {
    let mine = PARKED.fetch_add(1, Ordering::SeqCst) + 1;
    for _ in 0..STALL.as_millis() {
        if RELEASE.load(Ordering::SeqCst) >= mine {
            return;
        }
        // SAFETY: an empty set of descriptors; poll is async-signal-safe.
        unsafe { libc::poll(std::ptr::null_mut(), 0, 1) };
    }
    RELEASE.fetch_max(mine, Ordering::SeqCst);
}

fn computes(stage: &Stage) {
    let start = Instant::now();
    let mut x = 1u64;
    while !stage.go_on.load(Ordering::Relaxed) && start.elapsed() < STALL {
        for _ in 0..10_000 {
            x = std::hint::black_box(x.wrapping_mul(0x5851_f42d_4c95_7f2d) + 1);
        }
    }
}

/// The server: writes, stops, then reads what has come meanwhile.
fn serve(end: corelane::LaneHandle, stage: &Stage, stop: Stop) {
    let lane = end.attach().unwrap();
    let listener = lane.listen(addr(), ListenOptions::default()).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(&vec![7; TO_CLIENT]).unwrap();
    // Handed over, and nothing more.
    lane.advance();
    // The signal may come at once.
    let before = RELEASE.load(Ordering::SeqCst);
    stage.stopped.store(true, Ordering::SeqCst);
    let mut buf = vec![0; TO_SERVER];
    match stop {
        Stop::Computing => computes(stage),
        Stop::Handler => {
            while RELEASE.load(Ordering::SeqCst) == before {
                std::hint::spin_loop();
            }
        }
        // The first byte comes when the handler has been released; until then the thread is in its wait.
        Stop::HandlerInWait => {}
    }
    stage.over.store(stop != Stop::HandlerInWait, Ordering::SeqCst);
    stream.read_exact(&mut buf).unwrap();
    assert!(buf.iter().enumerate().all(|(i, b)| *b == i as u8));
    stream.write_all(b"read").unwrap();
    drop(stream);
    lane.drain(Duration::from_secs(5));
}

/// Everything that the peer of a stopped application may expect of its stack, while it is stopped.
fn peer_notices_nothing(model: Model, stop: Stop, loss: f64) {
    let name = format!("{model:?}, {stop:?}, {loss}");
    let (mut server, mut client) = pair(model, loss);
    let stage = Arc::new(Stage::default());
    let end = server.take_lane(0).unwrap();
    let thread = {
        let stage = stage.clone();
        thread::spawn(move || serve(end, &stage, stop))
    };
    let lane = client.take_lane(0).unwrap().attach().unwrap();
    let mut stream = connect(&lane);
    let end = Instant::now() + Duration::from_secs(30);
    while !stage.stopped.load(Ordering::SeqCst) {
        lane.advance();
        assert!(Instant::now() < end, "{name}: never got there");
    }
    let parked = PARKED.load(Ordering::SeqCst);
    if stop != Stop::Computing {
        if stop == Stop::HandlerInWait {
            // Until it sleeps; it wakes for our ACKs, so they come first.
            thread::sleep(Duration::from_millis(300));
        }
        // SAFETY: the thread runs until it is joined below.
        let killed = unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
        assert_eq!(killed, 0);
        while PARKED.load(Ordering::SeqCst) == parked {
            thread::yield_now();
        }
    }
    let sent: Vec<u8> = (0..TO_SERVER).map(|i| i as u8).collect();
    stream.write_all(&sent).unwrap();
    let mut back = vec![0; TO_CLIENT];
    // What was lost of this is sent again although the application does nothing.
    stream.read_exact(&mut back).unwrap();
    assert!(back.iter().all(|b| *b == 7), "{name}");
    // And this is acknowledged, with the losses on the way.
    let info = loop {
        let info = stream.info().unwrap();
        if info.unacked_bytes + info.notsent_bytes == 0 {
            break info;
        }
        assert!(Instant::now() < end, "{name}: nothing is acknowledged: {info:?}");
        stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let _ = stream.peek(&mut [0; 1]);
    };
    let stopped = match stop {
        Stop::Computing => !stage.over.load(Ordering::SeqCst),
        Stop::Handler | Stop::HandlerInWait => RELEASE.load(Ordering::SeqCst) <= parked,
    };
    assert!(stopped, "{name}: it took the application's ten seconds: {info:?}");
    if loss == 0.0 {
        // Nothing was lost, so nothing was sent again, but for what a busy machine makes late.
        assert!(info.total_retrans <= 3, "{name}: {info:?}");
    }
    stage.go_on.store(true, Ordering::SeqCst);
    RELEASE.fetch_add((stop != Stop::Computing) as usize, Ordering::SeqCst);
    stream.set_read_timeout(None).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "read", "{name}");
    drop(stream);
    lane.drain(Duration::from_secs(5));
    thread.join().unwrap();
    let takeovers = server.stats()[0].takeovers();
    assert_eq!(takeovers > 0, model == Model::Guarded, "{name}: {takeovers} times");
}

#[test]
fn an_application_that_computes() {
    for model in [Model::Paired, Model::Guarded] {
        for loss in [0.0, 0.05] {
            peer_notices_nothing(model, Stop::Computing, loss);
        }
    }
}

/// One test for all: they share a handler.
#[test]
fn an_application_stopped_by_a_signal() {
    // SAFETY: the handler does what handlers may; nothing else in this program uses the signal.
    unsafe { libc::signal(libc::SIGUSR1, park as *const () as libc::sighandler_t) };
    for model in [Model::Paired, Model::Guarded] {
        for stop in [Stop::Handler, Stop::HandlerInWait] {
            for loss in [0.0, 0.05] {
                peer_notices_nothing(model, stop, loss);
            }
        }
    }
}

/// All of ten seconds: a request every tenth of one, none of which the application reads, and retransmissions no more
/// than the loss asks for.
#[test]
fn a_loop_of_ten_seconds() {
    for model in [Model::Paired, Model::Guarded].map(|model| thread::spawn(move || ten_seconds(model))) {
        model.join().unwrap();
    }
}

fn ten_seconds(model: Model) {
    const MESSAGE: usize = 300;
    let (mut server, mut client) = pair(model, 0.02);
    let stage = Arc::new(Stage::default());
    let end = server.take_lane(0).unwrap();
    let (thread, theirs) = {
        let theirs = stage.clone();
        let body = move || {
            let lane = end.attach().unwrap();
            let listener = lane.listen(addr(), ListenOptions::default()).unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            theirs.stopped.store(true, Ordering::SeqCst);
            computes(&theirs);
            theirs.over.store(true, Ordering::SeqCst);
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            all.len()
        };
        (thread::spawn(body), stage)
    };
    let lane = client.take_lane(0).unwrap().attach().unwrap();
    let mut stream = connect(&lane);
    stream.set_nodelay(true).unwrap();
    let (mut sent, mut unanswered) = (0, 0);
    while !theirs.over.load(Ordering::SeqCst) {
        stream.write_all(&[1; MESSAGE]).unwrap();
        sent += MESSAGE;
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let _ = stream.peek(&mut [0; 1]);
        // A tenth of a second is fifty round trips; what is lost takes one or two of those more.
        unanswered = unanswered.max(stream.info().unwrap().unacked_bytes as usize);
    }
    let info = stream.info().unwrap();
    // One in fifty is lost, either way; a stack that did not answer would be asked again all the time, and less and less often.
    assert!(info.total_retrans * 5 <= info.segs_out, "{model:?}: {info:?}");
    assert!(unanswered <= 20 * MESSAGE, "{model:?}: {unanswered} bytes without an answer: {info:?}");
    drop(stream);
    lane.drain(Duration::from_secs(5));
    assert_eq!(thread.join().unwrap(), sent);
}

//! Two channels of one engine that speak TCP with each other, on one thread.
#![allow(dead_code)]

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use channel::{
    Address, Amount, Capabilities, Channel, Command, CpuMask, Data, Event, Handle, Listener, LwSocket, Options, Socket,
};
use runtime::{Config, Model};

/// A test that takes longer is stuck.
const LIMIT: Duration = Duration::from_secs(10);

/// The usual, with a short ring: the kernel charges its memory to all of a user's processes together (`ulimit -l`), and tests run
/// side by side.
pub fn usual() -> Options {
    Options { completions: 128, ..Options::default() }
}

/// A channel over the kernel. Where the memory of other tests' rings stands in the way, it is given back when those have ended, and a while later.
pub fn uring(options: Options) -> std::io::Result<Channel> {
    let end = Instant::now() + LIMIT;
    loop {
        match Channel::uring(options) {
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(10));
            }
            other => return other,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Uring,
    /// With its application running the turns.
    Lane,
    /// With a thread beside it that does.
    Paired,
    /// With one that takes over.
    Guarded,
}

const ALL: [Kind; 4] = [Kind::Uring, Kind::Lane, Kind::Paired, Kind::Guarded];

/// What an engine cannot do, and the tests that are skipped for it: checked in both directions.
const SKIPPED: &[(&str, &[Kind])] = &[
    ("connections_as_descriptors", &[Kind::Lane, Kind::Paired, Kind::Guarded]),
    ("lightweight_to_descriptor", &[Kind::Lane, Kind::Paired, Kind::Guarded]),
    ("an_idle_channel_takes_what_waits", &[Kind::Lane, Kind::Paired, Kind::Guarded]),
];

pub struct World {
    pub kind: Kind,
    pub a: Channel,
    pub b: Channel,
    pub listener: Listener,
    stash: [VecDeque<Event>; 2],
    // They end after the channels.
    _engines: Option<(runtime::Engine, runtime::Engine)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    A,
    B,
}

impl World {
    pub fn new(kind: Kind, options: Options) -> World {
        let (a, b, at, engines) = match kind {
            Kind::Uring => {
                let a = uring(options).unwrap();
                (a, uring(options).unwrap(), "127.0.0.1:0", None)
            }
            Kind::Lane | Kind::Paired | Kind::Guarded => {
                let model = match kind {
                    Kind::Paired => Model::Paired,
                    Kind::Guarded => Model::Guarded,
                    _ => Model::Inline,
                };
                let config = |address: &str| Config { model, ..Config::memory(address).unwrap() };
                let pair = runtime::Engine::memory_pair(&config("10.0.0.1/24"), &config("10.0.0.2/24")).unwrap();
                let (mut ea, mut eb) = pair;
                let a = Channel::lane(ea.take_app(0).unwrap().attach().unwrap(), options).unwrap();
                let b = Channel::lane(eb.take_app(0).unwrap().attach().unwrap(), options).unwrap();
                (a, b, "10.0.0.1:80", Some((ea, eb)))
            }
        };
        let at: SocketAddr = at.parse().unwrap();
        let listener = Listener::at(Address::from(at), 128).unwrap();
        World { kind, a, b, listener, stash: Default::default(), _engines: engines }
    }

    pub fn channel(&mut self, who: Who) -> &mut Channel {
        match who {
            Who::A => &mut self.a,
            Who::B => &mut self.b,
        }
    }

    /// A listens.
    pub fn listen(&mut self) -> Handle {
        self.a.register_listener(self.listener, 1000, CpuMask::NONE).unwrap()
    }

    /// A socket of B, registered.
    pub fn socket(&mut self, cookie: u64) -> Handle {
        match self.kind {
            Kind::Uring => {
                let fd = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None);
                self.b.register(fd.unwrap(), cookie).unwrap()
            }
            _ => {
                let socket = self.b.socket(false).unwrap();
                self.b.register_light(socket, cookie).unwrap()
            }
        }
    }

    pub fn address(&self) -> Address {
        self.listener.address().unwrap()
    }

    /// Lets both work; what comes is kept.
    pub fn pump(&mut self) {
        for who in [Who::A, Who::B] {
            while let Some(event) = self.channel(who).dispatch(Some(Duration::ZERO)).unwrap() {
                self.stash[who as usize].push_back(event);
            }
        }
    }

    /// The next completion of one of the two.
    pub fn next(&mut self, who: Who) -> Event {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(event) = self.stash[who as usize].pop_front() {
                return event;
            }
            self.pump();
            assert!(Instant::now() < end, "nothing comes to {who:?} on {:?}", self.kind);
            std::thread::yield_now();
        }
    }

    /// Nothing comes, for a while.
    pub fn nothing(&mut self, who: Who) {
        let end = Instant::now() + Duration::from_millis(20);
        while Instant::now() < end {
            self.pump();
            assert!(self.stash[who as usize].is_empty(), "{:?}", self.stash[who as usize]);
        }
    }

    /// A connection: A's end, by cookie 1, and B's, by cookie 2.
    pub fn connection(&mut self, listening: Handle) -> (Handle, Handle) {
        let b = self.socket(2);
        let to = self.address();
        self.b.connect(b, to).unwrap();
        self.a.accept(listening, Amount::Of(1), true).unwrap();
        let accepted = self.next(Who::A);
        assert_eq!((accepted.command, accepted.cookie), (Command::Accept, 1000));
        let a = self.a.register_light(light(accepted), 1).unwrap();
        let connected = self.next(Who::B);
        assert_eq!((connected.command, connected.cookie), (Command::Connect, 2));
        connected.result.unwrap();
        (a, b)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let ends = Instant::now() + Duration::from_millis(50);
            while self.kind != Kind::Uring && Instant::now() < ends {
                self.pump();
            }
        }
    }
}

/// The lightweight socket that was accepted.
pub fn light(event: Event) -> LwSocket {
    event.result.unwrap();
    match event.data {
        Data::Accepted(Socket::Light(socket), _) => socket,
        other => panic!("{other:?}"),
    }
}

/// The bytes of a read.
pub fn bytes(event: Event) -> Vec<u8> {
    let n = event.result.unwrap();
    match event.data {
        Data::Vec(mut bytes) => {
            bytes.truncate(n);
            bytes
        }
        other => panic!("{other:?}"),
    }
}

pub fn number(error: std::io::Error) -> i32 {
    error.raw_os_error().unwrap()
}

/// Whether the kernel gives this process an io_uring; where not, the test is skipped.
pub fn ring() -> bool {
    match uring(usual()) {
        Ok(_) => true,
        Err(error) => {
            let why = channel::ring_refused(&error).unwrap_or_else(|| panic!("a ring: {error}"));
            testing::skip(why);
            false
        }
    }
}

/// On each engine that can do what is needed, with these options.
pub fn on_engines(name: &str, needs: Capabilities, options: Options, f: impl Fn(World)) {
    for kind in ALL {
        if kind == Kind::Uring && !ring() {
            continue;
        }
        let world = World::new(kind, options);
        let skipped = !world.a.capabilities().has(needs);
        assert_eq!(
            skipped,
            SKIPPED.iter().any(|(test, kinds)| *test == name && kinds.contains(&kind)),
            "{name} on {kind:?}: the list of skips is wrong"
        );
        if !skipped {
            f(world);
        }
    }
}

/// On both engines.
pub fn everywhere(f: impl Fn(World)) {
    on_engines("", Capabilities::KERNEL, usual(), f);
}

/// Bytes that tell where in a stream they are.
pub fn stream(from: usize, n: usize) -> Vec<u8> {
    (from..from + n).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 13) as u8).collect()
}

/// This thread runs on a CPU.
pub fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

/// Connects `n` times from a CPU, on which loopback then delivers.
pub fn connect_from(cpu: usize, to: SocketAddr, n: usize) -> Vec<TcpStream> {
    std::thread::spawn(move || {
        pin(cpu);
        (0..n).map(|_| TcpStream::connect(to).unwrap()).collect()
    })
    .join()
    .unwrap()
}

/// A listener of the kernel's, and where.
pub fn listener(to: &str) -> (OwnedFd, SocketAddr) {
    let listener = std::net::TcpListener::bind(to).unwrap();
    let at = listener.local_addr().unwrap();
    (listener.into(), at)
}

/// How many connections come.
pub fn count(channel: &mut Channel) -> usize {
    let mut n = 0;
    while let Some(event) = channel.dispatch(Some(Duration::from_millis(50))).unwrap() {
        assert_eq!(event.command, Command::Accept);
        light(event);
        n += 1;
    }
    n
}

/// Accepts whatever comes, lightweight.
pub fn accepting(channel: &mut Channel, handle: Handle) {
    channel.accept(handle, Amount::Endless, true).unwrap();
    channel.flush().unwrap();
}

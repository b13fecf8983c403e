//! A client that keeps no rule: it writes anything anywhere into the memory that it shares with the stack, as random bytes and as changes of what
//! an honest one would have written. The stack goes on, or ends it; the client beside it notices nothing.
//!
//! `CORELANE_SEED=S cargo test -p sim --test clients malice` replays one, `CORELANE_SEEDS=N` tries so many.

use ::wire::Addr;
use io::impair::Random;
use mem::ring::{Message, Raw};
use mem::spsc::{Consumer, Producer};
use protocol::{CloseMode, ConnId, ConnOption, Endpoint, Job, ListenerId, Token};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use socket::SockId;

use crate::wire::{MANY, PORT, Wire, read};

const CHUNKS: u32 = 128;
/// Where the honest client listens.
const HONEST: u16 = PORT + 1;

/// All that a client can write.
struct Memory {
    at: *mut u32,
    words: usize,
}

impl Memory {
    fn of(w: &Wire, client: usize) -> Memory {
        let file = w.server.memory(client);
        let bytes = rustix::fs::fstat(file).unwrap().st_size as usize;
        let (rw, any) = (ProtFlags::READ | ProtFlags::WRITE, core::ptr::null_mut());
        // SAFETY: a fresh mapping of a file that cannot shrink.
        let at = unsafe { mmap(any, bytes, rw, MapFlags::SHARED, file, 0) }.unwrap();
        Memory { at: at.cast(), words: bytes / 4 }
    }

    fn get(&self, word: usize) -> u32 {
        // SAFETY: inside the mapping, aligned; whatever is there is a number.
        unsafe { self.at.add(word % self.words).read_volatile() }
    }

    fn set(&mut self, word: usize, value: u32) {
        // SAFETY: as above; the stack looks at what lies there as at anything.
        unsafe { self.at.add(word % self.words).write_volatile(value) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our own mapping.
        let _ = unsafe { munmap(self.at.cast(), self.words * 4) };
    }
}

/// Changes something, as a rule behind the payloads, where indices, records and messages lie, and rather what is not zero.
fn scribble(memory: &mut Memory, r: &mut Random) {
    let payload = (4096 + CHUNKS as usize * mem::CHUNK_BYTES) / 4;
    let mut word = match r.below(10) {
        0 => r.below(memory.words as u64) as usize,
        1 => r.below(256) as usize,
        _ => payload + r.below((memory.words - payload) as u64) as usize,
    };
    if r.chance(0.8) {
        word = (word..memory.words).find(|word| memory.get(*word) != 0).unwrap_or(word);
    }
    let value = memory.get(word);
    let new = match r.below(6) {
        0 => r.below(1 << 32) as u32,
        1 => value ^ 1 << r.below(32),
        2 => value.wrapping_add(1),
        3 => value.wrapping_sub(1),
        4 => r.below(u64::from(CHUNKS) + 2) as u32,
        _ => [0, 1, u32::MAX, 1 << 31][r.below(4) as usize],
    };
    memory.set(word, new);
}

/// The client that keeps no rule.
struct Bad {
    client: usize,
    jobs: Producer<Raw>,
    events: Consumer<Raw>,
    memory: Memory,
    /// Chunks that are its own, as far as it knows.
    chunks: Vec<u32>,
    conns: Vec<u32>,
    listeners: Vec<u32>,
}

/// Where the record of a chunk lies, in words.
fn record_of(chunk: u32) -> usize {
    (4096 + CHUNKS as usize * mem::CHUNK_BYTES) / 4 + chunk as usize * 4
}

impl Bad {
    fn new(w: &mut Wire) -> Bad {
        let (client, jobs, events) = w.server.attach_raw(CHUNKS, MANY);
        let memory = Memory::of(w, client);
        // A quarter of them are the threads' from the beginning.
        let chunks = (0..CHUNKS / 4).collect();
        Bad { client, jobs, events, memory, chunks, conns: vec![], listeners: vec![] }
    }

    /// Reads what it was told, as far as it needs it.
    fn hear(&mut self) {
        while let Some(Raw(words)) = self.events.pop() {
            let subject = (words[0] >> 32) as u32;
            match words[0] as u16 {
                1 | 2 => self.conns.push(subject),
                3 => self.listeners.push(subject),
                _ => {}
            }
            let (mut chunk, bytes) = (words[6] as u32, words[7] as u32);
            for _ in 0..CHUNKS {
                if bytes == 0 || chunk >= CHUNKS {
                    break;
                }
                self.chunks.push(chunk);
                chunk = self.memory.get(record_of(chunk));
            }
        }
        self.events.release();
    }

    /// What an honest one would ask for now.
    fn honest(&mut self, r: &mut Random) -> Message {
        let Some(conn) = (!self.conns.is_empty()).then(|| ConnId(r.pick(&self.conns))) else {
            let local = Endpoint { addr: Addr::UNSPECIFIED_V4, port: PORT };
            let listener = self.listeners.first().copied().map(ListenerId);
            return match listener {
                Some(listener) if r.chance(0.7) => Job::Taken { listener, count: r.below(3) as u32 },
                _ => Job::Listen {
                    token: Token(1),
                    local,
                    backlog: 8,
                    v6_only: false,
                    reuse_port: true,
                    receive_buffer: 0,
                },
            }
            .into_message();
        };
        let chain = Default::default();
        match r.below(9) {
            0 => Job::Close { conn, mode: CloseMode::Graceful },
            1 => Job::Abort { conn },
            2 => Job::Consumed { conn, bytes: r.below(1000) as u32 },
            3 => Job::Query { conn, token: Token(7) },
            4 => Job::SetOption { conn, option: ConnOption::NoDelay, value: 1 },
            5 => Job::Shutdown { conn },
            6 => Job::Release { conn },
            7 => Job::Take { conn },
            _ => Job::Write { conn, chain, more: r.chance(0.5), close: r.chance(0.2) },
        }
        .into_message()
    }

    fn ask(&mut self, r: &mut Random) {
        let message = self.honest(r);
        let mut words = [0; 8];
        words[..6].copy_from_slice(&message.words);
        words[6] = u64::from(u32::MAX) | u64::from(u32::MAX) << 32;
        // A write has bytes of its own, in up to three chunks.
        if words[0] as u16 == 5 {
            let mut bytes = 0;
            let mut of: Vec<u32> = (0..1 + r.below(3)).filter_map(|_| self.chunks.pop()).collect();
            if r.chance(0.1) {
                of.push(r.below(u64::from(CHUNKS)) as u32);
            }
            for (n, chunk) in of.iter().enumerate() {
                let len = 1 + r.below(2048) as u32;
                self.memory.set(record_of(*chunk), of.get(n + 1).copied().unwrap_or(u32::MAX));
                self.memory.set(record_of(*chunk) + 1, len << 16);
                bytes += len;
            }
            if let (Some(first), Some(last)) = (of.first(), of.last()) {
                words[6] = u64::from(*first) | u64::from(*last) << 32;
                words[7] = u64::from(bytes);
            }
        }
        match r.below(20) {
            0 => words[r.below(8) as usize] ^= 1 << r.below(64),
            1 => words[r.below(8) as usize] = r.below(1 << 20),
            2 => words = core::array::from_fn(|_| r.below(u64::MAX)),
            3 => words[0] = r.below(24) | r.below(4) << 32,
            _ => {}
        }
        if self.jobs.push(Raw(words)).is_ok() && r.chance(0.9) {
            self.jobs.publish();
        }
        if r.chance(0.1) {
            self.jobs.offer();
        }
    }
}

struct World {
    r: Random,
    wire: Wire,
    honest: (usize, SockId),
    bad: Bad,
    ended: usize,
    steps: usize,
}

impl World {
    fn new(seed: u64) -> World {
        let mut wire = Wire::new();
        let honest = wire.server.attach(256, 1, MANY);
        let listener = wire.listen_at(honest, 0, HONEST);
        let bad = Bad::new(&mut wire);
        World { r: Random::new(seed), wire, honest: (honest, listener), bad, ended: 0, steps: 0 }
    }

    /// Somebody asks the honest one, and hears what it says.
    fn ask_the_honest_one(&mut self) {
        let (client, listener) = self.honest;
        let id = self.wire.connect_to(HONEST);
        let text: Vec<u8> = (0..1 + self.r.below(3000)).map(|_| self.r.below(256) as u8).collect();
        self.wire.ask(id, &text);
        let (conn, _) = self.wire.server.client(client, 0).accept(listener).expect("it is offered");
        self.wire.settle();
        let got = read(self.wire.server.client(client, 0), conn).expect("it has come");
        assert_eq!(got, text);
        assert_eq!(self.wire.server.client(client, 0).write(conn, &got, false), Ok(got.len()));
        self.wire.server.client(client, 0).close(conn).expect("it is open");
        self.wire.settle();
        assert_eq!(self.wire.heard(id), Ok(text));
        self.wire.peer.sockets().close(id).expect("it is open");
        self.wire.settle();
    }

    /// Somebody asks the other one, which does something, or nothing.
    fn ask_the_other_one(&mut self) {
        let id = self.wire.connect_to(PORT);
        let _ = self.wire.peer.sockets().write(id, &[7; 500], false);
        for _ in 0..1 + self.r.below(8) {
            self.wire.settle();
            self.bad.hear();
            (0..1 + self.r.below(4)).for_each(|_| self.bad.ask(&mut self.r));
            if self.r.chance(0.02) {
                scribble(&mut self.bad.memory, &mut self.r);
            }
            self.steps += 1;
        }
        self.wire.settle();
        let _ = self.wire.peer.sockets().abort(id);
        self.wire.settle();
    }

    fn run(mut self) -> (usize, usize) {
        for _ in 0..40 {
            self.ask_the_other_one();
            if self.r.chance(0.3) {
                self.ask_the_honest_one();
            }
            for (who, _) in self.wire.server.take_ill() {
                assert_eq!(who, self.bad.client, "only the one that keeps no rule");
                self.ended += 1;
                self.wire.server.kill(who);
                self.bad = Bad::new(&mut self.wire);
            }
        }
        self.ask_the_honest_one();
        self.wire.server.kill(self.bad.client);
        self.wire.server.kill(self.honest.0);
        self.wire.is_clean();
        (self.ended, self.steps)
    }
}

#[test]
fn whoever_keeps_no_rule_harms_itself_alone() {
    let runs = testing::seeds("sim --test clients", 60, testing::cores(), |seed| World::new(seed).run());
    let ended: usize = runs.iter().map(|(ended, _)| ended).sum();
    assert!(runs.len() == 1 || ended > runs.len(), "{ended} were ended of {}", runs.len());
}

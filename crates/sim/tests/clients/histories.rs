//! Random lives of clients: they come, serve, move connections between their threads, stop reading, break rules and are killed at any moment,
//! while peers ask all of them. What a peer hears is what the one that it was accepted by has said, and nobody is reset whose client lives.
//!
//! `CORELANE_SEED=S cargo test -p sim --test clients` replays one, `CORELANE_SEEDS=N` tries so many.

use std::collections::HashMap;

use io::impair::Random;
use socket::{Errno, SockId, bits};

use crate::wire::{MANY, Wire, read};

/// Steps of a history.
const STEPS: usize = 400;
/// Connections at once, at most.
const MOST: usize = 24;

/// Byte `n` of what a connection says.
fn byte(port: u16, answer: bool, n: usize) -> u8 {
    (n as u64).wrapping_mul(2 * u64::from(port) + 1).wrapping_add(u64::from(answer)).to_le_bytes()[0]
}

/// A connection as the peer sees it.
struct Asker {
    id: SockId,
    port: u16,
    said: usize,
    heard: usize,
    /// It has said all it will.
    over: bool,
}

/// Threads of a client.
const THREADS: usize = 2;

/// The same as a client sees it.
struct Served {
    thread: usize,
    conn: SockId,
    /// It is on its way to the other thread.
    moves: bool,
    heard: usize,
    said: usize,
}

/// A client that lives.
struct Life {
    client: usize,
    listeners: [SockId; THREADS],
    stopped: bool,
    /// By the peer's port.
    served: HashMap<u16, Served>,
}

struct World {
    r: Random,
    wire: Wire,
    lives: Vec<Life>,
    askers: Vec<Asker>,
    /// Ports of connections that a client had accepted which is dead now.
    orphaned: Vec<u16>,
    kills: usize,
    done: usize,
    moves: usize,
}

impl World {
    fn new(seed: u64) -> World {
        let r = Random::new(seed);
        World { r, wire: Wire::new(), lives: vec![], askers: vec![], orphaned: vec![], kills: 0, done: 0, moves: 0 }
    }

    fn begin(&mut self) {
        let chunks = self.r.pick(&[64, 256, 1024]);
        let client = self.wire.server.attach(chunks, THREADS, MANY);
        let listeners = [0, 1].map(|thread| self.wire.listen(client, thread));
        self.lives.push(Life { client, listeners, stopped: false, served: HashMap::new() });
    }

    /// A client dies, or is ended for what it did.
    fn end(&mut self, at: usize) {
        let life = self.lives.swap_remove(at);
        self.orphaned.extend(life.served.into_keys());
        if self.r.chance(0.2) {
            let way = self.r.below(5) as u32;
            self.wire.server.malice(life.client, way);
        }
        self.wire.server.kill(life.client);
        self.wire.settle();
        self.kills += 1;
    }

    fn accept(&mut self, at: usize) {
        let Life { client, listeners, served, .. } = &mut self.lives[at];
        let thread = self.r.below(THREADS as u64) as usize;
        let s = self.wire.server.client(*client, thread);
        while let Ok((conn, peer)) = s.accept(listeners[thread]) {
            served.insert(peer.port, Served { thread, conn, moves: false, heard: 0, said: 0 });
            if self.r.chance(0.3) {
                break;
            }
        }
    }

    /// A client reads and answers on one of its connections.
    fn serve(&mut self, at: usize) {
        let Life { client, served, .. } = &mut self.lives[at];
        let ports: Vec<u16> = served.keys().copied().collect();
        if ports.is_empty() {
            return;
        }
        let port = self.r.pick(&ports);
        let of = served.get_mut(&port).expect("it is served");
        if of.moves {
            let Some(moved) = self.wire.server.client(*client, of.thread).released(of.conn) else { return };
            of.thread = 1 - of.thread;
            of.conn =
                self.wire.server.client(*client, of.thread).adopt(moved).map_err(|(e, _)| e).expect("there is room");
            of.moves = false;
            self.moves += 1;
        }
        let s = self.wire.server.client(*client, of.thread);
        if self.r.chance(0.15) {
            // One that was reset stays where it is.
            of.moves = s.release(of.conn).is_ok();
            return;
        }
        if self.r.chance(0.7) {
            match read(s, of.conn) {
                Ok(bytes) => {
                    assert!(
                        bytes.iter().enumerate().all(|(n, b)| *b == byte(port, false, of.heard + n)),
                        "a wrong byte of {port} after {}",
                        of.heard
                    );
                    of.heard += bytes.len();
                    if bytes.is_empty() && self.r.chance(0.5) {
                        s.close(of.conn).expect("it is open");
                        served.remove(&port);
                        return;
                    }
                }
                Err(e) => assert!(matches!(e, Errno::EAGAIN | Errno::ECONNRESET), "{e:?}"),
            }
        }
        let len = self.r.below(5000) as usize;
        let answer: Vec<u8> = (of.said..of.said + len).map(|n| byte(port, true, n)).collect();
        if let Ok(n) = s.write(of.conn, &answer, self.r.chance(0.2)) {
            of.said += n;
        }
    }

    fn ask(&mut self) {
        if self.askers.len() < MOST && self.r.chance(0.4) {
            let id = self.wire.connect();
            let port = self.wire.peer.sockets().local(id).map_or(0, |at| at.port);
            self.askers.push(Asker { id, port, said: 0, heard: 0, over: false });
            return;
        }
        let Some(at) = (!self.askers.is_empty()).then(|| self.r.below(self.askers.len() as u64) as usize) else {
            return;
        };
        let a = &mut self.askers[at];
        let s = self.wire.peer.sockets();
        if !a.over && self.r.chance(0.6) {
            let len = self.r.below(4000) as usize;
            let text: Vec<u8> = (a.said..a.said + len).map(|n| byte(a.port, false, n)).collect();
            if let Ok(n) = s.write(a.id, &text, false) {
                a.said += n;
            }
            if self.r.chance(0.1) {
                a.over = s.shutdown(a.id, socket::Shutdown::Write).is_ok();
            }
        }
        self.hear(at);
    }

    /// What a peer hears; it goes where that was the end.
    fn hear(&mut self, at: usize) {
        let a = &mut self.askers[at];
        let s = self.wire.peer.sockets();
        if s.readiness(a.id).is_ok_and(|b| b & bits::IN == 0) {
            return;
        }
        let ended = match read(s, a.id) {
            Ok(bytes) => {
                assert!(
                    bytes.iter().enumerate().all(|(n, b)| *b == byte(a.port, true, a.heard + n)),
                    "a wrong byte to {} after {}",
                    a.port,
                    a.heard
                );
                a.heard += bytes.len();
                bytes.is_empty()
            }
            Err(Errno::EAGAIN) => false,
            Err(e) => {
                // Nobody is reset but those whose client has died, or where nobody listens.
                let served = self.lives.iter().any(|life| life.served.contains_key(&a.port));
                assert!(!served, "{} was reset ({e:?}), and its client lives", a.port);
                true
            }
        };
        if ended {
            s.close(a.id).expect("it is open");
            let port = a.port;
            self.askers.swap_remove(at);
            self.orphaned.retain(|other| *other != port);
            self.done += 1;
        }
    }

    fn step(&mut self) {
        match self.r.below(100) {
            0..4 if self.lives.len() < 4 => self.begin(),
            4..6 if !self.lives.is_empty() => {
                let at = self.r.below(self.lives.len() as u64) as usize;
                self.end(at);
            }
            6..8 if !self.lives.is_empty() => {
                let at = self.r.below(self.lives.len() as u64) as usize;
                let life = &mut self.lives[at];
                life.stopped = !life.stopped;
                self.wire.server.stop(life.client, life.stopped);
            }
            8..50 => self.ask(),
            50..90 if !self.lives.is_empty() => {
                let at = self.r.below(self.lives.len() as u64) as usize;
                if !self.lives[at].stopped {
                    self.accept(at);
                    self.serve(at);
                }
            }
            90..95 => {
                let ms = 1 + self.r.below(50);
                self.wire.pass(ms);
            }
            _ => {}
        }
        if self.r.chance(0.7) {
            self.wire.settle();
        }
    }

    /// All goes on until everybody has heard everything, and then nothing is left.
    fn run(mut self) -> [usize; 3] {
        self.begin();
        for _ in 0..STEPS {
            self.step();
        }
        for life in &mut self.lives {
            life.stopped = false;
            self.wire.server.stop(life.client, false);
        }
        for a in &mut self.askers {
            a.over |= self.wire.peer.sockets().shutdown(a.id, socket::Shutdown::Write).is_ok();
        }
        for round in 0.. {
            assert!(round < 500, "{} are still there", self.askers.len());
            self.wire.pass(10);
            for at in 0..self.lives.len() {
                (0..4).for_each(|_| self.accept(at));
                for _ in 0..self.lives[at].served.len() {
                    self.serve(at);
                }
            }
            for at in (0..self.askers.len()).rev() {
                self.hear(at);
                // Whoever was accepted by one that is dead, or by nobody, has heard a reset, or is about to.
                if self.lives.is_empty() && at < self.askers.len() {
                    self.wire.peer.sockets().abort(self.askers[at].id).expect("it is open");
                    self.askers.swap_remove(at);
                }
            }
            if self.askers.is_empty() {
                break;
            }
        }
        for at in (0..self.lives.len()).rev() {
            self.end(at);
        }
        self.wire.is_clean();
        [self.kills, self.done, self.moves]
    }
}

#[test]
fn whoever_lives_serves_and_nobody_leaves_anything() {
    let runs = testing::seeds("sim --test clients", 40, testing::cores(), |seed| World::new(seed).run());
    let counts = [0, 1, 2].map(|n| runs.iter().map(|counts| counts[n]).sum::<usize>());
    let [kills, done, moves] = counts;
    let many = kills > 5 * runs.len() && done > 5 * runs.len() && moves > 2 * runs.len();
    assert!(runs.len() == 1 || many, "{kills} kills, {done} connections, {moves} moved");
}

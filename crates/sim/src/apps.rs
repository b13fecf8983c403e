//! Applications as state machines over events and jobs: a sender of a known pattern, an echo.

use std::collections::HashMap;

use mem::Chain;
use stack::channel::{CloseMode, ConnId, Endpoint, Event, Failure, Job, ListenerId, Token};

use crate::host::Host;

/// Byte `at` of stream `seed`.
pub fn pattern(seed: u64, at: u64) -> u8 {
    let x = (at / 8).wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((x ^ (x >> 29)) >> ((at % 8) * 8)) as u8
}

/// FNV-1a, for comparing streams.
pub fn digest(seed: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(seed, |h, b| (h ^ *b as u64).wrapping_mul(0x100_0000_01b3))
}

/// How a sender's connection went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Under way.
    Running,
    /// Every byte came back and both directions were closed.
    Complete,
    /// It ended by error.
    Failed(Failure),
}

/// Opens a connection, sends `total` bytes of a pattern, half-closes, and checks that they all come back.
pub struct Sender {
    token: Token,
    conn: Option<ConnId>,
    connected: bool,
    seed: u64,
    total: u64,
    sent: u64,
    acked: u64,
    received: u64,
    unreported: u32,
    shut: bool,
    window: u64,
    chunk: usize,
    /// How it went.
    pub outcome: Outcome,
}

impl Sender {
    /// Starts the connection on `host`.
    pub fn start(host: &mut Host, token: u32, remote: Endpoint, total: u64, seed: u64) -> Sender {
        let any = if remote.addr.is_v4() { wire::Addr::UNSPECIFIED_V4 } else { wire::Addr::UNSPECIFIED_V6 };
        let local = Endpoint { addr: any, port: 0 };
        host.job(Job::Connect { token: Token(token), local, remote, receive_buffer: 0 });
        Sender {
            token: Token(token),
            conn: None,
            connected: false,
            seed,
            total,
            sent: 0,
            acked: 0,
            received: 0,
            unreported: 0,
            shut: false,
            window: 256 * 1024,
            chunk: 9 + (seed as usize * 7919) % 9000,
            outcome: Outcome::Running,
        }
    }

    /// Whether `event` is this sender's; takes it if so.
    pub fn on_event(&mut self, host: &mut Host, event: Event) -> Option<Event> {
        let mine = |c: &ConnId| Some(*c) == self.conn;
        match event {
            Event::Opened { token, conn, .. } if token == self.token => self.conn = Some(conn),
            Event::Refused { token, failure } if token == self.token => self.outcome = Outcome::Failed(failure),
            Event::Connected { conn } if mine(&conn) => self.connected = true,
            Event::Acked { conn, bytes } if mine(&conn) => self.acked += bytes as u64,
            Event::Data { conn, mut chain } if mine(&conn) => {
                let mut buf = vec![0; chain.len()];
                let n = chain.read(&mut host.side, &mut buf);
                assert_eq!(n, buf.len());
                for (i, b) in buf.iter().enumerate() {
                    let at = self.received + i as u64;
                    assert_eq!(*b, pattern(self.seed, at), "seed {}: byte {at} differs", self.seed);
                }
                self.received += n as u64;
                self.unreported += n as u32;
                assert!(self.received <= self.sent, "more came back than was sent");
                host.job(Job::Consumed { conn, bytes: core::mem::take(&mut self.unreported) });
            }
            Event::Fin { conn } if mine(&conn) => {
                assert_eq!(self.received, self.total, "seed {}: FIN before the last byte", self.seed);
                self.outcome = Outcome::Complete;
                host.job(Job::Close { conn, mode: CloseMode::Graceful });
                self.conn = None;
            }
            Event::Failed { conn, failure } if mine(&conn) => {
                self.outcome = Outcome::Failed(failure);
                host.job(Job::Close { conn, mode: CloseMode::Graceful });
                self.conn = None;
            }
            other => return Some(other),
        }
        None
    }

    /// Writes what the send window takes.
    pub fn poll(&mut self, host: &mut Host) {
        let Some(conn) = self.conn.filter(|_| self.connected) else { return };
        // Reports of acknowledged bytes come in quarters; what came back was certainly acknowledged.
        let acked = self.acked.max(self.received);
        while self.sent < self.total && self.sent - acked < self.window {
            let n = (self.total - self.sent).min(self.chunk as u64).min(self.window) as usize;
            let bytes: Vec<u8> = (0..n as u64).map(|i| pattern(self.seed, self.sent + i)).collect();
            let mut chain = Chain::default();
            let took = chain.push_slice(&mut host.side, &bytes);
            if took == 0 {
                return;
            }
            self.sent += took as u64;
            host.job(Job::Write { conn, chain, more: false });
            if took < n {
                return;
            }
        }
        if self.sent == self.total && !self.shut {
            self.shut = true;
            host.job(Job::Shutdown { conn });
        }
    }
}

/// Sends back what it receives, and closes after the peer.
#[derive(Default)]
pub struct Echo {
    listener: Option<ListenerId>,
    conns: HashMap<ConnId, EchoConn>,
    /// Connections accepted.
    pub accepted: usize,
}

#[derive(Default)]
struct EchoConn {
    fin: bool,
}

impl Echo {
    /// Listens on `local`.
    pub fn start(host: &mut Host, local: Endpoint) -> Echo {
        host.job(Job::Listen {
            token: Token(u32::MAX),
            local,
            backlog: 1024,
            v6_only: false,
            reuse_port: false,
            receive_buffer: 0,
        });
        Echo::default()
    }

    /// Connections open now.
    pub fn open(&self) -> usize {
        self.conns.len()
    }

    /// Takes one event.
    pub fn on_event(&mut self, host: &mut Host, event: Event) {
        match event {
            Event::Listening { listener, .. } => self.listener = Some(listener),
            Event::Refused { failure, .. } => panic!("listen: {failure:?}"),
            Event::Accepted { listener, conn, .. } => {
                assert_eq!(Some(listener), self.listener);
                self.accepted += 1;
                self.conns.insert(conn, EchoConn::default());
                host.job(Job::Taken { listener, count: 1 });
            }
            Event::Data { conn, chain } => {
                assert!(self.conns.contains_key(&conn), "data for a connection that was not accepted");
                let bytes = chain.len() as u32;
                host.job(Job::Write { conn, chain, more: false });
                host.job(Job::Consumed { conn, bytes });
            }
            Event::Fin { conn } => {
                let Some(c) = self.conns.get_mut(&conn) else { panic!("FIN for nobody") };
                assert!(!c.fin, "a second FIN");
                c.fin = true;
                self.conns.remove(&conn);
                host.job(Job::Close { conn, mode: CloseMode::Graceful });
            }
            Event::Failed { conn, .. } => {
                self.conns.remove(&conn);
                host.job(Job::Close { conn, mode: CloseMode::Graceful });
            }
            Event::Acked { .. }
            | Event::Connected { .. }
            | Event::Closed { .. }
            | Event::Sent { .. }
            | Event::Room { .. }
            | Event::Urgent { .. } => {}
            Event::Opened { .. } | Event::Info { .. } => panic!("not asked for"),
        }
    }
}

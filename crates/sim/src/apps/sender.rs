//! Sends a pattern to an echo and checks what comes back.

use mem::Chain;
use protocol::{CloseMode, ConnId, Endpoint, Event, Failure, Job, Token};

use super::pattern;
use crate::host::Host;

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
            Event::Data { conn, mut chain, .. } if mine(&conn) => {
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
            host.job(Job::Write { conn, chain, more: false, close: false });
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

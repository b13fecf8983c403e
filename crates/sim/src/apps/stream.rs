//! One end of a connection: writes a pattern, verifies the other end's, and remembers what happened.

use mem::Chain;
use protocol::{CloseMode, ConnId, Event, Failure, Job};

use super::pattern;
use crate::host::Host;

/// One end of a connection.
#[derive(Debug)]
pub struct Stream {
    conn: ConnId,
    out_seed: u64,
    in_seed: u64,
    /// Bytes that may be written and not acknowledged.
    window: u64,
    /// The handshake is done.
    pub connected: bool,
    /// Bytes written.
    pub written: u64,
    acked: u64,
    /// FIN follows what was written.
    pub shut: bool,
    /// Bytes that arrived.
    pub received: u64,
    /// Of those, not yet read: they occupy the receive buffer.
    pub unread: u64,
    /// The other end has finished.
    pub fin: bool,
    /// It ended by error.
    pub failure: Option<Failure>,
    /// The application gave it back, by whatever means.
    pub closed: bool,
    /// It was aborted, or closed with bytes unread.
    pub aborted: bool,
    /// What lingering came to.
    pub lingered: Option<Result<(), Failure>>,
    lingering: bool,
}

impl Stream {
    /// The end `conn`, which writes the pattern of `out_seed` and reads that of `in_seed`, `window` bytes ahead.
    pub fn new(conn: ConnId, connected: bool, out_seed: u64, in_seed: u64, window: u64) -> Stream {
        Stream {
            conn,
            out_seed,
            in_seed,
            window,
            connected,
            written: 0,
            acked: 0,
            shut: false,
            received: 0,
            unread: 0,
            fin: false,
            failure: None,
            closed: false,
            aborted: false,
            lingered: None,
            lingering: false,
        }
    }

    /// Its number.
    pub fn conn(&self) -> ConnId {
        self.conn
    }

    /// Nothing more will be heard of it.
    pub fn over(&self) -> bool {
        self.closed && (!self.lingering || self.lingered.is_some())
    }

    /// Takes an event about it. Panics when a byte is not the one expected.
    pub fn on_event(&mut self, host: &mut Host, event: Event) {
        match event {
            Event::Closed { failure, .. } => {
                assert!(self.lingering && self.lingered.is_none(), "nobody asked how closing went");
                self.lingered = Some(failure.map_or(Ok(()), Err));
            }
            Event::Data { chain, .. } if self.closed => chain.free(&mut host.side),
            _ if self.closed => {}
            Event::Connected { .. } => self.connected = true,
            Event::Acked { bytes, .. } => {
                self.acked += bytes as u64;
                assert!(self.acked <= self.written, "{} of {} bytes acknowledged", self.acked, self.written);
            }
            Event::Sent { .. } | Event::Urgent { .. } => {}
            Event::Room { bytes, .. } => self.window = bytes as u64,
            Event::Data { chain, .. } => self.verify(host, chain),
            Event::Fin { .. } => {
                assert!(!self.fin && self.failure.is_none(), "FIN after the end");
                self.fin = true;
            }
            Event::Failed { failure, .. } => {
                assert!(self.failure.is_none(), "failed twice");
                self.failure = Some(failure);
                self.close(host, CloseMode::Graceful);
            }
            other => panic!("not about a connection that is open: {other:?}"),
        }
    }

    fn verify(&mut self, host: &mut Host, mut chain: Chain) {
        assert!(!self.fin && self.failure.is_none(), "data after the end");
        let mut buf = vec![0; chain.len()];
        let n = chain.read(&mut host.side, &mut buf);
        assert_eq!(n, buf.len());
        for (i, b) in buf.iter().enumerate() {
            let at = self.received + i as u64;
            assert_eq!(*b, pattern(self.in_seed, at), "byte {at} differs");
        }
        self.received += n as u64;
        self.unread += n as u64;
    }

    /// Reads at most `bytes` of what has arrived.
    pub fn read(&mut self, host: &mut Host, bytes: u64) {
        let n = self.unread.min(bytes);
        if n > 0 && !self.closed {
            self.unread -= n;
            host.job(Job::Consumed { conn: self.conn, bytes: n as u32 });
        }
    }

    /// Writes until `total` bytes are written or the window is full, `chunk` at a time; whether all are.
    pub fn write_to(&mut self, host: &mut Host, total: u64, chunk: usize, more: bool) -> bool {
        assert!(!self.shut || total <= self.written, "a write after the end");
        while self.connected && self.written < total && self.written - self.acked < self.window {
            let room = self.window - (self.written - self.acked);
            let n = (total - self.written).min(chunk as u64).min(room);
            let bytes: Vec<u8> = (0..n).map(|i| pattern(self.out_seed, self.written + i)).collect();
            let mut chain = Chain::default();
            let took = chain.push_slice(&mut host.side, &bytes);
            assert_eq!(took as u64, n, "the pool is dry");
            self.written += n;
            host.job(Job::Write { conn: self.conn, chain, more: more && self.written < total, close: false });
        }
        self.written >= total
    }

    /// FIN after what was written.
    pub fn shutdown(&mut self, host: &mut Host) {
        if !self.shut && !self.closed {
            self.shut = true;
            host.job(Job::Shutdown { conn: self.conn });
        }
    }

    /// Gives it back.
    pub fn close(&mut self, host: &mut Host, mode: CloseMode) {
        if !self.closed {
            self.closed = true;
            self.shut = true;
            self.lingering = mode == CloseMode::Report;
            self.aborted |= mode == CloseMode::Unread;
            host.job(Job::Close { conn: self.conn, mode });
        }
    }

    /// RST.
    pub fn abort(&mut self, host: &mut Host) {
        if !self.closed {
            self.closed = true;
            self.aborted = true;
            host.job(Job::Abort { conn: self.conn });
        }
    }
}

//! A lane whose stack is the test: it takes jobs off one ring and puts events on the other.
#![allow(dead_code)]

use core::net::IpAddr;

use mem::ring::{Consumer, Message, Producer, ring};
use mem::{Chain, Pool, PoolConfig, Side};
use protocol::{CloseMode, ConnId, Endpoint, Event, Job, ListenerId, Token};
use socket::{Errno, ListenOptions, SockId, SocketConfig, Sockets};
use wire::Addr;

pub const SEND: u32 = 12_000;
pub const RECEIVE: u32 = 64_000;

pub fn at(port: u16) -> Endpoint {
    Endpoint { addr: Addr::from(IpAddr::from([10, 0, 0, 1])), port }
}

pub fn at6(port: u16) -> Endpoint {
    Endpoint { addr: Addr::from(IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1])), port }
}

pub struct Lane {
    pub s: Sockets,
    /// The stack's.
    pub side: Side,
    pub jobs: Consumer,
    pub events: Producer,
}

impl Lane {
    pub fn new() -> Lane {
        Lane::with(100, 4096, 256)
    }

    pub fn with(max_sockets: u32, chunks: u32, slots: usize) -> Lane {
        let (side, app) = Pool::new(&PoolConfig { chunks, ..PoolConfig::default() }).unwrap();
        let (to_stack, jobs) = ring(slots).unwrap();
        let (events, from_stack) = ring(1024).unwrap();
        let config =
            SocketConfig { max_sockets, send_buffer: SEND, receive_buffer: RECEIVE, tcp: tcp::Config::default() };
        Lane { s: Sockets::new(config, app, to_stack, from_stack), side, jobs, events }
    }

    /// Everything asked for, in order.
    pub fn jobs(&mut self) -> Vec<Job> {
        self.s.flush();
        let mut jobs = Vec::new();
        while let Some(m) = self.jobs.pop() {
            match Job::from_message(m).expect("a job") {
                // Taken apart: what is asked for is the same.
                Job::Write { conn, chain, more, close: true } => {
                    jobs.push(Job::Write { conn, chain, more, close: false });
                    jobs.push(Job::Close { conn, mode: CloseMode::Graceful });
                }
                job => jobs.push(job),
            }
        }
        self.jobs.release();
        jobs
    }

    /// The one job asked for.
    pub fn job(&mut self) -> Job {
        let mut jobs = self.jobs();
        assert_eq!(jobs.len(), 1, "{jobs:?}");
        jobs.remove(0)
    }

    pub fn no_job(&mut self) {
        let jobs = self.jobs();
        assert!(jobs.is_empty(), "{jobs:?}");
    }

    /// The bytes of the one write asked for.
    pub fn written(&mut self) -> (ConnId, Vec<u8>, bool) {
        match self.job() {
            Job::Write { conn, chain, more, .. } => (conn, self.bytes(chain), more),
            other => panic!("{other:?}"),
        }
    }

    pub fn bytes(&mut self, mut chain: Chain) -> Vec<u8> {
        let mut out = vec![0; chain.len()];
        chain.read(&mut self.side, &mut out);
        chain.free(&mut self.side);
        out
    }

    pub fn message(&mut self, message: Message) {
        assert!(self.events.push(message).is_ok(), "the test's ring is full");
        self.events.publish();
        self.s.process();
    }

    pub fn tell(&mut self, event: Event) {
        self.message(event.into_message());
    }

    /// Everything asked for, in order and as it is asked; writes and closes in short.
    pub fn raw_jobs(&mut self) -> Vec<String> {
        self.s.flush();
        let mut jobs = Vec::new();
        while let Some(m) = self.jobs.pop() {
            jobs.push(match Job::from_message(m).expect("a job") {
                Job::Write { conn, chain, close, .. } => {
                    chain.free(&mut self.side);
                    format!("write {}{}", conn.0, if close { " and close" } else { "" })
                }
                Job::Close { conn, mode: CloseMode::Graceful } => format!("close {}", conn.0),
                job => format!("{job:?}"),
            });
        }
        self.jobs.release();
        jobs
    }

    pub fn chain(&mut self, bytes: &[u8]) -> Chain {
        let mut chain = Chain::default();
        assert_eq!(chain.push_slice(&mut self.side, bytes), bytes.len());
        chain
    }

    pub fn data(&mut self, conn: u32, bytes: &[u8]) {
        let chain = self.chain(bytes);
        self.tell(Event::Data { conn: ConnId(conn), chain, fin: false });
    }

    pub fn token(&mut self) -> Token {
        match self.job() {
            Job::Connect { token, .. } | Job::Listen { token, .. } | Job::Query { token, .. } => token,
            other => panic!("{other:?}"),
        }
    }

    /// A socket that has asked to connect, with the token of its request.
    pub fn connecting(&mut self) -> (SockId, Token) {
        let id = self.s.socket(false).unwrap();
        assert_eq!(self.s.connect(id, at(80)), Err(Errno::EINPROGRESS));
        let token = self.token();
        (id, token)
    }

    /// A connected socket.
    pub fn connected(&mut self, conn: u32) -> SockId {
        let (id, token) = self.connecting();
        self.tell(Event::Opened { token, conn: ConnId(conn), local: at(4000) });
        self.tell(Event::Connected { conn: ConnId(conn) });
        assert_eq!(self.s.connect_result(id), Some(Ok(())));
        id
    }

    /// An open listener on port 80.
    pub fn listening(&mut self, listener: u32) -> SockId {
        let id = self.s.socket(false).unwrap();
        self.s.bind(id, at(80)).unwrap();
        self.s.listen(id, ListenOptions { backlog: 16 }).unwrap();
        let token = self.token();
        self.tell(Event::Listening { token, listener: ListenerId(listener), port: 80 });
        assert_eq!(self.s.listen_result(id), Some(Ok(())));
        id
    }

    pub fn arrive(&mut self, listener: u32, conn: u32) {
        let (listener, conn) = (ListenerId(listener), ConnId(conn));
        self.tell(Event::Accepted {
            listener,
            conn,
            local: at(80),
            remote: at(5000 + conn.0 as u16),
            chain: Chain::default(),
        });
    }

    /// Closes everything and checks that every chunk has come back and every descriptor is free.
    pub fn end(mut self) {
        for id in 0..10_000 {
            if self.s.close(SockId(id)).is_ok() {
                self.s.linger_give_up(SockId(id));
            }
        }
        self.s.process();
        loop {
            let jobs = self.jobs();
            if jobs.is_empty() {
                break;
            }
            for job in jobs {
                match job {
                    Job::Write { chain, .. } => chain.free(&mut self.side),
                    // What was asked for and never answered keeps its number.
                    _ => continue,
                }
            }
        }
        assert_eq!(self.side.outstanding(self.s.side()), 0, "chunks leaked");
    }
}

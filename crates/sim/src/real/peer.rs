//! The application at an end of a link, over our stack or over the kernel's sockets: sends so many bytes of a random
//! sequence, and keeps count and digest of what comes.

use core::time::Duration;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use ::io::impair::Random;
use mem::Chain;
use protocol::{CloseMode, ConnId, Endpoint, Event, Job, Token};
use rustix::net::{self, AddressFamily, SocketType};
use sha2::{Digest, Sha256};
use wire::Addr;

use super::kernel::Kernel;
use crate::host::Host;

const PORT: u16 = 5001;
const WRITE: usize = 64 * 1024;

/// What one end does.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// Whom it connects to; it listens otherwise.
    pub connect: Option<IpAddr>,
    /// Bytes it sends; `u64::MAX` until it is told to stop.
    pub send: u64,
    /// Draws them.
    pub seed: u64,
    /// Over IPv6.
    pub v6: bool,
}

/// How far it is, seen from outside.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes received.
    pub received: AtomicU64,
    /// It has sent and received everything, or failed.
    pub done: AtomicBool,
    /// It shall end now.
    pub stop: AtomicBool,
    /// SHA-256 of what it sent and of what it received, or why it failed; set when done.
    pub result: Mutex<Option<Result<[Vec<u8>; 2], String>>>,
}

impl Progress {
    fn finish(&self, result: Result<[Vec<u8>; 2], String>) {
        *self.result.lock().expect("nobody panics with it") = Some(result);
        self.done.store(true, Ordering::Release);
    }

    /// Whether it is done.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Where the bytes come from.
struct Source {
    random: Random,
    left: u64,
    digest: Sha256,
}

impl Source {
    fn new(transfer: &Transfer) -> Source {
        Source { random: Random::new(transfer.seed), left: transfer.send, digest: Sha256::new() }
    }

    /// The next bytes to send; empty at the end.
    fn next(&mut self) -> Vec<u8> {
        let n = self.left.min(WRITE as u64) as usize;
        let mut bytes = vec![0; n];
        for word in bytes.chunks_mut(8) {
            let bits = self.random.bits().to_le_bytes();
            word.copy_from_slice(&bits[..word.len()]);
        }
        if self.left != u64::MAX {
            self.left -= n as u64;
            // What has no end is measured, not compared.
            self.digest.update(&bytes);
        }
        bytes
    }
}

/// The application over our stack.
pub struct Peer {
    transfer: Transfer,
    progress: Arc<Progress>,
    source: Source,
    digest: Sha256,
    asked: bool,
    conn: Option<ConnId>,
    connected: bool,
    window: u64,
    queued: u64,
    shut: bool,
    fin: bool,
}

impl Peer {
    /// An application that does `transfer`.
    pub fn new(transfer: Transfer) -> (Peer, Arc<Progress>) {
        let progress = Arc::new(Progress::default());
        let peer = Peer {
            source: Source::new(&transfer),
            transfer,
            progress: progress.clone(),
            digest: Sha256::new(),
            asked: false,
            conn: None,
            connected: false,
            window: 0,
            queued: 0,
            shut: false,
            fin: false,
        };
        (peer, progress)
    }

    pub(super) fn turn(&mut self, host: &mut Host) {
        if !self.asked {
            self.asked = true;
            self.window = host.config.stack.tcp.send_buffer as u64;
            self.open(host);
        }
        while let Some(event) = host.event() {
            self.on_event(host, event);
        }
        self.write(host);
        if let Some(conn) = self.conn.filter(|_| self.shut && self.fin) {
            self.conn = None;
            host.job(Job::Close { conn, mode: CloseMode::Report });
        }
    }

    fn open(&mut self, host: &mut Host) {
        let any = if self.transfer.v6 { Addr::UNSPECIFIED_V6 } else { Addr::UNSPECIFIED_V4 };
        let (token, receive_buffer) = (Token(0), 0);
        host.job(match self.transfer.connect {
            Some(to) => Job::Connect {
                token,
                local: Endpoint { addr: any, port: 0 },
                remote: Endpoint { addr: to.into(), port: PORT },
                receive_buffer,
            },
            None => Job::Listen {
                token,
                local: Endpoint { addr: any, port: PORT },
                backlog: 1,
                v6_only: false,
                reuse_port: false,
                receive_buffer,
            },
        });
    }

    fn on_event(&mut self, host: &mut Host, event: Event) {
        match event {
            Event::Opened { conn, .. } => self.conn = Some(conn),
            Event::Accepted { listener, conn, .. } => {
                (self.conn, self.connected) = (Some(conn), true);
                host.job(Job::Taken { listener, count: 1 });
            }
            Event::Connected { .. } => self.connected = true,
            Event::Room { bytes, .. } => self.window = bytes as u64,
            Event::Acked { bytes, .. } => self.queued -= bytes as u64,
            Event::Data { conn, mut chain, .. } => {
                let mut bytes = vec![0; chain.len()];
                chain.read(&mut host.side, &mut bytes);
                self.digest.update(&bytes);
                self.progress.received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                host.job(Job::Consumed { conn, bytes: bytes.len() as u32 });
            }
            Event::Fin { .. } => self.fin = true,
            // The kernel does not listen yet.
            Event::Failed { conn, .. } if !self.connected => {
                host.job(Job::Close { conn, mode: CloseMode::Graceful });
                self.conn = None;
                self.open(host);
            }
            Event::Failed { failure, .. }
            | Event::Refused { failure, .. }
            | Event::Closed { failure: Some(failure), .. } => {
                self.progress.finish(Err(format!("{failure:?}")));
            }
            Event::Released { .. } => panic!("nothing was released"),
            Event::Closed { failure: None, .. } => {
                let digests = [&self.source.digest, &self.digest].map(|d| d.clone().finalize().to_vec());
                self.progress.finish(Ok(digests));
            }
            _ => {}
        }
    }

    fn write(&mut self, host: &mut Host) {
        let Some(conn) = self.conn.filter(|_| self.connected && !self.shut) else { return };
        while self.source.left > 0 && self.queued < self.window && !self.progress.stopped() {
            let bytes = self.source.next();
            let mut chain = Chain::default();
            let took = chain.push_slice(&mut host.side, &bytes);
            assert_eq!(took, bytes.len(), "the pool is dry");
            self.queued += took as u64;
            host.job(Job::Write { conn, chain, more: false, close: false });
        }
        if self.source.left == 0 {
            self.shut = true;
            host.job(Job::Shutdown { conn });
        }
    }
}

impl Kernel {
    /// The same application over this kernel's sockets.
    pub fn peer(&self, transfer: Transfer) -> io::Result<Arc<Progress>> {
        let progress = Arc::new(Progress::default());
        let seen = progress.clone();
        let (ready, listening) = std::sync::mpsc::channel();
        let _: JoinHandle<()> = self.spawn(move || {
            let result = open(&transfer, &ready, &seen).and_then(|s| converse(s, &transfer, &seen));
            seen.finish(result.map_err(|e| e.to_string()));
        })?;
        // One that connects says so at once, one that listens when it does.
        let _ = listening.recv();
        Ok(progress)
    }
}

fn open(transfer: &Transfer, ready: &std::sync::mpsc::Sender<()>, seen: &Progress) -> io::Result<TcpStream> {
    let any: IpAddr = if transfer.v6 { [0u16; 8].into() } else { [0u8; 4].into() };
    let family = if transfer.v6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = net::socket(family, SocketType::STREAM, None)?;
    // Before there is a connection: another algorithm might have left its traces, and a namespace's default can only be
    // one that the machine allows everyone.
    net::sockopt::set_tcp_congestion(&socket, "cubic")?;
    let stream = match transfer.connect {
        Some(to) => {
            let _ = ready.send(());
            net::connect(&socket, &SocketAddr::new(to, PORT))?;
            TcpStream::from(socket)
        }
        None => {
            net::bind(&socket, &SocketAddr::new(any, PORT))?;
            net::listen(&socket, 1)?;
            let _ = ready.send(());
            let listener = TcpListener::from(socket);
            listener.set_nonblocking(true)?;
            loop {
                match listener.accept() {
                    Ok((stream, _)) => break stream,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock && !seen.stopped() => {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Err(e) => return Err(e),
                }
            }
        }
    };
    stream.set_nonblocking(false)?;
    // So that a request to stop is noticed.
    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    stream.set_write_timeout(Some(Duration::from_millis(200)))?;
    Ok(stream)
}

/// Sends and receives at once.
fn converse(stream: TcpStream, transfer: &Transfer, seen: &Progress) -> io::Result<[Vec<u8>; 2]> {
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| send(&stream, Source::new(transfer), seen));
        let received = receive(&stream, seen);
        let sent = sending.join().map_err(|_| io::Error::other("a thread panicked"))??;
        Ok([sent, received?])
    })
}

fn send(mut stream: &TcpStream, mut source: Source, seen: &Progress) -> io::Result<Vec<u8>> {
    loop {
        let bytes = source.next();
        if bytes.is_empty() || seen.stopped() {
            break;
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() && !seen.stopped() {
            match stream.write(rest) {
                Ok(n) => rest = &rest[n..],
                Err(e) if transient(&e) => {}
                Err(e) => return Err(e),
            }
        }
    }
    stream.shutdown(Shutdown::Write)?;
    Ok(source.digest.finalize().to_vec())
}

fn receive(mut stream: &TcpStream, seen: &Progress) -> io::Result<Vec<u8>> {
    let (mut digest, mut buf) = (Sha256::new(), vec![0; WRITE]);
    while !seen.stopped() {
        match stream.read(&mut buf) {
            Ok(0) => break,
            Ok(n) => {
                digest.update(&buf[..n]);
                seen.received.fetch_add(n as u64, Ordering::Relaxed);
            }
            Err(e) if transient(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(digest.finalize().to_vec())
}

fn transient(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

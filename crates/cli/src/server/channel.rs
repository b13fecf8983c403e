//! The benchmark server on completion channels, as MegaPipe's programs are written (Han, 2012, listing 3.1): one program for
//! the kernel's engine and a lane's.

use crate::http::fixed::Fixed;
use crate::http::head::{self, Body, Parsed};
use crate::server::Counts;
use crate::sys::Stop;
use corelane::channel::{Amount, Buffer, Channel, Command, Data, Event, Handle, Options, Received, Socket};
use std::io;
use std::time::Duration;

/// Longest sleep, so that a stop is noticed.
const NAP: Duration = Duration::from_millis(100);
/// The listener's cookie.
const LISTENER: u64 = u64::MAX;

/// MegaPipe's three contributions, which the thesis takes apart (table 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Each core has a part of the listener, with an accept queue of its own; otherwise all share one.
    pub partitioned: bool,
    /// Requests are handed over together; otherwise each by itself.
    pub batched: bool,
    /// Connections are lightweight sockets; otherwise descriptors of the process.
    pub light: bool,
}

impl Parts {
    /// All of them.
    pub const ALL: Parts = Parts { partitioned: true, batched: true, light: true };

    /// For a channel.
    pub fn options(self) -> Options {
        let alone = Options { batch: 1, accept_ahead: 0, ..Options::default() };
        if self.batched { Options::default() } else { alone }
    }
}

#[derive(Default)]
struct Connection {
    handle: Option<Handle>,
    /// Received and not answered; empty for requests that come whole.
    input: Vec<u8>,
    /// Its last answer was written.
    closing: bool,
}

struct Server {
    channel: Channel,
    light: bool,
    connections: Vec<Connection>,
    free: Vec<u32>,
    keep: Buffer,
    close: Buffer,
    counts: Counts,
}

/// Answers every request with a body of so many bytes, until stopped; `register` registers the listener, or several parts of it,
/// under the cookie.
pub fn serve(
    mut channel: Channel,
    parts: Parts,
    bytes: usize,
    register: impl FnOnce(&mut Channel, u64) -> io::Result<Vec<Handle>>,
    stop: &Stop,
) -> io::Result<Counts> {
    for listener in register(&mut channel, LISTENER)? {
        channel.accept(listener, Amount::Endless, parts.light)?;
    }
    let fixed = Fixed::new(bytes);
    let shared = |close| Buffer::Shared(fixed.whole(close).into());
    let (keep, close) = (shared(false), shared(true));
    let (connections, free, counts) = (Vec::new(), Vec::new(), Counts::default());
    let mut server = Server { channel, light: parts.light, connections, free, keep, close, counts };
    while !stop.is_set() {
        match server.channel.dispatch(Some(NAP)) {
            Ok(Some(event)) => server.complete(event)?,
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(server.counts)
}

/// The first request of some bytes.
enum First {
    Partial,
    Whole {
        used: usize,
        close: bool,
    },
    /// None, or one with a body: not part of the benchmark.
    Wrong,
}

fn first(bytes: &[u8]) -> First {
    let mut room = head::slots();
    match head::parse(bytes, &mut room) {
        Ok(Parsed::Partial) => First::Partial,
        Ok(Parsed::Whole(head, used)) if head.body() == Ok(Body::Length(0)) => {
            First::Whole { used, close: !head.persists() }
        }
        _ => First::Wrong,
    }
}

impl Server {
    fn complete(&mut self, event: Event) -> io::Result<()> {
        let Event { handle, cookie, command, result, data, .. } = event;
        match (command, result) {
            (Command::Accept, Ok(_)) => {
                if let Data::Accepted(socket, _) = data {
                    self.accepted(socket)?;
                }
                Ok(())
            }
            (Command::Accept, Err(_)) => {
                self.counts.accept_errors += 1;
                self.channel.accept(handle, Amount::Endless, self.light)
            }
            (Command::Recv, Ok(_)) => match data {
                Data::Received(received) => self.received(cookie, received),
                _ => self.end(cookie),
            },
            // The last answer: its disconnect follows.
            (Command::Write, Ok(_)) if self.connections[cookie as usize].closing => Ok(()),
            (Command::Write, Ok(_)) => self.answer(cookie),
            (Command::Disconnect, _) => self.end(cookie),
            (_, Err(_)) if self.connections[cookie as usize].handle.is_none() => Ok(()),
            (_, Err(_)) => {
                self.counts.errors += 1;
                self.end(cookie)
            }
            (Command::Connect | Command::Read, Ok(_)) => Ok(()),
        }
    }

    fn accepted(&mut self, socket: Socket) -> io::Result<()> {
        let at = self.free.pop().unwrap_or_else(|| {
            self.connections.push(Connection::default());
            self.connections.len() as u32 - 1
        });
        let cookie = u64::from(at);
        let handle = match socket {
            Socket::Light(socket) => self.channel.register_light(socket, cookie)?,
            Socket::Fd(fd) => self.channel.register(fd, cookie)?,
        };
        self.counts.connections += 1;
        let connection = &mut self.connections[at as usize];
        connection.handle = Some(handle);
        connection.closing = false;
        connection.input.clear();
        self.channel.recv(handle)
    }

    /// Looks at what came; a request that came alone and whole is not copied.
    fn received(&mut self, cookie: u64, received: Received) -> io::Result<()> {
        let input = &mut self.connections[cookie as usize].input;
        let bytes = self.channel.bytes(&received);
        let first = if input.is_empty() { first(bytes) } else { First::Partial };
        let whole = matches!(first, First::Whole { used, .. } if used == bytes.len());
        if !whole {
            input.extend_from_slice(bytes);
        }
        self.channel.release(received)?;
        match first {
            First::Whole { close, .. } if whole => self.write(cookie, close),
            _ => self.answer(cookie),
        }
    }

    /// Answers the first request of what was received; the next is looked at once the answer has gone.
    fn answer(&mut self, cookie: u64) -> io::Result<()> {
        let connection = &mut self.connections[cookie as usize];
        let Some(handle) = connection.handle else { return Ok(()) };
        match first(&connection.input) {
            First::Partial => self.channel.recv(handle),
            First::Whole { used, close } => {
                connection.input.drain(..used);
                self.write(cookie, close)
            }
            First::Wrong => {
                self.counts.errors += 1;
                self.end(cookie)
            }
        }
    }

    fn write(&mut self, cookie: u64, close: bool) -> io::Result<()> {
        let connection = &mut self.connections[cookie as usize];
        let Some(handle) = connection.handle else { return Ok(()) };
        self.counts.requests += 1;
        connection.closing = close;
        if !close {
            return self.channel.write(handle, self.keep.clone());
        }
        // FIN may ride on the answer.
        self.channel.write(handle, self.close.clone())?;
        self.channel.disconnect(handle)
    }

    fn end(&mut self, cookie: u64) -> io::Result<()> {
        if let Some(handle) = self.connections[cookie as usize].handle.take() {
            self.free.push(cookie as u32);
            // A descriptor comes back, and is closed.
            self.channel.unregister(handle)?;
        }
        Ok(())
    }
}

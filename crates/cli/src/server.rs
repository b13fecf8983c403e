//! Serves HTTP from one thread over any network.
//!
//! A connection is read right after accept and, when its only answer goes out at once, closed without ever being watched:
//! the common short connection costs accept, read, write and close.

use crate::http::output::Sink;
use crate::http::session::{Handler, Next, Outputs, Phase, Session};
use crate::net::{LISTENER, Net, Ready};
use crate::seldom::{self, Seldom};
use crate::sys::Stop;
use crate::timers::Timers;
use linger::{Lingering, Lingers, discard};
use std::io;
use std::time::{Duration, Instant, SystemTime};

/// A server's timeouts and limits.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time to send a whole request head, to stay idle, to take some of an answer, to send more of what is dropped before the connection is
    /// closed: by the numbers [`HEAD`], [`IDLE`], [`WRITE`] and [`LINGER`].
    pub timeouts: [Duration; 4],
    /// Bytes of an answer that a client must take in a second, on the average of each `timeouts[WRITE]`; 0 asks for some only.
    pub least_rate: u64,
    /// Longest time for which input of a refused client is dropped, however often it sends more.
    pub linger: Duration,
    /// How long a stopping server finishes what is in flight.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            // The last, and `linger`, as nginx has them.
            timeouts: [10, 60, 60, 5].map(Duration::from_secs),
            linger: Duration::from_secs(30),
            // As IIS has it (minBytesPerSecond).
            least_rate: 240,
            grace: Duration::from_secs(10),
        }
    }
}

const HEAD: u8 = 0;
const IDLE: u8 = 1;
const WRITE: u8 = 2;
const LINGER: u8 = 3;

/// How long a stopping server waits for the request of a connection that has made none.
const FIRST_REQUEST: Duration = Duration::from_secs(1);
/// The same once it has stopped listening: for the last connections that it took.
const LAST: Duration = Duration::from_millis(100);
/// How long a stopping server that has closed idle connections goes on before it stops listening: many peers take 40 ms to
/// acknowledge that, some more, and it cannot end before they have.
const ACKNOWLEDGED: Duration = Duration::from_millis(100);
/// For handshakes that have begun when the port was given back: what is listened on no longer answers them by a RST.
const HANDSHAKE: Duration = Duration::from_millis(10);
/// How long it goes on in any case after SIGTERM: so long a server that is started right behind the signal may take until it waits for the port, and
/// nothing is refused between the two.
const SUCCESSOR: Duration = Duration::from_millis(500);
/// Longest sleep, so that a stop is noticed.
const NAP: Duration = Duration::from_millis(100);
/// Connections taken before others are served again.
const ACCEPT_BATCH: usize = 256;
const BUFFER: usize = 64 * 1024;

/// What a server did.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Counts {
    /// Connections accepted.
    pub connections: u64,
    /// Requests answered, refusals included.
    pub requests: u64,
    /// Connections ended because the client was too slow.
    pub timeouts: u64,
    /// Connections lost to errors.
    pub errors: u64,
    /// Accepts that failed, for want of descriptors or memory.
    pub accept_errors: u64,
}

impl Counts {
    /// The sum of two.
    pub fn plus(self, other: Counts) -> Counts {
        Counts {
            connections: self.connections + other.connections,
            requests: self.requests + other.requests,
            timeouts: self.timeouts + other.timeouts,
            errors: self.errors + other.errors,
            accept_errors: self.accept_errors + other.accept_errors,
        }
    }
}

struct Connection<S> {
    /// `None` while the place is free.
    stream: Option<S>,
    generation: u32,
    session: Session,
    watched: bool,
    readable: bool,
    /// The peer ended its side: read on to the end.
    ended: bool,
    /// Closed once its client is, or after a time.
    lingering: bool,
    lingers: Lingers,
    /// `session.answered` when the timeout was last set.
    marked: u32,
    /// Bytes of answers that the network took, and how many those were when the timeout was last set.
    taken: u64,
    taken_then: u64,
    /// Was there when the server was asked to stop, and was being answered then.
    older: bool,
    answering: bool,
    /// Since when the rate is measured at which an answer is taken, and `taken` then.
    window: (Instant, u64),
}

impl<S> Connection<S> {
    /// Its name in events.
    fn key(&self, id: u32) -> u64 {
        u64::from(self.generation) << 32 | u64::from(id)
    }
}

/// A server on one thread.
pub struct Server<N: Net, H: Handler> {
    net: N,
    handler: H,
    connections: Vec<Connection<N::Stream>>,
    free: Vec<u32>,
    timers: Timers,
    ready: Vec<Ready>,
    room: Room,
    now: Instant,
    /// Listeners that may still have connections waiting.
    unaccepted: Vec<usize>,
    accept_after: Option<Instant>,
    accept_failures: Seldom,
    limits: Limits,
    lingering: Lingering,
    stopping: bool,
    /// Once it stops: connections that were there before, and those of them that are being answered.
    older: (usize, usize),
    /// What it did.
    pub counts: Counts,
}

/// Memory that connections use in turn.
struct Room {
    input: Vec<u8>,
    scratch: Vec<u8>,
    outputs: Outputs,
}

struct StreamSink<'a, N: Net> {
    net: &'a mut N,
    stream: &'a N::Stream,
    taken: &'a mut u64,
}

impl<N: Net> Sink for StreamSink<'_, N> {
    fn write(&mut self, data: &[u8], more: bool) -> io::Result<usize> {
        let n = self.net.write(self.stream, data, more)?;
        *self.taken += n as u64;
        Ok(n)
    }
}

/// What becomes of a connection after it was worked on.
enum Fate {
    Stay,
    Close,
    Lost,
}

impl<N: Net, H: Handler> Server<N, H> {
    /// A server over a network that listens, with the usual limits.
    pub fn new(net: N, handler: H) -> Server<N, H> {
        Server::with_limits(net, handler, Limits::default())
    }

    /// A server over a network that listens.
    pub fn with_limits(net: N, handler: H, limits: Limits) -> Server<N, H> {
        Server {
            net,
            handler,
            connections: Vec::new(),
            free: Vec::new(),
            timers: Timers::new(&limits.timeouts),
            ready: Vec::new(),
            room: Room { input: vec![0; BUFFER], scratch: vec![0; BUFFER], outputs: Outputs::default() },
            now: Instant::now(),
            unaccepted: Vec::new(),
            accept_after: None,
            accept_failures: Seldom::default(),
            limits,
            lingering: Lingering::default(),
            stopping: false,
            older: (0, 0),
            counts: Counts::default(),
        }
    }

    /// Connections open.
    pub fn open(&self) -> usize {
        self.connections.len() - self.free.len()
    }

    /// Serves until stopped, then finishes what is in flight, for a bounded time.
    ///
    /// New connections are taken until the others have ended, for one request each, so that nobody is refused while a slow
    /// answer goes on, nor while peers acknowledge the end of idle connections. Those that wait between requests are closed at once.
    pub fn run(&mut self, stop: &Stop) -> io::Result<()> {
        let mut reloads = stop.reloads();
        while !stop.is_set() {
            self.turn()?;
            if stop.reloads() != reloads {
                reloads = stop.reloads();
                self.handler.reload();
            }
        }
        self.stopping = true;
        let begun = Instant::now();
        let before = self.open();
        for id in 0..self.connections.len() as u32 {
            self.wind_down(id);
        }
        let closed = self.open() < before;
        // Who interrupts it wants the port; who terminates it may start it again.
        let grace = if stop.signal() == Some(libc::SIGINT) { Duration::ZERO } else { self.limits.grace };
        while self.older.0 > 0 && begun.elapsed() < grace.min(FIRST_REQUEST) {
            self.turn()?;
        }
        while self.older.1 > 0 && begun.elapsed() < grace {
            self.turn()?;
        }
        let longer = match stop.signal() {
            Some(libc::SIGTERM) => SUCCESSOR,
            _ if closed => ACKNOWLEDGED,
            _ => Duration::ZERO,
        };
        while begun.elapsed() < grace.min(longer) {
            self.turn()?;
        }
        self.net.give_ports_back();
        let given = Instant::now();
        while given.elapsed() < self.limits.grace.min(HANDSHAKE) {
            self.turn_within(HANDSHAKE)?;
        }
        self.net.stop_listening();
        self.unaccepted.clear();
        let last = Instant::now();
        let lingers = |c: &Connection<N::Stream>| c.lingering && last.elapsed() < linger::AT_THE_END;
        let goes_on =
            |c: &Connection<N::Stream>| c.stream.is_some() && (lingers(c) || c.session.phase() == Phase::Answer);
        while self.open() > 0
            && begun.elapsed() < self.limits.grace
            && (last.elapsed() < LAST || self.connections.iter().any(goes_on))
        {
            self.turn()?;
        }
        for connection in &mut self.connections {
            if let Some(stream) = connection.stream.take() {
                self.net.abort(stream);
            }
        }
        Ok(())
    }

    /// Lets a connection end after what it is about; closes it where that is nothing.
    fn wind_down(&mut self, id: u32) {
        let connection = &mut self.connections[id as usize];
        if connection.stream.is_none() || connection.lingering {
            return;
        }
        let answers = connection.session.phase() == Phase::Answer;
        if answers {
            connection.session.wind_down();
        } else if connection.session.phase() == Phase::Idle && connection.session.answered > 0 {
            return self.close(id);
        } else {
            connection.session.answer_one_more();
        }
        connection.older = true;
        self.older.0 += 1;
        self.older.1 += usize::from(answers);
        connection.answering = answers;
    }

    /// Waits once and serves what became possible.
    pub fn turn(&mut self) -> io::Result<()> {
        self.turn_within(NAP)
    }

    /// The same, and waits at most for so long.
    fn turn_within(&mut self, limit: Duration) -> io::Result<()> {
        let mut nap = self.timers.next_due().map_or(limit, |due| due.saturating_duration_since(self.now).min(limit));
        if self.lingering.has_unread() {
            nap = Duration::ZERO;
        } else if !self.unaccepted.is_empty() {
            nap = self.accept_after.map_or(Duration::ZERO, |at| at.saturating_duration_since(self.now).min(nap));
        }
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        self.net.wait(&mut ready, Some(nap))?;
        corelane::provoke("serve");
        self.now = Instant::now();
        self.handler.set_time(SystemTime::now());
        for event in &ready {
            match event.key.checked_sub(LISTENER) {
                Some(listener) if !self.unaccepted.contains(&(listener as usize)) => {
                    self.unaccepted.push(listener as usize);
                }
                Some(_) => {}
                None => self.wake(*event),
            }
        }
        self.ready = ready;
        self.discard_more();
        self.accept();
        self.expire();
        Ok(())
    }

    fn expire(&mut self) {
        while let Some((id, list)) = self.timers.expire(self.now) {
            self.time_out(id, list);
        }
    }

    fn accept(&mut self) {
        if self.accept_after.is_some_and(|at| at > self.now) {
            return;
        }
        self.accept_after = None;
        let mut waiting = std::mem::take(&mut self.unaccepted);
        waiting.retain(|&listener| {
            for _ in 0..ACCEPT_BATCH {
                match self.net.accept(listener) {
                    Ok(Some(stream)) => self.welcome(stream),
                    Ok(None) => return false,
                    Err(error) => {
                        // Short of descriptors or memory: connections that end make room, so try again soon.
                        self.counts.accept_errors += 1;
                        if let Some(count) = self.accept_failures.count(self.now) {
                            tracing::warn!("{}", seldom::line("connections wait to be accepted", count, &error));
                        }
                        self.accept_after = Some(self.now + NAP);
                        return true;
                    }
                }
            }
            true
        });
        self.unaccepted = waiting;
    }

    fn welcome(&mut self, stream: N::Stream) {
        self.counts.connections += 1;
        let readable = self.net.reads_at_once();
        let id = self.free.pop().unwrap_or_else(|| {
            self.connections.push(Connection {
                stream: None,
                generation: 0,
                session: Session::default(),
                watched: false,
                readable: false,
                ended: false,
                lingering: false,
                lingers: Lingers::default(),
                marked: 0,
                taken: 0,
                taken_then: 0,
                older: false,
                answering: false,
                window: (self.now, 0),
            });
            self.connections.len() as u32 - 1
        });
        let connection = &mut self.connections[id as usize];
        connection.stream = Some(stream);
        connection.watched = false;
        connection.readable = readable;
        connection.ended = false;
        connection.lingering = false;
        connection.marked = u32::MAX;
        (connection.taken, connection.taken_then) = (0, 0);
        if self.stopping {
            connection.session.answer_one_more();
        }
        self.work(id);
    }

    fn wake(&mut self, event: Ready) {
        let id = event.key as u32;
        let Some(connection) = self.connections.get_mut(id as usize) else { return };
        // An event of a connection that ended earlier in the same batch.
        if connection.generation != (event.key >> 32) as u32 || connection.stream.is_none() {
            return;
        }
        connection.readable |= event.read;
        connection.ended |= event.ended;
        self.work(id);
    }

    fn work(&mut self, id: u32) {
        let connection = &mut self.connections[id as usize];
        let before = connection.session.answered;
        let fate = match connection.lingering {
            true => discard(connection, &mut self.net, &mut self.room.input),
            false => serve(connection, &mut self.net, &mut self.handler, &mut self.room),
        };
        self.counts.requests += u64::from(connection.session.answered - before);
        match fate {
            Fate::Stay => self.keep(id),
            Fate::Close => self.close(id),
            Fate::Lost => {
                self.counts.errors += 1;
                self.close(id);
            }
        }
    }

    /// Watches a connection that must wait, under the timeout that fits.
    fn keep(&mut self, id: u32) {
        let connection = &mut self.connections[id as usize];
        if !connection.watched
            && let Some(stream) = &connection.stream
        {
            connection.watched = true;
            let key = connection.key(id);
            if self.net.watch(stream, key).is_err() {
                self.counts.errors += 1;
                return self.close(id);
            }
        }
        if connection.lingering {
            return self.linger(id);
        }
        let answered = connection.session.answered;
        let list = match connection.session.phase() {
            Phase::Request => HEAD,
            Phase::Idle if answered == 0 => HEAD,
            Phase::Idle => IDLE,
            Phase::Answer => WRITE,
        };
        let running = self.timers.list_of(id) == Some(list);
        if list != WRITE {
            // A head has its time from its first byte.
            if !running || connection.marked != answered {
                connection.marked = answered;
                self.timers.set(id, list, self.now);
            }
            return;
        }
        // An answer has its time from the last bytes that were taken; what the client sends meanwhile is no progress.
        if running && connection.taken == connection.taken_then {
            return;
        }
        if !running {
            // What the network took at once, it took into buffers.
            connection.window = (self.now, connection.taken);
        }
        connection.marked = answered;
        connection.taken_then = connection.taken;
        let (since, before) = connection.window;
        let time = self.now.saturating_duration_since(since);
        if time >= self.limits.timeouts[usize::from(WRITE)] {
            let least = self.limits.least_rate as f64 * time.as_secs_f64();
            if ((connection.taken - before) as f64) < least {
                return self.give_up(id);
            }
            connection.window = (self.now, connection.taken);
        }
        self.timers.set(id, WRITE, self.now);
    }

    /// Resets a client that takes an answer too slowly.
    fn give_up(&mut self, id: u32) {
        self.counts.timeouts += 1;
        if let Some(stream) = self.release(id) {
            self.net.abort(stream);
        }
    }

    fn time_out(&mut self, id: u32, list: u8) {
        let connection = &mut self.connections[id as usize];
        if matches!(list, HEAD | IDLE) {
            self.counts.timeouts += 1;
        }
        match list {
            HEAD if connection.session.phase() == Phase::Request => {
                connection.session.time_out(&mut self.handler, &mut self.room.outputs);
                self.work(id);
            }
            WRITE => {
                // Room is announced when there is a good deal of it: a slow client may have taken some without that.
                let before = (connection.generation, connection.taken);
                self.timers.set(id, WRITE, self.now);
                self.work(id);
                let connection = &self.connections[id as usize];
                if (connection.generation, connection.taken) == before {
                    self.give_up(id);
                }
            }
            _ => self.close(id),
        }
    }

    fn close(&mut self, id: u32) {
        if let Some(stream) = self.release(id) {
            self.net.close(stream);
        }
    }

    fn release(&mut self, id: u32) -> Option<N::Stream> {
        let connection = &mut self.connections[id as usize];
        let stream = connection.stream.take()?;
        self.lingering.leave(std::mem::take(&mut connection.lingers));
        self.older.0 -= usize::from(std::mem::take(&mut connection.older));
        self.older.1 -= usize::from(std::mem::take(&mut connection.answering));
        // The top bit of a key marks listeners.
        connection.generation = (connection.generation + 1) & (u32::MAX >> 1);
        connection.session.clear(&mut self.room.outputs);
        self.timers.cancel(id);
        self.free.push(id);
        Some(stream)
    }
}

fn serve<N: Net>(
    connection: &mut Connection<N::Stream>,
    net: &mut N,
    handler: &mut impl Handler,
    room: &mut Room,
) -> Fate {
    let Some(stream) = &connection.stream else { return Fate::Stay };
    let Room { input, scratch, outputs } = room;
    let session = &mut connection.session;
    loop {
        let mut fresh = 0;
        if session.phase() != Phase::Answer {
            if !connection.readable {
                return Fate::Stay;
            }
            match net.read(stream, input) {
                Ok(0) => {
                    session.end_of_input();
                    connection.readable = false;
                }
                Ok(n) => {
                    // A short read emptied the socket: what comes later is a new edge.
                    connection.readable = n == input.len() || connection.ended;
                    fresh = n;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    connection.readable = false;
                    return Fate::Stay;
                }
                Err(_) => return Fate::Lost,
            }
        }
        let mut sink = StreamSink { net: &mut *net, stream, taken: &mut connection.taken };
        match session.advance(&input[..fresh], handler, &mut sink, scratch, outputs) {
            Ok(Next::Read) => {}
            Ok(Next::Write) => return Fate::Stay,
            Ok(next @ (Next::Close | Next::Linger)) => {
                // Bytes that came meanwhile would make a close a reset, which takes the answer with it (RFC 9112 9.6).
                if next == Next::Close && !matches!(net.read(stream, input), Ok(1..)) {
                    return Fate::Close;
                }
                connection.lingering = true;
                if net.shutdown(stream).is_err() {
                    return Fate::Close;
                }
                return discard(connection, net, input);
            }
            Err(_) => return Fate::Lost,
        }
    }
}

pub mod channel;
mod linger;
pub mod reset;

#[cfg(test)]
mod clocks;
#[cfg(test)]
mod lane_tests;
#[cfg(test)]
mod rivals;
#[cfg(test)]
mod tests;

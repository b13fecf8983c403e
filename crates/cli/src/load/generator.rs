//! Makes load from one thread over any network and checks what comes back.
//!
//! Closed loop: a fixed number of connections, each followed by the next. Open loop: connections start when they are due, and
//! latency counts from that moment, so that a stalled server cannot hide its stall (coordinated omission).

use super::cause::Cause;
use super::plan::{Plan, Progress, Shared};
use super::report::Tally;
use super::talk::Talk;
use super::unanswered::Unanswered;
use crate::net::{Net, Ready};
use crate::sys::{self, Stop};
use crate::timers::Timers;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A start this much later than intended is counted as missed.
const LATE: Duration = Duration::from_millis(1);
/// Longest sleep, so that stops and phases are noticed.
const NAP: Duration = Duration::from_millis(20);
/// How long open connections may end after a stop.
const GRACE: Duration = Duration::from_secs(1);
/// Connects that fail in a row before a closed loop slows down, or ends where none has ever succeeded.
const HOPELESS: u32 = 100;
/// Between the connects of a closed loop that has slowed down.
const PAUSE: Duration = Duration::from_millis(10);
/// Connections started before events are served again.
const START_BATCH: usize = 64;
/// Timers: for a connect, for a request, and for the server's end of a connection.
const CONNECT: u8 = 0;
const REQUEST: u8 = 1;
const END: u8 = 2;
/// For the end of a connection that the server was asked to end: it shall have TIME-WAIT where it does, and holds nothing up where not.
const PATIENCE: Duration = Duration::from_millis(100);
/// Ends in a row that did not come: from then on only one in `PROBE` is waited for.
const ENDLESS: u32 = 16;
const PROBE: Duration = Duration::from_secs(1);
const BUFFER: usize = 64 * 1024;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Connecting,
    Sending(usize),
    Reading,
    /// No request: the server's end of the connection is the answer.
    AwaitingEnd,
    /// Everything received, the server's end awaited for `PATIENCE`.
    Ending,
    /// Everything received, and nothing more to do.
    Holding,
}

struct Slot<S, P> {
    stream: Option<S>,
    generation: u32,
    state: State,
    /// When the connection was to start.
    start: Instant,
    /// When the current request was to start.
    message_start: Instant,
    /// From `start` to established.
    connect: Duration,
    /// Received since the measurement began, by all connections that had this place.
    bytes: u64,
    done: u32,
    first_byte: bool,
    place: P,
}

/// A generator on one thread.
pub struct Generator<N: Net, T: Talk> {
    net: N,
    talk: T,
    plan: Plan,
    slots: Vec<Slot<N::Stream, T::Place>>,
    free: Vec<u32>,
    timers: Timers,
    input: Vec<u8>,
    ready: Vec<Ready>,
    started: u64,
    next_start: Option<Instant>,
    shared: Arc<Shared>,
    told: Progress,
    seen: Progress,
    tally: Tally,
    /// Connects that failed since the last that succeeded.
    refused: u32,
    ever_connected: bool,
    /// Where a closed loop has slowed down: not before.
    pause: Option<Instant>,
    /// The last answer, whole and right or not.
    last_answer: Option<Instant>,
    /// Ends that did not come since the last that did.
    missing_ends: u32,
    /// The next end to wait for, where they do not come.
    next_probe: Instant,
}

impl<N: Net, T: Talk> Generator<N, T> {
    /// A generator over a network that can connect.
    pub fn new(net: N, talk: T, plan: Plan, shared: Arc<Shared>) -> Generator<N, T> {
        let timers = Timers::new(&[plan.connect_timeout, plan.timeout, PATIENCE]);
        Generator {
            net,
            talk,
            plan,
            slots: Vec::new(),
            free: Vec::new(),
            timers,
            input: vec![0; BUFFER],
            ready: Vec::new(),
            started: 0,
            next_start: None,
            shared,
            told: Progress::default(),
            seen: Progress::default(),
            tally: Tally::default(),
            refused: 0,
            ever_connected: false,
            pause: None,
            last_answer: None,
            missing_ends: 0,
            next_probe: Instant::now(),
        }
    }

    /// The network under it.
    pub fn net(&self) -> &N {
        &self.net
    }

    fn open(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Generates until the plan is done or stopped, lets what is open end for a moment, and gives what was measured.
    pub fn run(&mut self, stop: &Stop) -> io::Result<Tally> {
        let mut phase = 0;
        let mut now = Instant::now();
        let mut begun = (now, sys::thread_cpu_time());
        let mut measured = None;
        let mut end = None;
        self.next_start = self.plan.rate.map(|_| now);
        loop {
            if self.shared.phase() != phase {
                phase = self.shared.phase();
                if phase == 1 {
                    self.tally = Tally::default();
                    self.talk.misses();
                    self.slots.iter_mut().for_each(|slot| slot.bytes = 0);
                    begun = (now, sys::thread_cpu_time());
                    self.last_answer = None;
                }
            }
            let stopped = stop.is_set();
            let over = stopped || self.is_hopeless() || self.plan.total.is_some_and(|total| self.started >= total);
            if (phase == 2 || stopped || (over && self.open() == 0)) && measured.is_none() {
                // What completes later is not part of the measurement.
                let cpu = sys::thread_cpu_time().saturating_sub(begun.1);
                self.tally.measured(now - begun.0, cpu);
                self.tally.held = self.seen.held;
                self.tally.misses = self.talk.misses();
                self.tally.shares = self.shares();
                self.count_unanswered(begun.0, now);
                measured = Some(std::mem::take(&mut self.tally));
            }
            if over && self.open() == 0 {
                break;
            }
            if stopped && (self.plan.hold || now > *end.get_or_insert(now + GRACE)) {
                break;
            }
            let nap = if over { NAP } else { self.start_connections(now) };
            let mut ready = std::mem::take(&mut self.ready);
            ready.clear();
            self.net.wait(&mut ready, Some(nap))?;
            corelane::provoke("load");
            now = Instant::now();
            for event in &ready {
                self.wake(*event);
            }
            self.ready = ready;
            while let Some((id, timer)) = self.timers.expire(now) {
                match timer {
                    CONNECT => self.fail(id, Cause::ConnectTimeout),
                    REQUEST => self.fail(id, Cause::Timeout),
                    _ => self.end_here(id),
                }
            }
            self.tell();
        }
        // What is still open was cut short by the end, not by the server.
        for slot in &mut self.slots {
            if let Some(stream) = slot.stream.take() {
                self.net.abort(stream);
            }
        }
        Ok(measured.unwrap_or_default())
    }

    /// Counts what is under way at the end of a measurement. In an open loop its age so far is a latency like any other.
    fn count_unanswered(&mut self, begun: Instant, now: Instant) {
        let tally = &mut self.tally;
        let silence = now - self.last_answer.unwrap_or(begun).max(begun).min(now);
        let mut unanswered = Unanswered::since(silence, tally.total.max());
        let rate = self.plan.rate;
        for slot in self.slots.iter().filter(|slot| slot.stream.is_some()) {
            let age = now.saturating_duration_since(slot.message_start);
            match slot.state {
                State::Ending | State::Holding => continue,
                State::Connecting => unanswered.connect(age),
                State::Sending(_) | State::Reading | State::AwaitingEnd => unanswered.request(age),
            }
            if rate.is_none() {
                continue;
            }
            if slot.state == State::Connecting {
                tally.connect.record(age);
            }
            if !slot.first_byte && self.plan.per_connection > 0 {
                tally.first_byte.record(age);
            }
            tally.total.record(age);
        }
        if let Some((due, rate)) = self.next_start.zip(rate).filter(|(due, _)| *due + LATE < now) {
            let n = ((now - LATE - due).as_secs_f64() * rate) as u64 + 1;
            let left = self.plan.total.map_or(u64::MAX, |total| total.saturating_sub(self.started));
            unanswered.not_started(n.min(left), now - due, &mut tally.total);
        }
        tally.unanswered = unanswered;
    }

    /// Says if there is nobody to load: no connect has ever succeeded. An open loop goes on: its rate bounds it.
    fn is_hopeless(&self) -> bool {
        self.plan.rate.is_none() && !self.ever_connected && self.refused >= HOPELESS
    }

    fn connect_failed(&mut self) {
        self.refused = self.refused.saturating_add(1);
        if self.plan.rate.is_none() && self.refused >= HOPELESS {
            self.pause = Some(Instant::now() + PAUSE);
        }
    }

    /// Publishes progress; once a turn, so that nothing is shared per message.
    fn tell(&mut self) {
        self.shared.publish(self.seen, self.told);
        self.told = self.seen;
    }

    /// How evenly the places of a closed loop shared what came.
    fn shares(&self) -> (u64, f64, f64) {
        if self.plan.rate.is_some() {
            return (0, 0.0, 0.0);
        }
        let bytes = self.slots.iter().map(|slot| slot.bytes as f64);
        bytes.fold((0, 0.0, 0.0), |(n, sum, squares), b| (n + 1, sum + b, squares + b * b))
    }

    /// Starts what is due; how long there is nothing more to start.
    fn start_connections(&mut self, now: Instant) -> Duration {
        for _ in 0..START_BATCH {
            if self.plan.total.is_some_and(|total| self.started >= total) {
                return NAP;
            }
            if self.is_hopeless() {
                return NAP;
            }
            let due = self.pause.or(self.next_start).unwrap_or(now);
            if due > now {
                return (due - now).min(NAP);
            }
            if self.open() >= self.plan.concurrent {
                // An open loop that is out of connections starts this one late, and says so.
                return NAP;
            }
            if let (Some(at), Some(rate)) = (&mut self.next_start, self.plan.rate) {
                *at += Duration::from_secs_f64(1.0 / rate);
                self.tally.late_starts += u64::from(now - due > LATE);
            }
            self.tally.starts += 1;
            if !self.start(due, now) {
                // No room for a socket: give those that are open a chance to end.
                return Duration::from_millis(1);
            }
        }
        Duration::ZERO
    }

    fn start(&mut self, due: Instant, now: Instant) -> bool {
        self.started += 1;
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                stream: None,
                generation: 0,
                state: State::Connecting,
                start: due,
                message_start: due,
                connect: Duration::ZERO,
                bytes: 0,
                done: 0,
                first_byte: false,
                place: T::Place::default(),
            });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[id as usize];
        match self.net.connect(u64::from(slot.generation) << 32 | u64::from(id)) {
            Ok(stream) => {
                slot.stream = Some(stream);
                slot.state = State::Connecting;
                slot.start = due;
                slot.message_start = due;
                slot.done = 0;
                slot.first_byte = false;
                // Timed from now: a due time in the past must not fire the timeout at once.
                self.timers.set(id, CONNECT, now);
                true
            }
            Err(error) => {
                self.free.push(id);
                self.tally.error(Cause::connect(&error));
                self.seen.errors += 1;
                self.connect_failed();
                false
            }
        }
    }

    fn wake(&mut self, event: Ready) {
        let id = event.key as u32;
        let Some(slot) = self.slots.get_mut(id as usize) else { return };
        if slot.generation != (event.key >> 32) as u32 || slot.stream.is_none() {
            return;
        }
        if let Err(cause) = self.work(id, event) {
            self.fail(id, cause);
        }
    }

    fn work(&mut self, id: u32, event: Ready) -> Result<(), Cause> {
        let slot = &mut self.slots[id as usize];
        let Some(stream) = &slot.stream else { return Ok(()) };
        if self.plan.per_connection == 0 {
            return self.await_end(id, event);
        }
        if slot.state == State::Connecting {
            if !event.write && !event.ended {
                return Ok(());
            }
            if event.ended {
                self.net.connected(stream).map_err(|error| Cause::connect(&error))?;
            }
            let now = Instant::now();
            slot.connect = now.saturating_duration_since(slot.start);
            self.tally.connect.record(slot.connect);
            self.timers.set(id, REQUEST, now);
            slot.state = State::Sending(0);
            self.talk.ask(&mut slot.place, self.plan.is_last(slot.done));
            (self.ever_connected, self.refused, self.pause) = (true, 0, None);
        }
        let mut readable = event.read;
        loop {
            if let State::Sending(sent) = &mut slot.state {
                let request = self.talk.request(&slot.place);
                while *sent < request.len() {
                    match self.net.write(stream, &request[*sent..], false) {
                        Ok(n) => *sent += n,
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                        Err(error) => return Err(Cause::transfer(&error)),
                    }
                }
                slot.state = State::Reading;
            }
            if !readable {
                return Ok(());
            }
            let n = match self.net.read(stream, &mut self.input) {
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // An RST ends a connection that is complete as a FIN does.
                Err(_) if slot.state == State::Ending => 0,
                Err(error) => return Err(Cause::transfer(&error)),
            };
            readable = n == self.input.len() || event.ended;
            // The clock is read once for what a read brings.
            let now = Instant::now();
            let complete = slot.state == State::Ending;
            if slot.state == State::Holding {
                self.seen.held -= 1;
                return Err(Cause::EarlyClose);
            }
            if n == 0 {
                if !complete {
                    self.last_answer = Some(now);
                    self.talk.ended(&mut slot.place)?;
                    slot.done += 1;
                    self.talk.check(&slot.place)?;
                    count_message(now.saturating_duration_since(slot.message_start), &mut self.tally, &mut self.seen);
                    if slot.done < self.plan.per_connection {
                        return Err(Cause::EarlyClose);
                    }
                }
                self.missing_ends = 0;
                self.complete(id);
                return Ok(());
            }
            if complete {
                return Err(Cause::Surplus);
            }
            self.timers.set(id, REQUEST, now);
            if !slot.first_byte {
                slot.first_byte = true;
                self.tally.first_byte.record(now.saturating_duration_since(slot.message_start));
            }
            if self.talk.hear(&mut slot.place, &self.input[..n])? < n {
                return Err(Cause::Surplus);
            }
            self.tally.bytes += n as u64;
            slot.bytes += n as u64;
            if self.talk.is_complete(&slot.place) {
                self.last_answer = Some(now);
                slot.done += 1;
                self.talk.check(&slot.place)?;
                count_message(now.saturating_duration_since(slot.message_start), &mut self.tally, &mut self.seen);
                if slot.done == 1 {
                    let all = now.saturating_duration_since(slot.start);
                    self.tally.processing.record(all.saturating_sub(slot.connect));
                }
                if slot.done == self.plan.per_connection && self.plan.hold {
                    slot.state = State::Holding;
                    self.seen.held += 1;
                    self.timers.cancel(id);
                    return Ok(());
                }
                if slot.done == self.plan.per_connection {
                    slot.state = State::Ending;
                    if event.ended {
                        // The server's FIN is here already: no need to read it.
                        self.missing_ends = 0;
                        self.complete(id);
                        return Ok(());
                    }
                    if self.missing_ends >= ENDLESS && now < self.next_probe {
                        self.end_here(id);
                        return Ok(());
                    }
                    self.next_probe = now + PROBE;
                    self.timers.set(id, END, now);
                } else {
                    if self.talk.closes(&slot.place) {
                        return Err(Cause::EarlyClose);
                    }
                    self.talk.ask(&mut slot.place, self.plan.is_last(slot.done));
                    slot.first_byte = false;
                    slot.message_start = now;
                    slot.state = State::Sending(0);
                }
            }
        }
    }

    /// A connection without requests: established, then ended by the server.
    fn await_end(&mut self, id: u32, event: Ready) -> Result<(), Cause> {
        let slot = &mut self.slots[id as usize];
        let Some(stream) = &slot.stream else { return Ok(()) };
        let reset = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionReset;
        if slot.state == State::Connecting && (event.write || event.ended) {
            // The reset may be here already, and then it is what the connect ended with.
            match self.net.connected(stream) {
                Err(error) if !reset(&error) => return Err(Cause::connect(&error)),
                ended => {
                    let now = Instant::now();
                    slot.connect = now.saturating_duration_since(slot.start);
                    self.tally.connect.record(slot.connect);
                    self.timers.set(id, REQUEST, now);
                    slot.state = State::AwaitingEnd;
                    (self.ever_connected, self.refused, self.pause) = (true, 0, None);
                    if ended.is_err() {
                        self.end(id);
                        return Ok(());
                    }
                }
            }
        }
        if slot.state == State::AwaitingEnd && (event.read || event.ended) {
            match self.net.read(stream, &mut self.input) {
                Ok(0) => self.end(id),
                Ok(_) => return Err(Cause::Surplus),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if reset(&error) => self.end(id),
                Err(error) => return Err(Cause::transfer(&error)),
            }
        }
        Ok(())
    }

    /// The server's end of a connection without requests.
    fn end(&mut self, id: u32) {
        let (start, now) = (self.slots[id as usize].start, Instant::now());
        self.tally.total.record(now.saturating_duration_since(start));
        self.last_answer = Some(now);
        self.complete(id);
    }

    /// Ends a complete connection that the server was asked to end, and has not.
    fn end_here(&mut self, id: u32) {
        self.missing_ends = self.missing_ends.saturating_add(1);
        self.tally.ends_outstanding += 1;
        self.complete(id);
    }

    fn complete(&mut self, id: u32) {
        self.tally.connections += 1;
        self.seen.connections += 1;
        if let Some(stream) = self.release(id) {
            self.net.close(stream);
        }
    }

    fn fail(&mut self, id: u32, cause: Cause) {
        if self.slots[id as usize].state == State::Connecting {
            self.connect_failed();
        }
        if let Some(stream) = self.release(id) {
            self.tally.error(cause);
            self.seen.errors += 1;
            self.net.abort(stream);
        }
    }

    fn release(&mut self, id: u32) -> Option<N::Stream> {
        let slot = &mut self.slots[id as usize];
        let stream = slot.stream.take()?;
        slot.generation = (slot.generation + 1) & (u32::MAX >> 1);
        self.timers.cancel(id);
        self.free.push(id);
        Some(stream)
    }
}

/// Counts a response that was found right.
fn count_message(took: Duration, tally: &mut Tally, seen: &mut Progress) {
    tally.total.record(took);
    tally.messages += 1;
    seen.messages += 1;
}

#[cfg(test)]
mod tests;

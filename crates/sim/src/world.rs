//! Runs a [`Plan`] under the virtual clock and watches over what must always hold:
//!
//! - every byte arrives once and in order, and FIN after the last;
//! - a connection ends by error only where an end was rude or the path was cut for long;
//! - whatever is outstanding has a timer, and nobody waits for what cannot come;
//! - in the end every connection is closed, and every chunk and record of a sent segment is back where it came from.
//!
//! It panics where something does not.

use std::collections::HashMap;

use protocol::{CloseMode, ConnId, Endpoint, Event, Failure, Job, ListenerId, Token};
use stack::SynCookies;
use tcp::State;
use wire::{Addr, Instant};

use crate::apps::{App, Stream};
use crate::net::{Net, NetConfig};
use crate::plan::{Plan, Session};

const PORT: u16 = 80;
/// A run that takes longer than this, virtual time or steps of the clock, is stuck.
const LONGEST_US: u64 = 48 * 3_600_000_000;
const MOST_STEPS: u64 = 1_000_000;

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Connections whose two ends finished in good order.
    pub complete: usize,
    /// Connections that one end cut short.
    pub rude: usize,
    /// Connections that a cut path ended.
    pub cut: usize,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Frames that arrived.
    pub frames: u64,
    /// Virtual time, µs.
    pub time: u64,
}

impl core::ops::AddAssign for Report {
    fn add_assign(&mut self, r: Report) {
        let Report { complete, rude, cut, bytes, frames, time } = r;
        self.complete += complete;
        self.rude += rude;
        self.cut += cut;
        self.bytes += bytes;
        self.frames += frames;
        self.time += time;
    }
}

/// One end of a session: what it does, and its stream once there is a connection.
struct End {
    app: Box<dyn App>,
    stream: Option<Stream>,
    /// When it wants to be called.
    wake: Instant,
}

struct Running {
    plan: Session,
    /// The end that connects, and the end that accepts.
    ends: [End; 2],
    asked: bool,
    /// The connection could not be opened.
    refused: Option<Failure>,
}

impl Running {
    /// The host of end `i`.
    fn host(&self, i: usize) -> usize {
        i ^ self.plan.from_b as usize
    }

    fn over(&self) -> bool {
        let over = |e: &End| e.stream.as_ref().is_some_and(Stream::over);
        // The other end need not have heard of one that was given up.
        let gone = self.plan.rude || self.ends[0].stream.as_ref().is_some_and(|s| s.aborted || s.failure.is_some());
        self.refused.is_some() || over(&self.ends[0]) && (over(&self.ends[1]) || self.ends[1].stream.is_none() && gone)
    }
}

struct World {
    net: Net,
    start: Instant,
    steps: u64,
    sessions: Vec<Running>,
    changes: std::vec::IntoIter<crate::plan::Change>,
    next_change: Option<crate::plan::Change>,
    /// Which end of which session a connection is; none where an old cookie has come to life again.
    conns: HashMap<(usize, ConnId), Option<(usize, usize)>>,
    /// By the host that connects and its port.
    ports: HashMap<(usize, u16), usize>,
    listeners: [Option<ListenerId>; 2],
    v6: bool,
    acquainted: bool,
    cut: bool,
    scarce: bool,
}

/// Runs `plan` to its end.
pub fn run(plan: Plan) -> Report {
    let mut world = World::new(plan);
    world.serve();
    world.wind_down();
    world.judge()
}

impl World {
    fn new(plan: Plan) -> World {
        let Plan { seed, a, b, a_to_b, b_to_a, changes, sessions, v6, acquainted, cut, scarce } = plan;
        let mut net = Net::new(NetConfig { a, b, a_to_b, b_to_a, seed });
        let local = Endpoint { addr: Addr::UNSPECIFIED_V6, port: PORT };
        for host in [&mut net.a, &mut net.b] {
            let token = Token(u32::MAX);
            host.job(Job::Listen { token, local, backlog: 1024, v6_only: false, reuse_port: false, receive_buffer: 0 });
        }
        if acquainted {
            net.acquaint();
        }
        let sessions = sessions.into_iter().map(Running::new).collect();
        let mut changes = changes.into_iter();
        World {
            start: net.now,
            steps: 0,
            net,
            sessions,
            next_change: changes.next(),
            changes,
            conns: HashMap::new(),
            ports: HashMap::new(),
            listeners: [None; 2],
            v6,
            acquainted,
            cut,
            scarce,
        }
    }

    /// Until every session is over.
    fn serve(&mut self) {
        loop {
            self.change_paths();
            self.connect();
            // Twice, so that what the applications ask for goes out at once.
            for _ in 0..2 {
                self.net.turn();
                self.hear();
                self.poll();
            }
            self.check_timers();
            if self.sessions.iter().all(Running::over) {
                return;
            }
            let next = [self.net.next_at(), self.wake()].into_iter().min().unwrap_or(Instant::FAR);
            if next == Instant::FAR {
                self.give_up_waiting();
                continue;
            }
            self.step(next);
        }
    }

    fn step(&mut self, next: Instant) {
        self.net.now = next.max(self.net.now.plus_micros(1));
        self.steps += 1;
        let elapsed = self.net.now.micros_since(self.start);
        // Whose patience is odd may wait for weeks.
        let longest = if self.scarce { 30 * LONGEST_US } else { LONGEST_US };
        let most = if self.scarce { 30 * MOST_STEPS } else { MOST_STEPS };
        if elapsed > longest || self.steps > most {
            let (frames, steps) = (self.net.delivered, self.steps);
            panic!("stuck after {elapsed} µs, {frames} frames, {steps} steps\n{}", self.dump());
        }
    }

    fn wake(&self) -> Instant {
        let change = self.next_change.as_ref().map(|c| self.start + c.at);
        let starts = self.sessions.iter().filter(|s| !s.asked).map(|s| self.start + s.plan.start);
        let apps = self.sessions.iter().flat_map(|s| &s.ends).map(|e| e.wake);
        starts.chain(apps).chain(change).min().unwrap_or(Instant::FAR)
    }

    fn change_paths(&mut self) {
        while let Some(change) = self.next_change.take_if(|c| self.start + c.at <= self.net.now) {
            let path = if change.from_b { &mut self.net.b_to_a } else { &mut self.net.a_to_b };
            path.set(change.to);
            self.next_change = self.changes.next();
        }
    }

    fn connect(&mut self) {
        let now = self.net.now;
        for (i, s) in self.sessions.iter_mut().enumerate().filter(|(_, s)| !s.asked) {
            if self.start + s.plan.start > now {
                continue;
            }
            s.asked = true;
            let to = self.net.host(s.host(1)).config.addresses[self.v6 as usize].0;
            let any = if self.v6 { Addr::UNSPECIFIED_V6 } else { Addr::UNSPECIFIED_V4 };
            self.net.host(s.host(0)).job(Job::Connect {
                token: Token(i as u32),
                local: Endpoint { addr: any, port: 0 },
                remote: Endpoint { addr: to.into(), port: PORT },
                receive_buffer: 0,
            });
        }
    }

    fn hear(&mut self) {
        for h in 0..2 {
            while let Some(event) = self.net.host(h).event() {
                self.on_event(h, event);
            }
        }
    }

    fn on_event(&mut self, h: usize, event: Event) {
        let conn = match event {
            Event::Listening { listener, .. } => {
                self.listeners[h] = Some(listener);
                return;
            }
            Event::Refused { token, failure } => {
                self.sessions[token.0 as usize].refused = Some(failure);
                return;
            }
            Event::Opened { token, conn, local } => {
                self.ports.insert((h, local.port), token.0 as usize);
                self.begin(h, token.0 as usize, 0, conn);
                return;
            }
            Event::Accepted { listener, conn, remote, .. } => {
                assert_eq!(Some(listener), self.listeners[h]);
                let i = *self.ports.get(&(h ^ 1, remote.port)).expect("a connection that nobody opened");
                self.net.host(h).job(Job::Taken { listener, count: 1 });
                if self.sessions[i].ends[1].stream.is_none() {
                    self.begin(h, i, 1, conn);
                } else {
                    assert!(!self.keeps_handshakes(h), "accepted twice");
                    self.conns.insert((h, conn), None);
                    self.net.host(h).job(Job::Abort { conn });
                }
                return;
            }
            Event::Info { .. } => panic!("nobody asked"),
            Event::Connected { conn }
            | Event::Data { conn, .. }
            | Event::Fin { conn }
            | Event::Acked { conn, .. }
            | Event::Sent { conn, .. }
            | Event::Room { conn, .. }
            | Event::Urgent { conn, .. }
            | Event::Failed { conn, .. }
            | Event::Released { conn }
            | Event::Closed { conn, .. } => conn,
        };
        let Some((i, e)) = *self.conns.get(&(h, conn)).expect("an event for nobody") else {
            if let Event::Data { chain, .. } = event {
                chain.free(&mut self.net.host(h).side);
            }
            return;
        };
        let s = &mut self.sessions[i];
        let end = &mut s.ends[e];
        let stream = end.stream.as_mut().expect("it has begun");
        // An open that was refused by the neighbour's silence is asked for again, as a program would.
        if let Event::Failed { failure: Failure::HostUnreachable, .. } = event
            && e == 0
            && !stream.connected
            && !self.cut
            && !stream.closed
        {
            stream.close(self.net.host(h), CloseMode::Graceful);
            s.asked = false;
            s.plan.start = self.net.now.plus_micros(1_000_000) - self.start;
            return;
        }
        stream.on_event(self.net.host(h), event);
        end.wake = self.net.now;
    }

    fn begin(&mut self, h: usize, i: usize, e: usize, conn: ConnId) {
        let host = self.net.host(h);
        let s = &mut self.sessions[i];
        let window = host.config.stack.tcp.send_buffer as u64;
        let seed = s.plan.seed;
        let stream = Stream::new(conn, e == 1, seed + e as u64, seed + (e as u64 ^ 1), window);
        for &(option, value) in &s.plan.options[e] {
            host.job(Job::SetOption { conn, option, value });
        }
        s.ends[e].stream = Some(stream);
        s.ends[e].wake = self.net.now;
        self.conns.insert((h, conn), Some((i, e)));
    }

    fn poll(&mut self) {
        let now = self.net.now;
        for s in &mut self.sessions {
            for e in 0..2 {
                let h = s.host(e);
                let end = &mut s.ends[e];
                if end.wake > now {
                    continue;
                }
                end.wake = Instant::FAR;
                let Some(stream) = end.stream.as_mut().filter(|s| !s.closed) else { continue };
                end.wake = end.app.poll(now, stream, self.net.host(h));
            }
        }
    }

    /// RFC 6298 5.1, RFC 9293 3.8.6.1: what is outstanding or refused by a closed window has a timer, and the wheel knows.
    fn check_timers(&mut self) {
        // With too few places for neighbours acquaintance does not last.
        let (acquainted, now) = (self.acquainted && !self.scarce, self.net.now);
        for host in self.net.hosts() {
            if host.stack.output_pending() || host.stack.has_jobs() {
                continue;
            }
            let next = host.stack.next_deadline().unwrap_or(Instant::FAR);
            let mut outstanding = 0;
            host.stack.each_connection(|id, key, tcb| {
                let info = tcb.info(now, &host.config.stack.tcp);
                outstanding += info.unacked;
                if matches!(info.state, State::Closed | State::TimeWait) {
                    return;
                }
                let unsent = tcb.established() && info.notsent_bytes > 0;
                // What has never been sent may wait for the neighbour's address, and that has a timer of its own.
                let waits = !acquainted && unsent && next != Instant::FAR;
                let deadline = tcb.deadline();
                let timed = deadline != Instant::FAR || !(info.unacked_bytes > 0 || unsent && !waits);
                assert!(timed, "no timer: {id} {key:?} {tcb:#?}");
                // The wheel ticks in milliseconds, and what was due before its last tick is due now.
                let armed = deadline == Instant::FAR || next <= deadline.plus_micros(1000) || next <= now;
                assert!(armed, "the wheel wakes at {next:?}: {id} {key:?} {tcb:#?}");
            });
            // What is remembered of sent segments is what is outstanding, at any time.
            let records = host.stack.sent_records() as u64;
            assert!(records <= outstanding, "{records} records of {outstanding} segments outstanding");
        }
    }

    /// Nothing will ever happen. An end whose peer went away without a word that arrived may wait like that, without
    /// keepalive; nobody else.
    fn give_up_waiting(&mut self) {
        let mut given_up = 0;
        for i in 0..self.sessions.len() {
            let s = &self.sessions[i];
            if s.over() {
                continue;
            }
            let reason = self.cut || s.plan.rude || self.unmet(s);
            assert!(reason, "session {i} waits for ever\n{}", self.dump());
            for e in 0..2 {
                let h = self.sessions[i].host(e);
                if let Some(stream) = &mut self.sessions[i].ends[e].stream {
                    given_up += !stream.closed as usize;
                    stream.abort(self.net.host(h));
                }
            }
        }
        assert!(given_up > 0, "nothing more will be heard of connections that are closed\n{}", self.dump());
    }

    /// One end may believe in a connection of which the other knows nothing, or will not: its handshake was given up
    /// because the neighbour did not answer, was pushed out by others, or lived in a cookie, which only the first segment
    /// brings back: one that comes instead of it is answered with RST.
    fn unmet(&self, s: &Running) -> bool {
        !self.keeps_handshakes(s.host(1)) || !self.acquainted && s.ends[1].stream.is_none()
    }

    /// Host `h` answers every SYN from memory, and has room for all.
    fn keeps_handshakes(&self, h: usize) -> bool {
        let config = &[&self.net.a, &self.net.b][h].config.stack;
        !self.scarce && config.syn_cookies != SynCookies::Always && config.syn_backlog >= self.sessions.len() as u32
    }

    /// Timers of what the applications have left behind.
    fn wind_down(&mut self) {
        for (h, listener) in self.listeners.into_iter().enumerate() {
            let listener = listener.expect("it listens");
            self.net.host(h).job(Job::CloseListener { listener });
        }
        loop {
            self.change_paths();
            self.net.turn();
            self.hear();
            self.check_timers();
            let left = self.net.hosts().iter().map(|h| h.stack.connections() + h.stack.time_waits()).sum::<usize>();
            let change = self.next_change.as_ref().map_or(Instant::FAR, |c| self.start + c.at);
            let next = self.net.next_at().min(change);
            if left == 0 || next == Instant::FAR {
                break;
            }
            self.step(next);
        }
        // What is still under way finds nobody, and what was freed on one side goes home.
        self.net.turn();
        let text = self.dump();
        for host in self.net.hosts() {
            let stack = &host.stack;
            assert_eq!((stack.connections(), stack.time_waits(), stack.listeners()), (0, 0, 0), "left behind\n{text}");
            assert_eq!(host.stack.sent_records(), 0, "records of sent segments leaked");
            assert_eq!(host.leaked(), 0, "chunks leaked");
        }
    }

    fn judge(&self) -> Report {
        let mut report =
            Report { frames: self.net.delivered, time: self.net.now.micros_since(self.start), ..Report::default() };
        for (i, s) in self.sessions.iter().enumerate() {
            let [a, b] = [&s.ends[0].stream, &s.ends[1].stream];
            let what = || format!("session {i} {}: {:?}\n{a:#?}\n{b:#?}", s.plan.name, s.refused);
            for (x, y) in [(a, b), (b, a)] {
                let (received, written) = (x.as_ref().map_or(0, |x| x.received), y.as_ref().map_or(0, |y| y.written));
                report.bytes += received;
                assert!(received <= written, "more than was sent: {}", what());
                // FIN says that this was all, whatever happens later.
                let whole = y.as_ref().is_some_and(|y| y.shut) && received == written;
                assert!(!x.as_ref().is_some_and(|x| x.fin) || whole, "FIN before the last byte: {}", what());
            }
            let good = |s: &Stream| s.fin && s.failure.is_none() && !s.aborted && !matches!(s.lingered, Some(Err(_)));
            if let (Some(a), Some(b)) = (a, b)
                && good(a)
                && good(b)
            {
                report.complete += 1;
                continue;
            }
            let failures =
                [a, b].into_iter().flatten().flat_map(|s| [s.failure, s.lingered.and_then(Result::err)]).flatten();
            let unmet = self.unmet(s);
            for failure in failures.chain(s.refused) {
                let allowed = match failure {
                    Failure::Reset => self.cut || s.plan.rude || unmet,
                    Failure::TimedOut | Failure::HostUnreachable => self.cut || self.scarce,
                    _ => self.scarce,
                };
                assert!(allowed, "{failure:?}: {}", what());
            }
            assert!(self.cut || s.plan.rude || unmet, "it did not end well: {}", what());
            match s.plan.rude {
                true => report.rude += 1,
                false => report.cut += 1,
            }
        }
        report
    }

    fn dump(&mut self) -> String {
        let mut text = String::new();
        for (i, s) in self.sessions.iter().enumerate().filter(|(_, s)| !s.over()) {
            text +=
                &format!("session {i} {}: {:#?}\n", s.plan.name, s.ends.iter().map(|e| &e.stream).collect::<Vec<_>>());
        }
        for (name, host) in ["a", "b"].into_iter().zip(self.net.hosts()) {
            host.stack.each_connection(|id, key, tcb| text += &format!("{name}{id} {key:?} {tcb:#?}\n"));
        }
        text
    }
}

impl Running {
    fn new((plan, apps): (Session, [Box<dyn App>; 2])) -> Running {
        let ends = apps.map(|app| End { app, stream: None, wake: Instant::FAR });
        Running { plan, ends, asked: false, refused: None }
    }
}

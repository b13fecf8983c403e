//! Random histories against what epoll(7) says, and random nonsense against panics and leaks.

mod common;

use common::{Lane, SEND, at, at6};
use mem::Chain;
use mem::ring::Message;
use proptest::prelude::*;
use protocol::{ConnId, Event, Failure, Job};
use socket::{Errno, Interest, ListenOptions, Ready, Shutdown, SockId, SockOption, Trigger, bits};

const SOCKS: usize = 4;
const EPOLLS: usize = 6;

#[derive(Clone, Debug)]
enum Op {
    Data(usize, usize),
    Read(usize, usize),
    Write(usize, usize),
    Ack(usize, u32),
    Fin(usize),
    Fail(usize),
    TakeError(usize),
    Shutdown(usize, bool),
    Reopen(usize),
    Add(usize, usize, u32, Trigger),
    Modify(usize, usize, u32, Trigger),
    Delete(usize, usize),
    Collect(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let sock = 0..SOCKS;
    let epoll = 0..EPOLLS;
    let events = prop::sample::subsequence(vec![bits::IN, bits::OUT, bits::RDHUP], 0..=3)
        .prop_map(|bits| bits.into_iter().fold(0, |a, b| a | b));
    let trigger = prop::sample::select(vec![Trigger::Level, Trigger::Edge, Trigger::OneShot]);
    prop_oneof![
        4 => (sock.clone(), 1..3000usize).prop_map(|(s, n)| Op::Data(s, n)),
        4 => (sock.clone(), 1..9000usize).prop_map(|(s, n)| Op::Read(s, n)),
        5 => (sock.clone(), 1..2 * SEND as usize).prop_map(|(s, n)| Op::Write(s, n)),
        5 => (sock.clone(), 1..SEND).prop_map(|(s, n)| Op::Ack(s, n)),
        1 => sock.clone().prop_map(Op::Fin),
        1 => sock.clone().prop_map(Op::Fail),
        1 => sock.clone().prop_map(Op::TakeError),
        1 => (sock.clone(), any::<bool>()).prop_map(|(s, write)| Op::Shutdown(s, write)),
        2 => sock.clone().prop_map(Op::Reopen),
        5 => (epoll.clone(), sock.clone(), events.clone(), trigger.clone())
            .prop_map(|(e, s, b, t)| Op::Add(e, s, b, t)),
        3 => (epoll.clone(), sock.clone(), events, trigger).prop_map(|(e, s, b, t)| Op::Modify(e, s, b, t)),
        1 => (epoll.clone(), sock).prop_map(|(e, s)| Op::Delete(e, s)),
        9 => epoll.prop_map(Op::Collect),
    ]
}

/// A connection as Linux sees it.
#[derive(Default)]
struct Peer {
    id: u32,
    conn: u32,
    unread: usize,
    in_flight: u32,
    fin: bool,
    failed: bool,
    error: bool,
    shut_read: bool,
    shut_write: bool,
    no_space: bool,
}

impl Peer {
    fn space(&self) -> bool {
        SEND - self.in_flight >= SEND / 3
    }

    fn bits(&self) -> u32 {
        let rcv = self.fin || self.failed || self.shut_read;
        let snd = self.failed || self.shut_write;
        let mut b = 0;
        for (bit, on) in [
            (bits::IN, self.unread > 0 || rcv),
            (bits::RDHUP, rcv),
            (bits::OUT, snd || self.space()),
            (bits::HUP, rcv && snd),
            (bits::ERR, self.error),
        ] {
            b |= if on { bit } else { 0 };
        }
        b
    }
}

/// A registration: `woken` since it was last found without news.
struct Entry {
    events: u32,
    trigger: Trigger,
    woken: bool,
    spent: bool,
}

struct World {
    lane: Lane,
    peers: Vec<Peer>,
    epolls: Vec<SockId>,
    entries: Vec<Vec<Option<Entry>>>,
    next_conn: u32,
}

impl World {
    fn new() -> World {
        let mut lane = Lane::new();
        let epolls: Vec<_> = (0..EPOLLS).map(|_| lane.s.epoll_create().unwrap()).collect();
        let entries = (0..EPOLLS).map(|_| (0..SOCKS).map(|_| None).collect()).collect();
        let mut w = World { lane, peers: Vec::new(), epolls, entries, next_conn: 0 };
        for _ in 0..SOCKS {
            let peer = w.open();
            w.peers.push(peer);
        }
        w
    }

    fn open(&mut self) -> Peer {
        let conn = self.next_conn;
        self.next_conn += 1;
        let id = self.lane.connected(conn).0;
        Peer { id, conn, ..Peer::default() }
    }

    fn wake(&mut self, s: usize, keys: u32) {
        for row in &mut self.entries {
            if let Some(e) = row[s].as_mut().filter(|e| !e.spent) {
                e.woken |= (e.events | bits::ERR | bits::HUP) & keys != 0;
            }
        }
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Data(s, n) => {
                if self.peers[s].fin || self.peers[s].failed {
                    return;
                }
                self.lane.data(self.peers[s].conn, &vec![0; n]);
                self.peers[s].unread += n;
                self.wake(s, bits::IN);
            }
            Op::Read(s, n) => {
                let got = self.lane.s.read(SockId(self.peers[s].id), &mut vec![0; n]);
                let p = &mut self.peers[s];
                let expected = if p.unread > 0 {
                    Ok(n.min(p.unread))
                } else if p.fin {
                    Ok(0)
                } else if core::mem::take(&mut p.error) {
                    Err(Errno::ECONNRESET)
                } else if p.failed || p.shut_read {
                    Ok(0)
                } else {
                    Err(Errno::EAGAIN)
                };
                p.unread -= expected.unwrap_or(0);
                assert_eq!(got, expected);
            }
            Op::Write(s, n) => {
                let got = self.lane.s.write(SockId(self.peers[s].id), &vec![0; n], false);
                let p = &mut self.peers[s];
                let room = (SEND - p.in_flight) as usize;
                let expected = if core::mem::take(&mut p.error) {
                    Err(if p.fin && !p.shut_write { Errno::EPIPE } else { Errno::ECONNRESET })
                } else if p.failed || p.shut_write {
                    Err(Errno::EPIPE)
                } else if room == 0 {
                    Err(Errno::EAGAIN)
                } else {
                    Ok(n.min(room))
                };
                if !p.failed && !p.shut_write && n > room {
                    p.no_space = true;
                }
                p.in_flight += expected.unwrap_or(0) as u32;
                assert_eq!(got, expected);
            }
            Op::Ack(s, n) => {
                let p = &mut self.peers[s];
                let n = n.min(p.in_flight);
                if n == 0 || p.failed {
                    return;
                }
                p.in_flight -= n;
                let wakes = p.no_space && p.space();
                if wakes {
                    p.no_space = false;
                }
                let conn = ConnId(p.conn);
                self.lane.tell(Event::Acked { conn, bytes: n });
                if wakes {
                    self.wake(s, bits::OUT);
                }
            }
            Op::Fin(s) => {
                if self.peers[s].fin || self.peers[s].failed {
                    return;
                }
                self.lane.tell(Event::Fin { conn: ConnId(self.peers[s].conn) });
                self.peers[s].fin = true;
                self.wake(s, u32::MAX);
            }
            Op::Fail(s) => {
                if self.peers[s].failed {
                    return;
                }
                self.lane.tell(Event::Failed { conn: ConnId(self.peers[s].conn), failure: Failure::Reset });
                (self.peers[s].failed, self.peers[s].error) = (true, true);
                self.wake(s, u32::MAX);
            }
            Op::TakeError(s) => {
                let got = self.lane.s.take_error(SockId(self.peers[s].id)).unwrap();
                assert_eq!(got.is_some(), core::mem::take(&mut self.peers[s].error));
            }
            Op::Shutdown(s, write) => {
                let how = if write { Shutdown::Write } else { Shutdown::Read };
                let got = self.lane.s.shutdown(SockId(self.peers[s].id), how);
                let p = &mut self.peers[s];
                if p.failed {
                    assert_eq!(got, Err(Errno::ENOTCONN));
                    return;
                }
                assert_eq!(got, Ok(()));
                if write {
                    p.shut_write = true;
                } else {
                    p.shut_read = true;
                }
                self.wake(s, u32::MAX);
            }
            Op::Reopen(s) => {
                self.lane.s.close(SockId(self.peers[s].id)).unwrap();
                self.free_writes();
                self.peers[s] = self.open();
                for row in &mut self.entries {
                    row[s] = None;
                }
            }
            Op::Add(e, s, events, trigger) => {
                let interest = Interest { events, trigger, data: s as u64 };
                let got = self.lane.s.epoll_add(self.epolls[e], SockId(self.peers[s].id), interest);
                let entry = &mut self.entries[e][s];
                assert_eq!(got, if entry.is_some() { Err(Errno::EEXIST) } else { Ok(()) });
                entry.get_or_insert(Entry { events, trigger, woken: true, spent: false });
                if got.is_ok() {
                    self.look(s, events);
                }
            }
            Op::Modify(e, s, events, trigger) => {
                let interest = Interest { events, trigger, data: s as u64 };
                let got = self.lane.s.epoll_modify(self.epolls[e], SockId(self.peers[s].id), interest);
                let entry = &mut self.entries[e][s];
                assert_eq!(got, if entry.is_some() { Ok(()) } else { Err(Errno::ENOENT) });
                if entry.is_some() {
                    *entry = Some(Entry { events, trigger, woken: true, spent: false });
                    self.look(s, events);
                }
            }
            Op::Delete(e, s) => {
                let got = self.lane.s.epoll_delete(self.epolls[e], SockId(self.peers[s].id));
                let entry = self.entries[e][s].take();
                assert_eq!(got, if entry.is_some() { Ok(()) } else { Err(Errno::ENOENT) });
            }
            Op::Collect(e) => self.collect(e),
        }
        self.free_writes();
        for p in &self.peers {
            assert_eq!(self.lane.s.readiness(SockId(p.id)), Ok(p.bits()));
        }
    }

    /// Registering looks once, as collecting does: who finds no room wants to hear of it (Linux's tcp_poll).
    fn look(&mut self, s: usize, events: u32) {
        let p = &mut self.peers[s];
        p.no_space |= events & bits::OUT & !p.bits() != 0;
    }

    fn collect(&mut self, e: usize) {
        let mut expected = Vec::new();
        for (s, entry) in self.entries[e].iter_mut().enumerate() {
            let Some(entry) = entry.as_mut().filter(|e| e.woken) else { continue };
            let now = self.peers[s].bits();
            if entry.events & bits::OUT & !now != 0 {
                self.peers[s].no_space = true;
            }
            let events = now & (entry.events | bits::ERR | bits::HUP);
            entry.woken = events != 0 && entry.trigger == Trigger::Level;
            if events != 0 {
                expected.push((s as u64, events));
                entry.spent = entry.trigger == Trigger::OneShot;
            }
        }
        let holds = self.lane.s.readiness(self.epolls[e]);
        assert_eq!(holds, Ok(if expected.is_empty() { 0 } else { bits::IN }));
        let mut out = [Ready { events: 0, data: 0 }; SOCKS + 2];
        let n = self.lane.s.epoll_collect(self.epolls[e], &mut out).unwrap();
        let mut got: Vec<_> = out[..n].iter().map(|r| (r.data, r.events)).collect();
        got.sort();
        assert_eq!(got, expected);
        // No lost event: a level-triggered registration whose event holds has been reported.
        for (s, entry) in self.entries[e].iter().enumerate() {
            if let Some(entry) = entry.as_ref().filter(|e| e.trigger == Trigger::Level) {
                let events = self.peers[s].bits() & (entry.events | bits::ERR | bits::HUP);
                assert_eq!(events != 0, got.contains(&(s as u64, events)), "level {s}");
            }
        }
    }

    /// The stack's part of writing: the chunks go.
    fn free_writes(&mut self) {
        for job in self.lane.jobs() {
            if let Job::Write { chain, .. } = job {
                chain.free(&mut self.lane.side);
            }
        }
    }
}

/// Anything at all: an event's words, made of small numbers so that they often hit, or a call.
#[derive(Clone, Debug)]
enum Noise {
    Event(u16, u16, u32, [u32; 5], usize),
    Call(u8, u32, u32),
    Flush,
}

fn noise() -> impl Strategy<Value = Noise> {
    let small = || prop_oneof![9 => 0..6u32, 1 => any::<u32>()];
    let words = prop::array::uniform5(small());
    prop_oneof![
        5 => (0..13u16, 0..4u16, small(), words, 0..5000usize).prop_map(|(k, s, id, w, n)| Noise::Event(k, s, id, w, n)),
        6 => (0..25u8, 0..8u32, 0..8u32).prop_map(|(c, a, b)| Noise::Call(c, a, b)),
        2 => Just(Noise::Flush),
    ]
}

fn call(l: &mut Lane, call: u8, a: u32, b: u32) {
    let (id, other) = (SockId(a), SockId(b));
    let interest = Interest { events: b, trigger: Trigger::Edge, data: 0 };
    let s = &mut l.s;
    match call {
        0 | 1 => drop(s.socket(a & 1 != 0)),
        2 => drop(s.epoll_create()),
        3 => drop(s.bind(id, at(b as u16))),
        4 | 5 => drop(s.listen(id, ListenOptions { backlog: b })),
        6 | 7 => drop(s.connect(id, if b & 1 == 0 { at(80) } else { at6(80) })),
        8 => drop(s.accept(id)),
        9 => drop(s.read(id, &mut vec![0; b as usize * 300])),
        10 | 11 => drop(s.write(id, &vec![0; b as usize * 900], b & 1 != 0)),
        12 => drop(s.shutdown(id, [Shutdown::Read, Shutdown::Write, Shutdown::Both][b as usize % 3])),
        13 => drop(s.close(id)),
        14 => drop(s.abort(id)),
        15 => drop(s.linger_result(id)),
        16 => s.linger_give_up(id),
        17 => drop(s.epoll_add(id, other, interest)),
        18 => drop(s.epoll_modify(id, other, interest)),
        19 => drop(s.epoll_delete(id, other)),
        20 => drop(s.epoll_collect(id, &mut [Ready { events: 0, data: 0 }; 2])),
        21 => drop(s.query_info(id).map(|token| s.info_result(token))),
        22 => {
            let linger = socket::Linger { timeout: core::time::Duration::from_secs(b as u64) };
            let _ = s.set_option(id, SockOption::Linger(Some(linger)));
            let _ = s.set_option(id, SockOption::ReceiveBuffer(b));
        }
        23 => drop((s.take_error(id), s.readiness(id), s.option(id, SockOption::Cork(true)))),
        _ => drop((s.connect_result(id), s.listen_result(id), s.local(id), s.remote(id))),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// No event is lost, none is reported that Linux would not report.
    #[test]
    fn epoll_is_as_the_manual_says(ops in prop::collection::vec(op(), 1..250)) {
        let mut w = World::new();
        for op in ops {
            w.run(op);
        }
        w.lane.end();
    }

    /// Whatever the other side says and whoever calls what: no panic, no chunk lost.
    #[test]
    fn nonsense_is_survived(noise in prop::collection::vec(noise(), 1..300)) {
        let mut l = Lane::with(6, 512, 8);
        for n in noise {
            match n {
                Noise::Event(kind, small, id, w, bytes) => {
                    let mut chain = Chain::default();
                    // Data, Info, and what is no event at all.
                    if matches!(kind, 0 | 6 | 11 | 12) {
                        chain.push_slice(&mut l.side, &vec![0; bytes.saturating_sub(2500)]);
                    }
                    let w = w.map(u64::from);
                    let first = kind as u64 | (small as u64) << 16 | (id as u64) << 32;
                    let second = w[0] | w[4] << 32;
                    l.message(Message { words: [first, second, w[1], w[2], w[3], w[4]], chain });
                }
                Noise::Call(c, a, b) => call(&mut l, c, a, b),
                Noise::Flush => {
                    for job in l.jobs() {
                        if let Job::Write { chain, .. } = job {
                            chain.free(&mut l.side);
                        }
                    }
                }
            }
        }
        l.end();
    }
}

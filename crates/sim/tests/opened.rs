//! Active opens by an interface shared with the kernel: whoever sorts its frames is told of them in time, and to the end.

mod common;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{ACK, Bench, FIN, Peer, RST, SYN, Sent, ours, peer, usual};
use protocol::{CloseMode, Endpoint, Failure, Job, Token};
use stack::{FlowKey, OpenTuples, PortSource};
use wire::tcp::Options;
use wire::{Addr, Ports};

fn ports() -> Ports {
    Ports::new(40_000, 40_003)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    SynSent,
    Synchronized,
    TimeWait,
}

/// Phases by our port; there is room for the ports of `room`.
struct Table {
    known: HashMap<u16, Phase>,
    room: fn(u16) -> bool,
}

#[derive(Clone)]
struct Sorter(Arc<Mutex<Table>>);

impl Sorter {
    fn known(&self) -> Vec<(u16, Phase)> {
        let mut all: Vec<_> = self.0.lock().unwrap().known.iter().map(|(port, phase)| (*port, *phase)).collect();
        all.sort_by_key(|(port, _)| *port);
        all
    }

    fn enter(&self, key: &FlowKey, phase: Phase) {
        if let Some(own) = self.0.lock().unwrap().known.get_mut(&key.local_port) {
            *own = phase;
        }
    }
}

impl OpenTuples for Sorter {
    fn claim(&self, key: &FlowKey) -> bool {
        let mut table = self.0.lock().unwrap();
        let room = (table.room)(key.local_port);
        if room {
            let before = table.known.insert(key.local_port, Phase::SynSent);
            assert!(matches!(before, None | Some(Phase::TimeWait)), "{key:?} is claimed twice: {before:?}");
        }
        room
    }

    fn synchronized(&self, key: &FlowKey) {
        self.enter(key, Phase::Synchronized);
    }

    fn time_wait(&self, key: &FlowKey) {
        self.enter(key, Phase::TimeWait);
    }

    fn release(&self, key: &FlowKey) {
        self.0.lock().unwrap().known.remove(&key.local_port);
    }
}

fn shared(room: fn(u16) -> bool) -> (Bench, Sorter) {
    let mut b = Bench::new(|c| c.stack.ports = ports());
    let sorter = Sorter(Arc::new(Mutex::new(Table { known: HashMap::new(), room })));
    let interface = b.host.interface();
    b.host.stack.share(interface, Box::new(sorter.clone()));
    (b, sorter)
}

/// Begins an active open from a port, or from any; the SYN, if it left.
fn connect(b: &mut Bench, port: u16) -> Option<Sent> {
    let local = Endpoint { addr: if port == 0 { Addr::UNSPECIFIED_V6 } else { ours() }, port };
    let remote = Endpoint { addr: peer(2), port: 80 };
    let mut sent = b.job(Job::Connect { token: Token(7), local, remote, receive_buffer: 0 });
    assert!(sent.len() <= 1, "{sent:?}");
    sent.pop()
}

/// Answers a SYN with options; the peer afterwards.
fn answer(b: &mut Bench, syn: &Sent, options: Options) -> Peer {
    let mut p = Peer::new(2, 80);
    p.local_port = syn.src_port;
    p.ts = options.timestamps.map(|ts| (ts.value, 0));
    let seq = p.seq;
    p.answer(syn);
    p.seq = seq;
    let answers = b.send_with(&p, SYN | ACK, &[], options);
    assert!(matches!(&answers[..], [ack] if ack.flags == ACK), "{answers:?}");
    p.seq = seq + 1;
    p
}

/// The application ends the connection, and then the peer does.
fn end(b: &mut Bench, p: &mut Peer) {
    let fin = b.job(Job::Close { conn: b.opened.unwrap(), mode: CloseMode::Graceful }).pop().expect("a FIN");
    assert!(fin.flags.contains(FIN), "{fin:?}");
    p.answer(&fin);
    assert_eq!(b.send(p, FIN | ACK, &[]).len(), 1);
}

#[test]
fn a_connection_is_told_of_from_its_syn_to_the_end_of_time_wait() {
    // An ordinary answer takes the straight path, another one the general way.
    for options in [usual(), Options::default()] {
        let (mut b, sorter) = shared(|_| true);
        let syn = connect(&mut b, 0).expect("a SYN");
        let port = syn.src_port;
        assert_eq!(sorter.known(), [(port, Phase::SynSent)]);
        let mut p = answer(&mut b, &syn, options);
        assert_eq!(sorter.known(), [(port, Phase::Synchronized)]);
        end(&mut b, &mut p);
        assert_eq!((sorter.known(), b.host.stack.time_waits()), (vec![(port, Phase::TimeWait)], 1));
        b.wait(Duration::from_secs(61));
        assert_eq!((sorter.known(), b.host.stack.time_waits()), (vec![], 0));
    }
}

#[test]
fn a_connection_that_fails_is_forgotten() {
    // Refused.
    let (mut b, sorter) = shared(|_| true);
    let syn = connect(&mut b, 0).expect("a SYN");
    let mut p = Peer::new(2, 80);
    p.local_port = syn.src_port;
    p.ack = syn.seq + 1;
    b.send(&p, RST | ACK, &[]);
    assert_eq!((b.failed, sorter.known()), (Some(Failure::Refused), vec![]));
    // Reset by the peer, and by the application.
    for own in [false, true] {
        let syn = connect(&mut b, 0).expect("a SYN");
        let p = answer(&mut b, &syn, usual());
        assert_eq!(sorter.known(), [(syn.src_port, Phase::Synchronized)]);
        if own {
            b.job(Job::Abort { conn: b.opened.unwrap() });
        } else {
            b.send(&p, RST, &[]);
        }
        assert_eq!(sorter.known(), []);
    }
    // Never answered.
    let syn = connect(&mut b, 0).expect("a SYN");
    assert_eq!(sorter.known(), [(syn.src_port, Phase::SynSent)]);
    b.wait(Duration::from_secs(300));
    assert_eq!(sorter.known(), []);
}

#[test]
fn an_active_open_takes_a_tuple_out_of_time_wait() {
    let (mut b, sorter) = shared(|_| true);
    for _ in 0..3 {
        let mut known = Vec::new();
        for port in ports().iter() {
            let syn = connect(&mut b, port).expect("a SYN");
            known.push((port, Phase::TimeWait));
            let mut p = answer(&mut b, &syn, usual());
            end(&mut b, &mut p);
        }
        assert_eq!(sorter.known(), known);
        b.wait(Duration::from_secs(2));
    }
    let syn = connect(&mut b, 0).expect("a SYN");
    assert!(sorter.known().contains(&(syn.src_port, Phase::SynSent)));
}

#[test]
fn a_port_without_room_is_passed_over() {
    let (mut b, sorter) = shared(|port| port == 40_002);
    assert_eq!(connect(&mut b, 0).expect("a SYN").src_port, 40_002);
    assert_eq!(sorter.known(), [(40_002, Phase::SynSent)]);
    let refused = |b: &mut Bench, port| (connect(b, port).map(|syn| syn.src_port), b.failed.take());
    assert_eq!(refused(&mut b, 40_001), (None, Some(Failure::NoBuffers)));
    let (mut b, sorter) = shared(|_| false);
    assert_eq!(refused(&mut b, 0), (None, Some(Failure::NoBuffers)));
    assert_eq!(sorter.known(), []);
}

#[test]
fn an_open_for_which_there_is_no_connection_gives_its_tuple_back() {
    let (mut b, sorter) = shared(|_| true);
    let mut opened = 0;
    while connect(&mut b, 0).is_some() {
        opened += 1;
    }
    assert_eq!((opened, sorter.known().len(), b.failed), (4, 4, Some(Failure::AddressNotAvailable)));
    let mut b = Bench::new(|c| c.stack.max_connections = 1);
    b.host.stack.share(b.host.interface(), Box::new(sorter.clone()));
    sorter.0.lock().unwrap().known.clear();
    assert!(connect(&mut b, 0).is_some());
    assert!(connect(&mut b, 0).is_none());
    assert_eq!((sorter.known().len(), b.failed), (1, Some(Failure::NoBuffers)));
}

/// Ports that come by twos, as long as there are some.
struct Source {
    left: Vec<Ports>,
    now: Arc<Mutex<Option<Ports>>>,
}

impl PortSource for Source {
    fn most(&self) -> u32 {
        4
    }

    fn changed(&mut self) -> Option<Ports> {
        self.now.lock().unwrap().take()
    }

    fn more(&mut self) -> bool {
        let more = self.left.pop();
        let any = more.is_some();
        *self.now.lock().unwrap() = more;
        any
    }
}

#[test]
fn ports_are_asked_for_where_all_are_taken() {
    let (mut b, sorter) = shared(|_| true);
    let left = vec![Ports::new(40_000, 40_003), Ports::new(40_002, 40_003), Ports::default()];
    b.host.stack.share_ports(Box::new(Source { left, now: Arc::default() }));
    let mut taken = Vec::new();
    assert_eq!(b.host.stack.active_ports(), 4);
    for _ in 0..4 {
        taken.push(connect(&mut b, 0).expect("a SYN").src_port);
    }
    taken.sort();
    assert_eq!(taken, [40_000, 40_001, 40_002, 40_003]);
    assert_eq!((connect(&mut b, 0).is_none(), b.failed.take()), (true, Some(Failure::AddressNotAvailable)));
    // Another remote end has all of them; and who names a port has it whatever is chosen from.
    sorter.0.lock().unwrap().known.clear();
    let other = |b: &mut Bench, local: Endpoint| {
        let remote = Endpoint { addr: peer(2), port: 81 };
        b.job(Job::Connect { token: Token(7), local, remote, receive_buffer: 0 }).pop().map(|syn| syn.src_port)
    };
    let any = Endpoint { addr: ours(), port: 0 };
    let four: Vec<_> = (0..5).filter_map(|_| other(&mut b, any)).collect();
    assert_eq!(four.len(), 4);
    assert_eq!(other(&mut b, Endpoint { port: 7, ..any }), Some(7));
    assert!(sorter.known().contains(&(7, Phase::SynSent)));
}

/// Connections that were opened from ports which are given up meanwhile, or which they named, are told of to their end.
#[test]
fn connections_outlive_the_ports_from_which_they_were_opened() {
    let (mut b, sorter) = shared(|_| true);
    let now = Arc::new(Mutex::new(Some(ports())));
    b.host.stack.share_ports(Box::new(Source { left: vec![Ports::new(40_001, 40_001)], now: now.clone() }));
    let open = |b: &mut Bench, port| {
        let syn = connect(b, port).expect("a SYN");
        let p = answer(b, &syn, usual());
        (b.opened, p, syn.src_port)
    };
    let mut open_all = vec![open(&mut b, 7), open(&mut b, 0), open(&mut b, 0)];
    *now.lock().unwrap() = Some(Ports::default());
    open_all.push(open(&mut b, 0));
    assert_eq!((open_all[3].2, sorter.known().len()), (40_001, 4));
    for (conn, mut p, _) in open_all {
        b.opened = conn;
        end(&mut b, &mut p);
    }
    assert!(sorter.known().iter().map(|(_, phase)| phase).eq([&Phase::TimeWait; 4]), "{:?}", sorter.known());
    b.wait(Duration::from_secs(61));
    assert_eq!((sorter.known(), b.host.stack.time_waits()), (vec![], 0));
}

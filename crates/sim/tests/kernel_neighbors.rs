//! Next hops on an interface shared with the kernel: its word counts, and where it has none, where a handshake came from.

mod common;
use core::time::Duration;

use common::*;
use protocol::{Endpoint, Failure, Job, Token};
use stack::Mode;
use wire::{Addr, MacAddr, ethernet};

const OTHER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 77]);

fn bench() -> Bench {
    Bench::listening(10, &[], |c| c.mode = Mode::Shared)
}

/// Addresses that the kernel is to be told the use of.
fn wanted(b: &mut Bench) -> Vec<Addr> {
    let mut all = Vec::new();
    b.host.stack.wanted_neighbors(&mut all);
    all.into_iter().map(|(_, addr)| addr.into()).collect()
}

/// Where the host's frames go.
fn turn(b: &mut Bench, frames: Vec<Vec<u8>>) -> Vec<MacAddr> {
    let sent = b.turn_all(vec![frames]);
    sent[0].iter().map(|f| ethernet::Frame::parse(f).unwrap().dst).collect()
}

/// A connection of a client that no neighbour is known for.
fn client(b: &mut Bench) -> Peer {
    let mut p = Peer { addr: Addr::from_v4([10, 0, 1, 1]), ..Peer::new(1, 9000) };
    let synack = b.send(&p, SYN, b"");
    p.answer(&synack[0]);
    b.send(&p, ACK, b"");
    assert_eq!(b.accepted.len(), 1);
    p
}

/// Where the answer to a question of `p` goes: an acknowledgment, which a segment behind a hole gets at once.
fn answer(b: &mut Bench, p: &Peer) -> MacAddr {
    let hole = Peer { seq: p.seq + 100, ..*p };
    let sent = turn(b, vec![b.frame(&hole, ACK, b"behind a hole", Default::default())]);
    assert_eq!(sent.len(), 1, "{sent:?}");
    sent[0]
}

#[test]
fn a_client_is_answered_to_where_it_came_from_until_the_kernel_knows_better() {
    let mut b = bench();
    let p = client(&mut b);
    let (now, interface, ip) = (b.now, b.host.interface(), p.addr.to_ip());
    let conn = b.accepted[0];
    let mut chain = mem::Chain::default();
    chain.push_slice(&mut b.host.side, b"an answer");
    b.host.job(Job::Write { conn, chain, more: false, close: false });
    assert_eq!(turn(&mut b, vec![]), [PEER_MAC], "before the kernel has said anything");
    assert_eq!(wanted(&mut b), [p.addr]);
    // Its table is full.
    b.host.stack.refuse_neighbor(now, interface, ip);
    assert_eq!((answer(&mut b, &p), b.host.stack.counters().neighbors_refused), (PEER_MAC, 1));
    // Another host, as it says, whatever address the client's frames come from.
    b.host.stack.set_neighbor(now, interface, ip, OTHER_MAC);
    assert_eq!(answer(&mut b, &p), OTHER_MAC);
    b.host.stack.remove_neighbor(interface, ip);
    assert_eq!((answer(&mut b, &p), wanted(&mut b)), (PEER_MAC, vec![p.addr]), "it lost its entry");
    b.host.stack.set_stale_neighbor(now, interface, ip, OTHER_MAC);
    assert_eq!((answer(&mut b, &p), wanted(&mut b)), (OTHER_MAC, vec![p.addr]), "and has it again");
    // Nobody answers to it: for its questions, not for the client.
    b.host.stack.remove_neighbor(interface, ip);
    for s in 0..20 {
        let to = answer(&mut b, &p);
        assert_eq!(to, PEER_MAC, "after {s} s");
        b.wait(Duration::from_secs(1));
    }
    assert_eq!(b.failed, None);
}

#[test]
fn an_open_waits_for_room_in_the_kernels_table() {
    let mut b = bench();
    let remote = Endpoint { addr: Addr::from_v4([10, 0, 1, 2]), port: 80 };
    let local = Endpoint { addr: Addr::UNSPECIFIED_V4, port: 0 };
    let open = || Job::Connect { token: Token(9), local, remote, receive_buffer: 0 };
    let interface = b.host.interface();
    b.host.job(open());
    assert_eq!(turn(&mut b, vec![]), []);
    assert_eq!(wanted(&mut b), [remote.addr]);
    b.host.stack.refuse_neighbor(b.now, interface, remote.addr.to_ip());
    assert_eq!(turn(&mut b, vec![]), [], "lost");
    // Each SYN asks again, and the one that finds room goes out.
    let mut asked = Vec::new();
    for second in 1..=20 {
        assert!(b.wait(Duration::from_secs(1)).is_empty());
        if !wanted(&mut b).is_empty() {
            asked.push(second);
            b.host.stack.refuse_neighbor(b.now, interface, remote.addr.to_ip());
        }
    }
    // SYNs go at 1, 2, 3, 4, 5, 7, 11 and 19 s.
    assert_eq!((asked, b.failed), (vec![1, 2, 4, 11, 19], None));
    b.host.stack.set_neighbor(b.now, interface, remote.addr.to_ip(), OTHER_MAC);
    assert!(!b.wait(Duration::from_secs(15)).is_empty());
    // There is never room: as with any peer that does not answer.
    let mut b = bench();
    b.host.job(open());
    turn(&mut b, vec![]);
    for _ in 0..300 {
        if !wanted(&mut b).is_empty() {
            b.host.stack.refuse_neighbor(b.now, interface, remote.addr.to_ip());
        }
        assert!(b.wait(Duration::from_secs(1)).is_empty());
    }
    assert_eq!(b.failed, Some(Failure::TimedOut));
}

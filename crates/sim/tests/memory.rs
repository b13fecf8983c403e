//! What attackers can make a stack remember.

mod common;

use core::time::Duration;

use common::{ACK, Bench, Peer};
use wire::tcp::Options;

fn plain() -> Options {
    Options { mss: Some(1460), ..Options::default() }
}

/// Chunks in use.
fn used(b: &mut Bench) -> u32 {
    b.host.leaked()
}

/// One byte here, one byte there: each connection holds what its limit says, and all together leave room for those who
/// send in order.
#[test]
fn single_bytes_out_of_order_are_bounded() {
    let chunks = 4096;
    let mut b = Bench::listening(200, &[], |c| c.chunks = chunks);
    let mut attackers: Vec<Peer> = Vec::new();
    for n in 0..100 {
        attackers.push(b.establish(2, 4000 + n, plain()));
    }
    for at in 0..400u32 {
        for p in &attackers {
            b.send(&Peer { seq: p.seq + 1 + at * 2, ..*p }, ACK, b"x");
        }
        b.now = b.now.plus_micros(1000);
        if at == 0 {
            assert!(used(&mut b) >= 100);
        }
    }
    let most = used(&mut b);
    assert!(most <= chunks / 4 * 3 + 64, "{most} chunks");
    let c = b.host.stack.counters();
    assert!(c.tcp.out_of_order_dropped + c.shed > 10_000, "{} {}", c.tcp.out_of_order_dropped, c.shed);
    // Somebody else's stream comes through, holes and all.
    let mut p = b.establish(3, 9000, plain());
    b.bytes.clear();
    for _ in 0..2000 {
        b.send(&Peer { seq: p.seq + 1000, ..p }, ACK, &[2; 1000]);
        b.send(&p, ACK, &[1; 1000]);
        b.send(&Peer { seq: p.seq + 1000, ..p }, ACK, &[2; 1000]);
        p.seq += 2000;
        b.now = b.now.plus_micros(1000);
    }
    assert_eq!(b.bytes.len(), 4_000_000);
}

/// Filling the gaps of single bytes does not leave a chunk for each.
#[test]
fn filled_gaps_take_no_more_than_their_bytes() {
    let mut b = Bench::listening(200, &[], |_| {});
    let p = b.establish(2, 4000, plain());
    for round in 0..50u32 {
        let base = 1 + round * 200;
        for n in (0..200).step_by(2).chain((1..200).step_by(2)) {
            b.send(&Peer { seq: p.seq + base + n, ..p }, ACK, b"x");
        }
    }
    // 10,000 bytes in one run.
    assert!(used(&mut b) <= 12, "{}", used(&mut b));
    b.send(&p, ACK, b"y");
    assert_eq!(b.bytes.len(), 10_001);
}

/// When memory is short, what lies out of order goes: it comes again.
#[test]
fn what_lies_out_of_order_makes_room() {
    let chunks = 1024;
    let mut b = Bench::listening(200, &[], |c| c.chunks = chunks);
    let mut peers: Vec<Peer> = (0..6).map(|n| b.establish(2, 4000 + n, plain())).collect();
    for p in &peers {
        for n in 0..120 {
            b.send(&Peer { seq: p.seq + 2 + n * 2, ..*p }, ACK, b"x");
        }
    }
    assert!(used(&mut b) > 700);
    // An application that does not read takes most of the rest.
    b.consume = false;
    let before = b.host.stack.counters().shed;
    let mut chain = mem::Chain::default();
    let hoard = vec![0; 2048 * 200];
    chain.push_slice(&mut b.host.side, &hoard);
    b.wait(Duration::from_millis(10));
    b.turn(Vec::new());
    assert!(b.host.stack.counters().shed > before, "{}", used(&mut b));
    chain.free(&mut b.host.side);
    // Everything still arrives when it is sent again.
    let p = &mut peers[0];
    b.bytes.clear();
    b.send(p, ACK, &[7; 300]);
    assert_eq!(b.bytes.len(), 300);
}

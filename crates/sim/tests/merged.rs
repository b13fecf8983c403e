//! Frames into which a kernel has put several segments (GRO), or which a sender on this machine has never cut: of a wrong sum, with
//! urgent data, with an old timestamp, most of it known or not to be had, and more than memory has room for.

mod common;

use common::{ACK, Bench, PORT, Peer, Sent, frame, usual};
use sim::Frames;
use sim::offload::Joined;
use stack::DropReason;
use wire::burst::RxChecksum;
use wire::tcp::{Flags, Header, Options};

/// Bytes of text of a merged frame, and of each segment in it.
const TEXT: usize = 60_000;
const MSS: u16 = 1448;
/// Where TCP's header begins in a frame of IPv4.
const TCP: usize = 34;

fn text(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i ^ i >> 8) as u8).collect()
}

fn give(b: &mut Bench, data: Vec<u8>, checksum: RxChecksum) -> Vec<Sent> {
    let interface = b.host.interface();
    b.host.stack.receive(b.now, interface, &Frames { frames: vec![Joined { data, checksum, mss: MSS }] });
    b.turn(Vec::new())
}

/// A merged frame from `p`, whose sum the kernel vouches for.
fn send(b: &mut Bench, p: &Peer, text: &[u8]) -> Vec<Sent> {
    let data = b.frame(p, ACK, text, Options::default());
    give(b, data, RxChecksum::Verified)
}

/// Leaves in a frame what a sender on this machine, or GRO, leaves for hardware to finish.
fn unfinished(mut data: Vec<u8>, p: &Peer) -> Vec<u8> {
    let len = data.len() - TCP;
    wire::tcp::fill_pseudo(p.addr, common::ours(), len, &mut data[TCP..]);
    data
}

#[test]
fn a_merged_frame_counts_by_its_sum() {
    use RxChecksum::{MayBePartial, Unknown, Verified};
    let damaged = |mut data: Vec<u8>, _: &Peer| {
        data[TCP + 1000] ^= 1;
        data
    };
    let whole = |data: Vec<u8>, _: &Peer| data;
    type Change<'a> = &'a dyn Fn(Vec<u8>, &Peer) -> Vec<u8>;
    let cases: [(RxChecksum, Change, bool); 7] = [
        (Verified, &whole, true),
        (Unknown, &whole, true),
        (MayBePartial, &whole, true),
        (MayBePartial, &unfinished, true),
        (MayBePartial, &damaged, false),
        (Unknown, &damaged, false),
        // Frames of a wire have sums of their own.
        (Unknown, &unfinished, false),
    ];
    for (at, (checksum, change, taken)) in cases.into_iter().enumerate() {
        let mut b = Bench::listening(10, &[], |_| {});
        let p = b.establish(2, 4000, usual());
        let data = change(b.frame(&p, ACK, &text(TEXT), Options::default()), &p);
        let answers = give(&mut b, data, checksum);
        let dropped = b.host.stack.counters().dropped(DropReason::TcpChecksum);
        assert_eq!((dropped, b.bytes.len()), if taken { (0, TEXT) } else { (1, 0) }, "case {at}");
        if taken {
            assert!(b.bytes == text(TEXT), "case {at}");
            assert_eq!(answers.last().map(|a| a.ack), Some(p.seq + TEXT as u32), "case {at}");
        }
        assert_eq!(b.host.leaked(), 0);
    }
}

/// GRO puts no segments with URG together, but a sender on this machine may leave them so.
#[test]
fn urgent_data_of_a_merged_frame_is_where_it_says() {
    for urgent in [0, 1, MSS + 1, TEXT as u16 - 1, TEXT as u16, u16::MAX] {
        let mut b = Bench::listening(10, &[], |_| {});
        let p = b.establish(2, 4000, Options { timestamps: None, ..usual() });
        let header = Header {
            src_port: p.port,
            dst_port: PORT,
            seq: p.seq,
            ack: p.ack,
            flags: ACK | Flags::URG,
            window: p.window,
            urgent,
            options: Options::default(),
        };
        let data = frame(b.host.config.mac, p.addr, &header, &text(TEXT));
        give(&mut b, data, RxChecksum::Verified);
        assert!(b.bytes == text(TEXT), "{urgent}: {} bytes", b.bytes.len());
        // The pointer names the byte after the last urgent one (RFC 6093).
        assert_eq!((b.urgent, b.failed), (urgent.checked_sub(1).map(u32::from), None), "{urgent}");
    }
}

/// A frame has one header: segments whose options differ come as frames of their own.
#[test]
fn an_old_timestamp_is_that_of_the_whole_frame() {
    let mut b = Bench::listening(10, &[], |_| {});
    let mut p = b.establish(2, 4000, usual());
    let (value, echo) = p.ts.expect("timestamps");
    p.ts = Some((value.wrapping_sub(1), echo));
    let answers = send(&mut b, &p, &text(TEXT));
    // RFC 7323 5.3, R1: an acknowledgment, and it is dropped.
    assert_eq!((answers.len(), answers[0].ack, b.bytes.len()), (1, p.seq, 0));
    p.ts = Some((value, echo));
    send(&mut b, &p, &text(TEXT));
    assert!(b.bytes == text(TEXT));
}

/// Keeps one byte of a frame that is known but for that.
#[test]
fn one_new_byte_of_a_merged_frame_takes_no_room_for_the_rest() {
    let mut b = Bench::listening(10, &[], |_| {});
    let p = b.establish(2, 4000, usual());
    let all = text(2 * TEXT);
    // Leaves a gap of one byte.
    let at = |n: usize| Peer { seq: p.seq + n as u32, ..p };
    send(&mut b, &at(1), &all[1..1 + 20_000]);
    let before = b.host.leaked();
    for n in 1..200 {
        send(&mut b, &at(n), &all[n..n + 20_000 + 1]);
    }
    let used = b.host.leaked();
    assert!(used <= before + 1, "{used} chunks, {before} before");
    // Known to the last byte, in order.
    b.send(&p, ACK, &all[..1]);
    assert!(b.bytes == all[..20_200], "{} bytes", b.bytes.len());
    send(&mut b, &at(0), &all[..20_201]);
    assert!(b.bytes == all[..20_201] && b.host.leaked() == 0);
}

/// Merged frames that wait for what comes before them fill no more memory than single segments do.
#[test]
fn merged_frames_out_of_order_are_bounded() {
    let chunks = 4096;
    let mut b = Bench::listening(200, &[], |c| c.chunks = chunks);
    let attackers: Vec<Peer> = (0..200).map(|n| b.establish(2, 4000 + n, usual())).collect();
    let text = text(30_000);
    for round in 0..4 {
        for p in &attackers {
            send(&mut b, &Peer { seq: p.seq + 1 + round * 30_000, ..*p }, &text);
        }
        b.now = b.now.plus_micros(1000);
    }
    let most = b.host.leaked();
    assert!(most > 100 && most <= chunks / 4 * 3 + 64, "{most} chunks");
    let c = b.host.stack.counters();
    assert!(c.tcp.out_of_order_dropped + c.shed > 100, "{} {}", c.tcp.out_of_order_dropped, c.shed);
    // Somebody else's bytes come through.
    let mut p = b.establish(3, 9000, usual());
    b.bytes.clear();
    for _ in 0..20 {
        send(&mut b, &p, &text);
        p.seq += 30_000;
        b.now = b.now.plus_micros(1000);
    }
    assert_eq!(b.bytes.len(), 600_000);
}

//! A million frames that nobody asked for: what the stack holds stays within what was configured.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use protocol::Endpoint;
use sim::{Echo, Host, HostConfig};
use stack::DropReason;
use wire::tcp::{Flags, Header, Options};
use wire::{Addr, Instant, MacAddr, SeqNum, arp, checksum, ethernet, icmpv6, ipv4, ipv6};

struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    HELD.with(|held| {
        held.set(held.get() + bytes);
        MOST.with(|most| most.set(most.get().max(held.get())));
    });
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's pointer and layout.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller's pointer, layout and size.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// A frame from anybody on the link to us: every kind that could make the stack remember something.
fn frame(r: &mut Random, us: &HostConfig) -> Vec<u8> {
    let kind = r.below(8);
    let v4 = kind == 6 || r.below(2) == 0;
    let x = r.next().to_be_bytes();
    let (src, dst) = match v4 {
        true => (Addr::from_v4([10, 0, x[0], x[1]]), Addr::from(us.addresses[0].0)),
        false => (Addr::from_words([0xfd00 << 48, r.below(1 << 40)]), Addr::from(us.addresses[1].0)),
    };
    let mac = MacAddr([2, x[2], x[3], x[4], x[5], x[6]]);
    let mut b = vec![0; 14];
    ethernet::emit(&mut b, us.mac, mac, None, if v4 { ethernet::IPV4 } else { ethernet::IPV6 });
    match kind {
        // SYNs from everywhere, and segments of no connection.
        0..=2 => {
            let flags = if kind < 2 { Flags::SYN } else { Flags::from_bits(r.next() as u16) };
            let options = Options { mss: Some(1460), window_scale: Some(7), ..Options::default() };
            let header = Header {
                src_port: r.next() as u16,
                dst_port: if r.below(4) == 0 { r.next() as u16 } else { 80 },
                seq: SeqNum(r.next() as u32),
                ack: SeqNum(r.next() as u32),
                flags,
                window: r.next() as u16,
                urgent: 0,
                options,
            };
            let mut tcp = [0; 60];
            let n = header.emit(&mut tcp, flags.contains(Flags::SYN));
            wire::tcp::fill_checksum(src, dst, &mut tcp[..n]);
            packet(&mut b, src, dst, ipv4::TCP, &tcp[..n]);
        }
        // Pieces of datagrams that never become whole.
        3 | 4 if v4 => {
            packet(&mut b, src, dst, ipv4::TCP, &vec![0x50; 8 + 8 * r.below(170) as usize]);
            b[18..20].copy_from_slice(&x[..2]);
            b[20..22].copy_from_slice(&(0x2000 | r.below(0x1f00) as u16).to_be_bytes());
            b[24..26].fill(0);
            let sum = checksum::sum(&b[14..34]).finish();
            b[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        3 | 4 => {
            let mut body = vec![ipv6::TCP, 0];
            body.extend(((r.below(0x1f00) as u16) << 3 | 1).to_be_bytes());
            body.extend(&x[..4]);
            body.resize(8 + 8 + 8 * r.below(170) as usize, 0x50);
            packet(&mut b, src, dst, 44, &body);
        }
        // Neighbours without number that ask for us.
        5 | 6 if v4 => {
            let op = if r.below(2) == 0 { arp::Op::Request } else { arp::Op::Reply };
            let (sender_ip, target_ip) = (src.v4_octets(), dst.v4_octets());
            let ask = arp::Packet { op, sender_mac: mac, sender_ip, target_mac: us.mac, target_ip };
            b[12..14].copy_from_slice(&ethernet::ARP.to_be_bytes());
            b.resize(42, 0);
            ask.emit(&mut b[14..]);
        }
        5 | 6 => {
            let ask = icmpv6::Message::NeighborSolicit { target: dst, source_mac: Some(mac) };
            let mut body = [0; 32];
            ask.emit(src, dst, &mut body);
            packet(&mut b, src, dst, ipv6::ICMPV6, &body);
        }
        // Anything.
        _ => b.extend((0..r.below(200)).map(|_| r.next() as u8)),
    }
    b
}

fn packet(b: &mut Vec<u8>, src: Addr, dst: Addr, protocol: u8, body: &[u8]) {
    let header = if src.is_v4() { 20 } else { 40 };
    b.resize(14 + header, 0);
    if src.is_v4() {
        ipv4::Header { src, dst, protocol, ..Default::default() }.emit(&mut b[14..], body.len());
    } else {
        ipv6::Header { src, dst, next_header: protocol, hop_limit: 255, ..Default::default() }
            .emit(&mut b[14..], body.len());
    }
    b.extend(body);
}

#[test]
fn a_million_frames_from_everywhere_take_no_more_than_was_granted() {
    let mut config = HostConfig::new(1);
    config.chunks = 64;
    config.stack.max_connections = 2000;
    config.stack.max_time_wait = 100;
    config.stack.syn_backlog = 300;
    config.stack.max_neighbors = 500;
    config.stack.fragments.bytes = 1 << 20;
    let mut r = Random(7);
    let before = HELD.with(Cell::get);
    let mut host = Host::new(config.clone());
    let _echo = Echo::start(&mut host, Endpoint { addr: Addr::UNSPECIFIED_V6, port: 80 });
    let mut now = Instant::from_micros(1_000_000);
    // Everything that grows to its limit once does so in the first tenth.
    let mut warm = 0;
    for turn in 0..31_250 {
        now = now.plus_micros(1 + r.below(200_000) * (turn % 50 == 0) as u64);
        let frames: Vec<Vec<u8>> = (0..32).map(|_| frame(&mut r, &config)).collect();
        host.turn(now, frames);
        while host.event().is_some() {}
        if turn == 3125 {
            warm = MOST.with(Cell::get) - before;
        }
    }
    let c = host.stack.counters();
    assert_eq!(c.frames_in, 1_000_000);
    // It was met, not avoided.
    for reason in [DropReason::FragmentLimit, DropReason::NoSocket] {
        assert!(c.dropped(reason) > 10_000, "{}: {}", reason.name(), c.dropped(reason));
    }
    assert!(c.cookies_sent > 10_000, "{} SYN cookies", c.cookies_sent);
    assert!(host.stack.connections() <= 2000 && host.stack.time_waits() <= 100);
    // Connections at 4 KiB each, neighbours and records at 256 bytes, fragments, and a few MiB of rings and queues.
    let granted = (2000 * 4096 + 600 * 256 + (1 << 20) + (8 << 20)) as isize;
    let most = MOST.with(Cell::get) - before;
    assert!(most <= granted, "{most} bytes of {granted}");
    assert!(most <= warm + warm / 10, "{warm} bytes after a tenth, {most} at the end");
}

/// A peer's end of a connection: our next number and theirs.
struct Held {
    port: u16,
    next: SeqNum,
    expected: SeqNum,
}

fn segment(us: &HostConfig, held: &Held, (seq, ack): (SeqNum, SeqNum), header: Header, payload: &[u8]) -> Vec<u8> {
    let (src, dst) = (Addr::from_v4([10, 0, 0, 9]), Addr::from(us.addresses[0].0));
    let header = Header { src_port: held.port, dst_port: 80, seq, ack, ..header };
    let mut tcp = vec![0; 60];
    let n = header.emit(&mut tcp, header.flags.contains(Flags::SYN));
    tcp.truncate(n);
    tcp.extend(payload);
    wire::tcp::fill_checksum(src, dst, &mut tcp);
    let mut b = vec![0; 14];
    ethernet::emit(&mut b, us.mac, MacAddr([2, 0, 0, 0, 0, 9]), None, ethernet::IPV4);
    packet(&mut b, src, dst, ipv4::TCP, &tcp);
    b
}

/// Takes note of what the host sent.
fn hear(held: &mut [Held], frames: &[Vec<u8>]) {
    for f in frames {
        let Ok(ip) = ipv4::Packet::parse(&f[14..]) else { continue };
        if ip.protocol != ipv4::TCP {
            continue;
        }
        let s = wire::tcp::Segment::parse(ip.payload).unwrap();
        let Some(h) = held.iter_mut().find(|h| h.port == s.dst_port) else { continue };
        let end = s.seq + s.payload.len() as u32 + s.flags.contains(Flags::SYN) as u32;
        if s.flags.contains(Flags::SYN) || end.after(h.expected) {
            h.expected = end;
        }
        // Not all that is sent is taken, and what acknowledges bytes from before the connection is not (RFC 5961 5.2).
        if s.flags.contains(Flags::ACK) && s.ack.after(h.next) {
            h.next = s.ack;
        }
    }
}

/// Who has a connection can do more: bytes here and there, blocks of whatever was received or not, windows that open and
/// close, acknowledgments of little or nothing, and an echo that has much to send. All of them together stay within the
/// chunks, and what is kept beside these does not grow.
#[test]
fn a_million_segments_into_open_connections_take_no_more_than_was_granted() {
    const CONNS: u16 = 64;
    let mut config = HostConfig::new(1);
    config.chunks = 4096;
    config.stack.max_connections = 200;
    let mut r = Random(11);
    let before = HELD.with(Cell::get);
    let mut host = Host::new(config.clone());
    let mut echo = Echo::start(&mut host, Endpoint { addr: Addr::UNSPECIFIED_V6, port: 80 });
    let mut now = Instant::from_micros(1_000_000);
    host.stack.set_neighbor(now, host.interface(), [10, 0, 0, 9].into(), MacAddr([2, 0, 0, 0, 0, 9]));
    // It listens from here on.
    host.turn(now, Vec::new());
    let mut held: Vec<Held> =
        (0..CONNS).map(|n| Held { port: 1000 + n, next: SeqNum(7), expected: SeqNum(0) }).collect();
    let plain = Header {
        src_port: 0,
        dst_port: 0,
        seq: SeqNum(0),
        ack: SeqNum(0),
        flags: Flags::ACK,
        window: u16::MAX,
        urgent: 0,
        options: Options::default(),
    };
    for i in 0..held.len() {
        // Tiny segments and large windows for some.
        let mss = if i % 4 == 0 { 1 } else { 1460 };
        let options = Options { mss: Some(mss), window_scale: Some(7), sack_permitted: true, ..Options::default() };
        let syn = Header { flags: Flags::SYN, options, ..plain };
        let frame = segment(&config, &held[i], (SeqNum(6), SeqNum(0)), syn, &[]);
        hear(&mut held, &host.turn(now, vec![frame]));
        let frame = segment(&config, &held[i], (held[i].next, held[i].expected), plain, b"first");
        held[i].next += 5;
        hear(&mut held, &host.turn(now, vec![frame]));
    }
    let mut warm = 0;
    let mut echoes = |host: &mut Host| {
        while let Some(event) = host.event() {
            echo.on_event(host, event);
        }
        echo.accepted
    };
    assert_eq!(echoes(&mut host), CONNS as usize);
    for turn in 0..31_250 {
        now = now.plus_micros(1 + r.below(20_000) * (turn % 20 == 0) as u64);
        let mut frames = Vec::new();
        for _ in 0..32 {
            let i = r.below(held.len() as u64) as usize;
            let (next, expected) = (held[i].next, held[i].expected);
            let n = [0, 1, 1, 3, 100, 1400][r.below(6) as usize];
            let ahead = [0, 0, 1, r.below(3000), r.below(60_000)][r.below(5) as usize] as u32;
            let behind = [0, 0, r.below(100), r.below(60_000)][r.below(4) as usize] as u32;
            let mut options = Options::default();
            for _ in 0..r.below(5) {
                let left = expected - r.below(60_000) as u32;
                options.sack.push(left, left + r.below(5000) as u32);
            }
            let window = [0, 1, 100, 1000, u16::MAX][r.below(5) as usize];
            let header = Header { window, options, ..plain };
            frames.push(segment(&config, &held[i], (next + ahead, expected - behind), header, &[1; 1400][..n]));
        }
        hear(&mut held, &host.turn(now, frames));
        echoes(&mut host);
        if turn == 6250 {
            warm = MOST.with(Cell::get) - before;
        }
    }
    let c = host.stack.counters();
    assert!(c.segments_in >= 1_000_000 && c.tcp.out_of_order > 10_000 && c.tcp.in_order > 10_000, "{c:?}");
    // They are all still there.
    assert_eq!(host.stack.connections(), CONNS as usize);
    let chunks = host.stack.pool().stats().in_use_estimate;
    println!("{chunks} chunks, {} records of sent segments", host.stack.sent_records());
    assert!(chunks <= 4096, "{chunks} chunks");
    let most = MOST.with(Cell::get) - before;
    // Rings and tables, and for each connection its runs and the records of what is outstanding.
    let granted = (CONNS as isize) * (4096 + 128 * 64 + 8192 * 32) + (8 << 20);
    assert!(most <= granted, "{most} bytes of {granted}");
    assert!(most <= warm + warm / 4, "{warm} bytes after a fifth, {most} at the end");
}

//! Any frames into a stack: raw bytes, segments that are well-formed up to TCP so that they reach its states, and frames into which a
//! kernel has put several of them, with whatever it says of their sums and sizes. Nothing panics; afterwards time passes and every chunk is back. The host has three interfaces, two of which have the same addresses,
//! and opens and closes connections meanwhile; the stack is checked (`Stack::check`) after its turns.
#![no_main]

use corelane_fuzz::{Ends, Input, Silence, fixed_up};
use libfuzzer_sys::fuzz_target;
use sim::offload::Joined;
use sim::{Echo, Frames, Host, HostConfig, LinkConfig};
use stack::InterfaceId;
use protocol::{CloseMode, ConnId, Endpoint, Event, Job, Token};
use wire::burst::RxChecksum;
use wire::tcp::{Flags, Header, Options, Timestamps};
use wire::{Addr, Instant, MacAddr, SeqNum, ethernet, ipv4};

/// Longer inputs are not taken to their end.
const STEPS: usize = 300;

/// A segment whose text is `text`, or is read where there is none.
fn segment(input: &mut Input, us: &HostConfig, seen: &mut [SeqNum; 2], text: Option<Vec<u8>>) -> Vec<u8> {
    let (dst, src) = (Addr::from(us.addresses[0].0), Addr::from_v4([10, 0, 0, 9]));
    let near = |input: &mut Input, base: SeqNum| match input.byte() {
        0..=127 => base,
        128..=191 => base + input.byte() as u32,
        192..=223 => base - input.byte() as u32,
        _ => SeqNum(input.word()),
    };
    let flags = Flags::from_bits(input.byte() as u16 | (input.byte() as u16 & 1) << 8);
    let seq = near(input, seen[0]);
    let ack = near(input, seen[1]);
    let timestamps = (input.byte() & 1 == 1).then(|| Timestamps { value: input.word(), echo: input.word() });
    let options =
        Options { timestamps, mss: Some(input.word() as u16), window_scale: Some(input.byte()), ..Options::default() };
    let header = Header {
        src_port: 1000 + (input.byte() & 3) as u16,
        dst_port: 80,
        seq,
        ack,
        flags,
        window: input.word() as u16,
        // None in single segments: what is in the corpus is read as before.
        urgent: text.as_ref().map_or(0, |_| input.word() as u16),
        options,
    };
    let payload = text.unwrap_or_else(|| {
        let n = input.byte() as usize * 8;
        input.take(n)
    });
    let ends = Ends { src: (src, MacAddr([2, 0, 0, 0, 0, 9])), dst: (dst, us.mac) };
    let b = ends.segment(&header, flags.contains(Flags::SYN), &payload);
    seen[0] = seq + payload.len() as u32 + flags.contains(Flags::SYN) as u32 + flags.contains(Flags::FIN) as u32;
    b
}

/// A merged frame: up to 64 KiB of text, a sum that is right, unfinished or wrong, and any word on it.
fn merged(input: &mut Input, us: &HostConfig, seen: &mut [SeqNum; 2]) -> Joined {
    let text = vec![input.byte(); input.word() as u16 as usize % 65_000];
    let mut data = segment(input, us, seen, Some(text));
    let (sum, word) = (input.byte(), input.byte());
    if sum & 3 == 1 {
        let len = data.len() - 34;
        wire::tcp::fill_pseudo(Addr::from_v4([10, 0, 0, 9]), us.addresses[0].0.into(), len, &mut data[34..]);
    } else if sum & 3 == 2 {
        data[50] ^= 1;
    }
    let checksum = [RxChecksum::Verified, RxChecksum::MayBePartial, RxChecksum::Unknown][word as usize % 3];
    Joined { data, checksum, mss: input.word() as u16 }
}

/// The events of the connections that were opened here; the others are the echo's.
fn hear(host: &mut Host, echo: &mut Echo, opened: &mut Vec<ConnId>) {
    while let Some(event) = host.event() {
        match event {
            Event::Opened { conn, .. } => opened.push(conn),
            Event::Refused { token: Token(7), .. } => {}
            Event::Failed { conn, .. } | Event::Fin { conn } if opened.contains(&conn) => {
                opened.retain(|c| *c != conn);
                host.job(Job::Close { conn, mode: CloseMode::Graceful });
            }
            Event::Data { conn, chain, .. } if opened.contains(&conn) => {
                let bytes = chain.len() as u32;
                chain.free(&mut host.side);
                host.job(Job::Consumed { conn, bytes });
            }
            other => echo.on_event(host, other),
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let mut config = HostConfig::new(1);
    config.chunks = 256;
    config.jobs = 1024;
    config.stack.max_connections = 64;
    config.stack.max_time_wait = 16;
    let link =
        |addr: [u8; 4], vlan| LinkConfig { addresses: vec![(addr.into(), 24)], mac: config.mac, vlan: Some(vlan) };
    config.links = vec![link([10, 0, 0, 1], 7), link([10, 0, 8, 1], 8)];
    let us = config.clone();
    let mut host = Host::new(config);
    let mut now = Instant::from_micros(1_000_000);
    let mut echo = Echo::start(&mut host, Endpoint { addr: Addr::UNSPECIFIED_V4, port: 80 });
    let mut seen = [SeqNum(1), SeqNum(1)];
    // Our answers can leave: the peer's hardware address is known.
    for n in 0..2 {
        host.stack.set_neighbor(now, InterfaceId(n), [10, 0, 0, 9].into(), MacAddr([2, 0, 0, 0, 0, 9]));
    }
    let mut opened: Vec<ConnId> = Vec::new();
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let kind = input.byte();
        let link = (kind >> 5) as usize % host.interfaces();
        let frame = match kind & 7 {
            // To the neighbour that is there, and to those that are not; and the end of what was opened so.
            1 if kind & 8 == 0 => {
                let n = input.byte();
                let addr = Addr::from_v4([10, 0, if n & 1 == 0 { 0 } else { 8 }, 8 + (n >> 6)]);
                let local = Endpoint { addr: Addr::UNSPECIFIED_V4, port: 0 };
                let remote = Endpoint { addr, port: 1000 + (n & 3) as u16 };
                host.job(Job::Connect { token: Token(7), local, remote, receive_buffer: 0 });
                Vec::new()
            }
            1 => {
                if !opened.is_empty() {
                    let conn = opened.swap_remove(input.byte() as usize % opened.len());
                    host.job(Job::Close { conn, mode: CloseMode::Graceful });
                }
                Vec::new()
            }
            // A port takes no frames, or does again.
            2 if kind & 8 == 0 => {
                host.set_room(link, if input.byte() & 1 == 0 { 0 } else { 64 });
                Vec::new()
            }
            0 => {
                let n = input.byte() as usize;
                let mut raw = us.mac.0.to_vec();
                raw.extend(input.take(n));
                if n & 1 == 0 { raw } else { fixed_up(raw) }
            }
            3 if kind & 8 != 0 => {
                let frames = vec![merged(&mut input, &us, &mut seen)];
                let interface = host.interface();
                host.stack.receive(now, interface, &Frames { frames });
                Vec::new()
            }
            _ => segment(&mut input, &us, &mut seen, None),
        };
        if kind & 0x10 != 0 {
            now = now.plus_micros(1 << (input.byte() % 28));
        }
        let mut frames = vec![Vec::new(); host.interfaces()];
        if frame.len() >= 14 && link > 0 {
            let tag = if kind & 8 == 0 { 0x8100u16 } else { 0x88a8 };
            let id = if link == 1 { 7u16 } else { 8 };
            frames[link].push([&frame[..12], &tag.to_be_bytes(), &id.to_be_bytes(), &frame[12..]].concat());
        } else if !frame.is_empty() {
            frames[0].push(frame);
        }
        for sent in host.turn_all(now, frames).concat() {
            // What it acknowledges and sends steers the next segments.
            if let Ok(eth) = ethernet::Frame::parse(&sent) {
                if let Ok(ip) = ipv4::Packet::parse(eth.payload) {
                    if let Ok(s) = wire::tcp::Segment::parse(ip.payload) {
                        assert!(wire::tcp::checksum_ok(ip.src, ip.dst, ip.payload));
                        let flags = s.flags.contains(Flags::SYN) as u32 + s.flags.contains(Flags::FIN) as u32;
                        seen[1] = s.seq + s.payload.len() as u32 + flags;
                        if s.flags.contains(Flags::ACK) {
                            seen[0] = s.ack;
                        }
                    }
                }
            }
        }
        hear(&mut host, &mut echo, &mut opened);
    }
    for n in 0..host.interfaces() {
        host.set_room(n, 64);
    }
    for conn in opened.drain(..) {
        host.job(Job::Close { conn, mode: CloseMode::Graceful });
    }
    // The peer falls silent: half-open and half-closed connections go by their timers; established ones may stay.
    let mut silence = Silence::new(now);
    loop {
        host.turn(now, Vec::new());
        hear(&mut host, &mut echo, &mut opened);
        for conn in opened.drain(..) {
            host.job(Job::Close { conn, mode: CloseMode::Graceful });
        }
        let Some(at) = silence.next(now, host.is_quiet(), host.stack.next_deadline()) else { break };
        now = at;
    }
    let open = echo.open();
    assert!(host.stack.connections() <= open, "{} connections for {open} sockets", host.stack.connections());
    assert_eq!((host.stack.half_open(), host.stack.time_waits()), (0, 0), "records that nobody ends");
    if open == 0 {
        assert_eq!(host.leaked(), 0);
    }
});

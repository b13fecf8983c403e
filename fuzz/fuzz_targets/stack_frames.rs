//! Any frames into a stack: raw bytes, and segments that are well-formed up to TCP so that they reach its states. Nothing
//! panics; afterwards time passes and every chunk is back.
#![no_main]

use corelane_fuzz::{Ends, Input, fixed_up};
use libfuzzer_sys::fuzz_target;
use sim::{Echo, Host, HostConfig};
use stack::channel::Endpoint;
use wire::tcp::{Flags, Header, Options, Timestamps};
use wire::{Addr, Instant, MacAddr, SeqNum, ethernet, ipv4};

fn segment(input: &mut Input, us: &HostConfig, seen: &mut [SeqNum; 2]) -> Vec<u8> {
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
        urgent: 0,
        options,
    };
    let n = input.byte() as usize * 8;
    let payload = input.take(n);
    let ends = Ends { src: (src, MacAddr([2, 0, 0, 0, 0, 9])), dst: (dst, us.mac) };
    let b = ends.segment(&header, flags.contains(Flags::SYN), &payload);
    seen[0] = seq + payload.len() as u32 + flags.contains(Flags::SYN) as u32 + flags.contains(Flags::FIN) as u32;
    b
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let mut config = HostConfig::new(1);
    config.chunks = 256;
    config.stack.max_connections = 64;
    config.stack.max_time_wait = 16;
    let us = config.clone();
    let mut host = Host::new(config);
    let mut now = Instant::from_micros(1_000_000);
    let mut echo = Echo::start(&mut host, Endpoint { addr: Addr::UNSPECIFIED_V4, port: 80 });
    let mut seen = [SeqNum(1), SeqNum(1)];
    // Our answers can leave: the peer's hardware address is known.
    host.stack.set_neighbor(now, host.interface(), [10, 0, 0, 9].into(), MacAddr([2, 0, 0, 0, 0, 9]));
    while !input.0.is_empty() {
        let kind = input.byte();
        let frame = match kind & 7 {
            0 => {
                let n = input.byte() as usize;
                let mut raw = us.mac.0.to_vec();
                raw.extend(input.take(n));
                if n & 1 == 0 { raw } else { fixed_up(raw) }
            }
            _ => segment(&mut input, &us, &mut seen),
        };
        if kind & 0x10 != 0 {
            now = now.plus_micros(1 << (input.byte() % 28));
        }
        for sent in host.turn(now, vec![frame]) {
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
        while let Some(event) = host.event() {
            echo.on_event(&mut host, event);
        }
    }
    // The peer falls silent: half-open and half-closed connections go by their timers; established ones may stay.
    for _ in 0..400 {
        now = now.plus_micros(20_000_000);
        host.turn(now, Vec::new());
        while let Some(event) = host.event() {
            echo.on_event(&mut host, event);
        }
    }
    let open = echo.open();
    assert!(host.stack.connections() <= open, "{} connections for {open} sockets", host.stack.connections());
    if open == 0 {
        assert_eq!(host.leaked(), 0);
    }
});

//! A peer that shakes hands properly, in either direction, and then says what the fuzzer likes: segments with right checksums
//! and numbers at the edges, SACK blocks, old timestamps, fragments, ICMP errors about the connection, silence. Nothing
//! panics, every frame sent is sound, the stack stays within its limits, and when the application has given up and time has
//! passed, nothing is left.
#![no_main]

use core::time::Duration;

use corelane_fuzz::{Ends, Input, Silence, fixed_up};
use libfuzzer_sys::fuzz_target;
use sim::{Host, HostConfig};
use stack::SynCookies;
use protocol::{CloseMode, ConnId, ConnOption, Endpoint, Event, Job, Token};
use tcp::Ecn;
use tcp::congestion::Algorithm;
use wire::tcp::{Flags, Header, Options, SackBlocks, Segment, Timestamps};
use wire::{Addr, Instant, MacAddr, SeqNum, ethernet, ipv4, ipv6};

const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const CHUNKS: u32 = 512;
const STEPS: usize = 300;

/// What the peer knows of the connection.
struct Peer {
    ends: Ends,
    ports: (u16, u16),
    /// Our next number, where we began, and the last one acknowledged.
    next: SeqNum,
    first: SeqNum,
    acked: SeqNum,
    /// What we expect, and where the other side began.
    expected: SeqNum,
    start: SeqNum,
    /// The right edge of the window offered to us, unscaled by more than the fuzzer's luck.
    edge: SeqNum,
    shift: u8,
    clock: u32,
    stamped: bool,
    /// The last timestamp seen.
    stamp: u32,
    /// The last packet the stack sent, without its link header, and our last frame.
    heard: Vec<u8>,
    said: Vec<u8>,
    fragment: u32,
}

impl Peer {
    fn near(&self, input: &mut Input, bases: &[SeqNum]) -> SeqNum {
        let base = input.pick(bases);
        match input.byte() {
            0..=159 => base,
            b @ 160..=199 => base + (b - 159) as u32,
            b @ 200..=239 => base - (b - 199) as u32,
            240..=247 => base + 0x7fff_ffff,
            248..=251 => base - 0x8000_0000,
            _ => SeqNum(input.word()),
        }
    }

    /// A segment: of the right kind (`good`), or of the fuzzer's.
    fn segment(&mut self, input: &mut Input, good: bool) -> Vec<u8> {
        const FLAGS: [Flags; 10] = [
            Flags::ACK,
            Flags::ACK,
            Flags::ACK,
            Flags::PSH,
            Flags::FIN,
            Flags::RST,
            Flags::SYN,
            Flags::URG,
            Flags::ECE,
            Flags::CWR,
        ];
        let mut flags = Flags::ACK;
        let (mut seq, mut ack) = (self.next, self.expected);
        if !good {
            flags = match input.byte() {
                b @ 0..=199 => Flags::ACK | FLAGS[b as usize % FLAGS.len()],
                b @ 200..=229 => FLAGS[b as usize % FLAGS.len()],
                _ => Flags::from_bits(input.word() as u16),
            };
            seq = self.near(input, &[self.next, self.acked, self.first, self.edge, self.next + 1000]);
            ack = self.near(input, &[self.expected, self.start, self.start + 1, self.expected - 1000]);
        }
        let syn = flags.contains(Flags::SYN);
        let mut options = Options::default();
        if syn {
            self.syn_options(input, &mut options);
        }
        let odd = if good { 0 } else { input.byte() };
        if self.stamped != (odd & 3 == 3) {
            let (value, echo) = match odd >> 2 & 3 {
                0 | 1 => (self.clock, self.stamp),
                2 => (self.clock.wrapping_sub(input.byte() as u32), self.stamp.wrapping_add(input.byte() as u32)),
                _ => (input.word(), input.word()),
            };
            options.timestamps = Some(Timestamps { value, echo });
        }
        let mut sack = SackBlocks::default();
        for _ in 0..odd >> 4 & 7 {
            let left = self.near(input, &[self.expected, self.expected + 1000, self.expected + 3000]);
            sack.push(left, left + (input.byte() as u32) * 50);
        }
        options.sack = sack;
        let window = if good { u16::MAX } else { [0, 1, 100, 1460, 0x4000, u16::MAX][input.byte() as usize % 6] };
        let n = match input.byte() {
            0..=99 => 0,
            b @ 100..=199 => (b - 99) as usize,
            b => (b - 199) as usize * 25,
        };
        let payload = vec![input.byte(); n];
        let (src_port, dst_port) = self.ports;
        let urgent = if flags.contains(Flags::URG) { input.byte() as u16 * 8 } else { 0 };
        let header = Header { src_port, dst_port, seq, ack, flags, window, urgent, options };
        let end = seq + n as u32 + syn as u32 + flags.contains(Flags::FIN) as u32;
        if end.after(self.next) && !end.after(self.edge) {
            self.next = end;
        }
        self.ends.segment(&header, syn, &payload)
    }

    fn syn_options(&mut self, input: &mut Input, options: &mut Options) {
        let b = input.byte();
        options.mss = (b & 1 == 0).then(|| input.pick(&[0, 1, 88, 536, 1460, u16::MAX]));
        options.window_scale = (b & 2 == 0).then(|| input.pick(&[0, 1, 7, 14, 15, 255]));
        options.sack_permitted = b & 4 == 0;
        if b & 8 == 0 {
            options.timestamps = Some(Timestamps { value: self.clock, echo: 0 });
        }
    }

    /// Learns from a frame of the stack, which must be sound.
    fn hear(&mut self, frame: &[u8], mtu: usize) {
        assert!(frame.len() <= 14 + mtu);
        let eth = ethernet::Frame::parse(frame).expect("a frame");
        let (src, dst, protocol, body) = match eth.ethertype {
            ethernet::IPV4 => {
                let p = ipv4::Packet::parse(eth.payload).expect("IPv4");
                (p.src, p.dst, p.protocol, p.payload)
            }
            ethernet::IPV6 => {
                let p = ipv6::Packet::parse(eth.payload).expect("IPv6");
                (p.src, p.dst, p.next_header, p.payload)
            }
            _ => return,
        };
        if protocol != ipv4::TCP {
            return;
        }
        assert!(wire::tcp::checksum_ok(src, dst, body));
        let s = Segment::parse(body).expect("a segment");
        if (src, dst) != (self.ends.dst.0, self.ends.src.0) || s.flags.contains(Flags::RST) {
            return;
        }
        if s.flags.contains(Flags::SYN) {
            self.ports = (s.dst_port, s.src_port);
            self.start = s.seq;
            self.expected = s.seq + 1;
            self.stamped = s.options.timestamps.is_some();
            self.shift = s.options.window_scale.unwrap_or(0);
        }
        let end = s.seq + s.payload.len() as u32 + s.flags.contains(Flags::FIN) as u32;
        if end.after(self.expected) {
            self.expected = end;
        }
        if s.flags.contains(Flags::ACK) {
            self.acked = s.ack;
            let shift = if s.flags.contains(Flags::SYN) { 0 } else { self.shift.min(14) };
            self.edge = s.ack + ((s.window as u32) << shift);
        }
        if let Some(ts) = s.options.timestamps {
            self.stamp = ts.value;
        }
        self.heard = eth.payload.to_vec();
    }
}

/// The application: it takes what comes and does what the fuzzer says.
#[derive(Default)]
struct App {
    conns: Vec<(ConnId, u32)>,
    written: usize,
}

impl App {
    fn take(&mut self, host: &mut Host) {
        while let Some(event) = host.event() {
            let known = |app: &App, conn: &ConnId| app.conns.iter().any(|(c, _)| c == conn);
            match event {
                Event::Accepted { listener, conn, .. } => {
                    assert!(!known(self, &conn), "a number twice");
                    self.conns.push((conn, 0));
                    host.job(Job::Taken { listener, count: 1 });
                }
                Event::Opened { conn, .. } => {
                    assert!(!known(self, &conn), "a number twice");
                    self.conns.push((conn, 0));
                }
                Event::Data { conn, chain, .. } => {
                    let c = self.conns.iter_mut().find(|(c, _)| *c == conn).expect("data for a connection of ours");
                    c.1 += chain.len() as u32;
                    chain.free(&mut host.side);
                }
                Event::Info { chain, .. } => chain.free(&mut host.side),
                Event::Failed { conn, .. } => {
                    assert!(known(self, &conn), "failure of a stranger");
                    self.conns.retain(|(c, _)| *c != conn);
                    host.job(Job::Close { conn, mode: CloseMode::Graceful });
                }
                Event::Connected { conn } | Event::Fin { conn } => assert!(known(self, &conn)),
                Event::Acked { .. } | Event::Sent { .. } | Event::Urgent { .. } | Event::Room { .. } => {}
                Event::Listening { .. } | Event::Refused { .. } | Event::Closed { .. } | Event::Released { .. } => {}
            }
        }
    }

    fn act(&mut self, host: &mut Host, input: &mut Input) {
        if self.conns.is_empty() {
            return;
        }
        let at = input.byte() as usize % self.conns.len();
        let (conn, unread) = self.conns[at];
        match input.byte() % 10 {
            0..=2 => {
                let mut chain = mem::Chain::default();
                let n = input.byte() as usize * 40;
                // As much as a send buffer holds.
                if self.written + n <= 200_000 {
                    self.written += chain.push_slice(&mut host.side, &vec![7; n]);
                }
                match chain.is_empty() {
                    true => chain.free(&mut host.side),
                    false => host.job(Job::Write { conn, chain, more: input.byte() & 1 == 1, close: false }),
                }
            }
            3 | 4 => {
                let bytes = if input.byte() & 1 == 1 { unread } else { unread / 2 };
                self.conns[at].1 -= bytes;
                host.job(Job::Consumed { conn, bytes });
            }
            5 => host.job(Job::Shutdown { conn }),
            6 => {
                let mode = input.pick(&[CloseMode::Graceful, CloseMode::Unread, CloseMode::Report]);
                self.conns.remove(at);
                host.job(Job::Close { conn, mode });
            }
            7 if input.byte() < 40 => {
                self.conns.remove(at);
                host.job(Job::Abort { conn });
            }
            8 => host.job(Job::Query { conn, token: Token(9) }),
            _ => {
                use ConnOption::*;
                let option = input.pick(&[
                    NoDelay,
                    Cork,
                    ReceiveBuffer,
                    KeepAlive,
                    KeepIdle,
                    KeepInterval,
                    KeepCount,
                    UserTimeout,
                    QuickAck,
                    MaxSegment,
                    SendBuffer,
                    SynCount,
                    Linger2,
                    WindowClamp,
                    Congestion,
                    NotSentLow,
                ]);
                let value = match input.byte() {
                    0..=127 => input.byte() as u32,
                    128..=191 => input.byte() as u32 * 1000,
                    // Sockets take no larger buffers.
                    _ => input.word() >> 2,
                };
                host.job(Job::SetOption { conn, option, value });
            }
        }
    }

    /// Whatever is still open is given up.
    fn leave(&mut self, host: &mut Host) {
        for (conn, _) in self.conns.drain(..) {
            host.job(Job::Abort { conn });
        }
    }
}

/// The frame with "congestion experienced" in its IP header (RFC 3168 5).
fn marked(mut frame: Vec<u8>, family: usize) -> Vec<u8> {
    if let Some(class) = frame.get_mut(15) {
        *class |= if family == 0 { 3 } else { 3 << 4 };
    }
    frame
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let mode = input.byte();
    let family = (mode & 1) as usize;
    let mut config = HostConfig::new(1);
    config.chunks = CHUNKS;
    config.jobs = 1024;
    config.stack.max_connections = 32;
    config.stack.max_time_wait = 8;
    config.stack.fragments.datagrams = 4;
    config.stack.syn_cookies = input.pick(&[SynCookies::WhenFull, SynCookies::Never, SynCookies::Always]);
    let tcp = &mut config.stack.tcp;
    tcp.receive_buffer = input.pick(&[4096, 20_000, 65_536, 1 << 20]);
    tcp.send_buffer = input.pick(&[4096, 20_000, 65_536, 1 << 20]);
    let bits = input.word();
    let on = |bit: u32| bits >> bit & 1 == 0;
    (tcp.sack, tcp.timestamps, tcp.window_scaling) = (on(0), on(1), on(2));
    (tcp.tail_loss_probe, tcp.frto, tcp.pacing) = (on(3), on(4), !on(5));
    tcp.ecn = [Ecn::Always, Ecn::Passive, Ecn::Always, Ecn::Never][bits as usize >> 6 & 3];
    tcp.congestion = if on(8) { Algorithm::Cubic } else { Algorithm::NewReno };
    tcp.black_hole_timeouts = (bits >> 9 & 3) as u8;
    // Off, so that each odd segment is answered.
    tcp.invalid_ratelimit = if on(11) { tcp.invalid_ratelimit } else { Duration::ZERO };
    let mark_syn = on(12);
    let mtu = config.mtu as usize;
    let us = (Addr::from(config.addresses[family].0), config.mac);
    let them = if family == 0 { Addr::from_v4([10, 0, 0, 9]) } else { Addr::from_words([0xfd00 << 48, 9]) };
    let mut host = Host::new(config);
    let mut now = Instant::from_micros(1_000_000);
    host.stack.set_neighbor(now, host.interface(), them.to_ip(), PEER_MAC);

    let first = SeqNum(input.word());
    let zero = SeqNum(0);
    let mut peer = Peer {
        ends: Ends { src: (them, PEER_MAC), dst: us },
        ports: (1000, 80),
        next: first + 1,
        first,
        acked: first,
        expected: zero,
        start: zero,
        edge: first + 1,
        shift: 0,
        clock: input.word(),
        stamped: false,
        stamp: 0,
        heard: Vec::new(),
        said: Vec::new(),
        fragment: 0,
    };
    let mut app = App::default();
    let endpoint = |port| Endpoint { addr: us.0, port };
    let turn = |host: &mut Host, peer: &mut Peer, app: &mut App, now: Instant, frames: Vec<Vec<u8>>| {
        for sent in host.turn(now, frames) {
            peer.hear(&sent, mtu);
        }
        app.take(host);
        assert!(host.stack.connections() <= 32 && host.stack.time_waits() <= 8);
        assert!(host.stack.pool().stats().in_use_estimate <= CHUNKS);
    };

    let passive = mode & 2 == 0;
    if passive {
        let (token, local) = (Token(1), endpoint(80));
        host.job(Job::Listen { token, local, backlog: 8, v6_only: false, reuse_port: false, receive_buffer: 0 });
    } else {
        let remote = Endpoint { addr: them, port: 1000 };
        host.job(Job::Connect { token: Token(1), local: endpoint(0), remote, receive_buffer: 0 });
    }
    turn(&mut host, &mut peer, &mut app, now, vec![]);

    // The handshake.
    let mut options = Options::default();
    peer.syn_options(&mut input, &mut options);
    let (src_port, dst_port) = peer.ports;
    let mut flags = if passive { Flags::SYN } else { Flags::SYN | Flags::ACK };
    if mark_syn {
        // RFC 3168 6.1.1.
        flags = flags | if passive { Flags::ECE | Flags::CWR } else { Flags::ECE };
    }
    let window = u16::MAX;
    if let Some(ts) = &mut options.timestamps {
        ts.echo = peer.stamp;
    }
    let syn = Header { src_port, dst_port, seq: first, ack: peer.expected, flags, window, urgent: 0, options };
    peer.said = peer.ends.segment(&syn, true, &[]);
    let syn = peer.said.clone();
    turn(&mut host, &mut peer, &mut app, now, vec![syn]);
    peer.stamped &= options.timestamps.is_some();
    // Sometimes something else comes in the place of its last part.
    if mode & 4 == 0 {
        let ack = peer.segment(&mut Input(&[]), true);
        turn(&mut host, &mut peer, &mut app, now, vec![ack]);
    }

    let ecn_marks = !on(13);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let mut frames = Vec::new();
        match input.byte() % 16 {
            0..=5 => frames.push(peer.segment(&mut input, false)),
            6..=8 => frames.push(peer.segment(&mut input, true)),
            9 => {
                let whole = peer.segment(&mut input, true);
                peer.fragment += (input.byte() & 1) as u32;
                frames = peer.ends.fragments(&whole, input.byte() as usize * 4, peer.fragment);
                if input.byte() & 1 == 1 {
                    frames.reverse();
                }
                if input.byte() & 3 == 0 {
                    frames.pop();
                }
            }
            10 => {
                let (kind, code) = match family {
                    0 => (input.pick(&[3, 3, 3, 11, 12, 5]), input.byte() % 16),
                    _ => (input.pick(&[1, 2, 2, 3, 4]), input.byte() % 8),
                };
                let word = input.pick(&[0, 68, 88, 552, 576, 1280, 1400, 1500, 65_535, u32::MAX]);
                let mut quoted = peer.heard.clone();
                if let (true, Some(b)) = (input.byte() & 3 == 0, quoted.get_mut(27)) {
                    *b = b.wrapping_add(input.byte());
                }
                frames.push(peer.ends.icmp(kind, code, word, &quoted));
            }
            11 | 12 => {
                let us = 1 << (input.byte() % 28);
                now = now.plus_micros(us);
                peer.clock = peer.clock.wrapping_add((us / 1000) as u32);
            }
            13 => app.act(&mut host, &mut input),
            14 => frames.push(peer.said.clone()),
            _ => {
                // The last frame with some bytes changed.
                let mut f = peer.said.clone();
                for _ in 0..input.byte() % 4 {
                    let at = 14 + input.byte() as usize;
                    if let Some(b) = f.get_mut(at) {
                        *b = input.byte();
                    }
                }
                frames.push(fixed_up(f));
            }
        }
        if let Some(f) = frames.last() {
            peer.said.clone_from(f);
        }
        if ecn_marks && input.byte() & 3 == 0 {
            // The path marks: congestion experienced.
            frames = frames.into_iter().map(|f| fixed_up(marked(f, family))).collect();
        }
        turn(&mut host, &mut peer, &mut app, now, frames);
    }

    // The application gives up, the peer is silent: everything goes by its timers.
    let mut silence = Silence::new(now);
    loop {
        app.leave(&mut host);
        turn(&mut host, &mut peer, &mut app, now, vec![]);
        let quiet = host.is_quiet() && app.conns.is_empty();
        let Some(at) = silence.next(now, quiet, host.stack.next_deadline()) else { break };
        now = at;
    }
    assert_eq!((host.stack.connections(), host.stack.half_open(), host.stack.time_waits()), (0, 0, 0));
    assert_eq!(host.leaked(), 0);
});

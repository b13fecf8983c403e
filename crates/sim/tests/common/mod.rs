//! One host and, for its peers, segments made by hand.
#![allow(dead_code)]

pub mod families;

use core::time::Duration;

use mem::Chain;
use protocol::{ConnId, ConnOption, Endpoint, Event, Failure, Job, ListenerId, Token};
use sim::{Host, HostConfig};
use wire::tcp::{Flags, Header, Options, Segment, Timestamps};
use wire::{Addr, Instant, MacAddr, SeqNum, ethernet, ipv4, ipv6};

pub const PORT: u16 = 80;
pub const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 99]);
pub const SYN: Flags = Flags::SYN;
pub const ACK: Flags = Flags::ACK;
pub const RST: Flags = Flags::RST;
pub const FIN: Flags = Flags::FIN;

pub fn peer(n: u32) -> Addr {
    let [_, b, c, d] = n.to_be_bytes();
    Addr::from_v4([10, b, c, d])
}

pub fn ours() -> Addr {
    Addr::from_v4([10, 0, 0, 1])
}

/// The same of IPv6.
pub fn peer_v6(n: u32) -> Addr {
    Addr::from_words([0xfd00 << 48, n as u64])
}

pub fn ours_v6() -> Addr {
    peer_v6(1)
}

/// A segment that the host has sent.
#[derive(Clone, Debug)]
pub struct Sent {
    pub to: Addr,
    pub src_port: u16,
    pub dst_port: u16,
    pub seq: SeqNum,
    pub ack: SeqNum,
    pub flags: Flags,
    pub window: u16,
    pub urgent: u16,
    pub options: Options,
    pub payload: Vec<u8>,
    pub class: u8,
    pub hops: u8,
}

/// The host, its clock, and what its application has heard.
pub struct Bench {
    pub host: Host,
    pub now: Instant,
    pub listener: Option<ListenerId>,
    pub accepted: Vec<ConnId>,
    pub opened: Option<ConnId>,
    pub connected: bool,
    pub bytes: Vec<u8>,
    pub fin: bool,
    pub failed: Option<Failure>,
    pub urgent: Option<u32>,
    pub closed: Option<Option<Failure>>,
    /// The last report of bytes sent.
    pub sent: Option<u32>,
    /// Reports of acknowledged bytes go back at once.
    pub consume: bool,
}

/// A peer's end of a connection: what it would send next.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub addr: Addr,
    pub port: u16,
    pub local_port: u16,
    pub seq: SeqNum,
    pub ack: SeqNum,
    pub window: u16,
    /// Our timestamp and the last one of theirs.
    pub ts: Option<(u32, u32)>,
}

impl Peer {
    pub fn new(n: u32, port: u16) -> Peer {
        let seq = SeqNum(n.wrapping_mul(0x9e37_79b1) ^ port as u32);
        Peer { addr: peer(n), port, local_port: PORT, seq, ack: SeqNum(0), window: 0xffff, ts: None }
    }
}

impl Bench {
    pub fn new(change: impl FnOnce(&mut HostConfig)) -> Bench {
        let mut config = HostConfig::new(1);
        config.addresses = vec![([10, 0, 0, 1].into(), 8)];
        change(&mut config);
        let mut host = Host::new(config);
        let now = Instant::from_micros(1_000_000);
        let interface = host.interface();
        for n in 2..10u8 {
            host.stack.set_neighbor(now, interface, [10, 0, 0, n].into(), PEER_MAC);
        }
        Bench {
            host,
            now,
            listener: None,
            accepted: Vec::new(),
            opened: None,
            connected: false,
            bytes: Vec::new(),
            fin: false,
            failed: None,
            urgent: None,
            closed: None,
            sent: None,
            consume: true,
        }
    }

    /// A host that listens on [`PORT`] with these options.
    pub fn listening(backlog: u32, options: &[(ConnOption, u32)], change: impl FnOnce(&mut HostConfig)) -> Bench {
        let mut b = Bench::new(change);
        for (option, value) in options {
            b.host.job(Job::Prepare { option: *option, value: *value });
        }
        b.host.job(Job::Listen {
            token: Token(1),
            local: Endpoint { addr: Addr::UNSPECIFIED_V6, port: PORT },
            backlog,
            v6_only: false,
            reuse_port: false,
            receive_buffer: 0,
        });
        b.turn(Vec::new());
        assert!(b.listener.is_some());
        b
    }

    /// One turn with these frames; what the host sent.
    pub fn turn(&mut self, frames: Vec<Vec<u8>>) -> Vec<Sent> {
        let mut out = self.host.turn(self.now, frames);
        self.hear();
        out.extend(self.host.turn(self.now, Vec::new()));
        self.hear();
        out.iter().filter_map(|f| parse(f)).collect()
    }

    /// One turn with frames by interface; the frames that the host sent by each.
    pub fn turn_all(&mut self, frames: Vec<Vec<Vec<u8>>>) -> Vec<Vec<Vec<u8>>> {
        let mut out = self.host.turn_all(self.now, frames);
        self.hear();
        let more = self.host.turn_all(self.now, Vec::new());
        self.hear();
        out.iter_mut().zip(more).for_each(|(all, more)| all.extend(more));
        out
    }

    fn hear(&mut self) {
        while let Some(event) = self.host.event() {
            match event {
                Event::Listening { listener, .. } => self.listener = Some(listener),
                Event::Accepted { conn, .. } => self.accepted.push(conn),
                Event::Opened { conn, .. } => self.opened = Some(conn),
                Event::Connected { .. } => self.connected = true,
                Event::Data { mut chain, conn, .. } => {
                    let mut buf = vec![0; chain.len()];
                    chain.read(&mut self.host.side, &mut buf);
                    if self.consume {
                        self.host.job(Job::Consumed { conn, bytes: buf.len() as u32 });
                    }
                    self.bytes.extend(buf);
                }
                Event::Fin { .. } => self.fin = true,
                Event::Failed { failure, .. } | Event::Refused { failure, .. } => self.failed = Some(failure),
                Event::Urgent { beyond, .. } => self.urgent = Some(beyond),
                Event::Closed { failure, .. } => self.closed = Some(failure),
                Event::Sent { total, .. } => self.sent = Some(total),
                Event::Acked { .. } | Event::Info { .. } | Event::Room { .. } | Event::Released { .. } => {}
            }
        }
    }

    /// Lets time pass, with every timer at its instant; what was sent, and when after the start of this call.
    pub fn wait(&mut self, time: Duration) -> Vec<(Duration, Sent)> {
        let (start, end) = (self.now, self.now + time);
        let mut all = Vec::new();
        loop {
            let next = self.host.stack.next_deadline().unwrap_or(Instant::FAR).max(self.now.plus_micros(1));
            self.now = next.min(end);
            let at = Duration::from_micros(self.now.micros_since(start));
            all.extend(self.turn(Vec::new()).into_iter().map(|s| (at, s)));
            if self.now >= end {
                return all;
            }
        }
    }

    /// A segment from `p`; what the host sent in answer.
    pub fn send(&mut self, p: &Peer, flags: Flags, payload: &[u8]) -> Vec<Sent> {
        self.send_with(p, flags, payload, Options::default())
    }

    /// With options; timestamps are the peer's own.
    pub fn send_with(&mut self, p: &Peer, flags: Flags, payload: &[u8], options: Options) -> Vec<Sent> {
        let frame = self.frame(p, flags, payload, options);
        self.turn(vec![frame])
    }

    pub fn frame(&self, p: &Peer, flags: Flags, payload: &[u8], options: Options) -> Vec<u8> {
        let timestamps = p.ts.map(|(value, echo)| Timestamps { value, echo });
        let header = Header {
            src_port: p.port,
            dst_port: p.local_port,
            seq: p.seq,
            ack: if flags.contains(ACK) { p.ack } else { SeqNum(0) },
            flags,
            window: p.window,
            urgent: 0,
            options: Options { timestamps, ..options },
        };
        frame(self.host.config.mac, p.addr, &header, payload)
    }

    /// An ICMP error of code `code` that quotes our segment to `p` with sequence number `seq`.
    pub fn unreachable(&self, p: &Peer, code: u8, seq: SeqNum) -> Vec<u8> {
        let header = Header {
            src_port: p.local_port,
            dst_port: p.port,
            seq,
            ack: p.seq + 1,
            flags: SYN | ACK,
            window: 0,
            urgent: 0,
            options: Options::default(),
        };
        let mut quote = vec![0; 40];
        header.emit(&mut quote[20..], false);
        let ip = |src, dst, protocol| ipv4::Header { src, dst, protocol, ..ipv4::Header::default() };
        ip(ours(), p.addr, ipv4::TCP).emit(&mut quote, 20);
        let mut frame = vec![0; 14 + 20 + 8 + 40];
        let at = ethernet::emit(&mut frame, self.host.config.mac, PEER_MAC, None, ethernet::IPV4);
        ip(p.addr, ours(), ipv4::ICMP).emit(&mut frame[at..], 48);
        wire::icmpv4::emit_unreachable(&mut frame[at + 20..], code, &quote);
        frame
    }

    /// An ICMP error about our segment to `p` with sequence number `seq`: that it is longer than `mtu`, or else that nobody listens
    /// there.
    pub fn error(&self, p: &Peer, mtu: Option<u16>, seq: SeqNum) -> Vec<u8> {
        let header = Header {
            src_port: p.local_port,
            dst_port: p.port,
            seq,
            ack: p.seq + 1,
            flags: ACK,
            window: 0,
            urgent: 0,
            options: Options::default(),
        };
        let (src, dst) = (if p.addr.is_v4() { ours() } else { ours_v6() }, p.addr);
        let mut packet = vec![0; 60];
        let at = match dst.is_v4() {
            true => ipv4::Header { src, dst, ..Default::default() }.emit(&mut packet, 20),
            false => ipv6::Header { src, dst, ..Default::default() }.emit(&mut packet, 20),
        };
        header.emit(&mut packet[at..], false);
        families::error((self.host.config.mac, src), (PEER_MAC, dst), None, mtu, &packet)
    }

    /// A whole handshake, with SYN options; the peer afterwards.
    pub fn establish(&mut self, n: u32, port: u16, options: Options) -> Peer {
        let mut p = Peer::new(n, port);
        p.ts = options.timestamps.map(|ts| (ts.value, ts.echo));
        let answers = self.send_with(&p, SYN, &[], options);
        let [synack] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!(synack.flags, SYN | ACK);
        p.answer(synack);
        let before = self.accepted.len();
        self.send(&p, ACK, &[]);
        assert_eq!(self.accepted.len(), before + 1, "not accepted");
        p
    }

    pub fn write(&mut self, conn: ConnId, data: &[u8]) -> Vec<Sent> {
        let mut chain = Chain::default();
        assert_eq!(chain.push_slice(&mut self.host.side, data), data.len());
        self.host.job(Job::Write { conn, chain, more: false, close: false });
        self.turn(Vec::new())
    }

    pub fn job(&mut self, job: Job) -> Vec<Sent> {
        self.host.job(job);
        self.turn(Vec::new())
    }
}

impl Peer {
    /// Goes on after a segment of the host: everything in it is received.
    pub fn answer(&mut self, s: &Sent) {
        self.ack = s.seq + s.payload.len() as u32 + (s.flags.contains(SYN) || s.flags.contains(FIN)) as u32;
        if s.flags.contains(SYN) {
            self.seq = s.ack;
        }
        if let (Some(ts), Some(theirs)) = (&mut self.ts, s.options.timestamps) {
            ts.1 = theirs.value;
        }
    }
}

/// A frame from `from` to the host.
pub fn frame(mac: MacAddr, from: Addr, header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut buf = vec![0; 14 + 40 + 60 + payload.len()];
    let v4 = from.is_v4();
    let to = if v4 { ours() } else { ours_v6() };
    let at = ethernet::emit(&mut buf, mac, PEER_MAC, None, if v4 { ethernet::IPV4 } else { ethernet::IPV6 });
    let tcp_at = at + if v4 { 20 } else { 40 };
    let end = tcp_at + header.emit(&mut buf[tcp_at..], header.flags.contains(SYN)) + payload.len();
    buf[end - payload.len()..end].copy_from_slice(payload);
    if v4 {
        ipv4::Header { src: from, dst: to, ..ipv4::Header::default() }.emit(&mut buf[at..], end - tcp_at);
    } else {
        ipv6::Header { src: from, dst: to, ..ipv6::Header::default() }.emit(&mut buf[at..], end - tcp_at);
    }
    wire::tcp::fill_checksum(from, to, &mut buf[tcp_at..end]);
    buf.truncate(end);
    buf
}

/// The TCP segment of a frame, if it is one.
pub fn parse(frame: &[u8]) -> Option<Sent> {
    let eth = ethernet::Frame::parse(frame).ok()?;
    let (to, class, hops, payload) = match eth.ethertype {
        ethernet::IPV4 => {
            let ip = ipv4::Packet::parse(eth.payload).ok()?;
            if ip.protocol != ipv4::TCP {
                return None;
            }
            (ip.dst, eth.payload[1], eth.payload[8], ip.payload)
        }
        ethernet::IPV6 => {
            let ip = ipv6::Packet::parse(eth.payload).ok()?;
            let class = eth.payload[0] << 4 | eth.payload[1] >> 4;
            (ip.dst, class, eth.payload[7], ip.payload)
        }
        _ => return None,
    };
    let s = Segment::parse(payload).expect("a segment");
    Some(Sent {
        to,
        src_port: s.src_port,
        dst_port: s.dst_port,
        seq: s.seq,
        ack: s.ack,
        flags: s.flags,
        window: s.window,
        urgent: s.urgent,
        options: s.options,
        payload: s.payload.to_vec(),
        class,
        hops,
    })
}

/// The options of an ordinary SYN.
pub fn usual() -> Options {
    Options {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 1000, echo: 0 }),
        ..Options::default()
    }
}

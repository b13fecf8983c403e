//! What the fuzz targets share: bytes as decisions, frames with right checksums, and the silence at the end.

use wire::tcp::{Header, fill_checksum};
use wire::{Addr, Instant, MacAddr, checksum, ethernet, icmpv4, icmpv6, ipv4, ipv6};

/// The fuzzer's bytes, taken from the front; zeroes when they have run out.
pub struct Input<'a>(pub &'a [u8]);

impl Input<'_> {
    /// Whether there is no more.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Four.
    pub fn word(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    /// Up to `n`.
    pub fn take(&mut self, n: usize) -> Vec<u8> {
        let (first, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        first.to_vec()
    }

    /// One of `list`.
    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.byte() as usize % list.len()]
    }
}

/// Who sends to whom.
#[derive(Clone, Copy)]
pub struct Ends {
    pub src: (Addr, MacAddr),
    pub dst: (Addr, MacAddr),
}

impl Ends {
    /// A frame of one IP packet.
    pub fn packet(&self, protocol: u8, body: &[u8]) -> Vec<u8> {
        let (v4, header) = if self.src.0.is_v4() { (true, 20) } else { (false, 40) };
        let mut b = vec![0; 14 + header];
        ethernet::emit(&mut b, self.dst.1, self.src.1, None, if v4 { ethernet::IPV4 } else { ethernet::IPV6 });
        let (src, dst) = (self.src.0, self.dst.0);
        if v4 {
            ipv4::Header { src, dst, protocol, ..Default::default() }.emit(&mut b[14..], body.len());
        } else {
            ipv6::Header { src, dst, next_header: protocol, ..Default::default() }.emit(&mut b[14..], body.len());
        }
        b.extend(body);
        b
    }

    /// A TCP segment.
    pub fn segment(&self, header: &Header, syn: bool, payload: &[u8]) -> Vec<u8> {
        let mut tcp = vec![0; 60];
        let n = header.emit(&mut tcp, syn);
        tcp.truncate(n);
        tcp.extend(payload);
        fill_checksum(self.src.0, self.dst.0, &mut tcp);
        self.packet(ipv4::TCP, &tcp)
    }

    /// An ICMP message about `packet`, which the receiver sent.
    pub fn icmp(&self, kind: u8, code: u8, word: u32, packet: &[u8]) -> Vec<u8> {
        let mut body = vec![kind, code, 0, 0];
        body.extend(word.to_be_bytes());
        body.extend(&packet[..packet.len().min(500)]);
        let v4 = self.src.0.is_v4();
        let protocol = if v4 { ipv4::ICMP } else { ipv6::ICMPV6 };
        let sum = checksum::sum(&body);
        let sum = if v4 { sum } else { sum.add(checksum::pseudo(self.src.0, self.dst.0, protocol, body.len())) };
        body[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        self.packet(protocol, &body)
    }

    /// The same packet in pieces of at most `size` bytes, which is rounded to eights; `id` names it.
    pub fn fragments(&self, frame: &[u8], size: usize, id: u32) -> Vec<Vec<u8>> {
        let v4 = self.src.0.is_v4();
        let body = &frame[if v4 { 34 } else { 54 }..];
        let size = (size & !7).max(8);
        let piece = |(i, data): (usize, &[u8])| {
            let (offset, more) = (i * size, (i + 1) * size < body.len());
            if v4 {
                let mut f = self.packet(ipv4::TCP, data);
                f[18..20].copy_from_slice(&(id as u16).to_be_bytes());
                f[20..22].copy_from_slice(&((offset / 8) as u16 | (more as u16) << 13).to_be_bytes());
                f
            } else {
                let mut extended = vec![ipv6::TCP, 0];
                extended.extend((offset as u16 | more as u16).to_be_bytes());
                extended.extend(id.to_be_bytes());
                extended.extend(data);
                self.packet(44, &extended)
            }
        };
        body.chunks(size).enumerate().map(piece).map(fixed_up).collect()
    }
}

/// The frame with the checksums that its bytes should have, as far as its headers can be followed.
pub fn fixed_up(mut frame: Vec<u8>) -> Vec<u8> {
    let link = match frame.get(12..14) {
        Some([0x81, 0] | [0x88, 0xa8]) => 18,
        _ => 14,
    };
    let Some(ethertype) = frame.get(link - 2..link).map(|t| u16::from_be_bytes([t[0], t[1]])) else { return frame };
    let ip = &mut frame[link..];
    match ethertype {
        ethernet::IPV4 if ip.len() >= 20 => {
            let header = ((ip[0] & 15) as usize * 4).clamp(20, ip.len());
            ip[10..12].fill(0);
            let sum = checksum::sum(&ip[..header]).finish();
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            let whole = ip[6] & 0x3f == 0 && ip[7] == 0;
            if let (true, Ok(p)) = (whole, ipv4::Packet::parse(ip)) {
                let (src, dst, protocol, at, len) = (p.src, p.dst, p.protocol, p.header.len(), p.payload.len());
                seal(src, dst, protocol, &mut ip[at..at + len]);
            }
        }
        ethernet::IPV6 if ip.len() >= 40 => {
            if let Ok(p) = ipv6::Packet::parse(ip)
                && p.fragment.is_none_or(|f| f.offset == 0 && !f.more)
            {
                let (src, dst, protocol, at, len) = (p.src, p.dst, p.next_header, p.upper_offset, p.payload.len());
                seal(src, dst, protocol, &mut ip[at..at + len]);
            }
        }
        _ => {}
    }
    frame
}

fn seal(src: Addr, dst: Addr, protocol: u8, body: &mut [u8]) {
    let (at, pseudo) = match protocol {
        ipv4::TCP => (16, true),
        ipv4::ICMP => (2, false),
        ipv6::ICMPV6 => (2, true),
        _ => return,
    };
    let Some(field) = body.get_mut(at..at + 2) else { return };
    field.fill(0);
    let mut sum = checksum::sum(body);
    if pseudo {
        sum = sum.add(checksum::pseudo(src, dst, protocol, body.len()));
    }
    body[at..at + 2].copy_from_slice(&sum.finish().to_be_bytes());
}

/// Turns of a host to which nobody speaks any more, until nothing is left to happen or the time that any timer takes is over. The
/// clock goes from one deadline to the next, as a lane sleeps: what is due at no deadline does not happen.
pub struct Silence {
    end: Instant,
    /// Turns at this instant.
    turns: usize,
}

impl Silence {
    /// Turns at one instant, at most: a lane that is woken more often has nothing to do.
    const MOST: usize = 1000;

    /// It begins.
    pub fn new(now: Instant) -> Silence {
        Silence { end: now.plus_micros(10_000_000_000), turns: 0 }
    }

    /// When the next turn is, after one at `now`: `quiet` says whether that left nothing to do, and `deadline` when something is due.
    pub fn next(&mut self, now: Instant, quiet: bool, deadline: Option<Instant>) -> Option<Instant> {
        let at = if quiet { deadline?.max(now) } else { now };
        self.turns = if at > now { 0 } else { self.turns + 1 };
        assert!(self.turns < Silence::MOST, "turns at {now:?} without an end");
        (at <= self.end).then_some(at)
    }
}

/// Any bytes through every parser: what was parsed lies inside them.
pub fn read_all(data: &[u8]) {
    let Ok(frame) = ethernet::Frame::parse(data) else { return };
    let p = frame.payload;
    let _ = wire::arp::Packet::parse(p);
    if let Ok(ip) = ipv4::Packet::parse(p) {
        assert!(ip.header.len() + ip.payload.len() <= p.len());
        let _ = icmpv4::Message::parse(ip.payload);
        let _ = wire::udp::Header::parse(ip.payload);
        let _ = wire::tcp::Segment::parse(ip.payload);
    }
    if let Ok(ip) = ipv6::Packet::parse(p) {
        assert!(ip.upper_offset + ip.payload.len() <= p.len());
        assert!((ip.named_at as usize) < ip.upper_offset);
        let _ = icmpv6::Message::parse(ip.src, ip.dst, ip.payload);
        let _ = wire::udp::Header::parse(ip.payload);
        let _ = wire::tcp::Segment::parse(ip.payload);
    }
}

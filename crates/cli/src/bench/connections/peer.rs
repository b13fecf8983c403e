//! A peer that remembers no connection: what it sends follows from what it received.
//!
//! Its clients are in 11.0.0.0/8 (those that stay) and 12.0.0.0/8 (those that end). It knows of each whether its answer is
//! awaited, a bit, so that one sent twice counts once; that is all its state. Frames are laid out by hand, without checksums, which nobody
//! looks at on a wire in memory.

use super::{END, PORT, ROUTER, SERVER, STAY, number, source};
use crate::failure::Failure;
use crate::sys::Stop;
use corelane::MemPort;
use io::Port;
use io::memwire::MACS;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};
use wire::burst::{RxBurst, TxOffload, TxSink};

const STAYING: u8 = 11;
const ENDING: u8 = 12;
/// Networks from which short connections come before the first is used again.
const SHORT_LIVED: u64 = 200 * 60_000;
const BURST: usize = 64;
/// Nothing for so long: something was lost, which does not happen on this wire.
const STALLED: Duration = Duration::from_secs(5);

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;

/// MSS 1460, SACK permitted, window scale 7, and padding: what a client's SYN says, but for timestamps.
const SYN_OPTIONS: [u8; 12] = [2, 4, 5, 0xb4, 4, 2, 1, 3, 3, 7, 1, 1];

/// A segment to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    from: (Ipv4Addr, u16),
    seq: u32,
    ack: u32,
    flags: u8,
    request: Option<u8>,
}

/// What came and went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Connections that ended as they should.
    pub ended: u64,
    /// Connections that the server reset.
    pub resets: u64,
    /// In so many seconds.
    pub seconds: f64,
}

/// The peer.
pub struct Peer {
    port: MemPort,
    window: usize,
    /// To be sent once there is room.
    out: Vec<Segment>,
    /// Opened so far, by kind.
    staying: u64,
    ending: u64,
    /// Answered so far, by kind.
    stayed: u64,
    ended: u64,
    resets: u64,
    arp: bool,
    waits: [Waits; 2],
}

/// Which connections of a network wait for their answer, by number.
#[derive(Default)]
struct Waits(Vec<u64>);

impl Waits {
    fn add(&mut self, number: u64) {
        let word = (number / 64) as usize;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (number % 64);
    }

    /// Whether it waited; it no longer does.
    fn take(&mut self, number: u64) -> bool {
        let Some(word) = self.0.get_mut((number / 64) as usize) else { return false };
        let bit = 1 << (number % 64);
        let waited = *word & bit != 0;
        *word &= !bit;
        waited
    }
}

impl Peer {
    /// With so many handshakes or short connections at once.
    pub fn new(port: MemPort, window: usize) -> Peer {
        let out = Vec::with_capacity(2 * BURST);
        Peer {
            port,
            window,
            out,
            staying: 0,
            ending: 0,
            stayed: 0,
            ended: 0,
            resets: 0,
            arp: false,
            waits: Default::default(),
        }
    }

    /// Opens connections that stay, with one exchange each.
    pub fn hold(&mut self, count: u64, stop: &Stop) -> Result<(), Failure> {
        let until = self.staying + count;
        let mut last = (Instant::now(), self.stayed);
        while self.stayed < until {
            while self.staying < until && self.staying - self.stayed < self.window as u64 && self.open(STAYING) {}
            self.turn()?;
            self.patience(&mut last, self.stayed, stop)?;
        }
        Ok(())
    }

    /// Leaves the server alone, but for what it asks.
    pub fn settle(&mut self, time: Duration, stop: &Stop) -> Result<(), Failure> {
        let begun = Instant::now();
        while begun.elapsed() < time {
            self.turn()?;
            if stop.is_set() {
                break;
            }
        }
        Ok(())
    }

    /// Opens connections that end, for a time.
    pub fn churn(&mut self, time: Duration, stop: &Stop) -> Result<Progress, Failure> {
        let begun = Instant::now();
        let (ended, resets) = (self.ended, self.resets);
        let mut last = (begun, self.ended);
        while begun.elapsed() < time {
            while self.ending - self.ended < self.window as u64 && self.open(ENDING) {}
            self.turn()?;
            self.patience(&mut last, self.ended, stop)?;
        }
        let seconds = begun.elapsed().as_secs_f64();
        Ok(Progress { ended: self.ended - ended, resets: self.resets - resets, seconds })
    }

    fn patience(&self, last: &mut (Instant, u64), now: u64, stop: &Stop) -> Result<(), Failure> {
        if stop.is_set() {
            return Err(Failure::new("interrupted", "let it run to the end"));
        }
        if last.1 != now {
            *last = (Instant::now(), now);
        } else if last.0.elapsed() > STALLED {
            let opened = self.staying + self.ending;
            let resets = self.resets;
            return Err(Failure::told(format!(
                "the server no longer answers, after {opened} connections, {resets} resets"
            )));
        }
        Ok(())
    }

    /// Sends one SYN; false when there is no room.
    fn open(&mut self, network: u8) -> bool {
        let number = if network == STAYING { self.staying } else { self.ending % SHORT_LIVED };
        // Whoever comes again comes with a higher number.
        let seq = (self.ending as u32).wrapping_mul(256);
        let syn = Segment { from: source(network, number), seq, ack: 0, flags: SYN, request: None };
        if !self.send(&syn) {
            return false;
        }
        match network {
            STAYING => self.staying += 1,
            _ => self.ending += 1,
        }
        self.waits[usize::from(network == ENDING)].add(number);
        true
    }

    /// Sends what is due, takes what has come, sleeps when there is neither.
    fn turn(&mut self) -> Result<(), Failure> {
        let mut sent = 0;
        while sent < self.out.len() {
            let segment = self.out[sent];
            if !self.send(&segment) {
                break;
            }
            sent += 1;
        }
        self.out.drain(..sent);
        if self.arp && self.send_arp() {
            self.arp = false;
        }
        self.port.flush().map_err(Failure::told)?;
        if self.out.len() >= BURST {
            return Ok(());
        }
        let n = self.port.receive(BURST);
        for at in 0..n {
            let frame = self.port.frame(at).data;
            match parse(frame) {
                Some(Heard::Segment(segment)) => {
                    let stays = segment.to.0.octets()[0] == STAYING;
                    self.resets += u64::from(segment.flags & RST != 0);
                    let answered = if stays { segment.payload > 0 } else { segment.flags & FIN != 0 };
                    if answered && self.waits[usize::from(!stays)].take(number(segment.to)) {
                        *(if stays { &mut self.stayed } else { &mut self.ended }) += 1;
                    }
                    self.out.extend(answer(&segment));
                }
                Some(Heard::WhoHas) => self.arp = true,
                None => {}
            }
        }
        if n > 0 {
            self.port.release();
        } else if self.out.is_empty() && self.port.prepare_sleep() {
            let mut fds = [PollFd::from_borrowed_fd(self.port.wake_fd(), PollFlags::IN)];
            // A signal is a wake-up like any other.
            let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 2_000_000 }));
            self.port.wake_up();
        }
        Ok(())
    }

    fn send(&mut self, segment: &Segment) -> bool {
        let options = if segment.flags & SYN != 0 { SYN_OPTIONS.as_slice() } else { &[] };
        let length = 54 + options.len() + usize::from(segment.request.is_some());
        let Some(room) = self.port.reserve(length) else { return false };
        let frame = &mut room[..length];
        frame.fill(0);
        frame[..6].copy_from_slice(&MACS[0].0);
        frame[6..12].copy_from_slice(&MACS[1].0);
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&((length - 14) as u16).to_be_bytes());
        frame[20] = 0x40;
        (frame[22], frame[23]) = (64, 6);
        frame[26..30].copy_from_slice(&segment.from.0.octets());
        frame[30..34].copy_from_slice(&SERVER.octets());
        frame[34..36].copy_from_slice(&segment.from.1.to_be_bytes());
        frame[36..38].copy_from_slice(&PORT.to_be_bytes());
        frame[38..42].copy_from_slice(&segment.seq.to_be_bytes());
        frame[42..46].copy_from_slice(&segment.ack.to_be_bytes());
        frame[46] = ((20 + options.len()) as u8 / 4) << 4;
        frame[47] = segment.flags;
        frame[48..50].copy_from_slice(&u16::MAX.to_be_bytes());
        frame[54..54 + options.len()].copy_from_slice(options);
        if let Some(request) = segment.request {
            frame[length - 1] = request;
        }
        // The header's own sum is short and looked at by everybody.
        let sum = (14..34).step_by(2).map(|at| u32::from(u16::from_be_bytes([frame[at], frame[at + 1]]))).sum::<u32>();
        let folded = (sum & 0xffff) + (sum >> 16);
        frame[24..26].copy_from_slice(&(!(folded as u16)).to_be_bytes());
        self.port.commit(length, TxOffload::default());
        true
    }

    /// Says that the router is here.
    fn send_arp(&mut self) -> bool {
        let Some(room) = self.port.reserve(60) else { return false };
        let frame = &mut room[..60];
        frame.fill(0);
        frame[..6].copy_from_slice(&MACS[0].0);
        frame[6..12].copy_from_slice(&MACS[1].0);
        frame[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
        frame[22..28].copy_from_slice(&MACS[1].0);
        frame[28..32].copy_from_slice(&ROUTER.octets());
        frame[32..38].copy_from_slice(&MACS[0].0);
        frame[38..42].copy_from_slice(&SERVER.octets());
        self.port.commit(60, TxOffload::default());
        true
    }
}

/// A segment of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Received {
    to: (Ipv4Addr, u16),
    seq: u32,
    ack: u32,
    flags: u8,
    payload: u32,
}

enum Heard {
    Segment(Received),
    /// The server asks for the router.
    WhoHas,
}

fn parse(frame: &[u8]) -> Option<Heard> {
    let word = |at: usize| Some(u32::from_be_bytes(frame.get(at..at + 4)?.try_into().ok()?));
    let half = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
    match half(12)? {
        0x0806 if half(20)? == 1 && word(38)? == u32::from(ROUTER) => Some(Heard::WhoHas),
        0x0800 if *frame.get(23)? == 6 => {
            let headers = usize::from(frame[14] & 15) * 4 + usize::from(*frame.get(46)? >> 4) * 4;
            let payload = usize::from(half(16)?).checked_sub(headers)? as u32;
            let to = (Ipv4Addr::from(word(30)?), half(36)?);
            Some(Heard::Segment(Received { to, seq: word(38)?, ack: word(42)?, flags: frame[47], payload }))
        }
        _ => None,
    }
}

/// What follows from a segment, and from nothing else.
fn answer(segment: &Received) -> Option<Segment> {
    let Received { to, seq, ack, flags, payload } = *segment;
    let next = seq.wrapping_add(payload).wrapping_add(u32::from(flags & (SYN | FIN) != 0));
    let reply = |flags, request| Some(Segment { from: to, seq: ack, ack: next, flags, request });
    match flags & (SYN | FIN | RST) {
        SYN => {
            let request = if to.0.octets()[0] == STAYING { STAY } else { END };
            reply(ACK | PSH, Some(request))
        }
        FIN => reply(FIN | ACK, None),
        0 if payload > 0 => reply(ACK, None),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_once() {
        let mut waits = Waits::default();
        waits.add(7);
        waits.add(1000);
        assert!(waits.take(1000) && !waits.take(1000) && !waits.take(8) && !waits.take(1 << 40));
        assert!(waits.take(7));
    }

    #[test]
    fn answers_follow_from_segments() {
        let client = (Ipv4Addr::new(STAYING, 0, 0, 1), 1024);
        let heard = |flags, payload| Received { to: client, seq: 100, ack: 501, flags, payload };
        let syn_ack = answer(&heard(SYN | ACK, 0)).expect("a request");
        assert_eq!((syn_ack.seq, syn_ack.ack, syn_ack.request), (501, 101, Some(STAY)));
        let data = answer(&heard(ACK | PSH, 64)).expect("an ACK");
        assert_eq!((data.ack, data.flags, data.request), (164, ACK, None));
        let fin = answer(&heard(ACK | PSH | FIN, 64)).expect("a FIN");
        assert_eq!((fin.ack, fin.flags), (165, FIN | ACK));
        assert_eq!(answer(&heard(ACK, 0)), None);
        assert_eq!(answer(&heard(RST, 0)), None);
        let other = Received { to: (Ipv4Addr::new(ENDING, 0, 0, 1), 1024), ..heard(SYN | ACK, 0) };
        assert_eq!(answer(&other).expect("a request").request, Some(END));
    }

    #[test]
    fn nonsense_is_nothing() {
        assert!(parse(&[]).is_none());
        assert!(parse(&[0; 20]).is_none());
        let mut short = [0; 50];
        (short[12], short[13], short[14], short[23], short[46]) = (8, 0, 0x4f, 6, 0xf0);
        assert!(parse(&short).is_none());
    }
}

//! The wire without TCP: frames of the same number and sizes as a connection's, echoed. What packet I/O alone can do.
//!
//! Each frame of the client is of a kind — SYN, request, last ACK — and says which; the server answers a kind with frames of
//! the lengths that TCP's answer would have. Nothing is parsed, remembered or summed up on the way.
//!
//! A bound has to fill the wire: several numbers of frames under way are tried before it is measured, and the best is kept.

use super::part::{Announced, Window};
use crate::failure::Failure;
use crate::http::fixed::Fixed;
use crate::load::target::{Service, Target};
use crate::sys::Stop;
use io::Port;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};
use wire::MacAddr;
use wire::burst::TxOffload;

/// Frames taken from a port at once, as a lane does.
const BURST: usize = 64;
/// Empty looks before sleeping, at least and at most, as a lane has them.
const LOOKS: [u32; 2] = [2, 64];
/// Windows that are tried, as multiples of the least.
const WINDOWS: [usize; 5] = [1, 2, 4, 8, 16];
/// A window that nothing comes back for was lost on the way.
const LOST: Duration = Duration::from_millis(20);
/// Ethernet, IPv4 and TCP headers; with the options of a SYN; with timestamps.
const HEADERS: usize = 14 + 20 + 20;
const SYN: usize = HEADERS + 20;
const PLAIN: usize = HEADERS + 12;
/// Of a frame of 1514 bytes.
const SEGMENT: usize = 1514 - PLAIN;
/// The kind stands where TCP has its sequence number.
const KIND: usize = 14 + 20 + 4;
/// Ports of the two ends.
pub const PORTS: [u16; 2] = [20_000, 80];

/// A connection as frames: what the client sends, and what each is answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix(Vec<(usize, Vec<usize>)>);

impl Mix {
    /// Of a connection with so many requests, answered by bodies of so many bytes; none: it is reset once established.
    pub fn new(messages: u32, bytes: usize) -> Mix {
        let mut kinds = vec![(SYN, vec![SYN])];
        if messages == 0 {
            kinds.push((PLAIN, vec![HEADERS]));
            return Mix(kinds);
        }
        let target = format!("http://{}/", super::place::SERVER).parse();
        let Ok(Target { service: Service::Http(http), .. }) = target else { unreachable!() };
        let fixed = Fixed::new(bytes);
        for left in (0..messages).rev() {
            let answer = fixed.whole(left == 0).len();
            let frames = (0..answer).step_by(SEGMENT).map(|at| PLAIN + (answer - at).min(SEGMENT)).collect();
            kinds.push((PLAIN + http.request(left > 0).len(), frames));
        }
        // FIN of the client, and the last ACK.
        kinds.push((PLAIN, vec![PLAIN]));
        Mix(kinds)
    }

    /// Frames both ways.
    pub fn frames(&self) -> usize {
        self.0.iter().map(|(_, answers)| 1 + answers.len()).sum()
    }

    /// Frames that go from one end, laid out; by kind.
    fn answers(&self, ends: &Ends) -> Vec<Vec<Vec<u8>>> {
        let answer = |kind: usize, length: &usize| ends.frame(*length, kind, true);
        self.0
            .iter()
            .enumerate()
            .map(|(kind, (_, answers))| answers.iter().map(|l| answer(kind, l)).collect())
            .collect()
    }
}

/// Addresses of both ends: client, server.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// On the link.
    pub macs: [MacAddr; 2],
    /// In IP.
    pub addresses: [Ipv4Addr; 2],
}

impl Ends {
    /// A frame that looks like TCP's from afar.
    fn frame(&self, length: usize, kind: usize, from_server: bool) -> Vec<u8> {
        let (from, to) = if from_server { (1, 0) } else { (0, 1) };
        let mut frame = vec![0; length];
        frame[..6].copy_from_slice(&self.macs[to].0);
        frame[6..12].copy_from_slice(&self.macs[from].0);
        frame[12..14].copy_from_slice(&[8, 0]);
        // IPv4, no options, do not fragment, TCP.
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&((length - 14) as u16).to_be_bytes());
        frame[20] = 0x40;
        (frame[22], frame[23]) = (64, 6);
        frame[26..30].copy_from_slice(&self.addresses[from].octets());
        frame[30..34].copy_from_slice(&self.addresses[to].octets());
        frame[34..36].copy_from_slice(&PORTS[from].to_be_bytes());
        frame[36..38].copy_from_slice(&PORTS[to].to_be_bytes());
        frame[KIND..KIND + 2].copy_from_slice(&(kind as u16).to_be_bytes());
        // Header length, ACK.
        (frame[46], frame[47]) = (0x50, 0x10);
        frame
    }
}

fn kind_of(frame: &[u8]) -> Option<usize> {
    Some(usize::from(u16::from_be_bytes(frame.get(KIND..KIND + 2)?.try_into().ok()?)))
}

/// Sends a frame; false when there is no room.
fn send(port: &mut impl Port, frame: &[u8]) -> bool {
    let Some(room) = port.reserve(frame.len()) else { return false };
    room[..frame.len()].copy_from_slice(frame);
    port.commit(frame.len(), TxOffload::default());
    true
}

/// Sleeps until frames come, or what the port has left is to be flushed again.
fn sleep(port: &mut impl Port, limit: Duration) {
    if port.prepare_sleep() {
        let mut fds = [PollFd::from_borrowed_fd(port.wake_fd(), PollFlags::IN)];
        let limit = port.due_us().map_or(limit, |us| limit.min(Duration::from_micros(us)));
        let limit = Timespec { tv_sec: 0, tv_nsec: limit.as_nanos() as i64 };
        // A signal is a wake-up like any other.
        let _ = poll(&mut fds, Some(&limit));
        port.wake_up();
    }
}

/// How often to look again before sleeping: more often where it pays, as a lane does.
struct Looks {
    most: u32,
    idle: u32,
}

impl Looks {
    fn new() -> Looks {
        Looks { most: LOOKS[0], idle: 0 }
    }

    /// Frames came.
    fn found(&mut self) {
        if self.idle > 0 {
            self.most = (self.most * 2).min(LOOKS[1]);
        }
        self.idle = 0;
    }

    /// None came: whether it is time to sleep.
    fn in_vain(&mut self) -> bool {
        self.idle += 1;
        if self.idle <= self.most {
            return false;
        }
        self.most = (self.most / 2).max(LOOKS[0]);
        self.idle = 0;
        true
    }
}

/// Looks for the number of frames under way that brings the most: each is tried for a part of the warm-up.
struct Trial {
    windows: Vec<usize>,
    /// Of one part.
    part: Duration,
    /// What came in the best part so far, and its window.
    best: (u64, usize),
    /// Frames received when this part began; `None` in the part before the first trial.
    from: Option<u64>,
    at: usize,
}

impl Trial {
    fn new(least: usize, warm_up: Duration) -> Trial {
        let windows: Vec<usize> = WINDOWS.iter().map(|times| least * times).collect();
        Trial { part: warm_up / (windows.len() as u32 + 1), windows, best: (0, least), from: None, at: 0 }
    }

    /// The window to use so long after the beginning, so many frames having come back.
    fn window(&mut self, since: Duration, received: u64) -> usize {
        if self.at == self.windows.len() {
            return self.best.1;
        }
        // One part went by before the first trial.
        if since >= self.part * (self.at as u32 + 1 + u32::from(self.from.is_some())) {
            match self.from.replace(received) {
                // The part before: caches and neighbours.
                None => return self.windows[self.at],
                Some(from) => {
                    if received - from > self.best.0 {
                        self.best = (received - from, self.windows[self.at]);
                    }
                    self.at += 1;
                }
            }
        }
        self.windows.get(self.at).copied().unwrap_or(self.best.1)
    }
}

fn flush(port: &mut impl Port) -> Result<(), Failure> {
    port.flush().map_err(Failure::told)
}

/// Answers until stopped; frames received and sent.
pub fn echo(port: &mut impl Port, mix: &Mix, ends: &Ends, stop: &Stop) -> Result<(u64, u64), Failure> {
    let answers = mix.answers(ends);
    // Kinds to answer, and how many frames of the first one's answer have gone.
    let (mut due, mut begun): (Vec<usize>, usize) = (Vec::new(), 0);
    let (mut received, mut sent) = (0, 0);
    let mut looks = Looks::new();
    while !stop.is_set() {
        let n = port.receive(BURST);
        due.extend((0..n).filter_map(|at| kind_of(port.frame(at).data)));
        if n > 0 {
            port.release();
            received += n as u64;
            looks.found();
        }
        let mut done = 0;
        for kind in &due {
            let frames = answers.get(*kind).map_or(&[][..], Vec::as_slice);
            while begun < frames.len() && send(port, &frames[begun]) {
                begun += 1;
                sent += 1;
            }
            if begun < frames.len() {
                break;
            }
            begun = 0;
            done += 1;
        }
        due.drain(..done);
        flush(port)?;
        if n == 0 && due.is_empty() && looks.in_vain() {
            sleep(port, LOST);
        }
    }
    Ok((received, sent))
}

/// What a blaster measured.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Blasted {
    /// Seconds measured.
    pub seconds: f64,
    /// As many connections as these frames would be.
    pub connections: f64,
    /// A second.
    pub connections_per_s: f64,
    /// Both ways, a second.
    pub frames_per_s: f64,
    /// Windows that were lost while it was measured, and begun anew.
    pub lost: u64,
    /// Frames awaited at most: of what was tried, what brought most.
    pub window: usize,
}

/// Keeps at least `least` frames under way, for a time; what came back. More are where more brought more in the warm-up.
pub fn blast(
    port: &mut impl Port,
    mix: &Mix,
    ends: &Ends,
    least: usize,
    times: Window,
    events: &impl Announced,
) -> Result<Blasted, Failure> {
    let frames: Vec<Vec<u8>> =
        mix.0.iter().enumerate().map(|(kind, (length, _))| ends.frame(*length, kind, false)).collect();
    let answers: Vec<usize> = mix.0.iter().map(|(_, answers)| answers.len()).collect();
    // Frames that are still to come for what was sent.
    let mut awaited = 0;
    let (mut next, mut sent, mut received) = (0, 0u64, 0u64);
    let mut at_begin = None;
    let begun = Instant::now();
    let (mut last, mut lost, mut looks) = (begun, 0, Looks::new());
    let mut trial = Trial::new(least.max(1), times.warm_up);
    let mut window = least.max(1);
    events.tell("started")?;
    loop {
        let n = port.receive(BURST);
        if n > 0 {
            port.release();
            received += n as u64;
            awaited = usize::saturating_sub(awaited, n);
            looks.found();
        }
        while awaited < window && send(port, &frames[next]) {
            awaited += answers[next];
            next = (next + 1) % frames.len();
            sent += 1;
        }
        flush(port)?;
        let now = Instant::now();
        if n > 0 {
            last = now;
        } else if now - last > LOST {
            (awaited, last) = (0, now);
            lost += u64::from(at_begin.is_some());
        } else if looks.in_vain() {
            sleep(port, LOST / 10);
        }
        if at_begin.is_none() {
            window = trial.window(now - begun, received);
        }
        match at_begin {
            None if now - begun >= times.warm_up => {
                at_begin = Some((now, sent, received));
                events.tell("measuring")?;
            }
            Some((start, s, r)) if now - start >= times.duration => {
                events.tell("measured")?;
                let seconds = (now - start).as_secs_f64();
                // What came back was done; what was sent may be under way.
                let per_connection: usize = answers.iter().sum();
                let connections = (received - r) as f64 / per_connection as f64;
                return Ok(Blasted {
                    seconds,
                    connections,
                    connections_per_s: connections / seconds,
                    frames_per_s: ((sent - s) + (received - r)) as f64 / seconds,
                    lost,
                    window,
                });
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io::memwire::{MACS, MemConfig, wire};

    #[test]
    fn a_short_connection_is_three_frames_each_way() {
        let mix = Mix::new(1, 64);
        assert_eq!((mix.0.len(), mix.frames()), (3, 6));
        assert_eq!(Mix::new(0, 64).frames(), 4);
        assert_eq!(Mix::new(8, 64).frames(), 20);
        // 8 KiB and its head are six segments.
        assert_eq!(Mix::new(1, 8192).frames(), 11);
        let lengths: Vec<usize> = Mix::new(1, 8192).0[1].1.clone();
        assert!(lengths.iter().all(|length| *length <= 1514) && lengths.iter().sum::<usize>() > 8192 + 6 * PLAIN);
    }

    #[test]
    fn looks_grow_where_they_pay() {
        let mut looks = Looks::new();
        assert!(!looks.in_vain() && !looks.in_vain() && looks.in_vain());
        for _ in 0..10 {
            looks.in_vain();
            looks.found();
        }
        assert!((0..64).all(|_| !looks.in_vain()) && looks.in_vain());
        assert_eq!(looks.most, 32);
        // Found at once: says nothing.
        looks.found();
        assert_eq!(looks.most, 32);
    }

    #[test]
    fn the_window_that_brings_most_is_kept() {
        let ms = Duration::from_millis;
        let mut trial = Trial::new(100, ms(60));
        // Frames in 10 ms, by window: past 400 they are lost.
        let brings = |window: usize| if window <= 400 { window as u64 } else { 50 };
        let (mut received, mut tried) = (0, Vec::new());
        for at in 0..12 {
            let window = trial.window(ms(at * 5), received);
            received += brings(window) / 2;
            tried.push(window);
        }
        assert_eq!(tried, [100, 100, 100, 100, 200, 200, 400, 400, 800, 800, 1600, 1600]);
        assert_eq!(trial.window(ms(60), received), 400);
        assert_eq!(trial.window(ms(500), received + 10_000), 400);
    }

    #[test]
    fn without_a_warm_up_the_window_is_the_least_that_was_asked_for() {
        let mut trial = Trial::new(32, Duration::ZERO);
        for at in 0..WINDOWS.len() as u64 {
            trial.window(Duration::from_micros(at), 0);
        }
        assert_eq!(trial.window(Duration::from_millis(1), 0), 32);
    }

    struct Silent;

    impl Announced for Silent {
        fn tell(&self, _: &str) -> Result<(), Failure> {
            Ok(())
        }
    }

    #[test]
    fn what_is_sent_comes_back() {
        let run = |duration| {
            let (mut a, mut b) = wire(&MemConfig { slots: 64, ..MemConfig::default() }).expect("a wire");
            let ends = Ends { macs: MACS, addresses: [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()] };
            let mix = Mix::new(2, 3000);
            let stop = Stop::default();
            std::thread::scope(|scope| {
                let server = scope.spawn(|| echo(&mut b[0], &mix, &ends, &stop));
                let times = Window { warm_up: duration / 10, duration };
                let blasted = blast(&mut a[0], &mix, &ends, 32, times, &Silent);
                stop.set();
                (blasted.expect("a wire"), server.join().expect("no panic").expect("a wire"))
            })
        };
        // On a busy machine a thread may not come to run in a short time.
        let mut said = String::new();
        let good = [50, 500, 5000].into_iter().map(Duration::from_millis).any(|duration| {
            let (blasted, (received, sent)) = run(duration);
            said += &format!("{duration:?}: {blasted:?}, {received} received, {sent} sent\n");
            // 4 frames in, 1 + 3 + 3 + 1 out. A window counts as lost, too, where the other thread did not come to run for 10 ms.
            let ratio = sent as f64 / received as f64;
            blasted.connections > 1.0 && (ratio - 2.0).abs() < 0.2
        });
        assert!(good, "{said}");
    }
}

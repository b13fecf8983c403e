//! Two hosts and the path between them under one virtual clock.

use io::impair::{Impairment, Path};
use wire::Instant;

use crate::host::{Host, HostConfig};

/// A network of two.
#[derive(Clone)]
pub struct NetConfig {
    /// Host a.
    pub a: HostConfig,
    /// Host b.
    pub b: HostConfig,
    /// What a's frames suffer.
    pub a_to_b: Impairment,
    /// What b's frames suffer.
    pub b_to_a: Impairment,
    /// Draws all randomness of the paths.
    pub seed: u64,
}

/// Two hosts and the path between them.
pub struct Net {
    /// Host a.
    pub a: Host,
    /// Host b.
    pub b: Host,
    /// The clock.
    pub now: Instant,
    /// Where a's frames go.
    pub a_to_b: Path,
    /// Where b's frames go.
    pub b_to_a: Path,
    /// Frames that arrived, both directions.
    pub delivered: u64,
}

impl Net {
    /// A network at time zero.
    pub fn new(config: NetConfig) -> Net {
        Net {
            a: Host::new(config.a),
            b: Host::new(config.b),
            now: Instant::from_micros(1_000_000),
            a_to_b: Path::new(config.a_to_b, config.seed.wrapping_mul(2)),
            b_to_a: Path::new(config.b_to_a, config.seed.wrapping_mul(2) + 1),
            delivered: 0,
        }
    }

    /// Runs until `done` says so or the clock passes `until`; whether `done` did. After each round of turns `done` may
    /// read events and hand over jobs.
    pub fn run(&mut self, until: Instant, mut done: impl FnMut(&mut Net) -> bool) -> bool {
        loop {
            // A few rounds at one instant, so that what the applications ask for goes out at once.
            for _ in 0..2 {
                self.turn();
                if done(self) {
                    return true;
                }
            }
            self.now = self.next_at().max(self.now.plus_micros(1));
            if self.now > until {
                self.now = until;
                return false;
            }
        }
    }

    /// When something happens next without the applications; never, as far as can be known, where nothing is under way.
    pub fn next_at(&self) -> Instant {
        let paths = [self.a_to_b.next_at(), self.b_to_a.next_at()];
        let timers = [self.a.stack.next_deadline(), self.b.stack.next_deadline()];
        let rings = [self.a.takes_at(), self.b.takes_at()];
        let next = paths.into_iter().chain(timers).chain(rings).flatten().min().unwrap_or(Instant::FAR);
        // A port that was full has room again soon.
        let pending = self.a.stack.output_pending() || self.b.stack.output_pending();
        if pending { next.min(self.now.plus_micros(100)) } else { next }
    }

    /// Tells each host the other's hardware address.
    pub fn acquaint(&mut self) {
        let now = self.now;
        let [(mac_a, all_a), (mac_b, all_b)] = [&self.a, &self.b].map(|h| (h.config.mac, h.config.addresses.clone()));
        for (host, mac, all) in [(&mut self.a, mac_b, all_b), (&mut self.b, mac_a, all_a)] {
            let interface = host.interface();
            all.into_iter().for_each(|(addr, _)| host.stack.set_neighbor(now, interface, addr, mac));
        }
    }

    /// Both hosts.
    pub fn hosts(&mut self) -> [&mut Host; 2] {
        [&mut self.a, &mut self.b]
    }

    /// Host a is 0, host b is 1.
    pub fn host(&mut self, i: usize) -> &mut Host {
        if i == 0 { &mut self.a } else { &mut self.b }
    }

    /// Both hosts once, with the frames that are due.
    pub fn turn(&mut self) {
        let to_b = drain(&mut self.a_to_b, self.now);
        let to_a = drain(&mut self.b_to_a, self.now);
        self.delivered += (to_a.len() + to_b.len()) as u64;
        for frame in self.a.turn(self.now, to_a) {
            send(&mut self.a_to_b, &mut self.b_to_a, self.now, &frame);
        }
        for frame in self.b.turn(self.now, to_b) {
            send(&mut self.b_to_a, &mut self.a_to_b, self.now, &frame);
        }
    }
}

/// A router's answer shares the fate of what comes back.
fn send(out: &mut Path, back: &mut Path, now: Instant, frame: &[u8]) {
    if let Some(answer) = out.push(now, frame) {
        back.push(now, &answer);
    }
}

fn drain(path: &mut Path, now: Instant) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while let Some(frame) = path.pop(now) {
        frames.push(frame);
    }
    frames
}

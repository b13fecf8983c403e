//! Paths that swallow long segments without a word (RFC 4821 7.7, RFC 8899 4.3), and paths that lose without regard to length.

use core::time::Duration;

use protocol::Endpoint;
use sim::{Echo, Host, HostConfig, Outcome, Sender};
use wire::{Addr, Instant};

/// Both directions of a path, each a tick long.
const TICK: Duration = Duration::from_millis(50);

/// A host that sends to another one, which echoes it.
struct Path {
    hosts: [Host; 2],
    echo: Echo,
    sender: Sender,
    flying: [Vec<Vec<u8>>; 2],
    now: Instant,
}

impl Path {
    fn new(timestamps: bool) -> Path {
        let config = |n| {
            let mut c = HostConfig::new(n);
            c.stack.tcp.timestamps = timestamps;
            // A peer that answers nothing for long is not the matter here.
            c.stack.tcp.retries = 100;
            c.stack.tcp.receive_buffer = 30_000;
            c.stack.tcp.receive_buffer_max = 30_000;
            c
        };
        let [mut a, mut b] = [1, 2].map(|n| Host::new(config(n)));
        let to = Endpoint { addr: Addr::from(b.config.addresses[0].0), port: 80 };
        let echo = Echo::start(&mut b, to);
        let sender = Sender::start(&mut a, 1, to, u64::MAX, 7);
        Path { hosts: [a, b], echo, sender, flying: Default::default(), now: Instant::from_micros(1_000_000) }
    }

    /// Time passes; `takes` says of each frame whether it arrives.
    fn run(&mut self, time: Duration, mut takes: impl FnMut(&[u8]) -> bool) {
        for _ in 0..time.as_millis() / TICK.as_millis() {
            self.now += TICK;
            let now = self.now;
            let [to_a, to_b] = core::mem::take(&mut self.flying);
            let [a, b] = &mut self.hosts;
            let (mut from_a, mut from_b) = (a.turn(now, to_a), b.turn(now, to_b));
            from_a.retain(|f| takes(f));
            from_b.retain(|f| takes(f));
            self.flying = [from_b, from_a];
            while let Some(e) = a.event() {
                self.sender.on_event(a, e);
            }
            while let Some(e) = b.event() {
                self.echo.on_event(b, e);
            }
            self.sender.poll(a);
            assert_eq!(self.sender.outcome, Outcome::Running);
        }
    }

    /// The sender's segment size, and black holes that it has found.
    fn sizes(&self) -> (u16, u64) {
        let holes = self.hosts[0].stack.counters().tcp.black_holes;
        let mut size = 0;
        self.hosts[0].stack.each_connection(|_, _, tcb| size = tcb.smss());
        (size, holes)
    }

    /// Bytes that the first host's peer has acknowledged.
    fn acked(&self) -> u64 {
        let mut acked = 0;
        let config = &self.hosts[0].config.stack.tcp;
        self.hosts[0].stack.each_connection(|_, _, tcb| acked = tcb.info(self.now, config).bytes_acked);
        acked
    }

    fn timeouts(&self) -> u64 {
        self.hosts.iter().map(|h| h.stack.counters().tcp.timeouts).sum()
    }
}

#[test]
fn a_black_hole_is_found_and_left_when_the_path_recovers() {
    for timestamps in [false, true] {
        let full = if timestamps { 1448 } else { 1460 };
        let mut p = Path::new(timestamps);
        p.run(Duration::from_secs(1), |_| true);
        assert_eq!(p.sizes(), (full, 0));
        // A tunnel in the middle, and nobody who says so.
        let narrow = |f: &[u8]| f.len() <= 14 + 1300;
        p.run(Duration::from_secs(60), narrow);
        // Half of it, or the longest that got through.
        let (size, holes) = p.sizes();
        assert!((full / 2..1300 - 40).contains(&size) && holes == 1, "{size} {holes}");
        // The other way goes what arrives, in short segments. Data flows, though full segments are tried now and then.
        let (timeouts, before) = (p.timeouts(), p.acked());
        p.run(Duration::from_secs(60), narrow);
        assert!(p.acked() - before > 5_000_000, "{}", p.acked() - before);
        assert!(p.timeouts() - timeouts < 10, "{}", p.timeouts() - timeouts);
        p.run(Duration::from_secs(700), |_| true);
        assert_eq!(p.sizes(), (full, 1));
    }
}

#[test]
fn heavy_loss_lowers_no_segment_size() {
    let mut timeouts = 0;
    for seed in 1..20u64 {
        let mut p = Path::new(seed % 2 == 0);
        p.run(Duration::from_secs(1), |_| true);
        let full = p.sizes().0;
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        p.run(Duration::from_secs(120), |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % 100 >= 30
        });
        // An outage on top of it.
        p.run(Duration::from_secs(10), |_| false);
        p.run(Duration::from_secs(60), |_| true);
        assert_eq!(p.sizes(), (full, 0), "seed {seed}");
        timeouts += p.timeouts();
    }
    assert!(timeouts > 1000, "{timeouts}");
}

//! The end of a lane: all that is open is closed, the peers acknowledge it, and who does not is reset. How long that may take follows
//! what it brings: a hundred thousand connections need longer than one, and peers that are dead are not waited for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use io::AnyPort;
use stack::Left;

use crate::lane::Lane;

/// How long an end goes on in which no peer acknowledges anything.
pub(crate) const QUIET: Duration = Duration::from_secs(2);
/// The same where all peers are in this process, behind wires in memory: where they are silent, nobody runs them.
const QUIET_MEMORY: Duration = Duration::from_millis(100);
/// How long it may take altogether, besides, for each connection and each byte: peers that are slow are waited for no longer, and never
/// longer than the configuration's `end_s`.
const EACH_END: Duration = Duration::from_micros(200);
const EACH_BYTE: Duration = Duration::from_micros(1);
/// How long the port may take none of the resets, and how long they may take besides, each.
const QUIET_RESETS: Duration = Duration::from_millis(200);
const EACH_RESET: Duration = Duration::from_micros(20);
/// Between two looks at what is left: each looks at all connections.
const LOOK: Duration = Duration::from_millis(100);
/// How long a lane that ends sleeps at most.
const NAP: Duration = Duration::from_millis(10);

/// How long something may take: as long as it goes on, and no longer than what there is to do explains.
#[derive(Debug)]
struct Limit {
    quiet: Duration,
    end: Instant,
    least: Left,
    /// When it became less.
    heard: Instant,
}

impl Limit {
    fn closing(now: Instant, quiet: Duration, longest: Duration, left: Left) -> Limit {
        let bytes = Duration::from_micros(EACH_BYTE.as_micros() as u64 * left.bytes);
        let explained = quiet + EACH_END * left.ends as u32 + bytes;
        Limit { quiet, end: now + explained.min(longest), least: left, heard: now }
    }

    fn resetting(now: Instant, left: Left) -> Limit {
        let end = now + QUIET_RESETS + EACH_RESET * left.ends as u32;
        Limit { quiet: QUIET_RESETS, end, least: left, heard: now }
    }

    /// Whether there is time to go on, now that this is left.
    fn allows(&mut self, now: Instant, left: Left) -> bool {
        if left.ends < self.least.ends || left.bytes < self.least.bytes {
            self.least = Left { ends: left.ends.min(self.least.ends), bytes: left.bytes.min(self.least.bytes) };
            self.heard = now;
        }
        now < self.end && now.duration_since(self.heard) < self.quiet
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Connections are closed, and the peers acknowledge it.
    Closing,
    /// Those that have not are reset.
    Resetting,
    Over,
}

/// How far the end of a lane has come.
#[derive(Debug)]
pub(crate) struct End {
    stage: Stage,
    limit: Limit,
    look: Instant,
    /// The lane is over with it.
    last: bool,
}

impl Lane {
    /// Begins to end all that is open on the lane, which goes on in its turns: the application has gone, or its process ends.
    pub(crate) fn begin_end(&mut self) {
        if self.is_over() || self.is_ending() {
            return;
        }
        self.stack.close_all(self.clock.now());
        let now = Instant::now();
        let memory = self.ports.iter().all(|port| matches!(port, AnyPort::Mem(_)));
        let quiet = if memory { QUIET_MEMORY } else { QUIET };
        let limit = Limit::closing(now, quiet, self.longest_end, self.stack.left());
        self.end = Some(End { stage: Stage::Closing, limit, look: now + LOOK, last: false });
    }

    /// Begins to reset all that is open, without a wait for any peer; the lane is over once the resets have left.
    pub(crate) fn begin_reset(&mut self) {
        if self.is_over() {
            return;
        }
        let clock = self.clock.now();
        self.stack.stop_listening(clock);
        self.stack.reset_all();
        // Before anything else that the application has asked for: a FIN would make half an answer a whole one.
        while self.stack.is_ending() {
            self.stack.go_on_ending(clock);
        }
        let (now, mut left) = (Instant::now(), self.stack.left());
        left.ends = self.stack.connections();
        let limit = Limit::resetting(now, left);
        self.end = Some(End { stage: Stage::Resetting, limit, look: now + LOOK, last: true });
    }

    /// A panic has left the lane behind: connections are reset as far as the stack still can, and the kernel has the interfaces.
    #[cold]
    pub(crate) fn break_off(&mut self) {
        if self.is_over() {
            return;
        }
        let reset = AssertUnwindSafe(|| {
            self.begin_reset();
            let end = Instant::now() + QUIET_RESETS;
            while self.stack.sending() && Instant::now() < end {
                self.send(self.clock.now());
            }
            self.let_go();
        });
        let how =
            if catch_unwind(reset).is_ok() { "its connections are reset" } else { "nor can its connections be reset" };
        tracing::error!("lane {}: it does not go on after a panic, {how}", self.index);
        self.go_over();
    }

    /// True once no turn is taken any more.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    fn go_over(&self) {
        self.over.store(true, Ordering::Release);
        self.app_bell.ring();
    }

    /// Whether an end that was begun is over: nothing is on its way out, and the peers have acknowledged all, or were reset.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_over() || self.end.as_ref().is_some_and(|end| end.stage == Stage::Over)
    }

    /// Whether an end is under way.
    pub(crate) fn is_ending(&self) -> bool {
        self.end.is_some() && !self.has_ended()
    }

    /// A turn's part of an end: whether there is time left for it, and what comes next.
    pub(crate) fn follow_end(&mut self) {
        let Some(stage) = self.end.as_ref().map(|end| end.stage) else { return };
        let done = match stage {
            Stage::Over => return,
            Stage::Closing => self.drained(),
            Stage::Resetting => !self.stack.is_ending() && !self.stack.sending(),
        };
        let Some(end) = &mut self.end else { return };
        let now = Instant::now();
        if !done {
            if now < end.look {
                return;
            }
            end.look = now + LOOK;
            let mut left = self.stack.left();
            if stage == Stage::Resetting {
                // Reset ones are connections until their frames have left.
                left.ends = self.stack.connections();
            }
            if end.limit.allows(now, left) {
                return;
            }
            if stage == Stage::Closing {
                self.stack.reset_all();
                left.ends = self.stack.connections();
                (end.stage, end.limit) = (Stage::Resetting, Limit::resetting(now, left));
                return;
            }
        }
        end.stage = Stage::Over;
        if end.last {
            self.let_go();
            self.go_over();
        }
    }

    /// Ends the lane: turns until what is open is closed and acknowledged, or reset. `beat` is called again and again, for who
    /// watches.
    pub(crate) fn finish(&mut self, beat: impl Fn()) {
        self.turn();
        self.begin_end();
        while !self.has_ended() {
            beat();
            self.turn();
            if !self.has_ended() {
                self.sleep(None, Some(NAP));
            }
        }
    }

    /// How long a lane may sleep that ends, µs.
    pub(crate) fn nap_us(&self) -> Option<u64> {
        self.is_ending().then_some(NAP.as_micros() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALWAYS: Duration = Duration::from_secs(86_400);

    fn at(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    /// Peers of an end, of which each takes what is meant for it after the one before, or nothing at all.
    #[derive(Clone, Debug)]
    struct Peer {
        bytes: u64,
        /// Of the time that an end has for them and for itself, hundredths that it takes.
        pace: u64,
        dead: bool,
    }

    fn peers() -> impl Strategy<Value = Vec<(usize, Peer)>> {
        let bytes = prop_oneof![Just(0), 0u64..3000, 0u64..3_000_000];
        let dead = prop::bool::weighted(0.2);
        let peer = (bytes, 40u64..=95, dead).prop_map(|(bytes, pace, dead)| Peer { bytes, pace, dead });
        prop::collection::vec((prop_oneof![Just(1usize), 1usize..20_000], peer), 1..12)
    }

    proptest! {
        /// Peers that go on are heard out, however many there are and however much they take; then nobody is waited for.
        #[test]
        fn who_goes_on_has_his_time(groups in peers(), begins in 0u64..1_500) {
            let start = Instant::now();
            // What is left after each time that somebody acknowledges something.
            let each = |g: &(usize, Peer)| Left { ends: g.0, bytes: g.0 as u64 * (g.1.bytes / g.0 as u64) };
            let whole = groups.iter().map(each).fold(Left::default(), |a, b| Left { ends: a.ends + b.ends, bytes: a.bytes + b.bytes });
            let (mut left, mut now) = (whole, Duration::from_millis(begins));
            let mut acknowledged = vec![];
            for group in groups.iter().filter(|g| !g.1.dead) {
                let Left { ends, bytes } = each(group);
                for part in 1..=64u64 {
                    let share = |n: u64| n * part / 64 - n * (part - 1) / 64;
                    let (gone, taken) = (share(ends as u64), share(bytes));
                    now += (EACH_END * gone as u32 + EACH_BYTE * taken as u32) * group.1.pace as u32 / 100;
                    left = Left { ends: left.ends - gone as usize, bytes: left.bytes - taken };
                    acknowledged.push((now, left));
                }
            }
            // Nobody pauses for as long as an end waits.
            let times = std::iter::once(Duration::ZERO).chain(acknowledged.iter().map(|(at, _)| *at));
            prop_assume!(times.clone().zip(times.skip(1)).all(|(a, b)| b - a + 2 * LOOK < QUIET));
            let last = acknowledged.last().map_or(Duration::ZERO, |(at, _)| *at);
            let mut limit = Limit::closing(start, QUIET, ALWAYS, whole);
            let over = (1..).map(|n| LOOK * n).find(|at| {
                let left = acknowledged.iter().rev().find(|(when, _)| when <= at).map_or(whole, |(_, left)| *left);
                !limit.allows(start + *at, left)
            });
            let over = over.expect("it ends");
            prop_assert!(over >= last, "over after {over:?}, where the last acknowledgment comes after {last:?}");
            prop_assert!(over <= last + QUIET + 2 * LOOK, "over after {over:?}, {last:?}");
        }
    }

    #[test]
    fn an_end_goes_on_as_long_as_it_brings_something() {
        let start = Instant::now();
        let mut limit = Limit::closing(start, QUIET, ALWAYS, Left { ends: 100_000, bytes: 0 });
        for second in 1..20 {
            let left = Left { ends: 100_000 - 5_000 * second, bytes: 0 };
            assert!(limit.allows(at(start, 1000 * second as u64), left), "{second}");
        }
        // More that are left, as where others are opened meanwhile, are none.
        assert!(limit.allows(at(start, 20_900), Left { ends: 6_000, bytes: 0 }));
        assert!(!limit.allows(at(start, 21_001), Left { ends: 6_000, bytes: 0 }));
    }

    #[test]
    fn an_end_is_bounded_by_what_was_open() {
        let start = Instant::now();
        let mut limit = Limit::closing(start, QUIET, ALWAYS, Left { ends: 1000, bytes: 3_000_000 });
        // 2 s, 0.2 s for the connections, 3 s for the bytes: each look finds a byte less.
        let times = (0..).map(|n| 100 * n);
        let over =
            times.take_while(|ms| limit.allows(at(start, *ms), Left { ends: 1000, bytes: 3_000_000 - ms })).last();
        assert_eq!(over, Some(5_100));
    }

    #[test]
    fn an_end_is_bounded_whatever_was_open() {
        let start = Instant::now();
        let whole = Left { ends: 1000, bytes: 4 << 30 };
        let mut limit = Limit::closing(start, QUIET, Duration::from_secs(60), whole);
        let times = (0..).map(|n| 100 * n);
        let over =
            times.take_while(|ms| limit.allows(at(start, *ms), Left { bytes: whole.bytes - ms, ..whole })).last();
        assert_eq!(over, Some(59_900));
    }

    #[test]
    fn who_is_dead_is_waited_for_two_seconds() {
        let start = Instant::now();
        let left = Left { ends: 100_000, bytes: 1 << 30 };
        let mut limit = Limit::closing(start, QUIET, ALWAYS, left);
        assert!(limit.allows(at(start, 1_999), left));
        assert!(!limit.allows(at(start, 2_000), left));
        let mut limit = Limit::resetting(start, left);
        assert!(limit.allows(at(start, 199), left));
        assert!(!limit.allows(at(start, 200), left));
    }
}

//! How long to look again before sleeping. A sleep costs the system calls around it, and whoever ends it the waking of a core;
//! where that is a virtual one, which the host took away meanwhile, tens of microseconds. Looking takes the core whole.
//!
//! So a lane looks for a while, the *window*, which follows what looking would have brought: it grows when something came
//! within the longest window but after the present one, and shrinks when nothing did. This is what KVM does for halted virtual
//! CPUs (`halt_poll_ns`) and Linux's `haltpoll` governor inside them. Between looks the core is offered to others: the NAPI
//! thread that is to bring something may wait for it. A thread that computes may too, and keeps the core until the next tick:
//! then there is no window for a while, for who sleeps is let in at once when it wakes.

use wire::Instant;

/// The first window, µs: an answer from the other end of a short wire.
const FIRST_US: u64 = 25;
/// Looks that are always worth it, and do not offer the core: for what was under way.
const AT_ONCE: u32 = 2;

/// Away for so long, somebody else computes on the core, µs.
const TAKEN_US: u64 = 1000;
/// Sleeps that a window would have saved, before the core is offered to such a one again.
const WARY: u32 = 256;

/// What to do after a look that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Look again.
    Look,
    /// Offer the core to others, then look again.
    Yield,
    /// Sleep.
    Sleep,
}

/// The waiting of one thread.
#[derive(Clone, Debug)]
pub struct Patience {
    window_us: u64,
    most_us: u64,
    /// When it first found nothing, since it last found something.
    since: Option<Instant>,
    /// Looks since then.
    looks: u32,
    /// When it offered the core.
    offered: Option<Instant>,
    /// Sleeps to go before there is a window again.
    wary: u32,
}

impl Patience {
    /// Windows of at most `most_us`.
    pub fn new(most_us: u32) -> Patience {
        Patience { window_us: 0, most_us: most_us.into(), since: None, looks: 0, offered: None, wary: 0 }
    }

    /// A look found nothing.
    pub fn nothing(&mut self, now: Instant) -> Then {
        self.back(now);
        let since = *self.since.get_or_insert(now);
        self.looks = self.looks.saturating_add(1);
        if self.looks <= AT_ONCE {
            Then::Look
        } else if now.micros_since(since) < self.window_us {
            self.offered = Some(now);
            Then::Yield
        } else {
            Then::Sleep
        }
    }

    /// The waiting ends for another reason: what comes next says nothing about it.
    pub fn interrupted(&mut self) {
        (self.since, self.looks, self.offered) = (None, 0, None);
    }

    /// It has the core again.
    fn back(&mut self, now: Instant) {
        if self.offered.take().is_some_and(|at| now.micros_since(at) > TAKEN_US) {
            self.window_us = 0;
            self.wary = WARY;
        }
    }

    /// A look found something; the time is asked only after one that did not.
    pub fn something(&mut self, now: impl FnOnce() -> Instant) {
        let Some(since) = self.since.take() else { return };
        self.looks = 0;
        let now = now();
        self.back(now);
        let idle_us = now.micros_since(since);
        if idle_us > self.most_us {
            let half = self.window_us / 2;
            self.window_us = if half < FIRST_US { 0 } else { half };
        } else if idle_us > self.window_us && self.wary > 0 {
            self.wary -= 1;
        } else if idle_us > self.window_us {
            self.window_us = (self.window_us * 2).max(FIRST_US).min(self.most_us);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A thread that looks every so many microseconds.
    struct Waiter {
        patience: Patience,
        now: Instant,
        look_us: u64,
    }

    impl Waiter {
        fn new(most_us: u32, look_us: u64) -> Waiter {
            Waiter { patience: Patience::new(most_us), now: Instant::from_micros(1_000_000), look_us }
        }

        /// Something comes after `gap_us`; how long it looked, and whether it was seen without a sleep.
        fn gap(&mut self, gap_us: u64) -> (u64, bool) {
            let start = self.now;
            let due = start.plus_micros(gap_us);
            while self.now < due {
                if self.patience.nothing(self.now) == Then::Sleep {
                    let looked = self.now.micros_since(start);
                    self.now = due;
                    self.patience.something(|| due);
                    return (looked, false);
                }
                self.now = self.now.plus_micros(self.look_us);
            }
            let now = self.now;
            self.patience.something(|| now);
            (now.micros_since(start), true)
        }
    }

    #[test]
    fn a_wait_that_ends_for_another_reason_says_nothing() {
        let mut w = Waiter::new(200, 1);
        for _ in 0..5 {
            w.gap(90);
        }
        let window = w.patience.window_us;
        let offered = (0..9).any(|_| w.patience.nothing(w.now) == Then::Yield);
        w.patience.interrupted();
        // The application computes.
        w.now = w.now.plus_micros(50 * TAKEN_US);
        assert!(offered && w.patience.nothing(w.now) == Then::Look);
        let now = w.now;
        w.patience.something(|| now);
        assert_eq!((w.patience.window_us, w.patience.wary), (window, 0));
    }

    #[test]
    fn it_grows_until_it_sees_what_comes() {
        let mut w = Waiter::new(200, 1);
        let seen: Vec<bool> = (0..5).map(|_| w.gap(90).1).collect();
        // 25, 50 and 100 µs.
        assert_eq!(seen, [false, false, false, true, true]);
        assert_eq!(w.patience.window_us, 100);
    }

    #[test]
    fn long_gaps_take_the_window_away() {
        let mut w = Waiter::new(200, 1);
        (0..10).for_each(|_| _ = w.gap(150));
        assert_eq!(w.patience.window_us, 200);
        let looked: Vec<u64> = (0..6).map(|_| w.gap(5000).0).collect();
        assert_eq!(looked, [200, 100, 50, 25, 2, 2]);
    }

    #[test]
    fn a_short_gap_between_long_ones_starts_small() {
        let mut w = Waiter::new(200, 1);
        for _ in 0..100 {
            assert!(w.gap(100_000).0 <= 25);
            w.gap(20);
        }
    }

    #[test]
    fn the_first_looks_do_not_give_the_core_away() {
        let mut p = Patience::new(100);
        let at = Instant::from_micros;
        assert_eq!([p.nothing(at(5)), p.nothing(at(5)), p.nothing(at(5))], [Then::Look, Then::Look, Then::Sleep]);
        p.something(|| at(15));
        let then: Vec<Then> = [20, 21, 22, 44, 45, 60].into_iter().map(|us| p.nothing(at(us))).collect();
        assert_eq!(then, [Then::Look, Then::Look, Then::Yield, Then::Yield, Then::Sleep, Then::Sleep]);
    }

    #[test]
    fn who_computes_on_the_core_is_not_offered_it_again_soon() {
        let mut w = Waiter::new(100, 1);
        (0..5).for_each(|_| _ = w.gap(80));
        let (p, at) = (&mut w.patience, |us: u64| Instant::from_micros(10_000_000 + us));
        let then: Vec<Then> = [0, 1, 2].into_iter().map(|us| p.nothing(at(us))).collect();
        assert_eq!(then, [Then::Look, Then::Look, Then::Yield]);
        // A tick later.
        p.something(|| at(4000));
        w.now = at(4000);
        assert_eq!((0..WARY).filter(|_| w.gap(20).0 > 2).count(), 0);
        // It is tried again.
        w.gap(20);
        assert!(w.gap(20).1);
    }

    #[test]
    fn what_comes_at_once_costs_no_look_at_the_clock() {
        let mut p = Patience::new(100);
        p.something(|| unreachable!("nothing was waited for"));
    }

    #[test]
    fn a_wake_up_for_nothing_opens_no_new_window() {
        let mut w = Waiter::new(100, 1);
        (0..5).for_each(|_| _ = w.gap(80));
        assert_eq!(w.patience.window_us, 100);
        let p = &mut w.patience;
        p.nothing(w.now);
        // Its timer, and again.
        let then: Vec<Then> = [10, 20, 30].into_iter().map(|ms| p.nothing(w.now.plus_micros(ms * 1000))).collect();
        assert_eq!(then, [Then::Look, Then::Sleep, Then::Sleep]);
    }

    proptest! {
        /// Whatever comes when: never longer than allowed, and nothing at all where nothing is.
        #[test]
        fn no_longer_than_allowed(most in 0u32..500, look in 1u64..20, gaps in prop::collection::vec(0u64..1000, 1..200)) {
            let mut w = Waiter::new(most, look);
            for gap in gaps {
                let (looked, _) = w.gap(gap);
                // The first looks are not timed.
                prop_assert!(looked <= u64::from(most).max(u64::from(AT_ONCE) * look) + look);
            }
        }

        /// Wherever it stood: gaps that a window can bridge are seen after a few, gaps that none can are slept through.
        #[test]
        fn it_follows(most in 50u32..500, before in prop::collection::vec(0u64..1000, 0..100), short in 1u64..50) {
            let mut w = Waiter::new(most, 1);
            before.into_iter().for_each(|gap| _ = w.gap(gap));
            (0..6).for_each(|_| _ = w.gap(short));
            prop_assert!(w.gap(short).1);
            (0..6).for_each(|_| _ = w.gap(u64::from(most) + 10));
            prop_assert_eq!(w.gap(u64::from(most) + 10).0, u64::from(AT_ONCE));
        }
    }
}

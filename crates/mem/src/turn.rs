//! A value that two threads use by turns: the lane of a guarded application (DESIGN.md section 3).
//!
//! The application takes its turn by one compare-and-swap and gives it back by a store. A guard looks now and then: a word
//! that has not changed since its last look means that nobody has called in, and the guard takes the turns from there. An
//! application that waits for something says that it is away; a guard that sees so for long enough dozes off, and is rung
//! for when the application comes back. Both directions are Dekker's: say it, fence, look.

use crate::sync::{AtomicU32, Ordering, Owned, fence};

/// Somebody has the turn; what is above this bit counts turns.
const HELD: u32 = 1;

/// What can be seen of a turn without taking it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look(u32);

impl Look {
    /// Somebody has it now.
    pub fn is_held(self) -> bool {
        self.0 & HELD != 0
    }
}

/// A value that one thread at a time uses.
// A line of its own, and its pair: the lane next door must not feel our turns.
#[repr(C, align(128))]
pub struct Turn<T> {
    word: AtomicU32,
    /// The application waits for something, and watches over the value itself.
    away: AtomicU32,
    /// The application found the turn taken.
    wanted: AtomicU32,
    /// The guard does not look until it is rung.
    dozing: AtomicU32,
    value: Owned<T>,
}

// SAFETY: the value is reached only by whoever has the turn, and moves between threads with it.
unsafe impl<T: Send> Sync for Turn<T> {}

/// The turn: the value is ours until this is dropped, or [left](Held::leave).
pub struct Held<'a, T> {
    turn: &'a Turn<T>,
    word: u32,
}

impl<T> Turn<T> {
    /// Nobody's turn.
    pub fn new(value: T) -> Turn<T> {
        Turn {
            word: AtomicU32::new(0),
            away: AtomicU32::new(0),
            wanted: AtomicU32::new(0),
            dozing: AtomicU32::new(0),
            value: Owned::new(value),
        }
    }

    /// What there is to see.
    pub fn look(&self) -> Look {
        Look(self.word.load(Ordering::Relaxed))
    }

    /// Takes the turn, unless somebody has it.
    #[inline]
    pub fn take(&self) -> Option<Held<'_, T>> {
        self.take_if(Look(self.word.load(Ordering::Relaxed)))
    }

    /// Takes the turn if nobody has had it since this look.
    #[inline]
    pub fn take_if(&self, look: Look) -> Option<Held<'_, T>> {
        let word = look.0;
        if look.is_held() {
            return None;
        }
        // Acquire: everything that the one before us did.
        let swapped = self.word.compare_exchange(word, word | HELD, Ordering::Acquire, Ordering::Relaxed);
        // Made only where it is ours: dropping one gives the turn back.
        swapped.is_ok().then(|| Held { turn: self, word })
    }

    /// The application has found the turn taken: whoever has it should leave it soon.
    pub fn want(&self) {
        self.wanted.store(1, Ordering::Relaxed);
    }

    /// Whether the application wanted the turn since the last time that this was asked.
    pub fn was_wanted(&self) -> bool {
        let wanted = self.wanted.load(Ordering::Relaxed) != 0;
        if wanted {
            self.wanted.store(0, Ordering::Relaxed);
        }
        wanted
    }

    /// Whether the application is away.
    pub fn is_away(&self) -> bool {
        self.away.load(Ordering::Acquire) != 0
    }

    /// The application is back; `true` when the guard dozes and must be rung for, once.
    pub fn come_back(&self) -> bool {
        self.away.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.dozing.load(Ordering::Relaxed) != 0 && self.dozing.swap(0, Ordering::Relaxed) != 0
    }

    /// The guard wants to doze: whether it may, since the application is away. Then it is rung for.
    pub fn doze(&self) -> bool {
        self.dozing.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.away.load(Ordering::Relaxed) != 0 {
            return true;
        }
        self.dozing.store(0, Ordering::Relaxed);
        false
    }

    /// The guard dozes no more.
    pub fn stir(&self) {
        self.dozing.store(0, Ordering::Relaxed);
    }
}

impl<T> Held<'_, T> {
    /// Gives the turn back; what [`Turn::look`] shows until somebody else takes it.
    #[inline]
    pub fn leave(self) -> Look {
        Look(self.word.wrapping_add(2))
    }

    /// Gives the turn back, and goes away: the application watches over the value until [`Turn::come_back`].
    pub fn go_away(self) {
        // Release: whoever sees this, sees what was armed before.
        self.turn.away.store(1, Ordering::Release);
    }

    /// Uses the value.
    #[inline]
    pub fn with<R>(&mut self, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: one turn at a time, and this is it; `&mut self` makes it one use at a time.
        unsafe { self.turn.value.with(f) }
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // What a panic has left behind is nobody's any more.
        if !std::thread::panicking() {
            // Release: everything that we did, for the next one.
            self.turn.word.store(self.word.wrapping_add(2), Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_every_turn_shows() {
        let turn = Turn::new(1);
        let first = turn.look();
        let mut held = turn.take_if(first).unwrap();
        assert!(turn.take().is_none() && turn.look().is_held());
        held.with(|v| *v += 1);
        let left = held.leave();
        assert_eq!(turn.look(), left);
        assert!(turn.take_if(first).is_none());
        assert_eq!(turn.take_if(left).unwrap().with(|v| *v), 2);
        assert!(turn.take_if(left).is_none());
    }

    #[test]
    fn the_count_wraps() {
        let turn = Turn::new(());
        turn.word.store(u32::MAX - 1, Ordering::Relaxed);
        assert!(!turn.take().unwrap().leave().is_held());
        assert!(turn.take().is_some() && !turn.look().is_held());
    }

    #[test]
    fn a_panic_keeps_the_turn() {
        let turn = Turn::new(());
        let broken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _held = turn.take();
            panic!("as meant");
        }));
        assert!(broken.is_err() && turn.take().is_none());
    }

    #[test]
    fn a_guard_dozes_only_while_the_application_is_away() {
        let turn = Turn::new(());
        assert!(!turn.doze() && !turn.come_back());
        turn.take().unwrap().go_away();
        assert!(turn.is_away() && turn.doze());
        assert!(turn.come_back() && !turn.is_away());
        assert!(!turn.come_back());
    }
}

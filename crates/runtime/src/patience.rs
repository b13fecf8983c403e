//! How often to look again before sleeping. A look costs less than a microsecond, a sleep several, and the other side a wake-up;
//! but where the other side shares our core, a look is time taken from it. So the number follows what looking brought.

/// Always worth it: what was under way.
const LEAST: u32 = 2;
/// Looks of a trial.
const TRIAL: u32 = 16;
/// Sleeps that looking might have saved, before it is tried again.
const REGRETS: u32 = 8;
/// A sleep as short as this costs more than it gives, µs.
const SHORT_US: u64 = 20;

/// The number of empty looks before the next sleep.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    now: u32,
    most: u32,
    regrets: u32,
}

impl Patience {
    /// At most `most` looks.
    pub fn new(most: u32) -> Patience {
        Patience { now: most.min(LEAST), most, regrets: 0 }
    }

    /// Looks that are worth it now.
    pub fn looks(&self) -> u32 {
        self.now
    }

    /// Something came after so many empty looks.
    pub fn paid(&mut self, looks: u32) {
        if looks > 0 {
            self.now = (self.now * 2).min(self.most);
        }
    }

    /// All looks were in vain, and a sleep of `us` followed.
    pub fn slept(&mut self, us: u64) {
        let least = self.most.min(LEAST);
        if self.now > least {
            self.now = (self.now / 2).max(least);
        } else if us <= SHORT_US {
            self.regrets += 1;
            if self.regrets == REGRETS {
                self.regrets = 0;
                self.now = TRIAL.min(self.most);
            }
        } else {
            self.regrets = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_while_it_pays_and_shrinks_at_once() {
        let mut p = Patience::new(100);
        assert_eq!(p.looks(), LEAST);
        // Found at the first look: says nothing.
        p.paid(0);
        assert_eq!(p.looks(), LEAST);
        (0..10).for_each(|_| p.paid(1));
        assert_eq!(p.looks(), 100);
        (0..6).for_each(|_| p.slept(5));
        assert_eq!(p.looks(), LEAST);
    }

    #[test]
    fn short_sleeps_are_a_reason_to_try_now_and_then() {
        let mut p = Patience::new(100);
        (0..REGRETS - 1).for_each(|_| p.slept(5));
        p.slept(10_000);
        (0..REGRETS - 1).for_each(|_| p.slept(5));
        assert_eq!(p.looks(), LEAST);
        p.slept(5);
        assert_eq!(p.looks(), TRIAL);
        // In vain: back soon.
        (0..3).for_each(|_| p.slept(5));
        assert_eq!(p.looks(), LEAST);
    }

    #[test]
    fn nobody_looks_longer_than_allowed() {
        for most in 0..4 {
            let mut p = Patience::new(most);
            for _ in 0..20 {
                p.paid(1);
                p.slept(1);
                assert!(p.looks() <= most);
            }
        }
    }
}

//! Order in which workers get cores.

use std::collections::HashMap;

/// Cores, by when they were given to a worker last.
#[derive(Debug, Default)]
pub struct Turns {
    given: HashMap<u32, u64>,
    next: u64,
}

impl Turns {
    /// Core with the fewest workers; of several the one that was given longest ago. While workers replace others, which leave meanwhile,
    /// numbers alone would give one core twice.
    pub fn take(&mut self, cores: impl Iterator<Item = u32>, workers: impl Fn(u32) -> usize) -> Option<u32> {
        let core = cores.min_by_key(|core| (workers(*core), self.given.get(core).copied()))?;
        self.given(core);
        Some(core)
    }

    /// A worker has a core, by whoever pinned it.
    pub fn given(&mut self, core: u32) {
        self.given.insert(core, self.next);
        self.next += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four workers come while four others leave, in each order of coming and leaving.
    #[test]
    fn workers_that_replace_others_get_all_cores() {
        const CORES: usize = 4;
        let of_all = |orders: std::ops::Range<u32>, all: fn(u32) -> bool| orders.filter(move |order| all(*order));
        // A bit for each step: one comes, or one leaves. Two bits for each that leaves: its core.
        let steps = || of_all(0..1 << 8, |bits| bits.count_ones() == 4);
        let leaving =
            || of_all(0..1 << 8, |bits| (0..4).fold(0, |seen, at| seen | 1 << (bits >> (2 * at) & 3)) == 0b1111);
        let mut orders = 0;
        for (steps, leaving) in steps().flat_map(|steps| leaving().map(move |leaving| (steps, leaving))) {
            let (mut turns, mut workers, mut left) = (Turns::default(), [0; CORES], 0);
            let mut come = |workers: &mut [usize; CORES]| {
                let core = turns.take(0..CORES as u32, |core| workers[core as usize]).unwrap();
                workers[core as usize] += 1;
            };
            (0..CORES).for_each(|_| come(&mut workers));
            for step in 0..2 * CORES {
                if steps >> step & 1 == 1 {
                    come(&mut workers);
                } else {
                    workers[(leaving >> (2 * left) & 3) as usize] -= 1;
                    left += 1;
                }
            }
            assert_eq!(workers, [1; CORES], "steps {steps:#b}, leaving {leaving:#b}");
            orders += 1;
        }
        assert_eq!(orders, 1680);
    }

    #[test]
    fn cores_that_were_pinned_by_others_count_as_given() {
        let mut turns = Turns::default();
        turns.given(0);
        assert_eq!(turns.take([0, 1].into_iter(), |_| 1), Some(1));
        assert_eq!(turns.take([0, 1].into_iter(), |core| core as usize), Some(0));
        assert_eq!(turns.take([].into_iter(), |_| 1), None);
    }
}

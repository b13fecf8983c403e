//! Shared by all tests: how one is skipped, how much it computes, and how it is run for many seeds.
//!
//! A test that passes says nothing: what it has printed is thrown away. So where `CI=true` says that everything is to be tested,
//! a skip is a failure.

pub mod nic;

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Says that a test, or a part of one, is skipped, and why; fails with `CI=true`.
#[track_caller]
pub fn skip(why: impl Display) {
    eprintln!("SKIPPED: {why}");
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "with CI=true a skip is a failure: {why}");
}

/// The same for what is right to be skipped on some machines of CI, too. Each caller says which those are.
pub fn skip_in_ci_too(why: impl Display) {
    eprintln!("SKIPPED: {why}");
}

/// Amount that the tests compute, by `CORELANE_TESTS`; `gate` where that is not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// `./ci.sh`, and any `cargo test`.
    Gate,
    /// `./ci.sh full`.
    Full,
    /// `./ci.sh long`.
    Long,
}

/// Panics where `CORELANE_TESTS` is none of `gate`, `full` and `long`.
pub fn size() -> Size {
    named_size(std::env::var_os("CORELANE_TESTS").map(|name| name.to_string_lossy().into_owned()).as_deref())
}

fn named_size(name: Option<&str>) -> Size {
    match name {
        None | Some("gate") => Size::Gate,
        Some("full") => Size::Full,
        Some("long") => Size::Long,
        Some(other) => panic!("CORELANE_TESTS is {other:?}, and should be gate, full or long"),
    }
}

/// A number of the gate, or the one of longer runs.
pub fn sized<T>(gate: T, full: T) -> T {
    if size() == Size::Gate { gate } else { full }
}

/// Threads for what computes: one for each core.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Runs a test for `CORELANE_SEEDS` seeds, or as many as `usual`, on so many `threads`; for `CORELANE_SEED` alone, if that is set. What the runs
/// gave, in no order. The first that fails ends the test, and says how it is replayed; `test` is how cargo calls it: `sim --test lossy`.
pub fn seeds<T: Send>(test: &str, usual: u64, threads: usize, run: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    if let Some(seed) = number("CORELANE_SEED") {
        return vec![run(seed)];
    }
    each_seed(test, number("CORELANE_SEEDS").unwrap_or(usual), threads, run)
}

fn each_seed<T: Send>(test: &str, seeds: u64, threads: usize, run: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let next = AtomicU64::new(0);
    let results = Mutex::new(Vec::new());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return;
            }
            match catch_unwind(AssertUnwindSafe(|| run(seed))) {
                Ok(result) => results.lock().expect("nobody panics with it").push(result),
                Err(cause) => {
                    next.store(seeds, Ordering::Relaxed);
                    eprintln!("replay with: CORELANE_SEED={seed} cargo test -p {test}");
                    resume_unwind(cause);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        all.into_iter().for_each(|thread| thread.join().unwrap_or_else(|cause| resume_unwind(cause)));
    });
    results.into_inner().expect("nobody panics with it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_skip_fails_in_ci_and_nowhere_else() {
        // Once more, by itself: as a test that is skipped.
        const SKIPPED: &str = "CORELANE_TEST_SKIPPED";
        if std::env::var_os(SKIPPED).is_some() {
            return skip("there is no moon");
        }
        for (ci, passes) in [(None, true), (Some("false"), true), (Some("true"), false)] {
            let mut test = Command::new(std::env::current_exe().unwrap());
            test.args(["a_skip_fails_in_ci_and_nowhere_else", "--nocapture"]).env_remove("CI").env(SKIPPED, "");
            let out = test.envs(ci.map(|ci| ("CI", ci))).output().unwrap();
            let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
            assert!(said.contains("SKIPPED: there is no moon") && said.contains("running 1 test"), "{said}");
            assert_eq!(out.status.success(), passes, "CI={ci:?}: {said}");
        }
    }

    #[test]
    fn sizes_are_named_and_a_wrong_name_is_refused() {
        assert_eq!(
            [None, Some("gate"), Some("full"), Some("long")].map(named_size),
            [Size::Gate, Size::Gate, Size::Full, Size::Long]
        );
        let cause = catch_unwind(|| named_size(Some("ful"))).unwrap_err();
        assert!(
            cause
                .downcast_ref::<String>()
                .is_some_and(|said| said.contains("\"ful\"") && said.contains("gate, full or long"))
        );
    }

    #[test]
    fn each_seed_is_run_once_and_one_that_fails_ends_it() {
        for threads in [1, 3] {
            let mut all = each_seed("", 100, threads, |seed| seed);
            all.sort_unstable();
            assert_eq!(all, (0..100).collect::<Vec<_>>());
            let runs = AtomicU64::new(0);
            let run = |seed| {
                runs.fetch_add(1, Ordering::Relaxed);
                assert_ne!(seed, 7, "the seventh");
            };
            let cause = catch_unwind(AssertUnwindSafe(|| each_seed("", 100_000_000, threads, run))).unwrap_err();
            assert!(cause.downcast_ref::<String>().is_some_and(|said| said.contains("the seventh")));
            assert!(runs.into_inner() < 10_000_000);
        }
    }
}

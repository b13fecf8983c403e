//! What all tests share: how one is skipped.
//!
//! A test that passes says nothing: what it has printed is thrown away. So where `CI=true` says that everything is to be tested,
//! a skip is a failure.

use std::fmt::Display;

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
}

//! The one line that says what is wrong and what to do.

use std::fmt;
use std::io;

/// Why a command failed: what is wrong, and what the user can do about it.
#[derive(Debug)]
pub struct Failure {
    what: String,
    remedy: String,
    /// The exit code of the command: 2 where the command line is wrong, not the world.
    pub code: u8,
}

impl Failure {
    /// What happened and what to do.
    pub fn new(what: impl fmt::Display, remedy: impl fmt::Display) -> Failure {
        Failure { what: one_line(&what.to_string()), remedy: one_line(&remedy.to_string()), code: 1 }
    }

    /// Options that do not fit together.
    pub fn usage(what: impl fmt::Display, remedy: impl fmt::Display) -> Failure {
        Failure { code: 2, ..Failure::new(what, remedy) }
    }

    /// An error whose own text already says what to do.
    pub fn told(text: impl fmt::Display) -> Failure {
        Failure { what: one_line(&text.to_string()), remedy: String::new(), code: 1 }
    }

    /// A program could not be executed: the exit code is the one that shells give.
    pub fn not_executed(program: impl fmt::Display, error: &io::Error) -> Failure {
        let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
        Failure { code, ..Failure::told(format!("{program}: {}", words(error))) }
    }

    /// A signal ended the command early: the exit code is the one that shells give such a program.
    pub fn interrupted(signal: i32, how_far: impl fmt::Display) -> Failure {
        let code = u8::try_from(128 + signal).unwrap_or(1);
        Failure { code, ..Failure::told(format!("interrupted: {how_far}")) }
    }
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.remedy.as_str() {
            "" => write!(f, "{}", self.what),
            remedy => write!(f, "{}: {remedy}", self.what),
        }
    }
}

/// The plain words of an operating system error, without its number.
pub fn words(error: &io::Error) -> String {
    let text = error.to_string();
    let plain = text.split(" (os error").next().unwrap_or(&text);
    let mut letters = plain.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn always_one_line() {
        let failure = Failure::new("a\nb", "c\n\n d ");
        assert_eq!(failure.to_string(), "a; b: c; d");
        assert_eq!(Failure::told("x\n").to_string(), "x");
        assert_eq!(words(&io::Error::from_raw_os_error(2)), "no such file or directory");
    }
}

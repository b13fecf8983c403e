//! Lines for whoever runs a program: what an errno cannot say.

use std::fmt::Display;
use std::io::Write;

/// A line on standard error, with the library's name; where it cannot be written, nobody reads it. (`eprintln!` would panic.)
pub fn say(library: &str, line: impl Display) {
    let _ = std::io::stderr().write_all(format!("{library}: {line}\n").as_bytes());
}

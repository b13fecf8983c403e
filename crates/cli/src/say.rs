//! What commands say. A reader that has gone (`corelane … | head`) is no reason to panic.

use crate::failure::{Failure, words};
use std::fmt::Display;
use std::io::{self, Write};

/// A line, or several, on standard output.
pub fn say(text: impl Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let said = writeln!(out, "{text}").and_then(|()| out.flush());
    match said {
        // Nobody reads what we say, and what was asked for goes on.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| Failure::told(format!("standard output: {}", words(&error)))),
    }
}

/// Pretty JSON on standard output.
pub fn say_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    say(serde_json::to_string_pretty(value).map_err(Failure::told)?)
}

/// A line on standard error, for whoever reads it.
pub fn tell(text: impl Display) {
    let _ = writeln!(io::stderr(), "corelane: {text}");
}

//! What commands say. A reader that has gone (`corelane … | head`) is no reason to panic.

use crate::failure::{Failure, words};
use crate::log;
use std::fmt::Display;
use std::io::{self, Write};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// For a reader of what a server says.
const PATIENCE: Duration = Duration::from_secs(1);

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

/// A line of a server on standard output: a reader that is there and reads nothing is waited for no longer than a moment.
pub fn say_on(text: impl Display) -> Result<(), Failure> {
    let (text, (done, said)) = (text.to_string(), mpsc::channel());
    let body = move || done.send(say(text)).unwrap_or(());
    thread::Builder::new()
        .name("say".into())
        .spawn(body)
        .map_err(|error| Failure::new(format!("no thread: {error}"), "raise the limit of processes"))?;
    match said.recv_timeout(PATIENCE) {
        Ok(said) => said,
        Err(RecvTimeoutError::Timeout) => {
            tell("standard output takes nothing: going on without it");
            Ok(())
        }
        Err(RecvTimeoutError::Disconnected) => {
            Err(Failure::told("standard output: the thread that writes it has ended"))
        }
    }
}

/// Pretty JSON on standard output.
pub fn say_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    say(serde_json::to_string_pretty(value).map_err(Failure::told)?)
}

/// A line on standard error, for whoever reads it.
pub fn tell(text: impl Display) {
    log::put(format!("corelane: {text}\n"));
}

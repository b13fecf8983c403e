//! The end of a command whose last device is gone: an error and exit code 1, so that a supervisor hears of it.

use crate::failure::Failure;
use crate::log;
use crate::say;
use crate::sys::Stop;
use corelane::Engine;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// What is in flight has no way to go any more: a command that finishes it all the same is ended after this time.
const PATIENCE: Duration = Duration::from_secs(3);

/// Why the devices of an engine are gone, once they are.
pub struct Gone(Arc<Mutex<Option<String>>>);

impl Gone {
    /// Stops a command when the last device of its engine is gone.
    pub fn watch(engine: &Engine, stop: &Stop) -> Gone {
        let why: Arc<Mutex<Option<String>>> = Arc::default();
        let (line, stop) = (why.clone(), stop.clone());
        engine.when_devices_are_gone(move |said| {
            *line.lock().unwrap_or_else(PoisonError::into_inner) = Some(said.to_owned());
            stop.set();
            let failure = Failure::told(said);
            let end = move || {
                thread::sleep(PATIENCE);
                say::tell(&failure);
                log::flush();
                std::process::exit(1);
            };
            // Without a thread the command ends in its own time.
            let _ = thread::Builder::new().name("gone".into()).spawn(end);
        });
        Gone(why)
    }

    /// The failure of a command whose devices are gone.
    pub fn check(&self) -> Result<(), Failure> {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(line) => Err(Failure::told(line)),
            None => Ok(()),
        }
    }
}

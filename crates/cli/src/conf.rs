//! `corelane conf check`.

use crate::device;
use crate::failure::Failure;
use crate::say::say;
use std::path::Path;

/// Checks a configuration file and says what it asks for.
pub fn check(file: &Path, json: bool) -> Result<(), Failure> {
    let name = file.display().to_string();
    let config = device::read_config(file).inspect_err(|failure| {
        if json {
            // The failure itself is told as ever; a program that reads the object need not look for it.
            let _ = say(serde_json::json!({ "file": name, "good": false, "error": failure.to_string() }));
        }
    })?;
    match json {
        true => say(serde_json::json!({ "file": name, "good": true, "engine": device::describe(&config) })),
        false => say(format!("{name}: good ({})", device::describe(&config))),
    }
}

//! `corelane conf check`.

use crate::device;
use crate::failure::{Failure, words};
use crate::say::{say, tell};
use corelane::{Config, ConfigError};
use std::path::Path;

/// Faults told at once.
const MAX_FAULTS: usize = 32;

/// Checks a configuration file and says what it asks for.
pub fn check(file: &Path, json: bool) -> Result<(), Failure> {
    let name = file.display().to_string();
    let refused = |faults: Vec<Failure>| {
        let mut faults = faults;
        if json {
            // The failures themselves are told as ever; a program that reads the object need not look for them.
            let all: Vec<String> = faults.iter().map(Failure::to_string).collect();
            let _ = say(serde_json::json!({ "file": name, "good": false, "error": all.first(), "errors": all }));
        }
        let last = faults.pop().unwrap_or_else(|| Failure::told("no fault"));
        faults.iter().for_each(tell);
        Err(last)
    };
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => {
            let what = format!("{name}: {}", words(&error));
            return refused(vec![Failure::new(what, "give a TOML file that can be read")]);
        }
    };
    let config = match faults(&name, &text) {
        Ok(config) => config,
        Err(faults) => return refused(faults.iter().map(Failure::told).collect()),
    };
    match json {
        true => say(serde_json::json!({ "file": name, "good": true, "engine": device::describe(&config) })),
        false => say(format!("{name}: good ({})", device::describe(&config))),
    }
}

/// The configuration, or what is wrong with it, by line: unknown keys, which change nothing about the rest, and the first
/// fault of another kind, whose consequences would be taken for faults.
fn faults(name: &str, text: &str) -> Result<Config, Vec<ConfigError>> {
    let mut text = text.to_owned();
    let mut faults: Vec<ConfigError> = Vec::new();
    let mut other = false;
    while faults.len() < MAX_FAULTS {
        let fault = match Config::from_toml(name, &text) {
            Ok(config) if faults.is_empty() => return Ok(config),
            Ok(_) => break,
            Err(fault) => fault,
        };
        let is_unknown = fault.message.starts_with("unknown field");
        if other && !is_unknown {
            break;
        }
        other |= !is_unknown;
        let line = text.lines().nth(fault.line.saturating_sub(1)).unwrap_or_default().to_owned();
        let (at, seen) = (fault.line, faults.iter().any(|known| known.line == fault.line));
        if !seen {
            faults.push(fault);
        }
        // The keys of a table without its head would be those of the one before it.
        if seen || line.trim_start().starts_with('[') {
            break;
        }
        let without = |(n, line): (usize, &str)| if n + 1 == at { String::new() } else { line.to_owned() };
        text = text.lines().enumerate().map(without).collect::<Vec<_>>().join("\n");
        // A value of several lines leaves its rest, and a fault of syntax everything.
        if text.parse::<toml::Table>().is_err() {
            break;
        }
    }
    faults.sort_by_key(|fault| fault.line);
    Err(faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Vec<String> {
        let told =
            |fault: &ConfigError| format!("{}: {}", fault.line, fault.message.split([',', ':']).next().unwrap_or(""));
        faults("c.toml", text).map_or_else(|faults| faults.iter().map(told).collect(), |_| Vec::new())
    }

    #[test]
    fn an_unknown_key_does_not_hide_the_rest() {
        assert_eq!(told("lanes = 2\n"), Vec::<String>::new());
        assert_eq!(
            told("lanez = 2\nlanes = \"x\"\nspin = 1\n[tcp]\nsack = true\nsock = 1\n"),
            ["1: unknown field `lanez`", "2: invalid type", "3: unknown field `spin`", "6: unknown field `sock`"]
        );
        assert_eq!(told("lanez = 2\nlanes = 0\n"), ["1: unknown field `lanez`", "2: lanes is 0"]);
        // What follows from a fault is none.
        assert_eq!(told("[[ports]]\ndevice = \"eth0\"\n"), ["2: device \"eth0\""]);
        assert_eq!(told("[[portz]]\ndevice = \"tap:t\"\n"), ["1: unknown field `portz`"]);
        assert_eq!(told("corez = [\n1,\n]\nlanes = 0\n"), ["1: unknown field `corez`"]);
    }
}

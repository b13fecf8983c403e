//! Receive rules of a NIC, by which frames to a core's ports come to its queue (Fastsocket 3.3, by Flow Director's perfect filters).

use crate::failure::words;
use crate::machine::Machine;
use ::io::filters::{self, Filters, Rule};
use std::io;

/// Rules of an interface. They are known again by what they say: places of rules are the driver's business.
#[derive(Debug)]
pub struct Steering {
    filters: Filters,
    /// Rules that are to be inserted, then those that are.
    rules: Vec<Rule>,
}

impl Steering {
    /// None where the driver has no rules by range of ports, or there is nothing to insert. Rules that are there already are somebody
    /// else's, and are left out. Fails with why there can be none.
    pub fn new(machine: &Machine, interface: &str, mut rules: Vec<Rule>) -> Result<Option<Steering>, String> {
        if rules.is_empty() || !filters::take_ranges(machine.root(), interface) {
            return Ok(None);
        }
        let failed = |error: io::Error| words(&error);
        let mut filters = machine.filters(interface).map_err(failed)?;
        if !filters.are_on().map_err(failed)? {
            return Err(format!("they are off: ethtool -K {interface} ntuple on"));
        }
        let there = filters.rules().map_err(failed)?;
        rules.retain(|rule| !there.iter().any(|(_, other)| other == rule));
        Ok(Some(Steering { filters, rules }))
    }

    /// Rules as they are written down.
    pub fn written(&self) -> Vec<String> {
        self.rules.iter().map(Rule::to_string).collect()
    }

    /// Inserts those of which `is` says so. Returns a line where not all are taken: frames of the others are handed over by the XDP
    /// program.
    pub fn insert(&mut self, is: impl Fn(&Rule) -> bool) -> Option<String> {
        let all = self.rules.len();
        self.rules.retain(is);
        let left = all - self.rules.len();
        let (taken, error) = self.filters.insert(&self.rules);
        self.rules.truncate(taken);
        let why = match error {
            Some(error) => words(&error),
            None if left > 0 => "interrupts of their queues stay on other cores".into(),
            None => return None,
        };
        Some(format!("{} of {all} rules by port not made: {why}", all - taken))
    }

    /// Number of rules.
    pub fn rules(&self) -> usize {
        self.rules.len()
    }

    /// Removes the rules of a port.
    pub fn listens(&mut self, port: u16) {
        if self.rules.iter().any(|rule| rule.ports().contains(&port)) {
            let rules = &self.rules;
            let removed = self.filters.remove(|rule| rule.ports().contains(&port) && rules.contains(rule));
            // Those that could not be removed go at the end.
            if removed.is_ok() {
                self.rules.retain(|rule| !rule.ports().contains(&port));
            }
        }
    }

    /// Removes all.
    pub fn end(mut self) -> io::Result<()> {
        self.filters.remove(|rule| self.rules.contains(rule)).map(drop)
    }
}

/// Removes rules that were written down. Returns the number of those that were there.
pub fn remove(machine: &Machine, interface: &str, written: &[String]) -> io::Result<usize> {
    let rules: Vec<Rule> = written.iter().filter_map(|rule| rule.parse().ok()).collect();
    if rules.is_empty() {
        return Ok(0);
    }
    machine.filters(interface)?.remove(|rule| rules.contains(rule))
}

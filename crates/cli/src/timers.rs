//! Timeouts of connections: one list for each length of time.
//!
//! All entries of a list wait equally long, so a list that is appended to stays sorted: setting, moving and cancelling
//! are O(1), and expiry looks at heads only.

use std::time::{Duration, Instant};

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Node {
    list: u8,
    previous: u32,
    next: u32,
    due: Instant,
}

struct List {
    after: Duration,
    head: u32,
    tail: u32,
}

/// Timeouts for connections named by small numbers, each in at most one list.
pub struct Timers {
    lists: Vec<List>,
    nodes: Vec<Option<Node>>,
}

impl Timers {
    /// Lists that fire after these times; a list is named by its place.
    pub fn new(after: &[Duration]) -> Timers {
        let list = |&after: &Duration| List { after, head: NONE, tail: NONE };
        Timers { lists: after.iter().map(list).collect(), nodes: Vec::new() }
    }

    /// Starts or restarts a connection's timeout in a list, leaving any other.
    pub fn set(&mut self, id: u32, list: u8, now: Instant) {
        self.cancel(id);
        let index = id as usize;
        if self.nodes.len() <= index {
            self.nodes.resize(index + 1, None);
        }
        let ends = &mut self.lists[usize::from(list)];
        let due = now + ends.after;
        self.nodes[index] = Some(Node { list, previous: ends.tail, next: NONE, due });
        match std::mem::replace(&mut ends.tail, id) {
            NONE => ends.head = id,
            last => {
                if let Some(node) = self.nodes[last as usize].as_mut() {
                    node.next = id;
                }
            }
        }
    }

    /// The list a connection waits in.
    pub fn list_of(&self, id: u32) -> Option<u8> {
        self.nodes.get(id as usize)?.as_ref().map(|node| node.list)
    }

    /// The connection whose timeout in a list was set before those of all others.
    pub fn oldest(&self, list: u8) -> Option<u32> {
        Some(self.lists[usize::from(list)].head).filter(|id| *id != NONE)
    }

    /// Stops a connection's timeout.
    pub fn cancel(&mut self, id: u32) {
        let Some(node) = self.nodes.get_mut(id as usize).and_then(Option::take) else { return };
        let neighbour = |nodes: &mut Vec<Option<Node>>, at: u32| nodes[at as usize];
        let list = &mut self.lists[usize::from(node.list)];
        match node.previous {
            NONE => list.head = node.next,
            at => {
                if let Some(mut before) = neighbour(&mut self.nodes, at) {
                    before.next = node.next;
                    self.nodes[at as usize] = Some(before);
                }
            }
        }
        match node.next {
            NONE => list.tail = node.previous,
            at => {
                if let Some(mut after) = neighbour(&mut self.nodes, at) {
                    after.previous = node.previous;
                    self.nodes[at as usize] = Some(after);
                }
            }
        }
    }

    /// Takes one timeout that is due: the connection and its list.
    pub fn expire(&mut self, now: Instant) -> Option<(u32, u8)> {
        for (index, list) in self.lists.iter().enumerate() {
            let id = list.head;
            if let Some(node) = self.nodes.get(id as usize).copied().flatten()
                && node.due <= now
            {
                self.cancel(id);
                return Some((id, index as u8));
            }
        }
        None
    }

    /// When the next one is due.
    pub fn next_due(&self) -> Option<Instant> {
        let head = |list: &List| self.nodes.get(list.head as usize).copied().flatten().map(|node| node.due);
        self.lists.iter().filter_map(head).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a map from id to (list, due).
        #[test]
        fn they_fire_as_a_model_does(ops in prop::collection::vec((0u32..8, 0u8..4, 0u64..5), 1..200)) {
            let after = [Duration::from_secs(3), Duration::from_secs(7)];
            let start = Instant::now();
            let (mut timers, mut model, mut now) = (Timers::new(&after), std::collections::BTreeMap::new(), start);
            for (id, what, pass) in ops {
                match what {
                    list @ 0..2 => {
                        timers.set(id, list, now);
                        model.insert(id, (list, now + after[usize::from(list)]));
                    }
                    2 => {
                        timers.cancel(id);
                        model.remove(&id);
                    }
                    _ => now += Duration::from_secs(pass),
                }
                prop_assert_eq!(timers.next_due(), model.values().map(|(_, due)| *due).min());
                while let Some((id, list)) = timers.expire(now) {
                    let (expected, due) = model.remove(&id).expect("it was set");
                    prop_assert!(expected == list && due <= now);
                }
                prop_assert!(model.values().all(|(_, due)| *due > now));
                for id in 0..8 {
                    prop_assert_eq!(timers.list_of(id), model.get(&id).map(|(list, _)| *list));
                }
                for list in 0..2 {
                    let first = model.values().filter(|(of, _)| *of == list).map(|(_, due)| *due).min();
                    let oldest = timers.oldest(list);
                    prop_assert_eq!(oldest.map(|id| model[&id]), first.map(|due| (list, due)));
                }
            }
        }
    }
}

//! The list of known differences: a table of `docs/http-differences.md`, which tests read.

use super::feature::{Case, Feature};
use std::sync::atomic::{AtomicBool, Ordering};

const DOCUMENT: &str = include_str!("../../../../../docs/http-differences.md");

/// A row: in cases with all of `features`, `aspect` is `theirs` there and `ours` here; "any" is whatever it may be.
struct Row {
    /// Titles; one that ends in `: any` is of every feature of its group.
    features: Vec<&'static str>,
    aspect: &'static str,
    theirs: &'static str,
    ours: &'static str,
    /// Seen, or one of those that a run may not show: its reason begins with "at times".
    seen: AtomicBool,
}

/// Title of a case with no feature at all.
pub const ORDINARY: &str = "nothing odd";

fn is_of<T>(title: &str, feature: &Feature<T>) -> bool {
    match title.strip_suffix(": any") {
        Some(group) => feature.group == group,
        None => feature.title() == title,
    }
}

/// Rows below one heading.
pub struct List(Vec<Row>);

/// Something that two programs do differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub aspect: String,
    pub theirs: String,
    pub ours: String,
}

impl List {
    /// The table below `## heading`. Panics where a row has no reason.
    pub fn below(heading: &str) -> List {
        let mut rows = Vec::new();
        let section = DOCUMENT.split("\n## ").find(|section| section.lines().next() == Some(heading));
        let section = section.unwrap_or_else(|| panic!("docs/http-differences.md has no section {heading}"));
        for line in section.lines().filter(|line| line.starts_with("| ")).skip(1) {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [features, aspect, theirs, ours, reason] = cells[..] else { panic!("five cells: {line}") };
            assert!(!reason.is_empty(), "a difference without a reason: {line}");
            let features = features.split(" + ").collect();
            rows.push(Row { features, aspect, theirs, ours, seen: AtomicBool::new(reason.starts_with("at times")) });
        }
        List(rows)
    }

    /// Cases of the rows themselves, with every oddity of a group where they say "any". Panics where a row names one that there is not.
    pub fn cases<T>(&self, table: &[Feature<T>]) -> Vec<Case> {
        let mut cases = Vec::new();
        for row in &self.0 {
            let mut all = vec![Case(Vec::new())];
            for title in row.features.iter().filter(|title| **title != ORDINARY) {
                let places: Vec<usize> = (0..table.len()).filter(|&at| is_of(title, &table[at])).collect();
                assert!(!places.is_empty(), "no feature {title}");
                all = all.iter().flat_map(|case| places.iter().map(|&at| case.with(at))).collect();
            }
            cases.extend(all);
        }
        cases
    }

    /// Says if a difference is on the list.
    pub fn explains<T>(&self, case: &Case, table: &[Feature<T>], difference: &Difference) -> bool {
        let has = |title: &str| title == ORDINARY || case.0.iter().any(|&at| is_of(title, &table[at]));
        let mut known = false;
        for row in &self.0 {
            let is = |cell: &str, value: &str| cell == "any" || cell == value;
            let same =
                row.aspect == difference.aspect && is(row.theirs, &difference.theirs) && is(row.ours, &difference.ours);
            if same && row.features.iter().all(|title| has(title)) {
                row.seen.store(true, Ordering::Relaxed);
                known = true;
            }
        }
        known
    }

    /// Rows that no case has shown.
    pub fn stale(&self) -> Vec<String> {
        let unseen = self.0.iter().filter(|row| !row.seen.load(Ordering::Relaxed));
        unseen
            .map(|row| format!("{} | {} | {} | {}", row.features.join(" + "), row.aspect, row.theirs, row.ours))
            .collect()
    }
}

/// A case with as few features as still show the difference.
pub fn shrink(case: &Case, difference: &Difference, differences: impl Fn(&Case) -> Vec<Difference>) -> Case {
    let mut least = case.clone();
    let mut at = 0;
    while at < least.0.len() {
        let mut fewer = least.clone();
        fewer.0.remove(at);
        if differences(&fewer).contains(difference) {
            least = fewer;
        } else {
            at += 1;
        }
    }
    least
}

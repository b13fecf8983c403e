//! docs/conformance.md against the tree: nothing is missing, and what it names exists.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The RFCs that must have a table, with something in it.
const CLAIMED: [u32; 37] = [
    1191, 1337, 2018, 2883, 3042, 3168, 4821, 4861, 4862, 4987, 5227, 5482, 5681, 5682, 5722, 5927, 5961, 6056, 6093,
    6191, 6298, 6528, 6582, 6675, 6928, 6937, 6946, 6980, 7323, 7661, 8200, 8201, 8899, 8985, 9293, 9406, 9438,
];

/// The last number of each kind in appendix B of RFC 9293; none is left out there.
const NUMBERED: [(&str, u32); 4] = [("MUST", 69), ("SHLD", 31), ("MAY", 18), ("REC", 1)];

/// A row of a table: its id, and what shows it.
struct Row {
    line: usize,
    /// The RFC of its section.
    rfc: u32,
    id: String,
    shown: String,
}

/// Every row; a line of a table that is none is a fault.
fn rows(text: &str, faults: &mut Vec<String>) -> Vec<Row> {
    let mut rfc = 0;
    let mut columns = 0;
    let mut rows = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if let Some(title) = line.strip_prefix("## ") {
            let number = title.strip_prefix("RFC ").and_then(|t| t.split(',').next()?.parse().ok());
            rfc = number.unwrap_or(0);
            columns = 0;
        }
        if !line.starts_with('|') {
            continue;
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if cells[0] == "id" {
            columns = cells.len();
            continue;
        }
        if columns == 0 || cells.iter().all(|c| c.chars().all(|c| c == '-')) {
            continue;
        }
        if cells.len() != columns || cells.iter().any(|c| c.is_empty()) {
            faults.push(format!("line {}: a row of {} cells in a table of {columns}", i + 1, cells.len()));
            continue;
        }
        rows.push(Row { line: i + 1, rfc, id: cells[0].into(), shown: cells[columns - 1].into() });
    }
    rows
}

/// What stands between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// What is known of something that a row names.
enum Found {
    Yes,
    /// There, and not run.
    Ignored,
    No(String),
}

fn find(name: &str) -> Found {
    let Some((file, test)) = name.split_once("::") else {
        // A script, or a word of the reason.
        return match !name.contains('/') || root().join(name).is_file() {
            true => Found::Yes,
            false => Found::No(format!("no file {name}")),
        };
    };
    let places = [root().join("crates/tcp/tests").join(file), root().join("crates").join(file)];
    let Some(text) = places.iter().find_map(|p| fs::read_to_string(p).ok()) else {
        return Found::No(format!("no file {file}"));
    };
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let Some(at) = lines.iter().position(|l| l.starts_with(&format!("fn {test}("))) else {
        return Found::No(format!("no function {test} in {file}"));
    };
    // Its attributes, as far as they and its comment reach.
    let above = || lines[..at].iter().rev().take_while(|l| l.starts_with("#[") || l.starts_with("//"));
    match (above().any(|l| *l == "#[test]"), above().any(|l| l.starts_with("#[ignore"))) {
        (false, _) => Found::No(format!("{test} in {file} is no test")),
        (true, true) => Found::Ignored,
        (true, false) => Found::Yes,
    }
}

#[test]
fn every_requirement_is_shown_or_explained() {
    let text = fs::read_to_string(root().join("docs/conformance.md")).expect("docs/conformance.md");
    let mut faults = Vec::new();
    let mut seen = BTreeMap::new();
    let rows = rows(&text, &mut faults);
    for Row { line, rfc, id, shown } in &rows {
        if let Some(earlier) = seen.insert(id.clone(), *line) {
            faults.push(format!("line {line}: {id} stands in line {earlier} as well"));
        }
        // Google's suite and the differential have tables of their own kind.
        let own = match rfc {
            0 => continue,
            9293 => NUMBERED.iter().any(|(kind, _)| id.starts_with(&format!("{kind}-"))),
            n => id.starts_with(&format!("{n}-")),
        };
        if !own {
            faults.push(format!("line {line}: {id} is no id of RFC {rfc}"));
        }
        if shown.split(|c: char| !c.is_alphanumeric()).any(|w| w == "todo") {
            faults.push(format!("line {line}: {id} is still to be done"));
        }
        for name in quoted(shown) {
            match find(name) {
                Found::Yes => {}
                Found::Ignored => faults.push(format!("line {line}: {id}: {name} is not run")),
                Found::No(why) => faults.push(format!("line {line}: {id}: {why}")),
            }
        }
        // Something is named, or something is said.
        let said: usize = shown.split('`').step_by(2).map(str::len).sum();
        if !quoted(shown).any(|n| n.contains("::") || n.ends_with(".pkt")) && said <= 20 {
            faults.push(format!("line {line}: {id} neither names a test nor gives a reason"));
        }
    }
    for (kind, last) in NUMBERED {
        for n in 1..=last {
            if !seen.contains_key(&format!("{kind}-{n}")) {
                faults.push(format!("{kind}-{n} of RFC 9293 is missing"));
            }
        }
        if seen.contains_key(&format!("{kind}-{}", last + 1)) {
            faults.push(format!("RFC 9293 has no {kind}-{}", last + 1));
        }
    }
    for rfc in CLAIMED {
        if !rows.iter().any(|r| r.rfc == rfc) {
            faults.push(format!("nothing is said of RFC {rfc}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

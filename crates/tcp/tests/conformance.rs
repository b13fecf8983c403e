//! docs/conformance.md against the tree: nothing is missing, and what it names exists.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A row of a table: its id, and what shows it.
struct Row {
    line: usize,
    id: String,
    shown: String,
}

fn rows(text: &str) -> Vec<Row> {
    text.lines()
        .enumerate()
        .filter_map(|(i, line)| {
            let cells: Vec<&str> = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect();
            let (id, shown) = (*cells.first()?, *cells.last()?);
            (id != "id").then(|| Row { line: i + 1, id: id.into(), shown: shown.into() })
        })
        .collect()
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
        return match !name.ends_with(".pkt") || root().join(name).is_file() {
            true => Found::Yes,
            false => Found::No(format!("no script {name}")),
        };
    };
    let places = [root().join("crates/tcp/tests").join(file), root().join("crates").join(file)];
    let Some(text) = places.iter().find_map(|p| fs::read_to_string(p).ok()) else {
        return Found::No(format!("no file {file}"));
    };
    // The attribute is the last one before the function, with no other function in between.
    let function = text.find(&format!("fn {test}("));
    let attribute = function.and_then(|at| text[..at].rfind("#[test]").filter(|a| !text[*a..at].contains("fn ")));
    match attribute {
        None => Found::No(format!("no test {test} in {file}")),
        Some(a) if text[..a].trim_end().lines().last().is_some_and(|l| l.starts_with("#[ignore")) => Found::Ignored,
        Some(_) => Found::Yes,
    }
}

#[test]
fn every_requirement_is_shown_or_explained() {
    let text = fs::read_to_string(root().join("docs/conformance.md")).expect("docs/conformance.md");
    let mut faults = Vec::new();
    let mut seen = BTreeMap::new();
    let mut todo = Vec::new();
    let rows = rows(&text);
    for Row { line, id, shown } in &rows {
        if let Some(earlier) = seen.insert(id.clone(), *line) {
            faults.push(format!("line {line}: {id} stands in line {earlier} as well"));
        }
        let mut open = shown.split(|c: char| !c.is_alphanumeric()).any(|w| w == "todo");
        for name in quoted(shown) {
            match find(name) {
                Found::Yes => {}
                Found::Ignored => open = true,
                Found::No(why) => faults.push(format!("line {line}: {id}: {why}")),
            }
        }
        // Something is named, or something is said.
        let explained = quoted(shown).any(|n| n.contains("::") || n.ends_with(".pkt")) || shown.len() > 20;
        if open {
            todo.push(id.as_str());
        } else if !explained {
            faults.push(format!("line {line}: {id} neither names a test nor gives a reason"));
        }
    }
    // Appendix B of RFC 9293.
    for (kind, last) in [("MUST", 69), ("SHLD", 31), ("MAY", 18), ("REC", 1)] {
        for n in 1..=last {
            if !seen.contains_key(&format!("{kind}-{n}")) {
                faults.push(format!("{kind}-{n} of RFC 9293 is missing"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    println!("{} of {} requirements are still to be shown: {}", todo.len(), rows.len(), todo.join(" "));
    if std::env::var_os("CORELANE_NO_TODO").is_some() {
        assert!(todo.is_empty(), "{} requirements are still to be shown", todo.len());
    }
}

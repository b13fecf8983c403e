//! docs/mtcp.md against the tree: every defect of the original names tests, and they exist.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What is wrong with a name, if anything.
fn fault(name: &str) -> Option<String> {
    let (file, test) = name.split_once("::")?;
    let Ok(text) = fs::read_to_string(root().join("crates").join(file)) else {
        return Some(format!("no file {file}"));
    };
    if file.ends_with(".c") {
        // It is there, and it is run.
        let there = text.contains(&format!("static void {test}(void)")) && text.contains(&format!("RUN({test});"));
        return (!there).then(|| format!("no test {test} in {file}"));
    }
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let Some(at) = lines.iter().position(|l| l.starts_with(&format!("fn {test}("))) else {
        return Some(format!("no function {test} in {file}"));
    };
    // loom's models are run by its own harness inside a test of the same file.
    let above = lines[..at].iter().rev().take_while(|l| l.starts_with("#[") || l.starts_with("//"));
    let runs = above.clone().any(|l| *l == "#[test]") && !above.clone().any(|l| l.starts_with("#[ignore"));
    (!runs).then(|| format!("{test} in {file} is not run"))
}

#[test]
fn every_defect_names_tests_that_exist() {
    let text = fs::read_to_string(root().join("docs/mtcp.md")).expect("docs/mtcp.md");
    let table = text.split("## Defects of the original").nth(1).expect("the table");
    let mut faults = Vec::new();
    let mut rows = 0;
    for line in table.lines().filter(|l| l.starts_with("| ") && !l.starts_with("| defect")) {
        rows += 1;
        let names: Vec<&str> = line.split('`').skip(1).step_by(2).filter(|n| n.contains("::")).collect();
        if names.is_empty() {
            faults.push(format!("no test: {line}"));
        }
        faults.extend(names.iter().filter_map(|name| fault(name)));
    }
    assert!(rows >= 25, "{rows} rows");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

//! Every script in `tests/dialogue` holds to the microsecond, over IPv4 and IPv6, and twice alike.

use std::path::{Path, PathBuf};

use pkt::{Defines, Report, Under, Verdict, run};

fn scripts(folder: &Path, into: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            scripts(&path, into);
        } else if path.extension().is_some_and(|e| e == "pkt") {
            into.push(path);
        }
    }
    into.sort();
}

/// Runs a script over both versions of IP, or over the one that its name ends with. IPv6's header is longer by 20 bytes, and
/// so is its MTU here: the same segments fit.
fn both(path: &Path, given: &[(&str, Option<&str>)]) -> Vec<Report> {
    let text = std::fs::read_to_string(path).unwrap();
    let name = path.to_string_lossy();
    let versions = [("v6.pkt", "ipv4", "1500"), ("v4.pkt", "ipv6", "1520")];
    let wanted = versions.into_iter().filter(|(other, ..)| !name.ends_with(other));
    let one = |(_, version, mtu)| {
        let mut options = vec![("ip_version", Some(version)), ("mtu", Some(mtu))];
        options.extend(given);
        run(&name, &text, &options, &Defines::new(), Under::Stack)
    };
    wanted.map(one).collect()
}

#[test]
fn dialogues_hold() {
    let mut paths = Vec::new();
    scripts(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/dialogue"), &mut paths);
    assert!(paths.len() >= 40, "{} scripts", paths.len());
    let mut failures = Vec::new();
    for path in &paths {
        let reports = both(path, &[("exact", None)]);
        failures.extend(reports.iter().filter(|r| r.verdict != Verdict::Pass).map(Report::line));
        for (first, again) in reports.iter().zip(both(path, &[("exact", None)])) {
            assert_eq!(first.line(), again.line());
        }
    }
    assert!(failures.is_empty(), "\n{}\n", failures.join("\n"));
}

/// A folder of other scripts, when `CORELANE_PKT_SUITE` names one: whatever the verdicts are, they are the same each time.
#[test]
fn another_suite_is_judged_alike_each_time() {
    let Some(folder) = std::env::var_os("CORELANE_PKT_SUITE") else { return };
    let mut paths = Vec::new();
    scripts(Path::new(&folder), &mut paths);
    for path in &paths {
        let (first, again) = (both(path, &[]), both(path, &[]));
        for (first, again) in first.iter().zip(&again) {
            println!("{}", first.line());
            assert_eq!(first.line(), again.line());
        }
    }
}

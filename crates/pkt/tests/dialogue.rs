//! Every script in `tests/dialogue` holds to the microsecond, over each version of IP, and twice alike.

use std::path::{Path, PathBuf};

use pkt::ast::Script;
use pkt::{Defines, Report, Under, Verdict, parse, run};

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

/// Runs a script over IPv4, IPv6, and IPv4 with sockets of IPv6, or over what it asks for itself. IPv6's header is longer by
/// 20 bytes, and so is its MTU here: the same segments fit.
fn each(path: &Path, given: &[(&str, Option<&str>)]) -> Vec<Report> {
    let text = std::fs::read_to_string(path).unwrap();
    let name = path.to_string_lossy();
    let one = |options: &[(&str, Option<&str>)]| {
        let options: Vec<_> = options.iter().chain(given).copied().collect();
        run(&name, &text, &options, &Defines::new(), Under::Stack)
    };
    let particular = |script: Script| script.options.iter().any(|(_, name, _)| name == "ip_version");
    if parse(&text, &Defines::new()).is_ok_and(particular) {
        return vec![one(&[])];
    }
    [("ipv4", "1500"), ("ipv4-mapped-ipv6", "1500"), ("ipv6", "1520")]
        .map(|(version, mtu)| one(&[("ip_version", Some(version)), ("mtu", Some(mtu))]))
        .into()
}

#[test]
fn dialogues_hold() {
    let mut paths = Vec::new();
    scripts(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/dialogue"), &mut paths);
    assert!(paths.len() >= 40, "{} scripts", paths.len());
    let mut failures = Vec::new();
    for path in &paths {
        let reports = each(path, &[("exact", None)]);
        failures.extend(reports.iter().filter(|r| r.verdict != Verdict::Pass).map(Report::line));
        for (first, again) in reports.iter().zip(each(path, &[("exact", None)])) {
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
        let (first, again) = (each(path, &[]), each(path, &[]));
        for (first, again) in first.iter().zip(&again) {
            println!("{}", first.line());
            assert_eq!(first.line(), again.line());
        }
    }
}

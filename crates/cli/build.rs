//! The version that `corelane --version` and reports show: the package's, and the commit where it is known.

use std::process::Command;

/// What git says; nothing outside a repository, or without git.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // For packagers, who build from an archive.
    println!("cargo:rerun-if-env-changed=CORELANE_COMMIT");
    let given = std::env::var("CORELANE_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(|| {
        // Changes with every commit, check-out and reset.
        if let Some(log) =
            git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|log| std::path::Path::new(log).exists())
        {
            println!("cargo:rerun-if-changed={log}");
        }
        git(&["rev-parse", "--short=12", "HEAD"])
    });
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let version = commit.map_or_else(|| version.clone(), |commit| format!("{version} ({commit})"));
    println!("cargo:rustc-env=CORELANE_VERSION={version}");
}

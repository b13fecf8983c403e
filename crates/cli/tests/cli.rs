//! The command line as scripts see it: exit codes, one line for each error, and what goes where.

use snapbox::cmd::{Command, OutputAssert, cargo_bin};
use snapbox::str;

fn corelane(arguments: &[&str]) -> OutputAssert {
    Command::new(cargo_bin!("corelane")).args(arguments).assert()
}

/// A failure is one line on standard error, nothing on standard output, exit code 1.
fn fails(arguments: &[&str], line: impl snapbox::IntoData) {
    corelane(arguments).code(1).stdout_eq("").stderr_eq(line);
}

/// A mistake on the command line: exit code 2.
fn misused(arguments: &[&str], said: impl snapbox::IntoData) {
    corelane(arguments).code(2).stdout_eq("").stderr_eq(said);
}

#[test]
fn help_names_every_command() {
    corelane(&["--help"]).success().stderr_eq("").stdout_eq(str![[r#"
A TCP stack that runs in your process: one lane, one core, one NIC queue

Usage: corelane <COMMAND>

Commands:
  demo   Compare corelane with the Linux kernel on this machine: no root, no NIC
  serve  Serve a directory over HTTP/1.1
  load   Load a web server and measure it
  run    Run an unmodified program, each of its workers with the connections of its own core
  tune   Give the workers of a program that runs already the connections of their own core
  bench  Measure this stack and the kernel's on the same wire: the papers' experiments
  lab    Two network namespaces joined by a veth, to try everything on one machine
  conf   Look at configuration files

Options:
  -h, --help     Print help
  -V, --version  Print version

"#]]);
    for command in ["demo", "serve", "load", "run", "tune", "bench", "lab", "conf"] {
        corelane(&[command, "--help"]).success().stderr_eq("");
    }
    corelane(&[]).code(2);
}

/// A report of a fault tells which commit it is about.
#[test]
fn the_version_names_the_commit() {
    let output = Command::new(cargo_bin!("corelane")).arg("--version").output().expect("it runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let version = text.trim_end().strip_prefix("corelane ").expect("its name");
    let git = std::process::Command::new("git").args(["rev-parse", "HEAD"]).output();
    match git.ok().filter(|git| git.status.success()) {
        Some(_) => {
            let (number, commit) = version.split_once(" (").expect("a commit");
            assert_eq!(number, env!("CARGO_PKG_VERSION"));
            let commit = commit.strip_suffix(')').expect("in brackets");
            assert!(commit.len() >= 12 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()), "{version}");
        }
        // From an archive.
        None => assert!(version.starts_with(env!("CARGO_PKG_VERSION")), "{version}"),
    }
}

#[test]
fn mistakes_are_usage_errors() {
    misused(
        &["fly"],
        str![[r#"
error: unrecognized subcommand 'fly'

Usage: corelane <COMMAND>

For more information, try '--help'.

"#]],
    );
    for arguments in [
        ["serve"].as_slice(),
        &["serve", ".", "--dev", "eth0"],
        &["serve", ".", "--dev", "xdp:eth0", "--port", "0"],
        &["serve", ".", "--dev", "xdp:eth0", "--message", "4"],
        &["serve", ".", "--dev", "tap:t", "--addr", "10.0.0.2"],
        &["load", "https://10.0.0.1/", "--dev", "xdp:eth0"],
        &["load", "http://10.0.0.1/"],
        &["load", "http://fd99::2/", "--dev", "xdp:eth0"],
        &["serve", ".", "--kernel", "--addr", "10.0.0.2/24"],
        &["serve", ".", "--kernel=fast"],
        &["serve", "--reset", "--message", "64", "--kernel"],
        &["load", "http://10.0.0.1/", "--dev", "xdp:eth0", "-n", "5", "--warm-up", "1"],
        &["load", "http://10.0.0.1/", "--dev", "xdp:eth0", "--hold", "--rate", "5"],
        &["bench"],
        &["bench", "fig9"],
        &["bench", "fig7a", "--wire", "air"],
        &["bench", "fig7a", "--system", "plan9"],
        &["bench", "fig7a", "--rounds", "0"],
        &["demo", "--seconds", "0"],
        &["demo", "--loss", "99"],
        &["lab"],
        &["conf", "check"],
    ] {
        let output = Command::new(cargo_bin!("corelane")).args(arguments).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn options_that_do_not_fit_say_so_in_a_line() {
    misused(
        &["serve", ".", "--dev", "xdp:a", "--lanes", "2", "--cores", "0"],
        "corelane: 1 cores for 2 lanes: expected one each: see corelane serve --help\n",
    );
    misused(
        &["serve", ".", "--dev", "tap:a", "--dev", "tap:b", "--addr", "10.0.0.2/24"],
        "corelane: --addr and --gateway are for one device: write several into --config FILE\n",
    );
}

#[test]
fn errors_say_what_is_wrong_and_what_to_do() {
    fails(
        &["serve", "/nonexistent", "--dev", "tap:t"],
        "corelane: /nonexistent: no such file or directory: name a directory that exists\n",
    );
    fails(
        &["serve", "/dev/null", "--dev", "tap:t"],
        "corelane: /dev/null: not a directory: name a directory that exists\n",
    );
    fails(
        &["serve", ".", "--config", "/nonexistent.toml"],
        "corelane: /nonexistent.toml: no such file or directory: give a TOML file that can be read\n",
    );
}

/// No device leads to the loopback, so there is nothing to time out.
#[test]
fn a_load_of_the_loopback_over_a_device_is_refused() {
    for (url, addr) in [("http://127.0.0.1:8080/", "127.0.0.1"), ("http://[::1]/", "::1")] {
        misused(
            &["load", url, "--dev", "tap:corelane-none", "--addr", "10.98.0.2/24"],
            format!(
                "corelane: {addr} is this machine's own loopback, to which no device leads: give the address of a server on the \
                 device's link, as in http://10.99.0.2/\n"
            ),
        );
    }
}

/// Before any device is opened, so nobody needs to be root for it.
#[test]
fn cores_that_are_not_there_are_refused() {
    let device = ["--dev", "tap:corelane-none", "--addr", "10.98.0.2/24"];
    let arguments: Vec<_> = ["serve", "."].iter().chain(&device).chain(&["--cores", "0,1023"]).copied().collect();
    fails(
        &arguments,
        str![[r#"
corelane: core 1023: this process may use [..] (--cores, or `cores` of the configuration)

"#]],
    );
}

#[test]
fn configurations_are_checked_by_line() {
    let dir = std::env::temp_dir().join(format!("corelane-cli-conf-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let file = dir.join("lanes.toml");
    let path = file.to_str().expect("a plain path");
    std::fs::write(&file, "lanes = 2\nmodel = \"paired\"\n[[ports]]\ndevice = \"xdp:eth0\"\n").expect("a file");
    let good = format!("{path}: good (xdp:eth0, 2 lanes, paired)\n");
    corelane(&["conf", "check", path]).success().stderr_eq("").stdout_eq(good);
    let good = format!("{{\"engine\":\"xdp:eth0, 2 lanes, paired\",\"file\":\"{path}\",\"good\":true}}\n");
    corelane(&["conf", "check", path, "--json"]).success().stderr_eq("").stdout_eq(good);
    std::fs::write(&file, "").expect("a file");
    corelane(&["conf", "check", path]).success().stdout_eq(format!("{path}: good (no device, 1 lane, inline)\n"));
    std::fs::write(&file, "lanes = 2\n\n[[ports]]\ndevice = \"eth0\"\n").expect("a file");
    fails(&["conf", "check", path], format!("corelane: {path}:4:10: device \"eth0\": expected [..]\n"));
    std::fs::write(&file, "lanes = 2\nlanez = 3\n").expect("a file");
    fails(&["conf", "check", path], format!("corelane: {path}:2:1: unknown field `lanez`[..]\n"));
    std::fs::write(&file, "lanez = 3\nlanes = 0\n").expect("a file");
    fails(
        &["conf", "check", path],
        format!(
            "corelane: {path}:1:1: unknown field `lanez`[..]\ncorelane: {path}:2:1: lanes is 0: expected 1 to 128\n"
        ),
    );
    std::fs::remove_dir_all(&dir).expect("it was there");
}

/// As in `corelane lab status | true`.
#[test]
fn a_reader_that_has_gone_is_no_panic() {
    let gone = || std::io::pipe().expect("a pipe").1;
    for arguments in [["lab", "status"].as_slice(), &["demo", "--seconds", "0.1", "-c", "2"]] {
        let mut command = std::process::Command::new(cargo_bin!("corelane"));
        let status = command.args(arguments).stdout(gone()).stderr(gone()).status().expect("it runs");
        assert_eq!(status.code(), Some(0), "{arguments:?}");
    }
    let mut command = std::process::Command::new(cargo_bin!("corelane"));
    let status = command.args(["conf", "check", "/nonexistent"]).stderr(gone()).status().expect("it runs");
    assert_eq!(status.code(), Some(1));
}

#[test]
fn the_demo_prints_one_object() {
    let arguments = ["demo", "--json", "--seconds", "0.2", "--connections", "8"];
    let output = Command::new(cargo_bin!("corelane")).args(arguments).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "no progress line off a terminal");
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    for system in ["corelane", "linux"] {
        for number in ["connections_per_s", "messages_per_s", "cpu_us_per_connection"] {
            assert!(object[system][number].as_f64().is_some_and(|value| value > 0.0), "{system} {number}: {object}");
        }
        for number in ["p50", "p99", "max"] {
            assert!(object[system]["latency_us"][number].is_number(), "{system} {number}: {object}");
        }
        assert_eq!(object[system]["errors"], serde_json::json!({}), "{object}");
    }
    assert!(object["ratio"].is_number() && object["machine"]["kernel"].is_string(), "{object}");
}

/// Waits for a child, which must end by itself.
fn end_of(child: std::process::Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().expect("it ends");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_signal_ends_the_demo_in_order() {
    use rustix::process::{Pid, Signal, kill_process};
    use std::process::{Command, Stdio};
    let start = || {
        let mut demo = Command::new(cargo_bin!("corelane"));
        demo.args(["demo", "--seconds", "600"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = demo.spawn().expect("it runs");
        // The signal thread is there once the demo's own threads are.
        let tasks = format!("/proc/{}/task", child.id());
        while std::fs::read_dir(&tasks).expect("it runs").count() < 4 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        child
    };
    for signal in [Signal::INT, Signal::TERM] {
        let child = start();
        kill_process(Pid::from_child(&child), signal).expect("it runs");
        let (code, said) = end_of(child);
        assert_eq!(code, Some(1), "{said}");
        assert_eq!(said, "corelane: demo was interrupted: let it run to the end to see a comparison\n");
    }
}

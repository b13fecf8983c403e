//! `corelane bench` as it is typed: short rounds, the shape of what comes out, and nothing left behind.
//!
//! Rows on a veth need root and iproute2: without them those tests are skipped. Nothing here asserts a rate.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_corelane")).arg("bench").args(arguments).output().expect("it runs")
}

fn object(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

fn two_cores() -> bool {
    let enough = std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= 2);
    if !enough {
        // CI's machine may have but one.
        testing::skip_in_ci_too("needs two cores");
    }
    enough
}

fn root() -> bool {
    let may = rustix::process::geteuid().is_root() && Command::new("ip").arg("-V").output().is_ok();
    if !may {
        testing::skip("needs root and iproute2");
    }
    may && two_cores()
}

/// Rows as (system, wire), each of which has what every row has.
fn rows(object: &Value) -> Vec<(String, String)> {
    let rows = object["rows"].as_array().expect("rows");
    for row in rows {
        for key in ["connections_per_s", "messages_per_s", "server_cpu_us_per_connection", "frames_per_connection"] {
            assert!(row.get(key).is_some(), "{key}: {row}");
        }
        for key in ["low", "high", "rounds", "discarded"] {
            assert!(row["spread"].get(key).is_some(), "{key}: {row}");
        }
        assert!(row["cores"].is_u64() && row["client_was_limit"].is_boolean(), "{row}");
    }
    let text = |row: &Value, key: &str| row[key].as_str().expect("a name").to_owned();
    rows.iter().map(|row| (text(row, "system"), text(row, "wire"))).collect()
}

fn pairs(names: &[(&str, &str)]) -> Vec<(String, String)> {
    names.iter().map(|(system, wire)| ((*system).to_owned(), (*wire).to_owned())).collect()
}

#[test]
fn the_memory_wire_needs_no_root() {
    if !two_cores() {
        return;
    }
    let arguments = ["fig7a", "--quick", "--seconds", "0.2", "--wire", "mem", "--cores", "1", "--json"];
    let output = bench(&arguments);
    let object = object(&output);
    assert_eq!(rows(&object), pairs(&[("limit", "mem"), ("corelane", "mem")]), "{object}");
    for row in object["rows"].as_array().expect("rows") {
        assert!(row["connections_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
        assert!(row["frames_per_connection"].as_f64().is_some_and(|frames| (5.5..7.5).contains(&frames)), "{row}");
        assert_eq!(row["errors"], serde_json::json!({}), "{row}");
    }
    assert!(object["machine"]["kernel"].is_string() && object["method"]["time_wait_s"] == 60, "{object}");
    assert!(output.stderr.is_empty(), "no progress off a terminal: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_core_that_is_not_there_is_named() {
    for list in ["1000", "0,1000"] {
        let output = bench(&["fig7a", "--quick", "--wire", "mem", "--on", list]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success());
        assert!(said.contains("--on: core 1000 does not exist or may not be used: name some of "), "{said}");
    }
}

/// Two lanes at each end, if only in turns on one core each.
#[test]
fn several_lanes() {
    if !root() {
        return;
    }
    let mut arguments = vec!["fig7a", "--quick", "--seconds", "0.3", "--on", "0,0,1,1", "--json"];
    arguments.extend(["--system", "corelane", "--system", "linux-single"]);
    let object = object(&bench(&arguments));
    assert_eq!(object["notes"], serde_json::json!([]), "{object}");
    let rows = object["rows"].as_array().expect("rows");
    assert_eq!(rows.iter().filter(|row| row["cores"] == 2).count(), 3, "{object}");
    for row in rows {
        assert!(row["connections_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
        assert_eq!(row["errors"], serde_json::json!({}), "{row}");
    }
}

#[test]
fn idle_connections_have_a_price() {
    if !two_cores() {
        return;
    }
    let object = object(&bench(&["connections", "--quick", "--seconds", "0.2", "--connections", "20000", "--json"]));
    let rows = object["rows"].as_array().expect("rows");
    assert_eq!(rows.iter().map(|row| row["held"].as_u64()).collect::<Vec<_>>(), [Some(0), Some(20_000)]);
    assert!(
        rows[1]["bytes_per_connection"].as_f64().is_some_and(|bytes| (100.0..4000.0).contains(&bytes)),
        "{}",
        rows[1]
    );
    assert!(rows[1]["connections_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{}", rows[1]);
}

#[test]
fn every_system_serves_on_the_veth() {
    if !root() {
        return;
    }
    let page: PathBuf = std::env::temp_dir().join(format!("corelane-bench-{}.html", std::process::id()));
    let systems = ["limit", "corelane", "linux-epoll", "linux-uring", "linux-epoll-plain", "linux-single"];
    let mut arguments =
        vec!["fig7a", "--quick", "--seconds", "0.3", "--wire", "xdp", "--cores", "1", "--json", "--html"];
    arguments.push(page.to_str().expect("a plain path"));
    arguments.extend(systems.iter().flat_map(|system| ["--system", system]));
    let object = object(&bench(&arguments));
    assert_eq!(object["notes"], serde_json::json!([]), "{object}");
    assert_eq!(rows(&object), pairs(&systems.map(|system| (system, "xdp"))), "{object}");
    for row in object["rows"].as_array().expect("rows") {
        assert!(row["connections_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
        assert!(row["frames_per_connection"].as_f64().is_some_and(|frames| (5.0..12.0).contains(&frames)), "{row}");
        assert!(row["server_napi_share"].is_number(), "{row}");
        assert_eq!(row["errors"], serde_json::json!({}), "{row}");
    }
    let text = std::fs::read_to_string(&page).expect("the page was written");
    std::fs::remove_file(&page).expect("it was there");
    assert!(text.contains("<svg") && text.contains("linux-uring"), "{text}");
}

#[test]
fn resets_and_idle_connections_on_the_veth() {
    if !root() {
        return;
    }
    let systems = ["--system", "corelane", "--system", "linux-epoll", "--system", "linux-uring"];
    for (name, more) in [("fig8", ["--connections", "64"]), ("idle", ["--connections", "500"])] {
        let mut arguments = vec![name, "--quick", "--seconds", "0.3", "--wire", "xdp", "--json"];
        arguments.extend(systems.iter().chain(&more));
        let object = object(&bench(&arguments));
        assert_eq!(object["rows"].as_array().map(Vec::len), Some(3), "{object}");
        for row in object["rows"].as_array().expect("rows") {
            assert_eq!(row["errors"], serde_json::json!({}), "{row}");
            match name {
                "fig8" => assert!(row["connections_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{row}"),
                _ => assert_eq!(row["held"], 500, "{row}"),
            }
        }
    }
}

/// Shares of local packets by row, of nginx and HAProxy where they are installed.
#[test]
fn each_step_of_fastsocket_is_as_local_as_it_says() {
    if !root() {
        return;
    }
    let library = Path::new(env!("CARGO_BIN_EXE_corelane")).with_file_name("deps").join("libcorelane_preload.so");
    assert!(library.is_file(), "{} is not there: cargo build -p preload makes it", library.display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_corelane"));
    command.env("CORELANE_PRELOAD", library).args(["bench", "fastsocket", "--quick", "--seconds", "0.5", "--json"]);
    command.args(["V", "by-hand", "VL", "VLRE"].iter().flat_map(|step| ["--system", step]));
    let object = object(&command.output().expect("it runs"));
    let rows = object["rows"].as_array().expect("rows");
    let of = |system: &'static str| rows.iter().filter(move |row| row["system"] == system);
    assert!(of("V").count() >= 4 && of("V").all(|row| row["socket_close_ns"].as_f64() > Some(0.0)), "{object}");
    let programs = ["/usr/sbin/nginx", "/usr/sbin/haproxy"].iter().filter(|path| Path::new(path).exists()).count();
    if programs < 2 {
        testing::skip("needs nginx and HAProxy");
    }
    for step in ["by-hand", "VL", "VLRE"] {
        assert_eq!(of(step).count(), programs, "{object}");
        for row in of(step) {
            assert_eq!(row["errors"], serde_json::json!({}), "{row}");
            assert!(row["connections_per_s"].as_f64() > Some(0.0), "{row}");
            let share = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("no {name}: {object}"));
            // A hash over two cores or more brings half of them, or less.
            assert_eq!(share("local_accepted") > 0.98, step != "by-hand", "{row}");
            if row["work"] == "HAProxy" {
                assert_eq!(share("local_opened") > 0.98, step == "VLRE", "{row}");
            }
            // A queue that had stopped would leave its core's worker without work.
            assert!(share("idlest_worker") > share("busiest_worker") / 100.0, "{row}");
        }
    }
}

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    use rustix::process::{Pid, Signal, kill_process};
    if !root() {
        return;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_corelane"));
    command.args(["bench", "fig7a", "--wire", "xdp", "--system", "corelane", "--rounds", "50"]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let child = command.spawn().expect("it runs");
    let id = child.id() % 100_000;
    let namespaces = || {
        let out = Command::new("ip").args(["netns", "list"]).output().expect("iproute2");
        String::from_utf8_lossy(&out.stdout).lines().filter(|line| line.contains(&format!("-{id}-"))).count()
    };
    let begun = std::time::Instant::now();
    while namespaces() < 2 && begun.elapsed().as_secs() < 10 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("interrupted"), "{said}");
    assert_eq!(namespaces(), 0);
}

/// A bridge is given what GRO has merged, the veth below it what crossed.
#[test]
fn bulk_arrives_in_the_frames_that_its_row_says() {
    if !root() {
        return;
    }
    let arguments = ["bulk", "--quick", "--seconds", "0.3", "--wire", "xdp", "--json"];
    let systems = ["--system", "corelane", "--system", "linux-epoll"];
    let object = object(&bench(&[arguments.as_slice(), &systems].concat()));
    let rows: Vec<&Value> =
        object["rows"].as_array().expect("rows").iter().filter(|row| row["arriving"].is_string()).collect();
    assert_eq!(rows.len(), 8, "{object}");
    for row in rows {
        assert_eq!(row["errors"], serde_json::json!({}), "{row}");
        for name in ["gbit_per_s", "server_cpu_s_per_gb"] {
            assert!(row[name].as_f64() > Some(0.0), "{name}: {row}");
        }
        let each = row["bytes_per_frame"].as_f64();
        match (row["system"].as_str(), row["arriving"].as_str()) {
            (Some("corelane"), Some("bridge, GRO")) => assert!(each > Some(3000.0), "{row}"),
            (Some("corelane"), _) => assert!(each > Some(1000.0) && each < Some(1500.0), "{row}"),
            _ => assert_eq!(each, None, "{row}"),
        }
    }
}

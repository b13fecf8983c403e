//! The shape of a report, for people and for programs.

use super::*;
use crate::args::ModelArg;
use snapbox::{assert_data_eq, str};

fn machine() -> Machine {
    let machine = crate::sys::Machine { cpu: "A CPU".into(), cores: 2, kernel: "Linux 6".into(), memory_mib: 1024 };
    Machine { machine, governor: None, hypervisor: true, mitigations: None, version: "0", optimised: true }
}

fn measurement(rate: f64, steal: f64) -> Measurement {
    let mut found = Measurement { steal, client_was_limit: true, ..Measurement::default() };
    found.set("connections_per_s", rate);
    found.set("latency_p99_us", rate / 7.0);
    found.set("nothing", f64::NAN);
    found.set("server_own_us_per_connection", 100_000.0 / rate);
    found
}

fn report() -> Report {
    let keys = |system: &str| {
        let mut keys = Map::new();
        keys.insert("system".into(), system.into());
        keys.insert("wire".into(), "xdp".into());
        keys.insert("cores".into(), 1.into());
        keys
    };
    let mut failing = measurement(500.0, 0.3);
    failing.errors.insert("timed out".into(), 2);
    let rows = vec![
        Row::new(
            keys("corelane"),
            [1000.0, 3000.0, 2000.0]
                .map(|rate| measurement(rate, 0.0))
                .into_iter()
                .chain([measurement(9.0, 0.5)])
                .collect(),
        ),
        Row::new(keys("<linux>"), vec![failing]),
    ];
    Report {
        name: "fig0",
        after: "no paper",
        about: "a test",
        machine: machine(),
        method: Method {
            rounds: 3,
            seconds: 0.5,
            warm_up_s: 0.1,
            closes_first: "the server closes first",
            time_wait_s: 60,
            client_addresses: 1,
            statistics: "medians",
            cpu: "the core",
            veth: "a wire",
            date: "Mon, 23 Nov 2026 10:00:00 GMT".into(),
            command: "corelane bench fig0".into(),
            quick: true,
        },
        main: "connections_per_s",
        columns: vec![
            column("system", "system", 0),
            column("wire", "wire", 0),
            column("connections_per_s", "connections/s", 0),
            column("latency_p99_us", "p99 µs", 1),
            column("absent", "absent", 0),
        ],
        plots: vec![Plot {
            title: "Rate <1>",
            shape: Shape::Bars,
            x: "cores",
            y: vec!["connections_per_s"],
            unit: "1/s",
        }],
        rows,
        notes: vec!["a note".into()],
        systems: vec![System::Corelane(ModelArg::Inline)],
    }
}

#[test]
fn for_people() {
    assert_data_eq!(
        report().to_string(),
        str![[r#"
fig0 — a test (no paper)
A CPU, 2 cores, 1 GiB, Linux 6, virtual
corelane 0, Mon, 23 Nov 2026 10:00:00 GMT

system    wire        connections/s  p99 µs
corelane  xdp   2,000 (1,000–3,000)   285.7
<linux>   xdp                   500    71.4

connections per s, corelane on xdp: 4.00 × <linux> (4.00 by own CPU)
corelane on xdp: 1 noisy round(s) discarded
<linux> on xdp: 2 × timed out
The client's core was the limit and the server had time left, so the rate is a lower bound: corelane on xdp; <linux> on xdp
NOISY: no quiet round for 1 of 2 rows: up to 30.0 % steal, 0.00 cores of other programs
a note
3 round(s) of 0.5 s after 0.1 s of load; the server closes first; TIME-WAIT 60 s; 1 client address(es) on the veth, one of the server
medians. the core. a wire.
corelane bench fig0
A quick look: too short to compare by.
"#]]
    );
}

#[test]
fn for_programs() {
    let text = serde_json::to_string_pretty(&report().json()["rows"]).expect("plain data");
    assert_data_eq!(
        text,
        str![[r#"
[
  {
    "client_was_limit": true,
    "connections_per_s": 2000.0,
    "cores": 1,
    "errors": {},
    "foreign_cores": 0.0,
    "frames_per_connection": null,
    "latency_p99_us": 285.71,
    "messages_per_s": null,
    "noisy": false,
    "remarks": [],
    "server_cpu_us_per_connection": null,
    "server_own_us_per_connection": 50.0,
    "spread": {
      "discarded": 1,
      "high": 3000.0,
      "low": 1000.0,
      "of": "connections_per_s",
      "rounds": 3
    },
    "steal_share": 0.0,
    "system": "corelane",
    "wire": "xdp"
  },
  {
    "client_was_limit": true,
    "connections_per_s": 500.0,
    "cores": 1,
    "errors": {
      "timed out": 2
    },
    "foreign_cores": 0.0,
    "frames_per_connection": null,
    "latency_p99_us": 71.429,
    "messages_per_s": null,
    "noisy": true,
    "remarks": [],
    "server_cpu_us_per_connection": null,
    "server_own_us_per_connection": 200.0,
    "spread": {
      "discarded": 0,
      "high": 500.0,
      "low": 500.0,
      "of": "connections_per_s",
      "rounds": 1
    },
    "steal_share": 0.3,
    "system": "<linux>",
    "wire": "xdp"
  }
]
"#]]
    );
    let object = report().json();
    for key in ["name", "after", "about", "machine", "method", "systems", "rows", "ratios", "notes"] {
        assert!(!object[key].is_null(), "{key}");
    }
    assert_eq!(object["machine"]["cpu"], "A CPU");
    let ratio = serde_json::json!([{ "system": "corelane", "over": "<linux>", "of": "connections_per_s", "ratio": 4.0, "cpu": 4.0, "at": { "wire": "xdp", "cores": 1 } }]);
    assert_eq!(object["ratios"], ratio);
}

#[test]
fn the_bare_wire_is_compared_by_frames_and_told_when_it_was_not_filled() {
    let row = |system: &str, rate: f64, frames: f64, own: f64, busy: f64| {
        let mut keys = Map::new();
        keys.insert("system".into(), system.into());
        keys.insert("wire".into(), "xdp".into());
        let mut found = Measurement::default();
        for (name, value) in [
            ("connections_per_s", rate),
            ("frames_per_connection", frames),
            ("server_own_us_per_connection", own),
            ("server_busy", busy),
            ("client_busy", 0.7),
        ] {
            found.set(name, value);
        }
        Row::new(keys, vec![found])
    };
    let with = |busy| Report {
        rows: vec![row("corelane", 1000.0, 6.0, 12.0, 0.6), row("limit", 1500.0, 5.0, 4.0, busy)],
        ..report()
    };
    // 6,000 of 7,500 frames, 0.8 of 2 µs.
    let full = with(0.96);
    assert!(full.footnotes()[0].ends_with(": 80 % of the bare wire's frames (40 % by server CPU of a frame)"));
    assert!(!full.to_string().contains("not filled"));
    let text = with(0.94).to_string();
    assert!(text.contains("this is less than the bound: limit on xdp"), "{text}");
}

/// Rows without messages are named by what they have.
#[test]
fn a_name_has_no_keys_that_are_zero() {
    let row = |system: &str, bytes: u64| {
        let mut keys = Map::new();
        keys.insert("system".into(), system.into());
        keys.insert("wire".into(), "xdp".into());
        keys.insert("message_bytes".into(), bytes.into());
        Row::new(keys, vec![measurement(1000.0, 0.0)])
    };
    let rows = [64, 0].into_iter().flat_map(|bytes| [row("corelane", bytes), row("<linux>", bytes)]).collect();
    let text = Report { rows, ..report() }.to_string();
    assert!(text.contains("corelane on xdp, message bytes 64: 1.00 ×"), "{text}");
    assert!(text.contains("corelane on xdp: 1.00 ×"), "{text}");
}

#[test]
fn for_browsers() {
    let page = super::super::html::page(&[report()]);
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(page.contains("&lt;linux&gt;") && !page.contains("<linux>"), "{page}");
    assert!(page.contains("<svg") && page.contains("Rate &lt;1&gt;") && page.matches("<rect").count() >= 2);
    // When, what, where and how, before any number.
    let head = page.split("<h2").next().expect("a head");
    for part in ["corelane bench fig0", "Mon, 23 Nov 2026", "A CPU, 2 cores, 1 GiB, Linux 6, virtual", "corelane 0"] {
        assert!(head.contains(part), "{part}: {head}");
    }
    assert!(head.contains("<h1>corelane bench: a test</h1>") && page.contains("<h2 id=\"fig0\">A test</h2>"));
    assert!(page.contains("<title>corelane, cores 1: 2,000 (1,000 to 3,000) 1/s</title>"), "{page}");
    assert!(page.contains("@media print"));
    // Nothing is fetched and nothing runs.
    for word in ["http", "<script", "@import", "url("] {
        assert!(!page.contains(word), "{word}");
    }
    for tag in ["svg", "table", "tr", "td", "th", "ul", "li", "text"] {
        assert_eq!(
            page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count(),
            page.matches(&format!("</{tag}>")).count(),
            "{tag}"
        );
    }
}

/// A bound far above all else is a line beyond the scale, not a bar that leaves no room for the others.
#[test]
fn a_bound_that_dwarfs_is_a_line() {
    let row = |system: &str, rate: f64| {
        let mut keys = Map::new();
        keys.insert("system".into(), system.into());
        keys.insert("wire".into(), "mem".into());
        keys.insert("cores".into(), 1.into());
        Row::new(keys, vec![measurement(rate, 0.0)])
    };
    let drawn = |limit: f64| {
        let report = Report { rows: vec![row("corelane", 1000.0), row("limit", limit)], ..report() };
        super::super::plot::draw(&report.plots[0], &report.rows)
    };
    let near = drawn(2000.0);
    assert!(!near.contains("stroke-dasharray") && near.matches("class=\"value\"").count() == 2, "{near}");
    let far = drawn(50_000.0);
    assert!(far.contains("stroke-dasharray") && far.matches("class=\"value\"").count() == 1, "{far}");
    assert!(far.contains("<title>limit: 50,000 1/s</title>") && far.contains("limit 50 k"), "{far}");
    assert!(!far.contains(">12.5 k<"), "the scale is the others': {far}");
}

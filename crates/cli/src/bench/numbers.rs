//! What programs report, as a measurement's numbers.

use super::case::{Case, System};
use super::measure::Measurement;
use serde_json::Value;

/// The numbers of a client's report.
pub fn take_report(report: &Value, busy: f64, found: &mut Measurement) {
    let number = |pointer: &str| report.pointer(pointer).and_then(Value::as_f64);
    for name in [
        "connections",
        "messages",
        "misses",
        "connections_per_s",
        "messages_per_s",
        "bytes_per_s",
        "bytes_per_frame",
        "held",
        "jain",
        "frames_per_s",
        "lost",
        "window",
        "bytes_per_connection",
        "bytes_per_further_connection",
        "open_s",
        "opened_per_s",
        "resets",
        "socket_close_ns",
    ] {
        if let Some(value) = number(&format!("/{name}")) {
            found.set(name, value);
        }
    }
    for part in ["connect", "processing", "total"] {
        // Nothing was recorded where the largest is nothing.
        if number(&format!("/latency_us/{part}/max")).is_none_or(|max| max == 0.0) {
            continue;
        }
        for at in ["min", "mean", "stdev", "p50", "p90", "p99", "p999", "max"] {
            if let Some(value) = number(&format!("/latency_us/{part}/{at}")) {
                let name = if part == "total" { format!("latency_{at}_us") } else { format!("{part}_{at}_us") };
                found.set(&name, value);
            }
        }
    }
    let per = |what: Option<f64>, unit: f64| what.filter(|n| *n > 0.0).map(|n| busy * unit / n);
    let seconds = number("/seconds").unwrap_or(0.0);
    let wall = found.values.get("seconds").copied().unwrap_or(seconds);
    // Rates are by the client's clock, the core's time is by ours: they began within a moment of each other.
    let rate = |name: &str| number(name).map(|rate| rate * wall);
    for (name, value) in [
        ("server_cpu_us_per_connection", per(rate("/connections_per_s"), 1e6)),
        ("server_cpu_us_per_message", per(rate("/messages_per_s"), 1e6)),
        ("server_cpu_s_per_gb", per(rate("/bytes_per_s"), 1e9)),
    ] {
        value.into_iter().for_each(|value| found.set(name, value));
    }
    if let Some(bytes) = number("/bytes_per_s") {
        found.set("gbit_per_s", bytes * 8.0 / 1e9);
    }
    if let Some(late) = number("/late_starts") {
        found.set("late_starts", late);
    }
    if let Some(errors) = report["errors"].as_object() {
        for (cause, count) in errors {
            *found.errors.entry(cause.clone()).or_default() += count.as_u64().unwrap_or(0);
        }
    }
    // A server that fell silent made its row of what came before.
    if number("/unanswered/stall_s").is_some() {
        let count =
            ["/unanswered/requests", "/unanswered/connects"].iter().filter_map(|path| number(path)).sum::<f64>();
        *found.errors.entry("unanswered when the server had stopped answering".into()).or_default() += count as u64;
    }
}

/// What the frames of an echo would have carried, had they been connections.
pub fn take_limit(case: &Case, found: &mut Measurement) {
    if case.system != System::Limit {
        return;
    }
    let messages = found.values.get("connections_per_s").copied().unwrap_or(0.0) * f64::from(case.work.messages);
    found.set("messages_per_s", messages);
    found.set("gbit_per_s", messages * case.work.message as f64 * 8.0 / 1e9);
    if found.values.get("lost").is_some_and(|lost| *lost > 0.0) {
        found.remarks.insert("frames of the echo were lost, and its window begun anew".into());
    }
}

/// What lanes counted by turns, over the whole run.
pub fn take_lanes(report: &Value, found: &mut Measurement) {
    let Some(lanes) = report["lanes"].as_array().filter(|lanes| !lanes.is_empty()) else { return };
    let sum = |name: &str| lanes.iter().filter_map(|lane| lane[name].as_f64()).sum::<f64>();
    let busy = sum("turns") - sum("idle_turns");
    if busy > 0.0 {
        for (name, counter) in
            [("received", "rx_frames"), ("sent", "tx_frames"), ("jobs", "jobs"), ("events", "events")]
        {
            found.set(&format!("{name}_per_turn"), sum(counter) / busy);
        }
        found.set("idle_turns_share", sum("idle_turns") / sum("turns"));
        found.set("sleeps", sum("sleeps"));
        found.set("wakeups", sum("wakeups"));
    }
    if lanes.len() > 1 {
        found.set("handed_over_share", sum("handed_out") / sum("rx_frames").max(1.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_report() {
        let report = serde_json::json!({
            "seconds": 2.0, "connections": 200, "connections_per_s": 100.0, "messages_per_s": 400.0,
            "latency_us": { "total": { "p99": 7.0, "max": 9.0 }, "connect": { "mean": 3.0, "max": 4.0 }, "processing": { "max": 0.0 } },
            "errors": { "timed out": 2 },
            "unanswered": { "requests": 3, "connects": 1, "stall_s": 1.5 },
            "lanes": [{ "turns": 30, "idle_turns": 10, "rx_frames": 60, "tx_frames": 20, "jobs": 2, "events": 4 }],
        });
        let mut found = Measurement::default();
        found.set("seconds", 2.0);
        take_report(&report, 1.0, &mut found);
        take_lanes(&report, &mut found);
        for (name, value) in [
            ("server_cpu_us_per_connection", 5000.0),
            ("server_cpu_us_per_message", 1250.0),
            ("latency_p99_us", 7.0),
            ("connect_mean_us", 3.0),
            ("received_per_turn", 3.0),
            ("events_per_turn", 0.2),
        ] {
            assert_eq!(found.values.get(name), Some(&value), "{name}");
        }
        assert_eq!((found.errors.len(), found.errors["timed out"]), (2, 2));
        assert_eq!(found.errors["unanswered when the server had stopped answering"], 4);
        assert!(!found.values.contains_key("processing_max_us"));
        assert!(!found.is_noisy());
        found.steal = 0.02;
        assert!(found.is_noisy());
    }
}

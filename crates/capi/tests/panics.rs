//! A panic in a library does not leave it: calls fail with ENETDOWN, whichever thread it was, and the peers are reset. Debug builds panic where
//! `CORELANE_PANIC` says so.

mod common;

use common::{Lab, compile, must, root};

/// A server over `library` hears of a panic in each model: in a turn of its lane, in a call, in the control thread.
fn calls_fail(library: &str) {
    let Some(lab) = Lab::new() else { return };
    let source = root().join(format!("crates/capi/tests/c/{library}_broken.c"));
    compile(&source, &lab.temp.0.join("broken"), "", &format!("-LPREFIX/lib -l{library}"));
    let models = ["inline", "paired", "guarded"].into_iter();
    for (model, point) in models.flat_map(|model| ["turn", "call", "control"].map(|point| (model, point))) {
        let (config, now) = (format!("{model}-{point}.toml"), format!("{model}-{point}.now"));
        lab.temp.file(&config, format!("model = \"{model}\"\nlanes = 1\n[[ports]]\ndevice = \"xdp:va\"\n"));
        let command = format!("env CORELANE_PANIC={point}:{now} timeout -s KILL 60 ./broken {config}");
        let server = lab.start(&lab.a, &command);
        let connect = "exec 3<>/dev/tcp/10.98.0.1/80; echo open";
        let client = lab.start(&lab.b, &format!("timeout 50 bash -c '{connect}; cat <&3'"));
        lab.temp.file(&now, "");
        match point {
            "control" => drop(must(&format!(
                "ip -n {0} addr add 10.98.0.7/24 dev va && ip -n {0} addr del 10.98.0.7/24 dev va",
                lab.a
            ))),
            // One that makes the program call may be refused.
            _ => drop(lab.run(&lab.b, &format!("timeout 50 bash -c '{connect}'"))),
        }
        let (out, err, code) = server.rest();
        assert_eq!(code, Some(0), "{model} {point}: {out}{err}");
        assert!(out.ends_with("waiting: Network is down\nended\n"), "{model} {point}: {out}{err}");
        assert_eq!(err.matches("panicked at").count(), 1, "{model} {point}: {err}");
        let (_, said, _) = client.rest();
        assert!(said.contains("Connection reset by peer"), "{model} {point}: {said:?}, {err}");
    }
}

#[test]
fn a_panic_in_libmtcp_is_an_error_of_its_calls() {
    calls_fail("mtcp");
}

#[test]
fn a_panic_in_libmegapipe_is_an_error_of_its_calls() {
    calls_fail("megapipe");
}

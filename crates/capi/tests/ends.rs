//! The end of a program over libmtcp or libmegapipe: each of its connections ends at the peer too, however many there are, opened or
//! accepted, in each model, by the library's own end and by exit(3); of listeners that were closed before, too.

mod common;

use common::{Lab, compile, root, text};

/// More than the ring between application and stack holds, several times. `CORELANE_ENDS` asks for others.
const MANY: usize = 10_000;
/// Connections to one port of the server: fewer than a client has ports of its own.
const EACH: usize = 16_384;

fn count() -> usize {
    std::env::var("CORELANE_ENDS").ok().map_or(MANY, |n| n.parse().unwrap())
}

/// Runs the program of `library` in each model and way, and holds what a server of the kernel's has seen against it.
fn all_end(library: &str, config: &str) {
    let Some(lab) = Lab::new() else { return };
    let source = root().join(format!("crates/capi/tests/c/{library}_ends.c"));
    compile(&source, &lab.temp.0.join("ends"), "", &format!("-LPREFIX/lib -l{library}"));
    let server = root().join("crates/capi/tests/ends.py");
    let count = count();
    let ports = count.div_ceil(EACH);
    let (mut port, mut wrong) = (7000, String::new());
    for model in ["guarded", "paired", "inline"] {
        lab.temp.file("ends.toml", format!("model = \"{model}\"\n{config}[[ports]]\ndevice = \"xdp:va\"\n"));
        for how in ["destroy", "exit", "thread"] {
            port += ports;
            let seen = format!("seen-{port}");
            let _server =
                lab.start(&lab.b, &format!("python3 '{}' 10.98.0.2 {port} {ports} {count} {seen}", server.display()));
            let out = lab
                .run(&lab.a, &format!("timeout -s KILL 120 ./ends ends.toml 10.98.0.2 {port} {ports} {count} {how}"));
            assert!(out.status.success(), "{model}, {how}: {}\n{}", out.status, text(&out));
            let seen = lab.temp.0.join(seen);
            let said = (0..2000).find_map(|_| {
                std::thread::sleep(std::time::Duration::from_millis(20));
                std::fs::read_to_string(&seen).ok().filter(|said| said.ends_with('\n'))
            });
            let said = said.unwrap_or_else(|| "the server says nothing\n".into());
            println!("{library}, {model}, {how}: {}", said.trim_end());
            if !said.starts_with(&format!("{count} came, {count} ended ")) {
                wrong += &format!("{model}, {how}: {said}");
            }
        }
    }
    assert!(wrong.is_empty(), "of {count}:\n{wrong}");
}

#[test]
fn every_connection_of_a_program_over_libmtcp_ends() {
    all_end("mtcp", "");
}

#[test]
fn every_connection_of_a_program_over_libmegapipe_ends() {
    all_end("megapipe", "");
}

/// Runs the server of `library` in each model and way, and holds what clients of the kernel's have seen against it. More than one
/// client address has ports for come to several ports of the server's.
fn all_accepted_end(library: &str) {
    let Some(lab) = Lab::new() else { return };
    let source = root().join(format!("crates/capi/tests/c/{library}_serves.c"));
    compile(&source, &lab.temp.0.join("serves"), "", &format!("-LPREFIX/lib -l{library}"));
    let (clients, count) = (root().join("crates/capi/tests/clients.py"), count());
    let ports = count.div_ceil(EACH);
    let (mut port, mut wrong) = (7000, String::new());
    for (model, how) in [
        ("guarded", "close-destroy"),
        ("guarded", "exit"),
        ("paired", "close-exit"),
        ("paired", "destroy"),
        ("inline", "close-destroy"),
        ("inline", "close-exit"),
    ] {
        lab.temp.file("serves.toml", format!("model = \"{model}\"\n[[ports]]\ndevice = \"xdp:va\"\n"));
        port += ports;
        let server = format!("timeout -s KILL 300 ./serves serves.toml 10.98.0.1 {port} {ports} {count} {how}");
        let server = lab.start(&lab.a, &server);
        let said = lab.run(&lab.b, &format!("python3 '{}' 10.98.0.1 {port} {ports} {count}", clients.display()));
        let (said, code) = (text(&said), server.ended(120));
        println!("{library}, {model}, {how}: {}; exit code {code:?}", said.trim_end());
        if code != Some(0) || said != format!("{count} given back, {count} ended, 0 reset\n") {
            wrong += &format!("{model}, {how}: {said}");
        }
    }
    assert!(wrong.is_empty(), "of {count}:\n{wrong}");
}

#[test]
fn every_connection_of_a_server_over_libmtcp_ends() {
    all_accepted_end("mtcp");
}

#[test]
fn every_connection_of_a_server_over_libmegapipe_ends() {
    all_accepted_end("megapipe");
}

//! libmegapipe: C programs against it over both engines, the header, what is exported, and the examples with clients.

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::{Lab, Temp, compile, have, include, must, needed, prefix, root, text};

/// A lane over the TAP in the lab's first namespace.
const TAP: &str = "[[ports]]\ndevice = \"tap:t0\"\naddresses = [\"10.9.0.2/24\"]\n";

#[test]
fn the_header_is_clean_for_every_compiler() {
    let temp = Temp::new();
    let source = temp.file("a.c", "#include <megapipe.h>\n#include <megapipe.h>\nint main(void) { return 0; }\n");
    let whole = "-Wall -Wextra -Werror -pedantic -fsyntax-only";
    for (compiler, language) in
        [("gcc", "c -std=c99"), ("g++", "c++ -std=c++11"), ("clang", "c -std=c99"), ("clang++", "c++ -std=c++11")]
    {
        if have(compiler) {
            must(&format!("{compiler} -x {language} {whole} -I'{}' '{}'", include().display(), source.display()));
        }
    }
}

/// What cannot be written is not read: the call answers all the same.
#[test]
fn a_full_standard_error_harms_nobody() {
    let temp = Temp::new();
    let source = temp.file(
        "a.c",
        "#include <megapipe.h>\n#include <errno.h>\n#include <string.h>\nint main(void) {\n\
         struct mp_options o;\nmemset(&o, 0, sizeof o);\no.size = sizeof o;\no.engine = MP_ENGINE_LANE;\n\
         o.config = \"/nonexistent.toml\";\no.lane = -1;\no.batch = 32;\no.lwsockets = o.buffers = o.completions = 1024;\n\
         o.buffer_size = 4096;\nreturn mp_create(&o) == NULL && errno == ENOENT ? 0 : 1; }\n",
    );
    compile(&source, &temp.0.join("a"), "", "-LPREFIX/lib -lmegapipe");
    must(&format!("'{}/a' 2>/dev/full", temp.0.display()));
}

fn defined(command: &str) -> BTreeSet<String> {
    must(command).lines().filter_map(|l| l.split_whitespace().last()).map(str::to_owned).collect()
}

#[test]
fn what_is_exported_is_what_is_declared() {
    let header = std::fs::read_to_string(include().join("megapipe.h")).unwrap();
    let code: String = header.split("/*").map(|part| part.split_once("*/").map_or(part, |(_, code)| code)).collect();
    let names = code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '(');
    let declared: BTreeSet<String> = names
        .filter_map(|word| word.split_once('('))
        .map(|(name, _)| name.to_owned())
        .filter(|name| name.starts_with("mp_"))
        .collect();
    assert!(declared.len() > 30, "{declared:?}");
    let lib = prefix().join("lib");
    assert_eq!(defined(&format!("nm -D --defined-only '{}/libmegapipe.so'", lib.display())), declared);
    let archive = format!("nm -g --defined-only '{}/libmegapipe.a' | grep ' [A-Z] '", lib.display());
    assert_eq!(defined(&archive), declared);
}

/// A program runs with the library it was linked with, or one that may take its place, and with no other.
#[test]
fn programs_ask_for_the_library_by_its_version() {
    let temp = Temp::new();
    let source = temp.file("a.c", "#include <megapipe.h>\nint main(void) { return mp_destroy(NULL) == 0; }\n");
    let out = temp.0.join("a");
    compile(&source, &out, "", "-LPREFIX/lib -lmegapipe");
    assert_eq!(needed(&out), [concat!("libmegapipe.so.", env!("CARGO_PKG_VERSION_MAJOR"))]);
    must(&out.display().to_string());
}

/// The program for all calls, over both engines.
fn calls(lab: &Lab, flags: &str, library: &str, run: &str, last: &str) {
    compile(&root().join("crates/capi/tests/c/megapipe.c"), &lab.temp.0.join("calls"), flags, library);
    for model in ["", "inline", "guarded", "paired"] {
        let what = if model.is_empty() { "uring 127.0.0.1" } else { "lane.toml 10.9.0.2" };
        lab.temp.file("lane.toml", format!("model = \"{model}\"\n{TAP}"));
        let out = lab.run(&lab.a, &format!("timeout -s KILL 300 {run} ./calls {what} {last}"));
        assert!(out.status.success(), "{what} {model}: {}\n{}", out.status, text(&out));
    }
}

#[test]
fn every_call_does_what_the_header_says() {
    let Some(lab) = Lab::new() else { return };
    calls(&lab, "", "'PREFIX/lib/libmegapipe.a'", "", "");
}

#[test]
fn every_call_under_address_sanitizer() {
    let Some(lab) = Lab::new() else { return };
    calls(&lab, "-fsanitize=address,undefined -fno-sanitize-recover=all", "-LPREFIX/lib -lmegapipe", "", "");
}

#[test]
fn every_call_under_valgrind() {
    let Some(lab) = Lab::new() else { return };
    if have("valgrind") {
        calls(&lab, "", "-LPREFIX/lib -lmegapipe", "valgrind -q --error-exitcode=9 --fair-sched=yes", "quiet");
    }
}

/// What a child of fork(2) may do and what not, while its parent's other threads are at work.
#[test]
fn children_and_threads_that_end() {
    let temp = Temp::new();
    let source = root().join("crates/capi/tests/c/megapipe_forks.c");
    for (name, flags, library) in [
        ("archive", "", "'PREFIX/lib/libmegapipe.a'"),
        ("shared", "-fsanitize=address,undefined -fno-sanitize-recover=all", "-LPREFIX/lib -lmegapipe"),
    ] {
        let out = temp.0.join(name);
        compile(&source, &out, flags, library);
        must(&format!("timeout -s KILL 120 '{}'", out.display()));
    }
}

fn examples(lab: &Lab) {
    let (root, prefix, out) = (root(), prefix(), &lab.temp.0);
    must(&format!("make -s -C '{}/examples/c' PREFIX='{}' OUT='{}'", root.display(), prefix.display(), out.display()));
    lab.temp.file("tap.toml", TAP);
    lab.temp.file("tap2.toml", format!("lanes = 2\nmodel = \"guarded\"\n{TAP}"));
    lab.temp.file("xdp.toml", "[[ports]]\ndevice = \"xdp:vb\"\n");
    for client in ["echo.py", "kv.py", "full.py", "again.py"] {
        std::fs::copy(root.join("crates/capi/tests").join(client), out.join(client)).unwrap();
    }
}

/// Over the kernel, a lane over a TAP, and a lane that shares an interface with the kernel; one thread and two.
#[test]
fn the_echo_server() {
    let Some(lab) = Lab::new() else { return };
    examples(&lab);
    for (server, at, options) in [
        (&lab.a, "127.0.0.1", "-e uring"),
        (&lab.b, "10.98.0.2", "-e uring -t 2"),
        (&lab.a, "10.9.0.2", "-e lane:tap.toml"),
        (&lab.a, "10.9.0.2", "-e lane:tap2.toml -t 2"),
        (&lab.b, "10.98.0.2", "-e lane:xdp.toml"),
    ] {
        let running = lab.start(server, &format!("./echo_megapipe {options} -a {at}"));
        lab.ok(&lab.a, &format!("timeout 60 python3 echo.py {at} 7777"));
        assert_eq!(running.stop(), Some(0), "{options}");
    }
}

/// What is no number is told, not guessed; and threads stay on the CPUs that they were given.
#[test]
fn options_of_the_examples() {
    let Some(lab) = Lab::new() else { return };
    examples(&lab);
    for options in ["kvserver -t 2x", "kvserver -p 99999", "kvserver -m 0", "echo_megapipe -t 65", "webclient -n 1e3"] {
        let out = lab.run(&lab.a, &format!("timeout 10 ./{options}"));
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(2) && said.contains(": a number from "), "{options}: {said}");
    }
    let out = lab.run(&lab.a, "timeout 10 taskset -c 0 ./kvserver -t 2");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(2) && said.contains("2 threads, but 1 CPUs"), "{said}");
}

/// Nobody runs a lane of model "inline" that has no channel, and that is told; of the other models others answer for it.
#[test]
fn lanes_without_a_channel() {
    let Some(lab) = Lab::new() else { return };
    examples(&lab);
    let said = || std::fs::read_to_string(lab.temp.0.join("said")).unwrap();
    lab.temp.file("inline2.toml", format!("lanes = 2\n{TAP}"));
    let start = |config: &str, threads: u32| {
        let options = format!("-e lane:{config} -t {threads} -a 10.9.0.2");
        lab.start(&lab.a, &format!("sh -c 'exec ./echo_megapipe {options} 2>said'"))
    };
    let running = start("inline2.toml", 1);
    for _ in 0..1000 {
        if said().contains('\n') {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let told = "megapipe: inline2.toml: 1 of 2 lanes have no channel";
    assert!(said().starts_with(told) && said().lines().count() == 1, "{}", said());
    assert_eq!(running.stop(), Some(0));
    for (config, threads) in [("inline2.toml", 2), ("tap2.toml", 1)] {
        let running = start(config, threads);
        lab.ok(&lab.a, "timeout 60 python3 echo.py 10.9.0.2 7777");
        std::thread::sleep(Duration::from_millis(1500));
        assert_eq!(running.stop(), Some(0), "{config}");
        assert_eq!(said(), "", "{config}");
    }
}

/// Where the kernel has no room for another connection, others wait until one ends; that is said once.
/// An interface that goes away is told as what happens at start.
#[test]
fn an_interface_that_goes_is_told() {
    let Some(lab) = Lab::new() else { return };
    lab.temp.file("gone.toml", "model = \"guarded\"\n[[ports]]\ndevice = \"xdp:va\"\n");
    let source = lab.temp.file(
        "g.c",
        "#include <megapipe.h>\n#include <stdio.h>\n#include <unistd.h>\nint main(void) { alarm(60);\n\
         struct mp_options o; struct mp_event ev; mp_options_init(&o, sizeof o);\n\
         o.engine = MP_ENGINE_LANE; o.config = \"gone.toml\";\n\
         mp_channel *ch = mp_create(&o); if (!ch) return 1;\n\
         puts(\"ready\"); fflush(stdout);\n\
         while (mp_dispatch(ch, &ev, 1000) >= 0) continue;\nreturn 2; }\n",
    );
    compile(&source, &lab.temp.0.join("g"), "", "-LPREFIX/lib -lmegapipe");
    let mut program = lab.start(&lab.a, "./g");
    must(&format!("ip -n {} link del va", lab.a));
    program.says("megapipe: va is gone: start again when it is back\n");
}

#[test]
fn servers_that_are_full_go_on() {
    let Some(lab) = Lab::new() else { return };
    examples(&lab);
    for (server, port) in [("kvserver", 11211), ("echo_megapipe", 7777)] {
        let running = lab.start(&lab.a, &format!("sh -c 'ulimit -n 40; exec ./{server} -a 127.0.0.1 2>{server}.said'"));
        lab.ok(&lab.a, &format!("timeout 60 python3 full.py 127.0.0.1 {port}"));
        assert_eq!(running.stop(), Some(0), "{server}");
        let said = std::fs::read_to_string(lab.temp.0.join(format!("{server}.said"))).unwrap();
        assert!(said.starts_with(&format!("{server}: accepting: ")) && said.lines().count() == 1, "{said}");
    }
}

/// What the kernel refuses has its errno, a line that says what helps, and loses no lane.
#[test]
fn what_is_refused_is_told_and_can_be_had_later() {
    let Some(lab) = Lab::new() else { return };
    let flags = "-fsanitize=address,undefined -fno-sanitize-recover=all";
    compile(
        &root().join("crates/capi/tests/c/refused.c"),
        &lab.temp.0.join("refused"),
        flags,
        "-LPREFIX/lib -lmegapipe",
    );
    for model in ["inline", "guarded", "paired"] {
        let cores = "lanes = 2\ncores = [0, 1]\n";
        lab.temp.file("two.toml", format!("model = \"{model}\"\n{cores}{TAP}"));
        let out = lab.run(&lab.a, "timeout -s KILL 60 ./refused two.toml");
        assert!(out.status.success(), "{model}: {}\n{}", out.status, text(&out));
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(said.contains("megapipe: pinning to core 1"), "{said}");
        assert!(said.contains("megapipe: this process may not use io_uring"), "{said}");
    }
}

/// The server of docs/megapipe.md is a server.
#[test]
fn the_listing_of_the_documents() {
    let Some(lab) = Lab::new() else { return };
    examples(&lab);
    let text = std::fs::read_to_string(root().join("docs/megapipe.md")).unwrap();
    let (listing, _) = text.split_once("```c\n").and_then(|(_, rest)| rest.split_once("```")).unwrap();
    let source = lab.temp.file("listing.c", listing);
    compile(&source, &lab.temp.0.join("listing"), "", "-LPREFIX/lib -lmegapipe");
    // It says nothing by itself.
    let _running = lab.start(&lab.a, "sh -c 'echo; exec ./listing'");
    lab.ok(&lab.a, "timeout 60 python3 echo.py 127.0.0.1 7777");
}

#[test]
fn the_key_value_server() {
    let Some(lab) = Lab::new() else { return };
    examples(&lab);
    for (at, options) in [
        ("127.0.0.1", "-e uring"),
        ("127.0.0.1", "-e uring -t 2"),
        ("10.9.0.2", "-e lane:tap.toml"),
        ("10.9.0.2", "-e lane:tap2.toml -t 2"),
    ] {
        let running = lab.start(&lab.a, &format!("./kvserver {options} -a {at} -m 8"));
        lab.ok(&lab.a, &format!("timeout 100 python3 kv.py {at} 11211"));
        if have("memccapable") {
            lab.ok(&lab.a, &format!("timeout 60 memccapable -a -h {at} -p 11211"));
        }
        assert_eq!(running.stop(), Some(0), "{options}");
    }
}

/// Who moves a server from one engine to the other meets what the kernel remembers of its connections: clients that come back by
/// the same ports are answered all the same.
#[test]
fn clients_of_one_engine_come_back_to_the_other() {
    const MANY: usize = 200;
    let Some(lab) = Lab::new() else { return };
    examples(&lab);
    let come = || {
        let out = lab.run(&lab.a, &format!("timeout 60 python3 again.py 10.98.0.2 11211 40000 {MANY}"));
        assert_eq!(text(&out), format!("{MANY} of {MANY} were answered\n"));
    };
    // They end the connection first, so what lingers is theirs.
    let running = lab.start(&lab.b, "./kvserver -e uring -a 10.98.0.2");
    come();
    assert_eq!(running.stop(), Some(0));
    let lingering = || {
        let said = lab.ok(&lab.b, "ss -Htan state time-wait sport = :11211");
        String::from_utf8_lossy(&said).lines().count()
    };
    assert_eq!(lingering(), MANY);
    let running = lab.start(&lab.b, "./kvserver -e lane:xdp.toml -a 10.98.0.2");
    come();
    assert_eq!(running.stop(), Some(0));
    // And back again, while the lane's own are forgotten.
    let running = lab.start(&lab.b, "./kvserver -e uring -a 10.98.0.2");
    come();
    assert_eq!(running.stop(), Some(0));
}

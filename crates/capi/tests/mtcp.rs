//! libmtcp: C programs against it, the headers, what is exported, and the examples with real clients.

mod common;

use std::collections::BTreeSet;
use std::path::Path;

use common::{Lab, Temp, compile, have, include, must, needed, noise, prefix, root, sh, text};

const HEADERS: [&str; 3] = ["mtcp_api.h", "mtcp_epoll.h", "eventpoll.h"];

/// A program for mTCP's calls, and the three ways to run it.
const CALLS: &str = "crates/capi/tests/c/mtcp.c";

/// The configuration of the TAP in the lab's first namespace.
const TAP: &str = "io = tap\nport = t0\naddress = 10.9.0.2/24 10.9.0.3/24 fd09::2/64\ntcp_timewait = 0\n";

#[test]
fn headers_are_clean_for_every_compiler() {
    let temp = Temp::new();
    let whole = "-Wall -Wextra -Werror -pedantic -fsyntax-only";
    for (compiler, language) in
        [("gcc", "c -std=c99"), ("g++", "c++ -std=c++11"), ("clang", "c -std=c99"), ("clang++", "c++ -std=c++11")]
    {
        if !have(compiler) {
            continue;
        }
        // Each by itself, and all of them twice.
        let all = HEADERS.iter().chain(&HEADERS).map(|h| format!("#include <{h}>\n")).collect::<String>();
        for text in HEADERS.iter().map(|h| format!("#include <{h}>\n")).chain([all]) {
            let source = temp.file("a.c", text + "int main(void) { return 0; }\n");
            must(&format!("{compiler} -x {language} {whole} -I'{}' '{}'", include().display(), source.display()));
        }
    }
}

/// The functions that the headers declare.
fn declared() -> BTreeSet<String> {
    let text = HEADERS.map(|h| std::fs::read_to_string(include().join(h)).unwrap()).concat();
    let mut names = BTreeSet::new();
    let code: String = text.split("/*").map(|part| part.split_once("*/").map_or(part, |(_, code)| code)).collect();
    for line in code.lines().filter(|l| !l.starts_with([' ', '\t', '#', '}']) && !l.starts_with("typedef")) {
        let Some((before, _)) = line.split_once('(') else { continue };
        names.extend(before.rsplit([' ', '*']).next().map(str::to_owned));
    }
    names
}

fn defined(command: &str) -> BTreeSet<String> {
    must(command).lines().filter_map(|l| l.split_whitespace().last()).map(str::to_owned).collect()
}

#[test]
fn what_is_exported_is_what_is_declared() {
    let lib = prefix().join("lib");
    let declared = declared();
    assert!(declared.len() > 35, "{declared:?}");
    let shared = lib.join("libmtcp.so");
    assert_eq!(defined(&format!("nm -D --defined-only '{}'", shared.display())), declared);
    let archive = lib.join("libmtcp.a");
    assert_eq!(defined(&format!("nm -g --defined-only '{}' | grep ' [A-Z] '", archive.display())), declared);
}

/// Prototypes as ports rely on them; and a program linked with either library alone runs.
#[test]
fn prototypes_are_those_that_ports_were_written_for() {
    let temp = Temp::new();
    let source = root().join("crates/capi/tests/c/mtcp_prototypes.c");
    let pkg_config = format!("PKG_CONFIG_PATH='{}/lib/pkgconfig' pkg-config", prefix().display());
    for (name, library) in [
        ("shared", "`PKG --libs mtcp`"),
        ("archive", "-Wl,-Bstatic `PKG --libs mtcp` -Wl,-Bdynamic"),
        ("named", "-Wl,-Bstatic `PKG --libs mtcp` -Wl,-Bdynamic `PKG --static --libs-only-l mtcp | sed s/-lmtcp//`"),
        ("static", "-static `PKG --static --libs mtcp`"),
    ] {
        let out = temp.0.join(name);
        compile(&source, &out, "", &library.replace("PKG", &pkg_config));
        must(&out.display().to_string());
        let shared = [concat!("libmtcp.so.", env!("CARGO_PKG_VERSION_MAJOR"))];
        assert_eq!(needed(&out), if name == "shared" { &shared[..] } else { &[] });
    }
}

fn calls(lab: &Lab, flags: &str, library: &str, run: &str, conf: &Path, model: &str) {
    let out = lab.temp.0.join("calls");
    compile(&root().join(CALLS), &out, flags, library);
    lab.temp.file("own.conf", "io = packet\nport = va\naddress = 10.98.0.9/24\n");
    let out = lab.run(&lab.a, &format!("timeout 400 {run} ./calls '{}' {model}", conf.display()));
    assert!(out.status.success() && text(&out).contains("passed"), "{}\n{}", out.status, text(&out));
}

#[test]
fn every_call_does_what_the_header_says() {
    let Some(lab) = Lab::new() else { return };
    let conf = lab.temp.file("tap.conf", TAP);
    calls(&lab, "", "'PREFIX/lib/libmtcp.a'", "", &conf, "");
    // Our own form: a stack thread beside the application's, and none.
    for (model, run_as) in [("paired", ""), ("inline", "inline"), ("inline", "lanes")] {
        let toml = format!(
            "model = \"{model}\"\n[[ports]]\ndevice = \"tap:t0\"\naddresses = [\"10.9.0.2/24\", \"10.9.0.3/24\", \"fd09::2/64\"]\n"
        );
        let conf = lab.temp.file("tap.toml", toml);
        calls(&lab, "", "-LPREFIX/lib -lmtcp", "", &conf, run_as);
    }
}

/// Answers about options and addresses are Linux's, but for those of the list, where it says what is here instead.
#[test]
fn options_answer_as_linux_does() {
    let Some(lab) = Lab::new() else { return };
    let conf = lab.temp.file("tap.conf", TAP);
    compile(&root().join("crates/capi/tests/c/mtcp_options.c"), &lab.temp.0.join("o"), "", "-LPREFIX/lib -lmtcp");
    let answers = |what: &str| {
        let said = String::from_utf8(lab.ok(&lab.a, &format!("timeout 60 ./o {what}"))).unwrap();
        assert!(said.ends_with("passed\n"), "{said}");
        said
    };
    let (linux, ours) = (answers("linux"), answers(&conf.display().to_string()));
    assert_eq!(linux.lines().count(), ours.lines().count());
    let mut differences = String::new();
    for (theirs, ours) in linux.lines().zip(ours.lines()).filter(|(theirs, ours)| theirs != ours) {
        let (question, answer) = theirs.split_once(": ").unwrap();
        let here = ours.strip_prefix(question).and_then(|o| o.strip_prefix(": ")).expect("the same question");
        differences += &format!("{question}: {answer} | {here}\n");
    }
    let meant = std::fs::read_to_string(root().join("crates/capi/tests/c/mtcp_options.txt")).unwrap();
    let meant: String = meant.lines().filter(|l| !l.starts_with('#')).map(|l| format!("{l}\n")).collect();
    assert_eq!(differences, meant);
}

#[test]
fn every_call_under_address_sanitizer() {
    let Some(lab) = Lab::new() else { return };
    let conf = lab.temp.file("tap.conf", TAP);
    calls(&lab, "-fsanitize=address,undefined -fno-sanitize-recover=all", "-LPREFIX/lib -lmtcp", "", &conf, "");
}

#[test]
fn every_call_under_valgrind() {
    let Some(lab) = Lab::new() else { return };
    if !have("valgrind") {
        return;
    }
    let conf = lab.temp.file("tap.conf", TAP);
    calls(&lab, "", "-LPREFIX/lib -lmtcp", "env SLOWLY=1 valgrind -q --error-exitcode=9", &conf, "");
}

/// A context whose thread cannot be pinned is an error, and its lane the next one's; each thread that has it is pinned.
#[test]
fn a_lane_is_not_lost_with_a_thread_that_cannot_be_pinned() {
    let Some(lab) = Lab::new() else { return };
    let flags = "-fsanitize=address,undefined -fno-sanitize-recover=all";
    compile(&root().join("crates/capi/tests/c/mtcp_core.c"), &lab.temp.0.join("c"), flags, "-LPREFIX/lib -lmtcp");
    for model in ["inline", "guarded", "paired"] {
        let port = "[[ports]]\ndevice = \"tap:t0\"\naddresses = [\"10.9.0.2/24\"]\n";
        lab.temp.file("core.toml", format!("model = \"{model}\"\nlanes = 2\ncores = [0, 1]\n{port}"));
        let out = lab.run(&lab.a, "timeout -s KILL 60 ./c core.toml");
        assert!(out.status.success(), "{model}: {}\n{}", out.status, text(&out));
        assert!(text(&out).contains("mtcp: pinning to core 1"), "{}", text(&out));
    }
}

#[test]
fn a_wrong_file_is_named_with_its_line() {
    let temp = Temp::new();
    let source = temp.file(
        "a.c",
        "#include <mtcp_api.h>\n#include <errno.h>\nint main(int c, char **v) { (void)c; return mtcp_init(v[1]) == -1 && errno == EINVAL ? 0 : 1; }\n",
    );
    let out = temp.0.join("a");
    compile(&source, &out, "", "-LPREFIX/lib -lmtcp");
    let refused = |name: &str, contents: &str| {
        let file = temp.file(name, contents);
        let out = sh(&format!("cd '{}' && ./a '{}'", temp.0.display(), file.display()));
        assert!(out.status.success(), "{name}: {}", text(&out));
        String::from_utf8_lossy(&out.stderr).replace(&format!("{}/", temp.0.display()), "")
    };
    assert!(refused("a.conf", "port = eth0\n\nmax_conns = 3\n").starts_with("mtcp: a.conf:3: unknown key max_conns"));
    assert!(refused("b.toml", "[[ports]]\nlanez = 3\n").starts_with("mtcp: b.toml:2:1: unknown field"));
    // The tables lie where the program runs.
    std::fs::create_dir(temp.0.join("config")).unwrap();
    temp.file("config/route.conf", "ROUTES 2\n10.1.0.0/16 eth0\n10.2.0.0/16 eth7\n");
    let said = refused("c.conf", "port = eth0\n");
    assert!(said.starts_with("mtcp: config/route.conf:3: eth7: not a port of the configuration"), "{said}");
    temp.file("config/route.conf", "ROUTES 1\n10.1.0.0/16 eth0\n");
    temp.file("config/arp.conf", "ARP_ENTRY 1\n10.1.0.7/32 02:00:00:00:zz:01\n");
    let said = refused("d.conf", "port = eth0\n");
    assert!(said.starts_with("mtcp: config/arp.conf:2: neighbour"), "{said}");
}

/// Sockets have what mtcp_getconf tells, with either form of file.
#[test]
fn sizes_hold_as_they_are_told() {
    let Some(lab) = Lab::new() else { return };
    compile(&root().join("crates/capi/tests/c/mtcp_conf.c"), &lab.temp.0.join("c"), "", "-LPREFIX/lib -lmtcp");
    let port = "[[ports]]\ndevice = \"tap:t0\"\naddresses = [\"10.9.0.2/24\"]\n";
    for (name, text, timeout) in [
        ("a.conf", format!("{TAP}num_cores = 2\n"), -1),
        ("b.conf", format!("{TAP}tcp_timeout = 30\nmax_concurrency = 50\n"), 30_000),
        ("a.toml", port.into(), -1),
        (
            "b.toml",
            format!("lanes = 2\nmax_sockets = 100\n[tcp]\nreceive_buffer = 32768\ntime_wait_ms = 500\n{port}"),
            -1,
        ),
    ] {
        lab.temp.file(name, text);
        lab.ok(&lab.a, &format!("timeout -s KILL 60 ./c {name} {timeout}"));
    }
}

/// What cannot be written is not read: the call answers all the same.
#[test]
fn a_full_standard_error_harms_nobody() {
    let temp = Temp::new();
    let source = temp.file(
        "a.c",
        "#include <mtcp_api.h>\n#include <errno.h>\nint main(void) {\n\
         if (mtcp_init(\"/nonexistent\") != -1 || errno != ENOENT) return 1;\n\
         return mtcp_create_context(0) == NULL && errno == EPERM ? 0 : 2; }\n",
    );
    compile(&source, &temp.0.join("a"), "", "-LPREFIX/lib -lmtcp");
    must(&format!("'{}/a' 2>/dev/full", temp.0.display()));
}

/// Nor does one that is a pipe end the program, or hold its children.
#[test]
fn a_standard_error_that_nobody_reads_harms_nobody() {
    let temp = Temp::new();
    compile(&root().join("crates/capi/tests/c/mtcp_say.c"), &temp.0.join("a"), "", "-LPREFIX/lib -lmtcp");
    // The shell's own standard error is read.
    must(&format!("timeout -s KILL 60 env --default-signal=PIPE '{}/a'", temp.0.display()));
}

/// A program whose only interface goes reads it on standard error, once, and goes on: its connects fail, its listener has nothing to
/// tell. Where standard error takes no line nothing waits for that.
#[test]
fn an_interface_that_goes_is_told() {
    for (model, how) in [("guarded", ""), ("paired", ""), ("inline", ""), ("guarded", "full"), ("inline", "full")] {
        let Some(lab) = Lab::new() else { return };
        lab.temp.file("gone.toml", format!("model = \"{model}\"\n[[ports]]\ndevice = \"xdp:va\"\n"));
        compile(&root().join("crates/capi/tests/c/mtcp_gone.c"), &lab.temp.0.join("g"), "", "-LPREFIX/lib -lmtcp");
        let program = lab.start(&lab.a, &format!("timeout -s KILL 60 ./g gone.toml {how}"));
        must(&format!("ip -n {} link del va", lab.a));
        let (out, err, code) = program.rest();
        let told = err.matches("mtcp: va is gone: start again when it is back\n").count();
        assert_eq!((code, told), (Some(0), usize::from(how.is_empty())), "{model} {how}: {out}{err}");
        assert_eq!(out, "connect: Network is unreachable\n", "{model} {how}");
    }
}

/// Routes and hardware addresses of mTCP's own tables are used: a peer that answers no ARP, behind no network of ours.
#[test]
fn the_tables_of_an_old_configuration_are_used() {
    let Some(lab) = Lab::new() else { return };
    let mac = String::from_utf8(lab.ok(&lab.a, "cat /sys/class/net/t0/address")).unwrap();
    lab.ok(
        &lab.a,
        "ip addr add 10.77.0.1/32 dev lo && sysctl -qw net.ipv4.conf.t0.arp_ignore=8 net.ipv4.conf.all.arp_ignore=8 \
         && mkdir config && ip link set t0 up",
    );
    lab.temp.file("config/route.conf", "# ours\nROUTES 1\n10.77.0.0/24 t0\n");
    lab.temp.file("config/arp.conf", format!("ARP_ENTRY 1\n10.77.0.1/32 {mac}\n"));
    let conf = lab.temp.file("t.conf", "io = tap\nport = t0\naddress = 10.9.0.2/24\n");
    compile(&root().join("crates/capi/tests/c/mtcp_connect.c"), &lab.temp.0.join("c"), "", "-LPREFIX/lib -lmtcp");
    // Nothing listens there: a refusal is an answer.
    let out = lab.run(&lab.a, &format!("timeout 20 ./c '{}' 10.77.0.1 9", conf.display()));
    assert!(text(&out).contains("Connection refused"), "{}", text(&out));
}

fn examples(lab: &Lab) {
    let (root, prefix) = (root(), prefix());
    must(&format!(
        "make -s -C '{}/examples/c' PREFIX='{}' OUT='{}'",
        root.display(),
        prefix.display(),
        lab.temp.0.display()
    ));
    lab.temp.file("a.conf", "port = va\ntcp_timewait = 0\n");
    lab.temp.file(
        "b.conf",
        "io = dpdk\nnum_mem_ch = 4\nport = vb\nrcvbuf = 8192\nsndbuf = 8192\ntcp_timeout = 30\ntcp_timewait = 0\n",
    );
    std::fs::create_dir(lab.temp.0.join("www")).unwrap();
    lab.temp.file("www/small", noise(64));
    lab.temp.file("www/big", noise(8 << 20));
}

#[test]
fn the_web_server_and_its_client() {
    let Some(lab) = Lab::new() else { return };
    examples(&lab);
    let server = lab.start(&lab.b, "./webserver -p www -f b.conf -N 2");
    for url in ["http://10.98.0.2/", "http://[fd98::2]/"] {
        for name in ["small", "big"] {
            let got = lab.ok(&lab.a, &format!("curl -sS --fail -m 30 -g '{url}{name}'"));
            assert!(got == std::fs::read(lab.temp.0.join("www").join(name)).unwrap(), "{url}{name} differs");
        }
    }
    let head = String::from_utf8(lab.ok(&lab.a, "curl -sS -I -m 5 http://10.98.0.2/big")).unwrap();
    assert!(head.contains("200 OK") && head.contains("Content-Length: 8388608"), "{head}");
    assert_eq!(lab.ok(&lab.a, "curl -sS -o /dev/null -w '%{http_code}' http://10.98.0.2/none"), b"404");
    if have("wrk") {
        let said = String::from_utf8(lab.ok(&lab.a, "wrk -c 32 -t 1 -d 1 http://10.98.0.2/small")).unwrap();
        assert!(!said.contains("Socket errors") && !said.contains("Non-2xx"), "{said}");
    }
    let said = lab.ok(&lab.a, "timeout 60 ./webclient -f a.conf -n 5000 -c 100 10.98.0.2/small");
    assert!(String::from_utf8_lossy(&said).contains("5000 connections, 0 failed"));
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn the_echo_server_and_the_proxy() {
    let Some(lab) = Lab::new() else { return };
    examples(&lab);
    let echo = lab.start(&lab.b, "./echo_mtcp -f b.conf -P 7000");
    let client = "import socket, sys, threading\n\
        data = open('www/big', 'rb').read()\n\
        s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)\n\
        threading.Thread(target=lambda: (s.sendall(data), s.shutdown(1))).start()\n\
        got = b''.join(iter(lambda: s.recv(65536), b''))\n\
        sys.exit(got != data)\n";
    lab.temp.file("echo.py", client);
    lab.ok(&lab.a, "timeout 60 python3 echo.py 10.98.0.2 7000");
    lab.ok(&lab.a, "timeout 60 python3 echo.py fd98::2 7000");
    assert_eq!(echo.stop(), Some(0));
    // The same with our own form of configuration, and without a second thread.
    lab.temp.file("b.toml", "model = \"inline\"\n[[ports]]\ndevice = \"xdp:vb\"\n");
    let echo = lab.start(&lab.b, "./echo_mtcp -f b.toml -P 7000");
    lab.ok(&lab.a, "timeout 60 python3 echo.py 10.98.0.2 7000");
    assert_eq!(echo.stop(), Some(0));
    // From the kernel over the proxy to the echo server of the kernel, half-closed on the way.
    let far = "import socketserver\n\
        class H(socketserver.StreamRequestHandler):\n\
        \x20   def handle(self):\n\
        \x20       data = self.rfile.read()\n\
        \x20       self.wfile.write(data)\n\
        s = socketserver.ThreadingTCPServer(('10.98.0.1', 7100), H)\n\
        print('ready', flush=True)\n\
        s.serve_forever()\n";
    lab.temp.file("far.py", far);
    let _far = lab.start(&lab.a, "python3 far.py");
    let proxy = lab.start(&lab.b, "./proxy -f b.conf -P 7001 -t 10.98.0.1:7100");
    for _ in 0..3 {
        lab.ok(&lab.a, "timeout 60 python3 echo.py 10.98.0.2 7001");
    }
    assert_eq!(proxy.stop(), Some(0));
}

//! A thread of the server panics, whichever: the process ends with a line, an exit code, and resets for its connections. Debug builds
//! panic where `CORELANE_PANIC` says so.

use std::io::ErrorKind;

use super::interfaces::until;
use super::*;

/// Bytes of a file that no client takes whole.
const LARGE: usize = 64 << 20;

/// A server that panics once it is told so.
struct Broken {
    lab: Lab,
    server: Running,
    at: &'static str,
}

impl Broken {
    /// `corelane serve ARGS`, which is to panic at `point`, at the address `at`.
    fn start(args: &str, point: &str, at: &'static str) -> Option<Broken> {
        let lab = Lab::new()?;
        lab.file("large", LARGE);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &lab.b, BIN, "serve", lab.dir.to_str().unwrap(), "--port", "80"]);
        command
            .args(args.split_whitespace())
            .env("CORELANE_PANIC", format!("{point}:{}", lab.dir.join("now").display()));
        let server =
            Running(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        let mut broken = Broken { lab, server, at };
        until("it does not serve", || {
            assert!(matches!(broken.server.0.try_wait(), Ok(None)), "{}", broken.server.rest());
            sh(&format!("ip netns exec {} curl -sS -m 1 http://{at}/", broken.lab.a)).status.success()
        });
        Some(broken)
    }

    fn connect(&self) -> std::io::Result<TcpStream> {
        let address: SocketAddr = format!("{}:80", self.at).parse().unwrap();
        let stream = self.lab.within(&self.lab.a, || TcpStream::connect_timeout(&address, Duration::from_secs(30)))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(stream)
    }

    /// Clients that wait between requests, and in the middle of an answer, hear of a reset though they send nothing. The line names one
    /// of `threads`.
    fn ends_in_resets(mut self, threads: &[&str], nudge: impl FnOnce(&Broken)) {
        let mut idle = self.connect().unwrap();
        idle.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut answer = vec![0; 4096];
        let n = idle.read(&mut answer).unwrap();
        assert!(answer[..n].starts_with(b"HTTP/1.1 200"));
        let mut half = self.connect().unwrap();
        half.write_all(b"GET /large HTTP/1.0\r\n\r\n").unwrap();
        half.read_exact(&mut answer).unwrap();
        std::fs::write(self.lab.dir.join("now"), "").unwrap();
        nudge(&self);
        for (stream, which) in [(&idle, "idle"), (&half, "half")] {
            // An error is told whatever is asked for.
            let mut fds = [PollFd::new(stream, PollFlags::empty())];
            assert_ne!(poll(&mut fds, Some(&MINUTE)), Ok(0), "the {which} one hears nothing");
        }
        let said = self.server.rest();
        let line = said.lines().find(|line| line.contains("panicked at")).unwrap_or_else(|| panic!("{said}"));
        let named = |thread: &&str| line.starts_with(&format!("corelane: thread {thread} panicked at crates/"));
        assert!(threads.iter().any(named), "{said}");
        assert!(line.ends_with("CORELANE_PANIC asks for it: please report this"), "{said}");
        assert_eq!(said.matches("panicked at").count(), 1, "{said}");
        for (mut stream, which) in [(idle, "idle"), (half, "half")] {
            let mut rest = Vec::new();
            let end = stream.read_to_end(&mut rest).map_err(|error| error.kind());
            assert_eq!(end, Err(ErrorKind::ConnectionReset), "the {which} one after {} bytes: {said}", rest.len());
        }
        assert_eq!(self.server.stop_code(), Some(101), "{said}");
    }
}

/// A request makes its lane take a turn, and the server a step.
fn ask(broken: &Broken) {
    // Its connection may be among those that are reset.
    let _ = broken.connect().and_then(|mut stream| stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
}

fn over_xdp(args: &str, point: &str) -> Option<Broken> {
    Broken::start(&format!("--dev xdp:vb {args}"), point, "10.99.0.2")
}

#[test]
fn a_panic_in_a_turn_resets_the_connections() {
    for (model, threads) in
        [("inline", &["serve-0"][..]), ("paired", &["lane-0"]), ("guarded", &["serve-0", "guard-0"])]
    {
        let Some(broken) = over_xdp(&format!("--model {model}"), "turn") else { return };
        broken.ends_in_resets(threads, ask);
    }
}

#[test]
fn a_panic_in_a_turn_resets_the_connections_of_other_lanes() {
    let Some(broken) = over_xdp("--lanes 2", "turn") else { return };
    broken.ends_in_resets(&["serve-0", "serve-1"], ask);
}

#[test]
fn a_panic_in_a_turn_over_packet_resets_the_connections() {
    let Some(broken) = Broken::start("--dev packet:vb --addr 10.99.0.33/24", "turn", "10.99.0.33") else { return };
    broken.ends_in_resets(&["serve-0"], ask);
}

#[test]
fn a_panic_of_the_application_resets_the_connections() {
    for args in ["--model inline", "--model paired", "--model guarded", "--mtcp"] {
        let Some(broken) = over_xdp(args, "serve") else { return };
        broken.ends_in_resets(&["serve-0"], ask);
    }
}

#[test]
fn a_panic_of_the_control_thread_resets_the_connections() {
    let Some(broken) = over_xdp("", "control") else { return };
    broken.ends_in_resets(&["corelane-kernel"], |broken| {
        must(&format!("ip -n {} addr add 10.99.0.77/24 dev vb", broken.lab.b));
    });
}

#[test]
fn a_panic_of_the_thread_that_waits_for_signals_resets_the_connections() {
    let Some(broken) = over_xdp("", "signals") else { return };
    broken.ends_in_resets(&["signals"], |broken| broken.server.signal(rustix::process::Signal::HUP));
}

#[test]
fn a_panic_of_the_log_is_told_and_resets_the_connections() {
    let Some(broken) = over_xdp("", "log") else { return };
    // A warning.
    broken.ends_in_resets(&["log"], |broken| drop(must(&format!("ip -n {} link set vb mtu 1400", broken.lab.b))));
}

#[test]
fn a_panic_ends_a_load() {
    let Some(lab) = Lab::new() else { return };
    let _server = lab.serve(&lab.b, "--kernel --port 80");
    let load = "load http://10.99.0.2/ --dev xdp:va -c 8 -d 30";
    let asks = format!("CORELANE_PANIC=load:{}", lab.dir.display());
    let out = sh(&format!("timeout 60 ip netns exec {} env {asks} {BIN} {load}", lab.a));
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(101), "{said}");
    let lines: Vec<_> = said.lines().filter(|line| line.contains("please report this")).collect();
    assert!(matches!(lines[..], [line] if line.contains("corelane: thread load-0 panicked")), "{said}");
}

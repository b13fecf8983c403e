//! The real command on real interfaces, beside the kernel: what DESIGN's sharing promises, each with a test.
//!
//! Every test makes its own network namespaces and removes them. Without root it is skipped.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

#[path = "lab/beside.rs"]
mod beside;
#[path = "lab/deliver.rs"]
mod deliver;
#[path = "lab/differential.rs"]
mod differential;
#[path = "lab/interfaces.rs"]
mod interfaces;
#[path = "lab/losses.rs"]
mod losses;
#[path = "lab/panics.rs"]
mod panics;
#[path = "lab/rules.rs"]
mod rules;
#[path = "lab/run.rs"]
mod run;
#[path = "lab/tune.rs"]
mod tune;

const BIN: &str = env!("CARGO_BIN_EXE_corelane");
const MINUTE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// Namespaces a and b joined by a veth with two queues: 10.99.0.1 and .2, fd99::1 and ::2.
struct Lab {
    a: String,
    b: String,
    dir: PathBuf,
}

fn sh(command: &str) -> Output {
    Command::new("sh").args(["-c", command]).stdin(Stdio::null()).output().expect("sh")
}

fn must(command: &str) -> String {
    let out = sh(command);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{command}\n{text}{}", String::from_utf8_lossy(&out.stderr));
    text
}

impl Lab {
    fn new() -> Option<Lab> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() || !sh("ip -V").status.success() {
            testing::skip("needs root and iproute2");
            return None;
        }
        let id = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(format!("corelane-lab-{id}"));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("index.html"), "<p>home").unwrap();
        let lab = Lab { a: format!("clt-a-{id}"), b: format!("clt-b-{id}"), dir };
        let (a, b) = (&lab.a, &lab.b);
        must(&format!("ip netns add {a} && ip netns add {b}"));
        must(&format!(
            "ip link add va netns {a} numtxqueues 2 numrxqueues 2 type veth peer name vb netns {b} numtxqueues 2 numrxqueues 2"
        ));
        for (ns, dev, n) in [(a, "va", 1), (b, "vb", 2)] {
            must(&format!(
                "ip -n {ns} link set lo up && ip -n {ns} link set {dev} up && ip -n {ns} addr add 10.99.0.{n}/24 dev {dev} \
                 && ip -n {ns} addr add fd99::{n}/64 dev {dev} nodad"
            ));
            // The peer's AF_XDP cannot take frames longer than the MTU.
            sh(&format!("ip netns exec {ns} ethtool -K {dev} tso off gso off"));
        }
        Some(lab)
    }

    fn file(&self, name: &str, bytes: usize) -> Vec<u8> {
        let mut x = bytes as u64 + 1;
        let data: Vec<u8> = (0..bytes)
            .map(|_| {
                x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (x >> 56) as u8
            })
            .collect();
        std::fs::write(self.dir.join(name), &data).unwrap();
        data
    }

    /// `corelane ARGS` in a namespace, once it says that it is ready.
    fn serve(&self, ns: &str, args: &str) -> Running {
        self.serve_and_say(ns, args).0
    }

    /// The same, and the line that it says then.
    fn serve_and_say(&self, ns: &str, args: &str) -> (Running, String) {
        let mut child = Command::new("ip")
            .args(["netns", "exec", ns, BIN, "serve", self.dir.to_str().unwrap()])
            .args(args.split_whitespace())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = Vec::new();
        let out = child.stdout.as_mut().unwrap();
        let mut byte = [0];
        while line.last() != Some(&b'\n') && matches!(out.read(&mut byte), Ok(1)) {
            line.push(byte[0]);
        }
        let running = Running(child);
        let line = String::from_utf8_lossy(&line).into_owned();
        if !line.starts_with("serving") {
            panic!("serve {args}: {}", running.failure());
        }
        (running, line)
    }

    fn curl(&self, ns: &str, url: &str) -> Vec<u8> {
        let out = Command::new("ip")
            .args(["netns", "exec", ns, "curl", "-sS", "--fail", "-m", "60", url])
            .output()
            .expect("curl");
        assert!(out.status.success(), "curl {url}: {}", String::from_utf8_lossy(&out.stderr));
        out.stdout
    }

    /// Runs `f` with this thread in a namespace.
    fn within<T: Send>(&self, ns: &str, f: impl FnOnce() -> T + Send) -> T {
        let path = Path::new("/var/run/netns").join(ns);
        std::thread::scope(|s| {
            s.spawn(move || {
                let file = std::fs::File::open(path).unwrap();
                let kind = Some(rustix::thread::LinkNameSpaceType::Network);
                rustix::thread::move_into_link_name_space(file.as_fd(), kind).unwrap();
                f()
            })
            .join()
            .unwrap()
        })
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        sh(&format!("ip netns del {}; ip netns del {}", self.a, self.b));
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

struct Running(Child);

impl Running {
    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Ends it by SIGINT; its exit code.
    fn stop(self) -> Option<i32> {
        self.signal(rustix::process::Signal::INT);
        self.stop_code()
    }

    /// Ends it by SIGINT; what it said on standard error.
    fn stop_and_read(mut self) -> String {
        self.signal(rustix::process::Signal::INT);
        self.rest()
    }

    /// Its exit code, once it ends by itself.
    fn stop_code(mut self) -> Option<i32> {
        interfaces::until("the program has not ended", || !matches!(self.0.try_wait(), Ok(None)));
        self.0.wait().unwrap().code()
    }

    /// The next line on standard error; empty at its end. What each server says before Linux 6.8, that it is not told of VLAN
    /// tags, is left out.
    fn says(&mut self) -> String {
        loop {
            let line = self.line();
            if !line.contains("tells in driver mode, from Linux 6.8 on") {
                return line;
            }
        }
    }

    /// Each line. A program that says nothing for a minute has hung.
    fn line(&mut self) -> String {
        let mut line = String::new();
        let mut byte = [0];
        let out = self.0.stderr.as_mut().unwrap();
        while !line.ends_with('\n') {
            let mut fds = [PollFd::new(out, PollFlags::IN)];
            assert_ne!(poll(&mut fds, Some(&MINUTE)), Ok(0), "nothing is said after {line:?}");
            if !matches!(out.read(&mut byte), Ok(1)) {
                break;
            }
            line.push(byte[0] as char);
        }
        line
    }

    /// What it says on standard error up to a line with `words`.
    fn says_until(&mut self, words: &str) -> String {
        let mut said = String::new();
        while !said.contains(words) {
            let line = self.says();
            assert!(!line.is_empty(), "it ended before it said {words:?}: {said}");
            said += &line;
        }
        said
    }

    /// What it says on standard error until it ends.
    fn rest(&mut self) -> String {
        let mut said = String::new();
        loop {
            let line = self.says();
            if line.is_empty() {
                return said;
            }
            said += &line;
        }
    }

    fn failure(mut self) -> String {
        let said = self.rest();
        format!("{:?}: {said}", self.stop_code())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

const BOTH: [&str; 2] = ["http://10.99.0.2", "http://[fd99::2]"];

fn fetch_all(lab: &Lab, ns: &str, hosts: &[&str]) {
    for (name, bytes) in [("zero", 0), ("one", 1), ("k64", 65_536), ("m16", 16 << 20)] {
        let data = lab.file(name, bytes);
        for host in hosts {
            assert!(lab.curl(ns, &format!("{host}/{name}")) == data, "{host}/{name} differs");
        }
    }
}

#[test]
fn files_over_xdp_on_one_lane_and_on_two() {
    let Some(lab) = Lab::new() else { return };
    for lanes in ["--lanes 1", "--lanes 2", "--lanes 2 --model paired", "--lanes 2 --model guarded"] {
        let server = lab.serve(&lab.b, &format!("--dev xdp:vb --port 80 {lanes}"));
        fetch_all(&lab, &lab.a, &BOTH);
        assert_eq!(server.stop(), Some(0), "{lanes}");
    }
}

#[test]
fn files_over_af_packet() {
    let Some(lab) = Lab::new() else { return };
    let _server = lab.serve(&lab.b, "--dev packet:vb --addr 10.99.0.3/24 --addr fd99::3/64 --port 80");
    fetch_all(&lab, &lab.a, &["http://10.99.0.3", "http://[fd99::3]"]);
}

#[test]
fn files_over_tap() {
    let Some(lab) = Lab::new() else { return };
    let _server = lab.serve(&lab.b, "--dev tap:t0 --addr 10.98.0.2/24 --addr fd98::2/64 --port 80");
    must(&format!("ip -n {0} addr add 10.98.0.1/24 dev t0 && ip -n {0} addr add fd98::1/64 dev t0 nodad", lab.b));
    fetch_all(&lab, &lab.b, &["http://10.98.0.2", "http://[fd98::2]"]);
}

/// A server whose last device is gone says so once, and ends with an error, so that a supervisor starts it again.
#[test]
fn an_interface_that_goes_is_told() {
    // A packet socket hears only that its interface went down.
    for (args, device, down_first) in [
        ("--dev xdp:vb --port 80", "vb", false),
        ("--dev xdp:vb --port 80", "vb", true),
        ("--dev packet:vb --addr 10.99.0.3/24", "vb", false),
        ("--dev packet:vb --addr 10.99.0.3/24", "vb", true),
        ("--dev tap:t0 --addr 10.98.0.2/24", "t0", false),
        ("--dev tap:t0 --addr 10.98.0.2/24", "t0", true),
    ] {
        let Some(lab) = Lab::new() else { return };
        let mut server = lab.serve(&lab.b, args);
        if down_first {
            must(&format!("ip -n {} link set {device} down && sleep 0.3", lab.b));
        }
        must(&format!("ip -n {} link del {device}", lab.b));
        let mut said = Vec::new();
        while let Some(line) = Some(server.says()).filter(|line| !line.is_empty()) {
            said.push(line);
        }
        let last = said.last().map_or("", String::as_str);
        assert!(last.contains(&format!("{device} is gone: start again when it is back")), "{args}: {said:?}");
        assert_eq!(said.iter().filter(|line| line.contains("is gone")).count(), 1, "{args}: {said:?}");
        assert_eq!(server.stop_code(), Some(1), "{args}");
    }
}

#[test]
fn addresses_that_are_not_ours_are_told() {
    let Some(lab) = Lab::new() else { return };
    let refused = |args: &str| {
        let out = sh(&format!("ip netns exec {} {BIN} serve {} {args}", lab.b, lab.dir.display()));
        assert_eq!(out.status.code(), Some(1), "{args}");
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    for args in ["--dev packet:vb --addr 10.99.0.2/24", "--dev tap:t0 --addr fd99::2/64"] {
        assert!(refused(args).contains("is the kernel's own address"), "{}", refused(args));
    }
    // The other end has them (RFC 5227, RFC 4862 5.4).
    for addr in ["10.99.0.1", "fd99::1"] {
        let mut server = lab.serve(&lab.b, &format!("--dev packet:vb --addr {addr}/24"));
        let line = server.says();
        assert!(line.contains(&format!("has our address {addr}, which is not used")), "{line}");
    }
    let mut server = lab.start(&lab.b, "--dev xdp:vb --addr 10.99.0.9/24");
    let line = server.says();
    assert!(line.contains("10.99.0.9 is no address of vb"), "{line}");
}

/// Both families, over every device that needs an interface of the kernel.
#[test]
fn load_reaches_the_kernel_over_both_families() {
    let Some(lab) = Lab::new() else { return };
    let kernel = Command::new("ip")
        .args(["netns", "exec", &lab.b, BIN, "serve", "--message", "64", "--kernel", "--port", "80"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut kernel = Running(kernel);
    // It is ready once it says so.
    assert_eq!(kernel.0.stdout.as_mut().unwrap().read(&mut [0]).unwrap(), 1);
    let packet = "--dev packet:va --addr 10.99.0.3/24 -c 8 --model paired";
    // veth picks queues as it likes: lanes that are done, or have nothing to do, hand over what is the others'.
    for (host, dev) in [
        ("10.99.0.2", "--dev xdp:va --lanes 2 -c 8"),
        ("[fd99::2]", "--dev xdp:va --lanes 2 -c 8 --model paired"),
        ("[fd99::2]", "--dev xdp:va --lanes 2 -c 8 --model guarded"),
        ("[fd99::2]", "--dev xdp:va --lanes 2 -c 1"),
        ("10.99.0.2", packet),
        ("[fd99::2]", "--dev packet:va --addr fd99::3/64 --lanes 2 -c 8"),
    ] {
        let trace = lab.dir.join("trace.pcapng");
        let command =
            format!("ip netns exec {} {BIN} load http://{host}/ {dev} -n 100 --json --pcap {}", lab.a, trace.display());
        let report: serde_json::Value = serde_json::from_str(&must(&command)).unwrap();
        assert_eq!((&report["connections"], &report["errors"]), (&100.into(), &serde_json::json!({})), "{host} {dev}");
        // Section header, then blocks.
        assert_eq!(std::fs::read(&trace).unwrap()[..4], 0x0a0d_0d0au32.to_le_bytes(), "{host} {dev}");
    }
}

#[test]
fn load_tools_find_no_error() {
    let Some(lab) = Lab::new() else { return };
    lab.file("one", 1);
    let server = lab.serve(&lab.b, "--dev xdp:vb --port 80");
    for host in BOTH {
        if sh("command -v ab").status.success() {
            let out = sh(&format!("ip netns exec {} ab -q -c 100 -n 20000 '{host}/one'", lab.a));
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            if !text.contains("Complete requests:      20000") || !text.contains("Failed requests:        0") {
                // Whether the server still lives, and what it has to say.
                server.signal(rustix::process::Signal::INT);
                panic!("{host}: {text}{}\n{}", String::from_utf8_lossy(&out.stderr), server.failure());
            }
        } else {
            testing::skip("ab is not installed");
        }
        if sh("command -v wrk").status.success() {
            let text = must(&format!("ip netns exec {} wrk -c 200 -d 2 '{host}/one'", lab.a));
            assert!(text.contains("Requests/sec") && !text.contains("Socket errors"), "{text}");
        } else {
            testing::skip("wrk is not installed");
        }
    }
    assert_eq!(server.stop(), Some(0));
    // The generator against a server on the kernel's TCP; the neighbour is cold.
    must(&format!("ip -n {} neigh flush all; ip -n {} neigh flush all", lab.a, lab.b));
    let python = format!("cd {} && exec ip netns exec {} python3 -m http.server 8080", lab.dir.display(), lab.b);
    let child = Command::new("sh").args(["-c", &python]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let _web = Running(child);
    let end = Instant::now() + Duration::from_secs(10);
    while !sh(&format!("ip netns exec {} curl -s http://127.0.0.1:8080/one", lab.b)).status.success() {
        assert!(Instant::now() < end, "python's web server does not start");
        std::thread::sleep(Duration::from_millis(50));
    }
    let text =
        must(&format!("ip netns exec {} {BIN} load http://10.99.0.2:8080/one --dev xdp:va -c 4 -n 100 --json", lab.a));
    assert!(text.contains("\"connections\": 100") && text.contains("\"errors\": {}"), "{text}");
}

#[test]
fn the_kernel_keeps_what_it_has_and_what_is_not_ours() {
    let Some(lab) = Lab::new() else { return };
    lab.file("one", 1);
    // A kernel connection on the port from before, whose listener has gone.
    let at = |port: u16| SocketAddr::from(([10, 99, 0, 2], port));
    let (listener, other) =
        lab.within(&lab.b, || (TcpListener::bind(at(80)).unwrap(), TcpListener::bind(at(8022)).unwrap()));
    let mut client = lab.within(&lab.a, || TcpStream::connect(at(80)).unwrap());
    let (mut server, _) = listener.accept().unwrap();
    drop(listener);

    let corelane = lab.serve(&lab.b, "--dev xdp:vb --port 80");
    let talk = |client: &mut TcpStream, server: &mut TcpStream| {
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut buf = [0; 5];
        client.write_all(b"hello").unwrap();
        server.read_exact(&mut buf).unwrap();
        server.write_all(b"there").unwrap();
        client.read_exact(&mut buf).unwrap();
        assert_eq!(&buf, b"there");
    };
    talk(&mut client, &mut server);
    // New ones are ours, other ports and ping are the kernel's.
    assert_eq!(lab.curl(&lab.a, "http://10.99.0.2/one").len(), 1);
    let mut ssh = lab.within(&lab.a, || TcpStream::connect(at(8022)).unwrap());
    let (mut sshd, _) = other.accept().unwrap();
    talk(&mut ssh, &mut sshd);
    talk(&mut client, &mut server);
    // While it runs, nobody else gets the port, and nobody else the interface.
    assert!(lab.within(&lab.b, || TcpListener::bind(at(80)).is_err()));
    let second = sh(&format!("ip netns exec {} {BIN} serve {} --dev xdp:vb --port 81", lab.b, lab.dir.display()));
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!((second.status.code(), text.lines().count()), (Some(1), 1), "{text}");
    assert!(text.contains("already runs the XDP program of another corelane"), "{text}");
    // kill -9: the interface is as it was, connections and all.
    corelane.signal(rustix::process::Signal::KILL);
    drop(corelane);
    assert!(!must(&format!("ip -n {} link show vb", lab.b)).contains("xdp"));
    talk(&mut client, &mut server);
    let again = lab.within(&lab.b, || TcpListener::bind(at(80)).unwrap());
    let _c = lab.within(&lab.a, || TcpStream::connect(at(80)).unwrap());
    again.accept().unwrap();
}

/// Connects to a server from one port of the client's address.
fn connect_from(port: u16, to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
    // The commands that other tests start meanwhile must not hold it open.
    let s = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    sockopt::set_socket_reuseaddr(&s, true).unwrap();
    bind(&s, &SocketAddr::from(([10, 99, 0, 1], port))).unwrap();
    connect(&s, &to).unwrap_or_else(|e| panic!("connecting from port {port}: {e}"));
    let s = TcpStream::from(s);
    s.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    s
}

/// Asks for `/one` and reads to the end.
fn ask(s: &mut TcpStream) -> std::io::Result<String> {
    s.write_all(b"GET /one HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    s.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[test]
fn tuples_that_the_kernel_has_in_time_wait_are_served() {
    const CLIENTS: u16 = 50;
    let Some(lab) = Lab::new() else { return };
    lab.file("one", 1);
    let at = SocketAddr::from(([10, 99, 0, 2], 80));
    let listener = lab.within(&lab.b, || TcpListener::bind(at).unwrap());
    let connect_all = || lab.within(&lab.a, || (0..CLIENTS).map(|n| connect_from(40_000 + n, at)).collect::<Vec<_>>());
    let mut clients = connect_all();
    for client in &mut clients {
        // The server closes first, so the TIME-WAIT is its own.
        let (mut server, _) = listener.accept().unwrap();
        server.write_all(b"bye").unwrap();
        drop(server);
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert_eq!(text, "bye");
    }
    drop((clients, listener));
    let flows = || lab.within(&lab.b, || io::netlink::kernel_flows(80, |_| true).unwrap());
    while flows().live > 0 {
        std::thread::yield_now();
    }
    assert_eq!(flows().time_wait, CLIENTS as usize);
    let corelane = lab.serve(&lab.b, "--dev xdp:vb --port 80");
    for mut client in connect_all() {
        let answer = ask(&mut client).unwrap_or_else(|e| panic!("{}: {e}", client.local_addr().unwrap()));
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let told = corelane.stop_and_read();
    assert!(told.contains("the kernel had 50 connections in TIME-WAIT on port 80"), "{told}");
}

#[test]
fn a_peer_that_forgot_its_connection_to_the_kernel_gets_a_new_one_from_us() {
    let Some(lab) = Lab::new() else { return };
    lab.file("one", 1);
    let at = SocketAddr::from(([10, 99, 0, 2], 80));
    let listener = lab.within(&lab.b, || TcpListener::bind(at).unwrap());
    let client = lab.within(&lab.a, || connect_from(40_000, at));
    let (server, _) = listener.accept().unwrap();
    drop(listener);
    // The client restarts: nothing that it says at its end arrives.
    must(&format!("ip -n {} link set va down", lab.a));
    rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
    drop(client);
    must(&format!("ip -n {} link set va up", lab.a));
    let corelane = lab.serve(&lab.b, "--dev xdp:vb --port 80");
    // The kernel's challenge ACK is answered by a RST, and the next SYN is ours.
    let mut client = lab.within(&lab.a, || connect_from(40_000, at));
    let answer = ask(&mut client).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(server);
    let told = corelane.stop_and_read();
    assert!(told.contains("the kernel still has 1 connections on port 80"), "{told}");
}

/// An address that goes and comes back, as between two machines that share it: the kernel has connections on it, and goes on with them.
#[test]
fn the_kernel_keeps_what_it_has_on_an_address_that_comes_back() {
    let Some(lab) = Lab::new() else { return };
    lab.file("one", 1);
    let (address, at) = ("10.99.0.60/24", SocketAddr::from(([10, 99, 0, 60], 80)));
    let has = |what: &str| must(&format!("ip -n {} addr {what} {address} dev vb", lab.b));
    has("add");
    let listener = lab.within(&lab.b, || TcpListener::bind(at).unwrap());
    let mut client = lab.within(&lab.a, || TcpStream::connect(at).unwrap());
    let (mut server, _) = listener.accept().unwrap();
    drop(listener);
    let mut talk = || -> std::io::Result<()> {
        for s in [&client, &server] {
            s.set_read_timeout(Some(Duration::from_secs(30)))?;
        }
        client.write_all(b"hello")?;
        server.read_exact(&mut [0; 5])?;
        server.write_all(b"there")?;
        client.read_exact(&mut [0; 5])
    };
    // The kernel's connections are looked for when the server starts, or it has never heard of the address before.
    for there in [true, false] {
        has(if there { "replace" } else { "del" });
        let corelane = lab.serve(&lab.b, "--dev xdp:vb --port 80");
        for n in 0..3 {
            if there || n > 0 {
                has("del");
                // Long enough that nothing is left to be looked for.
                std::thread::sleep(Duration::from_millis(1500));
            }
            has("add");
            interfaces::until("the address is served", || {
                sh(&format!("ip netns exec {} curl -s -m 5 http://{at}/one", lab.a)).status.success()
            });
            talk().unwrap_or_else(|e| panic!("{there}, {n}: {e}"));
        }
        assert_eq!(corelane.stop(), Some(0));
    }
}

#[test]
fn transit_to_the_same_port_passes() {
    let Some(lab) = Lab::new() else { return };
    lab.file("one", 1);
    let c = format!("{}-c", lab.b);
    let inner = || {
        must(&format!(
            "ip netns add {c} && ip link add vbc netns {b} type veth peer name vc netns {c} && ip -n {b} link set vbc up \
             && ip -n {c} link set vc up && ip -n {b} addr add 10.97.0.1/24 dev vbc && ip -n {c} addr add 10.97.0.2/24 dev vc \
             && ip -n {c} route add default via 10.97.0.1 && ip -n {a} route add 10.97.0.0/24 via 10.99.0.2 \
             && ip netns exec {b} sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'",
            a = lab.a,
            b = lab.b
        ));
        let _corelane = lab.serve(&lab.b, "--dev xdp:vb --port 80");
        let behind: SocketAddr = "10.97.0.2:80".parse().unwrap();
        let listener = lab.within(&c, || TcpListener::bind(behind).unwrap());
        let mut client = lab.within(&lab.a, || TcpStream::connect_timeout(&behind, Duration::from_secs(10)).unwrap());
        let (mut server, _) = listener.accept().unwrap();
        server.write_all(b"through").unwrap();
        let mut buf = [0; 7];
        client.read_exact(&mut buf).unwrap();
        assert_eq!(lab.curl(&lab.a, "http://10.99.0.2/one").len(), 1);
    };
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(inner));
    sh(&format!("ip netns del {c}"));
    if let Err(cause) = result {
        std::panic::resume_unwind(cause);
    }
}

#[test]
fn fragments_and_too_big_reach_our_flow() {
    let Some(lab) = Lab::new() else { return };
    let data = lab.file("m4", 4 << 20);
    let _corelane = lab.serve(&lab.b, "--dev xdp:vb --port 80");
    // A router with a smaller MTU between the client and us, made of policy: the route back is narrow for the kernel, so its
    // own packets to us are fragmented where DF allows, and our full-sized ones meet "too big".
    let c = format!("{}-r", lab.b);
    let inner = || {
        must(&format!(
            "ip netns add {c} && ip link add vac netns {a} type veth peer name vca netns {c} && ip -n {a} link set vac up mtu 1300 \
             && ip -n {c} link set vca up mtu 1300 && ip -n {a} addr add 10.96.0.1/24 dev vac && ip -n {c} addr add 10.96.0.2/24 dev vca \
             && ip netns exec {a} sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward' && ip -n {c} route add default via 10.96.0.1 \
             && ip -n {b} route add 10.96.0.0/24 via 10.99.0.1 \
             && ip netns exec {c} sh -c 'echo 3 >/proc/sys/net/ipv4/tcp_mtu_probing; echo 1460 >/proc/sys/net/ipv4/route/min_adv_mss' 2>/dev/null || true",
            a = lab.a,
            b = lab.b
        ));
        // The client offers a segment size that its own link does not take, so that ours are too big for the router.
        must(&format!("ip -n {c} route replace default via 10.96.0.1 advmss 1460"));
        assert!(lab.curl(&c, "http://10.99.0.2/m4") == data);
        // Fragments of the client's making: UDP-like sizes are no TCP's, so the request itself is cut by the router's link.
        must(&format!("ip -n {} route replace 10.99.0.2/32 dev va mtu lock 600", lab.a));
        must(&format!("ip netns exec {c} sh -c 'echo 1 >/proc/sys/net/ipv4/ip_no_pmtu_disc'"));
        let long = "x".repeat(3000);
        let out = must(&format!(
            "ip netns exec {c} curl -sS -m 20 -o /dev/null -w '%{{http_code}}' -H 'X-Long: {long}' http://10.99.0.2/m4"
        ));
        assert_eq!(out.trim(), "200");
    };
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(inner));
    sh(&format!("ip netns del {c}"));
    if let Err(cause) = result {
        std::panic::resume_unwind(cause);
    }
}

#[test]
fn a_foreign_program_is_refused_by_name() {
    let Some(lab) = Lab::new() else { return };
    let held = lab.within(&lab.b, || {
        let index = io::netlink::Netlink::open().unwrap().link("vb").unwrap().unwrap().index;
        let mut pass = io::bpf::Asm::default();
        pass.mov(0, 2).exit();
        let program = io::bpf::Program::load_xdp("firewall", &pass.finish(), false).unwrap();
        (program.attach(index, false).unwrap(), program)
    });
    let out = sh(&format!("ip netns exec {} {BIN} serve {} --dev xdp:vb --port 80", lab.b, lab.dir.display()));
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!((out.status.code(), text.lines().count()), (Some(1), 1), "{text}");
    assert!(text.contains("\"firewall\""), "{text}");
    drop(held);
    // A test beside this one that is just starting a program has the link as well until that program runs.
    interfaces::until("the program stays", || !must(&format!("ip -n {} -d link show vb", lab.b)).contains("prog/xdp"));
    lab.serve(&lab.b, "--dev xdp:vb --port 80").stop();
}

#[test]
fn a_signal_lets_a_download_finish() {
    let Some(lab) = Lab::new() else { return };
    let data = lab.file("m16", 16 << 20);
    let server = lab.serve(&lab.b, "--dev xdp:vb --port 80");
    let mut child = Command::new("ip")
        .args(["netns", "exec", &lab.a, "curl", "-sS", "-m", "60", "--limit-rate", "20M", "http://10.99.0.2/m16"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut got = vec![0; 1];
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut got).unwrap();
    server.signal(rustix::process::Signal::INT);
    out.read_to_end(&mut got).unwrap();
    assert!(got == data, "{} of {} bytes", got.len(), data.len());
    assert!(child.wait().unwrap().success());
    assert_eq!(server.stop_code(), Some(0));
}

/// Connections from the server's own machine come by `lo`, where no lane is: the kernel's TCP answers them.
#[test]
fn programs_on_this_machine_are_answered() {
    let Some(lab) = Lab::new() else { return };
    let data = lab.file("k64", 65_536);
    let (server, ready) = lab.serve_and_say(&lab.b, "--dev xdp:vb --port 80 --lanes 2");
    assert!(ready.contains("programs on this machine through the kernel"), "{ready}");
    for host in ["http://10.99.0.2", "http://[fd99::2]", "http://127.0.0.1", "http://[::1]"] {
        assert!(lab.curl(&lab.b, &format!("{host}/k64")) == data, "{host}");
    }
    for host in BOTH {
        assert!(lab.curl(&lab.a, &format!("{host}/k64")) == data, "{host}");
    }
    assert_eq!(server.stop(), Some(0));
    // Another program has the port on the loopback address: it keeps it.
    let other = lab.within(&lab.b, || TcpListener::bind("127.0.0.1:80").unwrap());
    let _server = lab.serve(&lab.b, "--dev xdp:vb --port 80");
    let _client = lab.within(&lab.b, || TcpStream::connect("127.0.0.1:80").unwrap());
    other.accept().unwrap();
    for ns in [&lab.a, &lab.b] {
        assert!(lab.curl(ns, "http://10.99.0.2/k64") == data);
    }
}

/// Any program over AF_XDP, the C libraries' too: where it does not take connections from its own machine, they are reset.
#[test]
fn programs_on_this_machine_are_reset_where_nobody_takes_them() {
    let Some(lab) = Lab::new() else { return };
    lab.within(&lab.b, || {
        let config = corelane::Config::from_toml("test", "[[ports]]\ndevice = \"xdp:vb\"\n").unwrap();
        let mut engine = corelane::Engine::start(&config).unwrap();
        let lane = engine.take_lane(0).unwrap().attach().unwrap();
        let _listener = lane.listen("[::]:80".parse().unwrap(), corelane::ListenOptions::default()).unwrap();
        let error = |addr: &str| {
            let mut stream = TcpStream::connect(addr)?;
            stream.set_read_timeout(Some(Duration::from_secs(30)))?;
            stream.read(&mut [0])
        };
        for addr in ["10.99.0.2:80", "[fd99::2]:80"] {
            assert_eq!(error(addr).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset, "{addr}");
        }
        let local = engine.local_connections().unwrap();
        assert!(engine.local_connections().is_none(), "one takes them");
        let _client = TcpStream::connect("10.99.0.2:80").unwrap();
        assert!(local.accept().unwrap().is_some() && local.accept().unwrap().is_none());
        drop(local);
        assert_eq!(error("10.99.0.2:80").unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    });
}

/// What slips past the XDP program meets silence, not a RST; nobody else gets the port.
#[test]
fn a_port_that_is_held_is_silent_towards_the_link() {
    let Some(lab) = Lab::new() else { return };
    for addr in ["10.99.0.2:81", "[fd99::2]:81"] {
        let addr: SocketAddr = addr.parse().unwrap();
        let (local, _held) = lab.within(&lab.b, || {
            let local = io::xdp::Local::new().unwrap();
            let held = local.hold(addr).unwrap();
            (local, held)
        });
        let limit = Duration::from_secs(2);
        let outside = lab.within(&lab.a, || TcpStream::connect_timeout(&addr, limit).unwrap_err());
        assert_eq!(outside.kind(), std::io::ErrorKind::TimedOut, "{addr}");
        assert!(local.accept().unwrap().is_none());
        let _inside = lab.within(&lab.b, || TcpStream::connect_timeout(&addr, limit * 10).unwrap());
        assert!(local.accept().unwrap().is_some());
        let anywhere = SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, 81));
        assert!(lab.within(&lab.b, || TcpListener::bind(anywhere).is_err()));
    }
}

#[test]
fn the_loopback_is_no_device() {
    let Some(lab) = Lab::new() else { return };
    let out = sh(&format!("ip netns exec {} {BIN} serve {} --dev xdp:lo", lab.b, lab.dir.display()));
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!((out.status.code(), out.stdout.is_empty()), (Some(1), true), "{text}");
    assert!(text.contains("by lo") && text.contains("corelane serve --kernel"), "{text}");
}

#[test]
fn a_load_that_was_cut_short_or_missed_its_rate_says_so() {
    let Some(lab) = Lab::new() else { return };
    let kernel = Command::new("ip")
        .args(["netns", "exec", &lab.b, BIN, "serve", "--message", "64", "--kernel", "--port", "80"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut kernel = Running(kernel);
    assert_eq!(kernel.0.stdout.as_mut().unwrap().read(&mut [0]).unwrap(), 1);
    let load = |args: &str| {
        let mut command = Command::new("ip");
        command.args([
            "netns",
            "exec",
            &lab.a,
            BIN,
            "load",
            "http://10.99.0.2/",
            "--dev",
            "xdp:va",
            "--json",
            "--events",
        ]);
        command.args(args.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(command.spawn().unwrap())
    };
    for (signal, code) in [(rustix::process::Signal::INT, 130), (rustix::process::Signal::TERM, 143)] {
        let mut running = load("-n 1000000000");
        // It has started.
        let mut out = running.0.stdout.take().unwrap();
        let mut text = vec![0; 40];
        out.read_exact(&mut text).unwrap();
        running.signal(signal);
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("\"interrupted\": true"), "{rest}");
        let said = running.says();
        assert!(said.contains("interrupted: ") && said.contains(" of 1,000,000,000 connections"), "{said}");
        assert_eq!(running.stop_code(), Some(code));
    }
    let mut running = load("--rate 5000000 -d 1 -c 16");
    let mut text = String::new();
    running.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(text.contains("\"interrupted\": false"), "{text}");
    let said = running.says();
    assert!(said.contains("5000000 connections a second were not kept"), "{said}");
    assert_eq!(running.stop_code(), Some(1));
}

#[test]
fn the_next_server_on_a_port_gets_its_handshakes_by_cookie_while_ours_drains() {
    let Some(lab) = Lab::new() else { return };
    let data = lab.file("m16", 16 << 20);
    must(&format!("ip netns exec {} sh -c 'echo 2 >/proc/sys/net/ipv4/tcp_syncookies'", lab.b));
    let server = lab.serve(&lab.b, "--dev xdp:vb --port 80");
    let mut child = Command::new("ip")
        .args(["netns", "exec", &lab.a, "curl", "-sS", "-m", "60", "--limit-rate", "4M", "http://10.99.0.2/m16"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut got = vec![0; 1];
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut got).unwrap();
    server.signal(rustix::process::Signal::INT);
    // As soon as nobody listens any more, another program may.
    let at = SocketAddr::from(([10, 99, 0, 2], 80));
    let begun = Instant::now();
    let listener = loop {
        match lab.within(&lab.b, || TcpListener::bind(at)) {
            Ok(listener) => break listener,
            Err(e) => assert!(begun.elapsed() < Duration::from_secs(30), "{e}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    // The lanes have told what is left within a tenth of a second or so.
    std::thread::sleep(Duration::from_secs(1));
    for n in 0..3 {
        let mut client = lab.within(&lab.a, || connect_from(41_000 + n, at));
        client.write_all(b"hello").unwrap();
        let (mut next, _) = listener.accept().unwrap();
        let mut buf = [0; 5];
        next.read_exact(&mut buf).unwrap();
        next.write_all(b"there").unwrap();
        client.read_exact(&mut buf).unwrap();
        assert_eq!(&buf, b"there");
    }
    out.read_to_end(&mut got).unwrap();
    assert!(got == data, "{} of {} bytes", got.len(), data.len());
    assert!(child.wait().unwrap().success());
    assert_eq!(server.stop_code(), Some(0));
}

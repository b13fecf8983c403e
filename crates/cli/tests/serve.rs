//! `corelane serve` as its operator sees it: what it says when, what signals do, how it meets limits. On the kernel's TCP,
//! which needs no privileges.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("corelane-serve-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Dir(path)
    }

    fn file(&self, name: &str, content: &str) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().expect("below the root")).expect("a directory");
        std::fs::write(path, content).expect("a file");
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Server {
    child: Child,
    port: u16,
    /// The first line on standard output; empty where it ended without one.
    ready: String,
}

impl Server {
    /// `corelane serve DIR --kernel ARGS`, with at most so many descriptors.
    fn start(dir: &std::path::Path, args: &[&str], descriptors: Option<u32>) -> Server {
        let mut server = Server::start_saying(dir, args, descriptors, Stdio::piped(), Stdio::piped());
        let said = server.child.stdout.as_mut().expect("piped");
        BufReader::new(said).read_line(&mut server.ready).expect("text");
        server
    }

    /// One that says what it says there, and may not serve yet.
    fn start_saying(
        dir: &std::path::Path,
        args: &[&str],
        descriptors: Option<u32>,
        stdout: Stdio,
        stderr: Stdio,
    ) -> Server {
        // Free a moment ago; whoever takes it in between makes the test fail, not pass.
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
        let program = env!("CARGO_BIN_EXE_corelane");
        let mut command = Command::new("sh");
        // Root would raise the limit again.
        let bounded = if rustix::process::geteuid().is_root() { "setpriv --bounding-set=-sys_resource" } else { "" };
        match descriptors {
            Some(n) => command.args(["-c", &format!("ulimit -n {n}; exec {bounded} \"$0\" \"$@\""), program]),
            None => command.args(["-c", "exec \"$0\" \"$@\"", program]),
        };
        command
            .args(["serve", dir.to_str().expect("a plain path"), "--kernel", "--port", &port.to_string()])
            .args(args);
        let child = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn().expect("sh runs");
        Server { child, port, ready: String::new() }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Its exit code and what it said on standard error.
    fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().expect("it ends");
        let mut said = String::new();
        self.child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
        (status.code(), said)
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
        stream
    }

    fn get(&self, path: &str) -> String {
        let mut stream = self.connect();
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").expect("it takes requests");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        answer
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[test]
fn a_hangup_opens_the_root_again() {
    let dir = Dir::new("hangup");
    dir.file("v1/f", "the first");
    dir.file("v2/f", "the second");
    let link = dir.0.join("current");
    std::os::unix::fs::symlink("v1", &link).expect("a link");
    let server = Server::start(&link, &[], None);
    assert!(server.get("/f").ends_with("the first"));
    std::fs::remove_file(&link).expect("it was there");
    std::os::unix::fs::symlink("v2", &link).expect("a link");
    assert!(server.get("/f").ends_with("the first"), "not before it is asked for");
    server.signal(Signal::HUP);
    let end = Instant::now() + Duration::from_secs(30);
    while !server.get("/f").ends_with("the second") {
        assert!(Instant::now() < end, "still the first");
        std::thread::sleep(Duration::from_millis(20));
    }
    // A root that is gone is no reason to stop, or to serve nothing.
    std::fs::remove_file(&link).expect("it was there");
    server.signal(Signal::HUP);
    std::thread::sleep(Duration::from_millis(300));
    assert!(server.get("/f").ends_with("the second"));
    server.signal(Signal::TERM);
    let (code, said) = server.end();
    assert_eq!(code, Some(0));
    assert!(said.contains("cannot be opened again: no such file or directory"), "{said}");
}

#[test]
fn a_directory_without_an_index_is_told_at_the_start() {
    let dir = Dir::new("index");
    dir.file("a.txt", "a");
    let server = Server::start(&dir.0, &[], None);
    assert!(server.get("/").starts_with("HTTP/1.1 403 "));
    server.signal(Signal::INT);
    let (_, said) = server.end();
    assert!(said.contains("has no index.html: / answers 403 (--list shows what is there)"), "{said}");
    let server = Server::start(&dir.0, &["--list"], None);
    let list = server.get("/");
    assert!(list.starts_with("HTTP/1.1 200 ") && list.contains("<a href=\"./a.txt\">"), "{list}");
    server.signal(Signal::INT);
    assert_eq!(server.end(), (Some(0), String::new()));
    dir.file("index.html", "<p>home");
    let server = Server::start(&dir.0, &[], None);
    assert!(server.get("/").ends_with("<p>home"));
    server.signal(Signal::INT);
    assert_eq!(server.end(), (Some(0), String::new()));
}

/// A thread that panics ends the server. Debug builds panic where `CORELANE_PANIC` says so.
#[test]
fn a_panic_ends_a_server_on_the_kernels_tcp() {
    let dir = Dir::new("panic");
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port().to_string();
    let out = Command::new(env!("CARGO_BIN_EXE_corelane"))
        .args(["serve", dir.0.to_str().expect("a plain path"), "--kernel", "--lanes", "2", "--port", &port])
        .env("CORELANE_PANIC", format!("serve:{}", dir.0.display()))
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(101), "{said}");
    let lines: Vec<_> = said.lines().filter(|line| line.contains("please report this")).collect();
    assert!(matches!(lines[..], [line] if line.starts_with("corelane: thread serve-")), "{said}");
}

/// Whatever the limit: what says that it serves does, and what does not says which limit it met.
#[test]
fn ready_is_said_only_by_a_server_that_serves() {
    let dir = Dir::new("ready");
    dir.file("index.html", "<p>home");
    let (mut served, mut named) = (0, 0);
    for descriptors in 4..14 {
        let server = Server::start(&dir.0, &["--lanes", "2"], Some(descriptors));
        if server.ready.starts_with("serving ") {
            served += 1;
            // Not one that fails a moment later.
            std::thread::sleep(Duration::from_millis(100));
            server.signal(Signal::TERM);
            assert_eq!(server.end(), (Some(0), String::new()), "{descriptors} descriptors");
        } else {
            let (code, said) = server.end();
            assert_ne!(code, Some(0), "{descriptors} descriptors: {said}");
            assert!(!said.contains("name a directory"), "{descriptors} descriptors: {said}");
            named += u32::from(said.contains("raise this process's limit of open files (ulimit -n"));
        }
    }
    assert!(served > 0 && named > 0, "{served} served, {named} named the limit");
}

#[test]
fn requests_without_a_descriptor_are_refused_and_told_once() {
    let dir = Dir::new("descriptors");
    dir.file("index.html", "<p>home");
    dir.file("other", "x");
    let server = Server::start(&dir.0, &[], Some(24));
    assert!(server.ready.starts_with("serving "), "{}", server.ready);
    let mut first = server.connect();
    let mut ask = |path: &str| {
        write!(first, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").expect("it takes requests");
        let mut answer = [0; 12];
        first.read_exact(&mut answer).expect("an answer");
        let mut rest = [0; 4096];
        let _ = first.read(&mut rest).expect("the rest");
        String::from_utf8_lossy(&answer).into_owned()
    };
    assert_eq!(ask("/"), "HTTP/1.1 200");
    // Connections that hold a descriptor each, until there is none left.
    let held: Vec<TcpStream> = (0..40).map(|_| server.connect()).collect();
    for mut stream in &held {
        stream.write_all(b"GET /").expect("it takes requests");
    }
    let end = Instant::now() + Duration::from_secs(9);
    let mut path = 0;
    while ask(&format!("/other?{path}")) != "HTTP/1.1 503" {
        assert!(Instant::now() < end, "a descriptor was left");
        path += 1;
        std::thread::sleep(Duration::from_millis(20));
        // A file that was found is cached: let it be looked for again.
        std::fs::remove_file(dir.0.join("other"))
            .and_then(|()| std::fs::write(dir.0.join("other"), "x"))
            .expect("a file");
    }
    for _ in 0..3 {
        assert_eq!(ask("/other"), "HTTP/1.1 503");
    }
    for stream in &held {
        let _ = stream.shutdown(Shutdown::Both);
    }
    drop(held);
    server.signal(Signal::TERM);
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
    let lines = |what: &str| said.lines().filter(|line| line.contains(what)).count();
    assert_eq!(lines("a request was answered 503: too many open files: raise"), 1, "{said}");
    assert_eq!(lines("connections wait to be accepted: too many open files: raise"), 1, "{said}");
}

/// A pipe that takes no byte more: its reader has stopped.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let flags = rustix::fs::fcntl_getfl(&writer).expect("a pipe");
    rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK).expect("a pipe");
    while writer.write(&[b'x'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, flags).expect("a pipe");
    (reader, writer)
}

/// A directory below which `f` is served, until what it leads to is taken away.
fn linked(name: &str) -> (Dir, PathBuf) {
    let dir = Dir::new(name);
    dir.file("v1/f", "a file");
    let link = dir.0.join("current");
    std::os::unix::fs::symlink("v1", &link).expect("a link");
    (dir, link)
}

/// Provokes a warning, and sees that it goes on serving.
fn serves_on_after_a_warning(server: &Server, link: &std::path::Path) {
    std::fs::remove_file(link).expect("it was there");
    server.signal(Signal::HUP);
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(20));
        assert!(server.get("/f").ends_with("a file"));
    }
}

#[test]
fn a_log_that_nobody_takes_is_lost_and_counted() {
    let full_disk = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
    let (_, gone) = std::io::pipe().expect("a pipe");
    for (what, log) in [("disk", Stdio::from(full_disk)), ("gone", Stdio::from(gone))] {
        let (_dir, link) = linked(what);
        let mut server = Server::start_saying(&link, &["--json", "--list", "--lanes", "2"], None, Stdio::piped(), log);
        let mut said = BufReader::new(server.child.stdout.take().expect("piped"));
        let mut line = String::new();
        said.read_line(&mut line).expect("text");
        assert!(line.contains("\"ready\""), "{what}: {line}");
        serves_on_after_a_warning(&server, &link);
        server.signal(Signal::TERM);
        said.read_to_string(&mut line).expect("text");
        assert_eq!(server.child.wait().expect("it ends").code(), Some(0), "{what}: {line}");
        assert!(line.contains("\"log_lines_lost\":2"), "{what}, a warning of each lane: {line}");
    }
}

#[test]
fn a_reader_of_the_log_that_stands_still_holds_nobody_up() {
    let (_dir, link) = linked("still");
    let (mut reader, log) = full_pipe();
    let mut server = Server::start_saying(&link, &["--list"], None, Stdio::piped(), Stdio::from(log));
    let mut ready = String::new();
    BufReader::new(server.child.stdout.as_mut().expect("piped")).read_line(&mut ready).expect("text");
    assert!(ready.starts_with("serving "), "{ready}");
    serves_on_after_a_warning(&server, &link);
    // Once the reader goes on, the warning is the last that it reads.
    let reading = std::thread::spawn(move || {
        let mut said = String::new();
        reader.read_to_string(&mut said).map(|_| said)
    });
    server.signal(Signal::TERM);
    assert_eq!(server.child.wait().expect("it ends").code(), Some(0));
    let said = reading.join().expect("no panic").expect("text");
    assert!(said.trim_start_matches('x').contains("cannot be opened again"), "{}", said.trim_start_matches('x'));
}

#[test]
fn readers_of_both_outputs_that_stand_still_hold_nobody_up() {
    let (_dir, link) = linked("both");
    let ((_said, output), (_log, log)) = (full_pipe(), full_pipe());
    let mut server = Server::start_saying(&link, &["--list"], None, Stdio::from(output), Stdio::from(log));
    let end = Instant::now() + Duration::from_secs(30);
    while TcpStream::connect(("127.0.0.1", server.port)).is_err() {
        assert!(Instant::now() < end, "it does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    serves_on_after_a_warning(&server, &link);
    server.signal(Signal::TERM);
    assert_eq!(server.child.wait().expect("it ends").code(), Some(0));
}

//! Where the built libraries are, compilers, and namespaces to run programs in. What needs the latter is skipped without root.
#![allow(dead_code)]

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

pub fn include() -> PathBuf {
    root().join("crates/capi/include")
}

pub fn sh(command: &str) -> Output {
    Command::new("sh").args(["-c", command]).stdin(Stdio::null()).output().expect("sh")
}

pub fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

pub fn must(command: &str) -> String {
    let out = sh(command);
    assert!(out.status.success(), "{command}\n{}", text(&out));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Whether a program is there; where not, what needs it is skipped.
pub fn have(program: &str) -> bool {
    let found = sh(&format!("command -v {program}")).status.success();
    if !found {
        testing::skip(format_args!("needs {program}"));
    }
    found
}

/// A folder that goes with the test.
pub struct Temp(pub PathBuf);

impl Temp {
    pub fn new() -> Temp {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("corelane-capi-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        Temp(dir)
    }

    pub fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, contents).unwrap();
        path
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Where cargo has put the libraries: beside the tests themselves.
pub fn built() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// A prefix into which the libraries that were built for the tests are installed, once a process.
pub fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME"));
        must(&format!("'{}/install.sh' --from '{}' '{}'", root().display(), built().display(), prefix.display()));
        prefix
    })
}

/// A program of `tests/c`, compiled with these flags against the installed libraries.
pub fn compile(source: &Path, out: &Path, flags: &str, library: &str) {
    let (prefix, source, out) = (prefix().display(), source.display(), out.display());
    must(&format!(
        "cc -std=c99 -g -Wall -Wextra -Werror -pedantic {flags} -I'{prefix}/include' '{source}' -o '{out}' \
         -Wl,-rpath,'{prefix}/lib' {} -lpthread",
        library.replace("PREFIX", &prefix.to_string()),
    ));
}

/// The shared libraries of ours that a program asks for when it starts.
pub fn needed(program: &Path) -> Vec<String> {
    let said = must(&format!("readelf -d '{}'", program.display()));
    let names = said.lines().filter(|line| line.contains("(NEEDED)")).filter_map(|line| line.split(['[', ']']).nth(1));
    names.filter(|name| name.contains("mtcp") || name.contains("megapipe")).map(str::to_owned).collect()
}

/// Two namespaces joined by a veth with two queues, 10.98.0.1 and .2, fd98::1 and ::2; in the first one also a TAP of its own, `t0`,
/// with 10.9.0.1 and fd09::1.
pub struct Lab {
    pub a: String,
    pub b: String,
    pub temp: Temp,
}

impl Lab {
    pub fn new() -> Option<Lab> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() || !sh("ip -V").status.success() {
            testing::skip("needs root and iproute2");
            return None;
        }
        let id = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let lab = Lab { a: format!("clc-a-{id}"), b: format!("clc-b-{id}"), temp: Temp::new() };
        let (a, b) = (&lab.a, &lab.b);
        must(&format!("ip netns add {a} && ip netns add {b}"));
        must(&format!(
            "ip link add va netns {a} numtxqueues 2 numrxqueues 2 type veth peer name vb netns {b} numtxqueues 2 numrxqueues 2"
        ));
        for (ns, dev, n) in [(a, "va", 1), (b, "vb", 2)] {
            must(&format!(
                "ip -n {ns} link set lo up && ip -n {ns} link set {dev} up && ip -n {ns} addr add 10.98.0.{n}/24 dev {dev} \
                 && ip -n {ns} addr add fd98::{n}/64 dev {dev} nodad"
            ));
            // The peer's AF_XDP cannot take frames longer than the MTU.
            sh(&format!("ip netns exec {ns} ethtool -K {dev} tso off gso off"));
        }
        must(&format!(
            "ip netns exec {a} ip tuntap add t0 mode tap multi_queue && ip -n {a} addr add 10.9.0.1/24 dev t0 \
             && ip -n {a} addr add fd09::1/64 dev t0 nodad && ip -n {a} link set t0 up"
        ));
        Some(lab)
    }

    /// Runs a command in a namespace to its end.
    pub fn run(&self, ns: &str, command: &str) -> Output {
        Command::new("ip")
            .args(["netns", "exec", ns, "sh", "-c", &format!("cd '{}' && {command}", self.temp.0.display())])
            .stdin(Stdio::null())
            .output()
            .expect("ip")
    }

    /// The same, which must succeed.
    pub fn ok(&self, ns: &str, command: &str) -> Vec<u8> {
        let out = self.run(ns, command);
        assert!(out.status.success(), "{command}: {}\n{}", out.status, text(&out));
        out.stdout
    }

    /// Starts a program, and waits for its first line.
    pub fn start(&self, ns: &str, command: &str) -> Running {
        let mut child = Command::new("ip")
            .args(["netns", "exec", ns, "sh", "-c", &format!("cd '{}' && exec {command}", self.temp.0.display())])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("ip");
        let out = child.stdout.as_mut().unwrap();
        let (mut line, mut byte) = (Vec::new(), [0]);
        while byte != *b"\n" && matches!(out.read(&mut byte), Ok(1)) {
            line.push(byte[0]);
        }
        if line.is_empty() {
            let mut said = String::new();
            child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            panic!("{command}: {}: {said}", child.wait().unwrap());
        }
        Running(child)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        sh(&format!("ip netns del {}; ip netns del {}", self.a, self.b));
    }
}

pub struct Running(Child);

impl Running {
    /// Reads standard error until it says `words`.
    pub fn says(&mut self, words: &str) {
        let err = self.0.stderr.as_mut().unwrap();
        let (mut said, mut byte) = (Vec::new(), [0]);
        while !String::from_utf8_lossy(&said).contains(words) {
            assert!(matches!(err.read(&mut byte), Ok(1)), "{words}: {}", String::from_utf8_lossy(&said));
            said.push(byte[0]);
        }
    }

    /// What it says on standard output and standard error until it ends, and its exit code.
    pub fn rest(mut self) -> (String, String, Option<i32>) {
        let (mut out, mut err) = (String::new(), String::new());
        let (mut from_out, mut from_err) = (self.0.stdout.take().unwrap(), self.0.stderr.take().unwrap());
        std::thread::scope(|s| {
            s.spawn(|| from_err.read_to_string(&mut err).unwrap());
            from_out.read_to_string(&mut out).unwrap();
        });
        (out, err, self.0.wait().unwrap().code())
    }

    /// Ends it by SIGINT; its exit code, `None` where it does not end.
    pub fn stop(self) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        self.ended(20)
    }

    /// Its exit code once it has ended by itself; `None` where it does not, in so many seconds.
    pub fn ended(mut self, seconds: u32) -> Option<i32> {
        for _ in 0..seconds * 50 {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        None
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

/// Bytes that repeat nowhere near.
pub fn noise(bytes: usize) -> Vec<u8> {
    let mut x = bytes as u64 + 1;
    let next = || {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (x >> 56) as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

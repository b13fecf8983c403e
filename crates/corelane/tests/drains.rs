//! Ports whose listeners have gone, on an interface that the kernel keeps using.
//!
//! Needs root and iproute2; skipped without.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use corelane::{Config, ConnectOptions, Engine, Lane, ListenOptions};

/// How long an answer is waited for that does not come where something is wrong.
const PATIENCE: Duration = Duration::from_secs(5);

fn must(command: &str) {
    assert!(Command::new("sh").args(["-c", command]).status().is_ok_and(|s| s.success()), "{command}");
}

/// Two namespaces joined by a veth with two queues: `va` with 10.97.0.1 and `vb` with 10.97.0.2.
struct Lab {
    a: String,
    b: String,
}

impl Lab {
    fn new() -> Option<Lab> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() || Command::new("ip").arg("-V").output().is_err() {
            testing::skip("needs root and iproute2");
            return None;
        }
        let id = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let lab = Lab { a: format!("cld-a-{id}"), b: format!("cld-b-{id}") };
        let (a, b) = (&lab.a, &lab.b);
        must(&format!(
            "ip netns add {a} && ip netns add {b} && \
             ip link add va netns {a} numtxqueues 2 numrxqueues 2 type veth peer name vb netns {b} numtxqueues 2 numrxqueues 2"
        ));
        for (ns, dev, n) in [(a, "va", 1), (b, "vb", 2)] {
            must(&format!(
                "ip -n {ns} link set lo up && ip -n {ns} link set {dev} up && ip -n {ns} addr add 10.97.0.{n}/24 dev {dev}"
            ));
        }
        Some(lab)
    }

    /// Runs `f` on a thread in a namespace.
    fn within<T: Send>(&self, ns: &str, f: impl FnOnce() -> T + Send) -> T {
        let run = || {
            let file = std::fs::File::open(format!("/var/run/netns/{ns}")).unwrap();
            let kind = Some(rustix::thread::LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(file.as_fd(), kind).unwrap();
            f()
        };
        thread::scope(|s| s.spawn(run).join()).unwrap_or_else(|cause| std::panic::resume_unwind(cause))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for ns in [&self.a, &self.b] {
            let _ = Command::new("ip").args(["netns", "del", ns]).status();
        }
    }
}

fn ours(port: u16) -> SocketAddr {
    ([10, 97, 0, 1], port).into()
}

fn theirs(port: u16) -> SocketAddr {
    ([10, 97, 0, 2], port).into()
}

/// A server of the kernel's that gives back a byte of each connection.
fn echo(listener: TcpListener) {
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut byte = [0];
            let _ = (&stream).read_exact(&mut byte).and_then(|()| (&stream).write_all(&byte));
            // Until the peer has ended it.
            let _ = (&stream).read(&mut byte);
        }
    });
}

fn go_on(lane: &Lane, for_ms: u32) {
    for _ in 0..for_ms / 5 {
        lane.advance();
        thread::sleep(Duration::from_millis(5));
    }
}

/// A port of active opens that was listened on, with a connection of the listener's still open.
#[test]
fn connections_are_opened_from_a_port_that_drains() {
    let Some(lab) = Lab::new() else { return };
    echo(lab.within(&lab.b, || TcpListener::bind(theirs(7777)).unwrap()));
    for model in ["inline", "guarded", "paired"] {
        lab.within(&lab.a, || {
            let text = format!("model = \"{model}\"\nlocal_ports = [8192, 8195]\n[[ports]]\ndevice = \"xdp:va\"\n");
            let mut engine = Engine::start(&Config::from_toml("drains", &text).unwrap()).unwrap();
            let lane = engine.take_lane(0).unwrap().attach().unwrap();
            let connect = |from: Option<u16>, when: &str| {
                let options = ConnectOptions { bind: from.map(ours), timeout: Some(PATIENCE) };
                let mut stream = lane
                    .connect_with(theirs(7777), options)
                    .unwrap_or_else(|e| panic!("{model}, {when}, from {from:?}: {e}"));
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream.write_all(b"x").unwrap();
                let read = stream.read(&mut [0]);
                assert!(matches!(read, Ok(1)), "{model}, {when}, from {from:?}: {read:?}");
                // Its tuple is free at once.
                stream.abort().unwrap();
            };
            connect(Some(8193), "before");
            let listener = lane.listen(ours(8193), ListenOptions::default()).unwrap();
            let (asked, told) = channel();
            let client = thread::scope(|s| {
                s.spawn(|| asked.send(lab.within(&lab.b, || TcpStream::connect(ours(8193)).unwrap())).unwrap());
                let (stream, _) = listener.accept().unwrap();
                (stream, told.recv().unwrap())
            });
            let (stream, mut peer) = client;
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            drop(listener);
            for _ in 0..40 {
                connect(Some(8193), "draining");
                // Those of the stack's choice, among which that port is.
                connect(None, "draining");
                go_on(&lane, 25);
            }
            // Meanwhile the connection that is left is as it was, and the kernel has the port.
            peer.write_all(b"y").unwrap();
            assert_eq!(stream.read(&mut [0]).unwrap(), 1, "{model}");
            TcpListener::bind(ours(8193)).unwrap();
            drop((stream, peer));
            go_on(&lane, 25);
            connect(Some(8193), "afterwards");
            drop(lane);
            engine.shutdown();
        });
    }
}

/// A lane that has a connection and takes no turns, beside one that listens and closes without end. With 128 addresses a listener takes
/// 128 of an interface's 16,384 places.
#[test]
fn a_lane_that_stands_still_does_not_use_up_the_places_of_ports() {
    let Some(lab) = Lab::new() else { return };
    let more: String = (2..129).map(|n| format!("addr add 10.97.1.{n}/32 dev va\n")).collect();
    let batch = std::env::temp_dir().join(&lab.a);
    std::fs::write(&batch, more).unwrap();
    must(&format!("ip -n {} -batch {}", lab.a, batch.display()));
    std::fs::remove_file(&batch).unwrap();
    echo(lab.within(&lab.b, || TcpListener::bind(theirs(7777)).unwrap()));
    lab.within(&lab.a, || {
        let text = "lanes = 2\nmodel = \"inline\"\n[[ports]]\ndevice = \"xdp:va\"\n";
        let mut engine = Engine::start(&Config::from_toml("drains", text).unwrap()).unwrap();
        let ends = [0, 1].map(|n| engine.take_lane(n).unwrap());
        let [first, second] = ends;
        let ((up, is_up), (over, is_over)) = (channel(), channel::<()>());
        thread::scope(|s| {
            s.spawn(move || {
                let lane = first.attach().unwrap();
                let stream = lane.connect(theirs(7777)).unwrap();
                up.send(()).unwrap();
                let _ = is_over.recv();
                drop(stream);
            });
            is_up.recv().unwrap();
            let lane = second.attach().unwrap();
            let anywhere = |port: u16| SocketAddr::from(([0; 4], port));
            for n in 0..300 {
                let listener = lane.listen(anywhere(1024 + n), ListenOptions::default());
                drop(listener.unwrap_or_else(|e| panic!("listen {n}: {e}")));
                go_on(&lane, 5);
            }
            drop((lane, over));
        });
        engine.shutdown();
    });
}

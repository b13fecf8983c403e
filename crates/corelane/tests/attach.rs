//! A lane whose clients are other processes: they attach, serve, and are killed; one process runs the lane.
//!
//! The test program is its own client: started anew with descriptors, it does what an environment variable says.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::{App, Attached, Facts, Join, LaneStats, Waiting, Welcome};
use corelane::{Config, Engine, Lane, Model};
use runtime::{Door, Lent};
use rustix::process::{PidfdFlags, pidfd_open};
use socket::{Errno, SockOption, SocketConfig};

const WHAT: &str = "CORELANE_TEST_CLIENT";
/// The descriptor of the client's socket.
const AT: i32 = 3;
const SERVER: &str = "10.0.0.1:80";

fn address() -> SocketAddr {
    SERVER.parse().unwrap()
}

/// What a process is that attaches: the end of its first thread.
fn attach(socket: &UnixStream) -> App {
    let (join, welcome) = Join::receive(socket).unwrap();
    let Welcome { lane, ports, send_buffer, receive_buffer } = welcome;
    let attached = Attached::open(join).unwrap();
    let facts =
        Facts { index: lane as u16, core: None, stats: Arc::new(LaneStats::default()), ports, jobs: 2048, gate: None };
    let config = SocketConfig { send_buffer, receive_buffer, ..SocketConfig::default() };
    attached.app(0, config, Waiting { spin_us: 0, busy: false }, facts).unwrap().unwrap()
}

/// Serves until it is killed, or the lane is over: the length of what came, and all of it again.
fn serve(app: &mut App) {
    let listener = app.sockets.socket(false).unwrap();
    app.sockets.set_option(listener, SockOption::ReusePort(true)).unwrap();
    let at = protocol::Endpoint { addr: address().ip().into(), port: address().port() };
    app.sockets.bind(listener, at).unwrap();
    app.listen(listener, 1024).unwrap();
    println!("ready");
    loop {
        let (conn, _) = match app.accept(listener, false) {
            Ok(new) => new,
            Err(Errno::ENETDOWN) => return,
            Err(e) => panic!("accept: {e}"),
        };
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = app.recv(conn, &mut bytes, Default::default()) {
            if app.send(conn, &bytes[..n], client::Transfer { whole: true, ..Default::default() }).is_err() {
                break;
            }
        }
        let _ = app.close(conn, false);
    }
}

/// What the program does where it was started as a client.
#[test]
fn a_client() {
    let Ok(what) = std::env::var(WHAT) else { return };
    // SAFETY: the descriptor was left open for this process, and nobody else has it here.
    let socket = UnixStream::from(unsafe { OwnedFd::from_raw_fd(AT) });
    let mut app = attach(&socket);
    match &*what {
        "serve" => serve(&mut app),
        other => panic!("{other}"),
    }
}

/// A client, which is killed at the end of the test at the latest.
struct Client(Child);

impl Client {
    fn start(door: &Door, what: &str, lent: Lent) -> Client {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["a_client", "--exact", "--nocapture"]).env(WHAT, what).stdout(std::process::Stdio::piped());
        let fd = theirs.as_raw_fd();
        // SAFETY: between fork and exec, dup2 alone is called.
        unsafe {
            std::os::unix::process::CommandExt::pre_exec(&mut command, move || {
                if libc::dup2(fd, AT) < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
            });
        }
        let child = command.spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let join = door.admit(pidfd_open(pid, PidfdFlags::empty()).unwrap(), lent).unwrap();
        let welcome = Welcome { lane: 0, ports: 40_000, send_buffer: 262_144, receive_buffer: 65_536 };
        join.send(&ours, welcome).unwrap();
        Client(child)
    }

    /// Until it says that it is ready.
    fn ready(&mut self) {
        let mut said = Vec::new();
        let out = self.0.stdout.as_mut().unwrap();
        let mut byte = [0];
        while !said.ends_with(b"ready\n") {
            assert_eq!(out.read(&mut byte).unwrap(), 1, "it has ended: {}", String::from_utf8_lossy(&said));
            said.push(byte[0]);
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two ends of a wire: the lane that clients come to, run by a thread of its own, and one of this thread's.
fn wire() -> (Engine, Engine, Lane) {
    let server = Config { model: Model::Paired, ..Config::memory("10.0.0.1/24").unwrap() };
    let peer = Config::memory("10.0.0.2/24").unwrap();
    let (server, mut peer) = Engine::memory_pair(&server, &peer).unwrap();
    let lane = peer.take_lane(0).unwrap().attach().unwrap();
    (server, peer, lane)
}

fn ask(lane: &Lane, text: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = lane.connect(address())?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(text)?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all)?;
    Ok(all)
}

#[test]
fn another_process_serves() {
    let (server, _peer, lane) = wire();
    let door = server.door(0).unwrap();
    let mut client = Client::start(&door, "serve", Lent::default());
    client.ready();
    for n in 0..200usize {
        let text: Vec<u8> = (0..n * 397 % 30_000).map(|i| (i * n) as u8).collect();
        assert_eq!(ask(&lane, &text).unwrap(), text, "{n}");
    }
    // It sleeps in between, and is woken.
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(ask(&lane, b"awake?").unwrap(), b"awake?");
    }
}

/// One of three is killed again and again: the others serve on, and what it had not accepted they do.
#[test]
fn a_killed_client_is_replaced_by_others() {
    let (server, _peer, lane) = wire();
    let door = server.door(0).unwrap();
    let mut clients: Vec<Client> = (0..3).map(|_| Client::start(&door, "serve", Lent::default())).collect();
    clients.iter_mut().for_each(Client::ready);
    let (mut served, mut reset) = (0, 0);
    for round in 0..15 {
        // In its sleep, or in the middle of something.
        if round % 3 == 2 {
            drop(clients.remove(0));
            let mut new = Client::start(&door, "serve", Lent::default());
            new.ready();
            clients.push(new);
        }
        for _ in 0..20 {
            match ask(&lane, b"some text") {
                Ok(text) => {
                    assert_eq!(text, b"some text");
                    served += 1;
                }
                Err(e) => {
                    assert_eq!(e.raw_os_error(), Some(libc::ECONNRESET), "{e}");
                    reset += 1;
                }
            }
        }
    }
    assert!(served > 290 && reset < 10, "{served} {reset}");
    clients.clear();
    let end = Instant::now() + Duration::from_secs(10);
    let left = || server.snapshots(Duration::from_secs(1))[0].rows.iter().find(|(n, _)| n == "clients").unwrap().1;
    while left() > 0 {
        assert!(Instant::now() < end, "clients are left");
        // What they had closed is still to be acknowledged.
        lane.drain(Duration::from_millis(10));
    }
}

//! `corelane run`: unmodified programs whose workers have the connections of their own core.

use std::os::unix::process::ExitStatusExt;
use std::sync::Mutex;

use rustix::process::{Pid, Signal, kill_process};

use super::interfaces::until;
use super::*;

/// `corelane run -- PROGRAM` in a namespace, whose clients are in it too: loopback delivers on the CPU that sends.
pub(super) struct Program {
    pub(super) lab: Lab,
    pub(super) program: Running,
    report: PathBuf,
}

impl Program {
    pub(super) fn start(lab: Lab, options: &str, program: &[&str]) -> Program {
        let report = lab.dir.join("report.json");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &lab.a, BIN, "run", "--report", report.to_str().unwrap()]);
        command.env("CORELANE_PRELOAD", library());
        command.args(options.split_whitespace()).arg("--").args(program);
        let program =
            Running(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        Program { lab, program, report }
    }

    /// nginx with two workers, which answers with the number of the one that does.
    fn nginx(listen: &str) -> Option<Program> {
        let program = Program::nginx_with(listen, "daemon off;", "")?;
        until("nginx's workers do not come", || program.workers().len() == 2);
        Some(program)
    }

    fn nginx_with(listen: &str, more: &str, events: &str) -> Option<Program> {
        if !sh("nginx -v").status.success() {
            testing::skip("nginx is not installed");
            return None;
        }
        let lab = Lab::new()?;
        let own = lab.dir.join("nginx");
        std::fs::create_dir_all(&own).unwrap();
        let text = format!(
            "worker_processes 2; pid pid; {more} error_log stderr error;\n\
             events {{ worker_connections 512; {events} }}\n\
             http {{ access_log off; server {{ listen 127.0.0.1:8080 backlog=512 {listen}; \
             location / {{ return 200 $pid; }} \
             location /slow {{ root .; gzip on; gzip_comp_level 9; gzip_http_version 1.0; }} }} }}\n"
        );
        std::fs::write(own.join("nginx.conf"), text).unwrap();
        let own = own.to_str().unwrap();
        // To upgrade its binary it executes itself by the path that it was started by.
        let path = must("command -v nginx || echo /usr/sbin/nginx");
        Some(Program::start(lab, "", &[path.trim(), "-e", "stderr", "-p", own, "-c", "nginx.conf"]))
    }

    fn workers(&self) -> Vec<(usize, Pid)> {
        workers_of(self.program.0.id() as i32)
    }

    /// Connects from a core and sends a request.
    fn ask(&self, core: usize) -> std::io::Result<TcpStream> {
        self.request(core, "GET / HTTP/1.0\r\n\r\n")
    }

    fn request(&self, core: usize, text: &str) -> std::io::Result<TcpStream> {
        request(&self.lab, core, text)
    }

    /// Ends it in order; its report.
    pub(super) fn finish(self, signal: Signal) -> (Report, String) {
        self.program.signal(signal);
        self.finished()
    }

    /// Its report, and what it and the helper have said, once both have ended.
    pub(super) fn finished(mut self) -> (Report, String) {
        let said = self.program.rest();
        until("no report is written", || std::fs::read(&self.report).is_ok_and(|text| text.ends_with(b"}\n")));
        let text = std::fs::read_to_string(&self.report).unwrap();
        let number = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(&format!("  \"{name}\": "))).unwrap();
            line.rsplit(": ").next().unwrap().trim_end_matches(',').parse().unwrap()
        };
        let report = Report {
            connections: number("connections"),
            local: number("local"),
            migrated: number("migrated"),
            stalls: text.lines().filter_map(|line| line.trim().strip_prefix("\"stalls\": ")?.parse::<u64>().ok()).sum(),
            parts: text.matches("\"pid\"").count(),
            text: text.clone(),
        };
        (report, said)
    }
}

/// Connects in namespace a to port 8080 there, from a core, and sends a request.
pub(super) fn request(lab: &Lab, core: usize, text: &str) -> std::io::Result<TcpStream> {
    lab.within(&lab.a, || {
        let mut set = rustix::thread::CpuSet::new();
        set.set(core);
        rustix::thread::sched_setaffinity(None, &set).unwrap();
        let mut stream = TcpStream::connect("127.0.0.1:8080")?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        stream.write_all(text.as_bytes())?;
        Ok(stream)
    })
}

/// The library as the tests' build has it.
pub(super) fn library() -> PathBuf {
    let library = Path::new(BIN).with_file_name("deps").join("libcorelane_preload.so");
    assert!(library.is_file(), "{} is not there: cargo build -p preload makes it", library.display());
    library
}

#[derive(Debug)]
pub(super) struct Report {
    connections: u64,
    local: u64,
    migrated: u64,
    stalls: u64,
    parts: usize,
    pub(super) text: String,
}

/// Children that are pinned, by core.
fn workers_of(master: i32) -> Vec<(usize, Pid)> {
    let children = std::fs::read_to_string(format!("/proc/{master}/task/{master}/children")).unwrap_or_default();
    let pids = children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
    let mut workers: Vec<_> = pids.filter_map(|pid| Some((only_core(pid.as_raw_nonzero().get())?, pid))).collect();
    workers.sort_by_key(|(core, _)| *core);
    workers
}

/// The core that a process is pinned to.
fn only_core(pid: i32) -> Option<usize> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    list.trim().parse().ok()
}

/// The body of an answer.
pub(super) fn body(mut stream: TcpStream) -> std::io::Result<String> {
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    Ok(body.to_owned())
}

pub(super) fn two_cores() -> bool {
    let enough = testing::cores() >= 2;
    if !enough {
        testing::skip("needs two cores");
    }
    enough
}

#[test]
fn run_gives_each_worker_of_nginx_the_connections_of_its_core() {
    if !two_cores() {
        return;
    }
    for listen in ["", "reuseport"] {
        let Some(nginx) = Program::nginx(listen) else { return };
        let workers = nginx.workers();
        let answers = |core: usize| {
            (0..200)
                .filter(|_| body(nginx.ask(core).unwrap()).unwrap() == workers[core].1.as_raw_nonzero().to_string())
                .count()
        };
        assert_eq!((workers[0].0, workers[1].0), (0, 1));
        assert_eq!((answers(0), answers(1)), (200, 200), "listen {listen}");
        // A service manager may send it to all that runs in the service.
        must(&format!("pkill -TERM -f '[r]un-helper --program {}'", nginx.program.0.id()));
        let (report, said) = nginx.finish(Signal::QUIT);
        assert_eq!((report.connections, report.local, report.parts), (400, 400, 2), "listen {listen}: {}", report.text);
        let line = "run: 400 connections to 2 parts of 1 listener, 100.00 % on their own core, 0 moved from a listener that stopped";
        assert_eq!(said, format!("corelane: {line}\n"), "listen {listen}");
    }
}

#[test]
fn run_moves_what_waits_at_a_killed_worker_to_another() {
    if !two_cores() {
        return;
    }
    let Some(nginx) = Program::nginx("") else { return };
    let (_, stopped) = nginx.workers()[1];
    kill_process(stopped, Signal::STOP).unwrap();
    let waiting: Vec<_> = (0..60).map(|_| nginx.ask(1).unwrap()).collect();
    kill_process(stopped, Signal::KILL).unwrap();
    let answered = waiting.into_iter().map(body).filter(|answer| answer.is_ok()).count();
    assert_eq!(answered, 60);
    // nginx replaces it.
    until("no worker comes", || nginx.workers().len() == 2);
    let again = nginx.workers()[1].1;
    assert!(again != stopped);
    assert_eq!(body(nginx.ask(1).unwrap()).unwrap(), again.as_raw_nonzero().to_string());
    let (report, _) = nginx.finish(Signal::QUIT);
    assert_eq!((report.migrated, report.parts), (60, 3), "{}", report.text);
}

/// A stopped worker's core is served by another, also what waits already, and by the worker once it goes on.
#[test]
fn run_passes_over_a_worker_that_accepts_nothing() {
    if !two_cores() {
        return;
    }
    let Some(nginx) = Program::nginx("") else { return };
    let [(_, other), (_, stopped)] = nginx.workers()[..] else { unreachable!() };
    let answered_by = |stream| body(stream).map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap());
    kill_process(stopped, Signal::STOP).unwrap();
    for _ in 0..3 {
        let waiting: Vec<_> = (0..20).map(|_| nginx.ask(1).unwrap()).collect();
        for stream in waiting {
            assert_eq!(answered_by(stream).unwrap(), other);
        }
    }
    kill_process(stopped, Signal::CONT).unwrap();
    until("it is passed over for good", || answered_by(nginx.ask(1).unwrap()).unwrap() == stopped);
    let (report, _) = nginx.finish(Signal::QUIT);
    assert!(report.migrated >= 20 && report.parts == 2 && report.stalls > 0, "{}", report.text);
}

/// A worker that has the listener in an epoll set may serve one connection at a time all the same.
#[test]
fn run_moves_what_waits_for_a_worker_that_serves_another_connection() {
    if !two_cores() {
        return;
    }
    let Some(lab) = Lab::new() else { return };
    let script = lab.dir.join("workers.py");
    std::fs::write(&script, WORKERS).unwrap();
    let program = Program::start(lab, "", &["python3", script.to_str().unwrap(), "epoll"]);
    until("the workers are not pinned", || program.workers().len() == 2);
    let silent = program.request(0, "").unwrap();
    for n in 0..8 {
        body(program.ask(n % 2).unwrap()).unwrap();
    }
    drop(silent);
    let (report, _) = program.finish(Signal::TERM);
    assert!(report.migrated > 0 && report.stalls > 0, "{}", report.text);
}

#[test]
fn run_loses_no_connection_while_nginx_reloads() {
    if !two_cores() {
        return;
    }
    let Some(nginx) = Program::nginx("") else { return };
    let (over, failed) = (AtomicU32::new(0), Mutex::new(Vec::new()));
    let answered: u32 = std::thread::scope(|scope| {
        let client = |core: usize| {
            let (nginx, over, failed) = (&nginx, &over, &failed);
            move || {
                let mut answered = 0;
                while over.load(Ordering::Relaxed) == 0 {
                    match nginx.ask(core).and_then(body) {
                        Ok(_) => answered += 1,
                        Err(error) => failed.lock().unwrap().push(error),
                    }
                }
                answered
            }
        };
        let clients: Vec<_> = (0..4).map(|n| scope.spawn(client(n % 2))).collect();
        for _ in 0..5 {
            let before = nginx.workers();
            nginx.program.signal(Signal::HUP);
            let deadline = Instant::now() + Duration::from_secs(30);
            while Instant::now() < deadline {
                let now = nginx.workers();
                if now.len() == 2 && now.iter().all(|worker| !before.contains(worker)) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        over.store(1, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} of {answered}: {:?}", failed.len(), failed.first());
    let (report, _) = nginx.finish(Signal::QUIT);
    assert_eq!(report.parts, 12, "{}", report.text);
    assert!(answered > 100, "{answered}: nothing is shown");
}

/// Connections that came to a worker's part while another has the mutex would wait for as long as that one has nothing to do.
#[test]
fn run_leaves_no_connection_to_a_worker_of_nginx_that_waits_for_the_mutex() {
    if !two_cores() {
        return;
    }
    let Some(nginx) = Program::nginx_with("", "daemon off;", "accept_mutex on; accept_mutex_delay 1ms;") else {
        return;
    };
    let mut state = 1u32;
    let mut digit = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        b"0123456789abcdef"[(state >> 28) as usize]
    };
    std::fs::write(nginx.lab.dir.join("nginx/slow"), (0..2_000_000).map(|_| digit()).collect::<Vec<_>>()).unwrap();
    until("it does not serve", || nginx.ask(0).and_then(body).is_ok());
    // A worker that compresses does not wait for the mutex, so that they take turns.
    let slow = |core: usize| {
        let mut answer = Vec::new();
        let asked = nginx.request(core, "GET /slow HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n");
        asked.and_then(|mut stream| stream.read_to_end(&mut answer)).map(|_| answer.starts_with(b"HTTP/1.1 200"))
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..12).map(|n| scope.spawn(move || slow(n % 2))).collect();
        for client in clients {
            assert!(client.join().unwrap().unwrap());
        }
    });
    for core in [0, 1, 0, 1] {
        body(nginx.ask(core).unwrap()).unwrap();
    }
    let (report, _) = nginx.finish(Signal::QUIT);
    assert_eq!(report.parts, 2, "{}", report.text);
    assert!(!report.text.contains("\"shared\": 0"), "nothing is shown: {}", report.text);
}

/// A lab, and a configuration of HAProxy with two threads that have a listener each.
pub(super) fn haproxy() -> Option<(Lab, String)> {
    if !two_cores() {
        return None;
    }
    if !sh("haproxy -v").status.success() {
        testing::skip("haproxy is not installed");
        return None;
    }
    let lab = Lab::new()?;
    let config = lab.dir.join("haproxy.cfg");
    let text = "global\n nbthread 2\ndefaults\n mode http\n timeout client 5s\n timeout connect 5s\n timeout server 5s\n\
                frontend f\n bind 127.0.0.1:8080 shards by-thread\n http-request return status 200 content-type text/plain string ok\n";
    std::fs::write(&config, text).unwrap();
    Some((lab, config.to_str().unwrap().to_owned()))
}

#[test]
fn run_gives_each_thread_of_haproxy_the_connections_of_its_core() {
    let Some((lab, config)) = haproxy() else { return };
    let program = Program::start(lab, "", &["haproxy", "-q", "-W", "-f", &config]);
    let master = program.program.0.id();
    // Workers of which both threads are pinned.
    let workers = || {
        let children = std::fs::read_to_string(format!("/proc/{master}/task/{master}/children")).unwrap_or_default();
        let pinned = |pid: &String| {
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
            tasks.filter_map(|task| only_core(task.ok()?.file_name().to_str()?.parse().ok()?)).count() == 2
        };
        children.split_whitespace().map(str::to_owned).filter(pinned).collect::<Vec<_>>()
    };
    let ask = || {
        for core in [0, 1] {
            for _ in 0..100 {
                assert_eq!(body(program.ask(core).unwrap()).unwrap(), "ok");
            }
        }
    };
    until("its threads are not pinned", || workers().len() == 1);
    ask();
    // The next worker has its listeners from this one.
    let before = workers();
    program.program.signal(Signal::USR2);
    until("no worker comes in place of the one before", || workers().len() == 1 && workers() != before);
    ask();
    let (report, _) = program.finish(Signal::USR1);
    assert_eq!((report.connections, report.local, report.parts), (400, 400, 4), "{}", report.text);
}

/// Workers that wait in the way of the argument, serve one connection at a time and answer with the cores of the SYN and their own.
pub(super) const WORKERS: &str = r#"
import ctypes, os, select, signal, socket, struct, sys, time
how = sys.argv[1]
if how == "other user":
    os.setuid(65534)
def make():
    if how == "executed" and len(sys.argv) > 2:
        return socket.socket(fileno=int(sys.argv[2]))
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if how in ("own", "own accept", "attach"):
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.bind(("127.0.0.1", 8080))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 30 if how == "late" else 0)
    s.listen(128)
    if how == "attach":
        steps = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
        s.setsockopt(socket.SOL_SOCKET, 51, struct.pack("HxxxxxxQ", 1, ctypes.addressof(steps)))
    if how == "executed":
        s.set_inheritable(True)
        os.execv(sys.executable, [sys.executable, *sys.argv, str(s.fileno())])
    return s
whole = None if how.startswith("own") or how == "passed" else make()
pairs = [socket.socketpair() for _ in range(2)]
while how == "late" and not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
pids = []
for worker in range(2):
    pid = os.fork()
    if pid:
        pids.append(pid)
        continue
    if how == "passed":
        s = socket.socket(fileno=socket.recv_fds(pairs[worker][1], 1, 1)[1][0])
    else:
        s = whole or make()
    s.setblocking(how not in ("poll", "select"))
    about = lambda: (os.get_blocking(s.fileno()), os.get_inheritable(s.fileno()), s.getsockname())
    before = about()
    if how == "poll":
        p = select.poll(); p.register(s, select.POLLIN); wait = p.poll
    elif how in ("epoll", "own", "passed", "late", "attach", "other user", "executed"):
        p = select.epoll(); p.register(s, select.EPOLLIN); wait = p.poll
    elif how == "select":
        wait = lambda: select.select([s], [], [])
    else:
        wait = lambda: None
    while True:
        wait()
        try:
            c, _ = s.accept()
        except BlockingIOError:
            continue
        c.setblocking(True)
        assert before == about()
        c.recv(100)
        syn = c.getsockopt(socket.SOL_SOCKET, 49)
        c.sendall(b"HTTP/1.1 200\r\n\r\n%d %s %d" % (syn, ",".join(map(str, os.sched_getaffinity(0))).encode(), os.getpid()))
        c.close()
if how == "passed":
    whole = make()
    for here, _ in pairs:
        socket.send_fds(here, [b"x"], [whole.fileno()])
signal.signal(signal.SIGTERM, lambda *_: [os.kill(pid, 9) for pid in pids] and os._exit(7))
while True:
    signal.pause()
"#;

#[test]
fn run_finds_workers_however_they_wait() {
    if !two_cores() {
        return;
    }
    for how in ["epoll", "own", "own accept", "other user", "executed", "passed"] {
        let Some(lab) = Lab::new() else { return };
        let script = lab.dir.join("workers.py");
        std::fs::write(&script, WORKERS).unwrap();
        let program = Program::start(lab, "--ports 8080", &["python3", script.to_str().unwrap(), how]);
        until(&format!("{how}: the workers are not pinned"), || program.workers().len() == 2);
        for core in [0, 1] {
            for _ in 0..50 {
                let (_, worker) = program.workers()[core];
                let wanted = format!("{core} {core} {}", worker.as_raw_nonzero());
                assert_eq!(body(program.ask(core).unwrap()).unwrap(), wanted, "{how}");
            }
        }
        let (report, _) = program.finish(Signal::TERM);
        assert_eq!((report.connections, report.local, report.parts), (100, 100, 2), "{how}: {}", report.text);
    }
}

/// Connections in the queue of a worker that serves one would wait for the end of that.
#[test]
fn run_lets_workers_share_a_listener_that_serve_one_connection_at_a_time() {
    for how in ["poll", "select", "accept"] {
        let Some(lab) = Lab::new() else { return };
        let script = lab.dir.join("workers.py");
        std::fs::write(&script, WORKERS).unwrap();
        let program = Program::start(lab, "", &["python3", script.to_str().unwrap(), how]);
        until("it does not serve", || program.ask(0).and_then(body).is_ok());
        // The worker that has it waits for a request.
        let silent = program.request(0, "").unwrap();
        let pids: std::collections::BTreeSet<_> = (0..20)
            .map(|n| body(program.ask(n % testing::cores().min(2)).unwrap()).unwrap())
            .map(|text| text.rsplit(' ').next().unwrap().to_owned())
            .collect();
        drop(silent);
        assert_eq!(pids.len(), 1, "{how}: {pids:?}");
        let (report, said) = program.finish(Signal::TERM);
        let why =
            "127.0.0.1:8080: its processes wait by accept, poll or select, and share the listener as without corelane";
        assert_eq!((said, report.parts), (format!("corelane: run: {why}\n"), 0), "{how}: {}", report.text);
        assert!(report.text.contains(why), "{how}: {}", report.text);
    }
}

#[test]
fn run_leaves_alone_what_the_program_selects_by_itself() {
    let Some(lab) = Lab::new() else { return };
    let script = lab.dir.join("workers.py");
    std::fs::write(&script, WORKERS).unwrap();
    let program = Program::start(lab, "", &["python3", script.to_str().unwrap(), "attach"]);
    let mut answers = Vec::new();
    until("it does not serve", || {
        answers.extend(program.ask(0).and_then(body).ok());
        answers.len() == 20
    });
    let (report, said) = program.finish(Signal::TERM);
    let why = "127.0.0.1:8080: the program selects its listeners by itself (SO_ATTACH_REUSEPORT_CBPF, _EBPF)";
    assert_eq!(said, format!("corelane: run: {why}; the program goes on as without corelane\n"));
    assert_eq!(report.parts, 0, "{}", report.text);
    assert!(report.text.contains(why), "{}", report.text);
}

/// Its first process ends at once; the helper goes on for those that it has left, and for the binary that takes their place, which nginx
/// executes without the variables that it needs.
#[test]
fn run_follows_a_daemon_through_an_upgrade_of_its_binary() {
    if !two_cores() {
        return;
    }
    let Some(nginx) = Program::nginx_with("", "daemon on;", "") else { return };
    let pid_file = nginx.lab.dir.join("nginx/pid");
    let master = || Pid::from_raw(std::fs::read_to_string(&pid_file).ok()?.trim().parse().ok()?);
    let started = |but: Option<Pid>| {
        until("nginx's workers do not come", || {
            master().is_some_and(|pid| Some(pid) != but && workers_of(pid.as_raw_nonzero().get()).len() == 2)
        });
        master().unwrap()
    };
    let old = started(None);
    let served_by = |master: Pid| {
        for (core, worker) in workers_of(master.as_raw_nonzero().get()) {
            assert_eq!(body(nginx.ask(core).unwrap()).unwrap(), worker.as_raw_nonzero().to_string());
        }
    };
    served_by(old);
    kill_process(old, Signal::USR2).unwrap();
    let new = started(Some(old));
    kill_process(old, Signal::QUIT).unwrap();
    until("the old binary does not end", || !Path::new(&format!("/proc/{}", old.as_raw_nonzero())).exists());
    served_by(new);
    kill_process(new, Signal::QUIT).unwrap();
    let (report, _) = nginx.finished();
    assert_eq!((report.connections, report.local, report.parts), (4, 4, 4), "{}", report.text);
}

/// Connections that come before there is a worker wait at the program's own socket, and those that it has by then move to the parts.
#[test]
fn run_serves_what_came_before_the_workers() {
    if !two_cores() {
        return;
    }
    let Some(lab) = Lab::new() else { return };
    let (script, now) = (lab.dir.join("workers.py"), lab.dir.join("now"));
    std::fs::write(&script, WORKERS).unwrap();
    let program = Program::start(lab, "", &["python3", script.to_str().unwrap(), "late", now.to_str().unwrap()]);
    let mut early = Vec::new();
    until("it does not listen", || {
        early.extend(program.ask(0).ok());
        !early.is_empty()
    });
    early.extend((0..40).map(|n| program.ask(n % 2).unwrap()));
    let mut silent = program.request(1, "").unwrap();
    std::fs::write(now, "").unwrap();
    let n = early.into_iter().map(body).filter(|answer| answer.is_ok()).count();
    assert_eq!(n, 41);
    // The kernel takes the deferred handshake to the socket with which it began, whoever listens meanwhile. It is waited for no longer.
    std::thread::sleep(Duration::from_secs(1));
    silent.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    body(silent).unwrap();
    let (report, _) = program.finish(Signal::TERM);
    assert!(report.migrated > 0, "{}", report.text);
}

fn run(lab: &Lab, before: &str, arguments: &str) -> Output {
    let library = library();
    sh(&format!("CORELANE_PRELOAD={} ip netns exec {} {before} {BIN} run {arguments}", library.display(), lab.a))
}

#[test]
fn run_leaves_output_and_exit_code_to_the_program() {
    let Some(lab) = Lab::new() else { return };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let out = run(&lab, "", "-- sh -c 'echo out; echo err >&2; exit 7'");
    assert_eq!((text(&out.stdout).as_str(), text(&out.stderr).as_str()), ("out\n", "err\n"));
    assert_eq!(out.status.code(), Some(7));
    let out = run(&lab, "", "-- sh -c 'kill -TERM $$'");
    assert!(out.status.signal() == Some(15) || out.status.code() == Some(143), "{:?}", out.status);
    let out = run(&lab, "", "-- /nowhere/program");
    assert_eq!(
        (out.status.code(), text(&out.stderr).as_str()),
        (Some(127), "corelane: /nowhere/program: no such file or directory\n")
    );
    let out = run(&lab, "", "-- /etc");
    assert_eq!(out.status.code(), Some(126), "{}", text(&out.stderr));
    // Nothing of the helper is left behind in the program.
    let out = run(&lab, "", "-- sh -c 'ls /proc/self/fd | wc -l; ps -o ppid= -p $$ | wc -l'");
    let plain = sh("sh -c 'ls /proc/self/fd | wc -l; ps -o ppid= -p $$ | wc -l'");
    assert_eq!(text(&out.stdout), text(&plain.stdout));
}

#[test]
fn run_without_rights_says_so_once_or_does_not_start() {
    let Some(lab) = Lab::new() else { return };
    let without = "setpriv --bounding-set=-bpf,-sys_admin --inh-caps=-bpf,-sys_admin";
    let line =
        "corelane: selecting listeners by CPU (bpf) needs CAP_BPF: run as root, or give the program that capability";
    let out = run(&lab, without, "-- sh -c 'echo out; exit 3'");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(said, format!("{line}; the program runs as without corelane\n"));
    assert_eq!((out.stdout.as_slice(), out.status.code()), (&b"out\n"[..], Some(3)));
    let out = run(&lab, without, "--strict -- sh -c 'echo out; exit 3'");
    assert_eq!((out.stdout.as_slice(), out.status.code()), (&b""[..], Some(1)));
    assert_eq!(String::from_utf8_lossy(&out.stderr), format!("{line}\n"));
    let out = run(&lab, "", "--cores 4095 -- true");
    assert_eq!(out.status.code(), Some(2), "{}", String::from_utf8_lossy(&out.stderr));
}

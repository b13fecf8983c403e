//! `corelane run --dev`: connections that an unmodified program opens have replies on the core that opened them.

use rustix::process::Signal;
use serde_json::Value;

use super::interfaces::until;
use super::run::{Program, library, two_cores};
use super::*;

/// Two processes, each on its core, that open connections to a server, and look on which core the last segment of each came. Of sockets
/// that are none of ours, the range of ports is looked at.
const CLIENTS: &str = r#"
import os, socket, sys
INCOMING_CPU, PORT_RANGE = 49, 51
def ranged(s):
    return s.getsockopt(socket.IPPROTO_IP, PORT_RANGE) != 0
def work(core):
    os.sched_setaffinity(0, {core})
    local, moved = 0, []
    for host in ("10.99.0.2", "fd99::2", "::ffff:10.99.0.2") * 20:
        s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        s.settimeout(20)
        s.connect((host, 9000))
        seen = [s.getsockopt(socket.SOL_SOCKET, INCOMING_CPU)]
        s.sendall(b"x" * 64)
        text = b""
        while more := s.recv(1 << 16):
            text += more
        assert text == b"y" * 20000, len(text)
        seen.append(s.getsockopt(socket.SOL_SOCKET, INCOMING_CPU))
        local += seen == [core, core]
        assert ranged(s), host
    print(core, local, flush=True)
pids = []
for core in (0, 1):
    pid = os.fork()
    if pid == 0:
        work(core)
        os._exit(0)
    pids.append(pid)
assert all(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 for pid in pids)
near = socket.create_server(("127.0.0.1", 0))
assert not ranged(socket.create_connection(near.getsockname()))
query = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
query.connect(("10.99.0.2", 53))
assert not ranged(query)
bound = socket.socket()
bound.bind(("10.99.0.1", 1234))
bound.connect(("10.99.0.2", 9000))
assert bound.getsockname()[1] == 1234
print("done")
"#;

/// Two workers, each on its core, that look on which core each segment of the connections came that they have accepted.
const WORKERS: &str = r#"
import os, select, signal, socket
INCOMING_CPU = 49
listener = socket.create_server(("::", 9001), family=socket.AF_INET6, backlog=64, dualstack_ipv6=True)
told, tell = os.pipe()
def work(core):
    os.sched_setaffinity(0, {core})
    events = select.epoll()
    events.register(listener, select.EPOLLIN)
    os.write(tell, b"r")
    while events.poll():
        s = listener.accept()[0]
        seen = {s.getsockopt(socket.SOL_SOCKET, INCOMING_CPU)}
        while byte := s.recv(1):
            seen.add(s.getsockopt(socket.SOL_SOCKET, INCOMING_CPU))
            s.sendall(byte)
        os.write(tell, b"%d" % core if seen == {core} else b"x")
pids = []
for core in (0, 1):
    pid = os.fork()
    if pid == 0:
        work(core)
    pids.append(pid)
assert os.read(told, 1) + os.read(told, 1) == b"rr"
# Clients may come.
gate = socket.create_server(("10.99.0.1", 9002))
ends = b"".join(os.read(told, 1) for _ in range(60))
for pid in pids:
    os.kill(pid, signal.SIGKILL)
print(ends.count(b"x"), ends.count(b"0") > 9 and ends.count(b"1") > 9, ends)
"#;

/// A client that sends each byte from another core than the one before.
const WANDERER: &str = r#"
import os, socket, time
def connect(host, port=9001):
    while True:
        try:
            return socket.create_connection((host, port))
        except ConnectionRefusedError:
            time.sleep(0.05)
connect("10.99.0.1", 9002)
for host in ("10.99.0.1", "fd99::1") * 30:
    with connect(host) as s:
        for n in range(6):
            os.sched_setaffinity(0, {n % 2})
            s.sendall(b"x")
            assert s.recv(1) == b"x"
"#;

/// Opens connections on one core, and keeps them.
const KEEPER: &str = r#"
import os, socket, sys
os.sched_setaffinity(0, {0})
kept = [socket.create_connection(("10.99.0.2", 9000)) for _ in range(140)]
print(len({s.getsockname()[1] for s in kept}))
"#;

/// Answers each connection of port 9000 in the namespace `b` with 20,000 bytes, from core 0.
fn answer(lab: &Lab) {
    use std::net::TcpListener;
    let listener = lab.within(&lab.b, || TcpListener::bind("[::]:9000").unwrap());
    std::thread::spawn(move || {
        let mut set = rustix::thread::CpuSet::new();
        set.set(0);
        rustix::thread::sched_setaffinity(None, &set).unwrap();
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut request = [0; 64];
                if stream.read_exact(&mut request).is_ok() {
                    let _ = stream.write_all(&[b'y'; 20_000]);
                }
            });
        }
    });
}

fn has_program(lab: &Lab) -> bool {
    must(&format!("ip -n {} link show va", lab.a)).contains("xdp")
}

/// The script under `corelane run --dev va`: its report, its output, and what was said.
fn run(lab: Lab, script: &str) -> (Value, String, String) {
    let path = lab.dir.join("script.py");
    std::fs::write(&path, script).unwrap();
    let mut program = Program::start(lab, "--dev va", &["python3", path.to_str().unwrap()]);
    let mut out = String::new();
    program.program.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    // A frame that was cut wrong on its way is refused, and comes again by a retransmission.
    let count = "awk '/^Ip: [0-9]/ { print $5 } /^Ip6InHdrErrors/ { print $2 }' /proc/net/snmp /proc/net/snmp6";
    let refused = must(&format!("ip netns exec {} {count}", program.lab.a));
    assert_eq!(refused, "0\n0\n", "datagrams whose header is wrong, of IPv4 and IPv6");
    let (report, said) = program.finished();
    (serde_json::from_str(&report.text).unwrap(), out, said)
}

#[test]
fn run_brings_replies_to_the_core_that_connected() {
    if !two_cores() {
        return;
    }
    let Some(lab) = Lab::new() else { return };
    answer(&lab);
    // Frames of up to 64 KiB.
    sh(&format!("ip netns exec {} ethtool -K vb tso on gso on", lab.b));
    let ports = must(&format!("ip netns exec {} cat /proc/sys/net/ipv4/ip_local_port_range", lab.a));
    let (report, out, said) = run(lab, CLIENTS);
    let mut lines: Vec<_> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0 60", "1 60", "done"], "{report}");
    // One of them is from a port that the program has bound.
    let opened = &report["opened"];
    assert_eq!((&opened["connections"], &opened["beyond"]), (&121.into(), &0.into()), "{report}");
    let range: Vec<u64> = ports.split_whitespace().map(|port| port.parse().unwrap()).collect();
    for core in 0..2 {
        let on = &opened["cores"][core];
        let block = [0, 1].map(|at| on["ports"][at].as_u64().unwrap());
        assert!(range[0] <= block[0] && block[1] <= range[1] && block[1] - block[0] > 10_000, "{report}");
        assert!(on["connections"].as_u64() >= Some(60), "{report}");
    }
    let device = &opened["devices"][0];
    // The server answers on core 0: so each of core 1's connections has a frame that had to be moved. SYN-ACKs have not: a veth hands the
    // SYN on within the system call.
    assert!(device["moved"].as_u64() >= Some(60) && device["here"].as_u64() >= Some(180), "{report}");
    assert!(said.contains("run: 121 connections opened, 121 from ports of the core that connected; va: "), "{said}");
}

#[test]
fn run_keeps_accepted_connections_on_the_core_of_their_worker() {
    if !two_cores() {
        return;
    }
    let Some(lab) = Lab::new() else { return };
    let client = Command::new("ip").args(["netns", "exec", &lab.b, "python3", "-c", WANDERER]).spawn().unwrap();
    let client = Running(client);
    let (report, out, said) = run(lab, WORKERS);
    assert!(out.starts_with("0 True "), "{out}{said}{report}");
    assert_eq!(client.stop_code(), Some(0));
    let device = &report["opened"]["devices"][0];
    let [here, moved] = ["spread_here", "spread_moved"].map(|name| device[name].as_u64().unwrap());
    // Half of the bytes come from the other core.
    assert!(here > 100 && moved > 100 && device["moved"] == 0, "{report}");
    assert_eq!((&report["connections"], &report["local"]), (&60.into(), &60.into()), "{report}");
}

#[test]
fn run_opens_connections_beyond_a_cores_ports_and_counts_them() {
    if !two_cores() {
        return;
    }
    let Some(lab) = Lab::new() else { return };
    answer(&lab);
    must(&format!("ip netns exec {} sh -c 'echo 40000 40255 > /proc/sys/net/ipv4/ip_local_port_range'", lab.a));
    let (report, out, _) = run(lab, KEEPER);
    assert_eq!(out, "140\n");
    let opened = &report["opened"];
    assert_eq!((&opened["connections"], &opened["beyond"]), (&128.into(), &12.into()), "{report}");
}

#[test]
fn run_leaves_nothing_on_an_interface_after_a_kill_of_everything() {
    let Some(lab) = Lab::new() else { return };
    let path = lab.dir.to_str().unwrap().to_owned();
    let program =
        Program::start(lab, "--strict --dev va", &["sh", "-c", &format!("touch {path}/ready; exec sleep 60")]);
    until("it does not start", || Path::new(&path).join("ready").exists());
    assert!(has_program(&program.lab));
    let second = format!("ip netns exec {} {BIN} run --strict --dev va -- true", program.lab.a);
    let second = sh(&format!("CORELANE_PRELOAD={} {second}", library().display()));
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(second.status.code() == Some(1) && text.contains("\"cl_deliver\""), "{text}");
    must(&format!("pkill -KILL -f '[r]un-helper --program {}'", program.program.0.id()));
    program.program.signal(Signal::KILL);
    until("the XDP program stays", || !has_program(&program.lab));
}

/// CPU masks of va's receive queues (RPS) and transmit queues (XPS).
fn masks(lab: &Lab) -> Vec<u64> {
    let files = "cd /sys/class/net/va/queues && cat rx-0/rps_cpus rx-1/rps_cpus tx-0/xps_cpus tx-1/xps_cpus";
    let text = must(&format!("ip netns exec {} sh -c '{files}'", lab.a));
    text.lines().map(|mask| u64::from_str_radix(&mask.replace(',', ""), 16).unwrap()).collect()
}

#[test]
fn run_sets_queues_to_cores_and_back_after_a_kill_of_everything_too() {
    if !two_cores() {
        return;
    }
    let Some(mut lab) = Lab::new() else { return };
    let path = lab.dir.to_str().unwrap().to_owned();
    let set = "for n in 0 1; do echo 3 > rx-$n/rps_cpus; echo 3 > tx-$n/xps_cpus; done";
    must(&format!("ip netns exec {} sh -c 'cd /sys/class/net/va/queues; {set}'", lab.a));
    let undo = |lab: &Lab| must(&format!("ip netns exec {} {BIN} tune --undo", lab.a));
    let sleep = format!("touch {path}/ready; exec sleep 60");
    for again in [false, true] {
        assert_eq!(masks(&lab), [3, 3, 3, 3]);
        let program = Program::start(lab, "--strict --dev va --cores 0,1", &["sh", "-c", &sleep]);
        until("it does not start", || Path::new(&path).join("ready").exists());
        assert_eq!(masks(&program.lab), [0, 0, 1, 2]);
        let line = undo(&program.lab);
        assert!(line.contains("va: left to corelane run (pid ") && masks(&program.lab) == [0, 0, 1, 2], "{line}");
        let pid = program.program.0.id();
        must(&format!("pkill -KILL -f '[r]un-helper --program {pid}'"));
        program.program.signal(Signal::KILL);
        let Program { program, lab: kept, .. } = program;
        drop(program);
        lab = kept;
        std::fs::remove_file(Path::new(&path).join("ready")).unwrap();
        assert_eq!(masks(&lab), [0, 0, 1, 2]);
        if again {
            // The next start undoes it, and so finds all as it was.
            let (report, _, _) = run(lab, "");
            assert_eq!(report["queues"], serde_json::json!([{"name": "va", "settings": 4, "rules": 0}]), "{report}");
            return;
        }
        let line = undo(&lab);
        assert!(line.contains(&format!("va: 4 settings of corelane run (pid {pid}) undone\n")), "{line}");
        assert!(!undo(&lab).contains("va: "));
    }
}

#[test]
fn run_says_which_interface_cannot_deliver() {
    let Some(lab) = Lab::new() else { return };
    let library = library();
    let run = |options: &str| {
        let out = sh(&format!(
            "CORELANE_PRELOAD={} ip netns exec {} {BIN} run {options} -- echo out",
            library.display(),
            lab.a
        ));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&out.stdout), text(&out.stderr), out.status.code())
    };
    let why = "corelane: no interface named none: `ip link` lists what there is";
    let line = format!("{why}; connections that the program opens have ports as without corelane\n");
    assert_eq!(run("--dev none"), ("out\n".into(), line, Some(0)));
    assert_eq!(run("--strict --dev none"), (String::new(), format!("{why}\n"), Some(1)));
    let (out, said, _) = run("--dev lo");
    assert!(out == "out\n" && said.contains("lo has nothing to deliver"), "{said}");
}

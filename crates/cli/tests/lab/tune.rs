//! `corelane tune PORT…`: selection by core for programs that run already.

use rustix::process::Signal;
use std::collections::BTreeSet;

use super::interfaces::until;
use super::run::{Program, WORKERS, body, haproxy, request, two_cores};
use super::*;

/// `corelane tune ARGUMENTS` in namespace a: exit code, and all that it says.
fn tune(lab: &Lab, arguments: &str) -> (Option<i32>, String) {
    let out = sh(&format!("ip netns exec {} {BIN} tune {arguments}", lab.a));
    let said = [out.stdout, out.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    (out.status.code(), said.concat())
}

/// A program in namespace a, once so many sockets listen.
fn start(lab: &Lab, listeners: usize, program: &[&str]) -> Running {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &lab.a]).args(program).stdin(Stdio::null());
    let program = Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let count = format!("ip netns exec {} ss -Hltn 'sport = 8080'", lab.a);
    until("nobody listens", || must(&count).lines().count() == listeners);
    program
}

/// Ends workers, and the process that has made them.
fn end(program: Running) {
    program.signal(Signal::TERM);
    assert_eq!(program.stop_code(), Some(7));
}

/// Answers to requests from a core.
fn ask(lab: &Lab, core: usize, times: usize) -> Vec<String> {
    let one = || body(request(lab, core, "GET / HTTP/1.0\r\n\r\n").unwrap()).unwrap();
    (0..times).map(|_| one()).collect()
}

/// Of each core so many connections, all with the core's own worker: the share that `tune` tells.
fn all_on_their_core(lab: &Lab, connections: usize) {
    let (code, said) = tune(lab, "8080");
    let told = format!("selected by core: {connections} connections so far, 100.00 % on their own core\n");
    assert!(code == Some(0) && said.contains(&told) && !said.contains("nothing was changed"), "{said}");
}

#[test]
fn tune_selects_listeners_of_a_running_program_by_core_and_back() {
    if !two_cores() {
        return;
    }
    for how in ["own", "own accept"] {
        let Some(lab) = Lab::new() else { return };
        let program = start(&lab, 2, &["python3", "-c", WORKERS, how]);
        let (code, said) = tune(&lab, "8080");
        assert_eq!(code, Some(0), "{said}");
        assert!(
            said.starts_with("127.0.0.1:8080: 2 listeners, to be selected by core\n  core 0: python3 (pid "),
            "{said}"
        );
        assert_eq!(said.matches("to be pinned (may use 0-1)\n").count(), 2, "{said}");
        assert!(said.ends_with("nothing was changed: it is done with --apply\n"), "{said}");
        assert!(ask(&lab, 0, 1)[0].starts_with("0 0,1 "), "a worker was pinned");
        let (_, said) = tune(&lab, "--undo 8080");
        assert!(!said.contains("127.0.0.1"), "{said}");

        let (code, said) = tune(&lab, "--apply 8080");
        assert_eq!(code, Some(0), "{said}");
        for (core, other) in [(0, 1), (1, 0)] {
            let of_own: BTreeSet<_> = ask(&lab, core, 30).into_iter().collect();
            let [one] = &of_own.into_iter().collect::<Vec<_>>()[..] else { panic!("several workers of core {core}") };
            assert!(one.starts_with(&format!("{core} {core} ")), "{one}");
            assert!(!ask(&lab, other, 1)[0].ends_with(one.rsplit(' ').next().unwrap()));
        }
        all_on_their_core(&lab, 62);
        // Again is as once.
        assert_eq!(tune(&lab, "--apply 8080").0, Some(0));
        all_on_their_core(&lab, 62);

        // Listeners that come later have connections once they are in the table, too.
        let later = start(&lab, 4, &["python3", "-c", WORKERS, how]);
        let (_, said) = tune(&lab, "8080");
        assert_eq!(said.matches("not selected yet: no connection comes to it\n").count(), 2, "{said}");
        assert_eq!(tune(&lab, "--apply 8080").0, Some(0));
        let of_both: BTreeSet<_> = ask(&lab, 1, 64).into_iter().collect();
        assert!(of_both.len() == 2 && of_both.iter().all(|answer| answer.starts_with("1 1 ")), "{of_both:?}");
        end(later);

        let (code, said) = tune(&lab, "--undo 8080");
        assert!(
            code == Some(0)
                && said.contains("port 8080: 127.0.0.1:8080 selected by hash again; 2 threads no longer pinned\n"),
            "{said}"
        );
        let dealt: BTreeSet<_> = ask(&lab, 0, 64).into_iter().collect();
        assert!(dealt.len() == 2 && dealt.iter().all(|answer| answer.starts_with("0 0,1 ")), "{dealt:?}");
        end(program);
    }
}

#[test]
fn tune_follows_nginx_through_a_reload_and_an_end() {
    if !two_cores() {
        return;
    }
    if !sh("nginx -v").status.success() {
        return testing::skip("nginx is not installed");
    }
    let Some(lab) = Lab::new() else { return };
    let text = "worker_processes 2; pid pid; error_log stderr error; daemon off; events { worker_connections 512; }\n\
                http { access_log off; server { listen 127.0.0.1:8080 reuseport; location / { return 200 $pid; } } }\n";
    std::fs::write(lab.dir.join("nginx.conf"), text).unwrap();
    let program = start(&lab, 2, &["nginx", "-e", "stderr", "-p", lab.dir.to_str().unwrap(), "-c", "nginx.conf"]);
    let distinct = |core| ask(&lab, core, 30).into_iter().collect::<BTreeSet<_>>();
    let mut workers = BTreeSet::new();
    for round in 1..=2 {
        let (code, said) = tune(&lab, "--apply 8080");
        assert_eq!(code, Some(0), "{said}");
        let both = [distinct(0), distinct(1)];
        assert!(both.iter().all(|of| of.len() == 1) && both[0] != both[1], "{both:?}");
        all_on_their_core(&lab, 60 * round);
        let before: BTreeSet<_> = both.into_iter().flatten().collect();
        assert!(before.is_disjoint(&workers));
        workers = before;
        // The next workers have the listeners of the last.
        program.signal(Signal::HUP);
        let children = format!("/proc/{0}/task/{0}/children", program.0.id());
        until("the workers stay", || {
            let text = std::fs::read_to_string(&children).unwrap();
            let now: BTreeSet<_> = text.split_whitespace().map(str::to_owned).collect();
            now.len() == 2 && now.is_disjoint(&workers)
        });
    }
    assert_eq!(program.stop(), Some(0));
    let (code, said) = tune(&lab, "--undo 8080");
    assert!(code == Some(0) && said.contains("port 8080: 127.0.0.1:8080 gone with its listeners\n"), "{said}");
}

#[test]
fn tune_finds_the_threads_of_haproxy() {
    let Some((lab, config)) = haproxy() else { return };
    let _program = start(&lab, 2, &["haproxy", "-q", "-db", "-f", &config]);
    // Before they wait nobody knows whose a listener is.
    until("its threads are not found", || tune(&lab, "8080").0 == Some(0));
    let (code, said) = tune(&lab, "--apply 8080");
    assert_eq!(code, Some(0), "{said}");
    for core in [0, 1] {
        assert_eq!(ask(&lab, core, 30), ["ok"; 30]);
    }
    all_on_their_core(&lab, 60);
    assert!(tune(&lab, "--undo 8080").1.contains("2 threads no longer pinned"));
}

#[test]
fn tune_says_why_listeners_stay_as_they_are() {
    let Some(lab) = Lab::new() else { return };
    let (code, said) = tune(&lab, "--apply 8080");
    assert_eq!(
        (code, said.as_str()),
        (Some(1), "corelane: port 8080: nothing listens there in this network namespace\n")
    );
    assert_eq!(tune(&lab, "").0, Some(2));

    let one = start(&lab, 1, &["python3", "-c", WORKERS, "poll"]);
    let (code, said) = tune(&lab, "--apply 8080");
    assert!(
        code == Some(1) && said.contains("127.0.0.1:8080: left as it is: one listener, and so nothing to select"),
        "{said}"
    );
    end(one);
    let two = start(&lab, 2, &["python3", "-c", WORKERS, "own"]);
    let (code, said) = tune(&lab, "--apply --no-pin 8080");
    assert!(code == Some(1) && said.contains("none of its workers is pinned to a core"), "{said}");
    end(two);

    let run = Program::start(lab, "", &["python3", "-c", WORKERS, "own"]);
    let look = || tune(&run.lab, "8080");
    until("it does not listen", || !look().1.contains("nothing listens"));
    let (code, said) = look();
    assert!(code == Some(1) && said.contains("is under corelane run, which selects its listeners"), "{said}");
    run.finish(Signal::TERM);
}

/// Turns a feature of `va` off and leaves the record of a killed process: the network namespace (SO_NETNS_COOKIE), the interface's number,
/// and a feature in a line.
const LEFT_OFF: &str = "import os, socket, subprocess, sys
folder = '/run/corelane/features'
os.makedirs(folder, 0o700, exist_ok=True)
cookie = int.from_bytes(socket.socket().getsockopt(socket.SOL_SOCKET, 71, 8), sys.byteorder)
with open(f'{folder}/{cookie}-{socket.if_nametoindex(\"va\")}', 'w') as record:
    record.write('rx-vlan-hw-parse\\n')
subprocess.run(['ethtool', '-K', 'va', 'rxvlan', 'off'], check=True)
";

#[test]
fn tune_turns_on_what_a_killed_process_left_off() {
    let Some(lab) = Lab::new() else { return };
    let left = Command::new("ip").args(["netns", "exec", &lab.a, "python3", "-c", LEFT_OFF]).output().unwrap();
    assert!(left.status.success(), "{left:?}");
    let is_on = || must(&format!("ip netns exec {} ethtool -k va", lab.a)).contains("rx-vlan-offload: on");
    assert!(!is_on());
    let (code, said) = tune(&lab, "--undo");
    let on = "va: rx-vlan-hw-parse on again, which a killed process left off\n";
    assert!(code == Some(0) && said.contains(on) && is_on(), "{said}");
    assert!(!tune(&lab, "--undo").1.contains("va: rx-vlan"));
}

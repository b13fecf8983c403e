//! Interfaces that are parts of others, that change, that go away, and what a process may do with them.

use std::sync::atomic::AtomicBool;

use super::*;

impl Lab {
    /// `corelane serve ARGS` in a namespace, which is to end by itself with exit code 1; its words.
    pub fn refuses(&self, ns: &str, args: &str) -> String {
        let command = format!("timeout 60 ip netns exec {ns} {BIN} serve {} {args}", self.dir.display());
        let out = sh(&command);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{args}: {text}");
        text
    }

    /// `corelane serve ARGS` in a namespace, whether it is ready or not.
    pub fn start(&self, ns: &str, args: &str) -> Running {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", ns, BIN, "serve", self.dir.to_str().unwrap()]).args(args.split_whitespace());
        Running(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }
}

/// Waits until `done`, or fails.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// `vb` becomes a port of the bridge `br7`, which has its address.
fn behind_a_bridge(lab: &Lab) {
    must(&format!(
        "ip -n {b} link add br7 type bridge && ip -n {b} addr flush dev vb && ip -n {b} link set vb master br7 \
         && ip -n {b} link set br7 up && ip -n {b} addr add 10.99.0.2/24 dev br7",
        b = lab.b
    ));
}

#[test]
fn a_bridge_port_is_refused_and_the_bridge_is_served() {
    let Some(lab) = Lab::new() else { return };
    let data = lab.file("k64", 65_536);
    behind_a_bridge(&lab);
    let text = lab.refuses(&lab.b, "--dev xdp:vb");
    assert!(text.contains("vb is a port of the bridge br7") && text.contains("use xdp:br7"), "{text}");
    let server = lab.serve(&lab.b, "--dev xdp:br7 --port 80");
    assert!(lab.curl(&lab.a, "http://10.99.0.2/k64") == data);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn the_loopback_interface_is_refused() {
    let Some(lab) = Lab::new() else { return };
    let text = lab.refuses(&lab.b, "--dev xdp:lo");
    assert!(text.contains("--kernel"), "{text}");
}

#[test]
fn another_corelane_is_named_by_its_process() {
    let Some(lab) = Lab::new() else { return };
    let server = lab.serve(&lab.b, "--dev xdp:vb --port 80");
    let text = lab.refuses(&lab.b, "--dev xdp:vb --port 81");
    // `ip netns exec` becomes the command.
    let holder = format!("of another corelane (pid {})", server.0.id());
    assert!(text.contains(&holder), "{text}");
}

/// Two starts at the same moment: one serves, and the other one says which.
#[test]
fn of_two_starts_at_once_one_serves() {
    let Some(lab) = Lab::new() else { return };
    for n in 0..20 {
        let mut both = Vec::from([(); 2].map(|()| lab.start(&lab.b, "--dev xdp:vb --port 80")));
        let over = |server: &mut Running| !matches!(server.0.try_wait(), Ok(None));
        until("neither is refused", || both.iter_mut().any(over));
        let at = both.iter_mut().position(over).unwrap();
        let text = both.remove(at).rest();
        let mut server = both.remove(0);
        assert!(text.contains(&format!("of another corelane (pid {})", server.0.id())), "{n}: {text}");
        let mut said = [0; 7];
        server.0.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        assert_eq!((&said, server.stop()), (b"serving", Some(0)), "{n}");
    }
}

/// Raises a flag when it goes.
struct Raise<'a>(&'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A server that waits for another one's end: of the connections that are begun from then on none is refused, and another program cannot
/// have the port; one that does not end is not waited for longer than was asked.
#[test]
fn a_server_that_waits_for_one_that_ends_lets_nothing_be_refused() {
    let Some(lab) = Lab::new() else { return };
    let old = lab.serve(&lab.b, "--dev xdp:vb --port 80");
    let text = lab.refuses(&lab.b, "--dev xdp:vb --port 80 --wait 0.2");
    assert!(text.contains("waiting for another corelane to end, 0.2 s at most"), "{text}");
    assert!(text.contains("already runs the XDP program"), "{text}");
    let mut new = lab.start(&lab.b, "--dev xdp:vb --port 80 --wait 50");
    new.says_until("waiting for another corelane to end");
    let (over, served) = (AtomicBool::new(false), AtomicU32::new(0));
    let connect = || {
        let mut failed = Vec::new();
        while !over.load(Ordering::Relaxed) {
            for host in ["10.99.0.2:80", "[fd99::2]:80"] {
                // What was left unanswered comes again after a second.
                match TcpStream::connect_timeout(&host.parse().unwrap(), Duration::from_secs(30)) {
                    Ok(_) => drop(served.fetch_add(1, Ordering::Relaxed)),
                    Err(e) => failed.push((host, e)),
                }
            }
        }
        failed
    };
    let failed = std::thread::scope(|s| {
        // Also where this fails.
        let end = Raise(&over);
        let clients: Vec<_> = (0..8).map(|_| s.spawn(|| lab.within(&lab.a, connect))).collect();
        until("it is served", || served.load(Ordering::Relaxed) > 100);
        old.signal(rustix::process::Signal::TERM);
        assert_eq!(old.stop_code(), Some(0));
        let mut said = [0; 7];
        new.0.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        assert_eq!(&said, b"serving");
        let before = served.load(Ordering::Relaxed);
        until("it is served again", || served.load(Ordering::Relaxed) > before + 100);
        drop(end);
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    let refused = failed.iter().filter(|(_, e)| e.kind() == std::io::ErrorKind::ConnectionRefused).count();
    assert_eq!(refused, 0, "of {} connections that failed", failed.len());
    // Nobody else, not even one that would share it.
    let beside = "import socket; s = socket.socket(); s.setsockopt(1, 15, 1); s.bind((\"10.99.0.2\", 80)); s.listen()";
    let beside = sh(&format!("ip netns exec {} python3 -c '{beside}'", lab.b));
    assert!(String::from_utf8_lossy(&beside.stderr).contains("Address already in use"), "{beside:?}");
    assert_eq!(new.stop(), Some(0));
    // A stop while it waits is a stop.
    let old = lab.serve(&lab.b, "--dev xdp:vb --port 80");
    let mut new = lab.start(&lab.b, "--dev xdp:vb --port 80 --wait 50");
    new.says_until("waiting for another corelane to end");
    assert_eq!(new.stop(), Some(0));
    assert_eq!(old.stop(), Some(0));
}

#[test]
fn a_changed_hardware_address_is_followed() {
    let Some(lab) = Lab::new() else { return };
    let data = lab.file("k64", 65_536);
    let mut server = lab.serve(&lab.b, "--dev xdp:vb --lanes 2 --port 80");
    assert!(lab.curl(&lab.a, "http://10.99.0.2/k64") == data);
    must(&format!("ip -n {} link set vb address 02:00:00:00:aa:01", lab.b));
    server.says_until("vb: its hardware address is 02:00:00:00:aa:01");
    must(&format!("ip -n {} neigh flush dev va", lab.a));
    for host in BOTH {
        assert!(lab.curl(&lab.a, &format!("{host}/k64")) == data, "{host}");
    }
    assert_eq!(server.stop(), Some(0));
}

/// Entries that the kernel has learned by itself are confirmed while they are used, and left to it.
#[test]
fn a_stale_wrong_neighbour_is_mended_and_no_entry_is_kept() {
    let Some(lab) = Lab::new() else { return };
    let data = lab.file("k1", 1024);
    let (a, b) = (&lab.a, &lab.b);
    let mac = must(&format!("ip netns exec {b} cat /sys/class/net/vb/address"));
    // The client never asks, so nothing that it sends mends the server's table.
    for (ours, theirs) in [("10.99.0.2", "10.99.0.1"), ("fd99::2", "fd99::1")] {
        must(&format!("ip -n {a} neigh replace {ours} dev va lladdr {} nud permanent", mac.trim()));
        must(&format!("ip -n {b} neigh replace {theirs} dev vb lladdr 02:aa:bb:cc:dd:ee nud stale"));
    }
    let server = lab.serve(b, "--dev xdp:vb --port 80");
    for host in BOTH {
        let ask = format!("ip netns exec {a} curl -gsS --fail -m 1 {host}/k1");
        assert!(!sh(&ask).status.success(), "{host}: the answer went to the wrong place");
        until("the kernel confirms it, or asks anew", || sh(&ask).stdout == data);
    }
    // A client that nobody knows.
    must(&format!("ip -n {a} addr add 10.99.0.9/24 dev va"));
    assert!(
        sh(&format!("ip netns exec {a} curl -sS --fail -m 10 --interface 10.99.0.9 http://10.99.0.2/k1")).stdout
            == data
    );
    let entries = || must(&format!("ip -n {b} neigh show dev vb"));
    let all = entries();
    assert!(all.contains("10.99.0.9 ") && !all.contains("managed") && !all.contains("02:aa:bb"), "{all}");
    assert_eq!(server.stop(), Some(0));
    assert!(!entries().contains("managed"));
}

/// More changes at once than the kernel keeps for a reader: what was lost is read anew.
#[test]
fn changes_that_came_too_fast_are_followed() {
    let Some(lab) = Lab::new() else { return };
    let data = lab.file("k64", 65_536);
    let mut server = lab.serve(&lab.b, "--dev xdp:vb --port 80");
    server.signal(rustix::process::Signal::STOP);
    let many: String = (0..6000).map(|n| format!("link set vb mtu {}\n", 1500 - n % 2 * 100)).collect();
    std::fs::write(lab.dir.join("batch"), many).unwrap();
    must(&format!("ip -n {} -batch {}", lab.b, lab.dir.join("batch").display()));
    must(&format!("ip -n {} link set vb address 02:00:00:00:aa:01 mtu 1300", lab.b));
    server.signal(rustix::process::Signal::CONT);
    server.says_until("vb: its hardware address is 02:00:00:00:aa:01");
    must(&format!("ip -n {} neigh flush dev va", lab.a));
    assert!(lab.curl(&lab.a, "http://10.99.0.2/k64") == data);
    assert_eq!(server.stop(), Some(0));
}

/// Who only listens takes no other ports: whatever else the machine serves is reached.
#[test]
fn a_server_leaves_ports_of_connections_to_the_kernel() {
    let Some(lab) = Lab::new() else { return };
    let data = lab.file("k64", 65_536);
    let server = lab.serve(&lab.b, "--dev xdp:vb --port 80");
    lab.within(&lab.b, || {
        for port in [9100, 27_017, 61_500] {
            let listener = TcpListener::bind(("10.99.0.2", port)).unwrap();
            let came = lab
                .within(&lab.a, || TcpStream::connect_timeout(&([10, 99, 0, 2], port).into(), Duration::from_secs(20)));
            assert!(came.is_ok(), "{port}: {came:?}");
            drop(listener);
        }
    });
    assert!(lab.curl(&lab.a, "http://10.99.0.2/k64") == data);
    assert_eq!(server.stop(), Some(0));
}

/// A link that takes shorter packets than before, under a download and for those after it.
#[test]
fn a_changed_mtu_is_followed() {
    let Some(lab) = Lab::new() else { return };
    let data = lab.file("m4", 4 << 20);
    let mut server = lab.serve(&lab.b, "--dev xdp:vb --lanes 2 --port 80");
    std::thread::scope(|s| {
        let slow = s.spawn(|| {
            sh(&format!("ip netns exec {} curl -sS --fail -m 60 --limit-rate 2M http://10.99.0.2/m4", lab.a)).stdout
        });
        std::thread::sleep(Duration::from_millis(500));
        must(&format!("ip -n {} link set vb mtu 1300 && ip -n {} link set va mtu 1300", lab.b, lab.a));
        server.says_until("vb: its MTU is 1300 from now on");
        assert!(slow.join().unwrap() == data);
    });
    // Nothing is longer than the link takes.
    let dropped = |ns: &str, dev: &str| {
        let stats = must(&format!("ip -n {ns} -s -j link show {dev}"));
        let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
        stats[0]["stats64"]["tx"]["dropped"].as_u64().unwrap()
    };
    let before = dropped(&lab.b, "vb");
    for host in BOTH {
        assert!(lab.curl(&lab.a, &format!("{host}/m4")) == data, "{host}");
    }
    assert_eq!(dropped(&lab.b, "vb"), before);
    must(&format!("ip -n {} link set va mtu 1500 && ip -n {} link set vb mtu 1500", lab.a, lab.b));
    server.says_until("vb: its MTU is 1500 from now on");
    assert!(lab.curl(&lab.a, "http://10.99.0.2/m4") == data);
    must(&format!("ip -n {} link set va mtu 3000 && ip -n {} link set vb mtu 3000", lab.a, lab.b));
    server.says_until("vb: its MTU is 3000: start again to use that");
    assert!(lab.curl(&lab.a, "http://10.99.0.2/m4") == data);
    assert_eq!(server.stop(), Some(0));
}

/// Frames of a queue that is turned on later come to no lane: who did it reads what to do.
#[test]
fn a_queue_that_is_turned_on_later_is_told() {
    let Some(lab) = Lab::new() else { return };
    let data = lab.file("k64", 65_536);
    must(&format!("ip netns exec {} ethtool -L vb rx 1", lab.b));
    let mut server = lab.serve(&lab.b, "--dev xdp:vb --port 80");
    assert!(lab.curl(&lab.a, "http://10.99.0.2/k64") == data);
    must(&format!("ip netns exec {} ethtool -L vb rx 2", lab.b));
    // What is always told comes after it.
    must(&format!("ip -n {} link set vb address 02:00:00:00:aa:01", lab.b));
    let said = server.says_until("vb: its hardware address is 02:00:00:00:aa:01");
    assert!(said.contains("vb: it has 2 receive queues now, and frames of 1 are taken"), "{said}");
    assert_eq!(server.stop(), Some(0));
    must(&format!("ip -n {} neigh flush dev va", lab.a));
    let server = lab.serve(&lab.b, "--dev xdp:vb --port 80");
    assert!(lab.curl(&lab.a, "http://10.99.0.2/k64") == data);
    assert_eq!(server.stop(), Some(0));
}

/// Anycast and direct server return: addresses on the loopback interface, which routers and balancers lead here.
#[test]
fn addresses_of_the_loopback_interface_are_served_and_followed() {
    let Some(lab) = Lab::new() else { return };
    let data = lab.file("k64", 65_536);
    must(&format!("ip -n {} addr add 10.96.0.7/32 dev lo", lab.b));
    must(&format!(
        "ip -n {a} route add 10.96.0.0/24 via 10.99.0.2 && ip -n {a} route add fd96::/64 via fd99::2",
        a = lab.a
    ));
    let server = lab.serve(&lab.b, "--dev xdp:vb --lanes 2 --port 80");
    let get = |url: &str| sh(&format!("ip netns exec {} curl -sS -g --fail -m 5 {url}", lab.a)).stdout == data;
    assert!(get("http://10.96.0.7/k64"));
    assert!(get("http://10.99.0.2/k64"));
    // One that comes later, and one that moves to another interface and back, as keepalived does it.
    must(&format!("ip -n {} addr add fd96::8/128 dev lo nodad", lab.b));
    until("a later one is served", || get("'http://[fd96::8]/k64'"));
    must(&format!("ip -n {b} addr del 10.96.0.7/32 dev lo && ip -n {b} addr add 10.96.0.7/32 dev vb", b = lab.b));
    until("one that moved is served", || get("http://10.96.0.7/k64"));
    must(&format!("ip -n {b} addr del 10.96.0.7/32 dev vb", b = lab.b));
    until("one that is gone is not served", || !get("http://10.96.0.7/k64"));
    assert!(get("http://10.99.0.2/k64"));
    assert_eq!(server.stop(), Some(0));
}

/// One that the configuration names may be of any interface of the machine.
#[test]
fn a_named_address_is_served_wherever_the_machine_has_it() {
    let Some(lab) = Lab::new() else { return };
    let data = lab.file("k64", 65_536);
    must(&format!(
        "ip -n {b} link add br7 type bridge && ip -n {b} link set br7 up && ip -n {b} addr add 10.96.0.7/32 dev br7",
        b = lab.b
    ));
    must(&format!("ip -n {} route add 10.96.0.0/24 via 10.99.0.2", lab.a));
    let server = lab.serve(&lab.b, "--dev xdp:vb --addr 10.96.0.7/32 --port 80");
    assert!(lab.curl(&lab.a, "http://10.96.0.7/k64") == data);
    // The other one stays the kernel's.
    let other = sh(&format!("ip netns exec {} curl -sS -m 5 http://10.99.0.2/k64", lab.a));
    assert_eq!(other.status.code(), Some(7), "{}", String::from_utf8_lossy(&other.stderr));
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn nothing_is_said_to_be_served_before_there_is_an_address() {
    let Some(lab) = Lab::new() else { return };
    let data = lab.file("k64", 65_536);
    must(&format!("ip -n {} addr flush dev vb", lab.b));
    let mut server = lab.start(&lab.b, "--dev xdp:vb --port 80");
    let line = server.says();
    assert!(line.contains("vb has no address yet"), "{line}");
    let mut ready = server.0.stdout.take().unwrap();
    rustix::io::ioctl_fionbio(&ready, true).unwrap();
    // It holds the interface, and has listened, long before this.
    std::thread::sleep(Duration::from_secs(1));
    assert!(ready.read(&mut [0]).is_err(), "it says that it serves");
    rustix::io::ioctl_fionbio(&ready, false).unwrap();
    must(&format!("ip -n {} addr add 10.99.0.2/24 dev vb", lab.b));
    let mut said = [0; 7];
    ready.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"serving");
    assert!(lab.curl(&lab.a, "http://10.99.0.2/k64") == data);
    assert_eq!(server.stop(), Some(0));
    // A stop while it waits is a stop.
    must(&format!("ip -n {} addr flush dev vb", lab.b));
    let mut server = lab.start(&lab.b, "--dev xdp:vb --port 80");
    server.says();
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn nothing_is_said_to_be_served_before_there_is_a_carrier() {
    let Some(lab) = Lab::new() else { return };
    let data = lab.file("k64", 65_536);
    let other_end = |state: &str| must(&format!("ip -n {} link set va {state}", lab.a));
    other_end("down");
    let mut server = lab.start(&lab.b, "--dev xdp:vb --port 80");
    server.says_until("vb has no carrier: nothing comes or goes until it has one");
    let mut ready = server.0.stdout.take().unwrap();
    rustix::io::ioctl_fionbio(&ready, true).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert!(ready.read(&mut [0]).is_err(), "it says that it serves");
    rustix::io::ioctl_fionbio(&ready, false).unwrap();
    other_end("up");
    server.says_until("vb has a carrier");
    let mut said = [0; 7];
    ready.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"serving");
    assert!(lab.curl(&lab.a, "http://10.99.0.2/k64") == data);
    // One that is lost is told, once, and not when the link itself is taken down and comes back.
    other_end("down");
    server.says_until("vb has no carrier");
    other_end("up");
    server.says_until("vb has a carrier");
    must(&format!("ip -n {} link set vb down", lab.b));
    assert!(server.says().contains("vb is down"));
    must(&format!("ip -n {} link set vb up", lab.b));
    assert!(server.says().contains("vb is up again"));
    assert_eq!(server.stop(), Some(0));
}

/// The capabilities that README names, and no other; an ordinary user. Each that is missing is named.
#[test]
fn the_documented_capabilities_are_enough_and_each_is_named_where_it_is_missing() {
    let Some(lab) = Lab::new() else { return };
    if !sh("setpriv --version").status.success() {
        return testing::skip("needs setpriv (util-linux)");
    }
    let data = lab.file("k64", 65_536);
    // The user may neither read root's folders nor run what is in them.
    let bin = lab.dir.join("corelane");
    std::fs::copy(BIN, &bin).unwrap();
    must(&format!("chmod 755 {0} {1} && chmod 644 {0}/k64", lab.dir.display(), bin.display()));
    let all = ["net_admin", "net_raw", "bpf", "ipc_lock", "net_bind_service"];
    let command = |caps: &[&str], locked: &str| {
        let list: String = caps.iter().map(|c| format!(",+{c}")).collect();
        format!(
            "ip netns exec {b} prlimit --memlock={locked} setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all{list} --ambient-caps=-all{list} \
             --bounding-set=-all{list} {bin} serve {dir} --dev xdp:vb --port 80",
            b = lab.b,
            bin = bin.display(),
            dir = lab.dir.display()
        )
    };
    let serves = |command: String| {
        let mut child = Command::new("sh");
        child.args(["-c", &format!("exec {command}")]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut server = Running(child.stderr(Stdio::piped()).spawn().unwrap());
        let mut said = [0; 7];
        if server.0.stdout.as_mut().unwrap().read_exact(&mut said).is_err() {
            panic!("{command}: {}", server.failure());
        }
        assert!(lab.curl(&lab.a, "http://10.99.0.2/k64") == data);
        assert_eq!(server.stop(), Some(0));
    };
    serves(command(&all, "8388608"));
    // The limit of locked memory instead of the capability.
    let unlocked: Vec<&str> = all.iter().copied().filter(|c| *c != "ipc_lock").collect();
    if sh("prlimit --memlock=unlimited true").status.success() {
        serves(command(&unlocked, "unlimited"));
    } else {
        // Where CI runs in a container without CAP_SYS_RESOURCE.
        testing::skip_in_ci_too("this machine does not let root raise the limit of locked memory");
    }
    for without in all {
        let rest: Vec<&str> = all.iter().copied().filter(|c| *c != without).collect();
        let out = sh(&format!("timeout 60 {}", command(&rest, "8388608")));
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "without {without}: {text}");
        let name = format!("CAP_{}", without.to_uppercase());
        let last = text.lines().last().unwrap_or_default();
        assert_eq!(last.matches("CAP_").count(), 1, "without {without}: {last}");
        assert!(last.contains(&name), "without {without}: {last}");
        if without == "ipc_lock" {
            assert!(last.contains("locking ") && last.contains(" MiB"), "{last}");
            assert!(last.contains("ulimit -l") && last.contains("LimitMEMLOCK="), "{last}");
        }
    }
}

/// Of SYNs to a port of 10.99.0.2, one with a tag of VLAN 5 in the frame and then one without, sent from va: whether the first is
/// answered. The other one always is.
fn answers_another_vlan(lab: &Lab, dev: &str) -> bool {
    use io::Port;
    use wire::burst::{RxBurst, TxSink};

    let addresses = must(&format!("ip -n {} -j link show {dev}", lab.b));
    let addresses: serde_json::Value = serde_json::from_str(&addresses).unwrap();
    let to: Vec<u8> =
        addresses[0]["address"].as_str().unwrap().split(':').map(|b| u8::from_str_radix(b, 16).unwrap()).collect();
    let syn = |vlan: Option<u16>, port: u16| {
        let src_and_dst = [[10, 99, 0, 1], [10, 99, 0, 2]].map(wire::Addr::from_v4);
        let mut frame = vec![0; wire::quick::LONGEST];
        let headers = wire::quick::Headers {
            to: wire::MacAddr(to[..].try_into().unwrap()),
            from: wire::MacAddr([2; 6]),
            src: src_and_dst[0],
            dst: src_and_dst[1],
            tos: 0,
            ttl: 64,
            src_port: port,
            dst_port: 80,
            seq: wire::SeqNum(1000),
            ack: wire::SeqNum(0),
            flags: wire::tcp::Flags::SYN,
            window: 60_000,
        };
        let n = headers.write(&mut frame, &Default::default(), 0).unwrap();
        frame.truncate(n);
        let sum = wire::checksum::sum(&frame[34..]).finish();
        frame[50..52].copy_from_slice(&sum.to_be_bytes());
        if let Some(id) = vlan {
            frame.splice(12..12, [[0x81, 0], id.to_be_bytes()].concat());
        }
        frame
    };
    lab.within(&lab.a, || {
        let mut port = io::packet::open("va", 1, false).unwrap().remove(0);
        let (mut tagged, mut plain) = (false, false);
        // A bridge takes a moment until it forwards.
        until("the SYN without a tag is answered", || {
            for frame in [syn(Some(5), 5005), syn(None, 5000)] {
                let room = port.reserve(frame.len()).unwrap();
                room[..frame.len()].copy_from_slice(&frame);
                port.commit(frame.len(), Default::default());
            }
            port.flush().unwrap();
            std::thread::sleep(Duration::from_millis(50));
            for i in 0..port.receive(64) {
                if let Some(answer) = wire::quick::tuple(port.frame(i).data)
                    && port.frame(i).data[47] & 0x12 == 0x12
                {
                    (tagged, plain) = (tagged | (answer.dst_port == 5005), plain | (answer.dst_port == 5000));
                }
            }
            port.release();
            plain
        });
        tagged
    })
}

/// On a bridge or a macvlan the kernel has taken the tag out of a frame before a program sees it, in generic mode: who serves there reads
/// that its network is not told from others. The kernel itself knows it.
#[test]
fn where_frames_of_other_vlans_are_served_it_is_told() {
    let made = [
        ("vb", "true"),
        ("br7", "ip -n NS link add br7 type bridge && ip -n NS link set vb master br7"),
        ("mv0", "ip -n NS link add mv0 link vb type macvlan mode bridge"),
    ];
    for (dev, make) in made {
        let Some(lab) = Lab::new() else { return };
        must(&make.replace("NS", &lab.b));
        if dev != "vb" {
            must(&format!(
                "ip -n {b} addr flush dev vb && ip -n {b} link set {dev} up && ip -n {b} addr add 10.99.0.2/24 dev {dev}",
                b = lab.b
            ));
        }
        let kernel = lab.serve(&lab.b, "--kernel --port 80");
        assert!(!answers_another_vlan(&lab, dev), "the kernel's server on {dev}");
        assert_eq!(kernel.stop(), Some(0));
        let server = lab.serve(&lab.b, &format!("--dev xdp:{dev} --port 80"));
        let served = answers_another_vlan(&lab, dev);
        let said = server.stop_and_read();
        let line = format!(
            "note: {dev} has its frames from other interfaces, where their VLAN tags are taken off: frames of any VLAN that \
             reaches it are taken for untagged ones"
        );
        assert_eq!(served, said.lines().any(|said| said.contains(&line)), "{dev}: answered: {served}; {said}");
        assert_eq!(served, dev != "vb");
    }
}

/// CPU time of a process so far.
fn cpu_time(of: &Running) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", of.0.id())).unwrap();
    // Behind its name: in user mode, and in the kernel, in hundredths of a second.
    let fields = stat[stat.rfind(')').unwrap()..].split(' ');
    Duration::from_millis(fields.skip(12).take(2).map(|ticks| ticks.parse::<u64>().unwrap() * 10).sum())
}

/// The interface's frames leave through a link behind it that lets next to none pass: the kernel keeps as many as a socket may have
/// on the way, and leaves the others in the ring.
#[test]
fn a_lane_sleeps_while_the_kernel_takes_nothing() {
    // First windows of so many connections fill the ring.
    const CONNECTIONS: usize = 300;
    for (model, offload) in [("inline", false), ("guarded", false), ("paired", false), ("inline", true)] {
        let Some(lab) = Lab::new() else { return };
        let data = lab.file("k64", 65_536);
        behind_a_bridge(&lab);
        let config = lab.dir.join("lane.toml");
        // With it, answers would pass the ring by.
        std::fs::write(&config, format!("[[ports]]\ndevice = \"xdp:br7\"\noffload = {offload}\n")).unwrap();
        let server = lab.serve(&lab.b, &format!("--config {} --port 80 --model {model}", config.display()));
        lab.within(&lab.a, || {
            let mut clients: Vec<TcpStream> =
                (0..CONNECTIONS).map(|_| TcpStream::connect("10.99.0.2:80").unwrap()).collect();
            must(&format!("tc -n {} qdisc add dev vb root tbf rate 8kbit burst 1600 limit 1gb", lab.b));
            for client in &mut clients {
                client.write_all(b"GET /k64 HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n").unwrap();
            }
            std::thread::sleep(Duration::from_millis(500));
            let (began, before) = (Instant::now(), cpu_time(&server));
            std::thread::sleep(Duration::from_secs(2));
            let (used, passed) = (cpu_time(&server) - before, began.elapsed());
            // One that asks again in each turn takes its core whole, or as much of it as others leave.
            assert!(used * 5 < passed, "{model}, offload {offload}: {used:?} of CPU in {passed:?}");
            // What the queue held is lost, and sent again.
            must(&format!("tc -n {} qdisc del dev vb root", lab.b));
            for client in &mut clients {
                let mut answer = Vec::new();
                client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                client.read_to_end(&mut answer).unwrap();
                assert!(answer.ends_with(&data), "{model}, offload {offload}");
            }
        });
        assert_eq!(server.stop(), Some(0), "{model}, offload {offload}");
    }
}

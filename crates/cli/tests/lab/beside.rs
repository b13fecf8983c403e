//! A machine's other connections and services beside a client of ours.

use super::*;

/// Services that start on ports from which connections have been opened, and the kernel's own connections from there to the peer that they
/// go to, as masqueraded containers have them.
#[test]
fn the_ports_of_a_client_stay_the_machines() {
    let Some(lab) = Lab::new() else { return };
    lab.file("one", 1);
    let kernel = lab.serve(&lab.b, "--kernel --port 80");
    let mut load = Command::new("ip");
    load.args(["netns", "exec", &lab.a, BIN, "load", "http://10.99.0.2/one", "--json"]);
    load.args(["--dev", "xdp:va", "--rate", "1000", "-c", "64", "-d", "300"]);
    let mut load = Running(load.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut out = load.0.stdout.take().unwrap();
    while lab.within(&lab.b, || io::netlink::kernel_flows(80, |_| true).unwrap().time_wait) < 100 {
        assert!(load.0.try_wait().unwrap().is_none(), "load has ended: {}", load.failure());
        std::thread::sleep(Duration::from_millis(10));
    }
    for (port, host) in [(9090, "10.99.0.1"), (27_017, "fd99::1"), (30_080, "10.99.0.1"), (61_500, "fd99::1")] {
        let at = SocketAddr::new(host.parse().unwrap(), port);
        let service = lab.within(&lab.a, || TcpListener::bind(at).unwrap());
        let mut client = lab.within(&lab.b, || TcpStream::connect_timeout(&at, Duration::from_secs(30)).unwrap());
        let (mut server, _) = service.accept().unwrap();
        for end in [&client, &server] {
            end.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        }
        client.write_all(b"hello").unwrap();
        let mut heard = [0; 5];
        server.read_exact(&mut heard).unwrap();
        server.write_all(&heard).unwrap();
        client.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"hello");
    }
    let to = SocketAddr::from(([10, 99, 0, 2], 80));
    for port in (8192..32_768).step_by(250).chain((61_440..=65_535).step_by(250)) {
        let mut client = lab.within(&lab.a, || connect_from(port, to));
        let answer = ask(&mut client).unwrap_or_else(|e| panic!("from port {port}: {e}"));
        assert!(answer.starts_with("HTTP/1.1 200"), "from port {port}: {answer}");
    }
    load.signal(rustix::process::Signal::INT);
    let mut report = String::new();
    out.read_to_string(&mut report).unwrap();
    assert!(report.contains("\"errors\": {}"), "{report}");
    assert_eq!((load.stop_code(), kernel.stop()), (Some(130), Some(0)));
}

/// Sets a kernel parameter of IPv4 in a namespace.
fn sysctl(lab: &Lab, ns: &str, name: &str, value: &str) {
    // An empty write changes nothing.
    lab.within(ns, || std::fs::write(format!("/proc/sys/net/ipv4/{name}"), format!("{value}\n")).unwrap());
}

/// Binds a socket that shares its port with nobody.
fn bind_alone(port: u16) -> std::io::Result<()> {
    use rustix::net::{AddressFamily, SocketType, bind, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    Ok(bind(&socket, &SocketAddr::from(([10, 99, 0, 1], port)))?)
}

/// NAT draws its ports from a range of which a client of ours has all but four: it takes these four, for both families.
#[test]
fn nat_draws_no_port_from_which_a_client_has_a_connection() {
    if Command::new("nft").arg("--version").output().is_err() {
        return testing::skip("no nft");
    }
    for (family, host) in [("ip", "10.99.0.2"), ("ip6", "[fd99::2]")] {
        let Some(lab) = Lab::new() else { return };
        let config = lab.dir.join("ports.toml");
        std::fs::write(&config, "local_ports = [20000, 20059]\n[[ports]]\ndevice = \"xdp:va\"\n").unwrap();
        let rules = format!(
            "add table {family} t\n\
             add chain {family} t c {{ type nat hook postrouting priority 100; }}\n\
             add rule {family} t c tcp dport 8000 masquerade to :20000-20063 fully-random"
        );
        let status = Command::new("ip").args(["netns", "exec", &lab.a, "nft", &rules]).status();
        assert!(status.is_ok_and(|status| status.success()), "{rules}");
        let to: SocketAddr = format!("{host}:8000").parse().unwrap();
        let listener = lab.within(&lab.b, || TcpListener::bind(to).unwrap());
        let mut load = Command::new("ip");
        load.args(["netns", "exec", &lab.a, BIN, "load", &format!("http://{to}/"), "-c", "60", "-d", "300"]);
        load.args(["--timeout", "300", "--config"]).arg(&config);
        let load = Running(load.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        let (held, ports) = peers(&lab, &listener, 60);
        assert!(ports.iter().all(|port| (20_000..20_060).contains(port)), "{ports:?}");
        let end = Instant::now() + Duration::from_secs(60);
        let tracked = || std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count").unwrap();
        while lab.within(&lab.a, tracked).trim().parse::<usize>().unwrap() < 60 {
            assert!(Instant::now() < end, "connections are not entered into connection tracking");
            std::thread::sleep(Duration::from_millis(10));
        }
        let open = |_| lab.within(&lab.a, || TcpStream::connect_timeout(&to, Duration::from_secs(30)).unwrap());
        let _clients: Vec<TcpStream> = (0..4).map(open).collect();
        let (_servers, mut drawn) = peers(&lab, &listener, 4);
        drawn.sort();
        assert_eq!(drawn, [20_060, 20_061, 20_062, 20_063]);
        load.signal(rustix::process::Signal::INT);
        assert!(load.stop_code().is_some());
        drop(held);
    }
}

/// Opens 100 connections to port 8000, where nobody answers them.
fn load_that_waits(lab: &Lab) -> Running {
    let mut load = Command::new("ip");
    load.args(["netns", "exec", &lab.a, BIN, "load", "http://10.99.0.2:8000/", "--dev", "xdp:va"]);
    load.args(["-c", "100", "-d", "300", "--timeout", "300"]);
    Running(load.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// Local ports of connections that wait at a listener, as many as are asked for.
fn peers(lab: &Lab, listener: &TcpListener, count: usize) -> (Vec<TcpStream>, Vec<u16>) {
    let accepted: Vec<_> = (0..count).map(|_| lab.within(&lab.b, || listener.accept().unwrap())).collect();
    accepted.into_iter().map(|(stream, from)| (stream, from.port())).unzip()
}

/// The machine's range of local ports leaves none: a server needs none, and a client opens from ports of the range that it holds, which the
/// kernel then does not choose.
#[test]
fn the_kernels_range_may_be_all_there_is() {
    let Some(lab) = Lab::new() else { return };
    lab.file("one", 1);
    for ns in [&lab.a, &lab.b] {
        sysctl(&lab, ns, "ip_local_port_range", "1024 65535");
    }
    let ours = lab.serve(&lab.b, "--dev xdp:vb --port 80");
    assert!(lab.curl(&lab.a, "http://10.99.0.2/one").len() == 1);
    let listener = lab.within(&lab.b, || TcpListener::bind("10.99.0.2:8000").unwrap());
    let load = load_that_waits(&lab);
    let (held, ports) = peers(&lab, &listener, 100);
    // Two of 32 stay the kernel's.
    assert!(ports.iter().all(|port| *port >= 1024 && port % 32 < 30), "{ports:?}");
    let bind = |port: u16| lab.within(&lab.a, || bind_alone(port));
    assert!(ports.iter().all(|port| bind(*port).is_err()), "{ports:?}");
    let to = listener.local_addr().unwrap();
    for _ in 0..1000 {
        let client = lab.within(&lab.a, || TcpStream::connect_timeout(&to, Duration::from_secs(30)).unwrap());
        let port = client.local_addr().unwrap().port();
        assert!(!ports.contains(&port), "{port}");
        drop(lab.within(&lab.b, || listener.accept().unwrap()));
    }
    load.signal(rustix::process::Signal::INT);
    assert!(load.stop_code().is_some());
    drop(held);
    assert!(ports.iter().all(|port| bind(*port).is_ok()), "{ports:?}");
    assert_eq!(ours.stop(), Some(0));
}

/// The machine's range of local ports grows over those from which connections are open: they are held, and the others left.
#[test]
fn a_range_that_grows_over_the_ports_of_a_client_is_followed() {
    let Some(lab) = Lab::new() else { return };
    let listener = lab.within(&lab.b, || TcpListener::bind("10.99.0.2:8000").unwrap());
    let load = load_that_waits(&lab);
    let (held, ports) = peers(&lab, &listener, 100);
    assert!(ports.iter().all(|port| (8192..32_768).contains(port) || *port >= 61_000), "{ports:?}");
    sysctl(&lab, &lab.a, "ip_local_port_range", "1024 65535");
    let end = Instant::now() + Duration::from_secs(60);
    while ports.iter().any(|port| lab.within(&lab.a, || bind_alone(*port)).is_ok()) {
        assert!(Instant::now() < end, "the range is not followed");
        std::thread::sleep(Duration::from_millis(10));
    }
    let to = listener.local_addr().unwrap();
    for _ in 0..1000 {
        let client = lab.within(&lab.a, || TcpStream::connect_timeout(&to, Duration::from_secs(30)).unwrap());
        let port = client.local_addr().unwrap().port();
        assert!(!ports.contains(&port), "{port}");
        drop(lab.within(&lab.b, || listener.accept().unwrap()));
    }
    let others = (8192..9192).filter(|port| !ports.contains(port));
    assert!(
        others.filter(|port| lab.within(&lab.a, || bind_alone(*port)).is_ok()).count() > 900,
        "more are held than are used"
    );
    load.signal(rustix::process::Signal::INT);
    assert!(load.stop_code().is_some());
    drop(held);
}

/// Ranges that leave a client one way or another to ports, and one that leaves none, which is told.
#[test]
fn a_client_starts_where_any_port_can_be_had() {
    let Some(lab) = Lab::new() else { return };
    lab.file("one", 1);
    let _kernel = lab.serve(&lab.b, "--kernel --port 80");
    let load = |config: &str| {
        let file = lab.dir.join("ports.toml");
        std::fs::write(&file, format!("{config}\n[[ports]]\ndevice = \"xdp:va\"\n")).unwrap();
        let mut load = Command::new("ip");
        load.args(["netns", "exec", &lab.a, BIN, "load", "http://10.99.0.2/one", "-c", "4", "-n", "100"]);
        load.arg("--config").arg(&file).output().unwrap()
    };
    let taken = lab.within(&lab.a, || TcpListener::bind("10.99.0.1:40000").unwrap());
    let listeners = || (41_000..42_000).map(|port| TcpListener::bind(("10.99.0.1", port)).unwrap()).collect::<Vec<_>>();
    let thousand = lab.within(&lab.a, listeners);
    for (range, reserved, config, fails) in [
        ("1024 65535", "1-65535", "", ""),
        ("40000 40000", "", "", ""),
        ("1024 65535", "1-39999,40002-65535", "", ""),
        ("1024 65535", "", "local_ports = [39000, 40999]", ""),
        ("1024 65535", "", "local_ports = [40000, 40000]", "local port 40000 is in use by another program"),
        (
            "41000 41999",
            "",
            "local_ports = [41000, 41999]",
            "every local port from 41000 to 41999 is in use by another program",
        ),
        ("41000 41999", "", "local_ports = [41000, 42200]", ""),
        ("41000 41999", "1-40999,42001-65535", "", ""),
    ] {
        sysctl(&lab, &lab.a, "ip_local_port_range", range);
        sysctl(&lab, &lab.a, "ip_local_reserved_ports", reserved);
        let done = load(config);
        let said = String::from_utf8_lossy(&done.stderr);
        let case = format!("{range}, reserved {reserved:?}, {config}: {said}");
        assert_eq!(done.status.code(), Some(i32::from(!fails.is_empty())), "{case}");
        assert_eq!(said.matches("local port ").count(), usize::from(!fails.is_empty()), "{case}");
        assert!(said.contains(fails), "{case}");
    }
    drop((taken, thousand));
}

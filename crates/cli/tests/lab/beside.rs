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

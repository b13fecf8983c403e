//! Ports on an interface that the kernel keeps using: taken, given back, and all of them taken.
//!
//! Needs root and iproute2; skipped without.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::process::Command;

use runtime::config::{Config, Model, PortConfig};
use runtime::{App, Engine};

fn sh(command: &str) -> bool {
    Command::new("sh").args(["-c", command]).status().is_ok_and(|s| s.success())
}

/// Runs `f` in a network namespace of its own with an engine on both ends of a veth, which serve the machine's 10.98.0.1.
fn beside_the_kernel(name: &str, f: impl FnOnce(&mut App) + Send) {
    let ns = format!("clr-{name}-{}", std::process::id());
    if !rustix::process::geteuid().is_root() || !sh(&format!("ip netns add {ns}")) {
        return testing::skip("needs root and iproute2");
    }
    let made = sh(&format!(
        "ip -n {ns} link add clr-va numrxqueues 1 numtxqueues 1 type veth peer name clr-vb numrxqueues 1 numtxqueues 1 && \
         ip -n {ns} link set clr-va up && ip -n {ns} link set clr-vb up && \
         ip -n {ns} link set lo up && ip -n {ns} addr add 10.98.0.1/32 dev lo"
    ));
    let result = std::thread::scope(|s| {
        s.spawn(|| {
            assert!(made, "a veth");
            let file = std::fs::File::open(format!("/var/run/netns/{ns}")).unwrap();
            let kind = Some(rustix::thread::LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(file.as_fd(), kind).unwrap();
            let ports = ["xdp:clr-va", "xdp:clr-vb"].map(|device| PortConfig::new(device.parse().unwrap()));
            let config = Config { model: Model::Paired, ports: ports.into(), ..Config::default() };
            let mut engine = Engine::start(&config).unwrap();
            let mut app = engine.take_app(0).unwrap().attach().unwrap();
            f(&mut app);
            drop(app);
            engine.shutdown();
        })
        .join()
    });
    sh(&format!("ip netns del {ns}"));
    if let Err(cause) = result {
        std::panic::resume_unwind(cause);
    }
}

fn at(n: u32) -> SocketAddr {
    ([10, 98, 0, 1], 1024 + (n % 30_000) as u16).into()
}

#[test]
fn as_many_ports_as_you_like_one_after_the_other() {
    beside_the_kernel("turns", |app| {
        for n in 0..20_000 {
            let claim = app.claim(at(n), false).unwrap_or_else(|e| panic!("listen {n}: {e}"));
            // Nobody else has it meanwhile, and everybody afterwards.
            if n % 1000 == 0 {
                assert_eq!(TcpListener::bind(at(n)).unwrap_err().kind(), ErrorKind::AddrInUse);
            }
            drop(claim);
            if n % 1000 == 0 {
                TcpListener::bind(at(n)).unwrap();
            }
        }
    });
}

/// Waits until something has happened, which is named.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !done() {
        assert!(std::time::Instant::now() < end, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// 128 addresses and 127 listeners on all of them leave 128 of an interface's 16,384 places.
#[test]
fn an_address_that_has_no_room_is_left_to_the_kernel() {
    const LISTENERS: u16 = 127;
    beside_the_kernel("room", |app| {
        let add = |net: u8, hosts: std::ops::Range<u8>| {
            let each = |host| format!("ip addr add 10.98.{net}.{host}/32 dev lo");
            assert!(sh(&hosts.map(each).collect::<Vec<_>>().join("; ")));
        };
        let at = |addr: [u8; 4], port: u16| SocketAddr::from((addr, port));
        // Followed when all of them are taken; what is bound then is not free.
        let taken = |addr: [u8; 4]| (1..=LISTENERS).filter(|n| TcpListener::bind(at(addr, 1000 + n)).is_err()).count();
        add(1, 1..128);
        let everywhere = |n: u16| app.claim(at([0; 4], 1000 + n), false);
        let held: Vec<_> = (1..=LISTENERS).map(|n| everywhere(n).unwrap()).collect();
        until("addresses are followed", || taken([10, 98, 1, 127]) == LISTENERS as usize);
        // One address more takes all but one of the places that are left, and the next one the last.
        add(2, 1..2);
        until("one more", || taken([10, 98, 2, 1]) == LISTENERS as usize);
        add(3, 1..2);
        until("the last place", || taken([10, 98, 3, 1]) == 1);
        let full = everywhere(LISTENERS + 1).err().expect("there is no place");
        assert_eq!(full.kind(), ErrorKind::AddrNotAvailable);
        TcpListener::bind(at([0; 4], 1001 + LISTENERS)).expect("it is free");
        drop(held);
    });
}

/// A port that a program names for its connection is nobody else's, unless the kernel never chooses it; one that a listener asks for is free.
#[test]
fn named_ports_and_any_port() {
    beside_the_kernel("named", |app| {
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "20000 29999").unwrap();
        let bind = |port: u16| TcpListener::bind(("10.98.0.1", port));
        let taken = bind(25_000).unwrap();
        let refused = app.may_connect_from(25_000).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AddrInUse);
        assert!(refused.to_string().starts_with("local port 25000 is in use by another program"), "{refused}");
        drop(taken);
        for port in [0, 25_000, 30_000, 25_000] {
            app.may_connect_from(port).unwrap_or_else(|e| panic!("port {port}: {e}"));
        }
        let alone = |port: u16| {
            let socket =
                rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
            rustix::net::bind(&socket, &SocketAddr::from(([10, 98, 0, 1], port)))
        };
        assert_eq!([25_000, 30_000].map(|port| alone(port).is_ok()), [false, true]);
        let _listeners: Vec<_> = (0..100)
            .map(|_| {
                let sock = app.sockets.socket(false).unwrap();
                let claim = app.listen(sock, 1).unwrap();
                let port = app.sockets.local(sock).unwrap().port;
                assert!((20_000..30_000).contains(&port) && port != 25_000 && bind(port).is_err(), "{port}");
                claim
            })
            .collect();
        // The kernel's range is followed, and ports that nobody uses are given back.
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "20000 30999").unwrap();
        until("the new range is followed", || {
            app.may_connect_from(30_000).unwrap();
            alone(30_000).is_err()
        });
        until("both ports are given back", || [25_000, 30_000].iter().all(|port| alone(*port).is_ok()));
        app.may_connect_from(25_000).unwrap();
        assert!(alone(25_000).is_err());
    });
}

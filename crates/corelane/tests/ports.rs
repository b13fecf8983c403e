//! Local ports of connections that are opened: when there is none left, and when there is one again.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use corelane::{Config, Engine, ListenOptions, Model, Ports};

/// Reached only where nothing happens any more.
const LIMIT: Duration = Duration::from_secs(60);
/// Ports of the client.
const PORTS: (u16, u16) = (50_000, 50_063);

/// The call itself fails where there is no port, and succeeds as soon as one is free again: that one.
#[test]
fn a_connect_without_a_port_fails_at_once() {
    let at: SocketAddr = "10.0.0.1:80".parse().unwrap();
    for model in [Model::Inline, Model::Paired, Model::Guarded] {
        let server = Config { model: Model::Paired, ..Config::memory("10.0.0.1/24").unwrap() };
        let client = Config { model, local_ports: Some(PORTS), ..Config::memory("10.0.0.2/24").unwrap() };
        let (mut server, mut client) = Engine::memory_pair(&server, &client).unwrap();
        assert_eq!(client.local_ports(), Ports::new(PORTS.0, PORTS.1));
        let end = server.take_lane(0).unwrap();
        let (listens, ready) = channel();
        let (over, done) = channel::<()>();
        let thread = thread::spawn(move || {
            let lane = end.attach().unwrap();
            let _listener = lane.listen(at, ListenOptions::default()).unwrap();
            listens.send(()).unwrap();
            let _ = done.recv();
        });
        ready.recv().unwrap();
        let lane = client.take_lane(0).unwrap().attach().unwrap();
        let count = usize::from(PORTS.1 - PORTS.0) + 1;
        let mut streams: Vec<_> =
            (0..count).map(|_| lane.connect_nonblocking(at, Default::default()).unwrap()).collect();
        for _ in 0..3 {
            let refused = lane.connect_nonblocking(at, Default::default()).map(|_| ()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::AddrNotAvailable, "{model:?}");
        }
        // Another remote end has all of them to itself.
        drop(lane.connect_nonblocking("10.0.0.1:81".parse().unwrap(), Default::default()).unwrap());
        // A reset frees a port at once.
        let first = streams.swap_remove(count / 2);
        let port = first.local_addr().unwrap().port();
        first.abort().unwrap();
        let end = Instant::now() + LIMIT;
        let again = loop {
            match lane.connect_nonblocking(at, Default::default()) {
                Ok(stream) => break stream,
                Err(e) => assert!(e.kind() == ErrorKind::AddrNotAvailable && Instant::now() < end, "{model:?}: {e}"),
            }
        };
        while again.local_addr().unwrap().port() == 0 {
            assert!(Instant::now() < end);
            lane.advance();
        }
        assert_eq!(again.local_addr().unwrap().port(), port, "{model:?}");
        drop((streams, again, lane, over));
        thread.join().unwrap();
    }
}

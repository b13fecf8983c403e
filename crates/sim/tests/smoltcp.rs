//! Interop with smoltcp, an independent TCP, over a memory wire and a bad one, in both directions, under a virtual clock.

use core::time::Duration;
use std::collections::VecDeque;

use io::impair::{Impairment, Path};
use protocol::Endpoint;
use sim::{Echo, Host, HostConfig, Outcome, Sender, pattern};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant as SmolInstant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};
use wire::{Addr, Instant};

/// smoltcp's end of the wire.
#[derive(Default)]
struct Wire {
    rx: VecDeque<Vec<u8>>,
    tx: Vec<Vec<u8>>,
}

struct Rx(Vec<u8>);

impl RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

struct Tx<'a>(&'a mut Vec<Vec<u8>>);

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let r = f(&mut frame);
        self.0.push(frame);
        r
    }
}

impl Device for Wire {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx<'a>;

    fn receive(&mut self, _: SmolInstant) -> Option<(Rx, Tx<'_>)> {
        let frame = self.rx.pop_front()?;
        Some((Rx(frame), Tx(&mut self.tx)))
    }

    fn transmit(&mut self, _: SmolInstant) -> Option<Tx<'_>> {
        Some(Tx(&mut self.tx))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut caps = DeviceCapabilities::default();
        caps.medium = Medium::Ethernet;
        caps.max_transmission_unit = 1514;
        // It computes and verifies every checksum itself.
        caps.checksum.tcp = Checksum::Both;
        caps
    }
}

struct World {
    host: Host,
    wire: Wire,
    interface: Interface,
    sockets: SocketSet<'static>,
    out: Path,
    back: Path,
    now: Instant,
}

impl World {
    fn new(seed: u64, bad: Impairment) -> World {
        let host = Host::new(HostConfig::new(1));
        let mut wire = Wire::default();
        let mac = HardwareAddress::Ethernet(EthernetAddress([2, 0, 0, 0, 0, 2]));
        let mut config = Config::new(mac);
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut wire, SmolInstant::from_micros(0));
        interface.update_ip_addrs(|a| {
            a.push(IpCidr::new(IpAddress::v4(10, 0, 0, 2), 24)).unwrap();
            a.push(IpCidr::new(IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, 2), 64)).unwrap();
        });
        World {
            host,
            wire,
            interface,
            sockets: SocketSet::new(Vec::new()),
            out: Path::new(bad.clone(), seed * 2),
            back: Path::new(bad, seed * 2 + 1),
            now: Instant::from_micros(1_000_000),
        }
    }

    fn socket(&mut self) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; 32 * 1024]);
        self.sockets.add(tcp::Socket::new(buffer(), buffer()))
    }

    /// Runs both ends, a millisecond or the next event at a time, until `done` or two hours have passed.
    fn run(&mut self, mut done: impl FnMut(&mut World) -> bool) -> bool {
        let end = self.now + Duration::from_secs(7200);
        while self.now < end {
            while let Some(frame) = self.out.pop(self.now) {
                self.wire.rx.push_back(frame);
            }
            let now = SmolInstant::from_micros(self.now.micros() as i64);
            self.interface.poll(now, &mut self.wire, &mut self.sockets);
            for frame in self.wire.tx.drain(..) {
                self.back.push(self.now, &frame);
            }
            let mut frames = Vec::new();
            while let Some(frame) = self.back.pop(self.now) {
                frames.push(frame);
            }
            for frame in self.host.turn(self.now, frames) {
                self.out.push(self.now, &frame);
            }
            if done(self) {
                return true;
            }
            let smol =
                self.interface.poll_at(now, &self.sockets).map(|t| Instant::from_micros(t.total_micros() as u64));
            let all = [smol, self.out.next_at(), self.back.next_at(), self.host.stack.next_deadline()];
            let next = all.into_iter().flatten().min().unwrap_or(end);
            let soon = if self.host.stack.output_pending() { self.now.plus_micros(100) } else { next };
            self.now = soon.min(next).max(self.now.plus_micros(1));
        }
        false
    }
}

fn bad(kind: u64) -> Impairment {
    let delay = Duration::from_millis(5);
    match kind {
        0 => Impairment::default(),
        1 => Impairment { loss: 0.03, delay, ..Impairment::default() },
        _ => Impairment {
            loss: 0.02,
            duplicate: 0.02,
            reorder: 0.05,
            reorder_by: Duration::from_millis(10),
            corrupt: 0.02,
            delay,
            ..Impairment::default()
        },
    }
}

#[test]
fn smoltcp_sends_and_gets_everything_back() {
    for seed in 0..12u64 {
        let v6 = seed % 2 == 1;
        let mut w = World::new(seed, bad(seed / 2 % 3));
        let local = Endpoint { addr: if v6 { Addr::UNSPECIFIED_V6 } else { Addr::UNSPECIFIED_V4 }, port: 80 };
        let mut echo = Echo::start(&mut w.host, local);
        let handle = w.socket();
        let total = 300_000u64;
        let (mut sent, mut got, mut connected) = (0u64, 0u64, false);
        let ok = w.run(|w| {
            while let Some(event) = w.host.event() {
                echo.on_event(&mut w.host, event);
            }
            let socket = w.sockets.get_mut::<tcp::Socket>(handle);
            if !connected {
                connected = true;
                let remote = if v6 {
                    (IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, 1), 80)
                } else {
                    (IpAddress::v4(10, 0, 0, 1), 80)
                };
                socket.connect(w.interface.context(), remote, 50_000).unwrap();
            }
            while socket.can_send() && sent < total {
                let n = (total - sent).min(1500);
                let bytes: Vec<u8> = (0..n).map(|i| pattern(seed, sent + i)).collect();
                sent += socket.send_slice(&bytes).unwrap() as u64;
                if sent == total {
                    socket.close();
                }
            }
            while socket.can_recv() {
                let mut buf = [0; 4096];
                let n = socket.recv_slice(&mut buf).unwrap();
                for b in &buf[..n] {
                    assert_eq!(*b, pattern(seed, got), "seed {seed}: byte {got}");
                    got += 1;
                }
            }
            got == total && !socket.may_recv()
        });
        assert!(ok, "seed {seed}: {sent} sent, {got} of {total} back");
    }
}

#[test]
fn we_send_and_smoltcp_gives_everything_back() {
    for seed in 0..12u64 {
        let v6 = seed % 2 == 1;
        let mut w = World::new(seed, bad(seed / 2 % 3));
        let handle = w.socket();
        w.sockets.get_mut::<tcp::Socket>(handle).listen(80).unwrap();
        let addr = if v6 {
            Addr::from_v6([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2])
        } else {
            Addr::from_v4([10, 0, 0, 2])
        };
        let mut sender = Sender::start(&mut w.host, 1, Endpoint { addr, port: 80 }, 200_000, seed);
        let mut pending = VecDeque::new();
        let ok = w.run(|w| {
            while let Some(event) = w.host.event() {
                assert!(sender.on_event(&mut w.host, event).is_none());
            }
            sender.poll(&mut w.host);
            let socket = w.sockets.get_mut::<tcp::Socket>(handle);
            while socket.can_recv() && pending.len() < 16_384 {
                let mut buf = [0; 4096];
                let n = socket.recv_slice(&mut buf).unwrap();
                pending.extend(&buf[..n]);
            }
            while socket.can_send() && !pending.is_empty() {
                let (front, _) = pending.as_slices();
                let n = socket.send_slice(front).unwrap();
                pending.drain(..n);
            }
            if !socket.may_recv() && socket.may_send() && pending.is_empty() && socket.recv_queue() == 0 {
                socket.close();
            }
            sender.outcome != Outcome::Running
        });
        assert!(ok && sender.outcome == Outcome::Complete, "seed {seed}: {:?}", sender.outcome);
    }
}

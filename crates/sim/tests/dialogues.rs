//! Openings and closings that two ordinary applications rarely meet, between two stacks under a virtual clock.

use core::time::Duration;

use io::impair::Impairment;
use mem::Chain;
use protocol::{CloseMode, ConnId, Endpoint, Event, Failure, Job, Token};
use sim::{Host, HostConfig, Net, NetConfig};
use tcp::State;
use wire::Addr;

fn net() -> Net {
    let delay = Impairment { delay: Duration::from_millis(10), ..Impairment::default() };
    Net::new(NetConfig { a: HostConfig::new(1), b: HostConfig::new(2), a_to_b: delay.clone(), b_to_a: delay, seed: 1 })
}

fn end(host: u8, port: u16) -> Endpoint {
    Endpoint { addr: Addr::from_v4([10, 0, 0, host]), port }
}

/// What one application has heard of its only connection.
#[derive(Default, Debug)]
struct Heard {
    conn: Option<ConnId>,
    connected: bool,
    bytes: Vec<u8>,
    fin: bool,
    failed: Option<Failure>,
}

impl Heard {
    fn listen(&mut self, host: &mut Host) {
        while let Some(event) = host.event() {
            match event {
                Event::Opened { conn, .. } | Event::Accepted { conn, .. } => self.conn = Some(conn),
                Event::Connected { .. } => self.connected = true,
                Event::Data { mut chain, .. } => {
                    let mut buf = vec![0; chain.len()];
                    chain.read(&mut host.side, &mut buf);
                    self.bytes.extend(buf);
                }
                Event::Fin { .. } => self.fin = true,
                Event::Failed { failure, .. } | Event::Refused { failure, .. } => self.failed = Some(failure),
                Event::Listening { .. }
                | Event::Acked { .. }
                | Event::Closed { .. }
                | Event::Released { .. }
                | Event::Info { .. }
                | Event::Sent { .. }
                | Event::Room { .. }
                | Event::Urgent { .. } => {}
            }
        }
    }
}

fn connect(host: &mut Host, local: Endpoint, remote: Endpoint) {
    host.job(Job::Connect { token: Token(1), local, remote, receive_buffer: 0 });
}

fn listen(host: &mut Host, port: u16, receive_buffer: u32) {
    let local = Endpoint { addr: Addr::UNSPECIFIED_V4, port };
    host.job(Job::Listen { token: Token(2), local, backlog: 16, v6_only: false, reuse_port: false, receive_buffer });
}

fn write(host: &mut Host, conn: ConnId, data: &[u8]) {
    let mut chain = Chain::default();
    assert_eq!(chain.push_slice(&mut host.side, data), data.len());
    host.job(Job::Write { conn, chain, more: false, close: false });
}

fn states(host: &Host) -> Vec<State> {
    let mut all = Vec::new();
    host.stack.each_connection(|_, _, tcb| all.push(tcb.state()));
    all
}

/// Runs until `done`, or fails after ten virtual minutes.
fn run(net: &mut Net, heard: &mut [Heard; 2], mut done: impl FnMut(&mut Net, &[Heard; 2]) -> bool) {
    let until = net.now.plus_micros(600_000_000);
    let ok = net.run(until, |net| {
        heard[0].listen(&mut net.a);
        heard[1].listen(&mut net.b);
        done(net, heard)
    });
    assert!(ok, "stuck: {heard:?} {:?} {:?}", states(&net.a), states(&net.b));
}

#[test]
fn both_open_and_both_close_at_once() {
    // RFC 9293 3.5 figure 8 and 3.6 figure 13.
    let mut net = net();
    // Each knows the other's hardware address, so that the SYNs cross.
    let (a, b) = (net.a.config.mac, net.b.config.mac);
    let (ia, ib) = (net.a.interface(), net.b.interface());
    net.a.stack.set_neighbor(net.now, ia, [10, 0, 0, 2].into(), b);
    net.b.stack.set_neighbor(net.now, ib, [10, 0, 0, 1].into(), a);
    connect(&mut net.a, end(1, 5000), end(2, 6000));
    connect(&mut net.b, end(2, 6000), end(1, 5000));
    let mut heard = <[Heard; 2]>::default();
    let mut crossed = false;
    run(&mut net, &mut heard, |net, h| {
        crossed |= states(&net.a) == [State::SynReceived] && states(&net.b) == [State::SynReceived];
        h[0].connected && h[1].connected
    });
    assert!(crossed, "the SYNs did not cross");
    let conns = [heard[0].conn.unwrap(), heard[1].conn.unwrap()];
    write(&mut net.a, conns[0], b"from a");
    write(&mut net.b, conns[1], b"from b");
    run(&mut net, &mut heard, |_, h| h[0].bytes == b"from b" && h[1].bytes == b"from a");
    net.a.job(Job::Shutdown { conn: conns[0] });
    net.b.job(Job::Shutdown { conn: conns[1] });
    let mut closing = false;
    run(&mut net, &mut heard, |net, h| {
        closing |= states(&net.a) == [State::Closing] && states(&net.b) == [State::Closing];
        h[0].fin && h[1].fin && states(&net.a) == [State::TimeWait] && states(&net.b) == [State::TimeWait]
    });
    assert!(closing, "the FINs did not cross");
    net.a.job(Job::Close { conn: conns[0], mode: CloseMode::Graceful });
    net.b.job(Job::Close { conn: conns[1], mode: CloseMode::Graceful });
    run(&mut net, &mut heard, |net, _| net.a.stack.connections() + net.b.stack.connections() == 0);
    assert_eq!((net.a.stack.time_waits(), net.b.stack.time_waits()), (1, 1));
    run(&mut net, &mut heard, |net, _| net.a.stack.time_waits() + net.b.stack.time_waits() == 0);
    assert_eq!((net.a.leaked(), net.b.leaked()), (0, 0));
}

#[test]
fn a_half_closed_direction_stays_half_closed() {
    let mut net = net();
    let mut heard = <[Heard; 2]>::default();
    listen(&mut net.b, 80, 0);
    net.turn();
    connect(&mut net.a, end(1, 0), end(2, 80));
    run(&mut net, &mut heard, |_, h| h[0].connected && h[1].conn.is_some());
    let conns = [heard[0].conn.unwrap(), heard[1].conn.unwrap()];
    net.a.job(Job::Shutdown { conn: conns[0] });
    run(&mut net, &mut heard, |net, h| h[1].fin && states(&net.a) == [State::FinWait2]);
    assert_eq!(states(&net.b), [State::CloseWait]);
    // An application that half-closed may wait as long as it likes.
    let later = net.now.plus_micros(400_000_000);
    run(&mut net, &mut heard, |net, _| {
        net.now >= later || {
            net.now = later;
            true
        }
    });
    write(&mut net.b, conns[1], &[5; 60_000]);
    net.b.job(Job::Close { conn: conns[1], mode: CloseMode::Graceful });
    run(&mut net, &mut heard, |_, h| h[0].fin);
    assert_eq!(heard[0].bytes, [5; 60_000]);
    run(&mut net, &mut heard, |net, _| net.b.stack.connections() == 0);
    assert_eq!(states(&net.a), [State::TimeWait]);
}

#[test]
fn a_closed_window_is_probed_and_opens_again() {
    let mut net = net();
    let mut heard = <[Heard; 2]>::default();
    listen(&mut net.b, 80, 8192);
    net.turn();
    connect(&mut net.a, end(1, 0), end(2, 80));
    run(&mut net, &mut heard, |_, h| h[0].connected && h[1].conn.is_some());
    let conns = [heard[0].conn.unwrap(), heard[1].conn.unwrap()];
    write(&mut net.a, conns[0], &[1; 60_000]);
    // The reader takes nothing for five minutes: the sender probes, and neither side gives up.
    let later = net.now.plus_micros(300_000_000);
    run(&mut net, &mut heard, |net, _| net.now > later);
    assert_eq!(heard[1].bytes.len(), 7300);
    assert!(net.a.stack.counters().tcp.window_probes >= 5);
    assert_eq!(states(&net.a), [State::Established]);
    // Now it reads all.
    let mut reported = 0;
    run(&mut net, &mut heard, |net, h| {
        let bytes = (h[1].bytes.len() - reported) as u32;
        if bytes > 0 {
            reported = h[1].bytes.len();
            net.b.job(Job::Consumed { conn: conns[1], bytes });
        }
        h[1].bytes.len() == 60_000
    });
}

#[test]
fn resets_and_silence_end_with_the_right_error() {
    // Nobody listens.
    let mut one = net();
    let mut heard = <[Heard; 2]>::default();
    connect(&mut one.a, end(1, 0), end(2, 81));
    run(&mut one, &mut heard, |_, h| h[0].failed.is_some());
    assert_eq!(heard[0].failed, Some(Failure::Refused));
    // Nobody is there.
    let mut two = net();
    let mut heard = <[Heard; 2]>::default();
    connect(&mut two.a, end(1, 0), end(77, 80));
    run(&mut two, &mut heard, |_, h| h[0].failed.is_some());
    assert_eq!(heard[0].failed, Some(Failure::HostUnreachable));
    // Abort.
    let mut three = net();
    let mut heard = <[Heard; 2]>::default();
    listen(&mut three.b, 80, 0);
    three.turn();
    connect(&mut three.a, end(1, 0), end(2, 80));
    run(&mut three, &mut heard, |_, h| h[0].connected && h[1].conn.is_some());
    three.a.job(Job::Abort { conn: heard[0].conn.unwrap() });
    run(&mut three, &mut heard, |_, h| h[1].failed.is_some());
    assert_eq!(heard[1].failed, Some(Failure::Reset));
    assert_eq!((three.a.stack.connections(), three.a.stack.time_waits()), (0, 0));
}

#[test]
fn an_old_tuple_opens_again_out_of_time_wait() {
    let mut net = net();
    let mut heard = <[Heard; 2]>::default();
    listen(&mut net.b, 80, 0);
    net.turn();
    for round in 0..3u64 {
        heard = Default::default();
        connect(&mut net.a, end(1, 5000), end(2, 80));
        run(&mut net, &mut heard, |_, h| h[0].connected && h[1].conn.is_some());
        let conns = [heard[0].conn.unwrap(), heard[1].conn.unwrap()];
        // The server closes first, so it is the one that remembers.
        net.b.job(Job::Close { conn: conns[1], mode: CloseMode::Graceful });
        run(&mut net, &mut heard, |_, h| h[0].fin);
        net.a.job(Job::Close { conn: conns[0], mode: CloseMode::Graceful });
        run(&mut net, &mut heard, |net, _| net.a.stack.connections() + net.b.stack.connections() == 0);
        assert_eq!((net.a.stack.time_waits(), net.b.stack.time_waits()), (0, 1));
        assert_eq!(net.b.stack.counters().time_wait_reused, round);
    }
    drop(heard);
}

//! Shares of a bottleneck that flows of one kind get in the long run, at equal RTTs: Jain's index. `CORELANE_TESTS=full` runs
//! each test for more flows, `CORELANE_TESTS=long` a thousand to their end.

use core::time::Duration;
use std::collections::BTreeMap;

use io::impair::Impairment;
use mem::Chain;
use protocol::{Endpoint, Event, Job, Token};
use sim::flows::{Bottleneck, Flows, jain};
use sim::{HostConfig, Net, NetConfig, Ring};
use tcp::congestion::Algorithm;
use testing::{Size, sized};
use wire::Addr;

/// The index after `time`.
fn share(congestion: Algorithm, flows: u32, time: Duration) -> f64 {
    // Eight segments for each flow on the way and in the queue: with fewer, timeouts share it and not windows.
    let rate = flows as u64 * 1_000_000;
    let bottleneck = Bottleneck { rate, rtt: Duration::from_millis(50), loss: 0.0 };
    let mut flows = Flows::open(bottleneck, congestion, flows, 1);
    flows.run(Duration::from_secs(10), u64::MAX);
    let before = flows.received().to_vec();
    flows.run(time, u64::MAX);
    let shares: Vec<u64> = flows.received().iter().zip(&before).map(|(now, then)| now - then).collect();
    let index = jain(&shares);
    let used = shares.iter().sum::<u64>() as f64 * 8.0 / time.as_micros() as f64;
    println!(
        "{congestion:?}, {} flows: Jain's index {index:.4}, {used:.0} of {} Mbit/s",
        shares.len(),
        rate / 1_000_000
    );
    index
}

const ALL: [Algorithm; 2] = [Algorithm::Cubic, Algorithm::NewReno];

#[test]
fn few_share_a_bottleneck_evenly() {
    for congestion in ALL {
        assert!(share(congestion, sized(16, 64), Duration::from_secs(120)) >= 0.99);
    }
}

/// A thousand come as near to it after as long; a short run shows that they are on the way.
#[test]
fn many_share_a_bottleneck_evenly() {
    let (flows, time, least) = match testing::size() {
        Size::Gate => (256, 10, 0.85),
        Size::Full => (1024, 10, 0.85),
        Size::Long => (1024, 120, 0.99),
    };
    for congestion in ALL {
        assert!(share(congestion, flows, Duration::from_secs(time)) >= least);
    }
}

/// Flows of a host that works off less than a hundredth of what the link brings, with room for four segments of each, after ten seconds:
/// Jain's index, the share of its rate that was of use, and frames lost before it.
fn share_of_a_slow_host(told: bool) -> (f64, f64, u64) {
    let flows = sized(64, 256);
    let ring = Ring { slots: 4 * flows, rate: 20_000 * flows as u64 / 256, told };
    let link = Bottleneck { rate: 10_000_000_000, rtt: Duration::from_micros(200), loss: 0.0 };
    let mut flows = Flows::between(link, Algorithm::Cubic, flows, 1, |_, b| b.ring = Some(ring));
    // What was announced before is used up.
    flows.run(Duration::from_secs(5), u64::MAX);
    let (before, lost) = (flows.received().to_vec(), flows.overflows());
    flows.run(Duration::from_secs(10), u64::MAX);
    let shares: Vec<u64> = flows.received().iter().zip(&before).map(|(now, then)| now - then).collect();
    let used = shares.iter().sum::<u64>() as f64 / 1448.0 / 10.0 / ring.rate as f64;
    let (index, lost) = (jain(&shares), flows.overflows() - lost);
    println!("told {told}: Jain's index {index:.4}, {:.0} % used, {lost} frames lost", used * 100.0);
    (index, used, lost)
}

#[test]
fn a_slow_host_bounds_windows_to_what_its_ring_holds() {
    let (index, used, lost) = share_of_a_slow_host(true);
    assert!(index >= 0.999 && used > 0.95 && lost == 0);
    let (chance, _, many) = share_of_a_slow_host(false);
    assert!(chance < 0.99 && many > 1000);
}

/// Of those for whom a port has no room at once, each sends a few segments in turn, and not all that it has.
#[test]
fn who_has_queued_more_sends_no_more_through_a_full_port() {
    const FLOWS: u32 = 512;
    let [mut a, b] = [HostConfig::new(1), HostConfig::new(2)];
    // Not a whole number of turns.
    a.tx_room = 18;
    let paths = Impairment::default;
    let mut net = Net::new(NetConfig { a, b, a_to_b: paths(), b_to_a: paths(), seed: 1 });
    net.acquaint();
    let [local, remote] =
        [(Addr::UNSPECIFIED_V4, 0), (Addr::from_v4([10, 0, 0, 2]), 80)].map(|(addr, port)| Endpoint { addr, port });
    let listen = Endpoint { port: 80, ..local };
    let token = Token(0);
    net.b.job(Job::Listen {
        token,
        local: listen,
        backlog: FLOWS,
        v6_only: false,
        reuse_port: false,
        receive_buffer: 0,
    });
    net.turn();
    (0..FLOWS).for_each(|n| net.a.job(Job::Connect { token: Token(n), local, remote, receive_buffer: 0 }));
    net.run(net.now + Duration::from_secs(1), |_| false);
    let mut conns = Vec::new();
    while let Some(event) = net.a.event() {
        conns.extend(match event {
            Event::Connected { conn } => Some(conn),
            _ => None,
        });
    }
    assert_eq!(conns.len(), FLOWS as usize);
    for (n, conn) in conns.into_iter().enumerate() {
        let mut chain = Chain::default();
        let bytes = [7; 1448 * 10];
        chain.push_slice(&mut net.a.side, if n % 2 == 0 { &bytes } else { &bytes[..1448 * 5] });
        net.a.job(Job::Write { conn, chain, more: false, close: false });
    }
    let mut sent = BTreeMap::<[u8; 2], u32>::new();
    while sent.values().sum::<u32>() < 4 * FLOWS {
        for frame in net.a.turn(net.now, Vec::new()) {
            *sent.entry([frame[34], frame[35]]).or_default() += 1;
        }
    }
    // A full port ends a turn in the middle of a share, and some have begun their second.
    let (least, most) = (sent.values().min(), sent.values().max());
    assert!(sent.len() == FLOWS as usize && least >= Some(&2) && most <= Some(&8), "{least:?} {most:?}");
}

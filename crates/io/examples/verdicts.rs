//! Nanoseconds that the program on a shared interface takes for a frame (BPF_PROG_TEST_RUN), of each kind in turns.
//!
//! `cargo run --release -p io --example verdicts` as root; with a number, so many connections are open (1).

use std::net::IpAddr;

use io::bpf::{Claim, Maps, OwnFlags, OwnFlow, OwnKey, Phase, Program, steer};
use wire::tcp::{Flags, Header, Options};
use wire::{Addr, MacAddr, SeqNum, ethernet, ipv4, ipv6};

/// Runs of the program over a frame, which are timed together.
const TIMES: u32 = 2_000_000;
const ROUNDS: usize = 9;

fn addr(text: &str) -> Addr {
    text.parse::<IpAddr>().expect("an address").into()
}

/// A segment without data.
fn frame(from: Addr, to: Addr, src_port: u16, dst_port: u16) -> Vec<u8> {
    let header = Header {
        src_port,
        dst_port,
        seq: SeqNum(1),
        ack: SeqNum(1),
        flags: Flags::ACK,
        window: 100,
        urgent: 0,
        options: Options::default(),
    };
    let mut f = vec![0; 128];
    let ethertype = if from.is_v4() { ethernet::IPV4 } else { ethernet::IPV6 };
    let at = ethernet::emit(&mut f, MacAddr([2; 6]), MacAddr([4; 6]), None, ethertype);
    let ip = if from.is_v4() { 20 } else { 40 };
    let len = header.emit(&mut f[at + ip..], false);
    match from.is_v4() {
        true => ipv4::Header { src: from, dst: to, protocol: 6, ..Default::default() }.emit(&mut f[at..], len),
        false => ipv6::Header { src: from, dst: to, next_header: 6, ..Default::default() }.emit(&mut f[at..], len),
    };
    f.truncate((at + ip + len).max(60));
    f
}

fn main() -> std::io::Result<()> {
    let open: u32 = std::env::args().nth(1).map_or(1, |n| n.parse().expect("a number of connections"));
    let maps = Maps::new(1)?;
    let program = Program::load_xdp("corelane", &steer(&maps, None), true)?;
    let families = [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")].map(|(us, peer)| (addr(us), addr(peer)));
    for (us, _) in families {
        maps.own(OwnKey { vlan: 0, addr: us, port: 80 }, OwnFlags::LISTENING)?;
    }
    let time = |what: &str, port: u16| -> std::io::Result<()> {
        for (us, peer) in families {
            let f = frame(peer, us, 5000, port);
            let mut ns = (0..ROUNDS).map(|_| program.time(&f, TIMES)).collect::<Result<Vec<_>, _>>()?;
            ns.sort();
            let family = if us.is_v4() { "IPv4" } else { "IPv6" };
            let [least, middle, most] = [0, ROUNDS / 2, ROUNDS - 1].map(|n| ns[n].as_nanos());
            println!("{what:50} {family} {middle:4} ns ({least} to {most})");
        }
        Ok(())
    };
    time("for a listener", 80)?;
    time("for nobody, none open", 22)?;
    let table = maps.open_tuples()?;
    for n in 0..open {
        for (us, remote) in families {
            let (port, remote_port) = (20_000 + (n % 20_000) as u16, 5000 + (n / 20_000) as u16);
            let tuple = OwnFlow { local: OwnKey { vlan: 0, addr: us, port }, remote, remote_port };
            if table.claim(&tuple) != Claim::Full {
                table.enter(&tuple, Phase::Synchronized);
            }
        }
    }
    time(&format!("for nobody, {open} open"), 22)?;
    time(&format!("of a connection opened here, {open} open"), 20_000)
}

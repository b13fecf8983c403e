//! The sharing program against its rules, written once more over parsed frames: random frames of all shapes, random maps, and time
//! that passes.
//!
//! A failure prints its seed: `CORELANE_SEED=7 cargo test -p io --test model` runs that round alone, and CORELANE_SEEDS says how
//! many rounds there are.

mod common;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use common::Bench;
use io::bpf::{OwnFlags, OwnFlow, OwnKey, Verdict};
use wire::{Addr, MacAddr, Ports};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// What the program measures time in.
const TICK: Duration = Duration::from_nanos(1 << 20);

/// What the program knows, and what the kernel has.
#[derive(Default)]
struct World {
    owned: HashMap<OwnKey, OwnFlags>,
    active: HashMap<(u16, Addr), Ports>,
    kept: HashSet<OwnFlow>,
    /// The kernel's connections; those in TIME-WAIT are `false`.
    kernel: HashMap<(Addr, u16, Addr, u16), bool>,
    /// Datagrams whose first fragment was ours: VLAN, addresses, identification, protocol. Between which times it came.
    fragments: HashMap<Datagram, [Instant; 2]>,
    /// How long what follows such a fragment is ours.
    life: Duration,
}

type Datagram = (u16, Addr, Addr, u32, u8);

/// What a frame to our hardware address holds.
struct Parsed {
    /// Of which datagram it is a fragment, and whether the first.
    fragment: Option<(Datagram, bool)>,
    /// The connection it is about as seen from here, and whether it opens it.
    about: Option<(OwnFlow, bool)>,
}

fn be16(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(b.get(at..at + 2)?.try_into().ok()?))
}

fn v4(b: &[u8], at: usize) -> Option<Addr> {
    Some(IpAddr::from(<[u8; 4]>::try_from(b.get(at..at + 4)?).ok()?).into())
}

fn v6(b: &[u8], at: usize) -> Option<Addr> {
    Some(IpAddr::from(<[u8; 16]>::try_from(b.get(at..at + 16)?).ok()?).into())
}

fn flow(vlan: u16, [local, remote]: [Addr; 2], [port, remote_port]: [Option<u16>; 2]) -> Option<OwnFlow> {
    Some(OwnFlow { local: OwnKey { vlan, addr: local, port: port? }, remote, remote_port: remote_port? })
}

/// A received segment; whole headers only.
fn segment(vlan: u16, ends: [Addr; 2], tcp: &[u8]) -> Option<(OwnFlow, bool)> {
    let flags = *tcp.get(..20)?.get(13)?;
    Some((flow(vlan, ends, [be16(tcp, 2), be16(tcp, 0)])?, flags & 0x12 == 0x02))
}

fn parse(f: &[u8]) -> Option<Parsed> {
    // A tag of 802.1Q, and one alone.
    let (vlan, at) = if be16(f, 12)? == 0x8100 { (be16(f, 14)? & 0xfff, 18) } else { (0, 14) };
    let ip = f.get(at..)?;
    match be16(f, at - 2)? {
        0x0800 if ip.len() >= 20 && ip[0] >> 4 == 4 => {
            let (src, dst, protocol, cut) = (v4(ip, 12)?, v4(ip, 16)?, ip[9], be16(ip, 6)? & 0x3fff);
            let datagram = (vlan, src, dst, be16(ip, 4)? as u32, protocol);
            let fragment = (cut != 0).then_some((datagram, cut & 0x1fff == 0));
            let upper = ip.get((ip[0] & 15) as usize * 4..).filter(|_| ip[0] & 15 >= 5);
            let about = upper.and_then(|upper| match protocol {
                6 => segment(vlan, [dst, src], upper),
                1 => quoted4(vlan, upper),
                _ => None,
            });
            Some(Parsed { fragment, about })
        }
        0x86dd if ip.len() >= 40 && ip[0] >> 4 == 6 => {
            let (src, dst, mut next, mut at, mut fragment) = (v6(ip, 8)?, v6(ip, 24)?, ip[6], 40, None);
            let about = || -> Option<(OwnFlow, bool)> {
                for _ in 0..4 {
                    let Some(h) = ip.get(at..at + 8).or(matches!(next, 0 | 43 | 44 | 60).then_some(&[])) else { break };
                    match next {
                        _ if h.is_empty() => return None,
                        43 if h[3] != 0 => return None,
                        0 | 43 | 60 => at += (h[1] as usize + 1) * 8,
                        44 => {
                            let cut = be16(h, 2)? & 0xfff9;
                            let id = u32::from_be_bytes([h[4], h[5], h[6], h[7]]);
                            let first = cut & 0xfff8 == 0;
                            if cut != 0 {
                                fragment = Some(((vlan, src, dst, id.to_be(), h[0]), first));
                            }
                            if !first {
                                return None;
                            }
                            at += 8;
                        }
                        _ => break,
                    }
                    next = h[0];
                }
                match next {
                    6 => segment(vlan, [dst, src], ip.get(at..)?),
                    58 => quoted6(vlan, ip.get(at..)?),
                    _ => None,
                }
            }();
            Some(Parsed { fragment, about })
        }
        _ => None,
    }
}

/// An ICMP error about a segment that we sent.
fn quoted4(vlan: u16, icmp: &[u8]) -> Option<(OwnFlow, bool)> {
    let q = icmp.get(8..).filter(|q| q.len() >= 20 && matches!(icmp[0], 3 | 11 | 12))?;
    let fits = q[0] >> 4 == 4 && q[0] & 15 >= 5 && q[9] == 6 && be16(q, 6)? & 0x1fff == 0;
    let ports = fits.then(|| q.get((q[0] & 15) as usize * 4..))??;
    Some((flow(vlan, [v4(q, 12)?, v4(q, 16)?], [be16(ports, 0), be16(ports, 2)])?, false))
}

fn quoted6(vlan: u16, icmp: &[u8]) -> Option<(OwnFlow, bool)> {
    let q = icmp.get(8..).filter(|q| q.len() >= 44 && matches!(icmp[0], 1..=4))?;
    let fits = q[0] >> 4 == 6 && q[6] == 6;
    fits.then(|| Some((flow(vlan, [v6(q, 8)?, v6(q, 24)?], [be16(q, 40), be16(q, 42)])?, false)))?
}

impl World {
    /// The rules, for a frame that came between two times; `said` where they leave that open.
    fn verdict(&mut self, f: &[u8], came: [Instant; 2], said: Verdict) -> Verdict {
        if f[..6] != MAC {
            return Verdict::Pass;
        }
        let Some(parsed) = parse(f) else { return Verdict::Pass };
        match parsed.fragment {
            Some((datagram, false)) => match self.fragments.get(&datagram) {
                Some(first) if came[1] - first[0] + TICK < self.life => Verdict::Fragment,
                Some(first) if came[0] - first[1] < self.life + TICK && said == Verdict::Fragment => said,
                _ => Verdict::Pass,
            },
            first => {
                let verdict = parsed.about.map_or(Verdict::Pass, |(flow, opens)| self.owner(&flow, opens));
                if let Some((datagram, _)) = first {
                    match verdict {
                        Verdict::Pass | Verdict::KernelFlow => self.fragments.remove(&datagram),
                        _ => self.fragments.insert(datagram, came),
                    };
                }
                verdict
            }
        }
    }

    fn owner(&self, flow: &OwnFlow, opens: bool) -> Verdict {
        let local = flow.local;
        let kernel = self.kernel.get(&(local.addr, local.port, flow.remote, flow.remote_port));
        let nobodys = match self.active.get(&(local.vlan, local.addr)) {
            Some(ports) if ports.has(local.port) => Verdict::Active,
            _ => Verdict::Pass,
        };
        match self.owned.get(&local) {
            None => nobodys,
            Some(&OwnFlags::LISTENING) => Verdict::Listen,
            Some(&OwnFlags::DRAINING) if self.kept.contains(flow) => Verdict::Listen,
            Some(&OwnFlags::DRAINING) => nobodys,
            Some(&OwnFlags::CLOSING) if opens => nobodys,
            Some(&OwnFlags::CLOSING) if kernel.is_some() => Verdict::KernelFlow,
            Some(_) if kernel == Some(&true) => Verdict::KernelFlow,
            Some(_) => Verdict::Listen,
        }
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }
}

/// Addresses and ports that frames are made of; of the kernel's connections too.
struct Names {
    us: [[IpAddr; 3]; 2],
    peers: [[IpAddr; 3]; 2],
    ports: Vec<u16>,
    peer_ports: Vec<u16>,
}

/// Ports of active opens: the first stretch, or the blocks of both.
const FIRST: (u16, u16) = (20_000, 20_001);
const SECOND: (u16, u16) = (30_000, 30_000);

impl Names {
    fn new() -> Names {
        let v4 = |n: [u8; 2]| [Ipv4Addr::LOCALHOST, [10, 0, 0, n[0]].into(), [10, 0, 0, n[1]].into()].map(IpAddr::from);
        let own = |n| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n);
        let v6 = |n: [u16; 2]| [Ipv6Addr::LOCALHOST, own(n[0]), own(n[1])].map(IpAddr::from);
        Names {
            us: [v4([1, 3]), v6([1, 3])],
            peers: [v4([2, 4]), v6([2, 4])],
            ports: vec![80, 81, 22, FIRST.0 - 1, FIRST.0, FIRST.1, FIRST.1 + 1, SECOND.0 - 1, SECOND.0, SECOND.1 + 1],
            peer_ports: vec![5000, 5001],
        }
    }
}

/// Connections of the kernel's on loopback, one alive and one in TIME-WAIT in each family.
fn kernel_connections(world: &mut World, names: &mut Names) -> Vec<(TcpListener, TcpStream, TcpStream)> {
    let mut alive = Vec::new();
    for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        let Ok(listener) = TcpListener::bind((ip, 0)) else {
            testing::skip(format_args!("no {ip} here"));
            continue;
        };
        let port = listener.local_addr().unwrap().port();
        // The other family's listener may have a port of the same number.
        let live = || io::netlink::kernel_flows(port, |_| true).unwrap().live;
        let others = live();
        let mut connect = |alive| {
            let client = TcpStream::connect((ip, port)).unwrap();
            let peer_port = client.local_addr().unwrap().port();
            names.peer_ports.push(peer_port);
            world.kernel.insert((ip.into(), port, ip.into(), peer_port), alive);
            (listener.accept().unwrap().0, client)
        };
        let (server, client) = connect(false);
        drop(server);
        drop(client);
        while live() > others {
            std::thread::yield_now();
        }
        let (server, client) = connect(true);
        names.ports.push(port);
        alive.push((listener, server, client));
    }
    alive
}

/// What is ours, in the maps and in the model.
fn fill(r: &mut Random, b: &Bench, world: &mut World, names: &Names) {
    b.maps.set_mac(MacAddr(MAC)).unwrap();
    let flags = [OwnFlags::LISTENING, OwnFlags::BESIDE_KERNEL, OwnFlags::CLOSING, OwnFlags::DRAINING];
    for vlan in [0, 7] {
        for us in names.us.as_flattened().iter().copied() {
            if r.one_in(2) {
                let one = Ports::new(FIRST.0, FIRST.1);
                let blocks = [FIRST.0, SECOND.0].map(|port| 1 << (port / 1024)).into_iter().fold(0, |a, b| a | b);
                let ports = if r.one_in(2) { one } else { Ports::of_blocks(blocks).unwrap() };
                b.maps.set_active(vlan, us.into(), ports).unwrap();
                world.active.insert((vlan, us.into()), ports);
            }
            for port in names.ports.iter().filter(|p| **p != 22) {
                if r.one_in(3) {
                    continue;
                }
                let local = OwnKey { vlan, addr: us.into(), port: *port };
                // Where the kernel has connections, mostly what looks at them.
                let flags = if us.is_loopback() { r.of(&flags[..3]) } else { r.of(&flags) };
                b.maps.own(local, flags).unwrap();
                world.owned.insert(local, flags);
                let remote = r.of(&names.peers[us.is_ipv6() as usize]).into();
                let kept = OwnFlow { local, remote, remote_port: r.of(&names.peer_ports) };
                if r.one_in(2) {
                    b.maps.keep_flow(kept).unwrap();
                    world.kept.insert(kept);
                }
                if r.one_in(2) {
                    b.maps.sends_fragments(kept).unwrap();
                }
            }
        }
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn tcp(r: &mut Random, from: u16, to: u16) -> Vec<u8> {
    let mut b = [from.to_be_bytes(), to.to_be_bytes()].concat();
    b.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, r.of(&[0x02, 0x10, 0x12, 0x11, 0x04, 0x18, 0xc2]), 0, 9, 0, 0, 0, 0]);
    b.resize(20 + r.below(60), 7);
    b
}

/// An IP packet: options or extension headers, now and then a fragment.
fn packet(r: &mut Random, from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let fragmented = r.one_in(2);
    let (id, cut) = (r.of(&[1u16, 1, 1, 2]), r.of(&[(0u16, true), (0, true), (0, false), (8, false), (64, true)]));
    let mut b;
    if from.is_ipv4() {
        let words = if r.one_in(4) { r.below(16) } else { 5 };
        b = vec![0x40 | words as u8, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
        if r.one_in(50) {
            b[0] ^= 0x20;
        }
        b[4..6].copy_from_slice(&id.to_be_bytes());
        let field = if fragmented { (cut.0 / 8) | ((cut.1 as u16) << 13) } else { r.of(&[0, 0x4000]) };
        b[6..8].copy_from_slice(&field.to_be_bytes());
        b.extend([octets(from), octets(to)].concat());
        b.resize(words.max(5) * 4, 1);
    } else {
        b = vec![if r.one_in(50) { 0x40 } else { 0x60 }, 0, 0, 0, 0, 0, 0, 64];
        b.extend([octets(from), octets(to)].concat());
        // Each header names the next; the place of that name.
        let mut named = 6;
        let headers = if r.one_in(3) { r.of(&[0, 1, 1, 2, 2, 3, 4, 5]) } else { 0 };
        // A fragment's own header is anywhere among them.
        let own = r.below(headers + 1);
        for n in 0..headers + fragmented as usize {
            let kind = if n == own && fragmented { 44 } else { r.of(&[0u8, 60, 43, 44, 44, 51]) };
            b[named] = kind;
            named = b.len();
            match kind {
                44 => {
                    let cut = if n == own && fragmented || r.one_in(4) { cut } else { (0, false) };
                    b.extend([0, 0]);
                    b.extend((cut.0 | cut.1 as u16).to_be_bytes());
                    b.extend([0, 0]);
                    b.extend(r.of(&[id, id, 3 - id]).to_be_bytes());
                }
                _ => {
                    let long = r.below(3);
                    b.extend([0, long as u8, 4, if kind == 43 && r.one_in(2) { 1 } else { 0 }]);
                    b.resize(b.len() + 4 + long * 8, 0);
                }
            }
        }
        b[named] = protocol;
    }
    b.extend(payload);
    b
}

/// Both ends of what a frame is about.
#[derive(Clone, Copy)]
struct Subject {
    vlan: u16,
    us: IpAddr,
    port: u16,
    peer: IpAddr,
    peer_port: u16,
}

impl Subject {
    /// Anything, but mostly what somebody owns, or is remembered.
    fn random(r: &mut Random, names: &Names, likely: &[Subject]) -> Subject {
        if !r.one_in(4) {
            return r.of(likely);
        }
        let family = r.below(2);
        Subject {
            vlan: r.of(&[0, 7, 8]),
            us: r.of(&names.us[family]),
            port: r.of(&names.ports),
            peer: r.of(&names.peers[family]),
            peer_port: r.of(&names.peer_ports),
        }
    }
}

fn frame(r: &mut Random, subject: Subject) -> Vec<u8> {
    let Subject { vlan, us, port, peer, peer_port } = subject;
    let family = us.is_ipv6() as usize;
    let ip = match r.below(8) {
        0 => {
            let bytes = tcp(r, peer_port, port);
            packet(r, peer, us, 17, &bytes)
        }
        1 | 2 => {
            let (kinds, protocol) = [([3u8, 11, 12, 5, 8, 0], 1), ([1, 2, 3, 4, 128, 0], 58)][family];
            let protocol_in = if r.one_in(8) { 17 } else { 6 };
            let bytes = tcp(r, port, peer_port);
            let quote = match r.one_in(3) {
                true => packet(r, us, peer, protocol_in, &bytes),
                false => {
                    let mut plain = packet(&mut Random(r.next() | 1), us, peer, protocol_in, &bytes);
                    // Most quotes are of what a stack really sends.
                    if family == 0 {
                        plain = [&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol_in, 0, 0], &plain[12..20], &bytes[..]]
                            .concat();
                    }
                    plain
                }
            };
            let error = [&[r.of(&kinds), 0, 0, 0, 0, 0, 0, 0][..], &quote].concat();
            packet(r, peer, us, protocol, &error)
        }
        _ => {
            let bytes = tcp(r, peer_port, port);
            packet(r, peer, us, 6, &bytes)
        }
    };
    let mut f = match r.below(30) {
        0 => vec![0xff; 6],
        1 => vec![1, 0, 0x5e, 0, 0, 1],
        2 => vec![2, 0, 0, 0, r.of(&[0, 1]), r.of(&[0, 2, 9])],
        _ => MAC.to_vec(),
    };
    f.extend([2, 0, 0, 0, 0, 99]);
    // A tag where there is a VLAN, or none, or another, or two.
    let tags: &[u16] = match r.below(24) {
        0 => &[0x8100],
        1 => &[0x88a8],
        2 => &[0x88a8, 0x8100],
        3 => &[0x8100, 0x8100],
        4 => &[],
        _ if vlan == 0 => &[],
        _ => &[0x8100],
    };
    for tag in tags {
        f.extend(tag.to_be_bytes());
        f.extend((vlan | r.of(&[0, 0x2000, 0xe000])).to_be_bytes());
    }
    let ethertype: u16 = if r.one_in(40) { 0x0806 } else { [0x0800, 0x86dd][family] };
    f.extend(ethertype.to_be_bytes());
    f.extend(ip);
    if r.one_in(16) {
        let at = r.below(f.len());
        f[at] = r.next() as u8;
    }
    if r.one_in(12) {
        f.truncate(14 + r.below(f.len() - 13));
    }
    f
}

/// One round; what was said how often, `None` where no program can be loaded.
fn round(seed: u64, said: &mut HashMap<String, usize>) -> Option<()> {
    let mut r = Random(seed);
    // Where time passes it passes soon.
    let (life, b) = match r.one_in(2) {
        true => (8 * TICK, Bench::with(common::Setting { fragment_life: 8 * TICK, ..Default::default() })?),
        false => (Duration::from_secs(30), Bench::new()?),
    };
    let (mut world, mut names) = (World { life, ..World::default() }, Names::new());
    let _alive = kernel_connections(&mut world, &mut names);
    fill(&mut r, &b, &mut world, &names);
    let mut check = |f: &[u8], world: &mut World| {
        let before = Instant::now();
        let program = b.verdict(f);
        let rules = world.verdict(f, [before, Instant::now()], program);
        assert_eq!(program, rules, "the program (left) and the rules (right), CORELANE_SEED={seed}, of frame {f:02x?}");
        *said.entry(format!("{rules:?}")).or_insert(0) += 1;
    };
    let subject = |local: OwnKey, remote: Addr, peer_port| Subject {
        vlan: local.vlan,
        us: local.addr.to_ip(),
        port: local.port,
        peer: remote.to_ip(),
        peer_port,
    };
    let mut likely: Vec<Subject> = world.kept.iter().map(|f| subject(f.local, f.remote, f.remote_port)).collect();
    for (addr, port, peer, peer_port) in world.kernel.keys() {
        let of_kernel = subject(OwnKey { vlan: 0, addr: *addr, port: *port }, *peer, *peer_port);
        likely.extend([of_kernel; 4]);
    }
    for ((vlan, addr), ports) in &world.active {
        let peer = names.peers[!addr.is_v4() as usize][1];
        let last = ports.nth(ports.count() - 1);
        likely.push(subject(OwnKey { vlan: *vlan, addr: *addr, port: last }, peer.into(), 5000));
    }
    // The order of a hash map is no seed's.
    likely.sort_by_key(|s| (s.us, s.peer, s.port, s.peer_port, s.vlan));
    for _ in 0..20 {
        let now = Subject::random(&mut r, &names, &likely);
        for _ in 0..20 {
            let about = if r.one_in(5) { Subject::random(&mut r, &names, &likely) } else { now };
            check(&frame(&mut r, about), &mut world);
            if world.life < Duration::from_secs(1) && r.one_in(40) {
                std::thread::sleep(world.life + 2 * TICK);
            }
        }
    }
    // One frame at every length.
    let last = r.of(&likely);
    let f = frame(&mut r, last);
    for n in 14..=f.len() {
        check(&f[..n], &mut world);
    }
    Some(())
}

#[test]
fn the_program_keeps_its_rules() {
    let number = |name| std::env::var(name).ok().and_then(|n: String| n.parse().ok());
    let seeds = match number("CORELANE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("CORELANE_SEEDS").unwrap_or(60),
    };
    let mut said = HashMap::new();
    for seed in seeds.clone() {
        if round(seed, &mut said).is_none() {
            return;
        }
    }
    eprintln!("{said:?}");
    // Random frames must not be such that nobody wants them.
    let rounds = (seeds.end - seeds.start) as usize;
    let most = |verdict: Verdict, n| said.get(&format!("{verdict:?}")).is_some_and(|said| *said >= n * rounds);
    let all = most(Verdict::Listen, 40) && most(Verdict::Pass, 40) && most(Verdict::Active, 1);
    assert!(rounds < 20 || all && most(Verdict::KernelFlow, 1) && most(Verdict::Fragment, 1), "{said:?}");
}

//! The sharing program against its rules, written once more over parsed frames: random frames of all shapes, random maps, sockets on
//! some queues, whatever the kernel's TCP can have on a port, floods, and time that passes. Half of the rounds are of the program
//! that knows of tags beside frames.
//!
//! A failure prints its seed: `CORELANE_SEED=7 cargo test -p io --test model` runs that round alone, and CORELANE_SEEDS says how
//! many rounds there are.

mod common;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use common::{Action, Bench, QUEUES, Setting, Tag, in_a_namespace, ip, option, sequences, syn_cookies};
use io::bpf::{Claim, OwnFlags, OwnFlow, OwnKey, Phase, Tuples, Verdict};
use wire::{Addr, MacAddr};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// What the program measures time in.
const TICK: Duration = Duration::from_nanos(1 << 20);

/// First fragments that each of the program's maps remembers here.
const REMEMBERED: u32 = 256;
/// How many were written last that it must remember. The kernel's maps forget in batches, not quite the oldest first
/// (Documentation/bpf/map_hash.rst).
const SURELY: usize = REMEMBERED as usize / 4;

/// What the program knows, and what the kernel has.
#[derive(Default)]
struct World {
    owned: HashMap<OwnKey, OwnFlags>,
    /// Connections that lanes have opened.
    opened: HashMap<OwnFlow, Phase>,
    kept: HashSet<OwnFlow>,
    /// Connections that are known to send fragments.
    fragmenting: HashSet<OwnFlow>,
    /// The kernel's connections and handshakes; those that it only remembers (TIME-WAIT, and FIN-WAIT-2 without a socket) are
    /// `false`.
    kernel: HashMap<Tuple, bool>,
    /// Sequence and acknowledgment numbers that bring the kernel's listener a SYN cookie.
    cookies: HashMap<Tuple, Numbers>,
    /// Datagrams whose first fragment was ours.
    fragments: HashMap<Datagram, FirstFragment>,
    /// How many of those came from whom we know, and from others.
    came: [usize; 2],
    /// How long what follows such a fragment is ours.
    life: Duration,
    /// How often frames met what should not be rare.
    met: BTreeMap<&'static str, usize>,
}

/// Local address and port, remote address and port.
type Tuple = (Addr, u16, Addr, u16);
type Numbers = (u32, u32);
/// VLAN, addresses, identification, protocol.
type Datagram = (u16, Addr, Addr, u32, u8);

struct FirstFragment {
    /// Between which times it came.
    came: [Instant; 2],
    /// Whether its connection is known to send fragments.
    known: bool,
    /// [`World::came`] before it.
    before: [usize; 2],
}

/// What a frame to our hardware address holds.
struct Parsed {
    /// Of which datagram it is a fragment, and whether the first.
    fragment: Option<(Datagram, bool)>,
    about: Option<About>,
}

struct About {
    /// The connection as seen from here.
    flow: OwnFlow,
    /// Of a segment; an ICMP error that quotes one has none.
    flags: u8,
    numbers: Numbers,
}

const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

fn be16(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(b.get(at..at + 2)?.try_into().ok()?))
}

fn be32(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(b.get(at..at + 4)?.try_into().ok()?))
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
fn segment(vlan: u16, ends: [Addr; 2], tcp: &[u8]) -> Option<About> {
    let flags = *tcp.get(..20)?.get(13)?;
    let flow = flow(vlan, ends, [be16(tcp, 2), be16(tcp, 0)])?;
    Some(About { flow, flags, numbers: (be32(tcp, 4)?, be32(tcp, 8)?) })
}

fn parse(f: &[u8], beside: Option<Tag>) -> Option<Parsed> {
    // A tag of 802.1Q, and one alone, in the frame or beside it.
    let (vlan, at) = match (beside, be16(f, 12)? == 0x8100) {
        (None, true) => (be16(f, 14)? & 0xfff, 18),
        (None, false) => (0, 14),
        (Some((0x8100, text)), false) => (text & 0xfff, 14),
        (Some(_), _) => return None,
    };
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
            let about = || -> Option<About> {
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
fn quoted4(vlan: u16, icmp: &[u8]) -> Option<About> {
    let q = icmp.get(8..).filter(|q| q.len() >= 20 && matches!(icmp[0], 3 | 11 | 12))?;
    let fits = q[0] >> 4 == 4 && q[0] & 15 >= 5 && q[9] == 6 && be16(q, 6)? & 0x1fff == 0;
    let ports = fits.then(|| q.get((q[0] & 15) as usize * 4..))??;
    quoted(flow(vlan, [v4(q, 12)?, v4(q, 16)?], [be16(ports, 0), be16(ports, 2)])?)
}

fn quoted6(vlan: u16, icmp: &[u8]) -> Option<About> {
    let q = icmp.get(8..).filter(|q| q.len() >= 44 && matches!(icmp[0], 1..=4))?;
    let fits = q[0] >> 4 == 6 && q[6] == 6;
    fits.then(|| quoted(flow(vlan, [v6(q, 8)?, v6(q, 24)?], [be16(q, 40), be16(q, 42)])?))?
}

fn quoted(flow: OwnFlow) -> Option<About> {
    Some(About { flow, flags: 0, numbers: (0, 0) })
}

impl World {
    /// The rules, for a frame that came between two times; `said` where they leave that open.
    fn verdict(&mut self, f: &[u8], beside: Option<Tag>, came: [Instant; 2], said: Verdict) -> Verdict {
        if f[..6] != MAC {
            return Verdict::Pass;
        }
        let Some(parsed) = parse(f, beside) else { return Verdict::Pass };
        match parsed.fragment {
            Some((datagram, false)) => match self.fragments.get(&datagram) {
                Some(first) if self.remembers(first) && came[1] - first.came[0] + TICK < self.life => {
                    if first.known && self.came[1] - first.before[1] > REMEMBERED as usize {
                        *self.met.entry("fragments of known senders after a flood").or_default() += 1;
                    }
                    Verdict::Fragment
                }
                Some(first) if came[0] - first.came[1] < self.life + TICK && said == Verdict::Fragment => said,
                _ => Verdict::Pass,
            },
            first => {
                let verdict = parsed.about.as_ref().map_or(Verdict::Pass, |about| self.owner(about));
                match (first, parsed.about) {
                    (None, _) => {}
                    (Some((datagram, _)), Some(about)) if !matches!(verdict, Verdict::Pass | Verdict::KernelFlow) => {
                        let known = self.fragmenting.contains(&about.flow);
                        let before = self.came;
                        self.came[!known as usize] += 1;
                        self.fragments.insert(datagram, FirstFragment { came, known, before });
                    }
                    (Some((datagram, _)), _) => drop(self.fragments.remove(&datagram)),
                }
                verdict
            }
        }
    }

    /// What is known of the connection that a frame is about.
    fn about(&self, f: &[u8], beside: Option<Tag>) -> Option<String> {
        let About { flow, .. } = parse(f, beside)?.about?;
        let tuple = (flow.local.addr, flow.local.port, flow.remote, flow.remote_port);
        let (owned, kernel, cookie) = (self.owned.get(&flow.local), self.kernel.get(&tuple), self.cookies.get(&tuple));
        let opened = self.opened.get(&flow);
        Some(format!("{flow:?}, ours {owned:?}, opened {opened:?}, the kernel's {kernel:?}, by cookie {cookie:?}"))
    }

    /// Whether a first fragment must be remembered, if its time is not over. Whom we do not know takes no place from whom we know.
    fn remembers(&self, first: &FirstFragment) -> bool {
        let of_its_kind = !first.known as usize;
        self.came[of_its_kind] - first.before[of_its_kind] <= SURELY
    }

    fn owner(&mut self, About { flow, flags, numbers }: &About) -> Verdict {
        let local = flow.local;
        let tuple = (local.addr, local.port, flow.remote, flow.remote_port);
        let kernel = self.kernel.get(&tuple);
        let opens = flags & (SYN | ACK) == SYN;
        let cookie = flags & (SYN | ACK | RST) == ACK && self.cookies.get(&tuple) == Some(numbers);
        let met = match (self.owned.get(&local), kernel) {
            (Some(&OwnFlags::CLOSING), None) if cookie => "cookies while closing",
            (Some(&OwnFlags::DRAINING), None) if cookie => "cookies while draining",
            (Some(&OwnFlags::DRAINING), Some(_)) => "connections while draining",
            (Some(&OwnFlags::CLOSING), Some(_)) => "connections while closing",
            (Some(&OwnFlags::BESIDE_KERNEL), Some(_)) => "connections beside us",
            _ => "other segments",
        };
        *self.met.entry(met).or_default() += 1;
        match self.owned.get(&local) {
            None => self.opened(flow, *flags),
            Some(&OwnFlags::LISTENING) => Verdict::Listen,
            Some(&OwnFlags::DRAINING) if self.kept.contains(flow) => Verdict::Listen,
            Some(&OwnFlags::DRAINING) => self.opened(flow, *flags),
            Some(&OwnFlags::CLOSING) if opens => self.opened(flow, *flags),
            Some(&OwnFlags::CLOSING) if kernel.is_some() || cookie => Verdict::KernelFlow,
            Some(_) if kernel == Some(&true) => Verdict::KernelFlow,
            Some(_) => Verdict::Listen,
        }
    }

    /// The rules for a port without a listener of ours.
    fn opened(&mut self, flow: &OwnFlow, flags: u8) -> Verdict {
        let Some(phase) = self.opened.get(flow).copied() else {
            if self.opened.keys().any(|other| other.local == flow.local) {
                *self.met.entry("others on a port of ours").or_default() += 1;
            }
            return Verdict::Pass;
        };
        *self.met.entry(["given away", "SYN-SENT", "synchronized", "TIME-WAIT"][phase as usize]).or_default() += 1;
        let has = |wanted| flags & wanted == wanted;
        match phase {
            Phase::GivenAway => Verdict::Pass,
            Phase::SynSent if has(SYN) || has(RST | ACK) || flags == 0 => Verdict::Active,
            Phase::SynSent => Verdict::Pass,
            Phase::Synchronized => Verdict::Active,
            Phase::TimeWait if has(SYN) => {
                if has(ACK) {
                    self.opened.insert(*flow, Phase::GivenAway);
                    *self.met.entry("TIME-WAIT that another takes").or_default() += 1;
                }
                Verdict::Pass
            }
            Phase::TimeWait => Verdict::Active,
        }
    }
}

/// SplitMix64.
struct Random {
    state: u64,
    /// Whether the next packet is a fragment.
    fragments: bool,
}

impl Random {
    fn new(seed: u64) -> Random {
        Random { state: seed, fragments: false }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
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

/// Ports from which lanes open connections, among others.
const OPENED: [u16; 3] = [20_000, 20_001, 30_000];

impl Names {
    fn new() -> Names {
        let v4 = |n: [u8; 2]| [Ipv4Addr::LOCALHOST, [10, 0, 0, n[0]].into(), [10, 0, 0, n[1]].into()].map(IpAddr::from);
        let own = |n| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n);
        let v6 = |n: [u16; 2]| [Ipv6Addr::LOCALHOST, own(n[0]), own(n[1])].map(IpAddr::from);
        Names {
            us: [v4([1, 3]), v6([1, 3])],
            peers: [v4([2, 4]), v6([2, 4])],
            ports: [&[80, 81, 22][..], &OPENED].concat(),
            peer_ports: vec![5000, 5001],
        }
    }
}

impl Names {
    /// What ip(8) does so that all of these are the kernel's.
    fn commands(&self) -> String {
        let all = [&self.us, &self.peers].map(|n| n.as_flattened()).concat();
        let own = all.iter().filter(|ip| !ip.is_loopback()).map(|ip| match ip.is_ipv4() {
            true => format!("addr add {ip}/32 dev lo\n"),
            false => format!("addr add {ip}/128 dev lo nodad\n"),
        });
        own.collect()
    }
}

/// A socket of the kernel's that lives for a round.
type Held = std::os::fd::OwnedFd;

/// Has the kernel connect to a port of its own.
fn connect(from: IpAddr, to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType};
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket(family, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::new(from, 0)).unwrap();
    rustix::net::connect(&socket, &to).unwrap();
    socket.into()
}

/// What is left of a connection of the kernel's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    /// CLOSE-WAIT, and FIN-WAIT-2 with a socket.
    ClientHasEnded,
    /// FIN-WAIT-2 without a socket: the client does not end.
    ServerIsGone,
    /// TIME-WAIT at the server's end, or at the client's.
    Server,
    Client,
}

/// Ends both ends of a connection. The second has heard of the first's end: ends that cross leave TIME-WAIT on both sides.
fn end_in_turn(first: TcpStream, mut second: TcpStream) {
    drop(first);
    assert_eq!(second.read(&mut [0]).unwrap(), 0);
}

/// What the kernel's TCP has: in each family listeners, of one address or of all, and of clients whatever can be left.
fn kernel_sockets(r: &mut Random, world: &mut World, names: &mut Names, likely: &mut Vec<Subject>) -> Vec<Held> {
    let mut held: Vec<Held> = Vec::new();
    for family in 0..2 {
        // A handshake stays half open where the listener waits for the client's first bytes.
        for defers in [false, true] {
            let (us, peer) = (r.of(&names.us[family]), r.of(&names.peers[family]));
            let all = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
            // The listener on :: has both families.
            let on = r.of(&[us, us, all[family], all[1]]);
            let Ok(listener) = TcpListener::bind((on, 0)) else {
                testing::skip(format_args!("no {on} here"));
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            names.ports.push(port);
            let mut add = |peer_port, server: Option<bool>, client: Option<bool>, numbers: Option<Numbers>| {
                let ends = [(us.into(), port, peer.into(), peer_port), (peer.into(), peer_port, us.into(), port)];
                world.kernel.extend(ends.into_iter().zip([server, client]).filter_map(|(end, is)| Some((end, is?))));
                world.cookies.extend(numbers.map(|n| (ends[0], n)));
                names.peer_ports.push(peer_port);
                let vlan = r.of(&[0, 0, 7]);
                let subject = Subject { vlan, us, port, peer, peer_port, numbers };
                likely.extend(std::iter::repeat_n(subject, if numbers.is_some() { 5 } else { 1 }));
            };
            let peer_port = |client: &TcpStream| client.local_addr().unwrap().port();
            if defers {
                option(&listener, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 60);
                let client = connect(peer, (us, port).into());
                add(peer_port(&client), Some(true), Some(true), None);
                held.extend([listener.into(), client.into()]);
                continue;
            }
            // A handshake by cookie, whose connection ends without a trace.
            syn_cookies(2);
            let client = connect(peer, (us, port).into());
            let server = listener.accept().unwrap().0;
            add(peer_port(&client), None, None, Some(sequences(&client)));
            sequences(&server);
            drop((client, server));
            syn_cookies(1);
            // A client's port may have the same number.
            let live = || io::netlink::kernel_flows(port, |local| local == us).unwrap().live;
            let others = live();
            let mut alive = 0;
            for end in [End::Open, End::ClientHasEnded, End::ServerIsGone, End::Server, End::Client] {
                let client = connect(peer, (us, port).into());
                let server = listener.accept().unwrap().0;
                let peer_port = peer_port(&client);
                match end {
                    End::Open | End::ClientHasEnded => {
                        if end == End::ClientHasEnded {
                            client.shutdown(Shutdown::Write).unwrap();
                        }
                        alive += 1;
                        held.extend([Held::from(server), client.into()]);
                        add(peer_port, Some(true), Some(true), None);
                    }
                    End::ServerIsGone => {
                        drop(server);
                        held.push(client.into());
                        add(peer_port, Some(false), Some(true), None);
                    }
                    End::Server => {
                        end_in_turn(server, client);
                        add(peer_port, Some(false), None, None);
                    }
                    End::Client => {
                        end_in_turn(client, server);
                        add(peer_port, None, Some(false), None);
                    }
                }
                while live() > others + alive {
                    std::thread::yield_now();
                }
            }
            held.push(listener.into());
        }
    }
    held
}

/// What is ours, in the maps and in the model.
fn fill(
    r: &mut Random,
    b: &Bench,
    world: &mut World,
    names: &Names,
    [kernels, likely]: &mut [Vec<Subject>; 2],
) -> Option<Tuples> {
    b.maps.set_mac(MacAddr(MAC)).unwrap();
    let flags = [OwnFlags::LISTENING, OwnFlags::BESIDE_KERNEL, OwnFlags::CLOSING, OwnFlags::DRAINING];
    for vlan in [0, 7] {
        for us in names.us.as_flattened().iter().copied() {
            for port in names.ports.iter().filter(|p| **p != 22) {
                if r.one_in(3) {
                    continue;
                }
                let local = OwnKey { vlan, addr: us.into(), port: *port };
                let flags = r.of(&flags);
                b.maps.own(local, flags).unwrap();
                world.owned.insert(local, flags);
                let (peer, peer_port) = (r.of(&names.peers[us.is_ipv6() as usize]), r.of(&names.peer_ports));
                let flow = OwnFlow { local, remote: peer.into(), remote_port: peer_port };
                let (kept, fragments) = (r.one_in(2), r.one_in(2));
                if kept {
                    b.maps.keep_flow(flow).unwrap();
                    world.kept.insert(flow);
                }
                if fragments {
                    b.maps.sends_fragments(flow).unwrap();
                    world.fragmenting.insert(flow);
                }
                let subject = Subject { vlan, us, port: *port, peer, peer_port, numbers: None };
                likely.extend(std::iter::repeat_n(subject, kept as usize + 3 * fragments as usize));
            }
        }
    }
    // Lanes open connections from whatever port, towards whom the kernel may have others from there; or nobody has opened any.
    let table = (!r.one_in(8)).then(|| b.maps.open_tuples().unwrap())?;
    for _ in 0..40 {
        let mut subject = Subject::random(r, names, &[&*kernels, &*likely]);
        if r.one_in(2) {
            subject.port = r.of(&OPENED);
        }
        subject.numbers = None;
        open(r, world, &table, &subject);
        likely.extend([subject; 3]);
    }
    Some(table)
}

/// Changes what a lane has of a tuple.
fn open(r: &mut Random, world: &mut World, table: &Tuples, about: &Subject) {
    let local = OwnKey { vlan: about.vlan, addr: about.us.into(), port: about.port };
    let flow = OwnFlow { local, remote: about.peer.into(), remote_port: about.peer_port };
    match r.of(&[None, Some(Phase::SynSent), Some(Phase::Synchronized), Some(Phase::TimeWait)]) {
        None => {
            assert_eq!(table.release(&flow), world.opened.remove(&flow).is_some());
        }
        Some(phase) => {
            let before = world.opened.insert(flow, phase);
            assert_eq!(table.claim(&flow), if before.is_some() { Claim::Again } else { Claim::New });
            table.enter(&flow, phase);
        }
    }
    assert_eq!(table.claimed(), world.opened.len());
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn tcp(r: &mut Random, from: u16, to: u16, (seq, ack): Numbers) -> Vec<u8> {
    let mut b = [from.to_be_bytes(), to.to_be_bytes()].concat();
    b.extend([seq.to_be_bytes(), ack.to_be_bytes()].concat());
    b.extend([0x50, r.of(&[0x02, 0x10, 0x12, 0x11, 0x04, 0x14, 0x18, 0xc2]), 0, 9, 0, 0, 0, 0]);
    b.resize(20 + r.below(60), 7);
    b
}

/// An IP packet: options or extension headers, now and then a fragment.
fn packet(r: &mut Random, from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let fragmented = r.fragments;
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
    /// Numbers that mean something to somebody.
    numbers: Option<Numbers>,
}

impl Subject {
    /// Anything, but mostly what the kernel has, or we.
    fn random(r: &mut Random, names: &Names, likely: &[&[Subject]; 2]) -> Subject {
        if !r.one_in(4) {
            let whose = r.below(2);
            return r.of(likely[whose]);
        }
        let family = r.below(2);
        Subject {
            vlan: r.of(&[0, 7, 8]),
            us: r.of(&names.us[family]),
            port: r.of(&names.ports),
            peer: r.of(&names.peers[family]),
            peer_port: r.of(&names.peer_ports),
            numbers: None,
        }
    }

    /// Its numbers, mostly; what is almost these means nothing. The lowest bits of a cookie tell an MSS, of which there are four, and
    /// the highest its minute, of which two are good.
    fn numbers(&self, r: &mut Random) -> Numbers {
        match (self.numbers, r.below(8)) {
            (None, _) => (1, 1),
            (Some((seq, ack)), 0) => (seq ^ 4 << r.below(22), ack),
            (Some((seq, ack)), 1) => (seq, ack ^ 4 << r.below(22)),
            (Some(numbers), _) => numbers,
        }
    }

    /// A first fragment from a port of the peer's that no connection here has.
    fn forged(&self, r: &mut Random) -> (Vec<u8>, Option<Tag>) {
        let from = 1 + r.below(4000) as u16;
        let bytes = tcp(r, from, self.port, (1, 1));
        let id = r.next() as u32;
        let packet = match self.us.is_ipv4() {
            true => {
                let mut b = vec![0x45, 0, 0, 0, (id >> 8) as u8, id as u8, 0x20, 0, 64, 6, 0, 0];
                b.extend([octets(self.peer), octets(self.us), bytes].concat());
                b
            }
            false => {
                let mut b = vec![0x60, 0, 0, 0, 0, 0, 44, 64];
                b.extend([octets(self.peer), octets(self.us), vec![6, 0, 0, 1]].concat());
                b.extend([&id.to_be_bytes(), &bytes[..]].concat());
                b
            }
        };
        let tags = if self.vlan == 0 { vec![] } else { vec![(0x8100, self.vlan)] };
        (link(MAC, &tags, [0x0800, 0x86dd][self.us.is_ipv6() as usize], &packet), None)
    }
}

/// The link's header, with tags, and what follows.
fn link(to: [u8; 6], tags: &[Tag], ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let mut f = [to, [2, 0, 0, 0, 0, 99]].concat();
    for (kind, text) in tags {
        f.extend([kind.to_be_bytes(), text.to_be_bytes()].concat());
    }
    f.extend(ethertype.to_be_bytes());
    f.extend(packet);
    f
}

/// A frame, and the tag beside it where such can be.
fn frame(r: &mut Random, subject: Subject, beside: bool) -> (Vec<u8>, Option<Tag>) {
    let Subject { vlan, us, port, peer, peer_port, .. } = subject;
    let numbers = subject.numbers(r);
    let family = us.is_ipv6() as usize;
    let ip = match r.below(8) {
        0 => {
            let bytes = tcp(r, peer_port, port, numbers);
            packet(r, peer, us, 17, &bytes)
        }
        1 | 2 => {
            let (kinds, protocol) = [([3u8, 11, 12, 5, 8, 0], 1), ([1, 2, 3, 4, 128, 0], 58)][family];
            let protocol_in = if r.one_in(8) { 17 } else { 6 };
            let bytes = tcp(r, port, peer_port, numbers);
            let quote = match r.one_in(3) {
                true => packet(r, us, peer, protocol_in, &bytes),
                false => {
                    let mut plain = packet(&mut Random::new(r.next() | 1), us, peer, protocol_in, &bytes);
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
            let bytes = tcp(r, peer_port, port, numbers);
            packet(r, peer, us, 6, &bytes)
        }
    };
    let to = match r.below(30) {
        0 => [0xff; 6],
        1 => [1, 0, 0x5e, 0, 0, 1],
        2 => [2, 0, 0, 0, r.of(&[0, 1]), r.of(&[0, 2, 9])],
        _ => MAC,
    };
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
    let mut tags: Vec<Tag> = tags.iter().map(|kind| (*kind, vlan | r.of(&[0, 0x2000, 0xe000]))).collect();
    // The outermost one is beside the frame, or one that is nowhere in it.
    let beside = match r.below(24) {
        _ if !beside => None,
        0 => Some((r.of(&[0x8100, 0x88a8]), r.of(&[0, 7, 8]))),
        1..=16 if !tags.is_empty() => Some(tags.remove(0)),
        _ => None,
    };
    let ethertype: u16 = if r.one_in(40) { 0x0806 } else { [0x0800, 0x86dd][family] };
    let mut f = link(to, &tags, ethertype, &ip);
    if r.one_in(16) {
        let at = r.below(f.len());
        f[at] = r.next() as u8;
    }
    if r.one_in(12) {
        f.truncate(14 + r.below(f.len() - 13));
    }
    (f, beside)
}

/// The interface whose queues the frames come by.
const DEVICE: &str = "clmodel";

/// One round; what was said and met how often, `None` where no program can be loaded.
fn round(seed: u64, said: &mut BTreeMap<String, usize>) -> Option<()> {
    let mut r = Random::new(seed);
    // Where time passes it passes soon.
    let life = if r.one_in(2) { 6 * TICK } else { Duration::from_secs(30) };
    let beside = r.one_in(2);
    let mut b = Bench::with(Setting { fragment_life: life, remembered: REMEMBERED, beside })?;
    let device = std::ffi::CString::new(DEVICE).unwrap();
    // SAFETY: a string that ends and lives.
    let device = unsafe { libc::if_nametoindex(device.as_ptr()) };
    assert!(device > 0, "no {DEVICE}");
    let sockets: Vec<bool> = (0..QUEUES).map(|_| !r.one_in(3)).collect();
    for queue in (0..QUEUES).filter(|queue| sockets[*queue as usize]) {
        b.listen(queue);
    }
    let (mut world, mut names) = (World { life, ..World::default() }, Names::new());
    let mut likely = [Vec::new(), Vec::new()];
    let _alive = kernel_sockets(&mut r, &mut world, &mut names, &mut likely[0]);
    let table = fill(&mut r, &b, &mut world, &names, &mut likely);
    let likely = likely.each_ref().map(Vec::as_slice);
    let mut check = |r: &mut Random, (f, tag): &(Vec<u8>, Option<Tag>), world: &mut World| {
        let queue = r.below(QUEUES as usize);
        let before = Instant::now();
        let (program, action, left) = b.run(f, (device, queue as u32), *tag);
        let rules = world.verdict(f, *tag, [before, Instant::now()], program);
        let shown = || {
            let known = world.about(f, *tag).unwrap_or_default();
            format!("CORELANE_SEED={seed}, of frame {f:02x?}, tag {tag:04x?}: {known}")
        };
        assert_eq!(program, rules, "the program (left) and the rules (right), {}", shown());
        // What is ours goes to the socket of its queue, with its tag in it; what passes is as it came.
        let ours = matches!(rules, Verdict::Listen | Verdict::Active | Verdict::Fragment);
        let taken = ours && sockets[queue];
        assert_eq!(action, if taken { Action::Redirect } else { Action::Pass }, "on queue {queue}, {}", shown());
        let meant = match tag {
            Some((kind, text)) if taken => [&f[..12], &kind.to_be_bytes(), &text.to_be_bytes(), &f[12..]].concat(),
            _ => f.clone(),
        };
        assert_eq!(left, meant, "{action:?} on queue {queue}, {}", shown());
        if tag.is_some() && ours {
            *world.met.entry(if taken { "tags put back" } else { "tags left beside" }).or_default() += 1;
        }
        *said.entry(format!("{rules:?}")).or_default() += 1;
    };
    for _ in 0..20 {
        // Now and then somebody sends fragments; and then, where no time passes, comes a flood.
        let fragments = r.one_in(4);
        let flood = fragments && life > Duration::from_secs(1) && !r.one_in(3);
        let now = if fragments { r.of(likely[1]) } else { Subject::random(&mut r, &names, &likely) };
        for n in 0..if fragments { 60 } else { 20 } {
            let about = match r.below(10) {
                0 | 1 => Subject::random(&mut r, &names, &likely),
                // Somebody else at the same address, whose datagrams may have the same identification.
                2 | 3 => Subject { peer_port: r.of(&names.peer_ports), ..now },
                _ => now,
            };
            r.fragments = if fragments { !r.one_in(8) } else { r.one_in(2) };
            if let Some(table) = table.as_ref().filter(|_| r.one_in(60)) {
                open(&mut r, &mut world, table, &about);
            }
            let made = frame(&mut r, about, beside);
            check(&mut r, &made, &mut world);
            if life < Duration::from_secs(1) && r.one_in(if fragments { 30 } else { 200 }) {
                std::thread::sleep(life + 2 * TICK);
            }
            // More strangers than there is room for.
            for _ in 0..if flood && n == 30 { REMEMBERED / 4 * 5 } else { 0 } {
                let forged = now.forged(&mut r);
                check(&mut r, &forged, &mut world);
            }
        }
    }
    // One frame at every length.
    let last = r.of(likely[1]);
    let (f, tag) = frame(&mut r, last, beside);
    for n in 14..=f.len() {
        check(&mut r, &(f[..n].to_vec(), tag), &mut world);
    }
    for (what, n) in world.met {
        *said.entry(what.into()).or_default() += n;
    }
    Some(())
}

#[test]
fn the_program_keeps_its_rules() {
    if Bench::new().is_none() {
        return;
    }
    in_a_namespace(rounds);
}

fn rounds() {
    ip(&format!(
        "{}link add {DEVICE} numrxqueues {QUEUES} numtxqueues {QUEUES} type veth peer name {DEVICE}-peer\n",
        Names::new().commands()
    ));
    // What an LRU map forgets, and when, depends on the cores that write to it.
    let mut one = rustix::thread::CpuSet::new();
    one.set(rustix::thread::sched_getcpu());
    rustix::thread::sched_setaffinity(None, &one).unwrap();
    let number = |name| std::env::var(name).ok().and_then(|n: String| n.parse().ok());
    let seeds = match number("CORELANE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("CORELANE_SEEDS").unwrap_or(40),
    };
    let mut said = BTreeMap::new();
    for seed in seeds.clone() {
        if round(seed, &mut said).is_none() {
            return;
        }
    }
    eprintln!("{said:?}");
    // Random frames must not be such that nobody wants them.
    let rounds = (seeds.end - seeds.start) as usize;
    let least = [
        ("Listen", 40 * rounds),
        ("Pass", 40 * rounds),
        ("Active", rounds),
        ("KernelFlow", rounds),
        ("Fragment", rounds),
        ("connections beside us", rounds),
        ("connections while closing", rounds),
        ("connections while draining", rounds),
        ("cookies while closing", rounds / 10),
        ("cookies while draining", rounds / 10),
        ("fragments of known senders after a flood", rounds / 10),
        ("others on a port of ours", rounds),
        ("SYN-SENT", rounds),
        ("synchronized", rounds),
        ("TIME-WAIT", rounds),
        ("given away", rounds / 4),
        ("TIME-WAIT that another takes", rounds / 4),
        ("tags put back", rounds),
        ("tags left beside", rounds / 2),
    ];
    for (what, n) in least {
        assert!(rounds < 40 || said.get(what).is_some_and(|met| *met >= n), "{what} not {n} times: {said:?}");
    }
}

//! Receive Flow Deliver (Fastsocket 3.3) from what the kernel offers: ports of connections that are opened here are dealt to CPUs in
//! blocks, and an XDP program hands a frame to the CPU of its destination port's block (cpumap).
//!
//! The paper encodes the CPU in a port's low bits; IP_LOCAL_PORT_RANGE takes a range. The paper tells connections that were opened here
//! from accepted ones by well-known ports, by which a client could choose its CPU; here a frame is handed on where the kernel has a
//! socket for it and no listener on its port. From a listener's port the kernel opens no connection, so those that are told of
//! ([`Deliverer::listens`]) need no lookup. Their frames stay on the CPU to which the NIC has brought them, or, where it does not spread
//! flows over all CPUs, go to one by a keyed hash of addresses and ports, which no client can choose.

use std::io;
use std::os::fd::AsFd;

use super::asm::{Asm, FP, If, Op, Size};
use super::sys::{Map, MapKind, Program};
use crate::error::PortError;
use crate::sys::set_option;

/// Option of level IPPROTO_IP: the ports from which the kernel chooses a socket's.
const LOCAL_PORT_RANGE: i32 = 51;
/// Those from which it chooses otherwise, of this network namespace.
const KERNEL_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// Fewest ports of a block. A connection to a server that was opened and closed keeps its port for a minute.
const LEAST: u16 = 64;
/// Pieces of a block of those that are aligned: as many, or up to twice that.
const PIECES: u32 = 8;
/// Frames that wait for a CPU, at most.
const QUEUE: u32 = 8192;
/// A cache line, so that CPUs do not write to each other's.
const COUNTS: usize = 64;

// Where a line has its numbers.
const HERE: i32 = 0;
const MOVED: i32 = 8;
const LEFT: i32 = 16;
const SPREAD_HERE: i32 = 24;
const SPREAD_MOVED: i32 = 32;

// Helpers by number (enum bpf_func_id).
const MAP_LOOKUP: i32 = 1;
const GET_SMP_PROCESSOR_ID: i32 = 8;
const REDIRECT_MAP: i32 = 51;
const SK_RELEASE: i32 = 86;
const SKC_LOOKUP_TCP: i32 = 99;
const XDP_PASS: i32 = 2;
const TCP_LISTEN: i32 = 10;

/// Ports of CPUs: a block each, one behind the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// First port of the first block.
    pub first: u16,
    /// Ports of a block.
    pub size: u16,
    /// The kernel's number of the CPU, by block.
    pub cpus: Vec<u32>,
}

impl Blocks {
    /// Deals the ports from which the kernel chooses, as [`deal`](Blocks::deal).
    pub fn of_kernel(cpus: &[u32], random: u32, aligned: bool) -> Result<Blocks, PortError> {
        let failed = |what: &str, source: io::Error| PortError::System { what: what.into(), source };
        let socket = std::net::TcpListener::bind(("127.0.0.1", 0)).map_err(|e| failed("a socket", e))?;
        match set_option(&socket, libc::IPPROTO_IP, LOCAL_PORT_RANGE, &0u32) {
            Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                let hint = "Linux 6.3 and later have it";
                return Err(PortError::Unsupported { feature: "ports by core (IP_LOCAL_PORT_RANGE)", hint });
            }
            other => other.map_err(|e| failed("IP_LOCAL_PORT_RANGE", e))?,
        }
        let text = std::fs::read_to_string(KERNEL_RANGE).map_err(|e| failed(KERNEL_RANGE, e))?;
        let range = range(&text).ok_or_else(|| failed(KERNEL_RANGE, io::ErrorKind::InvalidData.into()))?;
        let blocks = Blocks::deal(range, cpus, random, aligned);
        if blocks.cpus.is_empty() {
            let (first, last) = range;
            let why =
                format!("ports {first} to {last} are too few to deal to cores: raise net.ipv4.ip_local_port_range");
            return Err(PortError::Invalid(why));
        }
        Ok(blocks)
    }

    /// Deals the ports from `range.0` to `range.1` to `cpus`; which CPU has the first block, and where that begins, is by `random`. CPUs
    /// for which there are not enough ports have none. Where they are to be `aligned`, blocks are made of few [`pieces`](Blocks::pieces),
    /// and up to a quarter of the ports is in none.
    pub fn deal(range: (u16, u16), cpus: &[u32], random: u32, aligned: bool) -> Blocks {
        let (mut first, end) = (u32::from(range.0), u32::from(range.1) + 1);
        let ports = end.saturating_sub(first);
        let n = (cpus.len() as u32).min(ports / u32::from(LEAST));
        if n == 0 {
            return Blocks { first: range.0, size: 0, cpus: Vec::new() };
        }
        // The kernel opens connections from ports of one parity first, and binds to the others: blocks keep the range's.
        let mut unit = 2;
        if aligned {
            unit = 1 << (ports / n / PIECES).ilog2();
            first = first.next_multiple_of(unit);
        }
        let size = (end - first) / n / unit * unit;
        let spare = end - first - n * size;
        let mut cpus = cpus[..n as usize].to_vec();
        cpus.rotate_left((random % n) as usize);
        let shift = (random >> 16) % (spare / unit + 1) * unit;
        Blocks { first: (first + shift) as u16, size: size as u16, cpus }
    }

    /// First and last port of a CPU.
    pub fn of(&self, cpu: u32) -> Option<(u16, u16)> {
        let at = self.cpus.iter().position(|other| *other == cpu)?;
        let first = self.first + self.size * at as u16;
        Some((first, first + (self.size - 1)))
    }

    /// Ranges of 2^n ports that share their high bits, first and last port, of which a CPU's block is made.
    pub fn pieces(&self, cpu: u32) -> impl Iterator<Item = (u16, u16)> + use<> {
        let unit = 1 << (self.first | self.size).trailing_zeros();
        let (first, last) = self.of(cpu).unwrap_or((1, 0));
        (first..=last).step_by(unit).map(move |first| (first, first + (unit as u16 - 1)))
    }
}

/// First and last port of the kernel's text.
fn range(text: &str) -> Option<(u16, u16)> {
    let mut ports = text.split_whitespace().map(str::parse);
    match (ports.next()?, ports.next()?) {
        (Ok(first), Ok(last)) if first <= last => Some((first, last)),
        _ => None,
    }
}

/// Frames to ports of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Those that came on the CPU of the block.
    pub here: u64,
    /// Those that were handed to it.
    pub moved: u64,
    /// Those that stayed on another: of a listener's port, or without a socket.
    pub left: u64,
    /// Frames to ports on which somebody listens that came on the CPU of their hash.
    pub spread_here: u64,
    /// Those that were handed to it.
    pub spread_moved: u64,
}

impl std::ops::AddAssign for Delivered {
    fn add_assign(&mut self, other: Delivered) {
        self.here += other.here;
        self.moved += other.moved;
        self.left += other.left;
        self.spread_here += other.spread_here;
        self.spread_moved += other.spread_moved;
    }
}

/// The program and its maps.
#[derive(Debug)]
pub struct Deliverer {
    /// A bit for each port, in words: somebody listens on it.
    listening: Map,
    counts: Map,
    cpus: u32,
    pub(crate) program: Program,
}

impl Deliverer {
    /// Loads the program, on a machine with CPUs 0 to `cpus` - 1; `frags` says that frames may lie in several buffers. Frames to ports on
    /// which somebody listens are spread over the CPUs of `spread`; where that is empty they stay where they come.
    pub fn new(blocks: &Blocks, spread: &[u32], cpus: u32, frags: bool) -> io::Result<Deliverer> {
        let mut seed = [0; 4];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
        let queues = Map::new(MapKind::Cpu, "cl_queues", 4, 4, cpus)?;
        let by_block = Map::new(MapKind::Array, "cl_blocks", 4, 4, blocks.cpus.len().max(1) as u32)?;
        for (at, cpu) in blocks.cpus.iter().enumerate() {
            by_block.set(&(at as u32).to_ne_bytes(), &cpu.to_ne_bytes())?;
            queues.set(&cpu.to_ne_bytes(), &QUEUE.to_ne_bytes())?;
        }
        let by_hash = Map::new(MapKind::Array, "cl_spread", 4, 4, spread.len().max(1) as u32)?;
        for (at, cpu) in spread.iter().enumerate() {
            by_hash.set(&(at as u32).to_ne_bytes(), &cpu.to_ne_bytes())?;
            queues.set(&cpu.to_ne_bytes(), &QUEUE.to_ne_bytes())?;
        }
        let spread = (!spread.is_empty()).then_some(Spread {
            cpus: &by_hash,
            count: spread.len() as i32,
            seed: i32::from_ne_bytes(seed),
        });
        // The last line is of CPUs that are beyond.
        let counts = Map::new(MapKind::Array, "cl_delivered", 4, COUNTS, cpus + 1)?;
        let listening = Map::new(MapKind::Array, "cl_listening", 4, 8, 1 << 10)?;
        let program = deliver(blocks, spread, &queues, &by_block, &listening, &counts, cpus).finish();
        let program = Program::load_xdp("cl_deliver", &program, frags)?;
        Ok(Deliverer { listening, counts, cpus, program })
    }

    /// Takes frames to a port out of the blocks: somebody listens on it. It is told for good, since its connections outlive a listener.
    pub fn listens(&self, port: u16) -> io::Result<()> {
        let word = u32::from(port >> 6).to_ne_bytes();
        let bits =
            self.listening.get(&word)?.and_then(|bytes| bytes.first_chunk().copied()).map_or(0, u64::from_ne_bytes);
        self.listening.set(&word, &(bits | 1 << (port & 63)).to_ne_bytes())
    }

    /// Frames so far, of all CPUs.
    pub fn delivered(&self) -> io::Result<Delivered> {
        let mut sum = Delivered::default();
        for cpu in 0..=self.cpus {
            let line = self.counts.get(&cpu.to_ne_bytes())?.unwrap_or_default();
            let word =
                |at: i32| line.get(at as usize..).and_then(|b| b.first_chunk().copied()).map_or(0, u64::from_ne_bytes);
            let (spread_here, spread_moved) = (word(SPREAD_HERE), word(SPREAD_MOVED));
            sum += Delivered { here: word(HERE), moved: word(MOVED), left: word(LEFT), spread_here, spread_moved };
        }
        Ok(sum)
    }
}

/// `n` in network order, as a 16-bit load sees it.
fn be(n: u16) -> i32 {
    n.to_be() as i32
}

/// Written in words alone, the tuple lies on the stack as bpf_skc_lookup_tcp reads it: source, destination, ports.
const TUPLE: i16 = -40;
const BLOCK: i16 = -44;
const CPU: i16 = -48;
const STATE: i16 = -56;
const WORD: i16 = -60;
/// Both ports as a word, with the source's cleared.
const DESTINATION: i32 = if cfg!(target_endian = "little") { !0xffff } else { 0xffff };

/// Spreading of frames to listeners' ports.
struct Spread<'a> {
    /// CPU by number.
    cpus: &'a Map,
    count: i32,
    /// The hash's key.
    seed: i32,
}

/// Multiplier of the hash: odd, and positive as an immediate.
const FACTOR: i32 = 0x7feb_352d;

fn deliver(
    blocks: &Blocks,
    spread: Option<Spread<'_>>,
    queues: &Map,
    by_block: &Map,
    listening: &Map,
    counts: &Map,
    cpus: u32,
) -> Asm {
    use Size::{B, Dw, H, W};
    let mut a = Asm::default();
    // The context 6; the header 9, and the end of what can be read 8, until the tuple is read: then its length. The port 7, then its CPU.
    a.mov_reg(6, 1).load(W, 9, 6, 0).load(W, 8, 6, 4);
    a.lea(2, 9, 14).jump_if_reg(If::Gt, 2, 8, "pass").load(H, 3, 9, 12).jump_if(If::Eq, 3, be(0x8100), "vlan");
    a.op(Op::Add, 9, 14).jump("network");
    a.label("vlan").lea(2, 9, 18).jump_if_reg(If::Gt, 2, 8, "pass").load(H, 3, 9, 16).op(Op::Add, 9, 18);
    a.label("network").jump_if(If::Eq, 3, be(0x86dd), "v6").jump_if(If::Ne, 3, be(0x0800), "pass");
    // Datagrams with options, and fragments, which have no ports but the first, stay where they are.
    a.lea(2, 9, 24).jump_if_reg(If::Gt, 2, 8, "pass").load(B, 3, 9, 0).jump_if(If::Ne, 3, 0x45, "pass");
    a.load(H, 3, 9, 6).be16(3).op(Op::And, 3, 0x3fff).jump_if(If::Ne, 3, 0, "pass");
    a.load(B, 3, 9, 9).jump_if(If::Ne, 3, 6, "pass");
    for at in [0, 4, 8] {
        a.load(W, 3, 9, 12 + at).store(W, FP, TUPLE + at, 3);
    }
    a.load(H, 1, 9, 22).mov(8, 12).jump("port");
    a.label("v6").lea(2, 9, 44).jump_if_reg(If::Gt, 2, 8, "pass");
    a.load(B, 3, 9, 6).jump_if(If::Ne, 3, 6, "pass");
    for at in (0..36).step_by(4) {
        a.load(W, 3, 9, 8 + at).store(W, FP, TUPLE + at, 3);
    }
    a.load(H, 1, 9, 42).mov(8, 36);

    a.label("port").be16(1).mov_reg(7, 1);
    if spread.is_some() {
        a.mov_reg(9, 7);
        listens(&mut a, listening, 9, "spread");
    }
    a.mov_reg(1, 7).op(Op::Sub, 1, blocks.first.into());
    a.jump_if(If::Ge, 1, i32::from(blocks.size) * blocks.cpus.len() as i32, "pass");
    a.op(Op::Div, 1, blocks.size.max(1).into()).store(W, FP, BLOCK, 1);
    a.map(1, by_block.as_fd()).lea(2, FP, BLOCK.into()).call(MAP_LOOKUP).jump_if(If::Eq, 0, 0, "pass");
    a.load(W, 9, 0, 0);
    if spread.is_none() {
        listens(&mut a, listening, 7, "pass");
    }
    a.mov_reg(7, 9);
    a.call(GET_SMP_PROCESSOR_ID).mov_reg(9, 0).mov(1, HERE).jump_if_reg(If::Eq, 9, 7, "count");
    // A frame that is only forwarded, or that nobody waits for, has no socket here.
    lookup(&mut a);
    a.mov(1, LEFT).jump_if(If::Eq, 0, 0, "count");
    state(&mut a);
    a.mov(1, LEFT).jump_if(If::Eq, 2, TCP_LISTEN, "count");
    // A connection that a listener on this port has accepted belongs to whose CPU the SYN came on.
    a.load(W, 3, FP, TUPLE + 8).jump_if(If::Eq, 8, 36, "port6");
    a.op(Op::And, 3, DESTINATION).store(W, FP, TUPLE + 8, 3).store_imm(W, FP, TUPLE, 0).jump("listener");
    a.label("port6").load(W, 3, FP, TUPLE + 32).op(Op::And, 3, DESTINATION).store(W, FP, TUPLE + 32, 3);
    for at in (0..16).step_by(4) {
        a.store_imm(W, FP, TUPLE + at, 0);
    }
    a.label("listener");
    lookup(&mut a);
    a.mov(1, MOVED).jump_if(If::Eq, 0, 0, "count");
    state(&mut a);
    a.mov(1, MOVED).jump_if(If::Ne, 2, TCP_LISTEN, "count").mov(1, LEFT).jump("count");
    if let Some(Spread { cpus, count, seed }) = spread {
        a.label("spread").mov(1, seed);
        for at in (0..36).step_by(4) {
            if at == 12 {
                a.jump_if(If::Eq, 8, 12, "hashed");
            }
            a.load(W, 2, FP, TUPLE + at).op_reg(Op::Xor, 1, 2).op(Op::Mul, 1, FACTOR);
            a.mov_reg(2, 1).op(Op::Rsh, 2, 29).op_reg(Op::Xor, 1, 2);
        }
        // The high half, scaled to the number of CPUs.
        a.label("hashed").op(Op::Mul, 1, FACTOR).mov_reg(2, 1).op(Op::Rsh, 2, 29).op_reg(Op::Xor, 1, 2);
        a.op(Op::Mul, 1, FACTOR).op(Op::Rsh, 1, 32).op(Op::Mul, 1, count).op(Op::Rsh, 1, 32).store(W, FP, BLOCK, 1);
        a.map(1, cpus.as_fd()).lea(2, FP, BLOCK.into()).call(MAP_LOOKUP).jump_if(If::Eq, 0, 0, "pass");
        a.load(W, 7, 0, 0).call(GET_SMP_PROCESSOR_ID).mov_reg(9, 0);
        a.mov(1, SPREAD_HERE).jump_if_reg(If::Eq, 9, 7, "count").mov(1, SPREAD_MOVED);
    }

    a.label("count").mov_reg(8, 1).jump_if(If::Lt, 9, cpus as i32, "known").mov(9, cpus as i32);
    a.label("known").store(W, FP, CPU, 9).map(1, counts.as_fd()).lea(2, FP, CPU.into()).call(MAP_LOOKUP);
    a.jump_if(If::Eq, 0, 0, "counted").jump_if(If::Gt, 8, SPREAD_MOVED, "counted");
    a.op_reg(Op::Add, 0, 8).load(Dw, 1, 0, 0).op(Op::Add, 1, 1).store(Dw, 0, 0, 1);
    a.label("counted").jump_if(If::Eq, 8, SPREAD_MOVED, "move").jump_if(If::Ne, 8, MOVED, "pass");
    a.label("move");
    a.map(1, queues.as_fd()).mov_reg(2, 7).mov(3, XDP_PASS).call(REDIRECT_MAP).exit();
    a.label("pass").mov(0, XDP_PASS).exit();
    a
}

/// Jumps where somebody listens on the port in `port`, which is lost.
fn listens(a: &mut Asm, listening: &Map, port: u8, to: &'static str) {
    a.mov_reg(1, port).op(Op::Rsh, 1, 6).store(Size::W, FP, WORD, 1);
    a.map(1, listening.as_fd()).lea(2, FP, WORD.into()).call(MAP_LOOKUP).jump_if(If::Eq, 0, 0, "pass");
    a.load(Size::Dw, 1, 0, 0).op(Op::And, port, 63).op_reg(Op::Rsh, 1, port).jump_if(If::Set, 1, 1, to);
}

/// r0 = the socket of the tuple.
fn lookup(a: &mut Asm) {
    a.mov_reg(1, 6).lea(2, FP, TUPLE.into()).mov_reg(3, 8).mov(4, -1).mov(5, 0).call(SKC_LOOKUP_TCP);
}

/// r2 = the state of the socket in r0, which is given back.
fn state(a: &mut Asm) {
    a.load(Size::W, 2, 0, 72).store(Size::Dw, FP, STATE, 2).mov_reg(1, 0).call(SK_RELEASE).load(Size::Dw, 2, FP, STATE);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::CpuSet;
    use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
    use std::os::fd::OwnedFd;

    #[test]
    fn the_kernels_range_has_two_ports() {
        assert_eq!(range("32768\t60999\n"), Some((32_768, 60_999)));
        assert_eq!(range("1 65535"), Some((1, 65_535)));
        for text in ["", "32768", "2 1", "1 65536", "a b"] {
            assert_eq!(range(text), None);
        }
    }

    #[test]
    fn blocks_lie_side_by_side_within_the_range() {
        for random in [0, 1, 0xffff_0001, 0x8000_0002, u32::MAX] {
            for n in [1, 2, 3, 5, 48, 441] {
                let cpus: Vec<u32> = (0..n).collect();
                let blocks = Blocks::deal((32_768, 60_999), &cpus, random, false);
                let mut all: Vec<_> = cpus.iter().map(|cpu| blocks.of(*cpu).unwrap()).collect();
                all.sort_unstable();
                assert!(all[0].0 >= 32_768 && all[n as usize - 1].1 <= 60_999, "{blocks:?}");
                assert!(all.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0), "{blocks:?}");
                assert!(all.iter().all(|(first, last)| last - first + 1 == blocks.size && first % 2 == 0));
                let lost = 28_232 - n * u32::from(blocks.size);
                assert!(lost < 2 * n, "{lost} ports of no block");
            }
        }
        let twice = [1, 7].map(|random| Blocks::deal((32_768, 60_999), &[4, 6, 8, 9], random, false).of(4));
        assert_ne!(twice[0], twice[1], "the first block is drawn");
    }

    #[test]
    fn aligned_blocks_are_made_of_few_pieces() {
        for random in [0, 1, 0xffff_0001, u32::MAX] {
            for (range, n) in [
                ((32_768, 60_999), 1),
                ((32_768, 60_999), 2),
                ((32_769, 60_999), 48),
                ((1, 65_535), 1),
                ((1025, 65_535), 441),
            ] {
                let cpus: Vec<u32> = (0..n).collect();
                let blocks = Blocks::deal(range, &cpus, random, true);
                assert_eq!(blocks.cpus.len(), n as usize);
                assert!(blocks.first >= range.0 && blocks.cpus.iter().all(|cpu| blocks.of(*cpu).unwrap().1 <= range.1));
                for cpu in cpus {
                    let (pieces, (first, last)) = (blocks.pieces(cpu).collect::<Vec<_>>(), blocks.of(cpu).unwrap());
                    assert!((7..16).contains(&pieces.len()), "{} pieces of {blocks:?}", pieces.len());
                    let ports: Vec<u16> = pieces.iter().flat_map(|(first, last)| *first..=*last).collect();
                    assert_eq!(ports, (first..=last).collect::<Vec<_>>());
                    let size = pieces[0].1 - pieces[0].0;
                    assert!(pieces.iter().all(|(first, last)| first & size == 0 && last ^ first == size));
                }
                let all = u32::from(range.1 - range.0) + 1;
                assert!(n * u32::from(blocks.size) >= all * 3 / 4, "{} ports of {all}", n * u32::from(blocks.size));
            }
        }
        assert_eq!(Blocks::deal((32_768, 60_999), &[0], 0, true).pieces(1).count(), 0);
    }

    #[test]
    fn cpus_beyond_the_ports_have_no_block() {
        let blocks = Blocks::deal((40_000, 40_199), &[0, 1, 2, 3, 4], 0, false);
        assert_eq!((blocks.size, blocks.cpus.len(), blocks.of(3)), (66, 3, None));
        let none = Blocks::deal((40_000, 40_010), &[0, 1], 9, false);
        assert_eq!((none.cpus.len(), none.of(0)), (0, None));
        assert_eq!(Blocks::deal((40_010, 40_000), &[0], 9, false).of(0), None);
    }

    /// A frame from one address to another, as far as the program reads it.
    fn frame(from: SocketAddr, to: SocketAddr, tagged: bool) -> Vec<u8> {
        let mut frame = vec![0; 12];
        if tagged {
            frame.extend([0x81, 0, 0, 5]);
        }
        match (from.ip(), to.ip()) {
            (std::net::IpAddr::V4(a), std::net::IpAddr::V4(b)) => {
                frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
                frame.extend([a.octets(), b.octets()].concat());
            }
            (std::net::IpAddr::V6(a), std::net::IpAddr::V6(b)) => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64]);
                frame.extend([a.octets(), b.octets()].concat());
            }
            _ => unreachable!("of one family"),
        }
        frame.extend([from.port().to_be_bytes(), to.port().to_be_bytes()].concat());
        frame.extend([0; 16]);
        frame
    }

    /// A connection from a port of a block, by way of loopback.
    fn connect(to: SocketAddr, (first, last): (u16, u16)) -> TcpStream {
        use rustix::net::{AddressFamily, SocketType, connect, socket};
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let fd: OwnedFd = socket(family, SocketType::STREAM, None).unwrap();
        let range = u32::from(first) | u32::from(last) << 16;
        set_option(&fd, libc::IPPROTO_IP, LOCAL_PORT_RANGE, &range).unwrap();
        connect(&fd, &to).unwrap();
        fd.into()
    }

    #[test]
    fn frames_of_a_cpus_block_go_to_it_where_a_connection_was_opened_here() {
        const REDIRECT: u32 = 4;
        const PASS: u32 = XDP_PASS as u32;
        if !rustix::process::geteuid().is_root() || std::thread::available_parallelism().map_or(1, |n| n.get()) < 2 {
            return testing::skip("needs root and two CPUs");
        }
        let mut set = CpuSet::new();
        set.set(0);
        rustix::thread::sched_setaffinity(None, &set).unwrap();
        let blocks = Blocks::deal((32_768, 60_999), &[0, 1], 0, false);
        let [zero, one] = [0, 1].map(|cpu| blocks.of(cpu).unwrap());
        let deliverer = Deliverer::new(&blocks, &[], 2, true).unwrap();
        let run = |from, to, tagged| deliverer.program.run(&frame(from, to, tagged)).unwrap();
        let told = |here, moved, left| {
            assert_eq!(deliverer.delivered().unwrap(), Delivered { here, moved, left, ..Delivered::default() });
        };
        let mut n = Delivered::default();
        for any in [Ipv4Addr::LOCALHOST.into(), std::net::IpAddr::from(Ipv6Addr::LOCALHOST)] {
            // A server outside of the blocks, and one on a port of the other CPU's.
            let server = (1..32_768).rev().find_map(|port| TcpListener::bind((any, port)).ok()).unwrap();
            let inside = (one.0..=one.1).find_map(|port| TcpListener::bind((any, port)).ok()).unwrap();
            for tagged in [false, true] {
                let at = server.local_addr().unwrap();
                let [own, other] = [connect(at, zero), connect(at, one)];
                assert!((one.0..=one.1).contains(&other.local_addr().unwrap().port()));
                assert_eq!(run(at, own.local_addr().unwrap(), tagged), PASS);
                assert_eq!(run(at, other.local_addr().unwrap(), tagged), REDIRECT);
                // To the server, which is of no block.
                assert_eq!(run(other.local_addr().unwrap(), at, tagged), PASS);
                (n.here, n.moved) = (n.here + 1, n.moved + 1);
                told(n.here, n.moved, n.left);
                // One that a listener within the block has accepted, its next SYN, and one that nobody waits for.
                let accepted = connect(inside.local_addr().unwrap(), zero);
                assert_eq!(run(accepted.local_addr().unwrap(), inside.local_addr().unwrap(), tagged), PASS);
                let stranger = SocketAddr::new(any, 9);
                assert_eq!(run(stranger, inside.local_addr().unwrap(), tagged), PASS);
                assert_eq!(run(stranger, other.local_addr().unwrap(), tagged), PASS);
                n.left += 3;
                told(n.here, n.moved, n.left);
            }
        }
        // Ports that are told of are nobody's block.
        let at = SocketAddr::from(([127, 0, 0, 1], 9));
        let busy = (one.0..=one.1).find_map(|port| TcpListener::bind(("127.0.0.1", port)).ok()).unwrap();
        let busy = busy.local_addr().unwrap();
        assert_eq!(run(at, busy, false), PASS);
        n.left += 1;
        told(n.here, n.moved, n.left);
        deliverer.listens(busy.port()).unwrap();
        deliverer.listens(busy.port() ^ 1).unwrap();
        for port in [busy.port(), busy.port() ^ 1, busy.port()] {
            assert_eq!(run(at, SocketAddr::new(busy.ip(), port), false), PASS);
        }
        told(n.here, n.moved, n.left);
        assert_eq!(run(at, SocketAddr::new(busy.ip(), busy.port() ^ 2), false), PASS);
        n.left += 1;
        told(n.here, n.moved, n.left);
        // A frame that is cut off anywhere passes.
        let whole = frame(SocketAddr::from(([127, 0, 0, 1], 9)), SocketAddr::from(([127, 0, 0, 1], one.0)), false);
        (14..38).for_each(|len| assert_eq!(deliverer.program.run(&whole[..len]).unwrap(), PASS));
        let mut odd = whole.clone();
        for (at, byte) in [(12, 9), (14, 0x46), (14, 0x55), (20, 0x20), (21, 1), (23, 17)] {
            let was = std::mem::replace(&mut odd[at], byte);
            assert_eq!(deliverer.program.run(&odd).unwrap(), PASS);
            odd[at] = was;
        }
        told(n.here, n.moved, n.left);
    }

    #[test]
    fn frames_to_listeners_are_spread_by_flow() {
        const PASS: u32 = XDP_PASS as u32;
        if !rustix::process::geteuid().is_root() || std::thread::available_parallelism().map_or(1, |n| n.get()) < 2 {
            return testing::skip("needs root and two CPUs");
        }
        let mut set = CpuSet::new();
        set.set(0);
        rustix::thread::sched_setaffinity(None, &set).unwrap();
        let blocks = Blocks::deal((32_768, 60_999), &[0, 1], 0, false);
        let to = [SocketAddr::from((Ipv4Addr::LOCALHOST, 80)), SocketAddr::from((Ipv6Addr::LOCALHOST, 40_000))];
        let flows = |to: SocketAddr| (1..=1000).map(move |port| SocketAddr::new(to.ip(), port));
        let moved = |deliverer: &Deliverer, to: SocketAddr| -> Vec<SocketAddr> {
            let verdict = |from| deliverer.program.run(&frame(from, to, from.port() % 2 == 0)).unwrap();
            flows(to).filter(|from| verdict(*from) != PASS).collect()
        };
        let deliverer = Deliverer::new(&blocks, &[0, 1], 2, true).unwrap();
        for to in to {
            assert_eq!(moved(&deliverer, to).len(), 0, "nobody listens there");
        }
        let before = deliverer.delivered().unwrap();
        for to in to {
            deliverer.listens(to.port()).unwrap();
            let first = moved(&deliverer, to);
            // Standard deviation: 16.
            assert!((400..=600).contains(&first.len()), "{} of 1000", first.len());
            assert_eq!(moved(&deliverer, to), first, "a flow keeps its CPU");
            let other = Deliverer::new(&blocks, &[0, 1], 2, true).unwrap();
            other.listens(to.port()).unwrap();
            assert_ne!(moved(&other, to), first, "the key is drawn");
        }
        let after = deliverer.delivered().unwrap();
        assert_eq!(after.spread_here + after.spread_moved, 4000);
        assert_eq!((after.here, after.moved, after.left), (before.here, before.moved, before.left));
        for (cpus, count) in [(&[0][..], 0), (&[1], 1000), (&[1, 1, 1, 0], 750)] {
            let deliverer = Deliverer::new(&blocks, cpus, 2, true).unwrap();
            deliverer.listens(80).unwrap();
            assert!(moved(&deliverer, to[0]).len().abs_diff(count) < 100, "{cpus:?}");
        }
    }
}

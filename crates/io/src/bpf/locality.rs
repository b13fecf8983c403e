//! Local packets as Fastsocket counts them (4.2.4): segments that a program reads on the CPU on which the kernel's TCP received them.
//!
//! Programs at tracepoints: `tcp/tcp_probe` and `sock/inet_sock_set_state` remember where a segment with data, or one that established
//! the connection (it may bring data, too), was received; `sock/sock_recv_length` looks where it is read. None changes what happens;
//! each costs a map's access, so what is measured meanwhile is not compared with anything else.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;

use super::asm::{Asm, FP, If, Op, Size};
use super::sys::{Map, MapKind, Program};
use crate::capability::Capability;
use crate::error::PortError;
use crate::perf::{Attached, Tracepoint};

/// Sockets whose last segment is remembered.
const SOCKETS: u32 = 65_536;
/// A cache line, so that CPUs do not write to each other's.
const COUNTS: usize = 64;

// Where a line has its numbers: of connections that were accepted, then of those that were opened; each first those that were
// received on the CPU, then others.
const OPENED: i32 = 16;
const ELSEWHERE: i32 = 8;

// Helpers by number (enum bpf_func_id).
const MAP_LOOKUP: i32 = 1;
const MAP_UPDATE: i32 = 2;
const MAP_DELETE: i32 = 3;
const GET_SMP_PROCESSOR_ID: i32 = 8;

/// Connections that are looked at; IPv4.
#[derive(Clone, Copy, Debug)]
pub struct Watched {
    /// The program's address.
    pub address: Ipv4Addr,
    /// Port on which it listens.
    pub listens: u16,
    /// Port to which it connects.
    pub connects_to: Option<u16>,
}

/// Segments that a CPU's processes have read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Of accepted connections: received on the CPU, and on another.
    pub accepted: [u64; 2],
    /// Of opened connections, likewise.
    pub opened: [u64; 2],
}

/// Counts while it lives.
#[derive(Debug)]
pub struct Locality {
    counts: Map,
    cpus: u32,
    _attached: [Attached; 3],
}

impl Locality {
    /// Begins to count, on CPUs 0 to `cpus` - 1. Needs CAP_BPF, CAP_PERFMON, tracefs, and Linux 6.9, whose tracepoints name the socket.
    pub fn watch(watched: Watched, cpus: u32) -> Result<Locality, PortError> {
        Locality::new(watched, cpus).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => PortError::Unsupported {
                feature: "count of local packets (tracepoints inet_sock_set_state, tcp_probe with skaddr, sock_recv_length)",
                hint: "Linux 6.9 and later have it, with CONFIG_BPF_EVENTS",
            },
            _ => PortError::system("counting local packets", error, &[Capability::Bpf, Capability::Perfmon]),
        })
    }

    fn new(watched: Watched, cpus: u32) -> io::Result<Locality> {
        let sockets = Map::new(MapKind::LruHash, "cl_sockets", 8, 8, SOCKETS)?;
        let counts = Map::new(MapKind::Array, "cl_read", 4, COUNTS, cpus)?;
        let attach =
            |at: &Tracepoint, program: Asm| at.attach(&Program::load_tracepoint("cl_local", &program.finish())?);
        let establish = Tracepoint::find("sock/inet_sock_set_state")?;
        let (receive, read) = (Tracepoint::find("tcp/tcp_probe")?, Tracepoint::find("sock/sock_recv_length")?);
        let attached = [
            attach(&establish, established(&establish, watched, &sockets)?)?,
            attach(&receive, received(&receive, watched, &sockets)?)?,
            attach(&read, reading(&read, &sockets, &counts)?)?,
        ];
        Ok(Locality { counts, cpus, _attached: attached })
    }

    /// Segments read so far, by CPU.
    pub fn read(&self) -> io::Result<Vec<Read>> {
        (0..self.cpus)
            .map(|cpu| {
                let line = self.counts.get(&cpu.to_ne_bytes())?.unwrap_or_default();
                let word = |at: i32| {
                    line.get(at as usize..).and_then(|b| b.first_chunk().copied()).map_or(0, u64::from_ne_bytes)
                };
                let pair = |at: i32| [word(at), word(at + ELSEWHERE)];
                Ok(Read { accepted: pair(0), opened: pair(OPENED) })
            })
            .collect()
    }
}

/// Remembers where a connection was established: the segment may have brought data.
fn established(at: &Tracepoint, watched: Watched, sockets: &Map) -> io::Result<Asm> {
    const ESTABLISHED: i32 = 1;
    let mut a = Asm::default();
    a.mov_reg(6, 1);
    a.load(Size::W, 1, 6, at.offset("newstate")?).jump_if(If::Ne, 1, ESTABLISHED, "other");
    a.load(Size::H, 1, 6, at.offset("protocol")?).jump_if(If::Ne, 1, libc::IPPROTO_TCP, "other");
    remember(&mut a, at, at.offset("saddr")?, watched, sockets)?;
    Ok(a)
}

/// Remembers where a segment with data was received.
fn received(at: &Tracepoint, watched: Watched, sockets: &Map) -> io::Result<Asm> {
    // struct sockaddr_in: family, port, address.
    const ADDRESS: i16 = 4;
    let mut a = Asm::default();
    a.mov_reg(6, 1);
    a.load(Size::H, 1, 6, at.offset("data_len")?).jump_if(If::Eq, 1, 0, "other");
    remember(&mut a, at, at.offset("saddr")? + ADDRESS, watched, sockets)?;
    Ok(a)
}

/// The CPU, and the part of a line that the socket is counted in, if it is watched.
fn remember(a: &mut Asm, at: &Tracepoint, address: i16, watched: Watched, sockets: &Map) -> io::Result<()> {
    // On the stack: the socket, then the CPU and the part.
    const SOCKET: i16 = -8;
    const VALUE: i16 = -16;
    a.load(Size::H, 1, 6, at.offset("family")?).jump_if(If::Ne, 1, libc::AF_INET, "other");
    a.mov(2, i32::from_ne_bytes(watched.address.octets())).op(Op::Lsh, 2, 32).op(Op::Rsh, 2, 32);
    a.load(Size::W, 1, 6, address).jump_if_reg(If::Ne, 1, 2, "other");
    // Ports are in the machine's order there.
    a.mov(7, 0).load(Size::H, 1, 6, at.offset("sport")?).jump_if(If::Eq, 1, watched.listens.into(), "ours");
    if let Some(port) = watched.connects_to {
        a.mov(7, OPENED).load(Size::H, 1, 6, at.offset("dport")?).jump_if(If::Eq, 1, port.into(), "ours");
    }
    a.label("other").mov(0, 0).exit();
    a.label("ours").load(Size::Dw, 1, 6, at.offset("skaddr")?).store(Size::Dw, FP, SOCKET, 1);
    a.call(GET_SMP_PROCESSOR_ID).store(Size::W, FP, VALUE, 0).store(Size::W, FP, VALUE + 4, 7);
    a.map(1, sockets.as_fd()).lea(2, FP, SOCKET.into()).lea(3, FP, VALUE.into()).mov(4, 0).call(MAP_UPDATE);
    a.mov(0, 0).exit();
    Ok(())
}

/// Counts a segment that is read, by whether this is the CPU that received it.
fn reading(at: &Tracepoint, sockets: &Map, counts: &Map) -> io::Result<Asm> {
    const SOCKET: i16 = -8;
    const CPU: i16 = -12;
    let mut a = Asm::default();
    a.load(Size::Dw, 2, 1, at.offset("sk")?).store(Size::Dw, FP, SOCKET, 2);
    // Bytes read; an error is negative: its sign is bit 31.
    a.load(Size::W, 2, 1, at.offset("ret")?).jump_if(If::Eq, 2, 0, "other").op(Op::Rsh, 2, 31).jump_if(
        If::Ne,
        2,
        0,
        "other",
    );
    a.map(1, sockets.as_fd()).lea(2, FP, SOCKET.into()).call(MAP_LOOKUP).jump_if(If::Eq, 0, 0, "other");
    a.load(Size::W, 7, 0, 0).load(Size::W, 8, 0, 4);
    a.map(1, sockets.as_fd()).lea(2, FP, SOCKET.into()).call(MAP_DELETE);
    a.call(GET_SMP_PROCESSOR_ID).store(Size::W, FP, CPU, 0);
    a.jump_if_reg(If::Eq, 0, 7, "here").op(Op::Add, 8, ELSEWHERE).label("here");
    // The verifier is to see that the number stays within the line.
    a.op(Op::And, 8, OPENED | ELSEWHERE);
    a.map(1, counts.as_fd()).lea(2, FP, CPU.into()).call(MAP_LOOKUP).jump_if(If::Eq, 0, 0, "other");
    a.op_reg(Op::Add, 0, 8).load(Size::Dw, 1, 0, 0).op(Op::Add, 1, 1).store(Size::Dw, 0, 0, 1);
    a.label("other").mov(0, 0).exit();
    Ok(a)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    fn pin(cpu: usize) {
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        rustix::thread::sched_setaffinity(None, &set).expect("a CPU of the machine");
    }

    /// Over loopback a segment is received on the CPU that sends it: so a reader on the sender's CPU reads locally, and one on another
    /// does not.
    #[test]
    fn segments_read_on_the_cpu_that_received_them_are_local() {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        if cpus < 2 {
            return testing::skip("needs two CPUs");
        }
        let address = Ipv4Addr::new(127, 0, 87, 3);
        let listener = TcpListener::bind((address, 0)).expect("a port");
        let local = listener.local_addr().expect("it is bound");
        let watched = Watched { address, listens: local.port(), connects_to: None };
        let locality = match Locality::watch(watched, cpus as u32) {
            Ok(locality) => locality,
            Err(error) => return testing::skip(format!("needs root and tracepoints: {error}")),
        };
        for (sender, times) in [(0, 3), (1, 2)] {
            for _ in 0..times {
                pin(0);
                let mut client = TcpStream::connect(local).expect("somebody listens");
                let (mut accepted, _) = listener.accept().expect("a connection");
                pin(sender);
                client.write_all(b"question").expect("it is connected");
                pin(0);
                accepted.read_exact(&mut [0; 8]).expect("the question");
                // An answer is read by the other end, which is not looked at.
                accepted.write_all(b"answer").expect("it is connected");
                client.read_exact(&mut [0; 6]).expect("the answer");
            }
        }
        let read = locality.read().expect("counts");
        assert_eq!(read[0], Read { accepted: [3, 2], opened: [0, 0] });
        assert_eq!(read[1], Read::default());
        // Connections that were opened: the same, seen from the client.
        let from = Ipv4Addr::new(127, 0, 87, 4);
        let watched = Watched { address: from, listens: 1, connects_to: Some(local.port()) };
        let locality = Locality::watch(watched, cpus as u32).expect("as before");
        let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None)
            .expect("a socket");
        rustix::net::bind(&socket, &std::net::SocketAddr::from((from, 0))).expect("loopback has it");
        rustix::net::connect(&socket, &local).expect("somebody listens");
        let (mut accepted, _) = listener.accept().expect("a connection");
        pin(1);
        accepted.write_all(b"greeting").expect("it is connected");
        pin(0);
        let mut client = TcpStream::from(socket);
        client.read_exact(&mut [0; 8]).expect("the greeting");
        assert_eq!(locality.read().expect("counts")[0], Read { accepted: [0, 0], opened: [0, 1] });
    }
}

//! The Linux kernel's TCP through epoll, as an expert would use it and as it is mostly used; the other side of every
//! comparison.
//!
//! The expert: one listener a core (SO_REUSEPORT), threads pinned, accept4 once the request is there (TCP_DEFER_ACCEPT), read right
//! after accept, one epoll_ctl a connection and only when it must wait, edge-triggered. The answer is sent with MSG_MORE
//! and the socket closed, so that FIN rides on the data. The client binds 127.0.x.y addresses with IP_BIND_ADDRESS_NO_PORT,
//! so that ports are chosen per address at connect and TIME_WAIT never runs them out, and lets the handshake's last ACK
//! ride on the request: seven segments a connection.

use super::{LISTENER, Net, Ready};
use crate::sys::Stop;
use corelane::LocalConnections;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

const BACKLOG: i32 = 65_535;
const EVENTS: usize = 512;
/// The key of what tells to stop; listeners have those before it.
const STOP: u64 = u64::MAX;

/// How a server takes connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// As mostly written: accepted at once, read when epoll says so, FIN after the data.
    pub plain: bool,
    /// Other threads wait on the same listener.
    pub shared: bool,
    /// Connections are reset, not read: closing is enough, and accept waits for no request.
    pub reset: bool,
}

/// Where a server's connections come from.
enum Listener {
    Socket(OwnedFd),
    /// From this machine to the ports of an engine's lanes.
    Local(LocalConnections),
}

/// The kernel's TCP, seen from one thread.
pub struct Kernel {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    listeners: Vec<Listener>,
    manner: Manner,
    target: Option<SocketAddr>,
    /// Source addresses and which is next.
    sources: Vec<IpAddr>,
    next: usize,
}

impl Kernel {
    /// Takes connections from a listener.
    pub fn server(listener: OwnedFd, manner: Manner) -> io::Result<Kernel> {
        let mut kernel = Kernel { manner, ..Kernel::new()? };
        // An edge that woke one of several threads would not wake another for what the first leaves.
        let flags =
            if manner.shared { EventFlags::IN | EventFlags::EXCLUSIVE } else { EventFlags::IN | EventFlags::ET };
        epoll::add(&kernel.epoll, &listener, EventData::new_u64(LISTENER), flags)?;
        kernel.listeners.push(Listener::Socket(listener));
        Ok(kernel)
    }

    /// Takes connections from this machine to the ports of an engine's lanes, and from listeners beside them. A wait ends early with
    /// the stop: the lanes' ends do not wait for it.
    pub fn local(connections: LocalConnections, listeners: Vec<OwnedFd>, stop: &Stop) -> io::Result<Kernel> {
        let mut kernel = Kernel::new()?;
        epoll::add(&kernel.epoll, stop.fd()?, EventData::new_u64(STOP), EventFlags::IN | EventFlags::ET)?;
        epoll::add(&kernel.epoll, &connections, EventData::new_u64(LISTENER), EventFlags::IN)?;
        kernel.listeners.push(Listener::Local(connections));
        for (listener, key) in listeners.into_iter().zip(LISTENER + 1..) {
            epoll::add(&kernel.epoll, &listener, EventData::new_u64(key), EventFlags::IN | EventFlags::ET)?;
            kernel.listeners.push(Listener::Socket(listener));
        }
        Ok(kernel)
    }

    /// Connects to an address, from each of `sources` in turn (from what the kernel picks when empty).
    pub fn client(target: SocketAddr, sources: Vec<IpAddr>) -> io::Result<Kernel> {
        Ok(Kernel { target: Some(target), sources, ..Kernel::new()? })
    }

    /// Loopback source addresses for a client thread: distinct between threads.
    pub fn loopback_sources(thread: usize, count: usize) -> Vec<IpAddr> {
        let third = (1 + thread % 250) as u8;
        (0..count).map(|at| IpAddr::V4(Ipv4Addr::new(127, 1 + (at / 250) as u8, third, 1 + (at % 250) as u8))).collect()
    }

    fn new() -> io::Result<Kernel> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let events = Vec::with_capacity(EVENTS);
        let (listeners, manner) = (Vec::new(), Manner::default());
        Ok(Kernel { epoll, events, listeners, manner, target: None, sources: Vec::new(), next: 0 })
    }
}

/// Listens on an address, beside others that do unless one is shared; the address says which port the kernel chose for
/// port 0.
pub fn listen(address: SocketAddr, manner: Manner) -> io::Result<(OwnedFd, SocketAddr)> {
    let listener = socket(address)?;
    sockopt::set_socket_reuseaddr(&listener, true)?;
    sockopt::set_socket_reuseport(&listener, !manner.shared)?;
    if !manner.plain && !manner.reset {
        // A connection is worth a wake-up once its request is there.
        set(&listener, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 1)?;
    }
    if manner.reset {
        // Accepted sockets inherit it: closing one is a RST.
        sockopt::set_socket_linger(&listener, Some(Duration::ZERO))?;
    }
    net::bind(&listener, &address)?;
    net::listen(&listener, BACKLOG)?;
    let address = SocketAddr::try_from(net::getsockname(&listener)?)?;
    Ok((listener, address))
}

fn socket(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { net::AddressFamily::INET } else { net::AddressFamily::INET6 };
    net::socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)
}

fn set(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: both options set here take an int; pointer and size describe a live one.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, std::ptr::from_ref(&value).cast(), size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Net for Kernel {
    type Stream = OwnedFd;

    fn reads_at_once(&self) -> bool {
        !self.manner.plain
    }

    fn accept(&mut self, listener: usize) -> io::Result<Option<OwnedFd>> {
        let listener = match self.listeners.get(listener) {
            Some(Listener::Socket(listener)) => listener,
            Some(Listener::Local(connections)) => return connections.accept(),
            None => return Ok(None),
        };
        loop {
            match net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(stream) => return Ok(Some(stream)),
                // A connection that died in the queue is not the listener's error.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn stop_listening(&mut self) {
        self.listeners.clear();
    }

    fn connect(&mut self, key: u64) -> io::Result<OwnedFd> {
        let target = self.target.ok_or(io::ErrorKind::AddrNotAvailable)?;
        let stream = socket(target)?;
        if let Some(source) = self.sources.get(self.next) {
            // The port is left to connect, which may then use one that serves another peer.
            set(&stream, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)?;
            net::bind(&stream, &SocketAddr::new(*source, 0))?;
            self.next = (self.next + 1) % self.sources.len();
        }
        // The acknowledgment of SYN/ACK rides on the request.
        sockopt::set_tcp_quickack(&stream, false)?;
        match net::connect(&stream, &target) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        self.watch(&stream, key)?;
        Ok(stream)
    }

    fn connected(&mut self, stream: &OwnedFd) -> io::Result<()> {
        Ok(sockopt::socket_error(stream)??)
    }

    fn watch(&mut self, stream: &OwnedFd, key: u64) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.epoll, stream, EventData::new_u64(key), flags)?)
    }

    fn read(&mut self, stream: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(net::recv(stream, buffer, RecvFlags::empty())?.0)
    }

    fn write(&mut self, stream: &OwnedFd, data: &[u8], more: bool) -> io::Result<usize> {
        let flags =
            if more && !self.manner.plain { SendFlags::NOSIGNAL | SendFlags::MORE } else { SendFlags::NOSIGNAL };
        Ok(net::send(stream, data, flags)?)
    }

    fn shutdown(&mut self, stream: &OwnedFd) -> io::Result<()> {
        Ok(net::shutdown(stream, net::Shutdown::Write)?)
    }

    fn close(&mut self, stream: OwnedFd) {
        drop(stream);
    }

    fn abort(&mut self, stream: OwnedFd) {
        if !self.manner.reset {
            // A refusal leaves an orderly close, which ends the connection as well.
            let _ = sockopt::set_socket_linger(stream.as_fd(), Some(Duration::ZERO));
        }
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = timeout.map(|time| rustix::time::Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        });
        self.events.clear();
        match epoll::wait(&self.epoll, spare(&mut self.events), timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        for event in self.events.iter().filter(|event| event.data.u64() != STOP) {
            let flags = event.flags;
            let ended = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
            ready.push(Ready {
                key: event.data.u64(),
                read: ended || flags.contains(EventFlags::IN),
                write: ended || flags.contains(EventFlags::OUT),
                ended,
            });
        }
        Ok(())
    }
}

fn spare(events: &mut Vec<epoll::Event>) -> rustix::buffer::SpareCapacity<'_, epoll::Event> {
    rustix::buffer::spare_capacity(events)
}

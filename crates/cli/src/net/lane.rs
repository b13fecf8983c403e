//! A corelane lane as a network.

use super::{LISTENER, Net, Ready};
use corelane::{ConnectOptions, Events, Interest, Lane, ListenOptions, Poller, TcpListener, TcpStream, Trigger};
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::time::Duration;

const BACKLOG: u32 = 65_535;
const EVENTS: usize = 512;

/// A lane, seen from the thread that took it.
pub struct OnLane {
    lane: Lane,
    poller: Poller,
    events: Events,
    listeners: Vec<TcpListener>,
    target: Option<SocketAddr>,
    /// Source addresses and which is next.
    sources: Vec<IpAddr>,
    next: usize,
}

impl OnLane {
    /// A lane that neither listens nor connects yet.
    pub fn new(lane: Lane) -> io::Result<OnLane> {
        let poller = lane.poller()?;
        let events = Events::with_capacity(EVENTS);
        Ok(OnLane { lane, poller, events, listeners: Vec::new(), target: None, sources: Vec::new(), next: 0 })
    }

    /// Listens on one more address; an unspecified IPv6 address takes IPv4 as well.
    pub fn listen(&mut self, address: SocketAddr) -> io::Result<()> {
        let options = ListenOptions { backlog: BACKLOG, ..ListenOptions::default() };
        let mut listener = self.lane.listen(address, options)?;
        listener.set_nonblocking(true);
        let key = LISTENER + self.listeners.len() as u64;
        self.poller.add(&listener, key, Interest::READ, Trigger::Edge)?;
        self.listeners.push(listener);
        Ok(())
    }

    /// Connects to `target` from now on, from each of `sources` in turn (from what the lane picks when empty).
    pub fn aim(&mut self, target: SocketAddr, sources: Vec<IpAddr>) {
        self.target = Some(target);
        self.sources = sources;
    }

    /// The lane itself.
    pub fn lane(&self) -> &Lane {
        &self.lane
    }
}

impl Net for OnLane {
    type Stream = TcpStream;

    fn accept(&mut self, listener: usize) -> io::Result<Option<TcpStream>> {
        let Some(listener) = self.listeners.get(listener) else { return Ok(None) };
        match listener.accept() {
            Ok((stream, _)) => Ok(Some(stream)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn give_ports_back(&mut self) {
        self.listeners.iter_mut().for_each(TcpListener::give_port_back);
    }

    fn stop_listening(&mut self) {
        self.listeners.clear();
    }

    fn connect(&mut self, key: u64) -> io::Result<TcpStream> {
        let target = self.target.ok_or(io::ErrorKind::AddrNotAvailable)?;
        let mut options = ConnectOptions::default();
        if let Some(source) = self.sources.get(self.next) {
            options.bind = Some(SocketAddr::new(*source, 0));
            self.next = (self.next + 1) % self.sources.len();
        }
        let stream = self.lane.connect_nonblocking(target, options)?;
        self.watch(&stream, key)?;
        Ok(stream)
    }

    fn connected(&mut self, stream: &TcpStream) -> io::Result<()> {
        stream.take_error()?.map_or(Ok(()), Err)
    }

    fn watch(&mut self, stream: &TcpStream, key: u64) -> io::Result<()> {
        self.poller.add(stream, key, Interest::BOTH, Trigger::Edge)
    }

    fn read(&mut self, stream: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
        stream.read(buffer)
    }

    fn write(&mut self, stream: &TcpStream, data: &[u8], more: bool) -> io::Result<usize> {
        if more { stream.write_more(data) } else { stream.write(data) }
    }

    fn shutdown(&mut self, stream: &TcpStream) -> io::Result<()> {
        stream.shutdown(Shutdown::Write)
    }

    fn close(&mut self, stream: TcpStream) {
        drop(stream);
    }

    fn abort(&mut self, stream: TcpStream) {
        // A connection that is gone already needs no reset.
        let _ = stream.abort();
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()> {
        self.poller.wait(&mut self.events, timeout)?;
        ready.extend(self.events.iter().map(|event| Ready {
            key: event.key,
            read: event.is_readable() || event.is_read_closed(),
            write: event.is_writable(),
            ended: event.is_read_closed() || event.is_error(),
        }));
        Ok(())
    }
}

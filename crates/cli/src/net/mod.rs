//! What the server and the load generator need of a network, so that one copy of each runs on lanes and on the kernel.
//!
//! Both engines are used the same way: non-blocking, edge-triggered, every operation tried before waiting for it.

pub mod kernel;
pub mod lane;
pub mod mtcp;
pub mod uring;

use std::io;
use std::time::Duration;

/// What became possible on a stream or listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The key it was watched under.
    pub key: u64,
    /// Input, or its end, may be there.
    pub read: bool,
    /// There may be room for output, or a connect finished.
    pub write: bool,
    /// The peer ended its side or an error waits: reading must go on to the end, whatever a short read suggests.
    pub ended: bool,
}

/// A network, seen from one thread.
pub trait Net {
    /// A connection.
    type Stream;

    /// Whether a request may be there when its connection is accepted, so that reading at once is worth a try.
    fn reads_at_once(&self) -> bool {
        true
    }
    /// Takes a connection from a listener, if one waits.
    fn accept(&mut self, listener: usize) -> io::Result<Option<Self::Stream>>;
    /// Gives ports that are shared with the kernel back to it: connections that begin from now on are not ours. Those that have begun may come.
    fn give_ports_back(&mut self) {}
    /// Stops listening; connections not yet accepted are turned away.
    fn stop_listening(&mut self);
    /// Starts a connection to the target and watches it under `key`.
    fn connect(&mut self, key: u64) -> io::Result<Self::Stream>;
    /// How a connect ended, asked once it is writable.
    fn connected(&mut self, stream: &Self::Stream) -> io::Result<()>;
    /// Watches for input and room from now on, edge-triggered; what is there already is reported too.
    fn watch(&mut self, stream: &Self::Stream, key: u64) -> io::Result<()>;
    /// Reads what is there; 0 is the end.
    fn read(&mut self, stream: &Self::Stream, buffer: &mut [u8]) -> io::Result<usize>;
    /// Writes what fits. `more`: other bytes or the end follow at once.
    fn write(&mut self, stream: &Self::Stream, data: &[u8], more: bool) -> io::Result<usize>;
    /// Ends the sending side.
    fn shutdown(&mut self, stream: &Self::Stream) -> io::Result<()>;
    /// Closes in order: what was written still goes out, FIN with the last of it.
    fn close(&mut self, stream: Self::Stream);
    /// Closes by RST.
    fn abort(&mut self, stream: Self::Stream);
    /// Waits until something is possible or the time is over. Listener `n` reports under `LISTENER + n`.
    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()>;
}

/// Keys from here on belong to listeners.
pub const LISTENER: u64 = 1 << 63;

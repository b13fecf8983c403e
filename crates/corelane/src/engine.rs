//! Engines and the ends of their lanes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use channel::{Channel, Options};
use runtime::{App, AppHandle, Config, Door, Error, LaneStats, LocalConnections, MemPort, Snapshot};

use wire::Ports;

use crate::lane::Lane;

/// Lanes over opened devices.
pub struct Engine(runtime::Engine);

/// An application's end of a lane, on its way to the thread that will use it.
pub struct LaneHandle(AppHandle);

impl LaneHandle {
    /// Takes the lane on this thread, pinned to the lane's core where the configuration names one.
    pub fn attach(self) -> io::Result<Lane> {
        let app = self.0.attach().map_err(io::Error::other)?;
        Ok(Lane::new(app))
    }

    /// Takes the lane on this thread bare, for another interface over it, pinned likewise.
    pub fn app(self) -> io::Result<App> {
        self.0.attach().map_err(io::Error::other)
    }

    /// Takes the lane on this thread as a completion channel, pinned likewise.
    pub fn channel(self, options: Options) -> io::Result<Channel> {
        let app = self.0.attach().map_err(io::Error::other)?;
        Channel::lane(app, options)
    }
}

impl Engine {
    /// Opens the configured devices and starts their lanes.
    pub fn start(config: &Config) -> Result<Engine, Error> {
        runtime::Engine::start(config).map(Engine)
    }

    /// Two engines at the two ends of a wire in memory; each configuration names one `mem:` port.
    pub fn memory_pair(a: &Config, b: &Config) -> Result<(Engine, Engine), Error> {
        let (a, b) = runtime::Engine::memory_pair(a, b)?;
        Ok((Engine(a), Engine(b)))
    }

    /// An engine at one end of a wire in memory, and the other end as frames, a port for each lane: for peers that are no
    /// stacks. Checksums are neither made nor looked at.
    pub fn memory_end(config: &Config) -> Result<(Engine, Vec<MemPort>), Error> {
        let (engine, ports) = runtime::Engine::memory_end(config)?;
        Ok((Engine(engine), ports))
    }

    /// How many lanes there are.
    pub fn lanes(&self) -> usize {
        self.0.lanes()
    }

    /// Local ports of connections that are opened: so many can there be from one of our addresses to one remote end.
    pub fn local_ports(&self) -> Ports {
        self.0.local_ports()
    }

    /// The application's end of lane `index`; each can be taken once. Frames of one lane may arrive on another's queue, so take
    /// them all; one that has nothing to do may be dropped.
    pub fn take_lane(&mut self, index: usize) -> Option<LaneHandle> {
        self.0.take_app(index).map(LaneHandle)
    }

    /// Where clients in other processes come to lane `index`.
    pub fn door(&self, index: usize) -> Option<Door> {
        self.0.door(index)
    }

    /// What a user should know about the devices and the kernel: one line each.
    pub fn warnings(&self) -> &[String] {
        self.0.warnings()
    }

    /// Connections from programs on this machine to the ports that lanes listen on, for one taker; none where no interface is
    /// shared with the kernel (`xdp`). They come by `lo`, which no lane has, so they are sockets of the kernel's TCP. Those
    /// that nobody takes are reset.
    pub fn local_connections(&self) -> Option<LocalConnections> {
        self.0.local_connections()
    }

    /// Whether something can be reached here: a device has an address and a carrier, or is one that looks for its own address.
    pub fn is_reachable(&self) -> bool {
        self.0.is_reachable()
    }

    /// This engine is about to end: from now on another process of this user, which waits for its interfaces (`corelane serve --wait`), may
    /// hold the ports that are listened on here, so that the kernel refuses no connection between the two.
    pub fn let_successor_in(&self) {
        self.0.let_successor_in();
    }

    /// Calls `f` with a line that says why, once the last device is gone: nothing comes or goes any more. On a thread of the
    /// engine, which waits for it.
    pub fn when_devices_are_gone(&self, f: impl FnOnce(&str) + Send + 'static) {
        self.0.when_devices_are_gone(f);
    }

    /// Each lane's own counters.
    pub fn stats(&self) -> Vec<Arc<LaneStats>> {
        self.0.stats()
    }

    /// Everything the lanes counted; a lane whose application does not call in within `limit` is missing.
    pub fn snapshots(&self, limit: Duration) -> Vec<Snapshot> {
        self.0.snapshots(limit)
    }

    /// Ends the stack's threads (`paired`, `guarded`): all that is open on their lanes is closed, and the peers may acknowledge it.
    /// Once two seconds have passed in which nobody has acknowledged anything, the rest is reset; at the latest after two seconds, and
    /// 0.2 ms for each connection and a second for each MB that was open. Calls that wait for such a lane then fail (`NetworkDown`). A lane that its
    /// application runs (`inline`) ends in the same way when the last handle of it is dropped; where there are several, the
    /// engine runs it on until here, since frames of the others may arrive on its queue.
    ///
    /// A process that ends by `std::process::exit`, or by returning from `main`, does the same for the engines that it still has;
    /// with `inline` that needs another thread which waits in a call of its lane, since nobody else can run that. `_exit`, a
    /// panic that aborts and a signal that nobody handles end the process without a word to the peers.
    pub fn shutdown(self) {
        self.0.shutdown();
    }
}

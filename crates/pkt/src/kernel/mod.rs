//! The kernel as the system under test: real time, real calls, a TUN device in a network namespace of its own.
//!
//! Nothing here waits in a call: a script's blocking call is tried again and again, as against our stack, while packets
//! come and time passes.

mod info;
mod network;
mod options;
mod raw;
mod sockets;
mod sysctl;

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use socket::{Errno, SockId};
use tcp::TcpInfo;
use wire::Instant;

use crate::system::{Calls, System};
use network::Network;
use sockets::KernelSockets;

/// Where the clock starts: our machine's starts there too.
const START: Instant = Instant::from_micros(1_000_000);
/// How often somebody looks whether a call can go on.
const TICK: u64 = 200;

/// The kernel, its clock and its link.
pub struct Kernel {
    network: Network,
    sockets: KernelSockets,
    /// Real time after which a script has failed: from then on the clock jumps wherever it is sent.
    limit: Duration,
    /// How far it has jumped.
    jumped: Duration,
}

impl Kernel {
    /// Moves the calling thread to a network of its own, where the kernel has `local` and these parameters; needs root's
    /// privileges. A script may take `limit`.
    pub fn new(
        local: IpAddr,
        mtu: u16,
        tcp: &tcp::Config,
        cookies: stack::SynCookies,
        limit: Duration,
    ) -> io::Result<Kernel> {
        let network = Network::new(local, mtu)?;
        sysctl::set(tcp, cookies);
        // Times are the script's to check: other programs should not move them.
        raw::hurry();
        Ok(Kernel { network, sockets: KernelSockets::new(tcp.congestion.name()), limit, jumped: Duration::ZERO })
    }
}

impl System for Kernel {
    fn now(&self) -> Instant {
        START + (self.network.now() + self.jumped)
    }

    fn next_deadline(&self) -> Option<Instant> {
        // Nobody knows the kernel's timers.
        Some(self.now().plus_micros(TICK))
    }

    fn advance_to(&mut self, t: Instant) {
        if self.network.now() > self.limit {
            self.jumped += t - self.now();
        }
        let time = (t - START).saturating_sub(self.jumped);
        self.network.wait_until(time);
    }

    fn inject(&mut self, packet: &[u8]) {
        // A packet that the device does not take is lost, as on any link.
        let _ = self.network.inject(packet);
    }

    fn pop(&mut self) -> Option<(Instant, Vec<u8>)> {
        self.network.pop().map(|(time, packet)| (START + (time + self.jumped), packet))
    }

    fn settle(&mut self) {
        self.network.collect();
    }

    fn sockets(&mut self) -> &mut dyn Calls {
        &mut self.sockets
    }

    fn info(&mut self, id: SockId) -> Result<TcpInfo, Errno> {
        self.sockets.info(id)
    }

    // The shell has set them.
    fn set_tcp(&mut self, _: &tcp::Config, _: stack::SynCookies) -> bool {
        true
    }

    fn command(&mut self, line: &str) -> Option<Result<(), String>> {
        Some(network::shell(line).map_err(|e| e.to_string()))
    }
}

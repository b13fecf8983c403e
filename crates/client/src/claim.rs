//! Consent to use a port: on a shared interface the kernel must know that it is ours.

use std::io;
use std::net::SocketAddr;

/// Held while a listener is open; dropping it gives the port back.
pub struct Claim(#[allow(dead_code)] Box<dyn std::any::Any>);

impl Claim {
    /// What is held.
    pub fn new(held: impl std::any::Any) -> Claim {
        Claim(Box::new(held))
    }
}

/// Who decides about ports on shared interfaces.
pub trait Gate: Send + Sync {
    /// Takes a port from the kernel for a listener.
    fn listen(&self, addr: SocketAddr, v6_only: bool) -> io::Result<Claim>;

    /// A port for a listener that asks for any: nobody on the machine has it.
    fn free_port(&self) -> io::Result<u16>;

    /// Keeps a port from the kernel, for a connection that is to leave from it.
    fn opens_from(&self, port: u16) -> io::Result<()>;
}

//! Consent to use a port: on a shared interface the kernel must know that it is ours.

use std::io;
use std::net::SocketAddr;

use wire::Ports;

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

    /// The ports that active opens may leave from.
    fn active(&self) -> Ports;

    /// Takes them from the kernel, before the first connection is opened.
    fn opens(&self) -> io::Result<()>;
}

//! What messages name.

use wire::Addr;

/// A connection of one stack, a dense index. It stays the application's until it sends [`Job::Close`](crate::Job::Close) or
/// [`Job::Abort`](crate::Job::Abort); only then may the stack give the number to another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u32);

/// A listener of one stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u32);

/// The application's own name for a request until the answer carries the stack's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u32);

/// An address and a port. Port 0 and an unspecified address mean "any".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The IP address; IPv4 in mapped form.
    pub addr: Addr,
    /// The port, host byte order.
    pub port: u16,
}

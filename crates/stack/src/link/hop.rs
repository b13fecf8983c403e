//! What stands for a connection's next hop where it is no neighbour's index.

/// No neighbour was looked up yet.
pub(crate) const NO_NEIGHBOR: u32 = u32::MAX;
/// No route of the connection's interface covers its peer: the next hop is where the handshake came from.
pub(crate) const HANDSHAKE: u32 = u32::MAX - 1;
/// There is no next hop.
pub(crate) const NO_ROUTE: u32 = u32::MAX - 2;

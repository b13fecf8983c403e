//! What one connection does on the wire, by the RFCs: a [`tcp::Tcb`] alone under a virtual clock, every segment compared in
//! full. `docs/conformance.md` says which requirement each test shows.

mod buffers;
mod close;
mod congestion;
mod cookie;
mod cubic;
mod delack;
mod ecn;
mod handshake;
mod hostile;
mod icmp;
mod info;
mod keepalive;
mod knobs;
mod nagle;
mod options;
mod parked;
mod peer;
mod probes;
mod push;
mod rack;
mod recovery;
mod reset;
mod rto;
mod sack;
mod sequence;
mod shrink;
mod straight;
mod timestamps;
mod undo;
mod window;

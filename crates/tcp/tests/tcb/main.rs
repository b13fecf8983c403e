//! What one connection does on the wire, by the RFCs: a [`tcp::Tcb`] alone under a virtual clock, every segment compared in
//! full. `docs/conformance.md` says which requirement each test shows.

mod handshake;
mod peer;
mod reset;
mod sequence;

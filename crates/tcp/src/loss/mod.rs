//! Loss: what is outstanding ([`scoreboard`], its records in [`sent`]), what of it is lost ([`rack`], [`probe`]) or may have been
//! refused ([`refused`]), and what is done about it ([`recovery`], [`undo`]).
//!
//! These are parts of a control block, and know nothing of it; `ack.rs`, `sack.rs` and `alert.rs` join them.

pub(crate) mod probe;
pub(crate) mod rack;
pub(crate) mod recovery;
pub(crate) mod refused;
pub(crate) mod round;
pub(crate) mod scoreboard;
pub(crate) mod sent;
mod undo;

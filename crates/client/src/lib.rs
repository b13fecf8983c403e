//! An application's end of a lane: its sockets, and how its calls wait; written once for every API.
//!
//! [`App`] has what every API needs: calls that wait, with timeouts and signals; listening and connecting beside the kernel; when what
//! was asked for goes out; the orderly end. *How* it waits is behind one small trait, [`Wait`]: the lane's turns are this thread's
//! (`inline`), another thread's (`paired`), either's (`guarded`), or another process's ([`Attached`]).

mod app;
mod attached;
mod calls;
mod claim;
mod clock;
mod pass;
mod patience;
mod stats;
mod wait;

pub use app::{App, Facts, Waiting, Waker};
pub use attached::{Attached, Join};
pub use calls::Transfer;
pub use claim::{Claim, Gate};
pub use clock::Clock;
pub use pass::Welcome;
pub use patience::{Patience, Then};
pub use stats::{LaneStats, Snapshot, add};
pub use wait::{Interrupts, Slept, Wait, doze};

//! A whole run, drawn from a seed: two hosts, the paths between them and what becomes of these, and who says what.

use core::time::Duration;

use io::impair::{Impairment, Random};
use protocol::ConnOption;

use crate::apps::App;
use crate::draw;
use crate::host::HostConfig;

/// From some time on a path behaves otherwise.
pub struct Change {
    /// When, from the start.
    pub at: Duration,
    /// Host b's frames suffer it, or host a's.
    pub from_b: bool,
    /// What.
    pub to: Impairment,
}

/// A connection to be.
pub struct Session {
    /// What it is, for messages.
    pub name: &'static str,
    /// When it is opened, from the start.
    pub start: Duration,
    /// Host b opens it, or host a.
    pub from_b: bool,
    /// An end may leave without ceremony, so that the other meets a reset.
    pub rude: bool,
    /// Options of the end that connects and of the one that accepts.
    pub options: [Vec<(ConnOption, u32)>; 2],
    /// Draws its bytes.
    pub seed: u64,
}

/// A whole run.
pub struct Plan {
    /// Draws the paths' fate.
    pub seed: u64,
    /// Host a.
    pub a: HostConfig,
    /// Host b.
    pub b: HostConfig,
    /// What a's frames suffer at first.
    pub a_to_b: Impairment,
    /// What b's frames suffer at first.
    pub b_to_a: Impairment,
    /// What becomes of them, in the order of time.
    pub changes: Vec<Change>,
    /// Connections, with the applications that connect and accept.
    pub sessions: Vec<(Session, [Box<dyn App>; 2])>,
    /// Over IPv6 or IPv4.
    pub v6: bool,
    /// The hosts know each other's hardware addresses.
    pub acquainted: bool,
    /// The path is cut for so long that connections may give up.
    pub cut: bool,
    /// Connections, ports or patience may not do for all: opens may be refused, and any end is allowed.
    pub scarce: bool,
}

impl Plan {
    /// The plan of `seed`.
    pub fn draw(seed: u64) -> Plan {
        let mut r = Random::new(seed ^ 0x5eed);
        let v6 = r.chance(0.5);
        let paths = draw::paths(&mut r, v6);
        let (a, b) = draw::hosts(&mut r, paths.cut);
        let sessions = draw::sessions(&mut r, seed);
        Plan {
            seed,
            a,
            b,
            a_to_b: paths.a_to_b,
            b_to_a: paths.b_to_a,
            changes: paths.changes,
            sessions,
            v6,
            acquainted: r.chance(0.5),
            cut: paths.cut,
            scarce: false,
        }
    }
}

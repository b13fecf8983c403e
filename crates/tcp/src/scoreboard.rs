//! The scoreboard: what was sent and is not acknowledged, and how many segments of it were SACKed, judged lost and sent again
//! (RFC 6675 4).

use crate::sent::SentList;

#[derive(Debug)]
pub(crate) struct Scoreboard {
    pub records: SentList,
    /// Segments sent and not acknowledged cumulatively; of these those SACKed, judged lost, and sent again.
    pub packets_out: u32,
    pub sacked_out: u32,
    pub lost_out: u32,
    pub retrans_out: u32,
}

impl Scoreboard {
    #[inline(always)]
    pub fn new() -> Scoreboard {
        Scoreboard { records: SentList::new(), packets_out: 0, sacked_out: 0, lost_out: 0, retrans_out: 0 }
    }
}

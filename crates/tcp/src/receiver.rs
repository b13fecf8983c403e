//! The receive half of a control block: what has come and the application has not read, and how much more may come.

use mem::Chain;
use wire::{Instant, SeqNum};

use crate::reassembly::Reassembly;
use crate::window::Autotune;
use crate::{Config, Open};

#[derive(Debug)]
pub(crate) struct Receiver {
    /// In order, not yet handed to the application.
    pub queue: Chain,
    /// In-order bytes that the application has not reported as read.
    pub occupied: u32,
    /// SO_RCVBUF.
    pub buffer: u32,
    /// When data arrived last.
    pub data_at: Instant,
    /// The longest segment that came: what the peer's SMSS is taken for.
    pub mss: u16,
    /// The MSS that our SYN offers.
    pub mss_clamp: u16,
    pub quick_acks: u8,
    /// IRS.
    pub irs: SeqNum,
    /// The timestamp that the segment being worked on echoes, in our clock, ms.
    pub echo: Option<u32>,
    pub ooo: Option<Box<Reassembly>>,
    /// What came twice and has not been reported (RFC 2883).
    pub dsack: Option<(SeqNum, SeqNum)>,
    pub tune: Autotune,
}

impl Receiver {
    #[inline(always)]
    pub fn new(open: &Open, config: &Config) -> Receiver {
        Receiver {
            queue: Chain::default(),
            occupied: 0,
            buffer: open.buffer(config),
            data_at: Instant::ZERO,
            mss: open.mss.min(536),
            mss_clamp: open.mss,
            quick_acks: 0,
            irs: SeqNum(0),
            echo: None,
            ooo: None,
            dsack: None,
            tune: Autotune::default(),
        }
    }
}

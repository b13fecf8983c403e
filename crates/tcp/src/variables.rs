//! The variables that every segment is compared with and moves (RFC 9293 3.3.1), and what the handshake agreed on. Together with
//! the state and the flags they are the first cache line of a control block.

use wire::SeqNum;

use crate::{Config, Open};

/// Receive sequence variables.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rcv {
    /// RCV.NXT.
    pub nxt: SeqNum,
    /// RCV.NXT + RCV.WND as it was offered last; never moves left (RFC 9293 3.8.6, MUST "do not shrink").
    pub adv: SeqNum,
    /// Last.ACK.sent (RFC 7323 4.3).
    pub last_ack_sent: SeqNum,
    /// TS.Recent (RFC 7323 4.3), and when it was taken, s.
    pub ts_recent: u32,
    pub ts_recent_age: u32,
    /// In-order bytes since the last ACK we sent.
    pub unacked: u32,
}

/// Send sequence variables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Snd {
    /// SND.UNA.
    pub una: SeqNum,
    /// SND.NXT.
    pub nxt: SeqNum,
    /// SND.WND, scaled.
    pub wnd: u32,
    /// MAX.SND.WND (RFC 5961 5.2).
    pub max_wnd: u32,
    /// SND.WL1.
    pub wl1: SeqNum,
    /// SND.WL2.
    pub wl2: SeqNum,
}

impl Snd {
    #[inline(always)]
    pub fn new(iss: SeqNum) -> Snd {
        Snd { una: iss, nxt: iss, wnd: 0, max_wnd: 0, wl1: SeqNum(0), wl2: SeqNum(0) }
    }
}

/// What the two SYNs agreed on, beside the flags.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Negotiated {
    /// Random offset of our timestamp clock.
    pub ts_offset: u32,
    /// SMSS (RFC 5681 2), bytes of payload beside timestamps.
    pub smss: u16,
    /// Rcv.Wind.Shift and Snd.Wind.Shift (RFC 7323 2.3).
    pub rcv_scale: u8,
    pub snd_scale: u8,
}

impl Negotiated {
    #[inline(always)]
    pub fn new(open: &Open, config: &Config) -> Negotiated {
        Negotiated { ts_offset: open.ts_offset, smss: open.mss.min(536), rcv_scale: open.scale(config), snd_scale: 0 }
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use crate::Tcb;

    #[test]
    fn what_every_segment_touches_is_one_line() {
        assert_eq!(align_of::<Tcb>(), 64);
        assert_eq!(offset_of!(Tcb, state), 0);
        assert_eq!(offset_of!(Tcb, receiver), 64, "state, flags, variables and options fill the first line");
    }
}

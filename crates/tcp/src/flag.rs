//! The flags of a connection. They are one word in the first cache line of its control block, so that a mask asks for many at
//! once; the parts are told of those that concern them.

pub const ACK_NOW: u32 = 1 << 0;
pub const ACK_DELAYED: u32 = 1 << 1;
/// The application will send no more; FIN after the queue.
pub const SHUTDOWN: u32 = 1 << 2;
pub const FIN_SENT: u32 = 1 << 3;
pub const FIN_RECEIVED: u32 = 1 << 4;
pub const NO_DELAY: u32 = 1 << 5;
pub const CORK: u32 = 1 << 6;
pub const MORE: u32 = 1 << 7;
pub const TIMESTAMPS: u32 = 1 << 8;
pub const SCALED: u32 = 1 << 9;
/// The application has closed: nobody will read.
pub const ORPHAN: u32 = 1 << 10;
pub const RST_PENDING: u32 = 1 << 11;
/// RFC 2018 on both sides.
pub const SACK: u32 = 1 << 12;
pub const PROBE_NOW: u32 = 1 << 13;
pub const KEEPALIVE: u32 = 1 << 14;
pub const PASSIVE: u32 = 1 << 15;
/// Something is amiss: no segment takes the straight path ([`Tcb::judge_disturbance`](crate::Tcb::judge_disturbance)).
pub const DISTURBED: u32 = 1 << 16;
/// Closed with data unread: RST goes behind what was written before and may go now.
pub const RESET_BEHIND: u32 = 1 << 17;
/// A partial segment may go although TCP_CORK or MSG_MORE is on: its limit passed.
pub const PUSH_NOW: u32 = 1 << 18;
/// The application is about to hear of it and will probably send: the ACK waits one turn for that.
pub const ACK_LATER: u32 = 1 << 19;
/// RFC 3168 on both sides.
pub const ECN: u32 = 1 << 20;
/// ECE goes out until the peer says CWR.
pub const ECE: u32 = 1 << 21;
/// CWR goes out with the next new data.
pub const CWR: u32 = 1 << 22;
/// The segment being worked on was marked CE.
pub const CE_NOW: u32 = 1 << 23;
/// New data was sent since the window's use was judged.
pub const SENT_NEW: u32 = 1 << 24;
/// Nothing may go before `pace_at`.
pub const PACED: u32 = 1 << 25;
/// The last write said that more follows: no PSH at its end.
pub const UNPUSHED: u32 = 1 << 29;
/// SO_RCVBUF was set: the receive buffer does not grow by itself.
pub const RCVBUF_LOCKED: u32 = 1 << 26;
/// The same for SO_SNDBUF.
pub const SNDBUF_LOCKED: u32 = 1 << 27;
/// The application answers what it reads: ACKs can ride on its data (Linux's ping-pong mode).
pub const PINGPONG: u32 = 1 << 28;
/// The peer has taken its window back once over what was under way: half of what it offers is used.
pub const RETRACTS: u32 = 1 << 31;
/// The next acknowledged bytes are reported at once.
pub const TELL_ACKED: u32 = 1 << 30;

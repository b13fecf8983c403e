//! A connection as the stack keeps it: the TCB and where it stands among the stack's lists.

use mem::Chain;
use tcp::{Config, State, Tcb};
use wire::MacAddr;

use crate::FlowKey;
use crate::names::SeatId;
use crate::schedule::alarms::Alarm;
use protocol::Failure;

/// Where a connection is between the wire and the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Passive, handshake not done: the listener's half-open queue.
    Embryo,
    /// Passive, established, the application not yet told.
    Ready,
    /// A client in another process was told, and has not said that it has taken it.
    Offered,
    /// The application knows it.
    Owned,
    /// One thread of the application has released it, and no other has taken it.
    Between,
    /// The application has closed it.
    Closed,
    /// As `Closed`, and the application waits for [`Event::Closed`](protocol::Event::Closed).
    Lingering,
}

pub(crate) struct Conn {
    pub tcb: Tcb,
    pub key: FlowKey,
    pub hash: u32,
    /// When it is woken.
    pub alarm: Alarm,
    /// Index of the neighbour that frames go to; `NO_NEIGHBOR` while none was asked for.
    pub neighbor: u32,
    /// `Neighbors::epoch` when `neighbor` was looked up.
    pub epoch: u32,
    /// The listener it came by, while `Embryo`, `Ready` or `Offered`.
    pub listener: u32,
    /// What was told of it while it is `Offered`: should another one hear of it, that one hears of this, too.
    pub kept: Chain,
    /// The client in whose chunks its bytes lie.
    pub pool: u16,
    /// Who hears of it.
    pub seat: SeatId,
    /// The hardware address from which a passive open's handshake came.
    pub came_from: Option<MacAddr>,
    /// IP_TOS or IPV6_TCLASS, without the ECN bits.
    pub traffic_class: u8,
    /// IP_TTL or IPV6_UNICAST_HOPS; 0 is the default, which for IPv6 a router may suggest.
    pub hop_limit: u8,
    /// IP_PMTUDISC_DONT: routers may fragment its IPv4 packets.
    pub fragments: bool,
    /// Frames that the port cuts were sent, and not all of it is acknowledged: what follows goes the same way.
    pub cut: bool,
    /// In which stretch of time it had a chunk of its client's scarce memory last, where its bytes lie outside that.
    pub turn: u8,
    pub stage: Stage,
    /// What an ICMP error about it said last.
    pub trouble: Option<Failure>,
    /// Counted among the stack's orphans.
    pub orphan: bool,
    /// In the flow table (TIME-WAIT hands the place to its record).
    pub linked: bool,
}

/// What a new connection is told of itself; the rest is the same for all.
#[derive(Clone, Copy)]
pub(crate) struct Birth {
    pub key: FlowKey,
    pub hash: u32,
    /// Its next hop as far as it is known: index and epoch.
    pub hop: (u32, u32),
    pub came_from: Option<MacAddr>,
    pub listener: u32,
    pub pool: u16,
    pub seat: SeatId,
    pub stage: Stage,
}

impl Conn {
    /// The control block is still to be opened.
    pub fn new(
        Birth { key, hash, hop: (neighbor, epoch), came_from, listener, pool, seat, stage }: Birth,
        config: &Config,
    ) -> Conn {
        Conn {
            tcb: Tcb::new(config),
            key,
            hash,
            alarm: Alarm::NONE,
            neighbor,
            epoch,
            listener,
            kept: Chain::default(),
            pool,
            seat,
            came_from,
            traffic_class: 0,
            hop_limit: 0,
            fragments: false,
            cut: false,
            turn: 0,
            stage,
            trouble: None,
            orphan: false,
            linked: true,
        }
    }

    /// [`Conn::new`] in the place of one that is gone.
    #[inline(always)]
    pub fn renew(&mut self, birth: Birth) {
        // Named one by one, so that none is forgotten.
        let Conn {
            tcb: _,
            key,
            hash,
            alarm,
            neighbor,
            epoch,
            listener,
            kept: _,
            pool,
            seat,
            came_from,
            traffic_class,
            hop_limit,
            fragments,
            cut,
            // Another one's is as good.
            turn: _,
            stage,
            trouble,
            orphan,
            linked,
        } = self;
        (*key, *hash) = (birth.key, birth.hash);
        *alarm = Alarm::NONE;
        (*neighbor, *epoch) = birth.hop;
        (*listener, *came_from, *stage) = (birth.listener, birth.came_from, birth.stage);
        (*pool, *seat) = (birth.pool, birth.seat);
        (*traffic_class, *hop_limit, *fragments, *cut) = (0, 0, false, false);
        *trouble = None;
        (*orphan, *linked) = (false, true);
    }

    /// Why it failed, in the stack's words.
    pub fn failure(&self) -> Option<Failure> {
        Some(match self.tcb.error()? {
            tcp::Error::Refused => Failure::Refused,
            tcp::Error::Reset => Failure::Reset,
            tcp::Error::TimedOut => Failure::TimedOut,
            tcp::Error::Aborted => Failure::Aborted,
            tcp::Error::Unreachable => self.trouble.unwrap_or(Failure::HostUnreachable),
        })
    }

    /// Everything we sent is acknowledged, our FIN included, or never will be: SO_LINGER waits no longer (Linux's
    /// sk_stream_wait_close).
    pub fn lingered(&self) -> bool {
        matches!(self.tcb.state(), State::Closed | State::TimeWait | State::FinWait2)
    }
}

//! What ICMP errors do to TCP (RFC 9293 3.9.2.2, RFC 5461, RFC 5927), and how far a path's MTU is believed (RFC 1191, RFC 8201).

use tcp::State;
use wire::Instant;
use wire::ipv4;
use wire::quoted::Quoted;

use crate::counters::DropReason;
use crate::demux::Owner;
use crate::engine::{Stack, context};
use crate::link::trouble::Trouble;
use crate::{FlowKey, InterfaceId};

impl Stack {
    /// An ICMP error, if a message was one.
    pub(super) fn take_icmp_error(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        error: Option<(Quoted, Trouble)>,
    ) -> Result<(), DropReason> {
        error.map_or(Ok(()), |(quoted, trouble)| self.trouble(now, interface, quoted, trouble))
    }

    /// An ICMP error that came by `interface`: found by the quoted tuple, believed only when the quoted sequence number is in flight (RFC 5927).
    fn trouble(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        quoted: Quoted,
        trouble: Trouble,
    ) -> Result<(), DropReason> {
        if quoted.protocol != ipv4::TCP {
            return Err(DropReason::IcmpUnmatched);
        }
        let key = FlowKey {
            interface,
            local: quoted.src,
            remote: quoted.dst,
            local_port: quoted.src_port,
            remote_port: quoted.dst_port,
        };
        let id = match self.demux.look_up(&self.conns, &key) {
            Some(Owner::Handshake(id)) => {
                return self.handshake_trouble(id, quoted.seq, matches!(trouble, Trouble::Hard(_)));
            }
            Some(Owner::Connection(id)) if self.is_alive_conn(id) => id,
            _ => return Err(DropReason::IcmpUnmatched),
        };
        let Some(c) = self.conns.get_mut(id) else { return Err(DropReason::IcmpUnmatched) };
        let mut cx = context!(self, now, c.pool);
        let matched = match trouble {
            Trouble::TooBig(mtu) => {
                // RFC 8201 4: no link of IPv6 carries less, so nobody honest says so.
                if !key.remote.is_v4() && mtu < 1280 {
                    return Err(DropReason::IcmpUnmatched);
                }
                let headers = if key.remote.is_v4() { 40 } else { 60 };
                // RFC 1191 5: an old router names no MTU; RFC 8201 4: never below 1280 (IPv4: what is configured).
                let floor = if key.remote.is_v4() { self.config.min_path_mtu.max(68) as u32 } else { 1280 };
                let mtu = if mtu == 0 { floor } else { mtu.clamp(floor, 65_535) } as u16;
                // What may be fragmented is not the path's business.
                let shrunk = !c.fragments && c.tcb.shrink_mss(mtu - headers, quoted.seq, &mut cx);
                if shrunk {
                    self.link.lower_path(now, &key, mtu);
                    self.counters.path_mtu += 1;
                }
                shrunk
            }
            Trouble::Hard(failure) | Trouble::Soft(failure) => {
                let hard = matches!(trouble, Trouble::Hard(_));
                let matched = c.tcb.unreachable(hard, quoted.seq, &mut cx);
                if matched {
                    c.trouble = Some(failure);
                }
                matched
            }
        };
        self.settle(now, id);
        if matched { Ok(()) } else { Err(DropReason::IcmpUnmatched) }
    }

    /// Whether a connection may be found by an ICMP error.
    fn is_alive_conn(&self, id: u32) -> bool {
        let over = |state| matches!(state, State::Closed | State::TimeWait);
        self.conns.active(id).map_or(self.conns.is_used(id), |c| !over(c.tcb.state()))
    }
}

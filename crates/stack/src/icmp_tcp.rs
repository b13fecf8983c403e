//! What ICMP errors do to TCP (RFC 9293 3.9.2.2, RFC 5461, RFC 5927): which are hard, what the application is told, and how
//! far a path's MTU is believed (RFC 1191, RFC 8201).

use wire::Instant;
use wire::ipv4;
use wire::quoted::Quoted;

use crate::channel::Failure;
use crate::counters::DropReason;
use crate::engine::{EMBRYO, Stack, TIME_WAIT, context};
use crate::flows::FlowKey;
use crate::route::InterfaceId;

/// What an ICMP error says about a path or peer. Hard ones end a connection that is being opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The path's MTU; 0 where an old router does not say (RFC 1191 5).
    TooBig(u32),
    Hard(Failure),
    Soft(Failure),
}

/// A destination unreachable of IPv4; hard as on Linux, which follows RFC 1122 4.2.3.9 (RFC 9293 3.9.2.2, MUST-56: 0, 1 and 5
/// are soft) and adds what no retry will change.
pub(crate) fn unreachable_v4(code: u8) -> Trouble {
    match code {
        0 | 11 => Trouble::Soft(Failure::NetworkUnreachable),
        2 => Trouble::Hard(Failure::ProtocolUnreachable),
        3 => Trouble::Hard(Failure::Refused),
        // Network unknown, or barred.
        6 | 9 => Trouble::Hard(Failure::NetworkUnreachable),
        // Host unknown, isolated or barred, filtered, precedence.
        7 | 8 | 10 | 13 | 14 | 15 => Trouble::Hard(Failure::HostUnreachable),
        _ => Trouble::Soft(Failure::HostUnreachable),
    }
}

/// A destination unreachable of IPv6 (RFC 4443 3.1).
pub(crate) fn unreachable_v6(code: u8) -> Trouble {
    match code {
        0 => Trouble::Soft(Failure::NetworkUnreachable),
        4 => Trouble::Hard(Failure::Refused),
        // Prohibited, by source address policy, or rejected.
        1 | 5 | 6 => Trouble::Hard(Failure::HostUnreachable),
        _ => Trouble::Soft(Failure::HostUnreachable),
    }
}

impl Stack {
    /// An ICMP error that came by `interface`: found by the quoted tuple, believed only when the quoted sequence number is in flight (RFC 5927).
    pub(crate) fn trouble(
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
        let hash = self.flows.hash(&key);
        let found = self.find_flow(&key, hash).filter(|value| value & TIME_WAIT == 0);
        let id = match found {
            Some(value) if value & EMBRYO != 0 => {
                let hard = matches!(trouble, Trouble::Hard(_));
                return self.handshake_trouble(value & !EMBRYO, quoted.seq, hard);
            }
            Some(id) if self.live(id) => id,
            _ => return Err(DropReason::IcmpUnmatched),
        };
        let Some(c) = self.conns.get_mut(id) else { return Err(DropReason::IcmpUnmatched) };
        let mut cx = context!(self, now);
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
                    self.paths.lower(now, (interface, key.remote), mtu);
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
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux's table of IPv4 (`icmp_err_convert`), and RFC 4443's codes.
    #[test]
    fn each_code_is_told_as_what_it_is() {
        use Failure::{HostUnreachable as Host, NetworkUnreachable as Network, ProtocolUnreachable, Refused};
        let told = |trouble| match trouble {
            Trouble::Hard(failure) => (true, failure),
            Trouble::Soft(failure) => (false, failure),
            Trouble::TooBig(_) => panic!("no unreachable"),
        };
        let v4 = [
            (false, Network),
            (false, Host),
            (true, ProtocolUnreachable),
            (true, Refused),
            // Too big, which is told apart before.
            (false, Host),
            (false, Host),
            (true, Network),
            (true, Host),
            (true, Host),
            (true, Network),
            (true, Host),
            (false, Network),
            (false, Host),
            (true, Host),
            (true, Host),
            (true, Host),
            (false, Host),
        ];
        for (code, expected) in (0..).zip(v4) {
            assert_eq!(told(unreachable_v4(code)), expected, "{code}");
        }
        let v6 = [
            (false, Network),
            (true, Host),
            (false, Host),
            (false, Host),
            (true, Refused),
            (true, Host),
            (true, Host),
            (false, Host),
        ];
        for (code, expected) in (0..).zip(v6) {
            assert_eq!(told(unreachable_v6(code)), expected, "{code}");
        }
    }
}

//! What ICMP errors say of a path or a peer (RFC 9293 3.9.2.2, RFC 5461): which are hard, and what the application is told.

use protocol::Failure;

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

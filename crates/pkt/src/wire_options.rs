//! TCP options as bytes, in the order given: a script may ask for any.

use crate::ast::TcpOption;

/// The bytes of the options, without padding.
pub fn emit(options: &[TcpOption]) -> Vec<u8> {
    let mut out = Vec::new();
    for option in options {
        let (kind, body) = match option {
            TcpOption::Eol => {
                out.push(0);
                continue;
            }
            TcpOption::Nop => {
                out.push(1);
                continue;
            }
            TcpOption::Mss(mss) => (2, mss.to_be_bytes().to_vec()),
            TcpOption::WindowScale(shift) => (3, vec![*shift]),
            TcpOption::SackPermitted => (4, Vec::new()),
            TcpOption::Sack(blocks) => {
                (5, blocks.iter().flat_map(|(l, r)| [l.to_be_bytes(), r.to_be_bytes()]).flatten().collect())
            }
            TcpOption::Timestamps(value, echo) => (8, [value.to_be_bytes(), echo.to_be_bytes()].concat()),
            TcpOption::Md5(digest) => (19, digest.clone()),
            TcpOption::FastOpen(cookie, false) => (34, cookie.clone()),
            // RFC 6994's experiment number of Fast Open.
            TcpOption::FastOpen(cookie, true) => (254, [&[0xf9, 0x89], cookie.as_slice()].concat()),
            TcpOption::AccEcn(kind, counters) => {
                (*kind, counters.iter().flat_map(|n| n.to_be_bytes()[1..].to_vec()).collect())
            }
            TcpOption::Other(kind, body) => (*kind, body.clone()),
        };
        out.extend([kind, body.len() as u8 + 2]);
        out.extend(body);
    }
    out
}

/// The options in those bytes; `None` when they are malformed.
pub fn parse(mut bytes: &[u8]) -> Option<Vec<TcpOption>> {
    let mut options = Vec::new();
    while let Some((&kind, rest)) = bytes.split_first() {
        if kind < 2 {
            options.push(if kind == 0 { TcpOption::Eol } else { TcpOption::Nop });
            bytes = rest;
            continue;
        }
        let len = (*rest.first()? as usize).checked_sub(2)?;
        let body = rest.get(1..1 + len)?;
        bytes = &rest[1 + len..];
        let word = |at: usize| u32::from_be_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
        options.push(match (kind, len) {
            (2, 2) => TcpOption::Mss(u16::from_be_bytes([body[0], body[1]])),
            (3, 1) => TcpOption::WindowScale(body[0]),
            (4, 0) => TcpOption::SackPermitted,
            (5, 8 | 16 | 24 | 32) => TcpOption::Sack((0..len).step_by(8).map(|at| (word(at), word(at + 4))).collect()),
            (8, 8) => TcpOption::Timestamps(word(0), word(4)),
            (19, _) => TcpOption::Md5(body.into()),
            (34, _) => TcpOption::FastOpen(body.into(), false),
            (254, 2..) if body.starts_with(&[0xf9, 0x89]) => TcpOption::FastOpen(body[2..].into(), true),
            (172 | 174, 3 | 6 | 9) => {
                let counter = |c: &[u8]| u32::from_be_bytes([0, c[0], c[1], c[2]]);
                TcpOption::AccEcn(kind, body.chunks(3).map(counter).collect())
            }
            _ => TcpOption::Other(kind, body.into()),
        });
    }
    Some(options)
}

/// As a script writes them.
pub fn show(options: &[TcpOption]) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let one = |option: &TcpOption| match option {
        TcpOption::Eol => "eol".into(),
        TcpOption::Nop => "nop".into(),
        TcpOption::Mss(mss) => format!("mss {mss}"),
        TcpOption::WindowScale(shift) => format!("wscale {shift}"),
        TcpOption::SackPermitted => "sackOK".into(),
        TcpOption::Sack(blocks) => {
            let blocks: Vec<_> = blocks.iter().map(|(l, r)| format!("{l}:{r}")).collect();
            format!("sack {}", blocks.join(" "))
        }
        TcpOption::Timestamps(value, echo) => format!("TS val {value} ecr {echo}"),
        TcpOption::Md5(digest) => format!("md5 {}", hex(digest)),
        TcpOption::FastOpen(cookie, experiment) => {
            format!("{} {}", if *experiment { "FOEXP" } else { "FO" }, hex(cookie)).trim_end().into()
        }
        TcpOption::AccEcn(kind, counters) => {
            let names = if *kind == 172 { ["e0b", "ceb", "e1b"] } else { ["e1b", "ceb", "e0b"] };
            let counters: Vec<_> = names.iter().zip(counters).map(|(name, n)| format!("{name} {n}")).collect();
            format!("ECN {}", counters.join(" "))
        }
        TcpOption::Other(kind, body) => format!("kind {kind} {}", hex(body)),
    };
    options.iter().map(one).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn there_and_back() {
        let all = vec![
            TcpOption::Mss(1460),
            TcpOption::SackPermitted,
            TcpOption::Timestamps(1, 2),
            TcpOption::Nop,
            TcpOption::WindowScale(8),
            TcpOption::Sack(vec![(1, 2), (3, 4)]),
            TcpOption::Md5(vec![7; 16]),
            TcpOption::FastOpen(vec![1, 2, 3, 4], false),
            TcpOption::FastOpen(Vec::new(), true),
            TcpOption::AccEcn(174, vec![1, 0xff_fffe, 3]),
            TcpOption::Other(200, vec![9]),
            TcpOption::Eol,
        ];
        assert_eq!(parse(&emit(&all)), Some(all.clone()));
        assert!(show(&all).starts_with("mss 1460,sackOK,TS val 1 ecr 2,nop,wscale 8,sack 1:2 3:4,md5 0707"));
        assert!(show(&all).ends_with("FO 01020304,FOEXP,ECN e1b 1 ceb 16777214 e0b 3,kind 200 09,eol"));
        assert_eq!(parse(&[2, 4, 5]), None);
        assert_eq!(parse(&[2, 1]), None);
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Some(options) = parse(&bytes) {
                prop_assert_eq!(emit(&options), bytes);
            }
        }
    }
}

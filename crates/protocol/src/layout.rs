//! The layout of all messages, as one number.

use crate::event::Event;
use crate::job::Job;
use crate::table::{Column, Row};

/// A number that another layout would not have: both halves must have been built with the same table.
pub const LAYOUT: u64 = {
    let hash = fingerprint(0xcbf2_9ce4_8422_2325, Job::TABLE);
    fingerprint(hash, Event::TABLE)
};

/// FNV-1a over names, numbers, types and places.
const fn fingerprint(mut hash: u64, rows: &[Row]) -> u64 {
    let mut row = 0;
    while row < rows.len() {
        hash = text(hash, rows[row].name);
        hash = byte(hash, rows[row].kind as u8);
        hash = byte(hash, rows[row].chain.is_some() as u8);
        let mut column = 0;
        while column < rows[row].columns.len() {
            let Column { name, ty, at, .. } = rows[row].columns[column];
            hash = text(text(hash, name), ty);
            let mut piece = 0;
            while piece < at.len() {
                hash = byte(hash, at[piece] as u8);
                piece += 1;
            }
            column += 1;
        }
        row += 1;
    }
    hash
}

const fn text(mut hash: u64, text: &str) -> u64 {
    let bytes = text.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        hash = byte(hash, bytes[i]);
        i += 1;
    }
    // So that two names that follow each other are not those of another split.
    byte(hash, 0)
}

const fn byte(hash: u64, byte: u8) -> u64 {
    (hash ^ byte as u64).wrapping_mul(0x0100_0000_01b3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mem::Chain;
    use mem::ring::Message;
    use proptest::prelude::*;

    proptest! {
        /// What a message says as a job, or as an event, another message says again.
        #[test]
        fn messages_say_all_again(kinds in any::<[u16; 3]>(), rest: [u64; 6]) {
            // Small numbers are what failures and the like are.
            for (kind, mask) in (0..20).chain(kinds).flat_map(|kind| [(kind, u64::MAX), (kind, 0x1f1f_1f1f_1f1f_1f1f)]) {
                let mut words = rest.map(|word| word & mask);
                words[0] = words[0] & !0xffff | u64::from(kind);
                let message = || Message { words, chain: Chain::default() };
                if let Ok(job) = Job::from_message(message()) {
                    let said = format!("{job:?}");
                    let again = Job::from_message(job.into_message()).unwrap();
                    prop_assert_eq!(said, format!("{:?}", again));
                }
                if let Ok(event) = Event::from_message(message()) {
                    let said = format!("{event:?}");
                    let again = Event::from_message(event.into_message()).unwrap();
                    prop_assert_eq!(said, format!("{:?}", again));
                }
            }
        }
    }

    /// A kind that nobody has, a value that an enumeration has not, bytes where there are none.
    #[test]
    fn what_does_not_decode_gives_its_bytes_back() {
        let (mut side, _other) = mem::Pool::new(&mem::PoolConfig { chunks: 1024, ..Default::default() }).unwrap();
        let mut bytes = || {
            let mut chain = Chain::default();
            assert_eq!(chain.push_slice(&mut side, b"bytes"), 5);
            chain
        };
        let known = |rows: &[Row], kind| rows.iter().find(|row| row.kind == kind).map(|row| row.chain.is_some());
        for kind in (0..80).chain([64 + 5, 1 << 15]) {
            let words = [u64::from(kind), 0, 0, 0, 0, 0];
            let job = Job::from_message(Message { words, chain: bytes() });
            assert_eq!(job.is_ok(), known(Job::TABLE, kind) == Some(true), "{job:?}");
            let event = Event::from_message(Message { words, chain: bytes() });
            assert_eq!(event.is_ok(), known(Event::TABLE, kind) == Some(true), "{event:?}");
            assert!(job.err().is_none_or(|chain| chain.len() == 5) && event.err().is_none_or(|chain| chain.len() == 5));
        }
        let modes = (0..=255u64).filter(|mode| {
            let words = [8 | mode << 16, 0, 0, 0, 0, 0];
            Job::from_message(Message { words, chain: Chain::default() }).is_ok()
        });
        assert_eq!(modes.collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn a_write_may_say_that_a_close_follows() {
        let conn = crate::ConnId(7);
        let mut write = Job::Write { conn, chain: Chain::default(), more: false, close: false }.into_message();
        assert!(!Job::followed_by_close(&mut write, crate::ConnId(8)));
        assert!(matches!(Job::from_message(write), Ok(Job::Write { close: false, .. })));
        let mut write = Job::Write { conn, chain: Chain::default(), more: true, close: false }.into_message();
        assert!(Job::followed_by_close(&mut write, conn));
        assert!(matches!(Job::from_message(write), Ok(Job::Write { close: true, more: true, .. })));
        let mut other = Job::Shutdown { conn }.into_message();
        assert!(!Job::followed_by_close(&mut other, conn));
    }
}

//! Messages across the border between the stack and an application in another process.

use crate::chain::Chain;
use crate::pool::{Breach, Side};
use crate::ring::{Message, Raw};

/// Two numbers of four bytes as they lie one behind the other.
fn pair(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

fn unpair(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]))
}

impl Side {
    /// Makes a message of what an application in another process has written, and takes the chunks over that come with it. What the words
    /// mean is still to be looked at.
    #[inline]
    pub fn admit(&mut self, raw: Raw) -> Result<Message, Breach> {
        let [words @ .., ends, length] = raw.0;
        let ((first, last), (bytes, _)) = (unpair(ends), unpair(length));
        let mut chain = Chain::default();
        if bytes > 0 {
            self.take_over(first, last, bytes)?;
            chain = Chain { head: first, tail: last, bytes, pool: self.tag };
        }
        Ok(Message { words, chain })
    }

    /// The words of a message for an application in another process, whose the chunks are that come with it.
    #[inline]
    pub fn dismiss(&mut self, message: Message) -> Raw {
        let Message { words: [a, b, c, d, e, f], chain } = message;
        let Chain { head, tail, bytes, pool } = chain;
        let pool = match bytes {
            0 => 0,
            _ => {
                assert_eq!(pool, self.tag, "a chain of another pool");
                self.give_away(head)
            }
        };
        Raw([a, b, c, d, e, f, pair(head, tail), pair(bytes, pool)])
    }
}

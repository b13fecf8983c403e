//! How jobs and events lie in the 64-byte messages of a ring.

use mem::Chain;
use mem::spsc::Message;
use wire::Addr;

use super::{CloseMode, ConnId, ConnOption, Endpoint, Event, Failure, Job, ListenerId, Token};

/// What a write says besides.
const MORE: u16 = 1;
const CLOSE: u16 = 2;

fn w0(kind: u64, small: u16, id: u32) -> u64 {
    kind | (small as u64) << 16 | (id as u64) << 32
}

fn msg(w: [u64; 6], chain: Chain) -> Message {
    Message { words: w, chain }
}

fn id(w: u64) -> u32 {
    (w >> 32) as u32
}

fn small(w: u64) -> u16 {
    (w >> 16) as u16
}

fn ends(w1: u64, w: &[u64; 6]) -> (Endpoint, Endpoint) {
    let local = Endpoint { addr: Addr::from_words([w[2], w[3]]), port: w1 as u16 };
    let remote = Endpoint { addr: Addr::from_words([w[4], w[5]]), port: (w1 >> 16) as u16 };
    (local, remote)
}

impl Job {
    /// The connection that it may change.
    pub fn conn(&self) -> Option<ConnId> {
        match self {
            Job::Write { conn, .. }
            | Job::Consumed { conn, .. }
            | Job::Shutdown { conn }
            | Job::Close { conn, .. }
            | Job::Abort { conn }
            | Job::SetOption { conn, .. }
            | Job::Urgent { conn, .. }
            | Job::EndRecord { conn }
            | Job::TellAcked { conn } => Some(*conn),
            Job::Connect { .. }
            | Job::Listen { .. }
            | Job::Taken { .. }
            | Job::CloseListener { .. }
            | Job::Prepare { .. }
            | Job::SetListenerOption { .. }
            | Job::SetBacklog { .. }
            | Job::Ending
            | Job::Query { .. } => None,
        }
    }

    /// Makes `message`, where it is a write to `conn`, say that the connection is closed after it; whether it is.
    #[inline]
    pub fn followed_by_close(message: &mut Message, conn: ConnId) -> bool {
        let w = &mut message.words[0];
        let write = *w as u16 == 5 && id(*w) == conn.0;
        *w |= if write { (CLOSE as u64) << 16 } else { 0 };
        write
    }

    /// The message that carries it.
    // Who makes a job knows its kind: only that kind's words are left of this.
    #[inline(always)]
    pub fn into_message(self) -> Message {
        let none = Chain::default();
        match self {
            Job::Connect { token, local, remote, receive_buffer } => {
                let ([l0, l1], [r0, r1]) = (local.addr.as_words(), remote.addr.as_words());
                let w1 = local.port as u64 | (remote.port as u64) << 16 | (receive_buffer as u64) << 32;
                msg([w0(1, 0, token.0), w1, l0, l1, r0, r1], none)
            }
            Job::Listen { token, local, backlog, v6_only, reuse_port, receive_buffer } => {
                let [l0, l1] = local.addr.as_words();
                let flags = v6_only as u16 | (reuse_port as u16) << 1;
                let w1 = local.port as u64 | (receive_buffer as u64) << 32;
                msg([w0(2, flags, token.0), w1, l0, l1, backlog as u64, 0], none)
            }
            Job::Taken { listener, count } => msg([w0(3, 0, listener.0), count as u64, 0, 0, 0, 0], none),
            Job::CloseListener { listener } => msg([w0(4, 0, listener.0), 0, 0, 0, 0, 0], none),
            Job::Write { conn, chain, more, close } => {
                let flags = if more { MORE } else { 0 } | if close { CLOSE } else { 0 };
                msg([w0(5, flags, conn.0), 0, 0, 0, 0, 0], chain)
            }
            Job::Consumed { conn, bytes } => msg([w0(6, 0, conn.0), bytes as u64, 0, 0, 0, 0], none),
            Job::Shutdown { conn } => msg([w0(7, 0, conn.0), 0, 0, 0, 0, 0], none),
            Job::Close { conn, mode } => msg([w0(8, mode as u16, conn.0), 0, 0, 0, 0, 0], none),
            Job::Abort { conn } => msg([w0(9, 0, conn.0), 0, 0, 0, 0, 0], none),
            Job::SetOption { conn, option, value } => {
                msg([w0(10, option as u16, conn.0), value as u64, 0, 0, 0, 0], none)
            }
            Job::Query { conn, token } => msg([w0(11, 0, conn.0), token.0 as u64, 0, 0, 0, 0], none),
            Job::Prepare { option, value } => msg([w0(12, option as u16, 0), value as u64, 0, 0, 0, 0], none),
            Job::SetListenerOption { listener, option, value } => {
                msg([w0(13, option as u16, listener.0), value as u64, 0, 0, 0, 0], none)
            }
            Job::SetBacklog { listener, backlog } => msg([w0(14, 0, listener.0), backlog as u64, 0, 0, 0, 0], none),
            Job::Urgent { conn, bytes } => msg([w0(15, 0, conn.0), bytes as u64, 0, 0, 0, 0], none),
            Job::EndRecord { conn } => msg([w0(16, 0, conn.0), 0, 0, 0, 0, 0], none),
            Job::TellAcked { conn } => msg([w0(17, 0, conn.0), 0, 0, 0, 0, 0], none),
            Job::Ending => msg([w0(18, 0, 0), 0, 0, 0, 0, 0], none),
        }
    }

    /// Reads a message; one that is no job gives its chain back to be freed.
    #[inline(always)]
    pub fn from_message(m: Message) -> Result<Job, Chain> {
        let Message { words: w, chain } = m;
        // Only `Write` carries bytes.
        if !chain.is_empty() && w[0] as u16 != 5 {
            return Err(chain);
        }
        let conn = ConnId(id(w[0]));
        let listener = ListenerId(id(w[0]));
        let token = Token(id(w[0]));
        let number = w[1] as u32;
        let option = ConnOption::from_word(small(w[0]) as u64);
        Ok(match w[0] as u16 {
            1 => {
                let (local, remote) = ends(w[1], &w);
                Job::Connect { token, local, remote, receive_buffer: (w[1] >> 32) as u32 }
            }
            2 => Job::Listen {
                token,
                local: Endpoint { addr: Addr::from_words([w[2], w[3]]), port: w[1] as u16 },
                backlog: w[4] as u32,
                v6_only: small(w[0]) & 1 != 0,
                reuse_port: small(w[0]) & 2 != 0,
                receive_buffer: (w[1] >> 32) as u32,
            },
            3 => Job::Taken { listener, count: number },
            4 => Job::CloseListener { listener },
            5 => Job::Write { conn, chain, more: small(w[0]) & MORE != 0, close: small(w[0]) & CLOSE != 0 },
            6 => Job::Consumed { conn, bytes: number },
            7 => Job::Shutdown { conn },
            8 => Job::Close {
                conn,
                mode: match small(w[0]) {
                    0 => CloseMode::Graceful,
                    1 => CloseMode::Unread,
                    2 => CloseMode::Report,
                    _ => return Err(chain),
                },
            },
            9 => Job::Abort { conn },
            kind @ (10 | 12 | 13) => match (kind, option) {
                (10, Some(option)) => Job::SetOption { conn, option, value: number },
                (12, Some(option)) => Job::Prepare { option, value: number },
                (13, Some(option)) => Job::SetListenerOption { listener, option, value: number },
                _ => return Err(chain),
            },
            11 => Job::Query { conn, token: Token(number) },
            14 => Job::SetBacklog { listener, backlog: number },
            15 => Job::Urgent { conn, bytes: number },
            16 => Job::EndRecord { conn },
            17 => Job::TellAcked { conn },
            18 => Job::Ending,
            _ => return Err(chain),
        })
    }
}

impl Event {
    /// The connection that a message is about, if it is about one.
    #[inline]
    pub fn subject(message: &Message) -> ConnId {
        ConnId(id(message.words[0]))
    }

    /// The message that carries it.
    #[inline]
    pub fn into_message(self) -> Message {
        let none = Chain::default();
        match self {
            Event::Accepted { listener, conn, local, remote, chain } => {
                let ([l0, l1], [r0, r1]) = (local.addr.as_words(), remote.addr.as_words());
                let w1 = local.port as u64 | (remote.port as u64) << 16 | (listener.0 as u64) << 32;
                msg([w0(1, 0, conn.0), w1, l0, l1, r0, r1], chain)
            }
            Event::Opened { token, conn, local } => {
                let [l0, l1] = local.addr.as_words();
                msg([w0(2, local.port, conn.0), token.0 as u64, l0, l1, 0, 0], none)
            }
            Event::Listening { token, listener, port } => {
                msg([w0(3, port, listener.0), token.0 as u64, 0, 0, 0, 0], none)
            }
            Event::Refused { token, failure } => msg([w0(4, 0, token.0), failure as u64, 0, 0, 0, 0], none),
            Event::Connected { conn } => msg([w0(5, 0, conn.0), 0, 0, 0, 0, 0], none),
            Event::Data { conn, chain, fin } => msg([w0(6, fin as u16, conn.0), 0, 0, 0, 0, 0], chain),
            Event::Fin { conn } => msg([w0(7, 0, conn.0), 0, 0, 0, 0, 0], none),
            Event::Acked { conn, bytes } => msg([w0(8, 0, conn.0), bytes as u64, 0, 0, 0, 0], none),
            Event::Failed { conn, failure } => msg([w0(9, 0, conn.0), failure as u64, 0, 0, 0, 0], none),
            Event::Closed { conn, failure } => {
                msg([w0(10, 0, conn.0), failure.map_or(0, |f| f as u64), 0, 0, 0, 0], none)
            }
            Event::Info { conn, token, chain } => msg([w0(11, 0, conn.0), token.0 as u64, 0, 0, 0, 0], chain),
            Event::Room { conn, bytes } => msg([w0(14, 0, conn.0), bytes as u64, 0, 0, 0, 0], none),
            Event::Sent { conn, total, burst } => {
                msg([w0(12, 0, conn.0), total as u64 | (burst as u64) << 32, 0, 0, 0, 0], none)
            }
            Event::Urgent { conn, beyond } => msg([w0(13, 0, conn.0), beyond as u64, 0, 0, 0, 0], none),
        }
    }

    /// Reads a message; one that is no event gives its chain back to be freed.
    #[inline(always)]
    pub fn from_message(m: Message) -> Result<Event, Chain> {
        let Message { words: w, chain } = m;
        // Only `Accepted`, `Data` and `Info` carry bytes.
        if !chain.is_empty() && !matches!(w[0] as u16, 1 | 6 | 11) {
            return Err(chain);
        }
        let conn = ConnId(id(w[0]));
        let token = Token(w[1] as u32);
        Ok(match w[0] as u16 {
            1 => {
                let (local, remote) = ends(w[1], &w);
                Event::Accepted { listener: ListenerId(id(w[1])), conn, local, remote, chain }
            }
            2 => {
                let local = Endpoint { addr: Addr::from_words([w[2], w[3]]), port: small(w[0]) };
                Event::Opened { token, conn, local }
            }
            3 => Event::Listening { token, listener: ListenerId(id(w[0])), port: small(w[0]) },
            4 => match Failure::from_word(w[1]) {
                Some(failure) => Event::Refused { token: Token(id(w[0])), failure },
                None => return Err(chain),
            },
            5 => Event::Connected { conn },
            6 => Event::Data { conn, chain, fin: small(w[0]) != 0 },
            7 => Event::Fin { conn },
            8 => Event::Acked { conn, bytes: w[1] as u32 },
            9 => match Failure::from_word(w[1]) {
                Some(failure) => Event::Failed { conn, failure },
                None => return Err(chain),
            },
            10 => Event::Closed { conn, failure: Failure::from_word(w[1]) },
            11 => Event::Info { conn, token, chain },
            12 => Event::Sent { conn, total: w[1] as u32, burst: (w[1] >> 32) as u32 },
            14 => Event::Room { conn, bytes: w[1] as u32 },
            13 => Event::Urgent { conn, beyond: w[1] as u32 },
            _ => return Err(chain),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What a message says as a job, or as an event, another message says again.
        #[test]
        fn messages_say_all_again(small in prop_oneof![0u16..40, any::<u16>()], id: u32, rest: [u64; 5]) {
            // Small numbers are what failures and the like are.
            for (kind, w1) in (0..20).flat_map(|kind| [(kind, rest[0]), (kind, rest[0] % 32)]) {
                let words = [w0(kind, small, id), w1, rest[1], rest[2], rest[3], rest[4]];
                let message = || msg(words, Chain::default());
                if let Ok(job) = Job::from_message(message()) {
                    let conn = job.conn();
                    let told = format!("{job:?}");
                    let again = Job::from_message(job.into_message()).expect("a job");
                    prop_assert_eq!((format!("{again:?}"), again.conn()), (told, conn));
                    prop_assert!(conn.is_none_or(|conn| conn.0 == id));
                } else {
                    prop_assert!(kind == 0 || kind > 18 || matches!(kind, 8 | 10 | 12 | 13));
                }
                if let Ok(event) = Event::from_message(message()) {
                    let told = format!("{event:?}");
                    let message = event.into_message();
                    let subject = Event::subject(&message);
                    prop_assert_eq!(subject, ConnId(id));
                    prop_assert_eq!(format!("{:?}", Event::from_message(message).expect("an event")), told);
                } else {
                    prop_assert!(kind == 0 || kind > 14 || matches!(kind, 4 | 9));
                }
            }
        }
    }
    #[test]
    fn a_write_and_nothing_else_can_be_followed_by_a_close() {
        let conn = ConnId(7);
        let write = |conn, close| Job::Write { conn, chain: Chain::default(), more: false, close };
        for (job, follows) in [
            (write(conn, false), true),
            (write(conn, true), true),
            (write(ConnId(8), false), false),
            (Job::Shutdown { conn }, false),
            (Job::Consumed { conn, bytes: 5 }, false),
        ] {
            let told = if follows { format!("{:?}", write(conn, true)) } else { format!("{job:?}") };
            let mut message = job.into_message();
            assert_eq!(Job::followed_by_close(&mut message, conn), follows, "{told}");
            assert_eq!(format!("{:?}", Job::from_message(message).expect("a job")), told);
        }
    }
}

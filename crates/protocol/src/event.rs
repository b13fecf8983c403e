//! Events: from the stack to the application.

use mem::ring::Message;

use crate::codes::Failure;
use crate::names::{ConnId, Endpoint, ListenerId, Token};
use crate::table::messages;

messages! {
    /// From the stack to the application. For one connection the order is: `Accepted` or `Opened`, `Connected`, any number of
    /// `Data`, `Urgent`, `Acked` and `Sent`, at most one `Fin`, at most one `Failed`. Nothing follows the processing of its `Close` but
    /// `Closed`.
    Event {
        /// A listener has a new established connection.
        Accepted = 1 {
            /// The connection.
            conn: ConnId = [4],
            /// Whose.
            listener: ListenerId = [12],
            /// Our end.
            local: Endpoint = [8, 16],
            /// The peer's end.
            remote: Endpoint = [10, 32],
            bytes chain: "Bytes in order that have come already.",
        } => Taken,
        /// An active open has a connection number and a local end; the SYN is on its way.
        Opened = 2 {
            /// The connection.
            conn: ConnId = [4],
            /// The request's.
            token: Token = [8],
            /// Our end.
            local: Endpoint = [2, 16],
        },
        /// A listener is open.
        Listening = 3 {
            /// The listener.
            listener: ListenerId = [4],
            /// The request's.
            token: Token = [8],
            /// The port that was chosen or asked for.
            port: u16 = [2],
        },
        /// A `Connect` or `Listen` request failed before it had a number.
        Refused = 4 {
            /// The request's.
            token: Token = [4],
            /// Why.
            failure: Failure = [8],
        },
        /// The handshake of an active open is done.
        Connected = 5 {
            /// Which.
            conn: ConnId = [4],
        },
        /// Bytes in order.
        Data = 6 {
            /// Which.
            conn: ConnId = [4],
            /// And then the peer has sent everything (FIN).
            fin: bool = [2],
            bytes chain: "What.",
        } => Consumed,
        /// The peer has sent everything (FIN), and nothing before it of which the application has not heard.
        Fin = 7 {
            /// Which.
            conn: ConnId = [4],
        },
        /// The peer acknowledged more; told when it is worth a report, not for every segment.
        Acked = 8 {
            /// Which.
            conn: ConnId = [4],
            /// How many bytes since the last report.
            bytes: u32 = [8],
        },
        /// The connection is over by error; data that arrived before was delivered before. The number stays the
        /// application's until it closes.
        Failed = 9 {
            /// Which.
            conn: ConnId = [4],
            /// Why.
            failure: Failure = [8],
        },
        /// A close with the mode `Report` is complete: without a failure when all was acknowledged.
        Closed = 10 {
            /// Which (already the stack's again).
            conn: ConnId = [4],
            /// Why it did not end well.
            failure: Option<Failure> = [8],
        },
        /// The answer to `Query`.
        Info = 11 {
            /// Which.
            conn: ConnId = [4],
            /// The request's.
            token: Token = [8],
            bytes chain: "The words of `tcp::TcpInfo`, or nothing where the connection is gone.",
        },
        /// How much of the stream was sent, where TCP_NOTSENT_LOWAT is set: when a quarter of that has gone, or what waits unsent has
        /// fallen below half of it.
        Sent = 12 {
            /// Which.
            conn: ConnId = [4],
            /// Bytes of the stream sent at least once since it began, modulo 2^32.
            total: u32 = [8],
            /// Bytes of a burst: what is written is taken in such pieces.
            burst: u32 = [12],
        },
        /// The peer marked a byte as urgent.
        Urgent = 13 {
            /// Which.
            conn: ConnId = [4],
            /// How many bytes, after those delivered so far, come before it.
            beyond: u32 = [8],
        },
        /// A connection is released: whoever takes it has all that was told of it.
        Released = 15 {
            /// Which.
            conn: ConnId = [4],
        },
        /// The send buffer has grown by itself (it does until SO_SNDBUF is set).
        Room = 14 {
            /// Which.
            conn: ConnId = [4],
            /// Its size now, in bytes.
            bytes: u32 = [8],
        },
    }
}

impl Event {
    /// The connection that a message is about, if it is about one.
    #[inline]
    pub fn subject(message: &Message) -> ConnId {
        ConnId((message.words[0] >> 32) as u32)
    }
}

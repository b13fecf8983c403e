//! Jobs: from the application to the stack.

use mem::ring::Message;

use crate::codes::{CloseMode, ConnOption};
use crate::field::Field;
use crate::names::{ConnId, Endpoint, ListenerId, Token};
use crate::table::messages;

messages! {
    /// From the application to the stack.
    Job {
        /// Active open; `Opened` gives it a number, `Connected` or `Failed` says how it went.
        Connect = 1 {
            /// Comes back in the answer.
            token: Token = [4],
            /// Local end; unspecified address and port 0 let the stack choose.
            local: Endpoint = [8, 16],
            /// Remote end.
            remote: Endpoint = [10, 32],
            /// SO_RCVBUF in bytes; 0 for the configured one.
            receive_buffer: u32 = [12],
        } => Opened | Refused,
        /// Passive open.
        Listen = 2 {
            /// Comes back in the answer.
            token: Token = [4],
            /// Address (or unspecified) and port (0: the stack chooses).
            local: Endpoint = [8, 16],
            /// Most connections that are complete and not yet taken.
            backlog: u32 = [32],
            /// An unspecified IPv6 address does not take IPv4 (IPV6_V6ONLY).
            v6_only: bool = [2],
            /// Several listeners on one address share its connections (SO_REUSEPORT).
            reuse_port: bool = [3],
            /// SO_RCVBUF of accepted connections in bytes; 0 for the configured one.
            receive_buffer: u32 = [12],
        } => Listening | Refused,
        /// The application took accepted connections off its queue: the backlog has room again.
        Taken = 3 {
            /// Whose.
            listener: ListenerId = [4],
            /// How many since the last report.
            count: u32 = [8],
        },
        /// Stops listening; connections not yet taken by the application are reset.
        CloseListener = 4 {
            /// Which.
            listener: ListenerId = [4],
        },
        /// Bytes to send.
        Write = 5 {
            /// Where.
            conn: ConnId = [4],
            /// More follows at once (MSG_MORE): a partial segment may wait.
            more: bool = [2],
            /// The application is done with the number, as [`CloseMode::Graceful`] says: [`Job::followed_by_close`].
            close: bool = [3],
            bytes chain: "What.",
        },
        /// The application has read bytes since the last report: the window may open.
        Consumed = 6 {
            /// Where.
            conn: ConnId = [4],
            /// How many.
            bytes: u32 = [8],
        },
        /// FIN after what is queued.
        Shutdown = 7 {
            /// Which.
            conn: ConnId = [4],
        },
        /// The application is done with the number. `Closed` answers the mode `Report`.
        Close = 8 {
            /// Which.
            conn: ConnId = [4],
            /// How.
            mode: CloseMode = [2],
        } => Closed,
        /// RST now; the number is the stack's again.
        Abort = 9 {
            /// Which.
            conn: ConnId = [4],
        },
        /// Sets an option.
        SetOption = 10 {
            /// Which connection.
            conn: ConnId = [4],
            /// Which option.
            option: ConnOption = [2],
            /// Its value, in the option's unit.
            value: u32 = [8],
        },
        /// Asks for a snapshot of a connection (TCP_INFO).
        Query = 11 {
            /// Which.
            conn: ConnId = [4],
            /// Comes back in the answer.
            token: Token = [8],
        } => Info,
        /// Sets an option of the connection or listener that the next `Connect` or `Listen` asks for: its SYN knows it.
        Prepare = 12 {
            /// Which option.
            option: ConnOption = [2],
            /// Its value, in the option's unit.
            value: u32 = [8],
        },
        /// Sets an option that connections accepted from now on inherit.
        SetListenerOption = 13 {
            /// Which listener.
            listener: ListenerId = [4],
            /// Which option.
            option: ConnOption = [2],
            /// Its value, in the option's unit.
            value: u32 = [8],
        },
        /// Changes a listener's backlog.
        SetBacklog = 14 {
            /// Which.
            listener: ListenerId = [4],
            /// Most connections that are complete and not yet taken.
            backlog: u32 = [8],
        },
        /// The last byte of the next `Write` is urgent (MSG_OOB).
        Urgent = 15 {
            /// Where.
            conn: ConnId = [4],
            /// How many bytes the next `Write` carries.
            bytes: u32 = [8],
        },
        /// What was written so far ends a record (MSG_EOR): no segment carries its last byte and what is written later.
        EndRecord = 16 {
            /// Where.
            conn: ConnId = [4],
        },
        /// What is acknowledged is told by `Acked` at once, and when it is nothing yet, as soon as it is something.
        TellAcked = 17 {
            /// Where.
            conn: ConnId = [4],
        } => Acked,
        /// The application ends, and closes all that it has: each of these closes is told the peer by a FIN, and none is a RST because
        /// there are more orphans than Linux would keep. Void when it opens something new.
        Ending = 18,
        /// Another thread of the client is to have the connection: nothing is told of it from now on, until that one takes it. What was told
        /// before comes before the answer.
        Release = 19 {
            /// Which.
            conn: ConnId = [4],
        } => Released,
        /// A connection that another thread of the client has released is this one's from now on.
        Take = 20 {
            /// Which.
            conn: ConnId = [4],
        },
    }
}

/// Where a [`Job::Write`] says that it is followed by a close.
const CLOSE: [usize; 1] = [3];

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
            | Job::TellAcked { conn }
            | Job::Release { conn }
            | Job::Take { conn } => Some(*conn),
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
        let words = &mut message.words;
        let write = words[0] as u16 == 5 && ConnId::get(words, [4]) == Some(conn);
        write.put(words, CLOSE);
        write
    }
}

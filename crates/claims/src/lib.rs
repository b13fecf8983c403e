//! Messages between the preload library, in a program's processes, and the helper of `corelane run`.
//!
//! Each request is a connection of its own to an abstract UNIX socket (SOCK_SEQPACKET): one message with a listener's descriptor
//! (SCM_RIGHTS), one answer, with a descriptor where the answer is [`Verdict::Replace`] or [`Verdict::Ports`]. So a program has no
//! descriptor of ours that it could close, count or pass on, and one that has changed its root or user reaches the helper all the same.

#![no_std]
#![forbid(unsafe_code)]

/// Environment variable by which a process finds the helper: `NAME:TOKEN`, the name of its abstract socket and 32 digits
/// ([`Token::hex`]), and behind that `:ports` where connections that it opens have ports by core.
pub const VARIABLE: &str = "CORELANE_RUN";

/// Version of these messages: the library and the command may come from different builds.
const VERSION: u8 = 3;

/// Proof that a process was started by `corelane run`, or by a program of it. Names of abstract sockets are no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(pub [u8; 16]);

impl Token {
    /// Digits, 32 hexadecimal ones.
    pub fn hex(self) -> [u8; 32] {
        let digit = |half: u8| b"0123456789abcdef"[usize::from(half & 15)];
        core::array::from_fn(|at| digit(self.0[at / 2] >> (4 * (1 - at % 2))))
    }

    /// From what [`hex`](Token::hex) gives.
    pub fn from_hex(digits: &[u8]) -> Option<Token> {
        let digits: &[u8; 32] = digits.try_into().ok()?;
        let half = |digit: u8| (digit as char).to_digit(16).map(|value| value as u8);
        let mut token = [0; 16];
        for (byte, pair) in token.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = half(pair[0])? << 4 | half(pair[1])?;
        }
        Some(Token(token))
    }
}

/// Value of [`VARIABLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Helper<'a> {
    /// Name of its abstract socket.
    pub name: &'a [u8],
    /// Proof for it.
    pub token: Token,
    /// Ports are dealt by core ([`Kind::Ports`]).
    pub ports: bool,
}

impl Helper<'_> {
    /// Splits the value of [`VARIABLE`].
    pub fn read(value: &[u8]) -> Option<Helper<'_>> {
        let (value, ports) = value.strip_suffix(b":ports").map_or((value, false), |value| (value, true));
        let colon = value.iter().rposition(|byte| *byte == b':')?;
        let (name, token) = (&value[..colon], Token::from_hex(&value[colon + 1..])?);
        (!name.is_empty() && name.len() <= MOST_NAME).then_some(Helper { name, token, ports })
    }
}

/// Longest name of the helper's socket, in bytes: what `struct sockaddr_un` has room for behind the zero.
pub const MOST_NAME: usize = 107;

/// Cause of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A socket is about to listen.
    Listen = 1,
    /// A thread is about to wait for a listener's connections: by epoll, or in any way for a socket that its process listens with.
    Poll = 2,
    /// A process is about to close its part.
    Close = 3,
    /// A program has attached a program of its own to the socket's group (SO_ATTACH_REUSEPORT_CBPF, _EBPF).
    Attach = 4,
    /// A process waits for connections of its part no more, and keeps it open: it has left its last epoll set.
    Away = 5,
    /// A thread is about to wait for a listener that its process has inherited, in a way of those that serve one connection at a time.
    Share = 6,
    /// A program has started, and is about to open connections. Its own socket goes with the request.
    Ports = 7,
}

/// A request; the listener's descriptor goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The sender's.
    pub token: Token,
    /// Cause.
    pub kind: Kind,
    /// Thread that asks (gettid(2)).
    pub tid: u32,
    /// Number of the listener's descriptor in that process.
    pub fd: u16,
}

/// Bytes of a request.
pub const REQUEST: usize = 24;

impl Request {
    /// Encodes.
    pub fn encode(&self) -> [u8; REQUEST] {
        let mut bytes = [0; REQUEST];
        bytes[..16].copy_from_slice(&self.token.0);
        bytes[16..20].copy_from_slice(&self.tid.to_ne_bytes());
        (bytes[20], bytes[21]) = (VERSION, self.kind as u8);
        bytes[22..].copy_from_slice(&self.fd.to_ne_bytes());
        bytes
    }

    /// Decodes; `None` where they are no request of this version.
    pub fn decode(bytes: &[u8]) -> Option<Request> {
        let bytes: &[u8; REQUEST] = bytes.try_into().ok()?;
        let kind = match (bytes[20], bytes[21]) {
            (VERSION, 1) => Kind::Listen,
            (VERSION, 2) => Kind::Poll,
            (VERSION, 3) => Kind::Close,
            (VERSION, 4) => Kind::Attach,
            (VERSION, 5) => Kind::Away,
            (VERSION, 6) => Kind::Share,
            (VERSION, 7) => Kind::Ports,
            _ => return None,
        };
        let tid = u32::from_ne_bytes(*bytes[16..].first_chunk()?);
        let fd = u16::from_ne_bytes(*bytes[22..].first_chunk()?);
        Some(Request { token: Token(*bytes.first_chunk()?), kind, tid, fd })
    }
}

/// The helper's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Verdict {
    /// The socket is no business of `corelane run`.
    Leave = 1,
    /// The socket stays as it is: it is to be partitioned once somebody waits for it, or is the process's own part.
    Keep = 2,
    /// The descriptor that comes with the answer is for the listener's place: the process's part, or the program's own socket for
    /// a part that is given back.
    Replace = 3,
    /// The descriptor that comes with the answer is of the memory of [`ports`].
    Ports = 4,
}

/// Bytes of an answer.
pub const ANSWER: usize = 2;

impl Verdict {
    /// Encodes.
    pub fn encode(self) -> [u8; ANSWER] {
        [VERSION, self as u8]
    }

    /// Decodes; `None` where they are no answer of this version.
    pub fn decode(bytes: &[u8]) -> Option<Verdict> {
        match bytes {
            [VERSION, 1] => Some(Verdict::Leave),
            [VERSION, 2] => Some(Verdict::Keep),
            [VERSION, 3] => Some(Verdict::Replace),
            [VERSION, 4] => Some(Verdict::Ports),
            _ => None,
        }
    }
}

/// Memory that the helper and the processes of a program share (memfd_create(2), of a size that is sealed): a line for each core, from 0.
pub mod ports {
    /// Bytes of a line.
    pub const LINE: usize = 64;
    /// Place of the core's ports, a `u32` as IP_LOCAL_PORT_RANGE takes it: the first in the low half, the last in the high half. 0 for a
    /// core without ports of its own.
    pub const RANGE: usize = 0;
    /// Place of the connections that were opened from them, a `u64`.
    pub const OPENED: usize = 8;
    /// Place of the connections that were opened on the core from others, since it has none, or none was free, a `u64`.
    pub const BEYOND: usize = 16;

    /// A line before anything was opened.
    pub fn line(range: Option<(u16, u16)>) -> [u8; LINE] {
        let mut line = [0; LINE];
        let range = range.map_or(0, |(first, last)| u32::from(first) | u32::from(last) << 16);
        line[RANGE..RANGE + 4].copy_from_slice(&range.to_ne_bytes());
        line
    }

    /// Connections opened from a core's own ports, and from others.
    pub fn counted(line: &[u8; LINE]) -> (u64, u64) {
        let number = |at: usize| line[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        (number(OPENED), number(BEYOND))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_were() {
        let token = Token(core::array::from_fn(|at| (at as u8 * 17) ^ 5));
        for kind in [Kind::Listen, Kind::Poll, Kind::Close, Kind::Attach, Kind::Away, Kind::Share, Kind::Ports] {
            let request = Request { token, kind, tid: 4_194_303, fd: 65_535 };
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        for verdict in [Verdict::Leave, Verdict::Keep, Verdict::Replace, Verdict::Ports] {
            assert_eq!(Verdict::decode(&verdict.encode()), Some(verdict));
        }
        assert_eq!(Token::from_hex(&token.hex()), Some(token));
    }

    #[test]
    fn messages_of_other_versions_and_lengths_are_none() {
        let mut bytes = Request { token: Token([7; 16]), kind: Kind::Poll, tid: 1, fd: 3 }.encode();
        assert_eq!(Request::decode(&bytes[..REQUEST - 1]), None);
        bytes[21] = 8;
        assert_eq!(Request::decode(&bytes), None);
        (bytes[20], bytes[21]) = (VERSION + 1, 1);
        assert_eq!(Request::decode(&bytes), None);
        for answer in [&[][..], &[VERSION], &[VERSION, 0], &[VERSION, 5], &[VERSION + 1, 1], &[VERSION, 1, 1]] {
            assert_eq!(Verdict::decode(answer), None);
        }
    }

    #[test]
    fn the_variable_names_a_socket_and_a_token() {
        let token = Token([0xa5; 16]);
        let digits = token.hex();
        let value = |name: &[u8]| {
            let mut bytes = [0; 256];
            bytes[..name.len()].copy_from_slice(name);
            bytes[name.len()] = b':';
            bytes[name.len() + 1..name.len() + 33].copy_from_slice(&digits);
            (bytes, name.len() + 33)
        };
        let read = |bytes: &[u8]| Helper::read(bytes).map(|helper| (helper.name.len(), helper.token, helper.ports));
        let (mut bytes, len) = value(b"corelane-run:1");
        assert_eq!(Helper::read(&bytes[..len]), Some(Helper { name: b"corelane-run:1", token, ports: false }));
        assert_eq!(read(&bytes[..len - 1]), None);
        bytes[len..len + 6].copy_from_slice(b":ports");
        assert_eq!(read(&bytes[..len + 6]), Some((14, token, true)));
        assert_eq!(read(&bytes[..len + 5]), None);
        assert_eq!(read(b":ports"), None);
        assert_eq!(read(b""), None);
        let (bytes, len) = value(b"");
        assert_eq!(read(&bytes[..len]), None);
        let (bytes, len) = value(&[b'x'; MOST_NAME + 1]);
        assert_eq!(read(&bytes[..len]), None);
    }

    #[test]
    fn a_line_of_ports_begins_with_the_range_as_the_kernel_takes_it() {
        let line = ports::line(Some((32_768, 46_881)));
        assert_eq!(u32::from_ne_bytes(*line.first_chunk().unwrap()), 46_881 << 16 | 32_768);
        assert_eq!((ports::counted(&line), ports::line(None)), ((0, 0), [0; ports::LINE]));
    }
}

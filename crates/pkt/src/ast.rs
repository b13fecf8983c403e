//! What a script says.

use std::net::IpAddr;

/// A whole script.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    /// The `--name=value` lines at its start.
    pub options: Vec<(u32, String, Option<String>)>,
    /// The command without a time before the first event.
    pub init: Option<(u32, String)>,
    /// In order.
    pub events: Vec<Event>,
    /// The command without a time after the last event.
    pub cleanup: Option<(u32, String)>,
}

/// Something at a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Where its time stands.
    pub line: u32,
    /// When.
    pub time: Time,
    /// What.
    pub action: Action,
}

/// When an event is, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// Since the start of the script.
    At(u64),
    /// After the event before.
    After(u64),
    /// `*`.
    Any,
    /// `a~b`.
    Between(u64, u64),
    /// `+a~+b`.
    AfterBetween(u64, u64),
}

/// What happens in an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A packet comes or goes.
    Packet(Packet),
    /// The application calls.
    Call(Call),
    /// A shell's command line.
    Command(String),
    /// Python.
    Code(String),
}

/// `<` or `>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the stack under test.
    In,
    /// From it.
    Out,
}

/// A packet.
#[derive(Clone, Debug, PartialEq)]
pub struct Packet {
    /// Who sends it.
    pub direction: Direction,
    /// What is known of its IP header.
    pub ip: Ip,
    /// Headers around it, by name.
    pub encapsulation: Vec<&'static str>,
    /// What it carries.
    pub body: Body,
}

/// What of an IP header a script may name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ip {
    /// The byte of DSCP and ECN.
    pub tos: Tos,
    /// IPv6's flow label.
    pub flow_label: Option<u32>,
    /// Time to live, or hop limit.
    pub ttl: Option<u8>,
}

/// What is said of the byte of DSCP and ECN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tos {
    /// Nothing.
    #[default]
    Unsaid,
    /// The two bits of ECN.
    Ecn(u8),
    /// ECT(0) or ECT(1).
    Ect01,
    /// All of it.
    Byte(u8),
}

/// What a packet carries.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// A segment.
    Tcp(Tcp),
    /// A datagram with so many bytes.
    Udp {
        /// Source and destination; 0 where nothing is said.
        ports: (u16, u16),
        /// Bytes.
        payload: u16,
    },
    /// An ICMP message.
    Icmp(Icmp),
}

/// A segment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tcp {
    /// Source and destination; 0 where nothing is said.
    pub ports: (u16, u16),
    /// FIN to AE, as in the header.
    pub flags: u16,
    /// The three bits of AE, CWR and ECE were given as a number.
    pub ace: bool,
    /// Relative, unless it is a SYN's.
    pub seq: u32,
    /// Bytes.
    pub payload: u16,
    /// Acknowledgment number.
    pub ack: u32,
    /// As in the header; `None` checks nothing.
    pub window: Option<u16>,
    /// Urgent pointer.
    pub urgent: u16,
    /// In order; `None` (`<...>`) checks nothing.
    pub options: Option<Vec<TcpOption>>,
}

/// A TCP option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TcpOption {
    /// End of the list.
    Eol,
    /// One byte of padding.
    Nop,
    /// Maximum segment size.
    Mss(u16),
    /// Window scale.
    WindowScale(u8),
    /// SACK permitted.
    SackPermitted,
    /// Left and right edges.
    Sack(Vec<(u32, u32)>),
    /// Value and echo.
    Timestamps(u32, u32),
    /// RFC 2385's digest.
    Md5(Vec<u8>),
    /// Fast Open's cookie; true in its experimental form.
    FastOpen(Vec<u8>, bool),
    /// Accurate ECN: kind (172 or 174) and its counters of 24 bits.
    AccEcn(u8, Vec<u32>),
    /// A kind without a name, as it came.
    Other(u8, Vec<u8>),
}

/// An ICMP message.
#[derive(Clone, Debug, PartialEq)]
pub struct Icmp {
    /// Name of the type.
    pub kind: String,
    /// Name of the code.
    pub code: Option<String>,
    /// Of a message that says the packet was too big.
    pub mtu: Option<u32>,
    /// Of an echo.
    pub id: u16,
    /// The packet of which it speaks.
    pub about: About,
}

/// What an ICMP message quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// A segment: sequence number and bytes.
    Tcp(u32, u16),
    /// A datagram of so many bytes.
    Udp(u16),
    /// Nothing, but so many bytes.
    Raw(u16),
}

/// A system call and its result.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// When it returns, if it blocks: microseconds, as the event's time is meant.
    pub end: Option<u64>,
    /// `read`, `poll`….
    pub name: String,
    /// In order.
    pub args: Vec<Expr>,
    /// What it returns.
    pub result: Expr,
    /// The name of its error.
    pub errno: Option<String>,
}

/// An argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// `...`: whatever fits.
    Ellipsis,
    /// A number.
    Int(i64),
    /// A name of a number.
    Word(String),
    /// Text.
    Str(String),
    /// `a | b`.
    Or(Box<Expr>, Box<Expr>),
    /// `[a, b]`.
    List(Vec<Expr>),
    /// `{a, b}`.
    Tuple(Vec<Expr>),
    /// `{name = value, name(n) = value}`.
    Struct(Vec<Field>),
    /// `name(argument)`, such as `htons(8080)`.
    Apply(String, Box<Expr>),
    /// An address.
    Address(IpAddr),
}

/// One field of a structure.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// In parentheses after the name.
    pub index: Option<Expr>,
    /// After the `=`.
    pub value: Expr,
}

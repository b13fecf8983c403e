//! What an administrator may set about one stack.

use core::time::Duration;

use wire::Ports;

use crate::Steering;

/// When SYNs are answered by cookies (RFC 4987 3.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SynCookies {
    /// Not at all: what finds no place is dropped, or pushes out the oldest.
    Never,
    /// When a listener's, or the whole, number of handshakes under way is reached.
    #[default]
    WhenFull,
    /// Always.
    Always,
}

/// Parameters of one lane's stack, which takes them as [`StackConfig::clamped`] leaves them.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// Most connections at once, TIME-WAIT aside.
    pub max_connections: u32,
    /// Most listeners.
    pub max_listeners: u32,
    /// TCP's own parameters.
    pub tcp: tcp::Config,
    /// How long a closed four-tuple is remembered (2 MSL).
    pub time_wait: Duration,
    /// Most TIME-WAIT records; the oldest gives way.
    pub max_time_wait: u32,
    /// Local ports of active opens.
    pub ports: Ports,
    /// Keys the flow hash, ISNs and port choice; may outlive the process, whose ISNs then go on where another's left off.
    pub secret: [u8; 16],
    /// Where port choice begins, with the secret: drawn fresh for each process.
    pub ports_start: u64,
    /// Which lane a flow belongs to.
    pub steering: Steering,
    /// This lane.
    pub lane: u16,
    /// Frames may arrive by other lanes' queues than `steering` says: which local ports lead to ours is learnt from the answers to
    /// our SYNs, and these are taken first.
    pub learn: bool,
    /// Limits of fragment reassembly.
    pub fragments: FragmentLimits,
    /// Smallest path MTU that an ICMP message may tell of over IPv4, bytes (Linux's min_pmtu); IPv6's is 1280.
    pub min_path_mtu: u16,
    /// Most handshakes under way of one listener; its backlog limits them too.
    pub syn_backlog: u32,
    /// Most handshakes under way of all listeners.
    pub max_half_open: u32,
    /// What happens beyond these.
    pub syn_cookies: SynCookies,
    /// Most connections that the application has closed and that are not over; beyond, they are reset.
    pub max_orphans: u32,
    /// A handshake that ends while the accept queue is full is reset rather than kept waiting.
    pub abort_on_overflow: bool,
    /// Most neighbours known at once.
    pub max_neighbors: usize,
    /// How long a connection has nothing under way before it is parked in a third of the space.
    pub park_after: Duration,
}

impl StackConfig {
    /// The same within the limits where every formula holds (see [`tcp::Config::clamped`]).
    pub fn clamped(mut self) -> StackConfig {
        const DAY: Duration = Duration::from_secs(86_400);
        self.tcp = self.tcp.clamped();
        self.time_wait = self.time_wait.min(DAY);
        self.fragments.timeout = self.fragments.timeout.min(DAY);
        self.min_path_mtu = self.min_path_mtu.clamp(68, 1500);
        self
    }
}

impl Default for StackConfig {
    fn default() -> StackConfig {
        StackConfig {
            max_connections: 1 << 20,
            max_listeners: 4096,
            tcp: tcp::Config::default(),
            time_wait: Duration::from_secs(60),
            max_time_wait: 262_144,
            park_after: Duration::from_secs(1),
            ports: Ports::new(49_152, 65_535),
            secret: [0; 16],
            ports_start: 0,
            steering: Steering::Single,
            lane: 0,
            learn: false,
            fragments: FragmentLimits::default(),
            min_path_mtu: 552,
            syn_backlog: 4096,
            max_half_open: 32_768,
            syn_cookies: SynCookies::default(),
            max_orphans: 65_536,
            abort_on_overflow: false,
            max_neighbors: 4096,
        }
    }
}

/// Limits of reassembly.
#[derive(Clone, Debug)]
pub struct FragmentLimits {
    /// Datagrams under way at once.
    pub datagrams: usize,
    /// Memory held by all of them, bytes; each piece is charged 64 beside its data.
    pub bytes: usize,
    /// How long the rest of a datagram may take (RFC 1122 3.3.2; Linux's 30 s).
    pub timeout: Duration,
}

impl Default for FragmentLimits {
    fn default() -> FragmentLimits {
        FragmentLimits { datagrams: 64, bytes: 4 << 20, timeout: Duration::from_secs(30) }
    }
}

//! What one stack counted; plain numbers that the lane alone writes.

macro_rules! drops {
    ($($(#[$doc:meta])* $variant:ident = $name:literal),* $(,)?) => {
        /// Why a frame or packet went no further.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum DropReason {
            $($(#[$doc])* $variant,)*
        }

        impl DropReason {
            /// All reasons.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$variant),*];

            /// Its name in statistics.
            pub fn name(self) -> &'static str {
                match self {
                    $(DropReason::$variant => $name,)*
                }
            }
        }
    };
}

drops! {
    /// Shorter than its headers, or lengths that contradict one another.
    Malformed = "drop_malformed",
    /// Neither ARP, IPv4 nor IPv6.
    EtherType = "drop_ethertype",
    /// Not for our hardware address, or another VLAN's.
    NotOurLink = "drop_not_our_link",
    /// Not for one of our addresses.
    NotOurAddress = "drop_not_our_address",
    /// A source that no host may have.
    BadSource = "drop_bad_source",
    /// The IPv4 header checksum is wrong.
    IpChecksum = "drop_ip_checksum",
    /// The TCP checksum is wrong.
    TcpChecksum = "drop_tcp_checksum",
    /// The ICMP checksum is wrong.
    IcmpChecksum = "drop_icmp_checksum",
    /// A transport protocol that this stack does not speak.
    Protocol = "drop_protocol",
    /// No listener and no connection: answered by RST.
    NoSocket = "drop_no_socket",
    /// The accept queue is full.
    Backlog = "drop_backlog",
    /// Too many half-open connections.
    SynBacklog = "drop_syn_backlog",
    /// The connection table is full.
    NoConnection = "drop_no_connection",
    /// No route back.
    NoRoute = "drop_no_route",
    /// The next hop's hardware address is unknown.
    NoNeighbor = "drop_no_neighbor",
    /// A fragment that may not be: of wrong length, without the headers, of a neighbour message.
    Fragment = "drop_fragment",
    /// A fragment that overlaps others, and what else comes of its datagram (RFC 5722).
    FragmentOverlap = "drop_fragment_overlap",
    /// A fragment or an incomplete datagram beyond the limits.
    FragmentLimit = "drop_fragment_limit",
    /// A datagram that was not complete in time.
    FragmentTimeout = "drop_fragment_timeout",
    /// An ICMP message that means nothing here.
    Icmp = "drop_icmp",
    /// An ICMP error that fits no connection (RFC 5927).
    IcmpUnmatched = "drop_icmp_unmatched",
    /// Replies outside connections wait in a bounded queue; it was full.
    ReplyQueue = "drop_reply_queue",
    /// An ARP or NDP message that is not to be believed.
    Neighbor = "drop_neighbor",
    /// A job that does not decode, or names no connection.
    BadJob = "drop_bad_job",
}

/// Statistics of one stack.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// TCP's own.
    pub tcp: tcp::Counters,
    /// Frames taken.
    pub frames_in: u64,
    /// Bytes of those.
    pub bytes_in: u64,
    /// Frames given.
    pub frames_out: u64,
    /// Bytes of those.
    pub bytes_out: u64,
    /// TCP segments taken.
    pub segments_in: u64,
    /// TCP segments given.
    pub segments_out: u64,
    /// Connections opened by peers.
    pub passive_opens: u64,
    /// Connections opened by us.
    pub active_opens: u64,
    /// Opens that failed.
    pub failed_opens: u64,
    /// Connections whose last state was passed.
    pub closed: u64,
    /// Connections that ended by error.
    pub failed: u64,
    /// RST sent where there was no connection.
    pub resets_out: u64,
    /// TIME-WAIT records made.
    pub time_waits: u64,
    /// TIME-WAIT records that gave way to a new SYN (RFC 6191).
    pub time_wait_reused: u64,
    /// TIME-WAIT records dropped because there were too many.
    pub time_wait_evicted: u64,
    /// SYNs answered by a cookie.
    pub cookies_sent: u64,
    /// Cookies that came back.
    pub cookies_received: u64,
    /// ACKs that might have carried a cookie and did not.
    pub cookies_failed: u64,
    /// Handshakes dropped for newer ones.
    pub half_open_evicted: u64,
    /// Handshakes that were not answered.
    pub half_open_expired: u64,
    /// Handshakes that ended while the accept queue was full.
    pub accept_overflows: u64,
    /// Bytes out of order that were dropped for want of chunks.
    pub shed: u64,
    /// Connections reset because too many had been closed and were not over.
    pub orphans_reset: u64,
    /// Clients in other processes that were ended for what they did.
    pub clients_ended: u64,
    /// Connections that a client left unaccepted when it ended, and that another one was offered.
    pub offered_again: u64,
    /// ACKs of handshakes that did not count for want of data (TCP_DEFER_ACCEPT).
    pub accepts_deferred: u64,
    /// ICMP echo requests answered.
    pub echoes: u64,
    /// Path MTUs lowered.
    pub path_mtu: u64,
    /// Other hosts seen with an address of ours.
    pub address_conflicts: u64,
    /// Addresses not used because another host has them.
    pub addresses_lost: u64,
    /// Router advertisements believed.
    pub router_adverts: u64,
    /// Redirects followed.
    pub redirects: u64,
    /// Next hops for which the kernel's table of neighbours had no room (gc_thresh3).
    pub neighbors_refused: u64,
    /// Packets reassembled from fragments.
    pub reassembled: u64,
    /// Jobs done.
    pub jobs: u64,
    /// Events given.
    pub events: u64,
    /// Events held back because the ring was full.
    pub events_held: u64,
    /// Bursts that were not empty.
    pub bursts: u64,
    /// Times that all windows were bound, or bound more, since the device's ring was nearly full.
    pub window_cuts: u64,
    /// Segments that only continued the one before them in their burst.
    pub followed: u64,
    /// Answers to our SYNs that came by our own queue, where a NIC's hash is being learnt.
    pub answers_own: u64,
    /// Those that came by another lane's, and were handed over.
    pub answers_handed: u64,
    /// Times that an interface's hash had been learnt as far as local ports need it.
    pub lanes_learnt: u64,
    /// Answers that came by another queue than what was learnt said, which is then forgotten.
    pub lanes_mistaken: u64,
    drops: [u64; DropReason::ALL.len()],
}

impl Counters {
    pub(crate) fn drop(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }

    /// How often `reason` was met.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// Name and value of everything.
    pub fn rows(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let own = [
            ("frames_in", self.frames_in),
            ("bytes_in", self.bytes_in),
            ("frames_out", self.frames_out),
            ("bytes_out", self.bytes_out),
            ("segments_in", self.segments_in),
            ("segments_out", self.segments_out),
            ("passive_opens", self.passive_opens),
            ("active_opens", self.active_opens),
            ("failed_opens", self.failed_opens),
            ("closed", self.closed),
            ("failed", self.failed),
            ("resets_out", self.resets_out),
            ("time_waits", self.time_waits),
            ("time_wait_reused", self.time_wait_reused),
            ("time_wait_evicted", self.time_wait_evicted),
            ("cookies_sent", self.cookies_sent),
            ("cookies_received", self.cookies_received),
            ("cookies_failed", self.cookies_failed),
            ("half_open_evicted", self.half_open_evicted),
            ("half_open_expired", self.half_open_expired),
            ("accept_overflows", self.accept_overflows),
            ("shed", self.shed),
            ("orphans_reset", self.orphans_reset),
            ("clients_ended", self.clients_ended),
            ("offered_again", self.offered_again),
            ("accepts_deferred", self.accepts_deferred),
            ("echoes", self.echoes),
            ("path_mtu", self.path_mtu),
            ("address_conflicts", self.address_conflicts),
            ("addresses_lost", self.addresses_lost),
            ("router_adverts", self.router_adverts),
            ("redirects", self.redirects),
            ("neighbors_refused", self.neighbors_refused),
            ("reassembled", self.reassembled),
            ("jobs", self.jobs),
            ("events", self.events),
            ("events_held", self.events_held),
            ("bursts", self.bursts),
            ("window_cuts", self.window_cuts),
            ("followed", self.followed),
            ("answers_own", self.answers_own),
            ("answers_handed", self.answers_handed),
            ("lanes_learnt", self.lanes_learnt),
            ("lanes_mistaken", self.lanes_mistaken),
        ];
        let drops = DropReason::ALL.iter().map(|r| (r.name(), self.drops[*r as usize]));
        own.into_iter().chain(self.tcp.rows()).chain(drops.collect::<Vec<_>>())
    }
}

//! What one connection has counted.

/// Segments and bytes, from the first SYN on. Segments and retransmissions count modulo 2^32.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Statistics {
    pub segs_in: u32,
    pub segs_out: u32,
    pub retrans: u32,
    pub ooo_in: u32,
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub bytes_sent: u64,
    pub bytes_retrans: u64,
}

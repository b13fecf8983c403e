//! The UDP header (RFC 768): enough to name ports.

use crate::{Malformed, be16};

/// IP protocol number.
pub const PROTOCOL: u8 = 17;

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// From.
    pub src_port: u16,
    /// To.
    pub dst_port: u16,
    /// Bytes of header and payload.
    pub len: u16,
}

impl Header {
    /// Reads a header.
    pub fn parse(b: &[u8]) -> Result<Header, Malformed> {
        if b.len() < 8 {
            return Err(Malformed::Truncated);
        }
        Ok(Header { src_port: be16(b, 0), dst_port: be16(b, 2), len: be16(b, 4) })
    }
}

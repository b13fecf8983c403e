//! What frames of connections and others have in common: lengths, IP headers, checksums.

use wire::burst::{PartialChecksum, TxCaps, TxOffload};
use wire::{ipv4, ipv6};

use crate::FlowKey;
use crate::link::replies::TTL;

/// A checksum's sum, of long segments by the CPU's widest loads.
#[inline]
pub(crate) fn sum(bytes: &[u8]) -> wire::checksum::Sum {
    wire::checksum::sum_with(bytes, mem::sum::ones)
}

/// Bytes of the link's header.
pub(super) fn link(vlan: Option<u16>) -> usize {
    14 + if vlan.is_some() { 4 } else { 0 }
}

/// What was chosen, or the default (0): IPv6 routers may suggest one.
pub(crate) fn hop_limit(key: &FlowKey, chosen: u8, suggested: u8) -> u8 {
    match chosen {
        0 if key.remote.is_v4() => TTL,
        0 => suggested,
        chosen => chosen,
    }
}

/// The checksum of a frame of the common shape, which is finished here or left to the port.
#[inline(always)]
pub(crate) fn finish_bare(frame: &mut [u8], caps: TxCaps) -> TxOffload {
    if caps.checksum {
        return TxOffload { checksum: Some(PartialChecksum { start: 34, offset: 16 }), gso: None };
    }
    wire::tcp::finish_checksum(&mut frame[34..], sum);
    TxOffload::default()
}

/// The IP header in front of `payload` bytes of TCP of a connection.
pub(super) fn emit_tcp_ip(buf: &mut [u8], key: &FlowKey, class: u8, hops: u8, payload: usize) -> usize {
    let (src, dst) = (key.local, key.remote);
    if dst.is_v4() {
        ipv4::Header { src, dst, tos: class, ttl: hops, ..ipv4::Header::default() }.emit(buf, payload)
    } else {
        ipv6::Header { src, dst, traffic_class: class, hop_limit: hops, ..ipv6::Header::default() }.emit(buf, payload)
    }
}

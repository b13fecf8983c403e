//! The shape that nearly every frame has, read and written in one go: TCP over IPv4 without VLAN tag, IP options or
//! fragmentation. Whatever differs is refused here and goes the general way; what is accepted means the same there.

use crate::tcp::{Flags, Options, Timestamps};
use crate::{Addr, MacAddr, SeqNum, ethernet, ipv4};

/// A segment whose Ethernet and IPv4 headers are sound.
#[derive(Clone, Copy, Debug)]
pub struct Tcp4<'a> {
    /// Hardware address of the sender.
    pub mac: MacAddr,
    /// From.
    pub src: Addr,
    /// To.
    pub dst: Addr,
    /// Type of service.
    pub tos: u8,
    /// The TCP header and what follows.
    pub segment: &'a [u8],
}

/// Reads a frame of that shape sent to `mac` from a source that may send one (RFC 1122 3.2.1.3).
#[inline]
pub fn read<'a>(frame: &'a [u8], mac: MacAddr) -> Option<Tcp4<'a>> {
    let (h, _) = frame.split_first_chunk::<54>()?;
    let word = |at: usize| u32::from_be_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
    let raw = |at: usize| u32::from_ne_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]) as u64;
    let [m0, m1, m2, m3, m4, m5] = mac.0;
    let usual = word(0) == u32::from_be_bytes([m0, m1, m2, m3])
        && [h[4], h[5]] == [m4, m5]
        // IPv4, version and length of its header.
        && word(12) >> 8 == (ethernet::IPV4 as u32) << 8 | 0x45
        // Neither MF nor an offset.
        && word(20) & 0x3fff_00ff == ipv4::TCP as u32
        && !matches!(h[26], 0 | 127 | 224..);
    let sum = raw(14) + raw(18) + raw(22) + raw(26) + raw(30);
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let total = (word(16) >> 16) as usize;
    if !usual || (sum >> 16) + (sum & 0xffff) != 0xffff || total < 40 {
        return None;
    }
    Some(Tcp4 {
        mac: MacAddr([h[6], h[7], h[8], h[9], h[10], h[11]]),
        src: Addr::from_v4([h[26], h[27], h[28], h[29]]),
        dst: Addr::from_v4([h[30], h[31], h[32], h[33]]),
        tos: h[15],
        segment: frame.get(34..14 + total)?,
    })
}

/// The tuple of a frame that [`read`] may accept.
#[derive(Clone, Copy, Debug)]
pub struct Tuple {
    /// From.
    pub src: Addr,
    /// To.
    pub dst: Addr,
    /// From.
    pub src_port: u16,
    /// To.
    pub dst_port: u16,
}

/// Reads the tuple alone; what [`read`] accepts has one.
#[inline]
pub fn tuple(frame: &[u8]) -> Option<Tuple> {
    let (h, _) = frame.split_first_chunk::<54>()?;
    let usual = h[12..15] == [8, 0, 0x45] && h[23] == ipv4::TCP;
    usual.then(|| Tuple {
        src: Addr::from_v4([h[26], h[27], h[28], h[29]]),
        dst: Addr::from_v4([h[30], h[31], h[32], h[33]]),
        src_port: u16::from_be_bytes([h[34], h[35]]),
        dst_port: u16::from_be_bytes([h[36], h[37]]),
    })
}

/// The headers of a segment of that shape whose options are timestamps, or none; or those of a SYN as nearly all have them.
#[derive(Clone, Copy, Debug)]
pub struct Headers {
    /// Hardware address of the next hop.
    pub to: MacAddr,
    /// Ours.
    pub from: MacAddr,
    /// From.
    pub src: Addr,
    /// To.
    pub dst: Addr,
    /// Type of service.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// From.
    pub src_port: u16,
    /// To.
    pub dst_port: u16,
    /// `seg.seq`.
    pub seq: SeqNum,
    /// `seg.ack`.
    pub ack: SeqNum,
    /// Control bits.
    pub flags: Flags,
    /// `seg.wnd`, not scaled.
    pub window: u16,
}

/// Bytes that [`Headers::write`] writes at most.
pub const LONGEST: usize = 66;
/// Bytes that [`Headers::write_syn`] writes.
pub const SYN: usize = 74;

impl Headers {
    /// Writes Ethernet, IPv4 and TCP header for `payload` bytes; the TCP checksum field gets the folded pseudo-header. The
    /// length, or `None`, with nothing written, where `options` hold anything but timestamps or `buf` is shorter than
    /// [`LONGEST`].
    #[inline(always)]
    pub fn write(&self, buf: &mut [u8], options: &Options, payload: usize) -> Option<usize> {
        let b = buf.first_chunk_mut::<LONGEST>()?;
        if options.mss.is_some()
            || options.window_scale.is_some()
            || options.sack_permitted
            || !options.sack.as_slice().is_empty()
        {
            return None;
        }
        Some(self.write_ordinary(b, options.timestamps, payload))
    }

    /// The same where there is room, and no other option.
    #[inline(always)]
    pub fn write_ordinary(&self, b: &mut [u8; LONGEST], timestamps: Option<Timestamps>, payload: usize) -> usize {
        let tcp = if timestamps.is_some() { 32u16 } else { 20 };
        let (head, _) = b.split_at_mut(54);
        if let Ok(head) = head.try_into() {
            self.begin(head, tcp, tcp + payload as u16);
        }
        if let Some(ts) = timestamps {
            b[54..58].copy_from_slice(&[1, 1, 8, 10]);
            b[58..62].copy_from_slice(&ts.value.to_be_bytes());
            b[62..66].copy_from_slice(&ts.echo.to_be_bytes());
        }
        34 + tcp as usize
    }

    /// The same of a SYN or SYN/ACK without text that has all four options of Linux's, in its layout; `buf` has [`SYN`] bytes.
    // Not where every frame is written: it would cost those of bulk.
    #[inline(never)]
    pub fn write_syn(&self, buf: &mut [u8], options: &Options) -> Option<usize> {
        let b = buf.first_chunk_mut::<SYN>()?;
        let &Options { mss: Some(mss), window_scale: Some(shift), sack_permitted: true, timestamps: Some(ts), .. } =
            options
        else {
            return None;
        };
        if !self.flags.contains(Flags::SYN) {
            return None;
        }
        self.begin(b.first_chunk_mut()?, 40, 40);
        b[54..56].copy_from_slice(&[2, 4]);
        b[56..58].copy_from_slice(&mss.to_be_bytes());
        b[58..62].copy_from_slice(&[4, 2, 8, 10]);
        b[62..66].copy_from_slice(&ts.value.to_be_bytes());
        b[66..70].copy_from_slice(&ts.echo.to_be_bytes());
        b[70..74].copy_from_slice(&[1, 3, 3, shift]);
        Some(SYN)
    }

    /// All but the options, for a TCP header of `tcp` bytes and a segment of `segment`.
    #[inline(always)]
    fn begin(&self, b: &mut [u8; 54], tcp: u16, segment: u16) {
        let (src, dst) = (self.src.v4_octets(), self.dst.v4_octets());
        b[..6].copy_from_slice(&self.to.0);
        b[6..12].copy_from_slice(&self.from.0);
        b[12..16].copy_from_slice(&[8, 0, 0x45, self.tos]);
        b[16..18].copy_from_slice(&(20 + segment).to_be_bytes());
        // Identification 0, DF (RFC 6864 4.1).
        b[18..24].copy_from_slice(&[0, 0, 0x40, 0, self.ttl, ipv4::TCP]);
        b[26..30].copy_from_slice(&src);
        b[30..34].copy_from_slice(&dst);
        b[34..36].copy_from_slice(&self.src_port.to_be_bytes());
        b[36..38].copy_from_slice(&self.dst_port.to_be_bytes());
        b[38..42].copy_from_slice(&self.seq.0.to_be_bytes());
        b[42..46].copy_from_slice(&self.ack.0.to_be_bytes());
        b[46..48].copy_from_slice(&((tcp / 4) << 12 | self.flags.bits()).to_be_bytes());
        b[48..50].copy_from_slice(&self.window.to_be_bytes());
        b[52..54].fill(0);
        // Both sums count the addresses and the protocol.
        let (sum, carry) = u32::from_be_bytes(src).overflowing_add(u32::from_be_bytes(dst));
        let sum = sum + carry as u32;
        let both = (sum >> 16) + (sum & 0xffff) + ipv4::TCP as u32 + segment as u32;
        let header = both + 20 + (0x4500 | self.tos as u32) + 0x4000 + ((self.ttl as u32) << 8);
        b[24..26].copy_from_slice(&(!fold(header)).to_be_bytes());
        b[50..52].copy_from_slice(&fold(both).to_be_bytes());
    }
}

/// Both halves added, with the carry (RFC 1071 1): the upper half of the sum with the halves exchanged, into which the lower carries.
#[inline]
const fn fold(sum: u32) -> u16 {
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::{Header, Timestamps};
    use proptest::prelude::*;

    const US: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    /// What the general way reads of a frame that [`read`] accepts.
    fn general(frame: &[u8]) -> Option<Tcp4<'_>> {
        let e = ethernet::Frame::parse(frame).ok()?;
        let ip = ipv4::Packet::parse(e.payload).ok()?;
        let ordinary =
            !(ip.src.is_multicast() || ip.src.is_broadcast() || ip.src.is_unspecified() || ip.src.is_loopback());
        let ours = e.dst == US && e.vlan.is_none() && e.ethertype == ethernet::IPV4;
        (ours && ordinary && !ip.is_fragment() && ip.protocol == ipv4::TCP).then_some(Tcp4 {
            mac: e.src,
            src: ip.src,
            dst: ip.dst,
            tos: ip.tos,
            segment: ip.payload,
        })
    }

    /// What the general way writes.
    fn general_headers(h: &Headers, options: &Options, payload: usize, syn: bool) -> Vec<u8> {
        let mut b = vec![0xaa; 120];
        ethernet::emit(&mut b, h.to, h.from, None, ethernet::IPV4);
        let &Headers { src_port, dst_port, seq, ack, flags, window, .. } = h;
        let tcp = Header { src_port, dst_port, seq, ack, flags, window, urgent: 0, options: *options };
        let len = tcp.emit(&mut b[34..], syn);
        let ip = ipv4::Header { src: h.src, dst: h.dst, tos: h.tos, ttl: h.ttl, ..ipv4::Header::default() };
        ip.emit(&mut b[14..], len + payload);
        crate::tcp::fill_pseudo(h.src, h.dst, len + payload, &mut b[34..34 + len]);
        b.truncate(34 + len);
        b
    }

    fn headers() -> impl Strategy<Value = (Headers, Options)> {
        let one = any::<([u8; 6], [u8; 4], [u8; 4], u8, u8, u16, u16)>();
        let two = any::<(u32, u32, u16, Option<(u32, u32)>)>();
        (one, two, 0u16..0x200).prop_map(|((from, src, dst, tos, ttl, src_port, dst_port), two, flags)| {
            let (seq, ack, window, ts) = two;
            let h = Headers {
                to: US,
                from: MacAddr(from),
                src: Addr::from_v4(src),
                dst: Addr::from_v4(dst),
                tos,
                ttl,
                src_port,
                dst_port,
                seq: SeqNum(seq),
                ack: SeqNum(ack),
                flags: Flags::from_bits(flags),
                window,
            };
            let timestamps = ts.map(|(value, echo)| Timestamps { value, echo });
            (h, Options { timestamps, ..Options::default() })
        })
    }

    proptest! {
        #[test]
        fn writes_what_the_general_way_writes((h, options) in headers(), payload in 0usize..1449) {
            let mut quick = vec![0xaa; LONGEST];
            let n = h.write(&mut quick, &options, payload).unwrap();
            prop_assert_eq!(&quick[..n], &general_headers(&h, &options, payload, false)[..]);
            prop_assert!(h.write_syn(&mut [0; 120], &options).is_none());
        }

        #[test]
        fn writes_syns_as_the_general_way(
            (h, plain) in headers(), mss: Option<u16>, window_scale: Option<u8>, sack_permitted: bool, room in 60usize..90,
        ) {
            let options = Options { mss, window_scale, sack_permitted, ..plain };
            let mut quick = vec![0xaa; room];
            let all = mss.is_some() && window_scale.is_some() && sack_permitted && options.timestamps.is_some()
                && h.flags.contains(Flags::SYN);
            match h.write_syn(&mut quick, &options) {
                Some(n) => {
                    prop_assert!(all && room >= SYN && n == SYN);
                    prop_assert_eq!(&quick[..n], &general_headers(&h, &options, 0, true)[..]);
                }
                None => prop_assert!((!all || room < SYN) && quick.iter().all(|b| *b == 0xaa)),
            }
        }

        #[test]
        fn reads_what_the_general_way_reads(
            (h, options) in headers(), payload in proptest::collection::vec(any::<u8>(), 0..60), pad in 0usize..9,
            hit in proptest::option::of((0usize..60, any::<u8>())), cut in 0usize..140, fix: bool,
        ) {
            let mut b = vec![0; LONGEST];
            let n = h.write(&mut b, &options, payload.len()).unwrap();
            b.truncate(n);
            b.extend(&payload);
            b.resize(b.len() + pad, 0);
            if let Some((at, x)) = hit {
                b[at % n] ^= x;
                if fix {
                    // The header stays sound, so that what it says is looked at.
                    b[24..26].fill(0);
                    let sum = crate::checksum::sum(&b[14..34]).finish();
                    b[24..26].copy_from_slice(&sum.to_be_bytes());
                }
            }
            b.truncate(cut.max(20));
            let (quick, general) = (read(&b, US), general(&b));
            if let Some(q) = quick {
                let g = general.expect("the general way takes it too");
                prop_assert_eq!((q.mac, q.src, q.dst, q.tos, q.segment), (g.mac, g.src, g.dst, g.tos, g.segment));
                let t = tuple(&b).expect("what is read has a tuple");
                let s = crate::tcp::Segment::parse(q.segment);
                let ports = s.map_or((t.src_port, t.dst_port), |s| (s.src_port, s.dst_port));
                prop_assert_eq!((t.src, t.dst, (t.src_port, t.dst_port)), (q.src, q.dst, ports));
            } else if let Some(g) = general {
                // Left to the general way: IP options, or a source in 0/8 or 240/4.
                prop_assert!(b[14] != 0x45 || matches!(b[26], 0 | 240..) || g.segment.len() < 20, "{b:?}");
            }
        }

        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = read(&bytes, US);
        }
    }
}

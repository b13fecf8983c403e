//! From a connection's segments to frames in the port's memory.

use tcp::Outgoing;
use wire::burst::{Gso, PARTS, PartialChecksum, TxCaps, TxOffload, TxSink};
use wire::quick::Headers;
use wire::tcp::Flags;
use wire::{MacAddr, ethernet, ipv4};

use crate::FlowKey;
use crate::InterfaceId;
use crate::conns::conn::Conn;
use crate::engine::headers::{emit_tcp_ip, hop_limit, link, sum};
use crate::link::interface::Interface;

/// Longest IP packet.
const LONGEST: usize = 65_535;

/// What the frames that leave by one interface have in common.
pub(crate) struct Via {
    pub interface: InterfaceId,
    pub mac: MacAddr,
    pub vlan: Option<u16>,
    /// What IPv6 routers suggest.
    pub hop_limit: u8,
    /// Addresses are being asked for: connections may have to wait.
    pub asking: bool,
    pub caps: TxCaps,
    /// Sums are left to the port, which need no look at the payload, and it takes frames in parts.
    pub gathers: bool,
    /// For the largest segment that the link takes, options included.
    pub room: usize,
    /// The straight path may be taken: no tag, room for its headers, and no address is asked for.
    pub plain: bool,
}

impl Via {
    pub fn new(i: &Interface, interface: InterfaceId, caps: TxCaps, gathers: bool) -> Via {
        let (mac, vlan, mtu) = (i.mac(), i.vlan(), i.config.mtu);
        Via {
            interface,
            mac,
            vlan,
            hop_limit: i.hop_limit(),
            asking: i.is_asking(),
            caps,
            gathers: caps.checksum && gathers,
            room: link(vlan) + mtu as usize,
            plain: vlan.is_none() && !i.is_asking() && mtu as usize >= wire::quick::LONGEST,
        }
    }
}

/// How far a connection came with what it has to send.
pub(crate) enum Progress {
    /// The connection has nothing more to send now.
    Idle,
    /// It has had its share.
    More,
    /// The port takes no more frames.
    Full,
}

/// What a burst has sent.
#[derive(Default)]
pub(crate) struct Sent {
    pub frames: u64,
    pub bytes: u64,
    pub segments: u64,
}

/// What the frames of one connection have in common.
pub(crate) struct Frames {
    /// Hardware addresses of the next hop and of ours.
    pub to: MacAddr,
    pub from: MacAddr,
    pub vlan: Option<u16>,
    pub hops: u8,
    /// Of the shape that [`Headers`] writes, but for options.
    pub plain: bool,
    /// Where the TCP header begins.
    pub tcp_at: usize,
    v4: bool,
    /// The port finishes checksums.
    pub checksum: bool,
}

impl Frames {
    #[inline(always)]
    pub fn new(via: &Via, c: &Conn, to: MacAddr, urgent: bool) -> Frames {
        let (v4, vlan) = (c.key.remote.is_v4(), via.vlan);
        Frames {
            to,
            from: via.mac,
            vlan,
            hops: hop_limit(&c.key, c.hop_limit, via.hop_limit),
            plain: v4 && vlan.is_none() && !urgent && !c.fragments,
            tcp_at: link(vlan) + if v4 { 20 } else { 40 },
            v4,
            checksum: via.caps.checksum,
        }
    }

    /// Bytes of all headers, the longest options included.
    pub fn longest(&self) -> usize {
        self.tcp_at + 60
    }

    /// For a frame that the port cuts.
    pub fn large_room(&self, via: &Via, payload: usize) -> usize {
        (self.longest() + payload).max(via.caps.max_frame + 1)
    }

    /// Segments that the connection hands out as one: cut by the port, or here (as Linux's GSO).
    #[allow(clippy::too_many_arguments)]
    #[inline(always)]
    pub fn send_burst<S: TxSink + ?Sized>(
        &self,
        c: &mut Conn,
        via: &Via,
        smss: usize,
        left: usize,
        sink: &mut S,
        cx: &mut tcp::Context,
        sent: &mut Sent,
    ) -> Result<(), Progress> {
        let headers = self.longest();
        let max_gso = via.caps.max_gso;
        let together = match max_gso {
            0 => sink.room().min(left),
            gso => gso.saturating_sub(headers) / smss,
        };
        // The IP total length counts too: 64 KiB less headers.
        let payload = together.clamp(1, (LONGEST.saturating_sub(headers) / smss).max(1)) * smss;
        let large = max_gso > 0 && (together > 1 || c.cut && c.tcb.wants_data());
        let room = if large { self.large_room(via, payload) } else { via.room };
        if sink.reserve(room).is_none() {
            return Err(Progress::Full);
        }
        let Some(whole) = c.tcb.next_segment(payload as u32, cx) else { return Err(Progress::Idle) };
        let piece = if max_gso == 0 { smss as u32 } else { u32::MAX };
        let count = if whole.len <= piece { 1 } else { whole.len.div_ceil(piece) };
        for n in 0..count {
            // The port has said that they fit; one that fits no more is lost, as on the wire.
            let Some(buf) = sink.reserve(room) else { break };
            let out = whole.piece(n, count, piece);
            let len = out.len as usize;
            let cut = len > smss;
            c.cut |= large && len > 0;
            let text = self.headers(c, &out, buf);
            let offload = self.offload(cut.then_some((smss, text)));
            sent.frames += 1;
            sent.bytes += (text + len) as u64;
            sent.segments += if cut { len.div_ceil(smss) as u64 } else { 1 };
            if cut && via.gathers {
                let mut parts: [&[u8]; PARTS] = [&[]; PARTS];
                if let Some(n) = c.tcb.gather_payload(&out, cx.pool, &mut parts) {
                    sink.commit_with(text, &parts[..n], offload);
                    continue;
                }
            }
            self.finish(c, &out, &mut buf[..text + len], cx.pool);
            sink.commit(text + len, offload);
        }
        Ok(())
    }

    /// The headers of `out`, the checksum's field holding the folded pseudo-header; their length.
    #[inline(always)]
    pub fn headers(&self, c: &Conn, out: &Outgoing, buf: &mut [u8]) -> usize {
        if self.plain {
            let headers = self.common(c, out);
            if let Some(text) = headers.write(buf, &out.options, out.len as usize) {
                return text;
            }
            if let Some(text) = headers.write_syn(buf, &out.options).filter(|_| out.len == 0) {
                return text;
            }
        }
        emit_headers(buf, c, out, (self.to, self.from, self.vlan), self.hops)
    }

    /// The same of a SYN.
    #[inline(always)]
    pub fn syn(&self, c: &Conn, out: &Outgoing, buf: &mut [u8]) -> usize {
        match self.common(c, out).write_syn(buf, &out.options) {
            Some(text) if self.plain => text,
            _ => self.headers(c, out, buf),
        }
    }

    /// What a frame of the common shape says beside its options and text.
    #[inline(always)]
    fn common(&self, c: &Conn, out: &Outgoing) -> Headers {
        let &Outgoing { seq, ack, flags, window, .. } = out;
        let FlowKey { local: src, remote: dst, local_port: src_port, remote_port: dst_port, .. } = c.key;
        let (to, from, tos, ttl) = (self.to, self.from, c.traffic_class | out.ecn, self.hops);
        Headers { to, from, src, dst, tos, ttl, src_port, dst_port, seq, ack, flags, window }
    }

    /// The text behind the headers, and the checksum over both where the port does not finish it; `frame` ends with the text.
    #[inline(always)]
    pub fn finish(&self, c: &mut Conn, out: &Outgoing, frame: &mut [u8], pool: &mem::Side) {
        if out.len > 0 {
            let text = frame.len() - out.len as usize;
            c.tcb.copy_payload(out, &mut frame[text..], pool);
        }
        if !self.checksum {
            wire::tcp::finish_checksum(&mut frame[self.tcp_at..], sum);
        }
    }

    /// What is left to the port; `cut` is how long its pieces are and where the headers end.
    #[inline(always)]
    pub fn offload(&self, cut: Option<(usize, usize)>) -> TxOffload {
        if !self.checksum {
            return TxOffload::default();
        }
        let gso = cut.map(|(mss, header)| Gso { mss: mss as u16, header: header as u16, ipv6: !self.v4 });
        TxOffload { checksum: Some(PartialChecksum { start: self.tcp_at as u16, offset: 16 }), gso }
    }
}

/// All headers of a segment of any shape, the checksum's field holding the folded pseudo-header; their length.
#[inline(never)]
fn emit_headers(
    buf: &mut [u8],
    c: &Conn,
    out: &Outgoing,
    (mac, our_mac, vlan): (MacAddr, MacAddr, Option<u16>),
    hops: u8,
) -> usize {
    let (key, v4, len) = (&c.key, c.key.remote.is_v4(), out.len as usize);
    let ethertype = if v4 { ethernet::IPV4 } else { ethernet::IPV6 };
    let at = ethernet::emit(buf, mac, our_mac, vlan, ethertype);
    let tcp_at = at + if v4 { 20 } else { 40 };
    let mut header = out.header(key.local_port, key.remote_port);
    c.tcb.mark_urgent(&mut header);
    let text = tcp_at + header.emit(&mut buf[tcp_at..], out.flags.contains(Flags::SYN));
    emit_tcp_ip(&mut buf[at..], key, c.traffic_class | out.ecn, hops, text - tcp_at + len);
    if c.fragments && v4 {
        // RFC 6864 4.3: what may be fragmented needs an identification of its own.
        ipv4::let_fragment(&mut buf[at..], c.tcb.segments_sent() as u16);
    }
    wire::tcp::fill_pseudo(key.local, key.remote, text - tcp_at + len, &mut buf[tcp_at..text]);
    text
}

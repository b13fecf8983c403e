//! What NICs and kernels do to frames on their way: segmentation (GSO) and its opposite (GRO), as plainly as can be, to hold
//! the stack's own against.

use wire::burst::{RxChecksum, TxOffload};
use wire::tcp::{Flags, Segment};
use wire::{Addr, SeqNum, ethernet, ipv4, ipv6};

/// A frame to receive, and what is said of it.
#[derive(Clone, Debug)]
pub struct Joined {
    /// The frame.
    pub data: Vec<u8>,
    /// What is known of its checksum.
    pub checksum: RxChecksum,
    /// Size of the segments in it; 0: it is one.
    pub mss: u16,
}

/// Where the headers of a TCP segment lie in a frame, and where it ends.
struct Places {
    ip: usize,
    tcp: usize,
    text: usize,
    end: usize,
    src: Addr,
    dst: Addr,
}

/// `None` for anything but an undamaged TCP segment in one packet.
fn places(frame: &[u8]) -> Option<Places> {
    let eth = ethernet::Frame::parse(frame).ok()?;
    let ip = frame.len() - eth.payload.len();
    let (tcp, payload, src, dst) = match eth.ethertype {
        ethernet::IPV4 => {
            let p = ipv4::Packet::parse(eth.payload).ok()?;
            if p.protocol != ipv4::TCP || p.is_fragment() {
                return None;
            }
            (ip + p.header.len(), p.payload, p.src, p.dst)
        }
        ethernet::IPV6 => {
            let p = ipv6::Packet::parse(eth.payload).ok()?;
            if p.next_header != ipv6::TCP || p.fragment.is_some() || p.payload.len() + 40 > eth.payload.len() {
                return None;
            }
            (ip + 40, p.payload, p.src, p.dst)
        }
        _ => return None,
    };
    let seg = Segment::parse(payload).ok()?;
    let end = tcp + payload.len();
    Some(Places { ip, tcp, text: end - seg.payload.len(), end, src, dst })
}

/// Writes the lengths and the IP checksum of a frame whose TCP segment ends it.
fn fix_ip(frame: &mut [u8], p: &Places) {
    let len = frame.len();
    if p.src.is_v4() {
        frame[p.ip + 2..p.ip + 4].copy_from_slice(&((len - p.ip) as u16).to_be_bytes());
        frame[p.ip + 10..p.ip + 12].fill(0);
        let sum = wire::checksum::sum(&frame[p.ip..p.tcp]).finish();
        frame[p.ip + 10..p.ip + 12].copy_from_slice(&sum.to_be_bytes());
    } else {
        frame[p.ip + 4..p.ip + 6].copy_from_slice(&((len - p.ip - 40) as u16).to_be_bytes());
    }
}

fn flags(frame: &[u8], p: &Places) -> Flags {
    Flags::from_bits(u16::from_be_bytes([frame[p.tcp + 12], frame[p.tcp + 13]]))
}

fn set_flags(frame: &mut [u8], p: &Places, flags: Flags) {
    let word = u16::from_be_bytes([frame[p.tcp + 12], frame[p.tcp + 13]]) & 0xf000 | flags.bits();
    frame[p.tcp + 12..p.tcp + 14].copy_from_slice(&word.to_be_bytes());
}

fn seq(frame: &[u8], p: &Places) -> SeqNum {
    let s = &frame[p.tcp + 4..p.tcp + 8];
    SeqNum(u32::from_be_bytes([s[0], s[1], s[2], s[3]]))
}

/// The frames that leave the NIC for one that was handed to it.
///
/// # Panics
/// If what is asked for cannot be done.
pub fn cut(frame: &[u8], offload: &TxOffload) -> Vec<Vec<u8>> {
    let Some(sum) = offload.checksum else {
        assert!(offload.gso.is_none(), "segments need checksums");
        return vec![frame.to_vec()];
    };
    let p = places(frame).expect("a TCP segment to finish");
    assert_eq!((sum.start as usize, sum.offset), (p.tcp, 16));
    assert!(wire::tcp::is_pseudo_only(p.src, p.dst, &frame[p.tcp..p.end]), "the field holds the pseudo-header");
    let mss = offload.gso.map_or(usize::MAX, |g| g.mss as usize);
    if let Some(g) = offload.gso {
        assert_eq!((g.header as usize, g.ipv6), (p.text, !p.src.is_v4()));
        assert!(frame.len() - p.text > mss, "one segment is none to cut");
    }
    let (head, text) = frame.split_at(p.text);
    let count = text.len().div_ceil(mss).max(1);
    (0..count)
        .map(|i| {
            let from = i.saturating_mul(mss).min(text.len());
            let part = &text[from..from.saturating_add(mss).min(text.len())];
            let mut out = [head, part].concat();
            fix_ip(&mut out, &p);
            let mut f = flags(frame, &p);
            if i > 0 {
                f = f.without(Flags::CWR);
            }
            if i + 1 < count {
                f = f.without(Flags::FIN | Flags::PSH);
            }
            set_flags(&mut out, &p, f);
            let s = seq(frame, &p) + from as u32;
            out[p.tcp + 4..p.tcp + 8].copy_from_slice(&s.0.to_be_bytes());
            wire::tcp::fill_checksum(p.src, p.dst, &mut out[p.tcp..]);
            out
        })
        .collect()
}

/// Puts segments together that follow one another, as a kernel does before it delivers them.
pub fn join(frames: Vec<Vec<u8>>) -> Vec<Joined> {
    let mut out: Vec<Joined> = Vec::new();
    for data in frames {
        let sound = places(&data).filter(|p| wire::tcp::checksum_ok(p.src, p.dst, &data[p.tcp..p.end]));
        if let (Some(p), Some(last)) = (&sound, out.last_mut())
            && append(last, &data, p)
        {
            continue;
        }
        let checksum = if sound.is_some() { RxChecksum::Verified } else { RxChecksum::Unknown };
        out.push(Joined { data, checksum, mss: 0 });
    }
    out
}

fn append(last: &mut Joined, data: &[u8], p: &Places) -> bool {
    if last.checksum != RxChecksum::Verified {
        return false;
    }
    let Some(q) = places(&last.data) else { return false };
    let (have, more) = (q.end - q.text, p.end - p.text);
    let mss = if last.mss == 0 { have } else { last.mss as usize };
    // Full ones so far, and none longer; PSH and FIN end it.
    let full = have > 0 && have % mss == 0 && more > 0 && more <= mss && last.data.len() + more <= 65_535;
    let (f, g) = (flags(&last.data, &q), flags(data, p));
    let ends = Flags::PSH | Flags::FIN;
    let same_ip = match p.src.is_v4() {
        true => last.data[q.ip + 1] == data[p.ip + 1] && last.data[q.ip + 8] == data[p.ip + 8],
        false => last.data[q.ip..q.ip + 4] == data[p.ip..p.ip + 4] && last.data[q.ip + 7] == data[p.ip + 7],
    };
    let same = (q.ip, q.tcp, q.text, q.src, q.dst) == (p.ip, p.tcp, p.text, p.src, p.dst)
        && same_ip
        && last.data[..q.ip] == data[..p.ip]
        && last.data[q.tcp..q.tcp + 4] == data[p.tcp..p.tcp + 4]
        && last.data[q.tcp + 8..q.tcp + 12] == data[p.tcp + 8..p.tcp + 12]
        && last.data[q.tcp + 14..q.tcp + 16] == data[p.tcp + 14..p.tcp + 16]
        && last.data[q.tcp + 18..q.text] == data[p.tcp + 18..p.text]
        && seq(&last.data, &q) + have as u32 == seq(data, p);
    let flags_fit = f.bits() == Flags::ACK.bits() && g.without(ends).bits() == Flags::ACK.bits();
    if !full || !same || !flags_fit {
        return false;
    }
    last.data.truncate(q.end);
    last.data.extend_from_slice(&data[p.text..p.end]);
    set_flags(&mut last.data, &q, g);
    fix_ip(&mut last.data, &q);
    last.mss = mss as u16;
    true
}

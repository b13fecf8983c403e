//! The program that shares an interface with the kernel: what is ours goes to our sockets, everything else passes.
//!
//! Ours is, in frames to the interface's own hardware address: a TCP segment to an owned (VLAN, address, port); one of a connection
//! that a lane has opened ([`Tuples`](super::Tuples)), and of no other on its port, which may be that of a masqueraded container, of a
//! NodePort, or of a service; the fragments of such a datagram; an ICMP error that quotes a segment we sent.
//! While the kernel may hold connections on an owned port, segments are looked up, and those of the kernel's connections
//! pass, unless all that is left of one is its TIME-WAIT. On a port that closes, an ACK with a valid SYN cookie of the kernel's next
//! listener is the kernel's. On a port that drains the connections named in the map of kept ones are ours, and everything
//! else is whose it would be if nobody owned the port; so is what opens a connection to one that closes. No socket on the
//! queue: everything passes. A VLAN tag counts in the frame, and beside it where the kernel tells of that.
//!
//! `tests/verdicts.rs` holds the program against these rules written once more, over random frames and maps.
//!
//! Headers at a place that is known when the program is loaded are read directly. What lies behind IPv4 options, IPv6
//! extension headers or in an ICMP error is copied by `bpf_xdp_load_bytes` (Linux 5.18), since arithmetic on packet pointers
//! would need CAP_PERFMON.

use std::os::fd::AsFd;
use std::time::Duration;

use super::asm::{Asm, FP, If, Insn, Op, Size};
use super::btf::KernelFunction;
use super::maps::{CLOSING, DRAINING, MAY_HOLD, Maps, PLACE_LEN, Verdict};
use super::sys::Map;
use super::tuples::{BUCKETS_LOG2, PHASE, Phase, SLOTS, SPREAD, USED};

/// The register with the place for what is read and made of a frame, one a core. The stack is none: without CAP_PERFMON some kernels
/// (Linux 6.1) refuse stores to parts of what the verifier takes for a register there.
const PLACE: u8 = 7;
/// Headers that were copied: 56 bytes.
const COPY: i16 = 0;
const TIME: i16 = 56;
const FLOW: i16 = 64;
const OWN: i16 = 104;
const VERDICT: i16 = 112;
const PORT: i16 = 120;
const SAVED: i16 = 128;
const FLAGS: i16 = 136;
const FIRST: i16 = 144;
const TUPLE_LEN: i16 = 152;
const TUPLE: i16 = 160;
const FRAG: i16 = 200;
const FRAG_ID: i16 = FRAG + 32;
const FRAG_PROTOCOL: i16 = FRAG + 36;
const FRAG_VLAN: i16 = FRAG + 38;
const KEY: i16 = 240;
const KEY_PORT: i16 = KEY + 16;
const KEY_VLAN: i16 = KEY + 18;
const WORD: i16 = 260;
/// Length of the link header.
const LINK: i16 = 264;
/// The headers of a segment, as far as its SYN cookie is about them: IP, and TCP.
const COOKIE_IP: i16 = 272;
const COOKIE_TCP: i16 = 312;
/// A VLAN tag that is beside the frame: its type and its text; and whether there is one.
const TAG: i16 = 336;
const BESIDE: i16 = 344;
const _: () = assert!(BESIDE as usize + 8 == PLACE_LEN);

const MAP_LOOKUP: i32 = 1;
const MAP_UPDATE: i32 = 2;
const MAP_DELETE: i32 = 3;
const KTIME_GET_NS: i32 = 5;
const XDP_ADJUST_HEAD: i32 = 44;
const REDIRECT_MAP: i32 = 51;
const SK_RELEASE: i32 = 86;
const SKC_LOOKUP_TCP: i32 = 99;
const TCP_CHECK_SYNCOOKIE: i32 = 100;
const XDP_LOAD_BYTES: i32 = 189;
const XDP_PASS: i32 = 2;
const TCP_ESTABLISHED: i32 = 1;
const TCP_TIME_WAIT: i32 = 6;
const TCP_LISTEN: i32 = 10;
const SYN: i32 = 0x02;
const RST: i32 = 0x04;
const ACK: i32 = 0x10;

/// How long what follows a first fragment is ours, as long as the stack waits for it.
const FRAGMENT_LIFE: Duration = Duration::from_secs(30);
/// The program counts time in units of 2^20 ns, so that a life fits an instruction.
const TIME_SHIFT: u32 = 20;

/// `n` in network order, as a 16-bit load sees it.
fn be(n: u16) -> i32 {
    n.to_be() as i32
}

/// The kernel's function by which a program asks for the tag that is beside a frame (Linux 6.8).
pub const TAGS_BESIDE: &str = "bpf_xdp_metadata_rx_vlan_tag";

/// The program over `maps`. With `tags`, [`TAGS_BESIDE`], it knows of tags that are beside frames, and is for one interface
/// ([`Program::load_xdp_for`](super::Program::load_xdp_for)).
pub fn steer(maps: &Maps, tags: Option<KernelFunction>) -> Vec<Insn> {
    steer_for(maps, tags, FRAGMENT_LIFE)
}

/// The same with another life of what is remembered of fragments.
pub fn steer_for(maps: &Maps, tags: Option<KernelFunction>, fragment_life: Duration) -> Vec<Insn> {
    let mut a = Asm::default();
    link(&mut a, maps, tags);
    ipv4(&mut a);
    ipv6(&mut a);
    segment(&mut a);
    owner(&mut a, maps);
    verdict(&mut a, maps, tags.is_some(), (fragment_life.as_nanos() >> TIME_SHIFT) as i32);
    a.finish()
}

/// Copies `len` bytes at the offset in r9 to `COPY`; a packet that has not so many is not ours.
fn copy(a: &mut Asm, len: i32) {
    a.mov_reg(1, 6).mov_reg(2, 9).lea(3, PLACE, COPY as i32).mov(4, len).call(XDP_LOAD_BYTES).jump_if(
        If::Ne,
        0,
        0,
        "out",
    );
}

/// r6: context; r8: end of data; r9: the header being read, until it is no longer at a known
/// place: then the offset.
fn link(a: &mut Asm, maps: &Maps, tags: Option<KernelFunction>) {
    use Size::{Dw, H, W};
    a.mov_reg(6, 1);
    a.store_imm(W, FP, -4, 0).map(1, maps.place.as_fd()).lea(2, FP, -4).call(MAP_LOOKUP).jump_if(If::Eq, 0, 0, "none");
    a.mov_reg(PLACE, 0);
    a.load(W, 9, 6, 0).load(W, 8, 6, 4);
    a.store_imm(H, PLACE, KEY_VLAN, 0).store_imm(Dw, PLACE, FIRST, 0);
    for at in (FRAG..FRAG + 40).step_by(8) {
        a.store_imm(Dw, PLACE, at, 0);
    }
    a.lea(2, 9, 14).jump_if_reg(If::Gt, 2, 8, "out");
    // To the interface's own address, if that is known.
    a.map_value(1, maps.link.as_fd()).load(W, 2, 1, 0).load(H, 3, 1, 4);
    a.mov_reg(4, 2).op_reg(Op::Or, 4, 3).jump_if(If::Eq, 4, 0, "to_us");
    a.load(W, 4, 9, 0).jump_if_reg(If::Ne, 4, 2, "out").load(H, 4, 9, 4).jump_if_reg(If::Ne, 4, 3, "out");
    a.label("to_us");
    if let Some(tags) = tags {
        a.store_imm(Dw, PLACE, BESIDE, 0);
        a.mov_reg(1, 6).lea(2, PLACE, TAG as i32).lea(3, PLACE, TAG as i32 + 2).call_kernel(tags);
        a.jump_if(If::Ne, 0, 0, "bare").load(H, 3, PLACE, TAG).jump_if(If::Ne, 3, be(0x8100), "out");
        // Another one in the frame, behind this one, is another network.
        a.load(H, 3, 9, 12).jump_if(If::Eq, 3, be(0x8100), "out").store_imm(Dw, PLACE, BESIDE, 1);
        a.load(H, 4, PLACE, TAG + 2).op(Op::And, 4, 0xfff).store(H, PLACE, KEY_VLAN, 4).store(H, PLACE, FRAG_VLAN, 4);
        a.label("bare");
    }
    a.load(H, 3, 9, 12).jump_if(If::Eq, 3, be(0x8100), "vlan");
    // A tag of another type (802.1ad) is another network, and no EtherType that follows here.
    a.store_imm(Dw, PLACE, LINK, 14).op(Op::Add, 9, 14).jump("network");
    a.label("vlan").lea(2, 9, 18).jump_if_reg(If::Gt, 2, 8, "out");
    a.load(H, 4, 9, 14).be16(4).op(Op::And, 4, 0xfff).store(H, PLACE, KEY_VLAN, 4).store(H, PLACE, FRAG_VLAN, 4);
    a.load(H, 3, 9, 16).store_imm(Dw, PLACE, LINK, 18).op(Op::Add, 9, 18);
    a.label("network").jump_if(If::Eq, 3, be(0x0800), "v4").jump_if(If::Eq, 3, be(0x86dd), "v6").jump("out");
}

fn ipv4(a: &mut Asm) {
    use Size::{B, Dw, H, W};
    a.label("v4").lea(2, 9, 20).jump_if_reg(If::Gt, 2, 8, "out");
    a.load(B, 4, 9, 0).mov_reg(3, 4).op(Op::And, 3, 0xf0).jump_if(If::Ne, 3, 0x40, "out");
    // The key's address in mapped form.
    a.store_imm(Dw, PLACE, KEY, 0).store_imm(W, PLACE, KEY + 8, 0xffff_0000u32 as i32);
    a.load(W, 3, 9, 16).store(W, PLACE, KEY + 12, 3);
    // The tuple as skc_lookup wants it: source, destination, ports.
    a.store(W, PLACE, TUPLE + 4, 3).load(W, 3, 9, 12).store(W, PLACE, TUPLE, 3).store_imm(Dw, PLACE, TUPLE_LEN, 12);
    a.load(B, 5, 9, 9);
    a.load(H, 3, 9, 6).be16(3).op(Op::And, 3, 0x3fff).jump_if(If::Eq, 3, 0, "v4_whole");
    // A fragment: source, destination, identification, protocol.
    a.load(W, 2, 9, 12).store(W, PLACE, FRAG, 2).load(W, 2, 9, 16).store(W, PLACE, FRAG + 16, 2);
    a.load(H, 2, 9, 4).store(W, PLACE, FRAG_ID, 2).store(H, PLACE, FRAG_PROTOCOL, 5);
    a.op(Op::And, 3, 0x1fff).jump_if(If::Ne, 3, 0, "later_fragment").store_imm(Dw, PLACE, FIRST, 1);
    a.label("v4_whole").jump_if(If::Ne, 4, 0x45, "v4_options").op(Op::Add, 9, 20).jump_if(If::Eq, 5, 6, "tcp");
    a.mov(4, 0x45);
    a.label("v4_options").op(Op::And, 4, 15).op(Op::Lsh, 4, 2).jump_if(If::Lt, 4, 20, "out");
    a.load(Dw, 9, PLACE, LINK).op_reg(Op::Add, 9, 4);
    a.jump_if(If::Eq, 5, 6, "tcp_copy").jump_if(If::Ne, 5, 1, "out");

    // An ICMP error: the segment it quotes left here, so its source is ours.
    copy(a, 28);
    a.load(B, 3, PLACE, COPY);
    a.jump_if(If::Eq, 3, 3, "error4").jump_if(If::Eq, 3, 11, "error4").jump_if(If::Ne, 3, 12, "out");
    a.label("error4").load(B, 4, PLACE, COPY + 8).mov_reg(3, 4).op(Op::And, 3, 0xf0).jump_if(If::Ne, 3, 0x40, "out");
    a.load(B, 3, PLACE, COPY + 17).jump_if(If::Ne, 3, 6, "out");
    // Only a first fragment has ports.
    a.load(H, 3, PLACE, COPY + 14).be16(3).op(Op::And, 3, 0x1fff).jump_if(If::Ne, 3, 0, "out");
    a.load(W, 3, PLACE, COPY + 20).store(W, PLACE, KEY + 12, 3).store(W, PLACE, TUPLE + 4, 3);
    a.load(W, 3, PLACE, COPY + 24).store(W, PLACE, TUPLE, 3);
    a.op(Op::And, 4, 15).op(Op::Lsh, 4, 2).jump_if(If::Lt, 4, 20, "out");
    a.op(Op::Add, 9, 8).op_reg(Op::Add, 9, 4);
    copy(a, 4);
    a.load(H, 3, PLACE, COPY)
        .store(H, PLACE, KEY_PORT, 3)
        .store(H, PLACE, TUPLE + 10, 3)
        .be16(3)
        .store(Dw, PLACE, PORT, 3);
    a.load(H, 3, PLACE, COPY + 2).store(H, PLACE, TUPLE + 8, 3);
    a.store_imm(Dw, PLACE, FLAGS, 0).jump("own");
}

/// IPv6, over at most four extension headers.
fn ipv6(a: &mut Asm) {
    use Size::{B, Dw, H, W};
    a.label("v6").lea(2, 9, 40).jump_if_reg(If::Gt, 2, 8, "out");
    a.load(B, 3, 9, 0).op(Op::And, 3, 0xf0).jump_if(If::Ne, 3, 0x60, "out");
    for at in (0..16).step_by(4) {
        a.load(W, 3, 9, 24 + at).store(W, PLACE, KEY + at, 3).store(W, PLACE, TUPLE + 16 + at, 3);
        a.store(W, PLACE, FRAG + 16 + at, 3);
        a.load(W, 3, 9, 8 + at).store(W, PLACE, TUPLE + at, 3).store(W, PLACE, FRAG + at, 3);
    }
    a.store_imm(Dw, PLACE, TUPLE_LEN, 36);
    a.load(B, 5, 9, 6).op(Op::Add, 9, 40).jump_if(If::Eq, 5, 6, "tcp");
    a.load(Dw, 9, PLACE, LINK).op(Op::Add, 9, 40);
    const STEPS: [[&str; 4]; 5] = [
        ["x0", "x0_options", "x0_header", "x0_fragment"],
        ["x1", "x1_options", "x1_header", "x1_fragment"],
        ["x2", "x2_options", "x2_header", "x2_fragment"],
        ["x3", "x3_options", "x3_header", "x3_fragment"],
        ["upper", "", "", ""],
    ];
    for i in 0..4 {
        let [here, options, header, fragment] = STEPS[i];
        let next = STEPS[i + 1][0];
        a.label(here).jump_if(If::Eq, 5, 0, options).jump_if(If::Eq, 5, 60, options).jump_if(If::Eq, 5, 44, fragment);
        a.jump_if(If::Ne, 5, 43, "upper");
        // A routing header with segments left: the packet only passes through here.
        copy(a, 8);
        a.load(B, 3, PLACE, COPY + 3).jump_if(If::Ne, 3, 0, "out").jump(header);
        a.label(options);
        copy(a, 8);
        a.label(header).load(B, 5, PLACE, COPY).load(B, 3, PLACE, COPY + 1).op(Op::Add, 3, 1).op(Op::Lsh, 3, 3);
        a.op_reg(Op::Add, 9, 3).jump(next);
        a.label(fragment);
        copy(a, 8);
        a.load(B, 5, PLACE, COPY).load(H, 3, PLACE, COPY + 2).be16(3).op(Op::Add, 9, 8);
        // An atomic fragment (RFC 6946) is whole, and says nothing of the one that it may be in.
        a.mov_reg(4, 3).op(Op::And, 4, 0xfff9).jump_if(If::Eq, 4, 0, next);
        a.load(W, 4, PLACE, COPY + 4).store(W, PLACE, FRAG_ID, 4).store(H, PLACE, FRAG_PROTOCOL, 5);
        a.op(Op::And, 3, 0xfff8).jump_if(If::Ne, 3, 0, "later_fragment").store_imm(Dw, PLACE, FIRST, 1).jump(next);
    }
    a.label("upper").jump_if(If::Eq, 5, 6, "tcp_copy").jump_if(If::Ne, 5, 58, "out");
    copy(a, 52);
    // Types 1 to 4 are errors.
    a.load(B, 3, PLACE, COPY).jump_if(If::Eq, 3, 0, "out").jump_if(If::Gt, 3, 4, "out");
    a.load(B, 3, PLACE, COPY + 8).op(Op::And, 3, 0xf0).jump_if(If::Ne, 3, 0x60, "out");
    a.load(B, 3, PLACE, COPY + 14).jump_if(If::Ne, 3, 6, "out");
    for at in (0..16).step_by(4) {
        a.load(W, 3, PLACE, COPY + 16 + at).store(W, PLACE, KEY + at, 3).store(W, PLACE, TUPLE + 16 + at, 3);
        a.load(W, 3, PLACE, COPY + 32 + at).store(W, PLACE, TUPLE + at, 3);
    }
    a.load(H, 3, PLACE, COPY + 48).store(H, PLACE, KEY_PORT, 3).store(H, PLACE, TUPLE + 34, 3);
    a.be16(3).store(Dw, PLACE, PORT, 3);
    a.load(H, 3, PLACE, COPY + 50).store(H, PLACE, TUPLE + 32, 3);
    a.store_imm(Dw, PLACE, FLAGS, 0).jump("own");
}

fn segment(a: &mut Asm) {
    use Size::{B, Dw, H, W};
    a.label("tcp_copy");
    copy(a, 20);
    a.lea(9, PLACE, COPY as i32).jump("tcp_read");
    a.label("tcp").lea(2, 9, 20).jump_if_reg(If::Gt, 2, 8, "out");
    a.label("tcp_read").load(B, 3, 9, 13).store(Dw, PLACE, FLAGS, 3);
    for at in [4, 8] {
        a.load(W, 3, 9, at).store(W, PLACE, COOKIE_TCP + at, 3);
    }
    a.load(W, 4, 9, 0).load(Dw, 3, PLACE, TUPLE_LEN).jump_if(If::Eq, 3, 36, "ports6");
    a.store(W, PLACE, TUPLE + 8, 4).jump("ports");
    a.label("ports6").store(W, PLACE, TUPLE + 32, 4);
    a.label("ports").load(H, 3, 9, 2).store(H, PLACE, KEY_PORT, 3).be16(3).store(Dw, PLACE, PORT, 3);
}

/// Whose the tuple is.
fn owner(a: &mut Asm, maps: &Maps) {
    use Size::{Dw, W};
    a.label("own").map(1, maps.owned.as_fd()).lea(2, PLACE, KEY as i32).call(MAP_LOOKUP).jump_if(
        If::Eq,
        0,
        0,
        "active",
    );
    a.store_imm(Dw, PLACE, VERDICT, Verdict::Listen as i32);
    a.load(W, 4, 0, 0).store(Dw, PLACE, OWN, 4).jump_if(If::Set, 4, (MAY_HOLD | DRAINING) as i32, "asked").jump("ours");
    a.label("asked").jump_if(If::Set, 4, CLOSING as i32, "closing").jump_if(If::Set, 4, DRAINING as i32, "draining");
    a.jump("look_up");
    // SYN without ACK opens a connection, which is not ours any more, unless one that we open meets it.
    a.label("closing").load(Dw, 3, PLACE, FLAGS).op(Op::And, 3, SYN | ACK).jump_if(If::Eq, 3, SYN, "active");
    // One tuple has one owner, whatever the segment: the kernel has those of its connections that are alive, SYNs included
    // (RFC 5961 4: it answers with a challenge ACK, and the peer's next SYN is ours).
    a.label("look_up").mov_reg(1, 6).lea(2, PLACE, TUPLE as i32).mov(4, -1).mov(5, 0);
    a.load(Dw, 3, PLACE, TUPLE_LEN).jump_if(If::Eq, 3, 36, "look_up6");
    a.mov(3, 12).call(SKC_LOOKUP_TCP).jump("found");
    a.label("look_up6").mov(3, 36).call(SKC_LOOKUP_TCP);
    a.label("found").jump_if(If::Eq, 0, 0, "ours").mov_reg(9, 0);
    a.load(W, 3, 9, 72).store(Dw, PLACE, SAVED, 3).jump_if(If::Ne, 3, TCP_LISTEN, "release");
    a.load(Dw, 3, PLACE, OWN).op(Op::And, 3, CLOSING as i32).jump_if(If::Eq, 3, 0, "release");
    cookie(a);
    a.label("release").mov_reg(1, 9).call(SK_RELEASE);
    a.load(Dw, 3, PLACE, SAVED).jump_if(If::Eq, 3, TCP_LISTEN, "ours").jump_if(If::Ne, 3, TCP_TIME_WAIT, "kernels");
    // What the kernel remembers in TIME-WAIT is void while we listen; afterwards it may be of its next server.
    a.load(Dw, 3, PLACE, OWN).op(Op::And, 3, CLOSING as i32).jump_if(If::Eq, 3, 0, "ours");
    a.label("kernels").store_imm(Dw, PLACE, VERDICT, Verdict::KernelFlow as i32).jump("pass");

    // Nobody listens any more: what of the listener's is left is known by its tuple. Everything else is as on a port that nobody owns:
    // of the connections that are opened from here, or the kernel's.
    a.label("draining");
    flow_key(a, ["drain6", "drain"]);
    a.map(1, maps.kept.as_fd()).lea(2, PLACE, FLOW as i32).call(MAP_LOOKUP).jump_if(If::Ne, 0, 0, "ours");

    opened(a, maps);
}

/// Looks the tuple up among those that lanes have opened: which of its segments are ours says [`Phase`].
fn opened(a: &mut Asm, maps: &Maps) {
    use Size::{Dw, W};
    // Nobody has opened any: there is no table.
    a.label("active").store_imm(W, PLACE, WORD, 0).map(1, maps.tuples.as_fd()).lea(2, PLACE, WORD as i32);
    a.call(MAP_LOOKUP).jump_if(If::Eq, 0, 0, "out").mov_reg(8, 0);
    flow_key(a, ["opened6", "opened"]);
    // r8: the table, r9: the hash.
    a.mov(9, 0);
    for (i, keys) in maps.keys.0.chunks(2).enumerate() {
        for (half, key) in keys.iter().enumerate() {
            let (to, at) = (2 + half as u8, FLOW + 4 * (2 * i + half) as i16);
            a.load(W, to, PLACE, at).add_word(to, *key as i32);
        }
        a.op_reg(Op::Mul, 2, 3).op_reg(Op::Add, 9, 2);
    }
    a.op(Op::Mul, 9, SPREAD).mov_reg(2, 9).op(Op::Rsh, 2, 32).op_reg(Op::Xor, 9, 2);
    a.mov_reg(2, 9).op(Op::Rsh, 2, (u64::BITS - BUCKETS_LOG2) as i32).store(W, PLACE, WORD, 2);
    a.op(Op::Or, 9, USED as i32).op(Op::And, 9, !(PHASE as i32));
    a.mov_reg(1, 8).lea(2, PLACE, WORD as i32).call(MAP_LOOKUP).jump_if(If::Eq, 0, 0, "out");
    for slot in 0..SLOTS {
        if slot > 0 {
            a.op(Op::Add, 0, 8);
        }
        a.load(Dw, 3, 0, 0).op_reg(Op::Xor, 3, 9).jump_if(If::Lt, 3, PHASE as i32 + 1, "has_opened");
    }
    a.jump("out");
    a.label("has_opened").store_imm(Dw, PLACE, VERDICT, Verdict::Active as i32);
    a.load(Dw, 4, PLACE, FLAGS).jump_if(If::Eq, 3, Phase::Synchronized as i32, "ours");
    a.mov_reg(5, 4).op(Op::And, 5, SYN).jump_if(If::Eq, 3, Phase::SynSent as i32, "syn_sent");
    a.jump_if(If::Eq, 3, Phase::GivenAway as i32, "out");
    a.jump_if(If::Eq, 5, 0, "ours").op(Op::And, 4, ACK).jump_if(If::Eq, 4, 0, "out");
    // The hash alone: given away.
    a.store(Dw, 0, 0, 9).jump("out");
    // An ICMP error has no flags.
    a.label("syn_sent").jump_if(If::Ne, 5, 0, "ours").jump_if(If::Eq, 4, 0, "ours");
    a.op(Op::And, 4, RST | ACK).jump_if(If::Ne, 4, RST | ACK, "out");
}

/// Whether the segment brings a valid SYN cookie to the kernel's listener, whose socket is in r9: then it begins a connection there,
/// which no lane can have. What is not a segment (FLAGS is 0) brings none.
fn cookie(a: &mut Asm) {
    use Size::{B, Dw, W};
    a.load(W, 3, PLACE, FLAGS).store(B, PLACE, COOKIE_TCP + 13, 3);
    a.load(Dw, 3, PLACE, TUPLE_LEN).jump_if(If::Eq, 3, 36, "cookie6");
    a.store_imm(B, PLACE, COOKIE_IP, 0x45).load(W, 3, PLACE, TUPLE + 8).store(W, PLACE, COOKIE_TCP, 3);
    for at in [0, 4] {
        a.load(W, 3, PLACE, TUPLE + at).store(W, PLACE, COOKIE_IP + 12 + at, 3);
    }
    a.mov(3, 20).jump("cookie");
    a.label("cookie6").store_imm(B, PLACE, COOKIE_IP, 0x60).load(W, 3, PLACE, TUPLE + 32);
    a.store(W, PLACE, COOKIE_TCP, 3);
    for at in (0..32).step_by(4) {
        a.load(W, 3, PLACE, TUPLE + at).store(W, PLACE, COOKIE_IP + 8 + at, 3);
    }
    a.mov(3, 40);
    a.label("cookie").mov_reg(1, 9).lea(2, PLACE, COOKIE_IP as i32).lea(4, PLACE, COOKIE_TCP as i32).mov(5, 20);
    a.call(TCP_CHECK_SYNCOOKIE).jump_if(If::Ne, 0, 0, "release").store_imm(Dw, PLACE, SAVED, TCP_ESTABLISHED);
}

/// Writes the whole tuple as a key of the maps of connections.
fn flow_key(a: &mut Asm, [v6, done]: [&'static str; 2]) {
    use Size::{Dw, H, W};
    a.load(Dw, 3, PLACE, KEY).store(Dw, PLACE, FLOW, 3).load(Dw, 3, PLACE, KEY + 8).store(Dw, PLACE, FLOW + 8, 3);
    a.load(H, 3, PLACE, KEY_VLAN).store(W, PLACE, FLOW + 36, 3);
    a.load(Dw, 3, PLACE, TUPLE_LEN).jump_if(If::Eq, 3, 36, v6);
    a.store_imm(Dw, PLACE, FLOW + 16, 0).store_imm(W, PLACE, FLOW + 24, 0xffff_0000u32 as i32);
    a.load(W, 3, PLACE, TUPLE).store(W, PLACE, FLOW + 28, 3);
    a.load(H, 3, PLACE, TUPLE + 10).store(H, PLACE, FLOW + 32, 3).load(H, 3, PLACE, TUPLE + 8).store(
        H,
        PLACE,
        FLOW + 34,
        3,
    );
    a.jump(done);
    a.label(v6);
    for at in (0..16).step_by(4) {
        a.load(W, 3, PLACE, TUPLE + at).store(W, PLACE, FLOW + 16 + at, 3);
    }
    a.load(H, 3, PLACE, TUPLE + 34).store(H, PLACE, FLOW + 32, 3).load(H, 3, PLACE, TUPLE + 32).store(
        H,
        PLACE,
        FLOW + 34,
        3,
    );
    a.label(done);
}

/// `dst` = the time, in units of 2^[`TIME_SHIFT`] ns.
fn now(a: &mut Asm) {
    a.call(KTIME_GET_NS).op(Op::Rsh, 0, TIME_SHIFT as i32);
}

/// r0 = how long ago the entry at r0 was written.
fn age(a: &mut Asm) -> &mut Asm {
    a.load(Size::Dw, 3, 0, 0).store(Size::Dw, PLACE, TIME, 3);
    now(a);
    a.load(Size::Dw, 3, PLACE, TIME).op_reg(Op::Sub, 0, 3)
}

fn fragment_entry<'a>(a: &'a mut Asm, map: &Map) -> &'a mut Asm {
    a.map(1, map.as_fd()).lea(2, PLACE, FRAG as i32)
}

fn verdict(a: &mut Asm, maps: &Maps, tags: bool, fragment_life: i32) {
    use Size::{Dw, H, W};
    a.label("ours").load(Dw, 3, PLACE, FIRST).jump_if(If::Eq, 3, 0, "redirect");
    // The rest of the datagram follows its first fragment. Who merely knows our ports cannot push out what is remembered of
    // connections that are known to send fragments.
    flow_key(a, ["first6", "first"]);
    now(a);
    a.store(Dw, PLACE, TIME, 0);
    a.map(1, maps.fragmenting.as_fd()).lea(2, PLACE, FLOW as i32).call(MAP_LOOKUP).jump_if(
        If::Eq,
        0,
        0,
        "unknown_sender",
    );
    fragment_entry(a, &maps.fragments).lea(3, PLACE, TIME as i32).mov(4, 0).call(MAP_UPDATE).jump("redirect");
    a.label("unknown_sender");
    fragment_entry(a, &maps.first_seen).lea(3, PLACE, TIME as i32).mov(4, 0).call(MAP_UPDATE).jump("redirect");

    a.label("later_fragment");
    fragment_entry(a, &maps.fragments).call(MAP_LOOKUP).jump_if(If::Eq, 0, 0, "not_known");
    age(a).jump_if(If::Lt, 0, fragment_life, "follows");
    // One whose time is over may have had the same identification.
    a.label("not_known");
    fragment_entry(a, &maps.first_seen).call(MAP_LOOKUP).jump_if(If::Eq, 0, 0, "out");
    age(a).jump_if(If::Ge, 0, fragment_life, "out");
    a.label("follows");
    a.store_imm(Dw, PLACE, VERDICT, Verdict::Fragment as i32);

    a.label("redirect");
    count(a, maps, "counted");
    if tags {
        // Its tag goes where the stack looks for it; but what no socket takes passes as it came.
        a.load(Dw, 3, PLACE, BESIDE).jump_if(If::Eq, 3, 0, "complete");
        a.load(W, 3, 6, 16).store(W, PLACE, WORD, 3).map(1, maps.sockets.as_fd()).lea(2, PLACE, WORD as i32);
        a.call(MAP_LOOKUP).jump_if(If::Eq, 0, 0, "none");
        a.mov_reg(1, 6).mov(2, -4).call(XDP_ADJUST_HEAD).jump_if(If::Ne, 0, 0, "none");
        a.load(W, 9, 6, 0).load(W, 8, 6, 4).lea(2, 9, 18).jump_if_reg(If::Gt, 2, 8, "none");
        for at in [0, 4, 8] {
            a.load(W, 3, 9, at + 4).store(W, 9, at, 3);
        }
        a.load(H, 3, PLACE, TAG).store(H, 9, 12, 3).load(H, 3, PLACE, TAG + 2).be16(3).store(H, 9, 14, 3);
        a.label("complete");
    }
    a.map(1, maps.sockets.as_fd()).load(W, 2, 6, 16).mov(3, XDP_PASS).call(REDIRECT_MAP).exit();

    a.label("out").store_imm(Dw, PLACE, VERDICT, Verdict::Pass as i32);
    a.label("pass").load(Dw, 3, PLACE, FIRST).jump_if(If::Eq, 3, 0, "passes");
    // The identification now belongs to a datagram of the kernel's.
    fragment_entry(a, &maps.fragments).call(MAP_DELETE);
    fragment_entry(a, &maps.first_seen).call(MAP_DELETE);
    a.label("passes");
    count(a, maps, "passed");
    a.label("none").mov(0, XDP_PASS).exit();
}

/// Adds one to the counter of the verdict. Two cores may lose a count now and then; it is a statistic.
fn count(a: &mut Asm, maps: &Maps, after: &'static str) {
    a.load(Size::Dw, 3, PLACE, VERDICT).store(Size::W, PLACE, WORD, 3);
    a.map(1, maps.verdicts.as_fd()).lea(2, PLACE, WORD as i32).call(MAP_LOOKUP).jump_if(If::Eq, 0, 0, after);
    a.load(Size::Dw, 1, 0, 0).op(Op::Add, 1, 1).store(Size::Dw, 0, 0, 1);
    a.label(after);
}

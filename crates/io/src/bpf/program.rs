//! The program that shares an interface with the kernel: what is ours goes to our sockets, everything else passes.
//!
//! Ours is: a TCP segment to an owned (VLAN, address, port); one to a port of the active range of an owned address; the
//! fragments of such a datagram; an ICMP error that quotes a segment we sent. While the kernel may hold connections on an
//! owned port, segments are looked up, and those of the kernel's connections pass, unless all that is left of one is its
//! TIME-WAIT. No socket on the queue: everything passes.

use std::io;
use std::os::fd::AsFd;

use wire::Addr;

use super::asm::{Asm, FP, If, Insn, Op, Size};
use super::sys::{Map, MapKind};

/// What an owned port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnFlags {
    /// The kernel may have connections on it from before.
    pub kernel_may_hold: bool,
    /// Nobody listens any more: what opens a connection is the kernel's, what belongs to one still comes here.
    pub draining: bool,
}

impl OwnFlags {
    /// A listener's port on which the kernel holds nothing.
    pub const LISTENING: OwnFlags = OwnFlags { kernel_may_hold: false, draining: false };
    /// A listener has gone; its connections have not, and the kernel may have new ones.
    pub const DRAINING: OwnFlags = OwnFlags { kernel_may_hold: true, draining: true };
}

const MAY_HOLD: u32 = 2;
const DRAINING: u32 = 4;
const LISTEN: u32 = 1;

/// An owned tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OwnKey {
    /// 802.1Q id; 0 for untagged frames.
    pub vlan: u16,
    /// Local address.
    pub addr: Addr,
    /// Local port.
    pub port: u16,
}

impl OwnKey {
    /// As it lies on the program's stack: address, port in network order, VLAN in the machine's.
    fn bytes(&self) -> [u8; 20] {
        let mut b = [0; 20];
        b[..16].copy_from_slice(&self.addr.octets());
        b[16..18].copy_from_slice(&self.port.to_be_bytes());
        b[18..20].copy_from_slice(&self.vlan.to_ne_bytes());
        b
    }
}

/// Why a frame was taken or passed, counted by the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Verdict {
    /// A segment for an owned port.
    Listen = 0,
    /// A segment for the active range.
    Active = 1,
    /// A fragment of a datagram that is ours.
    Fragment = 2,
    /// Passed: the kernel holds the connection.
    KernelFlow = 3,
    /// Passed: not ours.
    Pass = 4,
}

/// All verdicts, in the order of their counters.
pub const VERDICTS: [Verdict; 5] =
    [Verdict::Listen, Verdict::Active, Verdict::Fragment, Verdict::KernelFlow, Verdict::Pass];

/// The program's maps.
#[derive(Debug)]
pub struct Maps {
    /// Queue to AF_XDP socket.
    pub sockets: Map,
    owned: Map,
    active: Map,
    fragments: Map,
    verdicts: Map,
}

impl Maps {
    /// Empty maps for a device with `queues` queues.
    pub fn new(queues: u32) -> io::Result<Maps> {
        Ok(Maps {
            sockets: Map::new(MapKind::Xsk, "cl_sockets", 4, 4, queues.max(1))?,
            owned: Map::new(MapKind::Hash, "cl_owned", 20, 4, 16_384)?,
            active: Map::new(MapKind::Hash, "cl_active", 20, 8, 4096)?,
            fragments: Map::new(MapKind::LruHash, "cl_fragments", 40, 4, 4096)?,
            verdicts: Map::new(MapKind::Array, "cl_verdicts", 4, 8, VERDICTS.len() as u32)?,
        })
    }

    /// Takes a port.
    pub fn own(&self, key: OwnKey, flags: OwnFlags) -> io::Result<()> {
        let may_hold = if flags.kernel_may_hold { MAY_HOLD } else { 0 };
        let value = LISTEN | may_hold | if flags.draining { DRAINING } else { 0 };
        self.owned.set(&key.bytes(), &value.to_ne_bytes())
    }

    /// Gives a port back.
    pub fn disown(&self, key: OwnKey) -> io::Result<()> {
        self.owned.remove(&key.bytes())
    }

    /// Takes a range of ports of an address for active opens.
    pub fn set_active(&self, vlan: u16, addr: Addr, range: (u16, u16)) -> io::Result<()> {
        let mut value = [0; 8];
        value[..4].copy_from_slice(&(range.0 as u32).to_ne_bytes());
        value[4..].copy_from_slice(&(range.1 as u32).to_ne_bytes());
        self.active.set(&OwnKey { vlan, addr, port: 0 }.bytes(), &value)
    }

    /// Gives the active range of an address back.
    pub fn clear_active(&self, vlan: u16, addr: Addr) -> io::Result<()> {
        self.active.remove(&OwnKey { vlan, addr, port: 0 }.bytes())
    }

    /// How often a verdict was given.
    pub fn verdict(&self, v: Verdict) -> io::Result<u64> {
        let bytes = self.verdicts.get(&(v as u32).to_ne_bytes())?.unwrap_or_default();
        Ok(bytes.try_into().map(u64::from_ne_bytes).unwrap_or(0))
    }
}

// Places on the stack.
const KEY: i16 = -24;
const KEY_PORT: i16 = KEY + 16;
const KEY_VLAN: i16 = KEY + 18;
const WORD: i16 = -4;
const FRAG: i16 = -64;
const TUPLE: i16 = -104;
const TUPLE_LEN: i16 = -112;
const FIRST: i16 = -120;
const FLAGS: i16 = -128;
const STATE: i16 = -136;
const PORT: i16 = -144;
const VERDICT: i16 = -152;
const OWN: i16 = -160;

const MAP_LOOKUP: i32 = 1;
const MAP_UPDATE: i32 = 2;
const REDIRECT_MAP: i32 = 51;
const SK_RELEASE: i32 = 86;
const SKC_LOOKUP_TCP: i32 = 99;
const XDP_PASS: i32 = 2;
const TCP_TIME_WAIT: i32 = 6;
const TCP_LISTEN: i32 = 10;

/// `n` in network order, as a 16-bit load sees it.
fn be(n: u16) -> i32 {
    n.to_be() as i32
}

/// The program over `maps`.
pub fn steer(maps: &Maps) -> Vec<Insn> {
    use Size::{B, Dw, H, W};
    let mut a = Asm::default();
    // r6: context; r7: IP header; r8: end of data; r9: the header being read.
    a.mov_reg(6, 1);
    a.load(W, 9, 6, 0).load(W, 8, 6, 4);
    a.store_imm(H, FP, KEY_VLAN, 0).store_imm(Dw, FP, FIRST, 0);
    for at in (FRAG..KEY).step_by(8) {
        a.store_imm(Dw, FP, at, 0);
    }
    a.lea(2, 9, 14).jump_if_reg(If::Gt, 2, 8, "out");
    a.load(H, 3, 9, 12);
    a.jump_if(If::Eq, 3, be(0x8100), "vlan").jump_if(If::Eq, 3, be(0x88a8), "vlan");
    a.op(Op::Add, 9, 14).jump("network");
    a.label("vlan").lea(2, 9, 18).jump_if_reg(If::Gt, 2, 8, "out");
    a.load(H, 4, 9, 14).be16(4).op(Op::And, 4, 0xfff).store(H, FP, KEY_VLAN, 4);
    a.load(H, 3, 9, 16).op(Op::Add, 9, 18);
    a.label("network").mov_reg(7, 9);
    a.jump_if(If::Eq, 3, be(0x0800), "v4").jump_if(If::Eq, 3, be(0x86dd), "v6").jump("out");

    // IPv4: the key's address in mapped form.
    a.label("v4").lea(2, 9, 20).jump_if_reg(If::Gt, 2, 8, "out");
    a.store_imm(Dw, FP, KEY, 0).store_imm(W, FP, KEY + 8, 0xffff_0000u32 as i32);
    a.load(W, 3, 9, 16).store(W, FP, KEY + 12, 3);
    // The tuple as skc_lookup wants it: source, destination, ports.
    a.store(W, FP, TUPLE + 4, 3).load(W, 3, 9, 12).store(W, FP, TUPLE, 3).store_imm(Dw, FP, TUPLE_LEN, 12);
    a.load(B, 5, 9, 9);
    a.load(H, 3, 9, 6).be16(3).op(Op::And, 3, 0x3fff).jump_if(If::Eq, 3, 0, "v4_whole");
    // A fragment: source, destination, identification, protocol.
    a.load(W, 4, 9, 12).store(W, FP, FRAG, 4).load(W, 4, 9, 16).store(W, FP, FRAG + 16, 4);
    a.load(H, 4, 9, 4).store(W, FP, FRAG + 32, 4).store(H, FP, FRAG + 36, 5);
    a.load(H, 4, FP, KEY_VLAN).store(H, FP, FRAG + 38, 4);
    a.op(Op::And, 3, 0x1fff).jump_if(If::Ne, 3, 0, "later_fragment").store_imm(Dw, FP, FIRST, 1);
    a.label("v4_whole").load(B, 4, 9, 0).op(Op::And, 4, 15).op(Op::Lsh, 4, 2).jump_if(If::Lt, 4, 20, "out");
    a.op_reg(Op::Add, 9, 4);
    a.jump_if(If::Eq, 5, 6, "tcp").jump_if(If::Eq, 5, 1, "icmp4").jump("out");

    // An ICMP error: the segment it quotes left here, so its source is ours.
    a.label("icmp4").lea(2, 9, 28).jump_if_reg(If::Gt, 2, 8, "out");
    a.load(B, 3, 9, 0);
    a.jump_if(If::Eq, 3, 3, "error4").jump_if(If::Eq, 3, 11, "error4").jump_if(If::Ne, 3, 12, "out");
    a.label("error4").load(B, 3, 9, 17).jump_if(If::Ne, 3, 6, "out");
    a.load(W, 3, 9, 20).store(W, FP, KEY + 12, 3).store(W, FP, TUPLE + 4, 3);
    a.load(W, 3, 9, 24).store(W, FP, TUPLE, 3);
    a.load(B, 4, 9, 8).op(Op::And, 4, 15).op(Op::Lsh, 4, 2).jump_if(If::Lt, 4, 20, "out");
    a.op(Op::Add, 9, 8).op_reg(Op::Add, 9, 4);
    a.lea(2, 9, 4).jump_if_reg(If::Gt, 2, 8, "out");
    a.load(H, 3, 9, 0).store(H, FP, KEY_PORT, 3).store(H, FP, TUPLE + 10, 3).be16(3).store(Dw, FP, PORT, 3);
    a.load(H, 3, 9, 2).store(H, FP, TUPLE + 8, 3);
    a.store_imm(Dw, FP, FLAGS, 0x10).jump("own");

    // IPv6, over at most four extension headers.
    a.label("v6").lea(2, 9, 40).jump_if_reg(If::Gt, 2, 8, "out");
    for i in 0..4 {
        let at = i * 4;
        a.load(W, 3, 9, 24 + at).store(W, FP, KEY + at, 3).store(W, FP, TUPLE + 16 + at, 3).store(
            W,
            FP,
            FRAG + 16 + at,
            3,
        );
        a.load(W, 3, 9, 8 + at).store(W, FP, TUPLE + at, 3).store(W, FP, FRAG + at, 3);
    }
    a.store_imm(Dw, FP, TUPLE_LEN, 36);
    a.load(B, 5, 9, 6).op(Op::Add, 9, 40);
    const STEPS: [[&str; 4]; 5] = [
        ["x0", "x0h", "x0f", "x0n"],
        ["x1", "x1h", "x1f", "x1n"],
        ["x2", "x2h", "x2f", "x2n"],
        ["x3", "x3h", "x3f", "x3n"],
        ["upper", "", "", ""],
    ];
    for i in 0..4 {
        let [here, header, fragment, _] = STEPS[i];
        let next = STEPS[i + 1][0];
        a.label(here);
        for kind in [0, 43, 60] {
            a.jump_if(If::Eq, 5, kind, header);
        }
        a.jump_if(If::Eq, 5, 44, fragment).jump("upper");
        a.label(header).lea(2, 9, 8).jump_if_reg(If::Gt, 2, 8, "out");
        a.load(B, 5, 9, 0).load(B, 3, 9, 1).op(Op::Add, 3, 1).op(Op::Lsh, 3, 3).op_reg(Op::Add, 9, 3).jump(next);
        a.label(fragment).lea(2, 9, 8).jump_if_reg(If::Gt, 2, 8, "out");
        a.load(W, 4, 9, 4).store(W, FP, FRAG + 32, 4).load(H, 4, FP, KEY_VLAN).store(H, FP, FRAG + 38, 4);
        a.load(B, 5, 9, 0).load(H, 3, 9, 2).be16(3).op(Op::Add, 9, 8);
        // An atomic fragment (RFC 6946) is whole.
        a.mov_reg(4, 3).op(Op::And, 4, 0xfff9).jump_if(If::Eq, 4, 0, next);
        a.op(Op::And, 3, 0xfff8).jump_if(If::Ne, 3, 0, "later_fragment").store_imm(Dw, FP, FIRST, 1).jump(next);
    }
    a.label("upper").jump_if(If::Eq, 5, 6, "tcp").jump_if(If::Ne, 5, 58, "out");
    a.lea(2, 9, 52).jump_if_reg(If::Gt, 2, 8, "out");
    // Types 1 to 4 are errors.
    a.load(B, 3, 9, 0).jump_if(If::Eq, 3, 0, "out").jump_if(If::Gt, 3, 4, "out");
    a.load(B, 3, 9, 14).jump_if(If::Ne, 3, 6, "out");
    for i in 0..4 {
        let at = i * 4;
        a.load(W, 3, 9, 16 + at).store(W, FP, KEY + at, 3).store(W, FP, TUPLE + 16 + at, 3);
        a.load(W, 3, 9, 32 + at).store(W, FP, TUPLE + at, 3);
    }
    a.load(H, 3, 9, 48).store(H, FP, KEY_PORT, 3).store(H, FP, TUPLE + 34, 3).be16(3).store(Dw, FP, PORT, 3);
    a.load(H, 3, 9, 50).store(H, FP, TUPLE + 32, 3);
    a.store_imm(Dw, FP, FLAGS, 0x10).jump("own");

    // A segment.
    a.label("tcp").lea(2, 9, 20).jump_if_reg(If::Gt, 2, 8, "out");
    a.load(B, 3, 9, 13).store(Dw, FP, FLAGS, 3);
    a.load(W, 4, 9, 0).load(Dw, 3, FP, TUPLE_LEN).jump_if(If::Eq, 3, 36, "ports6");
    a.store(W, FP, TUPLE + 8, 4).jump("ports");
    a.label("ports6").store(W, FP, TUPLE + 32, 4);
    a.label("ports").load(H, 3, 9, 2).store(H, FP, KEY_PORT, 3).be16(3).store(Dw, FP, PORT, 3);

    a.label("own").map(1, maps.owned.as_fd()).lea(2, FP, KEY as i32).call(MAP_LOOKUP).jump_if(If::Eq, 0, 0, "active");
    a.store_imm(Dw, FP, VERDICT, Verdict::Listen as i32);
    a.load(W, 4, 0, 0).load(Dw, 3, FP, FLAGS).op(Op::And, 3, 0x12);
    // SYN without ACK opens a connection. Once nobody listens here any more, that is the kernel's.
    a.jump_if(If::Ne, 3, 0x02, "owner").jump_if(If::Set, 4, DRAINING as i32, "out");
    // One tuple has one owner, whatever the segment: the kernel has those of its connections that are alive, SYNs included
    // (RFC 5961 4: it answers with a challenge ACK, and the peer's next SYN is ours).
    a.label("owner").store(Dw, FP, OWN, 4).op(Op::And, 4, MAY_HOLD as i32).jump_if(If::Eq, 4, 0, "ours");
    a.mov_reg(1, 6).lea(2, FP, TUPLE as i32).mov(4, -1).mov(5, 0);
    a.load(Dw, 3, FP, TUPLE_LEN).jump_if(If::Eq, 3, 36, "lookup6");
    a.mov(3, 12).call(SKC_LOOKUP_TCP).jump("found");
    a.label("lookup6").mov(3, 36).call(SKC_LOOKUP_TCP);
    a.label("found").jump_if(If::Eq, 0, 0, "ours");
    a.load(W, 3, 0, 72).store(Dw, FP, STATE, 3).mov_reg(1, 0).call(SK_RELEASE);
    a.load(Dw, 3, FP, STATE).jump_if(If::Eq, 3, TCP_LISTEN, "ours").jump_if(If::Ne, 3, TCP_TIME_WAIT, "kernels");
    // What the kernel remembers in TIME-WAIT is void while we listen; afterwards it may be of its next server.
    a.load(Dw, 3, FP, OWN).op(Op::And, 3, DRAINING as i32).jump_if(If::Eq, 3, 0, "ours").label("kernels");
    a.store_imm(Dw, FP, VERDICT, Verdict::KernelFlow as i32).jump("pass");

    a.label("active").store_imm(H, FP, KEY_PORT, 0).map(1, maps.active.as_fd()).lea(2, FP, KEY as i32);
    a.call(MAP_LOOKUP).jump_if(If::Eq, 0, 0, "out");
    a.load(Dw, 5, FP, PORT).load(W, 3, 0, 0).load(W, 4, 0, 4);
    a.jump_if_reg(If::Lt, 5, 3, "out").jump_if_reg(If::Gt, 5, 4, "out");
    a.store_imm(Dw, FP, VERDICT, Verdict::Active as i32);

    a.label("ours").load(Dw, 3, FP, FIRST).jump_if(If::Eq, 3, 0, "redirect");
    // The rest of the datagram follows its first fragment.
    a.store_imm(W, FP, WORD, 1).map(1, maps.fragments.as_fd()).lea(2, FP, FRAG as i32).lea(3, FP, WORD as i32);
    a.mov(4, 0).call(MAP_UPDATE).jump("redirect");

    a.label("later_fragment").map(1, maps.fragments.as_fd()).lea(2, FP, FRAG as i32).call(MAP_LOOKUP);
    a.jump_if(If::Eq, 0, 0, "out").store_imm(Dw, FP, VERDICT, Verdict::Fragment as i32);

    a.label("redirect");
    count(&mut a, maps, "counted");
    a.map(1, maps.sockets.as_fd()).load(W, 2, 6, 16).mov(3, XDP_PASS).call(REDIRECT_MAP).exit();

    a.label("out").store_imm(Dw, FP, VERDICT, Verdict::Pass as i32);
    a.label("pass");
    count(&mut a, maps, "passed");
    a.mov(0, XDP_PASS).exit();
    a.finish()
}

/// Adds one to the counter of the verdict on the stack. Two cores may lose a count now and then; it is a statistic.
fn count(a: &mut Asm, maps: &Maps, after: &'static str) {
    a.load(Size::Dw, 3, FP, VERDICT).store(Size::W, FP, WORD, 3);
    a.map(1, maps.verdicts.as_fd()).lea(2, FP, WORD as i32).call(MAP_LOOKUP).jump_if(If::Eq, 0, 0, after);
    a.load(Size::Dw, 1, 0, 0).op(Op::Add, 1, 1).store(Size::Dw, 0, 0, 1);
    a.label(after);
}

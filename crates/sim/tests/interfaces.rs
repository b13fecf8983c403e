//! A host with two interfaces, the second with VLAN tag 7: what leaves by which, and what each hears.

mod common;
use common::*;
use sim::LinkConfig;
use stack::channel::{CloseMode, ConnId, Job};
use wire::tcp::{Flags, Header, Options};
use wire::{Addr, MacAddr, SeqNum, ethernet, ipv4};

const MAC_B: MacAddr = MacAddr([2, 0, 0, 0, 7, 1]);
const VLAN: u16 = 7;

/// A host that listens, with a second interface of this address.
fn bench(addr: [u8; 4], prefix: u8) -> Bench {
    let link = LinkConfig { addresses: vec![(addr.into(), prefix)], mac: MAC_B, vlan: Some(VLAN) };
    Bench::listening(10, &[], |c| c.links = vec![link])
}

/// The second interface's peer at the other end of a connection.
struct Far {
    src: Addr,
    dst: Addr,
    seq: u32,
    ack: u32,
}

impl Far {
    fn new(src: [u8; 4], dst: [u8; 4]) -> Far {
        Far { src: Addr::from_v4(src), dst: Addr::from_v4(dst), seq: 1000, ack: 0 }
    }

    fn frame(&self, seq: u32, flags: Flags, payload: &[u8]) -> Vec<u8> {
        let header = Header {
            src_port: 9000,
            dst_port: PORT,
            seq: SeqNum(seq),
            ack: SeqNum(if flags.contains(ACK) { self.ack } else { 0 }),
            flags,
            window: 60000,
            urgent: 0,
            options: Options::default(),
        };
        let mut buf = vec![0; 18 + 20 + 60 + payload.len()];
        let at = ethernet::emit(&mut buf, MAC_B, PEER_MAC, Some(VLAN), ethernet::IPV4);
        let tcp = at + 20;
        let end = tcp + header.emit(&mut buf[tcp..], false) + payload.len();
        buf[end - payload.len()..end].copy_from_slice(payload);
        ipv4::Header { src: self.src, dst: self.dst, ..Default::default() }.emit(&mut buf[at..], end - tcp);
        wire::tcp::fill_checksum(self.src, self.dst, &mut buf[tcp..end]);
        buf.truncate(end);
        buf
    }

    /// Sends a SYN and reads the SYN/ACK.
    fn begin(&mut self, b: &mut Bench) {
        let sent = b.turn_all(vec![vec![], vec![self.frame(self.seq, SYN, b"")]]);
        let [synack] = &sent[1][..] else { panic!("{sent:x?}") };
        self.ack = u32::from_be_bytes(synack[38 + 4..38 + 8].try_into().unwrap()) + 1;
        self.seq += 1;
    }
}

/// A connection of the first interface ends while it is on that one's lists, and one of the second interface has its number.
/// What leaves by the first, where that one takes frames or not, and how often the second's peer has the answer.
fn by_each(takes: bool) -> (Vec<Vec<u8>>, usize) {
    let mut b = bench([192, 168, 7, 1], 24);
    let (now, second) = (b.now, stack::InterfaceId(1));
    b.host.stack.set_neighbor(now, second, [192, 168, 7, 2].into(), PEER_MAC);
    // A connection on the first interface: its peer's window is shut, its application has written and closed.
    let mut p = b.establish(2, 4000, Options { mss: Some(1460), ..Options::default() });
    let one = b.accepted[0];
    p.window = 0;
    b.send(&p, ACK, &[]);
    b.send(&p, ACK, b"x");
    p.seq += 1;
    b.write(one, b"first");
    b.job(Job::Close { conn: one, mode: CloseMode::Graceful });
    assert_eq!(b.host.stack.connections(), 1);
    // A handshake on the second one.
    let mut far = Far::new([192, 168, 7, 2], [192, 168, 7, 1]);
    far.begin(&mut b);
    // One turn: the window opens and the connection is reset on the first; the handshake ends on the second.
    p.window = 60_000;
    let opens = b.frame(&p, ACK, &[], Options::default());
    let reset = b.frame(&p, RST, &[], Options::default());
    b.host.set_room(0, if takes { 64 } else { 0 });
    let seq = far.seq;
    let frames = vec![far.frame(seq, ACK, b""), far.frame(seq, ACK, b"hello"), far.frame(seq + 7, ACK, b"hole")];
    let mut sent = b.turn_all(vec![vec![opens, reset], frames]);
    assert_eq!(b.host.stack.connections(), 1);
    let [_, two]: [ConnId; 2] = b.accepted[..].try_into().unwrap();
    assert_eq!(one, two, "the number is used again");
    // The application answers.
    let mut chain = mem::Chain::default();
    chain.push_slice(&mut b.host.side, b"an answer");
    b.host.job(Job::Write { conn: two, chain, more: false, close: false });
    for _ in 0..3 {
        let more = b.turn_all(Vec::new());
        sent.iter_mut().zip(more).for_each(|(all, more)| all.extend(more));
    }
    let second = sent.pop().unwrap().iter().filter(|f| f.ends_with(b"an answer")).count();
    (sent.pop().unwrap(), second)
}

#[test]
fn a_connection_sends_by_its_own_interface_only() {
    let (first, second) = by_each(true);
    let wrong: Vec<_> =
        first.iter().map(|f| format!("from {:x?}, type {:x?}, to {:?}", &f[6..12], &f[12..14], &f[30..34])).collect();
    assert!(wrong.is_empty(), "by the first: {wrong:?}; by the second: {second}");
    assert_eq!(second, 1);
}

#[test]
fn an_interface_that_takes_no_frames_holds_up_no_connection_of_another() {
    assert_eq!(by_each(false).1, 1);
}

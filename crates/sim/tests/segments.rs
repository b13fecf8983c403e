//! One segment, or one ICMP error, to a half-open record, a connection or a TIME-WAIT record: what the host does, against the rules
//! written once more (RFC 9293 3.10.7, RFC 5961, RFC 5927 4.1, RFC 7323 2.3), over random states and numbers, most of them at
//! the edges; over IPv4 and IPv6. What other connections have been answered in the same second must not matter. What an error says
//! of a path's MTU, connections to that peer keep to from then on, and no others.
//!
//! `CORELANE_SEED=S` replays a run, `CORELANE_SEEDS=N` makes N.

mod common;
use common::*;
use core::time::Duration;
use std::collections::HashMap;

use io::impair::Random;
use protocol::{CloseMode, ConnId, Endpoint, Failure, Job, Token};
use wire::tcp::{Flags, Options};
use wire::{Addr, SeqNum};

/// Segments in a run.
const CASES: u16 = 100;
/// Challenges that another connection has been sent before, in half of the runs: more than any limit for all would allow.
const CHALLENGES: usize = 1_200;
/// Who speaks to the host.
const PEERS: [u32; 4] = [2, 3, 4, 5];
/// The least MTU that is believed of a path of IPv4, and of IPv6.
const LEAST_MTU: [u16; 2] = [552, 1280];
/// For so long at most a path's MTU is remembered (RFC 1191 6.3): a run is shorter.
const REMEMBERED: u64 = 600_000_000;

/// What the peer knows, and the rules need, of a host's end.
#[derive(Clone, Copy, Debug)]
struct End {
    /// The next number that the host expects, and the right edge of the window that it has offered.
    nxt_in: SeqNum,
    edge: SeqNum,
    /// The first number that it has not been acknowledged, and the next one that it sends.
    una: SeqNum,
    nxt: SeqNum,
    /// Bytes that it has been acknowledged: an ACK may repeat so much.
    acked: u32,
    /// The shift of its windows, but in segments with SYN.
    scale: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A listener's record: SYN/ACK sent.
    Record,
    /// Both have sent a SYN.
    Crossed,
    Established,
    TimeWait,
}

/// What the host does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    /// It says nothing, and is as it was.
    Nothing,
    /// An ACK that says what it expects.
    Ack,
    /// The SYN/ACK again, or, in TIME-WAIT, one for a new connection.
    SynAck,
    /// A RST that fits the segment.
    Rst,
    /// It is over without a word.
    Ended,
    /// The segment is taken; so many bytes in order, and a FIN behind them.
    Taken { bytes: u32, fin: bool },
    /// As [`Done::Taken`] without bytes, and what is in it waits for what comes before it: an ACK at once.
    Waits,
}

struct Probe {
    seq: SeqNum,
    ack: SeqNum,
    flags: Flags,
    len: u32,
}

impl Probe {
    fn has(&self, flag: Flags) -> bool {
        self.flags.contains(flag)
    }

    /// Numbers that it takes.
    fn numbers(&self) -> u32 {
        self.len + self.has(SYN) as u32 + self.has(FIN) as u32
    }

    /// Whether any of its numbers is in the window; where it has none, whether its own is, or is the right edge, where a peer
    /// stands that has filled the window.
    fn acceptable(&self, e: &End) -> bool {
        let window = e.edge.since(e.nxt_in);
        let at = self.seq.since(e.nxt_in);
        match self.numbers() {
            0 => at < window || at == window && !self.has(RST),
            // The window's first number is in it, or it begins in the window.
            n => at < window || e.nxt_in.since(self.seq) < n,
        }
    }

    /// RFC 9293 3.10.7, in its order.
    fn outcome(&self, state: State, e: &End) -> Done {
        let (syn, ack, rst, fin) = (self.has(SYN), self.has(ACK), self.has(RST), self.has(FIN));
        if state == State::TimeWait {
            let opens = syn && !ack && !fin;
            return match () {
                // RFC 1337 3.
                () if rst => Done::Nothing,
                () if opens && self.seq.after(e.nxt_in) => Done::SynAck,
                () if self.numbers() == 0 && self.seq == e.nxt_in => Done::Nothing,
                () => Done::Ack,
            };
        }
        let opening = matches!(state, State::Record | State::Crossed);
        // The peer's SYN again.
        if opening && syn && !rst && self.seq + 1 == e.nxt_in {
            match state {
                State::Record if !ack => return Done::SynAck,
                // Ours has been heard: the other half.
                State::Crossed if ack && self.ack == e.nxt => {
                    return Probe { seq: self.seq + 1, flags: self.flags.without(SYN), ..*self }.outcome(state, e);
                }
                State::Crossed => return Done::SynAck,
                _ => {}
            }
        }
        // Linux's order, named in docs/conformance.md: a record's ACK number comes before the numbers of the segment.
        if state == State::Record && ack && !rst && self.ack != e.nxt {
            return Done::Rst;
        }
        match () {
            () if !self.acceptable(e) => return if rst { Done::Nothing } else { Done::Ack },
            // RFC 5961 3.2, 4.2.
            () if rst && self.seq == e.nxt_in => return Done::Ended,
            () if rst || syn => return Done::Ack,
            () if !ack => return Done::Nothing,
            () => {}
        }
        let offset = self.ack.since(e.una - e.acked);
        let most = e.nxt.since(e.una - e.acked);
        match state {
            State::Crossed if self.ack != e.nxt => return Done::Rst,
            // RFC 5961 5.2: what was sent, and no more of it than has been acknowledged.
            State::Established if offset > most => return Done::Ack,
            _ => {}
        }
        let begins = self.seq.since(e.nxt_in);
        let window = e.edge.since(e.nxt_in);
        if self.len + fin as u32 == 0 {
            return Done::Taken { bytes: 0, fin: false };
        }
        if begins < window && begins > 0 {
            return Done::Waits;
        }
        let known = e.nxt_in.since(self.seq);
        let (new, room) = (self.len - known.min(self.len), window);
        Done::Taken { bytes: new.min(room), fin: fin && new <= room }
    }
}

/// One connection's case.
struct Case {
    b: Bench,
    r: Random,
    port: u16,
    /// What is known of the paths to peers.
    paths: HashMap<Addr, u16>,
}

impl Case {
    fn new(seed: u64) -> Case {
        let r = Random::new(seed);
        let mut b = Bench::listening(1000, &[], |c| {
            c.stack.secret = [seed as u8; 16];
            c.stack.min_path_mtu = LEAST_MTU[0];
            c.addresses.push((ours_v6().to_ip(), 64));
        });
        let interface = b.host.interface();
        for n in PEERS {
            b.host.stack.set_neighbor(b.now, interface, peer_v6(n).to_ip(), PEER_MAC);
        }
        let mut case = Case { b, r, port: 4000, paths: HashMap::new() };
        if case.r.chance(0.5) {
            for n in 0..CHALLENGES {
                let p = case.b.establish(9, 10_000 + n as u16, Options::default());
                case.take();
                let at = Peer { seq: p.seq + 5, ..p };
                assert_eq!(case.b.send(&at, RST, &[]).len(), 1, "a challenge of its own");
            }
        }
        case
    }

    /// The application takes the connection that was accepted last.
    fn take(&mut self) -> Option<ConnId> {
        let conn = self.b.accepted.pop();
        let listener = self.b.listener.expect("it listens");
        self.b.host.job(Job::Taken { listener, count: conn.is_some() as u32 });
        conn
    }

    fn options(&mut self) -> Options {
        let window_scale = self.r.chance(0.5).then_some(7);
        Options { mss: Some(1460), window_scale, ..Options::default() }
    }

    /// Brings a host's end into a state; the peer, which has answered all but what is said of `una`, and the connection.
    fn prepare(&mut self, state: State) -> (Peer, End, Option<ConnId>) {
        self.port += 1;
        let options = self.options();
        let n = self.r.pick(&PEERS);
        let mut p = Peer::new(n, self.port);
        if self.r.chance(0.4) {
            p.addr = peer_v6(n);
        }
        p.seq = SeqNum(self.r.bits() as u32);
        if state == State::Crossed {
            return self.cross(p, options);
        }
        let synack = self.b.send_with(&p, SYN, &[], options).remove(0);
        assert_eq!(synack.flags, SYN | ACK);
        assert_eq!(
            synack.options.mss,
            Some(1500 - headers(&p)),
            "it offers what the interface takes, whatever the path does"
        );
        let scale = synack.options.window_scale.unwrap_or(0);
        p.answer(&synack);
        let mut e = End {
            nxt_in: synack.ack,
            edge: synack.ack + synack.window as u32,
            una: synack.seq,
            nxt: synack.seq + 1,
            acked: 0,
            scale,
        };
        if state == State::Record {
            return (p, e, None);
        }
        self.b.send(&p, ACK, &[]);
        let conn = self.take();
        e.una = e.nxt;
        // Some bytes each way.
        for _ in 0..self.r.below(3) {
            let n = 1 + self.r.below(2000) as usize;
            for piece in vec![7; n].chunks(1000) {
                let mut out = self.b.send(&p, ACK | Flags::PSH, piece);
                p.seq += piece.len() as u32;
                out.extend(self.b.wait(Duration::from_millis(300)).into_iter().map(|(_, s)| s));
                e.hear(&out);
            }
            e.nxt_in = p.seq;
        }
        let wrote = self.r.pick(&[0, 0, 1, 500, 3000]);
        if wrote > 0 {
            let out = self.b.write(conn.expect("accepted"), &vec![9; wrote as usize]);
            e.hear(&out);
            let (longest, mss) = (longest(&out), self.mss(&p));
            assert_eq!(longest, mss.min(wrote as u16), "of {wrote} bytes to {:?}, whose path takes {mss}", p.addr);
            e.nxt = e.una + wrote;
            let acked = self.r.pick(&[0, wrote, self.r.clone().below(wrote as u64 + 1) as u32]);
            p.ack = e.una + acked;
            let out = self.b.send(&p, ACK, &[]);
            e.hear(&out);
            (e.una, e.acked) = (p.ack, acked);
        }
        if state == State::TimeWait {
            p.ack = e.nxt;
            self.b.send(&p, ACK, &[]);
            let out = self.b.job(Job::Close { conn: conn.expect("accepted"), mode: CloseMode::Graceful });
            assert!(out[0].flags.contains(FIN), "{out:?}");
            e.nxt += 1;
            p.ack = e.nxt;
            let out = self.b.send(&p, FIN | ACK, &[]);
            assert_eq!(out.len(), 1);
            p.seq += 1;
            e.nxt_in = p.seq;
        }
        (p, e, conn)
    }

    /// Bytes of text that a segment to a peer has at most.
    fn mss(&self, p: &Peer) -> u16 {
        self.paths.get(&p.addr).map_or(1500, |mtu| *mtu).min(1500) - headers(p)
    }

    /// A simultaneous open.
    fn cross(&mut self, mut p: Peer, options: Options) -> (Peer, End, Option<ConnId>) {
        let local = Endpoint { addr: Addr::UNSPECIFIED_V4, port: 0 };
        let remote = Endpoint { addr: p.addr, port: p.port };
        let syn = self.b.job(Job::Connect { token: Token(3), local, remote, receive_buffer: 0 }).remove(0);
        (p.local_port, p.ack) = (syn.src_port, syn.seq + 1);
        let out = self.b.send_with(&p, SYN, &[], options);
        let [synack] = &out[..] else { panic!("{out:?}") };
        assert_eq!((synack.flags, synack.seq, synack.ack), (SYN | ACK, syn.seq, p.seq + 1));
        p.seq += 1;
        let scale = synack.options.window_scale.unwrap_or(0);
        let edge = p.seq + synack.window as u32;
        let e = End { nxt_in: p.seq, edge, una: syn.seq, nxt: syn.seq + 1, acked: 0, scale };
        (p, e, self.b.opened.take())
    }

    fn draw(&mut self, state: State, e: &End) -> Probe {
        let r = &mut self.r;
        let kinds = [ACK, ACK, ACK, ACK, RST, RST | ACK, SYN, SYN | ACK, FIN | ACK, SYN | FIN, Flags::PSH];
        let flags = r.pick(&kinds);
        let len = if flags.contains(RST) { 0 } else { r.pick(&[0, 0, 1, 10, 1000]) };
        let window = e.edge.since(e.nxt_in);
        let near = [0, 0, 0, 1, 2, 9, window - 1, window, window + 1, r.bits() as u32 % window.max(1), r.bits() as u32];
        let offset = r.pick(&near).wrapping_sub(if r.chance(0.3) { r.pick(&[1, 2, len, len + 1, 2000]) } else { 0 });
        let una = e.una.since(e.nxt - 100_000);
        let near = [0, 1, 2, e.acked, e.acked + 1, e.acked + 2, 1000, 60_000];
        let ack = match r.below(4) {
            0 => e.nxt + r.pick(&[0, 0, 1, 2, 1000]),
            1 => e.una - r.pick(&near),
            2 => e.nxt - 100_000 + una + r.below(e.nxt.since(e.una) as u64 + 1) as u32,
            _ if r.chance(0.1) => SeqNum(r.bits() as u32),
            _ => e.nxt,
        };
        // A SYN that comes again, and what opens anew.
        let offset = if flags.contains(SYN) && r.chance(0.3) { u32::MAX } else { offset };
        // TIME-WAIT offers what it offered last; nobody must know exactly.
        let offset = if state == State::TimeWait { r.pick(&[0, 1, 10, u32::MAX, 100_000]) } else { offset };
        Probe { seq: e.nxt_in + offset, ack, flags, len }
    }

    fn segment(&mut self) {
        let state =
            self.r.pick(&[State::Record, State::Crossed, State::Established, State::Established, State::TimeWait]);
        let (p, mut e, conn) = self.prepare(state);
        let probe = self.draw(state, &e);
        let expected = probe.outcome(state, &e);
        self.b.bytes.clear();
        (self.b.fin, self.b.failed, self.b.connected) = (false, None, false);
        let at = Peer { seq: probe.seq, ack: probe.ack, ..p };
        let payload = vec![5; probe.len as usize];
        let options =
            if probe.has(SYN) { Options { mss: Some(1460), ..Options::default() } } else { Options::default() };
        let out = self.b.send_with(&at, probe.flags, &payload, options);
        let told = format!(
            "{state:?}, {e:?}: {:?} seq {} (+{}) ack {} (una {:+}) len {}: {out:?}, {} bytes, fin {}, failed {:?}",
            probe.flags,
            probe.seq.0,
            probe.seq.since(e.nxt_in) as i32,
            probe.ack.0,
            probe.ack.since(e.una) as i32,
            probe.len,
            self.b.bytes.len(),
            self.b.fin,
            self.b.failed,
        );
        let taken = (self.b.bytes.len() as u32, self.b.fin);
        // Data that is lost or late goes out again for itself; here only the answer counts.
        let answers: Vec<&Sent> = out.iter().filter(|s| s.payload.is_empty() || s.flags.contains(SYN)).collect();
        let is_ack = |s: &Sent| {
            let window = if s.flags.contains(SYN) { s.window as u32 } else { (s.window as u32) << e.scale };
            let edge = s.ack + window;
            s.flags == ACK && s.seq == e.nxt && s.ack == e.nxt_in
                // The edge stays, but for what rounding adds, or what has been read since lets it go on.
                && (state == State::TimeWait || !edge.before(e.edge))
                && (matches!(state, State::Established | State::TimeWait) || edge.since(e.edge) < 1 << e.scale)
        };
        match expected {
            Done::Nothing => assert!(answers.is_empty() && taken == (0, false), "nothing, {told}"),
            Done::Ack => {
                assert!(matches!(answers[..], [s] if is_ack(s)) && taken == (0, false), "an ACK, {told}");
            }
            Done::SynAck => {
                let again = |s: &Sent| s.flags == SYN | ACK && (state == State::TimeWait || s.seq == e.una);
                assert!(matches!(answers[..], [s] if again(s)), "SYN/ACK, {told}");
            }
            Done::Rst => {
                let fits = |s: &Sent| s.flags.contains(RST) && s.seq == probe.ack;
                assert!(matches!(answers[..], [s] if fits(s)) && taken == (0, false), "a RST, {told}");
            }
            Done::Ended => {
                assert!(answers.is_empty() && taken == (0, false), "over, {told}");
                let failure = match state {
                    State::Record => None,
                    State::Crossed => Some(Failure::Refused),
                    _ => Some(Failure::Reset),
                };
                assert_eq!(self.b.failed, failure, "{told}");
            }
            Done::Taken { bytes, fin } => {
                assert_eq!(taken, (bytes, fin), "taken, {told}");
                assert!(self.b.failed.is_none(), "{told}");
                if probe.ack.after(e.una) {
                    e.una = probe.ack;
                }
                e.nxt_in = e.nxt_in + bytes + fin as u32;
            }
            Done::Waits => {
                assert!(taken == (0, false) && !answers.is_empty(), "waits, {told}");
                assert!(answers.iter().all(|s| s.ack == e.nxt_in), "waits, {told}");
                if probe.ack.after(e.una) {
                    e.una = probe.ack;
                }
            }
        }
        self.afterwards(state, expected, (p, e), &told);
        self.clean_up(p, e, conn);
    }

    /// What has been acknowledged does not go out again, what has not does; and a record that stayed can still be opened.
    fn afterwards(&mut self, state: State, done: Done, (p, e): (Peer, End), told: &str) {
        match state {
            State::Established if done != Done::Ended => {
                let again = self.b.wait(Duration::from_millis(1500));
                let data = again.iter().map(|(_, s)| s).filter(|s| s.to == p.addr && s.dst_port == p.port);
                let first = data.filter(|s| !s.payload.is_empty()).map(|s| s.seq.since(e.una)).min();
                assert_eq!(first, (e.una != e.nxt).then_some(0), "what goes out again, {told}");
            }
            State::Record if done != Done::Ended => {
                let before = self.b.accepted.len();
                let opened = matches!(done, Done::Taken { .. } | Done::Waits);
                let p = Peer { seq: e.nxt_in, ack: e.nxt, ..p };
                if !opened {
                    self.b.send(&p, ACK, &[]);
                }
                assert_eq!(self.b.accepted.len(), before + !opened as usize, "opens afterwards, {told}");
            }
            State::Record => {
                let out = self.b.send(&p, ACK, &[]);
                assert!(matches!(&out[..], [s] if s.flags.contains(RST)), "the record is gone, {told}: {out:?}");
            }
            State::Crossed => {
                let opened = matches!(done, Done::Taken { .. } | Done::Waits);
                assert_eq!(self.b.connected, opened, "connected, {told}");
            }
            _ => {}
        }
    }

    /// Nobody is left who would speak in the next case.
    fn clean_up(&mut self, p: Peer, e: End, conn: Option<ConnId>) {
        self.b.send(&Peer { seq: e.nxt_in, ..p }, RST, &[]);
        while let Some(conn) = self.take() {
            self.b.job(Job::Abort { conn });
        }
        conn.into_iter().for_each(|conn| drop(self.b.job(Job::Abort { conn })));
        (self.b.opened, self.b.failed) = (None, None);
    }

    /// RFC 5927 4.1: an error is believed where it quotes what is in flight.
    fn error(&mut self) {
        let state = self.r.pick(&[State::Record, State::Crossed, State::Established]);
        let (p, e, conn) = self.prepare(state);
        let window = e.nxt.since(e.una);
        let offset = self.r.pick(&[0, window / 2, window.wrapping_sub(1), window, window + 1, u32::MAX, 100_000]);
        let believed = offset < window;
        // To an open connection, a smaller MTU, which old routers do not name; to another, RFC 9293 3.9.2.2: protocol or port
        // unreachable ends it, and no network, no host and no source route do not (MUST-56).
        let named = self.r.pick(&[0, 68, 552, 600, 1279, 1280, 1281, 1400, 1499, 1500, 9000]);
        let mtu = (state == State::Established).then_some(named);
        let code = if p.addr.is_v4() { self.r.pick(&[0, 1, 2, 3, 3, 5]) } else { 3 };
        let failure = match code {
            2 => Some(Failure::ProtocolUnreachable),
            3 => Some(Failure::Refused),
            _ => None,
        };
        let learned = self.b.host.stack.counters().path_mtu;
        let frame = match mtu {
            None if p.addr.is_v4() => self.b.unreachable(&p, code, e.una + offset),
            _ => self.b.error(&p, mtu, e.una + offset),
        };
        let out = self.b.turn(vec![frame]);
        let told = format!("{state:?}, {e:?}: +{offset}, {mtu:?} or code {code} by {:?}: {out:?}", p.addr);
        match state {
            State::Established => {
                let before = self.mss(&p);
                // RFC 8201 4: no link of IPv6 carries less, and an error that says so is no error.
                let v4 = p.addr.is_v4();
                let told_mtu = (v4 || named >= LEAST_MTU[1]).then_some(named.max(LEAST_MTU[!v4 as usize]));
                let mss = told_mtu.filter(|_| believed).map_or(before, |mtu| before.min(mtu - headers(&p)));
                let smaller = mss < before;
                assert_eq!(self.b.host.stack.counters().path_mtu - learned, smaller as u64, "{told}");
                if smaller {
                    self.paths.insert(p.addr, mss + headers(&p));
                }
                // What was too long goes out again at once (RFC 1191 6.4), and nothing else does.
                assert!(longest(&out) <= mss && (smaller || longest(&out) == 0), "{mss}, {told}");
                if smaller && window > before as u32 {
                    assert_eq!(longest(&out), mss, "{told}");
                }
            }
            State::Crossed => {
                assert_eq!(self.b.failed, failure.filter(|_| believed), "{told}");
            }
            _ => {
                let out = self.b.send(&p, ACK, &[]);
                let gone = matches!(&out[..], [s] if s.flags.contains(RST));
                assert_eq!(gone, believed && failure.is_some(), "{told}");
            }
        }
        self.clean_up(p, e, conn);
    }
}

/// Bytes of IP's and TCP's headers without options.
fn headers(p: &Peer) -> u16 {
    if p.addr.is_v4() { 40 } else { 60 }
}

/// Bytes of text in the longest segment.
fn longest(out: &[Sent]) -> u16 {
    out.iter().map(|s| s.payload.len() as u16).max().unwrap_or(0)
}

impl End {
    /// The window may have been opened further.
    fn hear(&mut self, out: &[Sent]) {
        for s in out.iter().filter(|s| s.flags.contains(ACK) && !s.flags.contains(SYN)) {
            let edge = s.ack + ((s.window as u32) << self.scale);
            if edge.after(self.edge) {
                self.edge = edge;
            }
        }
    }
}

fn run(seed: u64) {
    let mut case = Case::new(seed);
    for _ in 0..CASES {
        match case.r.chance(0.2) {
            true => case.error(),
            false => case.segment(),
        }
        case.b.now += Duration::from_millis(1);
    }
    assert!(case.b.now.micros() < REMEMBERED, "what was told first is forgotten");
}

#[test]
fn a_segment_does_what_the_rfcs_say() {
    testing::seeds("sim --test segments", 60, testing::cores(), run);
}

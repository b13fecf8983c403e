//! The straight path is a short cut and not another behaviour: two connections hear, do and send the same, one by the straight
//! path where that takes it, the other always by the general one, and their control blocks and segments are the same throughout.

use mem::{Chain, Pool, PoolConfig, Side};
use proptest::prelude::*;
use tcp::{Config, Context, Counters, Ecn, Limits, Offer, Open, SentPool, State, Tcb};
use wire::tcp::{Flags, Options, Ordinary, Segment, Syn, Timestamps};
use wire::{Instant, SeqNum};

use crate::peer::cx;

/// A connection and what it needs.
struct Half {
    tcb: Tcb,
    straight: bool,
    now: Instant,
    config: Config,
    counters: Counters,
    limits: Limits,
    pool: Side,
    app: Side,
    sent: SentPool,
    /// Segments that the straight path took or gave.
    taken: u32,
}

/// A segment as it is sent: numbers, flags, window, ECN, timestamps, text.
type Out = (SeqNum, SeqNum, Flags, u16, u8, Option<Timestamps>, Vec<u8>);

/// What happens to both.
#[derive(Clone, Debug)]
enum Step {
    /// A segment comes: its text begins so far from RCV.NXT, acknowledges so much of what is out, in 16ths.
    Hear {
        ahead: i32,
        acks: u32,
        len: usize,
        fin: bool,
        push: bool,
        window: u16,
        odd: u8,
        older: bool,
    },
    Write {
        len: usize,
        more: bool,
    },
    Read,
    Shutdown,
    Close,
    Wait {
        micros: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let hear = (
        prop_oneof![12 => Just(0), 1 => -3000i32..3000],
        prop_oneof![8 => Just(16u32), 3 => 0u32..18],
        prop_oneof![3 => Just(0), 5 => 1usize..3000],
        prop::bool::weighted(0.05),
        any::<bool>(),
        prop_oneof![6 => Just(20_000u16), 2 => any::<u16>(), 1 => Just(0)],
        prop_oneof![30 => Just(0u8), 1 => any::<u8>()],
        prop::bool::weighted(0.03),
    );
    prop_oneof![
        8 => hear.prop_map(|(ahead, acks, len, fin, push, window, odd, older)| {
            Step::Hear { ahead, acks, len, fin, push, window, odd, older }
        }),
        4 => (1usize..4000, prop::bool::weighted(0.1)).prop_map(|(len, more)| Step::Write { len, more }),
        3 => Just(Step::Read),
        1 => prop::bool::weighted(0.5).prop_map(|close| if close { Step::Close } else { Step::Shutdown }),
        4 => (0u64..20_000).prop_map(|micros| Step::Wait { micros }),
        1 => (0u64..3_000_000).prop_map(|micros| Step::Wait { micros }),
    ]
}

impl Half {
    fn new(config: &Config, straight: bool) -> Half {
        let (pool, app) = Pool::new(&PoolConfig { chunks: 256, ..PoolConfig::default() }).unwrap();
        Half {
            tcb: Tcb::new(config),
            straight,
            now: Instant::from_micros(50_000_000),
            config: config.clone(),
            counters: Counters::default(),
            limits: Limits::default(),
            pool,
            app,
            sent: SentPool::new(),
            taken: 0,
        }
    }

    /// The connection of a handshake that `ack` ends.
    fn open(&mut self, open: &Open, offer: &Offer, rtt: u64, ack: &Segment) {
        let sent = self.now;
        self.now = sent.plus_micros(rtt);
        let mut cx = cx!(self);
        match Ordinary::of(ack).filter(|o| self.straight && Tcb::may_establish(open, offer, o, &cx)) {
            Some(ordinary) => {
                self.tcb.establish(open, offer, sent, &ordinary, &mut cx);
                self.taken += 1;
            }
            None => {
                self.tcb.resume(open, offer, Some(sent), 0, &mut cx);
                self.tcb.general(ack, &mut cx);
            }
        }
    }

    fn hear(&mut self, seg: &Segment) -> bool {
        let before = self.counters.predicted;
        let mut cx = cx!(self);
        let replied = match self.straight {
            true => self.tcb.on_segment(seg, &mut cx).is_some(),
            false => self.tcb.general(seg, &mut cx).is_some(),
        };
        self.taken += (self.counters.predicted - before) as u32;
        replied
    }

    /// All that there is to send.
    fn send(&mut self) -> Vec<Out> {
        let mut all = Vec::new();
        while self.tcb.wants() != 0 && all.len() < 50 {
            let mut cx = cx!(self);
            if self.straight
                && let Some(out) = self.tcb.send_straight(&mut cx)
            {
                let mut text = vec![0; out.len as usize];
                self.tcb.copy_text(&out, &mut text, &self.pool);
                all.push((out.seq, out.ack, out.flags, out.window, out.ecn, out.timestamps, text));
                assert_eq!(self.tcb.wants(), 0, "there is no other");
                self.taken += 1;
                continue;
            }
            let max = self.tcb.segment_size() as u32;
            let Some(out) = self.tcb.next_segment(max, &mut cx) else { break };
            let mut text = vec![0; out.len as usize];
            self.tcb.copy_payload(&out, &mut text, &self.pool);
            all.push((out.seq, out.ack, out.flags, out.window, out.ecn, out.options.timestamps, text));
            self.tcb.all_sent(&mut cx!(self));
        }
        all
    }

    fn write(&mut self, len: usize, more: bool) {
        let text: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let mut chain = Chain::default();
        chain.push_slice(&mut self.app, &text);
        self.tcb.write(chain, more, &mut cx!(self));
    }

    fn read(&mut self) {
        let chain = self.tcb.take_received();
        let bytes = chain.len() as u32;
        chain.free(&mut self.pool);
        self.tcb.take_notice();
        self.tcb.consumed(bytes, &mut cx!(self));
    }

    /// What the segment of `step` is now.
    fn segment<'a>(&self, step: &Step, text: &'a [u8], clock: u32) -> Option<Segment<'a>> {
        let &Step::Hear { ahead, acks, fin, push, window, odd, older, .. } = step else { return None };
        let (una, nxt) = (self.tcb.snd_una(), self.tcb.snd_nxt());
        let ack = una + (nxt.since(una) as u64 * acks as u64 / 16) as u32;
        let seq = SeqNum(self.tcb.rcv_nxt().0.wrapping_add(ahead as u32));
        let mut flags = Flags::ACK;
        if fin {
            flags = flags | Flags::FIN;
        }
        if push {
            flags = flags | Flags::PSH;
        }
        if odd != 0 {
            flags = Flags::from_bits(flags.bits() ^ odd as u16);
        }
        let stamps = self.tcb.timestamps().map(|(offset, recent)| Timestamps {
            value: if older { recent.wrapping_sub(5) } else { clock },
            echo: (self.now.millis() as u32).wrapping_add(offset),
        });
        let options = Options { timestamps: stamps, ..Options::default() };
        Some(Segment { src_port: 1, dst_port: 2, seq, ack, flags, window, urgent: 0, options, payload: text, mss: 0 })
    }
}

/// The control blocks hold the same, but for whose memory it is.
fn same(a: &Half, b: &Half, what: &dyn core::fmt::Debug) {
    let [a, b] = [a, b].map(|half| format!("{:#?}", half.tcb));
    let lines = a.lines().zip(b.lines()).filter(|(a, _)| !a.trim_start().starts_with("pool: "));
    let differ: Vec<_> = lines.filter(|(a, b)| a != b).collect();
    assert!(differ.is_empty() && a.lines().count() == b.lines().count(), "after {what:?}: {differ:?}");
}

#[derive(Clone, Debug)]
struct Start {
    timestamps: bool,
    ecn: bool,
    scale: Option<u8>,
    mss: u16,
    rtt: u64,
    len: usize,
    fin: bool,
    window: u16,
    small: bool,
}

fn start() -> impl Strategy<Value = Start> {
    let scale = prop::option::weighted(0.9, 0u8..16);
    let rest = (0u64..100_000, prop_oneof![Just(0usize), 1usize..2000], prop::bool::weighted(0.1), any::<u16>());
    (any::<bool>(), any::<bool>(), scale, prop_oneof![Just(0u16), Just(1460), 30u16..2000], rest, any::<bool>())
        .prop_map(|(timestamps, ecn, scale, mss, (rtt, len, fin, window), small)| Start {
            timestamps,
            ecn,
            scale,
            mss,
            rtt,
            len,
            fin,
            window,
            small,
        })
}

fn run(start: &Start, steps: &[Step]) -> u32 {
    let config =
        Config { ecn: Ecn::Passive, receive_buffer: if start.small { 8_000 } else { 64 * 1024 }, ..Config::default() };
    let mut halves = [Half::new(&config, true), Half::new(&config, false)];
    let open =
        Open { iss: SeqNum(u32::MAX - 500), ts_offset: 77, mss: 1460, path_mss: 1460, receive_buffer: 0, headers: 40 };
    let offer = Offer {
        seq: SeqNum(u32::MAX - 900),
        window: 5_000,
        mss: start.mss,
        scale: start.scale,
        timestamp: start.timestamps.then_some(1000),
        sack: true,
        ecn: start.ecn,
    };
    let text: Vec<u8> = (0..4000).map(|i| (i / 3) as u8).collect();
    let flags = if start.fin { Flags::ACK | Flags::FIN } else { Flags::ACK };
    let timestamps = start.timestamps.then_some(Timestamps { value: 1001, echo: 50_077 });
    let ack = Segment {
        src_port: 1,
        dst_port: 2,
        seq: offer.seq + 1,
        ack: open.iss + 1,
        flags,
        window: start.window,
        urgent: 0,
        options: Options { timestamps, ..Options::default() },
        payload: &text[..start.len],
        mss: 0,
    };
    let [a, b] = &mut halves;
    a.open(&open, &offer, start.rtt, &ack);
    b.open(&open, &offer, start.rtt, &ack);
    same(a, b, start);
    go(a, b, steps, 1001);
    let taken = a.taken;
    for mut half in halves {
        half.tcb.release(&mut cx!(half));
    }
    taken
}

/// The same happens to both, whose peer's clock shows `clock`.
fn go(a: &mut Half, b: &mut Half, steps: &[Step], mut clock: u32) {
    let text: Vec<u8> = (0..4000).map(|i| (i / 3) as u8).collect();
    for step in steps {
        let over = matches!(b.tcb.state(), State::Closed);
        if b.tcb.is_disturbed() || over {
            break;
        }
        match *step {
            Step::Hear { len, .. } => {
                let (Some(x), Some(y)) = (a.segment(step, &text[..len], clock), b.segment(step, &text[..len], clock))
                else {
                    continue;
                };
                assert_eq!(a.hear(&x), b.hear(&y));
            }
            Step::Write { len, more } => {
                a.write(len, more);
                b.write(len, more);
            }
            Step::Read => {
                a.read();
                b.read();
            }
            Step::Shutdown => {
                a.tcb.shutdown(&mut cx!(a));
                b.tcb.shutdown(&mut cx!(b));
            }
            Step::Close => {
                a.tcb.close(false, &mut cx!(a));
                b.tcb.close(false, &mut cx!(b));
            }
            Step::Wait { micros } => {
                clock += (micros / 1000) as u32;
                for half in [&mut *a, &mut *b] {
                    half.now = half.now.plus_micros(micros);
                    if half.tcb.deadline() <= half.now {
                        half.tcb.on_timer(&mut cx!(half));
                    }
                }
            }
        }
        if b.tcb.is_disturbed() {
            break;
        }
        same(a, b, step);
        assert_eq!(a.send(), b.send(), "after {step:?}");
        if b.tcb.is_disturbed() {
            break;
        }
        same(a, b, &("sent after", step));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn both_ways_come_to_the_same(start in start(), steps in prop::collection::vec(step(), 0..30)) {
        run(&start, &steps);
    }
}

/// A SYN/ACK as nearly all are, but for what is off about it.
#[derive(Clone, Debug)]
struct Answer {
    rtt: u64,
    mss: u16,
    scale: u8,
    window: u16,
    ack: u32,
    echo: i32,
    again: bool,
    /// The SYN asks for ECN: it is no ordinary one.
    ecn: bool,
}

fn answer() -> impl Strategy<Value = Answer> {
    let one = (0u64..300_000, prop_oneof![Just(1460u16), any::<u16>()], 0u8..16, any::<u16>());
    let two = (
        prop_oneof![12 => Just(1u32), 1 => 0u32..3],
        prop_oneof![12 => Just(0i32), 1 => -2000..2000],
        prop::bool::weighted(0.05),
        any::<bool>(),
    );
    (one, two).prop_map(|((rtt, mss, scale, window), (ack, echo, again, ecn))| Answer {
        rtt,
        mss,
        scale,
        window,
        ack,
        echo,
        again,
        ecn,
    })
}

/// Opens actively; whether the SYN/ACK took the straight path.
fn connect(answer: &Answer, steps: &[Step]) -> bool {
    let config = Config { ecn: if answer.ecn { Ecn::Always } else { Ecn::Never }, ..Config::default() };
    let mut halves = [Half::new(&config, true), Half::new(&config, false)];
    let open = Open { iss: SeqNum(u32::MAX), ts_offset: 77, mss: 1460, path_mss: 1460, receive_buffer: 0, headers: 40 };
    for half in &mut halves {
        half.tcb.connect(&open, &mut cx!(half));
    }
    let [a, b] = &mut halves;
    let syn = a.tcb.first_syn(&mut cx!(a));
    assert_eq!(syn.is_some(), !answer.ecn);
    let syn = syn.or_else(|| a.tcb.next_segment(1460, &mut cx!(a)));
    let general = b.tcb.next_segment(1460, &mut cx!(b));
    assert_eq!(format!("{syn:?}"), format!("{general:?}"));
    if !answer.ecn {
        assert!(b.tcb.all_sent(&mut cx!(b)));
    }
    same(a, b, answer);
    assert!(a.tcb.first_syn(&mut cx!(a)).is_none());
    for half in &mut halves {
        if answer.again {
            half.now = half.tcb.deadline();
            half.tcb.on_timer(&mut cx!(half));
            assert!(half.tcb.next_segment(1460, &mut cx!(half)).is_some());
        }
        half.now = half.now.plus_micros(answer.rtt);
    }
    let sent = (halves[0].now.millis() - answer.rtt / 1000) as u32;
    let timestamps = Timestamps { value: 1000, echo: (sent + 77).wrapping_add_signed(answer.echo) };
    let (seq, ack) = (SeqNum(500), open.iss + answer.ack);
    let &Answer { window, mss, scale, .. } = answer;
    let options = Options {
        mss: Some(mss),
        window_scale: Some(scale),
        sack_permitted: true,
        timestamps: Some(timestamps),
        ..Options::default()
    };
    let flags = Flags::SYN | Flags::ACK;
    let seg = Segment { src_port: 1, dst_port: 2, seq, ack, flags, window, urgent: 0, options, payload: &[], mss: 0 };
    let syn = Syn { seq, ack: Some(ack), window, mss, scale, timestamps };
    let [a, b] = &mut halves;
    let straight = a.tcb.connect_straight(&syn, &mut cx!(a));
    let replied = if straight { false } else { a.tcb.general(&seg, &mut cx!(a)).is_some() };
    assert_eq!(replied, b.tcb.general(&seg, &mut cx!(b)).is_some());
    same(a, b, answer);
    assert_eq!(a.send(), b.send());
    if straight {
        go(a, b, steps, 1000);
    }
    for mut half in halves {
        half.tcb.release(&mut cx!(half));
    }
    straight
}

proptest! {
    #[test]
    fn both_ways_connect_alike(answer in answer(), steps in prop::collection::vec(step(), 0..10)) {
        connect(&answer, &steps);
    }
}

/// That the property shows something: most of what happens here is ordinary.
#[test]
fn most_takes_the_straight_path() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let strategy = (start(), prop::collection::vec(step(), 20..30));
    let taken: u32 = (0..200)
        .map(|_| {
            let (start, steps) = strategy.new_tree(&mut runner).unwrap().current();
            run(&start, &steps)
        })
        .sum();
    assert!(taken > 600, "{taken}");
    let strategy = (answer(), prop::collection::vec(step(), 0..3));
    let connected = (0..100).filter(|_| {
        let (answer, steps) = strategy.new_tree(&mut runner).unwrap().current();
        connect(&answer, &steps)
    });
    assert!(connected.count() > 50);
}

/// More than 2 GiB without trouble: what was noted at the beginning is of long ago then, and not beyond all that was sent.
#[test]
fn numbers_go_round() {
    const SMSS: usize = 1000;
    const BURST: usize = 60 * SMSS;
    let mut half = Half::new(&Config::default(), true);
    let open = Open { iss: SeqNum(7), ts_offset: 0, mss: 1000, path_mss: 1000, receive_buffer: 0, headers: 40 };
    let offer =
        Offer { seq: SeqNum(70), window: 65_535, mss: 1000, scale: Some(2), timestamp: None, sack: true, ecn: false };
    let acked = |ack: SeqNum| Segment {
        src_port: 1,
        dst_port: 2,
        seq: offer.seq + 1,
        ack,
        flags: Flags::ACK,
        window: 65_535,
        urgent: 0,
        options: Options::default(),
        payload: &[],
        mss: 0,
    };
    half.open(&open, &offer, 1000, &acked(open.iss + 1));
    // All of it, until it is acknowledged; how much it was.
    let send = |half: &mut Half, len: usize| {
        half.write(len, false);
        let mut sent = 0;
        while half.tcb.unacknowledged() > 0 {
            while let Some(out) = half.tcb.next_segment(BURST as u32, &mut cx!(half)) {
                sent += out.len as usize;
            }
            half.now = half.now.plus_micros(100);
            let nxt = half.tcb.snd_nxt();
            half.hear(&acked(nxt));
            half.tcb.check(&half.sent);
        }
        half.pool.supply_peer(64);
        half.tcb.take_acked();
        half.tcb.take_notice();
        sent
    };
    // A partial segment, of which the number is noted, and then none for so long that it seems to lie ahead.
    send(&mut half, 10);
    let mut sent = 0;
    while sent <= 1 << 31 {
        let burst = send(&mut half, BURST);
        assert_eq!(burst % SMSS, 0, "no partial segment");
        sent += burst;
    }
    half.write(SMSS, false);
    assert!(half.tcb.next_segment(SMSS as u32, &mut cx!(half)).is_some());
    half.write(10, false);
    let partial = half.tcb.next_segment(SMSS as u32, &mut cx!(half)).map(|out| out.len);
    assert_eq!(partial, Some(10), "a segment of long ago holds a partial one back");
    half.tcb.release(&mut cx!(half));
}

//! The far end of one connection: a [`Tcb`] alone with a clock, memory and an application, spoken to in tcpdump's notation.
//!
//! A segment is `FLAGS SEQ:END(LEN) ack N win N <options>`, for example `P. 1:1001(1000) ack 1 win 20000`. Sequence numbers
//! are relative to the initial ones of whoever sends them; both lie just below 2³², so that every test crosses the wrap.
//! Flags are `SFRPUEWA` and `.` for ACK; `[ect0]` and `[ce]` before them are the IP header's ECN bits. Options: `mss N,sackOK,TS val N ecr N,wscale N,sack L:R L:R`.

use core::ops::{Deref, DerefMut};
use core::time::Duration;

use mem::{Chain, Pool, PoolConfig, Side};
use tcp::congestion::Algorithm;
use tcp::{
    Config, Context, Counters, Ecn, Limits, Notice, Offer, Open, Outgoing, Reply, SentPool, State, Tcb, TcpInfo,
};
use wire::tcp::{Flags, Options, Segment, Timestamps};
use wire::{Instant, SeqNum};

/// Ours.
pub const ISS: SeqNum = SeqNum(0xffff_fb00);
/// The peer's.
pub const IRS: SeqNum = SeqNum(0xffff_fd00);

/// The clock's start: a handshake ends at a round number of seconds.
const START: Instant = Instant::from_micros(100_000_000 - RTT_US);

/// The round trip of a handshake, µs. The RTO is 220 ms after it.
const RTT_US: u64 = 20_000;

/// `TSval` of what is sent at the start.
pub const TS: u32 = 1_000;

const LETTERS: [(char, Flags); 9] = [
    ('S', Flags::SYN),
    ('F', Flags::FIN),
    ('R', Flags::RST),
    ('P', Flags::PSH),
    ('U', Flags::URG),
    ('E', Flags::ECE),
    ('W', Flags::CWR),
    ('A', Flags::AE),
    ('.', Flags::ACK),
];

/// Parameters without options on the wire: what a test is not about stays out of its segments.
pub fn plain() -> Config {
    Config {
        timestamps: false,
        window_scaling: false,
        sack: false,
        ecn: Ecn::Never,
        frto: false,
        black_hole_timeouts: 0,
        syn_linear_timeouts: 0,
        invalid_ratelimit: Duration::ZERO,
        congestion: Algorithm::NewReno,
        receive_buffer: 20_000,
        receive_buffer_max: 20_000,
        ..Config::default()
    }
}

/// How a connection is opened in a test: segments of 1,000 bytes, 20,000 bytes of receive buffer.
pub fn open() -> Open {
    let ts_offset = TS.wrapping_sub(START.millis() as u32);
    Open { iss: ISS, ts_offset, mss: 1000, path_mss: u16::MAX, receive_buffer: 20_000, headers: 40 }
}

/// What we receive is checked against this stream, and the peer against the same one of ours.
fn byte_at(offset: u32) -> u8 {
    (offset ^ offset >> 8 ^ offset >> 16).wrapping_mul(29) as u8
}

fn pattern(offset: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| byte_at(offset.wrapping_add(i))).collect()
}

/// One connection and everything around it.
pub struct Peer {
    tcb: Option<Tcb>,
    pub now: Instant,
    pub config: Config,
    pub counters: Counters,
    pub limits: Limits,
    /// Whether PSH is compared: where it stands is a matter of `push.rs`.
    pub push: bool,
    /// Whether it is parked when it has been idle.
    pub pauses: bool,
    /// Segments that a frame may carry, for ports that cut them.
    pub segments: u32,
    pool: Side,
    _app: Side,
    sent: SentPool,
    /// What the application has not been told, taken where the connection was parked.
    notices: Notice,
    /// Bytes of our stream that the application has written.
    written: u32,
    /// Bytes of the peer's stream that the application has taken.
    taken: u32,
    /// A line for every segment, for failures.
    log: String,
}

macro_rules! cx {
    ($p:expr) => {
        Context {
            now: $p.now,
            pool: &mut $p.pool,
            sent: &mut $p.sent,
            config: &$p.config,
            counters: &mut $p.counters,
            limits: &mut $p.limits,
        }
    };
}

pub(crate) use cx;

impl Deref for Peer {
    type Target = Tcb;
    fn deref(&self) -> &Tcb {
        self.tcb.as_ref().expect("lives until it is dropped")
    }
}

impl DerefMut for Peer {
    fn deref_mut(&mut self) -> &mut Tcb {
        self.tcb.as_mut().expect("lives until it is dropped")
    }
}

impl Drop for Peer {
    /// Nothing is left behind: no chunk, no record of a sent segment.
    fn drop(&mut self) {
        let Some(mut tcb) = self.tcb.take() else { return };
        if std::thread::panicking() {
            println!("{}", self.log);
            return;
        }
        tcb.check(&self.sent);
        tcb.release(&mut cx!(self));
        assert_eq!(self.sent.used(), 0, "records of sent segments left");
        assert_eq!(self.pool.stats().in_use_estimate, 0, "chunks left");
    }
}

impl Peer {
    fn new(config: Config, chunks: u32, make: impl FnOnce(&mut Tcb, &mut Context)) -> Peer {
        let (pool, app) = Pool::new(&PoolConfig { chunks, ..PoolConfig::default() }).unwrap();
        let mut p = Peer {
            tcb: None,
            now: START,
            config,
            counters: Counters::default(),
            limits: Limits::default(),
            push: false,
            pauses: true,
            segments: 1,
            pool,
            _app: app,
            sent: SentPool::new(),
            notices: Notice::default(),
            written: 0,
            taken: 0,
            log: String::new(),
        };
        let mut tcb = Tcb::new(&p.config);
        make(&mut tcb, &mut cx!(p));
        p.tcb = Some(tcb);
        p
    }

    /// We connect; the SYN is not yet sent.
    pub fn connecting(config: Config, open: Open) -> Peer {
        Peer::new(config, 4096, |tcb, cx| tcb.connect(&open, cx))
    }

    /// The peer connects by `syn`; our SYN/ACK is not yet sent.
    pub fn accepting(config: Config, open: Open, syn: &str) -> Peer {
        Peer::with_memory(config, open, syn, 4096)
    }

    /// As [`Peer::accepting`], with `chunks` of memory.
    pub fn with_memory(config: Config, open: Open, syn: &str, chunks: u32) -> Peer {
        Peer::new(config, chunks, |tcb, cx| {
            parsed(syn, |seg| {
                assert!(seg.flags.contains(Flags::SYN));
                tcb.accept(&open, seg, cx)
            })
        })
    }

    /// What a SYN offers.
    pub fn offer(syn: &str) -> Offer {
        parsed(syn, Offer::of)
    }

    /// The SYN/ACK that needs no connection.
    pub fn syn_ack(&mut self, offer: &Offer) -> String {
        let out = Tcb::syn_ack(&open(), offer, self.now, &self.config);
        shown(&out, out.flags)
    }

    /// A connection that comes to life at `now`, its SYN/ACK sent before.
    pub fn resumed(
        config: Config,
        open: Open,
        offer: &Offer,
        sent: Option<Instant>,
        retries: u8,
        now: Instant,
    ) -> Peer {
        let mut p = Peer::new(config, 4096, |tcb, cx| {
            cx.now = now;
            tcb.resume(&open, offer, sent, retries, cx)
        });
        p.now = now;
        p
    }

    /// An established connection that the peer opened, without options: both windows 20,000, both segments 1,000 bytes.
    pub fn server() -> Peer {
        Peer::server_with(plain())
    }

    pub fn server_with(config: Config) -> Peer {
        Peer::server_window(config, 20_000)
    }

    /// The same; the peer offers `window` after the handshake.
    pub fn server_window(config: Config, window: u16) -> Peer {
        let mut p = Peer::accepting(config, open(), "S 0:0(0) win 20000 <mss 1000>");
        p.expect("S. 0:0(0) ack 1 win 20000 <mss 1000>");
        p.wait_ms(20);
        p.inject(&format!(". 1:1(0) ack 1 win {window}"));
        p.established_now();
        p
    }

    /// An established connection of `config` whose peer offers `options` in its SYN.
    pub fn server_offered(config: Config, options: &str) -> Peer {
        let mut p = Peer::accepting(config, open(), &format!("S 0:0(0) win 20000 <{options}>"));
        assert_eq!(p.drain().len(), 1);
        p.wait_ms(20);
        let ts = if p.timestamps().is_some() { format!(" <TS val 100 ecr {TS}>") } else { String::new() };
        p.inject(&format!(". 1:1(0) ack 1 win 20000{ts}"));
        p.established_now();
        p
    }

    fn established_now(&mut self) {
        self.quiet();
        assert_eq!(self.state(), State::Established);
        assert!(self.take_notice().has(Notice::CONNECTED));
    }

    /// A segment from the peer; nothing outside the connection answers it.
    pub fn inject(&mut self, text: &str) {
        let reply = self.reply_to(text);
        assert_eq!(reply, None, "an unexpected reply to {text}");
    }

    /// A segment from the peer, and the segment outside the connection that answers it.
    pub fn reply_to(&mut self, text: &str) -> Option<Reply> {
        self.note('<', text);
        let marked = text.strip_prefix("[ce] ");
        let reply = parsed(marked.unwrap_or(text), |seg| {
            let tcb = self.tcb.as_mut().expect("lives");
            if marked.is_some() {
                tcb.congestion_experienced();
            }
            tcb.note_urgent(seg);
            tcb.on_segment(seg, &mut cx!(self))
        });
        self.check();
        reply
    }

    /// The control block contradicts itself nowhere.
    fn check(&self) {
        self.tcb.as_ref().expect("lives").check(&self.sent);
    }

    fn note(&mut self, way: char, text: &str) {
        self.log += &format!("{:.6} {way} {text}\n", self.now.micros() as f64 / 1e6);
    }

    /// One more segment, if any may go now, its payload compared with what was written.
    pub fn next(&mut self) -> Option<String> {
        let max = self.segments * self.segment_size() as u32;
        let out = self.tcb.as_mut().expect("lives").next_segment(max, &mut cx!(self));
        self.check();
        let out = out?;
        let mut payload = vec![0; out.len as usize];
        let tcb = self.tcb.as_mut().expect("lives");
        tcb.copy_payload(&out, &mut payload, &self.pool);
        let offset = out.seq.since(ISS + 1);
        if out.len > 0 {
            assert!(payload == pattern(offset, payload.len()), "the payload at {} is not what was written", offset + 1);
            assert!(offset + out.len <= self.written, "sent what was not written");
        }
        let mut header = out.header(1, 2);
        self.mark_urgent(&mut header);
        let mut text = shown(&out, header.flags);
        if header.flags.contains(Flags::URG) {
            text += &format!(" urg {}", header.urgent);
        }
        if !self.push {
            text = without_push(&text);
        }
        self.note('>', &text);
        Some(text)
    }

    /// Everything that may be sent now.
    pub fn drain(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(line) = self.next() {
            lines.push(line);
            assert!(lines.len() < 10_000, "sends without end");
        }
        assert!(!self.wants_control() && !self.wants_ack(), "says it has more");
        // Whatever waits for the peer has a timer.
        let info = self.info();
        let open = !matches!(info.state, State::Closed | State::TimeWait | State::Listen);
        if open && (info.unacked_bytes > 0 || info.notsent_bytes > 0) {
            assert_ne!(self.deadline(), Instant::FAR, "no timer runs");
        }
        // As soon as the stack might.
        if self.pauses && self.now.micros_since(self.last_active()) >= 20_000 {
            self.pause();
        }
        lines
    }

    /// What the application should be told.
    pub fn take_notice(&mut self) -> Notice {
        let parked = core::mem::take(&mut self.notices);
        Notice(parked.0 | self.tcb.as_mut().expect("lives").take_notice().0)
    }

    pub fn notice(&self) -> Notice {
        Notice(self.notices.0 | self.tcb.as_ref().expect("lives").notice().0)
    }

    pub fn has_notice(&self) -> bool {
        self.notices.0 != 0 || self.tcb.as_ref().expect("lives").has_notice()
    }

    /// The connection is parked and goes on from that, where nothing is under way; how many bytes it took meanwhile.
    pub fn pause(&mut self) -> Option<usize> {
        let (now, config) = (self.now, self.config.clone());
        if !self.is_idle() {
            return None;
        }
        self.notices = self.take_notice();
        let (mut before, deadline) = (self.info(), self.deadline());
        if let Some(until) = self.lingers_until() {
            if until > now {
                return None;
            }
            let tcb = self.tcb.as_mut().expect("lives");
            tcb.rest(&mut cx!(self));
            before = self.info();
        }
        let parked = self.park(now, &config)?;
        let bytes = parked.bytes();
        assert!(parked.deadline(now) >= deadline, "parked beyond {deadline:?}");
        let tcb = Tcb::unpark(parked, now, &config);
        let mut after = tcb.info(now, &config);
        // Times are kept in units of 16 ms.
        for (after, before) in [
            (&mut after.last_data_sent_ms, before.last_data_sent_ms),
            (&mut after.last_data_recv_ms, before.last_data_recv_ms),
            (&mut after.last_ack_recv_ms, before.last_ack_recv_ms),
        ] {
            assert!((before..=before + 16).contains(after), "{after} ms after {before}");
            *after = before;
        }
        assert_eq!(after, before, "what is told after a pause");
        self.tcb = Some(tcb);
        self.check();
        self.note(' ', "(parked, and goes on)");
        Some(bytes)
    }

    /// Everything that may be sent now is exactly this, a segment a line.
    #[track_caller]
    pub fn expect(&mut self, lines: &str) {
        let got = self.drain().join("\n");
        let want = |line: &str| if self.push { line.trim().into() } else { without_push(line.trim()) };
        let want = lines.trim().lines().map(want).collect::<Vec<_>>().join("\n");
        assert!(got == want, "\nexpected:\n{want}\ngot:\n{got}");
    }

    /// Nothing may be sent now.
    #[track_caller]
    pub fn quiet(&mut self) {
        self.expect("");
    }

    /// A segment in, and what answers it.
    #[track_caller]
    pub fn exchange(&mut self, text: &str, answer: &str) {
        self.inject(text);
        self.expect(answer);
    }

    /// Full segments of data from `first` to before `end`, of 1,000 bytes each, as they are sent with window 20,000.
    #[track_caller]
    pub fn expect_data(&mut self, first: u32, end: u32, push: bool) {
        let lines: Vec<String> = (first..end)
            .step_by(1000)
            .map(|s| {
                let e = (s + 1000).min(end);
                let psh = if push && e == end { "P" } else { "" };
                format!("{psh}. {s}:{e}({}) ack 1 win 20000", e - s)
            })
            .collect();
        self.expect(&lines.join("\n"));
    }

    /// The application sends `n` bytes.
    pub fn write(&mut self, n: usize) {
        self.send(n, false);
    }

    /// As with MSG_MORE.
    pub fn write_more(&mut self, n: usize) {
        self.send(n, true);
    }

    /// As with MSG_EOR.
    pub fn write_record(&mut self, n: usize) {
        self.send(n, false);
        self.tcb.as_mut().expect("lives").end_record();
    }

    fn send(&mut self, n: usize, more: bool) {
        let bytes = pattern(self.written, n);
        let mut chain = Chain::default();
        assert_eq!(chain.push_slice(&mut self.pool, &bytes), n);
        self.written += n as u32;
        self.tcb.as_mut().expect("lives").write(chain, more, &mut cx!(self));
    }

    /// Takes so many chunks away; [`Peer::release`] gives them back.
    pub fn occupy(&mut self, chunks: usize) -> Chain {
        let mut chain = Chain::default();
        assert_eq!(chain.push_slice(&mut self.pool, &vec![0; chunks * mem::CHUNK_BYTES]), chunks * mem::CHUNK_BYTES);
        chain
    }

    pub fn release(&mut self, chain: Chain) {
        chain.free(&mut self.pool);
    }

    /// Bytes that the connection has for the application, compared with what the peer sent; they stay in the buffer.
    pub fn take(&mut self) -> usize {
        let mut chain = self.take_received();
        let mut bytes = vec![0; chain.len()];
        chain.read(&mut self.pool, &mut bytes);
        chain.free(&mut self.pool);
        assert!(bytes == pattern(self.taken, bytes.len()), "received something else than was sent");
        self.taken += bytes.len() as u32;
        bytes.len()
    }

    /// The application reads everything there is.
    pub fn read(&mut self) -> usize {
        let n = self.take();
        self.consumed(n as u32);
        n
    }

    pub fn consumed(&mut self, n: u32) {
        self.tcb.as_mut().expect("lives").consumed(n, &mut cx!(self));
    }

    pub fn shutdown(&mut self) {
        self.tcb.as_mut().expect("lives").shutdown(&mut cx!(self));
    }

    pub fn close(&mut self) {
        self.tcb.as_mut().expect("lives").close(false, &mut cx!(self));
    }

    pub fn close_unread(&mut self) {
        self.tcb.as_mut().expect("lives").close(true, &mut cx!(self));
    }

    pub fn abort(&mut self) {
        self.tcb.as_mut().expect("lives").abort(&mut cx!(self));
    }

    /// An ICMP error that quotes our sequence number `seq`.
    pub fn unreachable(&mut self, hard: bool, seq: Option<i64>) -> bool {
        let seq = seq.map(|s| relative(ISS, s));
        self.tcb.as_mut().expect("lives").unreachable(hard, seq, &mut cx!(self))
    }

    /// An ICMP "too big" that leaves `mss` bytes and quotes `seq`.
    pub fn too_big(&mut self, mss: u16, seq: Option<i64>) -> bool {
        let seq = seq.map(|s| relative(ISS, s));
        self.tcb.as_mut().expect("lives").shrink_mss(mss, seq, &mut cx!(self))
    }

    pub fn keepalive(&mut self, on: Option<bool>, idle: Option<u16>, interval: Option<u16>, count: Option<u8>) {
        self.tcb.as_mut().expect("lives").set_keepalive(on, idle, interval, count, &cx!(self));
    }

    pub fn shed(&mut self) -> usize {
        self.tcb.as_mut().expect("lives").shed_out_of_order(&mut cx!(self))
    }

    pub fn time_fin_wait_2(&mut self) {
        self.tcb.as_mut().expect("lives").time_fin_wait_2(&mut cx!(self));
    }

    pub fn cork(&mut self, on: bool) {
        self.tcb.as_mut().expect("lives").set_cork(on);
    }

    pub fn info(&self) -> TcpInfo {
        self.deref().info(self.now, &self.config)
    }

    /// Congestion window and slow-start threshold, segments.
    pub fn cwnd(&self) -> (u64, u64) {
        (self.info().snd_cwnd, self.info().snd_ssthresh)
    }

    /// The next timer is due in exactly `us`, does nothing a microsecond earlier, and is run.
    #[track_caller]
    pub fn timer(&mut self, us: u64) {
        let at = self.now.plus_micros(us);
        assert_eq!(self.deadline().micros() as i128 - self.now.micros() as i128, us as i128);
        if us > 0 {
            self.now = Instant::from_micros(at.micros() - 1);
            self.run_timers();
            self.quiet();
            assert_eq!(self.deadline(), at, "a timer ran early");
        }
        self.now = at;
        self.run_timers();
        assert!(self.deadline() > at, "the timer is still due");
    }

    /// As [`Peer::timer`] in ms.
    #[track_caller]
    pub fn timer_ms(&mut self, ms: u64) {
        self.timer(ms * 1000);
    }

    /// Time passes; no timer is due and nothing is sent.
    #[track_caller]
    pub fn wait_ms(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
        assert!(self.deadline() > self.now, "a timer was due");
        self.run_timers();
        self.quiet();
    }

    /// No timer runs.
    #[track_caller]
    pub fn no_timer(&self) {
        assert_eq!(self.deadline(), Instant::FAR);
    }

    pub fn run_timers(&mut self) {
        self.tcb.as_mut().expect("lives").on_timer(&mut cx!(self));
        self.check();
    }
}

fn relative(base: SeqNum, n: i64) -> SeqNum {
    SeqNum(base.0.wrapping_add(n as u32))
}

fn number<T: core::str::FromStr>(s: &str) -> T {
    s.parse().unwrap_or_else(|_| panic!("{s:?} is no number of this size"))
}

/// Reads a segment of the peer's.
fn parsed<R>(text: &str, f: impl FnOnce(&Segment) -> R) -> R {
    let (head, options) = match text.split_once(" <") {
        Some((head, rest)) => (head, rest.strip_suffix('>').expect("options end with >")),
        None => (text, ""),
    };
    let mut words = head.split_whitespace();
    let letters = words.next().expect("flags");
    let flags = letters.chars().fold(Flags::empty(), |all, c| {
        all | LETTERS.iter().find(|(l, _)| *l == c).unwrap_or_else(|| panic!("no flag {c}")).1
    });
    let range = words.next().expect("a range");
    let (first, rest) = range.split_once(':').expect("SEQ:END(LEN)");
    let (end, len) = rest.strip_suffix(')').and_then(|r| r.split_once('(')).expect("SEQ:END(LEN)");
    let (first, end, len): (i64, i64, usize) = (number(first), number(end), number(len));
    assert_eq!(first + len as i64, end, "{text}");
    // SYN comes before the text.
    let payload = pattern((first - !flags.contains(Flags::SYN) as i64) as u32, len);
    let mut seg = Segment {
        src_port: 2,
        dst_port: 1,
        seq: relative(IRS, first),
        ack: SeqNum(0),
        flags,
        window: 0,
        urgent: 0,
        options: options_of(options),
        payload: &payload,
        mss: 0,
    };
    while let Some(word) = words.next() {
        let value = words.next().expect("a value");
        match word {
            "mss" => seg.mss = value.parse().expect("bytes"),
            "ack" => seg.ack = relative(ISS, number(value)),
            "win" => seg.window = number(value),
            "urg" => seg.urgent = number(value),
            _ => panic!("{word}?"),
        }
    }
    assert_eq!(flags.contains(Flags::ACK), head.contains(" ack "), "{text}");
    f(&seg)
}

fn options_of(text: &str) -> Options {
    let mut o = Options::default();
    for option in text.split(',').filter(|o| !o.is_empty()) {
        match option.split(' ').collect::<Vec<_>>()[..] {
            ["mss", n] => o.mss = Some(number(n)),
            ["wscale", n] => o.window_scale = Some(number(n)),
            ["sackOK"] => o.sack_permitted = true,
            ["TS", "val", value, "ecr", echo] => {
                o.timestamps = Some(Timestamps { value: number(value), echo: number(echo) })
            }
            ["sack", ref blocks @ ..] => {
                for block in blocks {
                    let (left, right) = block.split_once(':').expect("L:R");
                    o.sack.push(relative(ISS, number(left)), relative(ISS, number(right)));
                }
            }
            _ => panic!("no option {option}"),
        }
    }
    o
}

/// The line without the `P` among its flags.
fn without_push(line: &str) -> String {
    let from = line.find("] ").map_or(0, |at| at + 2);
    let to = line[from..].find(' ').map_or(line.len(), |at| from + at);
    format!("{}{}{}", &line[..from], line[from..to].replace('P', ""), &line[to..])
}

fn shown(out: &Outgoing, flags: Flags) -> String {
    let flags: String = LETTERS.iter().filter(|(_, f)| flags.contains(*f)).map(|(c, _)| *c).collect();
    let rel = |n: SeqNum, base: SeqNum| n.since(base) as i32;
    let seq = rel(out.seq, ISS);
    let ecn = match out.ecn {
        0 => "",
        2 => "[ect0] ",
        _ => panic!("{out:?}"),
    };
    let mut s = format!("{ecn}{flags} {seq}:{}({})", seq + out.len as i32, out.len);
    if out.flags.contains(Flags::ACK) {
        s += &format!(" ack {}", rel(out.ack, IRS));
    } else {
        assert_eq!(out.ack, SeqNum(0), "an acknowledgment number without ACK");
    }
    s += &format!(" win {}", out.window);
    let o = &out.options;
    let mut options = Vec::new();
    options.extend(o.mss.map(|n| format!("mss {n}")));
    options.extend(o.sack_permitted.then(|| "sackOK".to_string()));
    options.extend(o.timestamps.map(|t| format!("TS val {} ecr {}", t.value, t.echo)));
    options.extend(o.window_scale.map(|n| format!("wscale {n}")));
    if !o.sack.as_slice().is_empty() {
        let blocks = o.sack.as_slice().iter().map(|(l, r)| format!(" {}:{}", rel(*l, IRS), rel(*r, IRS)));
        options.push(format!("sack{}", blocks.collect::<String>()));
    }
    if !options.is_empty() {
        s += &format!(" <{}>", options.join(","));
    }
    s
}

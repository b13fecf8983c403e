//! Random operations on connections that come and go, over both engines: bytes are in order, completions too, and nothing
//! comes of what was given up. `CORELANE_SEED=7` replays one, `CORELANE_SEEDS=1000` tries more.

mod common;

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use channel::{Amount, Capabilities, Command, Data, Event, Handle, Options};
use common::{Who, World, light, on_engines, stream, usual};

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// One direction of one connection.
#[derive(Default)]
struct Flow {
    written: usize,
    read: usize,
    /// Lengths of writes, and sizes of reads, whose completions are to come.
    writes: VecDeque<usize>,
    reads: VecDeque<usize>,
}

fn run(w: &mut World, seed: u64) {
    let mut random = Random(seed);
    let listening = w.listen();
    // By B's handle: A's, and the bytes from B to A.
    let mut pairs: Vec<(Handle, Handle)> = Vec::new();
    let mut flows: HashMap<Handle, Flow> = HashMap::new();
    for _ in 0..400 {
        if pairs.len() < 4 && random.below(8) == 0 || pairs.is_empty() {
            let (a, b) = connect(w, listening, &pairs, &mut flows);
            pairs.push((a, b));
            flows.insert(b, Flow::default());
        }
        let at = random.below(pairs.len());
        let (a, b) = pairs[at];
        let flow = flows.get_mut(&b).unwrap();
        match random.below(12) {
            0..=3 if flow.writes.len() < 8 => {
                let n = [1, 100, 5000, 300_000][random.below(4)];
                match random.below(2) {
                    0 => w.b.write(b, stream(flow.written, n)).unwrap(),
                    _ => {
                        let cut = random.below(n + 1);
                        let parts = [stream(flow.written, cut), stream(flow.written + cut, n - cut)];
                        w.b.writev(b, parts.map(Into::into).into()).unwrap();
                    }
                }
                flow.written += n;
                flow.writes.push_back(n);
            }
            4..=6 if flow.reads.len() < 8 => {
                let n = 1 + random.below(100_000);
                match random.below(3) {
                    0 => w.a.read(a, vec![0; n]).unwrap(),
                    1 => w.a.readv(a, vec![vec![0; n / 2], vec![0; n - n / 2]]).unwrap(),
                    _ => w.a.recv(a).unwrap(),
                }
                flow.reads.push_back(n);
            }
            7 if random.below(4) == 0 => {
                drain(w, &pairs, &mut flows);
                w.a.unregister(a).unwrap();
                w.b.unregister(b).unwrap();
                pairs.swap_remove(at);
                flows.remove(&b);
            }
            8 => w.a.flush().unwrap(),
            9 => w.b.flush().unwrap(),
            _ => drain(w, &pairs, &mut flows),
        }
    }
}

/// A new connection, while completions of others come.
fn connect(
    w: &mut World,
    listening: Handle,
    pairs: &[(Handle, Handle)],
    flows: &mut HashMap<Handle, Flow>,
) -> (Handle, Handle) {
    let b = w.socket(2);
    let to = w.address();
    w.b.connect(b, to).unwrap();
    w.a.accept(listening, Amount::Of(1), true).unwrap();
    let (mut a, mut connected) = (None, false);
    let end = Instant::now() + Duration::from_secs(20);
    while a.is_none() || !connected {
        assert!(Instant::now() < end, "no connection");
        for who in [Who::A, Who::B] {
            let Some(event) = w.channel(who).dispatch(Some(Duration::ZERO)).unwrap() else { continue };
            match event.command {
                Command::Accept => a = Some(w.a.register_light(light(event), 1).unwrap()),
                Command::Connect => connected = event.result.map(|_| event.handle == b).unwrap(),
                _ => compare(w, who, event, pairs, flows),
            }
        }
    }
    (a.unwrap(), b)
}

/// Takes what is complete.
fn drain(w: &mut World, pairs: &[(Handle, Handle)], flows: &mut HashMap<Handle, Flow>) {
    for who in [Who::A, Who::B] {
        while let Some(event) = w.channel(who).dispatch(Some(Duration::ZERO)).unwrap() {
            compare(w, who, event, pairs, flows);
        }
    }
}

/// Holds a completion against what was asked for.
fn compare(w: &mut World, who: Who, event: Event, pairs: &[(Handle, Handle)], flows: &mut HashMap<Handle, Flow>) {
    let pair = pairs.iter().find(|(a, b)| *if who == Who::A { a } else { b } == event.handle);
    let (_, b) = *pair.expect("of a handle that is no more");
    let flow = flows.get_mut(&b).unwrap();
    let n = event.result.unwrap();
    if event.command == Command::Write {
        assert_eq!(Some(n), flow.writes.pop_front(), "a write overtook another, or is not whole");
        return;
    }
    let asked = flow.reads.pop_front().expect("a read that nobody asked for");
    assert!(n > 0, "it has not ended");
    let bytes = match event.data {
        Data::Received(received) => {
            let bytes = w.a.bytes(&received).to_vec();
            w.a.release(received).unwrap();
            bytes
        }
        Data::Vec(bytes) => {
            assert_eq!(bytes.len(), asked);
            bytes[..n].to_vec()
        }
        Data::Vecs(parts) => {
            assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), asked);
            parts.concat()[..n].to_vec()
        }
        other => panic!("{other:?}"),
    };
    assert!(bytes == stream(flow.read, n), "near {}", flow.read);
    flow.read += n;
    assert!(flow.read <= flow.written);
}

#[test]
fn whatever_is_asked_for_in_whatever_order() {
    // A history waits for the kernel most of its time.
    let threads = if std::env::var_os("CORELANE_SEEDS").is_some() { 4 * testing::cores() } else { 1 };
    testing::seeds("channel --test random", 10, threads, |seed| {
        // One that hangs is to be told, too.
        eprintln!("CORELANE_SEED={seed}");
        let options = Options { buffers: 4, buffer_size: 1024, batch: 1 + seed as u32 % 40, ..usual() };
        on_engines("", Capabilities::KERNEL, options, |mut w| run(&mut w, seed));
    });
}

//! `load` over AF_XDP beside curl and wrk: what each makes of an answer.

use super::answers::{Answer, TABLE};
use super::feature::Case;
use super::list::{Difference, List, shrink};
use super::*;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// Links between the namespaces, each with a client of its own on AF_XDP.
const LINKS: usize = 12;
/// Requests of a client that are answered; later ones wait for ever.
const ANSWERED: usize = 2;

/// A server of one link, and what it is to say.
struct Scripted {
    link: usize,
    port: u16,
    answer: Mutex<(Vec<u8>, Option<bool>, bool)>,
    /// Requests answered, and connections on which there was one.
    requests: AtomicUsize,
    connections: AtomicUsize,
    over: AtomicBool,
}

impl Scripted {
    fn prepare(&self, answer: &Answer) {
        let (bytes, end) = answer.bytes();
        *self.answer.lock().unwrap() = (bytes, end, answer.bytewise);
        self.requests.store(0, Ordering::SeqCst);
        self.connections.store(0, Ordering::SeqCst);
    }

    /// Serves until it is over, on a thread in the server's namespace.
    fn serve(&self, listener: &TcpListener) {
        std::thread::scope(|scope| {
            for stream in listener.incoming() {
                if self.over.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                scope.spawn(move || drop(self.converse(stream)));
            }
        });
    }

    fn converse(&self, mut stream: TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        // Longer than any client waits.
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let (mut head, mut piece, mut first) = (Vec::new(), [0; 4096], true);
        loop {
            let n = stream.read(&mut piece)?;
            if n == 0 {
                return Ok(());
            }
            head.extend_from_slice(&piece[..n]);
            if !head.ends_with(b"\r\n\r\n") {
                continue;
            }
            head.clear();
            if self.requests.fetch_add(1, Ordering::SeqCst) >= ANSWERED {
                continue;
            }
            self.connections.fetch_add(usize::from(std::mem::take(&mut first)), Ordering::SeqCst);
            let (bytes, end, bytewise) = self.answer.lock().unwrap().clone();
            for part in bytes.chunks(if bytewise { 1 } else { bytes.len().max(1) }) {
                stream.write_all(part)?;
            }
            match end {
                None => {}
                Some(false) => return stream.shutdown(Shutdown::Both),
                Some(true) => {
                    // Behind the answer, not in its place.
                    std::thread::sleep(Duration::from_millis(20));
                    return Ok(rustix::net::sockopt::set_socket_linger(stream.as_fd(), Some(Duration::ZERO))?);
                }
            }
        }
    }
}

/// An answer as a client takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Verdict {
    /// `good`; `status`, for a whole one of another than 2xx (wrk: nor 3xx); `waits`; `fails`.
    answer: &'static str,
    /// Of a good one: bytes of its content, where the client tells.
    length: Option<u64>,
    /// Of a good one: connection of the next request.
    next: &'static str,
}

impl Verdict {
    fn of(answer: &'static str, length: Option<u64>, kept: bool) -> Verdict {
        let good = answer == "good";
        let next = if !good {
            ""
        } else if kept {
            "the same connection"
        } else {
            "a new one"
        };
        Verdict { answer, length: length.filter(|_| good), next }
    }
}

struct Clients<'l> {
    lab: &'l Lab,
    server: &'l Scripted,
}

impl Clients<'_> {
    /// Standard output of a command, and standard error where it has written nothing else.
    fn run(&self, words: &str) -> String {
        let out = sh(&format!("exec ip netns exec {} timeout 60 {words}", self.lab.a));
        let said = if out.stdout.is_empty() { out.stderr } else { out.stdout };
        String::from_utf8_lossy(&said).into_owned()
    }

    fn url(&self) -> String {
        format!("http://10.98.{}.2:{}/", self.server.link, self.server.port)
    }

    fn curl(&self, answer: &Answer, patience: u32) -> Verdict {
        self.server.prepare(answer);
        let url = self.url();
        let form = "'%{stderr}%{exitcode} %{http_code} %{size_download} %{num_connects}\\n'";
        let each = format!("-s -o /dev/null -m {patience} -w {form} {url}");
        let said = self.run(&format!("curl {each} --next {each}"));
        let lines: Vec<Vec<u64>> =
            said.lines().map(|line| line.split(' ').filter_map(|word| word.parse().ok()).collect()).collect();
        let [first, second] = &lines[..] else { panic!("curl says {said}") };
        let ([code, status, size, _], [.., connects]) = (&first[..], &second[..]) else { panic!("curl says {said}") };
        let verdict = match (code, status) {
            (0, 200..300) => "good",
            (0, _) => "status",
            (28, _) => "waits",
            _ => "fails",
        };
        Verdict::of(verdict, Some(*size), *connects == 0)
    }

    fn wrk(&self, answer: &Answer, patience: u32) -> Verdict {
        self.server.prepare(answer);
        let said = self.run(&format!("wrk -t1 -c1 -d{patience}s {}", self.url()));
        let done = said.lines().find_map(|line| line.trim().split_once(" requests in ")).map(|(n, _)| n.parse::<u64>());
        let done = done.and_then(Result::ok).unwrap_or_else(|| panic!("wrk says {said}"));
        let verdict = match () {
            () if said.contains("Socket errors") => "fails",
            () if said.contains("Non-2xx") => "status",
            () if done == 0 => "waits",
            () => "good",
        };
        Verdict::of(verdict, None, self.server.connections.load(Ordering::SeqCst) == 1)
    }

    fn load(&self, answer: &Answer, patience: u32, length: Option<u64>) -> Verdict {
        let checked = length.map_or_else(String::new, |length| format!("--length {length}"));
        let run = |messages| {
            self.server.prepare(answer);
            let (url, link) = (self.url(), self.server.link);
            let said = self.run(&format!(
                "{BIN} load {url} --dev xdp:la{link} -c 1 -n 1 -m {messages} --timeout {patience} {checked} --json"
            ));
            serde_json::from_str::<serde_json::Value>(&said).unwrap_or_else(|_| panic!("load says {said}"))
        };
        let report = run(1);
        let errors: Vec<&String> = report["errors"].as_object().expect("errors").keys().collect();
        let verdict = match errors[..] {
            [] => "good",
            [why] if why.starts_with("status ") => "status",
            [why] if why == "timed out" => "waits",
            _ => "fails",
        };
        let again = (verdict == "good").then(|| run(2));
        let kept = again.is_some_and(|again| again["messages"] == 2 && again["errors"] == serde_json::json!({}));
        Verdict::of(verdict, length, kept)
    }

    /// Differences of `load` to curl, and to wrk.
    fn differences(&self, case: &Case, patience: u32) -> [Vec<Difference>; 2] {
        let answer = case.build(TABLE);
        let (curl, wrk) = (self.curl(&answer, patience), self.wrk(&answer, patience));
        let load = self.load(&answer, patience, curl.length);
        [curl, wrk].map(|other| {
            let pairs = [("answer", other.answer, load.answer), ("next request", other.next, load.next)];
            let differ = |(_, theirs, ours): &(_, &str, &str)| theirs != ours && !theirs.is_empty() && !ours.is_empty();
            let named = |(aspect, theirs, ours): (&str, &str, &str)| Difference {
                aspect: aspect.to_owned(),
                theirs: theirs.to_owned(),
                ours: ours.to_owned(),
            };
            pairs.into_iter().filter(differ).map(named).collect()
        })
    }
}

/// Ends a server with its client, one that panics too.
struct Over<'c>(&'c Clients<'c>);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        let Clients { lab, server } = self.0;
        server.over.store(true, Ordering::SeqCst);
        // Wakes it.
        let at = format!("10.98.{}.2:{}", server.link, server.port);
        let _ = lab.within(&lab.a, || TcpStream::connect(at));
    }
}

#[test]
fn answers_are_taken_as_by_curl_and_wrk() {
    for tool in ["curl", "wrk"] {
        if !sh(&format!("command -v {tool}")).status.success() {
            return testing::skip(format!("{tool} is not installed"));
        }
    }
    let Some(lab) = Lab::new() else { return };
    let (a, b) = (&lab.a, &lab.b);
    for link in 0..LINKS {
        must(&format!("ip link add la{link} netns {a} type veth peer name lb{link} netns {b}"));
        for (ns, dev, n) in [(a, format!("la{link}"), 1), (b, format!("lb{link}"), 2)] {
            must(&format!("ip -n {ns} link set {dev} up && ip -n {ns} addr add 10.98.{link}.{n}/24 dev {dev}"));
            sh(&format!("ip netns exec {ns} ethtool -K {dev} tso off gso off"));
        }
    }
    let others = ["curl", "wrk"].map(|other| (other, List::below(&format!("`load` beside {other}"))));
    let mut cases = Case::singles(TABLE);
    cases.extend(others.iter().flat_map(|(_, list)| list.cases(TABLE)));
    let seeds = std::env::var("CORELANE_SEEDS").ok().and_then(|n| n.parse().ok());
    cases.extend((0..seeds.unwrap_or(testing::sized(30, 500))).map(|seed| Case::random(TABLE, seed)));
    cases.sort_unstable();
    cases.dedup();
    let (next, new) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for link in 0..LINKS {
            let (lab, others, cases, next, new) = (&lab, &others, &cases, &next, &new);
            scope.spawn(move || {
                let address = format!("10.98.{link}.2:0");
                let listener = lab.within(&lab.b, || TcpListener::bind(address).expect("a port"));
                let server = Scripted {
                    link,
                    port: listener.local_addr().unwrap().port(),
                    answer: Mutex::default(),
                    requests: AtomicUsize::new(0),
                    connections: AtomicUsize::new(0),
                    over: AtomicBool::new(false),
                };
                std::thread::scope(|scope| {
                    scope.spawn(|| server.serve(&listener));
                    let clients = Clients { lab, server: &server };
                    let _last = Over(&clients);
                    while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let rows = clients.unexplained(case, others);
                        new.lock().unwrap().extend(rows);
                    }
                });
            });
        }
    });
    let new = new.into_inner().unwrap();
    let rows: String = new.iter().map(|((other, row), case)| format!("{row} beside {other}, of {case}\n")).collect();
    // wrk ends with 1 where it says its version.
    let versions = must("curl --version | head -1; wrk -v | head -1");
    assert!(new.is_empty(), "{} new differences to {versions}in {} cases:\n{rows}", new.len(), cases.len());
    for (other, list) in &others {
        let stale = list.stale();
        assert!(
            stale.is_empty(),
            "rows of docs/http-differences.md beside {other} that {versions}show no more: {stale:#?}"
        );
    }
}

impl Clients<'_> {
    /// Differences that are on no list, as rows, with the case. One that a busy machine has made is gone with more patience.
    fn unexplained(&self, case: &Case, others: &[(&'static str, List); 2]) -> BTreeMap<(&'static str, String), String> {
        let unknown = |differences: [Vec<Difference>; 2]| {
            let mut unknown = Vec::new();
            for (which, differences) in differences.into_iter().enumerate() {
                let list = &others[which].1;
                let news = differences.into_iter().filter(|difference| !list.explains(case, TABLE, difference));
                unknown.extend(news.map(|difference| (which, difference)));
            }
            unknown
        };
        if unknown(self.differences(case, 1)).is_empty() {
            return BTreeMap::new();
        }
        let mut rows = BTreeMap::new();
        for (which, difference) in unknown(self.differences(case, 3)) {
            let least = shrink(case, &difference, |case| self.differences(case, 1)[which].clone());
            let Difference { aspect, theirs, ours } = &difference;
            let row = format!("| {} | {aspect} | {theirs} | {ours} |", least.title(TABLE));
            rows.insert((others[which].0, row), case.title(TABLE));
        }
        rows
    }
}

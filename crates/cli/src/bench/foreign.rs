//! Somebody else's client of the key-value servers: another reading of the protocol, on the kernel's TCP.
//!
//! A client of the kernel's needs more of its core than the server of its own: the server gets a part of its core only, so
//! that it is the server that is measured. What was served is what the server counted, by its `stats`.

use super::Settings;
use super::case::{Case, System, Work};
use super::child::Child;
use super::cpu;
use super::kv::{self, GETS, KEY, KEYS, PORT, SETS, VALUE};
use super::measure::{Layout, Measurement, Watch, list};
use super::numbers::take_report;
use super::place::{Place, SERVER, Side};
use super::quota::Quota;
use crate::failure::{Failure, words};
use crate::lab::offload;
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Connections at once, where nobody says: enough for what waits while the server may not run.
const CONCURRENT: usize = 1000;
/// Requests on a connection that stays.
pub const ENDLESS: u32 = 1_000_000_000;
/// How long the server may take to answer `stats`.
const ANSWER: Duration = Duration::from_secs(10);
/// How long the load lasts beyond what is measured, s: on a machine that others have, a client that was ready late is told
/// to stay longer.
const SPARE: [f64; 3] = [1.0, 5.0, 25.0];
/// Between two looks at whether the client has begun.
const LOOK: Duration = Duration::from_millis(10);

/// A client that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    kind: Kind,
    program: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Of libmemcached: connections that stay, every value is compared with what was set.
    Memcaslap,
    /// Redis's: a connection may end after some requests; what it asks for is there, so every get must be a hit.
    Memtier,
}

impl Foreign {
    /// By the name of its program, which may have a path before it.
    pub fn new(program: &Path) -> Result<Foreign, Failure> {
        let kind = match program.file_name().and_then(|name| name.to_str()) {
            Some("memcaslap" | "memaslap") => Kind::Memcaslap,
            Some("memtier_benchmark") => Kind::Memtier,
            _ => {
                let what = format!("--client: {} is no client that is known", program.display());
                return Err(Failure::usage(what, "name memcaslap or memtier_benchmark, with its path if not on PATH"));
            }
        };
        match kv::found(program) {
            Some(program) => Ok(Foreign { kind, program }),
            None => Err(Failure::new(
                format!("--client: {}: no such program", program.display()),
                "install it (memcaslap: Debian's libmemcached-tools), or name its path",
            )),
        }
    }

    /// Its name in reports.
    pub fn name(&self) -> &'static str {
        match self.kind {
            Kind::Memcaslap => "memcaslap",
            Kind::Memtier => "memtier_benchmark",
        }
    }

    /// Whether it can end a connection after so many requests.
    pub fn can(&self, messages: u32) -> bool {
        self.kind == Kind::Memtier || messages >= ENDLESS
    }

    /// Connections at once.
    pub fn concurrent(settings: &Settings) -> usize {
        settings.concurrent.unwrap_or(CONCURRENT)
    }

    /// Sets every key where the client does not by itself.
    fn fill(&self, place: &Place, cores: &[usize], patience: Duration) -> Result<(), Failure> {
        if self.kind == Kind::Memcaslap {
            return Ok(());
        }
        let mut command = self.command(place, cores);
        command.args(memtier()).args(["-t", "1", "-c", "1", "--ratio=1:0", "--key-pattern=P:P", "-n", "allkeys"]);
        Child::spawn(command, self.name())?.text(patience).map(drop)
    }

    fn command(&self, place: &Place, cores: &[usize]) -> Command {
        let mut command = place.command(Side::Client, Path::new("taskset"));
        command.args(["-c", &list(cores)]).arg(&self.program);
        command
    }

    /// Starts its load for so many whole seconds; the file must be there as long as it runs.
    fn start(
        &self,
        place: &Place,
        cores: &[usize],
        work: &Work,
        seconds: u64,
    ) -> Result<(Child, Option<File>), Failure> {
        let threads = cores.len();
        let each = work.concurrent.div_ceil(threads).max(1);
        let mut command = self.command(place, cores);
        let mut configuration = None;
        match self.kind {
            Kind::Memcaslap => {
                let file = mix().map_err(|error| Failure::told(format!("a configuration: {}", words(&error))))?;
                let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
                command.args(["-s", &format!("{SERVER}:{PORT}"), "-T", &threads.to_string(), "-F", &path]);
                command.args([
                    "-c",
                    &(each * threads).to_string(),
                    "-w",
                    "1k",
                    "-t",
                    &format!("{seconds}s"),
                    "-v",
                    "1.0",
                ]);
                configuration = Some(file);
            }
            Kind::Memtier => {
                command.args(memtier()).args([
                    "-t",
                    &threads.to_string(),
                    "-c",
                    &each.to_string(),
                    "--key-pattern=R:R",
                ]);
                command.args([&format!("--ratio={SETS}:{GETS}"), &format!("--test-time={seconds}")]);
                if work.messages < ENDLESS {
                    command.arg(format!("--reconnect-interval={}", work.messages));
                }
            }
        }
        Ok((Child::spawn(command, self.name())?, configuration))
    }

    /// What its own words say of answers that were wrong, by cause; an error where it does not say that it has looked.
    fn complaints(&self, text: &str) -> Result<BTreeMap<String, u64>, Failure> {
        let names: &[&str] = match self.kind {
            Kind::Memcaslap => &["verify_misses", "verify_failed"],
            Kind::Memtier => &[],
        };
        let said = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.and_then(|value| value.trim().parse().ok())
        };
        let mut found = BTreeMap::new();
        for name in names {
            match said(name) {
                Some(0) => {}
                Some(count) => drop(found.insert((*name).to_owned(), count)),
                None => return Err(Failure::told(format!("{}: it does not say {name}", self.name()))),
            }
        }
        Ok(found)
    }

    /// Median and 99th percentile, µs, where it prints them.
    fn latencies(&self, text: &str) -> Option<(f64, f64)> {
        // Totals: operations, hits, misses, mean, median, 99th, 99.9th in ms, KB.
        let totals = text.lines().find(|line| line.starts_with("Totals"))?;
        let numbers: Vec<f64> = totals.split_whitespace().skip(1).map_while(|word| word.parse().ok()).collect();
        (self.kind == Kind::Memtier && numbers.len() > 6).then(|| (numbers[4] * 1e3, numbers[5] * 1e3))
    }
}

/// Keys and values as all clients here have them.
fn memtier() -> Vec<String> {
    let digits = KEYS.to_string().len();
    let prefix = "k".repeat(KEY - digits);
    let (least, most) = (KEYS, 2 * KEYS - 1);
    let (value, keys) = (format!("-d{VALUE}"), format!("--key-prefix={prefix}"));
    let (least, most) = (format!("--key-minimum={least}"), format!("--key-maximum={most}"));
    let fixed = ["-s", SERVER, "-P", "memcache_text", "--hide-histogram", "-p"].map(str::to_owned);
    fixed.into_iter().chain([PORT.to_string(), value, keys, least, most]).collect()
}

/// memcaslap's configuration, a file without a name.
fn mix() -> io::Result<File> {
    let mut file: File = memfd_create("memcaslap.conf", MemfdFlags::CLOEXEC)?.into();
    let whole = f64::from(GETS + SETS);
    let (sets, gets) = (f64::from(SETS) / whole, f64::from(GETS) / whole);
    write!(file, "key\n{KEY} {KEY} 1\nvalue\n{VALUE} {VALUE} 1\ncmd\n0 {sets}\n1 {gets}\n")?;
    Ok(file)
}

/// A connection that asks the server what it has counted.
struct Stats(BufReader<TcpStream>);

impl Stats {
    fn open(place: &Place) -> io::Result<Stats> {
        let stream = offload::within(&place.namespace(Side::Client), || TcpStream::connect((SERVER, PORT)))?;
        stream.set_read_timeout(Some(ANSWER))?;
        Ok(Stats(BufReader::new(stream)))
    }

    /// Waits for requests of this client: what it does before, connecting above all, is not measured. Whether they came.
    fn under_way(&mut self, load: &mut Child, patience: Duration) -> io::Result<bool> {
        let gets = |stats: &BTreeMap<String, f64>| stats.get("cmd_get").copied().unwrap_or_default();
        let (end, idle) = (Instant::now() + patience, gets(&self.ask()?));
        while gets(&self.ask()?) <= idle {
            if load.is_over() || Instant::now() > end {
                return Ok(false);
            }
            sleep(LOOK);
        }
        Ok(true)
    }

    fn ask(&mut self) -> io::Result<BTreeMap<String, f64>> {
        self.0.get_mut().write_all(b"stats\r\n")?;
        let mut all = BTreeMap::new();
        let mut line = String::new();
        loop {
            line.clear();
            if self.0.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut words = line.split_whitespace();
            match (words.next(), words.next(), words.next()) {
                (Some("STAT"), Some(name), Some(value)) => {
                    if let Ok(value) = value.parse() {
                        all.insert(name.to_owned(), value);
                    }
                }
                (Some("END"), ..) => return Ok(all),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }
}

/// Measures a key-value server under this client.
pub fn measure(case: &Case, settings: &Settings, client: &Foreign) -> Result<Measurement, Failure> {
    let System::Keeper(keeper) = case.system else {
        return Err(Failure::told(format!("{}: no key-value server", case.system.name())));
    };
    let layout = Layout::new(&settings.all_cores, case.cores, case.wire);
    let mut remark = None;
    let queues = layout.client.len().max(layout.server.len());
    let place = Place::new(queues, settings.addresses)?;
    let mut server = kv::start(&place, keeper, settings.kv.as_deref(), &layout.server)?;
    let napi = place.pin(&layout.client, &layout.server)?;
    let patience = settings.patience(&case.work);
    client.fill(&place, &layout.client, patience)?;
    let serving = cpu::family(server.pid());
    // The group goes before the processes do: they end unhindered.
    let quota = match settings.share {
        1.0.. => None,
        share => {
            let quota = Quota::new(share * layout.server.len() as f64)?;
            quota.hold(&serving)?;
            quota.hold(&napi.server)?;
            remark = Some(format!("the server had {:.0} % of its cores' time", share * 100.0));
            Some(quota)
        }
    };
    let asked = |error: io::Error| Failure::told(format!("the server's stats: {}", words(&error)));
    let mut stats = Stats::open(&place).map_err(asked)?;
    let mut observed = None;
    for spare in SPARE {
        let seconds = settings.warm_up + settings.seconds + spare;
        let (mut load, _configuration) = client.start(&place, &layout.client, &case.work, seconds.ceil() as u64)?;
        let begun = stats.under_way(&mut load, patience).map_err(asked)?;
        sleep(Duration::from_secs_f64(settings.warm_up));
        let pids = serving.iter().copied().chain(cpu::family(load.pid())).collect();
        let mut watch = Watch::new(layout.clone(), pids, napi.clone());
        let mut found = Measurement::default();
        let before = stats.ask().map_err(asked)?;
        watch.begin();
        sleep(Duration::from_secs_f64(settings.seconds));
        let after = stats.ask().map_err(asked)?;
        let busy = watch.end(&mut found);
        let whole = begun && !load.is_over();
        let text = load.text(patience)?;
        if whole {
            observed = Some((found, busy, before, after, text));
            break;
        }
    }
    drop(quota);
    let Some((mut found, busy, before, after, text)) = observed else {
        return Err(Failure::told(format!("{}: it ended before it was measured", client.name())));
    };
    found.remarks.extend(remark);
    let passed = |name: &str| after.get(name).zip(before.get(name)).map_or(0.0, |(after, before)| after - before);
    let (connections, messages) = (passed("total_connections"), passed("cmd_get") + passed("cmd_set"));
    let wall = found.values["seconds"];
    let report = json!({
        "connections": connections,
        "messages": messages,
        "misses": passed("get_misses"),
        "connections_per_s": connections / wall,
        "messages_per_s": messages / wall,
    });
    take_report(&report, busy, &mut found);
    if let Some((median, most)) = client.latencies(&text) {
        found.set("latency_p50_us", median);
        found.set("latency_p99_us", most);
    }
    found.errors.extend(client.complaints(&text)?);
    if let Some(failure) = server.ended() {
        return Err(failure);
    }
    // It is no server of ours to write: it ends without an object.
    let _ = server.stop();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_clients() {
        let failure = Foreign::new(Path::new("/bin/true")).expect_err("no client");
        assert!(failure.to_string().contains("memtier_benchmark"));
        let failure = Foreign::new(Path::new("/nowhere/memcaslap")).expect_err("not there");
        assert!(failure.to_string().contains("no such program"));
    }

    #[test]
    fn their_words_are_read() {
        let of = |kind| Foreign { kind, program: PathBuf::new() };
        let text =
            "get_misses: 0\nverify_misses: 0\nverify_failed: 3\n\nRun time: 6.0s Ops: 5 TPS: 1 Net_rate: 1.0M/s\n";
        let complaints = of(Kind::Memcaslap).complaints(text).expect("it has looked");
        assert_eq!(complaints, BTreeMap::from([("verify_failed".to_owned(), 3)]));
        assert!(of(Kind::Memcaslap).complaints("TPS: 5\n").is_err());
        assert_eq!(of(Kind::Memcaslap).latencies(text), None);
        let text = "Gets 1 2 3 4 5 6 7 8\nTotals      15683.11         0.00     14095.19         7.89028         3.69500       206.84700       232.44700      2758.29 \n";
        assert_eq!(of(Kind::Memtier).latencies(text), Some((3695.0, 206_847.0)));
        assert!(of(Kind::Memtier).can(1) && !of(Kind::Memcaslap).can(1) && of(Kind::Memcaslap).can(ENDLESS));
    }

    #[test]
    fn keys_are_as_long_as_the_others() {
        let options = memtier();
        let value = |name: &str| options.iter().find_map(|option| option.strip_prefix(name)).expect("an option");
        assert_eq!(value("--key-prefix=").len() + value("--key-minimum=").len(), KEY);
        assert_eq!(value("--key-minimum=").len(), value("--key-maximum=").len());
    }
}

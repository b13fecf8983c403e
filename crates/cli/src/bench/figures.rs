//! The experiments: which cases each has, what its table and its plots show.

use super::case::{Case, System, Wire, Work};
use super::columns::*;
use super::foreign::{self, ENDLESS, Foreign};
use super::kv::{self, Keeper};
use super::measure::{self, models};
use super::report::{Column, Plot, Shape};
use super::rounds::{Measure, Progress};
use super::{Settings, bulk, connections, fastsocket, latency, nginx, profile};
use crate::args::{KernelServer, ModelArg};
use crate::failure::Failure;
use crate::sys::Stop;

/// The cases of an experiment; some must measure to know them.
pub type Cases = fn(&Settings, &mut Progress, &mut Vec<String>, &Stop) -> Result<Vec<Case>, Failure>;

/// One experiment.
pub struct Benchmark {
    /// Its name.
    pub name: &'static str,
    /// After which figure or table.
    pub after: &'static str,
    /// What it shows.
    pub about: &'static str,
    /// The value whose spread is told.
    pub main: &'static str,
    /// Of the table.
    pub columns: &'static [Column],
    /// Of the page.
    pub plots: fn() -> Vec<Plot>,
    /// Who closes first, in words.
    pub closes_first: &'static str,
    /// What is measured.
    pub cases: Cases,
    /// How.
    pub measure: Measure,
}

const SERVER_CLOSES: &str = "the server closes first";
const SERVER_RESETS: &str = "the server resets";

/// All of them, in the order of the issue of the papers: bound first.
pub const BENCHMARKS: [Benchmark; 18] = [
    Benchmark {
        name: "limit",
        after: "no paper",
        about: "the same wires without TCP: a bare echo of a connection's frames, the bound for all others",
        main: "frames_per_s",
        columns: &RATE,
        plots: || vec![bars("Frames a second, both ways", "messages_per_connection", "frames_per_s", "frames/s")],
        closes_first: "nobody closes: there are no connections, only as many frames",
        cases: |settings, _, _, _| {
            let wires = &settings.wires;
            let works = [1, 8, 0].map(|messages| Work { messages, ..work(settings) });
            Ok(works
                .into_iter()
                .flat_map(|work| wires.iter().map(move |wire| Case::new(System::Limit, *wire, work.clone())))
                .collect())
        },
        measure: measure::measure,
    },
    Benchmark {
        name: "fig7a",
        after: "mTCP fig. 7a, MegaPipe fig. 2.1c, Fastsocket fig. 4",
        about: "64-byte messages, one a connection, over the server's cores",
        main: "connections_per_s",
        columns: &RATE,
        plots: || {
            vec![
                bars("Connections a second", "cores", "connections_per_s", "connections/s"),
                bars("Server CPU of a connection", "cores", "server_cpu_us_per_connection", "µs"),
            ]
        },
        closes_first: SERVER_CLOSES,
        cases: |settings, _, _, _| {
            let cores = (1..=settings.cores).flat_map(|cores| {
                systems(settings, &EVERYBODY).into_iter().map(move |(system, wire)| (cores, system, wire))
            });
            Ok(cores.map(|(cores, system, wire)| Case { cores, ..Case::new(system, wire, work(settings)) }).collect())
        },
        measure: measure::measure,
    },
    Benchmark {
        name: "fig7b",
        after: "mTCP fig. 7b, MegaPipe fig. 2.1a and 5.1",
        about: "64-byte messages, 1 to 128 a connection",
        main: "messages_per_s",
        columns: &RATE,
        plots: || vec![lines("Messages a second", "messages_per_connection", "messages_per_s", "messages/s")],
        closes_first: SERVER_CLOSES,
        cases: |settings, _, _, _| {
            let counts: &[u32] = if settings.quick { &[1, 8, 64] } else { &[1, 2, 4, 8, 16, 32, 64, 128] };
            Ok(over(settings, &MAIN, counts, |work, n| work.messages = n))
        },
        measure: measure::measure,
    },
    Benchmark {
        name: "fig7c",
        after: "mTCP fig. 7c, MegaPipe fig. 2.1b and 5.2",
        about: "one message a connection, of 64 bytes to 64 KiB",
        main: "connections_per_s",
        columns: &RATE,
        plots: || {
            vec![
                lines("Connections a second", "message_bytes", "connections_per_s", "connections/s"),
                lines("Throughput", "message_bytes", "gbit_per_s", "Gbit/s"),
            ]
        },
        closes_first: SERVER_CLOSES,
        cases: |settings, _, _, _| {
            let full = [64, 256, 1024, 4096, 8192, 16_384, 65_536];
            let sizes: &[usize] = if settings.quick { &[64, 4096, 65_536] } else { &full };
            Ok(over(settings, &MAIN, sizes, |work, bytes| work.message = bytes))
        },
        measure: measure::measure,
    },
    Benchmark {
        name: "fig8",
        after: "mTCP fig. 8",
        about: "accept and RST: every connection is reset once it is accepted",
        main: "connections_per_s",
        columns: &RATE,
        plots: || vec![bars("Accepts a second", "cores", "connections_per_s", "accepts/s")],
        closes_first: SERVER_RESETS,
        cases: |settings, _, _, _| {
            let work = Work { messages: 0, message: 0, ..work(settings) };
            // nginx has no way to do it, and io_uring accepts as it always does.
            let all = systems(settings, &EVERYBODY).into_iter().filter(|(system, _)| *system != System::Nginx);
            Ok(all.map(|(system, wire)| Case::new(system, wire, work.clone())).collect())
        },
        measure: measure::measure,
    },
    Benchmark {
        name: "table2",
        after: "mTCP table 2",
        about: "response times at 8,000 connections at once, closed loop",
        main: "latency_max_us",
        columns: &TABLE2,
        plots: || {
            vec![
                bars("Longest response time", "concurrent", "latency_max_us", "µs"),
                bars("Median response time", "concurrent", "latency_p50_us", "µs"),
            ]
        },
        closes_first: SERVER_CLOSES,
        cases: |settings, _, _, _| {
            // What the first burst of SYNs loses comes back seconds later; it shall not count as a response time.
            let warm_up = Some(settings.warm_up * 4.0);
            let work = Work { concurrent: settings.concurrent.unwrap_or(8000), warm_up, ..Work::default() };
            Ok(systems(settings, &TCP)
                .into_iter()
                .map(|(system, wire)| Case::new(system, wire, work.clone()))
                .collect())
        },
        measure: measure::measure,
    },
    Benchmark {
        name: "latency",
        after: "no paper",
        about: "open loop: latency against offered load, from little to the knee",
        main: "latency_p99_us",
        columns: &LATENCY,
        plots: || {
            vec![
                lines("Latency, 99 of 100", "offered_per_s", "latency_p99_us", "µs"),
                lines("Latency, median", "offered_per_s", "latency_p50_us", "µs"),
            ]
        },
        closes_first: SERVER_CLOSES,
        cases: latency::cases,
        measure: measure::measure,
    },
    Benchmark {
        name: "fairness",
        after: "mTCP section 5.2",
        about: "how evenly bulk flows share a server: Jain's index over the bytes of each",
        main: "jain",
        columns: &FAIRNESS,
        plots: || vec![bars("Jain's index", "concurrent", "jain", "1 is equal")],
        closes_first: "nobody closes while it is measured",
        cases: |settings, _, _, _| {
            let flows = settings.concurrent.unwrap_or(if settings.quick { 512 } else { 8192 });
            // A share is a number of segments: it needs time. Before, gigabytes of buffers are touched for the first time.
            let seconds = Some(settings.seconds * 4.0);
            let warm_up = Some(settings.warm_up * if settings.quick { 4.0 } else { 10.0 });
            let work = Work { concurrent: flows, message: 64 << 20, seconds, warm_up, ..Work::default() };
            Ok(systems(settings, &BULKY)
                .into_iter()
                .map(|(system, wire)| Case::new(system, wire, work.clone()))
                .collect())
        },
        measure: measure::measure,
    },
    Benchmark {
        name: "fig1",
        after: "mTCP figs. 1 and 2",
        about: "where the server core's time goes: kernel, packet I/O, TCP, application",
        main: "connections_per_s",
        columns: &PROFILE,
        plots: || {
            vec![Plot {
                title: "Shares of the server core's busy time",
                shape: Shape::Stacked,
                x: "system",
                y: profile::SHARES.to_vec(),
                unit: "share",
            }]
        },
        closes_first: SERVER_CLOSES,
        cases: |settings, _, _, _| {
            profile::available()?;
            let seconds = Some(settings.seconds.max(2.0));
            let work = Work { seconds, ..work(settings) };
            Ok(systems(settings, &TCP)
                .into_iter()
                .map(|(system, wire)| Case::new(system, wire, work.clone()))
                .collect())
        },
        measure: profile::measure,
    },
    Benchmark {
        name: "batch",
        after: "mTCP section 3.2.3",
        about: "frames, events and jobs of a lane's turn, by connections at once",
        main: "received_per_turn",
        columns: &BATCH,
        plots: || {
            vec![
                lines("Frames received in a turn", "concurrent", "received_per_turn", "frames"),
                lines("Events given in a turn", "concurrent", "events_per_turn", "events"),
            ]
        },
        closes_first: SERVER_CLOSES,
        cases: |settings, _, _, _| {
            let counts: &[usize] = if settings.quick { &[1, 64, 1024] } else { &[1, 4, 16, 64, 256, 1024, 4096] };
            Ok(over(settings, &[OURS], counts, |work, n| work.concurrent = n))
        },
        measure: measure::measure,
    },
    Benchmark {
        name: "bulk",
        after: "mTCP section 5.3",
        about: "large transfers from the server, and to it by single and by merged frames: throughput and CPU of a gigabyte",
        main: "gbit_per_s",
        columns: &BULK,
        plots: || {
            vec![
                bars("Throughput", "concurrent", "gbit_per_s", "Gbit/s"),
                bars("Server CPU of a gigabyte", "concurrent", "server_cpu_s_per_gb", "s"),
            ]
        },
        closes_first: "nobody closes while it is measured",
        cases: |settings, _, notes, _| Ok(bulk::cases(settings, notes)),
        measure: bulk::measure,
    },
    Benchmark {
        name: "connections",
        after: "dperf",
        about: "memory of idle connections, and the rate of short ones while they are held",
        main: "connections_per_s",
        columns: &CONNECTIONS,
        plots: || {
            vec![
                bars("Resident memory of a connection", "held", "bytes_per_connection", "bytes"),
                bars("Short connections a second meanwhile", "held", "connections_per_s", "connections/s"),
            ]
        },
        closes_first: SERVER_CLOSES,
        cases: connections::cases,
        measure: connections::measure,
    },
    Benchmark {
        name: "idle",
        after: "no paper",
        about: "CPU of a server whose connections are all idle",
        main: "server_process_share",
        columns: &IDLE,
        plots: || vec![bars("Server process, share of a core", "held", "server_process_share", "share")],
        closes_first: "nobody closes while it is measured",
        cases: |settings, _, _, _| {
            let concurrent = settings.concurrent.unwrap_or(if settings.quick { 1000 } else { 10_000 });
            let seconds = Some(settings.seconds * if settings.quick { 4.0 } else { 2.0 });
            let work = Work { concurrent, hold: true, seconds, ..Work::default() };
            // On a memory wire both ends are one process.
            let all = systems(settings, &TCP).into_iter().filter(|(_, wire)| *wire == Wire::Xdp);
            Ok(all.map(|(system, wire)| Case::new(system, wire, work.clone()).label("held", concurrent)).collect())
        },
        measure: measure::measure,
    },
    Benchmark {
        name: "lanes",
        after: "mTCP fig. 7a, on as many cores as there are",
        about: "how lanes scale: on each core one lane of the server and its peer, over a wire in memory",
        main: "connections_per_s",
        columns: &RATE,
        plots: || vec![lines("Connections a second", "cores", "connections_per_s", "connections/s")],
        closes_first: SERVER_CLOSES,
        cases: |settings, _, notes, _| {
            notes.push("A core's time is the server's and the peer's together".into());
            let most = settings.all_cores.len();
            let powers = std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n < most);
            let counts: Vec<usize> = powers.chain([most]).collect();
            let all = systems(settings, &[OURS]).into_iter().filter(|(_, wire)| *wire == Wire::Mem);
            let case = |(system, wire)| {
                // As many connections for each lane, however many lanes.
                let work = |cores| Work { concurrent: work(settings).concurrent * cores, ..Work::default() };
                counts.iter().map(move |n| Case { cores: *n, together: true, ..Case::new(system, wire, work(*n)) })
            };
            Ok(all.flat_map(case).collect())
        },
        measure: measure::measure,
    },
    Benchmark {
        name: "megapipe",
        after: "MegaPipe figs. 2.1 and 5.1, table 5.1",
        about: "completion channels over io_uring and over a lane, and what partitioning, batching and light sockets bring",
        main: "messages_per_s",
        columns: &RATE,
        plots: || {
            vec![
                lines("Messages a second", "messages_per_connection", "messages_per_s", "messages/s"),
                lines("Throughput", "message_bytes", "gbit_per_s", "Gbit/s"),
            ]
        },
        closes_first: SERVER_CLOSES,
        cases: |settings, _, _, _| Ok(megapipe(settings)),
        measure: measure::measure,
    },
    Benchmark {
        name: "memcached",
        after: "MegaPipe section 5.4",
        about: "gets and sets, 9 to 1, of 1 KiB values: our key-value server over channels, and memcached",
        main: "messages_per_s",
        columns: &KEEPING,
        plots: || {
            vec![
                lines("Requests a second", "messages_per_connection", "messages_per_s", "requests/s"),
                lines("Median latency", "concurrent", "latency_p50_us", "µs"),
            ]
        },
        closes_first: SERVER_CLOSES,
        cases: |settings, _, _, _| keeping(settings),
        measure: |case, settings| match &settings.client {
            Some(client) => foreign::measure(case, settings, client),
            None => measure::measure(case, settings),
        },
    },
    Benchmark {
        name: "fastsocket",
        after: "Fastsocket figs. 3 to 5, table 1; MegaPipe section 2.1",
        about: "unmodified nginx and HAProxy on the kernel's TCP, and what each of Fastsocket's parts brings them",
        main: "connections_per_s",
        columns: &FASTSOCKET,
        plots: || {
            vec![
                bars("Connections a second", "work", "connections_per_s", "connections/s"),
                bars("CPU of a connection", "work", "server_own_us_per_connection", "µs"),
                bars("Lock waits of a connection", "work", "lock_waits_per_connection", "waits"),
                bars("socket() and close()", "work", "socket_close_ns", "ns"),
            ]
        },
        closes_first: SERVER_CLOSES,
        cases: |settings, _, notes, _| fastsocket::cases(settings, notes),
        measure: fastsocket::measure,
    },
    Benchmark {
        name: "models",
        after: "no paper",
        about: "who runs the stack: thread models side by side, and the kernel's TCP",
        main: "connections_per_s",
        columns: &RATE,
        plots: || {
            vec![
                bars("Connections a second", "wire", "connections_per_s", "connections/s"),
                bars("Server CPU of a connection", "wire", "server_cpu_us_per_connection", "µs"),
            ]
        },
        closes_first: SERVER_CLOSES,
        cases: |settings, _, _, _| {
            let of = |(system, wire)| match system {
                System::Corelane(_) => models()
                    .map(|model| {
                        let name = measure::value_name(model);
                        Case::new(System::Corelane(model), wire, work(settings)).label("model", name)
                    })
                    .collect(),
                _ => vec![Case::new(system, wire, work(settings)).label("model", "the kernel's")],
            };
            Ok(systems(settings, &[OURS, EPOLL]).into_iter().flat_map(of).collect())
        },
        measure: measure::measure,
    },
];

/// By requests of a connection (the last value is without end), and by connections that stay.
fn keeping(settings: &Settings) -> Result<Vec<Case>, Failure> {
    if !KEEPERS.iter().any(|system| runs(settings, *system, Wire::Xdp)) {
        return Err(kv::missing());
    }
    let client = settings.client.as_ref();
    let lengths: &[u32] = if settings.quick { &[1, ENDLESS] } else { &[1, 2, 4, 8, 16, 32, 64, 128, ENDLESS] };
    let lengths: Vec<u32> = lengths.iter().copied().filter(|n| client.is_none_or(|client| client.can(*n))).collect();
    let counts: &[usize] = if settings.quick { &[64] } else { &[1, 16, 64, 256, 1024, 4096] };
    let name = client.map_or("corelane", Foreign::name);
    let label = |cases: Vec<Case>, varied: &'static str| {
        cases.into_iter().map(move |case| case.label("varied", varied).label("client", name))
    };
    let mut length = over(settings, &KEEPERS, &lengths, |work, n| (work.messages, work.message) = (n, kv::VALUE));
    if client.is_some() {
        length.iter_mut().for_each(|case| case.work.concurrent = Foreign::concurrent(settings));
    }
    let count = over(settings, &KEEPERS, counts, |work, n| {
        (work.messages, work.message, work.concurrent) = (ENDLESS, kv::VALUE, n);
    });
    Ok(label(length, "requests").chain(label(count, "connections")).collect())
}

/// The thesis varies one thing at a time.
fn megapipe(settings: &Settings) -> Vec<Case> {
    let lengths: &[u32] = if settings.quick { &[1, 8, 64] } else { &[1, 2, 4, 8, 16, 32, 64, 128] };
    let sizes: &[usize] = if settings.quick { &[64, 4096] } else { &[64, 256, 1024, 4096, 16_384, 65_536] };
    let label =
        |cases: Vec<Case>, varied: &'static str| cases.into_iter().map(move |case| case.label("varied", varied));
    let length = over(settings, &MEGAPIPE, lengths, |work, n| work.messages = n);
    let size = over(settings, &CHANNELS, sizes, |work, bytes| (work.messages, work.message) = (10, bytes));
    let cores = (2..=settings.cores).flat_map(|cores| {
        let all = systems(settings, &MEGAPIPE).into_iter();
        all.map(move |(system, wire)| Case { cores, ..Case::new(system, wire, work(settings)) })
    });
    label(length, "length").chain(label(size, "size")).chain(label(cores.collect(), "cores")).collect()
}

/// This stack, one thread a lane.
pub const OURS: System = System::Corelane(ModelArg::Inline);
/// The kernel's TCP, as an expert would use it.
pub const EPOLL: System = System::Kernel(KernelServer::Epoll);
const PLAIN: System = System::Kernel(KernelServer::Plain);
const SINGLE: System = System::Kernel(KernelServer::Single);
const URING: System = System::Kernel(KernelServer::Uring);
/// Every system.
pub const EVERYBODY: [System; 9] =
    [System::Limit, OURS, System::Mtcp, EPOLL, URING, PLAIN, SINGLE, System::MultiProcess, System::Nginx];
/// Channels, what they are made of (thesis, table 5.1), and epoll as the thesis had it and as an expert would.
pub const MEGAPIPE: [System; 6] = [
    System::Channels,
    CHANNEL,
    System::Kernel(KernelServer::ChannelPb),
    System::Kernel(KernelServer::ChannelP),
    EPOLL,
    SINGLE,
];
/// Key-value servers.
pub const KEEPERS: [System; 3] =
    [System::Keeper(Keeper::Lane), System::Keeper(Keeper::Uring), System::Keeper(Keeper::Memcached)];
const CHANNELS: [System; 4] = [System::Channels, CHANNEL, EPOLL, SINGLE];
const CHANNEL: System = System::Kernel(KernelServer::Channel);
const MAIN: [System; 5] = [System::Limit, OURS, EPOLL, URING, PLAIN];
const TCP: [System; 4] = [OURS, EPOLL, URING, PLAIN];
/// Senders of bulk.
pub const BULKY: [System; 3] = [OURS, EPOLL, URING];

fn work(settings: &Settings) -> Work {
    Work { concurrent: settings.concurrent.unwrap_or(256), ..Work::default() }
}

/// Whether a system can run on a wire, here.
fn runs(settings: &Settings, system: System, wire: Wire) -> bool {
    match system {
        System::Corelane(_) | System::Limit => true,
        System::Nginx => wire == Wire::Xdp && nginx::program().is_some(),
        System::Keeper(keeper) => wire == Wire::Xdp && kv::program(keeper, settings.kv.as_deref()).is_some(),
        _ => wire == Wire::Xdp,
    }
}

/// Which of these run, and on which wires: what is the kernel's runs on the veth alone.
pub fn systems(settings: &Settings, wanted: &[System]) -> Vec<(System, Wire)> {
    let asked = |system: &System| settings.systems.is_empty() || settings.systems.iter().any(|s| s == system.name());
    let wires = settings.wires.iter();
    wires
        .flat_map(|wire| {
            wanted.iter().filter(|s| asked(s) && runs(settings, **s, *wire)).map(|system| (*system, *wire))
        })
        .collect()
}

/// Every system at every value.
fn over<T: Copy>(settings: &Settings, wanted: &[System], values: &[T], set: fn(&mut Work, T)) -> Vec<Case> {
    let all = systems(settings, wanted);
    let at = |value: T| {
        let mut work = work(settings);
        set(&mut work, value);
        all.iter().map(move |(system, wire)| Case::new(*system, *wire, work.clone()))
    };
    values.iter().flat_map(|value| at(*value).collect::<Vec<_>>()).collect()
}

fn bars(title: &'static str, x: &'static str, y: &'static str, unit: &'static str) -> Plot {
    Plot { title, shape: Shape::Bars, x, y: vec![y], unit }
}

fn lines(title: &'static str, x: &'static str, y: &'static str, unit: &'static str) -> Plot {
    Plot { title, shape: Shape::Lines, x, y: vec![y], unit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_every_plot_shows_something_of_its_table_or_a_key() {
        let mut names: Vec<_> = BENCHMARKS.iter().map(|bench| bench.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), BENCHMARKS.len());
        for bench in &BENCHMARKS {
            assert!(!(bench.plots)().is_empty(), "{}", bench.name);
            assert!(bench.columns.iter().any(|column| column.name == bench.main), "{}", bench.name);
        }
    }

    #[test]
    fn the_kernel_runs_on_the_veth_alone() {
        let settings = Settings { wires: vec![Wire::Mem, Wire::Xdp], ..Settings::default() };
        let all = systems(&settings, &EVERYBODY);
        assert!(all.contains(&(OURS, Wire::Mem)) && all.contains(&(EPOLL, Wire::Xdp)));
        assert!(all.iter().all(|(s, wire)| *wire == Wire::Xdp || matches!(s, System::Corelane(_) | System::Limit)));
        let settings = Settings { systems: vec!["limit".into()], ..settings };
        assert_eq!(systems(&settings, &EVERYBODY), [(System::Limit, Wire::Mem), (System::Limit, Wire::Xdp)]);
    }
}

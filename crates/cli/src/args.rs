//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use corelane::{Cidr, Device, Model};
use std::net::IpAddr;
use std::path::PathBuf;

/// The package's version, and the commit where the build knew it.
pub const VERSION: &str = env!("CORELANE_VERSION");

/// A TCP stack that runs in your process: one lane, one core, one NIC queue.
#[derive(Debug, Parser)]
#[command(name = "corelane", version = VERSION, arg_required_else_help = true, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Compare corelane with the Linux kernel on this machine: no root, no NIC
    Demo(DemoArgs),
    /// Serve a directory over HTTP/1.1
    Serve(ServeArgs),
    /// Load a web server and measure it
    Load(LoadArgs),
    /// Run an unmodified program, each of its workers with the connections of its own core
    Run(crate::run::RunArgs),
    /// Keeps the local listen tables of a program
    #[command(hide = true)]
    RunHelper(crate::run::helper::HelperArgs),
    /// Give the workers of a program that runs already the connections of their own core
    Tune(crate::tune::TuneArgs),
    /// Measure this stack and the kernel's on the same wire: the papers' experiments
    Bench(BenchArgs),
    /// Programs that benchmarks are made of
    #[command(hide = true, subcommand)]
    BenchPart(crate::bench::part::Part),
    /// Two network namespaces joined by a veth, to try everything on one machine
    #[command(subcommand)]
    Lab(LabCommand),
    /// Look at configuration files
    #[command(subcommand)]
    Conf(ConfCommand),
}

/// Arguments of `demo`.
#[derive(Debug, Args)]
#[command(after_help = "Runs a server and a load generator over a wire in memory, then the same work on the kernel's \
                        loopback (epoll, SO_REUSEPORT), and prints both. There is no NIC in either, so the ratio is an \
                        upper bound.")]
pub struct DemoArgs {
    /// Seconds to measure each system, after one second of warm-up
    #[arg(long, default_value_t = 5.0, value_name = "S", value_parser = seconds)]
    pub seconds: f64,
    /// Connections open at once
    #[arg(short, long, default_value_t = 256, value_name = "N", value_parser = count(1_000_000))]
    pub connections: usize,
    /// Bytes of a response's body
    #[arg(long, default_value_t = 64, value_name = "BYTES", value_parser = count_or_zero(1 << 30))]
    pub message: usize,
    /// Requests on each connection
    #[arg(short, long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub messages_per_connection: u32,
    /// Server lanes, and as many client lanes
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = count(64))]
    pub lanes: usize,
    /// Percentage of frames that the memory wire loses
    #[arg(long, default_value_t = 0.0, value_name = "PERCENT", value_parser = percent)]
    pub loss: f64,
    /// Who runs the stack
    #[arg(long, value_enum, default_value_t = ModelArg::Inline)]
    pub model: ModelArg,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Devices and lanes, for every command that uses them.
#[derive(Debug, Args)]
pub struct DeviceArgs {
    /// Device: xdp:IFACE, packet:IFACE or tap:NAME; several may be given
    #[arg(long, value_name = "DEV")]
    pub dev: Vec<Device>,
    /// Our address on the device, as ADDRESS/PREFIX; xdp takes the interface's own when none is given
    #[arg(long, value_name = "CIDR")]
    pub addr: Vec<Cidr>,
    /// Default router, where the device does not learn it from the kernel
    #[arg(long, value_name = "ADDRESS")]
    pub gateway: Vec<IpAddr>,
    /// Lanes: threads, each with its own queue of every device
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=128))]
    pub lanes: Option<u16>,
    /// Core of each lane, as in 0,2,3 or 0-3
    #[arg(long, value_name = "LIST", value_parser = core_list)]
    pub cores: Option<CoreList>,
    /// Who runs the stack
    #[arg(long, value_enum)]
    pub model: Option<ModelArg>,
    /// Never sleep: each lane takes its core whole
    #[arg(long)]
    pub busy_poll: bool,
    /// Configuration file (TOML); options given here win
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Write what crosses the devices to this file (pcapng); with several devices, numbered
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
}

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Directory to serve
    #[arg(required_unless_present_any = ["message", "reset"], conflicts_with_all = ["message", "reset"])]
    pub dir: Option<PathBuf>,
    /// Devices and lanes.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Port to listen on
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// Show directories that have no index.html as lists of what is in them
    #[arg(long, requires = "dir")]
    pub list: bool,
    /// Serve names that begin with a dot, too (.well-known always is)
    #[arg(long, requires = "dir")]
    pub dotfiles: bool,
    /// Seconds that answers under way may take once a signal has asked to stop
    #[arg(long, default_value_t = 10.0, value_name = "S", value_parser = seconds_or_none)]
    pub grace: f64,
    /// Seconds to wait at most for another corelane that has the device and is ending; connections that come meanwhile are not refused
    #[arg(long, default_value_t = 0.0, value_name = "S", value_parser = seconds_or_none, conflicts_with = "kernel")]
    pub wait: f64,
    /// Bytes a second that a client must take of an answer, on the average of a minute; 0: some bytes each minute
    #[arg(long, default_value_t = 240, value_name = "BYTES")]
    pub min_rate: u64,
    /// Benchmark: answer every request with this many bytes
    #[arg(long, value_name = "BYTES", value_parser = count_or_zero(1 << 30))]
    pub message: Option<usize>,
    /// Benchmark: reset every connection once it is accepted
    #[arg(long, conflicts_with = "message")]
    pub reset: bool,
    /// Serve from the kernel's TCP instead, one thread a lane, to compare on the same wire
    #[arg(long, value_enum, value_name = "HOW", num_args = 0..=1, default_missing_value = "epoll", require_equals = true,
        conflicts_with_all = ["dev", "addr", "gateway", "model", "busy_poll", "config", "pcap"])]
    pub kernel: Option<KernelServer>,
    /// Benchmark: serve --message through completion channels instead of sockets
    #[arg(long, requires = "message", conflicts_with = "kernel")]
    pub channel: bool,
    /// Benchmark: serve through the C functions of libmtcp instead of sockets
    #[arg(long, conflicts_with_all = ["kernel", "channel"])]
    pub mtcp: bool,
    /// Print the line that says it is ready, and the counts at the end, as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `load`.
#[derive(Debug, Args)]
#[command(
    after_help = "Without --rate the loop is closed: each connection is followed by the next. With --rate it is \
                        open: connections start when they are due, and latency counts from that moment. The last \
                        request of a connection asks the server to close; where it does not within 0.1 s, the \
                        connection is closed here. Requests that are unanswered at the end are counted, with their age; \
                        with --rate the latencies have them, too."
)]
pub struct LoadArgs {
    /// Whom to load, and with what.
    #[arg(
        help = "http://ADDRESS[:PORT]/PATH, or memcached://ADDRESS[:PORT]/?keys=10000&key=64&value=1024&gets=9&sets=1, \
                  where bytes and shares stand that are the default"
    )]
    pub url: crate::load::target::Target,
    /// Devices and lanes.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Connections open at once; with --rate, at most
    #[arg(short, long, value_name = "N", value_parser = count(10_000_000))]
    pub connections: Option<usize>,
    /// Connections in all
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub total: Option<u64>,
    /// Seconds to run [default: 10, unless -n is given]
    #[arg(short, long, value_name = "S", value_parser = seconds)]
    pub duration: Option<f64>,
    /// Requests on each connection; 0 waits for the server's end of it (serve --reset)
    #[arg(short, long, default_value_t = 1, value_name = "N")]
    pub messages: u32,
    /// Seconds of load before the measurement
    #[arg(long, default_value_t = 0.0, value_name = "S", value_parser = seconds_or_none, conflicts_with = "total")]
    pub warm_up: f64,
    /// Keep every connection open after its requests, and measure once all are
    #[arg(long, conflicts_with_all = ["total", "rate"])]
    pub hold: bool,
    /// Address to connect from; several are used in turn [default: what the device has]
    #[arg(long, value_name = "ADDRESS")]
    pub source: Vec<IpAddr>,
    /// Open loop: connections to start in each second
    #[arg(long, value_name = "PER_S", value_parser = rate)]
    pub rate: Option<f64>,
    /// Length that every body must have [default: any]
    #[arg(long, value_name = "BYTES")]
    pub length: Option<u64>,
    /// Seconds that the server may be silent while it owes an answer, or the rest of one
    #[arg(long, default_value_t = 30.0, value_name = "S", value_parser = seconds)]
    pub timeout: f64,
    /// Seconds that a connect may take [default: that of --timeout]
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub connect_timeout: Option<f64>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Print a line of JSON when load starts and when the measurement begins and ends
    #[arg(long, hide = true, requires = "json")]
    pub events: bool,
}

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(
    after_help = "The kernel's rows and AF_XDP's are measured on a veth between two fresh network namespaces, which \
                        needs root; the rows of the memory wire need none. Takes two cores: the first is the client's, \
                        the last the server's. In full: 10 rounds of 5 s for each row. docs/benchmarks.md says how to read \
                        the numbers."
)]
pub struct BenchArgs {
    /// Which experiment
    #[arg(value_name = "NAME", value_parser = crate::bench::names())]
    pub name: String,
    /// A look at the shape, within a minute: one short round, fewer points
    #[arg(long)]
    pub quick: bool,
    /// Rounds of each row [default: 10]
    #[arg(long, value_name = "N", value_parser = count(1000))]
    pub rounds: Option<usize>,
    /// Seconds of each measurement, after one of load [default: 5]
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// Cores to use: the client's come first, the server's last [default: all that this process may use]
    #[arg(long, value_name = "LIST", value_parser = core_list)]
    pub on: Option<CoreList>,
    /// Most cores of the server [default: half of what there are]
    #[arg(long, value_name = "N", value_parser = count(64))]
    pub cores: Option<usize>,
    /// Connections at once [default: what the experiment needs, 256 mostly]
    #[arg(short, long, value_name = "N", value_parser = count(10_000_000))]
    pub connections: Option<usize>,
    /// The client's addresses on the veth
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = count(1000))]
    pub addresses: usize,
    /// Only this wire; may be given twice
    #[arg(long, value_enum, value_name = "WIRE")]
    pub wire: Vec<crate::bench::Wire>,
    /// Only this system, as in the reports; may be given several times
    #[arg(long, value_name = "NAME", value_parser = crate::bench::system_names())]
    pub system: Vec<String>,
    /// The server of examples/c for the experiment with memcached [default: kvserver on PATH]
    #[arg(long, value_name = "FILE")]
    pub kv: Option<PathBuf>,
    /// Another client for the experiment with memcached: memcaslap (persistent connections, every value compared) or
    /// memtier_benchmark; see --share
    #[arg(long, value_name = "PROGRAM")]
    pub client: Option<PathBuf>,
    /// What the server has of its cores' time under such a client, %: the client needs more of its own than the server, and
    /// shall not be what is measured
    #[arg(long, default_value_t = 30, value_name = "N", requires = "client", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub share: u8,
    /// Also write one self-contained page with plots
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print JSON: one object, or for all {\"reports\": [...]}
    #[arg(long)]
    pub json: bool,
}

/// What `lab` does.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Make the namespaces and say what to try
    Up {
        /// Queues of each end of the veth
        #[arg(long, default_value_t = 2, value_name = "N", value_parser = count(64))]
        queues: usize,
    },
    /// Remove the namespaces
    Down,
    /// Say whether they are there
    Status {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

/// What `conf` does.
#[derive(Debug, Subcommand)]
pub enum ConfCommand {
    /// Say what is wrong with a configuration, by line
    Check {
        /// The file
        file: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

/// Who runs the stack's turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModelArg {
    /// The application's own waits: one thread a lane
    Inline,
    /// A stack thread beside the application's, on the same core
    Paired,
    /// The application's own waits, and a guard thread for when they do not come
    Guarded,
}

impl From<ModelArg> for Model {
    fn from(model: ModelArg) -> Model {
        match model {
            ModelArg::Inline => Model::Inline,
            ModelArg::Paired => Model::Paired,
            ModelArg::Guarded => Model::Guarded,
        }
    }
}

/// How a server on the kernel's TCP is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KernelServer {
    /// As an expert would: a listener a core, read right after accept, FIN rides on the answer
    Epoll,
    /// As it is mostly written: a listener a core, every connection waits in epoll, FIN is a segment of its own
    Plain,
    /// As the plain one, with a single listener that all threads share
    Single,
    /// io_uring: multishot accept, direct descriptors, provided buffers, FIN rides on the answer
    Uring,
    /// Completion channels over io_uring, as MegaPipe has them: partitioned listening, batching, lightweight sockets
    Channel,
    /// The same with partitioned listening alone
    ChannelP,
    /// The same with partitioned listening and batching
    ChannelPb,
}

/// Cores in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreList(pub Vec<usize>);

pub fn core_list(text: &str) -> Result<CoreList, String> {
    let number = |text: &str| text.trim().parse::<usize>().map_err(|_| format!("{text:?} is no core"));
    let mut cores = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            None => cores.push(number(part)?),
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if first > last || last - first > 1024 {
                    return Err(format!("{part:?} is no range of cores"));
                }
                cores.extend(first..=last);
            }
        }
    }
    Ok(CoreList(cores))
}

fn count(max: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| match text.parse() {
        Ok(number) if (1..=max).contains(&number) => Ok(number),
        _ => Err(format!("expected a number from 1 to {max}")),
    }
}

fn count_or_zero(max: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| match text.parse() {
        Ok(number) if number <= max => Ok(number),
        _ => Err(format!("expected a number from 0 to {max}")),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (0.01..=86_400.0).contains(&number) => Ok(number),
        _ => Err("expected seconds from 0.01 to 86400".to_owned()),
    }
}

fn seconds_or_none(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (0.0..=86_400.0).contains(&number) => Ok(number),
        _ => Err("expected seconds from 0 to 86400".to_owned()),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (0.001..=1e9).contains(&number) => Ok(number),
        _ => Err("expected connections per second".to_owned()),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (0.0..=50.0).contains(&number) => Ok(number),
        _ => Err("expected a percentage from 0 to 50".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn cores() {
        assert_eq!(core_list("0,2-4, 7"), Ok(CoreList(vec![0, 2, 3, 4, 7])));
        for text in ["", "a", "3-1", "1-", "0-99999"] {
            assert!(core_list(text).is_err(), "{text}");
        }
    }
}

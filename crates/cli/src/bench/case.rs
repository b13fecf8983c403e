//! What is measured: a system, on a wire, at some work.

use super::kv::Keeper;
use crate::args::{KernelServer, ModelArg};
use serde_json::{Map, Value, json};

/// Who serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// This stack.
    Corelane(ModelArg),
    /// This stack through completion channels.
    Channels,
    /// This stack through mTCP's C functions.
    Mtcp,
    /// The kernel's TCP, threads of one process.
    Kernel(KernelServer),
    /// The expert's epoll server, a process a core.
    MultiProcess,
    /// nginx, where it is installed.
    Nginx,
    /// A key-value server.
    Keeper(Keeper),
    /// No TCP at all: frames echoed.
    Limit,
    /// An unmodified program on the kernel's TCP, with so much of Fastsocket.
    Step(Step),
    /// Opening and closing sockets, and nothing else.
    Descriptors,
}

/// Parts of Fastsocket that a program runs with, each with those before it (ASPLOS'16, table 1). V, the VFS, is the kernel's own and
/// always there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// None: all workers share a listener.
    Baseline,
    /// None, and the program's own configuration is the best there is.
    ByHand,
    /// Local listen table.
    Listen,
    /// Receive Flow Deliver and process zone.
    Deliver,
    /// Established connections in a table of the server's own.
    Established,
}

/// All steps, in the paper's order.
pub const STEPS: [Step; 5] = [Step::Baseline, Step::ByHand, Step::Listen, Step::Deliver, Step::Established];

impl System {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            System::Corelane(_) => "corelane",
            System::Channels => "megapipe-lane",
            System::Mtcp => "libmtcp",
            System::Kernel(KernelServer::Channel) => "megapipe-uring",
            System::Kernel(KernelServer::ChannelPb) => "megapipe-uring-pb",
            System::Kernel(KernelServer::ChannelP) => "megapipe-uring-p",
            System::Kernel(KernelServer::Epoll) => "linux-epoll",
            System::Kernel(KernelServer::Plain) => "linux-epoll-plain",
            System::Kernel(KernelServer::Single) => "linux-single",
            System::Kernel(KernelServer::Uring) => "linux-uring",
            System::MultiProcess => "linux-multiprocess",
            System::Nginx => "nginx",
            System::Keeper(Keeper::Lane) => "kv-lane",
            System::Keeper(Keeper::Uring) => "kv-uring",
            System::Keeper(Keeper::Memcached) => "memcached",
            System::Limit => "limit",
            System::Step(Step::Baseline) => "baseline",
            System::Step(Step::ByHand) => "by-hand",
            System::Step(Step::Listen) => "VL",
            System::Step(Step::Deliver) => "VLR",
            System::Step(Step::Established) => "VLRE",
            System::Descriptors => "V",
        }
    }

    /// Whether a report compares it with the others of its wire.
    pub fn is_ours(self) -> bool {
        let keeper = matches!(self, System::Keeper(Keeper::Lane | Keeper::Uring));
        keeper
            || matches!(
                self,
                System::Corelane(_)
                    | System::Channels
                    | System::Mtcp
                    | System::Kernel(KernelServer::Channel)
                    | System::Step(Step::Listen | Step::Deliver | Step::Established)
            )
    }

    /// What it is, for whoever reads the report.
    pub fn describe(self) -> &'static str {
        match self {
            System::Corelane(_) => "this stack: one lane a core",
            System::Kernel(KernelServer::Epoll) => {
                "Linux as an expert would use it: a listener a core (SO_REUSEPORT), pinned, edge-triggered epoll, \
                 TCP_DEFER_ACCEPT, accept4, read right after accept, MSG_MORE so that FIN rides on the data"
            }
            System::Kernel(KernelServer::Plain) => {
                "Linux as the papers had it: SO_REUSEPORT and epoll; every connection waits in epoll, FIN is a segment \
                 of its own"
            }
            System::Kernel(KernelServer::Single) => {
                "as linux-epoll-plain, with a single listener that all threads share (EPOLLEXCLUSIVE)"
            }
            System::Kernel(KernelServer::Uring) => {
                "Linux's io_uring: SINGLE_ISSUER, DEFER_TASKRUN, multishot accept into direct descriptors, provided \
                 buffers, MSG_MORE linked to the close so that FIN rides on the data"
            }
            System::Mtcp => "the same server over this stack, through mTCP's C functions",
            System::Channels => "MegaPipe's channels over this stack: one lane a core",
            System::Kernel(KernelServer::Channel) => {
                "MegaPipe's channels over io_uring: a part of the listener for each core, requests handed over by 32, \
                 lightweight sockets (thesis: P+B+L)"
            }
            System::Kernel(KernelServer::ChannelPb) => "as megapipe-uring, with descriptors (P+B)",
            System::Kernel(KernelServer::ChannelP) => {
                "as megapipe-uring, with descriptors, each request handed over by itself (P)"
            }
            System::MultiProcess => "as linux-epoll, a process instead of a thread for each core",
            System::Keeper(Keeper::Lane) => "the key-value server of examples/c on MegaPipe's channels over this stack",
            System::Keeper(Keeper::Uring) => "the same over io_uring",
            System::Keeper(Keeper::Memcached) => "memcached on Linux: a thread a core, no UDP, -R 1000",
            System::Nginx => "nginx on Linux, a worker a core, a file of the message's size, no log",
            System::Limit => {
                "the same wire without TCP: frames of the same number and sizes, echoed; what packet I/O alone can do"
            }
            System::Step(Step::Baseline) => "one listener that all workers of the program share, each pinned to a core",
            System::Step(Step::ByHand) => {
                "the program's best configuration: a listener a worker (nginx: reuseport, multi_accept; HAProxy: shards by-thread)"
            }
            System::Step(Step::Listen) => "as by-hand, under corelane run: local listen table",
            System::Step(Step::Deliver) => {
                "as by-hand, under corelane run --dev: Receive Flow Deliver and process zone, too"
            }
            System::Step(Step::Established) => {
                "as VLR, and the server's namespace has a table of established connections of its own (tcp_child_ehash_entries)"
            }
            System::Descriptors => "the kernel's VFS: socket() and close() of TCP sockets in a loop, on each core",
        }
    }
}

/// What joins client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Wire {
    /// Memory: no packet I/O, an upper bound
    Mem,
    /// A veth, AF_XDP in copy mode at the client's end; needs root
    Xdp,
}

impl Wire {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Wire::Mem => "mem",
            Wire::Xdp => "xdp",
        }
    }
}

/// What the client does.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// Connections at once.
    pub concurrent: usize,
    /// Requests on each connection; 0: the server resets what it has accepted.
    pub messages: u32,
    /// Bytes of a response's body.
    pub message: usize,
    /// Open loop: connections to start in a second.
    pub rate: Option<f64>,
    /// Connections stay open after their requests, idle.
    pub hold: bool,
    /// Seconds to measure, where it is not what the options say.
    pub seconds: Option<f64>,
    /// Seconds of load before, likewise.
    pub warm_up: Option<f64>,
}

impl Default for Work {
    fn default() -> Work {
        Work { concurrent: 256, messages: 1, message: 64, rate: None, hold: false, seconds: None, warm_up: None }
    }
}

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Who.
    pub system: System,
    /// Over what.
    pub wire: Wire,
    /// Cores of the server.
    pub cores: usize,
    /// At what.
    pub work: Work,
    /// Each lane has its peer on its own core.
    pub together: bool,
    /// The server sends a frame a segment, and leaves nothing to be cut before the device.
    pub frame_each: bool,
    /// What tells this row from others of its benchmark, besides the above.
    pub labels: Vec<(&'static str, Value)>,
}

impl Case {
    /// A row on one core.
    pub fn new(system: System, wire: Wire, work: Work) -> Case {
        Case { system, wire, cores: 1, work, together: false, frame_each: false, labels: Vec::new() }
    }

    /// With one more label.
    pub fn label(mut self, name: &'static str, value: impl Into<Value>) -> Case {
        self.labels.push((name, value.into()));
        self
    }

    /// What identifies the row, for JSON and plots.
    pub fn keys(&self) -> Map<String, Value> {
        let mut keys = Map::new();
        keys.insert("system".into(), json!(self.system.name()));
        keys.insert("wire".into(), json!(self.wire.name()));
        keys.insert("cores".into(), json!(self.cores));
        keys.insert("concurrent".into(), json!(self.work.concurrent));
        keys.insert("messages_per_connection".into(), json!(self.work.messages));
        keys.insert("message_bytes".into(), json!(self.work.message));
        if let Some(rate) = self.work.rate {
            keys.insert("offered_per_s".into(), json!(rate.round()));
        }
        keys.extend(self.labels.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_what_it_is() {
        let work = Work { rate: Some(1000.4), ..Work::default() };
        let case = Case::new(System::MultiProcess, Wire::Xdp, work).label("model", "inline");
        let text = Value::Object(case.keys()).to_string();
        let expected = "{\"concurrent\":256,\"cores\":1,\"message_bytes\":64,\"messages_per_connection\":1,\
                        \"model\":\"inline\",\"offered_per_s\":1000.0,\"system\":\"linux-multiprocess\",\"wire\":\"xdp\"}";
        assert_eq!(text, expected);
    }
}

//! One measurement of one case: programs started, cores and wires read at its beginning and end.

use super::Settings;
use super::case::{Case, System, Wire, Work};
use super::child::Child;
use super::cpu::{self, Cores};
use super::kv::Keeper;
use super::numbers::{take_lanes, take_limit, take_report};
use super::place::{self, Frames, Place, SERVER, Side};
use crate::args::{KernelServer, ModelArg};
use crate::failure::{Failure, words};
use clap::ValueEnum;
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};

/// A share of a core that the hypervisor took, or that others used, which makes a measurement noisy.
const STOLEN: f64 = 0.01;
const FOREIGN: f64 = 0.1;
/// A core that is busy for more than this has nothing left to give.
pub const FULL: f64 = 0.95;
/// More frames dropped than this share are worth a remark.
const LOSSY: f64 = 0.001;
/// How long programs may take to start.
pub const START: Duration = Duration::from_secs(20);

/// Which cores do what.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The client's.
    pub client: Vec<usize>,
    /// The server's.
    pub server: Vec<usize>,
}

impl Layout {
    /// For so many cores of the server: the last ones, and for the client up to twice as many of the others on a veth. Both
    /// ends of a memory wire have as many lanes.
    pub fn new(cores: &[usize], servers: usize, wire: Wire) -> Layout {
        let (rest, server) = cores.split_at(cores.len() - servers.min(cores.len()));
        let most = if wire == Wire::Mem { servers } else { servers * 2 };
        Layout { client: rest[..rest.len().min(most)].to_vec(), server: server.to_vec() }
    }

    /// Of a case. Where each lane has its peer beside it, both are on the first cores.
    pub fn of(case: &Case, settings: &Settings) -> Layout {
        if !case.together {
            return Layout::new(&settings.all_cores, case.cores, case.wire);
        }
        let cores = settings.all_cores[..case.cores.min(settings.all_cores.len())].to_vec();
        Layout { client: cores.clone(), server: cores }
    }
}

/// What one round found.
#[derive(Clone, Debug, Default)]
pub struct Measurement {
    /// By name.
    pub values: BTreeMap<String, f64>,
    /// Failed connections by cause.
    pub errors: BTreeMap<String, u64>,
    /// What a reader must know.
    pub remarks: BTreeSet<String>,
    /// The client's cores were full and the server's were not.
    pub client_was_limit: bool,
    /// The largest share of client's and server's cores that the hypervisor took.
    pub steal: f64,
    /// Cores that other programs used.
    pub foreign: f64,
}

impl Measurement {
    /// Whether others had so much of the machine that the numbers say something about them.
    pub fn is_noisy(&self) -> bool {
        self.steal > STOLEN || self.foreign > FOREIGN
    }

    /// Notes a number.
    pub fn set(&mut self, name: &str, value: f64) {
        if value.is_finite() {
            self.values.insert(name.to_owned(), value);
        }
    }
}

/// The machine's counters at one moment.
struct Reading {
    at: Instant,
    cores: Cores,
    /// CPU time of what we started, threads of NAPI included.
    ours: Duration,
}

/// Reads the clocks of what a round started.
pub struct Watch {
    layout: Layout,
    pids: Vec<u32>,
    napi: place::Napi,
    begin: Option<Reading>,
}

impl Watch {
    /// For these processes.
    pub fn new(layout: Layout, pids: Vec<u32>, napi: place::Napi) -> Watch {
        Watch { layout, pids, napi, begin: None }
    }

    fn read(&self) -> Reading {
        let own = std::iter::once(std::process::id());
        let ours = self.pids.iter().copied().chain(own).chain(cpu::named("ksoftirqd/"));
        let ours: Duration = ours.map(cpu::process_time).sum();
        Reading { at: Instant::now(), cores: Cores::now(), ours: ours + self.napi.time() }
    }

    /// CPU time of the server's NAPI threads, so far.
    pub fn server_napi_time(&self) -> Duration {
        self.napi.server_time()
    }

    /// The measurement begins.
    pub fn begin(&mut self) {
        self.begin = Some(self.read());
    }

    /// It ends: the server's busy seconds, and what is worth knowing about the cores.
    pub fn end(&self, found: &mut Measurement) -> f64 {
        let Some(begin) = &self.begin else { return 0.0 };
        let now = self.read();
        let wall = (now.at - begin.at).as_secs_f64().max(1e-9);
        let [client, server] =
            [&self.layout.client, &self.layout.server].map(|cores| now.cores.since(&begin.cores, cores));
        found.set("server_busy", server.share());
        found.set("client_busy", client.share());
        // What is left of softirq work: threads of NAPI do the work of receiving.
        found.set("server_softirq_share", server.softirq / server.total.max(1e-9));
        found.set("client_softirq_share", client.softirq / client.total.max(1e-9));
        found.set("seconds", wall);
        found.steal = server.stolen().max(client.stolen());
        let both: Vec<usize> = [self.layout.client.as_slice(), &self.layout.server].concat();
        let all = now.cores.since(&begin.cores, &both);
        found.foreign = (all.process - now.ours.saturating_sub(begin.ours).as_secs_f64()).max(0.0) / wall;
        found.client_was_limit = client.share() > FULL && server.share() < FULL;
        // The share of a core, over the time by the clock: two cores that are full for a second are two seconds.
        server.share() * wall * self.layout.server.len() as f64
    }
}

/// Something that is done when a measurement begins, on these cores, of these processes of the server.
pub type Begin<'a> = &'a mut dyn FnMut(&Layout, &[u32]);

/// Measures a case.
pub fn measure(case: &Case, settings: &Settings) -> Result<Measurement, Failure> {
    measure_with(case, settings, &mut |_, _| {})
}

/// Measures a case; `begin` is called when it begins.
pub fn measure_with(case: &Case, settings: &Settings, begin: Begin<'_>) -> Result<Measurement, Failure> {
    let layout = Layout::of(case, settings);
    match case.wire {
        Wire::Mem => on_memory(case, settings, layout, begin),
        Wire::Xdp => on_veth(case, settings, layout, begin),
    }
}

/// As command lines have them.
pub fn list(cores: &[usize]) -> String {
    cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// As command lines have it.
pub fn value_name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// What the client's command line says about the work.
pub fn load_options(work: &Work, settings: &Settings, checked: bool) -> Vec<String> {
    let seconds = work.seconds.unwrap_or(settings.seconds);
    let mut options: Vec<String> = ["--json", "--events"].into_iter().map(str::to_owned).collect();
    let mut add = |name: &str, value: String| options.extend([name.to_owned(), value]);
    if checked {
        add("--length", work.message.to_string());
    }
    add("--connections", work.concurrent.to_string());
    add("--messages", work.messages.to_string());
    add("--duration", seconds.to_string());
    let warm_up = work.warm_up.unwrap_or(settings.warm_up);
    add("--warm-up", warm_up.to_string());
    add("--timeout", (seconds + warm_up + 30.0).to_string());
    if let Some(rate) = work.rate {
        add("--rate", rate.to_string());
    }
    if work.hold {
        options.push("--hold".into());
    }
    options
}

/// Both ends in one process.
fn on_memory(case: &Case, settings: &Settings, layout: Layout, begin: Begin<'_>) -> Result<Measurement, Failure> {
    let mut command = Command::new(place::this_program());
    let (client, server) = (list(&layout.client), list(&layout.server));
    let System::Corelane(model) = case.system else {
        command.args(["bench-part", "limit", "--cores", &client, "--server-cores", &server]);
        command.args(limit_options(&case.work, settings));
        return watch_alone(case, settings, layout, Child::spawn(command, "the wire in memory")?, begin);
    };
    command.args(["bench-part", "memory", "http://10.99.0.2/", "--cores", &client, "--server-cores", &server]);
    command.args(["--model", &value_name(model)]).args(load_options(&case.work, settings, true));
    match case.work.messages {
        0 => command.arg("--reset"),
        _ => command.args(["--message", &case.work.message.to_string()]),
    };
    watch_alone(case, settings, layout, Child::spawn(command, "both ends of the memory wire")?, begin)
}

/// Measures a program that is both client and server.
pub fn watch_alone(
    case: &Case,
    settings: &Settings,
    layout: Layout,
    mut child: Child,
    begin: Begin<'_>,
) -> Result<Measurement, Failure> {
    let patience = START + settings.patience(&case.work);
    let mut watch = Watch::new(layout, vec![child.pid()], place::Napi::default());
    let mut found = Measurement::default();
    child.event("measuring", patience)?;
    watch.begin();
    begin(&watch.layout, &watch.pids);
    child.event("measured", settings.patience(&case.work))?;
    let busy = watch.end(&mut found);
    let report = child.finish(settings.patience(&case.work))?;
    take_report(&report, busy, &mut found);
    take_limit(case, &mut found);
    take_lanes(&report["server"], &mut found);
    let (frames, connections) = (&report["server"]["frames"], &report["server"]["connections"]);
    if let (Some(frames), Some(connections)) = (frames.as_f64(), connections.as_f64()) {
        found.set("frames_per_connection", frames / connections);
        let rate = found.values.get("connections_per_s").copied().unwrap_or(0.0);
        found.set("frames_per_s", rate * frames / connections);
    }
    Ok(found)
}

fn limit_options(work: &Work, settings: &Settings) -> Vec<String> {
    let seconds = work.seconds.unwrap_or(settings.seconds);
    let options = [
        ("--messages", work.messages.to_string()),
        ("--message", work.message.to_string()),
        ("--window", work.concurrent.to_string()),
        ("--duration", seconds.to_string()),
        ("--warm-up", settings.warm_up.to_string()),
    ];
    options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
}

/// A configuration file without a name: this device, a frame for each segment.
fn frame_each(device: &str) -> Result<File, Failure> {
    let failed = |error: std::io::Error| Failure::told(format!("a configuration: {}", words(&error)));
    let mut file: File =
        memfd_create("corelane-bench.toml", MemfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?.into();
    file.write_all(format!("[[ports]]\ndevice = \"{device}\"\noffload = false\n").as_bytes()).map_err(failed)?;
    Ok(file)
}

/// Starts the server of a case; several processes where it is made so.
fn servers(case: &Case, place: &Place, layout: &Layout, settings: &Settings) -> Result<Vec<Child>, Failure> {
    let program = place::this_program();
    let device = format!("xdp:{}", place.interface(Side::Server));
    let start = |options: &[&str], cores: &[usize]| {
        let mut command = place.command(Side::Server, &program);
        command.args(options).args(["--cores", &list(cores)]);
        if options[0] == "serve" {
            command.arg("--json");
            match case.work.messages {
                0 => command.arg("--reset"),
                _ => command.args(["--message", &case.work.message.to_string()]),
            };
        }
        let mut child = Child::spawn(command, "the server")?;
        child.event("ready", START)?;
        Ok(child)
    };
    match case.system {
        System::Corelane(model) => {
            let model = value_name(model);
            let plain = frame_each(&device)?;
            let config = format!("/proc/{}/fd/{}", std::process::id(), plain.as_raw_fd());
            let from = if case.frame_each { ["--config", &config] } else { ["--dev", &device] };
            start(&["serve", from[0], from[1], "--model", &model], &layout.server).map(|child| vec![child])
        }
        System::Channels => {
            let options = ["serve", "--dev", &device, "--channel"];
            start(&options, &layout.server).map(|child| vec![child])
        }
        System::Mtcp => start(&["serve", "--dev", &device, "--mtcp"], &layout.server).map(|child| vec![child]),
        System::Kernel(how) => {
            start(&["serve", &format!("--kernel={}", value_name(how))], &layout.server).map(|child| vec![child])
        }
        System::MultiProcess => {
            let kernel = format!("--kernel={}", value_name(KernelServer::Epoll));
            layout.server.iter().map(|core| start(&["serve", &kernel], &[*core])).collect()
        }
        System::Nginx => {
            super::nginx::start(place, &case.work, &layout.server, &super::nginx::EXPERT).map(|child| vec![child])
        }
        System::Keeper(keeper) => {
            super::kv::start(place, keeper, settings.kv.as_deref(), &layout.server).map(|child| vec![child])
        }
        System::Limit => {
            let options = limit_options(&case.work, &Settings::default());
            let mut arguments = vec!["bench-part", "echo", "--dev", &device];
            arguments.extend(options[..4].iter().map(String::as_str));
            start(&arguments, &layout.server).map(|child| vec![child])
        }
        System::Step(_) | System::Descriptors => Err(Failure::told("it is measured by `bench fastsocket` alone")),
    }
}

fn on_veth(case: &Case, settings: &Settings, layout: Layout, begin: Begin<'_>) -> Result<Measurement, Failure> {
    let queues = layout.client.len().max(layout.server.len());
    let mut place = Place::new(queues, settings.addresses)?;
    let _tidy = super::nginx::Tidy;
    let kernels = match case.system {
        System::Keeper(keeper) => keeper != Keeper::Lane,
        other => matches!(other, System::Kernel(_) | System::MultiProcess | System::Nginx),
    };
    if case.frame_each && kernels {
        place.send_frame_each(Side::Server)?;
    }
    let servers = servers(case, &place, &layout, settings)?;
    if kernels && place.has_program(Side::Server)? {
        return Err(Failure::told("an XDP program is on the kernel's end of the veth: please report this"));
    }
    let mut command = place.command(Side::Client, &place::this_program());
    let device = format!("xdp:{}", place.interface(Side::Client));
    match case.system {
        System::Limit => {
            let mac = place.mac(Side::Server)?;
            command.args(["bench-part", "blast", "--dev", &device, "--to", &mac]);
            command.args(limit_options(&case.work, settings));
        }
        _ => {
            let kept = matches!(case.system, System::Keeper(_));
            let url = if kept { super::kv::url() } else { format!("http://{SERVER}/") };
            command.args(["load", &url, "--dev", &device]);
            command.args(load_options(&case.work, settings, !kept));
            command.args(place.sources.iter().flat_map(|source| ["--source", source]));
        }
    }
    command.args(["--cores", &list(&layout.client)]);
    let mut load = Child::spawn(command, "the load")?;
    load.event("started", START)?;
    let napi = place.pin(&layout.client, &layout.server)?;
    let serving: Vec<u32> = servers.iter().flat_map(|server| cpu::family(server.pid())).collect();
    let pids = serving.iter().copied().chain([load.pid()]).collect();
    let mut watch = Watch::new(layout, pids, napi);
    let mut found = Measurement::default();
    load.event("measuring", START + settings.patience(&case.work))?;
    watch.begin();
    begin(&watch.layout, &serving);
    let serving = || serving.iter().copied().map(cpu::process_time).sum::<Duration>();
    let served = serving();
    let (frames, received) = (place.frames(), watch.server_napi_time());
    load.event("measured", settings.patience(&case.work))?;
    let busy = watch.end(&mut found);
    let served = serving().saturating_sub(served);
    found.set("server_process_share", served.as_secs_f64() / found.values["seconds"]);
    let (after, napi_time) = (place.frames(), watch.server_napi_time().saturating_sub(received));
    let report = load.finish(settings.patience(&case.work))?;
    take_report(&report, busy, &mut found);
    take_limit(case, &mut found);
    take_wire(&place, (frames, after), (napi_time, busy), &mut found)?;
    let arrived = after.received - frames.received;
    let units = found.values.get("connections").copied().unwrap_or(0.0);
    if units > 0.0 {
        // Of the programs alone: what others did on the core is not in it, nor softirq work that interrupted them.
        found.set("server_own_us_per_connection", (served + napi_time).as_secs_f64() * 1e6 / units);
        let sent = (after.sent - frames.sent) as f64;
        found.set("frames_per_connection", (arrived as f64 + sent) / units);
        found.set("frames_to_server_per_connection", arrived as f64 / units);
    }
    found.set(
        "frames_per_s",
        (after.received + after.sent - frames.received - frames.sent) as f64 / found.values["seconds"],
    );
    for server in servers {
        let last = server.stop();
        if let Ok(last) = &last {
            take_lanes(last, &mut found);
        }
        // Those that are not ours to write end without an object.
        if !matches!(case.system, System::Nginx | System::Keeper(_)) {
            last?;
        }
    }
    Ok(found)
}

/// Looks at the wire over a measurement: at its frames before and after, and at the time of the server's NAPI threads beside its
/// core's busy seconds.
pub fn take_wire(
    place: &Place,
    (before, after): (Frames, Frames),
    (napi, busy): (Duration, f64),
    found: &mut Measurement,
) -> Result<(), Failure> {
    found.set("server_napi_share", napi.as_secs_f64() / busy.max(1e-9));
    let (arrived, sent) = (after.received - before.received, after.sent - before.sent);
    if napi.is_zero() && arrived > 50_000 {
        // Else the work of receiving was done on the client's core, and all numbers are wrong.
        return Err(Failure::told("the server's NAPI threads used no time though frames arrived: please report this"));
    }
    let dropped = (after.dropped - before.dropped) as f64;
    found.set("frames_dropped", dropped);
    if dropped > LOSSY * (arrived + sent) as f64 {
        found.remarks.insert("more than one in a thousand frames was dropped by the veth".into());
    }
    if place.congestion != "cubic" {
        found
            .remarks
            .insert(format!("the kernel's congestion control is {}: CUBIC could not be set", place.congestion));
    }
    Ok(())
}

/// The models there are.
pub fn models() -> impl Iterator<Item = ModelArg> {
    ModelArg::value_variants().iter().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_each_is_a_configuration() {
        let file = frame_each("xdp:cl0").expect("memory");
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let config = crate::device::read_config(path.as_ref()).expect("it is valid");
        assert_eq!((config.ports.len(), config.ports[0].offload), (1, Some(false)));
        assert_eq!(config.ports[0].device.to_string(), "xdp:cl0");
    }

    #[test]
    fn cores_are_shared_out() {
        let layout = Layout::new(&[0, 1], 1, Wire::Xdp);
        assert_eq!((layout.client, layout.server), (vec![0], vec![1]));
        let layout = Layout::new(&[0, 1, 2, 3, 4, 5], 2, Wire::Xdp);
        assert_eq!((layout.client, layout.server), (vec![0, 1, 2, 3], vec![4, 5]));
        assert_eq!(Layout::new(&[0, 1, 2, 3, 4, 5], 2, Wire::Mem).client, [0, 1]);
    }
}

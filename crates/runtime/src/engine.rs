//! An engine: lanes over opened devices, and the threads that some of them need.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use client::{App, Facts, LaneStats, Snapshot, Wait, Waiting};
use io::{AnyPort, Bell, Port, numa};
use mem::{ArenaError, CHUNK_BYTES, Pool, PoolConfig};
use socket::{SocketConfig, Sockets};
use stack::{InterfaceConfig, InterfaceId, Route, Stack, StackConfig, Steering};
use wire::{MacAddr, Ports};

use crate::config::{Config, Model, Neighbor};
use crate::cores;
use crate::devices::Devices;
use crate::door::Door;
use crate::error::Error;
use crate::exit::{self, Ends};
use crate::fallback::{Directory, Fallback};
use crate::guard::Guarded;
use crate::handover;
use crate::keeper::Keeper;
use crate::kernel::{ActiveTuples, Kernel, LocalConnections, SharedPort, Way};
use crate::lane::{Lane, Watched};
use crate::links::LaneLink;
use crate::mailbox::{Control, Mailbox};
use crate::ports::{self, Opened};
use crate::secret;
use crate::waits::{ByTurns, Inline, Paired};

/// Jobs that an application may have under way; more wait on its side. A ring's memory is used all round, so one that is much
/// longer than a turn's work takes the nearer caches from everything else.
pub(crate) const JOBS: usize = 2048;
/// Events that the stack may have under way; a connection's news wait in it where there are more.
const EVENTS: usize = 1024;

/// How long a device may take to have its link up again after its driver took the program.
const CARRIER: Duration = Duration::from_secs(10);

/// Lanes that run.
pub struct Engine {
    apps: Vec<Option<AppHandle>>,
    links: Arc<Vec<LaneLink>>,
    keeper: Arc<Keeper>,
    warnings: Vec<String>,
    devices: Arc<Devices>,
    /// Not all devices are the kernel's, too: one has its addresses from the configuration, or looks for them itself.
    dedicated: bool,
    kernel: Option<Kernel>,
    /// Of active opens.
    local_ports: Ports,
    /// Ends it with the process.
    exit: Option<Arc<Ends>>,
}

/// An application's end of a lane that no thread has.
pub struct AppHandle {
    app: App,
}

impl AppHandle {
    pub(crate) fn new(app: App) -> AppHandle {
        AppHandle { app }
    }

    /// Takes the end on this thread, which is pinned to the lane's core if it has one.
    pub fn attach(self) -> Result<App, Error> {
        self.pin()?;
        Ok(self.into_app())
    }

    /// Pins this thread to the lane's core if it has one: for who keeps the end where that fails.
    pub fn pin(&self) -> Result<(), Error> {
        self.app.core().map_or(Ok(()), cores::pin)
    }

    /// Takes the end on this thread, whatever core it runs on.
    pub fn into_app(self) -> App {
        self.app
    }

    /// The end leaves its thread, for another one to take; as when it goes for good, a lane that this thread runs is run by another one
    /// meanwhile, where there are others that need it.
    pub fn leave(mut app: App) -> AppHandle {
        app.detach();
        AppHandle { app }
    }
}

/// How flows find their lanes: as the one NIC does by itself, where it tells how; otherwise by a hash of our own, and what
/// comes by another lane's queue is handed over. Whether there is something to learn, then, and a line about it where there are
/// several lanes on a NIC.
fn steering(opened: &[Opened], lanes: u16) -> (Steering, bool, Vec<String>) {
    let nics: Vec<_> = opened.iter().filter_map(|o| o.shared.as_ref()).collect();
    let spread = Steering::spread(lanes);
    if lanes == 1 || nics.is_empty() {
        return (spread, opened.iter().any(|o| !o.mirrored), Vec::new());
    }
    let names = nics.iter().map(|n| n.link().name.as_str()).collect::<Vec<_>>().join(", ");
    let learn = |why: &str| {
        let then = "frames that arrive on another lane's queue are handed over; which local ports lead back is learnt";
        (spread, true, vec![format!("{names}: {why}: {then}")])
    };
    let [nic] = nics[..] else { return learn("several interfaces") };
    if opened.len() > 1 {
        return learn("not the only device");
    }
    let rss = match io::rss::read(&nic.link().name) {
        Ok(rss) => rss,
        Err(why) => return learn(&why),
    };
    // Queues are dealt to the lanes in turn.
    let table: Vec<u16> = rss.queues.iter().map(|queue| (*queue % lanes as u32) as u16).collect();
    match Steering::predicted(rss.key, &table, lanes) {
        Some(steering) => {
            (steering, false, vec![format!("{names}: its hash is known: every flow arrives on its own lane")])
        }
        None => learn(&format!("its table leaves lanes out (`ethtool -X {names} equal {lanes}`)")),
    }
}

impl Engine {
    /// Two engines at the two ends of a wire in memory; `a` and `b` name one `mem:` port each.
    pub fn memory_pair(a: &Config, b: &Config) -> Result<(Engine, Engine), Error> {
        if a.lanes != b.lanes {
            return Err(Error::Config("both ends of a memory wire need the same number of lanes".into()));
        }
        let one = |c: &'_ Config| match &c.ports[..] {
            [_] => Ok(()),
            _ => Err(Error::Config("an end of a memory wire has one port".into())),
        };
        one(a)?;
        one(b)?;
        cores::check(&a.cores)?;
        cores::check(&b.cores)?;
        let [end_a, end_b] = ports::memory([a, b], [&a.ports[0], &b.ports[0]])?;
        Ok((Engine::build(a, vec![end_a])?, Engine::build(b, vec![end_b])?))
    }

    /// An engine at one end of a wire in memory, and the other end, a port for each lane: for peers that are no stacks.
    /// Checksums are neither made nor looked at.
    pub fn memory_end(config: &Config) -> Result<(Engine, Vec<io::memwire::MemPort>), Error> {
        let [port] = &config.ports[..] else {
            return Err(Error::Config("an end of a memory wire has one port".into()));
        };
        let (end, others) = ports::memory_end(config, port)?;
        Ok((Engine::build(config, vec![end])?, others))
    }

    /// Opens the configured devices and starts their lanes.
    pub fn start(config: &Config) -> Result<Engine, Error> {
        config.check().map_err(|fault| Error::Config(fault.message))?;
        if config.ports.is_empty() {
            return Err(Error::Config("no device: name one with --dev or in [[ports]]".into()));
        }
        cores::check(&config.cores)?;
        let opened = config.ports.iter().map(|p| ports::open_captured(config, p)).collect::<Result<Vec<_>, _>>()?;
        Engine::build(config, opened)
    }

    pub(crate) fn build(config: &Config, opened: Vec<Opened>) -> Result<Engine, Error> {
        config.check().map_err(|fault| Error::Config(fault.message))?;
        let lanes = config.lanes as usize;
        let (steering, learn, mut notes) = steering(&opened, config.lanes);
        notes.extend(
            cores::shared(&config.cores).map(|core| format!("lanes share core {core}: they slow each other down")),
        );
        let drawn = secret::kept().and_then(|kept| Ok((kept, u64::from_ne_bytes(secret::random()?))));
        let (secret, ports_start) = drawn.map_err(Error::system("getrandom"))?;
        let tcp = config.tcp.parameters();
        let system = |e| Error::system("eventfd")(e);
        let bells = (0..lanes).map(|_| Bell::new().map(Arc::new)).collect::<Result<Vec<_>, _>>().map_err(system)?;
        let max_frame = opened.iter().flat_map(|o| &o.queues).map(|q| q.caps_of().max_rx_frame).max().unwrap_or(1518);
        let mut handovers = match lanes {
            1 => vec![handover::Handover::default()],
            _ => handover::mesh(&bells, max_frame)?,
        };
        handovers.reverse();
        let mut queues: Vec<Vec<AnyPort>> = (0..lanes).map(|_| Vec::new()).collect();
        let here = Arc::new(Devices::new(opened.len()));
        let dedicated = opened.iter().any(|o| o.shared.is_none());
        let mut ways = Vec::new();
        for xdp in opened.iter().filter_map(|o| o.shared.as_ref()) {
            let now = xdp.await_carrier(CARRIER).map_err(Error::system("reading interfaces"))?;
            // One that is gone, the control thread tells.
            let way = now.map_or(Way::Open, |link| Way::of(&link));
            notes.extend(Way::Open.tells(way, &xdp.link().name));
            ways.push(way);
        }
        let mut ways = ways.into_iter();
        let mut devices = Vec::new();
        let mut shared = Vec::new();
        let mut fixed = Vec::new();
        for (port, device) in opened.into_iter().enumerate() {
            if device.queues.len() != lanes {
                return Err(Error::Config(format!("a device gave {} queues for {lanes} lanes", device.queues.len())));
            }
            for (lane, queue) in device.queues.into_iter().enumerate() {
                queues[lane].push(queue);
            }
            let interface = InterfaceId(port as u8);
            if let Some(xdp) = device.shared {
                notes.extend(xdp.warnings());
                let only = device.addresses.iter().map(|(a, _)| *a).collect::<Vec<_>>();
                let only = (!only.is_empty()).then_some(only);
                let (mtu, mac, queues) = (xdp.link().mtu, xdp.link().mac, xdp.queues());
                let taken = u16::try_from(mtu).unwrap_or(u16::MAX);
                let largest = device.mtu.map_or(taken, |mtu| mtu.min(taken));
                let vlan = device.vlan.unwrap_or(0);
                let way = ways.next().unwrap_or(Way::Open);
                let tuples = ActiveTuples::of(vlan);
                shared.push(SharedPort { port, vlan, device: xdp, tuples, only, mtu, largest, mac, queues, way });
                let kind = (device.mode, device.vlan, 0, false, device.mtu);
                devices.push((kind, Vec::new(), Vec::new(), Default::default()));
                continue;
            }
            for (addr, prefix) in &device.addresses {
                fixed.push(Route { dst: *addr, prefix: *prefix, gateway: None, interface, metric: 0 });
            }
            for gateway in &device.gateways {
                let any = if gateway.is_ipv4() { [0u8; 4].into() } else { [0u8; 16].into() };
                fixed.push(Route { dst: any, prefix: 0, gateway: Some(*gateway), interface, metric: 100 });
            }
            let on_link =
                |(dst, prefix): &(_, _)| Route { dst: *dst, prefix: *prefix, gateway: None, interface, metric: 0 };
            fixed.extend(device.routes.iter().map(on_link));
            let kind = (device.mode, device.vlan, device.dad, device.autoconf, device.mtu);
            let routes = device.routes.iter().map(on_link).collect::<Vec<_>>();
            devices.push((kind, device.addresses, device.gateways, (routes, device.neighbors)));
        }
        let mut kernel =
            if shared.is_empty() { None } else { Some(Kernel::new(shared, fixed, config.local_ports, lanes)?) };
        let (first, last) = config.local_ports.unwrap_or((16_384, 65_535));
        let local_ports = Ports::new(first, last);

        // A pair of threads on one core: what one waits for the other is to do.
        let alone = config.model != Model::Paired || config.cores.is_empty();
        let spin_us = if alone { config.spin_us } else { 0 };
        let waiting = Waiting { spin_us, busy: config.busy_poll };
        let mut engine = Engine {
            apps: Vec::new(),
            links: Arc::default(),
            keeper: Arc::new(Keeper::new(bells.clone(), config.cores.clone(), spin_us, config.busy_poll)),
            warnings: notes,
            devices: here.clone(),
            dedicated,
            kernel: None,
            local_ports: local_ports.clone(),
            exit: None,
        };
        let directory = Directory::new(lanes);
        let mut links = Vec::new();
        for (index, ports) in queues.into_iter().enumerate() {
            let chunks = (config.buffers_mib as u64 * (1 << 20) / CHUNK_BYTES as u64).min(u32::MAX as u64 / 2) as u32;
            let core = config.cores.get(index).copied();
            let shared = numa::near(core, || -> Result<_, ArenaError> {
                let pool = Pool::new(&PoolConfig { chunks, ..PoolConfig::default() })?;
                Ok((pool, mem::ring::ring(JOBS)?, mem::ring::ring(EVENTS)?))
            });
            let ((stack_side, app_side), (jobs, stack_jobs), (stack_events, events)) = shared?;
            let stack_config = StackConfig {
                max_connections: config.max_connections,
                tcp: tcp.clone(),
                time_wait: Duration::from_millis(config.tcp.time_wait_ms.unwrap_or(60_000)),
                max_time_wait: config.max_time_wait,
                max_half_open: config.max_half_open,
                syn_backlog: config.syn_backlog,
                max_orphans: config.max_orphans,
                syn_cookies: config.tcp.syn_cookies.map(Into::into).unwrap_or_default(),
                abort_on_overflow: config.tcp.abort_on_overflow.unwrap_or(false),
                ports: local_ports.clone(),
                secret,
                ports_start,
                steering: steering.clone(),
                lane: index as u16,
                learn,
                ..StackConfig::default()
            };
            let mut stack = numa::near(core, || Stack::new(stack_config, stack_side, stack_jobs, stack_events));
            let lane_ports = if kernel.is_some() { 0 } else { stack.lane_ports() };
            for (port, (kind, addresses, gateways, (routes, neighbors))) in ports.iter().zip(&devices) {
                let (mode, vlan, dad, autoconf, mtu) = kind;
                let caps = port.caps_of();
                let interface = stack.add_interface(InterfaceConfig {
                    name: caps.name.clone(),
                    mac: caps.mac,
                    mtu: mtu.map_or(caps.mtu, |mtu| mtu.min(caps.mtu)),
                    vlan: *vlan,
                    mode: *mode,
                    caps: caps.tx,
                    dad: *dad,
                    autoconf: *autoconf,
                });
                for (addr, prefix) in addresses {
                    stack.add_address(interface, *addr, *prefix);
                }
                for gateway in gateways {
                    let any = if gateway.is_ipv4() { [0u8; 4].into() } else { [0u8; 16].into() };
                    stack.add_route(Route { dst: any, prefix: 0, gateway: Some(*gateway), interface, metric: 100 });
                }
                for route in routes {
                    let added = stack.add_route(*route);
                    debug_assert!(added, "a route by an interface that the lane has not: {route:?}");
                }
                for Neighbor { addr, mac } in neighbors {
                    stack.set_neighbor(config.clock.now(), interface, *addr, MacAddr(*mac));
                }
            }
            if let Some(kernel) = &kernel {
                stack.share_ports(Box::new(kernel.lane_ports()));
                for (port, tuples) in kernel.lane_tuples()? {
                    stack.share(InterfaceId(port as u8), Box::new(tuples));
                }
            }
            let mail = Arc::new(Mailbox::default());
            let stats = Arc::new(LaneStats::default());
            let app_bell = Bell::new().map(Arc::new).map_err(system)?;
            let bell = bells[index].clone();
            links.push(LaneLink {
                mail: Arc::downgrade(&mail),
                bell: bell.clone(),
                stats: stats.clone(),
                index: index as u16,
                inline: config.model == Model::Inline,
            });
            let lane = Lane {
                index: index as u16,
                stack,
                held: vec![None; ports.len()],
                held_handed: None,
                ports,
                steering: steering.clone(),
                handover: handovers.pop().unwrap_or_default(),
                fallback: Fallback::new(directory.clone(), index as u16),
                clock: config.clock.clone(),
                bell: bell.clone(),
                app_bell: app_bell.clone(),
                mail,
                wanted: kernel.as_ref().map(Kernel::asker),
                ledger: kernel.as_ref().map(Kernel::ledger),
                noted: 0,
                stats: stats.clone(),
                asked: Vec::new(),
                failed: false,
                devices: here.clone(),
                gone: 0,
                down: 0,
                link_down: 0,
                looked: wire::Instant::ZERO,
                armed: 0,
                watched: Watched::No,
                alone: false,
                watches: Vec::new(),
                unread: 0,
                clients: None,
                end: None,
                over: Arc::default(),
                longest_end: Duration::from_secs(config.end_s.into()),
                losses: Default::default(),
            };
            let sockets = SocketConfig {
                max_sockets: config.max_sockets,
                send_buffer: tcp.send_buffer,
                receive_buffer: tcp.receive_buffer,
                tcp: tcp.clone(),
            };
            let sockets = numa::near(core, || Sockets::new(sockets, app_side, jobs, events));
            let facts = Facts {
                index: index as u16,
                core,
                stats,
                ports: lane_ports,
                jobs: JOBS as u32,
                gate: kernel.as_ref().map(Kernel::gate),
            };
            let mut waiting = waiting;
            let wait: Box<dyn Wait> = match config.model {
                Model::Inline => Box::new(Inline::new(lane, engine.keeper.clone())),
                Model::Paired => {
                    let paired = Paired::of(&lane);
                    engine.keeper.run(lane)?;
                    // Nothing comes while this end keeps the other from running; that one may be told never to sleep.
                    waiting.busy = false;
                    Box::new(paired)
                }
                Model::Guarded => {
                    let over = lane.over.clone();
                    let after = Duration::from_micros(config.guard_us as u64);
                    let lane = Arc::new(Guarded::new(lane, after).map_err(Error::system("epoll"))?);
                    engine.keeper.guard(lane.clone(), (index as u16, app_bell.clone()), over.clone())?;
                    Box::new(ByTurns::new(lane, app_bell, over))
                }
            };
            engine.apps.push(Some(AppHandle::new(App::new(sockets, wait, waiting, facts))));
        }
        engine.links = Arc::new(links);
        if let Some(kernel) = &mut kernel {
            engine.warnings.extend(kernel.warnings());
            kernel.follow(engine.links.clone(), here)?;
        }
        engine.kernel = kernel;
        let inline = config.model == Model::Inline;
        engine.exit = Some(exit::with_process(engine.keeper.clone(), engine.links.clone(), inline));
        Ok(engine)
    }

    /// What a user should know about the devices and the kernel: one line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Connections from this machine to ports that lanes listen on, for one taker; none where no interface is shared with the
    /// kernel. Untaken ones are reset.
    pub fn local_connections(&self) -> Option<LocalConnections> {
        self.kernel.as_ref()?.local()
    }

    /// Local ports from which connections are opened first: so many can there be from one of our addresses to one remote end. On an
    /// interface shared with the kernel they are those that it does not choose for itself; some of its own follow where they are needed.
    pub fn local_ports(&self) -> Ports {
        self.kernel.as_ref().map_or_else(|| self.local_ports.clone(), Kernel::free_ports)
    }

    /// Whether something can be reached here: a device has an address and a carrier, or is one that looks for its own address.
    pub fn is_reachable(&self) -> bool {
        self.dedicated || self.kernel.as_ref().is_none_or(Kernel::is_reachable)
    }

    /// This engine is about to end: from now on another process of this user, which waits for its interfaces, may hold the ports that are
    /// listened on here ([`io::xdp::Succession`]), so that the kernel refuses no connection between the two. Ports that are listened on later are not
    /// among these.
    pub fn let_successor_in(&self) {
        self.kernel.iter().for_each(Kernel::let_successor_in);
    }

    /// Calls `f` with a line that says why, once the last device is gone; on a thread of the engine.
    pub fn when_devices_are_gone(&self, f: impl FnOnce(&str) + Send + 'static) {
        self.devices.when_gone(Box::new(f));
    }

    /// Lanes.
    pub fn lanes(&self) -> usize {
        self.apps.len()
    }

    /// The application's end of lane `index`, once.
    pub fn take_app(&mut self, index: usize) -> Option<AppHandle> {
        self.apps.get_mut(index)?.take()
    }

    /// An end that was taken, and that nobody uses, can be taken again.
    pub fn put_back(&mut self, end: AppHandle) {
        if let Some(place) = self.apps.get_mut(usize::from(end.app.index())) {
            *place = Some(end);
        }
    }

    /// Where clients in other processes come to lane `index`.
    pub fn door(&self, index: usize) -> Option<Door> {
        let LaneLink { mail, bell, .. } = self.links.get(index)?;
        Some(Door { mail: mail.clone(), bell: bell.clone(), rings: (JOBS as u32, EVENTS as u32) })
    }

    /// Each lane's own counters, now.
    pub fn stats(&self) -> Vec<Arc<LaneStats>> {
        self.links.iter().map(|l| l.stats.clone()).collect()
    }

    /// Everything that the lanes counted; those that do not answer within `limit` (an application that never waits) are
    /// missing.
    pub fn snapshots(&self, limit: Duration) -> Vec<Snapshot> {
        let (to, from) = channel();
        let waiting = Arc::new(());
        for link in self.links.iter() {
            link.send(Control::Snapshot(to.clone(), Arc::downgrade(&waiting)));
        }
        drop(to);
        let end = std::time::Instant::now() + limit;
        let mut all = Vec::new();
        while let Ok(s) = from.recv_timeout(end.saturating_duration_since(std::time::Instant::now())) {
            all.push(s);
        }
        all.sort_by_key(|s| s.lane);
        all
    }

    /// Ends the stack threads (`paired`, `guarded`): all that is open on their lanes is closed, and the peers may acknowledge it.
    /// Once two seconds have passed in which nobody has acknowledged anything, the rest is reset; at the latest after two seconds, and
    /// 0.2 ms for each connection and a second for each MB that was open, and never later than [`Config::end_s`]. Calls that wait for such a lane, then fail. A lane that its application runs
    /// (`inline`) ends in the same way with the application's end of it, but for frames of others: where there are several lanes, it goes
    /// on until here. The kernel has its interfaces whole again in any case. A process that ends by exit(3) or by returning
    /// from `main` does the same for the engines that it still has.
    pub fn shutdown(mut self) {
        self.end();
        if let Some(kernel) = &self.kernel {
            kernel.give_back();
        }
    }
}

impl Engine {
    fn end(&mut self) {
        // Not twice, where the process exits meanwhile.
        self.exit = None;
        self.keeper.end();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Before the kernel has its interfaces back: what is in flight still needs them. A lane that nobody has taken goes on
        // for the others only as long as they do.
        self.end();
    }
}

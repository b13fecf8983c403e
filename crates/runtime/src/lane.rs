//! One turn of a lane, in the order of the paper's main loop (NSDI'14 3.2): receive, timers, jobs, send, events, wake. Between turns it
//! sleeps ([`sleep`]).

pub(crate) mod clients;
mod losses;
mod sleep;

use std::collections::HashSet;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use io::{AnyPort, Bell, Port};
use stack::{FlowKey, InterfaceId, Stack, Steering};
use wire::Instant;

use crate::devices::Devices;
use crate::ending::End;
use crate::fallback::Fallback;
use crate::handover::Handover;
use crate::kernel::Ledger;
use crate::lane::clients::{Arrival, Clients};
use crate::lane::losses::Losses;
use crate::mailbox::{Control, Mailbox};
use crate::sort::{Counts, Sort};
use client::Clock;
use client::{LaneStats, Snapshot, add};

/// Frames taken from a port in one turn. With more, a turn's steps would find their code in the caches more often, but the
/// segments of a turn are acknowledged together: a sender should not wait for more than these.
const BURST: usize = 64;
/// How long received frames are left where they are for want of room for answers, µs.
const HOLD_US: u64 = 1000;
/// How long jobs that the application has left behind wait for it to hand them over, µs: longer than it may be kept from
/// the core in the middle of an answer, as a rule, and not so long that a peer would wonder.
const LEFT_US: u64 = 4000;
/// Connections that a turn of a debug build pays a check of the stack for, so that one with thousands takes little longer. With more
/// than so many there is no check: it would keep the lane from its timers.
const CHECKED: usize = 1;
const MOST_CHECKED: usize = 16_384;

/// A next hop that the kernel should resolve: port index and address.
pub(crate) enum Wanted {
    /// A port, and the next hop whose hardware address is wanted on it.
    Neighbor(usize, IpAddr),
    /// A connection whose peer sends fragments.
    Fragments(FlowKey),
}

/// What one turn did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Frames received.
    pub rx: usize,
    /// Frames sent.
    pub tx: usize,
    /// Jobs done.
    pub jobs: usize,
    /// Events given.
    pub events: usize,
}

impl Work {
    /// Whether the turn found nothing to do.
    pub fn is_idle(&self) -> bool {
        self.rx + self.tx + self.jobs + self.events == 0
    }
}

/// One core's stack and its ports.
// Lines of its own: lanes are made one after the other.
#[repr(align(128))]
pub struct Lane {
    pub(crate) index: u16,
    pub(crate) stack: Stack,
    /// Each interface is one port: its number is the port's place here.
    pub(crate) ports: Vec<AnyPort>,
    pub(crate) steering: Steering,
    pub(crate) handover: Handover,
    pub(crate) fallback: Fallback,
    pub(crate) clock: Clock,
    /// Rung by the application, other lanes and the control plane.
    pub(crate) bell: Arc<Bell>,
    /// Wakes the application.
    pub(crate) app_bell: Arc<Bell>,
    /// From the control plane.
    pub(crate) mail: Arc<Mailbox>,
    pub(crate) wanted: Option<(Sender<Wanted>, Arc<Bell>)>,
    /// Where it is noted what becomes of listeners on interfaces that the kernel has too, and how many of their changes are.
    pub(crate) ledger: Option<Arc<Ledger>>,
    pub(crate) noted: u64,
    pub(crate) stats: Arc<LaneStats>,
    pub(crate) asked: Vec<(InterfaceId, IpAddr)>,
    /// A port that failed says so once.
    pub(crate) failed: bool,
    /// Since when what waits on a port is left there.
    pub(crate) held: Vec<Option<Instant>>,
    /// Since when what other lanes have handed over is.
    pub(crate) held_handed: Option<Instant>,
    /// The engine's, who hear of those that are gone.
    pub(crate) devices: Arc<Devices>,
    /// Ports that are gone for good, by bit: nobody waits for them.
    pub(crate) gone: u32,
    /// Ports whose interface is down, by bit. One that goes then, the kernel does not tell: it did when the interface went down.
    pub(crate) down: u32,
    /// Ports whose link is down, as the control plane heard from the kernel, by bit: an AF_XDP socket shows no error then.
    pub(crate) link_down: u32,
    /// When it was looked for them last.
    pub(crate) looked: Instant,
    /// Ports whose wake-up is armed: the first ones.
    pub(crate) armed: usize,
    /// Who armed them and left the lane to others meanwhile.
    pub(crate) watched: Watched,
    /// The application, which has left jobs behind, may do other things for long: who has the turn is not that one.
    pub(crate) alone: bool,
    /// Descriptors that wait for all that this lane waits for.
    pub(crate) watches: Vec<Arc<OwnedFd>>,
    /// Ports on which nobody waits for frames, by bit: some are left there for now.
    pub(crate) unread: u32,
    /// Clients in other processes, once there was one.
    pub(crate) clients: Option<Box<Clients>>,
    /// What is open is ended.
    pub(crate) end: Option<End>,
    /// No turn is taken any more: what was open is reset because something is broken, or the thread that ran the lane is over.
    pub(crate) over: Arc<AtomicBool>,
    pub(crate) longest_end: Duration,
    /// Frames lost before they came, as far as they are told.
    pub(crate) losses: Losses,
}

/// Who waits for a lane's descriptors without having its turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Watched {
    /// Whoever waits has the turn.
    #[default]
    No,
    /// The application.
    App,
    /// The guard.
    Guard,
}

/// Whether what waits is left there, since `held`: as long as answers find no room, but not for long, since the other end may wait for
/// us to take what it sends before it takes what we send.
fn hold(held: &mut Option<Instant>, can_answer: bool, now: Instant) -> bool {
    *held = match *held {
        _ if can_answer => None,
        Some(since) if held_for(since, now) == 0 => None,
        since => since.or(Some(now)),
    };
    held.is_some()
}

/// How much longer it is left, µs.
fn held_for(since: Instant, now: Instant) -> u64 {
    HOLD_US.saturating_sub(now.micros_since(since))
}

/// A lane in its turn: dropped by a panic only.
struct Turning<'a>(&'a mut Lane);

impl Drop for Turning<'_> {
    fn drop(&mut self) {
        self.0.break_off();
        crate::exit::reset_engine_of(&self.0.bell);
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Between two turns, on the thread that runs it.
        if std::thread::panicking() {
            self.break_off();
        }
    }
}

impl Lane {
    /// One turn; none where the lane is over. One that panics resets what is open, and is the last.
    pub fn turn(&mut self) -> Work {
        if self.is_over() {
            return Work::default();
        }
        let turning = Turning(self);
        let work = turning.0.take_turn();
        std::mem::forget(turning);
        work
    }

    fn take_turn(&mut self) -> Work {
        let now = self.clock.now();
        let mut work = Work::default();
        let several = !matches!(self.steering, Steering::Single);
        if several {
            self.fallback.follow(&self.stack);
        }
        for i in 0..self.ports.len() {
            work.rx += self.receive(now, i);
        }
        if several && !self.holds_handed(now) {
            work.rx += self.take_handed(now);
        }
        if self.mail.is_called() {
            self.obey(now);
        }
        if let Some(clients) = &mut self.clients {
            clients.look(now, &mut self.stack);
        }
        self.stack.expire(now);
        if self.alone {
            self.stack.collect_left_jobs(now, LEFT_US);
        }
        work.jobs = self.stack.run_jobs(now);
        if several && work.jobs > 0 {
            // Before the application hears that it listens.
            self.fallback.follow(&self.stack);
        }
        if self.end.is_some() {
            work.jobs += self.stack.go_on_ending(now);
        }
        if self.clients.is_some() {
            work.jobs += self.stack.go_on_reclaiming(now);
        }
        if self.stack.listener_changes() != self.noted {
            self.note_listeners();
        }
        crate::provoke("turn");
        work.tx = self.send(now);
        work.events = self.stack.flush_events(now);
        if work.events > 0 && self.app_bell.ring_if_sleeping() {
            add(&self.stats.wakeups, 1);
        }
        if let Some(clients) = &mut self.clients {
            clients.settle(&mut self.stack);
        }
        while several && let Some(interface) = self.stack.take_learnt() {
            let name = self.port_name(interface);
            tracing::info!(
                "lane {}: the hash of {name} is learnt: answers to connections opened here come straight to it",
                self.index
            );
        }
        for c in self.stack.take_conflicts() {
            let what = if c.lost { "is not used" } else { "is used all the same" };
            tracing::warn!("{}: {} has our address {}, which {what}", self.port_name(c.interface), c.mac, c.addr);
        }
        if let Some((wanted, bell)) = &self.wanted {
            self.stack.wanted_neighbors(&mut self.asked);
            if !self.asked.is_empty() {
                for (interface, addr) in self.asked.drain(..) {
                    // The control plane may be gone at the very end; then nobody needs the answer.
                    let _ = wanted.send(Wanted::Neighbor(interface.0 as usize, addr));
                }
                bell.ring();
            }
            if self.stack.has_fragmenting() {
                self.stack.take_fragmenting(|key| drop(wanted.send(Wanted::Fragments(key))));
                bell.ring();
            }
        }
        if self.losses.is_due(now, work.rx > 0) {
            self.look_for_losses(now);
        }
        let s = &self.stats;
        add(&s.turns, 1);
        add(&s.idle_turns, work.is_idle() as u64);
        add(&s.rx_frames, work.rx as u64);
        add(&s.tx_frames, work.tx as u64);
        add(&s.jobs, work.jobs as u64);
        add(&s.events, work.events as u64);
        s.connections.store(self.stack.connections() as u64, Ordering::Relaxed);
        s.tuples.store(self.stack.tuples() as u64, Ordering::Relaxed);
        s.local_ports.store(self.stack.lane_ports().into(), Ordering::Relaxed);
        if self.end.is_some() {
            self.follow_end();
        }
        if cfg!(debug_assertions) && self.stack.tuples() <= MOST_CHECKED {
            self.stack.check_in_turn(CHECKED);
        }
        work
    }

    /// Gives the ports what they have room for; how many frames.
    pub(crate) fn send(&mut self, now: Instant) -> usize {
        let mut sent = 0;
        for i in 0..self.ports.len() {
            let port = &mut self.ports[i];
            let stack = &mut self.stack;
            sent += io::with_port!(port, p => stack.transmit(now, InterfaceId(i as u8), p));
            if let Err(error) = port.flush()
                && !self.failed
            {
                self.failed = true;
                tracing::error!("lane {}: {error}", self.index);
            }
        }
        sent
    }

    /// Notes where the lane listens, and which connections are left where it does so no more.
    #[cold]
    fn note_listeners(&mut self) {
        self.noted = self.stack.listener_changes();
        let mut changed = Vec::new();
        self.stack.take_changed_listeners(|at, v6_only, there| changed.push((at, v6_only, there)));
        let (Some(ledger), Some((_, bell))) = (&self.ledger, &self.wanted) else { return };
        let gone: HashSet<u16> = changed.iter().filter(|(.., there)| !there).map(|(at, ..)| at.port).collect();
        let mut left = Vec::new();
        if !gone.is_empty() {
            self.stack.each_flow(|key| left.extend(gone.contains(&key.local_port).then_some(*key)));
        }
        ledger.note(self.index, &changed, left);
        if !gone.is_empty() {
            bell.ring();
        }
    }

    /// Whether what waits on a port is better left there: answers to what came before cannot be sent yet.
    fn holds_back(&mut self, now: Instant, i: usize) -> bool {
        let can = self.can_answer(i);
        hold(&mut self.held[i], can, now)
    }

    /// The same of what other lanes have handed over, which may be any port's.
    fn holds_handed(&mut self, now: Instant) -> bool {
        let can = (0..self.ports.len()).all(|i| self.can_answer(i));
        hold(&mut self.held_handed, can, now)
    }

    /// Whether answers by a port find room. On one that is gone they go nowhere, and nothing waits for them.
    fn can_answer(&self, i: usize) -> bool {
        self.gone & 1 << i != 0 || self.stack.can_answer(InterfaceId(i as u8))
    }

    fn receive(&mut self, now: Instant, i: usize) -> usize {
        let interface = InterfaceId(i as u8);
        if self.holds_back(now, i) {
            return 0;
        }
        let n = self.ports[i].receive(BURST);
        if n == 0 {
            return 0;
        }
        self.stack.note_backlog(now, n, self.ports[i].backlog());
        if matches!(self.steering, Steering::Single) {
            let stack = &mut self.stack;
            io::with_port!(&self.ports[i], p => stack.receive(now, interface, p));
        } else {
            self.receive_own(now, i);
        }
        self.ports[i].release();
        n
    }

    /// The same where there are other lanes: what is theirs is given to them.
    fn receive_own(&mut self, now: Instant, i: usize) {
        let Lane { ports, stack, steering, handover, fallback, index, stats, .. } = self;
        let mut counts = Counts::default();
        let (lane, out) = (*index, &mut handover.out);
        let mut sort = Sort { steering, out, fallback, lane, port: i, handed: None, counts: &mut counts };
        io::with_port!(&ports[i], p => stack.receive_own(now, InterfaceId(i as u8), p, &mut sort));
        counts.settle(out, stats);
    }

    fn port_name(&self, interface: InterfaceId) -> String {
        self.ports.get(interface.0 as usize).map_or_else(String::new, |p| p.caps_of().name.clone())
    }

    fn take_handed(&mut self, now: Instant) -> usize {
        let Lane { handover, stack, ports, steering, fallback, index, stats, .. } = self;
        let (lane, mut counts) = (*index, Counts::default());
        let n = handover.take(BURST, |out, port, burst| {
            if port < ports.len() {
                let handed = Some(burst);
                let mut sort = Sort { steering, out, fallback, lane, port, handed, counts: &mut counts };
                stack.receive_own(now, InterfaceId(port as u8), burst, &mut sort);
            }
        });
        counts.settle(&mut handover.out, stats);
        add(&stats.handed_in, n as u64);
        n
    }

    fn obey(&mut self, now: Instant) {
        for control in self.mail.take() {
            let interface = |port: usize| InterfaceId(port as u8);
            match control {
                Control::AddAddress(port, addr, prefix) => self.stack.add_address(interface(port), addr, prefix),
                Control::RemoveAddress(port, addr) => self.stack.remove_address(interface(port), addr),
                Control::SetMac(port, mac) => self.stack.set_mac(interface(port), mac),
                Control::SetMtu(port, mtu) => self.stack.set_mtu(now, interface(port), mtu),
                Control::Link(port, presence) => self.link_is(port, presence),
                Control::Routes(routes) => {
                    self.stack.clear_routes();
                    for route in routes {
                        let added = self.stack.add_route(route);
                        debug_assert!(added, "a route by an interface that the lane has not: {route:?}");
                    }
                }
                Control::Neighbor(port, addr, word) => word.tell(&mut self.stack, now, interface(port), addr),
                Control::ForgetNeighbors => self.stack.forget_neighbors(),
                Control::Connections(question) => {
                    if let Some(rest) = question.answer(&self.stack) {
                        self.mail.send(Control::Connections(rest));
                    }
                }
                Control::Attach(arrival, to) => {
                    // Whoever asked may have given up; then the process is soon seen to have gone.
                    let _ = to.send(self.admit(*arrival));
                }
                Control::End => self.begin_end(),
                Control::Reset => self.begin_reset(),
                Control::Ended(to) => {
                    let _ = to.send((self.index, self.has_ended()));
                }
                Control::Drained(to) => {
                    let _ = to.send(self.drained() && !self.stack.has_jobs());
                }
                Control::Snapshot(to, _) => {
                    // Who asked may have given up.
                    let _ = to.send(self.snapshot());
                }
            }
        }
    }

    /// A client in another process comes.
    fn admit(&mut self, arrival: Arrival) -> Result<(), String> {
        if self.clients.is_none() {
            let clients = Clients::new().map_err(|e| format!("epoll: {e}"))?;
            self.watch_clients(clients.wake_fd()).map_err(|e| format!("epoll: {e}"))?;
            self.clients = Some(Box::new(clients));
        }
        self.clients.as_mut().map_or(Ok(()), |clients| clients.admit(&mut self.stack, arrival))
    }

    /// Everything counted on this lane.
    pub fn snapshot(&self) -> Snapshot {
        let mut rows: Vec<(String, u64)> =
            self.stats.rows().into_iter().chain(self.stack.counters().rows()).map(|(n, v)| (n.into(), v)).collect();
        for port in &self.ports {
            let (caps, c) = (port.caps_of(), port.counters());
            let all = [
                ("rx_frames", c.rx_frames),
                ("rx_bytes", c.rx_bytes),
                ("tx_frames", c.tx_frames),
                ("tx_bytes", c.tx_bytes),
                ("tx_cut", c.tx_cut),
                ("rx_dropped", c.rx_dropped),
                ("rx_long", c.rx_long),
                ("rx_no_buffer", c.rx_no_buffer),
                ("tx_dropped", c.tx_dropped),
                ("tx_full", c.tx_full),
                ("syscalls", c.syscalls),
            ];
            rows.extend(all.map(|(n, v)| (format!("{}/{}/{n}", caps.name, caps.queue), v)));
        }
        let pool = self.stack.pool().stats();
        rows.push(("chunks_in_use".into(), pool.in_use_estimate as u64));
        rows.push(("chunk_alloc_failures".into(), pool.alloc_failures));
        rows.push(("time_wait".into(), self.stack.time_waits() as u64));
        rows.push(("clients".into(), self.stack.clients() as u64));
        Snapshot { lane: self.index, rows }
    }

    /// The lane's counters.
    pub fn stats(&self) -> &Arc<LaneStats> {
        &self.stats
    }

    /// Closes the ports: nothing comes or goes any more.
    pub(crate) fn let_go(&mut self) {
        self.awake();
        self.tell_losses();
        self.clients.iter_mut().for_each(|clients| clients.end());
        self.ports.clear();
        self.held.clear();
    }

    /// Whether nothing is on its way out any more, and every peer has acknowledged the end of its connection.
    pub(crate) fn drained(&mut self) -> bool {
        !self.stack.sending() && self.stack.ends_acknowledged()
    }
}

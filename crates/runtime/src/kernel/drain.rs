//! Ports on which nobody listens any more: their connections stay ours until they end, and then the port's place in the XDP
//! program's maps is free.
//!
//! Only a lane knows which connections it has. In the turn in which a listener of its closes it notes in the [`Ledger`] which of its
//! connections are left on that port; it may take no other turn for long, where its application runs it (`inline`). A place (an address
//! and port on a device) is first *closing*: the XDP program asks the kernel before it takes a segment. Once no lane listens there, by
//! the ledger, all of its connections are known. Without any, the place is free; else it is *draining*: those connections are ours by
//! their tuples, and everything else is as if the port were nobody's. More than the program has names for stay ours as they are, in
//! a place that is closing, until enough of them have ended. The lanes are asked once a second which of their connections have. TIME-WAIT
//! does not count as a connection: its tuple may be that of the kernel's next connection, and a peer that still sends its FIN is not
//! harmed by a RST.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::io::bpf::{MOST_KEPT, OwnFlags, OwnFlow, OwnKey};
use ::io::xdp::XdpDevice;
use ::io::{Bell, PortError};
use protocol::Endpoint;
use stack::{FlowKey, InterfaceId, Stack};
use wire::Addr;

use super::port::SharedPort;
use crate::links::LaneLink;
use crate::mailbox::Control;

/// Connections that are left are asked for this often, and named this often at most where there was no room for their names.
const REVIEW: Duration = Duration::from_secs(1);

/// Connections that a lane looks for in one turn: some 50 µs. In debug builds an answer takes several turns even where there are few
/// connections, as in tests.
const EACH_TURN: usize = if cfg!(debug_assertions) { 2 } else { 512 };

/// What a lane is asked, and how far it has come with the answer.
pub(crate) struct Question {
    /// Which of these connections have ended?
    flows: Vec<FlowKey>,
    /// The place in them to go on from.
    next: usize,
    ended: Vec<FlowKey>,
    to: Sender<Vec<FlowKey>>,
    bell: Arc<Bell>,
}

impl Question {
    /// A turn's part of the lane's answer: what is left to ask in the next turn, and nothing once the answer is given.
    pub fn answer(mut self, stack: &Stack) -> Option<Question> {
        let end = self.flows.len().min(self.next + EACH_TURN);
        self.ended.extend(self.flows[self.next..end].iter().filter(|key| !stack.is_alive(key)));
        self.next = end;
        if end < self.flows.len() {
            return Some(self);
        }
        let Question { to, bell, ended, .. } = self;
        // The control thread may have ended meanwhile.
        let _ = to.send(ended);
        drop(to);
        bell.ring();
        None
    }
}

/// Where each lane of an engine listens, and which connections it has left on ports of listeners that have gone.
pub(crate) struct Ledger(Vec<Mutex<Entry>>);

#[derive(Default)]
struct Entry {
    /// As of the lane's last turn; of a wildcard, whether it takes IPv6 alone.
    listens: HashSet<(Endpoint, bool)>,
    /// Ports of listeners that have gone since the control thread looked, and all of the lane's connections on these.
    closed: HashSet<u16>,
    left: Vec<FlowKey>,
}

impl Ledger {
    pub fn new(lanes: usize) -> Arc<Ledger> {
        Arc::new(Ledger((0..lanes).map(|_| Mutex::default()).collect()))
    }

    /// What has changed in a turn of a lane's: listeners, and whether they are there now; and all connections on ports of those that are
    /// not.
    pub fn note(&self, lane: u16, changed: &[(Endpoint, bool, bool)], left: impl IntoIterator<Item = FlowKey>) {
        let mut entry = self.entry(lane);
        let Entry { listens, closed, left: known } = &mut *entry;
        for (at, v6_only, there) in changed {
            match there {
                true => drop(listens.insert((*at, *v6_only))),
                false => drop(listens.remove(&(*at, *v6_only))),
            }
        }
        let gone: HashSet<u16> = changed.iter().filter(|(.., there)| !there).map(|(at, ..)| at.port).collect();
        known.retain(|key| !gone.contains(&key.local_port));
        known.extend(left);
        closed.extend(gone);
    }

    fn entry(&self, lane: u16) -> MutexGuard<'_, Entry> {
        self.0[usize::from(lane)].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// Whether a listener takes what comes to `to`.
    fn covers(&self, to: Endpoint) -> bool {
        let at = |addr, v6_only| self.listens.contains(&(Endpoint { addr, port: to.port }, v6_only));
        let either = |addr| at(addr, false) || at(addr, true);
        match to.addr.is_v4() {
            true => either(to.addr) || either(Addr::UNSPECIFIED_V4) || at(Addr::UNSPECIFIED_V6, false),
            false => either(to.addr) || either(Addr::UNSPECIFIED_V6),
        }
    }
}

/// One address and port on one device, which is named by its place among the engine's ports.
type Spot = (usize, OwnKey);

/// The same as a connection has it.
type Here = (InterfaceId, Endpoint);

fn here((port, key): Spot) -> Here {
    (InterfaceId(port as u8), Endpoint { addr: key.addr, port: key.port })
}

#[derive(Default)]
struct Place {
    /// The program knows the connections that are left by their names.
    named: bool,
    /// When there was no room for all names, of a device that should have had it.
    tried: Option<Instant>,
    told: bool,
}

/// A question under way.
struct Asked {
    /// Closed once the lane has answered, or is gone.
    answer: Receiver<Vec<FlowKey>>,
    /// Ports of which the lane has told something new since.
    anew: HashSet<u16>,
}

/// All ports on which nobody listens any more, but somebody did.
pub(crate) struct Draining {
    ledger: Arc<Ledger>,
    places: HashMap<Spot, Place>,
    /// Connections of listeners that have gone, with their lanes; others may listen there still.
    known: HashMap<Here, HashMap<FlowKey, u16>>,
    asked: HashMap<u16, Asked>,
    /// When the lanes were asked last.
    reviewed: Option<Instant>,
    /// Connections that a device's program has names for.
    most_named: usize,
}

/// The XDP programs of the engine's interfaces, by the interfaces' places among its ports. Calls for an interface that is gone
/// succeed and do nothing.
pub(super) trait Programs {
    fn own(&self, port: usize, key: OwnKey, flags: OwnFlags) -> Result<(), PortError>;
    fn disown(&self, port: usize, key: OwnKey) -> Result<(), PortError>;
    fn keep_flow(&self, port: usize, flow: OwnFlow) -> Result<(), PortError>;
    fn give_flow_back(&self, port: usize, flow: OwnFlow) -> Result<(), PortError>;
}

fn device(
    ports: &[SharedPort],
    port: usize,
    f: impl FnOnce(&XdpDevice) -> Result<(), PortError>,
) -> Result<(), PortError> {
    ports.iter().find(|p| p.port == port).map_or(Ok(()), |p| f(&p.device))
}

impl Programs for [SharedPort] {
    fn own(&self, port: usize, key: OwnKey, flags: OwnFlags) -> Result<(), PortError> {
        device(self, port, |d| d.own(key, flags))
    }

    fn disown(&self, port: usize, key: OwnKey) -> Result<(), PortError> {
        device(self, port, |d| d.disown(key))
    }

    fn keep_flow(&self, port: usize, flow: OwnFlow) -> Result<(), PortError> {
        device(self, port, |d| d.keep_flow(flow))
    }

    fn give_flow_back(&self, port: usize, flow: OwnFlow) -> Result<(), PortError> {
        device(self, port, |d| d.give_flow_back(flow))
    }
}

/// What must happen, whatever comes of it.
fn must(result: Result<(), PortError>) {
    if let Err(error) = result {
        tracing::warn!("{error}");
    }
}

fn flow_of(key: &FlowKey, local: OwnKey) -> OwnFlow {
    OwnFlow { local, remote: key.remote, remote_port: key.remote_port }
}

impl Draining {
    pub fn new(ledger: Arc<Ledger>) -> Draining {
        Draining {
            ledger,
            places: HashMap::new(),
            known: HashMap::new(),
            asked: HashMap::new(),
            reviewed: None,
            most_named: MOST_KEPT as usize,
        }
    }

    /// How long the control thread may sleep at most.
    pub fn patience(&self) -> Option<Duration> {
        (!self.places.is_empty() || !self.known.is_empty()).then_some(REVIEW)
    }

    /// Nobody listens there any more.
    pub fn begin(&mut self, programs: &(impl Programs + ?Sized), port: usize, key: OwnKey) {
        must(programs.own(port, key, OwnFlags::CLOSING));
        self.places.insert((port, key), Place::default());
    }

    /// Somebody listens there again, or the address is no more: nothing is kept for its connections.
    pub fn end(&mut self, programs: &(impl Programs + ?Sized), port: usize, key: OwnKey) {
        if self.places.remove(&(port, key)).is_some_and(|place| place.named) {
            for flow in self.known.get(&here((port, key))).into_iter().flatten() {
                must(programs.give_flow_back(port, flow_of(flow.0, key)));
            }
        }
    }

    /// All of it, when the devices have their interfaces back.
    pub fn end_all(&mut self) {
        *self = Draining::new(self.ledger.clone());
    }

    /// An address is no more, and with it go its places.
    pub fn end_address(&mut self, p: &SharedPort, gone: IpAddr) {
        let of_address = |(port, key): &&Spot| (*port, key.vlan, key.addr) == (p.port, p.vlan, gone.into());
        let spots: Vec<Spot> = self.places.keys().filter(of_address).copied().collect();
        for (port, key) in spots {
            self.end(std::slice::from_ref(p), port, key);
            must(p.device.disown(key));
        }
    }

    /// Hears what the lanes say, settles what can be, and asks the lanes what is to be asked; `now` is any clock.
    pub fn work(&mut self, now: Instant, programs: &(impl Programs + ?Sized), lanes: &[LaneLink], bell: &Arc<Bell>) {
        if self.patience().is_none() && self.asked.is_empty() {
            // What is noted meanwhile is read with the next place.
            return;
        }
        let mut ended = self.hear();
        let listened = self.read(lanes, &mut ended);
        self.forget(programs, ended);
        self.settle(now, programs, &listened);
        self.ask(now, lanes, bell);
    }

    /// Connections that have ended, by what the lanes have answered.
    fn hear(&mut self) -> Vec<FlowKey> {
        let Draining { asked, known, .. } = self;
        let mut ended = Vec::new();
        asked.retain(|lane, asked| {
            let gone: Vec<FlowKey> = match asked.answer.try_recv() {
                Ok(flows) => flows,
                Err(TryRecvError::Empty) => return true,
                // The lane is gone, with all that it had.
                Err(TryRecvError::Disconnected) => {
                    known.values().flatten().filter(|(_, of)| *of == lane).map(|(key, _)| *key).collect()
                }
            };
            ended.extend(gone.into_iter().filter(|key| !asked.anew.contains(&key.local_port)));
            false
        });
        ended
    }

    /// Reads what the lanes have noted: takes up connections, and adds to `ended` those that are no more. On which of the places
    /// that are closing a lane still listens.
    fn read(&mut self, lanes: &[LaneLink], ended: &mut Vec<FlowKey>) -> HashSet<Spot> {
        let Draining { ledger, places, known, asked, .. } = self;
        let closing: Vec<Spot> = places.iter().filter(|(_, place)| !place.named).map(|(spot, _)| *spot).collect();
        let mut listened = HashSet::new();
        for lane in lanes {
            // Both under one lock: who does not listen any more has told what is left.
            let (closed, left) = {
                let mut entry = ledger.entry(lane.index);
                if !lane.stands_still_empty() && !lane.is_gone() {
                    listened.extend(closing.iter().filter(|spot| entry.covers(here(**spot).1)));
                }
                (std::mem::take(&mut entry.closed), std::mem::take(&mut entry.left))
            };
            if closed.is_empty() {
                continue;
            }
            if let Some(asked) = asked.get_mut(&lane.index) {
                asked.anew.extend(&closed);
            }
            let left: HashSet<FlowKey> = left.into_iter().collect();
            let before = known.iter().filter(|((_, at), _)| closed.contains(&at.port)).flat_map(|(_, flows)| flows);
            ended.extend(before.filter(|(key, of)| **of == lane.index && !left.contains(key)).map(|(key, _)| *key));
            for key in left {
                let at = (key.interface, Endpoint { addr: key.local, port: key.local_port });
                known.entry(at).or_default().insert(key, lane.index);
            }
        }
        listened
    }

    fn forget(&mut self, programs: &(impl Programs + ?Sized), ended: Vec<FlowKey>) {
        // By connection, since a place's VLAN is the device's.
        let named: HashMap<Here, Spot> =
            self.places.iter().filter(|(_, place)| place.named).map(|(spot, _)| (here(*spot), *spot)).collect();
        for flow in ended {
            let at = (flow.interface, Endpoint { addr: flow.local, port: flow.local_port });
            let Some(flows) = self.known.get_mut(&at) else { continue };
            if flows.remove(&flow).is_some()
                && let Some((port, key)) = named.get(&at)
            {
                must(programs.give_flow_back(*port, flow_of(&flow, *key)));
            }
            if flows.is_empty() {
                self.known.remove(&at);
            }
        }
    }

    /// Places that nobody listens at: those without connections are free, and of the others the connections are named.
    fn settle(&mut self, now: Instant, programs: &(impl Programs + ?Sized), listened: &HashSet<Spot>) {
        let Draining { places, known, most_named, .. } = self;
        let mut names: HashMap<usize, usize> = HashMap::new();
        for (spot, _) in places.iter().filter(|(_, place)| place.named) {
            *names.entry(spot.0).or_default() += known.get(&here(*spot)).map_or(0, HashMap::len);
        }
        places.retain(|spot, place| {
            let (port, key) = *spot;
            if listened.contains(spot) {
                return true;
            }
            let Some(flows) = known.get(&here(*spot)) else {
                must(programs.disown(port, key));
                return false;
            };
            let names = names.entry(port).or_default();
            let early = place.tried.is_some_and(|tried| now.duration_since(tried) < REVIEW);
            if place.named || early {
                return true;
            }
            let room = *names + flows.len() <= *most_named;
            match if room { keep(programs, port, key, flows.keys()) } else { Ok(false) } {
                Ok(true) => {
                    place.named = true;
                    *names += flows.len();
                }
                Ok(false) => {}
                Err(error) => {
                    place.tried = Some(now);
                    tracing::debug!("{error}");
                }
            }
            if !place.named && !std::mem::replace(&mut place.told, true) {
                tracing::debug!(
                    "{} connections are left on {} port {}: until fewer are, segments there are looked up",
                    flows.len(),
                    key.addr,
                    key.port
                );
            }
            true
        });
    }

    /// Asks each lane which of its connections have ended, where it is time for that and the lane has answered what it was asked before.
    fn ask(&mut self, now: Instant, lanes: &[LaneLink], bell: &Arc<Bell>) {
        if self.known.is_empty() || self.reviewed.is_some_and(|then| now.duration_since(then) < REVIEW) {
            return;
        }
        self.reviewed = Some(now);
        let mut flows: HashMap<u16, Vec<FlowKey>> = HashMap::new();
        for (key, lane) in self.known.values().flatten().filter(|(_, lane)| !self.asked.contains_key(lane)) {
            flows.entry(*lane).or_default().push(*key);
        }
        for lane in lanes {
            let Some(flows) = flows.remove(&lane.index) else { continue };
            let (to, answer) = channel();
            self.asked.insert(lane.index, Asked { answer, anew: HashSet::new() });
            lane.send(Control::Connections(Question { flows, next: 0, ended: Vec::new(), to, bell: bell.clone() }));
        }
    }
}

/// Names a place's connections to the program, all or none: whether it has.
fn keep<'a>(
    programs: &(impl Programs + ?Sized),
    port: usize,
    key: OwnKey,
    flows: impl Iterator<Item = &'a FlowKey> + Clone,
) -> Result<bool, PortError> {
    let kept = flows.clone().try_for_each(|flow| programs.keep_flow(port, flow_of(flow, key)));
    let drains = kept.and_then(|()| programs.own(port, key, OwnFlags::DRAINING));
    if drains.is_err() {
        flows.for_each(|flow| drop(programs.give_flow_back(port, flow_of(flow, key))));
    }
    drains.map(|()| true)
}

#[cfg(test)]
mod tests;

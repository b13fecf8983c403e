//! Ports on which nobody listens any more: their connections stay ours until they end, and then the port's place in the XDP
//! program's maps is free.
//!
//! What is left is asked of the lanes, who alone know. A place is first *closing*: the program asks the kernel before it takes a
//! segment. Once every lane has told its connections, the place is *draining*: those connections are ours by their tuples, and
//! everything else is the kernel's. The connections that are left are asked for once a second. TIME-WAIT does not count: its
//! tuple may be that of the kernel's next connection, and a peer that still sends its FIN is not harmed by a RST.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use ::io::Bell;
use ::io::bpf::{OwnFlags, OwnFlow, OwnKey};
use stack::channel::Endpoint;
use stack::{FlowKey, InterfaceId, Stack};

use super::port::SharedPort;
use crate::engine::LaneLink;
use crate::mailbox::Control;

/// Lanes that look through all their connections are not asked again before this time has passed.
const REST: Duration = Duration::from_millis(100);
/// Connections that are left are asked for this often.
const REVIEW: Duration = Duration::from_secs(1);

/// What a lane is asked.
pub(crate) struct Question {
    /// Of which ports are all connections wanted?
    ports: Arc<HashSet<Endpoint>>,
    /// Which of these connections are alive?
    flows: Arc<Vec<FlowKey>>,
    to: Sender<Answer>,
    bell: Arc<Bell>,
}

#[derive(Default)]
struct Answer {
    /// Ports on which the lane still listens: it has not heard of the end yet.
    listening: Vec<Endpoint>,
    connections: Vec<FlowKey>,
}

impl Question {
    /// The lane's answer.
    pub fn answer(self, stack: &Stack) {
        let mut answer = Answer::default();
        if !self.ports.is_empty() {
            answer.listening.extend(self.ports.iter().filter(|at| stack.listening(**at)));
            stack.each_flow(|key| {
                if self.ports.contains(&Endpoint { addr: key.local, port: key.local_port }) {
                    answer.connections.push(*key);
                }
            });
        }
        answer.connections.extend(self.flows.iter().filter(|key| stack.is_alive(key)));
        let Question { to, bell, .. } = self;
        // Who asked may be gone.
        let _ = to.send(answer);
        drop(to);
        bell.ring();
    }
}

/// A question under way.
struct Round {
    closing: HashSet<Spot>,
    /// Closed once each lane has answered, or is gone.
    answers: Receiver<Answer>,
    heard: Answer,
}

/// One address and port on one device, which is named by its place among the engine's ports.
type Spot = (usize, OwnKey);

/// Connections that are left; `None` as long as they are not known.
type Flows = Option<HashSet<OwnFlow>>;

/// All ports on which nobody listens any more, but somebody did.
#[derive(Default)]
pub(crate) struct Draining {
    places: HashMap<Spot, Flows>,
    round: Option<Round>,
    asked: Option<Instant>,
}

/// What must happen on an interface.
fn on(ports: &[SharedPort], port: usize, f: impl FnOnce(&SharedPort) -> Result<(), ::io::PortError>) {
    if let Some(Err(error)) = ports.iter().find(|p| p.port == port).map(f) {
        tracing::warn!("{error}");
    }
}

fn flow_of(key: &FlowKey, port: usize, local: OwnKey) -> Option<OwnFlow> {
    let interface = InterfaceId(port as u8);
    let fits = (key.interface, key.local, key.local_port) == (interface, local.addr, local.port);
    fits.then_some(OwnFlow { local, remote: key.remote, remote_port: key.remote_port })
}

impl Draining {
    /// How long the control thread may sleep at most.
    pub fn patience(&self) -> Option<Duration> {
        let closing = self.round.is_none() && self.places.values().any(Option::is_none);
        (!self.places.is_empty()).then_some(if closing { REST } else { REVIEW })
    }

    /// Nobody listens there any more.
    pub fn begin(&mut self, ports: &[SharedPort], port: usize, key: OwnKey) {
        on(ports, port, |p| p.device.own(key, OwnFlags::CLOSING));
        self.places.insert((port, key), None);
    }

    /// Somebody listens there again, or the address is no more: nothing is kept for its connections.
    pub fn end(&mut self, ports: &[SharedPort], port: usize, key: OwnKey) {
        for flow in self.places.remove(&(port, key)).flatten().unwrap_or_default() {
            on(ports, port, |p| p.device.give_flow_back(flow));
        }
    }

    /// An address is no more, and with it go its places.
    pub fn end_address(&mut self, p: &SharedPort, gone: std::net::IpAddr) {
        let of_address = |(port, key): &&Spot| (*port, key.vlan, key.addr) == (p.port, p.vlan, gone.into());
        let spots: Vec<Spot> = self.places.keys().filter(of_address).copied().collect();
        for (port, key) in spots {
            self.end(std::slice::from_ref(p), port, key);
            on(std::slice::from_ref(p), p.port, |p| p.device.disown(key));
        }
    }

    /// Hears what the lanes say and asks them what is to be asked; `now` is any clock.
    pub fn work(&mut self, now: Instant, ports: &[SharedPort], lanes: &[LaneLink], bell: &Arc<Bell>) {
        self.hear(ports);
        if self.round.is_some() || self.places.is_empty() {
            return;
        }
        let closing: HashSet<Spot> = self.places.iter().filter(|(_, p)| p.is_none()).map(|(spot, _)| *spot).collect();
        let rest = if closing.is_empty() { REVIEW } else { REST };
        if self.asked.is_some_and(|asked| now.duration_since(asked) < rest) {
            return;
        }
        self.asked = Some(now);
        let at = closing.iter().map(|(_, key)| Endpoint { addr: key.addr, port: key.port }).collect();
        let flows = self.places.iter().flat_map(|((port, _), flows)| flows.iter().flatten().map(|f| (*port, f)));
        let key = |(port, f): (usize, &OwnFlow)| FlowKey {
            interface: InterfaceId(port as u8),
            local: f.local.addr,
            remote: f.remote,
            local_port: f.local.port,
            remote_port: f.remote_port,
        };
        let (at, flows): (Arc<HashSet<_>>, Arc<Vec<_>>) = (Arc::new(at), Arc::new(flows.map(key).collect()));
        let (to, answers) = channel();
        for lane in lanes {
            let question = Question { ports: at.clone(), flows: flows.clone(), to: to.clone(), bell: bell.clone() };
            lane.send(Control::Connections(question));
        }
        self.round = Some(Round { closing, answers, heard: Answer::default() });
    }

    fn hear(&mut self, ports: &[SharedPort]) {
        let Some(round) = &mut self.round else { return };
        loop {
            match round.answers.try_recv() {
                Ok(answer) => {
                    round.heard.listening.extend(answer.listening);
                    round.heard.connections.extend(answer.connections);
                }
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => break,
            }
        }
        let Some(Round { closing, heard, .. }) = self.round.take() else { return };
        let mut left: HashMap<Endpoint, Vec<FlowKey>> = HashMap::new();
        for key in heard.connections {
            left.entry(Endpoint { addr: key.local, port: key.local_port }).or_default().push(key);
        }
        let mut ended = Vec::new();
        for (spot, place) in &mut self.places {
            let (port, key) = *spot;
            let at = Endpoint { addr: key.addr, port: key.port };
            let left = left.get(&at).into_iter().flatten();
            let flows = || left.filter_map(|k| flow_of(k, port, key)).collect::<HashSet<_>>();
            match place {
                Some(known) => {
                    let alive = flows();
                    for flow in known.difference(&alive) {
                        on(ports, port, |p| p.device.give_flow_back(*flow));
                    }
                    known.retain(|flow| alive.contains(flow));
                }
                // Of those that began to close meanwhile nobody has asked yet.
                None if closing.contains(spot) && !heard.listening.contains(&at) => {
                    *place = keep(ports, port, key, flows());
                }
                None => {}
            }
            if place.as_ref().is_some_and(HashSet::is_empty) {
                ended.push(*spot);
            }
        }
        for (port, key) in ended {
            self.places.remove(&(port, key));
            on(ports, port, |p| p.device.disown(key));
        }
    }
}

/// Names the connections that are left to the program. Those for which it has no room are the kernel's from now on, which resets
/// them: the port would else be asked about for as long as any of them lives, and the kernel's next server on it would have no peace.
fn keep(ports: &[SharedPort], port: usize, key: OwnKey, mut flows: HashSet<OwnFlow>) -> Option<HashSet<OwnFlow>> {
    let p = ports.iter().find(|p| p.port == port)?;
    let all = flows.len();
    let mut why = None;
    flows.retain(|flow| match &why {
        None => p.device.keep_flow(*flow).map_err(|error| why = Some(error)).is_ok(),
        Some(_) => false,
    });
    let drains = if flows.is_empty() { Ok(()) } else { p.device.own(key, OwnFlags::DRAINING) };
    if let Err(error) = drains {
        tracing::debug!("{error}");
        flows.iter().for_each(|flow| drop(p.device.give_flow_back(*flow)));
        return None;
    }
    if let Some(error) = why {
        let (addr, lost) = (key.addr, all - flows.len());
        tracing::warn!(
            "{lost} of {all} connections on {addr} port {}, on which nobody listens any more, end: {error}",
            key.port
        );
    }
    Some(flows)
}

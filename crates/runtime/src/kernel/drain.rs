//! Ports on which nobody listens any more: their connections stay ours until they end, and then the port's place in the XDP
//! program's maps is free.
//!
//! Only the lanes know which connections are left, so the control thread asks them. A place (an address and port on a device) is first
//! *closing*: the XDP program asks the kernel before it takes a segment. Once every lane has told its connections, the place is
//! *draining*: those connections are ours by their tuples, and everything else is the kernel's. The lanes are asked once a second which
//! of these connections are still alive. If another listener takes the place meanwhile and closes it again, the place gets a new
//! generation, and answers to an earlier question do not count for it. TIME-WAIT does not count as a connection: its tuple may
//! be that of the kernel's next connection, and a peer that still sends its FIN is not harmed by a RST.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use ::io::bpf::{OwnFlags, OwnFlow, OwnKey};
use ::io::xdp::XdpDevice;
use ::io::{Bell, PortError};
use stack::channel::Endpoint;
use stack::{FlowKey, InterfaceId, Stack};

use super::port::SharedPort;
use crate::engine::LaneLink;
use crate::mailbox::Control;

/// Lanes that look through all their connections are not asked again before this time has passed.
const REST: Duration = Duration::from_millis(100);
/// Connections that are left are asked for this often.
const REVIEW: Duration = Duration::from_secs(1);

/// Places of the table of connections that a lane looks at in one turn: some 50 µs. In debug builds an answer takes several turns even
/// where there are few connections, as in tests.
const EACH_TURN: usize = if cfg!(debug_assertions) { 2 } else { 2048 };

/// What a lane is asked, and how far it has come with the answer.
#[derive(Clone)]
pub(crate) struct Question {
    /// Of which ports are all connections wanted?
    ports: Arc<HashSet<Endpoint>>,
    /// Which of these connections are alive?
    flows: Arc<Vec<FlowKey>>,
    to: Sender<Answer>,
    bell: Arc<Bell>,
    answer: Answer,
    /// The place of the table to go on from; `None` before the first turn.
    next: Option<u32>,
}

#[derive(Clone, Default)]
struct Answer {
    /// Ports on which the lane still listens: it has not heard of the end yet.
    listening: Vec<Endpoint>,
    connections: Vec<FlowKey>,
}

impl Question {
    /// A turn's part of the lane's answer: what is left to ask in the next turn, and nothing once the answer is given. A connection
    /// stays at its place of the table, and none begins on a port that the lane no longer listened on in the first of these turns.
    pub fn answer(mut self, stack: &Stack) -> Option<Question> {
        let from = self.next.unwrap_or_else(|| {
            self.answer.listening.extend(self.ports.iter().filter(|at| stack.listening(**at)));
            0
        });
        if !self.ports.is_empty() {
            let (ports, found) = (&self.ports, &mut self.answer.connections);
            self.next = stack.each_flow(from, EACH_TURN, |key| {
                if ports.contains(&Endpoint { addr: key.local, port: key.local_port }) {
                    found.push(*key);
                }
            });
            if self.next.is_some() {
                return Some(self);
            }
        }
        self.answer.connections.extend(self.flows.iter().filter(|key| stack.is_alive(key)));
        let Question { to, bell, answer, .. } = self;
        // The control thread may have ended meanwhile.
        let _ = to.send(answer);
        drop(to);
        bell.ring();
        None
    }
}

/// A question under way.
struct Round {
    /// With the generations that they had.
    closing: HashMap<Spot, u64>,
    /// Closed once each lane has answered, or is gone.
    answers: Receiver<Answer>,
    heard: Answer,
}

/// One address and port on one device, which is named by its place among the engine's ports.
type Spot = (usize, OwnKey);

struct Place {
    /// How many places began to close before this one.
    generation: u64,
    /// Connections that are left; `None` as long as they are not known.
    flows: Option<HashSet<OwnFlow>>,
}

/// All ports on which nobody listens any more, but somebody did.
#[derive(Default)]
pub(crate) struct Draining {
    places: HashMap<Spot, Place>,
    begun: u64,
    round: Option<Round>,
    asked: Option<Instant>,
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

fn flow_of(key: &FlowKey, port: usize, local: OwnKey) -> Option<OwnFlow> {
    let interface = InterfaceId(port as u8);
    let fits = (key.interface, key.local, key.local_port) == (interface, local.addr, local.port);
    fits.then_some(OwnFlow { local, remote: key.remote, remote_port: key.remote_port })
}

impl Draining {
    /// How long the control thread may sleep at most.
    pub fn patience(&self) -> Option<Duration> {
        let closing = self.round.is_none() && self.places.values().any(|place| place.flows.is_none());
        (!self.places.is_empty()).then_some(if closing { REST } else { REVIEW })
    }

    /// Nobody listens there any more.
    pub fn begin(&mut self, programs: &(impl Programs + ?Sized), port: usize, key: OwnKey) {
        must(programs.own(port, key, OwnFlags::CLOSING));
        self.places.insert((port, key), Place { generation: self.begun, flows: None });
        self.begun += 1;
    }

    /// Somebody listens there again, or the address is no more: nothing is kept for its connections.
    pub fn end(&mut self, programs: &(impl Programs + ?Sized), port: usize, key: OwnKey) {
        for flow in self.places.remove(&(port, key)).and_then(|place| place.flows).unwrap_or_default() {
            must(programs.give_flow_back(port, flow));
        }
    }

    /// An address is no more, and with it go its places.
    pub fn end_address(&mut self, p: &SharedPort, gone: std::net::IpAddr) {
        let of_address = |(port, key): &&Spot| (*port, key.vlan, key.addr) == (p.port, p.vlan, gone.into());
        let spots: Vec<Spot> = self.places.keys().filter(of_address).copied().collect();
        for (port, key) in spots {
            self.end(std::slice::from_ref(p), port, key);
            must(p.device.disown(key));
        }
    }

    /// Hears what the lanes say and asks them what is to be asked; `now` is any clock.
    pub fn work(&mut self, now: Instant, ports: &[SharedPort], lanes: &[LaneLink], bell: &Arc<Bell>) {
        self.hear(ports);
        let Some(question) = self.ask(now, bell) else { return };
        for lane in lanes.iter().filter(|lane| !lane.stands_still_empty()) {
            lane.send(Control::Connections(question.clone()));
        }
    }

    /// A new round's question, where it is time for one.
    fn ask(&mut self, now: Instant, bell: &Arc<Bell>) -> Option<Question> {
        if self.round.is_some() || self.places.is_empty() {
            return None;
        }
        let closing = self.places.iter().filter(|(_, place)| place.flows.is_none());
        let closing: HashMap<Spot, u64> = closing.map(|(spot, place)| (*spot, place.generation)).collect();
        let rest = if closing.is_empty() { REVIEW } else { REST };
        if self.asked.is_some_and(|asked| now.duration_since(asked) < rest) {
            return None;
        }
        self.asked = Some(now);
        let at = closing.keys().map(|(_, key)| Endpoint { addr: key.addr, port: key.port }).collect();
        let flows = self.places.iter().flat_map(|((port, _), place)| place.flows.iter().flatten().map(|f| (*port, f)));
        let key = |(port, f): (usize, &OwnFlow)| FlowKey {
            interface: InterfaceId(port as u8),
            local: f.local.addr,
            remote: f.remote,
            local_port: f.local.port,
            remote_port: f.remote_port,
        };
        let (at, flows): (Arc<HashSet<_>>, Arc<Vec<_>>) = (Arc::new(at), Arc::new(flows.map(key).collect()));
        let (to, answers) = channel();
        self.round = Some(Round { closing, answers, heard: Answer::default() });
        Some(Question { ports: at, flows, to, bell: bell.clone(), answer: Answer::default(), next: None })
    }

    fn hear(&mut self, programs: &(impl Programs + ?Sized)) {
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
            match &mut place.flows {
                Some(known) => {
                    let alive = flows();
                    for flow in known.difference(&alive) {
                        must(programs.give_flow_back(port, *flow));
                    }
                    known.retain(|flow| alive.contains(flow));
                }
                // Of those that began to close meanwhile nobody has asked yet.
                None if closing.get(spot) == Some(&place.generation) && !heard.listening.contains(&at) => {
                    place.flows = keep(programs, port, key, flows());
                }
                None => {}
            }
            if place.flows.as_ref().is_some_and(HashSet::is_empty) {
                ended.push(*spot);
            }
        }
        for (port, key) in ended {
            self.places.remove(&(port, key));
            must(programs.disown(port, key));
        }
    }
}

/// Names the connections that are left to the program. Those for which it has no room are the kernel's from now on, which resets
/// them: the port would else be asked about for as long as any of them lives, and the kernel's next server on it would have no peace.
fn keep(
    programs: &(impl Programs + ?Sized),
    port: usize,
    key: OwnKey,
    mut flows: HashSet<OwnFlow>,
) -> Option<HashSet<OwnFlow>> {
    let all = flows.len();
    let mut why = None;
    flows.retain(|flow| match &why {
        None => programs.keep_flow(port, *flow).map_err(|error| why = Some(error)).is_ok(),
        Some(_) => false,
    });
    let drains = if flows.is_empty() { Ok(()) } else { programs.own(port, key, OwnFlags::DRAINING) };
    if let Err(error) = drains {
        tracing::debug!("{error}");
        flows.iter().for_each(|flow| drop(programs.give_flow_back(port, *flow)));
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::net::IpAddr;
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::mailbox::Mailbox;
    use crate::stats::LaneStats;

    /// What the program of the only interface was told.
    #[derive(Default)]
    struct Told(RefCell<Vec<(&'static str, u16)>>);

    impl Told {
        fn say(&self, what: &'static str, port: u16) -> Result<(), PortError> {
            self.0.borrow_mut().push((what, port));
            Ok(())
        }
    }

    impl Programs for Told {
        fn own(&self, _: usize, key: OwnKey, flags: OwnFlags) -> Result<(), PortError> {
            self.say(if flags == OwnFlags::CLOSING { "closing" } else { "draining" }, key.port)
        }

        fn disown(&self, _: usize, key: OwnKey) -> Result<(), PortError> {
            self.say("disowned", key.port)
        }

        fn keep_flow(&self, _: usize, flow: OwnFlow) -> Result<(), PortError> {
            self.say("kept", flow.remote_port)
        }

        fn give_flow_back(&self, _: usize, flow: OwnFlow) -> Result<(), PortError> {
            self.say("given back", flow.remote_port)
        }
    }

    fn key() -> OwnKey {
        OwnKey { vlan: 0, addr: IpAddr::from([10, 0, 0, 1]).into(), port: 80 }
    }

    fn connection(remote_port: u16) -> FlowKey {
        let remote = IpAddr::from([10, 0, 0, 2]).into();
        FlowKey { interface: InterfaceId(0), local: key().addr, remote, local_port: 80, remote_port }
    }

    /// A listener goes, another comes to its place, gets a connection, and goes too, while the lanes answer about the first one: the
    /// lane that answered before knows nothing of that connection.
    #[test]
    fn answers_are_of_the_place_that_they_were_asked_about() {
        let (told, bell) = (Told::default(), Arc::new(Bell::new().unwrap()));
        let mut draining = Draining::default();
        let begin = Instant::now();
        draining.begin(&told, 0, key());
        let early = draining.ask(begin, &bell).unwrap();
        early.to.send(Answer { listening: Vec::new(), connections: vec![connection(1)] }).unwrap();
        // Another one listens there, and goes.
        draining.end(&told, 0, key());
        draining.begin(&told, 0, key());
        drop(early);
        draining.hear(&told);
        assert_eq!(*told.0.borrow(), [("closing", 80); 2], "nothing is known of the second one's connections");
        let late = draining.ask(begin + REST, &bell).unwrap();
        assert!(late.ports.contains(&Endpoint { addr: key().addr, port: 80 }));
        late.to.send(Answer { listening: Vec::new(), connections: vec![connection(2)] }).unwrap();
        drop(late);
        draining.hear(&told);
        assert_eq!(told.0.borrow()[2..], [("kept", 2), ("draining", 80)]);
        // And then it ends.
        drop(draining.ask(begin + 2 * REVIEW, &bell).unwrap());
        draining.hear(&told);
        assert_eq!(told.0.borrow()[4..], [("given back", 2), ("disowned", 80)]);
        assert!(draining.patience().is_none());
    }

    /// Asks a lane, and hears it a second later: whether the place is settled then.
    fn settles(inline: bool, connections: u64) -> (bool, Arc<Mailbox>) {
        let (told, bell, mail) = (Told::default(), Arc::new(Bell::new().unwrap()), Arc::new(Mailbox::default()));
        let stats = Arc::new(LaneStats::default());
        stats.connections.store(connections, Ordering::Relaxed);
        let lane = LaneLink { mail: Arc::downgrade(&mail), bell: bell.clone(), stats, index: 0, inline };
        let mut draining = Draining::default();
        let begin = Instant::now();
        draining.begin(&told, 0, key());
        draining.work(begin, &[], std::slice::from_ref(&lane), &bell);
        draining.work(begin + REVIEW, &[], std::slice::from_ref(&lane), &bell);
        (draining.patience().is_none(), mail)
    }

    /// A lane that takes no turns: only what it may have is waited for.
    #[test]
    fn a_lane_that_stands_still_without_connections_is_not_waited_for() {
        assert!(settles(true, 0).0);
        for (inline, connections) in [(true, 1), (false, 0)] {
            let (settled, mail) = settles(inline, connections);
            assert!(!settled);
            assert_eq!(mail.take().len(), 1, "it is asked once");
        }
    }
}

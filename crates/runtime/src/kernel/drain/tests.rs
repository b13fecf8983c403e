use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering;

use super::*;
use crate::mailbox::Mailbox;
use client::LaneStats;

/// What the program of the only interface was told, and how many names it takes from now on, if that is not as many as you like.
#[derive(Default)]
struct Told(RefCell<Vec<(&'static str, u16)>>, Cell<Option<usize>>);

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
        match self.1.get() {
            Some(0) => return Err(PortError::Invalid("full".into())),
            room => self.1.set(room.map(|n| n - 1)),
        }
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

const AT: u16 = 80;

fn at(addr: Addr, port: u16) -> Endpoint {
    Endpoint { addr, port }
}

/// Two lanes with their boxes, and what is asked and told.
struct Bench {
    told: Told,
    bell: Arc<Bell>,
    mail: Vec<Arc<Mailbox>>,
    lanes: Vec<LaneLink>,
    draining: Draining,
    now: Instant,
}

impl Bench {
    fn new(inline: bool) -> Bench {
        let bell = Arc::new(Bell::new().unwrap());
        let mail: Vec<Arc<Mailbox>> = (0..2).map(|_| Arc::default()).collect();
        let link = |index: usize| {
            let stats = Arc::new(LaneStats::default());
            stats.connections.store(1, Ordering::Relaxed);
            let mail = Arc::downgrade(&mail[index]);
            LaneLink { mail, bell: bell.clone(), stats, index: index as u16, inline }
        };
        let (lanes, draining) = ((0..2).map(link).collect(), Draining::new(Ledger::new(2)));
        Bench { told: Told::default(), bell: bell.clone(), mail, lanes, draining, now: Instant::now() }
    }

    fn listens(&self, lane: u16, port: u16) {
        self.draining.ledger.note(lane, &[(at(key().addr, port), false, true)], []);
    }

    fn closes(&self, lane: u16, port: u16, left: &[u16]) {
        let changed = [(at(key().addr, port), false, false)];
        let left = left.iter().map(|remote| FlowKey { local_port: port, ..connection(*remote) });
        self.draining.ledger.note(lane, &changed, left);
    }

    fn begin(&mut self, port: u16) {
        self.draining.begin(&self.told, 0, OwnKey { port, ..key() });
    }

    /// What the programs are told in one look.
    fn work(&mut self) -> Vec<(&'static str, u16)> {
        self.told.0.take();
        self.draining.work(self.now, &self.told, &self.lanes, &self.bell);
        let mut told = self.told.0.take();
        // Names come in no order.
        told.sort();
        told
    }

    /// A lane answers what it was asked: these have ended.
    fn answers(&self, lane: usize, ended: &[u16]) {
        for letter in self.mail[lane].take() {
            if let Control::Connections(Question { flows, to, .. }) = letter {
                to.send(flows.into_iter().filter(|key| ended.contains(&key.remote_port)).collect()).unwrap();
            }
        }
    }

    /// A lane is asked a second later.
    fn reviewed(&mut self, lane: usize, ended: &[u16]) -> Vec<(&'static str, u16)> {
        self.now += REVIEW;
        let before = self.work();
        self.answers(lane, ended);
        [before, self.work()].concat()
    }
}

#[test]
fn what_lanes_have_left_is_named_once_no_lane_listens() {
    let mut b = Bench::new(false);
    (0..2).for_each(|lane| b.listens(lane, AT));
    b.closes(0, AT, &[1, 2]);
    b.begin(AT);
    assert_eq!(b.work(), [("closing", 80); 0], "the other lane listens still");
    b.closes(1, AT, &[3]);
    assert_eq!(b.work(), [("draining", 80), ("kept", 1), ("kept", 2), ("kept", 3)]);
    assert_eq!(b.reviewed(1, &[]), []);
    assert_eq!(b.reviewed(0, &[1]), [("given back", 1)]);
    assert_eq!(b.reviewed(0, &[2]), [("given back", 2)]);
    assert_eq!(b.reviewed(1, &[3]), [("disowned", 80), ("given back", 3)]);
    assert!(b.draining.patience().is_none());
}

#[test]
fn a_port_without_connections_is_free_at_once() {
    let mut b = Bench::new(true);
    // One that a wildcard covered, and one that nobody ever listened on.
    let wild = |there| [(at(Addr::UNSPECIFIED_V4, 81), false, there)];
    b.draining.ledger.note(1, &wild(true), []);
    b.begin(81);
    assert_eq!(b.work(), [], "the lane has not heard of the end");
    b.begin(82);
    assert_eq!(b.work(), [("disowned", 82)]);
    b.draining.ledger.note(1, &wild(false), []);
    assert_eq!(b.work(), [("disowned", 81)]);
    assert!(b.draining.patience().is_none());
}

/// A lane that takes no turns is waited for at no port but those at which it listens.
#[test]
fn a_lane_that_stands_still_holds_up_no_other_port() {
    let mut b = Bench::new(true);
    b.listens(0, 81);
    b.closes(0, 81, &[1]);
    b.listens(0, 82);
    // And from here on it stands still, with a connection.
    b.begin(81);
    assert_eq!(b.work(), [("draining", 81), ("kept", 1)]);
    b.begin(82);
    for port in 1024..1124 {
        b.listens(1, port);
        b.begin(port);
        b.closes(1, port, if port % 2 == 0 { &[7] } else { &[] });
        let wanted = if port % 2 == 0 { vec![("draining", port), ("kept", 7)] } else { vec![("disowned", port)] };
        assert_eq!(b.work(), wanted);
        // The other one's connections end.
        let ended = b.reviewed(1, &[7]);
        assert_eq!(ended, if port % 2 == 0 { vec![("disowned", port), ("given back", 7)] } else { vec![] });
    }
    let asked = b.mail[0].take();
    assert_eq!(asked.len(), 1, "it is asked once");
    // Without a connection it does not matter where it listens.
    b.lanes[0].stats.connections.store(0, Ordering::Relaxed);
    assert_eq!(b.work(), [("disowned", 82)]);
}

/// A listener goes, another comes to its place, gets the same connection, and goes too, while the lane answers about the first one's.
#[test]
fn answers_are_of_the_connections_that_they_were_asked_about() {
    let mut b = Bench::new(false);
    b.closes(0, AT, &[1, 2]);
    b.begin(AT);
    assert_eq!(b.work().len(), 3);
    b.listens(0, AT);
    b.draining.end(&b.told, 0, key());
    assert_eq!(b.work(), [], "somebody listens");
    b.begin(AT);
    // Of the first two one has ended, and one has ended and begun again.
    b.closes(0, AT, &[2]);
    assert_eq!(b.work(), [("draining", 80), ("kept", 2)]);
    b.answers(0, &[1, 2]);
    assert_eq!(b.work(), [], "that was the one before");
    assert_eq!(b.reviewed(0, &[2]), [("disowned", 80), ("given back", 2)]);
}

/// As many as there is room for are named; where there are more, all stay ours without names.
#[test]
fn no_connection_is_the_kernels_for_want_of_a_name() {
    let mut b = Bench::new(false);
    b.draining.most_named = 3;
    b.closes(0, 81, &[1, 2]);
    b.begin(81);
    assert_eq!(b.work(), [("draining", 81), ("kept", 1), ("kept", 2)]);
    b.closes(1, 82, &[3, 4, 5, 6]);
    b.begin(82);
    assert_eq!(b.work(), []);
    assert_eq!(b.reviewed(1, &[]), []);
    assert_eq!(b.reviewed(1, &[3]), [], "there are two names less than it needs");
    assert_eq!(
        b.reviewed(0, &[1, 2]),
        [
            ("disowned", 81),
            ("draining", 82),
            ("given back", 1),
            ("given back", 2),
            ("kept", 4),
            ("kept", 5),
            ("kept", 6)
        ]
    );
    // The kernel's own limit, with names that somebody else has: all or none.
    b.closes(0, 83, &[8, 9]);
    b.draining.most_named = 9;
    b.told.1.set(Some(1));
    b.begin(83);
    assert_eq!(b.work().iter().filter(|(what, _)| *what == "draining").count(), 0);
    assert_eq!(b.work(), [], "it is tried now and then");
    b.told.1.set(None);
    assert_eq!(b.reviewed(0, &[]), [("draining", 83), ("kept", 8), ("kept", 9)]);
}

/// The lane has gone, and its connections with it.
#[test]
fn nobody_waits_for_a_lane_that_is_gone() {
    let mut b = Bench::new(false);
    b.listens(1, AT);
    b.closes(0, AT, &[1]);
    b.begin(AT);
    assert_eq!(b.work(), []);
    b.mail.truncate(1);
    assert_eq!(b.work(), [("draining", 80), ("kept", 1)]);
    b.mail.clear();
    assert_eq!(b.work(), [("disowned", 80), ("given back", 1)]);
}

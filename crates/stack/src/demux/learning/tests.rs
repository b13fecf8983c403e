//! The model against NICs of which it is told nothing: Toeplitz under any key, over tables that are linear and such that are not.

use proptest::prelude::*;
use wire::Addr;

use super::*;
use crate::Steering;

/// Where a NIC puts the answers to a connection.
fn lane_by(nic: &Steering, key: &FlowKey) -> u16 {
    nic.lane_of(key.remote, key.local, key.remote_port, key.local_port)
}

/// A NIC with `1 << bits` entries, which name `queues` in turn, and lanes that have those in turn.
fn nic(key: [u8; 40], bits: u32, queues: u16, lanes: u16) -> Steering {
    let table: Vec<u16> = (0..1u32 << bits).map(|at| (at as u16 % queues) % lanes).collect();
    Steering::predicted(key, &table, lanes).expect("a lane for each")
}

fn key(v6: bool, remote: u32, remote_port: u16, local_port: u16) -> FlowKey {
    let [local, remote] = [1, remote].map(|n: u32| {
        let mut v6_bytes = [0; 16];
        v6_bytes[0] = 0xfd;
        v6_bytes[12..].copy_from_slice(&n.to_be_bytes());
        if v6 { Addr::from_v6(v6_bytes) } else { Addr::from_v4((10 << 24 | n).to_be_bytes()) }
    });
    FlowKey { interface: InterfaceId(0), local, remote, local_port, remote_port }
}

fn keys() -> impl Strategy<Value = [u8; 40]> {
    (any::<[u8; 32]>(), any::<[u8; 8]>()).prop_map(|(a, b)| core::array::from_fn(|i| *a.get(i).unwrap_or(&b[i % 8])))
}

/// What a lane learns of a NIC that says nothing.
struct Lane {
    learning: Learning,
    counters: Counters,
}

impl Lane {
    fn new() -> Lane {
        Lane { learning: Learning::default(), counters: Counters::default() }
    }

    fn answered(&mut self, nic: &Steering, key: &FlowKey) {
        let lane = lane_by(nic, key);
        self.learning.answered(key, lane, lane == 0, &mut self.counters);
    }

    fn said(&self, key: &FlowKey) -> Option<u16> {
        self.learning.way(key)?.lane_of(key.local_port)
    }

    /// Entries of both parts of the models.
    fn size(&self) -> usize {
        let all = self.learning.spreadings.iter().map(|s| &s.model);
        all.map(|m| m.rows.len() + m.ports.iter().filter(|sum| sum.port != 0).count()).sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// With one remote end seventeen tuples at most tell all there is to know, and no word is wrong on the way; with each further
    /// end one.
    #[test]
    fn ports_are_learnt_and_nothing_is_said_that_is_wrong(
        secret in keys(),
        bits in 3u32..10,
        lanes in 1u32..4,
        v6: bool,
        constant: u16,
        ports in proptest::collection::vec(any::<u16>(), 200),
        remotes in proptest::collection::vec(any::<(u16, u16)>(), 1..8),
    ) {
        let nic = nic(secret, bits, 1 << lanes, 1 << lanes);
        // A table that does not begin with lane 0 adds the same to all.
        let lane_by = |key: &FlowKey| lane_by(&nic, key) ^ (constant % (1 << lanes));
        let mut model = Model::default();
        let mut new = 0;
        for (nth, (remote, remote_port)) in remotes.into_iter().enumerate() {
            for port in &ports {
                let key = key(v6, remote.into(), remote_port, *port);
                let said = model.way(&key).and_then(|way| way.lane_of(*port));
                let seen = model.learn(&key, lane_by(&key));
                prop_assert_eq!(seen, if said.is_some() { Said::Same } else { Said::New });
                prop_assert!(said.is_none_or(|lane| lane == lane_by(&key)));
                new += usize::from(seen == Said::New);
                prop_assert!(new <= 17 + nth, "{} with {} remote ends", new, nth + 1);
            }
        }
        // 200 ports are enough to make up all others.
        let key = key(v6, 7, 80, 0);
        model.learn(&key, lane_by(&key));
        let way = model.way(&key).expect("it was learnt");
        for port in 0..=u16::MAX {
            prop_assert_eq!(way.lane_of(port), Some(lane_by(&FlowKey { local_port: port, ..key })));
        }
    }

    /// Remote ends never met are known, too, once enough others were.
    #[test]
    fn remote_ends_are_learnt(secret in keys(), remotes in proptest::collection::vec(any::<(u16, u16, u16)>(), 300)) {
        let nic = nic(secret, 7, 4, 4);
        let mut lane = Lane::new();
        let mut unknown = 0;
        for (remote, remote_port, port) in remotes {
            let key = key(false, remote.into(), remote_port, port);
            match lane.said(&key) {
                Some(to) => prop_assert_eq!(to, lane_by(&nic, &key)),
                None => unknown += 1,
            }
            lane.answered(&nic, &key);
        }
        // 16 bits of each, what is the same for all, and what is not used until it has proved right.
        prop_assert!(unknown <= 16 * 3 + 1 + TRUSTED, "{}", unknown);
        prop_assert!(lane.size() <= 16 * 3 + 1);
        prop_assert_eq!((lane.counters.lanes_learnt, lane.counters.lanes_mistaken), (1, 0));
    }

    /// A table over three queues is no linear function: what little is believed of it is found wrong soon, and looked at less
    /// and less. Ports that follow each other, as they are chosen, and any.
    #[test]
    fn what_is_not_linear_is_given_up(secret in keys(), lanes in 2u16..4, in_turn: bool, first: u16, any: u64) {
        let nic = nic(secret, 7, 3, lanes);
        let mut lane = Lane::new();
        let (mut wrong, mut said) = (0, 0);
        let mut random = any | 1;
        for n in 0..20_000u16 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let port = if in_turn { first.wrapping_add(n) } else { (random >> 40) as u16 };
            let key = key(false, 2, 80, port);
            if let Some(to) = lane.said(&key) {
                said += 1;
                wrong += u32::from(to != lane_by(&nic, &key));
            }
            lane.answered(&nic, &key);
        }
        // Each time that it is learnt a word may be wrong, once.
        prop_assert!(u64::from(wrong) <= lane.counters.lanes_learnt, "{} wrong of {}", wrong, said);
        // Under some keys the low bits of ports that follow each other are linear for long: then it is right for that long.
        prop_assert!(lane.counters.lanes_mistaken <= 64, "{:?}", lane.counters.lanes_mistaken);
    }

    /// Frames that come by any queue, as those of a veth.
    #[test]
    fn chance_is_not_believed(lanes in 2u16..9, any: u64) {
        let mut lane = Lane::new();
        let mut random = any | 1;
        for n in 0..20_000u16 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let key = key(false, 2, 80, n);
            lane.learning.answered(&key, (random >> 40) as u16 % lanes, false, &mut lane.counters);
        }
        prop_assert!(lane.counters.lanes_mistaken <= 8 && lane.counters.lanes_learnt <= 1, "{:?}", lane.counters);
    }

    /// The rows have a bound, whatever remote ends there are.
    #[test]
    fn memory_is_bounded(secret in keys(), any: u64) {
        let nic = nic(secret, 7, 4, 4);
        let mut lane = Lane::new();
        let mut random = any | 1;
        for port in 0..400 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let remote = Addr::from_v6([random.to_be_bytes(), random.rotate_left(29).to_le_bytes()].concat().try_into().unwrap());
            for v6 in [false, true] {
                let key = key(v6, (random >> 40) as u32, (random >> 32) as u16, port);
                let key = if v6 { FlowKey { remote, ..key } } else { key };
                lane.answered(&nic, &key);
                prop_assert!(lane.said(&key).is_none_or(|to| to == lane_by(&nic, &key)));
            }
        }
        prop_assert!(lane.size() <= 2 * (ROWS + 16));
        prop_assert_eq!(lane.counters.lanes_mistaken, 0);
    }
}

/// `ethtool -X` in the middle: at most one connection that has been counted on goes astray, and then the new table is learnt.
#[test]
fn a_table_that_changes_is_learnt_anew() {
    let before = nic(core::array::from_fn(|i| (i * 37 + 11) as u8), 7, 4, 4);
    let after = nic(core::array::from_fn(|i| (i * 101 + 5) as u8), 7, 4, 4);
    let mut lane = Lane::new();
    for port in 0..5000 {
        lane.answered(&before, &key(false, 2, 80, port));
    }
    assert_eq!((lane.counters.lanes_learnt, lane.counters.lanes_mistaken), (1, 0));
    let mut wrong = 0;
    for port in 5000..5100 {
        let key = key(false, 2, 80, port);
        wrong += u32::from(lane.said(&key).is_some_and(|to| to != lane_by(&after, &key)));
        lane.answered(&after, &key);
    }
    assert_eq!((wrong, lane.counters.lanes_mistaken, lane.counters.lanes_learnt), (1, 1, 2));
}

/// After the second contradiction 256 answers are not looked at, after each further one twice as many; what is learnt then takes
/// as few answers as ever. What has been right for long is learnt anew at once.
#[test]
fn each_contradiction_makes_a_longer_pause() {
    let nic = nic(core::array::from_fn(|i| (i * 37 + 11) as u8), 7, 4, 4);
    // Set otherwise each time: what it does with odd ports.
    let learnt = |lane: &mut Lane, odd: u16| {
        let before = lane.counters.lanes_learnt;
        (1..20_000u16).find(|port| {
            let key = key(false, 2, 80, *port);
            let to = lane_by(&nic, &key) ^ (odd * (port & 1));
            lane.learning.answered(&key, to, to == 0, &mut lane.counters);
            lane.counters.lanes_learnt > before
        })
    };
    let mut lane = Lane::new();
    for (odd, pause) in [0, 1].into_iter().cycle().zip([0, 0, 256, 512, 1024, 2048]) {
        let took = learnt(&mut lane, odd).expect("it learns") - pause;
        assert!((TRUSTED as u16 + 3..TRUSTED as u16 + 20).contains(&took), "{took} and {pause}");
    }
    for port in 0..2 * PROVEN as u16 {
        lane.answered(&nic, &FlowKey { local_port: 2 * port, ..key(false, 2, 80, 0) });
    }
    let took = learnt(&mut lane, 0).expect("it learns");
    assert!(took < TRUSTED as u16 + 20, "{took}");
}

/// One that has learnt is told of once, however often it learns.
#[test]
fn interfaces_are_told_once() {
    let nic = nic([0x5a; 40], 7, 2, 2);
    let mut learning = Learning::default();
    let mut counters = Counters::default();
    for interface in [3, 40, 3] {
        for port in 0..100 {
            let key = FlowKey { interface: InterfaceId(interface), ..key(false, 2, 80, port) };
            learning.answered(&key, lane_by(&nic, &key), true, &mut counters);
        }
    }
    assert_eq!((learning.take_news(), learning.take_news()), (Some(InterfaceId(3)), None));
    assert_eq!((counters.lanes_learnt, counters.answers_own), (2, 300));
}

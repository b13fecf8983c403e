//! The states of RFC 4861 7.3.2, who may change a hardware address, and who gives way in a full table.

use super::*;

const I: InterfaceId = InterfaceId(0);

fn addr(n: u16) -> Addr {
    let [a, b] = n.to_be_bytes();
    Addr::from_v4([10, 0, a, b])
}

fn mac(n: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, n])
}

fn at(s: u64) -> Instant {
    Instant::from_micros(s * 1_000_000)
}

fn claim(mac: MacAddr, solicited: bool, strength: Strength) -> Claim {
    Claim { mac: Some(mac), solicited, strength, create: false }
}

/// Questions since the last call: the address asked for and whether it was asked directly.
fn questions(n: &mut Neighbors) -> Vec<(Addr, bool)> {
    n.questions.drain(..).map(|q| (q.addr, q.unicast.is_some())).collect()
}

fn state(n: &Neighbors, i: u32) -> (MacAddr, Known) {
    let e = &n.list[i as usize];
    (e.mac, e.state)
}

fn known(hop: Hop) -> Option<MacAddr> {
    match hop {
        Hop::Known(mac) => Some(mac),
        Hop::Wait | Hop::Lost | Hop::Unreachable => None,
    }
}

/// A table in which `addr(1)` is at `mac(1)`, confirmed at `now`.
fn reachable(now: Instant) -> (Neighbors, u32) {
    let mut n = Neighbors::new(64);
    let i = n.index(now, I, addr(1)).unwrap();
    assert!(matches!(n.hop(now, i), Hop::Wait));
    assert_eq!(questions(&mut n), [(addr(1), false)]);
    n.claim(now, I, addr(1), claim(mac(1), true, Strength::Weak));
    assert_eq!(known(n.hop(now, i)), Some(mac(1)));
    (n, i)
}

#[test]
fn three_questions_then_silence() {
    let mut n = Neighbors::new(4);
    let i = n.index(at(0), I, addr(1)).unwrap();
    n.hop(at(0), i);
    n.wait(i, Entry::first(7));
    for s in 0..3 {
        n.expire(at(s));
        assert_eq!(questions(&mut n), [(addr(1), false)], "{s}");
    }
    n.expire(at(3));
    let [Lost { interface: I, addr: lost, hop, waiting }] = &n.lost[..] else { panic!("one is lost") };
    assert_eq!((*lost, *hop, &waiting[..]), (addr(1), i, &[Entry::first(7)][..]));
    assert_eq!(questions(&mut n), []);
    assert_eq!(n.next(), Instant::FAR);
    assert!(matches!(n.hop(at(5), i), Hop::Unreachable));
    // After a while it is asked again.
    assert!(matches!(n.hop(at(6), i), Hop::Wait));
}

#[test]
fn a_stale_hop_is_used_and_confirmed() {
    let (mut n, i) = reachable(at(0));
    assert_eq!(known(n.hop(at(29), i)), Some(mac(1)));
    n.expire(at(29));
    assert_eq!((questions(&mut n), n.next()), (vec![], Instant::FAR));
    // Used after its time: DELAY, then PROBE, three times directly, then everyone.
    assert_eq!(known(n.hop(at(31), i)), Some(mac(1)));
    n.expire(at(35));
    assert_eq!(questions(&mut n), []);
    for s in 36..39 {
        n.expire(at(s));
        assert_eq!(questions(&mut n), [(addr(1), true)], "{s}");
        assert_eq!(known(n.hop(at(s), i)), Some(mac(1)));
    }
    n.expire(at(39));
    assert_eq!(questions(&mut n), [(addr(1), false)]);
    assert!(matches!(n.hop(at(39), i), Hop::Wait));
    n.wait(i, Entry::first(3));
    n.claim(at(40), I, addr(1), claim(mac(2), true, Strength::Weak));
    assert_eq!(
        (known(n.hop(at(40), i)), core::mem::take(&mut n.resolved)),
        (Some(mac(2)), vec![Waiter { entry: Entry::first(3), hop: i }])
    );
    // An answer in time ends the probing.
    n.hop(at(71), i);
    n.expire(at(76));
    n.claim(at(76), I, addr(1), claim(mac(2), true, Strength::Weak));
    assert_eq!(state(&n, i), (mac(2), Known::Reachable { until: at(106) }));
}

#[test]
fn arp_does_not_replace_what_was_confirmed() {
    let (mut n, i) = reachable(at(0));
    for solicited in [false, true] {
        n.claim(at(1), I, addr(1), claim(mac(9), solicited, Strength::Weak));
        // The old one is asked, and stays while it answers.
        assert_eq!(state(&n, i), (mac(1), Known::Probe { tries: 1, next: at(2) }));
        assert_eq!(questions(&mut n), [(addr(1), true)]);
        n.claim(at(1), I, addr(1), claim(mac(9), solicited, Strength::Weak));
        assert_eq!(state(&n, i).0, mac(1));
        n.claim(at(1), I, addr(1), claim(mac(1), true, Strength::Weak));
        assert_eq!(state(&n, i), (mac(1), Known::Reachable { until: at(31) }));
    }
    // Nobody knows better: a hop that has moved is found when the old place stays silent.
    n.claim(at(1), I, addr(1), claim(mac(9), false, Strength::Weak));
    (1..=5).for_each(|s| n.expire(at(s)));
    n.claim(at(5), I, addr(1), claim(mac(9), true, Strength::Weak));
    assert_eq!(known(n.hop(at(5), i)), Some(mac(9)));
}

#[test]
fn ndp_follows_its_flags() {
    let unsolicited = |strength| claim(mac(9), false, strength);
    // RFC 4861 7.2.5: without override a confirmed entry becomes doubtful, others stay.
    let (mut n, i) = reachable(at(0));
    n.claim(at(1), I, addr(1), unsolicited(Strength::Plain));
    assert_eq!(state(&n, i), (mac(1), Known::Stale));
    n.claim(at(1), I, addr(1), unsolicited(Strength::Plain));
    assert_eq!(state(&n, i), (mac(1), Known::Stale));
    // With it, it changes, and is confirmed only by an answer.
    n.claim(at(1), I, addr(1), unsolicited(Strength::Override));
    assert_eq!(state(&n, i), (mac(9), Known::Stale));
    n.claim(at(1), I, addr(1), claim(mac(8), true, Strength::Override));
    assert_eq!(state(&n, i), (mac(8), Known::Reachable { until: at(31) }));
    // An answer without an address confirms the one that is known.
    n.claim(at(9), I, addr(1), Claim { mac: None, solicited: true, strength: Strength::Plain, create: false });
    assert_eq!(state(&n, i), (mac(8), Known::Reachable { until: at(39) }));
    // No answer to a question that nobody asked creates an entry, and no group has a hop.
    n.claim(at(9), I, addr(2), claim(mac(2), true, Strength::Override));
    n.claim(at(9), I, addr(1), claim(MacAddr::BROADCAST, true, Strength::Override));
    n.claim(at(9), I, addr(1), claim(MacAddr([0; 6]), true, Strength::Override));
    assert_eq!((n.list.len(), state(&n, i).0), (1, mac(8)));
}

#[test]
fn nobody_overrules_the_kernel() {
    let mut n = Neighbors::new(4);
    n.set(at(0), I, addr(1), mac(1));
    let i = n.index(at(0), I, addr(1)).unwrap();
    for strength in [Strength::Weak, Strength::Plain, Strength::Override] {
        n.claim(at(1), I, addr(1), claim(mac(9), true, strength));
        assert_eq!(known(n.hop(at(1_000_000), i)), Some(mac(1)));
    }
    n.forget(I, addr(1));
    assert!(matches!(n.hop(at(2), i), Hop::Wait));
}

#[test]
fn the_kernel_is_told_of_the_use_of_a_stale_hop() {
    let mut n = Neighbors::new(4);
    n.set_stale(at(0), I, addr(1), mac(1));
    let i = n.find(I, addr(1)).unwrap();
    assert_eq!((questions(&mut n), n.next()), (vec![], Instant::FAR), "nobody uses it");
    // Used at once, and told of once in ten seconds, whatever the kernel says meanwhile that is no news.
    for s in 100..130 {
        assert_eq!(known(n.hop(at(s), i)), Some(mac(1)));
        assert_eq!(questions(&mut n), if s % 10 == 0 { vec![(addr(1), true)] } else { vec![] }, "{s}");
        n.set_stale(at(s), I, addr(1), mac(1));
    }
    // One that has moved, and one that was confirmed meanwhile, at the next use.
    n.set_stale(at(130), I, addr(1), mac(2));
    assert_eq!((known(n.hop(at(130), i)), questions(&mut n)), (Some(mac(2)), vec![(addr(1), true)]));
    n.set(at(131), I, addr(1), mac(2));
    assert_eq!((known(n.hop(at(131), i)), questions(&mut n)), (Some(mac(2)), vec![]));
    n.set_stale(at(132), I, addr(1), mac(2));
    assert_eq!((known(n.hop(at(132), i)), questions(&mut n)), (Some(mac(2)), vec![(addr(1), true)]));
    // Nobody on the link overrules the kernel.
    for strength in [Strength::Weak, Strength::Plain, Strength::Override] {
        n.claim(at(133), I, addr(1), claim(mac(9), true, strength));
        assert_eq!(known(n.hop(at(133), i)), Some(mac(2)));
    }
    // A connection that waits for one that turns out stale goes on.
    n.forget(I, addr(1));
    assert!(matches!(n.hop(at(134), i), Hop::Wait));
    n.wait(i, Entry::first(7));
    n.set_stale(at(134), I, addr(1), mac(3));
    assert_eq!(n.resolved, [Waiter { entry: Entry::first(7), hop: i }]);
    assert_eq!(known(n.hop(at(134), i)), Some(mac(3)));
}

#[test]
fn a_hop_without_room_is_asked_for_ever_more_seldom() {
    let mut n = Neighbors::new(4);
    let i = n.index(at(0), I, addr(1)).unwrap();
    assert!(matches!(n.hop(at(0), i), Hop::Wait));
    n.wait(i, Entry::first(7));
    questions(&mut n);
    n.refuse(at(0), I, addr(1));
    // The connection that waited sends, in vain, and asks again with what its timers send.
    assert_eq!(core::mem::take(&mut n.resolved), [Waiter { entry: Entry::first(7), hop: i }]);
    let mut asked = Vec::new();
    for s in 0..200 {
        assert!(matches!(n.hop(at(s), i), Hop::Lost));
        n.expire(at(s));
        if !questions(&mut n).is_empty() {
            asked.push(s);
            n.refuse(at(s), I, addr(1));
        }
    }
    assert_eq!(asked, [1, 2, 4, 8, 16, 32, 62, 92, 122, 152, 182]);
    assert!(n.lost.is_empty());
    // Room was made.
    n.set(at(200), I, addr(1), mac(1));
    assert_eq!(known(n.hop(at(200), i)), Some(mac(1)));
    n.refuse(at(201), I, addr(1));
    assert_eq!(known(n.hop(at(201), i)), Some(mac(1)), "a late refusal is of no account");
    n.refuse(at(201), I, addr(9));
}

#[test]
fn hearsay_takes_no_place_of_a_hop_in_use() {
    let heard = |n: u8| Claim { mac: Some(mac(n)), solicited: false, strength: Strength::Weak, create: true };
    let mut n = Neighbors::new(64);
    let used: Vec<u32> = (0..40).map(|k| n.index(at(0), I, addr(k)).unwrap()).collect();
    used.iter().for_each(|i| n.list[*i as usize].state = Known::Stale);
    let epoch = n.epoch;
    for k in 100..5_000 {
        n.claim(at(1), I, addr(k), heard(5));
    }
    assert_eq!((n.list.len(), n.map.len(), n.epoch), (64, 64, epoch));
    for (k, i) in used.iter().enumerate() {
        assert_eq!(n.index(at(2), I, addr(k as u16)), Some(*i));
    }
    // A hop that is needed takes hearsay's place; when all are in use, that of one that was not used lately.
    (40..64).for_each(|k| _ = n.index(at(3), I, addr(k)));
    assert_eq!((n.list.len(), n.epoch), (64, epoch));
    n.claim(at(4), I, addr(9_000), heard(5));
    assert!(!n.map.contains_key(&(I, addr(9_000))));
    n.index(at(4), I, addr(9_001));
    assert_eq!((n.list.len(), n.map.len(), n.epoch), (64, 64, epoch + 1));
    assert!((40..64).all(|k| n.map.contains_key(&(I, addr(k)))));
    // None takes the place of one that is waited for.
    (0..64).for_each(|i| n.wait(i, Entry::first(i)));
    assert_eq!((n.index(at(5), I, addr(9_002)), n.epoch), (None, epoch + 1));
}

//! What the control plane tells a lane. A lane that does not run for a while (an `inline` application that computes) finds
//! what is still true when it comes back, not all that happened: so the box is bounded by what there is.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::mpsc::Sender;
use std::sync::{PoisonError, Weak};

use io::Presence;
use stack::Route;
use wire::MacAddr;

use crate::kernel::Question;
use crate::kernel::neighbors::Word;
use crate::lane::clients::Arrival;
use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering, fence};
use client::Snapshot;

/// Letters before those that later ones made void are thrown away for the first time.
const TIDY: usize = 1024;
/// Neighbours in the box at most: more than a lane remembers.
const NEIGHBORS: usize = 8192;

/// One letter.
pub(crate) enum Control {
    AddAddress(usize, IpAddr, u8),
    RemoveAddress(usize, IpAddr),
    /// A device has another hardware address.
    SetMac(usize, MacAddr),
    /// Its link takes packets of so many bytes.
    SetMtu(usize, u16),
    /// Its link is up or down, or gone for good.
    Link(usize, Presence),
    /// All routes of shared interfaces, anew.
    Routes(Vec<Route>),
    /// The kernel's word on a next hop.
    Neighbor(usize, IpAddr, Word),
    /// All that the kernel said of neighbours is void: they are asked for again.
    ForgetNeighbors,
    /// Which connections there are on ports that nobody listens on any more.
    Connections(Question),
    /// The process ends: all that is open is closed.
    End,
    /// Something of the process is broken: all that is open is reset, and the lane is over then.
    Reset,
    /// Asks whether that is over; with the lane's number.
    Ended(Sender<(u16, bool)>),
    /// Asks whether everything has left and is acknowledged.
    Drained(Sender<bool>),
    /// A client in another process comes; whether it could, or why not.
    Attach(Box<Arrival>, Sender<Result<(), String>>),
    /// Wanted as long as somebody waits for it.
    Snapshot(Sender<Snapshot>, Weak<()>),
}

/// What a later letter of the same subject makes void.
#[derive(PartialEq, Eq, Hash)]
enum Subject {
    /// Removing is for itself: an address that comes back may have another prefix.
    Address(usize, IpAddr, bool),
    Mac(usize),
    Mtu(usize),
    Link(usize),
    Routes,
    Neighbor(usize, IpAddr),
}

impl Control {
    fn subject(&self) -> Option<Subject> {
        match self {
            Control::AddAddress(port, addr, _) => Some(Subject::Address(*port, *addr, true)),
            Control::RemoveAddress(port, addr) => Some(Subject::Address(*port, *addr, false)),
            Control::SetMac(port, _) => Some(Subject::Mac(*port)),
            Control::SetMtu(port, _) => Some(Subject::Mtu(*port)),
            Control::Link(port, _) => Some(Subject::Link(*port)),
            Control::Routes(_) => Some(Subject::Routes),
            Control::Neighbor(port, addr, _) => Some(Subject::Neighbor(*port, *addr)),
            Control::ForgetNeighbors
            | Control::Connections(_)
            | Control::End
            | Control::Reset
            | Control::Ended(_)
            | Control::Drained(_)
            | Control::Attach(..)
            | Control::Snapshot(..) => None,
        }
    }

    fn is_neighbor(&self) -> bool {
        matches!(self, Control::Neighbor(..) | Control::ForgetNeighbors)
    }
}

#[derive(Default)]
struct Letters {
    all: Vec<Control>,
    /// Tidied when there are more.
    most: usize,
}

impl Letters {
    fn push(&mut self, control: Control) {
        // A table is large, and one is enough.
        if matches!(control, Control::Routes(_)) {
            self.all.retain(|letter| !matches!(letter, Control::Routes(_)));
        }
        self.all.push(control);
        if self.all.len() > self.most.max(TIDY) {
            self.tidy();
            // Not again before it is worth it.
            self.most = self.all.len() * 2;
        }
    }

    fn tidy(&mut self) {
        let mut last = HashMap::new();
        for (i, letter) in self.all.iter().enumerate() {
            letter.subject().map(|subject| last.insert(subject, i));
        }
        let mut i = 0;
        self.all.retain(|letter| {
            i += 1;
            match letter {
                Control::Snapshot(_, waiting) => waiting.strong_count() > 0,
                _ => letter.subject().is_none_or(|subject| last[&subject] == i - 1),
            }
        });
        if self.all.iter().filter(|l| l.is_neighbor()).count() > NEIGHBORS {
            self.all.retain(|l| !l.is_neighbor());
            self.all.push(Control::ForgetNeighbors);
        }
    }
}

/// The box of one lane.
#[derive(Default)]
pub(crate) struct Mailbox {
    /// Something is in it: what a lane looks at each turn.
    called: AtomicBool,
    letters: Mutex<Letters>,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Letters> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lane is to be woken afterwards.
    pub fn send(&self, control: Control) {
        self.lock().push(control);
        fence(Ordering::SeqCst);
        self.called.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub fn is_called(&self) -> bool {
        self.called.load(Ordering::Relaxed)
    }

    /// All letters, in order.
    pub fn take(&self) -> Vec<Control> {
        self.called.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut letters = self.lock();
        letters.most = 0;
        core::mem::take(&mut letters.all)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use io::netlink::Nud;
    use std::net::Ipv4Addr;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    fn addr(n: u32) -> IpAddr {
        Ipv4Addr::from(0x0a00_0000 + n).into()
    }

    /// What a lane would know: neighbours (`None`: forgotten), addresses, how many routes.
    fn learn(letters: Vec<Control>, known: &mut (HashMap<IpAddr, MacAddr>, HashMap<IpAddr, u8>, usize)) -> usize {
        let mut snapshots = 0;
        for letter in letters {
            match letter {
                // As a stack does: one that is there stays as it is.
                Control::AddAddress(_, a, prefix) => drop(known.1.entry(a).or_insert(prefix)),
                Control::RemoveAddress(_, a) => drop(known.1.remove(&a)),
                // Kept beside the addresses, which are never this one.
                Control::SetMac(_, mac) => drop(known.1.insert(Ipv4Addr::UNSPECIFIED.into(), mac.0[5])),
                Control::SetMtu(..) | Control::Link(..) | Control::Attach(..) => unreachable!("none was sent"),
                Control::Routes(r) => known.2 = r.len(),
                Control::Neighbor(_, a, Word::Is(Nud::Confirmed(mac))) => drop(known.0.insert(a, mac)),
                Control::Neighbor(_, a, _) => drop(known.0.remove(&a)),
                Control::ForgetNeighbors => known.0.clear(),
                Control::Connections(_) => {}
                Control::Snapshot(..) => snapshots += 1,
                Control::End | Control::Reset | Control::Ended(_) | Control::Drained(_) => {
                    unreachable!("none was sent")
                }
            }
        }
        snapshots
    }

    fn routes(n: usize) -> Control {
        let dst = addr(0);
        let interface = stack::InterfaceId(0);
        Control::Routes((0..n).map(|_| Route { dst, prefix: 8, gateway: None, interface, metric: 0 }).collect())
    }

    fn letter(n: u32) -> Control {
        let mac = MacAddr([2, 0, 0, 0, 0, n as u8]);
        match n % 7 {
            0..=2 => Control::Neighbor(0, addr(n % 1009), Word::Is(Nud::Confirmed(mac))),
            3 => Control::Neighbor(0, addr(n % 1009), Word::Is(Nud::Failed)),
            4 => Control::AddAddress(0, addr(n % 13), 8 + (n / 7 % 2) as u8),
            5 => Control::RemoveAddress(0, addr((n + 5) % 13)),
            _ if n.is_multiple_of(3) => Control::SetMac(0, mac),
            _ => routes(n as usize % 5),
        }
    }

    #[test]
    fn who_comes_late_knows_the_same_and_the_box_stays_small() {
        let (mut at_once, mut late) = <(_, _)>::default();
        let mail = Mailbox::default();
        for n in 0..200_000u32 {
            learn(vec![letter(n)], &mut at_once);
            mail.send(letter(n));
            assert!(mail.is_called() && mail.lock().all.len() <= 2 * (1009 + 2 * 13 + 2) + 1);
        }
        learn(mail.take(), &mut late);
        assert!(!mail.is_called() && mail.take().is_empty());
        assert_eq!(at_once, late);
    }

    #[test]
    fn neighbors_without_end_are_forgotten_together() {
        let mail = Mailbox::default();
        let mut known = Default::default();
        mail.send(routes(3));
        for n in 0..1_000_000 {
            mail.send(Control::Neighbor(0, addr(n), Word::Is(Nud::Failed)));
            assert!(mail.lock().all.len() <= 4 * NEIGHBORS);
        }
        mail.send(Control::Neighbor(0, addr(7), Word::Is(Nud::Confirmed(MacAddr([2; 6])))));
        let all = mail.take();
        assert!(all.iter().any(|l| matches!(l, Control::ForgetNeighbors)));
        learn(all, &mut known);
        assert_eq!((known.0.len(), known.0[&addr(7)], known.2), (1, MacAddr([2; 6]), 3));
    }

    #[test]
    fn who_has_stopped_waiting_is_not_answered() {
        let mail = Mailbox::default();
        let (to, from) = channel();
        let waits = Arc::new(());
        mail.send(Control::Snapshot(to.clone(), Arc::downgrade(&waits)));
        for _ in 0..3 * TIDY {
            mail.send(Control::Snapshot(to.clone(), Weak::new()));
        }
        assert!(mail.lock().all.len() < 2 * TIDY);
        mail.send(routes(1));
        let mut known = Default::default();
        assert!((1..2 * TIDY).contains(&learn(mail.take(), &mut known)));
        drop(from);
    }
}

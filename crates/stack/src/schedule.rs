//! What is to be done, and when: the lists of connections that have something to send, by interface; those with news for the application;
//! the timers; those that have been idle.
//!
//! All of these hold connection numbers, which are given out again. So entries name an incarnation of the number, a word for each number says
//! which lists its connection is on ([`queues`]), and [`Schedule::end`] makes all entries of a connection stale at once. Entries that wait for
//! a next hop or an address lie with the link; their bits are here.

pub(crate) mod alarms;
pub(crate) mod queues;
pub(crate) mod wheel;

use wire::Instant;

use crate::InterfaceId;
use crate::schedule::alarms::{Alarm, Alarms};
use crate::schedule::queues::{Entry, Queue, Queues, Rest, Stale, queued};

/// The paper's control, ACK and data lists (mTCP 3.2), of one interface's connections.
#[derive(Default)]
struct Lists {
    control: Vec<Entry>,
    acks: Vec<Entry>,
    data: Vec<Entry>,
    /// ACKs that wait for the turn after this one.
    later: Vec<Entry>,
    /// The list that was worked on last, empty: its memory serves the next.
    spare: Vec<Entry>,
    stale: Stale,
}

impl Lists {
    fn new() -> Lists {
        let list = || Vec::with_capacity(256);
        Lists { control: list(), acks: list(), data: list(), later: list(), spare: list(), stale: Stale::default() }
    }

    #[inline(always)]
    fn list(&mut self, bit: u8) -> &mut Vec<Entry> {
        match bit {
            queued::CONTROL => &mut self.control,
            queued::ACK => &mut self.acks,
            _ => &mut self.data,
        }
    }

    fn is_empty(&self) -> bool {
        self.control.is_empty() && self.acks.is_empty() && self.data.is_empty() && self.later.is_empty()
    }

    /// A connection that is over was on `n` of the lists.
    fn leave(&mut self, n: u32, words: &Queues) {
        let Lists { control, acks, data, later, stale, .. } = self;
        let lists = [control, acks, data, later];
        if stale.add(n, lists.iter().map(|list| list.len()).sum()) {
            lists.into_iter().for_each(|list| list.retain(|e| words.is_current(*e)));
        }
    }
}

pub(crate) struct Schedule {
    words: Queues,
    lists: Vec<Lists>,
    /// Connections with news for the application.
    pub notify: Queue<Entry>,
    alarms: Alarms,
    /// Connections that were idle at some time, in its order.
    pub idle: Queue<Rest>,
}

impl Schedule {
    pub fn new() -> Schedule {
        Schedule {
            words: Queues::default(),
            lists: Vec::new(),
            notify: Queue::with_capacity(256),
            alarms: Alarms::new(Instant::ZERO),
            idle: Queue::with_capacity(0),
        }
    }

    pub fn add_interface(&mut self) {
        self.lists.push(Lists::new());
    }

    /// A connection begins.
    #[inline(always)]
    pub fn begin(&mut self, now: Instant, id: u32) -> Alarm {
        self.words.reach(id);
        self.alarms.born(now, self.words[id].entry(id))
    }

    /// A connection is over, and on no list. Its bits for those that lie with the link are returned.
    #[inline(always)]
    pub fn end(&mut self, id: u32, interface: InterfaceId, alarm: Alarm) -> u8 {
        self.alarms.cancel(id, alarm);
        let bits = self.words.end(id);
        if bits != 0 {
            self.leave(bits, interface);
        }
        bits & (queued::HOP | queued::HELD)
    }

    /// Its entries are stale now, and where these are too many they go.
    #[inline(never)]
    fn leave(&mut self, bits: u8, interface: InterfaceId) {
        if bits & queued::IDLE != 0 {
            self.idle.leave(&self.words);
        }
        if bits & queued::NOTIFY != 0 {
            self.notify.leave(&self.words);
        }
        if bits & queued::SEND != 0 {
            self.lists[interface.index()].leave((bits & queued::SEND).count_ones(), &self.words);
        }
    }

    /// Whether the connection of `entry` still is.
    #[inline(always)]
    pub fn is_current(&self, entry: Entry) -> bool {
        self.words.is_current(entry)
    }

    #[inline(always)]
    pub fn has(&self, id: u32, bit: u8) -> bool {
        self.words[id].has(bit)
    }

    /// Sets the bit of a list; the entry for it, unless the connection is on it.
    pub fn mark(&mut self, id: u32, bit: u8) -> Option<Entry> {
        let word = &mut self.words[id];
        if word.has(bit) {
            return None;
        }
        word.insert(bit);
        Some(word.entry(id))
    }

    /// A connection has left a list.
    pub fn unmark(&mut self, id: u32, bit: u8) {
        self.words[id].remove(bit);
    }

    /// An entry was taken out of the list `bit`: the bits of its connection without that; `None` where it is over.
    #[inline(always)]
    pub fn take(&mut self, entry: Entry, bit: u8) -> Option<u8> {
        self.words.take(entry, bit).map(|word| word.bits())
    }

    /// Puts a connection on the lists `wants` of its interface, and on that of those with `news`, as far as it is not on them; its ACK waits
    /// for the next turn where `defers` says so.
    #[inline(always)]
    pub fn join(&mut self, id: u32, interface: InterfaceId, wants: u8, news: bool, defers: impl FnOnce() -> bool) {
        let word = &mut self.words[id];
        let add = (wants | if news { queued::NOTIFY } else { 0 }) & !word.bits();
        if add == 0 {
            return;
        }
        word.insert(add);
        let entry = word.entry(id);
        if add & queued::NOTIFY != 0 {
            self.notify.push_back(entry);
        }
        if add & queued::SEND != 0 {
            let lists = &mut self.lists[interface.index()];
            if add & queued::CONTROL != 0 {
                lists.control.push(entry);
            }
            if add & queued::ACK != 0 {
                if defers() { lists.later.push(entry) } else { lists.acks.push(entry) }
            }
            if add & queued::DATA != 0 {
                lists.data.push(entry);
            }
        }
    }

    /// When a connection must be looked at again: at its deadline, and, where it is `idle`, to be parked.
    #[inline(always)]
    pub fn watch(&mut self, now: Instant, id: u32, deadline: Instant, alarm: &mut Alarm, idle: bool) {
        self.alarms.set(id, deadline, alarm);
        if idle {
            let word = &mut self.words[id];
            if !word.has(queued::IDLE) {
                word.insert(queued::IDLE);
                self.idle.push_back(Rest { entry: word.entry(id), since: now });
            }
        }
    }

    /// A connection that was taken off the list of the idle has been idle since `since` only.
    pub fn rest_again(&mut self, entry: Entry, since: Instant) {
        self.words[entry.id].insert(queued::IDLE);
        self.idle.push_back(Rest { entry, since });
    }

    // What waits to be sent.

    /// Whether a connection of `interface` has something to send.
    #[inline(always)]
    pub fn has_output(&self, interface: InterfaceId) -> bool {
        !self.lists[interface.index()].is_empty()
    }

    /// How many have data to send.
    pub fn with_data(&self, interface: InterfaceId) -> usize {
        self.lists[interface.index()].data.len()
    }

    /// The list `bit` of an interface, to be worked on; what joins it meanwhile is for the next time. `None` where it is empty.
    #[inline(always)]
    pub fn start(&mut self, interface: InterfaceId, bit: u8) -> Option<Vec<Entry>> {
        let lists = &mut self.lists[interface.index()];
        if lists.list(bit).is_empty() {
            return None;
        }
        let spare = core::mem::take(&mut lists.spare);
        Some(core::mem::replace(lists.list(bit), spare))
    }

    /// The first `done` entries of what [`Schedule::start`] gave were worked on; the others stay in front.
    #[inline(always)]
    pub fn finish(&mut self, interface: InterfaceId, bit: u8, mut entries: Vec<Entry>, done: usize) {
        let lists = &mut self.lists[interface.index()];
        if done < entries.len() {
            entries.drain(..done);
            entries.append(lists.list(bit));
            lists.spare = core::mem::replace(lists.list(bit), entries);
        } else {
            entries.clear();
            lists.spare = entries;
        }
    }

    /// A connection keeps its place on the list that is worked on: its bit is set again.
    #[inline(always)]
    pub fn stay(&mut self, id: u32, bit: u8) {
        self.words[id].insert(bit);
    }

    /// An entry that names a connection as it is now.
    pub fn entry(&self, id: u32) -> Entry {
        self.words[id].entry(id)
    }

    /// A connection joins the end of the list that is worked on, unless it has done so or is over.
    pub fn join_again(&mut self, interface: InterfaceId, entry: Entry, bit: u8) {
        if self.words.is_current(entry) && !self.words[entry.id].has(bit) {
            self.words[entry.id].insert(bit);
            self.lists[interface.index()].list(bit).push(entry);
        }
    }

    /// A connection whose bit is set goes to the end of the list that is worked on.
    pub fn push(&mut self, interface: InterfaceId, entry: Entry, bit: u8) {
        self.lists[interface.index()].list(bit).push(entry);
    }

    /// An ACK waits for the turn after this one.
    pub fn defer_ack(&mut self, interface: InterfaceId, entry: Entry) {
        self.words[entry.id].insert(queued::ACK);
        self.lists[interface.index()].later.push(entry);
    }

    /// The ACKs that waited for the next turn are due in that.
    #[inline(always)]
    pub fn turn_is_over(&mut self, interface: InterfaceId) {
        let Lists { acks, later, .. } = &mut self.lists[interface.index()];
        acks.append(later);
    }

    // Time.

    /// The numbers of those whose time has come.
    pub fn expire(&mut self, now: Instant, due: &mut Vec<u32>) {
        self.alarms.expire(now, &self.words, due);
    }

    /// A parked connection has something to do at `at`.
    pub fn wake(&mut self, id: u32, at: Instant) {
        self.alarms.wake(id, at);
    }

    /// A time that is not later than the first that is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.alarms.next()
    }

    // For checks.

    pub fn interfaces(&self) -> usize {
        self.lists.len()
    }

    pub fn alarms(&self) -> &Alarms {
        &self.alarms
    }

    pub fn words(&self) -> &Queues {
        &self.words
    }

    /// The lists of an interface by kind.
    /// Stale entries that the lists of an interface may have together.
    pub fn most_stale(&self, interface: InterfaceId) -> usize {
        self.lists[interface.index()].stale.most()
    }

    pub fn each_list(&self, interface: InterfaceId) -> [(&[Entry], usize); 4] {
        let Lists { control, acks, data, later, .. } = &self.lists[interface.index()];
        [(control, 0), (acks, 1), (later, 1), (data, 2)]
    }
}

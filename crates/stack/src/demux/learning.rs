//! Lanes learnt: where a NIC hides its RSS key, the queues by which the answers to our SYNs arrive tell what is needed of it.
//!
//! Under one key each bit of the Toeplitz hash is linear over GF(2), and so is each bit of the lane where the indirection table
//! deals a power of two of queues in turn, as drivers do. Then the lane of what an odd number of tuples are together (exclusive
//! or) is what their lanes are together, and is known of every tuple that tuples seen make up so. With one remote end
//! that takes as many answers as there are bits in the ports used and one more; with another remote end one further answer.
//!
//! A function that is not such (a table over three queues, another hash, none) soon contradicts what was learnt of it. Then all
//! of it is forgotten and learnt anew, the next times after longer and longer pauses. Nothing but where frames arrive depends on
//! it: a connection whose answers come to another lane than was expected has them handed over, as all have of which nothing is known.

use crate::FlowKey;
use crate::InterfaceId;
use crate::counters::Counters;

/// Answers in a row that came where the model said before ports are chosen by it: a hash of two lanes that is not linear passes
/// once in 65,536 times.
const TRUSTED: u32 = 16;
/// After so many the model has been right for long, and earlier contradictions do not count.
const PROVEN: u32 = 1024;
/// Answers that are not looked at after a second contradiction, twice as many after each further one. After the first, which may
/// mean that the NIC was set otherwise, it is learnt anew at once.
const PAUSE: u32 = 256;
/// How often that doubles.
const DOUBLINGS: u32 = 12;
/// Independent tuples, ports aside, that one model has: all that IPv4 can have (81), and of IPv6 as much.
const ROWS: usize = 128;

/// All of a tuple but our port, and a one: what that bit adds all tuples have.
type Ends = [u64; 5];

fn ends(key: &FlowKey) -> Ends {
    let ([a, b], [c, d]) = (key.remote.as_words(), key.local.as_words());
    [a, b, c, d, 1 << 16 | u64::from(key.remote_port)]
}

/// What is left of a tuple when tuples seen are taken from it: bits of our port, and of the lane.
#[derive(Clone, Copy, Debug, Default)]
struct Rest {
    port: u16,
    lane: u16,
}

impl Rest {
    fn subtract(&mut self, other: Rest) {
        self.port ^= other.port;
        self.lane ^= other.lane;
    }
}

/// Tuples seen together that have a bit which none of the rows after them has.
struct Row {
    ends: Ends,
    rest: Rest,
    word: u8,
    bit: u8,
}

/// What a new tuple says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// Something that was not known, or that there is no room for.
    New,
    /// What was known.
    Same,
    /// Something else than what was known.
    Other,
}

/// A function from tuples to lanes that is linear, as far as it was seen.
#[derive(Default)]
struct Model {
    rows: Vec<Row>,
    /// Sums of tuples in which everything but our port cancels, by the port's lowest bit; port 0 where there is none.
    ports: [Rest; 16],
}

impl Model {
    /// What is left of a tuple when rows have been taken from it.
    fn reduce(&self, mut ends: Ends, mut rest: Rest) -> (Ends, Rest) {
        for row in &self.rows {
            if ends[usize::from(row.word)] >> row.bit & 1 != 0 {
                ends.iter_mut().zip(&row.ends).for_each(|(word, other)| *word ^= other);
                rest.subtract(row.rest);
            }
        }
        (ends, rest)
    }

    /// Takes port sums away; whether no port is left.
    fn reduce_port(&self, rest: &mut Rest) -> bool {
        while rest.port != 0 {
            let sum = self.ports[rest.port.trailing_zeros() as usize];
            if sum.port == 0 {
                return false;
            }
            rest.subtract(sum);
        }
        true
    }

    fn learn(&mut self, key: &FlowKey, lane: u16) -> Said {
        let (ends, mut rest) = self.reduce(ends(key), Rest { port: key.local_port, lane });
        if let Some(word) = ends.iter().position(|word| *word != 0) {
            if self.rows.len() < ROWS {
                self.rows.push(Row { ends, rest, word: word as u8, bit: ends[word].trailing_zeros() as u8 });
            }
            return Said::New;
        }
        if !self.reduce_port(&mut rest) {
            self.ports[rest.port.trailing_zeros() as usize] = rest;
            return Said::New;
        }
        if rest.lane == 0 { Said::Same } else { Said::Other }
    }

    fn way(&self, key: &FlowKey) -> Option<Way<'_>> {
        let (ends, rest) = self.reduce(ends(key), Rest::default());
        (ends == Ends::default()).then_some(Way { model: self, rest })
    }
}

/// What is known of connections between one of our addresses and a remote end.
#[derive(Clone, Copy)]
pub(crate) struct Way<'a> {
    model: &'a Model,
    rest: Rest,
}

impl Way<'_> {
    /// The lane to whose queue answers to a port come; `None` where that is not known yet.
    pub fn lane_of(&self, port: u16) -> Option<u16> {
        let mut rest = Rest { port: self.rest.port ^ port, ..self.rest };
        self.model.reduce_port(&mut rest).then_some(rest.lane)
    }
}

/// How one interface spreads one family.
#[derive(Default)]
struct Spreading {
    model: Model,
    /// Answers that came where the model said, without one that did not.
    right: u32,
    /// Contradictions since it was right for long.
    failures: u32,
    /// Answers that are not looked at.
    pause: u32,
}

impl Spreading {
    fn learn(&mut self, key: &FlowKey, lane: u16) -> Said {
        if self.pause > 0 {
            self.pause -= 1;
            return Said::New;
        }
        let said = self.model.learn(key, lane);
        match said {
            Said::New => {}
            Said::Same => self.right = self.right.saturating_add(1),
            Said::Other => {
                if self.right >= PROVEN {
                    self.failures = 0;
                }
                self.pause = self.failures.checked_sub(1).map_or(0, |further| PAUSE << further.min(DOUBLINGS));
                self.failures += 1;
                (self.model, self.right) = Default::default();
            }
        }
        said
    }

    fn is_trusted(&self) -> bool {
        self.right >= TRUSTED
    }
}

fn bit(interface: InterfaceId) -> u32 {
    1u32.checked_shl(u32::from(interface.0)).unwrap_or(0)
}

/// What a lane has learnt of its interfaces.
#[derive(Default)]
pub(crate) struct Learning {
    /// Two for each interface: what is hashed of IPv4 and of IPv6 has different places under the key.
    spreadings: Vec<Spreading>,
    /// Interfaces that have been learnt, and of which nobody has been told: by bit.
    untold: u32,
    /// Those of which somebody was.
    told: u32,
}

impl Learning {
    fn place(key: &FlowKey) -> usize {
        key.interface.index() * 2 + usize::from(!key.remote.is_v4())
    }

    /// An answer to our SYN came by `lane`'s queue, which is ours where it is `own`.
    #[inline(never)]
    pub fn answered(&mut self, key: &FlowKey, lane: u16, own: bool, counters: &mut Counters) {
        counters.answers_own += u64::from(own);
        counters.answers_handed += u64::from(!own);
        let place = Learning::place(key);
        if place >= self.spreadings.len() {
            self.spreadings.resize_with(place + 1, Spreading::default);
        }
        let spreading = &mut self.spreadings[place];
        let before = spreading.is_trusted();
        let said = spreading.learn(key, lane);
        counters.lanes_mistaken += u64::from(said == Said::Other);
        if !before && spreading.is_trusted() {
            counters.lanes_learnt += 1;
            self.untold |= bit(key.interface) & !self.told;
        }
    }

    /// What is known of connections with `key`'s addresses and remote port.
    pub fn way(&self, key: &FlowKey) -> Option<Way<'_>> {
        self.spreadings.get(Learning::place(key)).filter(|s| s.is_trusted())?.model.way(key)
    }

    /// An interface that has been learnt, once.
    pub fn take_news(&mut self) -> Option<InterfaceId> {
        if self.untold == 0 {
            return None;
        }
        let index = self.untold.trailing_zeros();
        let interface = InterfaceId(index as u8);
        self.untold &= !bit(interface);
        self.told |= bit(interface);
        Some(interface)
    }
}

#[cfg(test)]
mod tests;

//! Clients in other processes. What they write is looked at where it is read, once, and what does not keep to the rules ends the client: its
//! connections are reset, its chunks are taken back, and nobody else notices.

use mem::lease::{StackSeat, Words};
use mem::{Breach, Side};

use super::{Clients, Events, HOME, Jobs, Seat};
use crate::names::{ClientId, SeatId};
use crate::schedule::queues::Entry;

/// What a client may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Connections, those among them that it has closed and that are not over.
    pub connections: u32,
    /// Listeners.
    pub listeners: u32,
}

/// Why a client was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ill {
    /// It broke the rules of the memory that it shares with the stack.
    #[error(transparent)]
    Memory(#[from] Breach),
    /// It wrote what is no message.
    #[error("it wrote what is no message")]
    Message,
    /// It named a connection or listener that is not its own.
    #[error("it named what is not its own")]
    Name,
}

/// One of them.
pub(super) struct Foreign {
    /// `None` where its place is free.
    side: Option<Side>,
    /// Connections whose bytes lie in its chunks.
    connections: u32,
    listeners: u32,
    bounds: Bounds,
    state: State,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Here,
    /// It has gone, or was ended: its connections are reset, from this number on; where `all` are, those that it had closed, too.
    Ending {
        all: bool,
        next: u32,
    },
    /// What is left of it are connections that it had closed.
    Gone,
}

impl Foreign {
    /// Its chunks.
    #[inline]
    pub fn side(&mut self) -> &mut Side {
        self.side.as_mut().expect("a client has chunks as long as it has seats or connections")
    }
}

/// How far the end of a client has come.
pub(crate) struct Walk {
    /// Whose.
    pub client: ClientId,
    /// Those that it had closed are reset, too.
    pub all: bool,
    /// The next connection to look at.
    pub next: u32,
}

impl Clients {
    /// A client in another process; `None` where there are too many.
    pub fn add_client(&mut self, side: Side, bounds: Bounds) -> Option<ClientId> {
        let new = Foreign { side: Some(side), connections: 0, listeners: 0, bounds, state: State::Here };
        let place = self.others.iter().position(|other| other.side.is_none()).unwrap_or(self.others.len());
        let id = u16::try_from(place + 1).ok().filter(|id| *id < u16::MAX)?;
        match self.others.get_mut(place) {
            Some(free) => *free = new,
            None => self.others.push(new),
        }
        Some(ClientId(id))
    }

    fn foreign(&mut self, client: u16) -> Option<&mut Foreign> {
        self.others.get_mut(usize::from(client).checked_sub(1)?)
    }

    /// The chunks of a client in another process that is here.
    pub fn side_of(&mut self, client: ClientId) -> Option<&mut Side> {
        let foreign = self.foreign(client.0).filter(|foreign| foreign.state == State::Here)?;
        foreign.side.as_mut()
    }

    /// A seat of a client in another process; `None` where there are too many, or the client is not here. Nobody looks at its jobs yet.
    pub fn add_foreign_seat(&mut self, client: ClientId, seat: StackSeat) -> Option<(SeatId, Words)> {
        self.side_of(client)?;
        let StackSeat { jobs, events, words } = seat;
        let seat = Seat::new(client.0, Jobs::Foreign(Box::new(jobs)), Events::Foreign(events));
        Some((self.insert(seat)?, words))
    }

    /// Whether it is looked at a seat's jobs in each turn.
    pub fn poll_seat(&mut self, id: SeatId, on: bool) {
        match (self.polled.iter().position(|polled| *polled == id), on) {
            (None, true) => self.polled.push(id),
            (Some(at), false) => drop(self.polled.swap_remove(at)),
            (Some(_), true) | (None, false) => {}
        }
    }

    /// Whether a seat's client is in another process.
    #[inline]
    pub fn is_foreign(&self, id: SeatId) -> bool {
        id.0 != 0 && self.client_of(id).0 != HOME
    }

    /// Which client a seat belongs to.
    pub fn client_of(&self, id: SeatId) -> ClientId {
        ClientId(match usize::from(id.0) {
            0 => HOME,
            n => self.seats[n - 1].client,
        })
    }

    /// Another connection lies in a client's chunks; `false`, and it does not, where that has as many as it may.
    pub fn take_connection(&mut self, client: u16) -> bool {
        let Some(foreign) = self.foreign(client) else { return true };
        let room = foreign.connections < foreign.bounds.connections;
        foreign.connections += room as u32;
        room
    }

    /// One less.
    #[cold]
    pub fn end_connection(&mut self, client: u16) {
        if let Some(foreign) = self.foreign(client) {
            foreign.connections -= 1;
            self.forget(client);
        }
    }

    /// Another listener is a client's; `false`, and it is not, where that has as many as it may.
    pub fn take_listener(&mut self, client: u16) -> bool {
        let Some(foreign) = self.foreign(client) else { return true };
        let room = foreign.listeners < foreign.bounds.listeners;
        foreign.listeners += room as u32;
        room
    }

    /// One less.
    pub fn end_listener(&mut self, client: u16) {
        if let Some(foreign) = self.foreign(client) {
            foreign.listeners -= 1;
        }
    }

    /// A client has gone, or is to go: nothing that it writes is looked at any more. Its connections are to be reset, those that it has
    /// closed only where `all` are. The connections whose news found no room; `None` where it was not here.
    pub fn end_client(&mut self, client: ClientId, all: bool) -> Option<Vec<Entry>> {
        let foreign = self.foreign(client.0).filter(|foreign| foreign.state == State::Here)?;
        foreign.state = State::Ending { all, next: 0 };
        let seats = &mut self.seats;
        self.polled.retain(|id| seats[usize::from(id.0) - 1].client != client.0);
        let mut stalled = Vec::new();
        for seat in seats.iter_mut().filter(|seat| seat.client == client.0 && !seat.gone) {
            stalled.extend(seat.stalled.drain(..));
            (seat.jobs, seat.ended) = (None, true);
            // What bytes they carry lie in the client's chunks, which go as a whole.
            seat.answers.clear();
        }
        Some(stalled)
    }

    /// A client whose connections are being ended.
    pub fn ending(&self) -> Option<Walk> {
        self.others.iter().enumerate().find_map(|(n, foreign)| match foreign.state {
            State::Ending { all, next } => Some(Walk { client: ClientId(n as u16 + 1), all, next }),
            State::Here | State::Gone => None,
        })
    }

    /// The end of a client has come so far; `None` where it is over.
    pub fn went_on(&mut self, client: ClientId, next: Option<u32>) {
        let Some(foreign) = self.foreign(client.0) else { return };
        if let (State::Ending { next: at, .. }, Some(next)) = (&mut foreign.state, next) {
            *at = next;
            return;
        }
        foreign.state = State::Gone;
        self.forget(client.0);
    }

    /// Where nothing is left of a client its chunks go, and its place is free, as are those of its seats, which its connections named.
    fn forget(&mut self, client: u16) {
        if let Some(foreign) = self.foreign(client)
            && foreign.state == State::Gone
            && foreign.connections == 0
        {
            foreign.side = None;
            let own = self.seats.iter_mut().filter(|seat| seat.client == client);
            own.for_each(|seat| seat.gone = true);
        }
    }

    /// Clients in other processes of which something is left.
    pub fn others(&self) -> usize {
        self.others.iter().filter(|other| other.side.is_some()).count()
    }

    /// Connections that each of them is said to have, and listeners; for checks.
    pub fn each_count(&self) -> impl Iterator<Item = (ClientId, u32, u32)> + '_ {
        let there = self.others.iter().enumerate().filter(|(_, other)| other.side.is_some());
        there.map(|(n, other)| (ClientId(n as u16 + 1), other.connections, other.listeners))
    }
}

//! What the application opens and stops listening at: active opens (RFC 9293 3.10.1) and listeners.

use tcp::Open;
use wire::{Addr, Instant, SeqNum};

use crate::clients::FIRST;
use crate::conns::conn::{Birth, Conn, Stage};
use crate::conns::options::Options;
use crate::demux::listener::Listener;
use crate::demux::source::Chosen;
use crate::engine::{Stack, context};
use crate::names::SeatId;
use crate::{FlowKey, InterfaceId};
use protocol::{ConnId, Endpoint, Event, Failure, ListenerId, Token};

/// Ports that are tried for one whose tuple there is room for ([`OpenTuples::claim`](crate::OpenTuples::claim)).
const TRIES: usize = 16;

impl Stack {
    pub(super) fn connect(
        &mut self,
        now: Instant,
        seat: SeatId,
        token: Token,
        local: Endpoint,
        remote: Endpoint,
        receive_buffer: u32,
    ) -> Result<(), Failure> {
        let own = self.clients.seat(seat);
        own.ending = false;
        let (options, pool) = (core::mem::take(&mut own.prepared), own.client);
        if remote.port == 0 || remote.addr.is_unspecified() || remote.addr.is_multicast() || remote.addr.is_broadcast()
        {
            return Err(Failure::AddressNotAvailable);
        }
        // Nothing loops back: what goes to an own address would leave and never come.
        if self.link.owns(remote.addr) {
            return Err(Failure::HostUnreachable);
        }
        let (interface, hop) = self.way_from(local.addr, remote.addr)?;
        let addr = match local.addr.is_unspecified() {
            true => self.link[interface].source_for(remote.addr).ok_or(Failure::AddressNotAvailable)?,
            false => local.addr,
        };
        if addr.is_v4() != remote.addr.is_v4() {
            return Err(Failure::AddressNotAvailable);
        }
        let key =
            FlowKey { interface, local: addr, remote: remote.addr, local_port: local.port, remote_port: remote.port };
        let Chosen { key, hash, reuses } = self.source_of(now, local, key)?;
        let (mut iss, ts_offset) = self.demux.initial_sequence(now, &key);
        if let Some(t) = reuses {
            if let Some(old) = self.demux.time_wait(t) {
                iss = beyond(iss, old.snd_nxt);
            }
            self.demux.reuse(t, hash, &mut self.counters);
        }
        let (mss, headers) = self.link.offered_mss(&key);
        let (mss, receive_buffer) = options.limit(mss, receive_buffer, self.config.tcp.receive_buffer);
        let path_mss = self.link.path_mss(now, &key, mss);
        let open = Open { iss, ts_offset, mss, path_mss, receive_buffer, headers };
        let birth = Birth { key, hash, hop, came_from: None, listener: u32::MAX, pool, seat, stage: Stage::Owned };
        if !self.clients.take_connection(pool) {
            self.demux.give_up(&key);
            return Err(Failure::NoBuffers);
        }
        let Some(id) = self.admit(now, birth, None, |tcb, cx| tcb.connect(&open, cx)) else {
            self.clients.end_connection(pool);
            self.demux.give_up(&key);
            return Err(Failure::NoBuffers);
        };
        self.give_options(now, id, &options);
        self.counters.active_opens += 1;
        let local = Endpoint { addr: key.local, port: key.local_port };
        self.clients.answer(seat, Event::Opened { token, conn: ConnId(id), local });
        self.settle(now, id);
        Ok(())
    }

    /// The tuple of an active open from `local`, of which whoever sorts the interface's frames has been told.
    #[inline(always)]
    fn source_of(&mut self, now: Instant, local: Endpoint, key: FlowKey) -> Result<Chosen, Failure> {
        let Stack { demux, conns, link, .. } = self;
        demux.follow_ports();
        let mut tries = 0;
        while tries < TRIES {
            let chosen = match (local.port, local.addr.is_unspecified()) {
                (0, true) => {
                    let others = || link[key.interface].sources_for(key.remote);
                    demux.choose_source(now, conns, key, others)
                }
                (0, false) => demux.choose_port(now, conns, key),
                _ => Some(demux.claim(now, conns, key)?),
            };
            let Some(chosen) = chosen else {
                if demux.more_ports() {
                    continue;
                }
                return Err(Failure::AddressNotAvailable);
            };
            tries += 1;
            if demux.open(&chosen.key) {
                return Ok(chosen);
            }
            if local.port != 0 {
                break;
            }
        }
        Err(Failure::NoBuffers)
    }

    /// The interface by which a connection from `local` to `remote` is opened, and its next hop as far as it is known. Answers
    /// come to the address, so a chosen one is that of the interface (RFC 1122 3.3.4.2's strong model).
    fn way_from(&mut self, local: Addr, remote: Addr) -> Result<(InterfaceId, (u32, u32)), Failure> {
        let best = self.link.best_hop(remote);
        if local.is_unspecified() {
            return best.ok_or(Failure::NetworkUnreachable);
        }
        if let Some(best) = best.filter(|(interface, _)| self.link[*interface].owns(local)) {
            return Ok(best);
        }
        let mut failure = Failure::AddressNotAvailable;
        for interface in self.link.ids() {
            if !self.link[interface].owns(local) {
                continue;
            }
            if let Some(hop) = self.link.hop_by(interface, remote) {
                return Ok((interface, hop));
            }
            failure = Failure::NetworkUnreachable;
        }
        Err(failure)
    }

    /// Sets what was asked for on a new connection.
    #[inline]
    pub(super) fn give_options(&mut self, now: Instant, id: u32, options: &Options) {
        if !options.is_empty()
            && let Some(c) = self.conns.get_mut(id)
        {
            options.apply(c, &mut context!(self, now, c.pool));
        }
    }

    pub(super) fn listen(&mut self, token: Token, mut listener: Listener) {
        let (local, seat) = (listener.local, listener.seat);
        let ours = local.addr.is_unspecified() || self.link.owns(local.addr);
        let refusal = if !ours {
            Some(Failure::AddressNotAvailable)
        } else if local.port != 0 && self.demux.listeners.conflicts(local, listener.v6_only, listener.reuse_port) {
            Some(Failure::AddressInUse)
        } else if local.port == 0 {
            let free = self.config.ports.iter().find(|port| {
                !self.demux.listeners.conflicts(Endpoint { port: *port, ..local }, listener.v6_only, false)
            });
            match free {
                Some(port) => {
                    listener.local.port = port;
                    None
                }
                None => Some(Failure::AddressInUse),
            }
        } else {
            None
        };
        let port = listener.local.port;
        let client = self.clients.client_of(seat).0;
        let answer = match refusal {
            Some(failure) => Event::Refused { token, failure },
            None if !self.clients.take_listener(client) => Event::Refused { token, failure: Failure::NoBuffers },
            None => match self.demux.listeners.insert(listener) {
                Ok(id) => Event::Listening { token, listener: ListenerId(id), port },
                Err(_) => {
                    self.clients.end_listener(client);
                    Event::Refused { token, failure: Failure::NoBuffers }
                }
            },
        };
        self.clients.answer(seat, answer);
    }

    /// RFC 9293 3.10.4: what the application has not taken is reset; what it has taken lives on.
    pub(super) fn close_listener(&mut self, now: Instant, listener: ListenerId) {
        for id in self.demux.handshakes().of_listener(listener.0) {
            self.demux.end_handshake(id);
        }
        let Some(gone) = self.demux.listeners.remove(listener.0) else { return };
        self.clients.end_listener(self.clients.client_of(gone.seat).0);
        // What a client in another process was told of is its own to end.
        for entry in gone.offered {
            self.accept_entry(now, entry, listener);
        }
        let mine = |c: &Conn| c.listener == listener.0 && matches!(c.stage, Stage::Embryo | Stage::Ready);
        let ids: Vec<u32> = self.conns.iter_ids().filter(|id| self.conns.active(*id).is_some_and(mine)).collect();
        for id in ids {
            if let Some(c) = self.conns.get_mut(id) {
                // It was nobody's.
                (c.stage, c.listener, c.seat) = (Stage::Closed, u32::MAX, FIRST);
                let mut cx = context!(self, now, c.pool);
                c.tcb.abort(&mut cx);
            }
            self.settle(now, id);
        }
    }
}

/// RFC 6191, RFC 9293 MAY-2: beyond everything that the connection before, which got to `old`, may have sent.
pub(super) fn beyond(iss: SeqNum, old: SeqNum) -> SeqNum {
    if iss.after(old + 65_536) { iss } else { old + 65_537 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_generation_begins_beyond_all_that_was_sent() {
        for old in [SeqNum(5), SeqNum(u32::MAX - 70_000)] {
            for (ahead, begins) in [(65_536, 65_537), (65_537, 65_537), (100_000, 100_000), (1 << 30, 1 << 30)] {
                assert_eq!(beyond(old + ahead, old), old + begins);
            }
            for behind in [0, 1, 65_536, 65_537, 1 << 30] {
                assert_eq!(beyond(old - behind, old), old + 65_537);
            }
        }
    }
}

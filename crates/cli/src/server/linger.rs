//! Lingering close (RFC 9112 9.6): a connection that ends while its client may still send is read on for a time, and what comes is
//! dropped. Closed with input unread it would send an RST, which can destroy the answer before the client has read it.

use super::*;

/// Connections that linger at most; the one that was silent for longest makes room for another.
pub(super) const MAX: usize = 1024;
/// Bytes dropped of one connection before others have their turn.
pub(super) const EACH: usize = 256 * 1024;

/// Time for which a stopping server goes on with such connections.
pub(super) const AT_THE_END: Duration = Duration::from_secs(2);

/// State of a connection that lingers.
#[derive(Default)]
pub(super) struct Lingers {
    since: Option<Instant>,
    /// Bytes were dropped since the timeout was last set.
    heard: bool,
    /// More is dropped in the next turn.
    queued: bool,
}

/// The lingering connections of a server.
#[derive(Default)]
pub(super) struct Lingering {
    count: usize,
    /// Keys of those that have more to be dropped.
    unread: Vec<u64>,
}

impl Lingering {
    /// True where some have more to be dropped.
    pub fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// A connection is closed, which may be one of them.
    pub fn leave(&mut self, lingers: Lingers) {
        self.count -= usize::from(lingers.since.is_some());
    }
}

impl<N: Net, H: Handler> Server<N, H> {
    /// Lets a connection linger, anew after each sign of its client.
    pub(super) fn linger(&mut self, id: u32) {
        let connection = &mut self.connections[id as usize];
        let heard = std::mem::take(&mut connection.lingers.heard);
        match connection.lingers.since {
            Some(since) if self.now.saturating_duration_since(since) >= self.limits.linger => return self.close(id),
            Some(_) if !heard => {}
            Some(_) => self.timers.set(id, LINGER, self.now),
            None => {
                connection.lingers.since = Some(self.now);
                self.lingering.count += 1;
                if self.lingering.count > MAX
                    && let Some(silent) = self.timers.oldest(LINGER)
                {
                    self.close(silent);
                }
                self.timers.set(id, LINGER, self.now);
            }
        }
        let connection = &mut self.connections[id as usize];
        if connection.readable && !std::mem::replace(&mut connection.lingers.queued, true) {
            self.lingering.unread.push(connection.key(id));
        }
    }

    /// Goes on with those that have more to be dropped.
    pub(super) fn discard_more(&mut self) {
        for key in std::mem::take(&mut self.lingering.unread) {
            let id = key as u32;
            let connection = &mut self.connections[id as usize];
            if connection.stream.is_some() && connection.key(id) == key {
                connection.lingers.queued = false;
                self.work(id);
            }
        }
    }
}

/// Drops what has come of a lingering connection, up to its part of a turn.
pub(super) fn discard<N: Net>(connection: &mut Connection<N::Stream>, net: &mut N, input: &mut [u8]) -> Fate {
    let Some(stream) = &connection.stream else { return Fate::Stay };
    let mut left = EACH;
    while left > 0 {
        let most = left.min(input.len());
        match net.read(stream, &mut input[..most]) {
            Ok(0) => return Fate::Close,
            Ok(n) => {
                connection.lingers.heard = true;
                left -= n;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                connection.readable = false;
                return Fate::Stay;
            }
            Err(_) => return Fate::Close,
        }
    }
    connection.readable = true;
    Fate::Stay
}

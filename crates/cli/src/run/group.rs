//! One listener's parts: the table that the kernel selects them from, and who has them.

use super::report::Part;
use crate::processes::{affinity, is_stopped, set_affinity};
use ::io::bpf::{ListenGroup, Selected, Slot};
use channel::Place;
use rustix::fd::BorrowedFd;
use rustix::net::sockopt;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::time::{Duration, Instant};

/// A worker that has let connections wait is passed over for so long the first time, and twice as long each time after.
const FIRST_REST: Duration = Duration::from_secs(1);
/// Longest time that one is passed over.
const LAST_REST: Duration = Duration::from_secs(32);

/// The parts of one listener.
pub struct Group {
    /// Where it listens.
    pub place: Place,
    table: ListenGroup,
    /// Parts, in the order in which they came.
    pub members: Vec<Member>,
    /// Parts that have ended.
    past: Vec<Part>,
    /// The program's own socket, while no worker has a part: it would be one of all that listen else, among them parts that close.
    shared: Option<Shared>,
    /// Connections that it had.
    to_shared: u64,
}

/// The program's own socket in the table.
struct Shared {
    slot: u32,
    cookie: u64,
    before: Selected,
}

/// A worker's listener in the table.
pub struct Member {
    slot: u32,
    /// SO_COOKIE.
    pub cookie: u64,
    /// Counted in the slot before.
    before: Selected,
    /// Whose it is.
    pub worker: Worker,
    /// Connections counted and waiting at the last look; none where none waited.
    waited: Option<(u64, u32)>,
    /// Until when it is passed over, and for how long the next time.
    rest: (Option<Instant>, Duration),
}

/// A worker that gets a part.
pub struct Worker {
    /// Its descriptor of the part.
    pub fd: u16,
    /// Cookie of the program's own socket, in whose place the part is; none where it is the process's own.
    pub whole: Option<u64>,
    /// Core that it is pinned to as soon as it is not alone.
    pub core: Option<u32>,
    /// For the report.
    pub part: Part,
}

impl Member {
    /// With what was counted since it came.
    fn counted(&self, table: &ListenGroup) -> Part {
        let now = table.selected(self.slot).unwrap_or(self.before);
        Part {
            local: now.local.saturating_sub(self.before.local),
            elsewhere: now.elsewhere.saturating_sub(self.before.elsewhere),
            migrated: now.migrated.saturating_sub(self.before.migrated),
            ..self.worker.part.clone()
        }
    }
}

impl Group {
    /// Without parts.
    pub fn new(place: Place, table: ListenGroup) -> Group {
        Group { place, table, members: Vec::new(), past: Vec::new(), shared: None, to_shared: 0 }
    }

    /// Parts, those that have ended first, and the connections of the program's own socket.
    pub fn counted(&mut self) -> (Vec<Part>, u64) {
        self.refresh();
        let live = self.members.iter().map(|member| member.counted(&self.table));
        (self.past.iter().cloned().chain(live).collect(), self.shared_connections())
    }

    fn has(&self, slot: u32, cookie: u64) -> bool {
        self.table.cookie(slot).is_ok_and(|there| there == Some(cookie))
    }

    /// Forgets members whose listener has closed.
    pub fn refresh(&mut self) {
        for at in (0..self.members.len()).rev() {
            if !self.has(self.members[at].slot, self.members[at].cookie) {
                self.remove(at);
            }
        }
        if self.shared.as_ref().is_some_and(|shared| !self.has(shared.slot, shared.cookie)) {
            self.unshare();
        }
    }

    /// Puts a listener into the table, in place of the shared one.
    pub fn add(&mut self, listener: BorrowedFd<'_>, worker: Worker) -> io::Result<()> {
        let slot = self.table.free()?.ok_or(rustix::io::Errno::NOSPC)?;
        let (before, cookie) = (self.table.selected(slot)?, sockopt::socket_cookie(listener)?);
        self.table.put(slot, listener)?;
        self.members.push(Member { slot, cookie, before, worker, waited: None, rest: (None, FIRST_REST) });
        self.unshare();
        self.table.attach(listener)
    }

    /// Takes a member out of the table. A worker that comes and goes is one part.
    pub fn remove(&mut self, at: usize) {
        let member = self.members.remove(at);
        let part = member.counted(&self.table);
        if self.has(member.slot, member.cookie) {
            let _ = self.table.remove(member.slot);
        }
        match self.past.iter_mut().find(|past| (past.pid, past.tid) == (part.pid, part.tid)) {
            Some(past) => past.join(part),
            None => self.past.push(part),
        }
    }

    /// Puts the program's own socket into the table, which has no other.
    pub fn share(&mut self, whole: BorrowedFd<'_>, cookie: u64) -> io::Result<()> {
        let slot = self.table.free()?.ok_or(rustix::io::Errno::NOSPC)?;
        let before = self.table.selected(slot)?;
        self.table.put(slot, whole)?;
        self.shared = Some(Shared { slot, cookie, before });
        Ok(())
    }

    fn unshare(&mut self) {
        self.to_shared = self.shared_connections();
        if let Some(shared) = self.shared.take()
            && self.has(shared.slot, shared.cookie)
        {
            let _ = self.table.remove(shared.slot);
        }
    }

    /// Connections of the program's own socket so far.
    fn shared_connections(&self) -> u64 {
        let now = self.shared.as_ref().map_or(0, |shared| {
            let now = self.table.selected(shared.slot).unwrap_or(shared.before);
            now.elsewhere.saturating_sub(shared.before.elsewhere)
        });
        self.to_shared + now
    }

    /// Pins workers, where there are several: who is alone has nobody to share cores with. Those that are pinned already stay there.
    pub fn pin(&mut self, pin: bool) {
        let alone = self.members.iter().all(|member| member.worker.part.tid == self.members[0].worker.part.tid);
        for Worker { core, part, .. } in self.members.iter_mut().map(|member| &mut member.worker) {
            let Some(may) = affinity(part.tid).filter(|_| part.core.is_none()) else { continue };
            part.core = match (&may[..], *core) {
                ([only], _) => Some(*only),
                (_, Some(core)) if pin && !alone => set_affinity(part.tid, &[core]).ok().map(|()| core),
                _ => None,
            };
        }
    }

    /// Tells the program whose the cores are. Parts that are passed over have none, unless all are.
    pub fn assign(&self) -> io::Result<()> {
        let slots = |present: bool| {
            let members = self.members.iter().filter(move |member| !present || member.rest.0.is_none());
            let members = members.map(|member| Slot { at: member.slot, cpu: member.worker.part.core });
            members.chain(self.shared.iter().map(|shared| Slot { at: shared.slot, cpu: None })).collect::<Vec<_>>()
        };
        match &slots(true)[..] {
            [] => self.table.assign(&slots(false)),
            present => self.table.assign(present),
        }
    }

    /// Puts a listener of the group back into its slot: it has left when it stopped listening, and listens again.
    pub fn put_back(&self, listener: BorrowedFd<'_>) {
        let Ok(cookie) = sockopt::socket_cookie(listener) else { return };
        let shared = self.shared.iter().map(|shared| (shared.slot, shared.cookie));
        let all = self.members.iter().map(|member| (member.slot, member.cookie)).chain(shared);
        for (slot, _) in all.filter(|(_, of)| *of == cookie) {
            let _ = self.table.put(slot, listener);
        }
    }

    /// True where another part could take what waits at one.
    pub fn has_others(&self) -> bool {
        self.members.len() > 1
    }

    /// The program's own sockets in whose place parts are, by cookie, with a worker of each and its descriptor.
    pub fn wholes(&self) -> BTreeMap<u64, (u32, u16)> {
        let workers = self.members.iter().map(|member| &member.worker);
        workers.filter_map(|worker| Some((worker.whole?, (worker.part.pid, worker.fd)))).collect()
    }

    /// Looks at accept queues, by cookie: a worker that has accepted nothing since the last look while something waited is passed over for
    /// a time. Returns the parts whose queue is to move: process, descriptor, cookie.
    pub fn look(&mut self, queues: &HashMap<u64, u32>, now: Instant) -> Vec<(u32, u16, u64)> {
        let mut stalled = Vec::new();
        let mut present = self.members.iter().filter(|member| member.rest.0.is_none()).count();
        let before = present;
        for member in &mut self.members {
            let waiting = queues.get(&member.cookie).copied().unwrap_or(0);
            let waits = (waiting > 0).then(|| {
                let counted = self.table.selected(member.slot).unwrap_or(member.before);
                (counted.local + counted.elsewhere + counted.migrated, waiting)
            });
            let accepted = match (member.waited, waits) {
                (Some((counted, waited)), Some((counts, waits))) => {
                    i128::from(counts - counted) - (i128::from(waits) - i128::from(waited))
                }
                _ => 1,
            };
            member.waited = waits;
            let (pid, fd, cookie) = (member.worker.part.pid, member.worker.fd, member.cookie);
            match &mut member.rest {
                (None, rest) if accepted <= 0 && present > 1 => {
                    member.rest = (Some(now + *rest), LAST_REST.min(*rest * 2));
                    present -= 1;
                    member.worker.part.stalls += 1;
                    stalled.push((pid, fd, cookie));
                }
                (Some(_), _) if accepted <= 0 => stalled.push((pid, fd, cookie)),
                (Some(until), _) if now >= *until && waits.is_none() && !is_stopped(pid) => {
                    member.rest.0 = None;
                    present += 1;
                }
                _ => {}
            }
        }
        if present != before || !stalled.is_empty() {
            let _ = self.assign();
        }
        stalled
    }
}

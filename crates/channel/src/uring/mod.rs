//! The kernel's engine: one io_uring a channel (SINGLE_ISSUER, DEFER_TASKRUN).
//!
//! Of each handle one operation each way is with the kernel; the next follows its completion. So completions are in order,
//! partial writes are resumed before anything else is written, and unregistering has few to cancel. Connections make the
//! batches, as in the paper. The exception is a shutdown behind the last write, which goes with it, linked, so that FIN rides
//! on the data.
//!
//! Lightweight sockets are direct descriptors: places in the ring's own table of files.

mod accept;
mod begin;
mod call;
mod complete;
mod flow;
pub(crate) mod pool;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use io_uring::squeue::{Entry as Sqe, Flags};
use io_uring::types::{Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};

use crate::core::{Core, FileKind, Stage, Target, Way};
use crate::errno;
use crate::options::Options;
use call::Calls;
use pool::Pool;

/// What a completion is of: the highest byte of its number.
const OP: u64 = 0;
const ACCEPT: u64 = 1;
/// Needs no answer.
const NOTHING: u64 = 2;
/// Somebody waits for this one, or has.
const CALL: u64 = 3;

/// Another channel has left connections to a listening handle.
const LEFT: u64 = 4;
/// A `recv` that stays.
const FLOW: u64 = 5;
/// Calls another request back, for somebody who waits for its end.
const CANCEL: u64 = 6;
/// Calls the request for connections of a listening handle back.
const ACCEPT_END: u64 = 7;

/// Submission entries; batches are shorter.
const ENTRIES: u32 = 1024;
/// Most bytes of one transfer; Linux's MAX_RW_COUNT.
const MOST: usize = 0x7fff_f000;
/// IORING_RECVSEND_POLL_FIRST: there is nothing to be read yet, so the kernel need not look.
const POLL_FIRST: u16 = 1;
/// RWF_NOSIGNAL: a pipe that nobody reads is EPIPE, without SIGPIPE. Linux 6.18.
const NO_SIGNAL: i32 = 0x100;

/// Why the kernel has refused a ring, where that is why a channel could not be made, and what would help.
pub fn ring_refused(error: &io::Error) -> Option<String> {
    const DISABLED: &str = "/proc/sys/kernel/io_uring_disabled";
    let disabled = || std::fs::read_to_string(DISABLED).ok().filter(|text| text.trim() != "0");
    let why = match (error.raw_os_error()?, disabled()) {
        (libc::EPERM, Some(value)) => {
            format!("kernel.io_uring_disabled is {} (sysctl -w kernel.io_uring_disabled=0 allows it)", value.trim())
        }
        (libc::EPERM | libc::EACCES, _) => {
            "this process may not use io_uring: a seccomp filter, as containers have them, or a security module".into()
        }
        (libc::ENOSYS, _) => "the kernel has no io_uring, or a seccomp filter hides it; it takes Linux 6.1".into(),
        (libc::EINVAL, _) => "the kernel's io_uring is too old; it takes Linux 6.1".into(),
        (libc::ENOMEM, _) => "no memory for io_uring (RLIMIT_MEMLOCK)".into(),
        _ => return None,
    };
    Some(why)
}

/// The number of a completion: what, 24 bits of generation, 32 of place.
fn tag(what: u64, generation: u32, at: u32) -> u64 {
    what << 56 | u64::from(generation & 0xff_ffff) << 32 | u64::from(at)
}

/// What calls a request back; that it did not find it is counted.
fn cancel(number: u64) -> Sqe {
    opcode::AsyncCancel::new(number).build().user_data(tag(CANCEL, 0, 0))
}

/// How a receive begins, by what the last one left.
fn poll_first(core: &Core, at: u32) -> u16 {
    if core.drained(at) { POLL_FIRST } else { 0 }
}

/// A receive tells how long the message was, whatever of it there was room for. Of a stream the flag means something else.
fn real_length(kind: FileKind) -> i32 {
    if kind == FileKind::Message { libc::MSG_TRUNC } else { 0 }
}

/// The ring's own table of files. Where it is full the kernel accepts a connection and has no place for it: it must not be asked.
struct Table {
    places: u32,
    used: u32,
}

/// The kernel's engine of a channel.
pub(crate) struct Kernel {
    // Before the pool, whose memory it knows.
    ring: IoUring,
    pool: Option<Pool>,
    /// Places for direct descriptors, and how many are in use.
    table: Option<Table>,
    /// Handles whose `recv` has something to receive and found no buffer: of the kernel's, of those that it never has.
    starving: [VecDeque<(u32, u32)>; 2],
    /// Buffers with bytes that nobody asked for yet.
    ahead: usize,
    /// Requests whose answers are waited for, or were.
    calls: Calls,
    /// Entries that belong together, and found no room in a queue that the kernel did not take.
    late: VecDeque<Vec<Sqe>>,
    /// Pipes can be written without SIGPIPE.
    no_signal: bool,
    /// Completions in hand.
    done: Vec<(u64, i32, u32)>,
    /// Those behind them, that had to make room for requests.
    parked: Vec<(u64, i32, u32)>,
    /// Batches of completions that came.
    batch: u64,
    /// Requests to call another one back that did not find it.
    missed: u64,
}

impl Kernel {
    pub fn new(options: &Options) -> io::Result<Kernel> {
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all();
        // Two entries that are linked go in together.
        let completions = options.completions.max(2);
        let ring = builder.setup_cqsize(completions).build(ENTRIES.min(completions))?;
        if !ring.params().is_feature_nodrop() || !ring.params().is_feature_skip_cqe_on_success() {
            return Err(errno(libc::ENOSYS));
        }
        let done = Vec::with_capacity(options.completions as usize);
        Ok(Kernel {
            ring,
            pool: None,
            table: None,
            starving: Default::default(),
            ahead: 0,
            calls: Calls::default(),
            late: VecDeque::new(),
            no_signal: true,
            parked: Vec::new(),
            done,
            batch: 0,
            missed: 0,
        })
    }

    /// Rings an eventfd for each completion: it wakes who sleeps elsewhere.
    pub fn wakes(&self, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        self.ring.submitter().register_eventfd(eventfd.as_raw_fd())
    }

    /// The table of direct descriptors is there from the first one on.
    fn direct(&mut self, core: &Core) -> io::Result<()> {
        if self.table.is_none() {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
            let limit = limit.unwrap_or(u64::MAX).min(u64::from(core.options.lwsockets)) as u32;
            self.ring.submitter().register_files_sparse(limit)?;
            self.table = Some(Table { places: limit, used: 0 });
        }
        Ok(())
    }

    /// A place of the table is a file's, or nobody's again.
    fn count_place(&mut self, used: bool) {
        if let Some(table) = &mut self.table {
            table.used = if used { table.used + 1 } else { table.used.saturating_sub(1) };
        }
    }

    /// Places that are nobody's.
    fn free_places(&self) -> u32 {
        self.table.as_ref().map_or(0, |table| table.places.saturating_sub(table.used))
    }

    /// Queues entries that belong together. Where the kernel does not take what is queued, they wait for a hand-over that it does.
    fn push(&mut self, core: &mut Core, entries: &[Sqe]) {
        while !self.late.is_empty() || !self.queue(entries) {
            if !self.make_room(core) {
                return self.late.push_back(entries.to_vec());
            }
        }
    }

    /// Queues entries that belong together, if there is room.
    fn queue(&mut self, entries: &[Sqe]) -> bool {
        // SAFETY: what the entries point to belongs to operations or calls, and so is there until their completion came.
        unsafe { self.ring.submission().push_multiple(entries) }.is_ok()
    }

    /// Hands a full queue over; where completions stand in the way, they are taken first. Whether anything moved.
    fn make_room(&mut self, core: &mut Core) -> bool {
        let full = self.ring.submission().len();
        let moved = match self.submit(core) {
            Ok(()) => self.ring.submission().len() < full,
            Err(_) => self.park() > 0,
        };
        self.catch_up();
        moved
    }

    /// Queues what found no room before.
    fn catch_up(&mut self) {
        while let Some(entries) = self.late.pop_front() {
            if !self.queue(&entries) {
                return self.late.push_front(entries);
            }
        }
    }

    /// Takes completions out of the kernel's way, behind those in hand: how many.
    fn park(&mut self) -> usize {
        let before = self.parked.len();
        self.parked.extend(self.ring.completion().map(|cqe| (cqe.user_data(), cqe.result(), cqe.flags())));
        self.parked.len() - before
    }

    fn submit(&mut self, core: &mut Core) -> io::Result<()> {
        self.catch_up();
        if let Some(pool) = &mut self.pool {
            pool.publish();
        }
        core.stats.enters += 1;
        match self.ring.submit() {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Whether the kernel has something to hear or to say.
    fn has_work(&mut self) -> bool {
        let queue = self.ring.submission();
        !queue.is_empty() || queue.taskrun() || !self.late.is_empty()
    }

    /// Hands over what is queued, and takes the completions that are there.
    pub fn flush(&mut self, core: &mut Core) -> io::Result<()> {
        if self.has_work() {
            match self.submit(core) {
                // No room for completions: they are taken, and then there is.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                other => other?,
            }
        }
        self.gather(core);
        Ok(())
    }

    /// Lets as many `recv`s go on as there are buffers for.
    pub fn feed(&mut self, core: &mut Core) {
        for kept in [false, true] {
            let mut free = self.pool.as_ref().map_or(0, |pool| pool.free(kept));
            while free > 0
                && let Some((at, generation)) = self.starving[usize::from(kept)].pop_front()
            {
                if core.entries.generation(at) == generation
                    && let Some(entry) = core.entries.get_mut(at)
                {
                    entry.starving = false;
                    core.touch(at);
                    free -= 1;
                }
            }
        }
    }

    /// Somebody starves beside a free buffer.
    fn can_feed(&self) -> bool {
        let can = |kept| {
            let some = !self.starving[usize::from(kept)].is_empty();
            some && self.pool.as_ref().is_some_and(|pool| pool.free(kept) > 0)
        };
        can(false) || can(true)
    }

    /// Hands over, and waits for completions until `limit`; EINTR where a signal came first.
    pub fn wait(&mut self, core: &mut Core, limit: Option<Duration>) -> io::Result<()> {
        // Those that were fed may have left their buffers; the next turn feeds others. And what has not been handed over is not
        // waited for.
        if self.can_feed() || !self.late.is_empty() {
            return self.flush(core);
        }
        if let Some(pool) = &mut self.pool {
            pool.publish();
        }
        let start = Instant::now();
        let time = Timespec::from(limit.unwrap_or_default());
        let mut args = SubmitArgs::new();
        if limit.is_some() {
            args = args.timespec(&time);
        }
        core.stats.enters += 1;
        let waited = self.ring.submitter().submit_with_args(1, &args);
        let came = self.gather(core);
        match waited {
            Err(error) if came == 0 => match error.raw_os_error() {
                Some(libc::ETIME | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
            // What was handed over hides how the wait ended.
            Ok(_) if came == 0 && limit.is_none_or(|limit| start.elapsed() < limit) => Err(errno(libc::EINTR)),
            _ => Ok(()),
        }
    }

    /// Takes the completions that are there.
    fn gather(&mut self, core: &mut Core) -> usize {
        let mut came = 0;
        loop {
            // Completions that were put aside come into the ring by a call.
            if self.ring.submission().cq_overflow() {
                core.stats.overflows += 1;
                let _ = self.submit(core);
            }
            let mut done = std::mem::take(&mut self.done);
            done.clear();
            self.park();
            done.append(&mut self.parked);
            came += done.len();
            self.batch += u64::from(!done.is_empty());
            for (number, result, flags) in done.iter().copied() {
                self.completion(core, number, result, flags);
            }
            let more = done.len();
            self.done = done;
            if self.parked.is_empty() && (more == 0 || !self.ring.submission().cq_overflow()) {
                return came;
            }
        }
    }

    /// Hands over and takes completions until `enough`.
    fn until(&mut self, core: &mut Core, enough: impl Fn(&Kernel, &Core) -> bool) -> io::Result<()> {
        while !enough(self, core) {
            // Who was fed goes on with the next turn.
            self.feed(core);
            match self.wait(core, None) {
                // This cannot be given up half-way.
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Hands over and takes completions until `enough`, which the requests that `cancels`, handed over before, call back bring
    /// about. The kernel does not find one (ENOENT) that is between two places at that moment: it had something to accept or to read
    /// when it was about to be waited for, and is tried again, in vain where somebody else was faster. Then it waits, and has to be called
    /// back once more.
    fn until_called_back(
        &mut self,
        core: &mut Core,
        cancels: &[Sqe],
        enough: impl Fn(&Kernel, &Core) -> bool,
    ) -> io::Result<()> {
        loop {
            let missed = self.missed;
            self.until(core, |kernel, core| enough(kernel, core) || kernel.missed != missed)?;
            if enough(self, core) {
                return Ok(());
            }
            cancels.iter().for_each(|cancel| self.push(core, std::slice::from_ref(cancel)));
        }
    }

    /// Frees a direct descriptor, with what is handed over next.
    pub fn close_slot(&mut self, core: &mut Core, slot: u32) {
        self.count_place(false);
        let close = opcode::Close::new(Fixed(slot)).build();
        self.push(core, &[close.flags(Flags::SKIP_SUCCESS).user_data(tag(NOTHING, 0, 0))]);
    }

    /// The application has done with a buffer; EINVAL where it had it not. Who waits for one goes on with the next turn.
    pub fn release(&mut self, id: u32) -> io::Result<()> {
        let pool = self.pool.as_mut().ok_or_else(|| errno(libc::EINVAL))?;
        let id = u16::try_from(id).map_err(|_| errno(libc::EINVAL))?;
        if pool.take_back(id) { Ok(()) } else { Err(errno(libc::EINVAL)) }
    }

    /// Which buffer begins at an address.
    pub fn buffer_at(&self, at: *const u8) -> Option<u32> {
        let memory = &self.pool.as_ref()?.memory;
        let offset = (at as usize).checked_sub(memory.at(0) as usize)?;
        let id = offset / memory.size;
        (offset % memory.size == 0 && id < memory.count as usize).then_some(id as u32)
    }

    /// Nobody works on the operations of a handle any more when this returns.
    pub fn stop(&mut self, core: &mut Core, at: u32) -> io::Result<()> {
        if let Some(Target::Listener { .. }) = core.entries.get(at).map(|entry| &entry.target) {
            return self.stop_accepting(core, at);
        }
        let mut under_way = Vec::new();
        for way in [Way::In, Way::Out] {
            let mut next = core.head(at, way);
            while let Some(op) = next {
                if core.ops.get(op).is_some_and(|op| op.stage != Stage::Queued) {
                    under_way.push((op, core.ops.generation(op)));
                }
                next = core.after(op);
            }
        }
        if under_way.is_empty() {
            return Ok(());
        }
        let cancel = |(op, generation): &(u32, u32)| cancel(tag(OP, *generation, *op));
        let cancels: Vec<Sqe> = under_way.iter().map(cancel).collect();
        cancels.iter().for_each(|cancel| self.push(core, std::slice::from_ref(cancel)));
        self.until_called_back(core, &cancels, |_, core| {
            under_way.iter().all(|(op, generation)| {
                core.ops.generation(*op) != *generation || core.ops.get(*op).is_none_or(|op| op.stage == Stage::Queued)
            })
        })
    }

    /// What a file is, for what reads and writes of it come to.
    pub fn kind(fd: BorrowedFd<'_>) -> io::Result<FileKind> {
        let stat = rustix::fs::fstat(fd)?;
        let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
        Ok(match kind {
            rustix::fs::FileType::Fifo => FileKind::Pipe,
            rustix::fs::FileType::Socket => {
                let get = |name| crate::sys::option(fd, libc::SOL_SOCKET, name);
                match (get(libc::SO_TYPE)?, get(libc::SO_DOMAIN)?) {
                    (libc::SOCK_STREAM, libc::AF_INET | libc::AF_INET6) => FileKind::Tcp,
                    (libc::SOCK_STREAM, _) => FileKind::Stream,
                    _ => FileKind::Message,
                }
            }
            _ => FileKind::File,
        })
    }
}

impl AsFd for Kernel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring's own descriptor, open as long as it.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Owner;
    use crate::buffer::Place;
    use crate::core::Kind;
    use crate::event::{Command, Data};
    use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

    /// Whatever is parked, and whenever: each completion once, in the order of its handle.
    #[test]
    fn parked_completions_keep_their_places() {
        for parks in 0..16u32 {
            let mut core = Core::new(1, Options { completions: 2, ..Options::default() });
            let Ok(mut kernel) = Kernel::new(&core.options).inspect_err(|e| testing::skip(format_args!("a ring: {e}")))
            else {
                return;
            };
            let (read, write) = rustix::pipe::pipe().unwrap();
            let files = [read.into_raw_fd(), write.into_raw_fd()];
            let [read, write] =
                files.map(|fd| core.insert(fd as u64, Target::Fd { fd, kind: FileKind::Pipe, owned: None }).unwrap());
            for n in 0..4u8 {
                for (at, kind) in [(write, Kind::Write), (read, Kind::Read)] {
                    let mut bytes = vec![n; 1 + usize::from(n)];
                    let place = Place::One { at: bytes.as_mut_ptr(), len: bytes.len() };
                    core.push(at, kind, place, u64::MAX, Owner::Vec(bytes)).unwrap();
                }
            }
            for round in 0..100 {
                if core.events.len() == 8 {
                    break;
                }
                while let Some(at) = core.next_dirty() {
                    kernel.begin(&mut core, at);
                }
                kernel.submit(&mut core).unwrap();
                if parks >> (round % 4) & 1 != 0 {
                    kernel.park();
                }
                kernel.flush(&mut core).unwrap();
            }
            for fd in files {
                // SAFETY: nobody else has it, and nothing is under way.
                drop(unsafe { OwnedFd::from_raw_fd(fd) });
            }
            for command in [Command::Write, Command::Read] {
                let of = core.events.iter().filter(|event| event.command == command);
                let bytes = of.map(|event| match (&event.result, &event.data) {
                    (Ok(n), Data::Vec(bytes)) if *n == bytes.len() => bytes.as_slice(),
                    other => panic!("{other:?}"),
                });
                assert!(bytes.eq((0..4u8).map(|n| vec![n; 1 + usize::from(n)])), "{parks:b}: {:?}", core.events);
            }
        }
    }
}

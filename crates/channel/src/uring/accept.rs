//! Accepting from the kernel: one multishot request a listener, whose connections wait here until they are asked for.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use ::io::netlink::Handshakes;
use io_uring::types::Fd;
use io_uring::{cqueue, opcode};

use super::{ACCEPT, ACCEPT_END, Kernel, LEFT, NOTHING, cancel, tag};
use crate::core::{Accept, Core, FileKind, LightOf, Raw, Target, Way};
use crate::errno;
use crate::event::{Data, Socket};
use crate::listeners::Membership;

/// Connections that are taken from a part that ends; more than any accept queue has.
const MOST_LEFT: usize = 1 << 16;

/// How long a part that ends waits for the handshakes that are under way on its port: longer than most ways are. The channel's thread
/// does nothing else meanwhile.
const HANDSHAKES: Duration = Duration::from_millis(200);
/// The same where more than [`FLOOD`] are under way, of which most come to nothing.
const OF_A_FLOOD: Duration = Duration::from_millis(20);
const FLOOD: usize = 1024;
/// Between two looks, each of which asks the kernel for all handshakes on the port: at first, and at most.
const LOOK_AGAIN: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(10)];

/// Handshakes with a part that the kernel's program names no more.
struct Ending {
    handshakes: Option<Handshakes>,
    until: Instant,
    pause: Duration,
}

impl Ending {
    fn of(part: BorrowedFd<'_>) -> Ending {
        // SYNs that the program has sent here are records by then.
        crate::sys::after_what_is_under_way();
        let port = crate::sys::local(part).and_then(|at| at.ip()).map(|at| at.port());
        // Without sock_diag nobody knows of any.
        let handshakes = port.and_then(Handshakes::under_way).ok();
        let under_way = handshakes.as_ref().map_or(0, Handshakes::seen);
        let limit = if under_way > FLOOD { OF_A_FLOOD } else { HANDSHAKES };
        Ending { handshakes, until: Instant::now() + limit, pause: LOOK_AGAIN[0] }
    }

    /// All of them are connections in the accept queue, or will be none; or it takes too long.
    fn over(&mut self) -> bool {
        let left = self.handshakes.as_mut().map_or(0, |handshakes| handshakes.left().unwrap_or(0));
        let over = left == 0 || Instant::now() >= self.until;
        if over {
            // Its descriptor may be one that a connection needs.
            self.handshakes = None;
        }
        over
    }

    /// Between two looks.
    fn pause(&mut self) {
        std::thread::sleep(self.pause);
        self.pause = LOOK_AGAIN[1].min(self.pause * 2);
    }
}

/// Connections that leave a registration that ends for the others of its listener.
struct Leaving {
    at: u32,
    fds: Vec<OwnedFd>,
    /// Those that nobody was there for.
    nobodys: usize,
    /// So long is waited for descriptors.
    until: Instant,
}

impl Accept {
    pub fn new(fd: OwnedFd, member: Option<Membership>, kind: FileKind) -> Box<Accept> {
        let waiting = VecDeque::new();
        Box::new(Accept {
            fd,
            member,
            kind,
            waiting,
            armed: false,
            ending: false,
            needs: 0,
            light: false,
            failed: false,
            in_kernel: 0,
            counted: 0,
        })
    }
}

fn listening(core: &mut Core, at: u32) -> Option<&mut Accept> {
    match &mut core.entries.get_mut(at)?.target {
        Target::Listener { accept, .. } => Some(accept),
        _ => None,
    }
}

impl Kernel {
    /// Gives what waits to who asks, and sees that more comes.
    pub(super) fn accept(&mut self, core: &mut Core, at: u32) {
        while let Some(light) = core.wants(at) {
            let Some(raw) = listening(core, at).and_then(|accept| accept.waiting.pop_front()) else { break };
            match self.convert(core, at, raw, light) {
                Ok(socket) => {
                    let queued = self.queued(core, at);
                    core.accepted(at, socket, queued);
                }
                // The connection is for who asks when there is room for it.
                Err((raw, error)) => {
                    if let Some(accept) = listening(core, at) {
                        accept.waiting.push_front(raw);
                    }
                    core.complete(at, Way::In, Err(error), Data::None);
                }
            }
        }
        self.follow(core, at);
    }

    /// Connections that wait to be accepted (MegaPipe 3.2): here, and in the kernel's queue, which is asked once a batch of
    /// completions.
    fn queued(&self, core: &mut Core, at: u32) -> usize {
        let Some(accept) = listening(core, at) else { return 0 };
        if accept.kind == FileKind::Tcp && accept.counted != self.batch {
            accept.counted = self.batch;
            accept.in_kernel = crate::sys::backlog(accept.fd.as_fd()).map_or(0, |(waits, _)| waits);
        }
        accept.waiting.len() + accept.in_kernel as usize
    }

    /// A connection as it was asked for; where there is no room for it, it and why.
    fn convert(&mut self, core: &mut Core, at: u32, raw: Raw, light: bool) -> Result<Socket, (Raw, io::Error)> {
        match (raw, light) {
            (Raw::Fd(fd), false) => Ok(Socket::Fd(fd)),
            (Raw::Fd(fd), true) => match self.take_in(core, fd.as_fd()) {
                Ok(slot) => self.light(core, at, slot),
                Err(error) => Err((Raw::Fd(fd), error)),
            },
            (Raw::Slot(slot), true) => self.light(core, at, slot),
            (Raw::Slot(slot), false) => {
                let fd = self.install(core, slot).map_err(|error| (Raw::Slot(slot), error))?;
                self.close_slot(core, slot);
                Ok(Socket::Fd(fd))
            }
        }
    }

    fn light(&mut self, core: &mut Core, at: u32, slot: u32) -> Result<Socket, (Raw, io::Error)> {
        let kind = listening(core, at).map_or(FileKind::Stream, |accept| accept.kind);
        let light = core.new_light(LightOf::Slot { slot, kind, shared: false });
        light.map(Socket::Light).map_err(|error| (Raw::Slot(slot), error))
    }

    /// Arms or ends the request, by what is asked for and what waits.
    fn follow(&mut self, core: &mut Core, at: u32) {
        let (ahead, wants) = (core.options.accept_ahead as usize, core.wants(at));
        let (generation, free) = (core.entries.generation(at), self.free_places());
        let Some(accept) = listening(core, at) else { return };
        let number = tag(ACCEPT, generation, at);
        if accept.armed {
            let full = wants.is_none() && accept.waiting.len() >= ahead;
            let short = accept.needs > 1 && free < accept.needs;
            if (full || short) && !accept.ending && ahead > 0 {
                accept.ending = true;
                self.push(core, &[cancel(number).user_data(tag(ACCEPT_END, generation, at))]);
            }
            return;
        }
        let light = wants.unwrap_or(accept.light);
        let begins = wants.is_some() || (!accept.failed && ahead > 0 && 2 * accept.waiting.len() < ahead);
        if !begins {
            return;
        }
        let needs = match light.then(|| self.places_for(core, at, ahead > 0)) {
            None => 0,
            Some(Ok(needs)) => needs,
            Some(Err(error)) => return self.failed(core, at, error),
        };
        let Some(accept) = listening(core, at) else { return };
        (accept.armed, accept.light, accept.failed, accept.needs) = (true, light, false, needs);
        let fd = Fd(accept.fd.as_raw_fd());
        let flags = if light { 0 } else { libc::SOCK_CLOEXEC };
        let entry = match ahead > 0 && needs != 1 {
            false => {
                let place = light.then_some(io_uring::types::DestinationSlot::auto_target());
                opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut())
                    .file_index(place)
                    .flags(flags)
                    .build()
            }
            true => opcode::AcceptMulti::new(fd).allocate_file_index(light).flags(flags).build(),
        };
        self.push(core, &[entry.user_data(number)]);
    }

    /// How many places the next request for connections may need at once: as many as can wait, or 1 where there are fewer, or
    /// no `many` are wanted. ENFILE where all may be taken by then.
    fn places_for(&mut self, core: &mut Core, at: u32, many: bool) -> io::Result<u32> {
        self.direct(core)?;
        let needs = |other: &u32| match core.entries.get(*other).map(|entry| &entry.target) {
            Some(Target::Listener { accept, .. }) if accept.armed && accept.light && *other != at => accept.needs,
            _ => 0,
        };
        let others: u32 = core.listening.iter().map(needs).sum();
        let free = self.free_places().saturating_sub(others);
        let Some(accept) = listening(core, at).filter(|_| free > 0) else { return Err(errno(libc::ENFILE)) };
        // One more than the backlog says.
        let most = crate::sys::backlog(accept.fd.as_fd()).map_or(libc::SOMAXCONN as u32, |(_, most)| most) + 1;
        Ok(if many && free > most { most.max(2) } else { 1 })
    }

    /// Who asks for a connection hears why there is none.
    fn failed(&mut self, core: &mut Core, at: u32, error: io::Error) {
        if let Some(accept) = listening(core, at) {
            accept.failed = true;
        }
        if core.wants(at).is_some() {
            core.complete(at, Way::In, Err(error), Data::None);
        }
    }

    /// The request for connections has something to say.
    pub(super) fn accepted(&mut self, core: &mut Core, at: u32, generation: u32, result: i32, flags: u32) {
        let known = core.entries.generation(at) & 0xff_ffff == generation;
        let Some(accept) = listening(core, at).filter(|_| known) else { return };
        let light = accept.light;
        if !cqueue::more(flags) {
            (accept.armed, accept.ending) = (false, false);
        }
        match (-result, u32::try_from(result)) {
            (_, Ok(slot)) if light => {
                accept.waiting.push_back(Raw::Slot(slot));
                self.count_place(true);
            }
            // SAFETY: a new descriptor, nobody else's.
            (_, Ok(fd)) => accept.waiting.push_back(Raw::Fd(unsafe { OwnedFd::from_raw_fd(fd as i32) })),
            // The connection was gone before it could be accepted, or the request was asked to end: there are others.
            (libc::ECANCELED | libc::ECONNABORTED | libc::EINTR | libc::EAGAIN | libc::EPROTO, _) => {}
            (number, _) => self.failed(core, at, errno(number)),
        }
        core.touch(at);
    }

    /// Another registration has left connections to this one.
    pub(super) fn left(&mut self, core: &mut Core, at: u32, generation: u32) {
        let known = core.entries.generation(at) & 0xff_ffff == generation;
        let Some(accept) = listening(core, at).filter(|_| known) else { return };
        let left = accept.member.as_ref().map(Membership::left).unwrap_or_default();
        accept.waiting.extend(left.into_iter().map(Raw::Fd));
        core.touch(at);
    }

    /// Others can leave connections to a new registration.
    pub fn reaches(&self, core: &mut Core, at: u32) {
        let number = tag(LEFT, core.entries.generation(at), at);
        if let Some(member) = listening(core, at).and_then(|accept| accept.member.as_ref()) {
            member.reached_by(self.ring.as_raw_fd(), number);
        }
    }

    /// Nothing is accepted any more when this returns; what was and is not asked for goes to other registrations of the
    /// listener. It is closed, and counted, where there is none, or for [`HANDSHAKES`] no descriptor to pass it on by.
    pub(super) fn stop_accepting(&mut self, core: &mut Core, at: u32) -> io::Result<()> {
        let number = tag(ACCEPT, core.entries.generation(at), at);
        if listening(core, at).is_some_and(|accept| accept.armed) {
            let cancels = [cancel(number)];
            self.push(core, &cancels);
            self.until_called_back(core, &cancels, |_, core| match core.entries.get(at).map(|entry| &entry.target) {
                Some(Target::Listener { accept, .. }) => !accept.armed,
                _ => true,
            })?;
        }
        let Some(accept) = listening(core, at) else { return Ok(()) };
        let listener = accept.fd.as_raw_fd();
        let mut waiting = std::mem::take(&mut accept.waiting);
        let (fds, others) = accept.member.as_ref().map(Membership::withdraw).unwrap_or_default();
        let mut leaving = Leaving { at, fds, nobodys: 0, until: Instant::now() + HANDSHAKES };
        if others {
            let told = core.take_accepted(at).into_iter().filter_map(|socket| match socket {
                Socket::Fd(fd) => Some(Raw::Fd(fd)),
                Socket::Light(light) => match core.light.remove(light.at())?.of {
                    LightOf::Slot { slot, .. } => Some(Raw::Slot(slot)),
                    LightOf::Lane(_) | LightOf::Ended => None,
                },
            });
            waiting.extend(told);
        }
        for raw in waiting {
            match raw {
                Raw::Fd(fd) => leaving.fds.push(fd),
                Raw::Slot(slot) => {
                    let fd =
                        others.then(|| self.for_others(core, &mut leaving, |kernel, core| kernel.install(core, slot)));
                    match fd {
                        Some(Ok(fd)) => leaving.fds.push(fd),
                        Some(Err(_)) | None => leaving.nobodys += 1,
                    }
                    self.close_slot(core, slot);
                }
            }
        }
        if listening(core, at).and_then(|accept| accept.member.as_ref()).is_some_and(Membership::is_part) {
            let part = crate::sys::borrow(listener)?;
            // The kernel resets what waits at a socket that is closed, and what is about to.
            if others {
                let mut handshakes = Ending::of(part);
                loop {
                    let over = handshakes.over();
                    for _ in 0..MOST_LEFT {
                        match self.for_others(core, &mut leaving, |kernel, core| kernel.next_left(core, listener)) {
                            Ok(connection) => leaving.fds.push(connection),
                            Err(_) => break,
                        }
                    }
                    if over {
                        break;
                    }
                    handshakes.pause();
                }
            }
            leaving.nobodys += crate::sys::backlog(part).map_or(0, |(waits, _)| waits as usize);
        }
        self.hand_over(core, &mut leaving)?;
        core.stats.dropped += leaving.nobodys as u64;
        Ok(())
    }

    /// A descriptor by which a connection goes to others. Where there is none, they are given what there is, for they may need
    /// less: until then, or for as long as is waited.
    fn for_others(
        &mut self,
        core: &mut Core,
        leaving: &mut Leaving,
        mut make: impl FnMut(&mut Self, &mut Core) -> io::Result<OwnedFd>,
    ) -> io::Result<OwnedFd> {
        loop {
            let error = match make(self, core) {
                Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => error,
                made => return made,
            };
            if Instant::now() >= leaving.until {
                return Err(error);
            }
            self.hand_over(core, leaving)?;
            std::thread::sleep(LOOK_AGAIN[0]);
        }
    }

    /// Gives the others what there is for them, and tells their rings.
    fn hand_over(&mut self, core: &mut Core, leaving: &mut Leaving) -> io::Result<()> {
        let fds = std::mem::take(&mut leaving.fds);
        let Some(member) = listening(core, leaving.at).and_then(|accept| accept.member.as_ref()) else {
            leaving.nobodys += fds.len();
            return Ok(());
        };
        let (rings, nobodys) = member.leave_to_others(fds);
        leaving.nobodys += nobodys;
        for (ring, number) in rings {
            if ring == self.ring.as_raw_fd() {
                self.left(core, number as u32, (number >> 32) as u32 & 0xff_ffff);
            } else {
                let tell = opcode::MsgRingData::new(Fd(ring), 0, number, None).build();
                self.push(core, &[tell.user_data(tag(NOTHING, 0, 0))]);
            }
        }
        // A thread that ends may not come this way again. The first may have to make room for completions.
        self.flush(core)?;
        self.flush(core)
    }

    /// Of what waits at a part that ends, the next; ECANCELED where there is none.
    fn next_left(&mut self, core: &mut Core, listener: RawFd) -> io::Result<OwnedFd> {
        loop {
            match self.accept_now(core, listener) {
                Err(error) if matches!(error.raw_os_error(), Some(libc::ECONNABORTED | libc::EINTR | libc::EPROTO)) => {
                }
                other => return other,
            }
        }
    }

    /// The request for connections was not found when it was called back: it goes on, and is called back again if it still should be.
    pub(super) fn not_ended(&mut self, core: &mut Core, at: u32, generation: u32) {
        let known = core.entries.generation(at) & 0xff_ffff == generation;
        if let Some(accept) = listening(core, at).filter(|_| known) {
            accept.ending = false;
            core.touch(at);
        }
    }

    /// Takes a connection that waits; ECANCELED where there is none. The listener may block, and another channel may be first: the
    /// request is called back behind itself.
    fn accept_now(&mut self, core: &mut Core, listener: RawFd) -> io::Result<OwnedFd> {
        let number = self.new_call();
        let none = std::ptr::null_mut();
        let accept = opcode::Accept::new(Fd(listener), none, none.cast()).flags(libc::SOCK_CLOEXEC).build();
        self.call(core, number, &[accept.user_data(number), cancel(number)], &[cancel(number)])
    }

    /// Takes connections that wait at another channel's part of a listener, up to half of them; how many.
    pub fn balance(&mut self, core: &mut Core) -> usize {
        let mut taken = 0;
        let least = core.options.balance;
        for i in 0..core.listening.len() {
            let at = core.listening[i];
            if core.wants(at).is_none() {
                continue;
            }
            let Some(accept) = listening(core, at) else { continue };
            let Some((fd, waits)) = accept.member.as_ref().and_then(|member| member.busiest(least)) else { continue };
            for _ in 0..waits.div_ceil(2).min(core.options.batch) {
                let Ok(connection) = self.accept_now(core, fd.as_raw_fd()) else { break };
                core.stats.taken += 1;
                taken += 1;
                if let Some(accept) = listening(core, at) {
                    accept.waiting.push_back(Raw::Fd(connection));
                }
            }
            self.accept(core, at);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    /// A listener that blocks, of which another was told that somebody waits.
    #[test]
    fn who_is_late_does_not_wait() {
        let mut core = Core::new(1, Options::default());
        let Ok(mut kernel) = Kernel::new(&core.options).inspect_err(|e| testing::skip(format_args!("a ring: {e}")))
        else {
            return;
        };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        for _ in 0..100 {
            let late = kernel.accept_now(&mut core, listener.as_raw_fd());
            assert_eq!(late.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
            let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let taken = std::net::TcpStream::from(kernel.accept_now(&mut core, listener.as_raw_fd()).unwrap());
            assert_eq!(taken.peer_addr().unwrap(), client.local_addr().unwrap());
        }
    }

    /// What is to end within a while: who waits for ever is told from who does not.
    fn ends(what: impl FnOnce() + Send + 'static) {
        let (over, ended) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            what();
            over.send(()).unwrap();
        });
        let limit = Duration::from_secs(30);
        assert!(ended.recv_timeout(limit) != Err(std::sync::mpsc::RecvTimeoutError::Timeout), "it waits for ever");
        thread.join().unwrap();
    }

    /// A request that is not found where it is called back first, as one that the kernel is about to try again: here because it
    /// comes after that.
    #[test]
    fn who_was_not_found_is_called_back_again() {
        ends(|| {
            let mut core = Core::new(1, Options::default());
            let Ok(mut kernel) = Kernel::new(&core.options).inspect_err(|e| testing::skip(format_args!("a ring: {e}")))
            else {
                return;
            };
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let (number, none) = (kernel.new_call(), std::ptr::null_mut());
            let accept = opcode::Accept::new(Fd(listener.as_raw_fd()), none, none.cast()).build().user_data(number);
            let late = kernel.call(&mut core, number, &[cancel(number), accept], &[cancel(number)]);
            assert_eq!(late.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
        });
    }

    /// Two take from a listener at once: who finds that the other was faster does not wait for the next connection, which never comes.
    #[test]
    fn who_takes_beside_another_does_not_wait() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        ends(|| {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let (listener, connected, taken) = (&listener, &AtomicUsize::new(0), &AtomicUsize::new(0));
            const EACH: usize = 1000;
            let take = || {
                let mut core = Core::new(1, Options::default());
                let mut kernel =
                    Kernel::new(&core.options).inspect_err(|e| testing::skip(format_args!("a ring: {e}"))).ok()?;
                while connected.load(Ordering::Acquire) < EACH || taken.load(Ordering::Relaxed) < EACH {
                    let found = kernel.accept_now(&mut core, listener.as_raw_fd()).is_ok();
                    taken.fetch_add(found.into(), Ordering::Relaxed);
                }
                Some(())
            };
            std::thread::scope(|scope| {
                let both = [0, 1].map(|_| scope.spawn(take));
                for _ in 0..EACH {
                    drop(std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap());
                    connected.fetch_add(1, Ordering::Release);
                    if both.iter().any(|thread| thread.is_finished()) {
                        break;
                    }
                }
                both.into_iter().for_each(|thread| {
                    thread.join().unwrap();
                });
            });
        });
    }
}

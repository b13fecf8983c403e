//! Clients in other processes, on a lane: at whose jobs it looks in each turn, who must ring, who is woken, and who has gone.
//!
//! A thread that has asked for something lately is *polled*: its ring is looked at in each turn, and it makes no system call. One that has not
//! rings an eventfd for its next job, which the lane finds in an epoll: when it sleeps, and every now and then while it is busy. So a
//! thousand clients that are idle cost the others nothing in a turn.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use io::Bell;
use mem::lease::{Lease, Words};
use rustix::event::{Timespec, epoll};
use stack::{Bounds, ClientId, Ill, SeatId, Stack};
use wire::Instant;

/// How often a busy lane looks who has rung, µs.
const LOOK_US: u64 = 50;
/// Turns without a job after which a thread must ring.
const IDLE_TURNS: u32 = 256;
/// Rings and deaths that one look takes.
const RUNG: usize = 64;

/// A client that comes: what [`crate::Door`] has made for it.
pub(crate) struct Arrival {
    pub lease: Lease,
    pub bounds: Bounds,
    /// What it rings.
    pub bell: OwnedFd,
    /// What wakes its threads.
    pub threads: Vec<OwnedFd>,
    /// The process, to see when it is gone.
    pub process: OwnedFd,
}

/// A thread of a client.
struct Thread {
    seat: SeatId,
    /// Wakes it.
    client: Bell,
    /// It rings this one.
    stack: Bell,
    words: Words,
    polled: bool,
    idle: u32,
}

struct Client {
    id: ClientId,
    bell: OwnedFd,
    process: OwnedFd,
    threads: Vec<Thread>,
    /// Its memory, which the stack's sides keep, too.
    _lease: Lease,
}

/// All of a lane's.
pub(crate) struct Clients {
    epoll: OwnedFd,
    all: Vec<Option<Client>>,
    /// Whose a seat is, by its number: the client's place here, and the thread's there.
    seats: Vec<Option<(u32, u32)>>,
    /// Threads that are polled, by place.
    polled: Vec<(u32, u32)>,
    looked: Instant,
}

/// What an event of the epoll is about.
fn tag(place: usize, process: bool) -> epoll::EventData {
    epoll::EventData::new_u64((place as u64) << 1 | u64::from(process))
}

impl Clients {
    /// None yet.
    pub fn new() -> rustix::io::Result<Clients> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Clients { epoll, all: Vec::new(), seats: Vec::new(), polled: Vec::new(), looked: Instant::ZERO })
    }

    /// Readable when somebody has rung, or has gone.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// A client comes; why it cannot.
    pub fn admit(&mut self, stack: &mut Stack, arrival: Arrival) -> Result<(), String> {
        let Arrival { lease, bounds, bell, threads, process } = arrival;
        let full = || "there are too many clients already".to_owned();
        let side = lease.stack_side().map_err(|e| e.to_string())?.ok_or("the memory is in use")?;
        let id = stack.add_client(side, bounds).ok_or_else(full)?;
        let place = self.all.iter().position(Option::is_none).unwrap_or(self.all.len());
        let mut client = Client { id, bell, process, threads: Vec::new(), _lease: lease };
        for (n, fd) in threads.into_iter().enumerate() {
            let side = stack.side_of(id).ok_or_else(full)?;
            let seat = client._lease.stack_seat(n, side).ok_or("the memory has fewer seats")?;
            let (seat, words) = stack.add_client_seat(id, seat).ok_or_else(full)?;
            let rung = client.bell.try_clone().map_err(|e| e.to_string())?;
            let at = usize::from(seat.0);
            if self.seats.len() <= at {
                self.seats.resize(at + 1, None);
            }
            self.seats[at] = Some((place as u32, n as u32));
            client.threads.push(Thread {
                seat,
                client: Bell::of_client(fd, words.clone()),
                stack: Bell::of_stack(rung, words.clone()),
                words,
                polled: false,
                idle: 0,
            });
        }
        let watched = epoll::add(&self.epoll, &client.bell, tag(place, false), epoll::EventFlags::IN)
            .and_then(|()| epoll::add(&self.epoll, &client.process, tag(place, true), epoll::EventFlags::IN));
        watched.map_err(|e| format!("epoll: {e}"))?;
        match self.all.get_mut(place) {
            Some(free) => *free = Some(client),
            None => self.all.push(Some(client)),
        }
        Ok(())
    }

    /// Before a turn: who has rung is polled, who has gone is ended, every now and then.
    pub fn look(&mut self, now: Instant, stack: &mut Stack) {
        if now.micros_since(self.looked) < LOOK_US {
            return;
        }
        self.looked = now;
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; RUNG];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let found = epoll::wait(&self.epoll, &mut events[..], Some(&at_once)).unwrap_or(0);
        for event in &events[..found] {
            let data = event.data.u64();
            let (place, process) = ((data >> 1) as usize, data & 1 != 0);
            if process {
                self.gone(now, place, stack);
            } else {
                self.rung(place, stack);
            }
        }
    }

    /// A client has rung: its threads are polled.
    fn rung(&mut self, place: usize, stack: &mut Stack) {
        let Some(Some(client)) = self.all.get_mut(place) else { return };
        let mut count = [0; 8];
        // Nothing to read is as good.
        let _ = rustix::io::read(&client.bell, &mut count);
        for (n, thread) in client.threads.iter_mut().enumerate().filter(|(_, thread)| !thread.polled) {
            (thread.polled, thread.idle) = (true, 0);
            thread.stack.quiet();
            stack.poll_seat(thread.seat, true);
            self.polled.push((place as u32, n as u32));
        }
    }

    /// A client's process has gone.
    fn gone(&mut self, now: Instant, place: usize, stack: &mut Stack) {
        if let Some(client) = self.all.get(place).and_then(Option::as_ref) {
            let id = client.id;
            self.forget(place);
            stack.end_client(now, id);
        }
    }

    /// Nothing is said to a client any more.
    fn forget(&mut self, place: usize) {
        let Some(client) = self.all.get_mut(place).and_then(Option::take) else { return };
        for thread in &client.threads {
            thread.words.end();
            thread.client.ring();
            self.seats[usize::from(thread.seat.0)] = None;
        }
        self.polled.retain(|(of, _)| *of as usize != place);
        // They may be gone from it with their last descriptors already.
        let _ = epoll::delete(&self.epoll, &client.bell);
        let _ = epoll::delete(&self.epoll, &client.process);
    }

    /// After a turn: who was told something and sleeps is woken, who broke a rule is let go, and who has asked for nothing for long must ring
    /// again.
    pub fn settle(&mut self, stack: &mut Stack) {
        for seat in stack.told() {
            if let Some(Some((place, n))) = self.seats.get(usize::from(seat.0))
                && let Some(Some(client)) = self.all.get(*place as usize)
            {
                client.threads[*n as usize].client.ring_if_sleeping();
            }
        }
        for (id, ill) in stack.take_ill() {
            self.end_ill(id, ill);
        }
        let mut n = 0;
        while let Some((place, thread)) = self.polled.get(n).copied() {
            let Some(Some(client)) = self.all.get_mut(place as usize) else { break };
            let thread = &mut client.threads[thread as usize];
            let busy = stack.has_jobs_of(thread.seat);
            thread.idle = if busy { 0 } else { thread.idle + 1 };
            if thread.idle > IDLE_TURNS {
                thread.stack.arm();
                if !stack.has_jobs_of(thread.seat) {
                    thread.polled = false;
                    stack.poll_seat(thread.seat, false);
                    self.polled.swap_remove(n);
                    continue;
                }
                thread.stack.quiet();
                thread.idle = 0;
            }
            n += 1;
        }
    }

    fn end_ill(&mut self, id: ClientId, ill: Ill) {
        tracing::warn!("a client was ended, and its connections reset: {ill}");
        if let Some(place) = self.all.iter().position(|client| client.as_ref().is_some_and(|c| c.id == id)) {
            self.forget(place);
        }
    }

    /// The lane is about to sleep: whoever has a job from now on rings. What was asked for before is to be looked for once more.
    pub fn arm(&self) {
        self.each_polled(Bell::arm);
    }

    /// It is awake.
    pub fn quiet(&self) {
        self.each_polled(Bell::quiet);
    }

    fn each_polled(&self, f: impl Fn(&Bell)) {
        for (place, thread) in &self.polled {
            if let Some(Some(client)) = self.all.get(*place as usize) {
                f(&client.threads[*thread as usize].stack);
            }
        }
    }

    /// The lane is over: nobody is to wait for it any more.
    pub fn end(&mut self) {
        (0..self.all.len()).for_each(|place| self.forget(place));
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.end();
    }
}

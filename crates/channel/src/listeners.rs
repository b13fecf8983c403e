//! Listeners in parts: a core's connections come to the core's channel (MegaPipe 3.4.1).
//!
//! The kernel's listener is cut by SO_REUSEPORT: each part is a socket of its own on the same address, with its own accept
//! queue, and a program of classic BPF says by the CPU that a SYN came in on whose it is. The original keeps all CPUs that no
//! part has. The parts of a listener are known to the whole process, for their masks must not meet and their program is one.
//!
//! Connections that wait where a registration ends go to the others: what the channel had accepted, and what the kernel keeps
//! for a part, which would be reset with it.
//!
//! The kernel keeps the sockets of an address in an array. When one stops listening, the last of the array takes its place; the list
//! here does the same, since the BPF program answers with a place of that array. A part is shut down before its place is used again:
//! closing its descriptor stops it only when no other descriptor is left, and a channel that accepts from it, or a child of
//! fork(2), has one too. Only a *blank* takes a place: a socket that the program never answers with. A part that moved would miss
//! connections until the program is replaced.
//!
//! The newest socket of a group never stops; a blank is made before it would. The kernel finds an address's sockets by a list that
//! begins with the newest (IPv4), and asks the group of the first one which socket gets the connection. A socket that stops leaves its
//! group a moment before it leaves the list: a SYN that finds it then stays with it, and is lost.

use std::collections::BTreeMap;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use runtime::forks::{self, Lock, Locked};

use crate::address::Address;
use crate::beside::beside;
use crate::options::CpuMask;
use crate::slab::Slab;
use crate::{errno, inherited, sys};

/// A listener that is bound to no engine yet: the channels of lanes it is registered with listen each in their own table,
/// those of the kernel share a kernel's listener. Its number is 2^29 or more, and less than a lightweight socket's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Listener(i32);

const FIRST: i32 = 1 << 29;
const MOST: u32 = 1 << 16;
/// Listeners that are closed before a place is another's: their numbers have 12 bits of generation.
const REST: usize = 64;

impl Listener {
    /// Listens at an address once it is registered. Nothing is asked of the kernel before, so that a wrong address is an
    /// error of the registration; EAFNOSUPPORT where it is no IP address.
    pub fn at(address: Address, backlog: i32) -> io::Result<Listener> {
        address.ip()?;
        let mut all = lock();
        let object = Object { address, backlog: backlog.max(1), kernel: None };
        let at = all.objects.insert(object).map_err(|_| errno(libc::EMFILE))?;
        Ok(all.listener(at))
    }

    /// Its number.
    pub fn number(self) -> i32 {
        self.0
    }

    /// From its number; `None` where that is something else's. Whether it names anything is checked where it is used.
    pub fn from_number(number: i32) -> Option<Listener> {
        (FIRST..FIRST << 1).contains(&number).then_some(Listener(number))
    }

    /// It is gone; EBUSY while it is registered.
    pub fn close(self) -> io::Result<()> {
        let mut all = lock();
        let at = all.object(self)?;
        if all.groups.contains_key(&Key::Object(self)) {
            return Err(errno(libc::EBUSY));
        }
        all.objects.remove(at);
        Ok(())
    }

    /// Where it listens: what it was made with, and the port that was chosen where that was 0.
    pub fn address(self) -> io::Result<Address> {
        let all = lock();
        let at = all.object(self)?;
        all.objects.get(at).map(|object| object.address).ok_or_else(|| errno(libc::EBADF))
    }

    /// A lane has chosen where it listens: so do all. `false`: another one was first, and has chosen another port.
    pub(crate) fn chosen(self, address: Address) -> io::Result<bool> {
        let mut all = lock();
        let at = all.object(self)?;
        let object = all.objects.get_mut(at).ok_or_else(|| errno(libc::EBADF))?;
        if object.address.ip()?.port() == 0 {
            object.address = address;
        }
        Ok(object.address.ip()?.port() == address.ip()?.port())
    }
}

struct Object {
    /// With the port that was chosen, once it is.
    address: Address,
    backlog: i32,
    /// The kernel's listener, from the first registration with one of its channels on.
    kernel: Option<OwnedFd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// A descriptor's socket.
    Socket(u64),
    Object(Listener),
}

/// A part that the kernel knows.
struct Part {
    /// Of the registration; [`BLANK`] of none.
    id: u64,
    /// Later than all that were made before.
    age: u64,
    fd: OwnedFd,
}

/// Keeps a place for the next registration. The last id that is given is far from it.
const BLANK: u64 = u64::MAX;

/// The registrations of one listener.
struct Group {
    /// The kernel's listener itself.
    whole: Option<OwnedFd>,
    /// In the kernel's order, which begins with the whole.
    parts: Vec<Part>,
    /// Of the part that was made last.
    age: u64,
    members: Vec<Member>,
}

/// A registration, as the others know it.
struct Member {
    id: u64,
    mask: CpuMask,
    /// The ring that accepts, and the number that it knows the registration by.
    ring: Option<(RawFd, u64)>,
    /// Connections that another one has left to it.
    left: Vec<OwnedFd>,
}

struct Registry {
    objects: Slab<Object>,
    groups: BTreeMap<Key, Group>,
    /// What a parent has registered.
    copies: Vec<BTreeMap<Key, Group>>,
    /// The process whose `groups` they are.
    forks: u32,
    last: u64,
}

static ALL: Lock<Registry> = Lock::new(Registry {
    objects: Slab::resting(MOST, REST),
    groups: BTreeMap::new(),
    copies: Vec::new(),
    forks: 0,
    last: 0,
});

fn lock() -> Locked<Registry> {
    let mut all = ALL.lock();
    let forks = forks::count();
    if std::mem::replace(&mut all.forks, forks) != forks {
        // Its channels are not here to serve anybody, its parts not ours to shut down; nor are the copies of its descriptors to
        // be closed: the program may have done so, and their numbers be those of other files.
        let parents = std::mem::take(&mut all.groups);
        all.copies.push(parents);
    }
    all
}

/// A registration of a listener; it ends with this.
#[derive(Debug)]
pub(crate) struct Membership {
    key: Key,
    id: u64,
}

impl Registry {
    /// What a place's listener is called.
    fn listener(&self, at: u32) -> Listener {
        Listener(FIRST | (self.objects.generation(at) as i32 & 0xfff) << 16 | at as i32)
    }

    fn object(&self, listener: Listener) -> io::Result<u32> {
        let at = listener.0 as u32 & (MOST - 1);
        (self.listener(at) == listener && self.objects.get(at).is_some())
            .then_some(at)
            .ok_or_else(|| errno(libc::EBADF))
    }

    /// Whether a parent had parts of the listener when this process was forked. The places of parts are those of one list, the
    /// kernel's: a program written here would send their connections elsewhere.
    fn parents(&self, key: Key) -> bool {
        self.copies.iter().any(|groups| groups.get(&key).is_some_and(|group| !group.parts.is_empty()))
    }

    /// A registration under a mask that meets no other's; EBUSY where it does.
    fn join(&mut self, key: Key, mask: CpuMask) -> io::Result<u64> {
        let empty = || Group { whole: None, parts: Vec::new(), age: 0, members: Vec::new() };
        let group = self.groups.entry(key).or_insert_with(empty);
        if group.members.iter().any(|other| other.mask.meets(&mask)) {
            return Err(errno(libc::EBUSY));
        }
        self.last += 1;
        group.members.push(Member { id: self.last, mask, ring: None, left: Vec::new() });
        Ok(self.last)
    }

    /// A registration and its part are gone.
    fn leave(&mut self, key: Key, id: u64) {
        let Some(group) = self.groups.get_mut(&key) else { return };
        group.members.retain(|other| other.id != id);
        if let Some(at) = group.parts.iter().position(|part| part.id == id) {
            group.end_part(at);
        }
        if group.members.is_empty() {
            self.groups.remove(&key);
        }
    }
}

impl Group {
    /// A part stops listening, and a blank has its place.
    fn end_part(&mut self, at: usize) {
        // The program names it no more, or is about to: nobody moves meanwhile.
        let moves = at + 1 < self.parts.len() && self.parts.last().is_some_and(|last| last.id != BLANK);
        if let Some(whole) = &self.whole
            && (moves || self.is_newest(at))
            && let Ok(fd) = beside(whole.as_fd(), &[])
        {
            self.add(BLANK, fd);
        }
        self.stop(at);
        // One blank that moves into the place of another one harms nobody.
        while self.parts.last().is_some_and(|last| last.id == BLANK)
            && let Some(at) = (0..self.parts.len()).rfind(|at| self.parts[*at].id == BLANK && !self.is_newest(*at))
        {
            self.stop(at);
        }
        // Where the kernel does not take it, CPUs of no part fall to the original, or to whom the old program says.
        let _ = self.direct();
    }

    fn add(&mut self, id: u64, fd: OwnedFd) {
        self.age += 1;
        self.parts.push(Part { id, age: self.age, fd });
    }

    fn is_newest(&self, at: usize) -> bool {
        self.parts[at].age == self.age
    }

    /// A part stops listening now, whoever else has its socket; the last takes its place.
    fn stop(&mut self, at: usize) {
        let part = self.parts.swap_remove(at);
        let _ = sys::shutdown(part.fd.as_raw_fd(), libc::SHUT_RDWR);
    }

    /// A socket for a new part, and its place.
    fn part(&mut self, id: u64, whole: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        if let Some(blank) = self.parts.iter_mut().find(|part| part.id == BLANK) {
            inherited::copy(blank.fd.as_fd(), whole, inherited::ALL)?;
            inherited::copy(blank.fd.as_fd(), whole, inherited::LISTENING)?;
            let own = blank.fd.try_clone()?;
            blank.id = id;
            return Ok(own);
        }
        if self.parts.is_empty() {
            // Without a program the kernel deals connections out by hash as soon as the part listens. It takes none (EINVAL) as
            // long as a listener that began without SO_REUSEPORT is alone: then some may come to the part from any CPU, but all
            // that can be refused was asked for before.
            match attach(whole, &mut [step(RETURN, 0, 0, 0)]) {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                other => other?,
            }
        }
        let made = beside(whole, inherited::ALL).and_then(|own| Ok((own.try_clone()?, own)));
        let (fd, own) = made.inspect_err(|_| {
            // Takes that program away again.
            let _ = self.direct();
        })?;
        self.add(id, fd);
        Ok(own)
    }

    /// Tells the kernel by CPU whose a connection is.
    fn direct(&self) -> io::Result<()> {
        let Some(whole) = &self.whole else { return Ok(()) };
        if self.parts.is_empty() {
            return sys::set_option(whole.as_fd(), libc::SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, 0);
        }
        let mut program = vec![step(LOAD_ABSOLUTE, 0, 0, CPU)];
        for (place, part) in self.parts.iter().enumerate() {
            // One that is about to end is nobody's, and still has its place.
            let member = self.members.iter().find(|member| member.id == part.id);
            for cpu in member.iter().flat_map(|member| member.mask.cpus()) {
                program.push(step(JUMP_EQUAL, 0, 1, cpu));
                program.push(step(RETURN, 0, 0, place as u32 + 1));
            }
        }
        program.push(step(RETURN, 0, 0, 0));
        attach(whole.as_fd(), &mut program)
    }
}

/// Gives the sockets of an address a program, which answers with the place of the one that has a connection.
fn attach(whole: BorrowedFd<'_>, program: &mut [libc::sock_filter]) -> io::Result<()> {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let (name, len) = (libc::SO_ATTACH_REUSEPORT_CBPF, size_of::<libc::sock_fprog>() as libc::socklen_t);
    let fd = whole.as_raw_fd();
    // SAFETY: the program lives until the call is over, which copies it.
    let done = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, name, (&raw const filter).cast(), len) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

const SO_DETACH_REUSEPORT_BPF: i32 = 68;
const LOAD_ABSOLUTE: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const JUMP_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
/// SKF_AD_OFF + SKF_AD_CPU: the CPU that runs the program.
const CPU: u32 = -0x1000i32 as u32 + 36;

fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// The kernel's side of a registration: a descriptor to accept from, the part of `mask`'s CPUs or, without one, the whole.
fn enter(all: &mut Registry, key: Key, whole: BorrowedFd<'_>, mask: CpuMask) -> io::Result<(OwnedFd, Membership)> {
    if !mask.is_empty() && all.parents(key) {
        return Err(errno(libc::EBUSY));
    }
    let own = whole.try_clone_to_owned()?;
    let id = all.join(key, mask)?;
    let membership = Membership { key, id };
    let add = || {
        let group = all.groups.get_mut(&key).ok_or_else(|| errno(libc::EBADF))?;
        if group.whole.is_none() {
            group.whole = Some(own.try_clone()?);
        }
        if mask.is_empty() {
            return Ok(own);
        }
        let part = group.part(id, whole)?;
        group.direct()?;
        Ok(part)
    };
    match add() {
        Ok(fd) => Ok((fd, membership)),
        Err(error) => {
            all.leave(key, id);
            std::mem::forget(membership);
            Err(error)
        }
    }
}

impl Membership {
    /// Registers a descriptor that listens.
    pub fn socket(whole: BorrowedFd<'_>, mask: CpuMask) -> io::Result<(OwnedFd, Membership)> {
        let key = Key::Socket(sys::cookie(whole)?);
        enter(&mut lock(), key, whole, mask)
    }

    /// Registers a listener with a channel of the kernel.
    pub fn kernel(listener: Listener, mask: CpuMask) -> io::Result<(OwnedFd, Membership)> {
        let mut all = lock();
        let at = all.object(listener)?;
        let object = all.objects.get_mut(at).ok_or_else(|| errno(libc::EBADF))?;
        if object.kernel.is_none() {
            let fd = sys::socket(object.address.family(), libc::SOCK_STREAM, 0)?;
            sys::set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
            sys::bind(fd.as_fd(), &object.address)?;
            sys::listen(fd.as_fd(), object.backlog)?;
            object.address = sys::local(fd.as_fd())?;
            object.kernel = Some(fd);
        }
        let whole = object.kernel.as_ref().ok_or_else(|| errno(libc::EBADF))?.try_clone()?;
        enter(&mut all, Key::Object(listener), whole.as_fd(), mask)
    }

    /// Registers a listener with a lane's channel: where it listens, and how many may wait.
    pub fn lane(listener: Listener, mask: CpuMask) -> io::Result<(Address, i32, Membership)> {
        let mut all = lock();
        let at = all.object(listener)?;
        let key = Key::Object(listener);
        let id = all.join(key, mask)?;
        let object = all.objects.get(at).ok_or_else(|| errno(libc::EBADF))?;
        Ok((object.address, object.backlog, Membership { key, id }))
    }

    /// What the ring that accepts is, and the number that it knows this by.
    pub fn reached_by(&self, ring: RawFd, number: u64) {
        let mut all = lock();
        let members = all.groups.get_mut(&self.key).map(|group| &mut group.members);
        if let Some(member) = members.into_iter().flatten().find(|member| member.id == self.id) {
            member.ring = Some((ring, number));
        }
    }

    /// Nobody connects to this registration any more, though its socket is there still. What others had left to it, and whether
    /// there are others to leave it to.
    pub fn withdraw(&self) -> (Vec<OwnedFd>, bool) {
        let mut all = lock();
        let Some(group) = all.groups.get_mut(&self.key) else { return (Vec::new(), false) };
        let own = group.members.extract_if(.., |member| member.id == self.id);
        let left = own.flat_map(|member| member.left).collect();
        if group.parts.iter().any(|part| part.id == self.id) {
            let _ = group.direct();
        }
        (left, group.members.iter().any(|member| member.ring.is_some()))
    }

    /// Whether this is a part, which has an accept queue of its own.
    pub fn is_part(&self) -> bool {
        lock().groups.get(&self.key).is_some_and(|group| group.parts.iter().any(|part| part.id == self.id))
    }

    /// Deals connections to the other registrations: whose rings have to hear of it, and how many nobody was there for.
    pub fn leave_to_others(&self, connections: Vec<OwnedFd>) -> (Vec<(RawFd, u64)>, usize) {
        let mut all = lock();
        let members = all.groups.get_mut(&self.key).map(|group| group.members.as_mut_slice()).unwrap_or_default();
        let mut others: Vec<_> = members.iter_mut().filter(|member| member.ring.is_some()).collect();
        if others.is_empty() {
            return (Vec::new(), connections.len());
        }
        let n = others.len();
        for (i, connection) in connections.into_iter().enumerate() {
            if let Some(member) = others.get_mut(i % n) {
                member.left.push(connection);
            }
        }
        (others.iter().filter(|member| !member.left.is_empty()).filter_map(|member| member.ring).collect(), 0)
    }

    /// What others have left to this registration.
    pub fn left(&self) -> Vec<OwnedFd> {
        let mut all = lock();
        let members = all.groups.get_mut(&self.key).map(|group| &mut group.members);
        let mine = members.into_iter().flatten().find(|member| member.id == self.id);
        mine.map(|member| std::mem::take(&mut member.left)).unwrap_or_default()
    }

    /// Of the other parts of the listener, and the original, the one where most connections wait, if at least `least` do.
    pub fn busiest(&self, least: u32) -> Option<(OwnedFd, u32)> {
        let all = lock();
        let group = all.groups.get(&self.key)?;
        let mine = group.parts.iter().any(|part| part.id == self.id);
        let whole = group.whole.iter().filter(|_| mine);
        let others = group.parts.iter().filter(|part| part.id != self.id).map(|part| &part.fd).chain(whole);
        let waits = |fd: &OwnedFd| sys::backlog(fd.as_fd()).map_or(0, |(waits, _)| waits);
        let (fd, waits) = others.map(|fd| (fd, waits(fd))).max_by_key(|(_, waits)| *waits)?;
        if waits < least {
            return None;
        }
        Some((fd.try_clone().ok()?, waits))
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        lock().leave(self.key, self.id);
    }
}

#[cfg(test)]
pub(crate) mod tests;

//! What both engines share: handles, their operations in order, and the completions that nobody has fetched.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{OwnedFd, RawFd};

use ::socket::SockId;

use crate::address::Address;
use crate::buffer::{Owner, Place};
use crate::errno;
use crate::event::{Command, Data, Event, Message, Socket};
use crate::flow::Flow;
use crate::listeners::{Listener, Membership};
use crate::names::{Handle, LwSocket, MOST_HANDLES, MOST_LIGHT, REST};
use crate::options::Options;
use crate::slab::{NONE, Slab};
use crate::stats::Stats;

/// What an operation does.
pub(crate) enum Kind {
    /// So many connections more (`u32::MAX`: without end), lightweight or not.
    Accept {
        left: u32,
        light: bool,
    },
    Connect(Box<Address>),
    Read,
    Recv,
    Write,
    /// SHUT_RD, SHUT_WR, SHUT_RDWR.
    Disconnect(i32),
}

impl Kind {
    fn command(&self) -> Command {
        match self {
            Kind::Accept { .. } => Command::Accept,
            Kind::Connect(_) => Command::Connect,
            Kind::Read => Command::Read,
            Kind::Recv => Command::Recv,
            Kind::Write => Command::Write,
            Kind::Disconnect(_) => Command::Disconnect,
        }
    }

    /// Reads wait for reads, all else for what is not one.
    fn way(&self) -> Way {
        match self {
            Kind::Accept { .. } | Kind::Read | Kind::Recv => Way::In,
            Kind::Connect(_) | Kind::Write | Kind::Disconnect(_) => Way::Out,
        }
    }
}

/// The two orders of a handle's operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    In,
    Out,
}

/// Where the kernel's part of an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Waits for its turn.
    Queued,
    /// The kernel has it.
    Submitted,
    /// The kernel is asked when it can go on.
    Polled,
    /// The kernel has it: the end of a connection, by closing its place.
    Closing,
}

/// One operation of one handle.
pub(crate) struct Op {
    pub handle: u32,
    next: u32,
    pub kind: Kind,
    pub stage: Stage,
    pub place: Place,
    /// Where in the file; `u64::MAX` its own position.
    pub offset: u64,
    pub done: usize,
    /// It read a message that was longer than its memory.
    pub cut: bool,
    /// Where the caller's memory begins, for the completion.
    first: *mut u8,
    owner: Owner,
}

impl Op {
    /// Of a message of `n` bytes, how many the memory of a read has, and that there were more.
    pub fn holds(&mut self, n: usize, room: usize) -> usize {
        self.cut = n > room;
        n.min(room)
    }
}

/// Operations of one way, in order.
#[derive(Clone, Copy)]
pub(crate) struct Queue {
    pub head: u32,
    tail: u32,
}

/// What reads and writes on a file of the kernel come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// TCP: the end may ride on the last bytes.
    Tcp,
    /// Other sockets that are streams.
    Stream,
    /// Sockets with messages.
    Message,
    /// Pipes and FIFOs.
    Pipe,
    /// All else.
    File,
}

/// What a handle is of.
pub(crate) enum Target {
    Fd {
        fd: RawFd,
        kind: FileKind,
        owned: Option<OwnedFd>,
    },
    /// A place in the ring's table of files.
    Direct {
        light: u32,
        slot: u32,
        kind: FileKind,
    },
    /// What was a place in the ring's table, and is free for others: the connection was ended in both directions.
    Ended {
        light: u32,
    },
    /// A listener of the kernel; the descriptor that was registered, where there was one.
    Listener {
        accept: Box<Accept>,
        fd: RawFd,
        owned: Option<OwnedFd>,
    },
    /// A socket of the lane.
    Lane {
        light: u32,
        sock: SockId,
    },
    /// A listener of the lane, of its own or as a part of one.
    LaneListener {
        sock: SockId,
        of: ListenerOf,
    },
}

/// Whose a listener of the lane is.
pub(crate) enum ListenerOf {
    /// A lightweight socket that listens.
    Light(u32),
    /// A listener of the process.
    Object { listener: Listener, _member: Membership },
}

/// A connection that was accepted from the kernel and not asked for yet.
pub(crate) enum Raw {
    Fd(OwnedFd),
    Slot(u32),
}

/// The kernel's part of a listening handle.
pub(crate) struct Accept {
    /// Its own descriptor: of a part of a listener, or of the whole.
    pub fd: OwnedFd,
    // After the descriptor: with it gone the others hear of it.
    pub member: Option<Membership>,
    /// What its connections are.
    pub kind: FileKind,
    pub waiting: VecDeque<Raw>,
    /// An accept is under way; the last one was asked to end.
    pub armed: bool,
    pub ending: bool,
    /// Places in the ring's table that what is under way may need at once.
    pub needs: u32,
    /// What is under way gives lightweight sockets.
    pub light: bool,
    /// It failed, and nobody was there to be told; the next request tries again.
    pub failed: bool,
    /// Connections in the kernel's queue, and the batch of completions with which that was asked.
    pub in_kernel: u32,
    pub counted: u64,
}

/// One registered file or socket.
pub(crate) struct Entry {
    pub cookie: u64,
    pub target: Target,
    pub input: Queue,
    pub output: Queue,
    /// On the list of those to be looked at.
    dirty: bool,
    /// The last read left nothing behind.
    pub drained: bool,
    /// Its place in the ring's table is being closed, and may soon be another's.
    pub closing: bool,
    /// It receives until further notice.
    pub flow: Option<Box<Flow>>,
    /// On the list of those whose `recv` found no buffer.
    pub starving: bool,
}

/// A lightweight socket.
pub(crate) struct Light {
    pub of: LightOf,
    pub handle: u32,
    /// It is a lane's that listens; with it what the kernel has granted for it.
    pub listens: Option<Option<runtime::Claim>>,
}

#[derive(Clone, Copy)]
pub(crate) enum LightOf {
    /// A place in the ring's table.
    Slot {
        slot: u32,
        kind: FileKind,
        /// Descriptors of the process were made of it as well.
        shared: bool,
    },
    Lane(SockId),
    /// Its connection was ended, and its place given back.
    Ended,
}

/// What both engines share.
pub(crate) struct Core {
    pub id: u32,
    pub options: Options,
    pub entries: Slab<Entry>,
    pub ops: Slab<Op>,
    pub light: Slab<Light>,
    pub events: VecDeque<Event>,
    /// Descriptors that are registered.
    pub fds: HashMap<RawFd, u32>,
    /// Handles that accept from the kernel.
    pub listening: Vec<u32>,
    /// Handles with something to begin.
    pub dirty: Vec<(u32, u32)>,
    /// Requests since the last hand-over.
    pub asked: u32,
    pub stats: Stats,
}

impl Core {
    pub fn new(id: u32, options: Options) -> Core {
        Core {
            id,
            options,
            entries: Slab::new(MOST_HANDLES),
            ops: Slab::new(u32::MAX - 1),
            light: Slab::resting(MOST_LIGHT, REST),
            events: VecDeque::new(),
            fds: HashMap::new(),
            listening: Vec::new(),
            dirty: Vec::new(),
            asked: 0,
            stats: Stats::default(),
        }
    }

    /// The place of a handle; EBADF where it is none of ours, or no more.
    pub fn at(&self, handle: Handle) -> io::Result<u32> {
        let at = handle.at();
        let good = handle.channel() == self.id && handle.is_of(self.entries.generation(at));
        match good && self.entries.get(at).is_some() {
            true => Ok(at),
            false => Err(errno(libc::EBADF)),
        }
    }

    /// The handle of a place.
    pub fn handle(&self, at: u32) -> Handle {
        Handle::new(self.id, self.entries.generation(at), at)
    }

    pub fn insert(&mut self, cookie: u64, target: Target) -> io::Result<u32> {
        let none = Queue { head: NONE, tail: NONE };
        let entry = Entry {
            cookie,
            target,
            input: none,
            output: none,
            dirty: false,
            drained: false,
            closing: false,
            flow: None,
            starving: false,
        };
        self.entries.insert(entry).map_err(|_| errno(libc::EMFILE))
    }

    /// A lightweight socket of this channel; EBADF where it is none, or no more.
    pub fn light(&self, socket: LwSocket) -> io::Result<(u32, &Light)> {
        let at = socket.at();
        let light = self.light.get(at).filter(|_| socket.is_of(self.light.generation(at)));
        light.map(|light| (at, light)).ok_or_else(|| errno(libc::EBADF))
    }

    pub fn new_light(&mut self, of: LightOf) -> io::Result<LwSocket> {
        let at = self.light.insert(Light { of, handle: NONE, listens: None }).map_err(|_| errno(libc::ENFILE))?;
        Ok(LwSocket::new(self.light.generation(at), at))
    }

    /// Puts an operation at the end of its handle's order.
    pub fn push(&mut self, handle: u32, kind: Kind, place: Place, offset: u64, owner: Owner) -> io::Result<()> {
        let way = kind.way();
        let first = match &place {
            Place::One { at, .. } => *at,
            Place::Many(parts) if parts.name.is_some() => parts.first_part(),
            Place::Many(_) => std::ptr::null_mut(),
        };
        let op =
            Op { handle, next: NONE, kind, stage: Stage::Queued, place, offset, done: 0, cut: false, first, owner };
        let at = self.ops.insert(op).map_err(|_| errno(libc::ENOMEM))?;
        let entry = self.entries.get_mut(handle).ok_or_else(|| errno(libc::EBADF))?;
        let queue = entry.queue(way);
        let last = std::mem::replace(&mut queue.tail, at);
        if last == NONE {
            queue.head = at;
            self.touch(handle);
        } else if let Some(last) = self.ops.get_mut(last) {
            last.next = at;
        }
        self.asked += 1;
        Ok(())
    }

    /// The handle is to be looked at when requests are handed over.
    pub fn touch(&mut self, at: u32) {
        let generation = self.entries.generation(at);
        if let Some(entry) = self.entries.get_mut(at).filter(|entry| !entry.dirty) {
            entry.dirty = true;
            self.dirty.push((at, generation));
        }
    }

    /// Of the handles to be looked at, one.
    pub fn next_dirty(&mut self) -> Option<u32> {
        while let Some((at, generation)) = self.dirty.pop() {
            if self.entries.generation(at) == generation
                && let Some(entry) = self.entries.get_mut(at)
            {
                entry.dirty = false;
                return Some(at);
            }
        }
        None
    }

    /// The first operation of a way.
    pub fn head(&self, at: u32, way: Way) -> Option<u32> {
        let entry = self.entries.get(at)?;
        let head = match way {
            Way::In => entry.input.head,
            Way::Out => entry.output.head,
        };
        (head != NONE).then_some(head)
    }

    /// Whether a way has to wait for the other: nothing is read from a socket that is about to connect, and nothing is asked of
    /// a place that is being closed.
    pub fn waits(&self, at: u32, way: Way) -> bool {
        if self.entries.get(at).is_some_and(|entry| entry.closing) {
            return true;
        }
        let other = if way == Way::In { self.head(at, Way::Out) } else { None };
        other.and_then(|op| self.ops.get(op)).is_some_and(|op| matches!(op.kind, Kind::Connect(_)))
    }

    /// Whether it can be read and written anywhere: sockets and pipes have their next bytes alone.
    pub fn has_places(&self, at: u32) -> bool {
        matches!(self.entries.get(at).map(|entry| &entry.target), Some(Target::Fd { kind: FileKind::File, .. }))
    }

    /// Whether it is a socket that keeps messages apart.
    pub fn has_messages(&self, at: u32) -> bool {
        matches!(
            self.entries.get(at).map(|entry| &entry.target),
            Some(Target::Fd { kind: FileKind::Message, .. } | Target::Direct { kind: FileKind::Message, .. })
        )
    }

    /// Whether it is a socket of any kind.
    pub fn is_socket(&self, at: u32) -> bool {
        let file = matches!(
            self.entries.get(at).map(|entry| &entry.target),
            Some(Target::Fd { kind: FileKind::File | FileKind::Pipe, .. })
        );
        !file
    }

    /// Whether the last read left nothing to be read.
    pub fn drained(&self, at: u32) -> bool {
        self.entries.get(at).is_some_and(|entry| entry.drained)
    }

    /// Whether a connection of the ring's table can be ended by closing its place: with unread bytes there would be a RST, and a
    /// reader would keep it open.
    pub fn closes(&self, at: u32) -> bool {
        let Some(Entry { target: Target::Direct { light, kind: FileKind::Tcp, .. }, drained: true, flow, .. }) =
            self.entries.get(at)
        else {
            return false;
        };
        if flow.as_ref().is_some_and(|flow| flow.has_bytes()) {
            return false;
        }
        let shared = self.light.get(*light).is_none_or(|light| matches!(light.of, LightOf::Slot { shared: true, .. }));
        self.head(at, Way::In).is_none() && !shared
    }

    /// What follows an operation.
    pub fn after(&self, op: u32) -> Option<u32> {
        self.ops.get(op).map(|op| op.next).filter(|next| *next != NONE)
    }

    /// Takes the first operation of a way out.
    fn pop(&mut self, at: u32, way: Way) -> Option<Op> {
        let head = self.head(at, way)?;
        let op = self.ops.remove(head)?;
        let queue = self.entries.get_mut(at)?.queue(way);
        queue.head = op.next;
        if op.next == NONE {
            queue.tail = NONE;
        }
        Some(op)
    }

    /// The first operation of a way is complete: its event is there, and the next one's turn has come.
    pub fn complete(&mut self, at: u32, way: Way, result: io::Result<usize>, with: Data) {
        let Some(op) = self.pop(at, way) else { return };
        let command = op.kind.command();
        let from = || match &op.place {
            Place::Many(parts) if result.is_ok() => parts.from(),
            _ => None,
        };
        let data = match (op.owner, with) {
            (Owner::From(bytes), _) => Data::From(bytes, from()),
            (Owner::CallerFrom(to, len), _) => {
                // SAFETY: the memory is the operation's until its completion, and the length says how much there is.
                unsafe { Address::give(from().as_ref(), to, len) };
                Data::Raw(op.first)
            }
            (Owner::Caller, Data::None) if matches!(command, Command::Read | Command::Write) => Data::Raw(op.first),
            (Owner::Caller, with) => with,
            (Owner::Vec(bytes), _) => Data::Vec(bytes),
            (Owner::Vecs(all), _) => Data::Vecs(all),
            (Owner::Buffer(bytes), _) => Data::Buffer(bytes),
            (Owner::Buffers(all), _) => Data::Buffers(all),
        };
        let reads = matches!(command, Command::Read | Command::Recv) && result.is_ok();
        let message = match (reads && self.has_messages(at), op.cut) {
            (false, _) => None,
            (true, false) => Some(Message::Whole),
            (true, true) => Some(Message::Cut),
        };
        self.event(at, command, result, message, data);
        if self.head(at, way).is_some() || command == Command::Connect {
            self.touch(at);
        }
    }

    /// A completion to be fetched.
    fn event(&mut self, at: u32, command: Command, result: io::Result<usize>, message: Option<Message>, data: Data) {
        let handle = self.handle(at);
        let Some(entry) = self.entries.get(at) else { return };
        self.stats.completions += 1;
        self.events.push_back(Event { handle, cookie: entry.cookie, command, result, message, data });
    }

    /// One connection for the first `accept`; `false` where there is none.
    pub fn accepted(&mut self, at: u32, socket: Socket, queued: usize) {
        let Some(head) = self.head(at, Way::In) else { return };
        let Some(Op { kind: Kind::Accept { left, .. }, .. }) = self.ops.get_mut(head) else { return };
        if *left != u32::MAX {
            *left -= 1;
        }
        let last = *left == 0;
        let data = Data::Accepted(socket, queued.try_into().unwrap_or(u32::MAX));
        self.stats.accepted += 1;
        if last {
            self.complete(at, Way::In, Ok(0), data);
        } else {
            self.event(at, Command::Accept, Ok(0), None, data);
        }
    }

    /// A connection that has ended in both directions, and its place with it.
    pub fn end(&mut self, at: u32) {
        let Some(entry) = self.entries.get_mut(at) else { return };
        if let Target::Direct { light, .. } = entry.target {
            entry.target = Target::Ended { light };
            if let Some(light) = self.light.get_mut(light) {
                light.of = LightOf::Ended;
            }
            self.touch(at);
        }
    }

    /// Whether descriptors were made of a lightweight socket's place, from now on, and before.
    pub fn share(&mut self, light: u32, now: bool) -> bool {
        match self.light.get_mut(light).map(|light| &mut light.of) {
            Some(LightOf::Slot { shared, .. }) => std::mem::replace(shared, now),
            _ => false,
        }
    }

    /// What is asked of a connection that has ended, as of a socket that was shut down.
    pub fn refuse(&mut self, at: u32) {
        while self.head(at, Way::In).is_some() {
            self.complete(at, Way::In, Ok(0), Data::None);
        }
        while let Some(op) = self.head(at, Way::Out).and_then(|op| self.ops.get(op)) {
            let number = match op.kind {
                Kind::Write => libc::EPIPE,
                Kind::Connect(_) => libc::EISCONN,
                _ => libc::ENOTCONN,
            };
            self.complete(at, Way::Out, Err(errno(number)), Data::None);
        }
    }

    /// The connections that completions nobody has fetched would have told; those do not come then.
    pub fn take_accepted(&mut self, at: u32) -> Vec<Socket> {
        let handle = self.handle(at);
        let mut all = Vec::new();
        for event in std::mem::take(&mut self.events) {
            match event {
                Event { handle: of, data: Data::Accepted(socket, _), .. } if of == handle => all.push(socket),
                other => self.events.push_back(other),
            }
        }
        all
    }

    /// What kind of connections the first `accept` wants; `None` where there is none.
    pub fn wants(&self, at: u32) -> Option<bool> {
        match self.ops.get(self.head(at, Way::In)?)?.kind {
            Kind::Accept { light, .. } => Some(light),
            _ => None,
        }
    }

    /// All operations of a handle that nobody works on any more are gone, without a word.
    pub fn drop_ops(&mut self, at: u32) {
        while self.pop(at, Way::In).is_some() {}
        while self.pop(at, Way::Out).is_some() {}
    }
}

impl Entry {
    fn queue(&mut self, way: Way) -> &mut Queue {
        match way {
            Way::In => &mut self.input,
            Way::Out => &mut self.output,
        }
    }
}

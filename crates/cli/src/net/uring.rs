//! The benchmark server on io_uring, as an expert would write it.
//!
//! One ring a core (SINGLE_ISSUER, DEFER_TASKRUN), a listener of its own (SO_REUSEPORT, TCP_DEFER_ACCEPT), multishot accept
//! into direct descriptors, received bytes in a ring of provided buffers; a connection that stays has a multishot receive.
//! The last answer is sent with MSG_MORE and linked to the close of its descriptor (to a shutdown, where a receive is under
//! way), so that FIN rides on the data; neither says a word unless it fails. One system call a round, for all that was asked
//! and all that has come.

use crate::http::fixed::Fixed;
use crate::http::head::{self, Body, Parsed};
use crate::server::Counts;
use crate::sys::Stop;
use io_uring::squeue::{Entry, Flags};
use io_uring::types::{BufRingEntry, Fd, Fixed as Direct, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode};
use rustix::fd::{AsRawFd, OwnedFd};
use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

const ENTRIES: u32 = 4096;
/// Direct descriptors, as far as the limit of descriptors goes; more connections than that wait to be accepted.
const DESCRIPTORS: u32 = 65_536;
const BUFFERS: u16 = 4096;
const BUFFER: usize = 2048;
const GROUP: u16 = 0;
/// Longest sleep, so that a stop is noticed.
const NAP_NS: u32 = 100_000_000;

const ACCEPT: u64 = 1;
const RECEIVE: u64 = 2;
const SEND: u64 = 3;
/// The last send of a connection, and the close linked to it.
const LAST: u64 = 4;
const CLOSE: u64 = 5;
/// A shutdown, alone or linked to the last send.
const END: u64 = 6;

/// What every connection gets.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// Bodies of so many bytes.
    Message(usize),
    /// RST.
    Reset,
}

/// Buffers that the kernel picks from, in the ring that both sides know.
struct Buffers {
    entries: Vec<Page>,
    bytes: Vec<u8>,
    tail: u16,
}

/// The ring must begin on a page.
#[repr(C, align(4096))]
#[derive(Clone)]
struct Page([u8; 4096]);

impl Buffers {
    fn new() -> Buffers {
        let pages = BUFFERS as usize * size_of::<BufRingEntry>() / 4096;
        Buffers { entries: vec![Page([0; 4096]); pages], bytes: vec![0; BUFFERS as usize * BUFFER], tail: 0 }
    }

    fn base(&mut self) -> *mut BufRingEntry {
        self.entries.as_mut_ptr().cast()
    }

    fn get(&self, id: u16, len: usize) -> &[u8] {
        let at = id as usize * BUFFER;
        &self.bytes[at..at + len.min(BUFFER)]
    }

    /// Lets the kernel have a buffer; it sees it after [`Buffers::publish`].
    fn give(&mut self, id: u16) {
        let at = self.tail % BUFFERS;
        let address = self.bytes[id as usize * BUFFER..].as_mut_ptr() as u64;
        // SAFETY: `at` is below the number of entries that the pages hold; the kernel reads an entry only behind the tail,
        // and writes none.
        let entry = unsafe { &mut *self.base().add(at as usize) };
        entry.set_addr(address);
        entry.set_len(BUFFER as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
    }

    fn publish(&mut self) {
        let base = self.base();
        // SAFETY: the address of the first entry of an initialised ring, whose tail the kernel reads atomically.
        let tail = unsafe { &*BufRingEntry::tail(base).cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }
}

/// One connection; its place is its direct descriptor.
#[derive(Clone, Default)]
struct Connection {
    /// Received and not yet answered; empty for requests that come whole.
    input: Vec<u8>,
    /// A multishot receive is under way. It holds the socket: closing the descriptor would not close the connection.
    armed: bool,
    /// An answer is under way that keeps the connection.
    sending: bool,
    /// The peer has ended its side.
    ended: bool,
    /// Shut down: closed once the receive is over.
    closing: bool,
    /// Its descriptor is being closed, and may soon be another's.
    closed: bool,
}

struct Server {
    ring: IoUring,
    buffers: Buffers,
    connections: Vec<Connection>,
    keep: Vec<u8>,
    close: Vec<u8>,
    listener: OwnedFd,
    reset: bool,
    counts: Counts,
}

/// Serves until stopped. Errors: the kernel has no io_uring, or not all of what is used here.
pub fn serve(listener: OwnedFd, work: Work, stop: &Stop) -> io::Result<Counts> {
    let ring =
        IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_cqsize(ENTRIES * 4).build(ENTRIES)?;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let descriptors = limit.map_or(DESCRIPTORS, |limit| limit.min(u64::from(DESCRIPTORS)) as u32);
    ring.submitter().register_files_sparse(descriptors)?;
    let (bytes, reset) = match work {
        Work::Message(bytes) => (bytes, false),
        Work::Reset => (0, true),
    };
    let fixed = Fixed::new(bytes);
    let mut server = Server {
        ring,
        buffers: Buffers::new(),
        connections: vec![Connection::default(); descriptors as usize],
        keep: fixed.whole(false),
        close: fixed.whole(true),
        listener,
        reset,
        counts: Counts::default(),
    };
    let base = server.buffers.base() as u64;
    // SAFETY: the entries live in the server, which drops its ring first (field order).
    unsafe { server.ring.submitter().register_buf_ring_with_flags(base, BUFFERS, GROUP, 0)? };
    (0..BUFFERS).for_each(|id| server.buffers.give(id));
    server.buffers.publish();
    server.accept()?;
    let nap = Timespec::new().nsec(NAP_NS);
    let wait = SubmitArgs::new().timespec(&nap);
    let mut done = Vec::with_capacity(ENTRIES as usize);
    while !stop.is_set() {
        match server.ring.submitter().submit_with_args(1, &wait) {
            Err(error) if !matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY)) => {
                return Err(error);
            }
            _ => {}
        }
        done.clear();
        done.extend(server.ring.completion().map(|cqe| (cqe.user_data(), cqe.result(), cqe.flags())));
        for (what, result, flags) in &done {
            server.complete(*what, *result, *flags)?;
        }
        server.buffers.publish();
    }
    Ok(server.counts)
}

impl Server {
    /// Queues requests that belong together.
    fn push(&mut self, entries: &[Entry]) -> io::Result<()> {
        loop {
            // SAFETY: what the entries point to, responses and buffers, lives as long as the ring and is not moved.
            if unsafe { self.ring.submission().push_multiple(entries) }.is_ok() {
                return Ok(());
            }
            self.ring.submit()?;
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        let accept = opcode::AcceptMulti::new(Fd(self.listener.as_raw_fd())).allocate_file_index(true).build();
        self.push(&[accept.user_data(ACCEPT << 32)])
    }

    fn receive(&mut self, id: u32) -> io::Result<()> {
        let receive = opcode::Recv::new(Direct(id), std::ptr::null_mut(), BUFFER as u32).buf_group(GROUP).build();
        self.push(&[receive.flags(Flags::BUFFER_SELECT).user_data(RECEIVE << 32 | u64::from(id))])
    }

    /// Receives until further notice, from a connection that stays.
    fn receive_on(&mut self, id: u32) -> io::Result<()> {
        if std::mem::replace(&mut self.connections[id as usize].armed, true) {
            return Ok(());
        }
        let receive = opcode::RecvMulti::new(Direct(id), GROUP).build();
        self.push(&[receive.user_data(RECEIVE << 32 | u64::from(id))])
    }

    fn close(&mut self, id: u32) -> io::Result<()> {
        if std::mem::replace(&mut self.connections[id as usize].closed, true) {
            return Ok(());
        }
        let close = opcode::Close::new(Direct(id)).build();
        self.push(&[close.flags(Flags::SKIP_SUCCESS).user_data(CLOSE << 32 | u64::from(id))])
    }

    fn complete(&mut self, what: u64, result: i32, flags: u32) -> io::Result<()> {
        let id = what as u32;
        match what >> 32 {
            ACCEPT => self.accepted(result, flags),
            RECEIVE => self.received(id, result, flags),
            SEND if result >= 0 => {
                let connection = &mut self.connections[id as usize];
                connection.sending = false;
                match (connection.input.is_empty(), connection.ended) {
                    (false, _) => self.answer(id),
                    (true, true) => self.close(id),
                    (true, false) => self.receive_on(id),
                }
            }
            SEND => {
                self.counts.errors += 1;
                self.finish(id)
            }
            // Its close or shutdown follows, cancelled.
            LAST => {
                self.counts.errors += 1;
                Ok(())
            }
            CLOSE if result == -libc::ECANCELED => {
                self.connections[id as usize].closed = false;
                self.close(id)
            }
            END if result == -libc::ECANCELED => self.finish(id),
            _ => Ok(()),
        }
    }

    fn accepted(&mut self, result: i32, flags: u32) -> io::Result<()> {
        if !cqueue::more(flags) {
            self.accept()?;
        }
        let Ok(id) = u32::try_from(result) else {
            self.counts.accept_errors += 1;
            return Ok(());
        };
        self.counts.connections += 1;
        if self.reset {
            self.connections[id as usize].closed = false;
            return self.close(id);
        }
        let connection = &mut self.connections[id as usize];
        connection.input.clear();
        (connection.armed, connection.sending, connection.ended, connection.closing) = (false, false, false, false);
        connection.closed = false;
        self.receive(id)
    }

    fn received(&mut self, id: u32, result: i32, flags: u32) -> io::Result<()> {
        let connection = &mut self.connections[id as usize];
        connection.armed &= cqueue::more(flags);
        if let Some(buffer) = cqueue::buffer_select(flags) {
            if !connection.closing {
                connection.input.extend_from_slice(self.buffers.get(buffer, usize::try_from(result).unwrap_or(0)));
            }
            self.buffers.give(buffer);
        }
        let (armed, sending, closing) = (connection.armed, connection.sending, connection.closing);
        match result {
            // What it had to say was said, and the last receive is over: the descriptor can go.
            ..=0 if closing && !armed && result != -libc::ENOBUFS => self.close(id),
            // Every buffer is full of what is looked at in this round: there are some in the next.
            _ if result == -libc::ENOBUFS => self.receive_on(id),
            _ if closing => Ok(()),
            0 if sending => {
                connection.ended = true;
                Ok(())
            }
            0 => self.close(id),
            1.. if sending => Ok(()),
            1.. => self.answer(id),
            _ => {
                self.counts.errors += 1;
                self.finish(id)
            }
        }
    }

    /// Answers the first request of what was received; the next is looked at once the answer has gone.
    fn answer(&mut self, id: u32) -> io::Result<()> {
        let connection = &mut self.connections[id as usize];
        let mut room = head::slots();
        let (used, close) = match head::parse(&connection.input, &mut room) {
            Ok(Parsed::Partial) if connection.ended => return self.close(id),
            Ok(Parsed::Partial) => return self.receive_on(id),
            Ok(Parsed::Whole(head, used)) if head.body() == Ok(Body::Length(0)) => (used, !head.persists()),
            // Requests with a body, and what is none, are not part of the benchmark.
            _ => {
                self.counts.errors += 1;
                return self.finish(id);
            }
        };
        self.counts.requests += 1;
        if used == connection.input.len() {
            connection.input.clear();
        } else {
            connection.input.drain(..used);
        }
        let all = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        let direct = Direct(id);
        if !close {
            connection.sending = true;
            let send = opcode::Send::new(direct, self.keep.as_ptr(), self.keep.len() as u32).flags(all).build();
            return self.push(&[send.user_data(SEND << 32 | u64::from(id))]);
        }
        let send = opcode::Send::new(direct, self.close.as_ptr(), self.close.len() as u32).flags(all | libc::MSG_MORE);
        let send = send.build().flags(Flags::IO_LINK | Flags::SKIP_SUCCESS).user_data(LAST << 32 | u64::from(id));
        if connection.armed {
            // A receive under way holds the socket: FIN rides on the answer by shutdown, the peer's FIN ends the receive.
            connection.closing = true;
            let end = opcode::Shutdown::new(direct, libc::SHUT_WR).build().flags(Flags::SKIP_SUCCESS);
            return self.push(&[send, end.user_data(END << 32 | u64::from(id))]);
        }
        connection.closed = true;
        let close = opcode::Close::new(direct).build().flags(Flags::SKIP_SUCCESS);
        self.push(&[send, close.user_data(CLOSE << 32 | u64::from(id))])
    }

    /// Ends a connection that went wrong, once nothing holds it any more.
    fn finish(&mut self, id: u32) -> io::Result<()> {
        let connection = &mut self.connections[id as usize];
        if !connection.armed {
            return self.close(id);
        }
        connection.closing = true;
        let end = opcode::Shutdown::new(Direct(id), libc::SHUT_RDWR).build().flags(Flags::SKIP_SUCCESS);
        self.push(&[end.user_data(END << 32 | u64::from(id))])
    }
}

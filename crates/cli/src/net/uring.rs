//! The benchmark server on io_uring, as an expert would write it.
//!
//! One ring a core (SINGLE_ISSUER, DEFER_TASKRUN), a listener of its own (SO_REUSEPORT, TCP_DEFER_ACCEPT), multishot accept
//! into direct descriptors, received bytes in a ring of provided buffers. The last answer is sent with MSG_MORE and linked
//! to the close of its descriptor, so that FIN rides on the data; neither says a word unless it fails. One system call a
//! round, for all that was asked and all that has come.

use crate::http::fixed::Fixed;
use crate::http::head::{self, Parsed};
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

    fn close(&mut self, id: u32) -> io::Result<()> {
        let close = opcode::Close::new(Direct(id)).build();
        self.push(&[close.flags(Flags::SKIP_SUCCESS).user_data(CLOSE << 32 | u64::from(id))])
    }

    fn complete(&mut self, what: u64, result: i32, flags: u32) -> io::Result<()> {
        let id = what as u32;
        match what >> 32 {
            ACCEPT => self.accepted(result, flags),
            RECEIVE => self.received(id, result, flags),
            SEND if result >= 0 => match self.connections[id as usize].input.is_empty() {
                true => self.receive(id),
                false => self.answer(id),
            },
            SEND => {
                self.counts.errors += 1;
                self.close(id)
            }
            // Its close follows, cancelled.
            LAST => {
                self.counts.errors += 1;
                Ok(())
            }
            CLOSE if result == -libc::ECANCELED => self.close(id),
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
            return self.close(id);
        }
        self.connections[id as usize].input.clear();
        self.receive(id)
    }

    fn received(&mut self, id: u32, result: i32, flags: u32) -> io::Result<()> {
        let buffer = cqueue::buffer_select(flags);
        let received = usize::try_from(result).unwrap_or(0);
        if let Some(buffer) = buffer {
            let bytes = self.buffers.get(buffer, received);
            self.connections[id as usize].input.extend_from_slice(bytes);
            self.buffers.give(buffer);
        }
        match result {
            // Every buffer is full of what is looked at in this round: there are some in the next.
            _ if result == -libc::ENOBUFS => self.receive(id),
            0 => self.close(id),
            1.. => self.answer(id),
            _ => {
                self.counts.errors += 1;
                self.close(id)
            }
        }
    }

    /// Answers the first request of what was received; the next is looked at once the answer has gone.
    fn answer(&mut self, id: u32) -> io::Result<()> {
        let input = &mut self.connections[id as usize].input;
        let mut room = head::slots();
        let (used, close) = match head::parse(input, &mut room) {
            Ok(Parsed::Partial) => return self.receive(id),
            Ok(Parsed::Whole(head, used)) if matches!(head.body_length(), Ok(0)) => (used, !head.persists()),
            // Requests with a body, and what is none, are not part of the benchmark.
            _ => {
                self.counts.errors += 1;
                return self.close(id);
            }
        };
        self.counts.requests += 1;
        if used == input.len() {
            input.clear();
        } else {
            input.drain(..used);
        }
        let all = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        let direct = Direct(id);
        if !close {
            let send = opcode::Send::new(direct, self.keep.as_ptr(), self.keep.len() as u32).flags(all).build();
            return self.push(&[send.user_data(SEND << 32 | u64::from(id))]);
        }
        let send = opcode::Send::new(direct, self.close.as_ptr(), self.close.len() as u32).flags(all | libc::MSG_MORE);
        let send = send.build().flags(Flags::IO_LINK | Flags::SKIP_SUCCESS).user_data(LAST << 32 | u64::from(id));
        let close = opcode::Close::new(direct).build().flags(Flags::SKIP_SUCCESS);
        self.push(&[send, close.user_data(CLOSE << 32 | u64::from(id))])
    }
}

//! The C functions, in the header's order: raw pointers become slices and values here and in [`sockets`].
//!
//! Each is as safe as its caller: pointers that are not null must be what the header says. Channels, handles and numbers may
//! be anything at all.

use std::ffi::CStr;
use std::mem::offset_of;
use std::os::fd::IntoRawFd;
use std::slice;
use std::time::Duration;

use capi::buffers::parts;
use capi::errno::{Errno, Result, answer, done};
use channel::{Amount, Channel, Command, CpuMask, Data, Event, How, Listener, Message, Options, Socket, Stats};
use libc::{c_char, c_int, c_uint, c_void, iovec, size_t, sockaddr, socklen_t};

use crate::engines;
use crate::mine::{self, Slot, with, with_handle};
use crate::sockets::{self, Named, address, named};

/// MP_MESSAGE and MP_CUT.
const MESSAGE: c_uint = 1;
const CUT: c_uint = 2;
/// The file's own position.
const HERE: u64 = u64::MAX;

/// `struct mp_options`. It grows at its end, by members of four bytes: it is cut, for who was compiled with fewer, at the end of one.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MpOptions {
    size: size_t,
    engine: c_int,
    config: *const c_char,
    lane: c_int,
    batch: c_uint,
    lwsockets: c_uint,
    buffers: c_uint,
    buffer_size: c_uint,
    accept_ahead: c_uint,
    balance: c_uint,
    completions: c_uint,
}

impl MpOptions {
    fn new() -> MpOptions {
        let o = Options::default();
        MpOptions {
            size: size_of::<MpOptions>(),
            engine: 0,
            config: std::ptr::null(),
            lane: -1,
            batch: o.batch,
            lwsockets: o.lwsockets,
            buffers: o.buffers.into(),
            buffer_size: o.buffer_size,
            accept_ahead: o.accept_ahead,
            balance: o.balance,
            completions: o.completions,
        }
    }

    /// What the first header of all had.
    const FIRST: usize = offset_of!(MpOptions, batch);
    /// No caller's is longer.
    const MOST: usize = 4096;

    /// Fills in as much as the caller has, which says how much that is. What this library knows nothing of is 0.
    ///
    /// # Safety
    ///
    /// There are `size` bytes to be written.
    unsafe fn fill(to: *mut MpOptions, size: size_t) {
        let all = MpOptions { size, ..MpOptions::new() };
        // SAFETY: the caller's promise, and no more than there is here.
        unsafe {
            to.cast::<u8>().write_bytes(0, size);
            to.cast::<u8>().copy_from_nonoverlapping((&raw const all).cast(), size.min(size_of::<MpOptions>()));
        }
    }

    /// As copy_struct_from_user of Linux: what a shorter one has not is as by default; of a longer one the rest must be 0, for
    /// it asks for what is not known here.
    ///
    /// # Safety
    ///
    /// There are as many bytes as its first member says.
    unsafe fn of(from: *const MpOptions) -> Result<MpOptions> {
        // SAFETY: it has its size, at least.
        let size = unsafe { (&raw const (*from).size).read() };
        match size {
            MpOptions::FIRST..=MpOptions::MOST if size.is_multiple_of(4) => {}
            0..=MpOptions::MOST => return Err(Errno::INVAL),
            _ => return Err(Errno::TOOBIG),
        }
        // SAFETY: the caller's promise.
        let bytes = unsafe { slice::from_raw_parts(from.cast::<u8>(), size) };
        if bytes.iter().skip(size_of::<MpOptions>()).any(|byte| *byte != 0) {
            return Err(Errno::TOOBIG);
        }
        let mut own = MpOptions::new();
        let n = size.min(size_of::<MpOptions>());
        // SAFETY: both have so many bytes; any are members, and a pointer is there whole.
        unsafe { (&raw mut own).cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), n) };
        Ok(own)
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct MpAccept {
    fd: c_int,
    is_lwsocket: c_int,
    queued: u32,
}

/// Both of the others: a place and a size.
#[repr(C)]
#[derive(Clone, Copy)]
struct MpIo {
    at: *mut c_void,
    size: size_t,
}

#[repr(C)]
union MpUnion {
    accept: MpAccept,
    io: MpIo,
}

/// `struct mp_event`.
#[repr(C)]
pub struct MpEvent {
    cmd: c_int,
    result: c_int,
    error: c_int,
    flags: c_uint,
    handle: u64,
    cookie: *mut c_void,
    u: MpUnion,
}

/// `struct mp_stats`.
#[repr(C)]
struct MpStats([u64; 9]);

impl MpEvent {
    fn new(event: Event) -> MpEvent {
        let (size, error) = match &event.result {
            Ok(size) => (*size, 0),
            Err(error) => (0, error.raw_os_error().unwrap_or(libc::EIO)),
        };
        let u = match (event.command, event.data) {
            (Command::Accept, Data::Accepted(socket, queued)) => {
                let (fd, is_lwsocket) = match socket {
                    Socket::Fd(fd) => (fd.into_raw_fd(), 0),
                    Socket::Light(light) => (light.number(), 1),
                };
                MpUnion { accept: MpAccept { fd, is_lwsocket, queued } }
            }
            (Command::Accept, _) => MpUnion { accept: MpAccept { fd: -1, is_lwsocket: 0, queued: 0 } },
            (_, Data::Received(received)) => {
                let (at, size) = received.into_raw();
                MpUnion { io: MpIo { at: at.cast_mut().cast(), size } }
            }
            (_, Data::Raw(at)) => MpUnion { io: MpIo { at: at.cast(), size } },
            _ => MpUnion { io: MpIo { at: std::ptr::null_mut(), size } },
        };
        MpEvent {
            cmd: event.command as c_int,
            result: if error == 0 { 0 } else { -1 },
            error,
            flags: match event.message {
                None => 0,
                Some(Message::Whole) => MESSAGE,
                Some(Message::Cut) => MESSAGE | CUT,
            },
            handle: event.handle.to_bits(),
            cookie: event.cookie as *mut c_void,
            u,
        }
    }
}

/// # Safety
///
/// The configuration is null or a string.
unsafe fn create(o: &MpOptions) -> Result<*mut Slot> {
    let options = Options {
        batch: o.batch,
        lwsockets: o.lwsockets,
        buffers: u16::try_from(o.buffers).map_err(|_| Errno::INVAL)?,
        buffer_size: o.buffer_size,
        accept_ahead: o.accept_ahead,
        balance: o.balance,
        completions: o.completions,
    };
    let io = |e: std::io::Error| capi::errno::of_io(&e);
    mine::check()?;
    match o.engine {
        0 => {
            options.check().map_err(io)?;
            let channel = Channel::uring(options).map_err(|e| {
                if let Some(why) = channel::ring_refused(&e) {
                    capi::say("megapipe", why);
                }
                io(e)
            })?;
            mine::add(channel, None)
        }
        1 if o.config.is_null() => Err(Errno::FAULT),
        1 => {
            let lane = if o.lane < 0 { None } else { Some(o.lane as usize) };
            // SAFETY: not null; the rest is the caller's word.
            let path = unsafe { CStr::from_ptr(o.config) }.to_str().map_err(|_| Errno::INVAL)?;
            options.check().map_err(io)?;
            let (app, member) = engines::take(path, lane)?;
            mine::add(Channel::lane(app, options).map_err(io)?, Some(member))
        }
        _ => Err(Errno::INVAL),
    }
}

fn register(channel: *mut Slot, fd: c_int, cookie: *mut c_void, mask: CpuMask) -> Result<u64> {
    let name = named(fd)?;
    with(channel, |channel| {
        let cookie = cookie as u64;
        let handle = match name {
            // SAFETY: the header says that it stays open.
            Named::Fd(fd) => unsafe { channel.register_raw(fd, cookie, mask) },
            Named::Light(_) if !mask.is_empty() => Err(std::io::Error::from_raw_os_error(libc::EINVAL)),
            Named::Light(light) => channel.register_light(light, cookie),
            Named::Listener(listener) => channel.register_listener(listener, cookie, mask),
        };
        handle.map(|handle| handle.to_bits())
    })
    .inspect(|_| {
        if matches!(name, Named::Listener(_)) {
            mine::listens(channel);
        }
    })
}

/// Memory of an operation: EFAULT where there is none, EINVAL where it is longer than anything can be.
fn memory<T>(at: *const T, size: size_t) -> Result<()> {
    match at.is_null() && size > 0 {
        true => Err(Errno::FAULT),
        false if size > isize::MAX as usize => Err(Errno::INVAL),
        false => Ok(()),
    }
}

fn read(handle: u64, buf: *mut c_void, size: size_t, offset: u64) -> c_int {
    let read = memory(buf, size).and_then(|()| {
        with_handle(handle, |channel, handle| {
            // SAFETY: the header says that the memory is the library's until the completion.
            unsafe { channel.read_raw(handle, buf.cast(), size, offset) }
        })
    });
    done(read)
}

fn write(handle: u64, buf: *const c_void, size: size_t, offset: u64) -> c_int {
    let write = memory(buf, size).and_then(|()| {
        with_handle(handle, |channel, handle| {
            // SAFETY: as above.
            unsafe { channel.write_raw(handle, buf.cast(), size, offset) }
        })
    });
    done(write)
}

/// Of a caller's place in a file; the greatest is no place.
fn place(offset: u64) -> Result<u64> {
    if offset > i64::MAX as u64 { Err(Errno::INVAL) } else { Ok(offset) }
}

fn dispatch(channel: *mut Slot, event: *mut MpEvent, timeout: c_int) -> Result<c_int> {
    if event.is_null() {
        return Err(Errno::FAULT);
    }
    let limit = match timeout {
        -1 => None,
        0.. => Some(Duration::from_millis(timeout as u64)),
        _ => return Err(Errno::INVAL),
    };
    match with(channel, |channel| channel.dispatch(limit))? {
        None => Ok(0),
        Some(came) => {
            // SAFETY: not null; the rest is the caller's word.
            unsafe { event.write(MpEvent::new(came)) };
            Ok(1)
        }
    }
}

macro_rules! functions {
    ($(fn $name:ident($($arg:ident: $kind:ty),* $(,)?) $(-> $result:ty)? $body:block)*) => {$(
        /// The header says what it does.
        ///
        /// # Safety
        /// Pointers that are not null are what the header says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) $(-> $result)? {
            let body = || {
                runtime::provoke("call");
                $body
            };
            capi::errno::contained(body, runtime::reset_all)
        }
    )*};
}

functions! {
    fn mp_options_init(options: *mut MpOptions, size: size_t) {
        if !options.is_null() {
            // SAFETY: not null; the rest is the caller's word.
            unsafe { MpOptions::fill(options, size) };
        }
    }

    fn mp_create(options: *const MpOptions) -> *mut Slot {
        // SAFETY: not null; the rest is the caller's word.
        let own = if options.is_null() { Ok(MpOptions::new()) } else { unsafe { MpOptions::of(options) } };
        // SAFETY: the caller's word.
        answer(own.and_then(|own| unsafe { create(&own) }))
    }

    fn mp_destroy(channel: *mut Slot) -> c_int {
        done(mine::remove(channel))
    }

    fn mp_capabilities(channel: *mut Slot) -> c_int {
        answer(with(channel, |channel| Ok(channel.capabilities().0 as c_int)))
    }

    fn mp_set_batch(channel: *mut Slot, requests: c_uint) -> c_int {
        done(with(channel, |channel| channel.set_batch(requests)))
    }

    fn mp_register(channel: *mut Slot, fd: c_int, cookie: *mut c_void, cpu_mask: u64) -> u64 {
        let mask = CpuMask::from_words(&[cpu_mask]).map_err(|e| capi::errno::of_io(&e));
        answer(mask.and_then(|mask| register(channel, fd, cookie, mask)))
    }

    fn mp_register_cpus(
        channel: *mut Slot,
        fd: c_int,
        cookie: *mut c_void,
        cpu_mask: *const u64,
        words: size_t,
    ) -> u64 {
        let mask = match (cpu_mask.is_null(), words) {
            (_, 0) => Ok(CpuMask::NONE),
            (true, _) => Err(Errno::FAULT),
            (_, 1..=1024) => {
                // SAFETY: not null; the rest is the caller's word.
                let words = unsafe { slice::from_raw_parts(cpu_mask, words) };
                CpuMask::from_words(words).map_err(|e| capi::errno::of_io(&e))
            }
            _ => Err(Errno::INVAL),
        };
        answer(mask.and_then(|mask| register(channel, fd, cookie, mask)))
    }

    fn mp_set_cookie(handle: u64, cookie: *mut c_void) -> c_int {
        done(with_handle(handle, |channel, handle| channel.set_cookie(handle, cookie as u64)))
    }

    fn mp_unregister(handle: u64) -> c_int {
        done(with_handle(handle, |channel, handle| channel.unregister(handle).map(drop)))
    }

    fn mp_accept(handle: u64, count: u32, is_lwsocket: c_int) -> c_int {
        let amount = if count == u32::MAX { Amount::Endless } else { Amount::Of(count) };
        done(with_handle(handle, |channel, handle| channel.accept(handle, amount, is_lwsocket != 0)))
    }

    fn mp_connect(handle: u64, to: *const sockaddr, length: socklen_t) -> c_int {
        // SAFETY: the caller's word.
        let to = unsafe { address(to, length) };
        done(to.and_then(|to| with_handle(handle, |channel, handle| channel.connect(handle, to))))
    }

    fn mp_read(handle: u64, buf: *mut c_void, size: size_t) -> c_int {
        read(handle, buf, size, HERE)
    }

    fn mp_pread(handle: u64, buf: *mut c_void, size: size_t, offset: u64) -> c_int {
        place(offset).map_or_else(|e| done(Err(e)), |offset| read(handle, buf, size, offset))
    }

    fn mp_readv(handle: u64, iov: *const iovec, iovcnt: c_int) -> c_int {
        // SAFETY: the caller's word.
        let parts = unsafe { parts(iov, iovcnt) };
        done(parts.and_then(|parts| {
            // SAFETY: the header says that the memory is the library's until the completion.
            with_handle(handle, |channel, handle| unsafe { channel.readv_raw(handle, parts) })
        }))
    }

    fn mp_write(handle: u64, buf: *const c_void, size: size_t) -> c_int {
        write(handle, buf, size, HERE)
    }

    fn mp_pwrite(handle: u64, buf: *const c_void, size: size_t, offset: u64) -> c_int {
        place(offset).map_or_else(|e| done(Err(e)), |offset| write(handle, buf, size, offset))
    }

    fn mp_writev(handle: u64, iov: *const iovec, iovcnt: c_int) -> c_int {
        // SAFETY: the caller's word.
        let parts = unsafe { parts(iov, iovcnt) };
        done(parts.and_then(|parts| {
            // SAFETY: the header says that the memory is the library's until the completion.
            with_handle(handle, |channel, handle| unsafe { channel.writev_raw(handle, parts) })
        }))
    }

    fn mp_recvfrom(handle: u64, buf: *mut c_void, size: size_t, from: *mut sockaddr, length: *mut socklen_t) -> c_int {
        if from.is_null() != length.is_null() {
            return done(Err(Errno::FAULT));
        }
        if from.is_null() {
            return read(handle, buf, size, HERE);
        }
        let read = memory(buf, size).and_then(|()| {
            with_handle(handle, |channel, handle| {
                // SAFETY: the header says that all three are the library's until the completion.
                unsafe { channel.read_from_raw(handle, buf.cast(), size, from, length) }
            })
        });
        done(read)
    }

    fn mp_sendto(handle: u64, buf: *const c_void, size: size_t, to: *const sockaddr, length: socklen_t) -> c_int {
        // SAFETY: the caller's word.
        let to = unsafe { address(to, length) };
        let write = to.and_then(|to| {
            memory(buf, size)?;
            with_handle(handle, |channel, handle| {
                // SAFETY: the header says that the memory is the library's until the completion.
                unsafe { channel.write_to_raw(handle, buf.cast(), size, to) }
            })
        });
        done(write)
    }

    fn mp_recv(handle: u64) -> c_int {
        done(with_handle(handle, Channel::recv))
    }

    fn mp_release(channel: *mut Slot, data: *const c_void) -> c_int {
        done(with(channel, |channel| channel.release_raw(data.cast())))
    }

    fn mp_disconnect(handle: u64) -> c_int {
        done(with_handle(handle, Channel::disconnect))
    }

    fn mp_shutdown(handle: u64, how: c_int) -> c_int {
        let how = match how {
            libc::SHUT_RD => Ok(How::Read),
            libc::SHUT_WR => Ok(How::Write),
            libc::SHUT_RDWR => Ok(How::Both),
            _ => Err(Errno::INVAL),
        };
        done(how.and_then(|how| with_handle(handle, |channel, handle| channel.shutdown(handle, how))))
    }

    fn mp_dispatch(channel: *mut Slot, event: *mut MpEvent, timeout: c_int) -> c_int {
        answer(dispatch(channel, event, timeout))
    }

    fn mp_flush(channel: *mut Slot) -> c_int {
        done(with(channel, Channel::flush))
    }

    fn mp_lwsocket_to_fd(channel: *mut Slot, lwsocket: c_int) -> c_int {
        answer(sockets::to_fd(channel, lwsocket))
    }

    fn mp_close(channel: *mut Slot, fd: c_int) -> c_int {
        done(sockets::close(channel, fd))
    }

    fn mp_listen_at(at: *const sockaddr, length: socklen_t, backlog: c_int) -> c_int {
        // SAFETY: the caller's word.
        let at = unsafe { address(at, length) };
        answer(at.and_then(|at| Listener::at(at, backlog).map(Listener::number).map_err(|e| capi::errno::of_io(&e))))
    }

    fn mp_socket(channel: *mut Slot, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        answer(sockets::socket(channel, domain, kind, protocol))
    }

    fn mp_bind(channel: *mut Slot, fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int {
        // SAFETY: the caller's word.
        let to = unsafe { address(to, length) };
        done(to.and_then(|to| sockets::bind(channel, fd, &to)))
    }

    fn mp_listen(channel: *mut Slot, fd: c_int, backlog: c_int) -> c_int {
        done(sockets::listen(channel, fd, backlog).inspect(|()| mine::listens(channel)))
    }

    fn mp_getsockname(channel: *mut Slot, fd: c_int, out: *mut sockaddr, length: *mut socklen_t) -> c_int {
        // SAFETY: the caller's word.
        done(unsafe { sockets::name(channel, fd, false, out, length) })
    }

    fn mp_getpeername(channel: *mut Slot, fd: c_int, out: *mut sockaddr, length: *mut socklen_t) -> c_int {
        // SAFETY: the caller's word.
        done(unsafe { sockets::name(channel, fd, true, out, length) })
    }

    fn mp_setsockopt(
        channel: *mut Slot,
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        length: socklen_t,
    ) -> c_int {
        // The kernel's options may be long, and say by their length what they are.
        let Ok(length) = usize::try_from(length as i32) else { return done(Err(Errno::INVAL)) };
        // SAFETY: the caller's word.
        let value = unsafe { capi::buffers::bytes(value, length) };
        done(value.and_then(|value| sockets::set_option(channel, fd, level, name, value)))
    }

    fn mp_getsockopt(
        channel: *mut Slot,
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        length: *mut socklen_t,
    ) -> c_int {
        // SAFETY: the caller's word.
        done(unsafe { sockets::option(channel, fd, level, name, value, length) })
    }

    fn mp_stats(channel: *mut Slot, stats: *mut c_void, size: size_t) -> c_int {
        let Stats { completions, accepted, batches, requests, enters, overflows, no_buffer, taken, dropped } =
            match with(channel, |channel| Ok(channel.stats())) {
                Ok(stats) => stats,
                Err(error) => return done(Err(error)),
            };
        if stats.is_null() {
            return done(Err(Errno::FAULT));
        }
        let all = MpStats([completions, accepted, batches, requests, enters, overflows, no_buffer, taken, dropped]);
        // SAFETY: not null; the rest is the caller's word, and no more than there is.
        unsafe { std::ptr::copy_nonoverlapping((&raw const all).cast(), stats.cast::<u8>(), size.min(size_of::<MpStats>())) };
        0
    }
}

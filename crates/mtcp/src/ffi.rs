//! The C functions, in the header's order: raw pointers become slices and values here and nowhere else.
//!
//! Each is as safe as its caller: pointers that are not null must be what the header says. Contexts, ids and numbers may be
//! anything at all.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::slice;
use std::net::Ipv4Addr;

use capi::buffers::{MOST_PARTS, bytes, bytes_mut, fill_parts, with_parts};
use capi::errno::{Errno, Result, answer, count, done};
use capi::{address, errno};
use libc::{in_addr_t, iovec, off_t, size_t, sockaddr, socklen_t, ssize_t};

use crate::conf::Sizes;
use crate::context::{self, Context, Token, with};
use crate::events::Event;
use crate::{events, machine, options, process, sendfile, signals, sockets, transfer};

/// Bytes that setsockopt looks at: no option has more, and as on Linux what is behind them does not matter.
const MOST_VALUE: usize = 256;

/// `n` elements to write to, at least one: `EFAULT` where there is no place, `EINVAL` for a number out of range.
///
/// # Safety
/// `at` is null or has `n` elements, if `n` is in range, that nobody else touches meanwhile.
unsafe fn elements<'a, T>(at: *mut T, n: c_int, most: usize) -> Result<&'a mut [T]> {
    let n = usize::try_from(n).ok().filter(|n| (1..=most).contains(n)).ok_or(Errno::INVAL)?;
    if at.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: not null; the rest is the caller's word.
    Ok(unsafe { slice::from_raw_parts_mut(at, n) })
}

macro_rules! functions {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $kind:ty),* $(,)?) -> $result:ty $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Pointers that are not null are what the header says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> $result {
            // SAFETY: the caller's word; each pointer is looked at for null before it is used.
            #[allow(unused_unsafe)]
            let body = || unsafe {
                runtime::provoke("call");
                $body
            };
            errno::contained(body, runtime::reset_all)
        }
    )*};
}

functions! {
    /// Reads the configuration.
    fn mtcp_init(config_file: *const c_char) -> c_int {
        if config_file.is_null() {
            process::say("mtcp_init: expected the name of a configuration file");
            return done(Err(Errno::INVAL));
        }
        done(CStr::from_ptr(config_file).to_str().map_err(|_| Errno::INVAL).and_then(process::init))
    }

    /// Ends the engine.
    fn mtcp_destroy() -> () {
        // No error has a place to go to.
        let _ = context::destroy_all();
    }

    /// The seven numbers.
    fn mtcp_getconf(conf: *mut Sizes) -> c_int {
        if conf.is_null() {
            return done(Err(Errno::FAULT));
        }
        done(process::sizes().map(|sizes| conf.write(sizes)))
    }

    /// Sets those above zero.
    fn mtcp_setconf(conf: *const Sizes) -> c_int {
        if conf.is_null() {
            return done(Err(Errno::FAULT));
        }
        done(process::set_sizes(conf.read()))
    }

    /// Pins this thread.
    fn mtcp_core_affinitize(cpu: c_int) -> c_int {
        done(pin(cpu))
    }

    /// A context of this thread.
    fn mtcp_create_context(cpu: c_int) -> *mut Token {
        answer(context::create(cpu))
    }

    /// Closes what is open on a context, and ends it.
    fn mtcp_destroy_context(mctx: *mut Token) -> () {
        if let Err(error) = context::destroy(mctx) {
            errno::set(error);
        }
    }

    /// As signal(2).
    fn mtcp_register_signal(signal: c_int, handler: usize) -> usize {
        answer(signals::register(signal, handler))
    }

    /// The processors that are on.
    fn GetNumCPUs() -> c_int {
        machine::processors()
    }

    /// As socket(2).
    fn mtcp_socket(mctx: *mut Token, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        answer(with(mctx, |c| sockets::socket(c, domain, kind, protocol)))
    }

    /// As pipe(2).
    fn mtcp_pipe(mctx: *mut Token, pipeid: *mut c_int) -> c_int {
        done(with(mctx, |c| {
            if pipeid.is_null() {
                return Err(Errno::FAULT);
            }
            let ids = sockets::pipe(c)?;
            pipeid.cast::<[c_int; 2]>().write_unaligned(ids);
            Ok(())
        }))
    }

    /// As bind(2).
    fn mtcp_bind(mctx: *mut Token, sockid: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int {
        done(with(mctx, |c| {
            sockets::socket_of(c, sockid)?;
            sockets::bind(c, sockid, address::bytes(addr, addrlen)?)
        }))
    }

    /// As listen(2).
    fn mtcp_listen(mctx: *mut Token, sockid: c_int, backlog: c_int) -> c_int {
        done(with(mctx, |c| sockets::listen(c, sockid, backlog)))
    }

    /// As accept(2).
    fn mtcp_accept(mctx: *mut Token, sockid: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int {
        answer(with(mctx, |c| {
            let (id, peer) = sockets::accept(c, sockid)?;
            if !addr.is_null() && !addrlen.is_null() {
                // mTCP writes a sockaddr_in whatever the length says, and some of its programs leave that unset.
                if (*addrlen as i32) < 0 {
                    *addrlen = address::V4_BYTES as socklen_t;
                }
                peer.write(addr, addrlen)?;
            }
            Ok(id)
        }))
    }

    /// As connect(2).
    fn mtcp_connect(mctx: *mut Token, sockid: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int {
        done(with(mctx, |c| {
            sockets::socket_of(c, sockid)?;
            sockets::connect(c, sockid, address::bytes(addr, addrlen)?)
        }))
    }

    /// Which addresses connections leave from.
    fn mtcp_init_rss(
        mctx: *mut Token,
        saddr_base: in_addr_t,
        num_addr: c_int,
        _daddr: in_addr_t,
        _dport: in_addr_t,
    ) -> c_int {
        done(with(mctx, |c| sockets::init_rss(c, Ipv4Addr::from(u32::from_be(saddr_base)), num_addr)))
    }

    /// As close(2).
    fn mtcp_close(mctx: *mut Token, sockid: c_int) -> c_int {
        done(with(mctx, |c| sockets::close(c, sockid)))
    }

    /// Resets a connection.
    fn mtcp_abort(mctx: *mut Token, sockid: c_int) -> c_int {
        done(with(mctx, |c| sockets::abort(c, sockid)))
    }

    /// As shutdown(2).
    fn mtcp_shutdown(mctx: *mut Token, sockid: c_int, how: c_int) -> c_int {
        done(with(mctx, |c| sockets::shutdown(c, sockid, how)))
    }

    /// As getsockname(2).
    fn mtcp_getsockname(mctx: *mut Token, sockid: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int {
        done(with(mctx, |c| sockets::name(c, sockid)?.write(addr, addrlen)))
    }

    /// As getpeername(2).
    fn mtcp_getpeername(mctx: *mut Token, sockid: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int {
        done(with(mctx, |c| sockets::peer(c, sockid)?.write(addr, addrlen)))
    }

    /// As getsockopt(2).
    fn mtcp_getsockopt(
        mctx: *mut Token,
        sockid: c_int,
        level: c_int,
        optname: c_int,
        optval: *mut c_void,
        optlen: *mut socklen_t,
    ) -> c_int {
        done(with(mctx, |c| {
            sockets::socket_of(c, sockid)?;
            // Before an error is taken that could not be told.
            if optval.is_null() || optlen.is_null() {
                return Err(Errno::FAULT);
            }
            options::get(c, sockid, level, optname)?.write(optval, optlen)
        }))
    }

    /// As setsockopt(2).
    fn mtcp_setsockopt(
        mctx: *mut Token,
        sockid: c_int,
        level: c_int,
        optname: c_int,
        optval: *const c_void,
        optlen: socklen_t,
    ) -> c_int {
        done(with(mctx, |c| {
            sockets::socket_of(c, sockid)?;
            let len = usize::try_from(optlen as i32).map_err(|_| Errno::INVAL)?;
            if optval.is_null() {
                return Err(Errno::FAULT);
            }
            options::set(c, sockid, level, optname, bytes(optval, len.min(MOST_VALUE))?)
        }))
    }

    /// O_NONBLOCK.
    fn mtcp_setsock_nonblock(mctx: *mut Token, sockid: c_int) -> c_int {
        done(with(mctx, |c| options::set_nonblocking(c, sockid, true)))
    }

    /// As ioctl(2).
    fn mtcp_socket_ioctl(mctx: *mut Token, sockid: c_int, request: c_int, argp: *mut c_void) -> c_int {
        done(with(mctx, |c| {
            c.ids.get(sockid)?;
            if argp.is_null() {
                return Err(Errno::FAULT);
            }
            let argument = argp.cast::<c_int>();
            let mut value = argument.read_unaligned();
            options::ioctl(c, sockid, request, &mut value)?;
            argument.write_unaligned(value);
            Ok(())
        }))
    }

    /// As read(2).
    fn mtcp_read(mctx: *mut Token, sockid: c_int, buf: *mut c_char, len: size_t) -> ssize_t {
        count(with(mctx, |c| {
            let of = transfer::stream(c, sockid)?;
            if len == 0 {
                return Ok(0);
            }
            transfer::receive(c, of, bytes_mut(buf.cast(), len)?, 0)
        }))
    }

    /// As recv(2).
    fn mtcp_recv(mctx: *mut Token, sockid: c_int, buf: *mut c_char, len: size_t, flags: c_int) -> ssize_t {
        count(with(mctx, |c| {
            let of = transfer::stream(c, sockid)?;
            transfer::receive(c, of, bytes_mut(buf.cast(), len)?, flags)
        }))
    }

    /// As readv(2).
    fn mtcp_readv(mctx: *mut Token, sockid: c_int, iov: *const iovec, iovcnt: c_int) -> c_int {
        answer(with(mctx, |c| {
            let of = transfer::stream(c, sockid)?;
            let fill = |part: &mut [u8], before: usize| {
                // What is there once something is.
                let flags = if before > 0 { libc::MSG_DONTWAIT } else { 0 };
                transfer::receive(c, of, part, flags)
            };
            // Linux: who asks for nothing does not wait for it.
            fill_parts(iov, iovcnt, fill).map(int)
        }))
    }

    /// As write(2).
    fn mtcp_write(mctx: *mut Token, sockid: c_int, buf: *const c_char, len: size_t) -> ssize_t {
        count(with(mctx, |c| {
            let of = transfer::stream(c, sockid)?;
            transfer::send(c, of, bytes(buf.cast(), len)?, false)
        }))
    }

    /// As writev(2).
    fn mtcp_writev(mctx: *mut Token, sockid: c_int, iov: *const iovec, iovcnt: c_int) -> c_int {
        answer(with(mctx, |c| {
            let of = transfer::stream(c, sockid)?;
            with_parts(iov, iovcnt, |parts| transfer::send_parts(c, of, parts).map(int))
        }))
    }

    /// As sendfile(2).
    fn mtcp_sendfile(mctx: *mut Token, sockid: c_int, in_fd: c_int, offset: *mut off_t, len: size_t) -> ssize_t {
        count(with(mctx, |c| {
            let of = transfer::stream(c, sockid)?;
            sendfile::sendfile(c, of, in_fd, offset.as_mut(), len)
        }))
    }

    /// Lends received bytes where they lie.
    fn mtcp_recv_zc(mctx: *mut Token, sockid: c_int, iov: *mut iovec, iovcnt: c_int) -> ssize_t {
        count(with(mctx, |c| {
            let of = transfer::stream(c, sockid)?;
            transfer::lend(c, of, elements(iov, iovcnt, MOST_PARTS)?)
        }))
    }

    /// Gives lent bytes back.
    fn mtcp_recv_done(mctx: *mut Token, sockid: c_int, len: size_t) -> c_int {
        done(with(mctx, |c| {
            let of = transfer::stream(c, sockid)?;
            transfer::release(c, of, len)
        }))
    }

    /// A new epoll.
    fn mtcp_epoll_create(mctx: *mut Token, size: c_int) -> c_int {
        answer(with(mctx, |c| if size > 0 { events::create(c) } else { Err(Errno::INVAL) }))
    }

    /// As epoll_create1(2).
    fn mtcp_epoll_create1(mctx: *mut Token, flags: c_int) -> c_int {
        answer(with(mctx, |c| if flags & !libc::EPOLL_CLOEXEC == 0 { events::create(c) } else { Err(Errno::INVAL) }))
    }

    /// As epoll_ctl(2).
    fn mtcp_epoll_ctl(mctx: *mut Token, epid: c_int, op: c_int, sockid: c_int, event: *const Event) -> c_int {
        done(with(mctx, |c| {
            let event = if event.is_null() { None } else { Some(event.read()) };
            events::control(c, epid, op, sockid, event)
        }))
    }

    /// As epoll_wait(2).
    fn mtcp_epoll_wait(mctx: *mut Token, epid: c_int, out: *mut Event, maxevents: c_int, timeout: c_int) -> c_int {
        answer(with(mctx, |c: &mut Context| {
            if out.is_null() {
                return Err(Errno::FAULT);
            }
            events::wait(c, epid, maxevents, timeout, |i, event| out.add(i).write(event))
        }))
    }

    /// The name of an event.
    fn EventToString(event: u32) -> *mut c_char {
        // mTCP's prototype is not const; the text is.
        events::name(event).as_ptr().cast_mut()
    }
}

/// A number of bytes: no call moves more than an int counts.
fn int(n: usize) -> c_int {
    c_int::try_from(n).unwrap_or(c_int::MAX)
}

fn pin(cpu: c_int) -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    let cpu = usize::try_from(cpu).ok().filter(|cpu| *cpu < rustix::thread::CpuSet::MAX_CPU).ok_or(Errno::INVAL)?;
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
}

//! One request to the helper, and its answer.

use std::ffi::{c_int, c_void};
use std::mem::{size_of, zeroed};

use claims::{ANSWER, Kind, REQUEST, Request, Verdict};
use libc::{cmsghdr, iovec, msghdr, sockaddr_un, socklen_t, timeval};

use crate::{next, process};

/// Time that the helper has for an answer.
pub const PATIENCE: timeval = timeval { tv_sec: 2, tv_usec: 0 };

/// Room for one descriptor beside a message, aligned as its header.
#[repr(C)]
struct Control {
    header: cmsghdr,
    fd: c_int,
    _padding: c_int,
}

/// A socket's option of SOL_SOCKET that is a number; `None` where the descriptor is no socket or has none.
pub fn option(fd: c_int, name: c_int) -> Option<c_int> {
    let (mut value, mut len, errno) = (0 as c_int, size_of::<c_int>() as socklen_t, process::errno());
    // SAFETY: the value has room for `len` bytes.
    let done = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &mut len) };
    process::set_errno(errno);
    (done == 0).then_some(value)
}

/// Asks for the memory of ports; `None` where there is none.
pub fn ports() -> Option<c_int> {
    match ask(Kind::Ports, None)? {
        (Verdict::Ports, memory) => memory,
        _ => None,
    }
}

/// Asks about a listener; `None` where there is no helper, or no answer in time. Keeps errno.
pub fn helper(kind: Kind, listener: c_int) -> Option<(Verdict, Option<c_int>)> {
    ask(kind, Some(listener))
}

fn ask(kind: Kind, about: Option<c_int>) -> Option<(Verdict, Option<c_int>)> {
    let errno = process::errno();
    // SAFETY: no memory is passed.
    let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    let answer = if socket < 0 { None } else { over(socket, kind, about.unwrap_or(socket)) };
    if socket >= 0 {
        // SAFETY: our own descriptor.
        unsafe { next::close(socket) };
    }
    process::set_errno(errno);
    answer
}

fn over(socket: c_int, kind: Kind, listener: c_int) -> Option<(Verdict, Option<c_int>)> {
    let (name, token) = process::helper()?;
    let patience = PATIENCE;
    for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        let len = size_of::<timeval>() as socklen_t;
        // SAFETY: the value is `len` bytes long.
        unsafe { next::setsockopt(socket, libc::SOL_SOCKET, option, (&raw const patience).cast(), len) };
    }
    // SAFETY: numbers alone, of which all may be 0.
    let mut address: sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    // An abstract name begins with a zero.
    for (to, from) in address.sun_path[1..].iter_mut().zip(name) {
        *to = *from as _;
    }
    let len = (size_of::<libc::sa_family_t>() + 1 + name.len()) as socklen_t;
    // SAFETY: the address is longer than `len`.
    if unsafe { next::connect(socket, (&raw const address).cast(), len) } != 0 {
        return None;
    }
    // SAFETY: no memory is passed.
    let tid = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    let fd = u16::try_from(listener).unwrap_or(u16::MAX);
    send(socket, &Request { token, kind, tid, fd }.encode(), listener)?;
    receive(socket)
}

/// A message of one buffer with room for a descriptor. Both must outlive it.
fn message(buffer: &mut iovec, control: &mut Control) -> msghdr {
    // SAFETY: numbers and pointers, of which all may be 0.
    let mut message: msghdr = unsafe { zeroed() };
    message.msg_iov = buffer;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut *control).cast::<c_void>();
    message.msg_controllen = size_of::<Control>() as _;
    message
}

/// Length of a control message with one descriptor, without padding behind it (CMSG_LEN).
const CONTROL_LEN: usize = size_of::<cmsghdr>() + size_of::<c_int>();

fn send(socket: c_int, request: &[u8; REQUEST], listener: c_int) -> Option<()> {
    let mut bytes = *request;
    let mut buffer = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: REQUEST };
    let header = cmsghdr { cmsg_len: CONTROL_LEN as _, cmsg_level: libc::SOL_SOCKET, cmsg_type: libc::SCM_RIGHTS };
    let mut control = Control { header, fd: listener, _padding: 0 };
    let message = message(&mut buffer, &mut control);
    // SAFETY: the message's buffers live and are as long as it says.
    let sent = unsafe { libc::sendmsg(socket, &message, libc::MSG_NOSIGNAL) };
    (sent == REQUEST as isize).then_some(())
}

fn receive(socket: c_int) -> Option<(Verdict, Option<c_int>)> {
    let mut bytes = [0u8; ANSWER];
    let mut buffer = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: ANSWER };
    // SAFETY: numbers alone, of which all may be 0.
    let mut control: Control = unsafe { zeroed() };
    let mut message = message(&mut buffer, &mut control);
    let got = loop {
        // SAFETY: as above.
        let got = unsafe { libc::recvmsg(socket, &mut message, libc::MSG_CMSG_CLOEXEC) };
        if got >= 0 || process::errno() != libc::EINTR {
            break got;
        }
    };
    let len = message.msg_controllen as usize;
    let fd = (len >= CONTROL_LEN && control.header.cmsg_type == libc::SCM_RIGHTS).then_some(control.fd);
    let verdict = usize::try_from(got).ok().and_then(|got| Verdict::decode(bytes.get(..got)?));
    match (verdict, fd) {
        (Some(verdict @ (Verdict::Replace | Verdict::Ports)), fd @ Some(_)) => Some((verdict, fd)),
        (verdict, Some(fd)) => {
            // SAFETY: nobody else knows of it.
            unsafe { next::close(fd) };
            verdict.map(|verdict| (verdict, None))
        }
        (verdict, None) => verdict.map(|verdict| (verdict, None)),
    }
}

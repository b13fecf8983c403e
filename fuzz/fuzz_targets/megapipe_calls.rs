//! Calls of libmegapipe as a C program makes them, right and wrong, on a channel over io_uring with pipes, socket pairs and
//! connections over loopback: nothing panics or blocks, what fails sets errno, and completions are of handles that there are.
#![no_main]

// The library's functions are exported for C.
use megapipe as _;

use std::collections::HashSet;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{null, null_mut};

use corelane_fuzz::Input;
use libfuzzer_sys::fuzz_target;

/// Longer inputs are not taken to their end.
const STEPS: usize = 300;

#[repr(C)]
struct Options {
    size: usize,
    engine: c_int,
    config: *const i8,
    lane: c_int,
    batch: c_uint,
    lwsockets: c_uint,
    buffers: c_uint,
    buffer_size: c_uint,
    accept_ahead: c_uint,
    balance: c_uint,
    completions: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    cmd: c_int,
    result: c_int,
    error: c_int,
    flags: c_uint,
    handle: u64,
    cookie: usize,
    /// `accept`: descriptor and kind, queued; `io`, `recv`: address, size.
    first: u64,
    second: u64,
}

unsafe extern "C" {
    fn mp_options_init(options: *mut Options, size: usize);
    fn mp_create(options: *const Options) -> *mut c_void;
    fn mp_destroy(channel: *mut c_void) -> c_int;
    fn mp_capabilities(channel: *mut c_void) -> c_int;
    fn mp_set_batch(channel: *mut c_void, requests: c_uint) -> c_int;
    fn mp_register(channel: *mut c_void, fd: c_int, cookie: *mut c_void, mask: u64) -> u64;
    fn mp_set_cookie(handle: u64, cookie: *mut c_void) -> c_int;
    fn mp_unregister(handle: u64) -> c_int;
    fn mp_accept(handle: u64, count: u32, lwsocket: c_int) -> c_int;
    fn mp_connect(handle: u64, address: *const libc::sockaddr, length: u32) -> c_int;
    fn mp_read(handle: u64, buf: *mut c_void, size: usize) -> c_int;
    fn mp_readv(handle: u64, iov: *const libc::iovec, n: c_int) -> c_int;
    fn mp_write(handle: u64, buf: *const c_void, size: usize) -> c_int;
    fn mp_writev(handle: u64, iov: *const libc::iovec, n: c_int) -> c_int;
    fn mp_recv(handle: u64) -> c_int;
    fn mp_release(channel: *mut c_void, data: *const c_void) -> c_int;
    fn mp_disconnect(handle: u64) -> c_int;
    fn mp_shutdown(handle: u64, how: c_int) -> c_int;
    fn mp_dispatch(channel: *mut c_void, event: *mut Event, timeout: c_int) -> c_int;
    fn mp_flush(channel: *mut c_void) -> c_int;
    fn mp_lwsocket_to_fd(channel: *mut c_void, lwsocket: c_int) -> c_int;
    fn mp_close(channel: *mut c_void, fd: c_int) -> c_int;
    fn mp_listen_at(address: *const libc::sockaddr, length: u32, backlog: c_int) -> c_int;
    fn mp_socket(channel: *mut c_void, domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn mp_getsockname(channel: *mut c_void, fd: c_int, address: *mut libc::sockaddr, length: *mut u32) -> c_int;
}

fn checked(result: c_int) -> c_int {
    if result < 0 {
        assert_eq!(result, -1);
        let errno = std::io::Error::last_os_error().raw_os_error();
        assert!(errno.is_some_and(|e| (1..134).contains(&e)), "errno {errno:?}");
    }
    result
}

struct Program {
    channel: *mut c_void,
    handles: Vec<u64>,
    /// All that were ever given: a completion may come late.
    known: HashSet<u64>,
    /// Descriptors and lwsockets of ours: only these are ever closed.
    fds: Vec<c_int>,
    /// The library's until the completion; here until the channel has ended.
    memory: Vec<Box<[u8; 512]>>,
    port: u16,
}

fn loopback(port: u16) -> libc::sockaddr_in {
    // SAFETY: zeroes are a valid address.
    let mut at: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    (at.sin_family, at.sin_port) = (libc::AF_INET as u16, port.to_be());
    at.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
    at
}

impl Program {
    fn handle(&self, input: &mut Input) -> u64 {
        match input.byte() {
            n @ 0..=243 if !self.handles.is_empty() => self.handles[n as usize % self.handles.len()],
            n => [0, 1, u64::MAX, 77 << 32][n as usize % 4],
        }
    }

    fn buffer(&mut self) -> *mut c_void {
        self.memory.push(Box::new([7; 512]));
        self.memory.last_mut().unwrap().as_mut_ptr().cast()
    }

    fn register(&mut self, fd: c_int, mask: u64) {
        // SAFETY: any descriptor may be given; the cookie is a number.
        let handle = unsafe { mp_register(self.channel, fd, self.known.len() as *mut c_void, mask) };
        if handle != 0 {
            self.known.insert(handle);
            self.handles.push(handle);
        }
    }

    fn step(&mut self, input: &mut Input) {
        let handle = self.handle(input);
        let fd = match self.fds.len() {
            0 => -1,
            n => self.fds[input.byte() as usize % n],
        };
        // SAFETY: what is passed is as long as is said, and lives until the channel has ended.
        unsafe {
            match input.byte() % 20 {
                0 => {
                    let mut pair = [-1; 2];
                    let made = match input.byte() % 3 {
                        0 => libc::pipe2(pair.as_mut_ptr(), libc::O_CLOEXEC),
                        1 => libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr()),
                        _ => libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr()),
                    };
                    if made == 0 {
                        self.fds.extend(pair);
                    }
                }
                1 | 2 => self.register(fd, if input.byte() & 3 == 0 { input.word() as u64 } else { 0 }),
                3 => {
                    let at = loopback(0);
                    let listener = checked(mp_listen_at((&raw const at).cast(), size_of_val(&at) as u32, input.byte() as c_int - 1));
                    if listener >= 0 {
                        let (mut at, mut len) = (at, size_of_val(&at) as u32);
                        checked(mp_getsockname(self.channel, listener, (&raw mut at).cast(), &mut len));
                        self.port = u16::from_be(at.sin_port);
                        self.fds.push(listener);
                        self.register(listener, 0);
                    }
                }
                4 => {
                    let fd = checked(mp_socket(self.channel, libc::AF_INET, libc::SOCK_STREAM, 0));
                    if fd >= 0 {
                        self.fds.push(fd);
                        self.register(fd, 0);
                    }
                }
                5 | 6 => {
                    let at = loopback(self.port);
                    let len = if input.byte() % 16 == 0 { input.byte() as u32 % 16 } else { size_of_val(&at) as u32 };
                    checked(mp_connect(handle, (&raw const at).cast(), len));
                }
                7 | 8 => {
                    let count = input.pick(&[0, 1, 2, u32::MAX]);
                    checked(mp_accept(handle, count, (input.byte() & 1) as c_int));
                }
                9 => {
                    let (buf, n) = (self.buffer(), input.byte() as usize * 2);
                    checked(mp_read(handle, buf, n));
                }
                10 => {
                    let (buf, n) = (self.buffer(), input.byte() as usize * 2);
                    checked(mp_write(handle, buf, n));
                }
                11 => {
                    let iov = [(); 2].map(|()| libc::iovec { iov_base: self.buffer(), iov_len: input.byte() as usize });
                    let n = (input.byte() % 4) as c_int - 1;
                    if input.byte() & 1 == 0 {
                        checked(mp_readv(handle, iov.as_ptr(), n.min(2)));
                    } else {
                        checked(mp_writev(handle, iov.as_ptr(), n.min(2)));
                    }
                }
                12 => {
                    checked(mp_recv(handle));
                }
                13 => {
                    checked(mp_disconnect(handle));
                }
                14 => {
                    checked(mp_shutdown(handle, input.byte() as c_int % 5 - 1));
                }
                15 => {
                    if checked(mp_unregister(handle)) == 0 {
                        self.handles.retain(|h| *h != handle);
                    }
                }
                16 => {
                    if fd >= 0 && checked(mp_close(self.channel, fd)) == 0 {
                        self.fds.retain(|f| *f != fd);
                    }
                }
                17 => {
                    let new = checked(mp_lwsocket_to_fd(self.channel, fd));
                    if new >= 0 {
                        self.fds.push(new);
                    }
                }
                18 => {
                    checked(mp_set_batch(self.channel, input.byte() as c_uint));
                    checked(mp_set_cookie(handle, null_mut()));
                    checked(mp_capabilities(self.channel));
                    checked(mp_release(self.channel, null()));
                }
                _ => {
                    checked(mp_flush(self.channel));
                }
            }
        }
        let mut event = Event::default();
        // SAFETY: there is room for one completion.
        while checked(unsafe { mp_dispatch(self.channel, &mut event, 0) }) == 1 {
            assert!((1..=6).contains(&event.cmd) && self.known.contains(&event.handle), "a completion of nobody");
            assert!(matches!((event.result, event.error), (0, 0) | (-1, 1..)), "{} {}", event.result, event.error);
            match (event.cmd, event.result) {
                (1, 0) => {
                    let fd = event.first as u32 as c_int;
                    self.fds.push(fd);
                    self.register(fd, 0);
                }
                // SAFETY: it was received, and is given back once.
                (5, 0) if event.first != 0 => assert_eq!(unsafe { mp_release(self.channel, event.first as *const c_void) }, 0),
                _ => {}
            }
            if self.fds.len() > 64 {
                break;
            }
        }
    }

    fn end(&mut self) {
        // SAFETY: the descriptors are ours; the channel is used no more.
        unsafe {
            for handle in self.handles.drain(..) {
                mp_unregister(handle);
            }
            // lwsockets go with the channel, descriptors by themselves.
            for fd in self.fds.drain(..) {
                mp_close(self.channel, fd);
            }
            assert_eq!(mp_destroy(self.channel), 0);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    // SAFETY: the structure is as long as is said; a null pointer is no channel.
    let channel = unsafe {
        let mut options: Options = std::mem::zeroed();
        mp_options_init(&mut options, size_of::<Options>());
        (options.lwsockets, options.buffers, options.buffer_size, options.completions) = (32, 8, 64, 64);
        mp_create(&options)
    };
    assert!(!channel.is_null(), "{}", std::io::Error::last_os_error());
    let mut program =
        Program { channel, handles: Vec::new(), known: HashSet::new(), fds: Vec::new(), memory: Vec::new(), port: 1 };
    let mut input = Input(data);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        program.step(&mut input);
    }
    program.end();
});

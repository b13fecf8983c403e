//! Calls of libmtcp as a C program makes them, right and wrong, on a context whose lane speaks with another one's over a wire
//! in memory: nothing panics or blocks, what fails sets errno, memory is written only where the call was
//! allowed to, and no connection outlives its context.
#![no_main]

use std::ffi::c_int;
use std::ptr::{null, null_mut};

use corelane_fuzz::Input;
use libfuzzer_sys::fuzz_target;
use mtcp::{Event, Token, ffi as calls};
use runtime::{Config, Engine};

/// What the library must not touch lies behind what it may.
const GUARD: u8 = 0xa7;

/// Longer inputs are not taken to their end.
const STEPS: usize = 300;
/// Turns of both lanes in which connections that were closed end: each waits for the other's in real time afterwards.
const LAST_TURNS: usize = 12;

struct Program {
    mctx: *mut Token,
    /// Whoever waits with it gives its lane a turn.
    epoll: c_int,
    ids: Vec<c_int>,
}

fn address(input: &mut Input, last: u8) -> (Vec<u8>, u32) {
    let mut b = (libc::AF_INET as u16).to_ne_bytes().to_vec();
    b.extend([80u16, 81, 0, 9999][input.byte() as usize % 4].to_be_bytes());
    b.extend(if input.byte() % 4 == 0 { [0; 4] } else { [10, 0, 0, last] });
    b.resize(16, 0);
    if input.byte() % 16 == 0 {
        let n = input.byte() as usize % 32;
        b = input.take(n);
    }
    let len = b.len() as u32;
    (b, len)
}

fn check(result: isize) -> isize {
    if result < 0 {
        assert_eq!(result, -1);
        let errno = std::io::Error::last_os_error().raw_os_error();
        assert!(errno.is_some_and(|e| (1..134).contains(&e)), "errno {errno:?}");
    }
    result
}

impl Program {
    /// One that there is or was, or that never is. Never `epoll`: a lane whose program has closed it takes no turns.
    fn id(&self, input: &mut Input) -> c_int {
        let id = match input.byte() {
            n @ 0..=239 if !self.ids.is_empty() => self.ids[n as usize % self.ids.len()],
            n => [-1, 0, 3, 600, c_int::MAX, c_int::MIN][n as usize % 6],
        };
        if id == self.epoll { -1 } else { id }
    }

    fn add(&mut self, id: c_int) {
        if check(id as isize) >= 0 && self.ids.len() < 64 {
            // A socket that blocks would wait for the other program, which this thread runs.
            // SAFETY: any number may be given.
            unsafe { calls::mtcp_setsock_nonblock(self.mctx, id) };
            self.ids.push(id);
        }
    }

    fn step(&mut self, input: &mut Input, us: u8, them: u8) {
        let (mctx, id, other) = (self.mctx, self.id(input), self.id(input));
        let mut buf = vec![GUARD; 4096];
        // SAFETY: the memory is as long as is said, and stays until the call returns; ids may be any number.
        unsafe {
            match input.byte() % 24 {
                0 | 1 => {
                    let domain = input.pick(&[libc::AF_INET, libc::AF_INET6, libc::AF_INET, 77]);
                    let new = calls::mtcp_socket(mctx, domain, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0);
                    self.add(new);
                }
                2 => {
                    let (addr, len) = address(input, us);
                    check(calls::mtcp_bind(mctx, id, addr.as_ptr().cast(), len) as isize);
                }
                3 => {
                    check(calls::mtcp_listen(mctx, id, input.byte() as c_int - 2) as isize);
                }
                4 | 5 => {
                    let mut len = input.byte() as u32 % 40;
                    let room = len as usize;
                    let new = calls::mtcp_accept(mctx, id, buf.as_mut_ptr().cast(), &mut len);
                    assert!(buf[room..].iter().all(|b| *b == GUARD), "accept writes behind {room}");
                    self.add(new);
                }
                6 | 7 => {
                    let (addr, len) = address(input, them);
                    check(calls::mtcp_connect(mctx, id, addr.as_ptr().cast(), len) as isize);
                }
                8 | 9 => {
                    let n = (input.byte() as usize).pow(2) % 4096;
                    let wrote = check(calls::mtcp_write(mctx, id, buf.as_ptr().cast(), n));
                    assert!(wrote <= n as isize);
                }
                10 | 11 => {
                    let n = input.byte() as usize * 15;
                    let got = check(calls::mtcp_read(mctx, id, buf.as_mut_ptr().cast(), n));
                    assert!(got <= n as isize && buf[n..].iter().all(|b| *b == GUARD), "read writes behind {n}");
                }
                12 => {
                    let (n, flags) = (input.byte() as usize, input.byte() as c_int & (libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_OOB));
                    check(calls::mtcp_recv(mctx, id, buf.as_mut_ptr().cast(), n, flags));
                }
                13 => {
                    let (left, right) = buf.split_at_mut(100);
                    let iov = [left, right].map(|b| libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: 90 });
                    let n = input.byte() as c_int % 4 - 1;
                    let n = n.min(2);
                    if input.byte() & 1 == 0 {
                        check(calls::mtcp_readv(mctx, id, iov.as_ptr().cast(), n) as isize);
                    } else {
                        check(calls::mtcp_writev(mctx, id, iov.as_ptr().cast(), n) as isize);
                    }
                    assert!(buf[90..100].iter().chain(&buf[190..]).all(|b| *b == GUARD));
                }
                14 => {
                    check(calls::mtcp_shutdown(mctx, id, input.byte() as c_int % 5 - 1) as isize);
                }
                15 | 16 => {
                    let result = if input.byte() & 3 == 0 { calls::mtcp_abort(mctx, id) } else { calls::mtcp_close(mctx, id) };
                    if check(result as isize) == 0 {
                        self.ids.retain(|i| *i != id);
                    }
                }
                17 => {
                    let new = calls::mtcp_epoll_create(mctx, input.byte() as c_int - 1);
                    if check(new as isize) >= 0 {
                        self.ids.push(new);
                    }
                }
                18 | 19 => {
                    let event = Event { events: input.word(), data: input.word() as u64 };
                    let at = if input.byte() % 16 == 0 { null() } else { &raw const event };
                    check(calls::mtcp_epoll_ctl(mctx, other, input.byte() as c_int % 5, id, at) as isize);
                }
                20 => {
                    let mut events = [Event { events: 0, data: 0 }; 8];
                    let n = check(calls::mtcp_epoll_wait(mctx, id, events.as_mut_ptr(), input.byte() as c_int % 10 - 1, 0).min(8) as isize);
                    assert!(n <= 8);
                }
                21 => {
                    let (level, name) = (input.pick(&[1, 6, 0, 41, 77]), input.byte() as c_int % 72);
                    let len = input.byte() as u32 % 20;
                    let value: Vec<u8> = input.take(len as usize);
                    // SO_LINGER (13) makes a close wait.
                    if name != 13 {
                        let len = value.len() as u32;
                        check(calls::mtcp_setsockopt(mctx, id, level, name, value.as_ptr().cast(), len) as isize);
                    }
                    let (mut len, room) = (len, len as usize);
                    check(calls::mtcp_getsockopt(mctx, id, level, name, buf.as_mut_ptr().cast(), &mut len) as isize);
                    assert!(buf[room..].iter().all(|b| *b == GUARD), "getsockopt({level}, {name}) writes behind {room}");
                }
                22 => {
                    let mut len = input.byte() as u32 % 40;
                    let room = len as usize;
                    if input.byte() & 1 == 0 {
                        check(calls::mtcp_getsockname(mctx, id, buf.as_mut_ptr().cast(), &mut len) as isize);
                    } else {
                        check(calls::mtcp_getpeername(mctx, id, buf.as_mut_ptr().cast(), &mut len) as isize);
                    }
                    assert!(buf[room..].iter().all(|b| *b == GUARD));
                }
                _ => {
                    let mut pair: [c_int; 2] = [-1; 2];
                    match input.byte() % 4 {
                        0 => {
                            if check(calls::mtcp_pipe(mctx, pair.as_mut_ptr()) as isize) == 0 {
                                pair.into_iter().for_each(|id| self.add(id));
                            }
                        }
                        1 => {
                            check(calls::mtcp_pipe(mctx, null_mut()) as isize);
                        }
                        2 => {
                            // FIONREAD
                            let mut n: c_int = 0;
                            check(calls::mtcp_socket_ioctl(mctx, id, 0x541b, (&raw mut n).cast()) as isize);
                        }
                        // A context that there is not.
                        _ => {
                            check(calls::mtcp_close(0x1000 as *mut Token, id) as isize);
                        }
                    }
                }
            }
        }
    }

    fn close_all(&mut self) {
        for id in self.ids.drain(..) {
            // SAFETY: any number may be given.
            unsafe { calls::mtcp_close(self.mctx, id) };
        }
    }

    /// The lane takes a turn.
    fn turn(&self) {
        let mut event = Event { events: 0, data: 0 };
        // SAFETY: there is room for one.
        unsafe { calls::mtcp_epoll_wait(self.mctx, self.epoll, &mut event, 1, 0) };
    }

    fn end(&mut self) {
        // SAFETY: the context is used no more.
        unsafe { calls::mtcp_destroy_context(self.mctx) };
    }
}

fuzz_target!(|data: &[u8]| {
    let config = |address: &str| Config {
        buffers_mib: 1,
        max_connections: 64,
        max_sockets: 64,
        max_time_wait: 16,
        max_half_open: 16,
        spin_us: 0,
        ..Config::memory(address).unwrap()
    };
    let (mut a, mut b) = Engine::memory_pair(&config("10.0.0.1/24"), &config("10.0.0.2/24")).unwrap();
    let mut programs = [&mut a, &mut b].map(|engine| {
        let app = engine.take_app(0).unwrap().attach().unwrap();
        let mctx = mtcp::adopt(app).unwrap();
        // SAFETY: no memory is passed.
        let epoll = unsafe { calls::mtcp_epoll_create(mctx, 8) };
        Program { mctx, epoll, ids: Vec::new() }
    });
    let mut input = Input(data);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let h = input.byte() as usize & 1;
        programs[h].step(&mut input, h as u8 + 1, 2 - h as u8);
        programs.iter().for_each(Program::turn);
    }
    programs.iter_mut().for_each(Program::close_all);
    for _ in 0..LAST_TURNS {
        programs.iter().for_each(Program::turn);
    }
    let stats = [&a, &b].map(Engine::stats);
    programs.iter_mut().for_each(Program::end);
    for lane in stats.iter().flatten() {
        assert_eq!(lane.connections(), 0, "connections outlive their context");
    }
    a.shutdown();
    b.shutdown();
});

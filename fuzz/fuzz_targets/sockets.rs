//! Calls on the sockets of two hosts in any order, with a network that loses and repeats packets and a clock that jumps:
//! nothing panics, the stacks do not contradict themselves (`Stack::check`), a stream's bytes come as they were written, and
//! when all is closed and time has passed nothing is left.
#![no_main]

use std::collections::HashMap;

use corelane_fuzz::{Input, Silence};
use libfuzzer_sys::fuzz_target;
use sim::{Machine, MachineConfig};
use socket::{
    Interest, Linger, ListenOptions, Ready, RecvFlags, Shutdown, SockId, SockOption, SocketConfig, Trigger,
};
use stack::StackConfig;
use protocol::Endpoint;
use wire::Addr;

/// Longer inputs are not taken to their end.
const STEPS: usize = 300;
const ADDRESSES: [[u8; 4]; 2] = [[192, 168, 0, 1], [192, 168, 0, 2]];

struct World {
    hosts: [Machine; 2],
    socks: [Vec<SockId>; 2],
    epolls: [Vec<SockId>; 2],
    /// Closed, and their numbers kept until the close has ended (SO_LINGER).
    lingering: [Vec<SockId>; 2],
    /// Bytes written to and read from each end, by host and its two endpoints.
    written: HashMap<(Endpoint, Endpoint), u64>,
    read: HashMap<(Endpoint, Endpoint), u64>,
}

/// The byte at this place of the stream that this end writes: both ends can tell.
fn pattern(from: Endpoint, at: u64) -> u8 {
    ((at * 167) >> 2) as u8 ^ from.port as u8
}

fn host(n: usize) -> Machine {
    Machine::new(MachineConfig {
        // Not on one link: a machine drops ARP frames, and reaches others by its hops.
        addresses: vec![(ADDRESSES[n].into(), 32)],
        stack: StackConfig { max_connections: 24, max_time_wait: 8, ..StackConfig::default() },
        socket: SocketConfig { max_sockets: 48, ..SocketConfig::default() },
        seed: n as u64 + 1,
        chunks: 192,
        ..MachineConfig::default()
    })
}

impl World {
    fn endpoint(&self, input: &mut Input, h: usize) -> Endpoint {
        let addr = match input.byte() % 8 {
            0 => Addr::UNSPECIFIED_V4,
            1 => Addr::from_v4([192, 168, 0, 99]),
            _ => Addr::from_v4(ADDRESSES[h]),
        };
        Endpoint { addr, port: [0, 80, 81, 5000][input.byte() as usize % 4] }
    }

    fn add(&mut self, h: usize, id: SockId) {
        self.socks[h].push(id);
    }

    /// Packets cross; some are lost, some come twice.
    fn exchange(&mut self, input: &mut Input, rounds: u8, careful: bool) {
        for _ in 0..rounds {
            for h in 0..2 {
                self.hosts[h].settle();
                let mut burst = Vec::new();
                while let Some((_, packet)) = self.hosts[h].pop() {
                    burst.push(packet);
                }
                for packet in burst {
                    let fate = if careful { 0 } else { input.byte() };
                    let times = if fate % 16 == 15 { 0 } else if fate % 16 == 14 { 2 } else { 1 };
                    (0..times).for_each(|_| self.hosts[1 - h].inject(&packet));
                }
            }
        }
    }

    fn pass(&mut self, micros: u64) {
        for host in &mut self.hosts {
            let to = host.now().plus_micros(micros);
            host.advance_to(to);
        }
    }

    fn write(&mut self, h: usize, id: SockId, n: usize) {
        let s = self.hosts[h].sockets();
        let (Ok(local), Ok(remote)) = (s.local(id), s.remote(id)) else {
            let _ = s.write(id, &[0; 7], false);
            return;
        };
        let at = self.written.entry((local, remote)).or_default();
        let data: Vec<u8> = (0..n as u64).map(|i| pattern(local, *at + i)).collect();
        if let Ok(n) = s.write(id, &data, false) {
            assert!(n <= data.len());
            *at += n as u64;
        }
    }

    fn read(&mut self, h: usize, id: SockId, n: usize, flags: i32) {
        let s = self.hosts[h].sockets();
        let mut buf = vec![0; n];
        let ends = s.local(id).and_then(|l| s.remote(id).map(|r| (l, r)));
        // What is looked at stays.
        const PEEK: i32 = 2;
        let takes = flags & PEEK == 0;
        let got = s.recv(id, &mut buf, RecvFlags::from_bits(flags));
        let (Ok(n), Ok((local, remote))) = (got, ends) else { return };
        assert!(n <= buf.len());
        if takes && n > 0 {
            let at = self.read.entry((local, remote)).or_default();
            let wrong = (0..n).find(|i| buf[*i] != pattern(remote, *at + *i as u64));
            assert!(wrong.is_none(), "byte {wrong:?} of {n} at {at} differs");
            *at += n as u64;
            let written = self.written.get(&(remote, local)).copied().unwrap_or(0);
            assert!(*at <= written, "{at} bytes read of {written}");
        }
    }

    fn option(&mut self, input: &mut Input, h: usize, id: SockId) {
        let (kind, value) = (input.byte(), input.word() >> (input.byte() % 32));
        let on = value & 1 == 1;
        let time = core::time::Duration::from_millis(value as u64);
        let option = match kind % 26 {
            0 => SockOption::ReuseAddr(on),
            1 => SockOption::ReusePort(on),
            2 => SockOption::KeepAlive(on),
            3 => SockOption::Linger(on.then_some(Linger { timeout: time })),
            4 => SockOption::SendBuffer(value),
            5 => SockOption::ReceiveBuffer(value),
            6 => SockOption::ReceiveTimeout(on.then_some(time)),
            7 => SockOption::NoDelay(on),
            8 => SockOption::Cork(on),
            9 => SockOption::QuickAck(on),
            10 => SockOption::MaxSegment(value),
            11 => SockOption::KeepIdle(value),
            12 => SockOption::KeepInterval(value),
            13 => SockOption::KeepCount(value),
            14 => SockOption::UserTimeout(value),
            15 => SockOption::ReceiveLow(value),
            16 => SockOption::SynCount(value),
            17 => SockOption::Linger2(value as i32),
            18 => SockOption::DeferAccept(value),
            19 => SockOption::WindowClamp(value),
            20 => SockOption::NotSentLow(value),
            21 => SockOption::MaxPacingRate(value),
            22 => SockOption::TrafficClass(value as i32),
            23 => SockOption::HopLimit(value as i32),
            24 => SockOption::MtuDiscover(value as i32),
            _ => SockOption::Inq(on),
        };
        let s = self.hosts[h].sockets();
        if s.set_option(id, option).is_ok() {
            assert!(s.option(id, option).is_ok(), "{option:?} was set and cannot be asked for");
        }
    }

    fn step(&mut self, input: &mut Input) {
        let what = input.byte();
        let h = (what & 1) as usize;
        let pick = |list: &[SockId], input: &mut Input| match list.len() {
            0 => None,
            n => Some(list[input.byte() as usize % n]),
        };
        let id = pick(&self.socks[h], input);
        let epoll = pick(&self.epolls[h], input);
        match (what >> 1) % 24 {
            0 | 1 => {
                if let Ok(id) = self.hosts[h].sockets().socket(false) {
                    self.add(h, id);
                }
            }
            2 => {
                let local = self.endpoint(input, h);
                let _ = id.map(|id| self.hosts[h].sockets().bind(id, local));
            }
            3 => {
                let backlog = input.byte() as u32 % 5;
                let _ = id.map(|id| self.hosts[h].sockets().listen(id, ListenOptions { backlog }));
            }
            4 | 5 => {
                let remote = self.endpoint(input, 1 - h);
                let _ = id.map(|id| self.hosts[h].sockets().connect(id, remote));
            }
            6 | 7 => {
                if let Some(Ok((id, _))) = id.map(|id| self.hosts[h].sockets().accept(id)) {
                    self.add(h, id);
                }
            }
            8 | 9 => {
                let n = (input.byte() as usize).pow(2) / 4;
                id.map(|id| self.write(h, id, n));
            }
            10 | 11 => {
                let (n, flags) = ((input.byte() as usize).pow(2) / 4, if input.byte() & 7 == 0 { input.byte() } else { 0 });
                // MSG_WAITALL blocks, MSG_TRUNC (32) and MSG_OOB (1) take bytes that no reader sees.
                id.map(|id| self.read(h, id, n, flags as i32 & !(0x20 | 1) & 0x42));
            }
            12 => {
                let how = input.pick(&[Shutdown::Read, Shutdown::Write, Shutdown::Both]);
                let _ = id.map(|id| self.hosts[h].sockets().shutdown(id, how));
            }
            13 | 14 => {
                if let Some(id) = id {
                    let s = self.hosts[h].sockets();
                    // A listener cannot be aborted, and stays.
                    let abort = input.byte() & 3 == 0;
                    let done = if abort { s.abort(id) } else { s.close(id) };
                    if done.is_ok() {
                        self.socks[h].retain(|s| *s != id);
                        if !abort {
                            self.lingering[h].push(id);
                        }
                    }
                }
            }
            15 => {
                if let Ok(id) = self.hosts[h].sockets().epoll_create() {
                    self.epolls[h].push(id);
                }
            }
            16 | 17 => {
                let interest = Interest {
                    events: input.word() & 0x2fff,
                    trigger: input.pick(&[Trigger::Level, Trigger::Edge, Trigger::OneShot]),
                    data: input.byte() as u64,
                };
                let how = input.byte() % 4;
                if let (Some(id), Some(epoll)) = (id, epoll) {
                    let s = self.hosts[h].sockets();
                    let _ = match how {
                        0 => s.epoll_modify(epoll, id, interest),
                        1 => s.epoll_delete(epoll, id),
                        _ => s.epoll_add(epoll, id, interest),
                    };
                }
            }
            18 => {
                let mut out = [Ready { events: 0, data: 0 }; 8];
                if let Some(Ok(n)) = epoll.map(|e| self.hosts[h].sockets().epoll_collect(e, &mut out)) {
                    assert!(n <= out.len() && out[..n].iter().all(|r| r.events != 0));
                }
            }
            19 => {
                id.map(|id| self.option(input, h, id));
            }
            20 => {
                if let Some(id) = id {
                    let s = self.hosts[h].sockets();
                    let _ = (s.take_error(id), s.available(id), s.readiness(id), s.unacknowledged(id));
                    let _ = (s.connect_result(id), s.listen_result(id), s.inq(id), s.waiting(id));
                }
            }
            21 => {
                let micros = 1 << (input.byte() % 25);
                self.pass(micros);
            }
            22 => {
                let n = 1 + input.byte() % 4;
                self.exchange(input, n, false);
            }
            _ => {
                // A frame of nobody.
                let n = input.byte() as usize;
                let packet = input.take(n);
                self.hosts[h].inject(&packet);
            }
        }
        self.exchange(input, 1, what & 0x80 == 0);
        for (host, lingering) in self.hosts.iter_mut().zip(&mut self.lingering) {
            lingering.retain(|id| host.sockets().linger_result(*id).is_none());
        }
        self.check();
    }

    fn check(&self) {
        self.hosts.iter().for_each(|host| host.stack().check());
    }

    /// Everything is closed, and more time passes than any timer runs.
    fn end(&mut self) {
        for h in 0..2 {
            let s = self.hosts[h].sockets();
            let all = self.socks[h].drain(..).chain(self.epolls[h].drain(..));
            let closed: Vec<_> = all.inspect(|id| _ = s.close(*id)).collect();
            for id in closed.into_iter().chain(self.lingering[h].drain(..)) {
                if s.linger_result(id).is_none() {
                    s.linger_give_up(id);
                }
            }
        }
        let mut silence = Silence::new(self.hosts[0].now());
        loop {
            self.exchange(&mut Input(&[]), 2, true);
            self.check();
            let quiet = self.hosts.iter().all(|host| host.next_sent().is_none());
            let deadline = self.hosts.iter().filter_map(Machine::next_deadline).min();
            let Some(at) = silence.next(self.hosts[0].now(), quiet, deadline) else { break };
            self.hosts.iter_mut().for_each(|host| host.advance_to(at));
        }
        for host in &mut self.hosts {
            assert_eq!(host.stack().connections(), 0, "connections that nobody has");
            assert_eq!((host.stack().half_open(), host.stack().time_waits()), (0, 0), "records that nobody ends");
            assert_eq!(host.sockets().len(), 0, "sockets that nobody has");
            assert_eq!(host.leaked(), 0, "chunks that nobody has");
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut world = World {
        hosts: [host(0), host(1)],
        socks: Default::default(),
        epolls: Default::default(),
        lingering: Default::default(),
        written: HashMap::new(),
        read: HashMap::new(),
    };
    let mut input = Input(data);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    world.end();
});

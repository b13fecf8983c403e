//! A stack, its sockets and one interface of bare IP packets, under a virtual clock.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use mem::lease::{Attached, Lease, Shape};
use mem::ring::Raw;
use mem::{Huge, Pool, PoolConfig, spsc};
use protocol::{ConnId, Job, ListenerId};
use socket::{Errno, SockId, SocketConfig, Sockets};
use stack::{Bounds, ClientId, InterfaceConfig, InterfaceId, Mode, Route, SeatId, Stack, StackConfig, SynCookies};
use tcp::TcpInfo;
use wire::burst::TxCaps;
use wire::{Instant, MacAddr, ethernet};

use crate::burst::{Frames, Sink};
use crate::host::CHECKED;

/// Our end of the link, which nobody outside sees.
const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// Everybody else's end.
const THEIRS: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
/// The next hops towards everybody, always known; link-local, so that no test means them.
const HOP_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 255, 254));
const HOP_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xffff, 0xfffe));
/// Frames that the stack sends between two looks at its events.
const TX_ROOM: usize = 256;
/// Rounds at one instant before the machine is left to the next one: only a stack that talks to itself needs them.
const ROUNDS: usize = 100_000;

/// What a machine is made of.
#[derive(Clone)]
pub struct MachineConfig {
    /// Its addresses with prefix lengths. Every other address is beyond the link.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Its stack; the seed takes the place of the secret.
    pub stack: StackConfig,
    /// Its sockets.
    pub socket: SocketConfig,
    /// Draws sequence numbers and ports.
    pub seed: u64,
    /// Chunks in its pool.
    pub chunks: u32,
}

impl Default for MachineConfig {
    /// 192.168.0.1 and fd3d::1 on an Ethernet's MTU.
    fn default() -> MachineConfig {
        MachineConfig {
            addresses: vec![(IpAddr::from([192, 168, 0, 1]), 16), (IpAddr::from([0xfd3d, 0, 0, 0, 0, 0, 0, 1]), 64)],
            mtu: 1500,
            stack: StackConfig { max_connections: 4096, ..StackConfig::default() },
            socket: SocketConfig { max_sockets: 4096, ..SocketConfig::default() },
            seed: 1,
            chunks: 1 << 14,
        }
    }
}

/// A stack, its sockets and one interface of bare IP packets, under a virtual clock. One thread runs all of it, and the
/// same calls give the same answers.
pub struct Machine {
    stack: Stack,
    sockets: Sockets,
    interface: InterfaceId,
    mtu: u16,
    now: Instant,
    sent: VecDeque<(Instant, Vec<u8>)>,
    socket: SocketConfig,
    clients: Vec<Option<Client>>,
}

/// A client as in another process: it shares nothing with the stack but its lease.
struct Client {
    id: ClientId,
    lease: Lease,
    attached: Attached,
    threads: Vec<(SeatId, Sockets)>,
    /// It is stopped: it neither says nor hears anything.
    stopped: bool,
}

impl Machine {
    /// Other parameters of TCP from now on; not while handshakes are under way: whether it was done.
    pub fn set_tcp(&mut self, tcp: tcp::Config, syn_cookies: SynCookies) -> bool {
        let done = self.stack.set_tcp(tcp.clone(), syn_cookies);
        if done {
            self.sockets.set_tcp(tcp);
        }
        done
    }

    /// A machine whose clock is at one second.
    pub fn new(config: MachineConfig) -> Machine {
        let now = Instant::from_micros(1_000_000);
        let pool = PoolConfig { chunks: config.chunks, ..PoolConfig::default() };
        let (stack_side, side) = Pool::new(&pool).expect("memory for the pool");
        let (jobs, stack_jobs) = mem::ring::ring(1 << 12).expect("memory for jobs");
        let (stack_events, events) = mem::ring::ring(1 << 12).expect("memory for events");
        let mut secret = [0x5a; 16];
        secret[..8].copy_from_slice(&config.seed.to_le_bytes());
        let stack = StackConfig { secret, ..config.stack };
        let mut stack = Stack::new(stack, stack_side, stack_jobs, stack_events);
        let interface = stack.add_interface(InterfaceConfig {
            name: "sim0".into(),
            mac: OURS,
            mtu: config.mtu,
            vlan: None,
            mode: Mode::Dedicated,
            caps: TxCaps { max_frame: config.mtu as usize + 14, checksum: false, max_gso: 0 },
            dad: 0,
            autoconf: false,
        });
        for (addr, prefix) in &config.addresses {
            stack.add_address(interface, *addr, *prefix);
        }
        // No neighbour is ever asked for: all lie behind hops that are known for good.
        stack.clear_routes();
        for (dst, hop) in [(Ipv4Addr::UNSPECIFIED.into(), HOP_V4), (Ipv6Addr::UNSPECIFIED.into(), HOP_V6)] {
            stack.add_route(Route { dst, prefix: 0, gateway: Some(hop), interface, metric: 0 });
            stack.set_neighbor(now, interface, hop, THEIRS);
        }
        let socket = config.socket.clone();
        let sockets = Sockets::new(config.socket, side, jobs, events);
        let (mtu, sent, clients) = (config.mtu, VecDeque::new(), Vec::new());
        let mut machine = Machine { stack, sockets, interface, mtu, now, sent, socket, clients };
        machine.settle();
        machine
    }

    /// The clock.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// News wait for a client's room: a lane looks again soon.
    pub fn holds_news(&self) -> bool {
        self.stack.events_pending()
    }

    /// The sockets; after a call, [`Machine::settle`] makes the stack do what it asked for.
    pub fn sockets(&mut self) -> &mut Sockets {
        &mut self.sockets
    }

    /// A client attaches, which has memory of its own with so many chunks and may have so much, with so many threads; its number.
    pub fn attach(&mut self, chunks: u32, threads: usize, bounds: Bounds) -> usize {
        let shape = Shape { chunks, seats: threads.max(1) as u32, jobs: 256, events: 256, huge: Huge::No };
        let lease = Lease::create(&shape, protocol::LAYOUT).expect("memory for a lease");
        let file = lease.file().try_clone_to_owned().expect("a descriptor");
        let attached = Attached::open(file, protocol::LAYOUT).expect("a lease");
        let side = lease.stack_side().expect("memory for records").expect("the stack's side");
        let id = self.stack.add_client(side, bounds).expect("room for a client");
        let mut client = Client { id, lease, attached, threads: Vec::new(), stopped: false };
        for thread in 0..threads {
            let seat = self.seat(&client, thread);
            let mem::lease::Seat { side, jobs, events, .. } = client.attached.seat(thread).expect("a seat");
            client.threads.push((seat, Sockets::new(self.socket.clone(), side, jobs, events)));
        }
        self.place(client)
    }

    /// A client attaches that writes and reads its rings itself, as words, and the rest of its memory, too ([`Machine::memory`]).
    pub fn attach_raw(&mut self, chunks: u32, bounds: Bounds) -> (usize, spsc::Producer<Raw>, spsc::Consumer<Raw>) {
        let client = self.attach(chunks, 0, bounds);
        let of = self.clients[client].take().expect("it has just come");
        self.seat(&of, 0);
        let (jobs, events) = of.attached.raw_seat(0).expect("a seat");
        self.clients[client] = Some(of);
        (client, jobs, events)
    }

    fn seat(&mut self, client: &Client, thread: usize) -> SeatId {
        let side = self.stack.side_of(client.id).expect("it is there");
        let seat = client.lease.stack_seat(thread, side).expect("a seat");
        let (seat, _) = self.stack.add_client_seat(client.id, seat).expect("room for a seat");
        self.stack.poll_seat(seat, true);
        seat
    }

    fn place(&mut self, client: Client) -> usize {
        let place = self.clients.iter().position(Option::is_none).unwrap_or(self.clients.len());
        self.clients.resize_with(self.clients.len().max(place + 1), || None);
        self.clients[place] = Some(client);
        place
    }

    /// The sockets of a client's thread.
    ///
    /// # Panics
    /// Where there is no such client, or thread.
    pub fn client(&mut self, client: usize, thread: usize) -> &mut Sockets {
        &mut self.clients[client].as_mut().expect("the client is there").threads[thread].1
    }

    /// A client neither says nor hears anything for a while, or goes on.
    pub fn stop(&mut self, client: usize, stopped: bool) {
        self.clients[client].iter_mut().for_each(|client| client.stopped = stopped);
    }

    /// The memory of a client, which can write all of it.
    ///
    /// # Panics
    /// Where there is no such client.
    pub fn memory(&self, client: usize) -> BorrowedFd<'_> {
        self.clients[client].as_ref().expect("the client is there").lease.file()
    }

    /// A client dies, in the middle of whatever it was about: what it has not flushed is not said.
    pub fn kill(&mut self, client: usize) {
        if let Some(client) = self.clients[client].take() {
            // No destructor runs in a process that is killed.
            client.threads.into_iter().for_each(|(_, sockets)| core::mem::forget(sockets));
            self.stack.end_client(self.now, client.id);
        }
        self.settle();
    }

    /// A client asks for something about the first connection, or listener, of the stack, which is another's.
    pub fn malice(&mut self, client: usize, way: u32) {
        let (conn, listener) = (ConnId(0), ListenerId(0));
        let job = match way {
            0 => Job::Abort { conn },
            1 => Job::Write { conn, chain: Default::default(), more: false, close: true },
            2 => Job::CloseListener { listener },
            3 => Job::Consumed { conn, bytes: 5 },
            _ => Job::Taken { listener, count: 1 },
        };
        self.client(client, 0).say(job);
        self.settle();
    }

    /// Clients that the stack has ended since the last call, and why, as it would tell their processes.
    pub fn take_ill(&mut self) -> Vec<(usize, stack::Ill)> {
        let ill = self.stack.take_ill();
        let place = |id| self.clients.iter().position(|client| client.as_ref().is_some_and(|client| client.id == id));
        ill.into_iter().filter_map(|(id, ill)| Some((place(id)?, ill))).collect()
    }

    /// A connection's snapshot (TCP_INFO).
    pub fn info(&mut self, id: SockId) -> Result<TcpInfo, Errno> {
        let query = self.sockets.query_info(id)?;
        self.settle();
        self.sockets.info_result(query).unwrap_or(Err(Errno::EAGAIN))
    }

    /// The stack, for its counters and views.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Chunks that neither the pool nor the sockets' side has back.
    pub fn leaked(&mut self) -> u32 {
        self.sockets.side().outstanding(self.stack.pool_mut())
    }

    /// When the next timer is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.stack.next_deadline()
    }

    /// Moves the clock to `t`, never back, past every timer that is due on the way, each at its own instant.
    pub fn advance_to(&mut self, t: Instant) {
        while let Some(at) = self.next_deadline().filter(|at| *at <= t) {
            // A timer that stays due after its turn must not hold the clock.
            let next = at.max(self.now.plus_micros(1));
            if next > t {
                break;
            }
            self.now = next;
            self.settle();
        }
        self.now = self.now.max(t);
        self.settle();
    }

    /// An IP packet arrives. What is neither IPv4 nor IPv6 by its first byte is dropped, as a link of bare IP would.
    pub fn inject(&mut self, packet: &[u8]) {
        let ethertype = match packet.first().map(|b| b >> 4) {
            Some(4) => ethernet::IPV4,
            Some(6) => ethernet::IPV6,
            _ => return,
        };
        let mut frame = vec![0; 14 + packet.len()];
        let at = ethernet::emit(&mut frame, OURS, THEIRS, None, ethertype);
        frame[at..].copy_from_slice(packet);
        let burst = Frames::plain(vec![frame]);
        self.stack.receive(self.now, self.interface, &burst);
        self.settle();
    }

    /// The next IP packet sent, with its instant.
    pub fn pop(&mut self) -> Option<(Instant, Vec<u8>)> {
        self.sent.pop_front()
    }

    /// When the packet was sent that [`Machine::pop`] would give.
    pub fn next_sent(&self) -> Option<Instant> {
        self.sent.front().map(|(at, _)| *at)
    }

    /// Lets jobs go to the stack and events come back until nothing moves at this instant.
    pub fn settle(&mut self) {
        for _ in 0..ROUNDS {
            if !self.turn() {
                break;
            }
        }
    }

    /// One turn in a lane's order; whether there is reason for another.
    fn turn(&mut self) -> bool {
        let now = self.now;
        let mut asked = self.sockets.flush();
        let awake = |client: &&mut Client| !client.stopped;
        for client in self.clients.iter_mut().flatten().filter(awake) {
            client.threads.iter_mut().for_each(|(_, sockets)| asked |= sockets.flush());
        }
        self.stack.expire(now);
        let jobs = self.stack.run_jobs(now) + self.stack.go_on_reclaiming(now);
        let mut sink = Sink::new(self.mtu, TX_ROOM);
        self.stack.transmit(now, self.interface, &mut sink);
        let sent = sink.frames.len();
        self.sent.extend(sink.frames.into_iter().filter_map(|frame| Some((now, bare(&frame)?))));
        let told = self.stack.flush_events(now);
        self.stack.check_in_turn(CHECKED);
        let mut events = self.sockets.process();
        let mut backlogged = self.sockets.backlogged();
        for client in self.clients.iter_mut().flatten().filter(awake) {
            for (_, sockets) in &mut client.threads {
                events += sockets.process();
                backlogged |= sockets.backlogged();
            }
        }
        // News that find no room wait for a client to read, or to free chunks, which may take long.
        let waits = self.stack.sending() || told > 0 && self.stack.events_pending();
        asked || jobs + sent + events > 0 || waits || backlogged || self.stack.is_reclaiming()
    }
}

/// The IP packet of a frame; ARP is no packet.
fn bare(frame: &[u8]) -> Option<Vec<u8>> {
    let frame = ethernet::Frame::parse(frame).ok()?;
    matches!(frame.ethertype, ethernet::IPV4 | ethernet::IPV6).then(|| frame.payload.to_vec())
}

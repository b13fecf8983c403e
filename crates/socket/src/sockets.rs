//! The calls that open, name and close sockets.

use std::collections::VecDeque;

use mem::spsc::{Consumer, Producer};
use mem::{Chain, Side};
use stack::channel::{CloseMode, ConnId, ConnOption, Endpoint, Job, Token};
use tcp::TcpInfo;
use wire::Addr;

use crate::errno::Errno;
use crate::options::Cold;
use crate::table::{ListenPhase, Listening, Phase, SockId, Socket, Table, Tcp, flag};

/// Sizes of one lane's application half.
#[derive(Clone, Debug)]
pub struct SocketConfig {
    /// Most descriptors.
    pub max_sockets: u32,
    /// SO_SNDBUF of new sockets, bytes; must be the stack's.
    pub send_buffer: u32,
    /// SO_RCVBUF of new sockets, bytes; must be the stack's.
    pub receive_buffer: u32,
}

impl Default for SocketConfig {
    fn default() -> SocketConfig {
        let tcp = tcp::Config::default();
        SocketConfig { max_sockets: 1 << 20, send_buffer: tcp.send_buffer, receive_buffer: tcp.receive_buffer }
    }
}

/// What `listen` may ask for.
#[derive(Clone, Copy, Debug)]
pub struct ListenOptions {
    /// Most connections that wait to be accepted.
    pub backlog: u32,
}

/// The application's half of a lane.
pub struct Sockets {
    pub(crate) config: SocketConfig,
    pub(crate) side: Side,
    jobs: Producer,
    pub(crate) events: Consumer,
    pub(crate) table: Table,
    /// Descriptor number by connection, `NONE` where there is none.
    pub(crate) by_conn: Vec<u32>,
    /// Listener descriptor by the stack's listener number.
    pub(crate) by_listener: Vec<u32>,
    /// Jobs that the ring did not take.
    held: VecDeque<Job>,
    /// Sockets whose last write found no chunk.
    pub(crate) starved: Vec<SockId>,
    /// Answers to queries, by token.
    pub(crate) infos: Vec<(Token, Option<TcpInfo>)>,
    next_query: u32,
    /// Listeners with connections taken and not reported.
    pub(crate) taken: Vec<SockId>,
    /// Messages that did not decode, and events for nobody.
    pub(crate) stray: u64,
}

pub(crate) const NONE: u32 = u32::MAX;
/// Chunks that the stack's side should find waiting.
const LOW_SUPPLY: u32 = 512;

impl Sockets {
    /// The half that owns these ends of a lane's memory.
    pub fn new(config: SocketConfig, side: Side, jobs: Producer, events: Consumer) -> Sockets {
        Sockets {
            table: Table::new(config.max_sockets),
            config,
            side,
            jobs,
            events,
            by_conn: Vec::new(),
            by_listener: Vec::new(),
            held: VecDeque::new(),
            starved: Vec::new(),
            infos: Vec::new(),
            next_query: 0,
            taken: Vec::new(),
            stray: 0,
        }
    }

    pub(crate) fn job(&mut self, job: Job) {
        if !self.held.is_empty() {
            self.held.push_back(job);
            return;
        }
        if let Err(message) = self.jobs.push(job.into_message()) {
            match Job::from_message(message) {
                Ok(job) => self.held.push_back(job),
                Err(chain) => chain.free(&mut self.side),
            }
        }
    }

    /// Whether bulk jobs should wait: the ring to the stack is full.
    pub(crate) fn congested(&self) -> bool {
        !self.held.is_empty()
    }

    /// Hands over what was asked for since the last call (MegaPipe 3.5: one publication a batch); whether there was
    /// anything.
    pub fn flush(&mut self) -> bool {
        for id in core::mem::take(&mut self.taken) {
            self.report_taken(id);
        }
        while let Some(job) = self.held.pop_front() {
            match self.jobs.push(job.into_message()) {
                Ok(()) => {}
                Err(message) => {
                    match Job::from_message(message) {
                        Ok(job) => self.held.push_front(job),
                        Err(chain) => chain.free(&mut self.side),
                    }
                    break;
                }
            }
        }
        // What reading freed goes back to where it is needed.
        self.side.supply_peer(LOW_SUPPLY);
        let any = self.jobs.pending() > 0;
        self.jobs.publish();
        any
    }

    /// Jobs that wait for room in the ring: the caller should let the stack run.
    pub fn backlogged(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether the stack has said something that [`Sockets::process`] has not seen.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Descriptors in use.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether no descriptor is in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Messages that did not decode, and events for nobody.
    pub fn stray(&self) -> u64 {
        self.stray
    }

    /// The application's side of the chunk pool.
    pub fn side(&mut self) -> &mut Side {
        &mut self.side
    }

    fn fresh(&self, v6: bool) -> Tcp {
        let any = Endpoint { addr: if v6 { Addr::UNSPECIFIED_V6 } else { Addr::UNSPECIFIED_V4 }, port: 0 };
        Tcp {
            phase: Phase::Fresh,
            error: None,
            flags: if v6 { flag::V6 } else { 0 },
            conn: ConnId(NONE),
            rx: Chain::default(),
            unreported: 0,
            in_flight: 0,
            send_buffer: self.config.send_buffer,
            receive_buffer: self.config.receive_buffer,
            local: any,
            remote: any,
            watch: None,
            cold: None,
        }
    }

    /// socket(AF_INET or AF_INET6, SOCK_STREAM).
    pub fn socket(&mut self, v6: bool) -> Result<SockId, Errno> {
        let fresh = self.fresh(v6);
        self.table.insert(Socket::Tcp(fresh)).ok_or(Errno::EMFILE)
    }

    /// The socket, when it is a TCP one that neither listens nor polls.
    pub(crate) fn tcp(&mut self, id: SockId) -> Result<&mut Tcp, Errno> {
        match self.table.get_mut(id).ok_or(Errno::EBADF)? {
            Socket::Tcp(t) => Ok(t),
            Socket::Listener(_) | Socket::Epoll(_) => Err(Errno::EOPNOTSUPP),
        }
    }

    /// bind: the address is checked when it is used.
    pub fn bind(&mut self, id: SockId, local: Endpoint) -> Result<(), Errno> {
        let t = self.tcp(id).map_err(|e| if e == Errno::EOPNOTSUPP { Errno::EINVAL } else { e })?;
        if t.phase != Phase::Fresh || t.is(flag::BOUND) {
            return Err(Errno::EINVAL);
        }
        if local.addr.is_v4() == t.is(flag::V6) {
            return Err(Errno::EAFNOSUPPORT);
        }
        t.local = local;
        t.set(flag::BOUND, true);
        Ok(())
    }

    /// listen: asks the stack; [`Sockets::listen_result`] tells.
    pub fn listen(&mut self, id: SockId, options: ListenOptions) -> Result<(), Errno> {
        if let Some(l) = self.table.listener(id) {
            // A second listen changes the backlog only.
            l.backlog = options.backlog.max(1);
            return Ok(());
        }
        let t = self.tcp(id)?;
        if t.phase != Phase::Fresh {
            return Err(Errno::EINVAL);
        }
        let (local, flags, receive_buffer, send_buffer) = (t.local, t.flags, t.receive_buffer, t.send_buffer);
        let (cold, watch) = (t.cold.take(), t.watch.take());
        let listening = Listening {
            phase: ListenPhase::Asked,
            local,
            backlog: options.backlog.max(1),
            queue: VecDeque::new(),
            taken: 0,
            flags,
            send_buffer,
            receive_buffer,
            cold,
            watch,
        };
        if let Some(slot) = self.table.get_mut(id) {
            *slot = Socket::Listener(Box::new(listening));
        }
        self.job(Job::Listen {
            token: Token(id.0),
            local,
            backlog: options.backlog.max(1),
            v6_only: flags & flag::V6_ONLY != 0,
            reuse_port: flags & flag::REUSE_PORT != 0,
            receive_buffer,
        });
        Ok(())
    }

    /// What became of `listen`; `None` while the stack has not answered. After an error the descriptor can only be closed.
    pub fn listen_result(&mut self, id: SockId) -> Option<Result<(), Errno>> {
        let Some(l) = self.table.listener(id) else { return Some(Err(Errno::EINVAL)) };
        match l.phase {
            ListenPhase::Asked => None,
            ListenPhase::Open(_) | ListenPhase::Closing => Some(Ok(())),
            ListenPhase::Failed(failure) => Some(Err(failure.into())),
        }
    }

    /// connect: `EINPROGRESS` the first time, then `EALREADY`, `EISCONN` or the failure.
    pub fn connect(&mut self, id: SockId, remote: Endpoint) -> Result<(), Errno> {
        let t = self.tcp(id)?;
        match t.phase {
            Phase::Fresh => {}
            Phase::Asked | Phase::Opening => return Err(Errno::EALREADY),
            Phase::Open => return Err(Errno::EISCONN),
            Phase::Closing => return Err(Errno::EINVAL),
            Phase::Failed => {
                t.set(flag::ERROR_NEW, false);
                return Err(t.error.map_or(Errno::ECONNABORTED, Errno::from));
            }
        }
        if remote.addr.is_v4() == t.is(flag::V6) {
            return Err(Errno::EAFNOSUPPORT);
        }
        if remote.port == 0 {
            return Err(Errno::EADDRNOTAVAIL);
        }
        t.phase = Phase::Asked;
        t.remote = remote;
        let (local, receive_buffer) = (t.local, t.receive_buffer);
        self.job(Job::Connect { token: Token(id.0), local, remote, receive_buffer });
        Err(Errno::EINPROGRESS)
    }

    /// Where a connect has got to: `None` while it is under way.
    pub fn connect_result(&mut self, id: SockId) -> Option<Result<(), Errno>> {
        let t = match self.tcp(id) {
            Ok(t) => t,
            Err(e) => return Some(Err(e)),
        };
        match t.phase {
            Phase::Fresh => Some(Err(Errno::ENOTCONN)),
            Phase::Asked | Phase::Opening => None,
            Phase::Open => Some(Ok(())),
            Phase::Failed | Phase::Closing => {
                t.set(flag::ERROR_NEW, false);
                Some(Err(t.error.map_or(Errno::ECONNABORTED, Errno::from)))
            }
        }
    }

    /// accept: the oldest established connection.
    pub fn accept(&mut self, id: SockId) -> Result<(SockId, Endpoint), Errno> {
        let l = match self.table.get_mut(id).ok_or(Errno::EBADF)? {
            Socket::Listener(l) => l,
            Socket::Tcp(_) | Socket::Epoll(_) => return Err(Errno::EINVAL),
        };
        if let ListenPhase::Failed(failure) = l.phase {
            return Err(failure.into());
        }
        let taken = l.queue.pop_front().ok_or(Errno::EAGAIN)?;
        if l.taken == 0 {
            self.taken.push(id);
        }
        l.taken += 1;
        let t = self.tcp(taken)?;
        t.set(flag::QUEUED, false);
        Ok((taken, t.remote))
    }

    /// Tells the stack that the accept queue has room again.
    fn report_taken(&mut self, id: SockId) {
        let Some(l) = self.table.listener(id) else { return };
        let count = core::mem::take(&mut l.taken);
        if let (ListenPhase::Open(listener), 1..) = (&l.phase, count) {
            let listener = *listener;
            self.job(Job::Taken { listener, count });
        }
    }

    /// getsockname.
    pub fn local(&mut self, id: SockId) -> Result<Endpoint, Errno> {
        match self.table.get_mut(id).ok_or(Errno::EBADF)? {
            Socket::Tcp(t) => Ok(t.local),
            Socket::Listener(l) => Ok(l.local),
            Socket::Epoll(_) => Err(Errno::EOPNOTSUPP),
        }
    }

    /// getpeername.
    pub fn remote(&mut self, id: SockId) -> Result<Endpoint, Errno> {
        let t = self.tcp(id).map_err(|e| if e == Errno::EOPNOTSUPP { Errno::ENOTCONN } else { e })?;
        match t.phase {
            Phase::Open if t.error.is_none() => Ok(t.remote),
            _ => Err(Errno::ENOTCONN),
        }
    }

    /// Options that differ from the stack's defaults, once the connection has a number.
    pub(crate) fn send_options(&mut self, conn: ConnId, flags: u16, cold: Option<&Cold>) {
        let by_flag = [
            (flag::NO_DELAY, ConnOption::NoDelay),
            (flag::CORK, ConnOption::Cork),
            (flag::KEEPALIVE, ConnOption::KeepAlive),
        ];
        if let Some(cold) = cold {
            for (option, value) in &cold.stack {
                self.job(Job::SetOption { conn, option: *option, value: *value });
            }
        }
        for (bit, option) in by_flag {
            if flags & bit != 0 {
                self.job(Job::SetOption { conn, option, value: 1 });
            }
        }
    }

    /// close. With SO_LINGER and a timeout the connection is waited for: [`Sockets::linger_result`].
    pub fn close(&mut self, id: SockId) -> Result<(), Errno> {
        match self.table.get_mut(id).ok_or(Errno::EBADF)? {
            Socket::Tcp(t) => {
                let (phase, conn) = (t.phase, t.conn);
                let unread = !t.rx.is_empty();
                core::mem::take(&mut t.rx).free(&mut self.side);
                let linger = t.cold.as_ref().and_then(|c| c.linger);
                t.watch = None;
                match phase {
                    Phase::Asked => {
                        // `Opened` will come; then it is closed.
                        t.phase = Phase::Closing;
                        return Ok(());
                    }
                    Phase::Opening | Phase::Open => {}
                    Phase::Failed if conn.0 != NONE => {}
                    Phase::Fresh | Phase::Failed => {
                        self.table.remove(id);
                        return Ok(());
                    }
                    Phase::Closing => return Err(Errno::EBADF),
                }
                let failed = t.error.is_some();
                let mode = match linger {
                    Some(l) if l.timeout.is_zero() => None,
                    Some(_) if !failed && !unread && phase == Phase::Open => Some(CloseMode::Report),
                    _ if unread => Some(CloseMode::Unread),
                    _ => Some(CloseMode::Graceful),
                };
                if mode == Some(CloseMode::Report) {
                    t.phase = Phase::Closing;
                } else {
                    self.table.remove(id);
                    self.by_conn[conn.0 as usize] = NONE;
                }
                self.job(match mode {
                    Some(mode) => Job::Close { conn, mode },
                    None => Job::Abort { conn },
                });
            }
            Socket::Listener(l) => {
                let queue = core::mem::take(&mut l.queue);
                l.watch = None;
                let listener = match l.phase {
                    ListenPhase::Open(listener) => Some(listener),
                    ListenPhase::Asked => {
                        l.phase = ListenPhase::Closing;
                        return Ok(());
                    }
                    ListenPhase::Failed(_) => None,
                    ListenPhase::Closing => return Err(Errno::EBADF),
                };
                self.table.remove(id);
                // RFC 9293 3.10.4 and Linux: what nobody accepted is reset.
                for waiting in queue {
                    self.abort(waiting)?;
                }
                if let Some(listener) = listener {
                    self.by_listener[listener.0 as usize] = NONE;
                    self.job(Job::CloseListener { listener });
                }
            }
            Socket::Epoll(_) => {
                self.table.remove(id);
                self.forget_epoll(id);
            }
        }
        Ok(())
    }

    /// RST now.
    pub fn abort(&mut self, id: SockId) -> Result<(), Errno> {
        let t = self.tcp(id)?;
        let conn = t.conn;
        if !matches!(t.phase, Phase::Opening | Phase::Open) || conn.0 == NONE {
            return self.close(id);
        }
        core::mem::take(&mut t.rx).free(&mut self.side);
        self.table.remove(id);
        self.by_conn[conn.0 as usize] = NONE;
        self.job(Job::Abort { conn });
        Ok(())
    }

    /// How a lingering close ended; `None` while it waits. The descriptor is free after an answer.
    pub fn linger_result(&mut self, id: SockId) -> Option<Result<(), Errno>> {
        match self.table.get(id) {
            Some(Socket::Tcp(t)) if t.phase == Phase::Closing && t.conn.0 != NONE => match t.error {
                Some(failure) => {
                    self.table.remove(id);
                    Some(Err(failure.into()))
                }
                None if t.is(flag::FIN) => {
                    self.table.remove(id);
                    Some(Ok(()))
                }
                None => None,
            },
            _ => Some(Ok(())),
        }
    }

    /// Stops waiting for a lingering close: it goes on in the background.
    pub fn linger_give_up(&mut self, id: SockId) {
        if let Some(Socket::Tcp(t)) = self.table.get(id) {
            if t.phase == Phase::Closing {
                let conn = t.conn;
                self.table.remove(id);
                if let Some(slot) = self.by_conn.get_mut(conn.0 as usize) {
                    *slot = NONE;
                }
            }
        }
    }

    /// Asks for a snapshot; [`Sockets::info_result`] gives it.
    pub fn query_info(&mut self, id: SockId) -> Result<Token, Errno> {
        let t = self.tcp(id)?;
        if !matches!(t.phase, Phase::Opening | Phase::Open) {
            return Err(Errno::ENOTCONN);
        }
        let conn = t.conn;
        let token = Token(self.next_query);
        self.next_query = self.next_query.wrapping_add(1);
        self.job(Job::Query { conn, token });
        Ok(token)
    }

    /// The snapshot asked for, once it is there.
    pub fn info_result(&mut self, token: Token) -> Option<Result<TcpInfo, Errno>> {
        let at = self.infos.iter().position(|(t, _)| *t == token)?;
        Some(self.infos.swap_remove(at).1.ok_or(Errno::ENOTCONN))
    }
}

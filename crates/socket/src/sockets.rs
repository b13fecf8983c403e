//! The calls that open, name and close sockets.

use std::collections::VecDeque;

use mem::ring::{Consumer, Message, Producer};
use mem::{Chain, Side};
use protocol::{CloseMode, ConnId, ConnOption, Endpoint, Job, Token};
use tcp::TcpInfo;
use wire::Addr;

use crate::counters::Counters;
use crate::epoll::{ANY, Epolls};
use crate::errno::Errno;
use crate::locals::{ANY_V4, ANY_V6, Locals};
use crate::options::{Cold, FLAGGED, TOLD};
use crate::share::{Starved, Turn};
use crate::table::{Phase, SockId, Socket, Table, Tcp, flag};

/// Sizes of one lane's application half.
#[derive(Clone, Debug)]
pub struct SocketConfig {
    /// Most descriptors.
    pub max_sockets: u32,
    /// SO_SNDBUF of new sockets, bytes; must be the stack's.
    pub send_buffer: u32,
    /// SO_RCVBUF of new sockets, bytes; must be the stack's.
    pub receive_buffer: u32,
    /// The stack's parameters, for what getsockopt tells of options that were never set.
    pub tcp: tcp::Config,
}

impl Default for SocketConfig {
    fn default() -> SocketConfig {
        let tcp = tcp::Config::default();
        SocketConfig { max_sockets: 1 << 20, send_buffer: tcp.send_buffer, receive_buffer: tcp.receive_buffer, tcp }
    }
}

/// A question to the stack about a connection.
pub(crate) struct Query {
    pub token: Token,
    pub sock: SockId,
    /// Once it is there; `None` in it says that the connection is gone.
    pub answer: Option<Option<TcpInfo>>,
}

/// The application's half of a lane.
pub struct Sockets {
    pub(crate) config: SocketConfig,
    pub(crate) side: Side,
    jobs: Producer,
    pub(crate) events: Consumer,
    pub(crate) table: Table,
    pub(crate) epolls: Epolls,
    pub(crate) locals: Locals,
    /// Descriptor number by connection, `NONE` where there is none.
    pub(crate) by_conn: Vec<u32>,
    /// Listener descriptor by the stack's listener number.
    pub(crate) by_listener: Vec<u32>,
    /// Jobs that the ring did not take. Writes are refused meanwhile, so a few for each socket is all there can be.
    held: VecDeque<Message>,
    /// Sockets whose last write found no chunk or no slot.
    pub(crate) starved: VecDeque<Starved>,
    /// Those who may send though memory is dry.
    pub(crate) turns: Vec<Turn>,
    /// Those with fewer bytes than SO_RCVLOWAT to read, once each.
    pub(crate) low: Vec<SockId>,
    /// See [`Sockets::follow_share`].
    pub(crate) share: usize,
    /// Less than a quarter of the chunks is free, so that every write has to ask for its share.
    pub(crate) tight: bool,
    pub(crate) queries: Vec<Query>,
    next_query: u32,
    /// Listeners with connections taken and not reported.
    pub(crate) taken: Vec<SockId>,
    pub(crate) counters: Counters,
    /// Batches of events before the next [`Sockets::check`].
    #[cfg(debug_assertions)]
    pub(crate) unchecked: usize,
}

pub(crate) const NONE: u32 = u32::MAX;
/// Chunks that the stack's side should find waiting.
const LOW_SUPPLY: u32 = 512;

impl Sockets {
    /// The half that owns these ends of a lane's memory.
    pub fn new(config: SocketConfig, side: Side, jobs: Producer, events: Consumer) -> Sockets {
        Sockets {
            table: Table::new(config.max_sockets),
            epolls: Epolls::default(),
            locals: Locals::new(),
            config,
            side,
            jobs,
            events,
            by_conn: Vec::new(),
            by_listener: Vec::new(),
            held: VecDeque::new(),
            starved: VecDeque::new(),
            turns: Vec::new(),
            low: Vec::new(),
            share: usize::MAX / 2,
            tight: false,
            queries: Vec::new(),
            next_query: 0,
            taken: Vec::new(),
            counters: Counters::default(),
            #[cfg(debug_assertions)]
            unchecked: 0,
        }
    }

    /// Other parameters for sockets to come.
    pub fn set_tcp(&mut self, tcp: tcp::Config) {
        (self.config.send_buffer, self.config.receive_buffer) = (tcp.send_buffer, tcp.receive_buffer);
        self.config.tcp = tcp;
    }

    /// Says something to the stack that no call would say: for tests.
    #[doc(hidden)]
    pub fn say(&mut self, job: Job) {
        self.job(job);
    }

    #[inline(always)]
    pub(crate) fn job(&mut self, job: Job) {
        let message = job.into_message();
        if !self.held.is_empty() {
            return self.held.push_back(message);
        }
        if let Err(message) = self.jobs.push(message) {
            self.hold(message);
        }
    }

    /// A graceful close; where the bytes written last have not gone yet, they say it too.
    #[inline(always)]
    pub(crate) fn close_job(&mut self, conn: ConnId) {
        if !self.held.is_empty() || !self.jobs.last().is_some_and(|job| Job::followed_by_close(job, conn)) {
            self.job(Job::Close { conn, mode: CloseMode::Graceful });
        }
    }

    #[cold]
    fn hold(&mut self, message: Message) {
        self.counters.ring_full += 1;
        self.held.push_back(message);
    }

    /// Hands over what was asked for since the last call (MegaPipe 3.5: one publication a batch); whether there was
    /// anything.
    pub fn flush(&mut self) -> bool {
        self.report_taken();
        while let Some(message) = self.held.pop_front() {
            if let Err(message) = self.jobs.push(message) {
                self.held.push_front(message);
                break;
            }
        }
        // What reading freed goes back to where it is needed.
        self.side.supply_peer(LOW_SUPPLY);
        self.jobs.publish()
    }

    /// What was asked for since the last [`Sockets::flush`] may be taken by a stack that sees nothing come for a while: for
    /// who may not come back soon. Whether the stack must be woken to wait for that.
    #[inline]
    pub fn offer(&mut self) -> bool {
        self.jobs.offer()
    }

    /// The application ends: what is closed from now on, until something new is opened, is told the peers however much it is.
    pub fn ending(&mut self) {
        self.job(Job::Ending);
    }

    /// Jobs that wait for room in the ring: the caller should let the stack run.
    pub fn backlogged(&self) -> bool {
        !self.held.is_empty()
    }

    /// How many they are.
    pub fn backlog(&self) -> usize {
        self.held.len()
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

    /// Whether a write waits for chunks, which may come back without an event: a sleep should be short.
    pub fn starving(&self) -> bool {
        !self.starved.is_empty()
    }

    /// What went wrong here.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The application's side of the chunk pool.
    pub fn side(&mut self) -> &mut Side {
        &mut self.side
    }

    pub(crate) fn fresh(&self, v6: bool) -> Tcp {
        let any = if v6 { Addr::UNSPECIFIED_V6 } else { Addr::UNSPECIFIED_V4 };
        let not_sent_low = self.config.tcp.not_sent_low;
        let cold = (not_sent_low > 0).then(|| Box::new(Cold { not_sent_low, ..Cold::default() }));
        Tcp {
            phase: Phase::Fresh,
            error: None,
            flags: if v6 { flag::V6 } else { 0 },
            local_port: 0,
            remote_port: 0,
            conn: ConnId(NONE),
            rx: Chain::default(),
            unreported: 0,
            written: 0,
            in_flight: 0,
            send_buffer: self.config.send_buffer,
            receive_buffer: self.config.receive_buffer,
            local: if v6 { ANY_V6 } else { ANY_V4 },
            remote_addr: any,
            watch: None,
            cold,
        }
    }

    pub(crate) fn insert(&mut self, socket: Socket) -> Result<SockId, Errno> {
        let id = self.table.insert(socket);
        self.counters.no_descriptor += id.is_none() as u64;
        id.ok_or(Errno::EMFILE)
    }

    /// socket(AF_INET or AF_INET6, SOCK_STREAM).
    pub fn socket(&mut self, v6: bool) -> Result<SockId, Errno> {
        let fresh = self.fresh(v6);
        self.insert(Socket::Tcp(fresh))
    }

    /// The socket, when it is a TCP one that neither listens nor polls.
    pub(crate) fn tcp(&mut self, id: SockId) -> Result<&mut Tcp, Errno> {
        self.table.open_tcp(id)
    }

    /// bind: the address is checked when it is used. A socket of IPv6 takes mapped addresses unless IPV6_V6ONLY is set.
    pub fn bind(&mut self, id: SockId, local: Endpoint) -> Result<(), Errno> {
        let t = self.table.open_tcp(id).map_err(|e| if e == Errno::EOPNOTSUPP { Errno::EINVAL } else { e })?;
        if t.phase != Phase::Fresh || t.is(flag::BOUND) {
            return Err(Errno::EINVAL);
        }
        if !t.speaks(local.addr) {
            return Err(if t.is(flag::V6) { Errno::EINVAL } else { Errno::EAFNOSUPPORT });
        }
        self.locals.set(t, local);
        t.set(flag::BOUND, true);
        Ok(())
    }

    /// Gives a fresh socket that has no port, bound or not, one that was chosen for it.
    pub fn choose_port(&mut self, id: SockId, port: u16) -> Result<(), Errno> {
        let t = self.table.open_tcp(id)?;
        let local = self.locals.of(t);
        if t.phase != Phase::Fresh || local.port != 0 {
            return Err(Errno::EINVAL);
        }
        self.locals.set(t, Endpoint { port, ..local });
        t.set(flag::BOUND, true);
        Ok(())
    }

    /// connect: `EINPROGRESS` the first time, then `EALREADY`, `EISCONN` or the failure. Once it has told the failure, the
    /// socket can be connected again.
    #[inline]
    pub fn connect(&mut self, id: SockId, remote: Endpoint) -> Result<(), Errno> {
        let t = self.table.open_tcp(id).map_err(|e| if e == Errno::EOPNOTSUPP { Errno::EISCONN } else { e })?;
        match t.phase {
            Phase::Fresh => {}
            Phase::Asked | Phase::Opening => return Err(Errno::EALREADY),
            Phase::Failed => {
                // Linux: ECONNABORTED when SO_ERROR has been read.
                let error = t.take_error().unwrap_or(Errno::ECONNABORTED);
                self.disconnect(id);
                return Err(error);
            }
            Phase::Open if t.is(flag::CONNECTING) => {
                t.set(flag::CONNECTING, false);
                return Ok(());
            }
            Phase::Open
            | Phase::Abandoned
            | Phase::Lingering
            | Phase::Lingered
            | Phase::Releasing
            | Phase::Released => return Err(Errno::EISCONN),
        }
        if !t.speaks(remote.addr) {
            return Err(if t.is(flag::V6) { Errno::ENETUNREACH } else { Errno::EAFNOSUPPORT });
        }
        if remote.port == 0 {
            return Err(Errno::EADDRNOTAVAIL);
        }
        let mut local = self.locals.of(t);
        if local.addr.is_v4() != remote.addr.is_v4() {
            // RFC 4291 2.5.5.2: a mapped address is IPv4's.
            if !local.addr.is_unspecified() || !remote.addr.is_v4() {
                return Err(Errno::ENETUNREACH);
            }
            local.addr = Addr::UNSPECIFIED_V4;
        }
        t.phase = Phase::Asked;
        t.set(flag::CONNECTING, true);
        t.set_remote(remote);
        let cold = t.cold.as_deref();
        // A buffer that nobody has set is the stack's to choose, and to tune.
        let receive_buffer = cold.and_then(|c| c.told(ConnOption::ReceiveBuffer)).unwrap_or(0);
        if cold.is_some() || t.flags & TOLD != 0 {
            let options = Sockets::to_tell(t.flags, cold);
            self.prepare(options);
        }
        self.job(Job::Connect { token: Token(id.0), local, remote, receive_buffer });
        self.mark(id, ANY);
        Err(Errno::EINPROGRESS)
    }

    /// Where a connect has got to: `None` while it is under way. Leaves the socket as it is, but SO_ERROR reported.
    pub fn connect_result(&mut self, id: SockId) -> Option<Result<(), Errno>> {
        let t = match self.tcp(id) {
            Ok(t) => t,
            Err(e) => return Some(Err(e)),
        };
        match t.phase {
            Phase::Asked | Phase::Opening => None,
            Phase::Open => {
                t.set(flag::CONNECTING, false);
                Some(Ok(()))
            }
            Phase::Failed => {
                t.set(flag::ERROR_NEW, false);
                Some(Err(t.error.map_or(Errno::ECONNABORTED, Errno::from)))
            }
            Phase::Fresh
            | Phase::Abandoned
            | Phase::Lingering
            | Phase::Lingered
            | Phase::Releasing
            | Phase::Released => Some(Err(Errno::ENOTCONN)),
        }
    }

    /// Whether the stack has yet to say whether a connect can begin.
    pub fn is_asked(&mut self, id: SockId) -> bool {
        self.tcp(id).is_ok_and(|t| t.phase == Phase::Asked)
    }

    /// Whether a connect failed since there was no local port for it; nothing is told by this.
    pub fn found_no_port(&mut self, id: SockId) -> bool {
        self.tcp(id).is_ok_and(|t| {
            t.phase == Phase::Failed && t.error.is_some_and(|failure| Errno::from(failure) == Errno::EADDRNOTAVAIL)
        })
    }

    /// Whether a socket neither listens nor is, was, or is being connected.
    pub fn is_fresh(&mut self, id: SockId) -> Result<bool, Errno> {
        Ok(self.tcp(id)?.phase == Phase::Fresh)
    }

    /// getsockname.
    pub fn local(&mut self, id: SockId) -> Result<Endpoint, Errno> {
        match self.table.open(id)? {
            Socket::Tcp(t) => Ok(self.locals.of(t)),
            Socket::Listener(l) => Ok(l.local),
            Socket::Pipe(_) | Socket::Epoll(_) => Err(Errno::ENOTSOCK),
        }
    }

    /// getpeername.
    pub fn remote(&mut self, id: SockId) -> Result<Endpoint, Errno> {
        let t = self.tcp(id).map_err(|e| if e == Errno::EOPNOTSUPP { Errno::ENOTCONN } else { e })?;
        match t.phase {
            Phase::Open if t.error.is_none() => Ok(t.remote()),
            _ => Err(Errno::ENOTCONN),
        }
    }

    /// Tells the stack the options that were set while its answer was on its way.
    pub(crate) fn send_late(&mut self, id: SockId) {
        let Some(t) = self.table.tcp(id) else { return };
        let Some(cold) = t.cold.as_mut().filter(|c| c.late) else { return };
        cold.late = false;
        let conn = t.conn;
        let mut options = cold.stack.clone();
        for (bit, option) in FLAGGED {
            options.push((option, (t.flags & bit != 0) as u32));
        }
        for (option, value) in options {
            self.job(Job::SetOption { conn, option, value });
        }
    }

    /// Asks for a snapshot (TCP_INFO); [`Sockets::info_result`] gives it.
    pub fn query_info(&mut self, id: SockId) -> Result<Token, Errno> {
        let t = self.tcp(id)?;
        if !matches!(t.phase, Phase::Opening | Phase::Open) {
            return Err(Errno::ENOTCONN);
        }
        let conn = t.conn;
        let token = Token(self.next_query);
        self.next_query = self.next_query.wrapping_add(1);
        self.queries.push(Query { token, sock: id, answer: None });
        self.job(Job::Query { conn, token });
        Ok(token)
    }

    /// The snapshot asked for, once; `None` while it is not there. `ENOTCONN` when the connection has gone, or the socket
    /// was closed meanwhile.
    pub fn info_result(&mut self, token: Token) -> Option<Result<TcpInfo, Errno>> {
        let Some(at) = self.queries.iter().position(|q| q.token == token) else { return Some(Err(Errno::ENOTCONN)) };
        self.queries[at].answer.as_ref()?;
        let answer = self.queries.swap_remove(at).answer.flatten();
        Some(answer.ok_or(Errno::ENOTCONN))
    }
}

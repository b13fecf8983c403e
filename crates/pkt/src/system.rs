//! What a script is run against: our stack, or the kernel.

use protocol::Endpoint;
use sim::Machine;
use socket::{Errno, Interest, ListenOptions, Ready, RecvFlags, Shutdown, SockId, SockOption, Sockets};
use stack::SynCookies;
use tcp::TcpInfo;
use wire::Instant;

/// A system under test with its clock and its link of bare IP packets.
pub trait System {
    /// The clock.
    fn now(&self) -> Instant;
    /// When something may happen without anybody's help.
    fn next_deadline(&self) -> Option<Instant>;
    /// Lets time pass, at most to `t`; less when something happened before.
    fn advance_to(&mut self, t: Instant);
    /// A packet arrives.
    fn inject(&mut self, packet: &[u8]);
    /// The next packet sent, with its instant.
    fn pop(&mut self) -> Option<(Instant, Vec<u8>)>;
    /// Lets a call take its effect.
    fn settle(&mut self);
    /// The sockets.
    fn sockets(&mut self) -> &mut dyn Calls;
    /// TCP_INFO.
    fn info(&mut self, id: SockId) -> Result<TcpInfo, Errno>;
    /// Other parameters of TCP from now on, where a command is the runner's to understand: whether it could be done.
    fn set_tcp(&mut self, tcp: &tcp::Config, syn_cookies: SynCookies) -> bool;
    /// Runs a shell's command line; `None` where there is no shell, and it is the runner's to understand.
    fn command(&mut self, line: &str) -> Option<Result<(), String>>;
}

impl System for Machine {
    fn now(&self) -> Instant {
        Machine::now(self)
    }

    fn next_deadline(&self) -> Option<Instant> {
        Machine::next_deadline(self)
    }

    fn advance_to(&mut self, t: Instant) {
        Machine::advance_to(self, t);
    }

    fn inject(&mut self, packet: &[u8]) {
        Machine::inject(self, packet);
    }

    fn pop(&mut self) -> Option<(Instant, Vec<u8>)> {
        Machine::pop(self)
    }

    fn settle(&mut self) {
        Machine::settle(self);
    }

    fn sockets(&mut self) -> &mut dyn Calls {
        Machine::sockets(self)
    }

    fn info(&mut self, id: SockId) -> Result<TcpInfo, Errno> {
        Machine::info(self, id)
    }

    fn set_tcp(&mut self, tcp: &tcp::Config, syn_cookies: SynCookies) -> bool {
        Machine::set_tcp(self, tcp.clone(), syn_cookies)
    }

    fn command(&mut self, _: &str) -> Option<Result<(), String>> {
        None
    }
}

macro_rules! calls {
    ($($(#[$doc:meta])* fn $name:ident(&mut self $(, $arg:ident: $kind:ty)* $(,)?) -> $out:ty;)*) => {
        /// The calls of a script, none of which blocks: where it would, it says `EAGAIN`, or gives nothing yet.
        pub trait Calls {
            $($(#[$doc])* fn $name(&mut self $(, $arg: $kind)*) -> $out;)*
        }

        impl Calls for Sockets {
            $(fn $name(&mut self $(, $arg: $kind)*) -> $out {
                Sockets::$name(self $(, $arg)*)
            })*
        }
    };
}

calls! {
    /// socket(2).
    fn socket(&mut self, v6: bool) -> Result<SockId, Errno>;
    /// bind(2).
    fn bind(&mut self, id: SockId, local: Endpoint) -> Result<(), Errno>;
    /// listen(2).
    fn listen(&mut self, id: SockId, options: ListenOptions) -> Result<(), Errno>;
    /// What became of it.
    fn listen_result(&mut self, id: SockId) -> Option<Result<(), Errno>>;
    /// accept(2).
    fn accept(&mut self, id: SockId) -> Result<(SockId, Endpoint), Errno>;
    /// connect(2).
    fn connect(&mut self, id: SockId, remote: Endpoint) -> Result<(), Errno>;
    /// What became of it.
    fn connect_result(&mut self, id: SockId) -> Option<Result<(), Errno>>;
    /// close(2).
    fn close(&mut self, id: SockId) -> Result<(), Errno>;
    /// What became of one with SO_LINGER.
    fn linger_result(&mut self, id: SockId) -> Option<Result<(), Errno>>;
    /// The end of SO_LINGER's time.
    fn linger_give_up(&mut self, id: SockId) -> ();
    /// shutdown(2).
    fn shutdown(&mut self, id: SockId, how: Shutdown) -> Result<(), Errno>;
    /// recv(2); see [`Sockets::recv_on`].
    fn recv_on(&mut self, id: SockId, out: &mut [u8], done: &mut usize, flags: RecvFlags) -> Result<usize, Errno>;
    /// read(2).
    fn read(&mut self, id: SockId, out: &mut [u8]) -> Result<usize, Errno>;
    /// recv(2) with MSG_PEEK.
    fn peek(&mut self, id: SockId, out: &mut [u8]) -> Result<usize, Errno>;
    /// SIOCINQ.
    fn available(&mut self, id: SockId) -> Result<usize, Errno>;
    /// SIOCOUTQ.
    fn unacknowledged(&mut self, id: SockId) -> Result<usize, Errno>;
    /// What a recvmsg tells under TCP_INQ.
    fn inq(&mut self, id: SockId) -> Result<Option<usize>, Errno>;
    /// send(2), with or without MSG_MORE.
    fn write(&mut self, id: SockId, data: &[u8], more: bool) -> Result<usize, Errno>;
    /// send(2) with MSG_EOR.
    fn write_record(&mut self, id: SockId, data: &[u8]) -> Result<usize, Errno>;
    /// send(2) with MSG_OOB.
    fn write_urgent(&mut self, id: SockId, data: &[u8]) -> Result<usize, Errno>;
    /// setsockopt(2).
    fn set_option(&mut self, id: SockId, option: SockOption) -> Result<(), Errno>;
    /// getsockopt(2): the option that `like` names.
    fn option(&mut self, id: SockId, like: SockOption) -> Result<SockOption, Errno>;
    /// SO_ERROR.
    fn take_error(&mut self, id: SockId) -> Result<Option<Errno>, Errno>;
    /// poll(2).
    fn readiness(&mut self, id: SockId) -> Result<u32, Errno>;
    /// epoll_create(2).
    fn epoll_create(&mut self) -> Result<SockId, Errno>;
    /// EPOLL_CTL_ADD.
    fn epoll_add(&mut self, epoll: SockId, id: SockId, interest: Interest) -> Result<(), Errno>;
    /// EPOLL_CTL_MOD.
    fn epoll_modify(&mut self, epoll: SockId, id: SockId, interest: Interest) -> Result<(), Errno>;
    /// EPOLL_CTL_DEL.
    fn epoll_delete(&mut self, epoll: SockId, id: SockId) -> Result<(), Errno>;
    /// epoll_wait(2) without waiting.
    fn epoll_collect(&mut self, epoll: SockId, out: &mut [Ready]) -> Result<usize, Errno>;
}

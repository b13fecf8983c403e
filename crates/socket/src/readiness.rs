//! What holds on a socket: the bits that epoll(7), poll and select tell of it.

use crate::table::{ListenPhase, Listening, Phase, Socket, Tcp, flag};

/// Event bits, with Linux's numbers.
pub mod bits {
    /// Something to read, or to accept.
    pub const IN: u32 = 0x001;
    /// An urgent byte that has not been read.
    pub const PRI: u32 = 0x002;
    /// Room to write.
    pub const OUT: u32 = 0x004;
    /// An error waits in SO_ERROR; always reported.
    pub const ERR: u32 = 0x008;
    /// Both directions are closed; always reported.
    pub const HUP: u32 = 0x010;
    /// The peer has finished writing.
    pub const RDHUP: u32 = 0x2000;
    /// In a request: one report, then none before the registration is modified.
    pub const ONESHOT: u32 = 1 << 30;
    /// In a request: edge-triggered.
    pub const ET: u32 = 1 << 31;
}

/// What holds now, as for most sockets most of the time; [`tcp_bits`] comes to the same.
#[inline(always)]
pub(crate) fn common_bits(t: &Tcp) -> u32 {
    const ODD: u16 = flag::SHUT_READ | flag::SHUT_WRITE | flag::ERROR_NEW | flag::STARVED;
    if t.phase != Phase::Open || t.flags & ODD != 0 || t.error.is_some() || t.cold.is_some() {
        return tcp_bits(t);
    }
    let over = t.is(flag::FIN);
    let mut b = if over { bits::IN | bits::RDHUP } else { 0 };
    if !t.rx.is_empty() {
        b |= bits::IN;
    }
    if t.third_is_free() {
        b |= bits::OUT;
    }
    b
}

/// Linux's tcp_poll.
#[inline(never)]
fn tcp_bits(t: &Tcp) -> u32 {
    match t.phase {
        // Linux: an unconnected stream socket is writable and hung up.
        Phase::Fresh => bits::OUT | bits::HUP,
        Phase::Asked
        | Phase::Opening
        | Phase::Abandoned
        | Phase::Lingering
        | Phase::Lingered
        | Phase::Releasing
        | Phase::Released => 0,
        Phase::Open | Phase::Failed => {
            let failed = t.error.is_some();
            let no_more_in = t.receive_over();
            let no_more_out = t.is(flag::SHUT_WRITE) || failed;
            let mut b = 0;
            if t.readable() {
                b |= bits::IN;
            }
            if t.urgent_waits() {
                b |= bits::PRI;
            }
            if no_more_in {
                b |= bits::RDHUP;
            }
            if no_more_out || t.has_space() {
                b |= bits::OUT;
            }
            if no_more_in && no_more_out {
                b |= bits::HUP;
            }
            if t.is(flag::ERROR_NEW) {
                b |= bits::ERR;
            }
            b
        }
    }
}

pub(crate) fn listener_bits(l: &Listening) -> u32 {
    match l.phase {
        ListenPhase::Failed(_) => bits::ERR | bits::HUP,
        _ if !l.queue.is_empty() => bits::IN,
        _ => 0,
    }
}

impl Socket {
    /// What holds now.
    pub(crate) fn bits(&self) -> u32 {
        match self {
            Socket::Tcp(t) => common_bits(t),
            Socket::Listener(l) => listener_bits(l),
            Socket::Pipe(end) => end.bits(),
            Socket::Epoll(_) => 0,
        }
    }
}

//! Our addresses, of which many sockets have few: a socket has the number of its own.

use std::collections::HashMap;

use protocol::Endpoint;
use wire::Addr;

use crate::table::Tcp;

/// The numbers of the unspecified addresses.
pub(crate) const ANY_V4: u16 = 0;
pub(crate) const ANY_V6: u16 = 1;
/// Of an address that has none, and lies with the options that few sockets set.
const BESIDE: u16 = u16::MAX;

/// Addresses by number. They are never forgotten, since a host has few. Where a program has bound to more than there are numbers, a socket
/// of a further address keeps it in a box.
pub(crate) struct Locals {
    all: Vec<Addr>,
    numbers: HashMap<Addr, u16>,
    /// The one that was asked for last.
    last: u16,
}

impl Locals {
    pub fn new() -> Locals {
        let all = vec![Addr::UNSPECIFIED_V4, Addr::UNSPECIFIED_V6];
        let numbers = all.iter().copied().zip([ANY_V4, ANY_V6]).collect();
        Locals { all, numbers, last: ANY_V4 }
    }

    /// The number of `addr`; `None` where there is none left.
    #[inline]
    fn number(&mut self, addr: Addr) -> Option<u16> {
        if self.all[self.last as usize] != addr {
            self.last = self.look_up(addr)?;
        }
        Some(self.last)
    }

    #[inline(never)]
    fn look_up(&mut self, addr: Addr) -> Option<u16> {
        if let Some(number) = self.numbers.get(&addr) {
            return Some(*number);
        }
        let number = u16::try_from(self.all.len()).ok().filter(|number| *number != BESIDE)?;
        self.all.push(addr);
        self.numbers.insert(addr, number);
        Some(number)
    }

    /// The local end of a socket.
    pub fn of(&self, t: &Tcp) -> Endpoint {
        let addr = match t.local {
            BESIDE => t.cold.as_ref().and_then(|c| c.local).unwrap_or(Addr::UNSPECIFIED_V4),
            number => self.all[number as usize],
        };
        Endpoint { addr, port: t.local_port }
    }

    /// It is `at`.
    #[inline]
    pub fn set(&mut self, t: &mut Tcp, at: Endpoint) {
        t.local_port = at.port;
        t.local = self.number(at.addr).unwrap_or(BESIDE);
        if t.local == BESIDE {
            t.cold.get_or_insert_default().local = Some(at.addr);
        }
    }
}

//! Addresses: asked for before they are used (RFC 4862 5.4, RFC 5227), formed from what routers announce (RFC 4862 5.5),
//! and the routes that come with that (RFC 4861 6.3, 8). Only in dedicated mode; in shared mode the kernel does it.

use core::hash::Hasher;
use core::net::{IpAddr, Ipv6Addr};
use core::time::Duration;
use std::collections::VecDeque;

use siphasher::sip::SipHasher13;
use wire::icmpv6::{Message, Prefix};
use wire::{Addr, Instant, MacAddr};

use crate::counters::Counters;
use crate::link::interface::{Address, Phase, network};
use crate::link::neighbor::{Claim, Lost, Strength, Waiter};
use crate::link::replies::Raw;
use crate::link::{Link, Source};
use crate::schedule::queues::{Entry, Waiters};
use crate::{InterfaceId, Mode, Route};

/// RetransTimer, RFC 4861 10; PROBE_MIN, RFC 5227 1.1.
const RETRANS: Duration = Duration::from_secs(1);
/// ANNOUNCE_WAIT, ANNOUNCE_INTERVAL, ANNOUNCE_NUM and DEFEND_INTERVAL, RFC 5227 1.1.
const ANNOUNCE: Duration = Duration::from_secs(2);
const ANNOUNCEMENTS: u8 = 2;
const DEFEND: Duration = Duration::from_secs(10);
/// RFC 4861 10.
const ROUTER_SOLICITATIONS: u8 = 3;
const ROUTER_SOLICITATION_INTERVAL: Duration = Duration::from_secs(4);
/// IDGEN_RETRIES, RFC 7217 7.
const RETRIES: u8 = 3;
/// Nobody fills our memory with what routers may say.
const MAX_ROUTERS: usize = 4;
const MAX_PREFIXES: usize = 8;
const MAX_FORMED: usize = 8;
const MAX_REDIRECTS: usize = 64;
const MAX_CONFLICTS: usize = 16;
/// Behind routes that were configured.
const PREFIX_METRIC: u32 = 256;
const ROUTER_METRIC: u32 = 1024;

/// Two hosts with one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Where.
    pub interface: InterfaceId,
    /// The address.
    pub addr: IpAddr,
    /// The other one.
    pub mac: MacAddr,
    /// The address was still being asked for, and is not used now.
    pub lost: bool,
}

/// What an interface has learned of its link.
pub(crate) struct Autoconf {
    /// What routers say of the link.
    pub mtu: u16,
    pub hop_limit: u8,
    /// Connections that wait until their address is ours.
    pub(crate) held: Waiters,
    /// Some address is being asked for.
    pub(crate) asking: bool,
    /// No address is defended before (RFC 5227 2.4 c).
    defend_at: Instant,
    solicits: u8,
    solicit_at: Instant,
    routers: Vec<(Addr, Instant)>,
    prefixes: Vec<(Route, Instant)>,
    redirects: VecDeque<Route>,
}

impl Default for Autoconf {
    fn default() -> Autoconf {
        Autoconf {
            mtu: u16::MAX,
            hop_limit: crate::link::replies::TTL,
            held: Waiters::default(),
            asking: false,
            defend_at: Instant::ZERO,
            solicits: 0,
            solicit_at: Instant::FAR,
            routers: Vec::new(),
            prefixes: Vec::new(),
            redirects: VecDeque::new(),
        }
    }
}

fn after(now: Instant, seconds: u32) -> Instant {
    // RFC 4861 4.6.2: all ones is for ever.
    if seconds == u32::MAX { Instant::FAR } else { now + Duration::from_secs(seconds as u64) }
}

fn router_route(interface: InterfaceId, router: Addr) -> Route {
    let dst = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    Route { dst, prefix: 0, gateway: Some(router.to_ip()), interface, metric: ROUTER_METRIC }
}

impl Link {
    /// Conflicts about addresses since the last call, for the log.
    pub fn take_conflicts(&mut self) -> Vec<Conflict> {
        core::mem::take(&mut self.conflicts)
    }

    /// Does what the time says about addresses and routers.
    pub(super) fn configure(&mut self, now: Instant, counters: &mut Counters) {
        if now < self.configure_at {
            return;
        }
        self.configure_at = Instant::FAR;
        for n in 0..self.interfaces.len() {
            let id = InterfaceId(n as u8);
            if self.interfaces[n].config.mode == Mode::Dedicated {
                self.forget_old(now, id);
                self.ask_for_addresses(now, id, counters);
                self.look_for_routers(now, id, counters);
                self.released.append(&mut self.interfaces[n].auto.held.take());
            }
        }
    }

    fn configure_by(&mut self, at: Instant) {
        self.configure_at = self.configure_at.min(at);
    }

    /// RFC 4862 5.3: fe80::/64 with an identifier of ours.
    pub(super) fn form_link_local(&mut self, id: InterfaceId) {
        const PREFIX: u64 = 0xfe80 << 48;
        let i = &self.interfaces[id.index()];
        if !i.config.autoconf {
            return;
        }
        let addr = self.formed(PREFIX, i.config.mac, 0);
        let dad = i.config.dad;
        self.interfaces[id.index()].addresses.edit().push(Address { formed: Some(0), ..Address::new(addr, 64, dad) });
        let dst = network(addr.to_ip(), 64);
        self.add_route(Route { dst, prefix: 64, gateway: None, interface: id, metric: 0 });
        self.configure_by(Instant::ZERO);
    }

    /// RFC 7217 5: an address that says nothing of the hardware, and is the same on every lane.
    fn formed(&self, prefix: u64, mac: MacAddr, tries: u8) -> Addr {
        let mut h = SipHasher13::new_with_key(&self.secret);
        h.write_u64(prefix);
        h.write(&mac.0);
        h.write_u8(tries);
        Addr::from_words([prefix, h.finish()])
    }

    /// One step of RFC 4862 5.4 and RFC 5227 2.1 and 2.3 for each address. Lane 0 speaks; the others keep time.
    fn ask_for_addresses(&mut self, now: Instant, id: InterfaceId, counters: &mut Counters) {
        let delay = self.formed(0, self.interfaces[id.index()].config.mac, u8::MAX).as_words()[1] % 1_000_000;
        let i = &mut self.interfaces[id.index()];
        let mut frames = Vec::new();
        let mut next = Instant::FAR;
        let mut reachable = false;
        for a in i.addresses.edit() {
            let v4 = a.addr.is_v4();
            if let Phase::Tentative { left, next } = a.phase
                && next <= now
            {
                a.phase = match left {
                    0 => {
                        reachable |= a.addr.is_link_local() && !v4;
                        Phase::Ours { left: if v4 { ANNOUNCEMENTS } else { 0 }, next: now }
                    }
                    _ => {
                        let any = if v4 { Addr::UNSPECIFIED_V4 } else { Addr::UNSPECIFIED_V6 };
                        frames.push((a.addr, any));
                        let wait = if v4 && left == 1 { ANNOUNCE } else { RETRANS };
                        Phase::Tentative { left: left - 1, next: now + wait }
                    }
                };
            }
            if let Phase::Ours { left: left @ 1.., next } = a.phase
                && next <= now
            {
                frames.push((a.addr, a.addr));
                a.phase = Phase::Ours { left: left - 1, next: now + ANNOUNCE };
            }
            next = match a.phase {
                Phase::Tentative { next: at, .. } | Phase::Ours { left: 1.., next: at } => next.min(at),
                Phase::Ours { .. } | Phase::Duplicate => next,
            };
        }
        i.auto.asking = i.addresses.iter().any(|a| matches!(a.phase, Phase::Tentative { .. }));
        if reachable || (i.auto.solicit_at == Instant::FAR && i.config.dad == 0 && i.config.autoconf) {
            // RFC 4861 6.3.7: not all hosts at once after a power failure.
            i.auto.solicits = ROUTER_SOLICITATIONS;
            i.auto.solicit_at = now.plus_micros(delay);
        }
        self.configure_by(next);
        if self.lane == 0 {
            for (target, source) in frames {
                self.push(id, Raw::Solicit { target, source, unicast: None }, counters);
            }
        }
    }

    /// RFC 4861 6.3.7.
    fn look_for_routers(&mut self, now: Instant, id: InterfaceId, counters: &mut Counters) {
        let i = &mut self.interfaces[id.index()];
        if i.auto.solicits == 0 {
            return;
        }
        if i.auto.solicit_at <= now {
            i.auto.solicits -= 1;
            i.auto.solicit_at = now + ROUTER_SOLICITATION_INTERVAL;
            let link_local = i.addresses.iter().map(|a| a.addr).find(|a| a.is_link_local() && !a.is_v4());
            if let Some(from) = link_local.filter(|a| i.has(*a) && self.lane == 0) {
                let message = Message::RouterSolicit { source_mac: Some(i.config.mac) };
                let all = Addr::from_words([0xff02 << 48, 2]);
                self.push(id, crate::link::ndp::packet(from, all, None, &message), counters);
            }
        }
        let i = &self.interfaces[id.index()];
        if i.auto.solicits > 0 {
            self.configure_by(i.auto.solicit_at);
        }
    }

    /// Lifetimes (RFC 4861 6.3.5, RFC 4862 5.5.4).
    fn forget_old(&mut self, now: Instant, id: InterfaceId) {
        let i = &mut self.interfaces[id.index()];
        i.addresses.edit().retain(|a| a.valid > now);
        i.addresses.edit().iter_mut().for_each(|a| a.deprecated = a.preferred <= now);
        let mut gone: Vec<Route> = i.auto.prefixes.extract_if(.., |(_, until)| *until <= now).map(|(r, _)| r).collect();
        gone.extend(i.auto.routers.extract_if(.., |(_, until)| *until <= now).map(|(r, _)| router_route(id, r)));
        let lives = i.addresses.iter().flat_map(|a| [a.valid, a.preferred]).filter(|at| *at > now);
        let lives = lives.chain(i.auto.prefixes.iter().map(|p| p.1)).chain(i.auto.routers.iter().map(|r| r.1));
        let next = lives.min().unwrap_or(Instant::FAR);
        self.configure_by(next);
        for route in gone {
            self.remove_route(&route);
        }
    }

    /// Whether connections from `local` must wait, because it is not decided yet whether the address is ours. They are kept by
    /// [`Link::hold`].
    pub fn undecided(&self, interface: InterfaceId, local: Addr) -> bool {
        let i = &self[interface];
        i.auto.asking && !i.has(local) && i.owns(local)
    }

    /// A connection waits until it is decided about its address.
    pub fn hold(&mut self, interface: InterfaceId, conn: Entry) {
        self.interfaces[interface.index()].auto.held.push(conn);
    }

    /// A connection that was held is over; `waits` tells who is held.
    pub fn leave_held(&mut self, interface: InterfaceId, waits: impl Fn(Entry) -> bool) {
        self.interfaces[interface.index()].auto.held.leave(waits);
    }

    /// The connections that were held, of whose addresses it is decided now.
    pub fn take_released(&mut self) -> Vec<Entry> {
        core::mem::take(&mut self.released)
    }

    /// Somebody else uses one of our addresses, or asks for one that we ask for.
    pub(super) fn conflict(
        &mut self,
        now: Instant,
        id: InterfaceId,
        addr: Addr,
        mac: MacAddr,
        counters: &mut Counters,
    ) {
        let i = &mut self.interfaces[id.index()];
        let our_mac = i.config.mac;
        let Some(at) = i.addresses.iter().position(|a| a.addr == addr) else { return };
        let lost = match i.addresses[at].phase {
            Phase::Duplicate => return,
            Phase::Tentative { .. } => true,
            Phase::Ours { .. } => false,
        };
        counters.address_conflicts += 1;
        if lost {
            counters.addresses_lost += 1;
            let old = i.addresses[at].clone();
            let again = old.formed.filter(|tries| *tries < RETRIES);
            self.interfaces[id.index()].addresses.edit()[at] = match again {
                // RFC 7217 6: another one from the same prefix.
                Some(tries) => {
                    let addr = self.formed(addr.as_words()[0], our_mac, tries + 1);
                    let phase = Phase::Tentative { left: 1, next: now };
                    Address { addr, phase, formed: Some(tries + 1), ..old }
                }
                // RFC 4862 5.4.5, RFC 5227 2.1.1.
                None => Address { phase: Phase::Duplicate, ..old },
            };
            self.configure_by(now);
        } else if now >= i.auto.defend_at {
            // RFC 5227 2.4 c: kept, because somebody configured it; said once in a while. IPv6 has no such answer.
            i.auto.defend_at = now + DEFEND;
            if addr.is_v4() && self.lane == 0 {
                self.push(id, Raw::Solicit { target: addr, source: addr, unicast: None }, counters);
            }
        } else {
            return;
        }
        if self.lane == 0 && self.conflicts.len() < MAX_CONFLICTS {
            self.conflicts.push(Conflict { interface: id, addr: addr.to_ip(), mac, lost });
        }
    }

    /// RFC 4861 6.3.4.
    pub(super) fn take_router_advert(
        &mut self,
        now: Instant,
        source: Source,
        message: &Message,
        counters: &mut Counters,
    ) {
        let id = source.interface;
        let i = &mut self.interfaces[id.index()];
        let Message::RouterAdvert { lifetime, hop_limit, source_mac, mtu, prefixes } = message else { return };
        if !i.config.autoconf {
            return;
        }
        counters.router_adverts += 1;
        if *hop_limit != 0 {
            i.auto.hop_limit = *hop_limit;
        }
        // RFC 8200 5: no link carries less.
        if let Some(mtu) = mtu.filter(|mtu| (1280..=i.config.mtu as u32).contains(mtu)) {
            i.auto.mtu = mtu as u16;
        }
        if *lifetime != 0 {
            i.auto.solicits = 0;
        }
        let claim = Claim { mac: *source_mac, solicited: false, strength: Strength::Override, create: true };
        self.neighbors.claim(now, id, source.src, claim);
        self.set_router(now, id, source.src, *lifetime);
        for p in prefixes.iter() {
            let addr = Addr::from_v6(p.prefix.octets());
            // RFC 4861 6.3.4: link-local prefixes are ignored; the others here belong to no link.
            let foreign = addr.is_link_local() || addr.is_multicast() || addr.as_words()[0] == 0;
            if foreign {
                continue;
            }
            if p.on_link {
                self.set_prefix(now, id, &p);
            }
            if p.autonomous {
                self.set_formed(now, id, &p);
            }
        }
        self.configure_by(now);
    }

    fn set_router(&mut self, now: Instant, id: InterfaceId, router: Addr, lifetime: u16) {
        let list = &mut self.interfaces[id.index()].auto.routers;
        let until = after(now, lifetime as u32);
        match list.iter().position(|(r, _)| *r == router) {
            Some(at) => {
                list[at].1 = until;
                self.configure_by(until);
            }
            None if lifetime > 0 && list.len() < MAX_ROUTERS => {
                list.push((router, until));
                self.add_route(router_route(id, router));
            }
            None => {}
        }
    }

    /// RFC 4861 7.2.5: a neighbour that says it is no router is none any more.
    pub(super) fn not_a_router(&mut self, now: Instant, id: InterfaceId, addr: Addr) {
        self.set_router(now, id, addr, 0);
    }

    fn set_prefix(&mut self, now: Instant, id: InterfaceId, p: &Prefix) {
        let dst = network(IpAddr::V6(p.prefix), p.len);
        let route = Route { dst, prefix: p.len, gateway: None, interface: id, metric: PREFIX_METRIC };
        let list = &mut self.interfaces[id.index()].auto.prefixes;
        let until = after(now, p.valid);
        match list.iter().position(|(r, _)| *r == route) {
            Some(at) => list[at].1 = until,
            None if p.valid > 0 && list.len() < MAX_PREFIXES => {
                list.push((route, until));
                self.add_route(route);
            }
            None => {}
        }
    }

    /// RFC 4862 5.5.3.
    fn set_formed(&mut self, now: Instant, id: InterfaceId, p: &Prefix) {
        const TWO_HOURS: u32 = 7200;
        if p.len != 64 || p.preferred > p.valid {
            return;
        }
        let prefix = Addr::from_v6(p.prefix.octets()).as_words()[0];
        let i = &mut self.interfaces[id.index()];
        let (preferred, valid) = (after(now, p.preferred), after(now, p.valid));
        let mut formed = i.addresses.edit().iter_mut().filter(|a| a.formed.is_some());
        if let Some(a) = formed.find(|a| a.addr.as_words()[0] == prefix) {
            a.preferred = preferred;
            // 5.5.3 e: nobody ends an address at once.
            if p.valid > TWO_HOURS || valid > a.valid {
                a.valid = valid;
            } else if a.valid > after(now, TWO_HOURS) {
                a.valid = after(now, TWO_HOURS);
            }
            return;
        }
        let room = i.addresses.iter().filter(|a| a.formed.is_some()).count() < MAX_FORMED;
        if p.valid > 0 && room {
            let (mac, dad) = (i.config.mac, i.config.dad);
            let addr = self.formed(prefix, mac, 0);
            let fresh = Address { preferred, valid, formed: Some(0), ..Address::new(addr, 64, dad) };
            self.interfaces[id.index()].addresses.edit().push(fresh);
        }
    }

    /// RFC 4861 8.3, for what the parser let through: only the present first hop may redirect.
    pub(super) fn take_redirect(
        &mut self,
        now: Instant,
        source: Source,
        target: Addr,
        destination: Addr,
        target_mac: Option<MacAddr>,
        counters: &mut Counters,
    ) -> Option<()> {
        let interface = source.interface;
        let hop = self.routes.lookup_by(interface, destination)?;
        let auto = &mut self.interfaces[interface.index()].auto;
        if hop.gateway != Some(source.src) || destination.is_link_local() {
            return None;
        }
        let gateway = (target != destination).then(|| target.to_ip());
        let route = Route { dst: destination.to_ip(), prefix: 128, gateway, interface, metric: 0 };
        let old = auto.redirects.iter().position(|r| r.dst == route.dst);
        let old = old.or_else(|| (auto.redirects.len() >= MAX_REDIRECTS).then_some(0));
        let old = old.and_then(|at| auto.redirects.remove(at));
        auto.redirects.push_back(route);
        if let Some(old) = old {
            self.remove_route(&old);
        }
        self.add_route(route);
        counters.redirects += 1;
        let claim = Claim { mac: target_mac, solicited: false, strength: Strength::Override, create: true };
        self.neighbors.claim(now, interface, target, claim);
        Some(())
    }

    /// Hops that do not answer (RFC 4861 7.3.3): redirects to them end, another default router has its turn (6.3.6), and who
    /// has no other way fails.
    pub(super) fn give_up_hops(&mut self) {
        for Lost { interface: id, addr, hop, waiting } in core::mem::take(&mut self.neighbors.lost) {
            let ip = Some(addr.to_ip());
            let auto = &mut self.interfaces[id.index()].auto;
            let through = |r: &Route| r.gateway == ip || (r.gateway.is_none() && Some(r.dst) == ip);
            let mut gone = Vec::new();
            auto.redirects.retain(|r| {
                if through(r) {
                    gone.push(*r);
                }
                !through(r)
            });
            let mut other = !gone.is_empty();
            for route in gone {
                self.remove_route(&route);
            }
            let routers = &mut self.interfaces[id.index()].auto.routers;
            if let Some(at) = routers.iter().position(|(r, _)| *r == addr)
                && routers.len() > 1
            {
                let router = routers.remove(at);
                routers.push(router);
                // Behind the others of its metric.
                self.remove_route(&router_route(id, addr));
                self.add_route(router_route(id, addr));
                other = true;
            }
            let waiting = waiting.into_iter().map(|entry| Waiter { entry, hop });
            if other { &mut self.neighbors.resolved } else { &mut self.neighbors.failed }.extend(waiting);
        }
    }
}

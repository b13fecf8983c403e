//! Routes: longest prefix first, then the lowest metric.

use core::cmp::Reverse;
use core::net::IpAddr;
use std::collections::BTreeMap;

use foldhash::HashMap;
use wire::Addr;

use crate::InterfaceId;
use crate::link::hop::NO_NEIGHBOR;
use crate::link::interface::network;

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination network.
    pub dst: IpAddr,
    /// Its prefix length, bits.
    pub prefix: u8,
    /// Next hop; `None` when the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// Where to send.
    pub interface: InterfaceId,
    /// Lower is better.
    pub metric: u32,
}

/// Where a packet goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextHop {
    pub interface: InterfaceId,
    pub gateway: Option<Addr>,
}

/// The way to a destination that was asked for lately.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    to: Addr,
    pub hop: NextHop,
    /// The next hop's index among the neighbours, good while their epoch is this.
    pub neighbor: u32,
    pub epoch: u32,
}

/// Both families' routes; one map for each prefix length in use, the longest first.
#[derive(Default)]
pub(crate) struct Routes {
    v4: BTreeMap<Reverse<u8>, HashMap<IpAddr, Vec<Route>>>,
    v6: BTreeMap<Reverse<u8>, HashMap<IpAddr, Vec<Route>>>,
    /// The best ways that were looked up last, by some bits of the destination; empty after a change.
    recent: Vec<Option<Way>>,
    /// The same of the best ways by interfaces that are not those of the best way of all.
    beside: Vec<Option<Way>>,
}

/// Places in `recent`: a power of two.
const RECENT: usize = 64;

impl Routes {
    fn family(&mut self, ip: IpAddr) -> &mut BTreeMap<Reverse<u8>, HashMap<IpAddr, Vec<Route>>> {
        if ip.is_ipv4() { &mut self.v4 } else { &mut self.v6 }
    }

    fn forget_ways(&mut self) {
        self.recent.clear();
        self.beside.clear();
    }

    /// Adds a route; one that is there already is not added twice.
    pub fn add(&mut self, route: Route) {
        self.forget_ways();
        let route = canonical(route);
        let dst = route.dst;
        let list = self.family(dst).entry(Reverse(route.prefix)).or_default().entry(dst).or_default();
        if !list.contains(&route) {
            let at = list.partition_point(|r| r.metric <= route.metric);
            list.insert(at, route);
        }
    }

    /// Removes a route; whether it was there.
    pub fn remove(&mut self, route: &Route) -> bool {
        self.forget_ways();
        let route = canonical(*route);
        let dst = route.dst;
        let family = self.family(dst);
        let Some(map) = family.get_mut(&Reverse(route.prefix)) else { return false };
        let Some(list) = map.get_mut(&dst) else { return false };
        let before = list.len();
        list.retain(|r| *r != route);
        let removed = list.len() < before;
        if list.is_empty() {
            map.remove(&dst);
        }
        if map.is_empty() {
            family.remove(&Reverse(route.prefix));
        }
        removed
    }

    /// Keeps only the routes that `keep` wants.
    pub fn retain(&mut self, keep: impl Fn(&Route) -> bool) {
        self.forget_ways();
        for family in [&mut self.v4, &mut self.v6] {
            family.values_mut().flat_map(HashMap::values_mut).for_each(|list| list.retain(&keep));
            family.values_mut().for_each(|map| map.retain(|_, list| !list.is_empty()));
            family.retain(|_, map| !map.is_empty());
        }
    }

    /// The best way to `to`, with what is remembered of it; short for those asked for lately.
    #[inline]
    pub fn way(&mut self, to: Addr) -> Option<&mut Way> {
        let at = place(to);
        if !matches!(self.recent.get(at), Some(Some(way)) if way.to == to) {
            self.look_up_anew(to, at)?;
        }
        self.recent[at].as_mut()
    }

    /// The best way to `to` by `interface`: that of the longest prefix among the interface's routes, then of the lowest metric.
    #[inline]
    pub fn way_by(&mut self, interface: InterfaceId, to: Addr) -> Option<&mut Way> {
        let at = place(to);
        // The best way of all is the best by its own interface.
        if self.way(to)?.hop.interface == interface {
            return self.recent[at].as_mut();
        }
        self.way_beside(interface, to, at)
    }

    #[inline(never)]
    fn way_beside(&mut self, interface: InterfaceId, to: Addr, at: usize) -> Option<&mut Way> {
        let known = |way: &Option<Way>| way.as_ref().is_some_and(|w| w.to == to && w.hop.interface == interface);
        if !self.beside.get(at).is_some_and(known) {
            let hop = self.lookup_by(interface, to)?;
            if self.beside.is_empty() {
                self.beside.resize(RECENT, None);
            }
            self.beside[at] = Some(Way { to, hop, neighbor: NO_NEIGHBOR, epoch: 0 });
        }
        self.beside[at].as_mut()
    }

    /// The neighbour through which `to` is reached by `interface`, and its epoch: [`NO_NEIGHBOR`] where it was not
    /// asked for lately. `None` where no route of the interface covers `to`.
    #[inline]
    pub fn known_hop(&mut self, interface: InterfaceId, to: Addr) -> Option<(u32, u32)> {
        self.way_by(interface, to).map(|way| (way.neighbor, way.epoch))
    }

    #[inline(never)]
    fn look_up_anew(&mut self, to: Addr, at: usize) -> Option<()> {
        let hop = self.lookup(to)?;
        if self.recent.is_empty() {
            self.recent.resize(RECENT, None);
        }
        // Epochs begin at 1.
        self.recent[at] = Some(Way { to, hop, neighbor: NO_NEIGHBOR, epoch: 0 });
        Some(())
    }

    /// The best way to `to`.
    pub fn lookup(&self, to: Addr) -> Option<NextHop> {
        self.find(to, |_| true)
    }

    /// The best way to `to` by `interface`.
    pub fn lookup_by(&self, interface: InterfaceId, to: Addr) -> Option<NextHop> {
        self.find(to, |route| route.interface == interface)
    }

    /// The way of the longest prefix, then of the lowest metric, among the routes that are `eligible`.
    fn find(&self, to: Addr, eligible: impl Fn(&Route) -> bool) -> Option<NextHop> {
        let ip = to.to_ip();
        let family = if to.is_v4() { &self.v4 } else { &self.v6 };
        family.iter().find_map(|(prefix, map)| {
            let route = map.get(&network(ip, prefix.0))?.iter().find(|route| eligible(route))?;
            Some(NextHop { interface: route.interface, gateway: route.gateway.map(Addr::from) })
        })
    }

    /// The ways that are remembered: whether it is one beside the best, where to, the hop, and the neighbour with its epoch.
    pub fn remembered(&self) -> impl Iterator<Item = (bool, Addr, NextHop, (u32, u32))> {
        let best = self.recent.iter().flatten().map(|way| (false, way));
        let all = best.chain(self.beside.iter().flatten().map(|way| (true, way)));
        all.map(|(beside, way)| (beside, way.to, way.hop, (way.neighbor, way.epoch)))
    }

    /// All routes, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        [&self.v4, &self.v6].into_iter().flat_map(|family| family.values().flat_map(HashMap::values).flatten())
    }
}

/// Where the way to `to` is remembered.
#[inline]
fn place(to: Addr) -> usize {
    let [high, low] = to.as_words();
    (low ^ low >> 8 ^ high) as usize % RECENT
}

/// No host bits, and no prefix longer than an address.
fn canonical(route: Route) -> Route {
    let prefix = route.prefix.min(if route.dst.is_ipv4() { 32 } else { 128 });
    Route { dst: network(route.dst, prefix), prefix, ..route }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn route(dst: &str, prefix: u8, gateway: Option<&str>, interface: u8, metric: u32) -> Route {
        let gateway = gateway.map(|g| g.parse().unwrap());
        Route { dst: dst.parse().unwrap(), prefix, gateway, interface: InterfaceId(interface), metric }
    }

    fn to(routes: &Routes, ip: &str) -> Option<u8> {
        routes.lookup(ip.parse::<IpAddr>().unwrap().into()).map(|h| h.interface.0)
    }

    #[test]
    fn the_longest_prefix_wins_whatever_the_order() {
        // The original stopped at the first match.
        let all = [
            route("0.0.0.0", 0, Some("10.0.0.254"), 0, 0),
            route("10.0.0.0", 8, None, 1, 0),
            route("10.1.0.0", 16, None, 2, 0),
            route("10.1.2.3", 32, None, 3, 0),
            route("::", 0, Some("fe80::1"), 4, 0),
            route("2001:db8::", 32, None, 5, 0),
        ];
        for order in [all.to_vec(), all.iter().rev().copied().collect()] {
            let mut routes = Routes::default();
            order.iter().for_each(|r| routes.add(*r));
            assert_eq!(to(&routes, "192.0.2.1"), Some(0));
            assert_eq!(to(&routes, "10.9.9.9"), Some(1));
            assert_eq!(to(&routes, "10.1.9.9"), Some(2));
            assert_eq!(to(&routes, "10.1.2.3"), Some(3));
            assert_eq!(to(&routes, "2001:db9::1"), Some(4));
            assert_eq!(to(&routes, "2001:db8::1"), Some(5));
            assert!(routes.remove(&all[3]) && !routes.remove(&all[3]));
            assert_eq!(to(&routes, "10.1.2.3"), Some(2));
        }
    }

    #[test]
    fn the_lowest_metric_wins_within_a_prefix() {
        let mut routes = Routes::default();
        routes.add(route("10.0.0.0", 8, None, 1, 200));
        routes.add(route("10.0.0.0", 8, None, 2, 100));
        assert_eq!(to(&routes, "10.0.0.1"), Some(2));
        assert!(routes.remove(&route("10.0.0.0", 8, None, 2, 100)));
        assert_eq!(to(&routes, "10.0.0.1"), Some(1));
        routes.add(route("::", 0, None, 3, 0));
        routes.retain(|r| r.interface.0 == 3);
        assert_eq!((to(&routes, "10.0.0.1"), to(&routes, "::1")), (None, Some(3)));
        assert!(routes.v4.is_empty());
    }

    #[test]
    fn a_change_of_routes_is_noticed_at_once() {
        let mut routes = Routes::default();
        let target: Addr = "10.1.2.3".parse::<IpAddr>().unwrap().into();
        let by = |routes: &mut Routes| routes.way(target).map(|w| w.hop.interface.0);
        assert_eq!(by(&mut routes), None);
        routes.add(route("10.0.0.0", 8, None, 1, 0));
        assert_eq!((by(&mut routes), by(&mut routes)), (Some(1), Some(1)));
        routes.add(route("10.1.0.0", 16, None, 2, 0));
        assert_eq!(by(&mut routes), Some(2));
        routes.remove(&route("10.1.0.0", 16, None, 2, 0));
        assert_eq!(by(&mut routes), Some(1));
        routes.retain(|_| false);
        assert_eq!(by(&mut routes), None);
    }

    #[test]
    fn the_gateway_comes_along_and_odd_routes_are_put_right() {
        let mut routes = Routes::default();
        routes.add(route("0.0.0.0", 0, Some("10.0.0.254"), 0, 0));
        routes.add(route("::", 0, Some("fe80::1"), 1, 0));
        let hop = |r: &Routes, ip: &str| r.lookup(ip.parse::<IpAddr>().unwrap().into());
        let gateway = |g: &str| Some(g.parse::<IpAddr>().unwrap().into());
        assert_eq!(hop(&routes, "192.0.2.1").unwrap().gateway, gateway("10.0.0.254"));
        assert_eq!(hop(&routes, "2001:db8::1").unwrap().gateway, gateway("fe80::1"));
        // Host bits are no part of a network, and no prefix is longer than the address.
        routes.add(route("10.1.2.3", 24, None, 2, 0));
        routes.add(route("10.1.2.9", 99, None, 3, 0));
        routes.add(route("2001:db8::9", 200, None, 4, 0));
        assert_eq!((to(&routes, "10.1.2.200"), to(&routes, "10.1.2.9")), (Some(2), Some(3)));
        assert_eq!((to(&routes, "2001:db8::8"), to(&routes, "2001:db8::9")), (Some(1), Some(4)));
        assert!(
            routes.remove(&route("10.1.2.9", 32, None, 3, 0)) && routes.remove(&route("10.1.2.77", 24, None, 2, 0))
        );
        assert_eq!(hop(&routes, "10.1.2.9").unwrap().gateway, gateway("10.0.0.254"));
        // Added twice, removed once.
        routes.add(route("10.1.2.0", 24, None, 2, 0));
        routes.add(route("10.1.2.0", 24, None, 2, 0));
        assert!(routes.remove(&route("10.1.2.0", 24, None, 2, 0)));
        assert_eq!(to(&routes, "10.1.2.1"), Some(0));
    }

    /// An address in one small corner, so that prefixes nest: its last two bytes are `x`.
    fn corner(v6: bool, x: u16) -> IpAddr {
        if v6 { IpAddr::from((x as u128).to_be_bytes()) } else { IpAddr::from((x as u32).to_be_bytes()) }
    }

    proptest! {
        #[test]
        fn agrees_with_a_linear_scan(
            list in proptest::collection::vec((any::<bool>(), any::<u16>(), 0u8..=16, 0u32..4, any::<bool>()), 1..60),
            targets in proptest::collection::vec((any::<bool>(), any::<u16>()), 8),
        ) {
            let mut routes = Routes::default();
            let list: Vec<(Route, bool)> = list.into_iter().enumerate().map(|(i, (v6, x, short, metric, stays))| {
                // Prefixes that end within the corner, and the default route.
                let whole = if v6 { 128 } else { 32 };
                let prefix = if short == 16 { 0 } else { whole - short };
                let dst = network(corner(v6, x), prefix);
                // A gateway of its own tells it from the others.
                let gateway = Some(corner(v6, i as u16));
                (Route { dst, prefix, gateway, interface: InterfaceId(i as u8 % 4), metric }, stays)
            }).collect();
            list.iter().for_each(|(r, _)| routes.add(*r));
            for (r, stays) in &list {
                prop_assert!(*stays || routes.remove(r));
            }
            for (v6, x) in targets {
                let ip = corner(v6, x);
                let covers = |r: &Route| r.dst.is_ipv4() == ip.is_ipv4() && network(ip, r.prefix) == r.dst;
                let live = list.iter().filter(|(r, stays)| *stays && covers(r)).map(|(r, _)| r);
                // Of equals, the first.
                let hop = |r: &Route| NextHop { interface: r.interface, gateway: r.gateway.map(Addr::from) };
                let best = live.min_by_key(|r| (Reverse(r.prefix), r.metric)).map(hop);
                prop_assert_eq!(routes.lookup(ip.into()), best);
                for interface in 0..4 {
                    let live = list.iter().filter(|(r, stays)| *stays && covers(r)).map(|(r, _)| r);
                    let of = live.filter(|r| r.interface.0 == interface);
                    let best = of.min_by_key(|r| (Reverse(r.prefix), r.metric)).map(hop);
                    prop_assert_eq!(routes.lookup_by(InterfaceId(interface), ip.into()), best);
                    prop_assert_eq!(routes.way_by(InterfaceId(interface), ip.into()).map(|w| w.hop), best);
                    prop_assert_eq!(routes.way_by(InterfaceId(interface), ip.into()).map(|w| w.hop), best);
                }
                // The first time, and from memory.
                prop_assert_eq!(routes.way(ip.into()).map(|w| w.hop), best);
                prop_assert_eq!(routes.way(ip.into()).map(|w| w.hop), best);
            }
        }
    }
}

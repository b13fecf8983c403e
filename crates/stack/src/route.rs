//! Routes: longest prefix first, then the lowest metric.

use core::cmp::Reverse;
use core::net::IpAddr;
use std::collections::{BTreeMap, HashMap};

use wire::Addr;

use crate::interface::network;

/// An interface of one stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InterfaceId(pub u8);

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

/// Both families' routes; one map for each prefix length in use, the longest first.
#[derive(Default)]
pub(crate) struct Routes {
    v4: BTreeMap<Reverse<u8>, HashMap<IpAddr, Vec<Route>>>,
    v6: BTreeMap<Reverse<u8>, HashMap<IpAddr, Vec<Route>>>,
}

impl Routes {
    fn family(&mut self, ip: IpAddr) -> &mut BTreeMap<Reverse<u8>, HashMap<IpAddr, Vec<Route>>> {
        if ip.is_ipv4() { &mut self.v4 } else { &mut self.v6 }
    }

    /// Adds a route; one that is there already is not added twice.
    pub fn add(&mut self, route: Route) {
        let dst = network(route.dst, route.prefix);
        let route = Route { dst, ..route };
        let list = self.family(dst).entry(Reverse(route.prefix)).or_default().entry(dst).or_default();
        if !list.contains(&route) {
            let at = list.partition_point(|r| r.metric <= route.metric);
            list.insert(at, route);
        }
    }

    /// Removes a route; whether it was there.
    pub fn remove(&mut self, route: &Route) -> bool {
        let dst = network(route.dst, route.prefix);
        let route = Route { dst, ..*route };
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

    pub fn clear(&mut self) {
        self.v4.clear();
        self.v6.clear();
    }

    /// The way to `to`.
    pub fn lookup(&self, to: Addr) -> Option<NextHop> {
        let ip = to.to_ip();
        let family = if to.is_v4() { &self.v4 } else { &self.v6 };
        family.iter().find_map(|(prefix, map)| {
            let route = map.get(&network(ip, prefix.0))?.first()?;
            Some(NextHop { interface: route.interface, gateway: route.gateway.map(Addr::from) })
        })
    }
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
        routes.clear();
        assert_eq!(to(&routes, "10.0.0.1"), None);
    }

    proptest! {
        #[test]
        fn agrees_with_a_linear_scan(list in proptest::collection::vec((any::<u32>(), 0u8..=32), 1..40), ip: u32) {
            let mut routes = Routes::default();
            let mut best: Option<(u8, u8)> = None;
            for (i, (dst, prefix)) in list.iter().enumerate() {
                // Neighbours in one small corner, so that prefixes nest.
                let dst = IpAddr::from((dst & 0xffff).to_be_bytes());
                routes.add(Route { dst, prefix: *prefix, gateway: None, interface: InterfaceId(i as u8), metric: i as u32 });
            }
            let ip = IpAddr::from((ip & 0xffff).to_be_bytes());
            for (i, (dst, prefix)) in list.iter().enumerate() {
                let dst = IpAddr::from((dst & 0xffff).to_be_bytes());
                if network(dst, *prefix) == network(ip, *prefix) && best.is_none_or(|(p, _)| *prefix > p) {
                    best = Some((*prefix, i as u8));
                }
            }
            prop_assert_eq!(routes.lookup(ip.into()).map(|h| h.interface.0), best.map(|b| b.1));
        }
    }
}

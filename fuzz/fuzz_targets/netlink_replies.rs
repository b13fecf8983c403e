//! Any bytes as what the kernel says of links, addresses, routes and neighbours: nothing panics, and what is told is what a
//! host can have.
#![no_main]

use io::netlink::{self, Change};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    for change in netlink::changes_in(data) {
        match change {
            Change::Link(link) => assert!(!link.name.contains('\0') && !link.kind.contains('\0')),
            Change::Address(address, _) => {
                let most = if address.addr.is_ipv4() { 32 } else { 128 };
                assert!(address.prefix <= most, "{address:?}");
            }
            Change::NoLink(_) | Change::Routes | Change::Neighbor(_) => {}
        }
    }
    for route in netlink::routes_in(data) {
        let most = if route.dst.is_ipv4() { 32 } else { 128 };
        assert!(route.prefix <= most && route.link != 0, "{route:?}");
        assert!(route.gateway.is_none_or(|g| g.is_ipv4() == route.dst.is_ipv4()), "{route:?}");
    }
});

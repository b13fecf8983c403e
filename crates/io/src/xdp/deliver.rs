//! Receive Flow Deliver on an interface: replies to connections that are opened here go to the CPU of their port's block.

use super::holder;
use crate::bpf::{self, Blocks, Delivered, Deliverer, Link};
use crate::capability::Capability;
use crate::error::{Holder, PortError};
use crate::netlink::Netlink;

/// An interface whose frames are delivered. Dropping it, or dying, gives the kernel the whole interface again.
#[derive(Debug)]
pub struct Delivery {
    name: String,
    generic: Option<&'static str>,
    deliverer: Deliverer,
    _link: Link,
}

impl Delivery {
    /// Attaches the program for `blocks` to an interface, on a machine with CPUs 0 to `cpus` - 1. Frames to listeners' ports are spread
    /// over `cores` where the interface does not do it. Needs CAP_BPF and CAP_NET_ADMIN.
    pub fn attach(name: &str, blocks: &Blocks, cores: &[u32], cpus: u32) -> Result<Delivery, PortError> {
        let failed = |what: &str, source| {
            let what = format!("{what} on {name}");
            PortError::system(what, source, &[Capability::NetAdmin, Capability::Bpf])
        };
        let all = Netlink::open().and_then(|mut n| n.links()).map_err(|e| failed("reading interfaces", e))?;
        let link = all.iter().find(|l| l.name == name).ok_or_else(|| PortError::NoInterface(name.into()))?;
        if link.loopback {
            let why = format!("{name} has nothing to deliver: what it sends comes back on the core that sent it");
            return Err(PortError::Invalid(why));
        }
        if link.xdp_program != 0 {
            let program = bpf::program_name(link.xdp_program).unwrap_or_default();
            let of = match holder::of(link.xdp_program) {
                Holder::Process { pid, name } => format!(" of {name} (pid {pid})"),
                Holder::Unknown => String::new(),
            };
            let hint = format!("{program:?} (id {}){of} has it; end that first", link.xdp_program);
            return Err(PortError::Busy { what: format!("the place of {name}'s XDP program"), hint });
        }
        let spread = if spreads(name, &link.kind, cores.len()) { &[] } else { cores };
        let attach = |generic: bool| {
            // In generic mode a frame of several buffers that the program could take becomes a copy without the length of its link header,
            // and what goes to another CPU is cut there as if it had none (skb_pp_cow_data; seen with 6.18). One that is made a single
            // buffer for the program keeps it.
            let deliverer = Deliverer::new(blocks, spread, cpus, !generic)
                .map_err(|e| failed("the program that delivers by port", e))?;
            let attached = deliverer.program.attach(link.index, generic);
            Ok::<_, PortError>(attached.map(|link| (deliverer, link)))
        };
        let mut generic = generic_at_once(name, &link.kind);
        let attached = match attach(generic.is_some())? {
            Err(e) if generic.is_none() && e.raw_os_error() != Some(libc::EBUSY) => {
                generic = Some("its driver takes no XDP program");
                attach(true)?.map_err(|_| e)
            }
            other => other,
        };
        let (deliverer, _link) = attached.map_err(|e| failed("attaching the XDP program", e))?;
        Ok(Delivery { name: name.into(), generic, deliverer, _link })
    }

    /// The interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reason why frames pass the kernel's generic code first, which costs more for each; none in driver mode.
    pub fn generic(&self) -> Option<&'static str> {
        self.generic
    }

    /// Takes frames to a port out of the blocks: somebody listens on it.
    pub fn listens(&self, port: u16) {
        // Without it they are looked up.
        let _ = self.deliverer.listens(port);
    }

    /// Frames so far.
    pub fn delivered(&self) -> Delivered {
        self.deliverer.delivered().unwrap_or_default()
    }
}

/// True where an interface brings all frames of a flow to one core, and flows to all `cores`: hardware does by RSS, with queues enough.
/// On a virtual interface a frame comes on the core whose process sent it.
fn spreads(name: &str, kind: &str, cores: usize) -> bool {
    let Ok(entries) = std::fs::read_dir(format!("/sys/class/net/{name}/queues")) else { return true };
    let queues = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("rx-")).count();
    cores < 2 || kind.is_empty() && queues >= cores
}

/// Behind a cpumap in driver mode a frame is its bytes alone: a sum that was left unfinished, as programs on this machine leave it, is a
/// wrong one then, and a VLAN tag that the NIC took off is lost.
fn generic_at_once(name: &str, kind: &str) -> Option<&'static str> {
    if !kind.is_empty() {
        return Some("its frames may come from this machine, with sums that hardware was to finish");
    }
    let Ok(entries) = std::fs::read_dir(format!("/sys/class/net/{name}")) else {
        return Some("/sys does not show whether other interfaces stand on it");
    };
    let has_upper = entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("upper_"));
    has_upper.then_some("other interfaces stand on it, whose VLAN tags driver mode would lose")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdp::veth::{NAME, beside_a_veth};

    #[test]
    fn an_interface_has_one_delivery_at_a_time_and_none_after_it() {
        beside_a_veth(2, || {
            let blocks = Blocks::deal((32_768, 60_999), &[0, 1], 5, false);
            let attach = |name| Delivery::attach(name, &blocks, &[0, 1], 2);
            let program = || {
                let links = Netlink::open().unwrap().links().unwrap();
                links.iter().find(|link| link.name == NAME).unwrap().xdp_program
            };
            let delivery = attach(NAME).unwrap();
            assert_eq!((delivery.name(), delivery.generic().is_some(), program() != 0), (NAME, true, true));
            assert_eq!(delivery.delivered(), Delivered::default());
            let again = attach(NAME).unwrap_err().to_string();
            assert!(
                again.starts_with("the place of clveth's XDP program is in use by another program: \"cl_deliver\""),
                "{again}"
            );
            drop(delivery);
            assert_eq!(program(), 0);
            assert!(matches!(attach("lo"), Err(PortError::Invalid(_))));
            assert!(matches!(attach("none"), Err(PortError::NoInterface(_))));
        });
    }
}

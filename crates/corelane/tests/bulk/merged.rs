//! Bulk over interfaces whose frames the kernel merges (GRO), or gets uncut from a sender on this machine (TSO): in XDP's generic
//! mode, and on a veth.

use super::*;

/// Bytes each way where frames are lost.
const LOSSY: usize = 2 << 20;

/// An interface above `va`, which is one end of a veth.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// None: `va` itself.
    Veth,
    Bridge,
    Macvlan,
    Vlan,
    Bond,
}

impl Shape {
    const ABOVE: [Shape; 4] = [Shape::Bridge, Shape::Macvlan, Shape::Vlan, Shape::Bond];

    /// The interface that has the addresses.
    fn name(self) -> &'static str {
        match self {
            Shape::Veth => "va",
            Shape::Bridge => "br0",
            Shape::Macvlan => "mv0",
            Shape::Vlan => "va.7",
            Shape::Bond => "bond0",
        }
    }

    /// Makes it above `va`; `false` where the kernel has no such interfaces, as some machines of CI: guests try those
    /// (tools/drivers).
    fn make(self) -> bool {
        let link = match self {
            Shape::Veth => return true,
            Shape::Bridge => "br0 type bridge",
            Shape::Macvlan => "mv0 link va type macvlan mode bridge",
            Shape::Vlan => "va.7 link va type vlan id 7",
            Shape::Bond => "bond0 type bond mode active-backup miimon 10",
        };
        let made = Command::new("ip").args(["link", "add"]).args(link.split(' ')).output().unwrap().status.success();
        match self {
            _ if !made => testing::skip_in_ci_too(format!("the kernel cannot `ip link add {link}`")),
            Shape::Bridge => sh("ip link set va master br0"),
            // Or va answers for its addresses, too.
            Shape::Macvlan => sh("sysctl -qw net.ipv4.conf.all.arp_ignore=1"),
            Shape::Bond => {
                sh("ip link set va down");
                sh("ip link set va master bond0");
                sh("ip link set va up");
            }
            Shape::Veth | Shape::Vlan => {}
        }
        made
    }
}

/// A veth of one queue; its other end is in the namespace `far`.
fn veth(name: &str, peer: &str, far: &File) {
    let netns = format!("/proc/{}/fd/{}", std::process::id(), far.as_fd().as_raw_fd());
    let one = "numrxqueues 1 numtxqueues 1";
    sh(&format!("ip link add {name} {one} type veth peer name {peer} {one} netns {netns}"));
    sh(&format!("ip link set {name} up"));
}

/// Two veths joined, as by a switch, that lose one in `one_in` of the frames each way: `va` here, and `vb` in the namespace `far`.
/// Lives as long as what is given back.
fn lossy(far: &File, name: String, one_in: u32) -> impl Sized + use<> {
    let switch = space(&name);
    veth("va", "p0", &switch);
    let far = far.try_clone().unwrap();
    let inside = move || {
        enter(&switch);
        veth("p1", "vb", &far);
        sh("ip link add s0 type bridge");
        ["p0", "p1"].iter().for_each(|port| sh(&format!("ip link set {port} up master s0")));
        sh("ip link set s0 up");
        // Segments of a burst are lost one by one, and the kernel merges those that are left.
        sh("ethtool -K p0 tso off gso off");
        (lose("p0", one_in), lose("p1", one_in), switch)
    };
    let switch = thread::spawn(inside).join().unwrap();
    sh("ethtool -K va gro on");
    switch
}

/// `bytes` each way over `shape`, whose peer has `far_mtu`; `None` where the kernel has no such interface. Without `loss` nobody cuts
/// what the peer sends.
fn over(shape: Shape, far_mtu: u16, v6: bool, loss: Option<u32>, bytes: usize) -> Option<Counted> {
    let name = |which: &str| format!("merged-{which}-{shape:?}-{far_mtu}-{v6}-{}", loss.is_some());
    let far = space(&name("far"));
    let _switch = loss.map(|one_in| lossy(&far, name("switch"), one_in));
    if loss.is_none() {
        veth("va", "vb", &far);
    }
    let counted = shape.make().then(|| {
        address(shape.name(), 2);
        let there = far.try_clone().unwrap();
        let peer = move || {
            enter(&there);
            sh(&format!("ip link set vb mtu {far_mtu} up"));
            match shape {
                Shape::Vlan => {
                    sh("ip link add vb.7 link vb type vlan id 7");
                    address("vb.7", 1);
                }
                _ => address("vb", 1),
            }
        };
        thread::spawn(peer).join().unwrap();
        let port = PortConfig::new(format!("xdp:{}", shape.name()).parse().unwrap());
        let counted = both_ways(port, v6, bytes, || Some(far.try_clone().unwrap()));
        if shape.name() != "va" {
            sh(&format!("ip link del {}", shape.name()));
        }
        counted
    });
    sh("ip link del va");
    counted
}

#[test]
fn frames_that_nobody_cut_are_taken_whole() {
    apart("whole", || {
        for (shape, v6) in Shape::ABOVE.into_iter().flat_map(|shape| [(shape, false), (shape, true)]) {
            let Some(Counted { both: [(segments, frames), _], dropped, .. }) = over(shape, 1500, v6, None, BYTES)
            else {
                continue;
            };
            assert_eq!(dropped, 0, "{shape:?}");
            assert!(segments > BYTES as u64 / 1460, "{shape:?}: {segments} segments");
            assert!(segments > 4 * frames, "{shape:?}: {segments} segments in {frames} frames");
        }
    });
}

#[test]
fn frames_that_are_merged_after_losses_are_taken() {
    apart("lossy", || {
        for (shape, v6) in Shape::ABOVE.into_iter().flat_map(|shape| [(shape, false), (shape, true)]) {
            let Some(Counted { both: [(segments, frames), _], dropped, .. }) = over(shape, 1500, v6, Some(33), LOSSY)
            else {
                continue;
            };
            assert_eq!(dropped, 0, "{shape:?}");
            assert!(segments > frames, "{shape:?}: {segments} segments in {frames} frames");
        }
    });
}

/// A veth in driver mode: its peer cuts, and may send what is longer than our link.
#[test]
fn a_veth_takes_frames_of_a_peer_with_a_larger_mtu() {
    apart("veth", || {
        for (far_mtu, v6) in [(1500, false), (1500, true), (9000, false), (9000, true)] {
            let counted = over(Shape::Veth, far_mtu, v6, None, BYTES).unwrap();
            assert_eq!(counted.dropped, 0, "{far_mtu}");
        }
        over(Shape::Veth, 1500, false, Some(33), LOSSY).unwrap();
    });
}

//! An interface taken by AF_XDP: the program, its maps, and a socket on every queue.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use wire::MacAddr;
use wire::burst::{RxChecksum, TxCaps};

use super::features::{self, Off};
use super::holder;
use super::kind::{check_kind, driver_of, is_handed_frames, queues_of};
use super::large::Large;
use super::merging::{self, Unmerged};
use super::metadata;
use super::port::XdpPort;
use super::queue::{self, At, Opening, Queue};
use super::start::Start;
use super::tags;
use super::umem::{LONGEST_IN_ONE, Rings, Umem, frame_size, longest_frame};
use crate::bpf::{
    self, KernelFunction, MOST_KEPT, MOST_OWNED, Maps, OwnFlags, OwnFlow, OwnKey, Program, TAGS_BESIDE, Tuples, Verdict,
};
use crate::capability::{self, Capability};
use crate::error::PortError;
use crate::netlink::{Link, Netlink};
use crate::numa;
use crate::port::PortCaps;
use crate::sys::{self, Job};

/// Whether frames may be copied between driver and socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroCopy {
    /// Zero-copy where the driver can.
    #[default]
    Auto,
    /// Or not at all.
    Require,
    /// Always copy.
    Never,
}

/// How an interface is taken.
#[derive(Clone, Debug)]
pub struct XdpConfig {
    /// Lanes: the queues are dealt to them in turn.
    pub lanes: u16,
    /// Frames that a lane can be behind with before any is lost, shared by its queues; rounded up to a power of two.
    pub receive_ring: u32,
    /// Frames that can wait to be sent; rounded up to a power of two.
    pub send_ring: u32,
    /// Copying.
    pub zero_copy: ZeroCopy,
    /// Not 0: the kernel's receive work is done in the lanes' own calls (SO_PREFER_BUSY_POLL, and this is SO_BUSY_POLL), where
    /// the driver is zero-copy.
    pub busy_poll_us: u32,
    /// Checksums of sent frames are left to the device where it can, and where frames are copied bursts of segments go out
    /// whole, for the kernel to cut.
    pub offload: bool,
    /// The core of each lane, on whose NUMA node the frames and rings of its queues lie; none are named where lanes run anywhere.
    pub cores: Vec<usize>,
}

impl Default for XdpConfig {
    fn default() -> XdpConfig {
        XdpConfig {
            lanes: 1,
            // A lane that shares its core with the kernel's receive work finds what came in a whole time slice at once.
            receive_ring: 16_384,
            send_ring: 2048,
            zero_copy: ZeroCopy::Auto,
            busy_poll_us: 0,
            offload: true,
            cores: Vec::new(),
        }
    }
}

/// The number of `lo` in every network namespace.
pub(super) const LOOPBACK: u32 = 1;

/// What keeps the program on the interface.
pub(super) struct Attached {
    /// Undone first: whoever takes the interface next does the same once it is free.
    tags: Vlans,
    /// Merging of segments is off.
    unmerged: Option<Unmerged>,
    maps: Maps,
    link: Mutex<Option<bpf::Link>>,
    program: Program,
}

/// How the program knows frames of other VLANs.
enum Vlans {
    /// Their tags stay in them as long as this lives.
    Kept(Off),
    /// The kernel tells it what is beside a frame.
    Told,
    /// What is beside a frame is not known.
    Unknown,
    /// Frames come from other interfaces, on which the kernel has taken their tags off.
    TakenBelow,
}

/// The program for an interface, which looks at packets of several buffers with `sg`; and whether it knows of tags that are beside
/// frames: on a veth, where the kernel tells (6.8).
fn load(link: &Link, maps: &Maps, sg: bool) -> io::Result<(Program, bool)> {
    if link.kind == "veth"
        && let Ok(tags) = KernelFunction::named(TAGS_BESIDE)
        && let insns = bpf::steer(maps, Some(tags))
        && let Ok(program) = Program::load_xdp_for("corelane", &insns, sg, link.index)
    {
        return Ok((program, true));
    }
    load_plain(maps, sg).map(|program| (program, false))
}

fn load_plain(maps: &Maps, sg: bool) -> io::Result<Program> {
    Program::load_xdp("corelane", &bpf::steer(maps, None), sg)
}

/// Why frames pass the kernel's generic code before the program sees them.
enum Generic {
    /// The driver did not take the program.
    Driver(io::Error),
    /// A bond hands its program to its slaves, where the sockets of its own queues are not.
    Bond,
}

/// An MTU with which frames lie in one buffer of the drivers that have XDP: 3072 bytes in Intel's.
const FITS: u32 = 3000;

/// An interface taken by AF_XDP. Its ports keep the program attached as long as any of them lives.
pub struct XdpDevice {
    link: Link,
    /// Receive queues whose frames are taken.
    queues: u16,
    attached: Arc<Attached>,
    generic: Option<Generic>,
    /// Busy polling was asked for and is not to be had.
    unpolled: bool,
}

fn refuse(name: &str, what: &str, e: io::Error) -> PortError {
    match e.raw_os_error() {
        Some(libc::EAFNOSUPPORT | libc::ENOPROTOOPT | libc::ESOCKTNOSUPPORT) => PortError::Unsupported {
            feature: "AF_XDP (CONFIG_XDP_SOCKETS)",
            hint: "use packet:IFACE or tap:NAME instead",
        },
        Some(libc::EBUSY) => PortError::Busy {
            what: format!("{name} ({what})"),
            hint: "another AF_XDP program has the queue, or another XDP program the interface; stop it first".into(),
        },
        // What the verifier says to programs that compute packet offsets.
        _ if e.to_string().contains("prohibited for !root") => {
            PortError::Permission { what: format!("{what} on {name}"), missing: vec![Capability::Perfmon] }
        }
        _ => PortError::system(
            format!("{what} on {name}"),
            e,
            &[Capability::NetAdmin, Capability::NetRaw, Capability::Bpf],
        ),
    }
}

/// Why no socket could be opened on a queue, of `queues` with such rings.
fn refuse_queue(link: &Link, queue: u16, (queues, rings): (u16, Rings), e: io::Error) -> PortError {
    let name = &link.name;
    match e.raw_os_error() {
        Some(libc::ENOBUFS) if capability::missing(&[Capability::IpcLock]) == [Capability::IpcLock] => {
            let bytes = queues as u64
                * (rings.receive + rings.send) as u64
                * frame_size(link.mtu, driver_of(name).as_deref()) as u64;
            PortError::LockedMemory { dev: name.clone(), mib: bytes.div_ceil(1 << 20) }
        }
        Some(libc::EINVAL) if link.mtu > LONGEST_IN_ONE => PortError::Invalid(format!(
            "{name}: a frame of its MTU, {}, needs several buffers, which AF_XDP has since Linux 6.6: use an MTU of \
             {FITS} or less (`ip link set {name} mtu {FITS}`), or packet:{name}",
            link.mtu
        )),
        _ => refuse(name, &format!("AF_XDP on queue {queue}"), e),
    }
}

/// Opens a socket on each of `queues`, enters it into the program's map, and deals it to a lane; does `meanwhile`, too. The kernel
/// takes tens of milliseconds for each, in which a server that was stopped and is started again serves nobody: so all at once.
/// What fails ends the rest; of several failures that of `meanwhile` is told, or one that waiting would not mend.
fn open_queues<T: Send>(
    queues: Range<u16>,
    (link, sg): (&Link, bool),
    config: &XdpConfig,
    maps: &Maps,
    by_lane: &mut [Vec<Queue>],
    meanwhile: impl FnOnce() -> Result<T, PortError> + Send,
) -> Result<T, PortError> {
    let size = |slots: u32| slots.next_power_of_two().clamp(64, 32_768);
    let shared = config.receive_ring / queues.end.div_ceil(config.lanes) as u32;
    let rings = Rings { receive: size(shared.max(config.receive_ring.min(2048))), send: size(config.send_ring) };
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let driver = driver_of(&link.name);
    let copied_sums = metadata::copies_with_sums(driver.as_deref(), &release);
    let refused = |i: u16| move |e| refuse_queue(link, i, (queues.end, rings), e);
    let (opening, mut done) = (Opening::begin(), None);
    let mut opened: Vec<Option<io::Result<Queue>>> = queues.clone().map(|_| None).collect();
    let mut jobs: Vec<Job> = Vec::new();
    jobs.push(Box::new(|| {
        if done.insert(meanwhile()).is_err() {
            opening.fail();
        }
    }));
    for (i, queue) in queues.clone().zip(&mut opened) {
        // Now, since a process gets no new memory while some of it is being pinned.
        let umem = Umem::new(frame_size(link.mtu, driver.as_deref()), rings).map_err(refused(i))?;
        let (at, opening) = (At { ifindex: link.index, queue: i, mtu: link.mtu, sg }, &opening);
        let core = config.cores.get(usize::from(i % config.lanes)).copied();
        jobs.push(Box::new(move || {
            if !opening.has_failed()
                && queue.insert(numa::near(core, || Queue::open(at, umem, rings, config, opening))).is_err()
            {
                opening.fail();
            }
        }));
    }
    sys::at_once(jobs);
    let done = done.expect("all jobs are done")?;
    let (mut sockets, mut failure) = (Vec::new(), None);
    for (i, queue) in queues.clone().zip(opened) {
        match queue {
            Some(Ok(queue)) => sockets.push((i, queue)),
            Some(Err(e)) => {
                let lasts = e.raw_os_error() != Some(libc::EBUSY);
                if failure.as_ref().is_none_or(|(_, known)| lasts && !known) {
                    failure = Some(((i, e), lasts));
                }
            }
            None => {}
        }
    }
    if let Some(((i, e), _)) = failure {
        close(sockets.into_iter().map(|(_, queue)| queue));
        return Err(refused(i)(e));
    }
    for (i, mut queue) in sockets {
        queue.sums &= queue.zero_copy || copied_sums;
        let fd = queue.as_fd().as_raw_fd();
        maps.sockets
            .set(&(i as u32).to_ne_bytes(), &fd.to_ne_bytes())
            .map_err(|e| refuse(&link.name, "entering the socket into the program's map", e))?;
        by_lane[(i % config.lanes) as usize].push(queue);
    }
    Ok(done)
}

/// Closes sockets at once: the kernel takes its time for each, as for opening it.
fn close(queues: impl Iterator<Item = Queue>) {
    sys::at_once(queues.map(|queue| Box::new(|| drop(queue)) as Job).collect());
}

impl XdpDevice {
    /// Takes the interface; one port for each lane.
    pub fn attach(name: &str, config: &XdpConfig) -> Result<(XdpDevice, Vec<XdpPort>), PortError> {
        let system = |what: &str| {
            let what = what.to_string();
            move |source| PortError::System { what, source }
        };
        let links = || Netlink::open().and_then(|mut n| n.links()).map_err(system("reading interfaces"));
        let named = |all: &[Link]| {
            all.iter().find(|l| l.name == name).cloned().ok_or_else(|| PortError::NoInterface(name.into()))
        };
        let _turn = Start::on(named(&links()?)?.index);
        let all = links()?;
        let link = named(&all)?;
        check_kind(&link, &all)?;
        if !link.up {
            return Err(PortError::Down(name.into()));
        }
        if link.xdp_program != 0 {
            let program = bpf::program_name(link.xdp_program).filter(|n| !n.is_empty());
            return Err(PortError::ForeignProgram {
                dev: name.into(),
                program: program.unwrap_or_else(|| "unnamed".into()),
                id: link.xdp_program,
                holder: holder::of(link.xdp_program),
            });
        }
        let queues = queues_of(&link);
        if config.lanes > queues {
            return Err(PortError::Invalid(format!(
                "{name} has {queues} receive queues for {} lanes: use --lanes {queues}, or `ethtool -L {name} combined {}`",
                config.lanes, config.lanes
            )));
        }
        // A queue of which nobody takes the frames is deaf, so there is room for those that attaching adds.
        let maps = Maps::new(link.rx_queues.max(queues.into())).map_err(|e| refuse(name, "making BPF maps", e))?;
        maps.set_mac(link.mac).map_err(|e| refuse(name, "telling the program the hardware address", e))?;
        let mut by_lane: Vec<Vec<Queue>> = (0..config.lanes).map(|_| Vec::new()).collect();
        let loading = |e| refuse(name, "loading the XDP program", e);
        // Virtual interfaces are handed what the kernel has merged, and what nobody has cut. On hardware whoever asks for packets of
        // several buffers may be refused zero-copy.
        let several = queue::takes_several_buffers();
        let mut sg = link.mtu > LONGEST_IN_ONE || several && !link.kind.is_empty();
        let loaded = || load(&link, &maps, sg).map_err(loading);
        let (mut program, told) = open_queues(0..queues, (&link, sg), config, &maps, &mut by_lane, loaded)?;
        // A veth's frames have their tags beside them where its other end put them there, whatever it is told.
        let mut tags = match (link.kind.as_str(), told) {
            ("veth", true) => Vlans::Told,
            ("veth", false) => Vlans::Unknown,
            _ => Vlans::Kept(tags::keep(link.index).map_err(|e| refuse(name, "keeping VLAN tags in frames", e))?),
        };
        // Driver mode where the driver has it.
        let bond = link.kind == "bond";
        // Before the program is attached in generic mode, for which the kernel turns LRO off and never on again.
        let unmerge = || (!several).then(|| Unmerged::keep(&link, &all));
        let mut unmerged = bond.then(unmerge).flatten();
        let (bpf_link, generic) = match program.attach(link.index, bond) {
            Ok(l) => (l, bond.then_some(Generic::Bond)),
            Err(e) if bond || e.raw_os_error() == Some(libc::EBUSY) => {
                return Err(refuse(name, "attaching the XDP program", e));
            }
            Err(first) => {
                unmerged = unmerge();
                if let Vlans::Told = tags {
                    // The one that asks for tags is for driver mode alone.
                    program = load_plain(&maps, sg).map_err(loading)?;
                    tags = Vlans::Unknown;
                }
                if several && !sg {
                    // The kernel merges frames before it runs the program.
                    sg = true;
                    close(by_lane.iter_mut().flat_map(|queues| queues.drain(..)));
                    let loaded = || load_plain(&maps, sg).map_err(loading);
                    program = open_queues(0..queues, (&link, sg), config, &maps, &mut by_lane, loaded)?;
                }
                match program.attach(link.index, true) {
                    Ok(l) => (l, Some(Generic::Driver(first))),
                    Err(_) => return Err(refuse(name, "attaching the XDP program", first)),
                }
            }
        };
        if let Vlans::Kept(tags) = &mut tags {
            // Who had the interface until a moment ago may have undone it.
            tags.keep_again().map_err(|e| refuse(name, "keeping VLAN tags in frames", e))?;
        }
        if generic.is_some() && is_handed_frames(&link, &all) {
            tags = Vlans::TakenBelow;
        }
        // virtio_net turns queues on when it is given a program, up to twice as many, and is sent frames by all of them. It turns
        // them off with the program, before their sockets are closed, and keeps using what such a socket had without copying
        // (seen with 7.3: a NULL pointer in xp_alloc_batch at the next start). So these copy.
        let now = queues_of(&link).min(link.rx_queues.max(queues.into()) as u16);
        let added = XdpConfig { zero_copy: ZeroCopy::Never, ..config.clone() };
        open_queues(queues..now, (&link, sg), &added, &maps, &mut by_lane, || Ok(()))?;
        features::undo_left();
        let attached = Arc::new(Attached { tags, unmerged, maps, link: Mutex::new(Some(bpf_link)), program });
        let zero_copy = by_lane[0][0].zero_copy;
        // What a program on this machine sends (through a veth, or to a bridge from one) has sums that hardware was to finish;
        // real hardware does not tell what it verified. The kernel verifies what it merges, and leaves such a sum, too.
        let checksum = match link.kind.is_empty() && generic.is_none() {
            true => RxChecksum::Unknown,
            false => RxChecksum::MayBePartial,
        };
        let mut ports = Vec::new();
        for (lane, queues) in by_lane.into_iter().enumerate() {
            let max_frame = queues[0].max_frame();
            // Who does not copy has nothing to save; who may not have the socket goes on without.
            let large = match config.offload && !zero_copy && queues[0].sums {
                true => Large::open(&link).ok(),
                false => None,
            };
            let caps = PortCaps {
                name: format!("xdp:{name}"),
                mac: link.mac,
                mtu: link.mtu.min(65_535) as u16,
                // Longer ones are cut where they are handed on.
                max_rx_frame: longest_frame(link.mtu),
                queue: lane as u16,
                zero_copy,
                tx: TxCaps { max_frame, checksum: queues[0].sums, max_gso: large.as_ref().map_or(0, Large::max_gso) },
            };
            ports.push(XdpPort::new(queues, large, caps, checksum, attached.clone())?);
        }
        Ok((
            XdpDevice {
                link,
                queues: now.max(queues),
                attached,
                generic,
                unpolled: config.busy_poll_us > 0 && !zero_copy,
            },
            ports,
        ))
    }

    /// The interface as it was when it was taken.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Receive queues whose frames are taken.
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// Receive queues that the interface has now. Frames by those that it was given since it was taken are the kernel's, which
    /// drops those of our connections.
    pub fn queues_now(&self) -> u16 {
        queues_of(&self.link)
    }

    /// Waits until frames can come and go, at most for `limit`; the link as it is then, `None` where it is gone. Drivers that restart
    /// their queues for a program take the link down for a second or more.
    pub fn await_carrier(&self, limit: Duration) -> io::Result<Option<Link>> {
        let mut netlink = Netlink::open()?;
        let end = Instant::now() + limit;
        loop {
            let Some(link) = netlink.link_at(self.link.index)? else { return Ok(None) };
            if link.carrier || !link.up || Instant::now() > end {
                return Ok(Some(link));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What whoever measures should know about how it was taken.
    pub fn warnings(&self) -> Vec<String> {
        // Since 6.14 Linux names a socket's NAPI when it is bound, and only where it is zero-copy (SO_INCOMING_NAPI_ID tells).
        let unpolled = self.unpolled.then(|| {
            let name = &self.link.name;
            format!("busy_poll_us does nothing on {name}, where frames are copied: recent kernels poll for zero-copy drivers only")
        });
        let name = &self.link.name;
        let kept = match &self.attached.tags {
            Vlans::Kept(off) if !off.off().is_empty() => Some(off),
            _ => None,
        };
        let tags = kept.into_iter().flat_map(|off| {
            let note = format!(
                "rx-vlan-offload of {name} is off while it is served, so that frames of other VLANs are not taken for its own"
            );
            std::iter::once(note).chain(merging::unrecorded(name, off))
        });
        let lost = self.loses_tags().then(|| {
            let of_any = match self.attached.tags {
                Vlans::TakenBelow => "frames of any VLAN that reaches it",
                _ => "frames of any VLAN",
            };
            let why = match self.attached.tags {
                Vlans::Unknown => {
                    "has VLAN tags beside its frames, of which the kernel tells in driver mode, from Linux 6.8 on"
                        .into()
                }
                Vlans::TakenBelow => "has its frames from other interfaces, where their VLAN tags are taken off".into(),
                _ => format!(
                    "takes VLAN tags off before its frames come here, and cannot be told not to (`ethtool -k {name}`)"
                ),
            };
            format!("{name} {why}: {of_any} are taken for untagged ones")
        });
        let merging = self.attached.unmerged.iter().flat_map(Unmerged::notes);
        self.generic_mode().into_iter().chain(merging).chain(unpolled).chain(tags).chain(lost).collect()
    }

    /// Whether frames lose their VLAN tags before they come here, so that nobody knows which network they are of.
    pub fn loses_tags(&self) -> bool {
        match &self.attached.tags {
            Vlans::Kept(off) => !off.on().is_empty(),
            Vlans::Told => false,
            Vlans::Unknown | Vlans::TakenBelow => true,
        }
    }

    /// The interface was down and is up again. vmxnet3 then shows the program and does not run it (seen with Linux 7.3), so it is
    /// given it once more; other drivers keep theirs.
    pub fn came_up(&self) -> Result<(), PortError> {
        let name = &self.link.name;
        if self.generic.is_some() || driver_of(name).as_deref() != Some("vmxnet3") {
            return Ok(());
        }
        let mut link = self.attached.link.lock().unwrap_or_else(PoisonError::into_inner);
        *link = None;
        let again = self.attached.program.attach(self.link.index, false);
        *link = Some(again.map_err(|e| refuse(name, "attaching the XDP program again", e))?);
        Ok(())
    }

    fn generic_mode(&self) -> Option<String> {
        let name = &self.link.name;
        let error = match self.generic.as_ref()? {
            Generic::Bond => {
                return Some(format!("{name} is a bond: its frames come in generic mode, which costs more for each"));
            }
            Generic::Driver(error) => error,
        };
        let hint = match error.raw_os_error() {
            Some(libc::ENOSPC) if self.link.kind == "veth" => {
                "; a veth takes one where it has at least as many receive queues as its peer has send queues: see ethtool -L".into()
            }
            Some(libc::ERANGE) if self.link.kind == "veth" => "; a veth takes one where its peer's MTU is smaller".into(),
            _ if self.link.mtu > FITS => {
                format!("; drivers that have XDP take one with an MTU of {FITS} or less, whose frames fit one buffer")
            }
            _ => String::new(),
        };
        Some(format!(
            "the driver of {name} takes no XDP program ({error}{hint}): generic mode, which costs more for each frame"
        ))
    }

    /// The interface's hardware address has changed: frames to the new one are ours, and frames to another pass.
    pub fn set_mac(&self, mac: MacAddr) -> Result<(), PortError> {
        self.attached.maps.set_mac(mac).map_err(|e| refuse(&self.link.name, "telling the hardware address", e))
    }

    /// Takes a port of an address. `Full` where [`MOST_OWNED`] are taken.
    pub fn own(&self, key: OwnKey, flags: OwnFlags) -> Result<(), PortError> {
        self.attached
            .maps
            .own(key, flags)
            .map_err(|e| self.no_room(e, "owning a port", MOST_OWNED, "ports of addresses"))
    }

    /// Keeps a connection on a port that drains. `Full` where [`MOST_KEPT`] are kept.
    pub fn keep_flow(&self, flow: OwnFlow) -> Result<(), PortError> {
        let kept = self.attached.maps.keep_flow(flow);
        kept.map_err(|e| self.no_room(e, "keeping a connection", MOST_KEPT, "connections on closed ports"))
    }

    /// Gives the tuple of such a connection back to the kernel.
    pub fn give_flow_back(&self, flow: OwnFlow) -> Result<(), PortError> {
        self.attached.maps.give_flow_back(flow).map_err(|e| refuse(&self.link.name, "giving a connection back", e))
    }

    /// A connection whose peer sends fragments: what is remembered of them is kept apart from everybody else's.
    pub fn sends_fragments(&self, flow: OwnFlow) -> Result<(), PortError> {
        self.attached.maps.sends_fragments(flow).map_err(|e| refuse(&self.link.name, "noting a connection", e))
    }

    fn no_room(&self, e: io::Error, doing: &str, most: u32, of_what: &str) -> PortError {
        match e.kind() {
            io::ErrorKind::StorageFull => {
                PortError::Full { dev: self.link.name.clone(), what: format!("{most} {of_what}") }
            }
            _ => refuse(&self.link.name, doing, e),
        }
    }

    /// Gives a port back to the kernel.
    pub fn disown(&self, key: OwnKey) -> Result<(), PortError> {
        self.attached.maps.disown(key).map_err(|e| refuse(&self.link.name, "disowning a port", e))
    }

    /// A table of the connections that lanes open on this interface: until there is one, none is ours. Called once.
    pub fn open_tuples(&self) -> Result<Tuples, PortError> {
        let table = self.attached.maps.open_tuples();
        table.map_err(|e| refuse(&self.link.name, "making room for the tuples of connections", e))
    }

    /// How often the program gave a verdict.
    pub fn verdict(&self, v: Verdict) -> u64 {
        self.attached.maps.verdict(v).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;

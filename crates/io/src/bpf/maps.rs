//! The maps through which the program of [`super::program`] hears what is ours, and their keys.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use wire::{Addr, MacAddr};

use super::sys::{Map, MapKind};
use super::tuples::{Keys, Tuples};

/// What an owned port is to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnFlags(u32);

/// Any port of ours.
const OWNED: u32 = 1;
/// Segments are looked up in the kernel first.
pub(super) const MAY_HOLD: u32 = 2;
/// The connections in the map of kept ones are ours, and nothing else by this port's entry.
pub(super) const DRAINING: u32 = 4;
/// Nobody listens, and the connections that are left are not named.
pub(super) const CLOSING: u32 = 8;

/// Bytes of the program's place for a frame.
pub(super) const PLACE_LEN: usize = 352;

impl OwnFlags {
    /// A listener's port on which the kernel holds nothing.
    pub const LISTENING: OwnFlags = OwnFlags(OWNED);
    /// A listener's port on which the kernel has connections from before, which stay with it.
    pub const BESIDE_KERNEL: OwnFlags = OwnFlags(OWNED | MAY_HOLD);
    /// The listener has gone, and which of its connections are left is not known yet, or they are more than there is room for: what the
    /// kernel has a connection for is the kernel's, and what opens a connection is as if nobody owned the port.
    pub const CLOSING: OwnFlags = OwnFlags(OWNED | MAY_HOLD | CLOSING);
    /// The listener has gone: the connections told by [`Maps::keep_flow`] are ours, and everything else is as if nobody owned the
    /// port.
    pub const DRAINING: OwnFlags = OwnFlags(OWNED | DRAINING);
}

/// An owned tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnKey {
    /// 802.1Q id; 0 for untagged frames.
    pub vlan: u16,
    /// Local address.
    pub addr: Addr,
    /// Local port.
    pub port: u16,
}

impl OwnKey {
    /// As the program has it: address, port in network order, VLAN in the machine's.
    fn bytes(&self) -> [u8; 20] {
        let mut b = [0; 20];
        b[..16].copy_from_slice(&self.addr.octets());
        b[16..18].copy_from_slice(&self.port.to_be_bytes());
        b[18..20].copy_from_slice(&self.vlan.to_ne_bytes());
        b
    }
}

/// A connection on an owned port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnFlow {
    /// The address and port at our end.
    pub local: OwnKey,
    /// The peer's address.
    pub remote: Addr,
    /// The peer's port.
    pub remote_port: u16,
}

impl OwnFlow {
    /// Addresses, ports in network order, VLAN in the machine's, zeros.
    pub(super) fn bytes(&self) -> [u8; 40] {
        let mut b = [0; 40];
        b[..16].copy_from_slice(&self.local.addr.octets());
        b[16..32].copy_from_slice(&self.remote.octets());
        b[32..34].copy_from_slice(&self.local.port.to_be_bytes());
        b[34..36].copy_from_slice(&self.remote_port.to_be_bytes());
        b[36..38].copy_from_slice(&self.local.vlan.to_ne_bytes());
        b
    }
}

/// Why a frame was taken or passed, counted by the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Verdict {
    /// A segment for an owned port.
    Listen = 0,
    /// A segment of a connection that a lane has opened.
    Active = 1,
    /// A fragment of a datagram that is ours.
    Fragment = 2,
    /// Passed: the kernel holds the connection.
    KernelFlow = 3,
    /// Passed: not ours.
    Pass = 4,
}

/// All verdicts, in the order of their counters.
pub const VERDICTS: [Verdict; 5] =
    [Verdict::Listen, Verdict::Active, Verdict::Fragment, Verdict::KernelFlow, Verdict::Pass];

/// Ports of addresses that can be owned at once.
pub const MOST_OWNED: u32 = 16_384;
/// Connections that can be named on ports whose listeners have gone; a port with more stays [`OwnFlags::CLOSING`].
pub const MOST_KEPT: u32 = 65_536;
/// Datagrams whose first fragment is remembered.
const FRAGMENTS: u32 = 4096;

/// The program's maps.
#[derive(Debug)]
pub struct Maps {
    /// Queue to AF_XDP socket.
    pub sockets: Map,
    /// The interface's hardware address, in eight bytes.
    pub(super) link: Map,
    /// Address and port to [`OwnFlags`].
    pub(super) owned: Map,
    /// Table of the connections that lanes have opened, under number 0; none until the first.
    pub(super) tuples: Map,
    /// Keys of that table's hash.
    pub(super) keys: Keys,
    /// Connections on ports that drain.
    pub(super) kept: Map,
    /// Datagrams to the time of their first fragment, which named a connection that is known to send fragments, …
    pub(super) fragments: Map,
    /// … or any other.
    pub(super) first_seen: Map,
    /// Connections that are known to send fragments.
    pub(super) fragmenting: Map,
    pub(super) verdicts: Map,
    /// Where the program reads a frame, one a core.
    pub(super) place: Map,
}

impl Maps {
    /// Empty maps for a device with `queues` queues.
    pub fn new(queues: u32) -> io::Result<Maps> {
        Maps::remembering(queues, FRAGMENTS)
    }

    /// The same, which remember so many first fragments.
    pub fn remembering(queues: u32, fragments: u32) -> io::Result<Maps> {
        Ok(Maps {
            sockets: Map::new(MapKind::Xsk, "cl_sockets", 4, 4, queues.max(1))?,
            link: Map::new(MapKind::Array, "cl_link", 4, 8, 1)?,
            owned: Map::new(MapKind::Hash, "cl_owned", 20, 4, MOST_OWNED)?,
            tuples: Map::of_maps("cl_opened", 1, &Tuples::template()?)?,
            keys: Keys::random()?,
            kept: Map::new(MapKind::SparseHash, "cl_kept", 40, 4, MOST_KEPT)?,
            fragments: Map::new(MapKind::LruHash, "cl_fragments", 40, 8, fragments)?,
            first_seen: Map::new(MapKind::LruHash, "cl_first_seen", 40, 8, fragments)?,
            fragmenting: Map::new(MapKind::LruHash, "cl_fragmenting", 40, 4, FRAGMENTS)?,
            verdicts: Map::new(MapKind::Array, "cl_verdicts", 4, 8, VERDICTS.len() as u32)?,
            place: Map::new(MapKind::PerCpuArray, "cl_place", 4, PLACE_LEN, 1)?,
        })
    }

    /// The interface's hardware address: frames to another pass, as do those to a group, which carry no TCP (RFC 9293 MUST-57
    /// speaks of the addresses inside). Zero, as before the first call: every frame is looked at.
    pub fn set_mac(&self, mac: MacAddr) -> io::Result<()> {
        let mut value = [0; 8];
        value[..6].copy_from_slice(&mac.0);
        self.link.set(&0u32.to_ne_bytes(), &value)
    }

    /// Takes a port. `StorageFull` where [`MOST_OWNED`] are owned already.
    pub fn own(&self, key: OwnKey, flags: OwnFlags) -> io::Result<()> {
        full(self.owned.set(&key.bytes(), &flags.0.to_ne_bytes()))
    }

    /// Gives a port back.
    pub fn disown(&self, key: OwnKey) -> io::Result<()> {
        self.owned.remove(&key.bytes())
    }

    /// Keeps a connection on a port that is [`OwnFlags::DRAINING`]. `StorageFull` where [`MOST_KEPT`] are kept already.
    pub fn keep_flow(&self, flow: OwnFlow) -> io::Result<()> {
        full(self.kept.set(&flow.bytes(), &1u32.to_ne_bytes()))
    }

    /// Gives such a connection's tuple back.
    pub fn give_flow_back(&self, flow: OwnFlow) -> io::Result<()> {
        self.kept.remove(&flow.bytes())
    }

    /// A connection whose peer sends fragments: those who have none can not push out what is remembered of its datagrams.
    pub fn sends_fragments(&self, flow: OwnFlow) -> io::Result<()> {
        self.fragmenting.set(&flow.bytes(), &1u32.to_ne_bytes())
    }

    /// A table of the connections that lanes open, which the program reads from now on in the place of any earlier one.
    pub fn open_tuples(&self) -> io::Result<Tuples> {
        let table = Tuples::new(self.keys)?;
        self.tuples.set(&0u32.to_ne_bytes(), &table.map().as_fd().as_raw_fd().to_ne_bytes())?;
        Ok(table)
    }

    /// How often a verdict was given.
    pub fn verdict(&self, v: Verdict) -> io::Result<u64> {
        let bytes = self.verdicts.get(&(v as u32).to_ne_bytes())?.unwrap_or_default();
        Ok(bytes.try_into().map(u64::from_ne_bytes).unwrap_or(0))
    }
}

/// The kernel says E2BIG of a map that is full.
fn full(result: io::Result<()>) -> io::Result<()> {
    result.map_err(|e| if e.raw_os_error() == Some(libc::E2BIG) { io::ErrorKind::StorageFull.into() } else { e })
}

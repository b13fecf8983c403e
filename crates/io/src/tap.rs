//! A TAP interface: an Ethernet link to the local kernel, for laptops, tests and containers. Works without privileges in a
//! user and network namespace of one's own.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use wire::MacAddr;
use wire::burst::{RxBurst, RxFrame, TxCaps, TxOffload, TxSink};

use crate::capability::Capability;
use crate::error::PortError;
use crate::netlink::Netlink;
use crate::port::{Port, PortCaps, PortCounters};
use crate::vnet;

const IFF_TAP: u16 = 0x0002;
/// Linux 4.15; a kernel that does not know it ignores it.
const IFF_NAPI: u16 = 0x0010;
const IFF_MULTI_QUEUE: u16 = 0x0100;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
/// Unfinished checksums, and IPv4 and IPv6 segments not yet cut, with and without CWR.
const TUN_F_ALL: libc::c_ulong = 1 | 2 | 4 | 8;

/// An interface name and flags, as `struct ifreq` lays them out.
#[repr(C)]
struct IfReq {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

impl IfReq {
    fn new(name: &str, flags: u16) -> IfReq {
        let mut r = IfReq { name: [0; 16], flags, rest: [0; 22] };
        r.name[..name.len().min(15)].copy_from_slice(&name.as_bytes()[..name.len().min(15)]);
        r
    }
}

/// One queue of a TAP interface.
pub struct TapPort {
    file: File,
    caps: PortCaps,
    /// Frames of the burst, each behind its virtio-net header, one after the other.
    rx: Vec<u8>,
    /// Where each of them begins and ends.
    places: Vec<(usize, usize)>,
    /// Bytes of the largest, its header included.
    largest: usize,
    /// Frame to send, behind its header.
    tx: Vec<u8>,
    counters: PortCounters,
}

/// Frames that one burst holds at most.
const BURST: usize = 64;
/// Bytes that one burst holds at least: small enough to stay in a core's cache until they are read.
const BURST_BYTES: usize = 256 << 10;
const MAX_GSO: usize = 65_535;
/// Parts of a frame at most, its headers among them.
const PARTS: usize = wire::burst::PARTS + 1;

/// How an interface is opened.
#[derive(Clone, Copy, Debug)]
pub struct TapConfig {
    /// One for each lane.
    pub queues: u16,
    /// Largest IP packet, bytes; the interface's own when missing.
    pub mtu: Option<u16>,
    /// Large frames and unfinished checksums cross it in both directions.
    pub offload: bool,
    /// The kernel receives what we send in NAPI rather than inside our write, so that the work can have a thread of its own.
    pub napi: bool,
}

impl Default for TapConfig {
    fn default() -> TapConfig {
        TapConfig { queues: 1, mtu: None, offload: true, napi: false }
    }
}

/// Opens the queues of the interface, which is made if it does not exist, and brings it up.
pub fn open(name: &str, config: &TapConfig) -> Result<Vec<TapPort>, PortError> {
    let TapConfig { queues, mtu, offload, .. } = *config;
    let files = (0..queues).map(|_| queue(name, config)).collect::<Result<Vec<_>, _>>()?;
    configure(name, mtu)?;
    let link = Netlink::open()
        .and_then(|mut n| n.link(name))
        .map_err(|source| PortError::System { what: "reading interfaces".into(), source })?
        .ok_or_else(|| PortError::NoInterface(name.into()))?;
    // Our end of the link has an address of its own: the kernel's, with one bit changed.
    let mut mac = link.mac;
    mac.0[5] ^= 1;
    let mtu = link.mtu.min(65_535) as u16;
    Ok(files.into_iter().enumerate().map(|(i, file)| TapPort::new(file, name, i as u16, mac, mtu, offload)).collect())
}

fn queue(name: &str, config: &TapConfig) -> Result<File, PortError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")
        .map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => PortError::Unsupported {
                feature: "/dev/net/tun",
                hint: "load the tun module, or in a container pass the device in",
            },
            io::ErrorKind::PermissionDenied => PortError::Access { file: "/dev/net/tun" },
            _ => PortError::System { what: "opening /dev/net/tun".into(), source },
        })?;
    let multi = config.queues > 1;
    let optional = [(multi, IFF_MULTI_QUEUE), (config.napi, IFF_NAPI)];
    let flags = optional.iter().filter(|o| o.0).fold(IFF_TAP | IFF_NO_PI | IFF_VNET_HDR, |flags, o| flags | o.1);
    let attach = |flags: u16| {
        let req = IfReq::new(name, flags);
        // SAFETY: the request is a whole `struct ifreq`, which the kernel reads and writes during the call.
        match unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw const req) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // An interface that was made with several queues can be opened with one.
    attach(flags).or_else(|e| match e.raw_os_error() {
        Some(libc::EINVAL) if !multi => attach(flags | IFF_MULTI_QUEUE),
        _ => Err(e),
    }).map_err(|source| match source.raw_os_error() {
        Some(libc::EBUSY) => PortError::Busy {
            what: format!("TAP interface {name}"),
            hint: "another program has it open; stop it or choose another name".into(),
        },
        Some(libc::EINVAL) => PortError::Invalid(format!(
            "{name} exists and is no TAP interface of that kind: choose another name, or make it with `ip tuntap add {name} mode tap multi_queue`"
        )),
        _ => PortError::system(format!("opening TAP interface {name}"), source, &[Capability::NetAdmin]),
    })?;
    // SAFETY: an integer argument. A kernel that refuses finishes and cuts by itself.
    unsafe { libc::ioctl(file.as_raw_fd(), TUNSETOFFLOAD, if config.offload { TUN_F_ALL } else { 0 }) };
    Ok(file)
}

/// Sets the MTU and brings the interface up.
fn configure(name: &str, mtu: Option<u16>) -> Result<(), PortError> {
    let failed = |source| PortError::system(format!("bringing up {name}"), source, &[Capability::NetAdmin]);
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)
        .map_err(|e| failed(e.into()))?;
    let call = |request: libc::c_ulong, req: &mut IfReq| {
        // SAFETY: the request is a whole `struct ifreq`.
        match unsafe { libc::ioctl(socket.as_raw_fd(), request, req as *mut IfReq) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    if let Some(mtu) = mtu {
        let mut req = IfReq::new(name, 0);
        // The MTU lies where the flags do, as an int.
        let [a, b, c, d] = (mtu as u32).to_ne_bytes();
        req.flags = u16::from_ne_bytes([a, b]);
        req.rest[..2].copy_from_slice(&[c, d]);
        call(libc::SIOCSIFMTU as _, &mut req).map_err(failed)?;
    }
    let mut req = IfReq::new(name, 0);
    call(libc::SIOCGIFFLAGS as _, &mut req).map_err(failed)?;
    if req.flags & libc::IFF_UP as u16 == 0 {
        req.flags |= libc::IFF_UP as u16;
        call(libc::SIOCSIFFLAGS as _, &mut req).map_err(failed)?;
    }
    Ok(())
}

impl TapPort {
    fn new(file: File, name: &str, queue: u16, mac: MacAddr, mtu: u16, offload: bool) -> TapPort {
        // The kernel may hand over packets up to the MTU, or put together up to 64 KiB, behind a header with a VLAN tag.
        let largest = vnet::LEN + 18 + if offload { MAX_GSO } else { mtu as usize };
        TapPort {
            file,
            caps: PortCaps {
                name: format!("tap:{name}"),
                mac,
                mtu,
                max_rx_frame: largest - vnet::LEN,
                queue,
                zero_copy: false,
                tx: TxCaps {
                    max_frame: mtu as usize + 18,
                    checksum: offload,
                    max_gso: if offload { MAX_GSO } else { 0 },
                },
            },
            rx: vec![0; (BURST * (vnet::LEN + mtu as usize + 18)).max(BURST_BYTES) + largest],
            places: Vec::with_capacity(BURST),
            largest,
            tx: vec![0; vnet::LEN + MAX_GSO + 18],
            counters: PortCounters::default(),
        }
    }
}

impl RxBurst for TapPort {
    fn len(&self) -> usize {
        self.places.len()
    }

    fn frame(&self, index: usize) -> RxFrame<'_> {
        let (start, end) = self.places[index];
        let (header, data) = self.rx[start..end].split_at(vnet::LEN);
        let (checksum, mss) = vnet::decode(header);
        RxFrame { data, checksum, mss }
    }
}

impl TxSink for TapPort {
    fn caps(&self) -> TxCaps {
        self.caps.tx
    }

    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.tx.get_mut(vnet::LEN..vnet::LEN + len)
    }

    fn room(&mut self) -> usize {
        // Each goes at once.
        usize::MAX
    }

    fn commit(&mut self, len: usize, offload: TxOffload) {
        self.commit_with(len, &[], offload);
    }

    fn gathers(&self) -> bool {
        true
    }

    fn commit_with(&mut self, head: usize, parts: &[&[u8]], offload: TxOffload) {
        self.tx[..vnet::LEN].copy_from_slice(&vnet::encode(offload));
        let whole = vnet::LEN + head + parts.iter().map(|p| p.len()).sum::<usize>();
        let mut slices = [IoSlice::new(&[]); PARTS];
        let Some(slices) = slices.get_mut(..parts.len() + 1) else {
            self.counters.tx_dropped += 1;
            return;
        };
        slices[0] = IoSlice::new(&self.tx[..vnet::LEN + head]);
        for (slice, part) in slices[1..].iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        self.counters.syscalls += 1;
        match self.file.write_vectored(slices) {
            Ok(n) if n == whole => {
                self.counters.tx_frames += 1;
                self.counters.tx_bytes += (whole - vnet::LEN) as u64;
                self.counters.tx_cut += offload.gso.is_some() as u64;
            }
            // The device is down or its queue full: as on any link, the frame is lost and counted.
            Ok(_) | Err(_) => self.counters.tx_dropped += 1,
        }
    }
}

impl Port for TapPort {
    fn receive(&mut self, max: usize) -> usize {
        self.places.clear();
        let mut at = 0;
        // The device has no call for many frames.
        while self.places.len() < max.min(BURST) && self.rx.len() - at >= self.largest {
            self.counters.syscalls += 1;
            match self.file.read(&mut self.rx[at..at + self.largest]) {
                Ok(n) if n > vnet::LEN => {
                    self.counters.rx_frames += 1;
                    self.counters.rx_bytes += (n - vnet::LEN) as u64;
                    self.places.push((at, at + n));
                    at += n;
                }
                Ok(_) => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        self.places.len()
    }

    fn release(&mut self) {
        self.places.clear();
    }

    fn flush(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn prepare_sleep(&mut self) -> bool {
        // Readable is level-triggered: a frame that waits ends the sleep at once.
        true
    }

    fn wake_up(&mut self) {}

    fn caps_of(&self) -> PortCaps {
        self.caps.clone()
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

//! bpf(2): maps, programs, links.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::asm::Insn;
use crate::sys::set_option;

const MAP_CREATE: i32 = 0;
const MAP_LOOKUP_ELEM: i32 = 1;
const MAP_UPDATE_ELEM: i32 = 2;
const MAP_DELETE_ELEM: i32 = 3;
const PROG_LOAD: i32 = 5;
const PROG_TEST_RUN: i32 = 10;
const PROG_GET_FD_BY_ID: i32 = 13;
const MAP_GET_FD_BY_ID: i32 = 14;
const OBJ_GET_INFO_BY_FD: i32 = 15;
const LINK_CREATE: i32 = 28;

/// A `union bpf_attr`, as words; every command uses a prefix of it.
#[repr(C, align(8))]
struct Attr([u32; 32]);

impl Attr {
    fn new() -> Attr {
        Attr([0; 32])
    }

    fn word(mut self, at: usize, value: u32) -> Attr {
        self.0[at / 4] = value;
        self
    }

    fn ptr<T: ?Sized>(self, at: usize, value: *const T) -> Attr {
        let p = value.cast::<u8>() as u64;
        self.word(at, p as u32).word(at + 4, (p >> 32) as u32)
    }

    fn name(mut self, at: usize, name: &str) -> Attr {
        for (i, b) in name.bytes().take(15).enumerate() {
            self.0[at / 4 + i / 4] |= (b as u32) << (i % 4 * 8);
        }
        self
    }

    fn call(&mut self, command: i32) -> io::Result<i32> {
        // SAFETY: the attribute is as long as is said, zero where unused; the pointers in it are the callers', who keep what
        // they point to alive and of the right length for the duration of the call.
        let r = unsafe { libc::syscall(libc::SYS_bpf, command, self as *mut Attr, size_of::<Attr>()) };
        if r < 0 { Err(io::Error::last_os_error()) } else { Ok(r as i32) }
    }

    fn fd(mut self, command: i32) -> io::Result<OwnedFd> {
        let fd = self.call(command)?;
        // SAFETY: the command gave a new descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Kinds of maps in use here.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum MapKind {
    /// BPF_MAP_TYPE_HASH.
    Hash = 1,
    /// BPF_MAP_TYPE_ARRAY.
    Array = 2,
    /// BPF_MAP_TYPE_PERCPU_ARRAY.
    PerCpuArray = 6,
    /// BPF_MAP_TYPE_LRU_HASH.
    LruHash = 9,
    /// BPF_MAP_TYPE_CPUMAP: frames that a queue to the CPU holds are written, by whose thread the kernel takes them there.
    Cpu = 16,
    /// BPF_MAP_TYPE_XSKMAP.
    Xsk = 17,
    /// BPF_MAP_TYPE_REUSEPORT_SOCKARRAY: a descriptor is written, a cookie is read.
    ReuseportSocks = 20,
    /// BPF_MAP_TYPE_HASH whose entries have no memory before they are made.
    SparseHash = 1001,
    /// BPF_MAP_TYPE_ARRAY of whatever length, in memory that can be mapped.
    SharedArray = 1002,
}

/// A map.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    key: usize,
    value: usize,
}

impl Map {
    /// A map of `entries` with keys and values of so many bytes.
    pub fn new(kind: MapKind, name: &str, key: usize, value: usize, entries: u32) -> io::Result<Map> {
        // Mostly empty maps have their memory entry by entry.
        const NO_PREALLOC: u32 = 1 << 0;
        const MMAPABLE: u32 = 1 << 10;
        // Its length is not that of the template in a map of maps.
        const INNER_MAP: u32 = 1 << 12;
        let (kind, flags) = match kind {
            MapKind::SparseHash => (MapKind::Hash, NO_PREALLOC),
            MapKind::SharedArray => (MapKind::Array, MMAPABLE | INNER_MAP),
            kind => (kind, 0),
        };
        Map::create(kind as u32, name, [key, value], entries, flags, None)
    }

    /// A map from numbers below `entries` to maps that are made like `template`.
    pub fn of_maps(name: &str, entries: u32, template: &Map) -> io::Result<Map> {
        const ARRAY_OF_MAPS: u32 = 12;
        Map::create(ARRAY_OF_MAPS, name, [4, 4], entries, 0, Some(template))
    }

    fn create(
        kind: u32,
        name: &str,
        [key, value]: [usize; 2],
        entries: u32,
        flags: u32,
        template: Option<&Map>,
    ) -> io::Result<Map> {
        let fd = Attr::new()
            .word(0, kind)
            .word(4, key as u32)
            .word(8, value as u32)
            .word(12, entries)
            .word(16, flags)
            .word(20, template.map_or(0, |map| map.fd.as_raw_fd() as u32))
            .name(28, name)
            .fd(MAP_CREATE)?;
        Ok(Map { fd, key, value })
    }

    /// The map of a number, which lives as long as a program uses it. NotFound where none, or another one, has that number. Needs
    /// CAP_SYS_ADMIN.
    pub fn by_id(id: u32, name: &str) -> io::Result<Map> {
        let fd = Attr::new().word(0, id).fd(MAP_GET_FD_BY_ID)?;
        let info = map_info(fd.as_fd())?;
        if name_of(&info[24..40]) != name {
            return Err(io::ErrorKind::NotFound.into());
        }
        let map = Map { fd, key: word(&info, 8) as usize, value: word(&info, 12) as usize };
        Ok(map)
    }

    /// The kernel's number of it, and its most entries.
    pub fn id_and_entries(&self) -> io::Result<(u32, u32)> {
        let info = map_info(self.fd.as_fd())?;
        Ok((word(&info, 4), word(&info, 16)))
    }

    fn attr(&self, key: &[u8], value: *const u8) -> Attr {
        assert_eq!(key.len(), self.key);
        Attr::new().word(0, self.fd.as_raw_fd() as u32).ptr(8, key.as_ptr()).ptr(16, value)
    }

    /// Sets a value.
    pub fn set(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        assert_eq!(value.len(), self.value);
        self.attr(key, value.as_ptr()).call(MAP_UPDATE_ELEM).map(drop)
    }

    /// Reads a value; `None` when there is none.
    pub fn get(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let mut value = vec![0; self.value];
        match self.attr(key, value.as_mut_ptr()).call(MAP_LOOKUP_ELEM) {
            Ok(_) => Ok(Some(value)),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Removes a value; one that is not there is no error.
    pub fn remove(&self, key: &[u8]) -> io::Result<()> {
        match self.attr(key, std::ptr::null()).call(MAP_DELETE_ELEM) {
            Err(e) if e.raw_os_error() != Some(libc::ENOENT) => Err(e),
            _ => Ok(()),
        }
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A loaded XDP program.
#[derive(Debug)]
pub struct Program(OwnedFd);

impl Program {
    /// Loads instructions as an XDP program; `frags` says that it can look at packets of several buffers. What the verifier
    /// objects to is in the error.
    pub fn load_xdp(name: &str, insns: &[Insn], frags: bool) -> io::Result<Program> {
        const XDP: u32 = 6;
        Program::load(name, XDP, insns, frags, None, 0)
    }

    /// Loads instructions as a program that selects a socket of a SO_REUSEPORT group, for connections that leave a socket which
    /// stops listening too (Linux 5.14).
    pub fn load_reuseport(name: &str, insns: &[Insn]) -> io::Result<Program> {
        const SK_REUSEPORT: u32 = 21;
        const SELECT_OR_MIGRATE: u32 = 40;
        Program::load(name, SK_REUSEPORT, insns, false, None, SELECT_OR_MIGRATE)
    }

    /// Loads instructions as a program that a tracepoint runs ([`crate::perf::Tracepoint`]); its context is the tracepoint's record.
    pub fn load_tracepoint(name: &str, insns: &[Insn]) -> io::Result<Program> {
        const TRACEPOINT: u32 = 5;
        Program::load(name, TRACEPOINT, insns, false, None, 0)
    }

    /// The same for one interface alone, in driver mode: such a program may call [`KernelFunction`](super::KernelFunction)s that read
    /// what the driver knows of a frame.
    pub fn load_xdp_for(name: &str, insns: &[Insn], frags: bool, ifindex: u32) -> io::Result<Program> {
        const XDP: u32 = 6;
        Program::load(name, XDP, insns, frags, Some(ifindex), 0)
    }

    fn load(
        name: &str,
        kind: u32,
        insns: &[Insn],
        frags: bool,
        ifindex: Option<u32>,
        attach_type: u32,
    ) -> io::Result<Program> {
        const F_XDP_HAS_FRAGS: u32 = 1 << 5;
        const F_XDP_DEV_BOUND_ONLY: u32 = 1 << 6;
        let flags = if frags { F_XDP_HAS_FRAGS } else { 0 } | if ifindex.is_some() { F_XDP_DEV_BOUND_ONLY } else { 0 };
        let license = c"Dual MIT/GPL";
        let attr = |log: &mut [u8]| {
            Attr::new()
                .word(0, kind)
                .word(4, insns.len() as u32)
                .ptr(8, insns.as_ptr())
                .ptr(16, license.as_ptr())
                .word(24, if log.is_empty() { 0 } else { 1 })
                .word(28, log.len() as u32)
                .ptr(32, if log.is_empty() { std::ptr::null() } else { log.as_mut_ptr().cast_const() })
                .word(44, flags)
                .name(48, name)
                .word(64, ifindex.unwrap_or(0))
                .word(68, attach_type)
                .fd(PROG_LOAD)
        };
        match attr(&mut []) {
            Ok(fd) => Ok(Program(fd)),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM)) => Err(e),
            Err(_) => {
                // Again, this time for the log.
                let mut log = vec![0; 1 << 20];
                attr(&mut log).map(Program).map_err(|e| {
                    let text = CStr::from_bytes_until_nul(&log).map(|c| c.to_string_lossy().into_owned());
                    let text = text.unwrap_or_default();
                    let tail: Vec<&str> = text.lines().rev().take(3).collect();
                    io::Error::new(e.kind(), format!("{e}: {}", tail.into_iter().rev().collect::<Vec<_>>().join("; ")))
                })
            }
        }
    }

    /// Gives the SO_REUSEPORT group of a socket this program, in place of any other.
    pub fn select_for(&self, socket: BorrowedFd) -> io::Result<()> {
        set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_EBPF, &self.0.as_raw_fd())
    }

    /// Detaches the program of a socket's SO_REUSEPORT group. NotFound where it has none.
    pub fn detach(socket: BorrowedFd) -> io::Result<()> {
        set_option(socket, libc::SOL_SOCKET, libc::SO_DETACH_REUSEPORT_BPF, &0i32)
    }

    /// Runs the program over one frame (BPF_PROG_TEST_RUN); its return value.
    pub fn run(&self, frame: &[u8]) -> io::Result<u32> {
        let mut attr = Attr::new()
            .word(0, self.0.as_raw_fd() as u32)
            .word(8, frame.len() as u32)
            .ptr(16, frame.as_ptr())
            .word(32, 1);
        attr.call(PROG_TEST_RUN)?;
        Ok(attr.0[1])
    }

    /// Runs the program over one frame so many times; how long a run took, in whole nanoseconds.
    pub fn time(&self, frame: &[u8], times: u32) -> io::Result<Duration> {
        let mut attr = Attr::new()
            .word(0, self.0.as_raw_fd() as u32)
            .word(8, frame.len() as u32)
            .ptr(16, frame.as_ptr())
            .word(32, times);
        attr.call(PROG_TEST_RUN)?;
        Ok(Duration::from_nanos(attr.0[9].into()))
    }

    /// [`Program::run`] for a frame of a queue of an interface; and the frame as the program has left it.
    pub fn run_on(&self, ifindex: u32, queue: u32, frame: &[u8]) -> io::Result<(u32, Vec<u8>)> {
        // What a program may put in front of a frame here.
        const MORE: usize = 256;
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
        let context = [0, frame.len() as u32, 0, ifindex, queue, 0];
        let mut left = vec![0; frame.len() + MORE];
        let mut attr = Attr::new()
            .word(0, self.0.as_raw_fd() as u32)
            .word(8, frame.len() as u32)
            .word(12, left.len() as u32)
            .ptr(16, frame.as_ptr())
            .ptr(24, left.as_mut_ptr().cast_const())
            .word(32, 1)
            .word(40, size_of_val(&context) as u32)
            .ptr(48, context.as_ptr());
        attr.call(PROG_TEST_RUN)?;
        left.truncate(attr.0[3] as usize);
        Ok((attr.0[1], left))
    }

    /// Attaches to an interface; in driver mode, or in the generic one. Dropping the link, or dying, detaches.
    pub fn attach(&self, ifindex: u32, generic: bool) -> io::Result<Link> {
        const ATTACH_XDP: u32 = 37;
        let flags = if generic { 1 << 1 } else { 1 << 2 };
        Attr::new()
            .word(0, self.0.as_raw_fd() as u32)
            .word(4, ifindex)
            .word(8, ATTACH_XDP)
            .word(12, flags)
            .fd(LINK_CREATE)
            .map(|fd| Link { _fd: fd })
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
impl Program {
    /// Gives whatever leaves by an interface this tag of 802.1Q, beside the frame as a VLAN's own interface does.
    pub(crate) fn tag_what_leaves(ifindex: u32, tci: u16) -> io::Result<Link> {
        const CLASSIFIER: u32 = 3;
        const TCX_EGRESS: u32 = 47;
        const SKB_VLAN_PUSH: i32 = 18;
        let mut a = super::Asm::default();
        a.mov(2, 0x8100u16.to_be().into()).mov(3, tci.into()).call(SKB_VLAN_PUSH).mov(0, 0).exit();
        let program = Program::load("tag", CLASSIFIER, &a.finish(), false, None, 0)?;
        let link = Attr::new().word(0, program.0.as_raw_fd() as u32).word(4, ifindex).word(8, TCX_EGRESS);
        link.fd(LINK_CREATE).map(|fd| Link { _fd: fd })
    }
}

/// An attached program.
#[derive(Debug)]
pub struct Link {
    _fd: OwnedFd,
}

/// The name of the program with this id, as far as the kernel tells.
pub fn program_name(id: u32) -> Option<String> {
    let fd = Attr::new().word(0, id).fd(PROG_GET_FD_BY_ID).ok()?;
    // struct bpf_prog_info: type, id, tag[8], four lengths and pointers …, name[16] at byte 64.
    let info: [u8; 232] = info(fd.as_fd()).ok()?;
    Some(name_of(&info[64..80]))
}

/// `struct bpf_map_info`: type, id, sizes of keys and values, most entries, flags, name[16].
fn map_info(fd: BorrowedFd) -> io::Result<[u8; 40]> {
    info(fd)
}

/// The first bytes of a BPF object's description.
fn info<const N: usize>(fd: BorrowedFd) -> io::Result<[u8; N]> {
    let mut info = [0; N];
    let mut attr = Attr::new().word(0, fd.as_raw_fd() as u32).word(4, N as u32).ptr(8, info.as_mut_ptr());
    attr.call(OBJ_GET_INFO_BY_FD)?;
    Ok(info)
}

fn word(info: &[u8], at: usize) -> u32 {
    info.get(at..).and_then(|bytes| bytes.first_chunk().copied()).map_or(0, u32::from_ne_bytes)
}

fn name_of(bytes: &[u8]) -> String {
    CStr::from_bytes_until_nul(bytes).map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned())
}

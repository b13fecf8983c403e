//! A local listen table (Fastsocket 3.2.1) from what the kernel offers: the listeners of an address are a SO_REUSEPORT group, and a
//! program selects the one of the CPU that handles the SYN. A CPU without one of its own uses all others, as those of the paper's
//! global listen table do; so does what waits at a listener that stops.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::asm::{Asm, FP, If, Op, Size};
use super::sys::{Map, MapKind, Program};
use crate::capability::Capability;
use crate::error::PortError;

/// Slots that are written for each CPU: a power of two, since the flow's hash selects one of them.
const WAYS: usize = 16;
/// Slots of a CPU that are tried before any other's.
const TRIES: i32 = 8;
/// Behind the slots of a row: whether they are the CPU's own.
const OWN: i16 = 4 * WAYS as i16;
const ROW: usize = 4 * WAYS + 4;
/// A cache line, so that CPUs do not write to each other's.
const COUNTS: usize = 64;

// Where a line has its numbers.
const LOCAL: i32 = 0;
const ELSEWHERE: i32 = 8;
const MIGRATED: i32 = 16;

// Helpers by number (enum bpf_func_id).
const MAP_LOOKUP: i32 = 1;
const GET_SMP_PROCESSOR_ID: i32 = 8;
const SK_SELECT_REUSEPORT: i32 = 82;

/// A listener's place in its group, and the CPU whose connections it has; none where no CPU is its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// From 0 to 255.
    pub at: u32,
    /// The kernel's number of the CPU.
    pub cpu: Option<u32>,
}

/// Connections for which a listener was selected, counted at the SYN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Selected {
    /// On the CPU whose listener it is.
    pub local: u64,
    /// On other CPUs, which had none of their own.
    pub elsewhere: u64,
    /// From the queue of a listener that stopped.
    pub migrated: u64,
}

impl std::ops::AddAssign for Selected {
    fn add_assign(&mut self, other: Selected) {
        self.local += other.local;
        self.elsewhere += other.elsewhere;
        self.migrated += other.migrated;
    }
}

/// The maps of one group, and its program.
#[derive(Debug)]
pub struct ListenGroup {
    socks: Map,
    rows: Map,
    counts: Map,
    /// None where the group has it already.
    program: Option<Program>,
    cpus: u32,
}

// Names of the maps.
const SOCKS: &str = "cl_socks";
const ROWS: &str = "cl_rows";
const COUNTS_OF: &str = "cl_counts";

impl ListenGroup {
    /// Listeners of one address at most.
    pub const SLOTS: u32 = 256;

    /// For a machine with CPUs 0 to `cpus` - 1. Needs CAP_BPF and Linux 5.14; the error says which of them is missing.
    pub fn open(cpus: u32) -> Result<ListenGroup, PortError> {
        ListenGroup::new(cpus).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL | libc::ENOSYS) => PortError::Unsupported {
                feature: "program that selects listeners by CPU (BPF_SK_REUSEPORT_SELECT_OR_MIGRATE)",
                hint: "Linux 5.14 and later have it, with CONFIG_BPF_SYSCALL",
            },
            _ => PortError::system("selecting listeners by CPU (bpf)", error, &[Capability::Bpf]),
        })
    }

    fn new(cpus: u32) -> io::Result<ListenGroup> {
        let socks = Map::new(MapKind::ReuseportSocks, SOCKS, 4, 8, ListenGroup::SLOTS)?;
        // The last row is of all CPUs together.
        let rows = Map::new(MapKind::Array, ROWS, 4, ROW, cpus + 1)?;
        let counts = Map::new(MapKind::Array, COUNTS_OF, 4, COUNTS, ListenGroup::SLOTS << line_bits(cpus))?;
        let program = select(&socks, &rows, &counts, cpus);
        let program = Program::load_reuseport("cl_listen", &program.finish())?;
        Ok(ListenGroup { socks, rows, counts, program: Some(program), cpus })
    }

    /// Numbers by which [`ListenGroup::attached`] finds the maps.
    pub fn ids(&self) -> io::Result<[u32; 3]> {
        let id = |map: &Map| map.id_and_entries().map(|(id, _)| id);
        Ok([id(&self.socks)?, id(&self.rows)?, id(&self.counts)?])
    }

    /// The maps of a program that was attached by another process. NotFound once no group has it. Needs CAP_SYS_ADMIN.
    pub fn attached([socks, rows, counts]: [u32; 3]) -> io::Result<ListenGroup> {
        let rows = Map::by_id(rows, ROWS)?;
        let (_, of_cpus_and_all) = rows.id_and_entries()?;
        let (socks, counts) = (Map::by_id(socks, SOCKS)?, Map::by_id(counts, COUNTS_OF)?);
        Ok(ListenGroup { socks, rows, counts, program: None, cpus: of_cpus_and_all - 1 })
    }

    /// Makes the program select for the group of `socket`, in place of any other program.
    pub fn attach(&self, socket: BorrowedFd) -> io::Result<()> {
        self.program.as_ref().map_or(Ok(()), |program| program.select_for(socket))
    }

    /// Detaches the program of the group of `socket`: the kernel selects by hash. NotFound where it has none.
    pub fn detach(socket: BorrowedFd) -> io::Result<()> {
        Program::detach(socket)
    }

    /// Puts a listener that is a member of the group into a slot. The slot empties by itself when the listener closes.
    pub fn put(&self, slot: u32, listener: BorrowedFd) -> io::Result<()> {
        self.socks.set(&slot.to_ne_bytes(), &(listener.as_raw_fd() as u64).to_ne_bytes())
    }

    /// Empties a slot: its listener is selected no more.
    pub fn remove(&self, slot: u32) -> io::Result<()> {
        self.socks.remove(&slot.to_ne_bytes())
    }

    /// Cookie of the listener in a slot (SO_COOKIE).
    pub fn cookie(&self, slot: u32) -> io::Result<Option<u64>> {
        let value = self.socks.get(&slot.to_ne_bytes())?;
        Ok(value.and_then(|bytes| bytes.first_chunk().copied()).map(u64::from_ne_bytes))
    }

    /// A slot that has no listener.
    pub fn free(&self) -> io::Result<Option<u32>> {
        for slot in 0..ListenGroup::SLOTS {
            if self.cookie(slot)?.is_none() {
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }

    /// Tells each CPU its listeners. A CPU that has none uses all.
    pub fn assign(&self, slots: &[Slot]) -> io::Result<()> {
        let all: Vec<u32> = slots.iter().map(|slot| slot.at).collect();
        for cpu in 0..=self.cpus {
            let own: Vec<u32> = slots.iter().filter(|slot| slot.cpu == Some(cpu)).map(|slot| slot.at).collect();
            let (from, is_own) = if own.is_empty() { (&all, 0u32) } else { (&own, 1) };
            let mut row = [0u8; ROW];
            for (way, bytes) in row[..4 * WAYS].chunks_exact_mut(4).enumerate() {
                // CPUs begin at different listeners, where there are more than a row has room for.
                let slot = from.get((way + cpu as usize) % from.len().max(1)).copied().unwrap_or(u32::MAX);
                bytes.copy_from_slice(&slot.to_ne_bytes());
            }
            row[4 * WAYS..].copy_from_slice(&is_own.to_ne_bytes());
            self.rows.set(&cpu.to_ne_bytes(), &row)?;
        }
        Ok(())
    }

    /// Connections of the listener in a slot, and of those that were there before it.
    pub fn selected(&self, slot: u32) -> io::Result<Selected> {
        let mut sum = Selected::default();
        for cpu in 0..=self.cpus {
            let line = self.counts.get(&(slot << line_bits(self.cpus) | cpu).to_ne_bytes())?.unwrap_or_default();
            let word =
                |at: i32| line.get(at as usize..).and_then(|b| b.first_chunk().copied()).map_or(0, u64::from_ne_bytes);
            sum += Selected { local: word(LOCAL), elsewhere: word(ELSEWHERE), migrated: word(MIGRATED) };
        }
        Ok(sum)
    }
}

/// Bits of the CPU in the number of a line of counts; CPUs of no row have one together.
fn line_bits(cpus: u32) -> u32 {
    (cpus + 1).next_power_of_two().trailing_zeros()
}

fn select(socks: &Map, rows: &Map, counts: &Map, cpus: u32) -> Asm {
    // On the stack: the slot, the CPU, the row of all.
    const SLOT: i16 = -4;
    const CPU: i16 = -8;
    const ALL: i16 = -12;
    // struct sk_reuseport_md.
    const HASH: i16 = 32;
    const MIGRATING_SK: i16 = 48;
    // Kept in registers: the context 6, the row 7, the hash 8, the number that is counted 9.
    let mut a = Asm::default();
    a.mov_reg(6, 1).call(GET_SMP_PROCESSOR_ID);
    a.jump_if(If::Lt, 0, cpus as i32, "known").mov(0, cpus as i32).label("known").store(Size::W, FP, CPU, 0);
    a.load(Size::W, 8, 6, HASH);
    a.map(1, rows.as_fd()).lea(2, FP, CPU.into()).call(MAP_LOOKUP).jump_if(If::Eq, 0, 0, "pass").mov_reg(7, 0);
    a.mov(9, ELSEWHERE).load(Size::W, 1, 7, OWN).jump_if(If::Eq, 1, 0, "not own").mov(9, LOCAL).label("not own");
    a.load(Size::Dw, 1, 6, MIGRATING_SK).jump_if(If::Eq, 1, 0, "new").mov(9, MIGRATED).label("new");
    tries(&mut a, socks, SLOT);
    // No listener of the CPU is left.
    a.jump_if(If::Ne, 9, LOCAL, "counted").mov(9, ELSEWHERE).label("counted");
    a.store_imm(Size::W, FP, ALL, cpus as i32);
    a.map(1, rows.as_fd()).lea(2, FP, ALL.into()).call(MAP_LOOKUP).jump_if(If::Eq, 0, 0, "pass").mov_reg(7, 0);
    tries(&mut a, socks, SLOT);
    // Nor any other: the kernel selects by hash.
    a.label("pass").mov(0, 1).exit();
    a.label("chosen").load(Size::W, 1, FP, SLOT).op(Op::Lsh, 1, line_bits(cpus) as i32);
    a.load(Size::W, 2, FP, CPU).op_reg(Op::Or, 1, 2).store(Size::W, FP, ALL, 1);
    a.map(1, counts.as_fd()).lea(2, FP, ALL.into()).call(MAP_LOOKUP).jump_if(If::Eq, 0, 0, "uncounted");
    a.op_reg(Op::Add, 0, 9).load(Size::Dw, 1, 0, 0).op(Op::Add, 1, 1).store(Size::Dw, 0, 0, 1);
    a.label("uncounted").mov(0, 1).exit();
    a
}

/// Goes to `chosen` with the first slot of the row that has a listener, from where the hash says.
fn tries(a: &mut Asm, socks: &Map, slot: i16) {
    for way in 0..TRIES {
        a.mov_reg(1, 8).op(Op::Add, 1, way).op(Op::And, 1, WAYS as i32 - 1).op(Op::Lsh, 1, 2);
        a.mov_reg(2, 7).op_reg(Op::Add, 2, 1).load(Size::W, 1, 2, 0).store(Size::W, FP, slot, 1);
        a.mov_reg(1, 6).map(2, socks.as_fd()).lea(3, FP, slot.into()).mov(4, 0).call(SK_SELECT_REUSEPORT);
        a.jump_if(If::Eq, 0, 0, "chosen");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::set_option;
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::os::fd::OwnedFd;

    /// A group on CPUs 0 and 1; `None` without the rights or the CPUs.
    fn group() -> Option<ListenGroup> {
        if !rustix::process::geteuid().is_root() || std::thread::available_parallelism().map_or(1, |n| n.get()) < 2 {
            testing::skip("needs root and two CPUs");
            return None;
        }
        Some(ListenGroup::new(2).unwrap())
    }

    fn listener(at: SocketAddr) -> TcpListener {
        use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
        let fd: OwnedFd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, &1i32).unwrap();
        bind(&fd, &at).unwrap();
        listen(&fd, 512).unwrap();
        let listener = TcpListener::from(fd);
        listener.set_nonblocking(true).unwrap();
        listener
    }

    /// Connects from a CPU, on which loopback then delivers.
    fn connect(cpu: usize, to: SocketAddr, n: usize) -> Vec<TcpStream> {
        let body = move || {
            let mut set = rustix::thread::CpuSet::new();
            set.set(cpu);
            rustix::thread::sched_setaffinity(None, &set).unwrap();
            (0..n).map(|_| TcpStream::connect(to).unwrap()).collect()
        };
        std::thread::spawn(body).join().unwrap()
    }

    fn accepted(from: &TcpListener) -> usize {
        std::iter::from_fn(|| from.accept().ok()).count()
    }

    fn selected(local: u64, elsewhere: u64, migrated: u64) -> Selected {
        Selected { local, elsewhere, migrated }
    }

    #[test]
    fn each_cpu_has_its_listener_and_the_others_where_it_has_none() {
        let Some(group) = group() else { return };
        let whole = listener(SocketAddr::from(([127, 0, 0, 1], 0)));
        let at = whole.local_addr().unwrap();
        let parts = [listener(at), listener(at)];
        for (slot, part) in parts.iter().enumerate() {
            group.put(slot as u32 + 3, part.as_fd()).unwrap();
        }
        group.attach(whole.as_fd()).unwrap();
        group.assign(&[Slot { at: 3, cpu: Some(0) }, Slot { at: 4, cpu: Some(1) }]).unwrap();
        let _open = (connect(0, at, 7), connect(1, at, 5));
        assert_eq!((accepted(&parts[0]), accepted(&parts[1]), accepted(&whole)), (7, 5, 0));
        assert_eq!((group.selected(3).unwrap(), group.selected(4).unwrap()), (selected(7, 0, 0), selected(5, 0, 0)));

        // No CPU's own: both are dealt to all CPUs.
        group.assign(&[Slot { at: 3, cpu: None }, Slot { at: 4, cpu: None }]).unwrap();
        let _more = connect(1, at, 64);
        let dealt = (accepted(&parts[0]), accepted(&parts[1]));
        assert!(dealt.0 > 8 && dealt.1 > 8 && dealt.0 + dealt.1 == 64, "{dealt:?}");
        let counted = (group.selected(3).unwrap(), group.selected(4).unwrap());
        assert_eq!(counted, (selected(7, dealt.0 as u64, 0), selected(5, dealt.1 as u64, 0)));
    }

    #[test]
    fn a_group_that_another_process_has_attached_is_found_until_it_is_detached() {
        let Some(group) = group() else { return };
        let first = listener(SocketAddr::from(([127, 0, 0, 1], 0)));
        let at = first.local_addr().unwrap();
        let second = listener(at);
        group.put(5, first.as_fd()).unwrap();
        group.assign(&[Slot { at: 5, cpu: Some(0) }]).unwrap();
        group.attach(first.as_fd()).unwrap();
        let (ids, of_first) = (group.ids().unwrap(), group.cookie(5).unwrap());
        drop(group);
        let _open = connect(0, at, 4);
        let found = ListenGroup::attached(ids).unwrap();
        assert_eq!((found.cpus, found.cookie(5).unwrap(), of_first.is_some()), (2, of_first, true));
        assert_eq!(found.selected(5).unwrap(), selected(4, 0, 0));
        // Its listeners and their cores can be changed.
        found.put(6, second.as_fd()).unwrap();
        found.assign(&[Slot { at: 6, cpu: Some(0) }]).unwrap();
        let _more = connect(0, at, 3);
        assert_eq!((accepted(&first), accepted(&second)), (4, 3));
        // Maps of other names are none of it.
        let [socks, rows, counts] = ids;
        assert_eq!(ListenGroup::attached([rows, socks, counts]).unwrap_err().kind(), io::ErrorKind::NotFound);

        drop(found);
        ListenGroup::detach(second.as_fd()).unwrap();
        assert_eq!(ListenGroup::detach(first.as_fd()).unwrap_err().kind(), io::ErrorKind::NotFound);
        // The kernel frees maps when no program can use them any more, a moment later.
        let gone = || ListenGroup::attached(ids).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        while !gone() {
            std::thread::yield_now();
        }
        let _dealt = connect(0, at, 64);
        let dealt = (accepted(&first), accepted(&second));
        assert!(dealt.0 > 8 && dealt.1 > 8 && dealt.0 + dealt.1 == 64, "{dealt:?}");
    }

    #[test]
    fn what_waits_at_a_listener_that_closes_goes_to_one_that_is_left() {
        let Some(group) = group() else { return };
        let whole = listener(SocketAddr::from(([127, 0, 0, 1], 0)));
        let at = whole.local_addr().unwrap();
        let [zero, one] = [listener(at), listener(at)];
        group.put(0, zero.as_fd()).unwrap();
        group.put(1, one.as_fd()).unwrap();
        group.assign(&[Slot { at: 0, cpu: Some(0) }, Slot { at: 1, cpu: Some(1) }]).unwrap();
        group.attach(zero.as_fd()).unwrap();
        let mut open = connect(1, at, 20);
        drop(one);
        assert_eq!(group.cookie(1).unwrap(), None, "the slot has emptied by itself");
        assert_eq!(group.free().unwrap(), Some(1));
        open.extend(connect(1, at, 3));
        assert_eq!(accepted(&zero), 23);
        assert_eq!(group.selected(0).unwrap(), selected(0, 3, 20));
        assert!(open.iter().all(|stream| stream.take_error().unwrap().is_none()), "one was reset");

        // With no listener in the table the rest of the group has them.
        drop(zero);
        open.extend(connect(1, at, 2));
        assert_eq!(accepted(&whole), 2);
    }
}

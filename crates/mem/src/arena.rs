//! One reserved mapping for everything that two sides share.
//!
//! Regions are cut off it once, at construction, and never given back; the arena goes as a whole when the last holder
//! does. Nothing in it is a pointer, so a memfd arena means the same bytes in another process. Memory is reserved, not
//! committed: a page costs something only once it is touched, except for explicit huge pages, which the kernel sets
//! aside at once so that a touch cannot fail later.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where the bytes of an arena come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// Private to this process.
    #[default]
    Anonymous,
    /// A sealed memfd, which another process can map.
    Memfd,
}

/// Which huge pages to try. None are required: plain pages are the fallback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Huge {
    /// Plain pages.
    No,
    /// Advise transparent huge pages (2 MiB become resident at a touch).
    #[default]
    Transparent,
    /// Set-aside huge pages (`vm.nr_hugepages`) if enough are free, else as `Transparent`.
    Explicit,
}

/// What an arena got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Plain pages.
    Plain,
    /// Plain pages which the kernel was advised to merge into huge ones.
    Advised,
    /// Huge pages, set aside.
    Huge,
}

/// How to make an arena.
#[derive(Clone, Copy, Debug, Default)]
pub struct ArenaConfig {
    /// Size in bytes; rounded up to pages.
    pub bytes: usize,
    /// Huge pages to try.
    pub huge: Huge,
    /// Where from.
    pub backing: Backing,
}

/// Why there is no memory, or not this shape of it.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The kernel refused the mapping.
    #[error(
        "cannot reserve {bytes} bytes of memory: {source} (an address-space limit, `ulimit -v`, or vm.overcommit_memory=2?)"
    )]
    Reserve {
        /// Size asked for.
        bytes: usize,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A memfd could not be made.
    #[error("cannot make a shared memory file of {bytes} bytes: {source}")]
    File {
        /// Size asked for.
        bytes: usize,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A region does not fit into what is left of the arena.
    #[error("the arena is too small: {wanted} bytes wanted, {left} left")]
    Full {
        /// Size asked for, in bytes.
        wanted: usize,
        /// Bytes not cut off yet.
        left: usize,
    },
    /// A size overflows the address space.
    #[error("the size overflows the address space")]
    TooLarge,
    /// A descriptor of memory that another process shares cannot be mapped, or could shrink while it is.
    #[error("{0}")]
    Foreign(String),
    /// A ring's slot count is not a power of two from 1 to 2^30.
    #[error("a ring needs a power of two of slots from 1 to 2^30, not {0}")]
    Slots(usize),
    /// A pool without chunks, or with more than u32 can name.
    #[error("a pool needs from 1 to 2^31 chunks, not {0}")]
    Chunks(u32),
}

const HUGE_PAGE: usize = 2 << 20;
const PAGE: usize = 4096;

/// A reserved mapping. Regions are cut off by the constructors of pools and rings (`*_in`).
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    bytes: usize,
    used: AtomicUsize,
    pages: Pages,
    #[cfg(not(any(miri, loom)))]
    file: Option<rustix::fd::OwnedFd>,
}

// SAFETY: the arena gives out disjoint regions (an atomic bump) and never touches the bytes itself.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves `config.bytes`, all zero.
    pub fn reserve(config: &ArenaConfig) -> Result<Arc<Arena>, ArenaError> {
        let unit = if config.huge == Huge::No { PAGE } else { HUGE_PAGE };
        // A small arena gains nothing from huge pages and must not cost one.
        let (unit, huge) = if config.bytes < HUGE_PAGE { (PAGE, Huge::No) } else { (unit, config.huge) };
        let bytes = config.bytes.max(1).checked_next_multiple_of(unit).ok_or(ArenaError::TooLarge)?;
        if bytes > isize::MAX as usize / 2 {
            return Err(ArenaError::TooLarge);
        }
        map(bytes, huge, config.backing).map(Arc::new)
    }

    /// Maps what another process has made as [`Backing::Memfd`]. Regions are cut off it in the same order as there. A child of fork(2) does
    /// not have the mapping.
    #[cfg(not(any(miri, loom)))]
    pub(crate) fn attach(file: rustix::fd::OwnedFd) -> Result<Arc<Arena>, ArenaError> {
        use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};

        let foreign = |what: &str| ArenaError::Foreign(what.into());
        let seals = fcntl_get_seals(&file).map_err(|_| foreign("the descriptor is no shared memory (a memfd)"))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(foreign("the shared memory is not sealed: it could shrink while it is in use"));
        }
        let system = |e: rustix::io::Errno| ArenaError::Foreign(format!("mapping the shared memory: {e}"));
        let bytes = usize::try_from(fstat(&file).map_err(system)?.st_size).unwrap_or(0);
        if bytes == 0 || bytes > isize::MAX as usize / 2 {
            return Err(foreign("the shared memory is empty"));
        }
        let (rw, at) = (ProtFlags::READ | ProtFlags::WRITE, core::ptr::null_mut());
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing; the file keeps its length.
        let base = unsafe { mmap(at, bytes, rw, MapFlags::SHARED | MapFlags::NORESERVE, &file, 0) }.map_err(system)?;
        // SAFETY: the whole of our own mapping; the advice changes no contents here.
        let _ = unsafe { madvise(base, bytes, Advice::LinuxDontFork) };
        let base = NonNull::new(base.cast()).expect("mmap never returns null");
        Ok(Arc::new(Arena { base, bytes, used: AtomicUsize::new(0), pages: Pages::Plain, file: Some(file) }))
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes cut off so far.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed).min(self.bytes)
    }

    /// What kind of pages it has.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// The file behind a [`Backing::Memfd`] arena.
    ///
    /// # Safety
    /// Whoever writes to the file, or maps it and writes, must keep the rules of the structures in it: this crate trusts
    /// what it finds there.
    #[cfg(not(any(miri, loom)))]
    pub unsafe fn file(&self) -> Option<rustix::fd::BorrowedFd<'_>> {
        use rustix::fd::AsFd;
        self.file.as_ref().map(|f| f.as_fd())
    }

    /// Cuts off `bytes` zeroed bytes, aligned to `align`, a power of two up to a page. They are the caller's alone.
    pub(crate) fn carve(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, ArenaError> {
        debug_assert!(align.is_power_of_two() && align <= PAGE);
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let left = self.bytes.saturating_sub(used);
            let full = ArenaError::Full { wanted: bytes, left };
            let start = match used.checked_next_multiple_of(align) {
                Some(start) if start <= self.bytes && self.bytes - start >= bytes => start,
                _ => return Err(full),
            };
            match self.used.compare_exchange_weak(used, start + bytes, Ordering::Relaxed, Ordering::Relaxed) {
                // SAFETY: start <= self.bytes, inside one mapping.
                Ok(_) => return Ok(unsafe { self.base.add(start) }),
                Err(now) => used = now,
            }
        }
    }
}

#[cfg(not(any(miri, loom)))]
fn map(bytes: usize, huge: Huge, backing: Backing) -> Result<Arena, ArenaError> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous};

    let rw = ProtFlags::READ | ProtFlags::WRITE;
    let done = |base: *mut core::ffi::c_void, pages, file| {
        let base = NonNull::new(base.cast()).expect("mmap never returns null");
        Arena { base, bytes, used: AtomicUsize::new(0), pages, file }
    };
    let anonymous = |flags: MapFlags| {
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        unsafe { mmap_anonymous(core::ptr::null_mut(), bytes, rw, MapFlags::PRIVATE | flags) }
    };
    let from_file = |flags: MemfdFlags, map: MapFlags| {
        let file = memfd_create(c"corelane", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags)?;
        ftruncate(&file, bytes as u64)?;
        // A file that shrinks under a mapping is a SIGBUS.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // SAFETY: as above; the file is ours and has the length.
        let base = unsafe { mmap(core::ptr::null_mut(), bytes, rw, MapFlags::SHARED | map, &file, 0) }?;
        Ok::<_, rustix::io::Errno>((base, file))
    };

    if huge == Huge::Explicit {
        // Without NORESERVE the kernel sets the pages aside now, so that no touch ends in SIGBUS.
        let got = match backing {
            Backing::Anonymous => anonymous(MapFlags::HUGETLB).map(|base| (base, None)),
            Backing::Memfd => from_file(MemfdFlags::HUGETLB, MapFlags::empty()).map(|(base, file)| (base, Some(file))),
        };
        if let Ok((base, file)) = got {
            return Ok(done(base, Pages::Huge, file));
        }
    }
    let (base, file) = match backing {
        Backing::Anonymous => {
            let base = anonymous(MapFlags::NORESERVE)
                .map_err(|source| ArenaError::Reserve { bytes, source: source.into() })?;
            (base, None)
        }
        Backing::Memfd => {
            let (base, file) = from_file(MemfdFlags::empty(), MapFlags::NORESERVE)
                .map_err(|source| ArenaError::File { bytes, source: source.into() })?;
            (base, Some(file))
        }
    };
    // SAFETY: the whole of our own mapping; the advice changes no contents.
    let advised = huge != Huge::No && unsafe { madvise(base, bytes, Advice::LinuxHugepage) }.is_ok();
    Ok(done(base, if advised { Pages::Advised } else { Pages::Plain }, file))
}

#[cfg(not(any(miri, loom)))]
impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and the last holder is gone. It can only fail for arguments that are not a mapping's.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Interpreters and models do not map files: the heap serves them.
#[cfg(any(miri, loom))]
fn map(bytes: usize, _huge: Huge, _backing: Backing) -> Result<Arena, ArenaError> {
    let layout = std::alloc::Layout::from_size_align(bytes, PAGE).map_err(|_| ArenaError::TooLarge)?;
    // SAFETY: bytes is at least a page.
    let base = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })
        .ok_or_else(|| ArenaError::Reserve { bytes, source: std::io::ErrorKind::OutOfMemory.into() })?;
    Ok(Arena { base, bytes, used: AtomicUsize::new(0), pages: Pages::Plain })
}

#[cfg(any(miri, loom))]
impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: allocated in `map` with this layout.
        unsafe {
            let layout = std::alloc::Layout::from_size_align_unchecked(self.bytes, PAGE);
            std::alloc::dealloc(self.base.as_ptr(), layout)
        }
    }
}

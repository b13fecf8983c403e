//! Tracepoints and counters of the kernel, for measurements (perf_event_open(2)). Nothing else uses them.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::bpf::Program;
use crate::sys::check;

// Kinds of events (enum perf_type_id), and one of the processor's (enum perf_hw_id).
const HARDWARE: u64 = 0;
const TRACEPOINT: u64 = 2;
const CACHE_MISSES: u64 = 3;

/// A tracepoint of the running kernel: its number, and where its record has which field.
#[derive(Debug)]
pub struct Tracepoint {
    id: u64,
    format: String,
}

impl Tracepoint {
    /// A tracepoint by its name in tracefs, as `tcp/tcp_probe`. NotFound where the kernel has none of that name. tracefs need not be
    /// mounted; root reads it.
    pub fn find(name: &str) -> io::Result<Tracepoint> {
        let events = events()?;
        let read = |file: &str| -> io::Result<String> {
            let file = openat(&events, format!("{name}/{file}"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            let mut text = String::new();
            std::fs::File::from(file).read_to_string(&mut text)?;
            Ok(text)
        };
        let id = read("id")?.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        Ok(Tracepoint { id, format: read("format")? })
    }

    /// Bytes from the beginning of the record to a field. NotFound where this kernel's record has no such field.
    pub fn offset(&self, field: &str) -> io::Result<i16> {
        offset(&self.format, field).ok_or_else(|| {
            let what = format!("the tracepoint has no field {field}");
            io::Error::new(io::ErrorKind::NotFound, what)
        })
    }

    /// Runs a program at each hit, on every CPU, until the value is dropped.
    pub fn attach(&self, program: &Program) -> io::Result<Attached> {
        const SET_BPF: libc::c_ulong = 0x4004_2408;
        let event = open(TRACEPOINT, self.id, 0)?;
        // SAFETY: PERF_EVENT_IOC_SET_BPF takes a descriptor of a program, by value.
        check(unsafe { libc::ioctl(event.as_raw_fd(), SET_BPF as _, program.as_fd().as_raw_fd()) })?;
        Ok(Attached { _event: event })
    }
}

/// A program that runs at a tracepoint.
#[derive(Debug)]
pub struct Attached {
    _event: OwnedFd,
}

/// A number that the kernel or the processor counts for all processes.
#[derive(Debug)]
pub struct Counter(Vec<OwnedFd>);

impl Counter {
    /// Hits of a tracepoint on CPUs 0 to `cpus` - 1; no more than the machine can have.
    pub fn hits(tracepoint: &Tracepoint, cpus: u32) -> io::Result<Counter> {
        Counter::new(TRACEPOINT, tracepoint.id, cpus)
    }

    /// Misses of the last level of cache, as the processor counts them; an error where it does not, as on most virtual machines.
    pub fn cache_misses(cpus: u32) -> io::Result<Counter> {
        Counter::new(HARDWARE, CACHE_MISSES, cpus)
    }

    fn new(kind: u64, config: u64, cpus: u32) -> io::Result<Counter> {
        let mut events = Vec::new();
        for cpu in 0..cpus {
            match open(kind, config, cpu) {
                Ok(event) => events.push(event),
                // A CPU that is off.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Counter(events))
    }

    /// Counted since it was opened.
    pub fn count(&self) -> io::Result<u64> {
        self.0.iter().try_fold(0, |sum, event| {
            let mut value = [0; 8];
            let read = rustix::io::read(event, &mut value)?;
            if read == value.len() {
                Ok(sum + u64::from_ne_bytes(value))
            } else {
                Err(io::ErrorKind::InvalidData.into())
            }
        })
    }
}

/// An event of all processes on a CPU.
fn open(kind: u64, config: u64, cpu: u32) -> io::Result<OwnedFd> {
    const CLOEXEC: libc::c_ulong = 1 << 3;
    // struct perf_event_attr, its first published size: type and size, config, then zeros: it counts, from now on.
    let attr: [u64; 8] = [kind | 64 << 32, config, 0, 0, 0, 0, 0, 0];
    let everybody: libc::pid_t = -1;
    let no_group: libc::c_int = -1;
    // SAFETY: the attribute is as long as it says and lives through the call.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), everybody, cpu as libc::c_int, no_group, CLOEXEC)
    };
    let fd = check(fd as i32)?;
    // SAFETY: the call gave a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The folder of tracepoints. Where tracefs is not mounted it is for this descriptor alone, and nobody else sees it.
fn events() -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if let Ok(events) = openat(CWD, "/sys/kernel/tracing/events", flags, Mode::empty()) {
        return Ok(events);
    }
    let fs = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(fs.as_fd())?;
    let mount = fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    Ok(openat(&mount, "events", flags, Mode::empty())?)
}

/// From lines as `field:__u8 saddr[28]; offset:8; size:28; signed:0;`, with tabs between.
fn offset(format: &str, field: &str) -> Option<i16> {
    format.lines().find_map(|line| {
        let (declared, rest) = line.trim_start().strip_prefix("field:")?.split_once(';')?;
        let name = declared.rsplit([' ', '*']).next()?;
        let name = name.split('[').next()?;
        let offset = rest.trim_start().strip_prefix("offset:")?.split(';').next()?;
        (name == field).then(|| offset.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_name() {
        let format = "name: x\nID: 7\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
                      \tfield:__u8 saddr[28];\toffset:8;\tsize:28;\tsigned:0;\n\tfield:const void * skaddr;\toffset:128;\tsize:8;\tsigned:0;\n";
        let found = ["common_pid", "saddr", "skaddr", "addr"].map(|field| offset(format, field));
        assert_eq!(found, [Some(4), Some(8), Some(128), None]);
    }

    #[test]
    fn hits_of_a_tracepoint_are_counted() {
        let tracepoint = match Tracepoint::find("syscalls/sys_enter_getcpu") {
            Ok(tracepoint) => tracepoint,
            Err(error) => return testing::skip(format!("needs root and tracepoints of system calls: {error}")),
        };
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u32;
        let counter = match Counter::hits(&tracepoint, cpus) {
            Ok(counter) => counter,
            Err(error) => return testing::skip(format!("needs perf_event_open: {error}")),
        };
        let before = counter.count().expect("a number");
        for _ in 0..100 {
            // SAFETY: it is given nothing to write to.
            unsafe { libc::syscall(libc::SYS_getcpu, 0, 0, 0) };
        }
        assert!(counter.count().expect("a number") >= before + 100);
        assert_eq!(Tracepoint::find("tcp/none").expect_err("no such").kind(), io::ErrorKind::NotFound);
        assert_eq!(tracepoint.offset("no_field").expect_err("no such").kind(), io::ErrorKind::NotFound);
    }
}

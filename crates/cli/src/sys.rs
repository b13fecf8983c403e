//! What is asked of the operating system: stopping on signals, clocks, cores, and the machine's description.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::thread::CpuSet;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Signals that come within this time of the first are the same wish.
const SAME_SIGNAL: Duration = Duration::from_millis(300);

/// Tells every thread of a command to finish what is in flight.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<Asked>);

/// What was asked for, by signals or by the command itself.
#[derive(Debug, Default)]
struct Asked {
    stop: AtomicBool,
    /// The signal that asked for the stop; 0 for none.
    signal: AtomicI32,
    reloads: AtomicU32,
    /// Becomes readable with the stop, where somebody waits for that.
    told: OnceLock<OwnedFd>,
}

/// What SIGHUP does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hangup {
    /// Ends the process, as the system has it: its terminal has gone.
    Ends,
    /// Asks a server to look again at what it serves.
    Reloads,
}

impl Stop {
    /// Whether to finish.
    pub fn is_set(&self) -> bool {
        self.0.stop.load(Ordering::Relaxed)
    }

    /// Asks to finish.
    pub fn set(&self) {
        self.0.stop.store(true, Ordering::SeqCst);
        if let Some(told) = self.0.told.get() {
            ring(told);
        }
    }

    /// Readable once it is set.
    pub fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        let told = match self.0.told.get() {
            Some(told) => told,
            None => {
                let fresh = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
                self.0.told.get_or_init(|| fresh)
            }
        };
        // Set before there was anything to tell by.
        if self.0.stop.load(Ordering::SeqCst) {
            ring(told);
        }
        Ok(told.as_fd())
    }

    /// Waits until it is set, or for so long.
    pub fn wait(&self, limit: Duration) {
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        match self.fd() {
            Ok(fd) => drop(poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit))),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }

    /// The signal that asked to finish.
    pub fn signal(&self) -> Option<i32> {
        Some(self.0.signal.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
    }

    /// How often SIGHUP asked for a reload.
    pub fn reloads(&self) -> u32 {
        self.0.reloads.load(Ordering::Relaxed)
    }

    /// What a signal asks for.
    fn take(&self, signal: i32) {
        match signal {
            libc::SIGHUP => {
                self.0.reloads.fetch_add(1, Ordering::Relaxed);
            }
            _ => {
                self.0.signal.store(signal, Ordering::Relaxed);
                self.set();
            }
        }
    }

    /// A stop that SIGINT and SIGTERM set; one that comes a moment later ends the process at once. Call before other threads
    /// start: they inherit the mask, so that the signal comes to the one thread that waits for it.
    pub fn on_signals(hangup: Hangup) -> Stop {
        let stop = Stop::default();
        let signals = signal_set(hangup);
        // SAFETY: the set is initialised and outlives the call; the old mask is not asked for.
        let masked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut()) };
        let flag = stop.clone();
        let waiting = std::thread::Builder::new().name("signals".into()).spawn(move || {
            let mut first: Option<std::time::Instant> = None;
            loop {
                let mut signal = 0;
                // SAFETY: both point to live locals.
                if unsafe { libc::sigwait(&signals, &mut signal) } == 0 {
                    corelane::provoke("signals");
                    flag.take(signal);
                    if signal == libc::SIGHUP {
                        continue;
                    }
                    // `timeout` and terminals send the same signal to the process and to its group.
                    if first.is_some_and(|at| at.elapsed() > SAME_SIGNAL) {
                        std::process::exit(128 + signal);
                    }
                    first.get_or_insert_with(std::time::Instant::now);
                }
            }
        });
        // Without the thread the signals would be lost: let them end the process as usual.
        if masked != 0 || waiting.is_err() {
            // SAFETY: as above.
            unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &signals, std::ptr::null_mut()) };
        }
        stop
    }
}

fn ring(eventfd: &OwnedFd) {
    // It fails only where it was rung before, over and over.
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

/// Lets a program that is started have SIGINT and SIGTERM, for which this one has a thread that waits.
pub fn give_signals(command: &mut Command) {
    let unblock = || {
        // SAFETY: the set is initialised and outlives the call; the old mask is not asked for.
        match unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &signal_set(Hangup::Ends), std::ptr::null_mut()) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    };
    // SAFETY: between fork and exec only functions are called that may be called in a signal handler; nothing is allocated.
    unsafe { command.pre_exec(unblock) };
}

/// Blocks the signals that service managers, terminals and `timeout` send to a program and all that runs beside it.
pub fn block_signals() {
    // SAFETY: sigset_t is plain data, filled by sigemptyset before use; the numbers are valid signals.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2] {
            libc::sigaddset(&mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
}

fn signal_set(hangup: Hangup) -> libc::sigset_t {
    // SAFETY: sigset_t is plain data, filled by sigemptyset before use; the numbers are valid signals.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGINT);
        libc::sigaddset(&mut set, libc::SIGTERM);
        if hangup == Hangup::Reloads {
            libc::sigaddset(&mut set, libc::SIGHUP);
        }
        set
    }
}

/// CPU time this thread has used, user and system.
pub fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// Processor time, this process's and that of all others.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    at: std::time::Instant,
    machine: Duration,
    own: Duration,
}

impl Usage {
    /// Until now; none where /proc/stat cannot be read.
    pub fn now() -> Option<Usage> {
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        // user, nice, system, idle, iowait, irq, softirq, steal in hundredths of a second (USER_HZ).
        let ticks: Vec<u64> = text.lines().next()?.split_whitespace().skip(1).map_while(|n| n.parse().ok()).collect();
        let busy = ticks.get(..7)?.iter().sum::<u64>() - ticks[3] - ticks[4];
        let own = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let own = Duration::new(own.tv_sec.unsigned_abs(), own.tv_nsec as u32);
        Some(Usage { at: std::time::Instant::now(), machine: Duration::from_millis(busy * 10), own })
    }

    /// Cores that others kept busy since `before`.
    pub fn foreign_cores(self, before: Usage) -> f64 {
        let machine = self.machine.saturating_sub(before.machine);
        let foreign = machine.saturating_sub(self.own.saturating_sub(before.own));
        foreign.as_secs_f64() / (self.at - before.at).as_secs_f64().max(1e-9)
    }
}

/// Cores this process may run on, in order.
pub fn allowed_cores() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect(),
        Err(_) => vec![0],
    }
}

/// Pins this thread to a core; `false` when the kernel refuses.
pub fn pin(core: usize) -> bool {
    let mut set = CpuSet::new();
    if core >= CpuSet::MAX_CPU {
        return false;
    }
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).is_ok()
}

/// The first of `cores` that is not there, or that this process is kept from.
pub fn refused_core(cores: &[usize]) -> Option<usize> {
    // On a thread of its own: trying is the one way to know, and leaves it pinned.
    std::thread::scope(|scope| scope.spawn(|| cores.iter().copied().find(|core| !pin(*core))).join().ok().flatten())
}

/// Lets the process hold as many descriptors as its hard limit allows, or a million where it may raise that.
pub fn raise_descriptor_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let more = limit.maximum.map(|maximum| maximum.max(1 << 20));
    if setrlimit(Resource::Nofile, Rlimit { current: more, maximum: more }).is_err() {
        limit.current = limit.maximum;
        let _ = setrlimit(Resource::Nofile, limit);
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Where a measurement was made.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Machine {
    /// Processor model.
    pub cpu: String,
    /// Cores this process may use.
    pub cores: usize,
    /// Kernel name and release.
    pub kernel: String,
    /// Memory in MiB.
    pub memory_mib: u64,
}

impl Machine {
    /// This one.
    pub fn here() -> Machine {
        let uname = rustix::system::uname();
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_once(':').map_or_else(|| "unknown".to_owned(), |(_, value)| value.trim().to_owned())
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        Machine {
            cpu: field(&read("/proc/cpuinfo"), "model name"),
            cores: allowed_cores().len(),
            kernel: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
            memory_mib: memory.trim_end_matches(" kB").parse().unwrap_or(0u64) / 1024,
        }
    }
}

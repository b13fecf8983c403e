//! What a process has of mTCP: the configuration, the engine that the first context starts, and the lanes that no context
//! has.

use core::ffi::c_int;
use std::ops::Range;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use capi::{Errno, Result, Words};
use runtime::forks::{self, Lock, Locked};
use runtime::{App, AppHandle, Device, Engine, Model};

use crate::conf::{Asked, File, Settings, Sizes};
use crate::descriptors::Low;
use crate::signals;

/// Ids of a context whose configuration is not libmtcp's.
const MOST_IDS: usize = 1 << 20;

struct Running {
    /// The process that started it.
    forks: u32,
    engine: Engine,
    /// By lane; `None` where a context has it.
    lanes: Vec<Option<AppHandle>>,
    /// Numbers of the engine's descriptors.
    descriptors: Range<usize>,
    model: Model,
    /// What it was started with.
    sizes: Sizes,
    keepalive: bool,
    words: Words,
}

/// Everything, under one lock that no call which waits holds.
struct Process {
    /// The file of `mtcp_init`; `None` before it and after `mtcp_destroy`.
    file: Option<File>,
    asked: Asked,
    running: Option<Running>,
    /// What a parent started: it must not end here.
    copies: Vec<Running>,
}

static PROCESS: Lock<Process> =
    Lock::new(Process { file: None, asked: Asked::NOTHING, running: None, copies: Vec::new() });

/// Number of `mtcp_destroy`s: a context ends with the engine that its lane came from. Written under the lock.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// `EBUSY` for a signal handler that came into a call which has it: waiting there would be for ever.
fn lock() -> Result<Locked<Process>> {
    if forks::is_inside() {
        return Err(Errno::BUSY);
    }
    forks::in_each_child(signals::forked);
    let mut process = PROCESS.lock();
    if let Some(copy) = process.running.take_if(|running| running.forks != forks::count()) {
        process.copies.push(copy);
        // Its devices are in use.
        process.file = None;
    }
    Ok(process)
}

/// A line for whoever runs the program.
pub fn say(line: impl std::fmt::Display) {
    capi::say("mtcp", line);
}

/// `mtcp_init`: reads the configuration; nothing is opened yet.
pub fn init(path: &str) -> Result<()> {
    let mut process = lock()?;
    if process.running.is_some() {
        say("mtcp_init: already initialized; mtcp_destroy comes first");
        return Err(Errno::BUSY);
    }
    let file = File::read(path).map_err(|fault| {
        say(&fault.message);
        fault.errno
    })?;
    for note in &file.notes {
        say(note);
    }
    process.asked.read(&file);
    process.file = Some(file);
    Ok(())
}

impl Process {
    /// The numbers of the engine that runs, or of the one that would be started.
    fn sizes(&self) -> Sizes {
        match (&self.running, &self.file) {
            (Some(running), _) => running.sizes,
            (None, Some(file)) => file.sizes(self.asked.set()),
            (None, None) => File::none().sizes(self.asked.set()),
        }
    }
}

/// `mtcp_getconf`.
pub fn sizes() -> Result<Sizes> {
    let mut process = lock()?;
    let sizes = process.sizes();
    process.asked.tell(sizes);
    Ok(sizes)
}

/// `mtcp_setconf`: what is above zero, and neither as it was told nor as it was given before.
pub fn set_sizes(sizes: Sizes) -> Result<()> {
    lock()?.asked.give(sizes);
    Ok(())
}

/// A lane for a context, and where it goes back to.
pub struct Lease {
    /// The lane's application end.
    pub app: App,
    /// Ids that the context may have.
    pub max_ids: usize,
    /// Those of them to be given out last.
    pub late_ids: Range<usize>,
    /// Sockets ask silent peers whether they are there.
    pub keepalive: bool,
    /// What [`give_back`] needs.
    pub ticket: Ticket,
}

/// Where a lane came from.
#[derive(Clone, Copy)]
pub struct Ticket {
    lane: usize,
    /// Of the engine; `None` where it is not this module's.
    generation: Option<u32>,
    model: Model,
}

impl Ticket {
    /// Whether `mtcp_destroy` has ended the engine since.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.generation.is_some_and(|generation| GENERATION.load(Ordering::Acquire) != generation)
    }
}

/// `mtcp_create_context`: lane `cpu` where it is free, else the next that is. The first call starts the engine, and each pins
/// its thread where the configuration names cores. `EINVAL` for what is no core of this machine, `EPERM` before `mtcp_init`, `EBUSY`
/// where all lanes have contexts; why the thread cannot be pinned.
pub fn lease(cpu: c_int) -> Result<Lease> {
    // SAFETY: asks for a number.
    let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    let wanted = usize::try_from(cpu).ok().filter(|_| i64::from(cpu) < cores).ok_or_else(|| {
        say(format_args!("mtcp_create_context({cpu}): this machine has {cores} cores, from 0 on"));
        Errno::INVAL
    })?;
    let mut process = lock()?;
    if process.running.is_none() {
        let Some(file) = &process.file else {
            say("mtcp_create_context: mtcp_init comes first");
            return Err(Errno::PERM);
        };
        let settings = file.settings(process.asked.set()).map_err(|line| {
            say(line);
            Errno::INVAL
        })?;
        if let Some(note) = &settings.note {
            say(note);
        }
        process.running = Some(start(&settings, file.words)?);
    }
    let generation = GENERATION.load(Ordering::Relaxed);
    let running = process.running.as_mut().ok_or(Errno::PERM)?;
    let order = (0..running.lanes.len()).map(|n| (wanted + n) % running.lanes.len());
    let Some(lane) = order.into_iter().find(|lane| running.lanes[*lane].is_some()) else {
        let lanes = running.lanes.len();
        say(format_args!(
            "mtcp_create_context({cpu}): all {lanes} lanes have contexts (num_cores says how many there are)"
        ));
        return Err(Errno::BUSY);
    };
    // Where the configuration names cores; the lane is not taken where that fails.
    running.lanes[lane].as_ref().ok_or(Errno::BUSY)?.pin().map_err(|error| failed(&error, running.words))?;
    let app = running.lanes[lane].take().ok_or(Errno::BUSY)?.into_app();
    let ticket = Ticket { lane, generation: Some(generation), model: running.model };
    let late_ids = running.descriptors.clone();
    let max_ids = running.sizes.max_concurrency.max(1) as usize;
    Ok(Lease { app, max_ids, late_ids, keepalive: running.keepalive, ticket })
}

/// A lane that is no engine's of this process's configuration, and goes with its context.
pub fn own(app: App) -> Lease {
    let ticket = Ticket { lane: 0, generation: None, model: Model::Inline };
    Lease { app, max_ids: MOST_IDS, late_ids: 0..0, keepalive: false, ticket }
}

fn failed(error: &runtime::Error, words: Words) -> Errno {
    say(words.put(&error.to_string()));
    Errno::from_raw_os_error(error.errno())
}

fn start(settings: &Settings, words: Words) -> Result<Running> {
    let Settings { config, sizes, keepalive, note: _ } = settings;
    let forks = forks::watch();
    capi::say_what_happens("mtcp");
    let low = Low::take();
    let engine = Engine::start(config);
    let descriptors = low.release();
    let mut engine = engine.map_err(|error| failed(&error, words))?;
    // After the engine's own, which then comes last.
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function may run at exit; it takes no lock that is held.
        unsafe { libc::atexit(at_exit) };
    });
    for line in engine.warnings() {
        say(words.put(line));
    }
    if config.ports.iter().any(|port| matches!(port.device, Device::Xdp(_))) {
        let (ports, range) = (engine.local_ports(), "net.ipv4.ip_local_port_range");
        match (ports.nth(0), ports.iter().last()) {
            (Some(first), Some(last)) => say(format_args!(
                "connections leave from {} ports from {first} to {last} (local_ports names others), so many from each address to one \
                 remote port, and then from free ones of {range}",
                ports.count()
            )),
            _ => say(format_args!("connections leave from free ports of {range} (local_ports names others)")),
        }
    }
    let lanes = (0..engine.lanes()).map(|lane| engine.take_app(lane)).collect();
    Ok(Running { forks, engine, lanes, descriptors, model: config.model, sizes: *sizes, keepalive: *keepalive, words })
}

/// The other end of [`lease`], once everything on the lane is closed.
pub fn give_back(mut app: App, ticket: Ticket) {
    if let Model::Inline = ticket.model
        && !ticket.is_over()
    {
        // Nobody else would send what is left.
        app.drain(std::time::Duration::from_secs(1));
    }
    if ticket.generation.is_none() {
        return;
    }
    let handle = AppHandle::leave(app);
    let Ok(mut process) = lock() else { return };
    let Some(running) = process.running.as_mut().filter(|_| !ticket.is_over()) else { return };
    running.lanes[ticket.lane] = Some(handle);
}

/// What a process had, to be ended.
pub struct Ending {
    engine: Engine,
    lanes: Vec<Option<AppHandle>>,
}

impl Ending {
    /// Ends the lanes that no context has, and the engine, which waits for what is in flight as [`Engine::shutdown`] says.
    pub fn end(self) {
        drop(self.lanes);
        self.engine.shutdown();
    }
}

/// `mtcp_destroy`: the engine is the process's no more; contexts end with their next call, but for those that the caller ends.
pub fn take_running() -> Result<Option<Ending>> {
    let mut process = lock()?;
    process.file = None;
    GENERATION.fetch_add(1, Ordering::AcqRel);
    let running = process.running.take();
    drop(process);
    signals::wake_all();
    Ok(running.map(|Running { engine, lanes, .. }| Ending { engine, lanes }))
}

/// A process that ends by `exit`: the lanes that no context has end here, and the engine with those that contexts of other threads
/// still have afterwards, by itself.
extern "C" fn at_exit() {
    let running = match PROCESS.try_lock() {
        Some(mut process) => process.running.take_if(|running| running.forks == forks::count()),
        None => None,
    };
    match running {
        Some(running) if running.lanes.iter().all(Option::is_some) => drop(running),
        Some(Running { engine, lanes, .. }) => {
            drop(lanes);
            std::mem::forget(engine);
        }
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtcp_destroy_ends_what_its_engine_lent() {
        let ticket = |generation| Ticket { lane: 0, generation, model: Model::Inline };
        let (lent, own) = (ticket(Some(GENERATION.load(Ordering::Relaxed))), ticket(None));
        assert!(!lent.is_over() && !own.is_over());
        take_running().unwrap();
        assert!(lent.is_over() && !own.is_over());
    }
}

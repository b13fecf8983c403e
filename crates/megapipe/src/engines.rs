//! The engines behind channels of lanes: one for each configuration file, as long as it has channels.

use std::time::Duration;

use capi::{Errno, Result, Words};
use runtime::forks::{self, Lock};
use runtime::{App, Config, Engine, Model};

struct Running {
    id: u64,
    /// The process that started it.
    forks: u32,
    path: String,
    engine: Engine,
    channels: usize,
    /// Lanes that have had a channel; without one nobody runs a lane of model "inline".
    taken: usize,
    inline: bool,
    /// Somebody looks, or has looked, whether all have one.
    looked: bool,
}

struct Engines {
    running: Vec<Running>,
    /// What a parent started.
    copies: Vec<Running>,
    last: u64,
}

/// Whoever starts an engine has it until that is done, and a fork waits for it.
static ENGINES: Lock<Engines> = Lock::new(Engines { running: Vec::new(), copies: Vec::new(), last: 0 });

/// A channel's part in an engine, which ends with its last one. It goes after the channel.
#[derive(Debug)]
pub struct Member(u64);

impl Drop for Member {
    fn drop(&mut self) {
        let mut all = ENGINES.lock();
        let Some(at) = all.running.iter().position(|running| running.id == self.0) else { return };
        all.running[at].channels -= 1;
        if all.running[at].channels == 0 {
            let ended = all.running.swap_remove(at);
            drop(all);
            ended.engine.shutdown();
        }
    }
}

/// What an errno cannot say goes to stderr, once, where a program is told why it does not start.
fn told(why: impl std::fmt::Display, errno: Errno) -> Errno {
    capi::say("megapipe", why);
    errno
}

fn start(path: &str) -> Result<(Engine, bool)> {
    let text = std::fs::read_to_string(path).map_err(|e| told(format!("{path}: {e}"), capi::errno::of_io(&e)))?;
    let config = Config::from_toml(path, &text).map_err(|e| told(e, Errno::INVAL))?;
    capi::say_what_happens("megapipe");
    let engine = Engine::start(&config)
        .map_err(|e| told(Words::TOML.put(&e.to_string()), Errno::from_raw_os_error(e.errno())))?;
    engine.warnings().iter().for_each(|warning| capi::say("megapipe", Words::TOML.put(warning)));
    Ok((engine, config.model == Model::Inline))
}

impl Running {
    fn without_channel(&self) -> usize {
        if self.inline { self.engine.lanes().saturating_sub(self.taken) } else { 0 }
    }
}

/// How long a program may take to make its other channels once one of them listens.
const OTHERS: Duration = Duration::from_secs(1);

/// A channel of an engine listens. Connections that come to a lane that nobody runs are answered by nobody: that is told, unless
/// the program is about to make its channel.
pub fn listens(member: &Member) {
    let mut all = ENGINES.lock();
    let Some(running) = all.running.iter_mut().find(|running| running.id == member.0) else { return };
    if running.without_channel() == 0 || std::mem::replace(&mut running.looked, true) {
        return;
    }
    let id = running.id;
    // Signals are for the program's threads.
    let before = all_signals_blocked();
    let _ = std::thread::Builder::new().name("megapipe".into()).spawn(move || {
        std::thread::sleep(OTHERS);
        tell_of_lanes_without_channel(id);
    });
    // SAFETY: a mask that was this thread's.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
}

/// No signal comes to this thread, and those that it starts, any more: which did.
fn all_signals_blocked() -> libc::sigset_t {
    // SAFETY: sets are numbers, filled in here.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    }
}

fn tell_of_lanes_without_channel(id: u64) {
    let all = ENGINES.lock();
    let Some(running) = all.running.iter().find(|running| running.id == id) else { return };
    let (without, lanes, path) = (running.without_channel(), running.engine.lanes(), running.path.clone());
    drop(all);
    if without > 0 {
        let line = format_args!(
            "{path}: {without} of {lanes} lanes have no channel, and connections that come to them no answer; make as many \
             channels as lanes, or let the model be \"guarded\" or \"paired\""
        );
        capi::say("megapipe", line);
    }
}

/// A lane of a configuration's engine, which is started if it does not run: that one, or the next that is free. The thread is
/// pinned to its core; where that fails the lane stays free.
pub fn take(path: &str, lane: Option<usize>) -> Result<(App, Member)> {
    let forks = forks::watch();
    let mut locked = ENGINES.lock();
    let all = &mut *locked;
    // A parent's work in the parent; what is here is a copy, which must not end them.
    all.copies.extend(all.running.extract_if(.., |running| running.forks != forks));
    if !all.running.iter().any(|running| running.path == path) {
        let (engine, inline) = start(path)?;
        all.last += 1;
        let id = all.last;
        let (channels, taken, looked) = (0, 0, false);
        all.running.push(Running { id, forks, path: path.into(), engine, channels, taken, inline, looked });
    }
    let at = all.running.iter().position(|running| running.path == path).ok_or(Errno::INVAL)?;
    let running = &mut all.running[at];
    let lanes = running.engine.lanes();
    let taken = match lane {
        Some(lane) if lane >= lanes => Err(Errno::INVAL),
        Some(lane) => running.engine.take_app(lane).ok_or(Errno::BUSY),
        None => (0..lanes).find_map(|lane| running.engine.take_app(lane)).ok_or(Errno::BUSY),
    };
    let attached = taken.and_then(|end| match end.pin() {
        Ok(()) => Ok(end.into_app()),
        Err(error) => {
            running.engine.put_back(end);
            let errno = Errno::from_raw_os_error(error.errno());
            Err(told(Words::TOML.put(&error.to_string()), errno))
        }
    });
    match attached {
        Ok(app) => {
            running.channels += 1;
            running.taken += 1;
            let member = Member(running.id);
            Ok((app, member))
        }
        Err(errno) => {
            if running.channels == 0 {
                let ended = all.running.swap_remove(at);
                drop(locked);
                ended.engine.shutdown();
            }
            Err(errno)
        }
    }
}

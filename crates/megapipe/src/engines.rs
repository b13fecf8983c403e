//! The engines behind channels of lanes: one for each configuration file, as long as it has channels.

use std::sync::{Mutex, MutexGuard, PoisonError};

use capi::{Errno, Result, forks};
use runtime::{App, Config, Engine, Error};

struct Running {
    id: u64,
    /// The process that started it.
    forks: u32,
    path: String,
    engine: Engine,
    channels: usize,
}

struct Engines {
    running: Vec<Running>,
    /// What a parent started.
    copies: Vec<Running>,
    last: u64,
}

static ENGINES: Mutex<Engines> = Mutex::new(Engines { running: Vec::new(), copies: Vec::new(), last: 0 });

fn lock() -> MutexGuard<'static, Engines> {
    ENGINES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A channel's part in an engine, which ends with its last one. It goes after the channel.
#[derive(Debug)]
pub struct Member(u64);

impl Drop for Member {
    fn drop(&mut self) {
        let mut all = lock();
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

fn start(path: &str) -> Result<Engine> {
    let text = std::fs::read_to_string(path).map_err(|e| told(format!("{path}: {e}"), capi::errno::of_io(&e)))?;
    let config = Config::from_toml(path, &text).map_err(|e| told(e, Errno::INVAL))?;
    let engine = Engine::start(&config).map_err(|e| {
        let errno = if matches!(e, Error::Config(_)) { Errno::INVAL } else { Errno::NODEV };
        told(e, errno)
    })?;
    engine.warnings().iter().for_each(|warning| capi::say("megapipe", warning));
    Ok(engine)
}

/// A lane of a configuration's engine, which is started if it does not run: that one, or the next that is free. The thread is
/// pinned to its core; where that fails the lane stays free.
pub fn take(path: &str, lane: Option<usize>) -> Result<(App, Member)> {
    let forks = forks::watch();
    let mut locked = lock();
    let all = &mut *locked;
    // A parent's work in the parent; what is here is a copy, which must not end them.
    all.copies.extend(all.running.extract_if(.., |running| running.forks != forks));
    if !all.running.iter().any(|running| running.path == path) {
        let engine = start(path)?;
        all.last += 1;
        let id = all.last;
        all.running.push(Running { id, forks, path: path.into(), engine, channels: 0 });
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
            let errno = match &error {
                Error::System { source, .. } => capi::errno::of_io(source),
                _ => Errno::INVAL,
            };
            Err(told(error, errno))
        }
    });
    match attached {
        Ok(app) => {
            running.channels += 1;
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

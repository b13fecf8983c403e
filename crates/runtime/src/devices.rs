//! Which devices of an engine are still there, and who is told when none is.

use std::sync::{Mutex, MutexGuard, PoisonError};

type Told = Box<dyn FnOnce(&str) + Send>;

#[derive(Default)]
struct Left {
    /// Devices that there are, by bit.
    here: u32,
    /// Those whose interface is down.
    down: u32,
    /// What was said of the last one that went, once none is left.
    over: Option<String>,
    told: Option<Told>,
}

/// The devices of an engine.
#[derive(Default)]
pub(crate) struct Devices(Mutex<Left>);

impl Devices {
    /// So many, all there.
    pub fn new(count: usize) -> Devices {
        Devices(Mutex::new(Left {
            here: 1u32.checked_shl(count as u32).unwrap_or(0).wrapping_sub(1),
            ..Left::default()
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A device is no more. Each lane may say it of its own queue.
    pub fn gone(&self, device: usize, name: &str) {
        let mut left = self.lock();
        let bit = 1u32.checked_shl(device as u32).unwrap_or(0);
        if left.here & bit == 0 {
            return;
        }
        left.here &= !bit;
        let line = format!("{name} is gone: start again when it is back");
        if left.here > 0 {
            tracing::error!("{line}");
            return;
        }
        left.over = Some(line.clone());
        match left.told.take() {
            Some(told) => {
                // Who is told may ask what there is.
                drop(left);
                told(&line);
            }
            None => tracing::error!("{line}"),
        }
    }

    /// A device's interface is down, or up again. Whether that is news: each lane may say it of its own queue.
    pub fn is_down(&self, device: usize, down: bool) -> bool {
        let mut left = self.lock();
        let bit = 1u32.checked_shl(device as u32).unwrap_or(0);
        let was = left.down & bit != 0;
        left.down = if down { left.down | bit } else { left.down & !bit };
        was != down
    }

    /// Calls `f` once when the last device is gone, or at once where it is.
    pub fn when_gone(&self, f: Told) {
        let mut left = self.lock();
        match left.over.clone() {
            Some(line) => {
                drop(left);
                f(&line);
            }
            None => left.told = Some(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn who_asked_is_told_once_and_only_of_the_last() {
        let devices = Devices::new(2);
        let told = Arc::new(AtomicU32::new(0));
        let count = |told: &Arc<AtomicU32>| {
            let told = told.clone();
            Box::new(move |line: &str| {
                assert_eq!(line, "b is gone: start again when it is back");
                told.fetch_add(1, Ordering::Relaxed);
            })
        };
        devices.when_gone(count(&told));
        devices.gone(0, "a");
        devices.gone(0, "a");
        assert_eq!(told.load(Ordering::Relaxed), 0);
        devices.gone(1, "b");
        devices.gone(1, "b");
        assert_eq!(told.load(Ordering::Relaxed), 1);
        // Late, and told all the same.
        devices.when_gone(count(&told));
        assert_eq!(told.load(Ordering::Relaxed), 2);
    }
}

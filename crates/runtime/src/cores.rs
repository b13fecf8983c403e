//! The cores that lanes are pinned to: any, in any order, as long as this process may use them.

use crate::error::Error;

/// Highest core that is looked at, to say which there are.
const MOST: usize = 1024;

/// `0-3,7` of these numbers in order.
fn ranges(cores: impl Iterator<Item = usize>) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for core in cores {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == core => *last = core,
            _ => parts.push((core, core)),
        }
    }
    let part = |(first, last)| if first == last { format!("{first}") } else { format!("{first}-{last}") };
    parts.into_iter().map(part).collect::<Vec<_>>().join(",")
}

/// Refuses cores that do not exist or that this process is kept from; before any device is opened.
pub(crate) fn check(cores: &[usize]) -> Result<(), Error> {
    if cores.is_empty() {
        return Ok(());
    }
    // On a thread of its own: trying is the one way to know, and leaves it pinned.
    std::thread::scope(|scope| {
        let tried = scope.spawn(|| match cores.iter().find(|core| pin(**core).is_err()) {
            None => Ok(()),
            Some(bad) => Err(Error::Config(format!(
                "core {bad}: this process may use {} (--cores, or `cores` of the configuration)",
                ranges((0..MOST).filter(|core| pin(*core).is_ok()))
            ))),
        });
        tried.join().unwrap_or_else(|_| Err(Error::Config("trying the cores failed".into())))
    })
}

/// Cores that several lanes were given.
pub(crate) fn shared(cores: &[usize]) -> Option<usize> {
    cores.iter().enumerate().find(|(at, core)| cores[..*at].contains(core)).map(|(_, core)| *core)
}

pub(crate) fn pin(core: usize) -> Result<(), Error> {
    let mut set = rustix::thread::CpuSet::new();
    if core >= rustix::thread::CpuSet::MAX_CPU {
        return Err(Error::Config(format!("core {core} is more than this system can have")));
    }
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(std::io::Error::from)
        .map_err(Error::system(format!("pinning to core {core} (does it exist, and may this process use it?)")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_ranges() {
        assert_eq!(ranges([0, 1, 2, 5, 7, 8].into_iter()), "0-2,5,7-8");
        assert_eq!(ranges([3].into_iter()), "3");
    }

    #[test]
    fn a_core_that_is_not_there_is_named_and_so_are_those_that_are() {
        let here = rustix::thread::sched_getaffinity(None).unwrap();
        let some = (0..MOST).find(|core| here.is_set(*core)).unwrap();
        check(&[some]).unwrap();
        check(&[some, some]).unwrap();
        let refused = check(&[some, 1000]).unwrap_err().to_string();
        assert!(
            refused.starts_with("core 1000: this process may use ") && refused.contains(&some.to_string()),
            "{refused}"
        );
        // Asking has changed nothing here.
        assert_eq!(rustix::thread::sched_getaffinity(None).unwrap().count(), here.count());
        assert_eq!((shared(&[3, 1, 2]), shared(&[3, 1, 3])), (None, Some(3)));
    }
}

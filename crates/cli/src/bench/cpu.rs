//! Whose time passed on which core: /proc/stat by core, and the processes that are ours.
//!
//! The kernel counts in hundredths of a second. Softirq time is counted on the core where it ran, whichever process it
//! interrupted: that is the number to compare.

use std::collections::BTreeMap;
use std::time::Duration;

/// /proc/stat counts in these (USER_HZ).
const TICKS: f64 = 100.0;

/// user, nice, system, idle, iowait, irq, softirq, steal.
type Times = [u64; 8];

/// The cores' times at one moment.
#[derive(Clone, Debug, Default)]
pub struct Cores(BTreeMap<usize, Times>);

/// What some cores did in between, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// Not idle; what the hypervisor took is not in it.
    pub busy: f64,
    /// In softirq.
    pub softirq: f64,
    /// In processes and system calls.
    pub process: f64,
    /// Taken by the hypervisor for others.
    pub steal: f64,
    /// All of it.
    pub total: f64,
}

impl Spent {
    /// The share of the time that was not idle.
    pub fn share(&self) -> f64 {
        self.busy / self.total.max(1e-9)
    }

    /// The share of the time that the hypervisor took.
    pub fn stolen(&self) -> f64 {
        self.steal / self.total.max(1e-9)
    }
}

impl Cores {
    /// Until now; nothing where /proc/stat cannot be read.
    pub fn now() -> Cores {
        Cores::parse(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn parse(text: &str) -> Cores {
        let core = |line: &str| {
            let mut words = line.strip_prefix("cpu")?.split_whitespace();
            let index = words.next()?.parse().ok()?;
            let mut times = [0; 8];
            times.iter_mut().zip(words).for_each(|(time, word)| *time = word.parse().unwrap_or(0));
            Some((index, times))
        };
        // The first line is the sum of all: its first word is no number.
        Cores(text.lines().filter(|line| !line.starts_with("cpu ")).filter_map(core).collect())
    }

    /// What these cores did since `before`; all of them when none is named.
    pub fn since(&self, before: &Cores, cores: &[usize]) -> Spent {
        let mut spent = Spent::default();
        for (index, now) in &self.0 {
            let Some(before) = before.0.get(index).filter(|_| cores.is_empty() || cores.contains(index)) else {
                continue;
            };
            let passed = |at: usize| now[at].saturating_sub(before[at]) as f64 / TICKS;
            let process = passed(0) + passed(1) + passed(2);
            let busy = process + passed(5) + passed(6);
            spent.process += process;
            spent.softirq += passed(6);
            spent.steal += passed(7);
            spent.busy += busy;
            spent.total += busy + passed(3) + passed(4) + passed(7);
        }
        spent
    }
}

/// CPU time of a process, or of one thread, user and system; nothing when it has gone.
pub fn process_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in brackets, may hold anything: what follows the last one is numbers, utime the twelfth.
    let times = |stat: &str| -> Option<u64> {
        let mut words = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
        Some(words.next()?.parse::<u64>().ok()? + words.next()?.parse::<u64>().ok()?)
    };
    Duration::from_secs_f64(times(&stat).unwrap_or(0) as f64 / TICKS)
}

/// A process and those that it started.
pub fn family(pid: u32) -> Vec<u32> {
    // Children are the thread's that started them.
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut all = vec![pid];
    for thread in threads {
        let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        all.extend(children.split_whitespace().filter_map(|word| word.parse().ok()).flat_map(family));
    }
    all
}

/// Processes, threads of the kernel among them, by the beginning of their names.
pub fn named(prefix: &str) -> Vec<u32> {
    let Ok(dir) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = dir.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let named =
        |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with(prefix));
    let mut threads: Vec<u32> = pids.filter(named).collect();
    threads.sort_unstable();
    threads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_cores() {
        let before = Cores::parse("cpu  9 9 9 9 9 9 9 9\ncpu0 0 0 0 0 0 0 0 0 0 0\ncpu1 10 0 10 100 0 0 5 0\nintr 3\n");
        let after = Cores::parse("cpu  9 9 9 9 9 9 9 9\ncpu0 100 0 0 0 0 0 0 0 0 0\ncpu1 30 0 20 150 0 0 25 2\n");
        let spent = after.since(&before, &[1]);
        for (found, expected) in
            [(spent.process, 0.3), (spent.softirq, 0.2), (spent.busy, 0.5), (spent.steal, 0.02), (spent.total, 1.02)]
        {
            assert!((found - expected).abs() < 1e-9, "{spent:?}");
        }
        assert!((spent.total - 1.02).abs() < 1e-9 && (spent.share() - 0.5 / 1.02).abs() < 1e-9);
        assert!((after.since(&before, &[]).total - 2.02).abs() < 1e-9);
        assert_eq!(after.since(&before, &[7]), Spent::default());
    }

    #[test]
    fn this_machine_has_times() {
        let cores = Cores::now();
        assert!(!cores.0.is_empty() && cores.0.values().all(|times| times.iter().sum::<u64>() > 0));
        let start = std::time::Instant::now();
        while start.elapsed() < Duration::from_millis(60) {
            std::hint::spin_loop();
        }
        assert!(process_time(std::process::id()) > Duration::ZERO);
        assert_eq!(process_time(u32::MAX), Duration::ZERO);
        let mut child = std::process::Command::new("sleep").arg("9").spawn().expect("there is sleep");
        assert_eq!(family(child.id()), [child.id()]);
        assert!(family(std::process::id()).contains(&child.id()));
        child.kill().and_then(|()| child.wait()).expect("it ran");
    }
}

//! A limit to the CPU time of what is measured: a group of processes and threads of the kernel (cgroup, either version).

use crate::failure::{Failure, words};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;
use std::{fs, io};

/// One of these and it is over: short, so that what waits for the next does not wait for long.
const PERIOD_US: f64 = 5000.0;
/// The kernel gives no less time than this in a period.
const LEAST_US: f64 = 1000.0;
/// A thread of the kernel cannot be moved until it has run for the first time: how often it is tried again, and after what.
const TRIES: usize = 200;
/// See [`TRIES`].
const AGAIN: Duration = Duration::from_millis(10);

/// Holds what was put in it to a share of a core; it goes with this value, and what is still in it is free.
pub struct Quota {
    group: PathBuf,
}

impl Quota {
    /// Of so many cores, fractions too.
    pub fn new(cores: f64) -> Result<Quota, Failure> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let Some((root, version)) = mounts.lines().filter_map(controller).find(|(root, version)| {
            *version == 1
                || fs::read_to_string(root.join("cgroup.controllers"))
                    .is_ok_and(|text| text.split_whitespace().any(|word| word == "cpu"))
        }) else {
            return Err(Failure::new("no CPU control groups are mounted", "mount -t cgroup2 none /sys/fs/cgroup"));
        };
        let group = root.join(format!("corelane-bench-{}", std::process::id()));
        let failed = |error: io::Error| {
            let what = format!("{}: {}", group.display(), words(&error));
            match error.kind() {
                io::ErrorKind::PermissionDenied => Failure::new(what, "run as root"),
                _ => Failure::told(what),
            }
        };
        fs::create_dir(&group).map_err(failed)?;
        // Gone again if one of these fails.
        let quota = Quota { group: group.clone() };
        let (us, period) = times(cores);
        match version {
            1 => {
                fs::write(group.join("cpu.cfs_period_us"), period).map_err(failed)?;
                fs::write(group.join("cpu.cfs_quota_us"), us).map_err(failed)?;
            }
            _ => {
                // Where it is on already nothing changes.
                let _ = fs::write(root.join("cgroup.subtree_control"), "+cpu");
                fs::write(group.join("cpu.max"), format!("{us} {period}")).map_err(failed)?;
            }
        }
        Ok(quota)
    }

    /// Puts processes in it, with all their threads, or threads of the kernel.
    pub fn hold(&self, pids: &[u32]) -> Result<(), Failure> {
        let put = |pid: &u32| fs::write(self.group.join("cgroup.procs"), pid.to_string());
        let early =
            |written: &io::Result<()>| written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput);
        pids.iter().try_for_each(|pid| {
            let mut written = put(pid);
            for _ in 0..TRIES {
                if !early(&written) {
                    break;
                }
                sleep(AGAIN);
                written = put(pid);
            }
            written
                .map_err(|error| Failure::told(format!("{}: process {pid}: {}", self.group.display(), words(&error))))
        })
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        let held = fs::read_to_string(self.group.join("cgroup.procs")).unwrap_or_default();
        let root = self.group.parent().unwrap_or(Path::new("/"));
        for pid in held.lines() {
            // One that has ended meanwhile is out of it.
            let _ = fs::write(root.join("cgroup.procs"), pid);
        }
        // One that is left behind, empty, holds nothing.
        let _ = fs::remove_dir(&self.group);
    }
}

/// CPU time and the period that it is of, µs, as the kernel takes them.
fn times(cores: f64) -> (String, String) {
    let period = PERIOD_US.max(LEAST_US / cores);
    (format!("{:.0}", period * cores), format!("{period:.0}"))
}

/// Where a line of mountinfo mounts groups that may know of CPU time, and their version.
fn controller(line: &str) -> Option<(PathBuf, u8)> {
    let (place, what) = line.split_once(" - ")?;
    let root = PathBuf::from(place.split(' ').nth(4)?);
    let mut what = what.split(' ');
    let (kind, options) = (what.next()?, what.nth(1)?);
    match kind {
        "cgroup" if options.split(',').any(|option| option == "cpu") => Some((root, 1)),
        "cgroup2" => Some((root, 2)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found() {
        let one = "31 26 0:27 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu";
        assert_eq!(controller(one), Some(("/sys/fs/cgroup/cpu".into(), 1)));
        let both = "31 26 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct";
        assert_eq!(controller(both), Some(("/sys/fs/cgroup/cpu,cpuacct".into(), 1)));
        assert_eq!(controller("31 26 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset"), None);
        let two = "35 24 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(controller(two), Some(("/sys/fs/cgroup".into(), 2)));
    }

    #[test]
    fn no_share_is_too_small_for_the_kernel() {
        let told = |cores: f64| times(cores);
        assert_eq!(told(0.5), ("2500".into(), "5000".into()));
        assert_eq!(told(2.0), ("10000".into(), "5000".into()));
        assert_eq!(told(0.05), ("1000".into(), "20000".into()));
        assert_eq!(told(0.01), ("1000".into(), "100000".into()));
    }

    #[test]
    fn what_it_holds_is_free_afterwards() {
        let quota = match Quota::new(0.5) {
            Ok(quota) => quota,
            Err(failure) => return testing::skip(failure),
        };
        let mut child = std::process::Command::new("sleep").arg("10").spawn().expect("sleep");
        quota.hold(&[child.id()]).expect("it may be held");
        let group = quota.group.clone();
        let name = group.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
        let groups = || fs::read_to_string(format!("/proc/{}/cgroup", child.id())).expect("it runs");
        assert!(groups().contains(&name));
        drop(quota);
        assert!(!groups().contains(&name) && !group.exists());
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
    }
}

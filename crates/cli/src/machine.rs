//! The machine as /sys and /proc show it, and folders of records.

use ::io::filters::Filters;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// This machine.
#[derive(Debug)]
pub struct Machine {
    /// Folder that holds /sys and /proc.
    root: PathBuf,
    /// Folder of what is written down until the machine starts again.
    run: PathBuf,
    /// Number of this network namespace.
    namespace: u64,
    /// Receive rules of an interface, by its name.
    filters: fn(&str) -> io::Result<Filters>,
}

impl Machine {
    /// The real one, seen from this process's network namespace.
    pub fn here() -> io::Result<Machine> {
        let namespace = fs::metadata("/proc/thread-self/ns/net")?.ino();
        Ok(Machine { root: "/".into(), run: "/run/corelane".into(), namespace, filters: Filters::of })
    }

    #[cfg(test)]
    pub fn made(root: PathBuf, namespace: u64, filters: fn(&str) -> io::Result<Filters>) -> Machine {
        Machine { run: root.join("run"), root, namespace, filters }
    }

    /// Folder that holds /sys and /proc.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Number of this network namespace.
    pub fn namespace(&self) -> u64 {
        self.namespace
    }

    /// Folder of records of a kind. A restart of the machine clears it, and all that was set.
    pub fn records(&self, kind: &str) -> PathBuf {
        self.run.join(kind)
    }

    /// Number of an interface, where /sys shows it.
    pub fn index(&self, interface: &str) -> Option<u32> {
        let file = self.root.join("sys/class/net").join(interface).join("ifindex");
        fs::read_to_string(file).ok()?.trim().parse().ok()
    }

    /// Receive rules of an interface.
    pub fn filters(&self, interface: &str) -> io::Result<Filters> {
        (self.filters)(interface)
    }

    /// A file in the /proc folder of each process.
    pub fn of_processes(&self, file: &str) -> impl Iterator<Item = PathBuf> {
        let entries = fs::read_dir(self.root.join("proc")).into_iter().flatten().flatten();
        let is_process = |name: &str| name.bytes().all(|digit| digit.is_ascii_digit());
        entries.filter(move |entry| entry.file_name().to_str().is_some_and(is_process)).map({
            let file = file.to_owned();
            move |entry| entry.path().join(&file)
        })
    }

    /// True while a process is in a network namespace, or it has a name.
    pub fn has_namespace(&self, number: u64) -> bool {
        let named = fs::read_dir("/run/netns").into_iter().flatten().flatten().map(|entry| entry.path());
        named.chain(self.of_processes("ns/net")).any(|path| fs::metadata(path).is_ok_and(|at| at.ino() == number))
    }

    /// irqbalance(1) moves interrupts by its own rule.
    pub fn balances_interrupts(&self) -> bool {
        self.of_processes("comm").any(|file| fs::read_to_string(file).is_ok_and(|name| name.trim() == "irqbalance"))
    }
}

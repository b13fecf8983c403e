//! Settings of an interface's zone: read from /sys and /proc, and planned.

use super::mask::CpuMask;
use ::io::bpf::Blocks;
use ::io::filters::Rule;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// A CPU mask that the zone changes. Masks are in the kernel's notation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Its file.
    pub file: PathBuf,
    /// Name of an interrupt's handler: as long as it has the number, this is the interrupt that was set.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub handler: Option<String>,
    /// Mask before.
    pub was: String,
    /// Mask in the zone.
    pub now: String,
}

/// A queue's mask.
#[derive(Debug, PartialEq, Eq)]
struct Queue {
    file: PathBuf,
    mask: CpuMask,
}

/// An interrupt of a queue.
#[derive(Debug, PartialEq, Eq)]
struct Interrupt {
    file: PathBuf,
    handler: String,
    queue: usize,
    mask: CpuMask,
}

/// Queues and interrupts of an interface.
#[derive(Debug, Default)]
pub struct Facts {
    /// rps_cpus of receive queues.
    receive: Vec<Queue>,
    /// xps_cpus of transmit queues.
    transmit: Vec<Queue>,
    interrupts: Vec<Interrupt>,
    /// The device has interrupts, none of which names a queue.
    unnamed: bool,
}

impl Facts {
    /// Reads what `root`/sys and `root`/proc show of an interface. A machine has its root at `/`.
    pub fn read(root: &Path, interface: &str) -> Facts {
        let folder = root.join("sys/class/net").join(interface);
        let (interrupts, unnamed) = interrupts(root, &folder);
        let queues = |of: &str, file: &str| queues(&folder.join("queues"), of, file);
        Facts { receive: queues("rx-", "rps_cpus"), transmit: queues("tx-", "xps_cpus"), interrupts, unnamed }
    }

    /// True where interrupts of queues are known.
    pub fn has_interrupts(&self) -> bool {
        !self.interrupts.is_empty()
    }

    /// True where the device has interrupts, and none is known by its queue.
    pub fn has_unnamed(&self) -> bool {
        self.unnamed
    }

    /// Settings to change, so that queue N is the business of core N of `cores`, and of those that come round to it where there are
    /// more cores than queues.
    ///
    /// With `delivered` an XDP program hands frames to cores, which RPS would take from them again: it is off, as it is where each core
    /// has a queue. Else RPS spreads each queue over its cores.
    pub fn plan(&self, cores: &[u32], delivered: bool) -> Vec<Setting> {
        let mut settings = Vec::new();
        let Some(count) = Some(cores.len()).filter(|count| *count > 0) else { return settings };
        let mut set = |file: &Path, handler: Option<&str>, was: &CpuMask, now: CpuMask| {
            if *was != now {
                let (was, now) = (was.to_string(), now.to_string());
                settings.push(Setting { file: file.into(), handler: handler.map(str::to_owned), was, now });
            }
        };
        for Interrupt { file, handler, queue, mask } in &self.interrupts {
            set(file, Some(handler), mask, CpuMask::from_iter([cores[queue % count]]));
        }
        for (number, Queue { file, mask }) in self.receive.iter().enumerate() {
            let spread = !delivered && self.receive.len() < count;
            let spread = spread.then(|| cores_of(number, self.receive.len(), cores).collect());
            set(file, None, mask, spread.unwrap_or_default());
        }
        // A single queue has no choice, and its file takes no mask.
        for (number, Queue { file, mask }) in self.transmit.iter().enumerate().filter(|_| self.transmit.len() > 1) {
            let others = mask.cpus().filter(|cpu| !cores.contains(cpu));
            set(file, None, mask, others.chain(cores_of(number, self.transmit.len(), cores)).collect());
        }
        settings
    }

    /// Rules by which frames to a core's ports come to its queue: those of IPv4 first. Cores without a queue whose interrupt is known have
    /// none.
    pub fn rules(&self, cores: &[u32], blocks: &Blocks) -> Vec<Rule> {
        let queues = cores.iter().take(self.receive.len()).enumerate();
        let queues =
            queues.filter(|(queue, core)| self.files_of(*queue).next().is_some() && !cores[..*queue].contains(core));
        let rules = |ipv6: bool| {
            queues.clone().flat_map(move |(queue, core)| {
                let pieces = blocks.pieces(*core);
                pieces.map(move |(first, last)| Rule { ipv6, first, last, queue: queue as u32 })
            })
        };
        rules(false).chain(rules(true)).collect()
    }

    /// Masks of the interrupts of a queue.
    pub fn files_of(&self, queue: usize) -> impl Iterator<Item = &Path> {
        self.interrupts
            .iter()
            .filter(move |interrupt| interrupt.queue == queue)
            .map(|interrupt| interrupt.file.as_path())
    }
}

/// Cores whose business queue `number` of `count` is.
fn cores_of(number: usize, count: usize, cores: &[u32]) -> impl Iterator<Item = u32> + '_ {
    cores.iter().copied().skip(number).step_by(count)
}

fn mask(file: &Path) -> Option<CpuMask> {
    fs::read_to_string(file).ok()?.parse().ok()
}

/// Masks of the queues of one direction, in their order. Without RPS or XPS in the kernel there are none.
fn queues(folder: &Path, of: &str, file: &str) -> Vec<Queue> {
    let files = (0..).map(|number| folder.join(format!("{of}{number}")).join(file));
    files.map_while(|file| Some(Queue { mask: mask(&file)?, file })).collect()
}

/// MSI interrupts of queues, and true where there are others only. Those of a virtio device are its parent's.
fn interrupts(root: &Path, interface: &Path) -> (Vec<Interrupt>, bool) {
    let folders = ["device/msi_irqs", "device/../msi_irqs"];
    let Some(entries) = folders.iter().find_map(|folder| fs::read_dir(interface.join(folder)).ok()) else {
        return (Vec::new(), false);
    };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut numbers: Vec<u32> = numbers.collect();
    numbers.sort_unstable();
    let found = numbers.iter().filter_map(|number| {
        let folder = root.join(format!("proc/irq/{number}"));
        let handlers = fs::read_dir(&folder).ok()?.flatten().filter(|entry| entry.path().is_dir());
        let handler = handlers.filter_map(|entry| entry.file_name().into_string().ok());
        let (handler, queue) = handler.filter_map(|name| Some((queue_of(&name)?, name))).map(|(q, n)| (n, q)).next()?;
        let file = folder.join("smp_affinity");
        Some(Interrupt { mask: mask(&file)?, file, handler, queue })
    });
    let found: Vec<_> = found.collect();
    let unnamed = found.is_empty() && !numbers.is_empty();
    (found, unnamed)
}

/// Queue in the name of an interrupt's handler, as in eth0-TxRx-3, virtio0-input.3, mlx5_comp3@pci:0000:01:00.0, gve-ntfy-blk3@….
/// None in those that are no queue's: eth0, virtio0-config, mlx5_async0@….
fn queue_of(handler: &str) -> Option<usize> {
    const WORDS: [&str; 9] = ["rx", "tx", "rxtx", "txrx", "input", "output", "comp", "blk", "q"];
    let name = handler.split('@').next()?;
    let rest = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = name[rest.len()..].parse().ok()?;
    let rest = rest.trim_end_matches(['-', '.', '_']);
    let word = rest.rsplit(|c: char| !c.is_ascii_alphabetic()).next()?.to_ascii_lowercase();
    WORDS.contains(&word.as_str()).then_some(number)
}

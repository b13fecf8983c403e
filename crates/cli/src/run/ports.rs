//! Ports of connections that the program opens, dealt to cores, and the interfaces whose replies are delivered by them (Fastsocket 3.3).

use super::report::{Device, Opened, OpenedOn};
use crate::failure::{Failure, words};
use ::io::bpf::{Blocks, Delivered};
use ::io::filters;
use ::io::xdp::Delivery;
use claims::ports::{LINE, counted, line};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Ports by core.
pub struct Ports {
    blocks: Blocks,
    devices: Vec<Delivery>,
    /// Shared with the program's processes.
    memory: File,
}

impl Ports {
    /// Deals the ports of this network namespace to `cores`, of CPUs 0 to `cpus` - 1, and has `devices` deliver.
    pub fn new(devices: &[String], cores: &[u32], cpus: u32) -> Result<Ports, Failure> {
        let failed = |error: io::Error| Failure::told(format!("ports by core: {}", words(&error)));
        let aligned = devices.iter().any(|name| filters::take_ranges(Path::new("/"), name));
        let blocks = Blocks::of_kernel(cores, random(), aligned).map_err(Failure::told)?;
        let memory = memory(&blocks, cpus).map_err(failed)?;
        let devices = devices.iter().map(|name| Delivery::attach(name, &blocks, cores, cpus).map_err(Failure::told));
        Ok(Ports { devices: devices.collect::<Result<_, _>>()?, blocks, memory })
    }

    /// Ports by core.
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// A descriptor of the memory, for a process.
    pub fn share(&self) -> io::Result<OwnedFd> {
        Ok(self.memory.try_clone()?.into())
    }

    /// Tells the interfaces of a port on which the program listens, or is about to.
    pub fn listens(&self, port: u16) {
        self.devices.iter().for_each(|device| device.listens(port));
    }

    /// All that was counted.
    pub fn opened(&self) -> Opened {
        let mut bytes = [0; LINE];
        let mut number = |core: u32| match self.memory.read_exact_at(&mut bytes, u64::from(core) * LINE as u64) {
            Ok(()) => counted(&bytes),
            Err(_) => (0, 0),
        };
        let cores = 0..self.memory.metadata().map_or(0, |metadata| metadata.len() / LINE as u64) as u32;
        let cores = cores.filter_map(|core| {
            let ((connections, beyond), block) = (number(core), self.blocks.of(core));
            (block.is_some() || beyond > 0).then_some(OpenedOn { core, ports: block, connections, beyond })
        });
        let devices = self.devices.iter().map(|device| {
            let mode = if device.generic().is_some() { "generic" } else { "driver" };
            let Delivered { here, moved, left, spread_here, spread_moved } = device.delivered();
            Device { name: device.name().into(), mode, here, moved, left, spread_here, spread_moved }
        });
        Opened::new(cores.collect(), devices.collect())
    }
}

fn random() -> u32 {
    let mut bytes = [0; 4];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u32::from_ne_bytes(bytes)
}

/// Sealed to its size: a process that cut it short would end those that read it.
fn memory(blocks: &Blocks, cpus: u32) -> io::Result<File> {
    let memory = File::from(memfd_create("corelane-ports", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    let lines: Vec<u8> = (0..cpus).flat_map(|core| line(blocks.of(core))).collect();
    memory.write_all_at(&lines, 0)?;
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_keeps_its_size_and_tells_what_was_counted() {
        let blocks = Blocks { first: 40_000, size: 100, cpus: vec![2, 0] };
        let memory = memory(&blocks, 4).unwrap();
        assert!(memory.set_len(0).is_err() && memory.set_len(1 << 20).is_err());
        let mut line = [0; LINE];
        memory.read_exact_at(&mut line, 2 * LINE as u64).unwrap();
        assert_eq!(line[..4], (40_099u32 << 16 | 40_000).to_ne_bytes());
        for (core, at, n) in
            [(0, claims::ports::OPENED, 7u64), (0, claims::ports::BEYOND, 2), (3, claims::ports::BEYOND, 5)]
        {
            memory.write_all_at(&n.to_ne_bytes(), (core * LINE + at) as u64).unwrap();
        }
        let opened = Ports { blocks, devices: Vec::new(), memory }.opened();
        assert_eq!((opened.connections, opened.beyond), (7, 7));
        let told: Vec<_> = opened.cores.iter().map(|on| (on.core, on.ports, on.connections, on.beyond)).collect();
        assert_eq!(told, [(0, Some((40_100, 40_199)), 7, 2), (2, Some((40_000, 40_099)), 0, 0), (3, None, 0, 5)]);
    }
}

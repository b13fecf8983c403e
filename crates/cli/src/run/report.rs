//! Report of a run: one line, and JSON.

use crate::zone::Zone;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Write};

/// All listeners of a program.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Connections for which a listener was selected, counted at their SYN.
    pub connections: u64,
    /// Of them, those that came in on the core that the part's worker is pinned to.
    pub local: u64,
    /// Connections that moved from the queue of a listener that stopped.
    pub migrated: u64,
    /// `local` over `connections`; none without connections, and where no part has a core.
    pub local_share: Option<f64>,
    /// Listeners by address.
    pub listeners: Vec<Listener>,
    /// Connections that the program opened; none without `--dev`.
    pub opened: Option<Opened>,
    /// Interfaces whose queues were set to cores; none without `--dev`.
    pub queues: Vec<Queues>,
    /// Lines on what could not be had, and why.
    pub notes: Vec<String>,
}

/// Connections that the program opened by connect(2), but for those to the loopback addresses.
#[derive(Debug, Serialize)]
pub struct Opened {
    /// Connections from ports of the core that connected.
    pub connections: u64,
    /// Connections from other ports, since the core has none of its own, or none was free.
    pub beyond: u64,
    /// Cores, and their ports.
    pub cores: Vec<OpenedOn>,
    /// Interfaces whose frames are delivered by port.
    pub devices: Vec<Device>,
}

/// A core's ports, and the connections that were opened on it.
#[derive(Debug, Serialize)]
pub struct OpenedOn {
    /// The kernel's number of the core.
    pub core: u32,
    /// First and last port of its own.
    pub ports: Option<(u16, u16)>,
    /// Connections from them.
    pub connections: u64,
    /// Connections from others.
    pub beyond: u64,
}

/// Frames of an interface to ports of a core.
#[derive(Debug, Serialize)]
pub struct Device {
    /// The interface.
    pub name: String,
    /// `driver`, or `generic` where frames pass the kernel's generic code first.
    pub mode: &'static str,
    /// Those that came on the core.
    pub here: u64,
    /// Those that were handed to it.
    pub moved: u64,
    /// Those that stayed on another core: to a port where somebody listens, or without a connection.
    pub left: u64,
    /// Frames to ports on which the program listens that came on the core of their flow, where flows are spread by a hash.
    pub spread_here: u64,
    /// Those that were handed to it.
    pub spread_moved: u64,
}

/// An interface whose queues were set to cores while the program ran.
#[derive(Debug, Serialize)]
pub struct Queues {
    /// The interface.
    pub name: String,
    /// Number of settings that were another before: CPU masks of interrupts, RPS and XPS.
    pub settings: usize,
    /// Number of rules by which the NIC brings frames to a core's ports to its queue.
    pub rules: usize,
}

impl Queues {
    /// Sums up.
    pub fn of(zone: &Zone) -> Queues {
        Queues { name: zone.interface().into(), settings: zone.settings(), rules: zone.rules() }
    }
}

impl Opened {
    /// Sums up.
    pub fn new(cores: Vec<OpenedOn>, devices: Vec<Device>) -> Opened {
        let sum = |of: fn(&OpenedOn) -> u64| cores.iter().map(of).sum();
        Opened { connections: sum(|on| on.connections), beyond: sum(|on| on.beyond), cores, devices }
    }

    /// The line at the end; none where nothing was opened.
    pub fn line(&self) -> Option<String> {
        let all = self.connections + self.beyond;
        if all == 0 {
            return None;
        }
        let devices = self.devices.iter().map(|device| {
            let Device { name, mode, here, moved, .. } = device;
            format!(
                "; {name}: {} to their core, {moved} of them moved there ({mode} mode)",
                plural(here + moved, "frame")
            )
        });
        let devices: String = devices.collect();
        let opened = plural(all, "connection");
        Some(format!("run: {opened} opened, {} from ports of the core that connected{devices}", self.connections))
    }
}

/// One listener that was partitioned.
#[derive(Debug, Serialize)]
pub struct Listener {
    /// Address and port.
    pub address: String,
    /// Its parts, in the order in which they came.
    pub parts: Vec<Part>,
    /// Connections of the program's own socket while workers that take turns shared it.
    pub shared: u64,
}

/// A worker's part.
#[derive(Clone, Debug, Serialize)]
pub struct Part {
    /// Process.
    pub pid: u32,
    /// Thread that asked for it.
    pub tid: u32,
    /// Core that its thread is pinned to.
    pub core: Option<u32>,
    /// Connections that came in on that core.
    pub local: u64,
    /// Connections of cores without a part.
    pub elsewhere: u64,
    /// Connections from a listener that stopped.
    pub migrated: u64,
    /// Times when connections waited and its worker accepted none, so that they went to others for a while.
    pub stalls: u64,
}

impl Part {
    /// Nothing was counted yet.
    pub fn new(pid: u32, tid: u32) -> Part {
        Part { pid, tid, core: None, local: 0, elsewhere: 0, migrated: 0, stalls: 0 }
    }

    /// Takes over another part of the same worker, which has it later.
    pub fn join(&mut self, other: Part) {
        self.core = other.core.or(self.core);
        self.local += other.local;
        self.elsewhere += other.elsewhere;
        self.migrated += other.migrated;
        self.stalls += other.stalls;
    }
}

impl Report {
    /// Sums up.
    pub fn new(listeners: Vec<Listener>, opened: Option<Opened>, queues: Vec<Queues>, notes: Vec<String>) -> Report {
        let parts = || listeners.iter().flat_map(|listener| &listener.parts);
        let local = parts().map(|part| part.local).sum::<u64>();
        let shared = listeners.iter().map(|listener| listener.shared).sum::<u64>();
        let connections = local + parts().map(|part| part.elsewhere).sum::<u64>() + shared;
        let migrated = parts().map(|part| part.migrated).sum();
        let cores = parts().any(|part| part.core.is_some());
        let local_share = (cores && connections > 0).then(|| local as f64 / connections as f64);
        Report { connections, local, migrated, local_share, listeners, opened, queues, notes }
    }

    /// The line at the end; none where nothing listened.
    pub fn line(&self) -> Option<String> {
        if self.listeners.is_empty() {
            return None;
        }
        let parts: usize = self.listeners.iter().map(|listener| listener.parts.len()).sum();
        let share = self.local_share.map_or(String::new(), |share| {
            // Not 100 % where one is missing.
            format!(", {:.2} % on their own core", (share * 10_000.0).floor() / 100.0)
        });
        Some(format!(
            "run: {} to {} of {}{share}, {} moved from a listener that stopped",
            plural(self.connections, "connection"),
            plural(parts as u64, "part"),
            plural(self.listeners.len() as u64, "listener"),
            self.migrated
        ))
    }
}

fn plural(n: u64, word: &str) -> String {
    format!("{n} {word}{}", if n == 1 { "" } else { "s" })
}

/// Writes JSON.
pub fn write(file: &mut File, report: &Report) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *file, report)?;
    file.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(local: u64, elsewhere: u64) -> Part {
        Part { core: Some(0), local, elsewhere, migrated: 1, ..Part::new(1, 1) }
    }

    #[test]
    fn shares_are_of_all_listeners() {
        let listener = |parts| Listener { address: "0.0.0.0:80".into(), parts, shared: 0 };
        assert_eq!(Report::new(Vec::new(), None, Vec::new(), Vec::new()).line(), None);
        let report = Report::new(vec![listener(vec![part(0, 0)])], None, Vec::new(), Vec::new());
        assert_eq!(report.local_share, None);
        assert_eq!(
            report.line().unwrap(),
            "run: 0 connections to 1 part of 1 listener, 1 moved from a listener that stopped"
        );
        let report = Report::new(
            vec![listener(vec![part(29_999, 0), part(30_000, 1)]), listener(vec![])],
            None,
            Vec::new(),
            Vec::new(),
        );
        assert_eq!((report.connections, report.local, report.migrated), (60_000, 59_999, 2));
        assert_eq!(
            report.line().unwrap(),
            "run: 60000 connections to 2 parts of 2 listeners, 99.99 % on their own core, 2 moved from a listener that stopped"
        );
    }

    #[test]
    fn connections_that_were_opened_are_of_all_cores() {
        let on = |core, connections, beyond| OpenedOn { core, ports: None, connections, beyond };
        let device = Device {
            name: "eth0".into(),
            mode: "driver",
            here: 30,
            moved: 12,
            left: 1,
            spread_here: 0,
            spread_moved: 0,
        };
        assert_eq!(Opened::new(vec![on(0, 0, 0)], Vec::new()).line(), None);
        assert_eq!(
            Opened::new(vec![on(0, 5, 0), on(1, 4, 2)], vec![device]).line().unwrap(),
            "run: 11 connections opened, 9 from ports of the core that connected; eth0: 42 frames to their core, 12 of them moved there \
             (driver mode)"
        );
    }
}

//! The configuration of a process: mTCP's own files (`NAME.conf` with `config/route.conf` and `config/arp.conf`), or ours, which
//! is TOML; and the seven numbers that programs read and set.

use core::ffi::c_int;
use std::io::Read;
use std::path::Path;

use capi::{Errno, Words};
use runtime::config::TcpConfig;
use runtime::{Config, Device, Model, PortConfig};

pub use self::asked::Asked;
use self::old::Old;

mod asked;
mod old;
mod tables;

/// Characters of a message about a file at most.
const LONGEST: usize = 600;
/// Bytes of a file of settings at most.
const MOST: u64 = 1 << 20;

/// `struct mtcp_conf`. As what a file or a program asks for, zero is nothing, and below it none at all.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Lanes.
    pub num_cores: c_int,
    /// Ids of a context.
    pub max_concurrency: c_int,
    /// Connections whose buffers a lane has memory for.
    pub max_num_buffers: c_int,
    /// Receive buffer at first, bytes.
    pub rcvbuf_size: c_int,
    /// Send buffer at first, bytes.
    pub sndbuf_size: c_int,
    /// TIME-WAIT, ms.
    pub tcp_timewait: c_int,
    /// Silence after which a peer is asked whether it is there, ms; below 0 never.
    pub tcp_timeout: c_int,
}

/// Ids of a context, unless somebody says how many.
const IDS: c_int = 10_000;
/// What a buffer holds for which `max_num_buffers` counts, unless somebody says how much: as much as mTCP's. Ours may be larger,
/// and take memory only for what is in them.
const BUFFER: c_int = 8192;
/// Longest TIME-WAIT, ms.
const MOST_WAIT: u64 = 600_000;

impl Sizes {
    /// Asks for nothing.
    pub const NOTHING: Sizes = Sizes {
        num_cores: 0,
        max_concurrency: 0,
        max_num_buffers: 0,
        rcvbuf_size: 0,
        sndbuf_size: 0,
        tcp_timewait: 0,
        tcp_timeout: 0,
    };

    /// Each of the numbers with the same of two others.
    fn with(self, a: Sizes, b: Sizes, f: impl Fn(c_int, c_int, c_int) -> c_int) -> Sizes {
        Sizes {
            num_cores: f(self.num_cores, a.num_cores, b.num_cores),
            max_concurrency: f(self.max_concurrency, a.max_concurrency, b.max_concurrency),
            max_num_buffers: f(self.max_num_buffers, a.max_num_buffers, b.max_num_buffers),
            rcvbuf_size: f(self.rcvbuf_size, a.rcvbuf_size, b.rcvbuf_size),
            sndbuf_size: f(self.sndbuf_size, a.sndbuf_size, b.sndbuf_size),
            tcp_timewait: f(self.tcp_timewait, a.tcp_timewait, b.tcp_timewait),
            tcp_timeout: f(self.tcp_timeout, a.tcp_timeout, b.tcp_timeout),
        }
    }

    /// With what is above zero in `new`.
    fn updated(self, new: Sizes) -> Sizes {
        self.with(new, new, |old, new, _| if new > 0 { new } else { old })
    }

    /// Without what a file names.
    fn but_for(self, file: &File) -> Sizes {
        self.with(file.named, file.named, |old, named, _| if named == 0 { old } else { 0 })
    }

    /// Bytes of a connection for which `max_num_buffers` counts.
    fn of_a_connection(self) -> u64 {
        let or_usual = |n: c_int| u64::from(if n > 0 { n } else { BUFFER } as u32);
        or_usual(self.rcvbuf_size) + or_usual(self.sndbuf_size)
    }
}

/// Why a configuration was refused: one line for whoever runs the program, and `errno`.
#[derive(Debug)]
pub struct Fault {
    /// The line, with file and line number where there are any.
    pub message: String,
    /// What the caller gets.
    pub errno: Errno,
}

impl Fault {
    /// Something is wrong in a line.
    fn at(file: &str, line: usize, message: impl std::fmt::Display) -> Fault {
        Fault::of(&format!("{file}:{line}"), message)
    }

    /// Something is wrong with a file; a line of it may be of any length.
    fn of(place: &str, message: impl std::fmt::Display) -> Fault {
        let mut message = format!("{place}: {message}");
        if let Some((end, _)) = message.char_indices().nth(LONGEST) {
            message.truncate(end);
            message.push('…');
        }
        Fault { message, errno: Errno::INVAL }
    }
}

/// A file that was read.
pub struct File {
    /// What it says, and the usual for the rest.
    config: Config,
    /// The numbers that it names; below zero where it names none, or 0.
    named: Sizes,
    /// Where it names cores.
    cores: &'static str,
    /// What the engine's messages name is named as in it.
    pub words: Words,
    /// What whoever runs the program should know, a line each.
    pub notes: Vec<String>,
}

/// What an engine is started with.
pub struct Settings {
    /// The engine's.
    pub config: Config,
    /// The numbers that hold.
    pub sizes: Sizes,
    /// Sockets have keepalive without asking: a timeout of silence was set.
    pub keepalive: bool,
    /// Why there are fewer lanes than processors.
    pub note: Option<String>,
}

/// A size above zero; at most what `c_int` holds.
fn told(n: u64) -> c_int {
    c_int::try_from(n).unwrap_or(c_int::MAX)
}

/// A file of settings; what is no UTF-8 can only stand in comments.
fn read(path: &str) -> Result<String, Fault> {
    let failed = |e: std::io::Error| Fault { message: format!("{path}: {e}"), errno: capi::errno::of_io(&e) };
    let mut bytes = Vec::new();
    std::fs::File::open(path).and_then(|file| file.take(MOST + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 > MOST {
        let message = format!("{path}: more than {MOST} bytes: this is no configuration");
        return Err(Fault { message, errno: Errno::INVAL });
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl File {
    /// Before a file was read.
    pub fn none() -> File {
        File { config: Config::default(), named: Sizes::NOTHING, cores: "cores", words: Words::TOML, notes: Vec::new() }
    }

    /// Reads a file of either form.
    pub fn read(path: &str) -> Result<File, Fault> {
        File::parse(path, &read(path)?)
    }

    /// What such a file says whose text this is.
    pub fn parse(path: &str, text: &str) -> Result<File, Fault> {
        if is_toml(path, text) { toml(path, text) } else { Old::parse(path, text) }
    }

    /// What holds where a program has set these numbers; or one line that says what is wrong.
    pub fn settings(&self, set: Sizes) -> Result<Settings, String> {
        let settings = self.with(set);
        let (config, named) = (&settings.config, self.config.cores.len());
        if named > 0 && named < config.lanes as usize {
            return Err(format!("{} names {named} cores for {} lanes (num_cores)", self.cores, config.lanes));
        }
        config.check().map_err(|fault| fault.message)?;
        Ok(settings)
    }

    /// The numbers that hold, were it not for cores that are missing.
    pub fn sizes(&self, set: Sizes) -> Sizes {
        self.with(set).sizes
    }

    fn with(&self, set: Sizes) -> Settings {
        let asked = self.named.updated(set);
        let mut config = self.config.clone();
        let processors = crate::machine::processors();
        let cores = if asked.num_cores > 0 { asked.num_cores } else { processors };
        config.lanes = u16::try_from(cores).unwrap_or(u16::MAX);
        // Programs set what GetNumCPUs() gives, which says no more than that they leave none idle.
        let named = self.named.num_cores > 0 || cores != processors;
        let mut note = None;
        if let Some(queues) = queues(&config).filter(|queues| !named && *queues < config.lanes) {
            note = Some(format!("num_cores is {queues}, as many as the interface has queues"));
            config.lanes = queues;
        }
        config.cores.truncate(config.lanes as usize);
        let ids = if asked.max_concurrency > 0 { asked.max_concurrency } else { IDS };
        // Connections that wait to be accepted have descriptors of the lane too.
        config.max_sockets = config.max_sockets.max(ids as u32);
        let keepalive = asked.tcp_timeout > 0;
        let tcp = &mut config.tcp;
        // In mTCP each connection has buffers of this size; here they grow from it, and hold memory only for what is in
        // them, so that no more is saved by less than we begin with.
        let (usual, file) = (TcpConfig::default().parameters(), tcp.parameters());
        let size = |asked: c_int, file: u32, usual: u32, max: Option<u32>| {
            u32::try_from(asked).unwrap_or(0).max(file.min(usual)).min(max.unwrap_or(1 << 30))
        };
        if asked.rcvbuf_size > 0 {
            let max = tcp.receive_buffer_max;
            tcp.receive_buffer = Some(size(asked.rcvbuf_size, file.receive_buffer, usual.receive_buffer, max));
        }
        if asked.sndbuf_size > 0 {
            let max = tcp.send_buffer_max;
            tcp.send_buffer = Some(size(asked.sndbuf_size, file.send_buffer, usual.send_buffer, max));
        }
        if asked.tcp_timewait > 0 {
            tcp.time_wait_ms = Some((asked.tcp_timewait as u64).min(MOST_WAIT));
        }
        if keepalive {
            // A peer that does not answer is given up after as long again.
            let seconds = (asked.tcp_timeout / 1000).clamp(1, 32_767) as u16;
            tcp.keep_idle_s = Some(seconds);
            tcp.keep_interval_s = Some(seconds.div_ceil(5));
            tcp.keep_count = Some(5);
        }
        let each = asked.of_a_connection();
        let memory = asked.max_num_buffers.max(0) as u64 * each;
        config.buffers_mib = config.buffers_mib.max(memory.div_ceil(1 << 20).min(1 << 20) as u32);
        let tcp = config.tcp.parameters();
        let sizes = Sizes {
            num_cores: config.lanes.into(),
            max_concurrency: ids,
            max_num_buffers: told((u64::from(config.buffers_mib) << 20) / each),
            rcvbuf_size: told(tcp.receive_buffer.into()),
            sndbuf_size: told(tcp.send_buffer.into()),
            tcp_timewait: told(config.tcp.time_wait_ms.unwrap_or(60_000)),
            tcp_timeout: if keepalive { told(tcp.keep_idle.as_millis() as u64) } else { -1 },
        };
        Settings { config, sizes, keepalive, note }
    }
}

/// Receive queues of the interface that has fewest, of those that cannot have more lanes than queues.
fn queues(config: &Config) -> Option<u16> {
    let count = |port: &PortConfig| {
        let Device::Xdp(name) = &port.device else { return None };
        let all = std::fs::read_dir(format!("/sys/class/net/{name}/queues")).ok()?;
        let rx = all.flatten().filter(|e| e.file_name().as_encoded_bytes().starts_with(b"rx-")).count();
        u16::try_from(rx).ok().filter(|n| *n > 0)
    };
    config.ports.iter().filter_map(count).min()
}

/// Tables in brackets, or the name says it.
fn is_toml(path: &str, text: &str) -> bool {
    let named = Path::new(path).extension().is_some_and(|e| e.eq_ignore_ascii_case("toml"));
    named || text.lines().any(|line| line.trim_start().starts_with('['))
}

fn toml(path: &str, text: &str) -> Result<File, Fault> {
    let mut config =
        Config::from_toml(path, text).map_err(|e| Fault { message: e.to_string(), errno: Errno::INVAL })?;
    // It was read without a fault just now.
    let keys: toml::Table = text.parse().unwrap_or_default();
    let named = |key: &str, n: u64| if keys.contains_key(key) { told(n) } else { 0 };
    let or_none = |n: Option<u64>| n.map_or(0, |n| if n > 0 { told(n) } else { -1 });
    let named = Sizes {
        num_cores: named("lanes", config.lanes.into()),
        max_concurrency: named("max_sockets", config.max_sockets.into()),
        rcvbuf_size: or_none(config.tcp.receive_buffer.map(Into::into)),
        sndbuf_size: or_none(config.tcp.send_buffer.map(Into::into)),
        tcp_timewait: or_none(config.tcp.time_wait_ms),
        // Memory is named in MiB, and keepalive is set by socket.
        max_num_buffers: if keys.contains_key("buffers_mib") { -1 } else { 0 },
        tcp_timeout: 0,
    };
    // As in mTCP, ACKs do not wait for the application.
    if !keys.contains_key("model") {
        config.model = Model::Guarded;
    }
    Ok(File { config, named, cores: "cores", words: Words::TOML, notes: Vec::new() })
}

#[cfg(test)]
mod tests;

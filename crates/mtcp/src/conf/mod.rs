//! The configuration of a process: mTCP's own files (`NAME.conf` with `config/route.conf` and `config/arp.conf`), or ours, which
//! is TOML; and the seven numbers that programs read and set.

use core::ffi::c_int;
use std::io::Read;
use std::path::Path;

use capi::Errno;
use runtime::{Config, Device, Model, PortConfig};

use self::old::Old;

mod old;
mod tables;

/// Bytes of a file of settings at most.
const MOST: u64 = 1 << 20;

/// `struct mtcp_conf`.
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

impl Sizes {
    /// mTCP's; 0 cores are as many as there are processors.
    pub const DEFAULT: Sizes = Sizes {
        num_cores: 0,
        max_concurrency: 10_000,
        max_num_buffers: 10_000,
        rcvbuf_size: 8192,
        sndbuf_size: 8192,
        tcp_timewait: 0,
        tcp_timeout: 30_000,
    };

    /// With what is above zero in `new`.
    pub fn updated(self, new: Sizes) -> Sizes {
        let take = |old, new| if new > 0 { new } else { old };
        Sizes {
            num_cores: take(self.num_cores, new.num_cores),
            max_concurrency: take(self.max_concurrency, new.max_concurrency),
            max_num_buffers: take(self.max_num_buffers, new.max_num_buffers),
            rcvbuf_size: take(self.rcvbuf_size, new.rcvbuf_size),
            sndbuf_size: take(self.sndbuf_size, new.sndbuf_size),
            tcp_timewait: take(self.tcp_timewait, new.tcp_timewait),
            tcp_timeout: take(self.tcp_timeout, new.tcp_timeout),
        }
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
        Fault { message: format!("{file}:{line}: {message}"), errno: Errno::INVAL }
    }
}

/// A file that was read.
pub enum File {
    /// mTCP's form.
    Old(Old),
    /// Ours.
    Toml(Box<Config>),
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
    /// Reads a file of either form, over the numbers that were set before.
    pub fn read(path: &str, sizes: Sizes) -> Result<(File, Sizes), Fault> {
        let text = read(path)?;
        if is_toml(path, &text) {
            return toml(path, &text, sizes);
        }
        let (old, sizes) = Old::parse(path, &text, sizes)?;
        Ok((File::Old(old), sizes))
    }

    /// What whoever runs the program should know, a line each.
    pub fn notes(&self) -> &[String] {
        match self {
            File::Old(old) => old.notes(),
            File::Toml(_) => &[],
        }
    }

    /// Whether sockets have keepalive without asking: `tcp_timeout` was named.
    pub fn asks_the_silent(&self) -> bool {
        match self {
            File::Old(old) => old.asks_the_silent(),
            File::Toml(_) => false,
        }
    }

    /// The engine's configuration, with the numbers as they are now; or one line that says what is wrong.
    pub fn config(&self, sizes: Sizes) -> Result<Config, String> {
        let (mut config, table) = match self {
            File::Old(old) => (old.config(sizes), "core_mask"),
            File::Toml(config) => (Config::clone(config), "cores"),
        };
        config.lanes = u16::try_from(sizes.num_cores).unwrap_or(u16::MAX);
        if !config.cores.is_empty() {
            let (cores, lanes) = (config.cores.len(), config.lanes);
            if cores < lanes as usize {
                return Err(format!("{table} names {cores} cores for {lanes} lanes (num_cores)"));
            }
            config.cores.truncate(lanes as usize);
        }
        // Connections that wait to be accepted have descriptors of the lane too.
        config.max_sockets = config.max_sockets.max(sizes.max_concurrency.max(0) as u32);
        config.check().map_err(|fault| fault.message)?;
        Ok(config)
    }
}

/// Receive queues of the interface that has fewest, of those that cannot have more lanes than queues.
pub fn queues(config: &Config) -> Option<u16> {
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

fn toml(path: &str, text: &str, sizes: Sizes) -> Result<(File, Sizes), Fault> {
    let mut config =
        Config::from_toml(path, text).map_err(|e| Fault { message: e.to_string(), errno: Errno::INVAL })?;
    // It was read without a fault just now.
    let keys: toml::Table = text.parse().unwrap_or_default();
    let number = |n: u64| c_int::try_from(n).unwrap_or(c_int::MAX);
    let set = |key: &str, n: u64| if keys.contains_key(key) { number(n) } else { 0 };
    let tcp = config.tcp.parameters();
    let sizes = Sizes {
        rcvbuf_size: number(tcp.receive_buffer.into()),
        sndbuf_size: number(tcp.send_buffer.into()),
        tcp_timewait: number(config.tcp.time_wait_ms.unwrap_or(60_000)),
        // Our own file sets keepalive by socket.
        tcp_timeout: -1,
        ..sizes.updated(Sizes {
            num_cores: set("lanes", config.lanes.into()),
            max_concurrency: set("max_sockets", config.max_sockets.into()),
            ..Sizes::DEFAULT.nothing()
        })
    };
    // As in mTCP, ACKs do not wait for the application.
    if !keys.contains_key("model") {
        config.model = Model::Guarded;
    }
    Ok((File::Toml(Box::new(config)), sizes))
}

impl Sizes {
    /// Nothing to update.
    fn nothing(self) -> Sizes {
        Sizes {
            num_cores: 0,
            max_concurrency: 0,
            max_num_buffers: 0,
            rcvbuf_size: 0,
            sndbuf_size: 0,
            tcp_timewait: 0,
            tcp_timeout: 0,
        }
    }

    /// Without a number of cores: as many as there are processors.
    pub fn with_cores(self) -> Sizes {
        Sizes { num_cores: if self.num_cores > 0 { self.num_cores } else { crate::process::processors() }, ..self }
    }
}

#[cfg(test)]
mod tests;

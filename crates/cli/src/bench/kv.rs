//! Key-value servers that speak memcached's protocol: ours, examples/c/kvserver.c, over either engine of channels, and
//! memcached.

use super::child::Child;
use super::place::{Place, SERVER, Side};
use crate::failure::{Failure, words};
use crate::lab::offload;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Who.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// Ours over lanes.
    Lane,
    /// Ours over io_uring.
    Uring,
    /// memcached.
    Memcached,
}

/// The key-value server of examples/c.
const OURS: &str = "kvserver";
/// Where all of them listen.
pub const PORT: u16 = 11211;
/// How many keys there are.
pub const KEYS: u32 = 10_000;
/// Bytes of a key and of a value: the thesis's.
pub const KEY: usize = 64;
/// See [`KEY`].
pub const VALUE: usize = 1024;
/// Of ten requests, as the thesis has it.
pub const GETS: u32 = 9;
/// See [`GETS`].
pub const SETS: u32 = 1;
/// Memory for keys and values of each server, MiB.
const MEMORY: u32 = 1024;
/// Descriptors that memcached has for other things, and more.
const DESCRIPTORS: u64 = 1024;
/// How long one may take until it listens.
const START: Duration = Duration::from_secs(10);
/// How long one attempt to connect may take.
const CONNECT: Duration = Duration::from_secs(1);

/// The program of a server: for ours what was named, or what PATH has.
pub fn program(keeper: Keeper, named: Option<&Path>) -> Option<PathBuf> {
    match keeper {
        Keeper::Memcached => found("memcached".as_ref()),
        Keeper::Lane | Keeper::Uring if named.is_some() => named.filter(|file| file.is_file()).map(Path::to_owned),
        Keeper::Lane | Keeper::Uring => found(OURS.as_ref()),
    }
}

/// A program, as a shell finds it: on PATH if it is a name alone.
pub fn found(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return program.is_file().then(|| program.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// What to do where the programs are missing.
pub fn missing() -> Failure {
    Failure::new(
        "neither kvserver nor memcached is there",
        "make -C examples/c, and name its kvserver with --kv or put it on PATH; install memcached",
    )
}

/// Where the client finds it, and what it asks for.
pub fn url() -> String {
    format!("memcached://{SERVER}:{PORT}/?keys={KEYS}&key={KEY}&value={VALUE}&gets={GETS}&sets={SETS}")
}

/// Starts one on these cores in the server's namespace; it listens when this returns.
pub fn start(place: &Place, keeper: Keeper, named: Option<&Path>, cores: &[usize]) -> Result<Child, Failure> {
    let program = program(keeper, named).ok_or_else(missing)?;
    let cpus = super::measure::list(cores);
    let mut command = place.command(Side::Server, Path::new("taskset"));
    command.args(["-c", &cpus]).arg(program);
    let (threads, memory) = (cores.len().to_string(), MEMORY.to_string());
    // It must be there until it was read.
    let mut _configuration = None;
    match keeper {
        // What an expert sets: a core a thread, no UDP, a long backlog, many requests of a connection in a row.
        Keeper::Memcached => {
            let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
            let connections = limit.saturating_sub(DESCRIPTORS).clamp(1, 100_000).to_string();
            command.args(["-u", "root", "-l", SERVER, "-U", "0", "-c", &connections, "-b", "65535", "-R", "1000"]);
            command.args(["-t", &threads, "-m", &memory]);
        }
        Keeper::Uring => {
            command.args(["-e", "uring", "-a", SERVER, "-t", &threads, "-m", &memory]);
        }
        Keeper::Lane => {
            let file = lanes(place.interface(Side::Server), cores)?;
            let engine = format!("lane:/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
            _configuration = Some(file);
            command.args(["-e", &engine, "-a", SERVER, "-t", &threads, "-m", &memory]);
        }
    }
    let mut child = Child::spawn(command, "the key-value server")?;
    let end = Instant::now() + START;
    while !listens(place)? {
        if let Some(failure) = child.ended() {
            return Err(failure);
        }
        if Instant::now() > end {
            return Err(Failure::told("the key-value server: not ready within 10 s"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(child)
}

/// Whether a client connects: a program on the interface, or a socket of `ss`, says only that the server is nearly there.
fn listens(place: &Place) -> Result<bool, Failure> {
    let to = (SERVER.parse::<IpAddr>().expect("an address"), PORT).into();
    let tried = offload::within(&place.namespace(Side::Client), || match TcpStream::connect_timeout(&to, CONNECT) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::TimedOut) => Ok(false),
        Err(error) => Err(error),
    });
    tried.map_err(|error| Failure::told(format!("connecting to the key-value server: {}", words(&error))))
}

/// A configuration file without a name.
fn lanes(interface: &str, cores: &[usize]) -> Result<File, Failure> {
    let failed = |error: std::io::Error| Failure::told(format!("a configuration: {}", words(&error)));
    let mut file: File =
        memfd_create("corelane-kv.toml", MemfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?.into();
    let (lanes, cores) = (cores.len(), super::measure::list(cores));
    let text = format!("lanes = {lanes}\ncores = [{cores}]\n[[ports]]\ndevice = \"xdp:{interface}\"\n");
    file.write_all(text.as_bytes()).map_err(failed)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_a_configuration() {
        let file = lanes("cl0", &[2, 3]).expect("memory");
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let config = crate::device::read_config(path.as_ref()).expect("it is valid");
        assert_eq!((config.lanes, &config.cores[..]), (2, &[2, 3][..]));
        assert!(url().parse::<crate::load::target::Target>().is_ok());
    }
}

//! `corelane run`: an unmodified program on the kernel's TCP, its listeners partitioned by core (Fastsocket 3.2.1), and the ports of
//! connections that it opens (3.3; docs/run.md).
//!
//! The program takes this process's place, so that its number, its parent and its descriptors are what they would be without us. Beside it
//! runs a helper ([`helper`]), which its processes ask for their parts through the preload library.

mod group;
pub mod helper;
mod ports;
mod report;
mod tables;
mod turns;

use crate::args::{CoreList, core_list};
use crate::failure::{Failure, words};
use crate::say::tell;
use claims::Token;
use clap::{Args, ValueEnum};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::thread::CpuSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(
    after_help = "The program's own options stand behind --, as in: corelane run -- nginx -g 'daemon off;'. docs/run.md tells \
                        what it does, and what it falls back to."
)]
pub struct RunArgs {
    /// Whose TCP the program uses
    #[arg(long, value_enum, default_value_t = EngineArg::Kernel)]
    pub engine: EngineArg,
    /// Options of the helper.
    #[command(flatten)]
    pub how: How,
    /// Do not start the program where its listeners cannot be partitioned
    #[arg(long)]
    pub strict: bool,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// A TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineArg {
    /// The kernel's
    Kernel,
}

/// Options of the helper.
#[derive(Clone, Debug, Args)]
pub struct How {
    /// Ports whose listeners are partitioned, as in 80,443 [default: all that the program listens on]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    pub ports: Vec<u16>,
    /// Cores of the workers, as in 0,2,3 or 0-3 [default: all that the program may use]
    #[arg(long, value_name = "LIST", value_parser = core_list)]
    pub cores: Option<CoreList>,
    /// Interface whose replies to connections that the program opens come to the core that opened them; several by commas
    #[arg(long, value_name = "IFACE", value_delimiter = ',')]
    pub dev: Vec<String>,
    /// Leave workers on the cores that the scheduler gives them
    #[arg(long)]
    pub no_pin: bool,
    /// Write a report to this file when the program has ended (JSON)
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// Starts the helper and becomes the program. Returns only where that is impossible.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let EngineArg::Kernel = args.engine;
    if let Some(CoreList(cores)) = &args.how.cores {
        let may = rustix::thread::sched_getaffinity(None).map_err(|errno| Failure::told(words(&errno.into())))?;
        if let Some(core) = cores.iter().find(|core| **core >= CpuSet::MAX_CPU || !may.is_set(**core)) {
            return Err(Failure::usage(
                format!("--cores: core {core} is none that this process may use"),
                "taskset -cp $$ lists those that it may",
            ));
        }
    }
    let mut program = Command::new(&args.program[0]);
    program.args(&args.program[1..]);
    match prepare(&args.how) {
        Ok(Beside { without_ports: Some(why), .. }) if args.strict => return Err(Failure::told(why)),
        Ok(beside) => {
            if let Some(why) = beside.without_ports {
                tell(format!("{why}; connections that the program opens have ports as without corelane"));
            }
            program.env("LD_PRELOAD", beside.preload).env(claims::VARIABLE, beside.helper);
        }
        Err(failure) if args.strict => return Err(failure),
        Err(failure) => tell(format!("{failure}; the program runs as without corelane")),
    }
    Err(Failure::not_executed(args.program[0].display(), &program.exec()))
}

/// Environment of a program that has a helper.
struct Beside {
    /// LD_PRELOAD.
    preload: OsString,
    /// CORELANE_RUN.
    helper: String,
    /// Reason why ports are not dealt, where they were to be.
    without_ports: Option<String>,
}

fn prepare(how: &How) -> Result<Beside, Failure> {
    let mut preload = library()?.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let (socket, mut helper) = socket().map_err(|error| {
        Failure::new(format!("socket of the helper: {}", words(&error)), "allow this user UNIX sockets")
    })?;
    let ready = start(how, socket, &helper)?;
    let without_ports = ready.strip_prefix(helper::READY_WITHOUT_PORTS).map(str::to_owned);
    if ready == helper::READY_WITH_PORTS {
        helper.push_str(":ports");
    }
    Ok(Beside { preload, helper, without_ports })
}

/// Names of the library where it is installed, and in a build's folder.
pub const LIBRARY: [&str; 2] = ["libcorelane-preload.so", "libcorelane_preload.so"];

/// The preload library, by what the environment says or beside the command.
fn library() -> Result<PathBuf, Failure> {
    let found = match std::env::var_os("CORELANE_PRELOAD") {
        Some(path) => Some(PathBuf::from(path)),
        None => std::env::current_exe().ok().and_then(|exe| {
            let folder = exe.parent()?.to_owned();
            let folders = [folder.join("../lib"), folder.join("../lib/corelane"), folder];
            let mut paths = folders.iter().flat_map(|folder| LIBRARY.map(|name| folder.join(name)));
            paths.find(|path| path.is_file())
        }),
    };
    let remedy =
        "install.sh puts it into PREFIX/lib, cargo build -p preload beside the command; CORELANE_PRELOAD may name it";
    let path = found.ok_or_else(|| Failure::new(format!("{} is not there", LIBRARY[0]), remedy))?;
    let path =
        path.canonicalize().map_err(|error| Failure::new(format!("{}: {}", path.display(), words(&error)), remedy))?;
    // LD_PRELOAD's separators, which nothing escapes.
    if path.as_os_str().as_encoded_bytes().iter().any(|byte| matches!(byte, b':' | b' ')) {
        return Err(Failure::new(
            format!("{}: no name for LD_PRELOAD, which ends names at colons and spaces", path.display()),
            "put it elsewhere, and name it in CORELANE_PRELOAD",
        ));
    }
    Ok(path)
}

/// The socket on which the helper is asked, and how processes find it.
fn socket() -> io::Result<(OwnedFd, String)> {
    let mut token = [0; 16];
    if rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty())? != token.len() {
        return Err(Errno::AGAIN.into());
    }
    let token = Token(token).hex();
    // The number of this process is the program's as long as the helper lives, in one of several namespaces of processes.
    let name = format!("corelane-run-{}-{}", std::process::id(), OsStr::from_bytes(&token[..8]).display());
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    rustix::net::listen(&socket, 4096)?;
    Ok((socket, format!("{name}:{}", OsStr::from_bytes(&token).display())))
}

/// Starts the helper, as a process that is no child of this one: the program would be told of its end. Returns its words once it is ready.
fn start(how: &How, socket: OwnedFd, helper: &str) -> Result<String, Failure> {
    let failed =
        |error: io::Error| Failure::new(format!("no helper: {}", words(&error)), "raise the limit of processes");
    let (mut ready, said) = io::pipe().map_err(failed)?;
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.arg("run-helper").arg("--program").arg(std::process::id().to_string()).env(claims::VARIABLE, helper);
    let list = |numbers: &mut dyn Iterator<Item = String>| numbers.collect::<Vec<_>>().join(",");
    if !how.ports.is_empty() {
        command.arg("--ports").arg(list(&mut how.ports.iter().map(u16::to_string)));
    }
    if let Some(cores) = &how.cores {
        command.arg("--cores").arg(list(&mut cores.0.iter().map(usize::to_string)));
    }
    if !how.dev.is_empty() {
        command.arg("--dev").arg(how.dev.join(","));
    }
    if how.no_pin {
        command.arg("--no-pin");
    }
    if let Some(report) = &how.report {
        command.arg("--report").arg(report);
    }
    let mut parent = command.arg("--detach").stdin(Stdio::from(socket)).stdout(said).spawn().map_err(failed)?;
    drop(command);
    parent.wait().map_err(failed)?;
    let mut text = String::new();
    ready.read_to_string(&mut text).map_err(failed)?;
    match text.strip_suffix('\n') {
        Some(text) if text.starts_with(helper::READY) => Ok(text.to_owned()),
        Some(text) => Err(Failure::told(text)),
        None => Err(Failure::new("the helper ended at once", "its last words stand above, if it had any")),
    }
}

//! nginx and HAProxy as Debian has them, and the backend behind HAProxy.

use super::super::case::{Case, Step, Work};
use super::super::child::Child;
use super::super::measure::{START, list};
use super::super::nginx::{self, Setup};
use super::super::place::{Place, SERVER, Side, this_program};
use crate::failure::{Failure, words};
use crate::lab::offload;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// The backend's port.
pub const BACKEND: u16 = 8080;

/// An unmodified program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// A worker process a core, a file of the message's size.
    Nginx,
    /// A thread a core, a new connection to the backend for each.
    Haproxy,
}

impl Program {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Program::Nginx => "nginx",
            Program::Haproxy => "HAProxy",
        }
    }

    /// Of a case, whose work begins with the program's name.
    pub fn of(case: &Case) -> Program {
        let begins =
            |label: &serde_json::Value| label.as_str().is_some_and(|work| work.starts_with(Program::Haproxy.name()));
        if case.labels.iter().any(|(_, label)| begins(label)) { Program::Haproxy } else { Program::Nginx }
    }

    /// Where it is, if it is installed.
    pub fn path(self) -> Option<&'static Path> {
        let haproxy = ["/usr/sbin/haproxy", "/usr/local/sbin/haproxy"].into_iter().map(Path::new);
        match self {
            Program::Nginx => nginx::program(),
            Program::Haproxy => haproxy.into_iter().find(|path| path.exists()),
        }
    }
}

/// Starts the program with a step's parts, on these cores of the server's namespace; it accepts connections when this returns.
pub fn start(place: &Place, program: Program, step: Step, cores: &[usize], work: &Work) -> Result<Child, Failure> {
    let mut under: Vec<String> = vec!["taskset".into(), "-c".into(), list(cores)];
    if !matches!(step, Step::Baseline | Step::ByHand) {
        under.extend([this_program().display().to_string(), "run".into(), "--strict".into()]);
    }
    if matches!(step, Step::Deliver | Step::Established) {
        under.extend(["--dev".into(), place.interface(Side::Server).into()]);
    }
    if under.last().is_some_and(|last| *last != list(cores)) {
        under.push("--".into());
    }
    match program {
        Program::Nginx => {
            let shared = Setup { listen: "80 backlog=65535 deferred", events: "accept_mutex off;", under: &under };
            let each = Setup { under: &under, ..nginx::EXPERT };
            nginx::start(place, work, cores, if step == Step::Baseline { &shared } else { &each })
        }
        Program::Haproxy => haproxy(place, step, cores, work.concurrent, &under),
    }
}

fn haproxy(place: &Place, step: Step, cores: &[usize], concurrent: usize, under: &[String]) -> Result<Child, Failure> {
    let program =
        Program::Haproxy.path().ok_or_else(|| Failure::new("HAProxy is not installed", "apt install haproxy"))?;
    // A proxy connects as often as it accepts: it needs all ports, and those in TIME-WAIT again after a second.
    place.set(Side::Server, "net/ipv4/ip_local_port_range", "'1024 65535'")?;
    place.set(Side::Server, "net/ipv4/tcp_tw_reuse", "1")?;
    let failed = |error: std::io::Error| Failure::told(format!("HAProxy's configuration: {}", words(&error)));
    let backend = place.sources.last().map_or("", String::as_str);
    let mut file: File =
        memfd_create("corelane-haproxy.cfg", MemfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?.into();
    file.write_all(configuration(step, cores, concurrent, backend).as_bytes()).map_err(failed)?;
    let mut command = place.command_under(Side::Server, under, program);
    command.args(["-db", "-f", &format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())]);
    let mut child = Child::spawn(command, "HAProxy")?;
    let end = Instant::now() + START;
    // One that is refused is no connection of the measurement.
    let connects = || offload::within(&place.namespace(Side::Server), || TcpStream::connect((SERVER, 80)).map(drop));
    while connects().is_err() {
        if let Some(failure) = child.ended() {
            return Err(failure);
        }
        if Instant::now() > end {
            return Err(Failure::told("HAProxy: not ready within 20 s"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(child)
}

fn configuration(step: Step, cores: &[usize], concurrent: usize, backend: &str) -> String {
    // A thread that accepts from a listener of several hands connections on to the others.
    let shards = if step == Step::Baseline { "1" } else { "by-thread" };
    let map: String = cores.iter().enumerate().map(|(at, core)| format!("  cpu-map 1/{} {core}\n", at + 1)).collect();
    format!(
        "global\n  nbthread {threads}\n  maxconn {most}\n{map}\
         defaults\n  mode http\n  timeout connect 10s\n  timeout client 30s\n  timeout server 30s\n  option httpclose\n  http-reuse never\n\
         frontend f\n  bind {SERVER}:80 backlog 65535 defer-accept shards {shards}\n  default_backend b\n\
         backend b\n  server s {backend}:{BACKEND}\n",
        threads = cores.len(),
        // Those that are closing count, too.
        most = concurrent * 2 + 1000,
    )
}

/// Starts the backend in the client's namespace: the same page from the kernel's TCP.
pub fn backend(place: &Place, cores: &[usize], work: &Work) -> Result<Child, Failure> {
    let mut command = place.command(Side::Client, &this_program());
    command.args(["serve", "--kernel=epoll", "--json", "--port", &BACKEND.to_string()]);
    command.args(["--message", &work.message.to_string(), "--cores", &list(cores)]);
    let mut child = Child::spawn(command, "the backend")?;
    child.event("ready", START)?;
    Ok(child)
}

/// Ends a program that writes no JSON; an error where it has ended by itself.
pub fn stop(mut server: Child) -> Result<(), Failure> {
    if let Some(failure) = server.ended() {
        return Err(failure);
    }
    // Its end has no object.
    let _ = server.stop();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_haproxy_have_their_cores() {
        let text = configuration(Step::Listen, &[1, 3], 500, "10.0.0.9");
        assert!(
            text.contains("nbthread 2\n  maxconn 2000\n") && text.contains("  cpu-map 1/1 1\n  cpu-map 1/2 3\n"),
            "{text}"
        );
        assert!(text.contains("server s 10.0.0.9:8080\n") && text.contains("shards by-thread\n"), "{text}");
        assert!(configuration(Step::Baseline, &[1], 500, "10.0.0.9").contains("shards 1\n"));
    }
}

//! nginx as one more server, where it is installed: a worker a core, a file of the message's size, nothing logged.

use super::case::Work;
use super::child::Child;
use super::place::{Place, Side};
use crate::failure::{Failure, words};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Way in which nginx listens, and the command that runs it.
pub struct Setup<'a> {
    /// After `listen`.
    pub listen: &'a str,
    /// In `events`.
    pub events: &'a str,
    /// A command that takes it as its last arguments.
    pub under: &'a [String],
}

/// Settings of an expert.
pub const EXPERT: Setup<'static> =
    Setup { listen: "80 reuseport backlog=65535 deferred", events: "accept_mutex off; multi_accept on;", under: &[] };

/// Where Debian and others put it.
const PLACES: [&str; 3] = ["/usr/sbin/nginx", "/usr/local/sbin/nginx", "/usr/bin/nginx"];

/// Where it is, if it is installed.
pub fn program() -> Option<&'static Path> {
    PLACES.into_iter().map(Path::new).find(|path| path.exists())
}

/// Removes what a start wrote, at the end of a round.
pub struct Tidy;

impl Drop for Tidy {
    fn drop(&mut self) {
        // Where nginx was not started there is nothing.
        let _ = std::fs::remove_dir_all(folder());
    }
}

fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("corelane-nginx-{}", std::process::id()))
}

/// Starts it in the server's namespace; it listens when this returns.
pub fn start(place: &Place, work: &Work, cores: &[usize], setup: &Setup<'_>) -> Result<Child, Failure> {
    let program = program().ok_or_else(|| Failure::new("nginx is not installed", "install it, or leave it out"))?;
    let dir = folder();
    let failed = |error: std::io::Error| Failure::told(format!("{}: {}", dir.display(), words(&error)));
    std::fs::create_dir_all(&dir).map_err(failed)?;
    std::fs::write(dir.join("index.html"), vec![b'x'; work.message]).map_err(failed)?;
    let pid = dir.join("pid");
    // What is left of an earlier round would look ready.
    let _ = std::fs::remove_file(&pid);
    std::fs::write(dir.join("nginx.conf"), configuration(&dir, cores, setup)).map_err(failed)?;
    let mut command = place.command_under(Side::Server, setup.under, program);
    command.arg("-p").arg(&dir).arg("-c").arg(dir.join("nginx.conf")).args(["-e", "stderr"]);
    let child = Child::spawn(command, "nginx")?;
    let end = Instant::now() + Duration::from_secs(5);
    // It is written once the listeners are there.
    while !pid.exists() {
        if Instant::now() > end {
            return Err(Failure::told("nginx: not ready within 5 s"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(child)
}

fn configuration(dir: &Path, cores: &[usize], setup: &Setup<'_>) -> String {
    let last = cores.iter().max().copied().unwrap_or(0);
    let mask = |core: &usize| (0..=last).rev().map(|at| if at == *core { '1' } else { '0' }).collect::<String>();
    let masks: Vec<String> = cores.iter().map(mask).collect();
    format!(
        "daemon off;\npid {dir}/pid;\nuser root;\nworker_processes {workers};\nworker_cpu_affinity {masks};\n\
         worker_rlimit_nofile 200000;\nevents {{ worker_connections 100000; {events} }}\n\
         http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000000; open_file_cache max=10;\n\
         client_body_temp_path {dir}/t1; proxy_temp_path {dir}/t2; fastcgi_temp_path {dir}/t3; uwsgi_temp_path {dir}/t4; \
         scgi_temp_path {dir}/t5;\n\
         server {{ listen {listen}; root {dir}; }} }}\n",
        dir = dir.display(),
        workers = cores.len(),
        masks = masks.join(" "),
        events = setup.events,
        listen = setup.listen,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_have_their_cores() {
        let text = configuration(Path::new("/x"), &[1, 3], &EXPERT);
        assert!(text.contains("worker_processes 2;\nworker_cpu_affinity 0010 1000;"), "{text}");
    }
}

//! `serve`, over AF_XDP and on the kernel's TCP, beside nginx.

use super::exchange::{NEXT_CONTENT, Seen, Server};
use super::feature::Case;
use super::list::{Difference, List, shrink};
use super::requests::{Request, TABLE};
use super::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

/// Ports of nginx, and of `serve` on the kernel's TCP, beside that over AF_XDP at port 80.
const NGINX: u16 = 8081;
const KERNEL: u16 = 8082;

/// nginx, whose workers end with it.
struct Nginx(Running);

impl Drop for Nginx {
    fn drop(&mut self) {
        self.0.signal(rustix::process::Signal::TERM);
        let _ = self.0.0.wait();
    }
}

impl Lab {
    /// Files that requests name.
    fn site(&self) {
        std::fs::create_dir_all(self.dir.join("dir")).unwrap();
        std::fs::create_dir_all(self.dir.join("bare")).unwrap();
        for (name, content) in [
            ("page.html", "<p>0123456789"),
            ("empty", ""),
            ("one", "1"),
            ("dir/index.html", "<p>below"),
            (".hidden", "hidden"),
            ("a b", "of a space"),
            ("next", std::str::from_utf8(NEXT_CONTENT).unwrap()),
        ] {
            std::fs::write(self.dir.join(name), content).unwrap();
        }
        self.file("large", 300_000);
        // A whole second, in the past, and of every file the same.
        let files = "page.html empty one large next dir/index.html .hidden index.html 'a b'";
        must(&format!("cd {} && touch -d '2025-06-01 12:00:00 UTC' {files}", self.dir.display()));
    }

    /// nginx as Debian has it, with this lab's files.
    fn nginx(&self) -> Nginx {
        let own = self.dir.join("nginx");
        std::fs::create_dir_all(&own).unwrap();
        let dir = own.display();
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temporary: String = temporary.iter().map(|each| format!("{each}_temp_path {dir}/{each};\n")).collect();
        let conf = format!(
            "daemon off;\npid {dir}/pid;\nuser root;\nworker_processes 1;\nevents {{}}\n\
             http {{\naccess_log off;\n{temporary}\
             types {{ text/html html; }}\ncharset utf-8;\ndefault_type application/octet-stream;\n\
             server {{ listen 10.99.0.2:{NGINX}; root {}; }}\n}}\n",
            self.dir.display()
        );
        std::fs::write(own.join("conf"), conf).unwrap();
        let child = Command::new("ip")
            .args(["netns", "exec", &self.b, "nginx", "-e", "stderr", "-p"])
            .arg(&own)
            .arg("-c")
            .arg(own.join("conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let running = Nginx(Running(child));
        interfaces::until("nginx does not start", || own.join("pid").exists());
        running
    }
}

fn differences(nginx: &Seen, ours: &Seen) -> Vec<Difference> {
    let aspects: BTreeSet<&str> = nginx.keys().chain(ours.keys()).copied().collect();
    let value = |seen: &Seen, aspect: &str| seen.get(aspect).cloned().unwrap_or_else(|| "absent".to_owned());
    let differ = |aspect: &&str| value(nginx, aspect) != value(ours, aspect);
    let of = |aspect: &str| Difference {
        aspect: aspect.to_owned(),
        theirs: value(nginx, aspect),
        ours: value(ours, aspect),
    };
    // nginx reset it each time: its answer may be lost, and its end says nothing.
    let lost = nginx["then"] == "reset" && ours["then"] != "reset";
    match nginx["status"] == ours["status"] {
        true => aspects.into_iter().filter(|aspect| !lost || *aspect != "then").filter(differ).map(of).collect(),
        false if lost && nginx["status"] == "none" => Vec::new(),
        // Another answer has other fields, and another end.
        false => vec![of("status")],
    }
}

#[test]
fn requests_are_answered_as_by_nginx() {
    if !sh("nginx -v").status.success() {
        return testing::skip("nginx is not installed");
    }
    let Some(lab) = Lab::new() else { return };
    lab.site();
    let _nginx = lab.nginx();
    let _xdp = lab.serve(&lab.b, "--dev xdp:vb --port 80");
    let _kernel = lab.serve(&lab.b, &format!("--kernel --port {KERNEL}"));
    let list = List::below("`serve` beside nginx");
    let mut cases = Case::singles(TABLE);
    for (one, other) in [
        ("target", "range"),
        ("target", "framing"),
        ("target", "delivery"),
        ("method", "framing"),
        ("method", "version"),
        ("other method", "framing"),
    ] {
        cases.extend(Case::pairs(TABLE, one, other));
    }
    cases.extend(list.cases(TABLE));
    cases.sort_unstable();
    cases.dedup();
    let new = Mutex::new(BTreeMap::new());
    let count = lab.within(&lab.a, || {
        let [nginx, xdp, kernel] = [NGINX, 80, KERNEL].map(|port| Server::at(SocketAddr::from(([10, 99, 0, 2], port))));
        let ours = [("xdp", &xdp), ("kernel", &kernel)];
        // nginx resets some connections that it has closed while bytes are still to come, at times before its answer is taken.
        let ask_nginx = |request: &Request| {
            let mut all = (0..10).map(|_| nginx.ask(request));
            all.find(|seen| seen["then"] != "reset").unwrap_or_else(|| nginx.ask(request))
        };
        let check = |case: &Case| {
            let theirs = ask_nginx(&case.build(TABLE));
            for (name, server) in ours {
                let compare = |case: &Case| {
                    let request = case.build(TABLE);
                    differences(&ask_nginx(&request), &server.ask(&request))
                };
                for difference in differences(&theirs, &server.ask(&case.build(TABLE))) {
                    if list.explains(case, TABLE, &difference) {
                        continue;
                    }
                    let least = shrink(case, &difference, compare);
                    let Difference { aspect, theirs, ours } = &difference;
                    let row = format!("| {} | {aspect} | {theirs} | {ours} |", least.title(TABLE));
                    new.lock().unwrap().entry(row).or_insert_with(|| (name, case.title(TABLE)));
                }
            }
        };
        let count = cases.len();
        // Most of the time of one is waiting for three servers.
        testing::seeds("cli --test lab requests_are_answered", testing::sized(600, 20_000), 4, |seed| {
            check(&Case::random(TABLE, seed));
        });
        let next = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                        check(case);
                    }
                });
            }
        });
        // Servers that a case has harmed do not answer as they did.
        for port in [NGINX, 80, KERNEL] {
            Server::at(SocketAddr::from(([10, 99, 0, 2], port)));
        }
        count
    });
    let new = new.into_inner().unwrap();
    let rows: String = new.iter().map(|(row, (name, case))| format!("{row} over {name}, of {case}\n")).collect();
    let version = must("nginx -v 2>&1");
    assert!(new.is_empty(), "{} new differences to {version} in {count} cases and the random ones:\n{rows}", new.len());
    let stale = list.stale();
    assert!(stale.is_empty(), "rows of docs/http-differences.md that {version} shows no more: {stale:#?}");
}

//! The library as programs load it: what it needs, and what it takes the place of.

use std::path::PathBuf;
use std::process::Command;

fn library() -> PathBuf {
    // Beside target/PROFILE/deps/library-HASH.
    std::env::current_exe().unwrap().with_file_name("libcorelane_preload.so")
}

fn said(command: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(command).args(arguments).arg(library()).output().ok()?;
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn needs_nothing_but_the_c_library() {
    let Some(text) = said("readelf", &["-d"]) else { return testing::skip("readelf is not installed (binutils)") };
    let needed: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split_once('[')?.1.split_once(']'))
        .map(|(name, _)| name)
        .collect();
    assert!(needed.contains(&"libc.so.6"), "{text}");
    let others: Vec<_> = needed.iter().filter(|name| **name != "libc.so.6" && !name.starts_with("ld-linux")).collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn stands_in_front_of_these_functions_and_no_others() {
    let Some(text) = said("nm", &["-D", "--defined-only"]) else {
        return testing::skip("nm is not installed (binutils)");
    };
    let mut names: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().last()).collect();
    names.sort_unstable();
    let ours = [
        "__poll_chk",
        "__ppoll_chk",
        "accept",
        "accept4",
        "close",
        "connect",
        "dup2",
        "dup3",
        "epoll_ctl",
        "epoll_pwait",
        "epoll_pwait2",
        "epoll_wait",
        "execve",
        "listen",
        "poll",
        "ppoll",
        "pselect",
        "recvmsg",
        "select",
        "setsockopt",
    ];
    assert_eq!(names, ours);
}

/// Without a helper, and with one that nobody hears of, a program runs as it would without the library.
#[test]
fn changes_nothing_without_a_helper() {
    let script = "import socket, select\n\
                  s = socket.create_server(('127.0.0.1', 0))\n\
                  c = socket.create_connection(s.getsockname())\n\
                  assert select.select([s], [], [], 5)[0]\n\
                  print(s.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT), s.accept()[0].fileno() > 0)";
    for variable in [None, Some("gone:00000000000000000000000000000000"), Some("nonsense"), Some("")] {
        let mut python = Command::new("python3");
        python.args(["-c", script]).env("LD_PRELOAD", library()).env_remove("CORELANE_RUN");
        if let Some(value) = variable {
            python.env("CORELANE_RUN", value);
        }
        let Ok(output) = python.output() else { return testing::skip("python3 is not installed") };
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!((text.trim(), output.stderr.as_slice()), ("0 True", &[][..]), "{variable:?}");
    }
}

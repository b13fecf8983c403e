//! Lines for whoever runs a program: what an errno cannot say.

use core::mem::MaybeUninit;
use core::ptr;
use std::fmt::{Debug, Display, Write};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// How messages of the engine, which name the options of the `corelane` command, are said to the users of a library: what is
/// replaced by what.
#[derive(Clone, Copy, Debug)]
pub struct Words(pub &'static [(&'static str, &'static str)]);

impl Words {
    /// Of a configuration in corelane's own form.
    pub const TOML: Words = Words(&[
        ("use --lanes ", "use lanes = "),
        ("(--cores, or `cores` of the configuration)", "(`cores` of the configuration)"),
        ("name it with --addr 10.9.0.2/24", "name it as addresses = [\"10.9.0.2/24\"] of the port"),
        ("use --pcap FILE", "a port's `pcap` writes it to a file"),
        ("name one with --dev or in [[ports]]", "name one in [[ports]]"),
    ]);

    /// The line in these words.
    pub fn put(&self, line: &str) -> String {
        self.0.iter().fold(line.to_owned(), |line, (from, to)| line.replace(from, to))
    }
}

/// One line, without what a terminal would take for orders: a file may have anything in it.
fn printable(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    for c in line.chars() {
        match c.is_control() {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    out
}

/// A line on standard error, with the library's name; where it cannot be written, nobody reads it.
///
/// Written without std's lock on it, which a child of fork(2) would have as another thread of its parent had it.
pub fn say(library: &str, line: impl Display) {
    let line = format!("{library}: {}\n", printable(&line.to_string()));
    let mut rest = line.as_bytes();
    let mut quiet = Quiet::new();
    // All at once, so that lines of several threads stay whole; pipes and terminals may take a part.
    while !rest.is_empty() {
        match rustix::io::write(std::io::stderr(), rest) {
            Ok(n @ 1..) => rest = &rest[n..],
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::PIPE) => return quiet.broken = true,
            Ok(0) | Err(_) => return,
        }
    }
}

/// From now on what an engine warns of on the way (an interface that is gone, connections that stay with the kernel) is said as by [`say`],
/// with the name of the first library that asks for it. Nothing changes where the program hears of it by a subscriber of its own.
pub fn say_what_happens(library: &'static str) {
    // An error says that there is one.
    let _ = tracing::subscriber::set_global_default(Said(library));
}

/// Says events; there are no spans.
struct Said(&'static str);

impl Subscriber for Said {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        // Who says it may run a lane, which is not to wait for a reader.
        if takes_a_line() {
            say(self.0, line.0);
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// An event's message.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            let _ = write!(self.0, "{value:?}");
        }
    }
}

/// Whether a line can be written to standard error without a wait: a pipe that has room has some for 4096 bytes.
fn takes_a_line() -> bool {
    let stderr = std::io::stderr();
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&now)) != Ok(0)
}

/// While it is there a pipe that nobody reads is an error to this thread, and no SIGPIPE, which would end the program.
struct Quiet {
    pipe: libc::sigset_t,
    /// What the thread blocked before.
    before: libc::sigset_t,
    /// One that waited already is not ours.
    waited: bool,
    /// A write has failed with EPIPE, and left a signal behind.
    broken: bool,
}

impl Quiet {
    fn new() -> Quiet {
        let mut pipe = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        let mut waiting = MaybeUninit::uninit();
        // SAFETY: each set is filled by the first call that gets it, and read after that; none of the calls fails with such arguments.
        unsafe {
            libc::sigemptyset(pipe.as_mut_ptr());
            libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE);
            libc::sigpending(waiting.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_BLOCK, pipe.as_ptr(), before.as_mut_ptr());
            Quiet {
                pipe: pipe.assume_init(),
                before: before.assume_init(),
                waited: libc::sigismember(waiting.as_ptr(), libc::SIGPIPE) == 1,
                broken: false,
            }
        }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the sets were filled, the time is there, and nobody asks for what else is known of the signal.
        unsafe {
            if self.broken && !self.waited {
                // It waits for this thread: there is nothing else that would interrupt the call.
                libc::sigtimedwait(&self.pipe, ptr::null_mut(), &now);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_gives_a_terminal_no_orders() {
        assert_eq!(printable("a\u{1b}[31mb\nc\u{9b}\u{7f}é\u{fffd}"), "a\\u{1b}[31mb\\nc\\u{9b}\\u{7f}é\u{fffd}");
    }
}

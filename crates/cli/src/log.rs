//! Lines on standard error: what lanes warn of, and what commands tell.
//!
//! Whoever reads them may be slow, stopped or gone, or its disk full. A thread of its own writes them, so that no lane waits for a
//! reader and none ends with it. A line that cannot be written, or that finds the queue full, is lost and counted.
//! (tracing-appender has such a thread, but does not count what could not be written, nor takes lines of commands.)

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::panic::catch_unwind;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

/// Lines that wait for a slow reader, at most.
const CAPACITY: usize = 1024;
/// Between attempts where standard error was made non-blocking by another program that has it.
const RETRY: Duration = Duration::from_millis(5);
/// For what waits when the command ends.
const AT_THE_END: Duration = Duration::from_secs(1);

static LINES: Lines = Lines::new();

/// Takes what lanes report on the way: warnings, or what RUST_LOG asks for.
pub fn start() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Line)
        .with_ansi(io::stderr().is_terminal())
        .log_internal_errors(false)
        .without_time()
        .with_target(false)
        .init();
}

/// Lets a thread write the lines from now on. It inherits the mask of signals, so those that are waited for are blocked before.
pub fn start_writer() {
    LINES.queue().has_writer = true;
    let body = || {
        if catch_unwind(|| LINES.write_on(&mut Stderr)).is_err() {
            LINES.write_rest(&mut Stderr);
        }
    };
    let writer = thread::Builder::new().name("log".into()).spawn(body);
    if writer.is_err() {
        LINES.queue().has_writer = false;
    }
}

/// Writes one line, or several.
pub fn put(text: String) {
    LINES.put(text.into_bytes(), &mut Stderr);
}

/// Waits until everything is written, for a moment at most.
pub fn flush() {
    LINES.flush(AT_THE_END);
}

/// Lines lost so far.
pub fn lost() -> u64 {
    LINES.queue().lost
}

/// A line of the log, which is formatted before it is written.
struct Line;

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        LINES.put(line.to_vec(), &mut Stderr);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Standard error without std's lock, which would be held while a reader is waited for.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(io::stderr(), data)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Lines {
    queue: Mutex<Queue>,
    changed: Condvar,
}

struct Queue {
    waiting: VecDeque<Vec<u8>>,
    /// A thread writes; before, and where there is none, whoever has a line does.
    has_writer: bool,
    /// The writer has a line that is not in the queue any more.
    is_writing: bool,
    lost: u64,
    /// Of these, those that no line told of.
    untold: u64,
}

impl Lines {
    const fn new() -> Lines {
        let queue = Queue { waiting: VecDeque::new(), has_writer: false, is_writing: false, lost: 0, untold: 0 };
        Lines { queue: Mutex::new(queue), changed: Condvar::new() }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, line: Vec<u8>, sink: &mut impl Write) {
        let mut queue = self.queue();
        if !queue.has_writer {
            drop(queue);
            if write(sink, &line).is_err() {
                self.queue().lose();
            }
        } else if queue.waiting.len() < CAPACITY {
            queue.waiting.push_back(line);
            self.changed.notify_all();
        } else {
            queue.lose();
        }
    }

    /// Writes what comes, without end.
    fn write_on(&self, sink: &mut impl Write) -> ! {
        loop {
            let mut queue = self.queue();
            let line = loop {
                match queue.waiting.pop_front() {
                    Some(line) => break line,
                    None => queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
                }
            };
            queue.is_writing = true;
            let untold = queue.untold;
            drop(queue);
            corelane::provoke("log");
            let told = untold > 0 && write(sink, lost_line(untold).as_bytes()).is_ok();
            let written = write(sink, &line).is_ok();
            let mut queue = self.queue();
            queue.is_writing = false;
            if told {
                queue.untold -= untold;
            }
            if !written {
                queue.lose();
            }
            self.changed.notify_all();
        }
    }

    /// Writes what waits, after the thread that wrote has panicked; from now on whoever has a line writes it.
    fn write_rest(&self, sink: &mut impl Write) {
        let mut queue = self.queue();
        queue.has_writer = false;
        let waiting = std::mem::take(&mut queue.waiting);
        drop(queue);
        for line in waiting {
            if write(sink, &line).is_err() {
                self.queue().lose();
            }
        }
        self.queue().is_writing = false;
        self.changed.notify_all();
    }

    fn flush(&self, limit: Duration) {
        let queue = self.queue();
        let unwritten = |queue: &mut Queue| queue.is_writing || !queue.waiting.is_empty();
        // Whatever is left then has no reader.
        drop(self.changed.wait_timeout_while(queue, limit, unwritten));
    }
}

impl Queue {
    fn lose(&mut self) {
        self.lost += 1;
        self.untold += 1;
    }
}

fn lost_line(n: u64) -> String {
    let (s, were) = if n == 1 { ("", "was") } else { ("s", "were") };
    format!("corelane: {n} line{s} of the log {were} lost: standard error did not take them\n")
}

fn write(sink: &mut impl Write, mut line: &[u8]) -> io::Result<()> {
    while !line.is_empty() {
        match sink.write(line) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => line = &line[n..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(RETRY),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    /// Bytes read.
    type Read = Arc<Mutex<Vec<u8>>>;

    /// A reader that takes a byte at a time when it is told so, or fails.
    struct Slow {
        told: Receiver<io::Result<()>>,
        read: Read,
    }

    impl Write for Slow {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            // Whoever told it has gone: the disk is full from now on.
            self.told.recv().unwrap_or(Err(io::ErrorKind::StorageFull.into()))?;
            self.read.lock().expect("no panic").push(data[0]);
            Ok(1)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Lines whose writer is stopped until it is told to go on.
    fn lines() -> (&'static Lines, SyncSender<io::Result<()>>, Read) {
        let lines: &Lines = Box::leak(Box::new(Lines::new()));
        lines.queue().has_writer = true;
        let (tell, told) = sync_channel(0);
        let read = Read::default();
        let mut sink = Slow { told, read: read.clone() };
        // Ends with the tests' process.
        thread::spawn(move || lines.write_on(&mut sink));
        (lines, tell, read)
    }

    /// Lines lost, and those that no line told of.
    fn lost(lines: &Lines) -> (u64, u64) {
        let queue = lines.queue();
        (queue.lost, queue.untold)
    }

    fn put(lines: &Lines, text: &str) {
        lines.put(text.as_bytes().to_vec(), &mut io::sink());
    }

    #[test]
    fn a_stopped_reader_stops_nobody_and_what_it_missed_is_counted() {
        let (lines, tell, read) = lines();
        put(lines, "a\n");
        // Until the writer has it, and waits for the reader.
        while !lines.queue().is_writing {
            thread::yield_now();
        }
        (0..CAPACITY + 3).for_each(|_| put(lines, "b\n"));
        assert_eq!(lost(lines), (3, 3));
        // Interrupted, and without room for a moment, the reader goes on.
        let reader = thread::spawn(move || {
            for kind in [io::ErrorKind::Interrupted, io::ErrorKind::WouldBlock] {
                let _ = tell.send(Err(kind.into()));
            }
            while tell.send(Ok(())).is_ok() {}
        });
        lines.flush(Duration::from_secs(60));
        let text = String::from_utf8(read.lock().expect("no panic").clone()).expect("text");
        assert_eq!(text, format!("a\n{}{}", lost_line(3), "b\n".repeat(CAPACITY)));
        assert!(!reader.is_finished() && lost(lines) == (3, 0));
    }

    #[test]
    fn a_full_disk_loses_lines_and_nothing_else() {
        let (lines, tell, read) = lines();
        put(lines, "a\n");
        put(lines, "b\n");
        tell.send(Err(io::ErrorKind::StorageFull.into())).expect("the writer waits");
        // Nor can be told of the first.
        tell.send(Err(io::ErrorKind::StorageFull.into())).expect("the writer waits");
        drop(tell);
        lines.flush(Duration::from_secs(60));
        assert_eq!(lost(lines), (2, 2));
        assert!(read.lock().expect("no panic").is_empty());
    }

    #[test]
    fn without_a_writer_lines_are_written_by_whoever_has_them() {
        let (lines, mut sink) = (Lines::new(), Vec::new());
        lines.put(b"a\n".to_vec(), &mut sink);
        lines.put(b"b\n".to_vec(), &mut [0u8; 1].as_mut_slice());
        assert_eq!((sink.as_slice(), lost(&lines)), (b"a\n".as_slice(), (1, 1)));
    }
}

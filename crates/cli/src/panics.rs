//! The end of a command in which a thread panicked: a line, resets for all connections, and an exit code. Half a server, whose clients
//! wait for ever, would be worse than none.

use crate::log;
use crate::say::tell;
use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{PanicHookInfo, set_hook};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Exit code of a Rust program whose main thread panics.
pub const CODE: u8 = 101;
/// For the thread that panicked: it unwinds, and resets what it had.
const UNWINDING: Duration = Duration::from_millis(300);

/// For telling the lanes.
const RESETTING: Duration = Duration::from_millis(100);

static SEEN: AtomicBool = AtomicBool::new(false);

/// Ends the process by any panic from now on, whichever thread it is on.
pub fn end_the_process() {
    set_hook(Box::new(panicked));
}

/// True once a thread has panicked: the process is about to end.
pub fn seen() -> bool {
    SEEN.load(Ordering::Relaxed)
}

fn panicked(info: &PanicHookInfo<'_>) {
    let thread = thread::current();
    let at = info.location().map(|at| format!(" at {at}")).unwrap_or_default();
    let said = message(info.payload());
    tell(format!("thread {} panicked{at}: {said}: please report this", thread.name().unwrap_or("without a name")));
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        tell(trace);
    }
    if SEEN.swap(true, Ordering::Relaxed) {
        return;
    }
    let (done, reset) = mpsc::channel();
    let end = move || {
        corelane::reset_all();
        // Nobody waits for it any more where this thread was held up.
        let _ = done.send(());
        thread::sleep(UNWINDING);
        log::flush();
        std::process::exit(CODE.into());
    };
    match thread::Builder::new().name("panic".into()).spawn(end) {
        // Before unwinding closes anything in order. A lock that this thread holds would keep the other one for ever.
        Ok(_) => drop(reset.recv_timeout(RESETTING)),
        Err(_) => {
            log::flush();
            std::process::exit(CODE.into());
        }
    }
}

fn message(payload: &dyn Any) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_a_panic_is_found() {
        assert_eq!(message(&"plain"), "plain");
        assert_eq!(message(&String::from("formatted")), "formatted");
        assert_eq!(message(&7), "no message");
    }
}

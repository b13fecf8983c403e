//! The papers' accept benchmark (NSDI'14 fig. 8): every connection is reset once it is accepted.

use super::Counts;
use crate::net::{LISTENER, Net};
use crate::sys::Stop;
use std::io;

/// Accepts and resets until stopped.
pub fn run<N: Net>(mut net: N, stop: &Stop) -> io::Result<Counts> {
    let mut counts = Counts::default();
    let mut ready = Vec::new();
    let mut waiting = false;
    while !stop.is_set() {
        turn(&mut net, &mut ready, &mut waiting, &mut counts)?;
    }
    Ok(counts)
}

/// Waits once, takes what has come.
pub fn turn<N: Net>(
    net: &mut N,
    ready: &mut Vec<crate::net::Ready>,
    waiting: &mut bool,
    counts: &mut Counts,
) -> io::Result<()> {
    ready.clear();
    net.wait(ready, Some(if *waiting { std::time::Duration::ZERO } else { super::NAP }))?;
    *waiting |= ready.iter().any(|event| event.key >= LISTENER);
    if !*waiting {
        return Ok(());
    }
    for _ in 0..super::ACCEPT_BATCH {
        match net.accept(0) {
            Ok(Some(stream)) => {
                counts.connections += 1;
                net.abort(stream);
            }
            Ok(None) => {
                *waiting = false;
                break;
            }
            Err(_) => {
                counts.accept_errors += 1;
                break;
            }
        }
    }
    Ok(())
}

//! Frames that are lost before they come to a lane: its ports count them, and no counter of the interface may show them, so they
//! are told, once a minute at most.

use io::{AnyPort, Port, PortCounters};
use wire::Instant;

use crate::lane::Lane;

/// Between two looks at what ports count, each of which is a system call for each queue, µs.
const LOOK_US: u64 = 1_000_000;
/// Between two lines about a port, µs.
const PAUSE_US: u64 = 60_000_000;

/// Losses of one port, as far as they are told.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    dropped: u64,
    long: u64,
    at: Option<Instant>,
}

impl Told {
    /// The line about what was lost since the last one, where it is time for one; at the end of a lane it always is.
    fn line(&mut self, name: &str, counted: &PortCounters, now: Instant, last: bool) -> Option<String> {
        // The kernel's counters are not read at one moment.
        let dropped = counted.rx_dropped.saturating_sub(self.dropped);
        let long = counted.rx_long.saturating_sub(self.long).min(dropped);
        let early = self.at.is_some_and(|at| now.micros_since(at) < PAUSE_US);
        if dropped == 0 || early && !last {
            return None;
        }
        *self = Told { dropped: counted.rx_dropped, long: counted.rx_long, at: Some(now) };
        let behind = dropped - long;
        let too_long = format!(
            "{long} longer than a buffer, which the kernel has merged or nobody has cut: `ethtool -K IFACE gro off lro off` on \
             each interface by which its frames come"
        );
        let too_many = format!(
            "{behind} for which there was no room, since they came faster than lanes took them: more lanes take more"
        );
        let of = match (long, behind) {
            (0, _) => too_many,
            (_, 0) => too_long,
            _ => format!("{too_long}; {too_many}"),
        };
        Some(format!("{name}: {dropped} frames lost on the way in: {of}"))
    }
}

/// Losses of a lane's ports.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    ports: Vec<Told>,
    looked: Option<Instant>,
    /// Frames have come since.
    received: bool,
}

impl Losses {
    /// Notes a turn that received frames, or none. Whether it is time to look at what ports count.
    #[inline]
    pub fn is_due(&mut self, now: Instant, received: bool) -> bool {
        self.received |= received;
        self.received && self.due_us(now) == Some(0)
    }

    /// When what ports count is to be looked at, µs; `None` where nothing has come since that was done.
    pub fn due_us(&self, now: Instant) -> Option<u64> {
        let since = |looked| LOOK_US.saturating_sub(now.micros_since(looked));
        self.received.then(|| self.looked.map_or(0, since))
    }

    fn look(&mut self, ports: &[AnyPort], now: Instant, last: bool) {
        (self.looked, self.received) = (Some(now), false);
        self.ports.resize(ports.len(), Told::default());
        for (told, port) in self.ports.iter_mut().zip(ports) {
            let counted = port.counters();
            if counted.rx_dropped > told.dropped
                && let Some(line) = told.line(&port.caps_of().name, &counted, now, last)
            {
                tracing::warn!("{line}");
            }
        }
    }
}

impl Lane {
    /// Tells what was lost since it was told last.
    #[cold]
    pub(super) fn look_for_losses(&mut self, now: Instant) {
        self.losses.look(&self.ports, now, false);
    }

    /// Tells what is not told yet, at the end.
    pub(super) fn tell_losses(&mut self) {
        self.losses.look(&self.ports, self.clock.now(), true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(rx_dropped: u64, rx_long: u64) -> PortCounters {
        PortCounters { rx_dropped, rx_long, ..PortCounters::default() }
    }

    #[test]
    fn losses_are_told_once_a_minute_with_their_reasons() {
        let (mut told, begin) = (Told::default(), Instant::from_micros(7));
        let after = |us: u64| Instant::from_micros(7 + us);
        assert_eq!(told.line("xdp:a", &lost(0, 0), begin, true), None);
        let line = told.line("xdp:a", &lost(30, 30), begin, false).unwrap();
        assert!(line.contains("xdp:a: 30 frames") && line.contains("gro off") && !line.contains("no room"), "{line}");
        assert_eq!(told.line("xdp:a", &lost(40, 35), after(PAUSE_US - 1), false), None);
        let line = told.line("xdp:a", &lost(40, 35), after(PAUSE_US), false).unwrap();
        assert!(line.contains("10 frames") && line.contains("5 longer") && line.contains("5 for which"), "{line}");
        assert_eq!(told.line("xdp:a", &lost(40, 35), after(3 * PAUSE_US), false), None, "nothing was lost since");
        let line = told.line("xdp:a", &lost(41, 35), after(3 * PAUSE_US), false).unwrap();
        assert!(line.contains("1 for which there was no room") && !line.contains("gro"), "{line}");
        // Nobody would tell later.
        assert!(told.line("xdp:a", &lost(42, 35), after(3 * PAUSE_US), true).is_some());
    }

    #[test]
    fn counters_are_looked_at_once_a_second_where_frames_come() {
        let (mut losses, at) = (Losses::default(), Instant::from_micros);
        assert!(!losses.is_due(at(0), false) && losses.due_us(at(0)).is_none());
        assert!(losses.is_due(at(0), true));
        losses.look(&[], at(0), false);
        assert!(!losses.is_due(at(1), false) && losses.due_us(at(LOOK_US)).is_none(), "nothing came since");
        assert!(!losses.is_due(at(1), true));
        // Of the last frames, too, when no more come.
        assert_eq!(losses.due_us(at(1)), Some(LOOK_US - 1));
        assert!(!losses.is_due(at(LOOK_US - 1), false) && losses.is_due(at(LOOK_US), false));
    }
}

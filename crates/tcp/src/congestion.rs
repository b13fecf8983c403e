//! Congestion control behind one interface: the window, and an algorithm that says how it grows and what a loss leaves of
//! it. When losses are and how a reduction is spread over a round trip is `recovery`'s. Windows count segments, as Linux's
//! do: a path's queues hold packets.

mod cubic;
mod hystart;
mod newreno;

pub use cubic::Cubic;
pub use hystart::HyStart;
pub use newreno::NewReno;

use wire::{Instant, SeqNum};

/// Which algorithm a connection runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// RFC 9438, with RFC 9406's slow start.
    #[default]
    Cubic,
    /// RFC 5681.
    NewReno,
}

/// The window of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Congestion window, segments.
    pub cwnd: u32,
    /// Slow-start threshold, segments; `u32::MAX` until the first reduction.
    pub ssthresh: u32,
    /// Acknowledged segments not yet turned into growth.
    pub counted: u32,
}

impl Window {
    /// At its start, with an initial window of `cwnd` segments.
    pub fn new(cwnd: u32) -> Window {
        Window { cwnd, ssthresh: u32::MAX, counted: 0 }
    }

    /// RFC 5681 3.1.
    pub fn slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Three quarters of the window were used without loss, so the threshold need not be lower (RFC 7661 4.4's spirit).
    pub fn borne(&self) -> u32 {
        self.ssthresh.max(self.cwnd / 2 + self.cwnd / 4)
    }

    /// RFC 7661 4.3, as Linux does it: a window that is not used does not grow, but slow start may reach twice what was. The sender was
    /// held by it where `limited`, and `max_out` segments were out at once at most.
    #[inline(always)]
    pub fn is_used(&self, limited: bool, max_out: u32) -> bool {
        limited || (self.slow_start() && self.cwnd < 2 * max_out)
    }

    /// Slow start for `acked` segments; what is left of them past the threshold.
    pub fn grow_slow_start(&mut self, acked: u32) -> u32 {
        let cwnd = self.cwnd.saturating_add(acked).min(self.ssthresh);
        let left = acked - (cwnd - self.cwnd);
        self.cwnd = cwnd;
        left
    }

    /// One segment for every `each` acknowledged.
    pub fn grow_linear(&mut self, each: u32, acked: u32) {
        let each = each.max(1);
        if self.counted >= each {
            self.counted = 0;
            self.cwnd += 1;
        }
        self.counted += acked;
        if self.counted >= each {
            let n = self.counted / each;
            self.counted -= n * each;
            self.cwnd = self.cwnd.saturating_add(n);
        }
    }
}

/// What an acknowledgment tells.
#[derive(Clone, Copy, Debug)]
pub struct AckSample {
    /// Segments newly delivered.
    pub acked: u32,
    /// Segments in flight before the acknowledgment.
    pub in_flight: u32,
    /// The sender was held by its window.
    pub limited: bool,
    /// Most segments that were out at once in the last window.
    pub max_out: u32,
    /// When.
    pub now: Instant,
    /// Smoothed round-trip time, µs.
    pub srtt: u32,
}

impl AckSample {
    /// Whether the window may grow by it.
    pub fn validates(&self, w: &Window) -> bool {
        w.is_used(self.limited, self.max_out)
    }
}

/// An algorithm.
pub trait CongestionControl {
    /// Data was acknowledged outside a reduction.
    fn on_ack(&mut self, ack: &AckSample, window: &mut Window);
    /// The threshold that a loss or a mark leaves.
    fn ssthresh(&mut self, window: &Window) -> u32;
    /// A round trip of `rtt` µs was measured on the acknowledgment up to `una`; `nxt` is `snd.nxt`. The window may grow by it where
    /// `used`.
    fn on_rtt(&mut self, _rtt: u32, _una: SeqNum, _nxt: SeqNum, _window: &Window, _used: bool) {}
    /// The retransmission timer expired.
    fn on_timeout(&mut self) {}
    /// A reduction was undone.
    fn on_undo(&mut self) {}
    /// Sending begins again after `idle` µs with nothing in flight.
    fn on_restart(&mut self, _now: Instant, _idle: u64) {}
}

/// The algorithm of one connection, without a pointer.
#[derive(Clone, Debug)]
pub enum Controller {
    /// RFC 9438.
    Cubic(Cubic),
    /// RFC 5681.
    NewReno(NewReno),
}

impl Controller {
    /// `algorithm` at its start.
    pub fn new(algorithm: Algorithm) -> Controller {
        Controller::resumed(algorithm, u32::MAX, 0, false)
    }

    /// `algorithm` after a pause: a new epoch with the shortest round trip so far, µs, `u32::MAX` where there was none, and with what
    /// [`Controller::keep`] gave.
    pub fn resumed(algorithm: Algorithm, min_rtt: u32, w_max: u32, past_slow_start: bool) -> Controller {
        match algorithm {
            Algorithm::Cubic => Controller::Cubic(Cubic::resumed(min_rtt, w_max, past_slow_start)),
            Algorithm::NewReno => Controller::NewReno(NewReno),
        }
    }

    /// `W_max` (0: none), and whether the first slow start is over.
    pub fn keep(&self) -> (u32, bool) {
        match self {
            Controller::Cubic(c) => c.keep(),
            Controller::NewReno(_) => (0, false),
        }
    }

    /// Whether slow start is to end with the next acknowledgment.
    pub fn leaves(&self, window: &Window) -> bool {
        match self {
            Controller::Cubic(c) => c.leaves() && window.slow_start(),
            Controller::NewReno(_) => false,
        }
    }

    /// Which one it is.
    pub fn algorithm(&self) -> Algorithm {
        match self {
            Controller::Cubic(_) => Algorithm::Cubic,
            Controller::NewReno(_) => Algorithm::NewReno,
        }
    }
}

/// Each call goes to whichever it is.
macro_rules! forward {
    ($($name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)?;)*) => {
        impl CongestionControl for Controller {
            $(#[inline]
            fn $name(&mut self, $($arg: $type),*) $(-> $out)? {
                match self {
                    Controller::Cubic(c) => c.$name($($arg),*),
                    Controller::NewReno(c) => c.$name($($arg),*),
                }
            })*
        }
    };
}

forward! {
    on_ack(ack: &AckSample, window: &mut Window);
    ssthresh(window: &Window) -> u32;
    on_rtt(rtt: u32, una: SeqNum, nxt: SeqNum, window: &Window, used: bool);
    on_timeout();
    on_undo();
    on_restart(now: Instant, idle: u64);
}

impl Algorithm {
    /// All that there are, with Linux's names.
    pub const ALL: &'static [(Algorithm, &'static str)] = &[(Algorithm::Cubic, "cubic"), (Algorithm::NewReno, "reno")];

    /// Its name for TCP_CONGESTION.
    pub fn name(self) -> &'static str {
        Algorithm::ALL.iter().find(|(a, _)| *a == self).map_or("", |(_, name)| name)
    }

    /// The algorithm that `name` stands for.
    pub fn from_name(name: &str) -> Option<Algorithm> {
        Algorithm::ALL.iter().find(|(_, n)| *n == name).map(|(a, _)| *a)
    }

    /// Its number between the halves of a lane.
    pub fn number(self) -> u32 {
        Algorithm::ALL.iter().position(|(a, _)| *a == self).map_or(u32::MAX, |at| at as u32)
    }

    /// The algorithm with this number.
    pub fn from_number(number: u32) -> Option<Algorithm> {
        Algorithm::ALL.get(number as usize).map(|(a, _)| *a)
    }
}

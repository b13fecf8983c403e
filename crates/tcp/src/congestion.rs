//! Congestion control behind one interface: an algorithm sees acknowledgments and losses and owns `cwnd` and `ssthresh`.

mod newreno;

pub use newreno::NewReno;

/// Which algorithm a connection runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// RFC 5681.
    #[default]
    NewReno,
}

/// What an acknowledgment of new data tells.
#[derive(Clone, Copy, Debug)]
pub struct AckSample {
    /// Bytes newly acknowledged.
    pub acked: u32,
    /// Bytes in flight before the acknowledgment.
    pub flight: u32,
    /// Sender maximum segment size, bytes.
    pub smss: u32,
    /// The sender had used up its window (RFC 7661: an unused window does not grow).
    pub window_limited: bool,
}

/// An algorithm. Sizes are bytes.
pub trait CongestionControl {
    /// The congestion window.
    fn cwnd(&self) -> u32;
    /// The slow-start threshold.
    fn ssthresh(&self) -> u32;
    /// New data was acknowledged outside recovery.
    fn on_ack(&mut self, ack: &AckSample);
    /// A loss was found by duplicate ACKs; `flight` bytes were outstanding.
    fn on_loss(&mut self, flight: u32, smss: u32);
    /// Recovery inflates or deflates the window (RFC 6582).
    fn set_cwnd(&mut self, cwnd: u32);
    /// The retransmission timer expired; `first` when this segment had not timed out before.
    fn on_timeout(&mut self, flight: u32, smss: u32, first: bool);
    /// The connection was idle for longer than an RTO (RFC 5681 4.1).
    fn on_idle_restart(&mut self, initial_window: u32);
}

/// The algorithm of one connection, without a pointer.
#[derive(Clone, Debug)]
pub enum Controller {
    /// RFC 5681.
    NewReno(NewReno),
}

impl Controller {
    /// `algorithm` at its start, with an initial window of `window` bytes.
    pub fn new(algorithm: Algorithm, window: u32) -> Controller {
        match algorithm {
            Algorithm::NewReno => Controller::NewReno(NewReno::new(window)),
        }
    }

    /// The interface of whichever it is.
    pub fn get(&self) -> &dyn CongestionControl {
        match self {
            Controller::NewReno(c) => c,
        }
    }

    /// The interface of whichever it is.
    pub fn get_mut(&mut self) -> &mut dyn CongestionControl {
        match self {
            Controller::NewReno(c) => c,
        }
    }
}

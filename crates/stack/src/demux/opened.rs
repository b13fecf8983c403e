//! Interfaces shared with the kernel, which delivers of what nobody listens for only the segments of connections that lanes have opened:
//! their four-tuples are told to whatever sorts the frames there.

use crate::FlowKey;

/// Sorter of an interface's frames between the lanes and the kernel. Each call takes effect before it returns.
pub trait OpenTuples: Send {
    /// A SYN is about to be sent: what can answer it is the lanes' ([`tcp::State::SynSent`]). `false` where there is no room for the
    /// tuple, and nothing was done. One in TIME-WAIT is claimed anew.
    #[must_use]
    fn claim(&self, key: &FlowKey) -> bool;

    /// The peer has answered with its SYN: all segments are the lanes'.
    fn synchronized(&self, key: &FlowKey);

    /// The connection is over, and its last ACK may be asked for again: the tuple is the lanes' until somebody else opens it.
    fn time_wait(&self, key: &FlowKey);

    /// The tuple is the kernel's again. Nothing where it was never claimed.
    fn release(&self, key: &FlowKey);
}

/// Sorters of a stack's interfaces, by their numbers.
#[derive(Default)]
pub(crate) struct Shared(Vec<Option<Box<dyn OpenTuples>>>);

impl Shared {
    pub fn add(&mut self, interface: crate::InterfaceId, tuples: Box<dyn OpenTuples>) {
        let at = interface.0 as usize;
        self.0.resize_with(self.0.len().max(at + 1), || None);
        self.0[at] = Some(tuples);
    }

    #[inline(always)]
    pub fn of(&self, key: &FlowKey) -> Option<&dyn OpenTuples> {
        self.0.get(key.interface.0 as usize)?.as_deref()
    }
}

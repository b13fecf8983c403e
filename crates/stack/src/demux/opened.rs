//! Interfaces shared with the kernel, which delivers of what nobody listens for only the segments of connections that lanes have opened:
//! their four-tuples are told to whatever sorts the frames there, and their ports are those that the kernel leaves.

use wire::Ports;

use crate::FlowKey;

/// Source of local ports where others on the machine have some. There are none before the first connection is opened.
pub trait PortSource: Send {
    /// The ports from which connections may be opened, where they are others than those of the last call. Asked before each open.
    fn changed(&mut self) -> Option<Ports>;

    /// Number of ports that there can be, as far as is known.
    fn most(&self) -> u32;

    /// All are taken between an address and a remote end: makes room, if it can. Whether there are more now, which
    /// [`PortSource::changed`] then gives. Where there are not, it is soon back.
    fn more(&mut self) -> bool;
}

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

/// A stack's sorters, and its source of ports.
#[derive(Default)]
pub(crate) struct Shared {
    /// By the numbers of the interfaces.
    tuples: Vec<Option<Box<dyn OpenTuples>>>,
    pub ports: Option<Box<dyn PortSource>>,
    /// Ports from which connections have been opened, by bit: sorters know nothing of the others. Empty without a sorter.
    opened: Vec<u64>,
}

impl Shared {
    pub fn add(&mut self, interface: crate::InterfaceId, tuples: Box<dyn OpenTuples>) {
        let at = interface.0 as usize;
        self.tuples.resize_with(self.tuples.len().max(at + 1), || None);
        self.tuples[at] = Some(tuples);
        self.opened.resize(65_536 / 64, 0);
    }

    #[inline(always)]
    pub fn of(&self, key: &FlowKey) -> Option<&dyn OpenTuples> {
        self.tuples.get(key.interface.0 as usize)?.as_deref()
    }

    #[inline(always)]
    pub fn opens_from(&mut self, port: u16) {
        if let Some(word) = self.opened.get_mut(port as usize / 64) {
            *word |= 1 << (port % 64);
        }
    }

    /// Sorter that is told of the connections opened by the interface of `key`, where it may be one of them.
    #[inline(always)]
    pub fn told_of(&self, key: &FlowKey) -> Option<&dyn OpenTuples> {
        let port = key.local_port;
        let opened = self.opened.get(port as usize / 64).is_some_and(|word| word >> (port % 64) & 1 != 0);
        self.of(key).filter(|_| opened)
    }
}

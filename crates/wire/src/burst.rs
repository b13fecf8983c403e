//! The vocabulary that packet ports and stacks share: bursts of frames in, bursts of frames out.
//!
//! A port lends received frames by reference for the length of one burst and lends transmit memory frame by frame, so
//! neither direction copies a frame on the way. The runtime joins the two; a stack never names a port's type.

/// What is already known about the TCP, UDP or ICMP checksum of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxChecksum {
    /// Nothing: the receiver must verify.
    Unknown,
    /// Hardware, or the sender on the same machine, has verified it.
    Verified,
    /// The link may deliver unfinished sums (veth, CHECKSUM_PARTIAL): a sum that equals the folded pseudo-header counts
    /// as verified by the peer; any other must verify in full.
    MayBePartial,
}

/// One received frame, from its Ethernet header to the end of its payload.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'a> {
    /// The bytes of the frame.
    pub data: &'a [u8],
    /// What the port knows of its transport checksum.
    pub checksum: RxChecksum,
    /// Where the kernel or the NIC has put several TCP segments together: payload bytes of each but the last; 0 where
    /// the frame is as it was sent.
    pub mss: u16,
}

impl<'a> RxFrame<'a> {
    /// A frame as it was sent.
    pub fn new(data: &'a [u8], checksum: RxChecksum) -> RxFrame<'a> {
        RxFrame { data, checksum, mss: 0 }
    }
}

/// A burst of received frames, in arrival order.
pub trait RxBurst {
    /// Frames in the burst.
    fn len(&self) -> usize;
    /// Frame `index`, which is below [`RxBurst::len`].
    fn frame(&self, index: usize) -> RxFrame<'_>;
    /// Hints that frame `index` is read soon; nothing for one outside the burst.
    fn prefetch(&self, _index: usize) {}
    /// Whether the burst holds no frame.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a transmit side can do for the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxCaps {
    /// Longest frame it takes, Ethernet header included, in bytes.
    pub max_frame: usize,
    /// It finishes TCP checksums that the stack leaves at the folded pseudo-header sum.
    pub checksum: bool,
    /// Longest frame it cuts into segments itself (GSO); 0 where it cannot, or no longer.
    pub max_gso: usize,
}

/// A transport checksum left for the port or NIC: the field holds the folded, uninverted pseudo-header sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialChecksum {
    /// Where summing starts, bytes from the frame's start.
    pub start: u16,
    /// Where the finished sum goes, bytes from `start`.
    pub offset: u16,
}

/// How a GSO frame is to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// Payload bytes of each segment.
    pub mss: u16,
    /// Ethernet + IP + TCP header bytes that every segment repeats.
    pub header: u16,
    /// TCP over IPv6 rather than IPv4.
    pub ipv6: bool,
}

/// Work on one frame that the stack leaves to the port. Only what [`TxCaps`] allows is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxOffload {
    /// Finish this checksum.
    pub checksum: Option<PartialChecksum>,
    /// Cut into segments.
    pub gso: Option<Gso>,
}

/// Parts that [`TxSink::commit_with`] takes at most.
pub const PARTS: usize = 48;

/// Where a stack puts the frames of one transmit burst.
pub trait TxSink {
    /// What this side can do; constant for a burst.
    fn caps(&self) -> TxCaps;
    /// Memory for the next frame, at least `len` bytes, or `None` when the ring is full until a later burst. Calling it
    /// again with the same `len` and without [`TxSink::commit`] in between gives the same frame. One for which more than
    /// [`TxCaps::max_frame`] bytes are reserved goes the way of those that are cut, behind them, even if it turns out short.
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]>;
    /// Sends the first `len` bytes of the frame that was reserved last.
    fn commit(&mut self, len: usize, offload: TxOffload);
    /// Whether [`TxSink::commit_with`] saves the copy.
    fn gathers(&self) -> bool {
        false
    }
    /// Sends the first `head` bytes of the frame that was reserved last, and `parts` behind them, [`PARTS`] at most.
    fn commit_with(&mut self, head: usize, parts: &[&[u8]], offload: TxOffload) {
        let len = head + parts.iter().map(|p| p.len()).sum::<usize>();
        if let Some(buf) = self.reserve(len) {
            let mut at = head;
            for part in parts {
                buf[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
            self.commit(len, offload);
        }
    }
    /// Frames of [`TxCaps::max_frame`] that can certainly be reserved and committed now; 0 where nobody knows.
    fn room(&mut self) -> usize {
        0
    }
}

impl<B: RxBurst + ?Sized> RxBurst for Box<B> {
    fn len(&self) -> usize {
        (**self).len()
    }
    fn frame(&self, index: usize) -> RxFrame<'_> {
        (**self).frame(index)
    }
    fn prefetch(&self, index: usize) {
        (**self).prefetch(index);
    }
}

impl<S: TxSink + ?Sized> TxSink for Box<S> {
    fn caps(&self) -> TxCaps {
        (**self).caps()
    }
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        (**self).reserve(len)
    }
    fn commit(&mut self, len: usize, offload: TxOffload) {
        (**self).commit(len, offload);
    }
    fn room(&mut self) -> usize {
        (**self).room()
    }
    fn gathers(&self) -> bool {
        (**self).gathers()
    }
    fn commit_with(&mut self, head: usize, parts: &[&[u8]], offload: TxOffload) {
        (**self).commit_with(head, parts, offload);
    }
}

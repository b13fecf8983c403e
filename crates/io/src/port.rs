//! What every port can do, and the one type that holds any of them without a pointer call on the hot path.

use std::os::fd::BorrowedFd;

use wire::MacAddr;
use wire::burst::{RxBurst, RxFrame, TxCaps, TxOffload, TxSink};

use crate::error::PortError;
use crate::memwire::MemPort;
use crate::packet::PacketPort;
use crate::pcap::Tee;
use crate::tap::TapPort;
use crate::xdp::XdpPort;

/// What a port is.
#[derive(Clone, Debug)]
pub struct PortCaps {
    /// Kind and device, like `xdp:eth0`.
    pub name: String,
    /// Its hardware address.
    pub mac: MacAddr,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Longest frame that it receives as a rule, bytes: the link's, or more where the kernel may have put segments together. One
    /// that is longer all the same holds several segments.
    pub max_rx_frame: usize,
    /// Which queue of the device.
    pub queue: u16,
    /// Frames are not copied between NIC and port.
    pub zero_copy: bool,
    /// What its transmit side can do.
    pub tx: TxCaps,
}

/// What a port counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes of those.
    pub rx_bytes: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Bytes of those.
    pub tx_bytes: u64,
    /// Frames sent that hold several segments, to be cut by the kernel or the device.
    pub tx_cut: u64,
    /// Frames that the device or kernel dropped before they reached us.
    pub rx_dropped: u64,
    /// Of those, frames longer than a buffer, or than IP allows: the kernel has merged them, or nobody has cut them.
    pub rx_long: u64,
    /// Times that a driver which does not copy found no buffer to receive into. Frames that are lost then, the device counts.
    pub rx_no_buffer: u64,
    /// Frames that could not be sent.
    pub tx_dropped: u64,
    /// Times that the transmit ring was full.
    pub tx_full: u64,
    /// System calls on the data path.
    pub syscalls: u64,
}

/// Whether a device's interface can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It can.
    Up,
    /// Not now: somebody took it down.
    Down,
    /// Never again: it does not exist any more.
    Gone,
}

/// A queue of frames in each direction. Between [`Port::receive`] and [`Port::release`] the port is the burst it received.
pub trait Port: RxBurst + TxSink {
    /// Receives at most `max` frames; how many.
    fn receive(&mut self, max: usize) -> usize;
    /// Gives the received frames' memory back.
    fn release(&mut self);
    /// Sends what was committed; at most one system call.
    fn flush(&mut self) -> Result<(), PortError>;
    /// Readable when frames wait and [`Port::prepare_sleep`] said that none did. To be polled for nothing else: an AF_XDP socket that
    /// copies keeps a poll for room to send (`POLLOUT`) in the kernel for as long as the interface takes nothing.
    fn wake_fd(&self) -> BorrowedFd<'_>;
    /// Arms the wake-up; `false` when frames wait already. Who leaves those where they are may sleep all the same, and then does not
    /// poll [`Port::wake_fd`] for more (`POLLIN`).
    fn prepare_sleep(&mut self) -> bool;
    /// Awake again.
    fn wake_up(&mut self);
    /// When the port is to be flushed again for what waits in it, µs from now; `None` where nothing does. Asked after
    /// [`Port::prepare_sleep`].
    fn due_us(&self) -> Option<u64> {
        None
    }
    /// The error that polling the wake-up descriptor showed, which is then no longer pending.
    fn take_error(&mut self) -> Option<std::io::Error> {
        None
    }
    /// What became of its interface; asked after an error, and as long as it is down.
    fn presence(&self) -> Presence {
        Presence::Up
    }
    /// How much of the ring from which the burst was taken waits behind it: slots, of how many. Zero where the port does not
    /// know, or what does not fit it waits elsewhere.
    fn backlog(&self) -> (u32, u32) {
        (0, 0)
    }
    /// What it is.
    fn caps_of(&self) -> PortCaps;
    /// What it counted.
    fn counters(&self) -> PortCounters;
}

/// Does `body` with the port inside an [`AnyPort`] as `p`: what is generic over ports then has one copy for each kind, and
/// which kind it is gets asked once for a burst.
#[macro_export]
macro_rules! with_port {
    ($port:expr, $p:ident => $body:expr) => {
        match $port {
            $crate::AnyPort::Mem($p) => $body,
            $crate::AnyPort::Xdp($p) => $body,
            $crate::AnyPort::Tap($p) => $body,
            $crate::AnyPort::Packet($p) => $body,
            $crate::AnyPort::Tee($p) => $body,
        }
    };
}

macro_rules! any_port {
    ($($variant:ident($port:ty)),* $(,)?) => {
        /// Any port.
        pub enum AnyPort {
            $(
                #[allow(missing_docs)]
                $variant($port),
            )*
        }

        impl RxBurst for AnyPort {
            #[inline]
            fn len(&self) -> usize {
                match self { $(AnyPort::$variant(p) => p.len(),)* }
            }
            #[inline]
            fn frame(&self, index: usize) -> RxFrame<'_> {
                match self { $(AnyPort::$variant(p) => p.frame(index),)* }
            }
            #[inline]
            fn prefetch(&self, index: usize) {
                match self { $(AnyPort::$variant(p) => p.prefetch(index),)* }
            }
        }

        impl TxSink for AnyPort {
            #[inline]
            fn caps(&self) -> TxCaps {
                match self { $(AnyPort::$variant(p) => p.caps(),)* }
            }
            #[inline]
            fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
                match self { $(AnyPort::$variant(p) => p.reserve(len),)* }
            }
            #[inline]
            fn commit(&mut self, len: usize, offload: TxOffload) {
                match self { $(AnyPort::$variant(p) => p.commit(len, offload),)* }
            }
            fn gathers(&self) -> bool {
                match self { $(AnyPort::$variant(p) => p.gathers(),)* }
            }
            fn commit_with(&mut self, head: usize, parts: &[&[u8]], offload: TxOffload) {
                match self { $(AnyPort::$variant(p) => p.commit_with(head, parts, offload),)* }
            }
            #[inline]
            fn room(&mut self) -> usize {
                match self { $(AnyPort::$variant(p) => p.room(),)* }
            }
        }

        impl Port for AnyPort {
            fn receive(&mut self, max: usize) -> usize {
                match self { $(AnyPort::$variant(p) => p.receive(max),)* }
            }
            fn release(&mut self) {
                match self { $(AnyPort::$variant(p) => p.release(),)* }
            }
            fn flush(&mut self) -> Result<(), PortError> {
                match self { $(AnyPort::$variant(p) => p.flush(),)* }
            }
            fn wake_fd(&self) -> BorrowedFd<'_> {
                match self { $(AnyPort::$variant(p) => p.wake_fd(),)* }
            }
            fn prepare_sleep(&mut self) -> bool {
                match self { $(AnyPort::$variant(p) => p.prepare_sleep(),)* }
            }
            fn wake_up(&mut self) {
                match self { $(AnyPort::$variant(p) => p.wake_up(),)* }
            }
            fn due_us(&self) -> Option<u64> {
                match self { $(AnyPort::$variant(p) => p.due_us(),)* }
            }
            fn take_error(&mut self) -> Option<std::io::Error> {
                match self { $(AnyPort::$variant(p) => p.take_error(),)* }
            }
            fn presence(&self) -> Presence {
                match self { $(AnyPort::$variant(p) => p.presence(),)* }
            }
            #[inline]
            fn backlog(&self) -> (u32, u32) {
                match self { $(AnyPort::$variant(p) => p.backlog(),)* }
            }
            fn caps_of(&self) -> PortCaps {
                match self { $(AnyPort::$variant(p) => p.caps_of(),)* }
            }
            fn counters(&self) -> PortCounters {
                match self { $(AnyPort::$variant(p) => p.counters(),)* }
            }
        }
    };
}

any_port! {
    Mem(MemPort),
    Xdp(XdpPort),
    Tap(TapPort),
    Packet(PacketPort),
    Tee(Box<Tee>),
}

//! Bursts kept in vectors.

use wire::burst::{RxBurst, RxChecksum, RxFrame, TxCaps, TxOffload, TxSink};

use crate::offload::{Joined, cut};

/// Frames to receive.
pub struct Frames {
    /// The frames, and what is said of them.
    pub frames: Vec<Joined>,
}

impl Frames {
    /// Frames of which nothing is known.
    pub fn plain(frames: Vec<Vec<u8>>) -> Frames {
        let frame = |data| Joined { data, checksum: RxChecksum::Unknown, mss: 0 };
        Frames { frames: frames.into_iter().map(frame).collect() }
    }
}

impl RxBurst for Frames {
    fn len(&self) -> usize {
        self.frames.len()
    }

    fn frame(&self, index: usize) -> RxFrame<'_> {
        let Joined { data, checksum, mss } = &self.frames[index];
        RxFrame { data, checksum: *checksum, mss: *mss }
    }
}

/// Frames that were sent.
pub struct Sink {
    /// In order.
    pub frames: Vec<Vec<u8>>,
    /// Those that went the way of frames to be cut, kept apart where `apart`.
    pub large: Vec<Vec<u8>>,
    /// The two ways are told apart.
    pub apart: bool,
    reserved: usize,
    buffer: Vec<u8>,
    caps: TxCaps,
    /// Frames it still takes before it is full.
    pub room: usize,
    /// Frames that it was given, and their bytes, before any was cut.
    pub given: (u64, u64),
}

impl Sink {
    /// A sink that computes nothing itself.
    pub fn new(mtu: u16, room: usize) -> Sink {
        Sink::with(TxCaps { max_frame: mtu as usize + 18, checksum: false, max_gso: 0 }, room)
    }

    /// A sink that can do this.
    pub fn with(caps: TxCaps, room: usize) -> Sink {
        let buffer = vec![0; caps.max_frame.max(256)];
        Sink { frames: Vec::new(), large: Vec::new(), apart: false, reserved: 0, buffer, caps, room, given: (0, 0) }
    }
}

impl TxSink for Sink {
    fn caps(&self) -> TxCaps {
        self.caps
    }

    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.frames.len() >= self.room {
            return None;
        }
        self.reserved = len;
        if self.buffer.len() < len {
            self.buffer.resize(len, 0);
        }
        Some(&mut self.buffer)
    }

    fn gathers(&self) -> bool {
        self.caps.max_gso > 0
    }

    fn room(&mut self) -> usize {
        self.room.saturating_sub(self.frames.len())
    }

    fn commit(&mut self, len: usize, offload: TxOffload) {
        let TxCaps { max_frame, checksum, max_gso } = self.caps;
        assert!(checksum || offload.checksum.is_none(), "nothing was offered");
        assert!(len <= max_gso || offload.gso.is_none(), "{len} bytes are more than was offered");
        self.given = (self.given.0 + 1, self.given.1 + len as u64);
        for frame in cut(&self.buffer[..len], &offload) {
            assert!(frame.len() <= max_frame, "frame of {} bytes on a link of {max_frame}", frame.len());
            match self.apart && self.reserved > max_frame {
                true => self.large.push(frame),
                false => self.frames.push(frame),
            }
        }
    }
}

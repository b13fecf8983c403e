//! Bursts kept in vectors.

use wire::burst::{RxBurst, RxChecksum, RxFrame, TxCaps, TxOffload, TxSink};

/// Frames to receive.
pub struct Frames {
    /// The frames.
    pub frames: Vec<Vec<u8>>,
    /// What is said of their checksums.
    pub checksum: RxChecksum,
}

impl RxBurst for Frames {
    fn len(&self) -> usize {
        self.frames.len()
    }

    fn frame(&self, index: usize) -> RxFrame<'_> {
        RxFrame::new(&self.frames[index], self.checksum)
    }
}

/// Frames that were sent.
pub struct Sink {
    /// In order.
    pub frames: Vec<Vec<u8>>,
    buffer: Vec<u8>,
    caps: TxCaps,
    /// Frames it still takes before it is full.
    pub room: usize,
}

impl Sink {
    /// A sink that computes nothing itself.
    pub fn new(mtu: u16, room: usize) -> Sink {
        let max_frame = mtu as usize + 18;
        Sink {
            frames: Vec::new(),
            buffer: vec![0; max_frame.max(256)],
            caps: TxCaps { max_frame, checksum: false, max_gso: 0 },
            room,
        }
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
        if self.buffer.len() < len {
            self.buffer.resize(len, 0);
        }
        Some(&mut self.buffer)
    }

    fn room(&mut self) -> usize {
        self.room - self.frames.len()
    }

    fn commit(&mut self, len: usize, offload: TxOffload) {
        assert_eq!(offload, TxOffload::default(), "nothing was offered");
        assert!(len <= self.caps.max_frame, "frame of {len} bytes on a link of {}", self.caps.max_frame);
        self.frames.push(self.buffer[..len].to_vec());
    }
}

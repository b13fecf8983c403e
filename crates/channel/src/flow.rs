//! What a socket that receives until further notice has brought and nobody has asked for; how, is io_uring's ([`crate::uring`]).

use std::collections::VecDeque;

/// A request that stays, and what it brought that nobody asked for yet.
#[derive(Default)]
pub(crate) struct Flow {
    /// The kernel has it; it was asked to end.
    pub armed: bool,
    pub ending: bool,
    /// Buffers, and the bytes in them.
    pub ahead: VecDeque<(u16, u32)>,
    /// Bytes before those, whose buffers others needed, and how many of them are gone.
    pub spilled: Vec<u8>,
    pub gone: usize,
    /// How the stream ended: 0, or an error that nobody heard of yet.
    pub end: Option<i32>,
}

impl Flow {
    pub fn left(&self) -> &[u8] {
        &self.spilled[self.gone..]
    }

    /// Passes over spilled bytes.
    pub fn pass(&mut self, n: usize) {
        self.gone += n;
        if self.gone == self.spilled.len() {
            (self.spilled, self.gone) = (Vec::new(), 0);
        }
    }

    /// Whether it has bytes.
    pub fn has_bytes(&self) -> bool {
        !self.ahead.is_empty() || !self.spilled.is_empty()
    }
}

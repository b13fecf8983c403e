//! Chains that the application holds itself, in the pool's application side.

use mem::{Chain, View};

use crate::sockets::Sockets;

impl Sockets {
    /// Reads and writes chains where they stand.
    pub fn view(&self) -> View {
        self.side.view()
    }

    /// Makes room behind the last byte of `chain`; `false` when memory is short. [`Sockets::chunks_written`] must follow.
    pub fn chunks_room(&mut self, chain: &mut Chain) -> bool {
        let room = chain.spare(&mut self.side).is_some();
        self.counters.no_chunk += !room as u64;
        room
    }

    /// Counts `n` bytes written into the room of `chain`.
    pub fn chunks_written(&mut self, chain: &mut Chain, n: usize) {
        chain.advance(&mut self.side, n);
    }

    /// Copies `data` behind the last byte of `chain`; how many bytes there was memory for.
    pub fn chunks_push(&mut self, chain: &mut Chain, data: &[u8]) -> usize {
        let n = chain.push_slice(&mut self.side, data);
        self.counters.no_chunk += (n < data.len()) as u64;
        n
    }

    /// Appends `other` to `chain`.
    pub fn chunks_append(&mut self, chain: &mut Chain, other: Chain) {
        chain.append(&mut self.side, other);
    }

    /// Takes the first `n` bytes of `chain` off, or fewer when memory for a piece of a chunk is short.
    pub fn chunks_split(&mut self, chain: &mut Chain, n: usize) -> Chain {
        chain.split_front(&mut self.side, n)
    }

    /// Drops the first `n` bytes of `chain`.
    pub fn chunks_consume(&mut self, chain: &mut Chain, n: usize) {
        chain.consume(&mut self.side, n);
    }

    /// Gives a chain's memory back.
    pub fn chunks_free(&mut self, chain: Chain) {
        chain.free(&mut self.side);
    }
}

//! Copies of chains in chunks of another pool.

use super::Chain;
use crate::pool::Side;

impl Chain {
    /// Its first bytes, at most `len`, in chunks of another pool, whose side this is: as many as that has chunks for.
    pub fn front_copied(&self, side: &Side, len: usize, to: &mut Side) -> Chain {
        let (mut copy, mut full) = (Chain::default(), false);
        self.for_each_slice(side, 0, len, |piece| {
            full = full || copy.push_slice(to, piece) < piece.len();
        });
        copy
    }

    /// All its bytes in chunks of another pool, whose side this is; `None` where that has too few.
    pub fn copied(&self, side: &Side, to: &mut Side) -> Option<Chain> {
        let copy = self.front_copied(side, self.len(), to);
        if copy.len() < self.len() {
            copy.free(to);
            return None;
        }
        Some(copy)
    }
}

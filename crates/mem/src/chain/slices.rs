//! The bytes of a chain as they lie.

use core::marker::PhantomData;
use core::slice;

use super::Chain;
use crate::pool::{NIL, View};

/// The pieces of a chain.
pub struct Slices<'a> {
    chunk: u32,
    view: &'a View,
    _chain: PhantomData<&'a Chain>,
}

impl<'a> Slices<'a> {
    /// Those of the chain that begins with `head`, which stays borrowed.
    pub(super) fn from(head: u32, view: &'a View) -> Slices<'a> {
        Slices { chunk: head, view, _chain: PhantomData }
    }
}

impl<'a> Iterator for Slices<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        while self.chunk != NIL {
            // SAFETY: the chunk is one of the chain's, which is borrowed shared: nobody writes to its record or its live
            // bytes. `off + len <= CHUNK_BYTES`, payloads are initialised, and the view keeps the arena mapped.
            let piece = unsafe {
                let record = *self.view.record(self.chunk);
                let at = self.view.payload(self.chunk).add(record.off as usize);
                self.chunk = record.next;
                slice::from_raw_parts(at, record.len as usize)
            };
            if !piece.is_empty() {
                return Some(piece);
            }
        }
        None
    }
}

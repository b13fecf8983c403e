//! What went wrong locally, or was close to.

/// Plain counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Messages from the stack that did not decode.
    pub undecodable: u64,
    /// Events that answer no request, or name what the stack never named.
    pub unasked: u64,
    /// Events for connections and listeners that had been closed meanwhile; no fault.
    pub late: u64,
    /// Jobs that had to wait since the ring to the stack was full.
    pub ring_full: u64,
    /// Writes cut short since there was no chunk.
    pub no_chunk: u64,
    /// Calls refused with EMFILE.
    pub no_descriptor: u64,
}

impl Counters {
    /// Names and counts.
    pub fn rows(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let Counters { undecodable, unasked, late, ring_full, no_chunk, no_descriptor } = *self;
        [
            ("undecodable", undecodable),
            ("unasked", unasked),
            ("late", late),
            ("ring_full", ring_full),
            ("no_chunk", no_chunk),
            ("no_descriptor", no_descriptor),
        ]
        .into_iter()
    }
}

//! Bytes without copies: what was received is taken, and what is sent is given, in the chunks of the lane's own memory.

use std::io::{self, BufRead, Read, Write};

use mem::Chain;

use crate::lane::Lane;
use crate::stream::TcpStream;

/// Bytes in chunks of a lane's memory.
///
/// Received ones come from [`TcpStream::read_chunks`]; new ones are made by [`Lane::chunks`] and filled in place by
/// [`Chunks::reserve`] and [`Chunks::commit`], or by copying ([`Write`]). [`TcpStream::write_chunks`] sends either, so
/// that a proxy touches no byte. They are read in place by [`Chunks::slices`] or [`BufRead`].
///
/// Chunks that are held are missing elsewhere: the lane's memory (`buffers_mib`) is all there is. It comes back as bytes
/// are consumed, and when this is dropped.
///
/// ```
/// # use corelane::{Config, Engine};
/// # use std::io::BufRead;
/// # let (mut engine, _other) = Engine::memory_pair(&Config::memory("10.0.0.1/24")?, &Config::memory("10.0.0.2/24")?)?;
/// # let lane = engine.take_lane(0).unwrap().attach()?;
/// let mut chunks = lane.chunks();
/// let room = chunks.reserve()?;
/// room[..6].copy_from_slice(b"one\ntw");
/// chunks.commit(6);
/// std::io::Write::write_all(&mut chunks, b"o\n")?;
/// assert_eq!(chunks.lines().collect::<Result<Vec<_>, _>>()?, ["one", "two"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Chunks {
    lane: Lane,
    chain: Chain,
}

impl Chunks {
    pub(crate) fn new(lane: Lane, chain: Chain) -> Chunks {
        Chunks { lane, chain }
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.chain.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.chain.is_empty()
    }

    /// The bytes as they lie, piece by piece.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.chain.slices(&self.lane.shared.view)
    }

    /// Room behind the last byte, one to 2,048 bytes of stale contents; [`Chunks::commit`] says how many were written.
    ///
    /// # Errors
    /// `OutOfMemory` when the lane's memory is used up.
    pub fn reserve(&mut self) -> io::Result<&mut [u8]> {
        if self.chain.rest(&self.lane.shared.view).is_empty() && !self.lane.sockets(|s| s.chunks_room(&mut self.chain))
        {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(self.chain.rest(&self.lane.shared.view))
    }

    /// Counts the first `n` bytes of the room that [`Chunks::reserve`] gave, at most all of it.
    pub fn commit(&mut self, n: usize) {
        self.lane.sockets(|s| s.chunks_written(&mut self.chain, n));
    }

    /// Takes the first `n` bytes off, or all there are. Where `n` lies inside a chunk the rest of that is copied; without
    /// memory for it the result is shorter.
    pub fn split_to(&mut self, n: usize) -> Chunks {
        let chain = self.lane.sockets(|s| s.chunks_split(&mut self.chain, n));
        Chunks::new(self.lane.clone(), chain)
    }

    /// Appends `other`, which must be of the same lane.
    ///
    /// # Panics
    /// If it is another's.
    pub fn append(&mut self, mut other: Chunks) {
        let chain = other.detach();
        self.lane.sockets(|s| s.chunks_append(&mut self.chain, chain));
    }

    /// The chain, without room that was reserved and not used.
    fn detach(&mut self) -> Chain {
        self.commit(0);
        core::mem::take(&mut self.chain)
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        let chain = core::mem::take(&mut self.chain);
        // Dropped where the lane is lent out, which the documentation forbids, they stay until it goes.
        if let Ok(mut app) = self.lane.shared.app.try_borrow_mut() {
            app.sockets.chunks_free(chain);
        }
    }
}

/// Takes bytes from the front; 0 when there are none.
impl Read for Chunks {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        for piece in self.slices() {
            let n = piece.len().min(buf.len() - done);
            buf[done..done + n].copy_from_slice(&piece[..n]);
            done += n;
            if done == buf.len() {
                break;
            }
        }
        self.consume(done);
        Ok(done)
    }
}

/// The front piece in place; empty when there are no bytes.
impl BufRead for Chunks {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        Ok(self.slices().next().unwrap_or(&[]))
    }

    fn consume(&mut self, n: usize) {
        if n > 0 {
            self.lane.sockets(|s| s.chunks_consume(&mut self.chain, n));
        }
    }
}

/// Copies behind the last byte; `OutOfMemory` when the lane's memory is used up.
impl Write for Chunks {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self.lane.sockets(|s| s.chunks_push(&mut self.chain, buf)) {
            0 if !buf.is_empty() => Err(io::ErrorKind::OutOfMemory.into()),
            n => Ok(n),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads a stream through its chunks, without a copy of its own: lines, records, whatever [`BufRead`] finds.
pub struct ChunkReader<'a> {
    stream: &'a TcpStream,
    chunks: Option<Chunks>,
}

impl<'a> ChunkReader<'a> {
    pub(crate) fn new(stream: &'a TcpStream) -> ChunkReader<'a> {
        ChunkReader { stream, chunks: None }
    }

    /// What was taken from the stream and not read.
    pub fn into_chunks(self) -> Option<Chunks> {
        self.chunks
    }
}

impl BufRead for ChunkReader<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let chunks = match self.chunks.take() {
            Some(chunks) if !chunks.is_empty() => chunks,
            _ => self.stream.read_chunks()?,
        };
        self.chunks.insert(chunks).fill_buf()
    }

    fn consume(&mut self, n: usize) {
        if let Some(chunks) = &mut self.chunks {
            chunks.consume(n);
        }
    }
}

impl Read for ChunkReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut front = self.fill_buf()?;
        let n = front.read(buf)?;
        self.consume(n);
        Ok(n)
    }
}

impl TcpStream {
    /// Takes everything received, without a copy; empty at the end of the stream. Waits as [`TcpStream::read`] does.
    pub fn read_chunks(&self) -> io::Result<Chunks> {
        let chain = self.receiving(|s, id| s.read_chain(id))?;
        Ok(Chunks::new(self.lane.clone(), chain))
    }

    /// A reader that takes chunks as it needs them.
    pub fn chunk_reader(&self) -> ChunkReader<'_> {
        ChunkReader::new(self)
    }

    /// Sends chunks of the same lane without a copy, all of them, once the send buffer has any room; waits for that as
    /// [`TcpStream::write`] does. With the error they come back.
    ///
    /// # Panics
    /// If they are another lane's.
    pub fn write_chunks(&self, mut chunks: Chunks) -> Result<(), (io::Error, Chunks)> {
        let mut chain = Some(chunks.detach());
        let sent = self.sending(|s, id| {
            let Some(all) = chain.take() else { return Ok(()) };
            s.write_chain(id, all, false).map_err(|(error, back)| {
                chain = Some(back);
                error
            })
        });
        match sent {
            Ok(()) => Ok(()),
            Err(error) => {
                chunks.chain = chain.unwrap_or_default();
                Err((error, chunks))
            }
        }
    }
}

impl Lane {
    /// No bytes yet, to be written.
    pub fn chunks(&self) -> Chunks {
        Chunks::new(self.clone(), Chain::default())
    }
}

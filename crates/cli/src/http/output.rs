//! One response on its way out: a head, then segments of memory or file, taken by a sink as it has room.

use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::Range;
use std::rc::Rc;

/// Where a connection's bytes go.
pub trait Sink {
    /// Takes some bytes; `more` says that others follow at once. `WouldBlock` when there is no room.
    fn write(&mut self, data: &[u8], more: bool) -> io::Result<usize>;
}

/// A piece of a body.
#[derive(Debug)]
pub enum Segment {
    /// Bytes made for this response.
    Bytes(Vec<u8>),
    /// A range of a cached file.
    Shared(Rc<[u8]>, Range<usize>),
    /// A range of an open file.
    File {
        /// The file.
        file: Rc<OwnedFd>,
        /// Next byte to send.
        offset: u64,
        /// Bytes still to send.
        left: u64,
    },
}

/// A response being sent. Reused by one connection after the other.
#[derive(Debug, Default)]
pub struct Output {
    head: Vec<u8>,
    sent: usize,
    body: VecDeque<Segment>,
    /// The connection ends after this response.
    pub close: bool,
    /// What the peer sends meanwhile must be read and dropped before closing, or a reset could destroy the response.
    pub linger: bool,
}

/// How far sending came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// Everything was taken.
    All,
    /// The sink is full.
    Blocked,
}

impl Output {
    /// Forgets everything, keeps the room that most answers need.
    pub fn clear(&mut self) {
        self.head.clear();
        self.head.shrink_to(16 * 1024);
        self.sent = 0;
        self.body.clear();
        self.close = false;
        self.linger = false;
    }

    /// Whether nothing waits to be sent.
    pub fn is_empty(&self) -> bool {
        self.sent == self.head.len() && self.body.is_empty()
    }

    /// Starts a response: status line, server, date, connection field. `minor` is the request's version.
    pub fn start(&mut self, status: u16, minor: u8, date: &str) {
        let connection = match (self.close, minor) {
            (true, _) => "Connection: close\r\n",
            (false, 0) => "Connection: keep-alive\r\n",
            (false, _) => "",
        };
        let reason = super::reason(status);
        self.line(format_args!("HTTP/1.1 {status} {reason}\r\nServer: corelane\r\nDate: {date}\r\n{connection}"));
    }

    /// Appends text to the head.
    pub fn line(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a Vec cannot fail.
        let _ = io::Write::write_fmt(&mut self.head, text);
    }

    /// Appends bytes to the head: its end, or a body small enough to ride with it.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.head.extend_from_slice(bytes);
    }

    /// Appends a segment to the body.
    pub fn segment(&mut self, segment: Segment) {
        self.body.push_back(segment);
    }

    /// Sends as much as the sink takes; file segments pass through `scratch`.
    ///
    /// Errors: the sink's; `UnexpectedEof` when a file became shorter than the length already promised.
    pub fn pump(&mut self, sink: &mut impl Sink, scratch: &mut [u8]) -> io::Result<Sent> {
        while self.sent < self.head.len() {
            let more = self.close || !self.body.is_empty();
            match sink.write(&self.head[self.sent..], more) {
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Sent::Blocked),
                Err(error) => return Err(error),
            }
        }
        while let Some(segment) = self.body.front_mut() {
            let done = match send_segment(segment, sink, scratch, self.close) {
                Ok(done) => done,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Sent::Blocked),
                Err(error) => return Err(error),
            };
            if done {
                self.body.pop_front();
            }
        }
        self.head.clear();
        self.sent = 0;
        Ok(Sent::All)
    }
}

/// Writes once; true when the segment is finished. The last write before a close says `more`, so that FIN rides on it.
fn send_segment(segment: &mut Segment, sink: &mut impl Sink, scratch: &mut [u8], close: bool) -> io::Result<bool> {
    match segment {
        Segment::Bytes(bytes) => {
            let n = if bytes.is_empty() { 0 } else { sink.write(bytes, true)? };
            bytes.drain(..n);
            Ok(bytes.is_empty())
        }
        Segment::Shared(bytes, range) => {
            if range.start < range.end {
                range.start += sink.write(&bytes[range.clone()], close)?;
            }
            Ok(range.start >= range.end)
        }
        Segment::File { file, offset, left } => {
            let want = scratch.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
            if want == 0 {
                return Ok(true);
            }
            let read = rustix::io::retry_on_intr(|| rustix::io::pread(&*file, &mut scratch[..want], *offset))?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let n = sink.write(&scratch[..read], close || *left > read as u64)? as u64;
            *offset += n;
            *left -= n;
            Ok(*left == 0)
        }
    }
}

//! One connection's framing: requests in order, one answer at a time, RFC 9112.
//!
//! Bytes go in through `advance`, which parses, asks the handler and sends until it must wait; it says for what.
//! While an answer waits for room nothing more is parsed, and the caller reads nothing more: a client that does not
//! take its answers is slowed by its own window, not buffered for.

use super::head::{self, Body, Head, LIMIT, Parsed, Reject};
use super::output::{Output, Sent, Sink};
use std::io;

/// Longest body that is read and dropped to keep a connection, in bytes.
pub const MAX_DRAIN: u64 = 64 * 1024;

/// Answers requests.
pub trait Handler {
    /// Writes the answer. `out.close` says whether the connection ends after it; the handler may set it. `unread`: the answer to a request
    /// that would be granted but for its body, which is not read.
    fn answer(&mut self, head: &Head, unread: Option<Reject>, out: &mut Output);
    /// Writes the answer to something that was no acceptable request, without content where `bodiless`; the connection ends after it.
    fn refuse(&mut self, reject: Reject, minor: u8, bodiless: bool, out: &mut Output);
    /// Tells the time, once a turn.
    fn set_time(&mut self, _now: std::time::SystemTime) {}
    /// Looks again at what answers come from, as an administrator asks by SIGHUP.
    fn reload(&mut self) {}
}

/// What a session waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// More input.
    Read,
    /// Room in the sink.
    Write,
    /// Nothing: close now. What was written last may be held back so that FIN rides on it.
    Close,
    /// Shut down sending, drop input until the peer closes or some time passed, then close (RFC 9112 9.6).
    Linger,
}

/// Where in its cycle a session is; decides which timeout counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Between requests.
    Idle,
    /// In a head, or in a body to be dropped.
    Request,
    /// An answer waits for room.
    Answer,
}

/// One connection.
#[derive(Debug, Default)]
pub struct Session {
    /// Received and not yet consumed; empty, without memory, for requests that come whole.
    input: Vec<u8>,
    /// Bytes of `input` in which no end of a head was found.
    scanned: usize,
    /// Body bytes still to drop.
    skip: u64,
    /// Lent while there is something to answer: an idle connection has none.
    output: Option<Box<Output>>,
    /// End the connection after the answer under way.
    closing: bool,
    /// End it after the next answer.
    last: bool,
    eof: bool,
    /// Requests answered.
    pub answered: u32,
}

/// Room for answers, shared by the connections of a thread.
#[derive(Debug, Default)]
#[expect(clippy::vec_box, reason = "boxes move between here and sessions, which hold a pointer only")]
pub struct Outputs(Vec<Box<Output>>);

/// Spare ones kept.
const MAX_OUTPUTS: usize = 256;

impl Session {
    /// Makes the session new.
    pub fn clear(&mut self, outputs: &mut Outputs) {
        self.give_back(outputs);
        *self = Session::default();
    }

    fn borrow(&mut self, outputs: &mut Outputs) -> Box<Output> {
        self.output.take().or_else(|| outputs.0.pop()).unwrap_or_default()
    }

    fn give_back(&mut self, outputs: &mut Outputs) {
        if let Some(mut output) = self.output.take()
            && outputs.0.len() < MAX_OUTPUTS
        {
            output.clear();
            outputs.0.push(output);
        }
    }

    /// Where it stands.
    pub fn phase(&self) -> Phase {
        let answered = self.output.as_ref().is_none_or(|output| output.is_empty());
        match (answered, self.input.is_empty() && self.skip == 0) {
            (false, _) => Phase::Answer,
            (true, true) => Phase::Idle,
            (true, false) => Phase::Request,
        }
    }

    /// The peer will send no more. Call `advance` afterwards.
    pub fn end_of_input(&mut self) {
        self.eof = true;
    }

    /// Works on `fresh` input until it must wait. `scratch` is room for file contents.
    ///
    /// Errors: the sink's, or a file that shrank; the connection is lost.
    pub fn advance(
        &mut self,
        fresh: &[u8],
        handler: &mut impl Handler,
        sink: &mut impl Sink,
        scratch: &mut [u8],
        outputs: &mut Outputs,
    ) -> io::Result<Next> {
        let mut output = self.borrow(outputs);
        let next = self.work(fresh, handler, sink, scratch, &mut output);
        let blocked = matches!(next, Ok(Next::Write));
        self.output = Some(output);
        if !blocked {
            self.give_back(outputs);
        }
        next
    }

    fn work(
        &mut self,
        mut fresh: &[u8],
        handler: &mut impl Handler,
        sink: &mut impl Sink,
        scratch: &mut [u8],
        output: &mut Output,
    ) -> io::Result<Next> {
        loop {
            output.close |= self.closing;
            if !output.is_empty() && output.pump(sink, scratch)? == Sent::Blocked {
                self.input.extend_from_slice(fresh);
                return Ok(Next::Write);
            }
            if output.close {
                let unread = output.linger || self.skip > 0 || !self.input.is_empty() || !fresh.is_empty();
                return Ok(if unread && !self.eof { Next::Linger } else { Next::Close });
            }
            if !self.input.is_empty() && !fresh.is_empty() {
                self.input.extend_from_slice(fresh);
                fresh = &[];
            }
            let stored = !self.input.is_empty();
            let buffer = if stored { self.input.as_slice() } else { fresh };
            let mut used = usize::try_from(self.skip).unwrap_or(usize::MAX).min(buffer.len());
            self.skip -= used as u64;
            // RFC 9112 2.2: empty lines before a request are ignored.
            if self.skip == 0 && self.scanned == 0 {
                used += buffer[used..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            }
            let rest = &buffer[used..];
            if rest.is_empty() {
                self.input = Vec::new();
                self.scanned = 0;
                return Ok(if self.eof { Next::Close } else { Next::Read });
            }
            // The first look finds what can never become a request; later ones wait for the end of the head.
            let look = self.scanned == 0 || rest.len() >= LIMIT || head::end_of_head(rest, self.scanned).is_some();
            let consumed = if look { one_request(rest, self.last, &mut self.skip, handler, output) } else { None };
            match consumed {
                Some(consumed) => {
                    used += consumed;
                    self.scanned = 0;
                    self.answered += 1;
                }
                None => self.scanned = rest.len(),
            }
            match stored {
                true => drop(self.input.drain(..used)),
                false => fresh = &fresh[used..],
            }
            if consumed.is_none() {
                self.input.extend_from_slice(fresh);
                return Ok(if self.eof { Next::Close } else { Next::Read });
            }
        }
    }

    /// Answers 408 to a head that takes too long (RFC 9110 15.5.9); `advance` sends it.
    pub fn time_out(&mut self, handler: &mut impl Handler, outputs: &mut Outputs) {
        let mut output = self.borrow(outputs);
        output.clear();
        output.close = true;
        output.linger = true;
        let input = std::mem::take(&mut self.input);
        handler.refuse(Reject(408), 1, head::begins_with_head(&input), &mut output);
        self.output = Some(output);
    }

    /// The next request is the last that is answered.
    pub fn answer_one_more(&mut self) {
        self.last = true;
    }

    /// Ends the connection after what is being answered; true when nothing is.
    pub fn wind_down(&mut self) -> bool {
        self.closing = true;
        self.phase() != Phase::Answer
    }
}

/// Answers the request at the start of `buffer`, the `last` one where that is so; how many bytes it took, `None` when it is not whole.
fn one_request<H: Handler>(
    buffer: &[u8],
    last: bool,
    skip: &mut u64,
    handler: &mut H,
    out: &mut Output,
) -> Option<usize> {
    let mut room = head::slots();
    let refuse = |reject, minor, out: &mut Output, handler: &mut H| {
        out.close = true;
        out.linger = true;
        handler.refuse(reject, minor, head::begins_with_head(buffer), out);
    };
    match head::parse(buffer, &mut room) {
        Ok(Parsed::Partial) => None,
        Err(reject) => {
            refuse(reject, 1, out, handler);
            Some(buffer.len())
        }
        Ok(Parsed::Whole(head, used)) => {
            let body = match head.body() {
                Ok(body) => body,
                Err(reject) => {
                    refuse(reject, head.minor, out, handler);
                    return Some(used);
                }
            };
            let (length, unread) = match body {
                Body::Length(length) if length > MAX_DRAIN => (length, Some(Reject(413))),
                Body::Length(length) => (length, None),
                Body::Chunked => (u64::MAX, Some(Reject(411))),
            };
            let mut close = last || !head.persists();
            if head.minor >= 1
                && let Some(expectation) = head.one("expect")
            {
                if !expectation.eq_ignore_ascii_case(b"100-continue") {
                    refuse(Reject(417), head.minor, out, handler);
                    return Some(used);
                }
                // RFC 9110 10.1.1: a final answer at once instead of 100; whether the body still comes is then
                // unknown, so the connection cannot go on.
                close |= length > 0;
            }
            // A body that is not read is not skipped either: no request can follow it.
            close |= unread.is_some();
            out.close = close;
            out.linger = length > 0;
            *skip = if unread.is_some() { 0 } else { length };
            handler.answer(&head, unread, out);
            Some(used)
        }
    }
}

#[cfg(test)]
#[path = "session/tests.rs"]
mod tests;

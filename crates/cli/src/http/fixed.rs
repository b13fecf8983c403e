//! The benchmark protocol: every request gets the same bytes.

use super::head::{Head, Reject};
use super::output::{Output, Segment};
use super::session::Handler;
use std::rc::Rc;

/// Bodies up to this many bytes are sent with the head in one write.
const INLINE: usize = 8 * 1024;

/// Answers with a body of a fixed size.
#[derive(Clone, Debug)]
pub struct Fixed {
    keep: Vec<u8>,
    close: Vec<u8>,
    body: Rc<[u8]>,
}

impl Fixed {
    /// Bodies of `bytes` bytes.
    pub fn new(bytes: usize) -> Fixed {
        let body: Rc<[u8]> = (0..bytes).map(|at| b'a' + (at % 26) as u8).collect();
        let response = |connection: &str| {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\nConnection: {connection}\r\n\r\n");
            let mut response = head.into_bytes();
            if bytes <= INLINE {
                response.extend_from_slice(&body);
            }
            response
        };
        Fixed { keep: response("keep-alive"), close: response("close"), body }
    }
}

impl Fixed {
    /// A whole response; `close` ends the connection.
    pub fn whole(&self, close: bool) -> Vec<u8> {
        let mut response = if close { self.close.clone() } else { self.keep.clone() };
        if self.body.len() > INLINE {
            response.extend_from_slice(&self.body);
        }
        response
    }
}

impl Handler for Fixed {
    fn answer(&mut self, head: &Head, unread: Option<Reject>, out: &mut Output) {
        if let Some(reject) = unread {
            return self.refuse(reject, head.minor, head.method == "HEAD", out);
        }
        if head.method == "HEAD" {
            // RFC 9110 9.3.2: the length of the answer to GET, and no content.
            let response = if out.close { &self.close } else { &self.keep };
            let end = super::head::end_of_head(response, 0).unwrap_or(response.len());
            return out.bytes(&response[..end]);
        }
        out.bytes(if out.close { &self.close } else { &self.keep });
        if self.body.len() > INLINE {
            out.segment(Segment::Shared(self.body.clone(), 0..self.body.len()));
        }
    }

    fn refuse(&mut self, reject: Reject, _minor: u8, _bodiless: bool, out: &mut Output) {
        let (status, reason) = (reject.0, super::reason(reject.0));
        out.line(format_args!("HTTP/1.1 {status} {reason}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"));
    }
}

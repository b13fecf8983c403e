//! HTTP/1.1 without I/O: request heads in, responses out.
//!
//! `head` parses, `session` keeps one connection's framing (RFC 9112), `site` answers from a directory, `fixed` answers
//! benchmarks, `reader` is the client's half. Nothing here owns a socket, so one copy serves lanes, the kernel and tests.

pub mod clock;
pub mod conditional;
pub mod files;
pub mod fixed;
pub mod head;
pub mod listing;
pub mod mime;
pub mod output;
pub mod path;
pub mod range;
pub mod reader;
pub mod session;
pub mod site;

/// The reason phrase of a status that this server sends.
pub fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        206 => "Partial Content",
        301 => "Moved Permanently",
        304 => "Not Modified",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Internal Server Error",
    }
}

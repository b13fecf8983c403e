//! The client's half: where a response ends and what it was.

use super::head::end_of_head;
use std::fmt;
use std::mem::MaybeUninit;

/// Longest response head, in bytes; curl takes a little more.
const LIMIT: usize = 256 * 1024;
/// Longest line of a chunk's size, or of a trailer.
const LINE: usize = 16 * 1024;
/// Most header lines of a response.
const MAX_HEADERS: usize = 512;

/// Why a response cannot be understood.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Malformed {
    /// The first line is not that of HTTP/1.x.
    StatusLine,
    /// A header line has no name, or a byte that none may have.
    HeaderLine,
    /// More than `MAX_HEADERS`.
    HeaderLines,
    /// A head of more than `LIMIT` bytes.
    HeadLength,
    /// A Content-Length that is none, or several that differ.
    ContentLength,
    /// A chunk's size, its end or the trailer is not as RFC 9112 7.1 has them.
    Chunk,
    /// The connection ended inside a response.
    Short,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::StatusLine => f.write_str("the response is not HTTP"),
            Malformed::HeaderLine => f.write_str("a header line of the response is malformed"),
            Malformed::HeaderLines => write!(f, "too many header lines in the response (more than {MAX_HEADERS})"),
            Malformed::HeadLength => write!(f, "the response's head is longer than {} KiB", LIMIT / 1024),
            Malformed::ContentLength => f.write_str("the response's Content-Length is no length"),
            Malformed::Chunk => f.write_str("the response's chunks are malformed"),
            Malformed::Short => f.write_str("closed before the response was whole"),
        }
    }
}

impl Malformed {
    /// Names an error of the parser; `code`: the status line had one.
    fn head(error: httparse::Error, code: Option<u16>) -> Malformed {
        match error {
            httparse::Error::TooManyHeaders => Malformed::HeaderLines,
            httparse::Error::Status | httparse::Error::Version => Malformed::StatusLine,
            _ if code.is_some() => Malformed::HeaderLine,
            _ => Malformed::StatusLine,
        }
    }
}

/// Where in a response the reader is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Head,
    Body(u64),
    UntilClose,
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailer,
    Done,
}

/// Reads one response after the other from a connection.
#[derive(Debug, Default)]
pub struct Reader {
    /// A head, chunk size or trailer line that is not whole yet.
    held: Vec<u8>,
    state: State,
    /// The final status.
    pub status: u16,
    /// Body bytes received.
    pub body: u64,
    /// The server ends the connection after this response.
    pub close: bool,
}

impl Reader {
    /// Prepares for the next response, keeping room.
    pub fn next(&mut self) {
        self.held.clear();
        self.state = State::Head;
        self.status = 0;
        self.body = 0;
        self.close = false;
    }

    /// Whether the response is complete.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Takes input up to the end of the response; how much it took. `bodiless`: the request was HEAD.
    /// Body bytes are shown to `see` as they pass.
    pub fn feed(&mut self, data: &[u8], bodiless: bool, see: &mut impl FnMut(&[u8])) -> Result<usize, Malformed> {
        let mut used = 0;
        while used < data.len() && self.state != State::Done {
            let rest = &data[used..];
            used += match self.state {
                State::Head => self.head(rest, bodiless)?,
                State::Body(left) => {
                    let n = self.pass(rest, left, see);
                    self.state = if left == n as u64 { State::Done } else { State::Body(left - n as u64) };
                    n
                }
                State::UntilClose => self.pass(rest, u64::MAX, see),
                State::Chunk(left) => {
                    let n = self.pass(rest, left, see);
                    self.state = if left == n as u64 { State::ChunkEnd } else { State::Chunk(left - n as u64) };
                    n
                }
                State::ChunkSize | State::ChunkEnd | State::Trailer => self.line(rest)?,
                State::Done => 0,
            };
        }
        Ok(used)
    }

    /// The connection ended.
    pub fn end(&mut self) -> Result<(), Malformed> {
        match self.state {
            State::UntilClose | State::Done => {
                self.state = State::Done;
                Ok(())
            }
            _ => Err(Malformed::Short),
        }
    }

    fn pass(&mut self, rest: &[u8], left: u64, see: &mut impl FnMut(&[u8])) -> usize {
        let n = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.body += n as u64;
        see(&rest[..n]);
        n
    }

    fn head(&mut self, rest: &[u8], bodiless: bool) -> Result<usize, Malformed> {
        let before = self.held.len();
        if before > 0 {
            self.held.extend_from_slice(rest);
        }
        let buffer = if before > 0 { self.held.as_slice() } else { rest };
        // The first look finds what can never become a head; later ones wait for its end, so that the cost of many pieces stays linear.
        let look = before == 0 || buffer.len() >= LIMIT || end_of_head(buffer, before).is_some();
        let parsed = if look { parse_head(buffer, bodiless)? } else { None };
        let length = parsed.as_ref().map_or(buffer.len(), |(used, _)| *used);
        if length >= LIMIT {
            return Err(Malformed::HeadLength);
        }
        let Some((used, framing)) = parsed else {
            if before == 0 {
                self.held.extend_from_slice(rest);
            }
            return Ok(rest.len());
        };
        self.held.clear();
        // RFC 9110 15.2: interim answers come before the real one.
        if !(100..200).contains(&framing.status) {
            self.status = framing.status;
            self.close = framing.close;
            self.state = framing.state;
        }
        Ok(used - before)
    }

    fn line(&mut self, rest: &[u8]) -> Result<usize, Malformed> {
        let end = rest.iter().position(|&byte| byte == b'\n');
        let used = end.map_or(rest.len(), |at| at + 1);
        self.held.extend_from_slice(&rest[..used]);
        if self.held.len() > LINE {
            return Err(Malformed::Chunk);
        }
        if end.is_none() {
            return Ok(used);
        }
        let line = self.held.trim_ascii();
        self.state = match self.state {
            State::ChunkEnd if line.is_empty() => State::ChunkSize,
            State::ChunkEnd => return Err(Malformed::Chunk),
            State::Trailer if line.is_empty() => State::Done,
            State::Trailer => State::Trailer,
            _ => match httparse::parse_chunk_size(&self.held) {
                Ok(httparse::Status::Complete((_, 0))) => State::Trailer,
                Ok(httparse::Status::Complete((_, size))) => State::Chunk(size),
                _ => return Err(Malformed::Chunk),
            },
        };
        self.held.clear();
        Ok(used)
    }
}

struct Framing {
    status: u16,
    close: bool,
    state: State,
}

/// RFC 9112 6.3, the client's side.
fn parse_head(buffer: &[u8], bodiless: bool) -> Result<Option<(usize, Framing)>, Malformed> {
    let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut []);
    // RFC 9112 5.2: a user agent takes folded lines; 5.1: space before the colon is for proxies to remove, and curl takes it, too.
    let mut lenient = httparse::ParserConfig::default();
    lenient.allow_obsolete_multiline_headers_in_responses(true).allow_spaces_after_header_name_in_responses(true);
    let used = match lenient.parse_response_with_uninit_headers(&mut response, buffer, &mut headers) {
        Ok(httparse::Status::Complete(used)) => used,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(Malformed::head(error, response.code)),
    };
    let status = response.code.unwrap_or(0);
    let mut close = response.version == Some(0);
    let (mut length, mut chunked, mut coded) = (None, false, false);
    for header in response.headers.iter() {
        let value = header.value.trim_ascii();
        if header.name.eq_ignore_ascii_case("content-length") {
            // RFC 9112 6.3 (5): a list of equal lengths is that length.
            for item in value.split(|&byte| byte == b',') {
                let parsed = content_length(item.trim_ascii()).ok_or(Malformed::ContentLength)?;
                if length.is_some_and(|seen| seen != parsed) {
                    return Err(Malformed::ContentLength);
                }
                length = Some(parsed);
            }
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            coded = true;
            chunked = value.len() >= 7 && value[value.len() - 7..].eq_ignore_ascii_case(b"chunked");
        } else if header.name.eq_ignore_ascii_case("connection") {
            for token in value.split(|&byte| byte == b',') {
                close |= token.trim_ascii().eq_ignore_ascii_case(b"close");
                close &= !token.trim_ascii().eq_ignore_ascii_case(b"keep-alive");
            }
        }
    }
    let state = match length {
        _ if bodiless || matches!(status, 100..200 | 204 | 304) => State::Done,
        _ if chunked => State::ChunkSize,
        _ if coded => State::UntilClose,
        Some(0) => State::Done,
        Some(length) => State::Body(length),
        None => State::UntilClose,
    };
    close |= state == State::UntilClose;
    Ok(Some((used, Framing { status, close, state })))
}

/// RFC 9110 8.6: digits alone.
fn content_length(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(data: &[u8], cut: usize) -> Result<(Reader, Vec<u8>, usize), Malformed> {
        let (mut reader, mut body, mut used) = (Reader::default(), Vec::new(), 0);
        for chunk in data.chunks(cut.max(1)) {
            used += reader.feed(chunk, false, &mut |bytes| body.extend_from_slice(bytes))?;
            if reader.is_done() {
                break;
            }
        }
        Ok((reader, body, used))
    }

    proptest! {
        #[test]
        fn responses_end_where_they_end_however_cut(cut in 1usize..60) {
            let cases: [(&[u8], u16, &[u8], bool); 5] = [
                (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello", false),
                (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 404, b"", true),
                (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 206 P\r\nContent-Length: 1\r\n\r\nx", 206, b"x", false),
                (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n1\r\n!\r\n0\r\nA: b\r\n\r\n", 200, b"hello!", false),
                (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", 304, b"", false),
            ];
            for (text, status, body, close) in cases {
                let data = [text, b"HTTP/1.1 next"].concat();
                let (reader, seen, used) = read(&data, cut).expect("well-formed");
                prop_assert!(reader.is_done());
                prop_assert_eq!((reader.status, seen.as_slice(), reader.close), (status, body, close));
                prop_assert_eq!(used, text.len());
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(data in prop::collection::vec(any::<u8>(), 0..300), cut in 1usize..50) {
            if let Ok((_, _, used)) = read(&data, cut) {
                prop_assert!(used <= data.len());
            }
        }
    }

    #[test]
    fn ends_are_told_apart() {
        let (mut reader, body, _) = read(b"HTTP/1.0 200 OK\r\n\r\nabc", 7).expect("well-formed");
        assert!(!reader.is_done() && reader.close);
        assert_eq!(body, b"abc");
        assert_eq!(reader.end(), Ok(()));
        assert!(reader.is_done());
        let (mut reader, ..) = read(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", 50).expect("well-formed");
        assert_eq!(reader.end(), Err(Malformed::Short));
    }

    #[test]
    fn oddities_that_others_take_are_taken() {
        for head in [
            "Content-Length: 5, 5",
            "Content-Length: 5\r\nContent-Length: 5",
            "Content-Length : 5",
            "Server: a\r\n b\r\n\tc\r\nContent-Length: 5",
            &format!("{}Content-Length: 5", "X: y\r\n".repeat(MAX_HEADERS - 1)),
        ] {
            let text = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\nhello");
            let (reader, body, _) = read(text.as_bytes(), 99).expect(head);
            assert!(reader.is_done() && body == b"hello", "{head}");
        }
    }

    #[test]
    fn malformed_responses_are_named_for_what_they_are() {
        for (text, why) in [
            ("SSH-2.0-OpenSSH\r\n", Malformed::StatusLine),
            ("HTTP/2 200\r\n\r\n", Malformed::StatusLine),
            ("HTTP/1.1 OK\r\n\r\n", Malformed::StatusLine),
            ("HTTP/1.1 200 OK\r\nno colon\r\n\r\n", Malformed::HeaderLine),
            ("HTTP/1.1 200 OK\r\nA: b\rc\r\n\r\n", Malformed::HeaderLine),
            ("HTTP/1.1 200 OK\r\nA: \0\r\n\r\n", Malformed::HeaderLine),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", Malformed::ContentLength),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\n", Malformed::ContentLength),
            ("HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n", Malformed::ContentLength),
            ("HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n", Malformed::ContentLength),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", Malformed::Chunk),
            (&format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(MAX_HEADERS + 1)), Malformed::HeaderLines),
            (&format!("HTTP/1.1 200 OK\r\nX: {}", "y".repeat(LIMIT)), Malformed::HeadLength),
            (&format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(LIMIT)), Malformed::HeadLength),
        ] {
            for cut in [7, 99, LIMIT * 2] {
                assert_eq!(read(text.as_bytes(), cut).err(), Some(why), "{text:.60}, cut {cut}");
            }
        }
    }
}

//! The client's half: where a response ends and what it was.

/// Longest response head, in bytes.
const LIMIT: usize = 32 * 1024;
const MAX_HEADERS: usize = 64;

/// Why a response cannot be understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// The head is not HTTP/1.x.
    Head,
    /// Lengths contradict or chunks are broken.
    Framing,
    /// The connection ended inside a response.
    Short,
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
        let Some((used, framing)) = parse_head(buffer, bodiless)? else {
            if buffer.len() >= LIMIT {
                return Err(Malformed::Head);
            }
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
        if self.held.len() > LIMIT {
            return Err(Malformed::Framing);
        }
        if end.is_none() {
            return Ok(used);
        }
        let line = self.held.trim_ascii();
        self.state = match self.state {
            State::ChunkEnd if line.is_empty() => State::ChunkSize,
            State::ChunkEnd => return Err(Malformed::Framing),
            State::Trailer if line.is_empty() => State::Done,
            State::Trailer => State::Trailer,
            _ => match httparse::parse_chunk_size(&self.held) {
                Ok(httparse::Status::Complete((_, 0))) => State::Trailer,
                Ok(httparse::Status::Complete((_, size))) => State::Chunk(size),
                _ => return Err(Malformed::Framing),
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
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let used = match response.parse(buffer) {
        Ok(httparse::Status::Complete(used)) => used,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(Malformed::Head),
    };
    let status = response.code.unwrap_or(0);
    let mut close = response.version == Some(0);
    let (mut length, mut chunked, mut coded) = (None, false, false);
    for header in response.headers.iter() {
        let value = header.value.trim_ascii();
        if header.name.eq_ignore_ascii_case("content-length") {
            let text = std::str::from_utf8(value).map_err(|_| Malformed::Framing)?;
            let parsed = text.parse::<u64>().map_err(|_| Malformed::Framing)?;
            if length.is_some_and(|seen| seen != parsed) {
                return Err(Malformed::Framing);
            }
            length = Some(parsed);
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
        assert_eq!(read(b"SSH-2.0-OpenSSH\r\n", 50).err(), Some(Malformed::Head));
        assert_eq!(
            read(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 99).err(),
            Some(Malformed::Framing)
        );
    }
}

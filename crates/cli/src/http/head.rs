//! Request heads: finding their end in a growing buffer, parsing them, and what RFC 9112 says about framing.

use std::mem::MaybeUninit;

/// Longest request line and headers together, in bytes.
pub const LIMIT: usize = 16 * 1024;
/// Most header lines of a request.
pub const MAX_HEADERS: usize = 256;

/// Room for the header slices of one parse; lives on the caller's stack.
pub type Slots<'b> = [MaybeUninit<httparse::Header<'b>>; MAX_HEADERS];

/// An empty set of slots.
pub fn slots<'b>() -> Slots<'b> {
    [const { MaybeUninit::uninit() }; MAX_HEADERS]
}

/// A parsed request head; everything borrows from the input buffer.
#[derive(Debug)]
pub struct Head<'h, 'b> {
    /// The method as sent; methods are case-sensitive.
    pub method: &'b str,
    /// The request target as sent.
    pub target: &'b str,
    /// The minor version of HTTP/1.x.
    pub minor: u8,
    headers: &'h [httparse::Header<'b>],
}

/// Content that follows a head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body {
    /// So many bytes.
    Length(u64),
    /// In chunks, whose number shows as they come.
    Chunked,
}

/// Why a request is refused: the status that says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reject(pub u16);

/// What a buffer holds.
#[derive(Debug)]
pub enum Parsed<'h, 'b> {
    /// Not a whole head yet.
    Partial,
    /// A head of this many bytes.
    Whole(Head<'h, 'b>, usize),
}

/// The offset after the first empty line at or after `from`, if the buffer has one.
///
/// A drip-fed head is parsed once this finds its end, so that its cost stays linear.
pub fn end_of_head(buffer: &[u8], from: usize) -> Option<usize> {
    // An empty line ends in "\n\r\n" or "\n\n": look back far enough to see one that straddles two reads.
    let start = from.saturating_sub(3);
    let mut rest = start;
    while let Some(at) = buffer[rest..].iter().position(|&byte| byte == b'\n') {
        let next = rest + at + 1;
        match &buffer[next..] {
            [b'\n', ..] => return Some(next + 1),
            [b'\r', b'\n', ..] => return Some(next + 2),
            _ => rest = next,
        }
    }
    None
}

/// Parses the head at the start of `buffer`.
pub fn parse<'h, 'b>(buffer: &'b [u8], slots: &'h mut Slots<'b>) -> Result<Parsed<'h, 'b>, Reject> {
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(buffer, slots) {
        Ok(httparse::Status::Complete(used)) if used > LIMIT => Err(too_long(buffer)),
        Ok(httparse::Status::Complete(used)) => {
            let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version) else {
                return Err(Reject(400));
            };
            Ok(Parsed::Whole(Head { method, target, minor, headers: request.headers }, used))
        }
        Ok(httparse::Status::Partial) if buffer.len() >= LIMIT => Err(too_long(buffer)),
        Ok(httparse::Status::Partial) => Ok(Parsed::Partial),
        Err(httparse::Error::TooManyHeaders) => Err(Reject(431)),
        Err(httparse::Error::Version) => Err(Reject(if names_a_version(buffer) { 505 } else { 400 })),
        Err(_) => Err(Reject(400)),
    }
}

/// Says if a request, of which more may be unfit to be parsed, is HEAD: its answer has no content (RFC 9110 9.3.2).
pub fn begins_with_head(buffer: &[u8]) -> bool {
    let line = buffer.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(0);
    buffer[line..].starts_with(b"HEAD ")
}

/// Says if the request line ends in a version, one that we do not speak (RFC 9110 15.6.6), and in nothing else.
fn names_a_version(buffer: &[u8]) -> bool {
    let lines = buffer.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii_end);
    let line = lines.into_iter().find(|line| !line.is_empty()).unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let [_, target, version] = words[..] else { return false };
    let digits = version.strip_prefix(b"HTTP/").unwrap_or_default();
    !target.is_empty() && matches!(digits, [major, b'.', minor] if major.is_ascii_digit() && minor.is_ascii_digit())
}

/// RFC 9112 3 (414 for a target that is too long) and RFC 6585 5 (431 for headers).
fn too_long(buffer: &[u8]) -> Reject {
    let text = buffer.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(0);
    match buffer[text..].iter().take(LIMIT).any(|&byte| byte == b'\n') {
        true => Reject(431),
        false => Reject(414),
    }
}

impl<'h, 'b> Head<'h, 'b> {
    /// Every value of a field, in order, surrounding whitespace removed.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &'b [u8]> {
        let headers = self.headers;
        headers
            .iter()
            .filter(move |header| header.name.eq_ignore_ascii_case(name))
            .map(|header| header.value.trim_ascii())
    }

    /// The first value of a field.
    pub fn one(&self, name: &str) -> Option<&'b [u8]> {
        self.all(name).next()
    }

    /// Whether a list field contains a token (case-insensitive).
    pub fn lists(&self, name: &str, token: &str) -> bool {
        self.all(name)
            .flat_map(|value| value.split(|&byte| byte == b','))
            .any(|item| item.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
    }

    /// RFC 9112 9.3: whether the client lets the connection persist.
    pub fn persists(&self) -> bool {
        match self.lists("connection", "close") {
            true => false,
            false => self.minor >= 1 || self.lists("connection", "keep-alive"),
        }
    }

    /// RFC 9112 3.2: HTTP/1.1 names exactly one host; nobody names two, or one with a byte that no host has.
    pub fn host_is_right(&self) -> bool {
        let mut hosts = self.all("host");
        match (hosts.next(), hosts.next()) {
            (None, _) => self.minor == 0,
            (Some(host), None) => host.iter().all(|&byte| is_of_a_host(byte)),
            _ => false,
        }
    }

    /// The content that follows. RFC 9112 6: framing that two recipients could read in two ways is refused, as are other codings.
    pub fn body(&self) -> Result<Body, Reject> {
        let mut length = None;
        for value in self.all("content-length") {
            // RFC 9110 8.6: digits only; RFC 9112 6.3: differing values are an attack, equal ones are tolerated.
            if value.is_empty() || value.len() > 18 || !value.iter().all(u8::is_ascii_digit) {
                return Err(Reject(400));
            }
            let parsed = value.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
            if length.is_some_and(|seen| seen != parsed) {
                return Err(Reject(400));
            }
            length = Some(parsed);
        }
        match self.one("transfer-encoding") {
            None => Ok(Body::Length(length.unwrap_or(0))),
            // RFC 9112 6.1: both together is request smuggling; so is a coding in HTTP/1.0.
            Some(_) if length.is_some() || self.minor == 0 => Err(Reject(400)),
            Some(coding) if coding.eq_ignore_ascii_case(b"chunked") => Ok(Body::Chunked),
            Some(_) => Err(Reject(501)),
        }
    }
}

/// Bytes of a host and its port (RFC 3986 3.2.2). An empty one is right where the target names none (RFC 9112 3.2).
fn is_of_a_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:[]".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rejected(text: &[u8]) -> Option<u16> {
        parse(text, &mut slots()).err().map(|reject| reject.0)
    }

    fn with<R>(text: &str, check: impl FnOnce(&Head) -> R) -> R {
        let mut room = slots();
        match parse(text.as_bytes(), &mut room).expect("a good head") {
            Parsed::Whole(head, used) => {
                assert_eq!(used, text.len());
                check(&head)
            }
            Parsed::Partial => panic!("{text:?} is whole"),
        }
    }

    #[test]
    fn limits_name_their_part() {
        let line = [b"GET /".as_slice(), &vec![b'a'; LIMIT], b" HTTP/1.1\r\n\r\n"].concat();
        assert_eq!(rejected(&line), Some(414));
        assert_eq!(rejected(&line[..LIMIT]), Some(414));
        assert_eq!(rejected(&line[..LIMIT - 1]), None);
        let headers = [b"GET / HTTP/1.1\r\nA: ".as_slice(), &vec![b'a'; LIMIT], b"\r\n\r\n"].concat();
        assert_eq!(rejected(&headers), Some(431));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(MAX_HEADERS + 1));
        assert_eq!(rejected(many.as_bytes()), Some(431));
        let fits = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(MAX_HEADERS));
        assert_eq!(rejected(fits.as_bytes()), None);
    }

    #[test]
    fn bad_heads_are_400_and_other_versions_505() {
        for text in ["\0\r\n\r\n", "GET\r\n\r\n", "GET  / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nbad header: x\r\n\r\n"]
        {
            assert_eq!(rejected(text.as_bytes()), Some(400), "{text:?}");
        }
        for text in ["GET / HTTP/2.0\r\n\r\n", "\r\nGET / HTTP/3.0\n\n"] {
            assert_eq!(rejected(text.as_bytes()), Some(505), "{text:?}");
        }
        for version in ["HTTP/2", "HTTP/2.00", "HTTP/x.y", "http/1.1", "FTP/1.1", " HTTP/1.1", "b HTTP/1.1"] {
            assert_eq!(rejected(format!("GET / {version}\r\n\r\n").as_bytes()), Some(400), "{version:?}");
        }
    }

    #[test]
    fn persistence_follows_version_and_field() {
        assert!(with("GET / HTTP/1.1\r\n\r\n", |head| head.persists()));
        assert!(!with("GET / HTTP/1.1\r\nConnection: foo, Close\r\n\r\n", |head| head.persists()));
        assert!(!with("GET / HTTP/1.0\r\n\r\n", |head| head.persists()));
        assert!(with("GET / HTTP/1.0\r\nconnection: Keep-Alive\r\n\r\n", |head| head.persists()));
        assert!(!with("GET / HTTP/1.0\r\nConnection: keep-alive\r\nConnection: close\r\n\r\n", |head| head.persists()));
    }

    #[test]
    fn body_framing_refuses_what_is_ambiguous() {
        let length = |fields: &str| with(&format!("GET / HTTP/1.1\r\n{fields}\r\n"), |head| head.body());
        assert_eq!(length(""), Ok(Body::Length(0)));
        assert_eq!(length("Content-Length: 12\r\n"), Ok(Body::Length(12)));
        assert_eq!(length("Content-Length: 12\r\nContent-Length: 12\r\n"), Ok(Body::Length(12)));
        assert_eq!(length("Content-Length: 12\r\nContent-Length: 13\r\n"), Err(Reject(400)));
        assert_eq!(length("Content-Length: +1\r\n"), Err(Reject(400)));
        assert_eq!(length("Content-Length: 99999999999999999999\r\n"), Err(Reject(400)));
        assert_eq!(length("Transfer-Encoding: chunked\r\n"), Ok(Body::Chunked));
        assert_eq!(length("Transfer-Encoding: gzip\r\n"), Err(Reject(501)));
        assert_eq!(length("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n"), Err(Reject(400)));
    }

    #[test]
    fn hosts_are_counted() {
        assert!(!with("GET / HTTP/1.1\r\n\r\n", |head| head.host_is_right()));
        assert!(with("GET / HTTP/1.0\r\n\r\n", |head| head.host_is_right()));
        assert!(with("GET / HTTP/1.1\r\nHost: a\r\n\r\n", |head| head.host_is_right()));
        assert!(!with("GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", |head| head.host_is_right()));
        for (host, right) in [
            ("", true),
            ("a.example:8080", true),
            ("[fd99::2]:80", true),
            ("a_b", true),
            ("a b", false),
            ("a/b", false),
            ("u@a", false),
        ] {
            let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            assert_eq!(with(&text, |head| head.host_is_right()), right, "{host:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut room = slots();
            if let Ok(Parsed::Whole(head, used)) = parse(&bytes, &mut room) {
                prop_assert!(used <= bytes.len());
                let _ = (head.persists(), head.host_is_right(), head.body());
            }
        }

        #[test]
        fn the_end_is_found_at_any_split(lines in prop::collection::vec("[A-Z]{1,8}: [a-z]{0,9}", 0..5), split in 0usize..200) {
            let text = format!("GET / HTTP/1.1\r\n{}\r\n\r\ntail", lines.join("\r\n"));
            let text = text.replace("HTTP/1.1\r\n\r\n\r\n", "HTTP/1.1\r\n\r\n");
            let whole = text.len() - 4;
            let split = split.min(whole - 1);
            prop_assert_eq!(end_of_head(&text.as_bytes()[..split], 0), None);
            prop_assert_eq!(end_of_head(text.as_bytes(), split), Some(whole));
        }
    }
}

//! Requests as clients send them, good and bad.

use super::feature::Feature;

/// A request, and how it is sent. `{etag}` and `{modified}` in a field become those of `/page.html` as the server told them.
pub struct Request {
    pub method: &'static str,
    pub target: String,
    /// After the target, with the space before it.
    pub version: &'static str,
    pub host: Vec<&'static str>,
    pub fields: Vec<String>,
    pub body: Vec<u8>,
    /// Before the request line.
    pub lead: &'static str,
    /// Ends each line.
    pub line_end: &'static str,
    pub delivery: Delivery,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// In one write, and the next request with it.
    Whole,
    /// In two writes.
    Halves,
    /// A byte a write, to the end of the head.
    Bytes,
    /// Half of the request, then FIN.
    HalfAndFin,
    /// The request and the next one, then FIN.
    WholeAndFin,
    /// The request, and the next one once this is answered.
    OneByOne,
    /// Half of the request, then RST.
    HalfAndReset,
    /// The request, then RST.
    WholeAndReset,
}

impl Default for Request {
    fn default() -> Request {
        Request {
            method: "GET",
            target: "/page.html".to_owned(),
            version: " HTTP/1.1",
            host: vec!["a"],
            fields: Vec::new(),
            body: Vec::new(),
            lead: "",
            line_end: "\r\n",
            delivery: Delivery::Whole,
        }
    }
}

impl Request {
    /// The bytes, and how many of them are the head.
    pub fn bytes(&self, etag: &str, modified: &str) -> (Vec<u8>, usize) {
        let mut text = format!("{}{} {}{}{}", self.lead, self.method, self.target, self.version, self.line_end);
        for host in &self.host {
            text += &format!("Host: {host}{}", self.line_end);
        }
        for field in &self.fields {
            text += &field.replace("{etag}", etag).replace("{modified}", modified);
            text += self.line_end;
        }
        text += self.line_end;
        let head = text.len();
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(&self.body);
        (bytes, head)
    }

    fn field(&mut self, field: impl Into<String>) {
        self.fields.push(field.into());
    }

    fn content(&mut self, length: &str, bytes: usize) {
        self.field(format!("Content-Length: {length}"));
        self.body = vec![b'b'; bytes];
    }

    fn coded(&mut self, coding: &str, body: &str) {
        self.field(format!("Transfer-Encoding: {coding}"));
        self.body = body.as_bytes().to_vec();
    }
}

type F = Feature<Request>;

/// Features, those of a group together.
pub const TABLE: &[F] = &[
    F::new("method", "HEAD", |r| r.method = "HEAD"),
    F::new("other method", "OPTIONS", |r| r.method = "OPTIONS"),
    F::new("other method", "POST", |r| r.method = "POST"),
    F::new("other method", "PUT", |r| r.method = "PUT"),
    F::new("other method", "DELETE", |r| r.method = "DELETE"),
    F::new("other method", "PATCH", |r| r.method = "PATCH"),
    F::new("other method", "TRACE", |r| r.method = "TRACE"),
    F::new("other method", "CONNECT", |r| r.method = "CONNECT"),
    F::new("other method", "lower case", |r| r.method = "get"),
    F::new("other method", "unknown", |r| r.method = "FOO"),
    F::new("other method", "with a dash", |r| r.method = "M-SEARCH"),
    F::new("other method", "no token", |r| r.method = "G@T"),
    F::new("other method", "empty", |r| r.method = ""),
    F::new("target", "empty file", |r| r.target = "/empty".into()),
    F::new("target", "one byte", |r| r.target = "/one".into()),
    F::new("target", "large file", |r| r.target = "/large".into()),
    F::new("target", "nothing there", |r| r.target = "/none".into()),
    F::new("target", "index", |r| r.target = "/".into()),
    F::new("target", "directory without slash", |r| r.target = "/dir".into()),
    F::new("target", "directory without slash, query", |r| r.target = "/dir?a=b".into()),
    F::new("target", "directory", |r| r.target = "/dir/".into()),
    F::new("target", "directory without index", |r| r.target = "/bare/".into()),
    F::new("target", "file with slash", |r| r.target = "/page.html/".into()),
    F::new("target", "below a file", |r| r.target = "/page.html/x".into()),
    F::new("target", "escaped", |r| r.target = "/p%61ge.html?x=1".into()),
    F::new("target", "escape cut short", |r| r.target = "/%".into()),
    F::new("target", "escape of no digits", |r| r.target = "/%zz".into()),
    F::new("target", "escaped NUL", |r| r.target = "/%00".into()),
    F::new("target", "escaped slash", |r| r.target = "/dir%2findex.html".into()),
    F::new("target", "above the root", |r| r.target = "/../page.html".into()),
    F::new("target", "above the root, escaped", |r| r.target = "/%2e%2e/page.html".into()),
    F::new("target", "up and down", |r| r.target = "/dir/../page.html".into()),
    F::new("target", "dot segment", |r| r.target = "/./page.html".into()),
    F::new("target", "two slashes", |r| r.target = "//page.html".into()),
    F::new("target", "hidden file", |r| r.target = "/.hidden".into()),
    F::new("target", "fragment", |r| r.target = "/page.html#part".into()),
    F::new("target", "space", |r| r.target = "/a b".into()),
    F::new("target", "UTF-8 as it is", |r| r.target = "/ä".into()),
    F::new("target", "asterisk", |r| r.target = "*".into()),
    F::new("target", "absolute", |r| r.target = "http://a/page.html".into()),
    F::new("target", "absolute without path", |r| r.target = "http://a".into()),
    F::new("target", "absolute, https", |r| r.target = "https://a/page.html".into()),
    F::new("target", "absolute, ftp", |r| r.target = "ftp://a/page.html".into()),
    F::new("target", "without slash", |r| r.target = "page.html".into()),
    F::new("target", "5,000 bytes", |r| r.target = format!("/{}", "a/".repeat(2_500))),
    F::new("target", "20,000 bytes", |r| r.target = format!("/{}", "a/".repeat(10_000))),
    F::new("version", "1.0", |r| r.version = " HTTP/1.0"),
    F::new("version", "1.2", |r| r.version = " HTTP/1.2"),
    F::new("version", "2.0", |r| r.version = " HTTP/2.0"),
    F::new("version", "0.9", |r| r.version = " HTTP/0.9"),
    F::new("version", "none", |r| r.version = ""),
    F::new("version", "without minor", |r| r.version = " HTTP/1"),
    F::new("version", "lower case", |r| r.version = " http/1.1"),
    F::new("version", "another protocol", |r| r.version = " FTP/1.1"),
    F::new("version", "two spaces before", |r| r.version = "  HTTP/1.1"),
    F::new("version", "space after", |r| r.version = " HTTP/1.1 "),
    F::new("host", "none", |r| r.host.clear()),
    F::new("host", "two", |r| r.host.push("b")),
    F::new("host", "empty", |r| r.host = vec![""]),
    F::new("host", "with port", |r| r.host = vec!["a:8080"]),
    F::new("host", "IPv6", |r| r.host = vec!["[::1]:80"]),
    F::new("host", "space within", |r| r.host = vec!["a b"]),
    F::new("host", "slash within", |r| r.host = vec!["a/b"]),
    F::new("host", "bracket left open", |r| r.host = vec!["[::1"]),
    F::new("connection", "close", |r| r.field("Connection: close")),
    F::new("connection", "keep-alive", |r| r.field("Connection: keep-alive")),
    F::new("connection", "Close", |r| r.field("Connection: Close")),
    F::new("connection", "close in a list", |r| r.field("Connection: x, close")),
    F::new("connection", "both", |r| r.field("Connection: keep-alive, close")),
    F::new("connection", "unknown", |r| r.field("Connection: x")),
    F::new("range", "first byte", |r| r.field("Range: bytes=0-0")),
    F::new("range", "from the first on", |r| r.field("Range: bytes=0-")),
    F::new("range", "last byte", |r| r.field("Range: bytes=-1")),
    F::new("range", "last none", |r| r.field("Range: bytes=-0")),
    F::new("range", "last million", |r| r.field("Range: bytes=-1000000")),
    F::new("range", "within", |r| r.field("Range: bytes=2-5")),
    F::new("range", "end before begin", |r| r.field("Range: bytes=5-2")),
    F::new("range", "two", |r| r.field("Range: bytes=0-1,3-4")),
    F::new("range", "two that overlap", |r| r.field("Range: bytes=0-3,2-5")),
    F::new("range", "one of two beyond", |r| r.field("Range: bytes=0-0,1000000-")),
    F::new("range", "twenty", |r| r.field(format!("Range: bytes={}", ["0-0"; 20].join(",")))),
    F::new("range", "beyond the end", |r| r.field("Range: bytes=1000000-")),
    F::new("range", "end beyond 64 bits", |r| r.field("Range: bytes=0-99999999999999999999")),
    F::new("range", "begin beyond 64 bits", |r| r.field("Range: bytes=99999999999999999999-")),
    F::new("range", "empty set", |r| r.field("Range: bytes=")),
    F::new("range", "no digits", |r| r.field("Range: bytes=a-b")),
    F::new("range", "another unit", |r| r.field("Range: items=0-1")),
    F::new("range", "unit in capitals", |r| r.field("Range: BYTES=0-1")),
    F::new("range", "space before =", |r| r.field("Range: bytes =0-1")),
    F::new("range", "spaces within", |r| r.field("Range: bytes=0 - 1")),
    F::new("range", "comma at the end", |r| r.field("Range: bytes=0-0,")),
    F::new("range", "comma at the begin", |r| r.field("Range: bytes=,0-0")),
    F::new("range", "two fields", |r| r.field("Range: bytes=0-0\r\nRange: bytes=1-1")),
    F::new("condition", "none-match, any", |r| r.field("If-None-Match: *")),
    F::new("condition", "none-match, same", |r| r.field("If-None-Match: {etag}")),
    F::new("condition", "none-match, same and weak", |r| r.field("If-None-Match: W/{etag}")),
    F::new("condition", "none-match, list", |r| r.field("If-None-Match: \"a,b\", {etag}")),
    F::new("condition", "none-match, another", |r| r.field("If-None-Match: \"x\"")),
    F::new("condition", "none-match, no tag", |r| r.field("If-None-Match: x")),
    F::new("condition", "match, any", |r| r.field("If-Match: *")),
    F::new("condition", "match, same", |r| r.field("If-Match: {etag}")),
    F::new("condition", "match, same and weak", |r| r.field("If-Match: W/{etag}")),
    F::new("condition", "match, another", |r| r.field("If-Match: \"x\"")),
    F::new("condition", "modified since, same", |r| r.field("If-Modified-Since: {modified}")),
    F::new("condition", "modified since, later", |r| r.field("If-Modified-Since: Thu, 01 Jan 2026 00:00:00 GMT")),
    F::new("condition", "modified since, earlier", |r| r.field("If-Modified-Since: Sat, 01 Jan 2000 00:00:00 GMT")),
    F::new("condition", "modified since, RFC 850", |r| r.field("If-Modified-Since: Thursday, 01-Jan-26 00:00:00 GMT")),
    F::new("condition", "modified since, no date", |r| r.field("If-Modified-Since: x")),
    F::new("condition", "unmodified since, same", |r| r.field("If-Unmodified-Since: {modified}")),
    F::new("condition", "unmodified since, earlier", |r| r.field("If-Unmodified-Since: Sat, 01 Jan 2000 00:00:00 GMT")),
    F::new("condition", "unmodified since, no date", |r| r.field("If-Unmodified-Since: x")),
    F::new("condition", "range if, same", |r| r.field("Range: bytes=0-0\r\nIf-Range: {etag}")),
    F::new("condition", "range if, another", |r| r.field("Range: bytes=0-0\r\nIf-Range: \"x\"")),
    F::new("condition", "range if, same and weak", |r| r.field("Range: bytes=0-0\r\nIf-Range: W/{etag}")),
    F::new("condition", "range if, same date", |r| r.field("Range: bytes=0-0\r\nIf-Range: {modified}")),
    F::new("condition", "range if, later date", |r| {
        r.field("Range: bytes=0-0\r\nIf-Range: Thu, 01 Jan 2026 00:00:00 GMT");
    }),
    F::new("framing", "length 0", |r| r.content("0", 0)),
    F::new("framing", "length 5", |r| r.content("5", 5)),
    F::new("framing", "length 5, and nothing", |r| r.content("5", 0)),
    F::new("framing", "length 5, 7 bytes", |r| r.content("5", 7)),
    F::new("framing", "length twice", |r| r.content("5\r\nContent-Length: 5", 5)),
    F::new("framing", "two lengths", |r| r.content("5\r\nContent-Length: 6", 5)),
    F::new("framing", "length in a list", |r| r.content("5, 5", 5)),
    F::new("framing", "length with a sign", |r| r.content("+5", 5)),
    F::new("framing", "length below 0", |r| r.content("-5", 5)),
    F::new("framing", "length in hex", |r| r.content("0x5", 5)),
    F::new("framing", "length empty", |r| r.content("", 0)),
    F::new("framing", "length beyond 64 bits", |r| r.content("99999999999999999999", 5)),
    F::new("framing", "body of 64 KiB", |r| r.content("65536", 65_536)),
    F::new("framing", "body of 100,000", |r| r.content("100000", 100_000)),
    F::new("framing", "body of 2 MiB", |r| r.content("2097152", 2 << 20)),
    F::new("framing", "chunked", |r| r.coded("chunked", "5\r\nhello\r\n0\r\n\r\n")),
    F::new("framing", "chunked, extension and trailer", |r| r.coded("Chunked", "5;a=b\r\nhello\r\n0\r\nA: b\r\n\r\n")),
    F::new("framing", "chunked, no size", |r| r.coded("chunked", "x\r\nhello\r\n0\r\n\r\n")),
    F::new("framing", "chunked, size too small", |r| r.coded("chunked", "3\r\nhello\r\n0\r\n\r\n")),
    F::new("framing", "chunked, and a length", |r| {
        r.coded("chunked\r\nContent-Length: 5", "5\r\nhello\r\n0\r\n\r\n");
    }),
    F::new("framing", "coding unknown", |r| r.coded("gzip", "hello")),
    F::new("framing", "coding before chunked", |r| r.coded("gzip, chunked", "5\r\nhello\r\n0\r\n\r\n")),
    F::new("framing", "chunked twice", |r| r.coded("chunked\r\nTransfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n")),
    F::new("framing", "identity", |r| r.coded("identity", "")),
    F::new("framing", "expects 100", |r| {
        r.content("5", 5);
        r.field("Expect: 100-continue");
    }),
    F::new("framing", "expects what nobody knows", |r| r.field("Expect: 200-ok")),
    F::new("head", "100 lines", |r| (0..100).for_each(|n| r.field(format!("X-{n}: y")))),
    F::new("head", "250 lines", |r| (0..250).for_each(|n| r.field(format!("X-{n}: y")))),
    F::new("head", "300 lines", |r| (0..300).for_each(|n| r.field(format!("X-{n}: y")))),
    F::new("head", "folded line", |r| r.field("X: y\r\n z")),
    F::new("head", "space before the colon", |r| r.field("X : y")),
    F::new("head", "no colon", |r| r.field("X")),
    F::new("head", "no name", |r| r.field(": y")),
    F::new("head", "no value", |r| r.field("X:")),
    F::new("head", "NUL in a value", |r| r.field("X: a\0b")),
    F::new("head", "CR in a value", |r| r.field("X: a\rb")),
    F::new("head", "tab in a value", |r| r.field("X: a\tb")),
    F::new("head", "control in a value", |r| r.field("X: a\x01b")),
    F::new("head", "UTF-8 in a value", |r| r.field("X: ä")),
    F::new("head", "underscore in a name", |r| r.field("X_Y: z")),
    F::new("head", "parenthesis in a name", |r| r.field("X(Y): z")),
    F::new("head", "space in a name", |r| r.field("X Y: z")),
    F::new("head", "line of 7,000", |r| r.field(format!("X: {}", "y".repeat(7_000)))),
    F::new("head", "line of 9,000", |r| r.field(format!("X: {}", "y".repeat(9_000)))),
    F::new("head", "line of 20,000", |r| r.field(format!("X: {}", "y".repeat(20_000)))),
    F::new("head", "40,000 in all", |r| (0..40).for_each(|n| r.field(format!("X-{n}: {}", "y".repeat(1_000))))),
    F::new("head", "LF alone", |r| r.line_end = "\n"),
    F::new("head", "empty line before", |r| r.lead = "\r\n"),
    F::new("head", "ten empty lines before", |r| r.lead = "\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n"),
    F::new("head", "space before", |r| r.lead = " "),
    F::new("delivery", "in two writes", |r| r.delivery = Delivery::Halves),
    F::new("delivery", "byte by byte", |r| r.delivery = Delivery::Bytes),
    F::new("delivery", "half, then FIN", |r| r.delivery = Delivery::HalfAndFin),
    F::new("delivery", "FIN behind it", |r| r.delivery = Delivery::WholeAndFin),
    F::new("delivery", "one by one", |r| r.delivery = Delivery::OneByOne),
    F::new("delivery", "half, then RST", |r| r.delivery = Delivery::HalfAndReset),
    F::new("delivery", "RST behind it", |r| r.delivery = Delivery::WholeAndReset),
];

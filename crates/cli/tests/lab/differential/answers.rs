//! Answers as servers give them, good and bad.

use super::feature::Feature;

/// An answer, and how the connection goes on.
pub struct Answer {
    /// Before the status line.
    pub lead: String,
    pub status: &'static str,
    pub fields: Vec<String>,
    pub line_end: &'static str,
    pub body: String,
    pub end: End,
    /// Each byte in a write of its own.
    pub bytewise: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The connection waits for another request.
    Stays,
    /// FIN, or RST, behind so many bytes: of all, of the head's half, of the body's half, of none.
    Fin(Cut),
    Rst(Cut),
    /// No end, but no more than half of the body either.
    Stops,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    All,
    Head,
    Body,
    Nothing,
}

impl Default for Answer {
    fn default() -> Answer {
        Answer {
            lead: String::new(),
            status: "HTTP/1.1 200 OK",
            fields: vec!["Content-Length: 5".to_owned()],
            line_end: "\r\n",
            body: "hello".to_owned(),
            end: End::Stays,
            bytewise: false,
        }
    }
}

impl Answer {
    /// The bytes that are sent, and how the connection ends behind them: by RST, by FIN, or not.
    pub fn bytes(&self) -> (Vec<u8>, Option<bool>) {
        let mut text = format!("{}{}{}", self.lead, self.status, self.line_end);
        for field in &self.fields {
            text += field;
            text += self.line_end;
        }
        text += self.line_end;
        let head = text.len();
        text += &self.body;
        let at = |cut| match cut {
            Cut::All => text.len(),
            Cut::Head => head / 2,
            Cut::Body => head + self.body.len() / 2,
            Cut::Nothing => 0,
        };
        let (length, reset) = match self.end {
            End::Stays => (at(Cut::All), None),
            End::Stops => (at(Cut::Body), None),
            End::Fin(cut) => (at(cut), Some(false)),
            End::Rst(cut) => (at(cut), Some(true)),
        };
        (text.into_bytes()[..length].to_vec(), reset)
    }

    fn field(&mut self, field: impl Into<String>) {
        self.fields.push(field.into());
    }

    fn length(&mut self, fields: &str) {
        self.fields = fields.split_terminator('\n').map(str::to_owned).collect();
    }

    fn coded(&mut self, coding: &str, body: &str) {
        self.fields = coding.split_terminator('\n').map(|value| format!("Transfer-Encoding: {value}")).collect();
        self.body = body.to_owned();
    }
}

type F = Feature<Answer>;

const CHUNKS: &str = "5\r\nhello\r\n0\r\n\r\n";

/// Features, those of a group together.
pub const TABLE: &[F] = &[
    F::new("status", "204", |a| (a.status, a.body) = ("HTTP/1.1 204 No Content", String::new())),
    F::new("status", "206", |a| a.status = "HTTP/1.1 206 Partial Content"),
    F::new("status", "304", |a| (a.status, a.body) = ("HTTP/1.1 304 Not Modified", String::new())),
    F::new("status", "302", |a| a.status = "HTTP/1.1 302 Found"),
    F::new("status", "404", |a| a.status = "HTTP/1.1 404 Not Found"),
    F::new("status", "503", |a| a.status = "HTTP/1.1 503 Service Unavailable"),
    F::new("status", "299", |a| a.status = "HTTP/1.1 299 X"),
    F::new("status", "100 before", |a| a.lead = "HTTP/1.1 100 Continue\r\n\r\n".into()),
    F::new("status", "103 before", |a| a.lead = "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n".into()),
    F::new("status", "100 twice before", |a| a.lead = "HTTP/1.1 100 Continue\r\n\r\n".repeat(2)),
    F::new("status", "of HTTP/1.0", |a| a.status = "HTTP/1.0 200 OK"),
    F::new("status", "of HTTP/2", |a| a.status = "HTTP/2 200"),
    F::new("status", "of HTTP/1.2", |a| a.status = "HTTP/1.2 200 OK"),
    F::new("status", "without reason", |a| a.status = "HTTP/1.1 200 "),
    F::new("status", "without reason and space", |a| a.status = "HTTP/1.1 200"),
    F::new("status", "UTF-8 in the reason", |a| a.status = "HTTP/1.1 200 Schön"),
    F::new("status", "below 100", |a| a.status = "HTTP/1.1 099 X"),
    F::new("status", "of four digits", |a| a.status = "HTTP/1.1 2000 OK"),
    F::new("status", "none", |a| a.status = "HTTP/1.1 OK"),
    F::new("status", "lower case", |a| a.status = "http/1.1 200 OK"),
    F::new("status", "another protocol", |a| a.status = "ICY 200 OK"),
    F::new("status", "two spaces", |a| a.status = "HTTP/1.1  200 OK"),
    F::new("status", "garbage", |a| a.status = "SSH-2.0-OpenSSH"),
    F::new("framing", "length 0", |a| (a.fields, a.body) = (vec!["Content-Length: 0".into()], String::new())),
    F::new("framing", "length too small", |a| a.length("Content-Length: 3")),
    F::new("framing", "length too great", |a| a.length("Content-Length: 7")),
    F::new("framing", "none", |a| a.fields.clear()),
    F::new("framing", "length twice", |a| a.length("Content-Length: 5\nContent-Length: 5")),
    F::new("framing", "two lengths", |a| a.length("Content-Length: 5\nContent-Length: 6")),
    F::new("framing", "length in a list", |a| a.length("Content-Length: 5, 5")),
    F::new("framing", "length with a sign", |a| a.length("Content-Length: +5")),
    F::new("framing", "length below 0", |a| a.length("Content-Length: -5")),
    F::new("framing", "length empty", |a| a.length("Content-Length:")),
    F::new("framing", "length no number", |a| a.length("Content-Length: x")),
    F::new("framing", "length with more behind it", |a| a.length("Content-Length: 5x")),
    F::new("framing", "length beyond 64 bits", |a| a.length("Content-Length: 99999999999999999999")),
    F::new("framing", "length, space before the colon", |a| a.length("Content-Length : 5")),
    F::new("framing", "length in lower case", |a| a.length("content-length: 5")),
    F::new("framing", "length without space", |a| a.length("Content-Length:5")),
    F::new("framing", "chunked", |a| a.coded("chunked", CHUNKS)),
    F::new("framing", "two chunks", |a| a.coded("chunked", "2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n")),
    F::new("framing", "chunk with extension", |a| a.coded("chunked", "5;a=\"b\"\r\nhello\r\n0\r\n\r\n")),
    F::new("framing", "chunk size with zeros", |a| a.coded("chunked", "00005\r\nhello\r\n000\r\n\r\n")),
    F::new("framing", "chunk size with space", |a| a.coded("chunked", "5 \r\nhello\r\n0\r\n\r\n")),
    F::new("framing", "chunk size in capitals", |a| a.coded("Chunked", "A\r\nhellohello\r\n0\r\n\r\n")),
    F::new("framing", "chunks with trailer", |a| a.coded("chunked", "5\r\nhello\r\n0\r\nA: b\r\n\r\n")),
    F::new("framing", "chunks ended by LF", |a| a.coded("chunked", "5\nhello\n0\n\n")),
    F::new("framing", "chunk without size", |a| a.coded("chunked", "x\r\nhello\r\n0\r\n\r\n")),
    F::new("framing", "chunk size beyond 64 bits", |a| a.coded("chunked", "fffffffffffffffff\r\nhello\r\n0\r\n\r\n")),
    F::new("framing", "chunk longer than its size", |a| a.coded("chunked", "3\r\nhello\r\n0\r\n\r\n")),
    F::new("framing", "no last chunk", |a| a.coded("chunked", "5\r\nhello\r\n")),
    F::new("framing", "chunked, and a length", |a| {
        a.coded("chunked", CHUNKS);
        a.field("Content-Length: 3");
    }),
    F::new("framing", "another coding", |a| a.coded("gzip", "hello")),
    F::new("framing", "another coding, chunked", |a| a.coded("x, chunked", CHUNKS)),
    F::new("framing", "chunked twice", |a| a.coded("chunked\nchunked", CHUNKS)),
    F::new("connection", "close", |a| a.field("Connection: close")),
    F::new("connection", "keep-alive", |a| a.field("Connection: keep-alive")),
    F::new("connection", "close in a list", |a| a.field("Connection: x, close")),
    F::new("connection", "both", |a| a.field("Connection: keep-alive, close")),
    F::new("connection", "close in two lines", |a| a.field("Connection: x\r\nConnection: close")),
    F::new("head", "100 lines", |a| (0..100).for_each(|n| a.field(format!("X-{n}: y")))),
    F::new("head", "300 lines", |a| (0..300).for_each(|n| a.field(format!("X-{n}: y")))),
    F::new("head", "600 lines", |a| (0..600).for_each(|n| a.field(format!("X-{n}: y")))),
    F::new("head", "folded line", |a| a.field("X: y\r\n z")),
    F::new("head", "space before the colon", |a| a.field("X : y")),
    F::new("head", "no colon", |a| a.field("X")),
    F::new("head", "no name", |a| a.field(": y")),
    F::new("head", "no value", |a| a.field("X:")),
    F::new("head", "NUL in a value", |a| a.field("X: a\0b")),
    F::new("head", "CR in a value", |a| a.field("X: a\rb")),
    F::new("head", "control in a value", |a| a.field("X: a\x01b")),
    F::new("head", "UTF-8 in a value", |a| a.field("X: ä")),
    F::new("head", "parenthesis in a name", |a| a.field("X(Y): z")),
    F::new("head", "line of 20,000", |a| a.field(format!("X: {}", "y".repeat(20_000)))),
    F::new("head", "40,000 in all", |a| (0..40).for_each(|n| a.field(format!("X-{n}: {}", "y".repeat(1_000))))),
    F::new("head", "LF alone", |a| a.line_end = "\n"),
    F::new("head", "empty line before", |a| a.lead.insert_str(0, "\r\n")),
    F::new("head", "space before", |a| a.lead.insert(0, ' ')),
    F::new("end", "FIN behind it", |a| a.end = End::Fin(Cut::All)),
    F::new("end", "RST behind it", |a| a.end = End::Rst(Cut::All)),
    F::new("end", "FIN in the head", |a| a.end = End::Fin(Cut::Head)),
    F::new("end", "RST in the head", |a| a.end = End::Rst(Cut::Head)),
    F::new("end", "FIN in the body", |a| a.end = End::Fin(Cut::Body)),
    F::new("end", "RST in the body", |a| a.end = End::Rst(Cut::Body)),
    F::new("end", "FIN and no answer", |a| a.end = End::Fin(Cut::Nothing)),
    F::new("end", "RST and no answer", |a| a.end = End::Rst(Cut::Nothing)),
    F::new("end", "none, in the body", |a| a.end = End::Stops),
    F::new("end", "bytes behind it", |a| a.body += "surplus"),
    F::new("delivery", "byte by byte", |a| a.bytewise = true),
];

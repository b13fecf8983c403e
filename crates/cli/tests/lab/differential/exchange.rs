//! One connection to a server, and what came of it, in words that are compared.

use super::requests::{Delivery, Request};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

/// Request that follows each one, and the content of what it asks for.
const NEXT: &[u8] = b"GET /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
pub const NEXT_CONTENT: &[u8] = b"the next one";
/// Silence after which FIN is sent, so that a server that waits for more says what it makes of that. Sent early by a busy machine, it
/// changes nothing but for requests that are not whole.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(60);

/// A server, and the validators that it has for `/page.html`.
pub struct Server {
    pub address: SocketAddr,
    etag: String,
    modified: String,
}

/// Aspects of the answer, by name: `status`, an `interim` one before it, `body`, fields, and what came `then`.
pub type Seen = BTreeMap<&'static str, String>;

/// Fields that are compared.
const FIELDS: [&str; 9] = [
    "Accept-Ranges",
    "Allow",
    "Connection",
    "Content-Length",
    "Content-Range",
    "Content-Type",
    "Etag",
    "Last-Modified",
    "Location",
];

struct Answer {
    status: u16,
    fields: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Answer {
    fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

impl Server {
    pub fn at(address: SocketAddr) -> Server {
        let mut server = Server { address, etag: String::new(), modified: String::new() };
        let (bytes, reset) = server.exchange(&Request::default());
        assert!(!reset, "{address}: reset");
        let (answers, rest) = answers(&bytes, false);
        assert!(answers.len() == 2 && answers[0].status == 200 && rest.is_empty(), "{address}: {}", show(&bytes));
        let field = |name| answers[0].field(name).unwrap_or_else(|| panic!("{address}: no {name}")).to_owned();
        (server.etag, server.modified) = (field("etag"), field("last-modified"));
        server
    }

    /// Sends a request; the aspects of what came.
    pub fn ask(&self, request: &Request) -> Seen {
        let (bytes, reset) = self.exchange(request);
        self.seen(&bytes, request, reset)
    }

    /// Bytes that came, and whether a reset ended them.
    fn exchange(&self, request: &Request) -> (Vec<u8>, bool) {
        let (bytes, head) = request.bytes(&self.etag, &self.modified);
        let mut stream = TcpStream::connect_timeout(&self.address, LIMIT).expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        let half = bytes.len() / 2;
        // A server may end the connection before it has taken all: that shows in what is read.
        let mut send = |bytes: &[u8]| drop(stream.write_all(bytes));
        let pause = || std::thread::sleep(Duration::from_millis(1));
        let whole = [&bytes, NEXT].concat();
        match request.delivery {
            Delivery::Whole | Delivery::WholeAndFin => send(&whole),
            Delivery::OneByOne => send(&bytes),
            Delivery::Halves => {
                send(&whole[..half]);
                pause();
                send(&whole[half..]);
            }
            Delivery::Bytes => {
                // The first and the last bytes of a long head.
                let (first, last) = (head.min(100), head.saturating_sub(100).max(head.min(100)));
                whole[..first].chunks(1).for_each(&mut send);
                send(&whole[first..last]);
                whole[last..head].chunks(1).for_each(&mut send);
                send(&whole[head..]);
            }
            Delivery::HalfAndFin | Delivery::HalfAndReset => send(&bytes[..half]),
            Delivery::WholeAndReset => send(&whole),
        }
        match request.delivery {
            Delivery::HalfAndReset | Delivery::WholeAndReset => {
                // RST comes of closing with SO_LINGER 0.
                rustix::net::sockopt::set_socket_linger(stream.as_fd(), Some(Duration::ZERO)).expect("a socket");
                return (Vec::new(), false);
            }
            Delivery::HalfAndFin | Delivery::WholeAndFin => drop(stream.shutdown(Shutdown::Write)),
            _ => {}
        }
        read_all(&mut stream, request.delivery == Delivery::OneByOne, request.method == "HEAD")
    }

    fn seen(&self, bytes: &[u8], request: &Request, reset: bool) -> Seen {
        let mut seen = Seen::new();
        let (mut all, rest) = answers(bytes, request.method == "HEAD");
        let interim = all.iter().take_while(|answer| answer.status < 200).count();
        let next = all.len() > 1 && all.last().is_some_and(|last| last.status == 200 && last.body == NEXT_CONTENT);
        if next {
            all.pop();
        }
        let last: &str = match (rest.is_empty(), reset, next) {
            (false, ..) => "cut short",
            (_, true, _) => "reset",
            (_, _, true) => "the next answer",
            _ => "closed",
        };
        let after = all.iter().skip(interim + 1).map(|answer| answer.status.to_string());
        let then: Vec<String> = after.chain([last.to_owned()]).collect();
        seen.insert("then", then.join(", "));
        let Some(answer) = all.get(interim) else {
            let what = match rest {
                [] => "none",
                [b'H', b'T', b'T', b'P', b'/', ..] => "cut short",
                _ => "no head",
            };
            seen.insert("status", what.to_owned());
            return seen;
        };
        if let Some(first) = all[..interim].first() {
            seen.insert("interim", first.status.to_string());
        }
        seen.insert("status", answer.status.to_string());
        let boundary = answer.field("content-type").and_then(|value| value.split_once("boundary="));
        for name in FIELDS {
            let value = answer.field(name).unwrap_or("absent");
            let address = self.address.to_string();
            let value = match name {
                // Each server's own.
                "Etag" if value != "absent" => if value == self.etag { "of the page" } else { "another" }.to_owned(),
                "Content-Type" if boundary.is_some() => "multipart/byteranges".to_owned(),
                // The pages of errors are each server's own, and so are the lengths of boundaries.
                "Content-Length" | "Content-Type" if answer.status >= 300 => continue,
                "Content-Length" if boundary.is_some() => continue,
                _ => value.replace(&address, "ADDRESS").replace(&format!(":{}", self.address.port()), ":PORT"),
            };
            seen.insert(name, value);
        }
        let body = match answer.status {
            200..300 => {
                let text = String::from_utf8_lossy(&answer.body).into_owned();
                let text = boundary.map_or(text.clone(), |(_, boundary)| text.replace(boundary, "BOUNDARY"));
                let sum = text.bytes().fold(5381u32, |sum, byte| sum.wrapping_mul(33) ^ u32::from(byte));
                match text.len() {
                    ..=24 => format!("{text:?}"),
                    length => format!("{length} bytes, {sum:x}"),
                }
            }
            _ => if answer.body.is_empty() { "empty" } else { "a page" }.to_owned(),
        };
        seen.insert("body", body);
        seen
    }
}

/// Reads to the end. `ask_next`: sends the next request once an answer is there.
fn read_all(stream: &mut TcpStream, mut ask_next: bool, head: bool) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    let mut piece = vec![0; 65_536];
    let mut patience = PATIENCE;
    loop {
        if ask_next && !answers(&bytes, head).0.is_empty() {
            ask_next = false;
            let _ = stream.write_all(NEXT);
        }
        stream.set_read_timeout(Some(patience)).expect("a socket");
        match stream.read(&mut piece) {
            Ok(0) => return (bytes, false),
            Ok(n) => bytes.extend_from_slice(&piece[..n]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                assert!(patience < LIMIT, "no end within a minute: {}", show(&bytes));
                let _ = stream.shutdown(Shutdown::Write);
                patience = LIMIT;
            }
            Err(_) => return (bytes, true),
        }
    }
}

/// Answers in what came, the first final one without a body where `head` says so, and what is no whole answer.
fn answers(bytes: &[u8], head: bool) -> (Vec<Answer>, &[u8]) {
    let (mut all, mut rest) = (Vec::new(), bytes);
    let mut bodiless = head;
    while let Some((answer, used)) = answer(rest, bodiless) {
        bodiless &= answer.status < 200;
        all.push(answer);
        rest = &rest[used..];
    }
    (all, rest)
}

fn answer(bytes: &[u8], bodiless: bool) -> Option<(Answer, usize)> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&bytes[..end]).ok()?;
    let mut lines = text.lines();
    let status = lines.next()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let fields =
        lines.filter_map(|line| line.split_once(": ")).map(|(name, value)| (name.to_owned(), value.to_owned()));
    let mut answer = Answer { status, fields: fields.collect(), body: Vec::new() };
    let rest = &bytes[end..];
    let length = match status {
        _ if bodiless => 0,
        100..200 | 204 | 304 => 0,
        _ => match answer.field("content-length") {
            Some(length) => length.parse().ok()?,
            // To the end: neither server sends chunks here.
            None => rest.len(),
        },
    };
    answer.body = rest.get(..length)?.to_vec();
    Some((answer, end + length))
}

/// Bytes for a failure's text.
pub fn show(bytes: &[u8]) -> String {
    let start = bytes[..bytes.len().min(600)].escape_ascii().to_string();
    if bytes.len() > 600 { format!("{start}… ({} bytes)", bytes.len()) } else { start }
}

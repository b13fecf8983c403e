//! Answers GET and HEAD from a directory.

use super::clock::DateClock;
use super::conditional::{self, Verdict};
use super::files::{Content, File, Files, Missing};
use super::head::{Head, Reject};
use super::listing;
use super::output::{Output, Segment};
use super::path::{self, SitePath};
use super::range::{self, ByteRange, Ranges};
use super::reason;
use super::session::Handler;
use crate::seldom::{self, Seldom};
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::time::{Instant, SystemTime};

/// Bodies up to this many bytes are sent with the head in one write.
const INLINE: usize = 8 * 1024;

/// What of a directory is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Show {
    /// Names that begin with a dot, not only `.well-known`.
    pub dotfiles: bool,
    /// Directories without an index, as lists.
    pub lists: bool,
}

/// A directory served.
pub struct Site {
    files: Files,
    show: Show,
    busy: Seldom,
    clock: DateClock,
    path: SitePath,
    boundaries: RandomState,
    boundary: u64,
}

/// What a request is answered with, before it is written.
enum Answer {
    File(Rc<File>),
    /// To the same path with a slash.
    Redirect(String),
    /// A page that shows a directory.
    List(String),
    Status(u16),
}

impl Site {
    /// Serves `files`.
    pub fn new(files: Files, show: Show, now: SystemTime) -> Site {
        let (clock, path, boundaries) = (DateClock::new(now), SitePath::default(), RandomState::new());
        Site { files, show, busy: Seldom::default(), clock, path, boundaries, boundary: 0 }
    }

    fn resolve(&mut self, head: &Head) -> Result<Answer, Reject> {
        if !head.host_is_right() {
            return Err(Reject(400));
        }
        if !matches!(head.method, "GET" | "HEAD") {
            return Err(Reject(405));
        }
        SitePath::decode(path::path_of(head.target)?, &mut self.path)?;
        if !self.show.dotfiles && path::is_hidden(&self.path.bytes) {
            return Ok(Answer::Status(404));
        }
        let second = self.clock.second();
        if self.path.directory {
            let separator = if self.path.bytes.is_empty() { "" } else { "/" };
            self.path.bytes.extend_from_slice(separator.as_bytes());
            self.path.bytes.extend_from_slice(b"index.html");
            return match self.files.find(&self.path.bytes, second) {
                Ok(file) => Ok(Answer::File(file)),
                Err(missing) => Ok(self.without_index(missing)),
            };
        }
        match self.files.find(&self.path.bytes, second) {
            Ok(file) => Ok(Answer::File(file)),
            Err(Missing::Directory) => Ok(Answer::Redirect(location(&self.path.bytes, head.target))),
            Err(missing) => Ok(Answer::Status(self.status_of(missing))),
        }
    }

    /// A directory without an index: a list of it where that is asked for, else 403, not 404, since it is there.
    fn without_index(&mut self, missing: Missing) -> Answer {
        if missing != Missing::Absent {
            return Answer::Status(self.status_of(missing));
        }
        let end = self.path.bytes.len() - b"index.html".len();
        let directory = &self.path.bytes[..end.saturating_sub(1)];
        match self.files.find(directory, self.clock.second()) {
            Err(Missing::Directory) if self.show.lists => match self.files.list(directory, self.show.dotfiles) {
                Ok((entries, whole)) => Answer::List(listing::page(directory, &entries, whole)),
                Err(missing) => Answer::Status(self.status_of(missing)),
            },
            Err(Missing::Directory) => Answer::Status(403),
            Err(busy @ Missing::Busy(_)) => Answer::Status(self.status_of(busy)),
            _ => Answer::Status(404),
        }
    }

    fn status_of(&mut self, missing: Missing) -> u16 {
        match missing {
            Missing::Absent => 404,
            Missing::Directory | Missing::Forbidden => 403,
            Missing::Busy(errno) => {
                if let Some(count) = self.busy.count(Instant::now()) {
                    tracing::warn!("{}", seldom::line("a request was answered 503", count, &errno.into()));
                }
                503
            }
        }
    }

    fn send_file(&mut self, head: &Head, file: &File, out: &mut Output) {
        let minor = head.minor;
        let ranges = match conditional::evaluate(head, &file.validators) {
            Verdict::Failed => return self.page(412, minor, head.method == "HEAD", "", out),
            Verdict::NotModified => {
                out.start(304, minor, self.clock.text());
                return out.line(format_args!("{}\r\n", file.fields));
            }
            // RFC 9110 14.2: Range is defined for GET only.
            Verdict::Answer { ranges: true } if head.method == "GET" => {
                head.one("range").map_or(Ranges::Ignore, |value| range::parse(value, file.size))
            }
            Verdict::Answer { .. } => Ranges::Ignore,
        };
        let date = self.clock.text();
        match ranges {
            Ranges::Unsatisfiable => {
                let extra = format!("Content-Range: bytes */{}\r\n", file.size);
                self.page(416, minor, false, &extra, out);
            }
            Ranges::Ignore => {
                out.start(200, minor, date);
                let (mime, size, fields) = (file.mime, file.size, &file.fields);
                out.line(format_args!("Content-Type: {mime}\r\nContent-Length: {size}\r\n{fields}\r\n"));
                if head.method == "GET" && size > 0 {
                    send_range(file, ByteRange { first: 0, last: size - 1 }, out);
                }
            }
            Ranges::Some(ranges) => match *ranges {
                [range] => {
                    out.start(206, minor, date);
                    let (mime, length, fields) = (file.mime, range.length(), &file.fields);
                    let shown = content_range(range, file.size);
                    out.line(format_args!("Content-Type: {mime}\r\nContent-Length: {length}\r\n{shown}{fields}\r\n"));
                    send_range(file, range, out);
                }
                _ => self.send_parts(&ranges, file, minor, out),
            },
        }
    }

    /// RFC 9110 14.6: several ranges as multipart/byteranges.
    fn send_parts(&mut self, ranges: &[ByteRange], file: &File, minor: u8, out: &mut Output) {
        self.boundary += 1;
        let boundary = format!(
            "{:016x}{:016x}",
            self.boundaries.hash_one(self.boundary),
            self.boundaries.hash_one(!self.boundary)
        );
        let part = |range: &ByteRange| {
            let shown = content_range(*range, file.size);
            format!("\r\n--{boundary}\r\nContent-Type: {}\r\n{shown}\r\n", file.mime)
        };
        let heads: Vec<String> = ranges.iter().map(part).collect();
        let tail = format!("\r\n--{boundary}--\r\n");
        let contents: u64 = ranges.iter().map(|range| range.length()).sum();
        let length = contents + heads.iter().map(|head| head.len() as u64).sum::<u64>() + tail.len() as u64;
        out.start(206, minor, self.clock.text());
        let fields = &file.fields;
        out.line(format_args!(
            "Content-Type: multipart/byteranges; boundary={boundary}\r\nContent-Length: {length}\r\n{fields}\r\n"
        ));
        for (head, range) in heads.into_iter().zip(ranges) {
            out.segment(Segment::Bytes(head.into_bytes()));
            out.segment(segment(file, *range));
        }
        out.segment(Segment::Bytes(tail.into_bytes()));
    }

    /// A short page that says what happened. `extra` are header lines.
    fn page(&self, status: u16, minor: u8, bodiless: bool, extra: &str, out: &mut Output) {
        let reason = reason(status);
        let body = format!("<!doctype html><title>{status} {reason}</title><h1>{status} {reason}</h1>\n");
        out.start(status, minor, self.clock.text());
        let length = body.len();
        out.line(format_args!("Content-Type: text/html; charset=utf-8\r\nContent-Length: {length}\r\n{extra}\r\n"));
        if !bodiless {
            out.bytes(body.as_bytes());
        }
    }
}

impl Handler for Site {
    fn answer(&mut self, head: &Head, unread: Option<Reject>, out: &mut Output) {
        let bodiless = head.method == "HEAD";
        let answer = match (self.resolve(head), unread) {
            (Ok(Answer::File(_) | Answer::Redirect(_) | Answer::List(_)), Some(reject)) => Err(reject),
            (answer, _) => answer,
        };
        match answer {
            Ok(Answer::File(file)) => self.send_file(head, &file, out),
            Ok(Answer::Redirect(location)) => {
                self.page(301, head.minor, bodiless, &format!("Location: {location}\r\n"), out);
            }
            Ok(Answer::List(page)) => {
                out.start(200, head.minor, self.clock.text());
                let length = page.len();
                out.line(format_args!(
                    "Content-Type: text/html; charset=utf-8\r\nContent-Length: {length}\r\nX-Content-Type-Options: nosniff\r\n\r\n"
                ));
                if !bodiless {
                    out.bytes(page.as_bytes());
                }
            }
            Ok(Answer::Status(status)) => self.page(status, head.minor, bodiless, "", out),
            // RFC 9110 15.5.6: what would be allowed.
            Err(Reject(405)) => self.page(405, head.minor, bodiless, "Allow: GET, HEAD\r\n", out),
            Err(reject) => {
                // A client whose requests are malformed is not listened to further, as with nginx.
                out.close |= reject == Reject(400);
                out.linger |= out.close;
                self.page(reject.0, head.minor, bodiless, "", out);
            }
        }
    }

    fn refuse(&mut self, reject: Reject, minor: u8, bodiless: bool, out: &mut Output) {
        self.page(reject.0, minor, bodiless, "", out);
    }

    fn set_time(&mut self, now: SystemTime) {
        self.clock.set(now);
    }

    fn reload(&mut self) {
        match self.files.reopen() {
            Ok(()) => tracing::info!("{} was opened again", self.files.path().display()),
            Err(errno) => {
                let (path, words) = (self.files.path().display(), crate::failure::words(&errno.into()));
                tracing::warn!("{path} cannot be opened again: {words}: what was served goes on being served");
            }
        }
    }
}

fn content_range(range: ByteRange, size: u64) -> String {
    format!("Content-Range: bytes {}-{}/{size}\r\n", range.first, range.last)
}

fn segment(file: &File, range: ByteRange) -> Segment {
    match &file.content {
        // A cached file is in memory whole, so its offsets fit.
        Content::Small(bytes) => Segment::Shared(bytes.clone(), range.first as usize..range.last as usize + 1),
        Content::Large(file) => Segment::File { file: file.clone(), offset: range.first, left: range.length() },
    }
}

fn send_range(file: &File, range: ByteRange, out: &mut Output) {
    match segment(file, range) {
        Segment::Shared(bytes, range) if range.len() <= INLINE => out.bytes(&bytes[range]),
        segment => out.segment(segment),
    }
}

/// The path encoded again from its decoded form, so that no spelling (`//host`) turns the redirect elsewhere.
fn location(path: &[u8], target: &str) -> String {
    let mut location = String::from("/");
    path::encode(path, &mut location);
    location.push('/');
    if let Some((_, query)) = target.split_once('?') {
        location.push('?');
        location.push_str(query);
    }
    location
}

#[cfg(test)]
#[path = "site/tests.rs"]
mod tests;

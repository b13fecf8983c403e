//! Conditional requests, RFC 9110 section 13.

use super::head::Head;
use std::time::{Duration, SystemTime};

/// What tells two versions of a file apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Validators {
    /// Strong entity tag with its quotes.
    pub etag: String,
    /// Time of last modification in whole seconds.
    pub modified: SystemTime,
}

/// What the preconditions of a GET or HEAD say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Answer; `ranges` tells whether a `Range` field counts.
    Answer {
        /// `If-Range` is absent or matches.
        ranges: bool,
    },
    /// 304.
    NotModified,
    /// 412.
    Failed,
}

/// Evaluates in the order of RFC 9110 13.2.2.
pub fn evaluate(head: &Head, validators: &Validators) -> Verdict {
    if head.one("if-match").is_some() {
        if !matches_any(head, "if-match", &validators.etag, Compare::Strong) {
            return Verdict::Failed;
        }
    } else if let Some(since) = date(head.one("if-unmodified-since"))
        && validators.modified > since
    {
        return Verdict::Failed;
    }
    if head.one("if-none-match").is_some() {
        if matches_any(head, "if-none-match", &validators.etag, Compare::Weak) {
            return Verdict::NotModified;
        }
    } else if let Some(since) = date(head.one("if-modified-since"))
        && validators.modified <= since
    {
        return Verdict::NotModified;
    }
    let ranges = match head.one("if-range") {
        None => true,
        Some(tag) if tag.starts_with(b"\"") => tag == validators.etag.as_bytes(),
        // RFC 9110 13.1.5: a date must match exactly; a weak tag never does.
        Some(value) => date(Some(value)) == Some(validators.modified),
    };
    Verdict::Answer { ranges }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Compare {
    Strong,
    Weak,
}

/// Whether a list of entity tags names this one. Commas may stand inside a tag, so tags are walked, not split.
fn matches_any(head: &Head, name: &str, etag: &str, compare: Compare) -> bool {
    head.all(name).any(|value| {
        let mut rest = value;
        loop {
            rest = rest.trim_ascii_start();
            rest = match rest {
                [] => return false,
                [b',', tail @ ..] => tail,
                [b'*', ..] => return true,
                _ => {
                    let (weak, tag) = match rest {
                        [b'W', b'/', tag @ ..] => (true, tag),
                        tag => (false, tag),
                    };
                    let Some([b'"', inner @ ..]) = Some(tag) else { return false };
                    let Some(end) = inner.iter().position(|&byte| byte == b'"') else { return false };
                    if &tag[..end + 2] == etag.as_bytes() && !(weak && compare == Compare::Strong) {
                        return true;
                    }
                    &inner[end + 1..]
                }
            }
        }
    })
}

/// An HTTP date; malformed ones count as absent (RFC 9110 13.1.3).
fn date(value: Option<&[u8]>) -> Option<SystemTime> {
    httpdate::parse_http_date(std::str::from_utf8(value?).ok()?).ok()
}

/// Cuts a time to whole seconds, as HTTP dates carry it.
pub fn whole_seconds(time: SystemTime) -> SystemTime {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::super::head::{self, Parsed};
    use super::*;

    const TAG: &str = "\"a,b\"";
    const THEN: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";

    fn verdict(fields: &str) -> Verdict {
        let text = format!("GET / HTTP/1.1\r\n{fields}\r\n");
        let mut room = head::slots();
        let Ok(Parsed::Whole(head, _)) = head::parse(text.as_bytes(), &mut room) else { panic!("bad head {text:?}") };
        let modified = httpdate::parse_http_date(THEN).expect("a date");
        evaluate(&head, &Validators { etag: TAG.into(), modified })
    }

    #[test]
    fn tags_compare_by_the_rules_of_their_field() {
        for list in [TAG, "*", "W/\"a,b\"", "\"x\", \"a,b\"", "\"x\" , W/\"y\",\"a,b\""] {
            assert_eq!(verdict(&format!("If-None-Match: {list}\r\n")), Verdict::NotModified, "{list}");
        }
        for list in ["\"x\"", "a,b", "\"a\",\"b\"", "\"a,b"] {
            assert_eq!(verdict(&format!("If-None-Match: {list}\r\n")), Verdict::Answer { ranges: true }, "{list}");
        }
        assert_eq!(verdict("If-Match: W/\"a,b\"\r\n"), Verdict::Failed);
        assert_eq!(verdict("If-Match: \"a,b\"\r\n"), Verdict::Answer { ranges: true });
        assert_eq!(verdict("If-None-Match: \"x\"\r\nIf-None-Match: \"a,b\"\r\n"), Verdict::NotModified);
    }

    #[test]
    fn dates_yield_to_tags() {
        assert_eq!(verdict(&format!("If-Modified-Since: {THEN}\r\n")), Verdict::NotModified);
        assert_eq!(verdict(&format!("If-Modified-Since: {BEFORE}\r\n")), Verdict::Answer { ranges: true });
        assert_eq!(
            verdict(&format!("If-Modified-Since: {THEN}\r\nIf-None-Match: \"x\"\r\n")),
            Verdict::Answer { ranges: true }
        );
        assert_eq!(verdict("If-Modified-Since: yesterday\r\n"), Verdict::Answer { ranges: true });
        assert_eq!(verdict(&format!("If-Unmodified-Since: {BEFORE}\r\n")), Verdict::Failed);
        assert_eq!(verdict(&format!("If-Unmodified-Since: {THEN}\r\n")), Verdict::Answer { ranges: true });
    }

    #[test]
    fn if_range_is_strict() {
        assert_eq!(verdict("If-Range: \"a,b\"\r\n"), Verdict::Answer { ranges: true });
        assert_eq!(verdict("If-Range: W/\"a,b\"\r\n"), Verdict::Answer { ranges: false });
        assert_eq!(verdict(&format!("If-Range: {THEN}\r\n")), Verdict::Answer { ranges: true });
        assert_eq!(verdict(&format!("If-Range: {BEFORE}\r\n")), Verdict::Answer { ranges: false });
    }
}

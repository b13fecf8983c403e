//! Request targets: from what a client sent to a path below the root, or a refusal.

use super::head::Reject;

/// A decoded path relative to the root: no empty, `.` or `..` segment, no NUL, no leading slash.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct SitePath {
    /// The path's bytes, segments joined by `/`; empty for the root.
    pub bytes: Vec<u8>,
    /// Whether the target ended in a slash and so names a directory.
    pub directory: bool,
}

/// The path part of a request target (RFC 9112 3.2.1, 3.2.2), still encoded.
pub fn path_of(target: &str) -> Result<&str, Reject> {
    let path = match target.split_once("://") {
        _ if target.starts_with('/') => target,
        // RFC 9112 3.2.2: a server accepts the absolute form, whatever authority it names.
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https") => {
            match rest.find(['/', '?']) {
                Some(at) if rest.as_bytes()[at] == b'/' => &rest[at..],
                _ => "/",
            }
        }
        _ => return Err(Reject(400)),
    };
    Ok(path.split(['?', '#']).next().unwrap_or(path))
}

impl SitePath {
    /// Decodes a path. An escape that is malformed or hides a slash or NUL, and any `..`, is refused:
    /// no honest client sends one, and nothing may climb above the root whatever its spelling.
    pub fn decode(path: &str, into: &mut SitePath) -> Result<(), Reject> {
        into.bytes.clear();
        let mut trailing = true;
        for segment in path.split('/') {
            let start = into.bytes.len();
            if start > 0 {
                into.bytes.push(b'/');
            }
            let first = into.bytes.len();
            decode_segment(segment.as_bytes(), &mut into.bytes)?;
            match &into.bytes[first..] {
                b"" | b"." => {
                    into.bytes.truncate(start);
                    trailing = true;
                }
                b".." => return Err(Reject(400)),
                _ => trailing = false,
            }
        }
        into.directory = trailing;
        Ok(())
    }
}

/// Whether a decoded path has a segment that begins with a dot: names that are hidden by habit (`.git`, `.env`,
/// `.htpasswd`). `.well-known` at the root is there to be asked for (RFC 8615).
pub fn is_hidden(path: &[u8]) -> bool {
    let path = path.strip_prefix(b".well-known").filter(|rest| rest.is_empty() || rest[0] == b'/').unwrap_or(path);
    path.split(|&byte| byte == b'/').any(|segment| segment.starts_with(b"."))
}

/// Appends a path with everything escaped that could mean something else in a URL.
pub fn encode(path: &[u8], into: &mut String) {
    for &byte in path {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => into.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => into.push(char::from(byte)),
            byte => into.push_str(&format!("%{byte:02X}")),
        }
    }
}

fn decode_segment(segment: &[u8], out: &mut Vec<u8>) -> Result<(), Reject> {
    let mut rest = segment;
    while let [byte, tail @ ..] = rest {
        rest = tail;
        let byte = match byte {
            b'%' => {
                let [high, low, after @ ..] = tail else { return Err(Reject(400)) };
                let (Some(high), Some(low)) = (hex(*high), hex(*low)) else { return Err(Reject(400)) };
                rest = after;
                high << 4 | low
            }
            byte => *byte,
        };
        if matches!(byte, 0 | b'/') {
            return Err(Reject(400));
        }
        out.push(byte);
    }
    Ok(())
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(path: &str) -> Result<(String, bool), u16> {
        let mut out = SitePath::default();
        SitePath::decode(path, &mut out).map_err(|reject| reject.0)?;
        Ok((String::from_utf8_lossy(&out.bytes).into_owned(), out.directory))
    }

    #[test]
    fn paths_decode() {
        let good =
            |path: &str, want: &str, directory: bool| assert_eq!(decode(path), Ok((want.into(), directory)), "{path}");
        good("/", "", true);
        good("//a///b", "a/b", false);
        good("/a/./b/.", "a/b", true);
        good("/a%20b/%C3%A9/", "a b/é", true);
        good("/...", "...", false);
        good("/..a", "..a", false);
    }

    #[test]
    fn climbing_and_hiding_are_refused() {
        for path in ["/..", "/a/../b", "/%2e%2e/etc", "/.%2E", "/a%2fb", "/a%2Fb", "/%00", "/a%0", "/%zz", "/%"] {
            assert_eq!(decode(path), Err(400), "{path}");
        }
    }

    #[test]
    fn dots_hide_names() {
        for path in [".env", "a/.git/config", ".well-known/.htpasswd", ".well-knownx", "a/.well-known/x", "..."] {
            assert!(is_hidden(path.as_bytes()), "{path}");
        }
        for path in ["", "a.b", "a/b.c/d", ".well-known", ".well-known/acme-challenge/x"] {
            assert!(!is_hidden(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn targets_give_their_path() {
        assert_eq!(path_of("/a/b?c=/d#e"), Ok("/a/b"));
        assert_eq!(path_of("http://host:80/a?b"), Ok("/a"));
        assert_eq!(path_of("HTTP://host"), Ok("/"));
        assert_eq!(path_of("http://host?x=/y"), Ok("/"));
        for target in ["*", "host:443", "ftp://host/a", ""] {
            assert_eq!(path_of(target), Err(Reject(400)), "{target}");
        }
    }

    proptest! {
        #[test]
        fn nothing_decodes_to_a_climb(path in "(/|\\.|%2e|%2F|%00|%|a|%61){0,24}") {
            let mut out = SitePath::default();
            if SitePath::decode(&path, &mut out).is_ok() {
                prop_assert!(!out.bytes.starts_with(b"/") && !out.bytes.contains(&0));
                for segment in out.bytes.split(|&byte| byte == b'/') {
                    prop_assert!(segment != b".." && segment != b".");
                    prop_assert!(!segment.is_empty() || out.bytes.is_empty());
                }
            }
        }

        #[test]
        fn every_name_survives_encoding(name in prop::collection::vec(1u8..=255, 1..20)) {
            prop_assume!(name != b"." && name != b".." && !name.contains(&b'/'));
            let encoded: String = name.iter().map(|byte| format!("%{byte:02x}")).collect();
            let mut out = SitePath::default();
            SitePath::decode(&format!("/{encoded}"), &mut out).expect("decodes");
            prop_assert_eq!(out.bytes, name);
        }
    }
}

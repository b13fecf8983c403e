//! Any bytes as a request and as a response of the command's web server and load generator: nothing panics, a request is
//! read the same however it arrives, and no path climbs above its root.
#![no_main]
#![allow(dead_code)]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/cli/src/http/head.rs"]
mod head;
#[path = "../../crates/cli/src/http/path.rs"]
mod path;
#[path = "../../crates/cli/src/http/range.rs"]
mod range;
#[path = "../../crates/cli/src/http/reader.rs"]
mod reader;

fn request(data: &[u8]) {
    let mut slots = head::slots();
    let Ok(head::Parsed::Whole(h, used)) = head::parse(data, &mut slots) else { return };
    assert!(used <= data.len() && used <= head::LIMIT);
    // The search for the end agrees with the parser, or finds an earlier line that is empty.
    assert!(head::end_of_head(data, 0).is_some_and(|end| end <= used));
    let _ = (h.persists(), h.host_is_right(), h.body());
    if let Some(value) = h.one("range") {
        for size in [0, 1, 1000, u64::MAX] {
            if let range::Ranges::Some(list) = range::parse(value, size) {
                for r in list {
                    assert!(r.first <= r.last && r.last < size, "{} to {} of {size}", r.first, r.last);
                }
            }
        }
    }
    let Ok(path) = path::path_of(h.target) else { return };
    let mut decoded = path::SitePath::default();
    if path::SitePath::decode(path, &mut decoded).is_ok() {
        assert!(!decoded.bytes.contains(&0) && decoded.bytes.first() != Some(&b'/'));
        assert!(
            decoded.bytes.is_empty() || decoded.bytes.split(|b| *b == b'/').all(|s| !matches!(s, b"" | b"." | b".."))
        );
    }
}

/// Status, body bytes and whether all was well, of a response that comes in pieces of `step` bytes.
fn response(data: &[u8], step: usize, bodiless: bool) -> (Vec<u8>, u16, u64, bool) {
    let mut reader = reader::Reader::default();
    let mut body = Vec::new();
    let mut fine = true;
    for piece in data.chunks(step) {
        match reader.feed(piece, bodiless, &mut |b| body.extend_from_slice(b)) {
            Ok(n) => assert!(n == piece.len() || reader.is_done()),
            Err(_) => {
                fine = false;
                break;
            }
        }
        if reader.is_done() {
            break;
        }
    }
    assert_eq!(reader.body, body.len() as u64);
    (body, reader.status, reader.body, fine)
}

fuzz_target!(|data: &[u8]| {
    request(data);
    let Some((mode, rest)) = data.split_first() else { return };
    let whole = response(rest, rest.len().max(1), mode & 1 == 1);
    let pieces = response(rest, (*mode as usize >> 1).max(1), mode & 1 == 1);
    if whole.3 && pieces.3 {
        assert_eq!(whole, pieces);
    }
});

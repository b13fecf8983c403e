//! `docs/protocol.md` is what the table says.

#[test]
fn the_page_is_the_tables() {
    let at = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md");
    let kept = std::fs::read_to_string(at).unwrap_or_default();
    assert!(kept == protocol::page(), "docs/protocol.md is not what `cargo run -p protocol --example page` says");
}

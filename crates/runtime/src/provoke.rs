//! Panics on purpose, for tests of what a panic leaves behind; in debug builds only.

/// Panics, once in a process, where `CORELANE_PANIC` is `POINT:FILE`, this is the point, and the file is there.
#[cfg(debug_assertions)]
pub fn provoke(point: &str) {
    use std::path::PathBuf;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};

    static ASKED: OnceLock<Option<(String, PathBuf)>> = OnceLock::new();
    static DONE: AtomicBool = AtomicBool::new(false);
    let asked = ASKED.get_or_init(|| {
        let asked = std::env::var("CORELANE_PANIC").ok()?;
        asked.split_once(':').map(|(point, file)| (point.to_owned(), file.into()))
    });
    let Some((at, file)) = asked else { return };
    if at == point && file.exists() && !DONE.swap(true, Ordering::Relaxed) {
        panic!("CORELANE_PANIC asks for it");
    }
}

/// Nothing, in a release build.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn provoke(_point: &str) {}

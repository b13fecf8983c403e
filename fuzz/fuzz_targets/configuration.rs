//! Any text as a configuration, in our form and in mTCP's: nothing panics, what is refused is told in one line with its place,
//! and what is taken is taken again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use runtime::Config;

fn one_line(message: &str) {
    assert!(!message.is_empty() && !message.contains('\n'), "{message:?}");
}

fuzz_target!(|data: &[u8]| {
    let Some((form, rest)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(rest);
    if form & 1 == 0 {
        match Config::from_toml("a.toml", &text) {
            Ok(config) => {
                assert!(config.check().is_ok() && (1..=128).contains(&config.lanes));
                assert!(Config::from_toml("a.toml", &text).is_ok());
            }
            Err(error) => {
                one_line(&error.to_string());
                assert!(error.line >= 1 && error.column >= 1 && error.line <= text.matches('\n').count() + 1);
            }
        }
    } else {
        // The fuzzer's tables of routes and neighbours are files that do not exist.
        match mtcp::read_configuration("/nonexistent/a.conf", &text) {
            Ok(()) => assert!(mtcp::read_configuration("/nonexistent/a.conf", &text).is_ok()),
            Err(message) => one_line(&message),
        }
    }
});

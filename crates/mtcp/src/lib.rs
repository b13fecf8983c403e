//! libmtcp: the C API of mTCP (NSDI'14, 3.3), as programs have used it since 2014, over lanes.
//!
//! A context is a lane's application end ([`runtime::App`]) with a table of small ids ([`ids`]); it belongs to the thread
//! that made it. The functions themselves are in [`ffi`], one line or a few each: pointers become slices and values there,
//! and everything below is safe code but for signals. The header `mtcp_api.h` says what each function does.

mod conf;
mod context;
mod descriptors;
mod events;
pub mod ffi;
mod ids;
mod machine;
mod options;
mod process;
mod sendfile;
mod signals;
mod sockets;
mod transfer;

pub use context::{Token, adopt};
pub use events::Event;

/// Reads a configuration of either form as `mtcp_init` does, for the fuzzers; what is wrong with it.
#[cfg(fuzzing)]
pub fn read_configuration(path: &str, text: &str) -> Result<(), String> {
    let file = conf::File::parse(path, text).map_err(|fault| fault.message)?;
    file.settings(conf::Sizes::NOTHING).map(drop)
}

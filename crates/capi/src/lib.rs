//! What the C libraries share: `errno`, addresses, buffers and socket options as Linux lays them out.
//!
//! Raw pointers become slices and values here, and in the libraries' own lists of functions, and nowhere else. The public
//! headers are in `include/`, the tests that compile and run C programs in `tests/`.

pub mod address;
pub mod buffers;
pub mod errno;
pub mod info;
pub mod options;
mod say;

pub use errno::{Errno, Result};
pub use say::{Words, say, say_what_happens};

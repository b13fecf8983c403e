//! libmegapipe: the C API of MegaPipe (Han, 2012, table 3.1) over io_uring and over lanes.
//!
//! A thread has a list of its channels ([`mine`]); a pointer or a handle is looked up there and never followed. The functions
//! themselves are in [`ffi`]: pointers become slices and values there. The header `megapipe.h` says what each does.

mod engines;
mod ffi;
mod mine;
mod sockets;

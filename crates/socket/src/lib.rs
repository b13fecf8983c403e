//! BSD socket semantics, sans-I/O
#![forbid(unsafe_code)]

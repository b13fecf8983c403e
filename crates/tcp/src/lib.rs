//! One TCP connection, sans-I/O
#![forbid(unsafe_code)]

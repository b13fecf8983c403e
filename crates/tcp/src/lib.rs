//! One TCP connection, sans-I/O: RFC 9293 and what came after.
#![forbid(unsafe_code)]

mod info;

pub use info::{State, TcpInfo};

//! The kernel as the system under test: real time, real calls, a TUN device in a network namespace of its own.

pub mod network;
pub mod raw;

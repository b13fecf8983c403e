//! One core's network stack, sans-I/O
#![forbid(unsafe_code)]

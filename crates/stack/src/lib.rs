//! One core's network stack, sans-I/O: flows, listeners, timers, neighbours, ICMP.
#![forbid(unsafe_code)]

pub mod channel;

//! Load: generators, one a thread, and what they measured.

pub mod generator;
pub mod report;
pub mod target;

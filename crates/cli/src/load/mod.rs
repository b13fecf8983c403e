//! Load: generators, one a thread, and what they measured.

pub mod command;
pub mod generator;
pub mod report;
pub mod target;

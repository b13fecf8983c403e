//! Load: generators, one a thread, what they say, and what they measured.

pub mod cause;
pub mod command;
pub mod generator;
pub mod latency;
pub mod memcached;
pub mod plan;
pub mod report;
pub mod talk;
pub mod target;
pub mod unanswered;

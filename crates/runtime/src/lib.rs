//! Lanes: threads, wake-up, steering, shared counters

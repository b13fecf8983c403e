//! Deterministic networks and hosts under a virtual clock, for tests
#![forbid(unsafe_code)]

//! Shared arena, chunk pools, SPSC rings, chunk chains, prefetch, huge pages

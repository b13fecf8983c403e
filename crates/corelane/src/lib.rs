//! A user-level TCP stack: sockets and polling on per-core lanes

//! The `corelane` command.
mod failure;
mod http;
mod load;
mod net;
mod server;
mod sys;
mod timers;
fn main() {}

//! The `corelane` command.
mod http;
fn main() {}

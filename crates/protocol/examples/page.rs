//! Prints docs/protocol.md, which is made from the table of messages.

fn main() {
    print!("{}", protocol::page());
}

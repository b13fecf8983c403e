//! Scripts in packetdrill's language, run against the stack in one process under a virtual clock.
//!
//! A script says what an application calls, what comes from the network, and what must go to it, each with its time. The
//! parser makes an [`ast::Script`] of it. Nothing here reads a clock, so a verdict is the same each time.
#![deny(unsafe_code)]

pub mod ast;
pub mod kernel;
mod lexer;
mod parser;
pub mod python;
pub mod system;
pub mod wire_options;

pub use lexer::{Place, SyntaxError};
pub use parser::{Defines, parse};

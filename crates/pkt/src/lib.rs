//! Scripts in packetdrill's language, run against the stack in one process under a virtual clock, or against the kernel.
//!
//! A script says what an application calls, what comes from the network, and what must go to it, each with its time. The
//! parser makes an [`ast::Script`] of it. Nothing but [`kernel`] reads a clock, so a verdict on
//! the stack is the same each time.
#![deny(unsafe_code)]

pub mod ast;
mod calls;
mod conn;
mod info;
pub mod kernel;
mod lexer;
mod options;
mod packets;
mod parser;
pub mod python;
mod report;
mod run;
pub mod segment;
mod setup;
pub mod symbols;
mod sysctl;
pub mod system;
pub mod wire_options;

pub use lexer::{Place, SyntaxError};
pub use options::{IpVersion, Options};
pub use parser::{Defines, parse};
pub use report::{Report, Verdict};
pub use run::{Under, run};
pub use setup::{Setup, Unreadable};
pub use sysctl::Settings;

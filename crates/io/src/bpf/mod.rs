//! eBPF without a compiler or a library: an assembler, the system call, and the program that shares an interface.

mod asm;
mod program;
mod sys;

pub use asm::{Asm, If, Insn};
pub use program::{Maps, OwnFlags, OwnKey, VERDICTS, Verdict, steer};
pub use sys::{Link, Map, MapKind, Program, program_name};

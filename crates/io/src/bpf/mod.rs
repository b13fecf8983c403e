//! eBPF without a compiler or a library: an assembler, the system call, the program that shares an interface, the one that
//! selects a listener by CPU, the one that delivers replies to the CPU that connected, and those that measure where segments are handled.

mod asm;
mod btf;
mod deliver;
mod listen;
mod locality;
mod maps;
mod program;
mod sys;
mod tuples;

pub use asm::{Asm, If, Insn, Size, stand_in};
pub use btf::KernelFunction;
pub use deliver::{Blocks, Delivered, Deliverer};
pub use listen::{ListenGroup, Selected, Slot};
pub use locality::{Locality, Read, Watched};
pub use maps::{MOST_KEPT, MOST_OWNED, Maps, OwnFlags, OwnFlow, OwnKey, VERDICTS, Verdict};
pub use program::{TAGS_BESIDE, steer, steer_for};
pub use sys::{Link, Map, MapKind, Program, program_name};
pub use tuples::{Claim, Phase, Tuples};

//! `libcorelane-preload.so`: gives each worker of an unmodified program its part of a listener (Fastsocket 3.2.1).
//!
//! Loaded by LD_PRELOAD, which `corelane run` sets. A process that listens tells the helper; one that inherits the listener asks for its
//! part before it first waits for a connection, and has it under the listener's number from then on. So no other call is seen, and
//! connections are the kernel's as ever. Where ports are dealt by core, a socket that connects gets one of the core's (3.3): they stand in
//! memory that the helper shares, so that nobody is asked then. Where the helper does not answer, nothing is changed.
//!
//! Nothing here allocates, locks, or keeps a descriptor: functions of this library are called between fork(2) and execve(2), in
//! signal handlers, under foreign allocators, and before the constructors of other libraries have run.

mod ask;
mod environment;
mod hooks;
mod next;
mod ports;
mod process;
mod table;

/// Run by the dynamic linker before `main`, and before the constructors of libraries that were loaded by others.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    next::resolve();
    if let Some(ports) = process::find_helper() {
        environment::keep();
        table::adopt_inherited();
        if ports {
            ports::find();
        }
    }
}

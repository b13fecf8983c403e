//! The `corelane` command.

mod args;
mod demo;
mod failure;
mod http;
mod load;
mod net;
mod server;
mod sys;
mod timers;

use args::{Cli, Command};
use clap::Parser;
use failure::Failure;
use std::process::ExitCode;
use sys::Stop;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("corelane: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Demo(args) => demo::run(args, &Stop::on_signals()),
        _ => Ok(()),
    }
}

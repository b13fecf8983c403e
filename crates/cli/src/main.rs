//! The `corelane` command.

mod args;
mod bench;
mod conf;
mod demo;
mod device;
mod failure;
mod gone;
mod http;
mod lab;
mod load;
mod net;
mod say;
mod seldom;
mod serve;
mod server;
mod sys;
mod timers;

use args::{Cli, Command, ConfCommand, LabCommand};
use clap::Parser;
use failure::Failure;
use std::process::ExitCode;
use sys::{Hangup, Stop};

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_log();
    match run(&cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say::tell(&failure);
            ExitCode::from(failure.code)
        }
    }
}

fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Demo(args) => demo::run(args, &Stop::on_signals(Hangup::Ends)),
        Command::Serve(args) => serve::run(args, &Stop::on_signals(Hangup::Reloads)),
        Command::Load(args) => load::command::run(args, &Stop::on_signals(Hangup::Ends)),
        Command::Bench(args) => bench::run(args, &Stop::on_signals(Hangup::Ends)),
        Command::BenchPart(part) => bench::part::run(part, &Stop::on_signals(Hangup::Ends)),
        Command::Lab(LabCommand::Up { queues }) => lab::up(*queues),
        Command::Lab(LabCommand::Down) => lab::down(),
        Command::Lab(LabCommand::Status { json }) => lab::status(*json),
        Command::Conf(ConfCommand::Check { file, json }) => conf::check(file, *json),
    }
}

/// What lanes report on the way goes to standard error: warnings, or what RUST_LOG asks for.
fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env();
    let filter = filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .without_time()
        .with_target(false)
        .init();
}

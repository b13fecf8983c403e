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
mod log;
mod machine;
mod net;
mod panics;
mod processes;
mod record;
mod run;
mod say;
mod seldom;
mod serve;
mod server;
mod sys;
mod timers;
mod tune;
mod zone;

use args::{Cli, Command, ConfCommand, LabCommand};
use clap::Parser;
use failure::Failure;
use std::process::ExitCode;
use sys::{Hangup, Stop};

fn main() -> ExitCode {
    let cli = Cli::parse();
    log::start();
    panics::end_the_process();
    let code = match run(&cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // After a panic it is no news.
            if !panics::seen() {
                say::tell(&failure);
            }
            ExitCode::from(failure.code)
        }
    };
    log::flush();
    match panics::seen() {
        true => ExitCode::from(panics::CODE),
        false => code,
    }
}

fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Demo(args) => demo::run(args, &stop(Hangup::Ends)),
        Command::Serve(args) => serve::run(args, &stop(Hangup::Reloads)),
        Command::Load(args) => load::command::run(args, &stop(Hangup::Ends)),
        Command::Run(args) => run::run(args),
        Command::RunHelper(args) => run::helper::run(args),
        Command::Tune(args) => tune::run(args),
        Command::Bench(args) => bench::run(args, &stop(Hangup::Ends)),
        Command::BenchPart(part) => bench::part::run(part, &stop(Hangup::Ends)),
        Command::Lab(LabCommand::Up { queues }) => lab::up(*queues),
        Command::Lab(LabCommand::Down) => lab::down(),
        Command::Lab(LabCommand::Status { json }) => lab::status(*json),
        Command::Conf(ConfCommand::Check { file, json }) => conf::check(file, *json),
    }
}

/// Signals end the command in order from now on, and the log is written by a thread that does not get them.
fn stop(hangup: Hangup) -> Stop {
    let stop = Stop::on_signals(hangup);
    log::start_writer();
    stop
}

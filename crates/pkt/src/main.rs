//! The `corelane-pkt` command.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use clap::Parser;
use pkt::{Defines, Options, Report, Under, Verdict};

/// Runs scripts in packetdrill's language against the stack, in this process and under a virtual clock.
///
/// Returns 0 when every script passes or needs what is not supported, 1 when one fails, 2 when one does not parse.
#[derive(Parser)]
#[command(name = "corelane-pkt", version)]
struct Cli {
    /// Scripts to run
    #[arg(required = true, value_name = "FILE.pkt")]
    scripts: Vec<String>,
    /// ipv4, ipv4-mapped-ipv6 or ipv6 [default: ipv4]
    #[arg(long = "ip_version", value_name = "VERSION")]
    ip_version: Option<String>,
    /// The stack's address [default: 192.168.0.1 or fd3d:fa7b:d17d::1]
    #[arg(long = "local_ip", value_name = "ADDRESS")]
    local_ip: Option<String>,
    /// The other side's address [default: 192.0.2.1 or 2001:db8::1]
    #[arg(long = "remote_ip", value_name = "ADDRESS")]
    remote_ip: Option<String>,
    /// The port that `bind` means [default: 8080]
    #[arg(long = "bind_port", value_name = "PORT")]
    bind_port: Option<String>,
    /// The port that `connect` means [default: 8080]
    #[arg(long = "connect_port", value_name = "PORT")]
    connect_port: Option<String>,
    /// The interface's MTU [default: 1500]
    #[arg(long, value_name = "BYTES")]
    mtu: Option<String>,
    /// The size of segments that come joined to larger ones
    #[arg(long, value_name = "BYTES")]
    mss: Option<String>,
    /// How far from its time an event may be [default: 4000]
    #[arg(long = "tolerance_usecs", value_name = "MICROSECONDS")]
    tolerance_usecs: Option<String>,
    /// The same as a part of the time since the event before, when that is more [default: 12.5]
    #[arg(long = "tolerance_percent", value_name = "PERCENT")]
    tolerance_percent: Option<String>,
    /// Check the stack's timestamps, with a tick of so long
    #[arg(long = "tcp_ts_tick_usecs", value_name = "MICROSECONDS")]
    tcp_ts_tick_usecs: Option<String>,
    /// Let a script echo timestamps that were not sent
    #[arg(long = "tcp_ts_ecr_scaled")]
    tcp_ts_ecr_scaled: bool,
    /// Do not put segments together to what the script expects
    #[arg(long = "strict_segments")]
    strict_segments: bool,
    /// No tolerance; check echoes of timestamps; nothing may be sent after what the script expects
    #[arg(long)]
    exact: bool,
    /// Let NAME stand for VALUE in the scripts, and hold for `#ifdef`
    #[arg(short = 'D', long = "define", value_name = "NAME=VALUE")]
    define: Vec<String>,
    /// Only parse the scripts
    #[arg(long = "dry_run")]
    dry_run: bool,
    /// Run against this machine's kernel, in real time and in a network namespace of its own; needs root's privileges
    #[arg(long, conflicts_with = "exact")]
    kernel: bool,
    /// Say what passes, too; show packets, what scripts print and what was ignored
    #[arg(short, long)]
    verbose: bool,
    /// Report as JSON, a script a line
    #[arg(long)]
    json: bool,
    /// The original's means to reach a kernel; they change nothing here
    #[arg(long = "gateway_ip", alias = "netmask_ip", alias = "speed", value_name = "ANY", hide = true)]
    ignored: Vec<String>,
}

impl Cli {
    /// The options given, by name.
    fn given(&self) -> Vec<(&'static str, Option<&str>)> {
        let valued = [
            ("ip_version", &self.ip_version),
            ("local_ip", &self.local_ip),
            ("remote_ip", &self.remote_ip),
            ("bind_port", &self.bind_port),
            ("connect_port", &self.connect_port),
            ("mtu", &self.mtu),
            ("mss", &self.mss),
            ("tolerance_usecs", &self.tolerance_usecs),
            ("tolerance_percent", &self.tolerance_percent),
            ("tcp_ts_tick_usecs", &self.tcp_ts_tick_usecs),
        ];
        let switches = [
            ("tcp_ts_ecr_scaled", self.tcp_ts_ecr_scaled),
            ("strict_segments", self.strict_segments),
            ("exact", self.exact),
            ("verbose", self.verbose),
        ];
        let valued = valued.into_iter().filter_map(|(name, value)| Some((name, Some(value.as_deref()?))));
        valued.chain(switches.into_iter().filter(|(_, on)| *on).map(|(name, _)| (name, None))).collect()
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let given = cli.given();
    let mut options = Options::default();
    for (name, value) in &given {
        if let Err(message) = options.set(name, *value) {
            eprintln!("corelane-pkt: error: {message}");
            return ExitCode::from(2);
        }
    }
    let definition = |text: &String| {
        let (name, value) = text.split_once('=').unwrap_or((text, "1"));
        (name.to_string(), value.to_string())
    };
    let defines: Defines = cli.define.iter().map(definition).collect();
    let under = match (cli.dry_run, cli.kernel) {
        (true, _) => Under::Nothing,
        (_, true) => Under::Kernel,
        _ => Under::Stack,
    };
    let (code, written) = judge(&cli, &given, &defines, under);
    match written {
        // Whoever read it has enough.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("corelane-pkt: error: standard output: {error}");
            ExitCode::from(2)
        }
        _ => ExitCode::from(code),
    }
}

/// Runs the scripts: the exit code so far, and whether all could be told.
fn judge(cli: &Cli, given: &[(&str, Option<&str>)], defines: &Defines, under: Under) -> (u8, io::Result<()>) {
    let mut out = io::stdout().lock();
    let mut code = 0;
    let mut counts = [0; 3];
    for path in &cli.scripts {
        let report = match std::fs::read_to_string(path) {
            Ok(text) => pkt::run(path, &text, given, defines, under),
            Err(error) => Report {
                path: path.clone(),
                verdict: Verdict::Unreadable { message: error.to_string() },
                ..Report::default()
            },
        };
        code = code.max(report.exit_code());
        match report.verdict {
            Verdict::Pass => counts[0] += 1,
            Verdict::Unsupported { .. } => counts[1] += 1,
            Verdict::Fail { .. } | Verdict::Syntax { .. } | Verdict::Unreadable { .. } => counts[2] += 1,
        }
        if let Err(error) = say(cli, &report, &mut out) {
            return (code, Err(error));
        }
    }
    let [passed, unsupported, failed] = counts;
    let last = match cli.json {
        true => Ok(()),
        false => writeln!(out, "{passed} passed, {failed} failed, {unsupported} unsupported"),
    };
    (code, last)
}

fn say(cli: &Cli, report: &Report, out: &mut impl Write) -> io::Result<()> {
    if cli.json {
        return writeln!(out, "{}", serde_json::to_string(report)?);
    }
    if cli.verbose || report.verdict != Verdict::Pass {
        writeln!(out, "{}", report.line())?;
    }
    if cli.verbose {
        report.trace.iter().try_for_each(|line| writeln!(out, "  {line}"))?;
        report.printed.iter().try_for_each(|line| writeln!(out, "  printed: {line}"))?;
        report.notices.iter().try_for_each(|line| writeln!(out, "  {line}"))?;
    }
    Ok(())
}

//! From options and a configuration file to an engine's configuration.

use crate::args::DeviceArgs;
use crate::failure::{Failure, words};
use corelane::{Config, PortConfig};
use std::path::Path;

/// Reads a configuration file.
pub fn read_config(path: &Path) -> Result<Config, Failure> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::new(format!("{name}: {}", words(&error)), "give a TOML file that can be read"))?;
    Config::from_toml(&name, &text).map_err(Failure::told)
}

/// The configuration that the options ask for. What they say wins over the file.
pub fn config(args: &DeviceArgs) -> Result<Config, Failure> {
    let mut config = args.config.as_deref().map_or_else(|| Ok(Config::default()), read_config)?;
    if !args.dev.is_empty() {
        config.ports = args.dev.iter().cloned().map(PortConfig::new).collect();
    }
    if config.ports.is_empty() {
        return Err(Failure::usage("no device", "name one with --dev or in the configuration's [[ports]]"));
    }
    if !args.addr.is_empty() || !args.gateway.is_empty() {
        let [port] = config.ports.as_mut_slice() else {
            return Err(Failure::usage("--addr and --gateway are for one device", "write several into --config FILE"));
        };
        if !args.addr.is_empty() {
            port.addresses = args.addr.clone();
        }
        if !args.gateway.is_empty() {
            port.gateways = args.gateway.clone();
        }
    }
    if let Some(cores) = &args.cores {
        config.cores = cores.0.clone();
        config.lanes = u16::try_from(cores.0.len()).unwrap_or(u16::MAX);
    }
    if let Some(lanes) = args.lanes {
        if args.cores.is_none() && config.cores.len() != usize::from(lanes) {
            config.cores.clear();
        }
        config.lanes = lanes;
    }
    if let Some(model) = args.model {
        config.model = model.into();
    }
    config.busy_poll |= args.busy_poll;
    if let Some(path) = &args.pcap {
        let several = config.ports.len() > 1;
        for (at, port) in config.ports.iter_mut().enumerate() {
            let numbered = || path.with_extension(format!("{at}.pcapng"));
            port.pcap = Some(if several { numbered() } else { path.clone() });
        }
    }
    config.check().map_err(|fault| Failure::usage(fault, "see corelane serve --help"))?;
    Ok(config)
}

/// Devices and lanes in a few words.
pub fn describe(config: &Config) -> String {
    let devices: Vec<_> = config.ports.iter().map(|port| port.device.to_string()).collect();
    let devices = if devices.is_empty() { "no device".to_owned() } else { devices.join(" ") };
    let lanes = if config.lanes == 1 { "1 lane".to_owned() } else { format!("{} lanes", config.lanes) };
    format!("{devices}, {lanes}, {}", format!("{:?}", config.model).to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn from(options: &str) -> Result<Config, String> {
        let words = ["corelane", "serve", "."].into_iter().chain(options.split_whitespace());
        let Command::Serve(args) = Cli::try_parse_from(words).expect("good options").command else { panic!("serve") };
        config(&args.device).map_err(|failure| failure.to_string())
    }

    #[test]
    fn options_make_a_configuration() {
        let config =
            from("--dev tap:t0 --addr 10.0.0.2/24 --addr fd00::2/64 --gateway 10.0.0.1 --cores 1-2").expect("good");
        assert_eq!((config.lanes, config.cores.as_slice()), (2, [1, 2].as_slice()));
        assert_eq!((config.ports[0].addresses.len(), config.ports[0].gateways.len()), (2, 1));
        assert_eq!(describe(&config), "tap:t0, 2 lanes, inline");
        let config = from("--dev xdp:a --dev xdp:b --model paired --pcap x.pcapng").expect("good");
        assert_eq!(describe(&config), "xdp:a xdp:b, 1 lane, paired");
        assert_eq!(config.ports[1].pcap.as_deref(), Some(Path::new("x.1.pcapng")));
        assert!(!config.busy_poll);
        let config = from("--dev xdp:a --model guarded --busy-poll").expect("good");
        assert_eq!((describe(&config).as_str(), config.busy_poll), ("xdp:a, 1 lane, guarded", true));
    }

    #[test]
    fn options_that_do_not_fit_are_refused() {
        assert!(from("--dev xdp:a --dev xdp:b --addr 10.0.0.2/24").is_err());
        assert!(
            from("--dev xdp:a --lanes 2 --cores 1").expect_err("two lanes, one core").contains("1 cores for 2 lanes")
        );
        let missing = from("--config /nonexistent/x.toml").expect_err("no file");
        assert!(missing.starts_with("/nonexistent/x.toml: no such file or directory"), "{missing}");
    }

    #[test]
    fn options_win_over_the_file() {
        let path = std::env::temp_dir().join(format!("corelane-cli-{}.toml", std::process::id()));
        std::fs::write(&path, "lanes = 2\ncores = [0, 1]\n[[ports]]\ndevice = \"tap:t0\"\n").expect("a file");
        let config = from(&format!("--config {} --lanes 3 --dev tap:t1", path.display())).expect("good");
        assert_eq!(describe(&config), "tap:t1, 3 lanes, inline");
        assert!(config.cores.is_empty());
        std::fs::remove_file(&path).expect("it was there");
    }
}

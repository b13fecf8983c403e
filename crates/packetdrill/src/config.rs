//! What the tool's `--so_flags` say.

use std::net::IpAddr;

use pkt::{Defines, Setup, Unreadable};
use sim::MachineConfig;

/// Reads flags, separated by commas:
///
/// - `script=FILE`: the script, of which the stack takes its parameters as `corelane-pkt` does;
/// - `define=NAME=VALUE`: as the tool's `-D`, for `#ifdef` in it;
/// - `local=ADDRESS/PREFIX`: as often as there are addresses, in place of the script's or the default ones;
/// - `mtu=BYTES`.
///
/// The error says what was expected.
pub(crate) fn machine(flags: &str) -> Result<MachineConfig, String> {
    let (mut script, mut defines, mut addresses, mut mtu) = (None, Defines::default(), Vec::new(), None);
    for flag in flags.split(',').map(str::trim).filter(|f| !f.is_empty()) {
        let unknown =
            || format!("expected script=FILE, define=NAME=VALUE, local=ADDRESS/PREFIX or mtu=BYTES, got {flag}");
        match flag.split_once('=').ok_or_else(unknown)? {
            ("script", path) => script = Some(path),
            ("define", definition) => {
                let (name, value) = definition.split_once('=').unwrap_or((definition, "1"));
                defines.insert(name.into(), value.into());
            }
            ("local", value) => addresses.push(address(value).ok_or_else(unknown)?),
            ("mtu", value) => mtu = Some(value.parse().ok().filter(|mtu| *mtu >= 68).ok_or_else(unknown)?),
            _ => return Err(unknown()),
        }
    }
    let mut config = match script {
        None => MachineConfig::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
            let setup = Setup::read(&text, &[], &defines)
                .map_err(|Unreadable(line, column, message)| format!("{path}:{line}:{column}: {message}"))?;
            setup.machine()
        }
    };
    if !addresses.is_empty() {
        config.addresses = addresses;
    }
    config.mtu = mtu.unwrap_or(config.mtu);
    Ok(config)
}

fn address(text: &str) -> Option<(IpAddr, u8)> {
    let (addr, prefix) = text.split_once('/')?;
    let addr: IpAddr = addr.parse().ok()?;
    let most = if addr.is_ipv4() { 32 } else { 128 };
    Some((addr, prefix.parse().ok().filter(|p| *p <= most)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags() {
        let config = machine("local=10.1.2.3/8, local=fd00::2/64,mtu=1280").unwrap();
        assert_eq!(config.addresses, [("10.1.2.3".parse().unwrap(), 8), ("fd00::2".parse().unwrap(), 64)]);
        assert_eq!(config.mtu, 1280);
        assert_eq!(machine("").unwrap().addresses, MachineConfig::default().addresses);
        for wrong in ["local", "local=10.0.0.1", "local=10.0.0.1/33", "local=x/8", "mtu=67", "speed=1", "script=/none"]
        {
            assert!(machine(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_script_sets_the_stack() {
        let path = std::env::temp_dir().join(format!("corelane-{}.pkt", std::process::id()));
        let text = "`sysctl -q net.ipv4.tcp_timestamps=0`\n0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n";
        std::fs::write(&path, text).unwrap();
        let config = machine(&format!("script={},mtu=1400", path.display()));
        std::fs::remove_file(&path).unwrap();
        let config = config.unwrap();
        assert_eq!((config.stack.tcp.timestamps, config.mtu), (false, 1400));
    }
}

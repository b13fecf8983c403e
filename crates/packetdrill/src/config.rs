//! What the tool's `--so_flags` say.

use std::net::IpAddr;

use rustix::io::Errno;
use sim::MachineConfig;

use crate::plugin::Result;

/// Reads flags: `local=ADDRESS/PREFIX` (as often as there are addresses, in place of the default ones) and `mtu=BYTES`,
/// separated by commas. `EINVAL` for anything else.
pub(crate) fn machine(flags: &str) -> Result<MachineConfig> {
    let mut config = MachineConfig::default();
    let mut addresses = Vec::new();
    for flag in flags.split(',').map(str::trim).filter(|f| !f.is_empty()) {
        let (key, value) = flag.split_once('=').ok_or(Errno::INVAL)?;
        match key {
            "local" => addresses.push(address(value)?),
            "mtu" => config.mtu = value.parse().ok().filter(|mtu| *mtu >= 68).ok_or(Errno::INVAL)?,
            _ => return Err(Errno::INVAL),
        }
    }
    if !addresses.is_empty() {
        config.addresses = addresses;
    }
    Ok(config)
}

fn address(text: &str) -> Result<(IpAddr, u8)> {
    let (addr, prefix) = text.split_once('/').ok_or(Errno::INVAL)?;
    let addr: IpAddr = addr.parse().map_err(|_| Errno::INVAL)?;
    let most = if addr.is_ipv4() { 32 } else { 128 };
    let prefix = prefix.parse().ok().filter(|p| *p <= most).ok_or(Errno::INVAL)?;
    Ok((addr, prefix))
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
        for wrong in ["local", "local=10.0.0.1", "local=10.0.0.1/33", "local=x/8", "mtu=67", "speed=1"] {
            assert_eq!(machine(wrong).err(), Some(Errno::INVAL), "{wrong}");
        }
    }
}

//! What a script asks for before its first event.

use core::time::Duration;

use sim::MachineConfig;
use socket::SocketConfig;
use stack::StackConfig;

use crate::ast::{Action, Script, Time};
use crate::options::Options;
use crate::parser::{Defines, parse};
use crate::sysctl::Settings;

/// A script with its options, and what its first command sets.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The script.
    pub script: Script,
    /// Its options, and those given from outside.
    pub options: Options,
    /// What its first command sets.
    pub settings: Settings,
}

/// A script that is none: line and column from 1, and what was expected.
#[derive(Clone, Debug, PartialEq)]
pub struct Unreadable(pub u32, pub u32, pub String);

impl Setup {
    /// Reads a script. The options `given` have the last word over its own.
    pub fn read(text: &str, given: &[(&str, Option<&str>)], defines: &Defines) -> Result<Setup, Unreadable> {
        let script = parse(text, defines).map_err(|e| Unreadable(e.place.line, e.place.column, e.message))?;
        let mut options = Options::default();
        let own = script.options.iter().map(|(line, name, value)| (*line, name.as_str(), value.as_deref()));
        for (line, name, value) in own.chain(given.iter().map(|(name, value)| (1, *name, *value))) {
            options.set(name, value).map_err(|message| Unreadable(line, 1, message))?;
        }
        let mut settings = Settings::default();
        if let Some((_, command)) = &script.init {
            settings.command(command);
        }
        Ok(Setup { script, options, settings })
    }

    /// The interface's MTU, bytes.
    pub fn mtu(&self) -> u16 {
        self.settings.mtu.unwrap_or(self.options.mtu)
    }

    /// Our stack as the script wants it.
    pub fn machine(&self) -> MachineConfig {
        let tcp = self.settings.tcp.clone();
        MachineConfig {
            addresses: vec![(self.options.local(), if self.options.v6() { 48 } else { 16 })],
            mtu: self.mtu(),
            socket: SocketConfig {
                max_sockets: 1024,
                send_buffer: tcp.send_buffer,
                receive_buffer: tcp.receive_buffer,
                tcp: tcp.clone(),
            },
            // Parked whenever nothing is under way: no script may tell.
            stack: StackConfig {
                max_connections: 1024,
                tcp,
                syn_cookies: self.settings.cookies,
                park_after: Duration::ZERO,
                ..StackConfig::default()
            },
            ..MachineConfig::default()
        }
    }

    /// How long the script takes when all goes as it says, µs.
    pub fn duration(&self) -> u64 {
        self.script.events.iter().fold(0, |now, event| {
            let at = match event.time {
                Time::Any => now,
                Time::At(t) | Time::Between(_, t) => t.max(now),
                Time::After(t) | Time::AfterBetween(_, t) => now + t,
            };
            match (&event.action, event.time) {
                (Action::Call(call), Time::After(t)) => at + call.end.unwrap_or(t).saturating_sub(t),
                (Action::Call(call), _) => at.max(call.end.unwrap_or(at)),
                _ => at,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "--mtu=1400\n`sysctl -q net.ipv4.tcp_timestamps=0`\n0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n\
                          +1.5 connect(3, ..., ...) = -1 EINPROGRESS\n+0...4 read(3, ..., 1) = 0\n";

    #[test]
    fn of_a_script() {
        let setup = Setup::read(SCRIPT, &[], &Defines::default()).unwrap();
        assert_eq!((setup.mtu(), setup.machine().stack.tcp.timestamps), (1400, false));
        assert!(setup.duration() >= 4_000_000, "{}", setup.duration());
        let setup = Setup::read(SCRIPT, &[("mtu", Some("1300"))], &Defines::default()).unwrap();
        assert_eq!(setup.machine().mtu, 1300);
        assert!(Setup::read("+0 nonsense", &[], &Defines::default()).is_err());
        let wrong = Setup::read("--speed\n--nothing=1\n0 close(3) = 0", &[], &Defines::default());
        assert_eq!(wrong.map(|_| ()).map_err(|Unreadable(line, ..)| line), Err(2));
    }
}

//! Stand-in for the driver of a NIC with receive rules, as ethtool's ioctl reaches it: struct ethtool_rxnfc in 32-bit words.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Words of the mask, of the place of a rule, and of the number of rules.
const MASK: std::ops::Range<usize> = 23..41;
const LOCATION: usize = 44;
const COUNT: usize = 46;

// Numbers of errors, as in errno.h.
const ENOENT: i32 = 2;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const EOPNOTSUPP: i32 = 95;

/// Rules by place, each as it was inserted.
type Table = BTreeMap<u32, Vec<u32>>;

/// Driver, and the rules that it has. A clone has the same rules.
#[derive(Clone, Debug)]
pub struct Nic {
    /// Places.
    pub size: u32,
    /// Rules are on (`ethtool -K NAME ntuple on`).
    pub on: bool,
    /// IPv6 is taken, as mlx5 does; else IPv4 alone, and one mask for all rules, as ixgbe does.
    pub ipv6: bool,
    rules: Arc<Mutex<Table>>,
}

impl Nic {
    /// One without rules.
    pub fn new(size: u32, ipv6: bool) -> Nic {
        Nic { size, on: true, ipv6, rules: Arc::default() }
    }

    /// Rules by place: flow type, word of the destination port in network order, its mask, queue.
    pub fn rules(&self) -> Vec<(u32, [u32; 4])> {
        let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let told = rules.iter().map(|(location, words)| {
            let at = if words[4] & 0xff == 5 { 8 } else { 2 };
            (*location, [words[4], words[5 + at], words[23 + at], words[42] | words[43]])
        });
        told.collect()
    }

    /// Answers a request.
    pub fn call(&self, words: &mut [u32]) -> io::Result<()> {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let error = |number| Err(io::Error::from_raw_os_error(number));
        match words[0] {
            // GFLAGS.
            0x25 => words[1] = u32::from(self.on) << 27,
            // GRXCLSRLCNT.
            0x2e => words[COUNT] = rules.len() as u32,
            // GRXCLSRULE.
            0x2f => match rules.get(&words[LOCATION]) {
                Some(rule) => words[1..].copy_from_slice(&rule[1..]),
                None => return error(ENOENT),
            },
            // GRXCLSRLALL.
            0x30 => {
                let room = words[COUNT] as usize;
                if room < rules.len() || words.len() < COUNT + 1 + room {
                    return error(EINVAL);
                }
                (words[2], words[COUNT]) = (self.size, rules.len() as u32);
                rules.keys().zip(&mut words[COUNT + 1..]).for_each(|(location, word)| *word = *location);
            }
            // SRXCLSRLDEL.
            0x31 => {
                if rules.remove(&words[LOCATION]).is_none() {
                    return error(ENOENT);
                }
            }
            // SRXCLSRLINS.
            0x32 => {
                let masks = |words: &[u32]| words[MASK].to_vec();
                let one_mask = || rules.values().all(|rule| masks(rule) == masks(words));
                match () {
                    () if !self.on => return error(EOPNOTSUPP),
                    () if words[LOCATION] >= self.size => return error(ENOSPC),
                    () if words[4] != 1 && !(self.ipv6 && words[4] == 5) => return error(EINVAL),
                    () if !self.ipv6 && !one_mask() => return error(EINVAL),
                    () => drop(rules.insert(words[LOCATION], words.to_vec())),
                }
            }
            _ => return error(EOPNOTSUPP),
        }
        Ok(())
    }
}

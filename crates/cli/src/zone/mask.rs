//! CPU masks as the kernel's files have them: groups of eight hexadecimal digits, highest first, separated by commas.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// A set of CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuMask(BTreeSet<u32>);

impl CpuMask {
    /// CPUs of the set, lowest first.
    pub fn cpus(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }
}

impl FromIterator<u32> for CpuMask {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> CpuMask {
        CpuMask(cpus.into_iter().collect())
    }
}

impl FromStr for CpuMask {
    type Err = ();

    fn from_str(text: &str) -> Result<CpuMask, ()> {
        let mut cpus = BTreeSet::new();
        for (group, digits) in (0..).zip(text.trim().rsplit(',')) {
            // A sign would be taken, too.
            let bits = u32::from_str_radix(digits, 16).ok().filter(|_| digits.len() <= 8 && !digits.starts_with('+'));
            let bits = bits.ok_or(())?;
            cpus.extend((0..32).filter(|bit| bits & 1 << bit != 0).map(|bit| group * 32 + bit));
        }
        Ok(CpuMask(cpus))
    }
}

impl fmt::Display for CpuMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let highest = self.0.last().map_or(0, |cpu| cpu / 32);
        for group in (0..=highest).rev() {
            let bits = self.cpus().filter(|cpu| cpu / 32 == group).fold(0u32, |bits, cpu| bits | 1 << (cpu % 32));
            match group == highest {
                true => write!(f, "{bits:x}")?,
                false => write!(f, ",{bits:08x}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_read_and_written_as_the_kernel_does() {
        for (text, cpus, written) in [
            ("0\n", &[][..], "0"),
            ("3\n", &[0, 1], "3"),
            ("00000000,00000002\n", &[1], "2"),
            ("00000081,00000000,80000001\n", &[0, 31, 64, 71], "81,00000000,80000001"),
        ] {
            let mask: CpuMask = text.parse().unwrap();
            assert_eq!((mask.cpus().collect::<Vec<_>>().as_slice(), mask.to_string().as_str()), (cpus, written));
            assert_eq!(mask, written.parse().unwrap());
        }
        for wrong in ["", "x", "1,", ",1", "123456789", "+1", "-1", "0-3"] {
            assert_eq!(wrong.parse::<CpuMask>(), Err(()), "{wrong}");
        }
    }
}

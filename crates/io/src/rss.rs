//! What a NIC says of how it spreads flows over its queues: hash key, indirection table, fields (ethtool's ioctl, since
//! every kernel that has AF_XDP has it). What it does not say, and what is no plain Toeplitz over the four-tuple, cannot
//! be computed along.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::sys::check;

const SIOCETHTOOL: u64 = 0x8946;
const GRSSH: u32 = 0x46;
const GRXFH: u32 = 0x29;
/// Toeplitz among the hash functions.
const TOEPLITZ: u8 = 1;
/// Source and destination address, both ports.
const FOUR_TUPLE: u64 = 0b1111 << 4;
/// Flow types of struct ethtool_rxnfc.
pub(crate) const TCP_V4: u32 = 1;
pub(crate) const TCP_V6: u32 = 5;
/// cmd, rss_context, indir_size, key_size, hfunc and input_xfrm with padding, reserved.
const HEAD_WORDS: usize = 6;
/// Bytes of the key that a hash over IPv6's tuple reaches.
const KEY: usize = 40;
/// Largest table and key that are believed.
const MOST_WORDS: u32 = 1 << 16;

/// How an interface spreads TCP over its queues: Toeplitz under `key` over addresses and ports as they stand in the packet,
/// the low bits index `queues`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rss {
    /// The hash's key.
    pub key: [u8; KEY],
    /// Queue by the low bits of the hash; a power of two of them.
    pub queues: Vec<u32>,
}

/// One request to ethtool's ioctl; `words` must be as long as they say.
pub(crate) fn ethtool(socket: &OwnedFd, name: &str, words: &mut [u32]) -> io::Result<()> {
    #[repr(C)]
    struct Request {
        name: [u8; 16],
        data: *mut u32,
        _rest: [u64; 2],
    }
    let mut request = Request { name: [0; 16], data: words.as_mut_ptr(), _rest: [0; 2] };
    let name = name.as_bytes();
    if name.len() > 15 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    request.name[..name.len()].copy_from_slice(name);
    // SAFETY: the request names a buffer that is as long as its own words say, and lives through the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) }).map(drop)
}

/// A socket for ethtool's ioctl, of this network namespace.
pub(crate) fn socket() -> io::Result<OwnedFd> {
    // SAFETY: a plain system call that gives a new descriptor.
    let fd = check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: new, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// How `name` spreads flows, or why that cannot be known, in a few words.
pub fn read(name: &str) -> Result<Rss, String> {
    let why = |what: &str, e: io::Error| match e.raw_os_error() {
        Some(libc::EOPNOTSUPP) => format!("its driver does not tell {what}"),
        _ => format!("{what}: {e}"),
    };
    let socket = socket().map_err(|e| why("a socket", e))?;
    let mut sizes = [0; HEAD_WORDS];
    sizes[0] = GRSSH;
    ethtool(&socket, name, &mut sizes).map_err(|e| why("its hash", e))?;
    let (table, key) = (sizes[2], sizes[3]);
    if table == 0 || key == 0 {
        return Err("its driver does not tell its hash".into());
    }
    if table > MOST_WORDS || key > MOST_WORDS {
        return Err("what its driver tells of its hash is beyond belief".into());
    }
    let mut all = vec![0; HEAD_WORDS + table as usize + key.div_ceil(4) as usize];
    all[..HEAD_WORDS].copy_from_slice(&[GRSSH, 0, table, key, 0, 0]);
    ethtool(&socket, name, &mut all).map_err(|e| why("its hash", e))?;
    let rss = parse(&all)?;
    for (flow, family) in [(TCP_V4, "IPv4"), (TCP_V6, "IPv6")] {
        // struct ethtool_rxnfc with room to spare: cmd, flow_type, data.
        let mut fields = [0u32; 64];
        fields[..2].copy_from_slice(&[GRXFH, flow]);
        ethtool(&socket, name, &mut fields).map_err(|e| why("what it hashes", e))?;
        let data = fields[2] as u64 | (fields[3] as u64) << 32;
        if cfg!(target_endian = "little") && data & FOUR_TUPLE != FOUR_TUPLE {
            return Err(format!(
                "it does not hash TCP's ports over {family} (`ethtool -N {name} rx-flow-hash tcp{} sdfn` makes it)",
                if flow == TCP_V4 { 4 } else { 6 }
            ));
        }
    }
    Ok(rss)
}

/// struct ethtool_rxfh, and what follows it: the table, then the key.
fn parse(words: &[u32]) -> Result<Rss, String> {
    let short = || "what its driver tells of its hash is cut off".to_string();
    let [_, _, table, key, functions, _, rest @ ..] = words else { return Err(short()) };
    let (table, key) = (*table as usize, *key as usize);
    let [function, transform, ..] = functions.to_ne_bytes();
    if function & TOEPLITZ == 0 {
        return Err("its hash is no Toeplitz".into());
    }
    if transform != 0 {
        return Err("its hash folds both directions together".into());
    }
    if key < KEY {
        return Err(format!("its key has {key} bytes, too few for IPv6"));
    }
    if !table.is_power_of_two() {
        return Err(format!("its table has {table} entries"));
    }
    let queues = rest.get(..table).ok_or_else(short)?.to_vec();
    let bytes: Vec<u8> = rest[table..].iter().flat_map(|w| w.to_ne_bytes()).collect();
    let key = bytes.get(..KEY).and_then(|k| k.try_into().ok()).ok_or_else(short)?;
    Ok(Rss { key, queues })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(table: u32, key: u32, function: u8, transform: u8) -> Vec<u32> {
        let mut words = vec![GRSSH, 0, table, key, u32::from_ne_bytes([function, transform, 0, 0]), 0];
        words.extend((0..table).map(|i| i % 3));
        words.extend((0..key / 4).map(|i| u32::from_ne_bytes([i as u8; 4])));
        words
    }

    #[test]
    fn what_a_driver_tells() {
        let rss = parse(&told(128, 52, TOEPLITZ, 0)).unwrap();
        assert_eq!((rss.queues.len(), &rss.queues[..4]), (128, &[0, 1, 2, 0][..]));
        assert_eq!((rss.key[0], rss.key[39]), (0, 9));
    }

    #[test]
    fn what_cannot_be_computed_along_says_why() {
        let refused = |words: &[u32]| parse(words).unwrap_err();
        assert_eq!(refused(&told(128, 40, 2, 0)), "its hash is no Toeplitz");
        assert_eq!(refused(&told(128, 40, TOEPLITZ, 1)), "its hash folds both directions together");
        assert_eq!(refused(&told(128, 16, TOEPLITZ, 0)), "its key has 16 bytes, too few for IPv6");
        assert_eq!(refused(&told(48, 40, TOEPLITZ, 0)), "its table has 48 entries");
        let whole = told(128, 40, TOEPLITZ, 0);
        for n in 0..whole.len() {
            assert!(refused(&whole[..n]).contains("cut off"), "{n}");
        }
    }

    /// Interfaces that have no such thing, and one that does not exist.
    #[test]
    fn an_interface_without_says_so() {
        assert_eq!(read("lo"), Err("its driver does not tell its hash".into()));
        assert!(read("corelane-none").is_err());
        assert!(read("a-name-that-is-too-long").is_err());
    }
}

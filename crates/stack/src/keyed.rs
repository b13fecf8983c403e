//! SipHash-1-3 (Aumasson and Bernstein, 2012) of a connection's tuple, unrolled for its two lengths: the general crate
//! spends as much on bookkeeping as on mixing.

use crate::FlowKey;

/// A key.
#[derive(Clone, Copy)]
pub(crate) struct Keyed([u64; 4]);

#[inline(always)]
fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[2] = v[2].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[1]);
    v[0] = v[0].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].rotate_left(32);
}

impl Keyed {
    pub fn new(k0: u64, k1: u64) -> Keyed {
        let text = [0x736f_6d65_7073_6575, 0x646f_7261_6e64_6f6d, 0x6c79_6765_6e65_7261, 0x7465_6462_7974_6573];
        Keyed([text[0] ^ k0, text[1] ^ k1, text[2] ^ k0, text[3] ^ k1])
    }

    /// The key as bytes, little-endian as the algorithm has it.
    pub fn of(key: [u8; 16]) -> Keyed {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| key[at + i]));
        Keyed::new(word(0), word(8))
    }

    /// Of words; a tuple's last one tells how many bytes they are.
    #[inline]
    pub fn sip<const N: usize>(&self, words: [u64; N]) -> u64 {
        let mut v = self.0;
        for m in words {
            v[3] ^= m;
            round(&mut v);
            v[0] ^= m;
        }
        v[2] ^= 0xff;
        (0..3).for_each(|_| round(&mut v));
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }

    /// Of a tuple: addresses and ports, 12 bytes of IPv4, 36 of IPv6.
    #[inline]
    pub fn tuple(&self, key: &FlowKey) -> u64 {
        // The last word of a message holds its length in the highest byte.
        let ports = (key.local_port as u64) << 16 | key.remote_port as u64;
        let ([l0, l1], [r0, r1]) = (key.local.as_words(), key.remote.as_words());
        if key.remote.is_v4() {
            self.sip([l1 << 32 | r1 & 0xffff_ffff, ports | 12 << 56])
        } else {
            self.sip([l0, l1, r0, r1, ports | 36 << 56])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::hash::Hasher;
    use proptest::prelude::*;
    use siphasher::sip::SipHasher13;
    use wire::Addr;

    proptest! {
        #[test]
        fn is_siphash_1_3(key: [u8; 16], local: [u8; 16], remote: [u8; 16], local_port: u16, remote_port: u16, v4: bool) {
            let addr = |b: [u8; 16]| if v4 { Addr::from_v4([b[0], b[1], b[2], b[3]]) } else { Addr::from_v6(b) };
            let k = FlowKey { interface: crate::InterfaceId(0), local: addr(local), remote: addr(remote), local_port, remote_port };
            let mut h = SipHasher13::new_with_key(&key);
            let words = |a: Addr| a.as_words();
            if k.remote.is_v4() {
                h.write_u64(words(k.local)[1] << 32 | words(k.remote)[1] & 0xffff_ffff);
            } else {
                words(k.local).into_iter().chain(words(k.remote)).for_each(|w| h.write_u64(w));
            }
            h.write_u32((local_port as u32) << 16 | remote_port as u32);
            prop_assert_eq!(Keyed::of(key).tuple(&k), h.finish());
        }
    }
}

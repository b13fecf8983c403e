//! Where a tuple stands in the flow table: multilinear hashing (Lemire and Kaser, "Strongly universal string hashing is
//! fast", 2014), a multiplication by a secret key for each word. Two tuples that were chosen without knowing the keys collide
//! no more often than chance would have it. That holds as long as nothing can be seen of the hash: what is sent, as
//! sequence numbers and ports, and what a peer may notice, as which listener of several it met, come of `keyed`.

use crate::FlowKey;
use crate::keyed::Keyed;

/// For each family a key to begin with, and one for each word.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    v4: [u64; 4],
    v6: [u64; 10],
}

/// The high half of a sum of products modulo 2⁶⁴, each of a secret key and a word of 32 bits.
#[inline(always)]
fn multilinear<const K: usize, const N: usize>(keys: &[u64; K], words: [u32; N]) -> u32 {
    const { assert!(K == N + 1) };
    let sum = (0..N).fold(keys[0], |sum, i| sum.wrapping_add(keys[i + 1].wrapping_mul(words[i] as u64)));
    (sum >> 32) as u32
}

/// Neighbours, as ports are, come to lie at equal distances: fine alone, but linear probing wants them scattered.
#[inline(always)]
fn scatter(hash: u32) -> u32 {
    let mixed = (hash ^ hash >> 16).wrapping_mul(0x9e37_79b1);
    mixed ^ mixed >> 15
}

impl Spread {
    pub fn of(secret: [u8; 16]) -> Spread {
        let keys = Keyed::of(secret);
        let key = |n: usize| keys.sip([n as u64]);
        Spread { v4: core::array::from_fn(key), v6: core::array::from_fn(|i| key(4 + i)) }
    }

    /// Of a tuple.
    #[inline]
    pub fn tuple(&self, key: &FlowKey) -> u32 {
        let ports = (key.local_port as u32) << 16 | key.remote_port as u32;
        scatter(if key.remote.is_v4() {
            let [local, remote] = [key.local, key.remote].map(|a| a.as_words()[1] as u32);
            multilinear(&self.v4, [local, remote, ports])
        } else {
            self.addresses(key, ports)
        })
    }

    #[inline(never)]
    fn addresses(&self, key: &FlowKey, ports: u32) -> u32 {
        let halves = |word: u64| [(word >> 32) as u32, word as u32];
        let [[a, b], [c, d]] = key.local.as_words().map(halves);
        let [[e, f], [g, h]] = key.remote.as_words().map(halves);
        multilinear(&self.v6, [a, b, c, d, e, f, g, h, ports])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::Addr;

    proptest! {
        #[test]
        fn is_multilinear(keys: [u64; 10], words: [u32; 9]) {
            let products = keys[1..].iter().zip(words).map(|(key, word)| *key as u128 * word as u128);
            let sum = (keys[0] as u128 + products.sum::<u128>()) % (1 << 64);
            prop_assert_eq!(multilinear(&keys, words), (sum / (1 << 32)) as u32);
        }
    }

    /// Tuples as they come: one server, ports and addresses in sequence.
    #[test]
    fn neighbours_are_scattered() {
        const SLOTS: usize = 1 << 16;
        for seed in 0..32u8 {
            let spread = Spread::of([seed; 16]);
            for (addresses, ports) in [(1u32, 57_000u16), (57_000, 1), (240, 240)] {
                for v6 in [false, true] {
                    let addr = |n: u32| match v6 {
                        false => Addr::from_v4((0x0a00_0000 + n).to_be_bytes()),
                        true => Addr::from_v6((0xfd00_u128 << 112 | n as u128).to_be_bytes()),
                    };
                    let mut slots = vec![false; SLOTS];
                    let mut looks = 0;
                    for (n, port) in (0..addresses).flat_map(|n| (0..ports).map(move |p| (n, p + 1024))) {
                        let key = FlowKey {
                            interface: crate::InterfaceId(0),
                            local: addr(1),
                            remote: addr(n + 2),
                            local_port: 80,
                            remote_port: port,
                        };
                        let mut at = spread.tuple(&key) as usize % SLOTS;
                        while std::mem::replace(&mut slots[at], true) {
                            at = (at + 1) % SLOTS;
                            looks += 1;
                        }
                    }
                    // Chance alone: (1/(1 - 0.87) - 1)/2 = 3.3 looks more for each (Knuth 6.4, linear probing at 7/8).
                    let each = looks as f64 / (addresses * ports as u32) as f64;
                    assert!(each < 5.0, "seed {seed}, {addresses} addresses, {ports} ports, IPv6 {v6}: {each}");
                }
            }
        }
    }
}

//! The ones' complement sum of long data, by the widest loads that the CPU has.

/// Data shorter than this is not worth the asking.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LONG: usize = 256;

/// The sum of `data` as native-endian words of 64 bits with the carries added back, a last part shorter than 32 bytes left
/// out: the sum, and how many bytes are in it. Nothing where `data` is short, or the CPU has no wide loads.
#[inline]
pub fn ones(data: &[u8]) -> (u64, usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if data.len() >= LONG && std::arch::is_x86_feature_detected!("avx2") {
        let whole = data.len() - data.len() % 32;
        // SAFETY: the CPU has AVX2.
        return (unsafe { avx2(&data[..whole]) }, whole);
    }
    let _ = data;
    (0, 0)
}

/// `data` is a multiple of 32 bytes, below 2^36.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx2")]
fn avx2(data: &[u8]) -> u64 {
    use core::arch::x86_64::*;

    let low = _mm256_set1_epi64x(0xffff_ffff);
    // Halves of 64-bit words, each in 64 bits: no carry is lost.
    let (mut even, mut odd) = ([_mm256_setzero_si256(); 2], [_mm256_setzero_si256(); 2]);
    let mut pairs = data.chunks_exact(64);
    for pair in &mut pairs {
        for (i, block) in pair.as_chunks::<32>().0.iter().enumerate() {
            // SAFETY: the block has 32 bytes; the load asks for no alignment.
            let v = unsafe { _mm256_loadu_si256(block.as_ptr().cast()) };
            even[i] = _mm256_add_epi64(even[i], _mm256_and_si256(v, low));
            odd[i] = _mm256_add_epi64(odd[i], _mm256_srli_epi64(v, 32));
        }
    }
    if let Some(block) = pairs.remainder().first_chunk::<32>() {
        // SAFETY: as above.
        let v = unsafe { _mm256_loadu_si256(block.as_ptr().cast()) };
        even[0] = _mm256_add_epi64(even[0], _mm256_and_si256(v, low));
        odd[0] = _mm256_add_epi64(odd[0], _mm256_srli_epi64(v, 32));
    }
    let all = _mm256_add_epi64(_mm256_add_epi64(even[0], odd[0]), _mm256_add_epi64(even[1], odd[1]));
    let (a, b) = (_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    let both = _mm_add_epi64(a, b);
    // Each is far below 2^63.
    _mm_cvtsi128_si64(both) as u64 + _mm_extract_epi64(both, 1) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Folded to 16 bits, in host order.
    fn fold(mut sum: u64) -> u16 {
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        sum as u16
    }

    #[test]
    fn the_sum_is_that_of_the_words() {
        let mut seed = 1u64;
        let mut byte = || {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (seed >> 56) as u8
        };
        for len in (0..400).chain([1447, 1448, 1460, 65_535]) {
            for ones_only in [false, true] {
                let data: Vec<u8> = (0..len).map(|_| if ones_only { 0xff } else { byte() }).collect();
                let (sum, done) = ones(&data);
                assert!(done <= len && done.is_multiple_of(32) && (done == 0 || done + 32 > len));
                let words = data[..done].chunks_exact(2).map(|w| u16::from_ne_bytes([w[0], w[1]]) as u64).sum();
                // Zero has two forms.
                let same = |a: u16, b: u16| a == b || (a | b == 0xffff && a & b == 0);
                assert!(same(fold(sum), fold(words)), "{len}");
            }
        }
    }
}

//! CRC-32C of payloads.
//!
//! On a processor that multiplies wide vectors of polynomials, the library is fastest: 58 GB/s.
//! Other processors have one instruction for the checksum, which must wait for the one before it in
//! the same stream. Three interleaved streams hide that wait: 29 GB/s. Their checksums are then
//! shifted to their places and joined. (Gopal et al., Intel, 2011)

#[cfg(target_arch = "x86_64")]
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    let is_wide = is_x86_feature_detected!("avx512vl") && is_x86_feature_detected!("vpclmulqdq");
    let streamed = if is_wide || bytes.len() < streams::LEAST { None } else { streams::checksum(bytes) };
    streamed.unwrap_or_else(|| crc_fast::crc32_iscsi(bytes))
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use crc_fast::crc32_iscsi as crc32c;

#[cfg(target_arch = "x86_64")]
mod streams {
    use std::arch::x86_64::{_mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u64, _mm_cvtsi32_si128, _mm_cvtsi128_si64};

    /// For shorter payloads it does not pay to join three checksums.
    pub(super) const LEAST: usize = 1024;
    /// The polynomial. Bit d is the coefficient of xᵈ; that of x³² is left out.
    const POLYNOMIAL: u32 = 0x1edc_6f41;
    const WORD: usize = size_of::<u64>();

    /// Entry i shifts a checksum by 2ⁱ bytes, from 8 bytes on: x to the power of 2ⁱ⁺³, less the 33
    /// that a multiplication by instructions adds.
    const MOVES: [u32; 32] = {
        let (mut moves, mut i) = ([0; 32], WORD.trailing_zeros() as usize);
        while i < moves.len() {
            moves[i] = power((8 << i) - 33).reverse_bits();
            i += 1;
        }
        moves
    };

    /// Returns xⁿ modulo the polynomial.
    const fn power(mut n: u64) -> u32 {
        let (mut result, mut square) = (1, 2);
        while n > 0 {
            if n & 1 == 1 {
                result = product(result, square);
            }
            square = product(square, square);
            n >>= 1;
        }
        result
    }

    const fn product(one: u32, other: u32) -> u32 {
        let (mut sum, mut term, mut degree) = (0, one, 0);
        while degree < u32::BITS {
            if other >> degree & 1 == 1 {
                sum ^= term;
            }
            term = (term << 1) ^ if term >> 31 == 1 { POLYNOMIAL } else { 0 };
            degree += 1;
        }
        sum
    }

    /// Returns `None` if the processor lacks the instructions.
    #[allow(unsafe_code, reason = "instructions that only some processors have")]
    pub(super) fn checksum(bytes: &[u8]) -> Option<u32> {
        let has_instructions = is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq");
        // SAFETY: the processor has them.
        has_instructions.then(|| unsafe { crc32c(bytes) })
    }

    #[target_feature(enable = "sse4.2,pclmulqdq")]
    fn crc32c(bytes: &[u8]) -> u32 {
        let (words, rest) = bytes.as_chunks::<WORD>();
        let length = words.len() / 3;
        let (first, others) = words.split_at(length);
        let (second, others) = others.split_at(length);
        let (third, words) = others.split_at(length);
        let mut states = [u64::from(u32::MAX), 0, 0];
        for ((first, second), third) in first.iter().zip(second).zip(third) {
            states[0] = _mm_crc32_u64(states[0], u64::from_le_bytes(*first));
            states[1] = _mm_crc32_u64(states[1], u64::from_le_bytes(*second));
            states[2] = _mm_crc32_u64(states[2], u64::from_le_bytes(*third));
        }
        let [first, second, third] = states.map(|state| state as u32);
        let joined = moved(moved(first, length * WORD) ^ second, length * WORD) ^ third;
        let state = words.iter().fold(u64::from(joined), |state, word| _mm_crc32_u64(state, u64::from_le_bytes(*word)));
        !rest.iter().fold(state as u32, |state, byte| _mm_crc32_u8(state, *byte))
    }

    /// Returns the checksum of the same bytes followed by `bytes` zeros, a multiple of [`WORD`].
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    fn moved(mut state: u32, bytes: usize) -> u32 {
        let mut left = bytes;
        while left > 0 {
            let [state_, by] =
                [state, MOVES[left.trailing_zeros() as usize]].map(|word| _mm_cvtsi32_si128(word.cast_signed()));
            let product = _mm_cvtsi128_si64(_mm_clmulepi64_si128::<0>(state_, by));
            state = _mm_crc32_u64(0, product.cast_unsigned()) as u32;
            left &= left - 1;
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::MAX_PAYLOAD_BYTES;

    /// Computes the checksum bit by bit.
    fn reference(bytes: &[u8]) -> u32 {
        const REFLECTED: u32 = 0x82f6_3b78;
        let shifted = |state: u32| state >> 1 ^ if state & 1 == 1 { REFLECTED } else { 0 };
        !bytes.iter().fold(u32::MAX, |state, byte| (0..8).fold(state ^ u32::from(*byte), |state, _| shifted(state)))
    }

    fn random(seed: u64, length: usize) -> Vec<u8> {
        let mut random = seed | 1;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random as u8
        };
        (0..length).map(|_| next()).collect()
    }

    #[test]
    fn frames_of_any_length_match_the_reference() {
        for length in [200_003, 1 << 20, MAX_PAYLOAD_BYTES - 1, MAX_PAYLOAD_BYTES] {
            let bytes = random(7, length);
            let expected = reference(&bytes);
            assert_eq!(crc32c(&bytes), expected, "{length} bytes");
            #[cfg(target_arch = "x86_64")]
            assert_eq!(streams::checksum(&bytes).unwrap_or(expected), expected, "{length} bytes");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_match_the_reference_with_and_without_the_instructions(
            seed in any::<u64>(), length in prop_oneof![0_usize..4000, 120_000_usize..140_000], start in 0_usize..16
        ) {
            let bytes = random(seed, length + start);
            let (bytes, expected) = (&bytes[start..], reference(&bytes[start..]));
            prop_assert_eq!(crc32c(bytes), expected);
            #[cfg(target_arch = "x86_64")]
            prop_assert_eq!(streams::checksum(bytes).unwrap_or(expected), expected);
        }
    }

    /// The values come from RFC 3720, B.4.
    #[test]
    fn it_matches_the_values_of_the_standard() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}

//! The measurement that the workers of a job make that trains nothing.
//!
//! `kubectl explain` prints the doc comments of the fields. Each states the unit and the default.

use serde::{Deserialize, Serialize};

use crate::{ByteSize, InvalidField};

/// The measurement; exactly one is named.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Benchmark {
    /// Time of sums of f32 over all workers, by number of bytes and algorithm.
    Collectives(Collectives),
}

/// Sums over all workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Collectives {
    /// Bytes of the shortest sum, 4 to 1Gi: a number, or one with Ki, Mi or Gi. Each next size is
    /// four times as long. Default: 1Ki.
    pub min_bytes: ByteSize,
    /// Bytes that no sum exceeds, 4 to 1Gi: a number, or one with Ki, Mi or Gi. A worker's memory
    /// holds as many. Default: 64Mi.
    pub max_bytes: ByteSize,
    /// Most repetitions of each sum; the median counts. A slow sum is repeated for 5 seconds.
    /// Default: 20.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1000)))]
    pub repetitions: u32,
}

impl Default for Collectives {
    fn default() -> Self {
        Self { min_bytes: ByteSize::bytes(1 << 10), max_bytes: ByteSize::mebibytes(64), repetitions: 20 }
    }
}

impl Collectives {
    /// Returns the lengths of the sums in bytes, each a whole number of f32.
    pub fn sizes(&self) -> impl Iterator<Item = u64> {
        let most = self.max_bytes.get();
        let longer = move |bytes: &u64| bytes.checked_mul(4).filter(|bytes| *bytes <= most);
        std::iter::successors(Some(self.min_bytes.get()), longer).map(|bytes| bytes / 4 * 4)
    }

    pub(crate) fn check(&self) -> Result<(), InvalidField> {
        let Self { min_bytes, max_bytes, repetitions } = self;
        let possible = ByteSize::bytes(4)..=ByteSize::mebibytes(1024);
        for (field, size) in [("minBytes", min_bytes), ("maxBytes", max_bytes)] {
            if !possible.contains(size) {
                return Err(InvalidField::new(&format!("spec.benchmark.collectives.{field}"), size, "4 to 1Gi"));
            }
        }
        if min_bytes > max_bytes {
            let accepted = format!("no more than maxBytes, {max_bytes}");
            return Err(InvalidField::new("spec.benchmark.collectives.minBytes", min_bytes, accepted));
        }
        if !(1..=1000).contains(repetitions) {
            return Err(InvalidField::new("spec.benchmark.collectives.repetitions", repetitions, "1 to 1000"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(min_bytes: u64, max_bytes: u64) -> Collectives {
        let [min_bytes, max_bytes] = [min_bytes, max_bytes].map(ByteSize::bytes);
        Collectives { min_bytes, max_bytes, ..Collectives::default() }
    }

    #[test]
    fn each_size_is_four_times_the_last_and_holds_whole_numbers() {
        let cases = [
            (1024, 65_536, vec![1024, 4096, 16_384, 65_536]),
            (1024, 65_535, vec![1024, 4096, 16_384]),
            (1001, 5000, vec![1000, 4004]),
            (4, 4, vec![4]),
        ];
        for (least, most, sizes) in cases {
            assert_eq!(between(least, most).sizes().collect::<Vec<_>>(), sizes, "{least} to {most}");
        }
    }

    #[test]
    fn a_size_that_cannot_be_summed_is_refused_with_its_field() {
        let cases = [
            (3, 1024, "spec.benchmark.collectives.minBytes: 3: 4 to 1Gi"),
            (1024, (1 << 30) + 1, "spec.benchmark.collectives.maxBytes: 1073741825: 4 to 1Gi"),
            (4096, 1024, "spec.benchmark.collectives.minBytes: 4Ki: no more than maxBytes, 1Ki"),
        ];
        for (least, most, message) in cases {
            assert_eq!(between(least, most).check().expect_err(message).to_string(), message);
        }
    }
}

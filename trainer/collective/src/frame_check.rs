//! Compares a received frame with the expected one.

use crate::CollectiveError;
use crate::crc32c::crc32c;
use crate::frame::Header;

impl Header {
    /// Requires that this header, which came from `rank`, equals `expected`, except for the
    /// payload's checksum.
    ///
    /// # Errors
    /// [`CollectiveError::WrongFrame`], naming the first field that differs.
    pub fn require(&self, expected: &Self, rank: usize) -> Result<(), CollectiveError> {
        let wrong = |field, expected: String, found: String| CollectiveError::WrongFrame {
            rank,
            field,
            expected,
            found,
            at: None,
        };
        if self.kind != expected.kind {
            return Err(wrong("kind", format!("{:?}", expected.kind), format!("{:?}", self.kind)));
        }
        if self.job != expected.job {
            return Err(wrong("job", expected.job.to_string(), self.job.to_string()));
        }
        let numbers = [
            ("generation", expected.generation, self.generation),
            ("sender", expected.sender.into(), self.sender.into()),
            ("step", expected.step, self.step),
            ("bucket", expected.bucket.into(), self.bucket.into()),
            ("chunk", expected.chunk.into(), self.chunk.into()),
            ("length", expected.length.into(), self.length.into()),
        ];
        // A different operation explains a different chunk and length, so it comes first.
        let (which, place) = numbers.split_at(4);
        let differs = |numbers: &[(&'static str, u64, u64)]| numbers.iter().copied().find(|(_, a, b)| a != b);
        if let Some((field, expected, found)) = differs(which) {
            return Err(wrong(field, expected.to_string(), found.to_string()));
        }
        if self.operation != expected.operation {
            return Err(wrong("operation", expected.operation.to_string(), self.operation.to_string()));
        }
        match differs(place) {
            Some((field, expected, found)) => Err(wrong(field, expected.to_string(), found.to_string())),
            None => Ok(()),
        }
    }

    /// Requires that `payload`, which came from `rank`, matches the checksum.
    ///
    /// # Errors
    /// [`CollectiveError::WrongFrame`] if the checksum differs.
    pub fn require_payload(&self, payload: &[u8], rank: usize) -> Result<(), CollectiveError> {
        let computed = crc32c(payload);
        if computed == self.payload_crc32c {
            return Ok(());
        }
        Err(CollectiveError::WrongFrame {
            rank,
            field: "payload checksum",
            expected: format!("{:08x}", self.payload_crc32c),
            found: format!("{computed:08x}"),
            at: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frame::FrameKind;
    use crate::frame::tests::any_header;
    use crate::{JobId, OperationCode};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn two_headers_agree_only_when_every_field_does(one in any_header(), other in any_header()) {
            prop_assert!(one.require(&one, 3).is_ok());
            prop_assert_eq!(one.require(&other, 3).is_ok(), Header { payload_crc32c: other.payload_crc32c, ..one } == other);
        }
    }

    #[test]
    fn a_wrong_generation_is_named_with_the_expected_one() {
        let header = Header {
            kind: FrameKind::Data,
            operation: OperationCode::default(),
            job: JobId([0; 16]),
            generation: 6,
            step: 0,
            bucket: 0,
            chunk: 0,
            sender: 2,
            length: 0,
            payload_crc32c: 0,
        };
        let error = header.require(&Header { generation: 7, ..header }, 2).unwrap_err();
        assert_eq!(error.to_string(), "rank 2 sent a frame with generation 6, expected 7");
    }
}

//! One frame: a header of fixed size, little endian, then the payload.
//! ```text
//! 0 magic "LSF4" · 4 kind u8 · 5 operation [3] · 8 job [16] · 24 generation u64 · 32 step u64
//! 40 bucket u32 · 44 chunk u32 · 48 sender u32 · 52 length u32 · 56 crc32c of the payload
//! 60 crc32c of bytes 0..60
//! ```

use crate::algorithm::MAX_FRAME;
use crate::crc32c::crc32c;
use crate::element::MAX_ELEMENT_BYTES;
use crate::operation::OperationCode;
use crate::rank_id::JobId;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 64;
/// The longest payload that a frame may announce.
pub const MAX_PAYLOAD_BYTES: usize = MAX_FRAME * MAX_ELEMENT_BYTES;

/// The last byte is the version of the format.
const MAGIC: [u8; 4] = *b"LSF4";

/// The purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A rank asks another to accept the connection. The frame has no payload, and operation and
    /// step are zero. The bucket is the number of connections of the pair minus one, and the chunk
    /// is the index of this one. So it is in the other two kinds of the handshake.
    Hello,
    /// The other rank accepts.
    Welcome,
    /// The other rank refuses. Job, generation and sender are its own.
    Refusal,
    /// A part of an operation.
    Data,
    /// The rank leaves its group and names the cause in 44 bytes. The operation, step, bucket and
    /// chunk are zero.
    FailureNotice,
}

impl FrameKind {
    const ALL: [Self; 5] = [Self::Hello, Self::Welcome, Self::Refusal, Self::Data, Self::FailureNotice];

    const fn code(self) -> u8 {
        match self {
            Self::Hello => 1,
            Self::Welcome => 2,
            Self::Refusal => 3,
            Self::Data => 4,
            Self::FailureNotice => 5,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The purpose of the frame.
    pub kind: FrameKind,
    /// The operation that the frame belongs to.
    pub operation: OperationCode,
    /// The job, so that two jobs never mix.
    pub job: JobId,
    /// The generation of the sender.
    pub generation: u64,
    /// The training step.
    pub step: u64,
    /// The bucket of the step.
    pub bucket: u32,
    /// The number of frames that the sender sent to this receiver before, modulo 2³².
    pub chunk: u32,
    /// The rank that sent it.
    pub sender: u32,
    /// Bytes of the payload, at most [`MAX_PAYLOAD_BYTES`].
    pub length: u32,
    /// CRC-32C of the payload.
    pub payload_crc32c: u32,
}

/// The reason why bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Another protocol, or another version of this one.
    #[error("they begin with {found:02x?}, expected {MAGIC:02x?}; all ranks must run the same version")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// The header was damaged on its way.
    #[error("the header's checksum is {found:08x}, expected {expected:08x}")]
    Checksum {
        /// Computed from the header.
        expected: u32,
        /// Carried by the header.
        found: u32,
    },
    /// A kind that this version does not know.
    #[error("kind {found} is unknown; all ranks must run the same version")]
    Kind {
        /// Its code.
        found: u8,
    },
    /// A payload over the limit.
    #[error("a payload of {found} bytes is announced, the limit is {MAX_PAYLOAD_BYTES}")]
    Length {
        /// The bytes announced.
        found: u32,
    },
}

impl Header {
    /// Returns the bytes on the wire.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let Self { kind, operation, job, generation, step, bucket, chunk, sender, length, payload_crc32c } = *self;
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = kind.code();
        bytes[5..8].copy_from_slice(&operation.0);
        bytes[8..24].copy_from_slice(&job.0);
        bytes[24..32].copy_from_slice(&generation.to_le_bytes());
        bytes[32..40].copy_from_slice(&step.to_le_bytes());
        for (at, word) in [(40, bucket), (44, chunk), (48, sender), (52, length), (56, payload_crc32c)] {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        let checksum = crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a header. Never panics, whatever the bytes.
    ///
    /// # Errors
    /// If the bytes are no header of this version, or announce a payload over
    /// [`MAX_PAYLOAD_BYTES`].
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let magic = array(bytes, 0);
        if magic != MAGIC {
            return Err(FrameError::Magic { found: magic });
        }
        let word = |at| u32::from_le_bytes(array(bytes, at));
        let expected = crc32c(&bytes[..60]);
        if word(60) != expected {
            return Err(FrameError::Checksum { expected, found: word(60) });
        }
        let kind = FrameKind::from_code(bytes[4]).ok_or(FrameError::Kind { found: bytes[4] })?;
        if word(52) as usize > MAX_PAYLOAD_BYTES {
            return Err(FrameError::Length { found: word(52) });
        }
        Ok(Self {
            kind,
            operation: OperationCode(array(bytes, 5)),
            job: JobId(array(bytes, 8)),
            generation: u64::from_le_bytes(array(bytes, 24)),
            step: u64::from_le_bytes(array(bytes, 32)),
            bucket: word(40),
            chunk: word(44),
            sender: word(48),
            length: word(52),
            payload_crc32c: word(56),
        })
    }
}

fn array<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn any_header() -> impl Strategy<Value = Header> {
        let kind = prop::sample::select(FrameKind::ALL.to_vec());
        (
            kind,
            any::<[u8; 3]>(),
            any::<[u8; 16]>(),
            any::<(u64, u64)>(),
            any::<[u32; 4]>(),
            0..=MAX_PAYLOAD_BYTES as u32,
        )
            .prop_map(
                |(kind, operation, job, (generation, step), [bucket, chunk, sender, payload_crc32c], length)| Header {
                    kind,
                    operation: OperationCode(operation),
                    job: JobId(job),
                    generation,
                    step,
                    bucket,
                    chunk,
                    sender,
                    length,
                    payload_crc32c,
                },
            )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn a_header_reads_back_as_it_was_written(header in any_header()) {
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn a_header_with_one_damaged_byte_is_refused(header in any_header(), at in 0..HEADER_BYTES, damage in 1u8..) {
            let mut bytes = header.encode();
            bytes[at] ^= damage;
            prop_assert!(Header::decode(&bytes).is_err());
        }

        #[test]
        fn any_bytes_decode_to_a_bounded_header_or_an_error(bytes in any::<[u8; HEADER_BYTES]>(), whole in any::<bool>()) {
            let mut bytes = bytes;
            if whole {
                // Passes the magic and the checksum, so that the fields themselves are tested.
                bytes[..4].copy_from_slice(&MAGIC);
                let checksum = crc32c(&bytes[..60]);
                bytes[60..].copy_from_slice(&checksum.to_le_bytes());
            }
            if let Ok(header) = Header::decode(&bytes) {
                prop_assert!(header.length as usize <= MAX_PAYLOAD_BYTES);
                prop_assert_eq!(header.encode(), bytes);
            }
        }
    }

    #[test]
    fn the_wire_format_is_pinned() {
        let header = Header {
            kind: FrameKind::Data,
            operation: OperationCode([8, 1, 0]),
            job: JobId([0xab; 16]),
            generation: 7,
            step: 300,
            bucket: 2,
            chunk: 9,
            sender: 1,
            length: 4096,
            payload_crc32c: crc32c(b"123456789"),
        };
        let bytes = header.encode();
        assert_eq!(&bytes[..8], b"LSF4\x04\x08\x01\0");
        assert_eq!(
            &bytes[24..60],
            b"\x07\0\0\0\0\0\0\0\x2c\x01\0\0\0\0\0\0\x02\0\0\0\x09\0\0\0\x01\0\0\0\0\x10\0\0\x83\x92\x06\xe3"
        );
    }
}

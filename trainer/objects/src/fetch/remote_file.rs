//! A file at a place, and its bytes.

use futures::stream::BoxStream;

use super::error::Trouble;

/// A file at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemoteFile {
    /// Its path below the data set's folder.
    pub(super) name: String,
    /// Its key, or its address.
    pub(super) at: String,
    /// Its length, if that is known.
    pub(super) bytes: Option<u64>,
    /// The source's mark of its version, if it has one: an entity tag.
    pub(super) mark: Option<String>,
    /// The SHA-256 checksum of its content in lower-case hexadecimal, if that is known.
    pub(super) sha256: Option<String>,
}

impl RemoteFile {
    /// Returns a text that tells this version of the file from others.
    pub(super) fn version(&self) -> String {
        let Self { name: _, at: _, bytes, mark, sha256 } = self;
        match (sha256, mark) {
            (Some(sum), _) => format!("sha256 {sum}"),
            (None, Some(mark)) => format!("{} bytes {mark}", bytes.unwrap_or_default()),
            (None, None) => format!("{} bytes", bytes.unwrap_or_default()),
        }
    }
}

/// The bytes of a file.
pub(super) struct Body {
    /// The number of the first byte that comes.
    pub(super) start: u64,
    /// The length of the whole file, if that is known.
    pub(super) whole: Option<u64>,
    pub(super) chunks: BoxStream<'static, Result<Vec<u8>, Trouble>>,
}

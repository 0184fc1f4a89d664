/// The version of the checkpoint format that this program writes and reads. The manifest of every
/// version ends in its digest.
pub(crate) const FORMAT_VERSION: u64 = 2;

/// The name of a checkpoint's manifest.
pub(crate) const MANIFEST: &str = "manifest.json";

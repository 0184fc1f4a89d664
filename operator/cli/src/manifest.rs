//! Manifest files.

use std::{fs, path::Path};

use anyhow::{Context, anyhow};
use lockstep_launch::InvalidField;
use serde_json::Value;

/// Longest manifest that is read. Kubernetes refuses objects of more than 1.5 MiB.
const MAX_BYTES: u64 = 2 << 20;

/// Reads the text of a manifest.
pub(crate) fn read(path: &Path) -> anyhow::Result<String> {
    let attempt = || format!("read the manifest {}", path.display());
    let length = fs::metadata(path).with_context(attempt)?.len();
    if length > MAX_BYTES {
        return Err(anyhow!("{length} bytes; at most {MAX_BYTES} are accepted")).with_context(attempt);
    }
    fs::read_to_string(path).with_context(attempt)
}

/// Writes `value` as a manifest.
pub(crate) fn write(value: &Value) -> anyhow::Result<String> {
    serde_saphyr::to_string(value).context("write the manifest")
}

/// Returns the problems of a manifest as one error, with a line for each.
pub(crate) fn refused(path: &Path, fields: &[InvalidField]) -> anyhow::Error {
    let lines: Vec<_> = fields.iter().map(|field| format!("{}: {field}", path.display())).collect();
    anyhow!(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_looks_like_another_type_reads_back_as_a_text() {
        for text in [
            "yes",
            "On",
            "n",
            "010",
            "0o17",
            "1_000",
            "7e2",
            "1.0",
            "1:30",
            "null",
            "~",
            "",
            ".inf",
            "---",
            "2021-01-01",
        ] {
            let value = serde_json::json!({"metadata": {"labels": {"team": text}}});
            let written = write(&value).expect("written");
            assert_eq!(lockstep_api::manifest::parse(&written), Ok(value), "{written}");
        }
    }
}

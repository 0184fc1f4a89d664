//! The files that a dynamically linked binary needs.

use std::{collections::BTreeSet, path::Path, process::Command};

use anyhow::{Context as _, bail};

/// Returns the absolute paths of the dynamic loader and the libraries that a binary names, as `ldd`
/// finds them.
pub(super) fn of(binary: &Path) -> anyhow::Result<BTreeSet<String>> {
    let output = Command::new("ldd").arg(binary).output().context("starting ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("ldd {}: {}{}", binary.display(), text.trim(), String::from_utf8_lossy(&output.stderr).trim());
    }
    if let Some(missing) = text.lines().find(|line| line.contains("not found")) {
        bail!("{} needs a library that is missing here: {}", binary.display(), missing.trim());
    }
    Ok(text.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned).collect())
}

/// Returns true if a program names a loader: a segment of type PT_INTERP in its 64-bit
/// little-endian ELF header.
pub(super) fn is_dynamic(program: &[u8]) -> bool {
    const INTERPRETER: u32 = 3;
    let number = |offset: usize, bytes: usize| -> Option<u64> {
        let field = program.get(offset..offset + bytes)?;
        Some(field.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    let segments = || Some((number(32, 8)? as usize, number(54, 2)? as usize, number(56, 2)? as usize));
    let Some((start, size, count)) = segments() else { return false };
    (0..count).any(|index| number(start + index * size, 4) == Some(u64::from(INTERPRETER)))
}

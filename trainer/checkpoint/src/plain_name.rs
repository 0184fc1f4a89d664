/// The longest token of a probe.
pub(crate) const MAX_TOKEN_BYTES: usize = 128;

/// True for a name of letters, digits, `-`, `_` and `.` that does not start with a dot. Such a name
/// stays inside its folder.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=255).contains(&name.len()) && !name.starts_with('.') && name.chars().all(plain)
}

/// A field whose value cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {value}: {accepted}")]
pub struct InvalidField {
    /// Path of the field, as `spec.training.epochs`.
    pub field: String,
    /// What was given.
    pub value: String,
    /// What would be accepted and, where that is not plain, what to do.
    pub accepted: String,
}

impl InvalidField {
    /// `field` holds `value`, which is not what is `accepted`.
    pub fn new(field: &str, value: impl ToString, accepted: impl ToString) -> Self {
        Self { field: field.to_owned(), value: value.to_string(), accepted: accepted.to_string() }
    }
}

/// A field with a value that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {value}: {accepted}")]
pub struct InvalidField {
    /// Path of the field, such as `spec.training.epochs`.
    pub field: String,
    /// Value that was given.
    pub value: String,
    /// Accepted values, with the remedy if that is not plain.
    pub accepted: String,
}

impl InvalidField {
    /// Refuses `value` in `field`, and says what is `accepted`.
    pub fn new(field: &str, value: impl ToString, accepted: impl ToString) -> Self {
        Self { field: field.to_owned(), value: value.to_string(), accepted: accepted.to_string() }
    }
}

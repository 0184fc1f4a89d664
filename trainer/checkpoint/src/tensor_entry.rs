use serde::{Deserialize, Serialize};

pub(crate) const F32: &str = "F32";

/// One tensor in a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TensorEntry {
    pub(crate) name: String,
    pub(crate) role: TensorRole,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TensorRole {
    Weight,
    Slot,
}

impl TensorEntry {
    pub(crate) fn of(name: &str, shape: &[usize], role: TensorRole) -> Self {
        Self { name: name.to_owned(), role, shape: shape.to_vec(), dtype: F32.to_owned() }
    }

    /// Returns the number of elements, or `None` if no memory could hold them.
    pub(crate) fn elements(&self) -> Option<usize> {
        let elements = self.shape.iter().try_fold(1_usize, |product, length| product.checked_mul(*length));
        elements.filter(|elements| elements.checked_mul(4).is_some())
    }
}

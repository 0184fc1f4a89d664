//! Types of the elements that memory holds.

/// The type of a buffer's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// The upper half of an f32.
    Bf16,
    /// IEEE 754 binary16.
    F16,
    /// Bytes, such as pixels.
    U8,
    /// Whole numbers with a sign.
    I32,
    /// Whole numbers, such as labels.
    U32,
}

impl DType {
    /// Every type.
    pub const ALL: [DType; 6] = [DType::F32, DType::Bf16, DType::F16, DType::U8, DType::I32, DType::U32];

    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::Bf16 | DType::F16 => 2,
            DType::U8 => 1,
        }
    }

    /// The name that safetensors and checkpoints use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "F32",
            DType::Bf16 => "BF16",
            DType::F16 => "F16",
            DType::U8 => "U8",
            DType::I32 => "I32",
            DType::U32 => "U32",
        }
    }

    /// The type of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.name() == name)
    }
}

/// A Rust type that shows the elements of a buffer.
pub trait Element: bytemuck::Pod + Send {
    /// True if a buffer of this type holds such elements.
    fn shows(dtype: DType) -> bool;
}

impl Element for f32 {
    fn shows(dtype: DType) -> bool {
        dtype == DType::F32
    }
}

/// The bits of a 16-bit float.
impl Element for u16 {
    fn shows(dtype: DType) -> bool {
        matches!(dtype, DType::Bf16 | DType::F16)
    }
}

impl Element for u8 {
    fn shows(dtype: DType) -> bool {
        dtype == DType::U8
    }
}

impl Element for i32 {
    fn shows(dtype: DType) -> bool {
        dtype == DType::I32
    }
}

impl Element for u32 {
    fn shows(dtype: DType) -> bool {
        dtype == DType::U32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_found_by_its_name() {
        assert!(DType::ALL.into_iter().all(|dtype| DType::named(dtype.name()) == Some(dtype)));
    }
}

/// Size of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Values per pixel: 1 for grey, 3 for red, green and blue.
    pub channels: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl Shape {
    /// Values of one sample; bytes if a value is a byte.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.channels * self.height * self.width
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { channels, height, width } = self;
        write!(f, "{channels}×{height}×{width}")
    }
}

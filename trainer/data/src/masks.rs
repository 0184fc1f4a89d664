//! A class for each pixel of samples: what their masks hold, in memory.

use crate::{Shape, augment::View};

/// A class for each pixel of each sample.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Masks {
    /// Sample × row × column.
    classes: Vec<u8>,
    /// Rows and columns of a sample.
    size: (usize, usize),
    /// The value of pixels that do not count.
    ignored: u8,
}

impl Masks {
    /// Takes the classes of whole samples.
    ///
    /// # Panics
    /// When the last sample is not whole.
    pub(crate) fn new(classes: Vec<u8>, size: (usize, usize), ignored: u8) -> Self {
        assert!(classes.len().is_multiple_of(size.0 * size.1), "{} pixels of samples of {size:?}", classes.len());
        Self { classes, size, ignored }
    }

    /// Number of samples.
    pub(crate) const fn len(&self) -> usize {
        self.classes.len() / self.pixels()
    }

    /// Pixels of a sample.
    pub(crate) const fn pixels(&self) -> usize {
        self.size.0 * self.size.1
    }

    /// The value of pixels that do not count.
    pub(crate) const fn ignored(&self) -> u8 {
        self.ignored
    }

    /// The bytes of all samples.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.classes
    }

    /// The classes of a sample as it is, row by row.
    pub(crate) fn of(&self, sample: usize) -> &[u8] {
        &self.classes[sample * self.pixels()..(sample + 1) * self.pixels()]
    }

    /// Calls `take` with the classes of a sample in a view, row by row. A pixel of another size has
    /// the class at its centre. One outside the picture does not count.
    pub(crate) fn viewed(&self, sample: usize, view: &View, take: impl FnMut(u8)) {
        let (height, width) = self.size;
        nearest(self.of(sample), self.size, view, Shape { channels: 1, height, width }, self.ignored, take);
    }

    /// Keeps the first samples, and returns those from `kept` on.
    pub(crate) fn split_off(&mut self, kept: usize) -> Self {
        let pixels = self.pixels();
        Self { classes: self.classes.split_off(kept * pixels), ..*self }
    }
}

/// Calls `take` with the class of each pixel of a view of a mask, resized to `shape`.
pub(crate) fn nearest(
    mask: &[u8],
    (height, width): (usize, usize),
    view: &View,
    shape: Shape,
    outside: u8,
    mut take: impl FnMut(u8),
) {
    assert_eq!(mask.len(), height * width, "a mask's pixels");
    let View { region, shift: (down, right), mirrored } = *view;
    let source = |to: usize, shift: i32, size: usize, first: usize, length: usize| {
        let from = to as i64 + i64::from(shift);
        // The centre of the target pixel, (from + ½)·length/size, in whole numbers.
        (0..size as i64).contains(&from).then(|| first + (2 * from as usize + 1) * length / (2 * size))
    };
    for row in 0..shape.height {
        let from_row = source(row, down, shape.height, region.top, region.height);
        for column in 0..shape.width {
            let column = if mirrored { shape.width - 1 - column } else { column };
            let from_column = source(column, right, shape.width, region.left, region.width);
            take(match (from_row, from_column) {
                (Some(row), Some(column)) => mask[row * width + column],
                (_, _) => outside,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::augment::Region;

    fn viewed(view: View) -> Vec<u8> {
        let (mut classes, masks) = (Vec::new(), Masks::new((1..=16).collect(), (4, 4), 255));
        masks.viewed(0, &view, |class| classes.push(class));
        classes
    }

    #[test]
    fn a_view_is_cut_out_enlarged_shifted_and_mirrored_like_its_picture() {
        let whole = Region { top: 0, left: 0, height: 4, width: 4 };
        let at = |region, shift, mirrored| viewed(View { region, shift, mirrored });
        assert_eq!(at(whole, (0, 0), false), (1..=16).collect::<Vec<_>>());
        assert_eq!(at(whole, (0, 0), true)[..4], [4, 3, 2, 1]);
        assert_eq!(at(whole, (1, -1), false)[..8], [255, 5, 6, 7, 255, 9, 10, 11]);
        assert_eq!(at(whole, (1, -1), true)[..4], [7, 6, 5, 255]);
        let part = Region { top: 1, left: 2, height: 2, width: 2 };
        assert_eq!(at(part, (0, 0), false), [7, 7, 8, 8, 7, 7, 8, 8, 11, 11, 12, 12, 11, 11, 12, 12]);
    }
}

//! Charts as values, and three ways to draw them: SVG, PNG, and characters in a terminal.

mod braille;
mod png;
mod scale;
mod svg;

pub(crate) use self::{
    braille::{symbol, text},
    png::png,
    scale::Unit,
    svg::{COLOURS, figure, inline},
};

/// A chart: lines over one horizontal axis, with marks on it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chart {
    pub title: &'static str,
    /// The unit of the vertical axis.
    pub unit: Unit,
    /// The unit of the horizontal axis.
    pub across: Unit,
    pub lines: Vec<Line>,
    pub marks: Vec<Mark>,
    /// True if the vertical axis begins at 0.
    pub from_zero: bool,
    /// The least and the greatest value of the horizontal axis, if not those of the points.
    pub span: Option<(f64, f64)>,
}

/// A line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    pub name: String,
    /// The number of its colour.
    pub colour: usize,
    pub shape: Shape,
    /// Pieces of the line, each from left to right. Nothing is drawn between two pieces.
    pub pieces: Vec<Vec<(f64, f64)>>,
}

/// The way in which the points of a line are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Solid,
    Dashed,
    /// Each value holds until the next point.
    Steps,
    /// A dot at each point, on a solid line.
    Dots,
}

/// A moment that a chart marks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mark {
    pub x: f64,
    pub kind: MarkKind,
    /// The sentence that a browser shows for it.
    pub text: String,
}

/// The kind of a change of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkKind {
    Lost,
    Left,
    Joined,
    /// The group formed again, and nobody came or went.
    Regrouped,
}

impl MarkKind {
    pub(crate) const ALL: [Self; 4] = [Self::Lost, Self::Left, Self::Joined, Self::Regrouped];

    /// Returns what happened.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Lost => "a worker was lost",
            Self::Left => "a worker left",
            Self::Joined => "a worker joined",
            Self::Regrouped => "the group formed again",
        }
    }

    /// Returns the name of its class in an SVG.
    pub(crate) const fn class(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Left => "left",
            Self::Joined => "joined",
            Self::Regrouped => "regrouped",
        }
    }
}

/// The greatest and the least value of each axis.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bounds {
    x: (f64, f64),
    y: (f64, f64),
}

impl Chart {
    /// Returns the bounds of all points, or `None` if there are none.
    fn bounds(&self) -> Option<Bounds> {
        let points = || self.lines.iter().flat_map(|line| line.pieces.iter().flatten());
        let least_and_most = |values: &mut dyn Iterator<Item = f64>| {
            values.fold(None, |found, value| {
                let (least, most) = found.unwrap_or((value, value));
                Some((f64::min(least, value), f64::max(most, value)))
            })
        };
        let x = least_and_most(&mut points().map(|(x, _)| *x))?;
        let x = self.span.unwrap_or(x);
        let (least, most) = least_and_most(&mut points().map(|(_, y)| *y))?;
        let least = if self.from_zero { least.min(0.0) } else { least };
        let spread = |(least, most): (f64, f64)| match most > least {
            true => (least, most),
            false => (least, least + if least == 0.0 { 1.0 } else { least.abs() * 0.1 }),
        };
        Some(Bounds { x: spread(x), y: spread((least, most)) })
    }

    /// Returns the marks that lie between the first and the last point.
    fn visible_marks(&self, bounds: Bounds) -> impl Iterator<Item = &Mark> {
        self.marks.iter().filter(move |mark| (bounds.x.0..=bounds.x.1).contains(&mark.x))
    }
}

/// Returns the corners of a piece as it is drawn.
fn corners(shape: Shape, piece: &[(f64, f64)]) -> Vec<(f64, f64)> {
    match shape {
        Shape::Solid | Shape::Dashed | Shape::Dots => piece.to_vec(),
        Shape::Steps => {
            let mut corners = Vec::with_capacity(2 * piece.len());
            for (x, y) in piece {
                if let Some((_, before)) = corners.last().copied() {
                    corners.push((*x, before));
                }
                corners.push((*x, *y));
            }
            corners
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_holds_until_the_next_point_of_a_line_in_steps() {
        let piece = [(0.0, 2.0), (5.0, 1.0)];
        assert_eq!(corners(Shape::Steps, &piece), [(0.0, 2.0), (5.0, 2.0), (5.0, 1.0)]);
        assert_eq!(corners(Shape::Solid, &piece), piece);
    }

    #[test]
    fn equal_values_get_an_axis_all_the_same() {
        let line = Line { name: "a".into(), colour: 0, shape: Shape::Solid, pieces: vec![vec![(3.0, 2.0)]] };
        let chart = |from_zero, lines| Chart {
            title: "t",
            unit: Unit::Plain,
            across: Unit::Count,
            lines,
            marks: Vec::new(),
            from_zero,
            span: None,
        };
        let bounds = chart(false, vec![line.clone()]).bounds().expect("a point");
        assert!(bounds.x.1 > bounds.x.0 && bounds.y.1 > bounds.y.0, "{bounds:?}");
        assert_eq!(chart(true, vec![line]).bounds().map(|bounds| bounds.y), Some((0.0, 2.0)));
        assert_eq!(chart(true, Vec::new()).bounds(), None);
    }
}

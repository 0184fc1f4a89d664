//! Charts in a terminal: a character of Braille holds two by four dots.

use super::{Bounds, Chart, MarkKind, Unit, corners};

/// Codes of the terminal's colours for lines.
const COLOURS: [&str; 6] = ["36", "33", "32", "35", "31", "34"];
const BOLD: &str = "1";
/// The bits of a Braille character, by row and column of its dots.
const DOTS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];
/// Rows of a chart without its title and the two rows of its axis.
const ROWS: usize = 8;
/// The least width of a chart beside another one.
const LEAST: usize = 36;
const SPACE: &str = "  ";

/// Draws charts for a terminal of so many columns, with its colours or without.
pub(crate) fn text(charts: &[Chart], columns: usize, colours: bool) -> String {
    let beside = if columns >= 2 * LEAST + SPACE.len() { 2 } else { 1 };
    let width = ((columns - (beside - 1) * SPACE.len()) / beside).max(LEAST);
    let mut text = String::new();
    for row in charts.chunks(beside) {
        let drawn: Vec<Vec<String>> = row.iter().map(|chart| drawing(chart, width, colours)).collect();
        for line in 0..drawn.iter().map(Vec::len).max().unwrap_or(0) {
            let pieces: Vec<&str> = drawn.iter().filter_map(|lines| lines.get(line)).map(String::as_str).collect();
            text.push_str(pieces.join(SPACE).trim_end());
            text.push('\n');
        }
    }
    text
}

/// Returns the sample of a line's colour for a legend.
fn coloured(text: &str, colour: usize, colours: bool) -> String {
    painted(text, COLOURS[colour % COLOURS.len()], colours)
}

fn painted(text: &str, code: &str, colours: bool) -> String {
    if colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Returns the lines of a chart, each `width` columns wide.
fn drawing(chart: &Chart, width: usize, colours: bool) -> Vec<String> {
    let Some(bounds) = chart.bounds() else {
        let lines = [chart.title, "no values are known"];
        return lines.iter().map(|line| format!("{line:<width$}")).collect();
    };
    let (least, most) = bounds.y;
    let labels = [most, (least + most) / 2.0, least].map(|value| chart.unit.write(value));
    let margin = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0);
    let across = width.saturating_sub(margin + 1).max(1);
    let canvas = Canvas::of(chart, bounds, across);
    let label = |row: usize| match row {
        0 => &labels[0],
        row if row == ROWS / 2 => &labels[1],
        row if row == ROWS - 1 => &labels[2],
        _ => "",
    };
    let mut lines = vec![title(chart, width, colours)];
    lines.extend((0..ROWS).map(|row| format!("{:>margin$}│{}", label(row), canvas.row(row, colours))));
    lines.push(format!("{:>margin$}└{}", "", axis(chart, bounds, across, colours)));
    let ends = [bounds.x.0, bounds.x.1].map(|value| chart.across.write(value));
    let word = if chart.across == Unit::Time { "time" } else { "step" };
    let room = across.saturating_sub(ends[0].len() + ends[1].len());
    lines.push(format!("{:>margin$} {}{word:^room$}{}", "", ends[0], ends[1]));
    lines
}

/// Returns the title, and the names of the lines in their colours as far as there is room.
fn title(chart: &Chart, width: usize, colours: bool) -> String {
    let (mut text, mut used) = (painted(chart.title, BOLD, colours), chart.title.chars().count());
    for line in chart.lines.iter().filter(|line| !line.name.is_empty()) {
        let length = line.name.chars().count() + 1;
        if used + length > width {
            break;
        }
        text.push(' ');
        text.push_str(&coloured(&line.name, line.colour, colours));
        used += length;
    }
    text + &" ".repeat(width.saturating_sub(used))
}

/// Returns the horizontal axis with a mark at each change of the group.
fn axis(chart: &Chart, bounds: Bounds, across: usize, colours: bool) -> String {
    let mut marks = vec![None; across];
    for mark in chart.visible_marks(bounds) {
        let place = share(mark.x, bounds.x) * (across - 1) as f64;
        marks[place.round() as usize] = Some(mark.kind);
    }
    let drawn = marks.into_iter().map(|mark| match mark {
        None => "─".to_owned(),
        Some(kind) => painted(symbol(kind), code(kind), colours),
    });
    drawn.collect()
}

/// Returns the sign for a change of the group.
pub(crate) const fn symbol(kind: MarkKind) -> &'static str {
    match kind {
        MarkKind::Lost => "✗",
        MarkKind::Left => "▼",
        MarkKind::Joined => "▲",
        MarkKind::Regrouped => "◆",
    }
}

const fn code(kind: MarkKind) -> &'static str {
    match kind {
        MarkKind::Lost => "31",
        MarkKind::Left => "33",
        MarkKind::Joined => "32",
        MarkKind::Regrouped => "34",
    }
}

/// Returns the place of a value between two bounds, 0 to 1.
fn share(value: f64, (least, most): (f64, f64)) -> f64 {
    ((value - least) / (most - least)).clamp(0.0, 1.0)
}

/// Dots with a colour for each character.
struct Canvas {
    across: usize,
    dots: Vec<u8>,
    colours: Vec<usize>,
}

impl Canvas {
    fn of(chart: &Chart, bounds: Bounds, across: usize) -> Self {
        let mut canvas = Self { across, dots: vec![0; across * ROWS], colours: vec![0; across * ROWS] };
        let place = |(x, y): (f64, f64)| {
            let down = 1.0 - share(y, bounds.y);
            (share(x, bounds.x) * (2 * across - 1) as f64, down * (4 * ROWS - 1) as f64)
        };
        for line in &chart.lines {
            for piece in &line.pieces {
                let corners: Vec<_> = corners(line.shape, piece).into_iter().map(place).collect();
                corners.iter().for_each(|point| canvas.set(*point, line.colour));
                corners.windows(2).for_each(|ends| canvas.stroke(ends[0], ends[1], line.colour));
            }
        }
        canvas
    }

    fn stroke(&mut self, from: (f64, f64), to: (f64, f64), colour: usize) {
        let (across, down) = (to.0 - from.0, to.1 - from.1);
        let dots = across.abs().max(down.abs()).ceil().max(1.0);
        for dot in 0..=dots as usize {
            let share = dot as f64 / dots;
            self.set((from.0 + share * across, from.1 + share * down), colour);
        }
    }

    fn set(&mut self, (x, y): (f64, f64), colour: usize) {
        let (x, y) = (x.round() as usize, y.round() as usize);
        let cell = y / 4 * self.across + x / 2;
        self.dots[cell] |= DOTS[y % 4][x % 2];
        self.colours[cell] = colour;
    }

    fn row(&self, row: usize, colours: bool) -> String {
        let cells = row * self.across..(row + 1) * self.across;
        let drawn = cells.map(|cell| match self.dots[cell] {
            0 => " ".to_owned(),
            dots => {
                let character = char::from_u32(0x2800 + u32::from(dots)).unwrap_or(' ').to_string();
                coloured(&character, self.colours[cell], colours)
            }
        });
        drawn.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Line, Mark, Shape},
        *,
    };

    fn chart() -> Chart {
        let line = Line {
            name: "training".to_owned(),
            colour: 0,
            shape: Shape::Solid,
            pieces: vec![vec![(0.0, 4.0), (100.0, 0.0)]],
        };
        let mark = Mark { x: 100.0, kind: MarkKind::Lost, text: String::new() };
        Chart {
            title: "loss",
            unit: Unit::Plain,
            across: Unit::Count,
            lines: vec![line],
            marks: vec![mark],
            from_zero: true,
            span: None,
        }
    }

    #[test]
    fn a_falling_line_falls_from_the_first_row_to_the_last() {
        let drawn = drawing(&chart(), LEAST, false);
        assert_eq!(drawn.len(), ROWS + 3);
        assert!(drawn.iter().all(|line| line.chars().count() == LEAST), "{drawn:#?}");
        assert!(drawn[0].starts_with("loss training"), "{}", drawn[0]);
        assert!(drawn[1].starts_with("4│⠉⠒"), "{}", drawn[1]);
        assert!(drawn[ROWS].starts_with("0│") && drawn[ROWS].ends_with('⣀'), "{}", drawn[ROWS]);
        assert!(drawn[ROWS + 1].ends_with('✗'), "{}", drawn[ROWS + 1]);
        assert!(drawn[ROWS + 2].ends_with("100"), "{}", drawn[ROWS + 2]);
    }

    #[test]
    fn a_loss_that_explodes_leaves_room_for_its_curve() {
        let mut chart = chart();
        chart.lines[0].pieces = vec![vec![(0.0, 1.0), (100.0, 3e38)]];
        let drawn = drawing(&chart, LEAST, false);
        assert!(drawn[1].starts_with("3.0e38│"), "{}", drawn[1]);
        assert!(drawn.iter().all(|line| line.chars().count() == LEAST), "{drawn:#?}");
    }

    #[test]
    fn charts_stand_beside_each_other_where_there_is_room() {
        let charts = [chart(), chart()];
        assert_eq!(text(&charts, 80, false).lines().count(), ROWS + 3);
        assert_eq!(text(&charts, 60, false).lines().count(), 2 * (ROWS + 3));
        assert!(!text(&charts, 80, false).contains('\x1b') && text(&charts, 80, true).contains('\x1b'));
    }
}

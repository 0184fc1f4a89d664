//! Charts as SVG, for a page or for a file of their own.

use std::fmt::Write as _;

use maud::{Markup, PreEscaped, html};

use super::{Bounds, Chart, Line, Mark, Shape, Unit, corners};

/// The number of colours of lines: the classes `line-0`, `line-1` and so on.
pub(crate) const COLOURS: usize = 6;
/// The style of a file of its own. A page has its own style for the same classes.
const STYLE: &str = "\
text{font-family:'DejaVu Sans',Helvetica,Arial,sans-serif;font-size:11px;fill:#57606a}\
.title{font-size:13px;font-weight:bold;fill:#1f2328}\
.name{fill:#1f2328}\
.paper{fill:#ffffff}\
.grid{stroke:#d8dee4;stroke-width:1}\
.axis{fill:none;stroke:#8c959f;stroke-width:1}\
.line{fill:none;stroke-width:1.6;stroke-linejoin:round}\
.mark{stroke-width:1;stroke-dasharray:3 3;opacity:0.8}\
.line-0{stroke:#1f6feb}.line-1{stroke:#d4720b}.line-2{stroke:#1a7f37}\
.line-3{stroke:#8250df}.line-4{stroke:#bf3989}.line-5{stroke:#1b7c83}\
.dot-0{fill:#1f6feb}.dot-1{fill:#d4720b}.dot-2{fill:#1a7f37}\
.dot-3{fill:#8250df}.dot-4{fill:#bf3989}.dot-5{fill:#1b7c83}\
.mark-lost{stroke:#cf222e}.mark-left{stroke:#9a6700}.mark-joined{stroke:#1a7f37}\
.mark-regrouped{stroke:#1f6feb}";

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 14.0;
const BOTTOM: f64 = 34.0;
/// The height of a title, and of each row of names under it.
const ROW: f64 = 20.0;
/// About the width of a character of a name.
const LETTER: f64 = 6.6;
/// The width of the sample of a line before its name, with the space around it.
const SAMPLE: f64 = 30.0;

/// Returns a file with all charts, two beside each other, under a title.
pub(crate) fn figure(title: &str, charts: &[Chart]) -> String {
    let rows = charts.len().div_ceil(2) as f64;
    let (width, height) = (2.0 * WIDTH, rows * HEIGHT + 2.0 * ROW);
    let place = |index: usize| {
        let (x, y) = ((index % 2) as f64 * WIDTH, (index / 2) as f64 * HEIGHT + 1.5 * ROW);
        format!("translate({x} {y})")
    };
    let svg = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {width} {height}")) width=(width) height=(height) {
            style { (PreEscaped(STYLE)) }
            rect class="paper" width=(width) height=(height) {}
            text class="title" x="14" y="20" { (title) }
            @for (index, chart) in charts.iter().enumerate() {
                g transform=(place(index)) { (drawing(chart)) }
            }
        }
    };
    svg.into_string()
}

/// Returns a chart for a page, which has the style.
pub(crate) fn inline(chart: &Chart) -> Markup {
    html! {
        svg class="chart" role="img" aria-label=(chart.title) viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) { (drawing(chart)) }
    }
}

fn drawing(chart: &Chart) -> Markup {
    let names = names(&chart.lines);
    let top = ROW + names.last().map_or(ROW, |(_, y, _)| y + 8.0);
    let Some(bounds) = chart.bounds() else {
        return html! {
            text class="title" x="14" y="16" { (chart.title) }
            text x=(LEFT) y=(HEIGHT / 2.0) { "no values are known" }
        };
    };
    let place = Place { bounds: roomy(chart, bounds), top };
    html! {
        text class="title" x="14" y="16" { (chart.title) }
        @for (x, y, line) in &names { (name(line, *x, y + ROW)) }
        (axes(chart, &place))
        @for mark in chart.visible_marks(bounds) { (marked(mark, &place)) }
        @for line in &chart.lines { (drawn(line, &place)) }
    }
}

/// Gives lines some room above, and below unless the axis begins at 0.
fn roomy(chart: &Chart, Bounds { x, y: (least, most) }: Bounds) -> Bounds {
    let room = (most - least) * 0.06;
    Bounds { x, y: (if chart.from_zero { least } else { least - room }, most + room) }
}

/// Lays out the names of lines in rows: left edge, height under the title, line. A line without a
/// name is left out.
fn names(lines: &[Line]) -> Vec<(f64, f64, &Line)> {
    let (mut x, mut y) = (14.0, 14.0);
    let mut placed = Vec::new();
    for line in lines.iter().filter(|line| !line.name.is_empty()) {
        let width = SAMPLE + LETTER * line.name.chars().count() as f64 + 14.0;
        if x + width > WIDTH && x > 14.0 {
            (x, y) = (14.0, y + 16.0);
        }
        placed.push((x, y, line));
        x += width;
    }
    placed
}

fn name(line: &Line, x: f64, y: f64) -> Markup {
    html! {
        path class=(class(line)) stroke-dasharray=(dashes(line.shape)) d=(format!("M{x} {} h22", y - 4.0)) {}
        text class="name" x=(x + SAMPLE - 2.0) y=(y) { (line.name) }
    }
}

/// The place of the points on the paper.
struct Place {
    bounds: Bounds,
    top: f64,
}

impl Place {
    fn x(&self, value: f64) -> f64 {
        let (least, most) = self.bounds.x;
        rounded(LEFT + (value - least) / (most - least) * (WIDTH - LEFT - RIGHT))
    }

    fn y(&self, value: f64) -> f64 {
        let (least, most) = self.bounds.y;
        rounded(HEIGHT - BOTTOM - (value - least) / (most - least) * (HEIGHT - BOTTOM - self.top))
    }
}

fn rounded(place: f64) -> f64 {
    (place * 10.0).round() / 10.0
}

fn axes(chart: &Chart, place: &Place) -> Markup {
    let Place { bounds, top } = place;
    let (foot, end) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    html! {
        @for tick in chart.unit.ticks(bounds.y, 5) {
            path class="grid" d=(format!("M{LEFT} {} H{end}", place.y(tick))) {}
            text x=(LEFT - 6.0) y=(place.y(tick) + 4.0) text-anchor="end" { (chart.unit.write(tick)) }
        }
        path class="axis" d=(format!("M{LEFT} {top} V{foot} H{end}")) {}
        @for tick in chart.across.ticks(bounds.x, 7) {
            path class="axis" d=(format!("M{} {foot} v4", place.x(tick))) {}
            text x=(place.x(tick)) y=(foot + 16.0) text-anchor="middle" { (chart.across.write(tick)) }
        }
        text x=(end) y=(HEIGHT - 4.0) text-anchor="end" {
            @if chart.across == Unit::Time { "time since the first step" } @else { "step" }
        }
    }
}

fn marked(mark: &Mark, place: &Place) -> Markup {
    let (x, foot) = (place.x(mark.x), HEIGHT - BOTTOM);
    html! {
        path class=(format!("mark mark-{}", mark.kind.class())) d=(format!("M{x} {} V{foot}", place.top)) {
            title { (mark.text) }
        }
    }
}

fn drawn(line: &Line, place: &Place) -> Markup {
    let mut path = String::new();
    for piece in &line.pieces {
        for (index, (x, y)) in corners(line.shape, piece).into_iter().enumerate() {
            let word = if index == 0 { 'M' } else { 'L' };
            // Writing to a text never fails.
            let _ = write!(path, "{word}{} {}", place.x(x), place.y(y));
        }
    }
    html! {
        path class=(class(line)) stroke-dasharray=(dashes(line.shape)) d=(path) {}
        @if line.shape == Shape::Dots {
            @for (x, y) in line.pieces.iter().flatten() {
                circle class=(format!("dot-{}", line.colour % COLOURS)) cx=(place.x(*x)) cy=(place.y(*y)) r="2.6" {}
            }
        }
    }
}

fn class(line: &Line) -> String {
    format!("line line-{}", line.colour % COLOURS)
}

const fn dashes(shape: Shape) -> &'static str {
    match shape {
        Shape::Dashed => "6 4",
        Shape::Solid | Shape::Steps | Shape::Dots => "none",
    }
}

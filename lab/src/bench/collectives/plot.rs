//! A chart of bus bandwidth against size.

use std::path::Path;

use anyhow::anyhow;
use plotters::prelude::*;

/// The name of a side, and its points: sizes in bytes with bandwidths in bytes a second.
pub(super) struct Curve {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// Draws all curves into an SVG.
pub(super) fn draw(path: &Path, title: &str, curves: &[Curve]) -> anyhow::Result<()> {
    attempt(path, title, curves).map_err(|error| anyhow!("{}: {error}", path.display()))
}

fn attempt(path: &Path, title: &str, curves: &[Curve]) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(path, (960, 560)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 16))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d((5e2..2e8).log_scale(), (1e6..1e11).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("bytes reduced")
        .y_desc("bus bandwidth, bytes a second")
        .x_label_formatter(&|bytes| with_prefix(*bytes))
        .y_label_formatter(&|rate| with_prefix(*rate))
        .draw()?;
    for (index, Curve { name, points }) in curves.iter().enumerate() {
        let colour = Palette99::pick(index);
        let style = ShapeStyle::from(&colour).stroke_width(2);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style).point_size(3))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .border_style(BLACK)
        .draw()?;
    area.present()?;
    Ok(())
}

fn with_prefix(value: f64) -> String {
    const PREFIXES: [(f64, &str); 3] = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let fitting = PREFIXES.into_iter().find(|(unit, _)| value >= *unit);
    fitting.map_or_else(|| format!("{value}"), |(unit, prefix)| format!("{} {prefix}", value / unit))
}

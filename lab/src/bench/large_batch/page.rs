//! The table of a run as a page, and its curves as a picture.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context as _, anyhow};
use plotters::prelude::*;

use super::{BATCHES, Cell, Effort, Row, places};

/// The lines between which a run writes its table. People write the rest of the page.
const MARKS: [&str; 2] =
    ["<!-- table: written by `cargo xtask bench large-batch` -->\n", "<!-- end of the table -->\n"];

/// Writes both: the table between the marks of the page, if the page exists.
pub(super) fn write(effort: Effort, rows: &[Row], source: &str, origin: &str) -> anyhow::Result<()> {
    let [page, picture] = places(effort);
    let table = table(rows, source, origin)?;
    let text = match fs::read_to_string(&page) {
        Ok(text) => between_marks(&text, &table).with_context(|| format!("{} lacks {MARKS:?}", page.display()))?,
        Err(_) => table.clone(),
    };
    fs::write(&page, text)?;
    println!("{table}\n{}", page.display());
    draw(&picture, &format!("{source}, 5 epochs: test accuracy in %, without dead rows"), rows)
        .map_err(|error| anyhow!("{}: {error}", picture.display()))
}

fn table(rows: &[Row], source: &str, origin: &str) -> Result<String, std::fmt::Error> {
    let batches: Vec<u64> = BATCHES.into_iter().filter(|batch| rows[0].cells.contains_key(batch)).collect();
    let mut text = format!("{source}, {origin}.\n\n| |");
    for batch in &batches {
        write!(text, " {batch} |")?;
    }
    writeln!(text, "\n|---|{}", "---|".repeat(batches.len()))?;
    for Row { name, cells } in rows {
        let cell = |batch| cells.get(batch).map_or_else(|| "–".to_owned(), shown);
        let cells: Vec<_> = batches.iter().map(cell).collect();
        writeln!(text, "| {name} | {} |", cells.join(" | "))?;
    }
    Ok(text)
}

/// Returns the page with the table between its marks.
fn between_marks(page: &str, table: &str) -> Option<String> {
    let (before, rest) = page.split_once(MARKS[0])?;
    let (_, after) = rest.split_once(MARKS[1])?;
    Some(format!("{before}{}{table}{}{after}", MARKS[0], MARKS[1]))
}

fn shown(cell: &Cell) -> String {
    let percent = |value: f64| format!("{:.2}", 100.0 * value);
    let accuracies = cell.runs.iter().map(|run| run.accuracy);
    let (least, most) = (accuracies.clone().fold(1.0, f64::min), accuracies.fold(0.0, f64::max));
    let dead = match cell.runs.iter().filter(|run| run.dead).count() {
        0 => String::new(),
        _ if cell.is_dead() => ", dead".to_owned(),
        count => format!(", {count} of {} dead", cell.runs.len()),
    };
    let peak = (cell.peak * 1e5).round() / 1e5;
    format!("{:.2} [{}, {}] ({peak}{dead})", cell.accuracy(), percent(least), percent(most))
}

/// The least accuracy that the picture shows, in percent.
const LOWEST: f64 = 60.0;

fn draw(path: &Path, title: &str, rows: &[Row]) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(path, (960, 560)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 16))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d((50f64..10_000f64).log_scale(), LOWEST..100f64)?;
    chart
        .configure_mesh()
        .x_desc("global batch")
        .y_desc("test accuracy in %")
        .x_label_formatter(&|batch| format!("{batch:.0}"))
        .y_label_formatter(&|accuracy| format!("{accuracy:.0}"))
        .max_light_lines(0)
        .draw()?;
    for (index, Row { name, cells }) in rows.iter().enumerate() {
        // Dead runs would press all other lines together.
        let cells: Vec<_> = cells.iter().filter(|(_, cell)| cell.accuracy() >= LOWEST).collect();
        if cells.is_empty() {
            continue;
        }
        let style = ShapeStyle::from(&Palette99::pick(index)).stroke_width(2);
        let points: Vec<_> = cells.iter().map(|(batch, cell)| (**batch as f64, cell.accuracy())).collect();
        chart
            .draw_series(LineSeries::new(points, style).point_size(3))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerLeft)
        .background_style(WHITE)
        .border_style(BLACK)
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_replaces_the_table_and_keeps_what_people_wrote() {
        let [open, close] = MARKS;
        let page = format!("before\n{open}old\n{close}after\n");
        assert_eq!(between_marks(&page, "new\n"), Some(format!("before\n{open}new\n{close}after\n")));
        assert_eq!(between_marks("no marks", "new\n"), None);
    }
}

//! `lockstep plot`: draws the curves of runs.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};

use crate::{
    Outcome,
    chart::{self, Chart, MarkKind},
    curves::{Across, Curves},
    display::{colours, eprint_line, print},
    run_history::{self, RunHistory},
};

/// Columns of a terminal that does not tell them.
const COLUMNS: usize = 80;

/// Arguments of `lockstep plot`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Folders of runs, as `lockstep run` prints them, or names of training jobs. Several are drawn
    /// over each other.
    #[arg(required = true, value_name = "RUN|JOB")]
    targets: Vec<String>,
    #[command(flatten)]
    read: run_history::Arguments,
    /// File to write in place of the terminal; its name ends in .svg or .png.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The horizontal axis.
    #[arg(long, value_name = "AXIS", default_value = "step")]
    across: Across,
}

/// Draws the runs.
pub(crate) async fn plot(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let Arguments { targets, read, output, across } = arguments;
    let format = output.as_deref().map(Format::of).transpose()?;
    let histories = read.read(targets).await?;
    notes(&histories).iter().for_each(|note| eprint_line(note));
    let curves = Curves::of(&histories, *across);
    let charts = [curves.loss(), curves.throughput(), curves.efficiency(), curves.world()];
    match (output, format) {
        (Some(path), Some(format)) => {
            let bytes = format.draw(&title(&histories), &charts).with_context(|| path.display().to_string())?;
            fs::write(path, bytes).with_context(|| format!("write {}", path.display()))?;
        }
        _ => print(&terminal(&title(&histories), &charts)),
    }
    Ok(Outcome::Done)
}

/// Says why a history without steps has no curves.
fn notes(histories: &[RunHistory]) -> Vec<String> {
    let without = histories.iter().filter(|history| history.log.steps.is_empty());
    let notes = without.flat_map(|history| {
        history.absent.iter().map(|absent| match histories.len() {
            1 => format!("note: {absent}"),
            _ => format!("note: {}: {absent}", history.origin),
        })
    });
    notes.collect()
}

fn title(histories: &[RunHistory]) -> String {
    match histories {
        [history] => format!("{}  {}", history.name, history.origin),
        several => format!("{} runs", several.len()),
    }
}

fn terminal(title: &str, charts: &[Chart]) -> String {
    let columns = terminal_size::terminal_size().map_or(COLUMNS, |(width, _)| usize::from(width.0));
    let drawn = chart::text(charts, columns, colours());
    let has = |kind| charts.iter().flat_map(|chart| &chart.marks).any(|mark| mark.kind == kind);
    let marks: Vec<_> = MarkKind::ALL
        .into_iter()
        .filter(|kind| has(*kind))
        .map(|kind| format!("{} {}", chart::symbol(kind), kind.words()))
        .collect();
    format!("{title}\n{drawn}{}\n", marks.join("   ")).trim_end().to_owned() + "\n"
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Svg,
    Png,
}

impl Format {
    fn of(path: &Path) -> anyhow::Result<Self> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("svg") => Ok(Self::Svg),
            Some("png") => Ok(Self::Png),
            _ => bail!("--output {}: the name must end in .svg or .png", path.display()),
        }
    }

    fn draw(self, title: &str, charts: &[Chart]) -> anyhow::Result<Vec<u8>> {
        let svg = chart::figure(title, charts);
        match self {
            Self::Svg => Ok(svg.into_bytes()),
            Self::Png => chart::png(&svg),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_history::Log;

    #[test]
    fn each_run_without_steps_has_its_note() {
        let line = "{\"step\":1,\"generation\":1,\"loss\":1,\"step_seconds\":1,\"time\":\"2026-01-02T03:04:05Z\"}\n";
        let history = |origin: &str, log: &str| RunHistory {
            origin: origin.to_owned(),
            log: Log::parse(log),
            absent: vec!["There is no log.".to_owned()],
            ..RunHistory::default()
        };
        let (drawn, empty) = (history("runs/1", line), history("runs/2", ""));
        assert_eq!(notes(&[drawn, empty.clone()]), ["note: runs/2: There is no log."]);
        assert_eq!(notes(&[empty]), ["note: There is no log."]);
    }

    #[test]
    fn the_extension_chooses_the_format() {
        assert_eq!(Format::of(Path::new("a.b/x.svg")).expect("known"), Format::Svg);
        assert_eq!(Format::of(Path::new("x.png")).expect("known"), Format::Png);
        let refused = Format::of(Path::new("x.jpg")).expect_err("refused").to_string();
        assert!(refused.contains(".svg or .png"), "{refused}");
    }
}

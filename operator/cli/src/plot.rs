//! `lockstep plot`: draws the curves of runs.

use std::{
    env, fs,
    io::IsTerminal as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};

use crate::{
    Outcome,
    chart::{self, Chart, MarkKind},
    curves::{Across, Curves},
    display::{eprint_line, print},
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
    if histories.iter().all(|history| history.log.steps.is_empty()) {
        histories.iter().flat_map(|history| &history.absent).for_each(|absent| eprint_line(&format!("note: {absent}")));
    }
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

fn title(histories: &[RunHistory]) -> String {
    match histories {
        [history] => format!("{}  {}", history.name, history.origin),
        several => format!("{} runs", several.len()),
    }
}

fn terminal(title: &str, charts: &[Chart]) -> String {
    let colours = std::io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none();
    let columns = terminal_size::terminal_size().map_or(COLUMNS, |(width, _)| usize::from(width.0));
    let drawn = chart::text(charts, columns, colours);
    let has = |kind| charts.iter().flat_map(|chart| &chart.marks).any(|mark| mark.kind == kind);
    let marks: Vec<_> = MarkKind::ALL
        .into_iter()
        .filter(|kind| has(*kind))
        .map(|kind| format!("{} a worker {}", chart::symbol(kind), kind.participle()))
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

    #[test]
    fn the_extension_chooses_the_format() {
        assert_eq!(Format::of(Path::new("a.b/x.svg")).expect("known"), Format::Svg);
        assert_eq!(Format::of(Path::new("x.png")).expect("known"), Format::Png);
        let refused = Format::of(Path::new("x.jpg")).expect_err("refused").to_string();
        assert!(refused.contains(".svg or .png"), "{refused}");
    }
}

//! The page: HTML that is XML as well, with its style and its curves inside.

use jiff::Timestamp;
use lockstep_launch::Progress;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::figures::{figures, percent, span, uses};
use crate::{
    chart::{self, COLOURS, MarkKind},
    curves::{Across, Curves},
    manifest,
    run::environment::Start,
    run_history::{Change, Checkpoint, RunHistory},
};

const STYLE: &str = include_str!("page.css");

/// Returns the page of a run.
pub(super) fn page(history: &RunHistory, across: Across, now: Timestamp) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                // Written by hand, so that the page is XML too.
                (PreEscaped("<meta charset=\"utf-8\"/><meta name=\"viewport\" content=\"width=device-width\"/>"))
                title { (history.name) " · lockstep report" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                (head(history))
                (headline(history))
                (curves(history, across))
                (membership(&history.changes))
                (time(history))
                (checkpoints(&history.checkpoints))
                (configuration(history))
                (environment(&history.starts))
                (absent(&history.absent))
                footer {
                    "Written by lockstep " (env!("CARGO_PKG_VERSION")) " at " (second(&now.to_string()))
                    " from " (history.origin) ". The page needs no network and no scripts."
                }
            }
        }
    };
    page.into_string()
}

fn head(history: &RunHistory) -> Markup {
    let model = |field: &str| history.manifest.as_ref()?["spec"][field]["name"].as_str().map(str::to_owned);
    let format = history.manifest.as_ref().and_then(|manifest| manifest["spec"]["dataset"]["format"].as_str());
    let begun = span(history).map(|(begin, _)| second(&begin.to_string()));
    let parts = [model("model"), format.map(|format| format!("data: {format}")), begun];
    html! {
        header {
            h1 { (history.name) @if !history.state.is_empty() { span class="state" { (history.state) } } }
            p { (parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")) }
        }
    }
}

fn headline(history: &RunHistory) -> Markup {
    html! {
        section class="figures" {
            @for figure in figures(history) {
                div class="figure" {
                    div class="name" { (figure.name) }
                    div class="value" { (figure.value) }
                    div class="remark" { (figure.remark) }
                }
            }
        }
    }
}

fn curves(history: &RunHistory, across: Across) -> Markup {
    let one = std::slice::from_ref(history);
    let curves = Curves::of(one, across);
    let all = [
        curves.loss(),
        curves.accuracy(),
        curves.throughput(),
        curves.efficiency(),
        curves.world(),
        curves.learning_rate(),
    ];
    let has = |kind| all.iter().flat_map(|chart| &chart.marks).any(|mark| mark.kind == kind);
    html! {
        section {
            h2 { "Curves" }
            div class="charts" { @for chart in &all { (chart::inline(chart)) } }
            @if MarkKind::ALL.into_iter().any(has) {
                p class="legend" {
                    "Dashed uprights: the group changed. "
                    @for kind in MarkKind::ALL.into_iter().filter(|kind| has(*kind)) {
                        span class=(format!("word-{}", kind.class())) { (kind.words()) } " "
                    }
                }
            }
        }
    }
}

fn membership(changes: &[Change]) -> Markup {
    html! {
        @if !changes.is_empty() {
            section {
                h2 { "Membership" }
                table {
                    thead { tr {
                        th class="number" { "generation" } th { "time" } th class="number" { "workers" }
                        th class="number" { "from step" } th class="number" { "agreed in" }
                        th class="number" { "stalled" } th class="number" { "redone" } th { "cause" }
                    } }
                    tbody { @for change in changes { (changed(change)) } }
                }
                p class="remark" {
                    "Agreed in: from the first sign of the need until the new membership was recorded. "
                    "Stalled: without a new step, detection and catch-up included."
                }
            }
        }
    }
}

fn changed(change: &Change) -> Markup {
    let found = &change.change;
    html! {
        tr {
            td class="number" { (found.generation) }
            td class="time" { (second(&found.time)) }
            td class="number" { (found.workers) }
            td class="number" { (found.step) }
            td class="number" { (format!("{:.3} s", found.seconds)) }
            td class="number" { (change.stalled.map_or_else(|| "–".to_owned(), |seconds| format!("{seconds:.3} s"))) }
            td class="number" { (found.redone) }
            td { (change.cause()) }
        }
    }
}

fn time(history: &RunHistory) -> Markup {
    let uses = uses(history);
    html! {
        @if !uses.is_empty() {
            section {
                h2 { "Where the time goes" }
                div class="bar" {
                    @for (index, part) in uses.iter().enumerate() {
                        div class=(format!("part-{}", index % (COLOURS + 2))) title=(part.name)
                            style=(format!("width:{:.3}%", part.share * 100.0)) {}
                    }
                }
                table class="narrow" {
                    @for (index, part) in uses.iter().enumerate() {
                        tr {
                            td { span class=(format!("key part-{}", index % (COLOURS + 2))) {} (part.name) }
                            td class="number" { (format!("{:.2} s", part.seconds)) }
                            td class="number" { (format!("{:.1}%", part.share * 100.0)) }
                        }
                    }
                }
                p class="remark" {
                    "Wall time of the reporting worker in the steps that count."
                    @if let Some(run) = history.report.as_ref().and_then(|report| report.whole_run) {
                        " Steps that were lost and done again took " (format!("{:.2} s", run.lost_seconds)) " more."
                    }
                }
            }
        }
    }
}

fn checkpoints(listed: &[Checkpoint]) -> Markup {
    html! {
        @if !listed.is_empty() {
            section {
                h2 { "Checkpoints" }
                table {
                    thead { tr {
                        th class="number" { "step" } th class="number" { "epoch" } th { "saved" }
                        th class="number" { "size" } th class="number" { "accuracy" } th { "state" }
                    } }
                    tbody { @for checkpoint in listed { (kept(checkpoint)) } }
                }
            }
        }
    }
}

fn kept(checkpoint: &Checkpoint) -> Markup {
    let Checkpoint { step, epoch, time, evaluation, best, bytes, unusable } = checkpoint;
    let accuracy = evaluation.and_then(|found| found.accuracy).map_or_else(|| "–".to_owned(), percent);
    html! {
        tr {
            td class="number" { (step) }
            td class="number" { (epoch) }
            td class="time" { (second(time)) }
            td class="number" { (bytes.map_or_else(|| "–".to_owned(), size)) }
            td class="number" { (accuracy) }
            td {
                @match unusable {
                    Some(reason) => { "unusable: " (reason) }
                    None => { "whole" @if *best { ", the best" } }
                }
            }
        }
    }
}

fn configuration(history: &RunHistory) -> Markup {
    let text = history.manifest.as_ref().and_then(|manifest| manifest::write(manifest).ok());
    html! {
        @if text.is_some() || history.report.is_some() {
            section {
                h2 { "Configuration" }
                @if let Some(communication) = history.report.as_ref().and_then(communication) { p { (communication) } }
                @if let Some(text) = text { pre { (text) } }
            }
        }
    }
}

/// Describes how the workers summed gradients at the end.
fn communication(report: &Progress) -> Option<String> {
    let found = report.communication?;
    Some(format!(
        "Gradients were summed over {} in {} buckets, by the algorithm {}, as {}, with encryption {}.",
        found.link, found.buckets, found.algorithm, found.wire, found.encryption
    ))
}

fn environment(starts: &[Start]) -> Markup {
    html! {
        @if !starts.is_empty() {
            section {
                h2 { "Environment" }
                table {
                    thead { tr {
                        th { "started" } th { "lockstep" } th class="number" { "workers" } th { "processor" }
                        th class="number" { "cores" } th class="number" { "memory" } th { "system" }
                    } }
                    tbody { @for start in starts { (started(start)) } }
                }
            }
        }
    }
}

fn started(Start { time, version, workers, machine }: &Start) -> Markup {
    html! {
        tr {
            td class="time" { (second(time)) }
            td { (version) }
            td class="number" { (workers) }
            td { (machine.processor.as_deref().unwrap_or("–")) }
            td class="number" { (machine.cores.map_or_else(|| "–".to_owned(), |cores| cores.to_string())) }
            td class="number" { (machine.memory_bytes.map_or_else(|| "–".to_owned(), size)) }
            td { (machine.system) @if let Some(kernel) = &machine.kernel { ", kernel " (kernel) } }
        }
    }
}

fn absent(reasons: &[String]) -> Markup {
    html! {
        @if !reasons.is_empty() {
            section {
                h2 { "What is missing here" }
                ul { @for reason in reasons { li { (reason) } } }
            }
        }
    }
}

/// Writes a number of bytes for people.
fn size(bytes: u64) -> String {
    const UNITS: [(&str, f64); 3] = [("GiB", 1073741824.0), ("MiB", 1048576.0), ("KiB", 1024.0)];
    let fitting = UNITS.into_iter().find(|(_, size)| bytes as f64 >= *size);
    fitting.map_or_else(|| format!("{bytes} B"), |(unit, size)| format!("{:.1} {unit}", bytes as f64 / size))
}

/// Shortens a time of RFC 3339 to its second.
fn second(time: &str) -> String {
    let time = time.split('.').next().unwrap_or(time).trim_end_matches('Z');
    time.replacen('T', " ", 1)
}

#[cfg(test)]
mod tests;

//! The figures at the top of a page, and the use of time.

use jiff::Timestamp;

use crate::{chart::Unit, curves::begin, display, run_history::RunHistory};

/// A figure: its name, its value, and a remark beneath it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Figure {
    pub name: &'static str,
    pub value: String,
    pub remark: String,
}

/// Returns the figures that are known.
pub(super) fn figures(history: &RunHistory) -> Vec<Figure> {
    let all = [steps(history), accuracy(history), loss(history), throughput(history), efficiency(history)];
    all.into_iter().chain([goodput(history), changes(history), duration(history)]).flatten().collect()
}

fn figure(name: &'static str, value: String, remark: String) -> Option<Figure> {
    Some(Figure { name, value, remark })
}

fn steps(history: &RunHistory) -> Option<Figure> {
    let logged = history.log.steps.last().map(|step| step.step);
    let report = history.report.as_ref();
    let done = logged.max(report.map(|report| report.step))?;
    let total = report.map(|report| report.total_steps).filter(|total| *total > 0);
    figure("steps", done.to_string(), total.map(|total| format!("of {total}")).unwrap_or_default())
}

fn accuracy(history: &RunHistory) -> Option<Figure> {
    let known: Vec<(u64, f64)> =
        history.log.evaluations.iter().filter_map(|found| Some((found.step, found.figures.accuracy?))).collect();
    let last = known.last().map(|(_, accuracy)| *accuracy).or(history.report.as_ref()?.accuracy)?;
    let best = known.iter().copied().max_by(|left, right| left.1.total_cmp(&right.1));
    let remark = match best {
        Some((step, best)) if best > last => format!("best {} at step {step}", percent(best)),
        _ => "the best of this run".to_owned(),
    };
    figure("accuracy", percent(last), remark)
}

fn loss(history: &RunHistory) -> Option<Figure> {
    let known = || history.log.steps.iter().filter_map(|step| step.loss);
    let last = known().next_back().or(history.report.as_ref()?.loss)?;
    let remark = known().next().map(|first| format!("from {}", Unit::Plain.write(first)));
    figure("training loss", Unit::Plain.write(last), remark.unwrap_or_default())
}

fn throughput(history: &RunHistory) -> Option<Figure> {
    let stepped = history.log.steps.iter().map(|step| (step.samples_per_second * step.step_seconds, step.step_seconds));
    let (samples, seconds) = stepped.fold((0.0, 0.0), |(samples, seconds), step| (samples + step.0, seconds + step.1));
    let mean = (seconds > 0.0).then_some(samples / seconds).or(history.report.as_ref()?.samples_per_second)?;
    figure("samples/s", display::rounded(mean), "mean over the steps".to_owned())
}

fn efficiency(history: &RunHistory) -> Option<Figure> {
    let report = history.report.as_ref()?;
    let share = report.scaling_efficiency?;
    let source = report.scaling_baseline.map(|source| format!(", {source} baseline")).unwrap_or_default();
    let workers = if report.world_size == 1 { "1 worker".to_owned() } else { format!("{} workers", report.world_size) };
    figure("scaling efficiency", display::percent(share), format!("{workers} at the end{source}"))
}

fn goodput(history: &RunHistory) -> Option<Figure> {
    let run = history.report.as_ref()?.whole_run?;
    let rate = display::rounded(run.goodput_samples_per_second);
    figure("goodput", display::percent(run.goodput_ratio), format!("of the time; {rate} samples/s over the whole run"))
}

fn changes(history: &RunHistory) -> Option<Figure> {
    let changes: Vec<_> = history.changes.iter().filter(|change| change.change.generation > 1).collect();
    let stalled: f64 = changes.iter().filter_map(|change| change.stalled).sum();
    let redone: u64 = changes.iter().map(|change| change.change.redone).sum();
    let lost: usize = changes.iter().map(|change| change.change.lost.len()).sum();
    let remark = match changes.len() {
        0 => "the group never changed".to_owned(),
        _ => format!("{lost} lost, {stalled:.2} s stalled, {redone} steps redone"),
    };
    (!history.changes.is_empty()).then(|| figure("group changes", changes.len().to_string(), remark)).flatten()
}

fn duration(history: &RunHistory) -> Option<Figure> {
    let (first, last) = span(history)?;
    let seconds = last.duration_since(first).as_secs_f64();
    let ended = last.strftime("%Y-%m-%d %H:%M:%S UTC");
    figure("duration", display::duration(seconds), format!("until {ended}"))
}

/// Returns the beginning of the first step and the end of the last one.
pub(super) fn span(history: &RunHistory) -> Option<(Timestamp, Timestamp)> {
    let steps = &history.log.steps;
    Some((begin(steps.first()?)?, steps.last()?.time))
}

/// Writes a share with two digits behind the point, as accuracies are compared.
pub(super) fn percent(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}

/// A use of time: its name, its seconds, and its share of all.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Use {
    pub name: String,
    pub seconds: f64,
    pub share: f64,
}

/// The phases in the order of the page, with words for people.
const PHASES: [(&str, &str); 8] = [
    ("compute", "forward, backward and update"),
    ("data", "waits for samples"),
    ("barrier_wait", "waits for slower ranks"),
    ("exposed_comm", "waits for sums that computation did not hide"),
    ("checkpoint", "stands still for checkpoints"),
    ("resize", "between two groups"),
    ("evaluation", "evaluation on held-out samples"),
    ("other", "everything else"),
];

/// Returns the uses of the reporting worker's time, as far as the log tells them.
pub(super) fn uses(history: &RunHistory) -> Vec<Use> {
    let phases = history.log.phases();
    let all: f64 = phases.values().sum();
    let words =
        |phase: &str| PHASES.iter().find(|(name, _)| *name == phase).map_or(phase, |(_, words)| words).to_owned();
    let place = |phase: &str| PHASES.iter().position(|(name, _)| *name == phase);
    let mut known: Vec<_> = phases.into_iter().collect();
    known.sort_by_key(|(phase, _)| place(phase).unwrap_or(PHASES.len()));
    known.into_iter().map(|(phase, seconds)| Use { name: words(phase), seconds, share: seconds / all }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_history::Log;

    #[test]
    fn uses_of_time_stand_in_the_order_of_a_step_and_add_up_to_all() {
        let line = |phases: &str| {
            format!(
                "{{\"step\":1,\"generation\":1,\"loss\":1,\"step_seconds\":1,\"time\":\"2026-11-22T05:12:10Z\",\
                 \"phases\":{phases}}}\n"
            )
        };
        let log = [line("{\"resize\":1,\"compute\":2}"), line("{\"compute\":1,\"new\":1}"), line("{}")].concat();
        let history = RunHistory { log: Log::parse(&log), ..RunHistory::default() };
        let found: Vec<_> = uses(&history).into_iter().map(|found| (found.name, found.seconds, found.share)).collect();
        let expected =
            [("forward, backward and update", 3.0, 0.6), ("between two groups", 1.0, 0.2), ("new", 1.0, 0.2)];
        assert_eq!(found, expected.map(|(name, seconds, share)| (name.to_owned(), seconds, share)));
    }

    #[test]
    fn nothing_is_told_of_a_run_that_left_nothing() {
        assert_eq!(figures(&RunHistory::default()), []);
    }
}

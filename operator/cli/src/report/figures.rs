//! The figures at the top of a page, and the use of time.

use jiff::Timestamp;

use crate::{chart::Unit, curves::begin, display, run_history::RunHistory};

/// The remark of a figure of which only the newest value is known.
const AS_REPORTED: &str = "as last reported";

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
    let logged = known.last().map(|(_, accuracy)| *accuracy);
    let last = logged.or_else(|| history.report.as_ref()?.accuracy)?;
    let best = known.iter().copied().max_by(|left, right| left.1.total_cmp(&right.1));
    let remark = match best {
        Some((step, best)) if best > last => format!("best {} at step {step}", percent(best)),
        Some(_) => "the best of this run".to_owned(),
        None => AS_REPORTED.to_owned(),
    };
    figure("accuracy", percent(last), remark)
}

fn loss(history: &RunHistory) -> Option<Figure> {
    let known = || history.log.steps.iter().filter_map(|step| step.loss);
    let last = known().next_back().or_else(|| history.report.as_ref()?.loss)?;
    let remark =
        known().next().map_or_else(|| AS_REPORTED.to_owned(), |first| format!("from {}", Unit::Plain.write(first)));
    figure("training loss", Unit::Plain.write(last), remark)
}

fn throughput(history: &RunHistory) -> Option<Figure> {
    let stepped = history.log.steps.iter().map(|step| (step.samples_per_second * step.step_seconds, step.step_seconds));
    let (samples, seconds) = stepped.fold((0.0, 0.0), |(samples, seconds), step| (samples + step.0, seconds + step.1));
    if seconds > 0.0 {
        return figure("samples/s", display::rounded(samples / seconds), "mean over the steps".to_owned());
    }
    let last = history.report.as_ref()?.samples_per_second?;
    figure("samples/s", display::rounded(last), AS_REPORTED.to_owned())
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
    use lockstep_launch::Progress;

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

    /// Returns the value and the remark of accuracy, loss and throughput, as far as they are shown.
    fn results(history: &RunHistory) -> Vec<(&'static str, String, String)> {
        let is_result = |figure: &Figure| ["accuracy", "training loss", "samples/s"].contains(&figure.name);
        let found = figures(history).into_iter().filter(is_result);
        found.map(|Figure { name, value, remark }| (name, value, remark)).collect()
    }

    fn expected(figures: [[&'static str; 3]; 3]) -> Vec<(&'static str, String, String)> {
        figures.map(|[name, value, remark]| (name, value.to_owned(), remark.to_owned())).to_vec()
    }

    #[test]
    fn a_log_without_a_report_has_its_results() {
        let line = |step: u64, loss: f64| {
            format!(
                "{{\"step\":{step},\"generation\":1,\"loss\":{loss},\"step_seconds\":0.5,\"samples_per_second\":64,\
                 \"time\":\"2026-11-22T05:12:10Z\"}}\n"
            )
        };
        let log = line(1, 2.5) + &line(2, 0.5) + "{\"step\":2,\"evaluation\":{\"loss\":0.5,\"accuracy\":0.75}}\n";
        let history = RunHistory { log: Log::parse(&log), report: None, ..RunHistory::default() };
        let expected = expected([
            ["accuracy", "75.00%", "the best of this run"],
            ["training loss", "0.5", "from 2.5"],
            ["samples/s", "64.0", "mean over the steps"],
        ]);
        assert_eq!(results(&history), expected);
    }

    #[test]
    fn a_report_without_a_log_tells_only_the_last_values() {
        let report =
            Progress { accuracy: Some(0.75), loss: Some(0.5), samples_per_second: Some(64.0), ..Progress::default() };
        let history = RunHistory { report: Some(report), ..RunHistory::default() };
        assert!(results(&history).iter().all(|(.., remark)| remark == AS_REPORTED), "{:?}", results(&history));
        assert_eq!(results(&history).len(), 3);
    }

    #[test]
    fn nothing_is_told_of_a_run_that_left_nothing() {
        assert_eq!(figures(&RunHistory::default()), []);
    }
}

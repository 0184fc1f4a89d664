//! The view of a job while it runs: a bar on a terminal, plain lines elsewhere.

mod queue;

use std::{
    env,
    ffi::OsStr,
    io::{self, IsTerminal, Write},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use lockstep_launch::{
    BenchmarkReport, ByteSize, CollectivesRow, DamagedCheckpoint, Progress, ScalingBaseline, Straggler, WholeRun,
};

use queue::{DisplayQueue, Item};

/// Time between two plain lines.
const PLAIN_INTERVAL: Duration = Duration::from_secs(2);
/// The numbers get a line of their own. Beside the bar, a terminal of 80 columns would cut them
/// off.
const BAR: &str = "{prefix:.bold} [{wide_bar:.cyan}] {percent:>3}%\n{wide_msg}";

/// Shows reports on stderr in a thread of its own. A blocked stderr, such as a pipe that nobody
/// reads, delays only the end of the command.
pub(crate) struct Display {
    queue: Arc<DisplayQueue>,
    painting: Option<JoinHandle<()>>,
}

impl Display {
    /// Shows a bar if stderr is a terminal, plain lines otherwise.
    pub(crate) fn on_stderr() -> Self {
        let queue = Arc::new(DisplayQueue::default());
        let painting = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || Painter::new().paint(&queue))
        };
        Self { queue, painting: Some(painting) }
    }

    /// Shows the word before the bar, such as `training`.
    pub(crate) fn phase(&self, phase: &str) {
        self.queue.put(Item::Phase(phase.to_owned()));
    }

    /// Shows a line that stays.
    pub(crate) fn note(&self, line: &str) {
        self.queue.put(Item::Note(line.to_owned()));
    }

    /// Shows a report.
    pub(crate) fn progress(&self, progress: &Progress) {
        self.queue.put(Item::Progress(Box::new(progress.clone())));
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        self.queue.close();
        // If the thread panicked, it has printed that already.
        self.painting.take().into_iter().for_each(|painting| drop(painting.join()));
    }
}

/// Shows the items of the queue on stderr.
struct Painter {
    bar: Option<ProgressBar>,
    pace: Pace,
}

impl Painter {
    fn new() -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template(BAR).map(|style| style.progress_chars("=> "));
            ProgressBar::new(1).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { bar, pace: Pace::default() }
    }

    fn paint(mut self, queue: &DisplayQueue) {
        while let Some(shown) = queue.take() {
            match shown {
                Item::Phase(phase) => self.phase(phase),
                Item::Note(line) => self.note(&line),
                Item::Progress(progress) => self.progress(&progress),
            }
        }
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn phase(&self, phase: String) {
        if let Some(bar) = &self.bar {
            bar.set_prefix(phase);
            bar.tick();
        }
    }

    fn note(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprint_line(line)),
            None => eprint_line(line),
        }
    }

    fn progress(&mut self, progress: &Progress) {
        let lines = self.pace.lines(progress, Instant::now());
        match &self.bar {
            Some(bar) => {
                bar.set_length(progress.total_steps.max(1));
                bar.set_position(progress.step);
                bar.set_message(status(progress));
                lines.epoch.iter().chain(&lines.warnings).for_each(|line| self.note(line));
            }
            None => lines.status.iter().chain(&lines.epoch).chain(&lines.warnings).for_each(|line| eprint_line(line)),
        }
    }
}

/// Writes a line to stderr. The job goes on even if nobody reads stderr any more.
pub(crate) fn eprint_line(line: &str) {
    let _nobody_reads = writeln!(io::stderr(), "{line}");
}

/// Writes results to stdout. The command ends as the job did even if nobody reads them.
pub(crate) fn print(results: &str) {
    let _nobody_reads = write(results);
}

/// Writes a part of an output to stdout.
///
/// # Errors
/// Nobody reads stdout any more, or it takes no more bytes.
pub(crate) fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Returns true for the error of [`write`] if nobody reads stdout any more, as behind `| head`.
pub(crate) fn is_unread(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Returns true if stdout takes colours: it is a terminal, and the variable `NO_COLOR` is unset or
/// empty (<https://no-color.org>).
pub(crate) fn colours() -> bool {
    io::stdout().is_terminal() && !are_refused(env::var_os("NO_COLOR").as_deref())
}

fn are_refused(no_color: Option<&OsStr>) -> bool {
    no_color.is_some_and(|value| !value.is_empty())
}

/// Chooses the reports that are worth a line.
#[derive(Default)]
struct Pace {
    last: Option<(Instant, u64)>,
    accuracy_step: Option<u64>,
    grace_is_short: bool,
    /// `None` while saves succeed. While they fail, true if the workers wait for the storage.
    unsaved: Option<bool>,
    damaged_checkpoint: Option<DamagedCheckpoint>,
}

#[derive(Debug, Default, PartialEq)]
struct Lines {
    status: Option<String>,
    epoch: Option<String>,
    warnings: Vec<String>,
}

impl Pace {
    /// Returns the lines to show for a report. Evaluations and warnings get a line at once, and so
    /// does the first report with a loss or a row of a benchmark. The next ones get a line once
    /// [`PLAIN_INTERVAL`] has passed.
    fn lines(&mut self, progress: &Progress, now: Instant) -> Lines {
        let due = (progress.loss.is_some() || progress.benchmark.is_some())
            && self.last.is_none_or(|(then, step)| step != progress.step && now.duration_since(then) >= PLAIN_INTERVAL);
        let evaluated = progress.accuracy.filter(|_| progress.accuracy_step != self.accuracy_step);
        if due {
            self.last = Some((now, progress.step));
        }
        self.accuracy_step = progress.accuracy_step;
        let damaged = progress.damaged_checkpoint.as_ref();
        let newly_damaged = damaged.filter(|_| damaged != self.damaged_checkpoint.as_ref()).map(ToString::to_string);
        if damaged.is_some() {
            self.damaged_checkpoint = damaged.cloned();
        }
        let saving = self.saving(progress);
        let short = progress.short_grace.filter(|_| !self.grace_is_short);
        // Before the first save, a report without a warning does not mean that the grace period is
        // long enough.
        if progress.last_checkpoint.is_some() || progress.short_grace.is_some() {
            self.grace_is_short = progress.short_grace.is_some();
        }
        Lines {
            status: due.then(|| format!("{:>3}% {}", progress.percent(), status(progress))),
            epoch: evaluated.map(|accuracy| evaluation(accuracy, progress)),
            warnings: newly_damaged.into_iter().chain(short.map(|short| short.to_string())).chain(saving).collect(),
        }
    }

    /// Returns a line when saves begin to fail, when the workers begin to wait for the storage, and
    /// when a save succeeds again.
    fn saving(&mut self, progress: &Progress) -> Option<String> {
        let before = self.unsaved;
        self.unsaved = progress.unsaved.as_ref().map(|unsaved| unsaved.waits);
        match (before, &progress.unsaved) {
            (before, Some(unsaved)) if before.is_none() || (before == Some(false) && unsaved.waits) => {
                Some(format!("warning: {unsaved}"))
            }
            (Some(_), None) => Some(match &progress.last_checkpoint {
                Some(mark) => format!("checkpoints are saved again; the newest holds step {}", mark.step),
                None => "checkpoints are saved again".to_owned(),
            }),
            (_, _) => None,
        }
    }
}

fn evaluation(accuracy: f64, Progress { epoch, mean_iou, .. }: &Progress) -> String {
    let overlap = mean_iou.map(|mean_iou| format!(", mean IoU {mean_iou:.4}")).unwrap_or_default();
    format!("epoch {epoch}: accuracy {accuracy:.4}{overlap}")
}

/// Formats a report as one line. Leaves out unknown values.
fn status(progress: &Progress) -> String {
    let parts = [
        Some(format!("step {}/{}", progress.step, progress.total_steps)),
        progress.benchmark.as_deref().and_then(newest_row),
        progress.loss.map(|loss| format!("loss {loss:.4}")),
        progress.samples_per_second.map(|rate| format!("{} samples/s", rounded(rate))),
        efficiency(progress).map(|efficiency| format!("efficiency {efficiency}")),
        parallel(progress),
        progress.estimated_remaining_seconds.map(|seconds| format!("ETA {}", duration(seconds))),
        progress.unsaved.as_ref().map(|unsaved| format!("saved: step {}", unsaved.since_step)),
        (!progress.stragglers.is_empty()).then(|| format!("waits for {}", named(&progress.stragglers))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("  ")
}

/// Names each straggler with its slowdown.
fn named(stragglers: &[Straggler]) -> String {
    stragglers.iter().map(|Straggler { pod, times }| format!("{pod} ({times:.1}x)")).collect::<Vec<_>>().join(", ")
}

/// Formats the newest row of a benchmark.
fn newest_row(report: &BenchmarkReport) -> Option<String> {
    let BenchmarkReport::Collectives(report) = report;
    let CollectivesRow { bytes, algorithm, bus_gigabytes_per_second, .. } = report.rows.last()?;
    Some(format!("{} {algorithm} {bus_gigabytes_per_second:.3} GB/s", ByteSize::bytes(*bytes)))
}

/// Summarises a finished job: the table of a benchmark, or a line for each known fact.
pub(crate) fn summary(progress: Option<&Progress>, model: Option<&str>, took: Option<Duration>) -> String {
    if let Some(BenchmarkReport::Collectives(report)) = progress.and_then(|progress| progress.benchmark.as_deref()) {
        return report.table();
    }
    let facts = [
        ("accuracy", progress.and_then(|progress| progress.accuracy).map(|accuracy| format!("{accuracy:.4}"))),
        ("mean IoU", progress.and_then(|progress| progress.mean_iou).map(|mean_iou| format!("{mean_iou:.4}"))),
        ("loss", progress.and_then(|progress| progress.loss).map(|loss| format!("{loss:.4}"))),
        ("model", model.map(str::to_owned)),
        ("samples/s", progress.and_then(|progress| progress.samples_per_second).map(rounded)),
        ("efficiency", progress.and_then(efficiency)),
        ("parallel", progress.and_then(parallel)),
        ("whole run", progress.and_then(|progress| progress.whole_run).map(|run| whole_run(&run))),
        ("duration", took.map(|took| duration(took.as_secs_f64()))),
    ];
    facts.into_iter().filter_map(|(name, fact)| Some(format!("{name:<10}  {}\n", fact?))).collect()
}

pub(crate) fn rounded(rate: f64) -> String {
    if rate < 100.0 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

/// Formats the scaling efficiency. One that compares with an estimate says so.
fn efficiency(progress: &Progress) -> Option<String> {
    let share = percent(progress.scaling_efficiency?);
    Some(match progress.scaling_baseline {
        Some(ScalingBaseline::Measured) => share,
        Some(ScalingBaseline::Estimated) | None => format!("{share} (estimated)"),
    })
}

/// Formats the two factors of the parallel efficiency.
fn parallel(progress: &Progress) -> Option<String> {
    let (balance, communication) = (progress.load_balance?, progress.communication_efficiency?);
    Some(format!("balance {} x communication {}", percent(balance), percent(communication)))
}

fn whole_run(run: &WholeRun) -> String {
    let WholeRun { samples_per_second, goodput_samples_per_second, goodput_ratio, .. } = *run;
    let (all, good) = (rounded(samples_per_second), rounded(goodput_samples_per_second));
    format!("{all} samples/s, goodput {good}; {} of the time went into steps that count", percent(goodput_ratio))
}

/// Writes a share with two digits.
pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent < 9.95 { format!("{percent:.1}%") } else { whole_percent(share) }
}

/// Writes a share without a fraction, for columns and sentences.
pub(crate) fn whole_percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// Writes a number of seconds.
pub(crate) fn duration(seconds: f64) -> String {
    // A duration that does not fit a `u64` is shown as the longest one that does.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    let whole = seconds.round() as u64;
    match whole {
        0..10 => format!("{seconds:.1}s"),
        10..60 => format!("{whole}s"),
        60..3600 => format!("{}m {:02}s", whole / 60, whole % 60),
        _ => format!("{}h {:02}m", whole / 3600, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use lockstep_launch::{CheckpointMark, ShortGrace, Unsaved};

    use super::*;

    fn at(step: u64) -> Progress {
        Progress { step, total_steps: 940, loss: Some(2.25), ..Progress::default() }
    }

    #[test]
    fn a_line_leaves_out_unknown_values() {
        let full = Progress {
            samples_per_second: Some(8450.4),
            scaling_efficiency: Some(0.934),
            scaling_baseline: Some(ScalingBaseline::Measured),
            estimated_remaining_seconds: Some(75.0),
            ..at(120)
        };
        assert_eq!(status(&full), "step 120/940  loss 2.2500  8450 samples/s  efficiency 93%  ETA 1m 15s");
        let estimated = Progress { scaling_baseline: Some(ScalingBaseline::Estimated), ..full };
        assert!(status(&estimated).contains("  efficiency 93% (estimated)  "), "{}", status(&estimated));
        assert_eq!(status(&at(1)), "step 1/940  loss 2.2500");
    }

    #[test]
    fn the_first_loss_is_shown_at_once_and_later_ones_at_intervals() {
        let start = Instant::now();
        let mut pace = Pace::default();
        let cases = [
            (Progress { loss: None, ..at(0) }, 0, None),
            (at(1), 100, Some("  0% step 1/940  loss 2.2500")),
            (at(50), 1900, None),
            (at(94), 2100, Some(" 10% step 94/940  loss 2.2500")),
            (at(94), 5000, None),
            (at(95), 5000, Some(" 10% step 95/940  loss 2.2500")),
        ];
        for (progress, ms, expected) in cases {
            let lines = pace.lines(&progress, start + Duration::from_millis(ms));
            assert_eq!(lines.status.as_deref(), expected, "step {} at {ms} ms", progress.step);
        }
    }

    #[test]
    fn an_evaluation_is_shown_once() {
        let now = Instant::now();
        let mut pace = Pace::default();
        let evaluated = Progress { epoch: 1, accuracy: Some(0.95), accuracy_step: Some(188), ..at(188) };
        assert_eq!(pace.lines(&at(187), now).epoch, None);
        assert_eq!(pace.lines(&evaluated, now).epoch.as_deref(), Some("epoch 1: accuracy 0.9500"));
        assert_eq!(pace.lines(&Progress { step: 190, ..evaluated.clone() }, now).epoch, None);
        let next = Progress { epoch: 2, accuracy: Some(0.97), accuracy_step: Some(376), ..at(376) };
        assert_eq!(pace.lines(&next, now).epoch.as_deref(), Some("epoch 2: accuracy 0.9700"));
    }

    #[test]
    fn an_evaluation_in_a_jobs_status_is_shown_once() {
        let report = |step: u64, evaluation: serde_json::Value| {
            let mut progress = serde_json::json!({"step": step, "totalSteps": 940, "epoch": step / 188, "percent": 0});
            progress.as_object_mut().expect("an object").extend(evaluation.as_object().expect("an object").clone());
            let status = serde_json::json!({"phase": "Running", "progress": progress});
            let status: lockstep_api::TrainingJobStatus = serde_json::from_value(status).expect("a status");
            status.report().expect("a report")
        };
        let first = serde_json::json!({"accuracy": 0.95, "accuracyStep": 188});
        let second = serde_json::json!({"accuracy": 0.97, "accuracyStep": 376});
        let reports = [(187, serde_json::json!({})), (190, first.clone()), (300, first), (380, second)];
        let mut pace = Pace::default();
        let shown = reports.map(|(step, evaluation)| pace.lines(&report(step, evaluation), Instant::now()).epoch);
        let shown: Vec<&str> = shown.iter().flatten().map(String::as_str).collect();
        assert_eq!(shown, ["epoch 1: accuracy 0.9500", "epoch 2: accuracy 0.9700"]);
    }

    #[test]
    fn an_empty_no_color_refuses_no_colours() {
        assert_eq!([None, Some(""), Some("1")].map(|value| are_refused(value.map(OsStr::new))), [false, false, true]);
    }

    #[test]
    fn a_reader_that_has_seen_enough_is_no_failure() {
        let failed = |kind: io::ErrorKind| is_unread(&io::Error::from(kind).into());
        assert_eq!([io::ErrorKind::BrokenPipe, io::ErrorKind::StorageFull].map(failed), [true, false]);
    }

    #[test]
    fn a_grace_period_that_becomes_too_short_is_shown_once() {
        let short = Progress { short_grace: Some(ShortGrace { drain_seconds: 4.0, grace_seconds: 1 }), ..at(7) };
        let mark = CheckpointMark { step: 8, uri: "file:///c".into(), ..CheckpointMark::default() };
        let fits = Progress { last_checkpoint: Some(mark), ..at(8) };
        let mut pace = Pace::default();
        let warned = [&at(6), &short, &at(8), &short, &fits, &short].map(|progress| {
            pace.lines(progress, Instant::now()).warnings.iter().any(|line| line.contains("killed after 1 s"))
        });
        assert_eq!(warned, [false, true, false, false, false, true]);
    }

    #[test]
    fn failing_saves_are_shown_when_they_begin_when_workers_wait_and_when_they_end() {
        let fails = |step, reason, waits| Progress { unsaved: Some(Unsaved::new(3, reason, waits)), ..at(step) };
        let mark = CheckpointMark { step: 8, uri: "file:///c".into(), ..CheckpointMark::default() };
        let saved = Progress { last_checkpoint: Some(mark), ..at(8) };
        let mut pace = Pace::default();
        let reports = [at(4), fails(5, "full", false), fails(6, "still full", false), fails(7, "full", true), saved];
        let warnings = reports.map(|progress| pace.lines(&progress, Instant::now()).warnings.concat());
        let expected = [
            "",
            "warning: no checkpoint is saved since step 3: full; training goes on",
            "",
            "warning: the workers wait for the storage, nothing is saved since step 3: full",
            "checkpoints are saved again; the newest holds step 8",
        ];
        assert_eq!(warnings, expected);
        assert_eq!(status(&fails(5, "full", false)), "step 5/940  loss 2.2500  saved: step 3");
    }

    #[test]
    fn a_damaged_checkpoint_is_shown_once() {
        let damaged = DamagedCheckpoint { step: 300, uri: "file:///c".into(), reason: "torn".into() };
        let warned_report = Progress { damaged_checkpoint: Some(damaged), ..at(7) };
        let mut pace = Pace::default();
        let warned =
            [&warned_report, &at(8), &warned_report].map(|progress| pace.lines(progress, Instant::now()).warnings);
        let line = "the checkpoint of step 300 in file:///c is damaged and was passed over: torn";
        assert_eq!(warned, [vec![line.to_owned()], vec![], vec![]]);
    }

    #[test]
    fn a_summary_leaves_out_unknown_facts() {
        let progress =
            Progress { accuracy: Some(0.98125), loss: None, samples_per_second: Some(91.26), ..Progress::default() };
        let text = summary(Some(&progress), Some("runs/x/model.safetensors"), Some(Duration::from_secs(3723)));
        let expected =
            "accuracy    0.9812\nmodel       runs/x/model.safetensors\nsamples/s   91.3\nduration    1h 02m\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_summary_tells_the_speed_of_the_whole_run() {
        let run = WholeRun {
            seconds: 60.0,
            samples_per_second: 810.4,
            goodput_samples_per_second: 799.6,
            goodput_ratio: 0.912,
            lost_seconds: 0.8,
        };
        let text = summary(Some(&Progress { whole_run: Some(run), ..Progress::default() }), None, None);
        assert_eq!(text, "whole run   810 samples/s, goodput 800; 91% of the time went into steps that count\n");
    }

    #[test]
    fn small_shares_keep_two_digits() {
        assert_eq!([0.934, 0.1, 0.0996, 0.0712].map(percent), ["93%", "10%", "10%", "7.1%"]);
        assert_eq!([0.934, 0.0712].map(whole_percent), ["93%", "7%"]);
    }

    #[test]
    fn durations_are_short() {
        let cases = [(0.04, "0.0s"), (9.44, "9.4s"), (9.6, "10s"), (59.4, "59s"), (61.0, "1m 01s"), (7260.0, "2h 01m")];
        for (seconds, text) in cases {
            assert_eq!(duration(seconds), text);
        }
    }
}

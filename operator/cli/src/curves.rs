//! The curves of runs as charts.

use std::cmp::Ordering;

use jiff::Timestamp;

use crate::{
    chart::{Chart, Line, Mark, MarkKind, Shape, Unit},
    metrics_lines::Step,
    run_history::{Change, RunHistory},
};

/// The greatest number of points of a line. A group that did a single step has one all the same.
const POINTS: usize = 240;

/// The horizontal axis of curves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Across {
    /// Optimiser steps.
    Step,
    /// Time since the first step.
    Time,
}

/// The curves of some runs.
pub(crate) struct Curves<'a> {
    runs: Vec<Run<'a>>,
    across: Across,
}

/// A run with its steps in few points.
struct Run<'a> {
    history: &'a RunHistory,
    /// The name that tells it from the others; empty if it is the only one.
    name: String,
    /// The beginning of the first step.
    begin: Option<Timestamp>,
    /// Points of each generation, in order.
    generations: Vec<Vec<Point>>,
}

/// The averages over some steps of one generation.
#[derive(Clone, Debug, PartialEq)]
struct Point {
    /// The place of their last step.
    x: f64,
    world: u32,
    loss: Option<f64>,
    learning_rate: f64,
    samples_per_second: f64,
    scaling: Option<f64>,
    balance: Option<f64>,
    communication: Option<f64>,
    alone: Option<f64>,
}

impl<'a> Curves<'a> {
    /// Draws each run in a colour of its own. With one run, the lines of a chart differ in colour.
    pub(crate) fn of(runs: &'a [RunHistory], across: Across) -> Self {
        let name = |history: &RunHistory| if runs.len() > 1 { history.origin.clone() } else { String::new() };
        let runs = runs.iter().map(|history| Run::of(history, name(history), across)).collect();
        Self { runs, across }
    }

    /// Mean training loss, and that of evaluations if there is one run.
    pub(crate) fn loss(&self) -> Chart {
        let mut lines = self.each("training", Shape::Solid, |point| point.loss);
        if let [run] = &self.runs[..] {
            lines.push(run.evaluations("evaluation", 1, self.across, |figures| figures.loss));
        }
        self.chart("loss", Unit::Plain, lines, false)
    }

    /// Accuracy on the held-out samples.
    pub(crate) fn accuracy(&self) -> Chart {
        let accuracy = |(colour, run): (usize, &Run<'_>)| {
            run.evaluations(&run.name, colour, self.across, |figures| figures.accuracy)
        };
        let lines = self.runs.iter().enumerate().map(accuracy).collect();
        self.chart("accuracy", Unit::Share, lines, false)
    }

    /// Samples a second, and those of so many workers by themselves if there is one run.
    pub(crate) fn throughput(&self) -> Chart {
        let mut lines = self.each("measured", Shape::Solid, |point| Some(point.samples_per_second));
        if let [run] = &self.runs[..] {
            let linear = |point: &Point| Some(point.alone? * f64::from(point.world));
            lines.push(run.line("linear: so many workers by themselves", 1, Shape::Dashed, linear));
        }
        self.chart("throughput, samples/s", Unit::Rate, lines, true)
    }

    /// Scaling efficiency, and its factors if there is one run.
    pub(crate) fn efficiency(&self) -> Chart {
        let mut lines = self.each("scaling", Shape::Solid, |point| point.scaling);
        if let [run] = &self.runs[..] {
            lines.push(run.line("load balance", 1, Shape::Solid, |point| point.balance));
            lines.push(run.line("communication", 2, Shape::Solid, |point| point.communication));
        }
        self.chart("efficiency", Unit::Share, lines, true)
    }

    /// The number of members.
    pub(crate) fn world(&self) -> Chart {
        let worlds = |(colour, run): (usize, &Run<'_>)| Line {
            name: run.name.clone(),
            colour,
            shape: Shape::Steps,
            pieces: vec![run.worlds(self.across)],
        };
        let lines = self.runs.iter().enumerate().map(worlds).collect();
        self.chart("world size", Unit::Count, lines, true)
    }

    /// The learning rate.
    pub(crate) fn learning_rate(&self) -> Chart {
        let mut lines = self.each("", Shape::Solid, |point| Some(point.learning_rate));
        // It does not change with the group.
        lines.iter_mut().for_each(|line| line.pieces = vec![line.pieces.concat()]);
        self.chart("learning rate", Unit::Plain, lines, true)
    }

    /// Returns a line for each run: under `name` if there is one, else under the run's name.
    fn each(&self, name: &str, shape: Shape, value: impl Fn(&Point) -> Option<f64>) -> Vec<Line> {
        let line = |(colour, run): (usize, &Run<'_>)| {
            let name = if run.name.is_empty() { name } else { &run.name };
            run.line(name, colour, shape, &value)
        };
        self.runs.iter().enumerate().map(line).collect()
    }

    fn chart(&self, title: &'static str, unit: Unit, mut lines: Vec<Line>, from_zero: bool) -> Chart {
        lines.retain(|line| line.pieces.iter().any(|piece| !piece.is_empty()));
        let marks = match &self.runs[..] {
            [run] => run.marks(self.across),
            _ => Vec::new(),
        };
        let across = match self.across {
            Across::Step => Unit::Count,
            Across::Time => Unit::Time,
        };
        Chart { title, unit, across, lines, marks, from_zero, span: self.span() }
    }

    /// Returns the first and the last place of all runs, so that all charts have the same axis.
    fn span(&self) -> Option<(f64, f64)> {
        let places = || self.runs.iter().flat_map(|run| run.generations.iter().flatten()).map(|point| point.x);
        let span = (places().reduce(f64::min)?, places().reduce(f64::max)?);
        (span.0 < span.1).then_some(span)
    }
}

impl<'a> Run<'a> {
    fn of(history: &'a RunHistory, name: String, across: Across) -> Self {
        let steps: Vec<&Step> = history.log.steps.iter().filter(|step| step.world_size > 0).collect();
        let formed = || history.changes.first()?.change.time.parse().ok();
        let begin = steps.first().and_then(|step| begin(step)).or_else(formed);
        let x = |step: &Step| place(across, begin, step);
        let each = steps.len().div_ceil(POINTS).max(1);
        let points = |steps: &[&Step]| {
            let mut points: Vec<Point> = steps.chunks(each).map(|steps| Point::of(steps, x)).collect();
            // A line begins with the first step, not with the end of the first average.
            if let ([first, ..], Some(begin)) = (steps, points.first().cloned())
                && begin.x > x(first)
            {
                points.insert(0, Point { x: x(first), ..begin });
            }
            points
        };
        let generations = steps.chunk_by(|left, right| left.generation == right.generation).map(points).collect();
        Self { history, name, begin, generations }
    }

    /// Returns the world sizes: by the steps, or by the changes of the group if no step is known.
    fn worlds(&self, across: Across) -> Vec<(f64, f64)> {
        if !self.generations.is_empty() {
            return self.generations.iter().flatten().map(|point| (point.x, f64::from(point.world))).collect();
        }
        let changes = self.history.changes.iter();
        let mut worlds: Vec<_> = changes
            .filter_map(|change| Some((self.place_of(change, across)?, f64::from(change.change.workers))))
            .collect();
        if let (Some((_, last)), Some(report), Across::Step) = (worlds.last(), &self.history.report, across) {
            worlds.push((report.step as f64, *last));
        }
        worlds
    }

    fn place_of(&self, change: &Change, across: Across) -> Option<f64> {
        match across {
            Across::Step => Some(change.change.step as f64),
            Across::Time => Some(seconds(self.begin?, change.change.time.parse().ok()?)),
        }
    }

    /// Returns the line of a value, with a piece for each generation.
    fn line(&self, name: &str, colour: usize, shape: Shape, value: impl Fn(&Point) -> Option<f64>) -> Line {
        let piece = |points: &Vec<Point>| points.iter().filter_map(|point| Some((point.x, value(point)?))).collect();
        Line { name: name.to_owned(), colour, shape, pieces: self.generations.iter().map(piece).collect() }
    }

    /// Returns the line of a figure of the evaluations.
    fn evaluations(
        &self,
        name: &str,
        colour: usize,
        across: Across,
        figure: impl Fn(&crate::metrics_lines::Figures) -> Option<f64>,
    ) -> Line {
        let steps = &self.history.log.steps;
        let x = |step: u64| {
            let at = steps.partition_point(|line| line.step < step);
            steps.get(at).map(|step| place(across, self.begin, step))
        };
        let evaluations = &self.history.log.evaluations;
        let points = evaluations.iter().filter_map(|found| Some((x(found.step)?, figure(&found.figures)?)));
        Line { name: name.to_owned(), colour, shape: Shape::Dots, pieces: vec![points.collect()] }
    }

    /// Returns a mark for each change of the group after its first generation.
    fn marks(&self, across: Across) -> Vec<Mark> {
        let changes = &self.history.changes;
        if changes.is_empty() {
            return self.seen_changes();
        }
        let mark = |change: &Change| {
            let x = self.place_of(change, across)?;
            let kind = match &change.change {
                change if !change.lost.is_empty() => MarkKind::Lost,
                change if !change.left.is_empty() => MarkKind::Left,
                change if !change.joined.is_empty() => MarkKind::Joined,
                _ => MarkKind::Regrouped,
            };
            Some(Mark { x, kind, text: change.change.to_string() })
        };
        changes.iter().filter(|change| change.change.generation > 1).filter_map(mark).collect()
    }

    /// Returns the changes that the metrics log alone shows.
    fn seen_changes(&self) -> Vec<Mark> {
        let mark = |pair: &[Vec<Point>]| {
            let (before, after) = (pair[0].last()?, pair[1].first()?);
            let kind = match after.world.cmp(&before.world) {
                Ordering::Less => MarkKind::Lost,
                Ordering::Equal => MarkKind::Regrouped,
                Ordering::Greater => MarkKind::Joined,
            };
            Some(Mark { x: after.x, kind, text: format!("world size {}, then {}", before.world, after.world) })
        };
        self.generations.windows(2).filter_map(mark).collect()
    }
}

impl Point {
    /// Returns the averages over steps, which are at least one. Throughput is an average over time.
    fn of(steps: &[&Step], x: impl Fn(&Step) -> f64) -> Self {
        let last = steps[steps.len() - 1];
        let samples: f64 = steps.iter().map(|step| step.samples_per_second * step.step_seconds).sum();
        let seconds: f64 = steps.iter().map(|step| step.step_seconds).sum();
        let mean = |value: fn(&Step) -> Option<f64>| {
            let known: Vec<f64> = steps.iter().filter_map(|step| value(step)).collect();
            (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
        };
        Self {
            x: x(last),
            world: last.world_size,
            loss: mean(|step| step.loss),
            learning_rate: last.learning_rate,
            samples_per_second: if seconds > 0.0 { samples / seconds } else { last.samples_per_second },
            scaling: mean(|step| step.scaling_efficiency),
            balance: mean(|step| step.load_balance),
            communication: mean(|step| step.communication_efficiency),
            alone: mean(|step| step.alone_samples_per_second),
        }
    }
}

fn place(across: Across, begin: Option<Timestamp>, step: &Step) -> f64 {
    match across {
        Across::Step => step.step as f64,
        Across::Time => begin.map_or(0.0, |begin| seconds(begin, step.time)),
    }
}

/// Returns the time at which a step began.
pub(crate) fn begin(step: &Step) -> Option<Timestamp> {
    step.time.checked_sub(jiff::SignedDuration::try_from_secs_f64(step.step_seconds).ok()?).ok()
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use lockstep_launch::GroupChange;

    use super::*;
    use crate::run_history::{Log, with_costs};

    /// A run of `steps` steps of a second, the first half with one worker and the rest with two.
    fn history(steps: u64) -> RunHistory {
        let line = |step: u64| {
            let (generation, rate) = if step <= steps / 2 { (1, 10) } else { (2, 18) };
            format!(
                "{{\"step\":{step},\"generation\":{generation},\"world_size\":{generation},\"loss\":{step},\
                 \"samples_per_second\":{rate},\"step_seconds\":1,\"alone_samples_per_second\":10,\
                 \"time\":\"2026-11-22T05:{:02}:{:02}Z\"}}\n",
                step / 60,
                step % 60
            )
        };
        let log = (1..=steps).map(line).collect::<String>() + "{\"step\":4,\"evaluation\":{\"loss\":3.5}}\n";
        RunHistory { origin: format!("runs/{steps}"), log: Log::parse(&log), ..RunHistory::default() }
    }

    #[test]
    fn throughput_breaks_where_the_group_changes_and_stands_beside_the_linear_line() {
        let runs = [history(8)];
        let chart = Curves::of(&runs, Across::Step).throughput();
        let [measured, linear] = &chart.lines[..] else { panic!("{chart:?}") };
        let points = |from: u32, to: u32, rate: f64| (from..=to).map(|step| (f64::from(step), rate)).collect();
        let pieces: [Vec<_>; 2] = [points(1, 4, 10.0), points(5, 8, 18.0)];
        assert_eq!(measured.pieces, pieces);
        assert_eq!(linear.pieces, [points(1, 4, 10.0), points(5, 8, 20.0)]);
        assert_eq!(chart.marks.iter().map(|mark| (mark.x, mark.kind)).collect::<Vec<_>>(), [(5.0, MarkKind::Joined)]);
    }

    #[test]
    fn a_mark_says_what_happened_to_the_group() {
        let line = |step: u64, generation: u64, world: u32| {
            format!(
                "{{\"step\":{step},\"generation\":{generation},\"world_size\":{world},\"loss\":1,\"step_seconds\":1,\
                 \"time\":\"2026-11-22T05:00:0{step}Z\"}}\n"
            )
        };
        let kinds = |runs: &[RunHistory]| {
            Curves::of(runs, Across::Step).loss().marks.iter().map(|mark| mark.kind).collect::<Vec<_>>()
        };
        let log = Log::parse(&[line(1, 1, 2), line(2, 2, 2), line(3, 3, 1), line(4, 4, 2)].concat());
        let seen = RunHistory { log: log.clone(), ..RunHistory::default() };
        assert_eq!(kinds(&[seen]), [MarkKind::Regrouped, MarkKind::Lost, MarkKind::Joined]);
        let broken = GroupChange {
            generation: 2,
            step: 2,
            broken: Some("a connection closed".to_owned()),
            ..GroupChange::default()
        };
        let told = RunHistory { changes: with_costs(vec![broken], &log.steps), log, ..RunHistory::default() };
        assert_eq!(kinds(&[told]), [MarkKind::Regrouped]);
    }

    #[test]
    fn a_long_run_has_few_points_and_keeps_its_ends_and_its_mean() {
        let runs = [history(2400)];
        let chart = Curves::of(&runs, Across::Step).loss();
        let points = chart.lines[0].pieces.concat();
        assert!(points.len() <= POINTS + 2, "{}", points.len());
        assert_eq!((points[0], points[points.len() - 1]), ((1.0, 5.5), (2400.0, 2395.5)));
    }

    #[test]
    fn evaluations_stand_at_the_time_of_their_step() {
        let runs = [history(8)];
        let chart = Curves::of(&runs, Across::Time).loss();
        assert_eq!(chart.lines[1].pieces, [vec![(4.0, 3.5)]]);
    }

    #[test]
    fn runs_that_are_compared_have_a_line_each_under_their_own_names() {
        let runs = [history(4), history(8)];
        let chart = Curves::of(&runs, Across::Step).efficiency();
        assert!(chart.lines.is_empty(), "no efficiency is known: {chart:?}");
        let chart = Curves::of(&runs, Across::Step).throughput();
        let names: Vec<_> = chart.lines.iter().map(|line| (line.name.as_str(), line.colour)).collect();
        assert_eq!(names, [("runs/4", 0), ("runs/8", 1)]);
        assert!(chart.marks.is_empty());
    }
}

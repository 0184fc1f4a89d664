//! The scaling of the group, by the POP methodology (Performance Optimisation and Productivity,
//! "Standard metrics").
//!
//! ```text
//! useful                   = forward + backward + update of one rank in one step, in seconds
//! load balance             = mean(useful) / max(useful)
//! communication efficiency = max(useful) / wall
//! parallel efficiency      = load balance × communication efficiency
//! scaling efficiency       = samples per second / (world × alone)
//! alone                    = samples per second of one worker that trains the whole global batch
//! ```
//!
//! A group of one measures `alone`: it is the mean of its own steps, update and loader included. A
//! larger group compares with that, or with an estimate if no group of one has trained yet. The
//! first steps of a group do not count: connections and caches warm up.

use std::collections::VecDeque;

use lockstep_launch::ScalingBaseline;

use crate::communication::Alone;

/// The number of steps over which reported figures are averaged.
const WINDOW: usize = 50;
/// A straggler is slower than this times the median in each of the last `IN_A_ROW` steps.
const SLOWER: f64 = 1.3;
const IN_A_ROW: usize = 20;
/// The number of first steps that do not count for the scaling efficiency.
const WARM_UP: usize = 3;
/// The least number of steps after these from which it is told.
const LEAST: usize = 10;
/// The least number of steps of a group of one that measure its throughput.
const MEASURED: usize = 20;

/// One step as the whole group saw it.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// Samples of the global batch.
    pub samples: u64,
    /// The seconds from the end of the last step to the end of this one.
    pub wall: f64,
    /// Useful seconds of each rank.
    pub useful: Vec<f32>,
}

/// Averages over the newest steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Efficiency {
    /// The speed of the whole group.
    pub samples_per_second: f64,
    /// 0 to 1.
    pub load_balance: f64,
    /// 0 to 1.
    pub communication: f64,
    /// The scaling efficiency, and the source of the throughput that it compares with. `None` until
    /// both are known.
    pub scaling: Option<(f64, ScalingBaseline)>,
}

/// Collects steps.
#[derive(Debug)]
pub(crate) struct Meter {
    /// Each rank's part of a step's samples. The parts add up to 1.
    shares: Vec<f64>,
    /// The throughput of one worker by itself, as far as it was known before the first step.
    alone: Option<Alone>,
    steps: VecDeque<Step>,
    /// All steps so far.
    count: usize,
    /// The samples and the seconds of all steps after the warm-up.
    warm: (u64, f64),
}

impl Meter {
    pub(crate) fn new(shares: Vec<f64>, alone: Option<Alone>) -> Self {
        Self { shares, alone, steps: VecDeque::with_capacity(WINDOW), count: 0, warm: (0, 0.0) }
    }

    /// Takes one more step into the window.
    pub(crate) fn record(&mut self, step: Step) {
        self.count += 1;
        if self.count > WARM_UP {
            self.warm = (self.warm.0 + step.samples, self.warm.1 + step.wall);
        }
        if self.steps.len() == WINDOW {
            self.steps.pop_front();
        }
        self.steps.push_back(step);
    }

    /// Returns the averages. `None` before the first step.
    pub(crate) fn efficiency(&self) -> Option<Efficiency> {
        let wall: f64 = self.steps.iter().map(|step| step.wall).sum();
        let samples: u64 = self.steps.iter().map(|step| step.samples).sum();
        if self.steps.is_empty() || wall <= 0.0 {
            return None;
        }
        let (mut greatest, mut mean) = (0.0, 0.0);
        for Step { useful, .. } in &self.steps {
            greatest += useful.iter().copied().map(f64::from).fold(0.0, f64::max);
            mean += useful.iter().copied().map(f64::from).sum::<f64>() / useful.len().max(1) as f64;
        }
        let samples_per_second = samples as f64 / wall;
        Some(Efficiency {
            samples_per_second,
            load_balance: if greatest > 0.0 { mean / greatest } else { 1.0 },
            communication: (greatest / wall).min(1.0),
            scaling: self.scaling(),
        })
    }

    /// Returns the throughput of this group, if it is one worker and has trained long enough to
    /// measure it.
    pub(crate) fn alone(&self) -> Option<Alone> {
        let (samples, seconds) = self.warm;
        let measures = self.shares.len() == 1 && self.count >= WARM_UP + MEASURED && seconds > 0.0;
        measures.then(|| Alone::measured(samples as f64 / seconds))
    }

    fn scaling(&self) -> Option<(f64, ScalingBaseline)> {
        if self.shares.len() == 1 {
            // One worker is as fast as itself.
            return self.alone().map(|_| (1.0, ScalingBaseline::Measured));
        }
        if self.count < WARM_UP + LEAST {
            return None;
        }
        let Alone { samples_per_second, source } = self.alone?;
        let cold = (WARM_UP + self.steps.len()).saturating_sub(self.count);
        let (samples, wall) =
            self.steps.range(cold..).fold((0, 0.0), |(samples, wall), step| (samples + step.samples, wall + step.wall));
        let world = self.shares.len() as f64;
        (wall > 0.0).then(|| (samples as f64 / wall / (world * samples_per_second), source))
    }

    /// Returns the ranks for which the others wait step after step although they have no more to
    /// do, with their slowness. Both their useful time and that per sample exceed the median of all
    /// ranks. The slowness is the mean over the last steps.
    pub(crate) fn stragglers(&self) -> Vec<(usize, f64)> {
        let Some(first) = self.steps.len().checked_sub(IN_A_ROW) else { return Vec::new() };
        let ranks = self.shares.len();
        let (mut slow, mut slowness) = (vec![true; ranks], vec![0.0; ranks]);
        for Step { useful, .. } in self.steps.range(first..) {
            let useful: Vec<f64> = useful.iter().copied().map(f64::from).collect();
            let by_sample: Vec<f64> = useful.iter().zip(&self.shares).map(|(useful, share)| useful / share).collect();
            let medians = [median(&useful), median(&by_sample)];
            for (rank, times) in useful.iter().zip(&by_sample).enumerate() {
                let times = (times.0 / medians[0]).min(times.1 / medians[1]);
                slow[rank] &= times > SLOWER;
                slowness[rank] += times / IN_A_ROW as f64;
            }
        }
        slowness.into_iter().enumerate().filter(|(rank, times)| slow[*rank] && times.is_finite()).collect()
    }
}

/// Returns the median; of two in the middle the lower one, because one of two ranks may be the
/// straggler.
fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(left: f64, right: f64) -> bool {
        (left - right).abs() < 1e-9
    }

    #[test]
    fn load_balance_and_communication_multiply_to_parallel_efficiency() {
        // Ranks are useful for 1, 2, 3 and 4 s of a step of 5 s: 2.5/4 × 4/5 = 2.5/5.
        let mut meter = Meter::new(vec![0.25; 4], None);
        meter.record(Step { samples: 100, wall: 5.0, useful: vec![1.0, 2.0, 3.0, 4.0] });
        let efficiency = meter.efficiency().expect("one step");
        assert!(close(efficiency.load_balance, 0.625), "{efficiency:?}");
        assert!(close(efficiency.communication, 0.8), "{efficiency:?}");
        assert!(close(efficiency.load_balance * efficiency.communication, 0.5), "{efficiency:?}");
    }

    /// Returns the meter after these steps of 108 samples, each of some seconds.
    fn after(ranks: usize, alone: Option<Alone>, walls: &[f64]) -> Meter {
        let mut meter = Meter::new(vec![1.0 / ranks as f64; ranks], alone);
        for wall in walls {
            meter.record(Step { samples: 108, wall: *wall, useful: vec![0.9; ranks] });
        }
        meter
    }

    fn scaling(meter: &Meter) -> Option<(f64, ScalingBaseline)> {
        meter.efficiency().expect("steps").scaling
    }

    #[test]
    fn scaling_efficiency_compares_with_so_many_workers_by_themselves() {
        for (alone, source) in
            [(Alone::estimated(60.0), ScalingBaseline::Estimated), (Alone::measured(60.0), ScalingBaseline::Measured)]
        {
            let found = scaling(&after(2, Some(alone), &[1.0; 2 * WINDOW])).expect("a baseline");
            assert!(close(found.0, 0.9) && found.1 == source, "{found:?}");
        }
        assert_eq!(scaling(&after(2, None, &[1.0; WINDOW])), None);
    }

    #[test]
    fn the_first_steps_of_a_group_tell_no_scaling_efficiency() {
        let alone = Some(Alone::estimated(60.0));
        let walls = [&[9.0; WARM_UP][..], &[1.0; LEAST]].concat();
        assert_eq!(scaling(&after(2, alone, &walls[..walls.len() - 1])), None, "too few");
        let found = scaling(&after(2, alone, &walls)).expect("enough");
        assert!(close(found.0, 0.9), "cold steps count: {found:?}");
    }

    #[test]
    fn a_group_of_one_measures_its_own_throughput() {
        let walls = [&[9.0; WARM_UP][..], &[2.0; MEASURED]].concat();
        let meter = after(1, Some(Alone::estimated(60.0)), &walls);
        assert_eq!(meter.alone(), Some(Alone::measured(54.0)));
        assert_eq!(scaling(&meter), Some((1.0, ScalingBaseline::Measured)));
        assert_eq!(after(1, None, &walls[1..]).alone(), None, "too few");
        assert_eq!(after(2, None, &walls).alone(), None, "of two");
    }

    #[test]
    fn only_the_newest_steps_count() {
        let mut meter = Meter::new(vec![1.0], None);
        for second in 0..2 * WINDOW {
            let wall = if second < WINDOW { 10.0 } else { 1.0 };
            meter.record(Step { samples: 7, wall, useful: vec![1.0] });
        }
        assert!(close(meter.efficiency().expect("steps").samples_per_second, 7.0));
    }

    #[test]
    fn a_rank_that_all_wait_for_step_after_step_is_a_straggler() {
        let found = |shares: &[f64], useful: &[&[f32]]| {
            let mut meter = Meter::new(shares.to_vec(), None);
            for useful in useful {
                meter.record(Step { samples: 64, wall: 1.0, useful: useful.to_vec() });
            }
            meter.stragglers()
        };
        let (third, steady, slow): (_, &[f32], &[f32]) = ([1.0 / 3.0; 3], &[1.0, 1.0, 1.1], &[1.0, 1.0, 1.4]);
        let [(2, times)] = found(&third, &[slow; IN_A_ROW])[..] else { panic!("rank 2") };
        assert!((times - 1.4).abs() < 1e-6, "{times}");
        assert!(found(&third, &[steady; IN_A_ROW]).is_empty());
        assert!(found(&third, &[slow; IN_A_ROW - 1]).is_empty(), "not long enough");
        let interrupted = [&[slow; IN_A_ROW - 1][..], &[steady], &[slow; IN_A_ROW - 1]].concat();
        assert!(found(&third, &interrupted).is_empty(), "not in a row");
        let (two, unequal): (&[f32], &[f32]) = (&[1.0, 1.4], &[1.0, 1.0, 2.0]);
        assert_eq!(
            found(&[0.5, 0.5], &[two; IN_A_ROW]).iter().map(|(rank, _)| *rank).collect::<Vec<_>>(),
            [1],
            "the slower of two"
        );
        assert!(found(&[0.25, 0.25, 0.5], &[unequal; IN_A_ROW]).is_empty(), "it has twice as much to do");
    }

    #[test]
    fn there_are_no_figures_before_the_first_step() {
        assert_eq!(Meter::new(vec![1.0 / 3.0; 3], Some(Alone::measured(1.0))).efficiency(), None);
    }
}

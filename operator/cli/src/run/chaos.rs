//! Kills for the curious. A seed alone decides their times and their victims.

use std::time::Duration;

use anyhow::{Context, bail};

use super::restart::ProcessRole;

/// The mean time between kills, from the command line.
#[derive(Clone, Copy, Debug, clap::Args)]
#[group(id = "chaos")]
pub(crate) struct Arguments {
    /// Kill a random process of the job again and again, after this time on average, such as 15s.
    #[arg(long = "chaos", value_name = "MEAN", value_parser = interval)]
    mean: Option<Duration>,
    /// Repeat the kills of an earlier run. Default: another seed each time, which is printed.
    #[arg(long = "chaos-seed", value_name = "SEED", requires = "mean")]
    seed: Option<u64>,
}

/// All kills of a run, in order: an endless iterator.
#[derive(Clone, Debug)]
pub(crate) struct Chaos {
    mean: Duration,
    seed: u64,
    state: u64,
    at: Duration,
}

/// One kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kill {
    /// Time after the start of the job.
    pub(crate) at: Duration,
    lot: u64,
}

impl Arguments {
    /// Makes the kills, with the seed `lot` if the user gave none.
    pub(crate) fn chaos(self, lot: u64) -> Option<Chaos> {
        let Self { mean, seed } = self;
        Some(Chaos::new(mean?, seed.unwrap_or(lot)))
    }
}

impl Chaos {
    fn new(mean: Duration, seed: u64) -> Self {
        Self { mean, seed, state: seed, at: Duration::ZERO }
    }

    /// Returns the line that announces the kills.
    pub(crate) fn announcement(&self) -> String {
        let Self { mean, seed, .. } = self;
        format!("chaos: every {mean:?} on average a process is killed; --chaos-seed {seed} repeats it")
    }

    /// SplitMix64 (Steele et al., 2014).
    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl Iterator for Chaos {
    type Item = Kill;

    /// Pauses are `−mean·ln(1 − u)`, u uniform in [0, 1): the time to the next kill does not depend
    /// on the last one.
    fn next(&mut self) -> Option<Kill> {
        let share = (self.draw() >> 11) as f64 / (1_u64 << 53) as f64;
        self.at += self.mean.mul_f64(-(1.0 - share).ln());
        Some(Kill { at: self.at, lot: self.draw() })
    }
}

impl Kill {
    /// Picks the victim among the running processes.
    pub(crate) fn victim(self, running: &[ProcessRole]) -> Option<ProcessRole> {
        let index = self.lot.checked_rem(running.len() as u64)?;
        running.get(index as usize).copied()
    }
}

fn interval(text: &str) -> anyhow::Result<Duration> {
    let span: jiff::SignedDuration = text.parse().with_context(|| "expected a time such as 15s, 500ms or 2m")?;
    match Duration::try_from(span) {
        Ok(interval) if !interval.is_zero() => Ok(interval),
        _ => bail!("expected a time above zero"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEAN: Duration = Duration::from_secs(15);
    const RUNNING: [ProcessRole; 3] = [ProcessRole::Coordinator, ProcessRole::Worker(0), ProcessRole::Worker(1)];

    #[test]
    fn a_seed_decides_every_kill() {
        let kills = |seed| -> Vec<Kill> { Chaos::new(MEAN, seed).take(100).collect() };
        assert_eq!(kills(7), kills(7));
        assert_ne!(kills(7), kills(8));
        assert!(kills(7).windows(2).all(|pair| pair[0].at <= pair[1].at));
    }

    #[test]
    fn kills_come_at_the_mean_interval_and_hit_each_process_equally() {
        let kills: Vec<Kill> = Chaos::new(MEAN, 1).take(30_000).collect();
        let mean = kills.last().expect("the last").at.as_secs_f64() / 30_000.0;
        assert!((mean / MEAN.as_secs_f64() - 1.0).abs() < 0.02, "{mean} s between two");
        for role in RUNNING {
            let hits = kills.iter().filter(|kill| kill.victim(&RUNNING) == Some(role)).count();
            assert!((9500..10_500).contains(&hits), "{role}: {hits} of 30000");
        }
        assert_eq!(kills[0].victim(&[]), None);
    }

    #[test]
    fn a_time_has_a_unit_and_is_not_zero() {
        for (text, expected) in [("15s", 15_000), ("500ms", 500), ("2m", 120_000), ("1.5s", 1500)] {
            assert_eq!(interval(text).expect(text).as_millis(), expected, "{text}");
        }
        for text in ["15", "0s", "-3s", "soon"] {
            assert!(interval(text).is_err(), "{text}");
        }
    }
}

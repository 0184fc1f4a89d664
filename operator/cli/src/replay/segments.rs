//! Which memberships did which steps of a run: what was done again from a checkpoint counts only as it was done last.

use std::{fmt, num::NonZeroU32};

use anyhow::{Context, bail, ensure};
use lockstep_launch::{AgreedPlan, GroupChange};

/// The steps that one membership did and that count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) generation: u64,
    pub(crate) workers: NonZeroU32,
    /// Steps that were done before.
    pub(crate) from: u64,
    /// Its last step; none for the job's own.
    pub(crate) to: Option<u64>,
    /// How it summed.
    pub(crate) plan: String,
}

/// All of them in order, where what the workers stored agrees with what the coordinator told.
pub(crate) fn segments(mut planned: Vec<AgreedPlan>, history: &[GroupChange]) -> anyhow::Result<Vec<Segment>> {
    // Whoever was stopped before it stored its line may have done so long after.
    planned.sort_by_key(|planned| (planned.generation, planned.step));
    compare(&planned, history)?;
    let mut last: Vec<AgreedPlan> = Vec::new();
    for planned in planned {
        while last.last().is_some_and(|before| before.step >= planned.step) {
            last.pop();
        }
        last.push(planned);
    }
    match last.first() {
        None => bail!("it tells of no membership that trained"),
        Some(first) => ensure!(first.step == 0, "how the steps before {} were done is not known", first.step + 1),
    }
    let ends: Vec<_> = last.iter().skip(1).map(|next| Some(next.step)).chain([None]).collect();
    last.into_iter()
        .zip(ends)
        .map(|(AgreedPlan { generation, workers, step: from, plan }, to)| {
            let workers = NonZeroU32::new(workers).with_context(|| format!("generation {generation} of no workers"))?;
            Ok(Segment { generation, workers, from, to, plan })
        })
        .collect()
}

/// A coordinator that is killed may tell of no change; what it tells is what the workers did.
fn compare(planned: &[AgreedPlan], history: &[GroupChange]) -> anyhow::Result<()> {
    for (index, GroupChange { generation, workers, step, .. }) in history.iter().enumerate() {
        let mut of_it = planned.iter().filter(|planned| planned.generation == *generation);
        match of_it.next() {
            Some(planned) => ensure!(
                (planned.workers, planned.step) == (*workers, *step),
                "generation {generation} had {} workers after step {} for the workers, {workers} after step {step} in \
                 its history",
                planned.workers,
                planned.step
            ),
            None => ensure!(
                history.get(index + 1).is_none_or(|next| next.rollback || next.step <= *step),
                "how generation {generation} summed is not known, although it did steps"
            ),
        }
        for AgreedPlan { workers: told, step, .. } in of_it {
            ensure!(
                told == workers,
                "generation {generation} had {told} workers after step {step} for the workers, {workers} in its history"
            );
        }
    }
    Ok(())
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { generation, workers, from, to, plan: _ } = self;
        let noun = if workers.get() == 1 { "worker" } else { "workers" };
        write!(f, "generation {generation}: {workers} {noun}, steps {} to ", from + 1)?;
        match to {
            Some(to) => write!(f, "{to}"),
            None => f.write_str("the last"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(lines: &[(u64, u32, u64)]) -> Vec<AgreedPlan> {
        lines
            .iter()
            .map(|(generation, workers, step)| AgreedPlan {
                generation: *generation,
                workers: *workers,
                step: *step,
                plan: format!("plan {generation}"),
            })
            .collect()
    }

    fn told(lines: &[(u64, u32, u64, bool)]) -> Vec<GroupChange> {
        lines
            .iter()
            .map(|(generation, workers, step, rollback)| GroupChange {
                generation: *generation,
                workers: *workers,
                step: *step,
                rollback: *rollback,
                ..GroupChange::default()
            })
            .collect()
    }

    /// As they are shown.
    fn shown(lines: &[(u64, u32, u64)]) -> Vec<String> {
        segments(planned(lines), &[]).expect("segments").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_generation_does_the_steps_up_to_the_next_ones_base() {
        assert_eq!(
            shown(&[(1, 3, 0), (2, 2, 50), (4, 1, 90)]),
            [
                "generation 1: 3 workers, steps 1 to 50",
                "generation 2: 2 workers, steps 51 to 90",
                "generation 4: 1 worker, steps 91 to the last",
            ]
        );
    }

    #[test]
    fn a_generation_without_a_step_is_passed_over_whenever_its_line_was_stored() {
        let expected = ["generation 1: 3 workers, steps 1 to 50", "generation 3: 1 worker, steps 51 to the last"];
        assert_eq!(shown(&[(1, 3, 0), (2, 2, 50), (3, 1, 50)]), expected);
        assert_eq!(shown(&[(1, 3, 0), (3, 1, 50), (2, 2, 50)]), expected);
    }

    #[test]
    fn a_generation_that_agreed_anew_is_two_parts() {
        let expected = [
            "generation 1: 3 workers, steps 1 to 12",
            "generation 1: 3 workers, steps 13 to 50",
            "generation 2: 2 workers, steps 51 to the last",
        ];
        assert_eq!(shown(&[(1, 3, 0), (1, 3, 12), (2, 2, 50)]), expected);
        // What it agreed on before a rollback to its beginning is of no use.
        assert_eq!(shown(&[(1, 3, 0), (1, 3, 12), (2, 2, 0)]), ["generation 2: 2 workers, steps 1 to the last"]);
    }

    #[test]
    fn steps_that_were_done_again_count_as_they_were_done_last() {
        let expected = ["generation 1: 2 workers, steps 1 to 30", "generation 4: 2 workers, steps 31 to the last"];
        assert_eq!(shown(&[(1, 2, 0), (2, 1, 50), (3, 2, 70), (4, 2, 30)]), expected);
        assert_eq!(shown(&[(1, 2, 0), (2, 1, 50), (5, 3, 0)]), ["generation 5: 3 workers, steps 1 to the last"]);
    }

    #[test]
    fn what_cannot_be_followed_is_refused() {
        let run = [(1, 3, 0), (2, 2, 50), (3, 1, 90)];
        for (lines, history, expected) in [
            (&[][..], &[][..], "no membership"),
            (&run[1..], &[], "the steps before 51"),
            (&run, &[(2, 3, 50, false)], "generation 2 had 2 workers after step 50"),
            (&run, &[(3, 1, 91, false)], "generation 3 had 1 workers after step 90"),
            (&[run[0], run[2]], &[(1, 3, 0, false), (2, 2, 50, false), (3, 1, 90, false)], "how generation 2 summed"),
            (&[(1, 3, 0), (1, 2, 12)], &[(1, 3, 0, false)], "generation 1 had 2 workers after step 12"),
            (&[(1, 3, 0), (1, 3, 12)], &[(1, 2, 0, false)], "generation 1 had 3 workers after step 0"),
            (&[(1, 0, 0)], &[], "no workers"),
        ] {
            let error = format!("{:#}", segments(planned(lines), &told(history)).expect_err(expected));
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_change_that_nobody_told_and_one_before_a_rollback_may_lack_their_line() {
        let run = [(1, 3, 0), (2, 2, 50), (4, 1, 20)];
        let history = told(&[(1, 3, 0, false), (3, 2, 60, false), (4, 1, 20, true)]);
        assert_eq!(segments(planned(&run), &history).expect("segments").len(), 2);
    }
}

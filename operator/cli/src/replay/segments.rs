//! Divides the steps of a run among the memberships that did them. After a return to a checkpoint,
//! some steps were done again. Only their last repetition counts.

use std::{fmt, num::NonZeroU32};

use anyhow::{Context, bail, ensure};
use lockstep_launch::{AgreedPlan, GroupChange};

/// Consecutive steps that one membership did by one plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) generation: u64,
    pub(crate) workers: NonZeroU32,
    /// The number of steps done before the segment.
    pub(crate) from: u64,
    /// The last step of the segment. `None` for the last step of the job.
    pub(crate) to: Option<u64>,
    /// The plan by which the membership summed gradients.
    pub(crate) plan: String,
}

/// Returns all segments in order. Fails if the workers' plans contradict the coordinator's history.
pub(crate) fn segments(mut planned: Vec<AgreedPlan>, history: &[GroupChange]) -> anyhow::Result<Vec<Segment>> {
    // Lines may be out of order: a paused worker stores its line late.
    planned.sort_by_key(|planned| (planned.generation, planned.step));
    compare(&planned, history)?;
    // A later plan replaces all plans from its step on.
    let mut valid: Vec<AgreedPlan> = Vec::new();
    for planned in planned {
        while valid.last().is_some_and(|before| before.step >= planned.step) {
            valid.pop();
        }
        valid.push(planned);
    }
    match valid.first() {
        None => bail!("no membership trained"),
        Some(first) => ensure!(first.step == 0, "the plan of the steps before {} is not known", first.step + 1),
    }
    let ends: Vec<_> = valid.iter().skip(1).map(|next| Some(next.step)).chain([None]).collect();
    valid
        .into_iter()
        .zip(ends)
        .map(|(AgreedPlan { generation, workers, step: from, plan }, to)| {
            let workers =
                NonZeroU32::new(workers).with_context(|| format!("generation {generation} has no workers"))?;
            Ok(Segment { generation, workers, from, to, plan })
        })
        .collect()
}

/// Checks the plans against the history. If a coordinator was killed, the history may lack a
/// change. Each change that it has must fit the plans.
fn compare(planned: &[AgreedPlan], history: &[GroupChange]) -> anyhow::Result<()> {
    for (index, GroupChange { generation, workers, step, .. }) in history.iter().enumerate() {
        let mut plans = planned.iter().filter(|planned| planned.generation == *generation);
        match plans.next() {
            Some(planned) => ensure!(
                (planned.workers, planned.step) == (*workers, *step),
                "generation {generation} had {} workers after step {} by its plan, {workers} after step {step} by \
                 its history",
                planned.workers,
                planned.step
            ),
            None => ensure!(
                history.get(index + 1).is_none_or(|next| next.rollback || next.step <= *step),
                "the plan of generation {generation} is not known, although it did steps"
            ),
        }
        for AgreedPlan { workers: planned, step, .. } in plans {
            ensure!(
                planned == workers,
                "generation {generation} had {planned} workers after step {step} by its plan, {workers} by its history"
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

    fn changes(lines: &[(u64, u32, u64, bool)]) -> Vec<GroupChange> {
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

    /// Returns each segment as a user reads it.
    fn shown(lines: &[(u64, u32, u64)]) -> Vec<String> {
        segments(planned(lines), &[]).expect("segments").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_generation_does_the_steps_up_to_the_next_one() {
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
    fn a_generation_without_a_step_is_left_out() {
        let expected = ["generation 1: 3 workers, steps 1 to 50", "generation 3: 1 worker, steps 51 to the last"];
        assert_eq!(shown(&[(1, 3, 0), (2, 2, 50), (3, 1, 50)]), expected);
        assert_eq!(shown(&[(1, 3, 0), (3, 1, 50), (2, 2, 50)]), expected);
    }

    #[test]
    fn a_generation_with_two_plans_is_two_segments() {
        let expected = [
            "generation 1: 3 workers, steps 1 to 12",
            "generation 1: 3 workers, steps 13 to 50",
            "generation 2: 2 workers, steps 51 to the last",
        ];
        assert_eq!(shown(&[(1, 3, 0), (1, 3, 12), (2, 2, 50)]), expected);
        // A rollback to step 0 voids both plans of generation 1.
        assert_eq!(shown(&[(1, 3, 0), (1, 3, 12), (2, 2, 0)]), ["generation 2: 2 workers, steps 1 to the last"]);
    }

    #[test]
    fn repeated_steps_count_as_their_last_repetition() {
        let expected = ["generation 1: 2 workers, steps 1 to 30", "generation 4: 2 workers, steps 31 to the last"];
        assert_eq!(shown(&[(1, 2, 0), (2, 1, 50), (3, 2, 70), (4, 2, 30)]), expected);
        assert_eq!(shown(&[(1, 2, 0), (2, 1, 50), (5, 3, 0)]), ["generation 5: 3 workers, steps 1 to the last"]);
    }

    #[test]
    fn a_run_with_unknown_or_contradictory_steps_is_refused() {
        let run = [(1, 3, 0), (2, 2, 50), (3, 1, 90)];
        for (lines, history, expected) in [
            (&[][..], &[][..], "no membership"),
            (&run[1..], &[], "plan of the steps before 51"),
            (&run, &[(2, 3, 50, false)], "generation 2 had 2 workers after step 50"),
            (&run, &[(3, 1, 91, false)], "generation 3 had 1 workers after step 90"),
            (&[run[0], run[2]], &[(1, 3, 0, false), (2, 2, 50, false), (3, 1, 90, false)], "the plan of generation 2"),
            (&[(1, 3, 0), (1, 2, 12)], &[(1, 3, 0, false)], "generation 1 had 2 workers after step 12"),
            (&[(1, 3, 0), (1, 3, 12)], &[(1, 2, 0, false)], "generation 1 had 3 workers after step 0"),
            (&[(1, 0, 0)], &[], "no workers"),
        ] {
            let error = format!("{:#}", segments(planned(lines), &changes(history)).expect_err(expected));
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_lost_change_and_a_generation_before_a_rollback_are_tolerated() {
        let run = [(1, 3, 0), (2, 2, 50), (4, 1, 20)];
        let history = changes(&[(1, 3, 0, false), (3, 2, 60, false), (4, 1, 20, true)]);
        assert_eq!(segments(planned(&run), &history).expect("segments").len(), 2);
    }
}

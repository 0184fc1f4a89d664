//! Jobs at work: what changes their group, what slows them down, and that all is well.

use lockstep_api::{ConditionType, JobProgress, Phase};
use lockstep_launch::Straggler;

use super::{
    facts::{Facts, MUCH_DATA, STANDS_STILL},
    finding::Finding,
    words::{ago, count, listed, percent, said, sentence, spell},
};

/// Below this load balance, fast workers wait too long for slow ones.
const GOOD_BALANCE: f64 = 0.85;
/// Below this communication efficiency, sums cost too much.
const GOOD_COMMUNICATION: f64 = 0.75;
/// Below this share of steps that count in the run's time, something else costs too much.
const GOOD_GOODPUT: f64 = 0.7;
/// Seconds after which the goodput of a run says something.
const GOODPUT_SETTLES: f64 = 120.0;

/// Finds a number of workers that is about to change.
pub(super) fn resizing(facts: &Facts) -> Option<Finding> {
    let (status, wanted, world) = (facts.status(), facts.spec().replicas, facts.world());
    if !facts.is_in(Phase::Running) || world == 0 || wanted == world || !status.replacing.is_empty() {
        return None;
    }
    let name = facts.name();
    let grows = wanted > world;
    let verb = if grows { "grows" } else { "shrinks" };
    let how = match grows {
        true => "New workers join between two steps, once their pods run; the others train on meanwhile.",
        false => "The workers with the highest numbers leave after a whole step; no step is lost.",
    };
    let there = match status.replicas {
        1 => "1 worker's pod exists".to_owned(),
        pods => format!("{pods} workers' pods exist"),
    };
    let have = if status.ready_replicas == 1 { "has" } else { "have" };
    let there = format!("{there}, {} {have} joined.", status.ready_replicas);
    Some(
        Finding::new(format!("{name} {verb} from {world} to {}, as spec.replicas asks.", count(wanted, "worker")))
            .seen(how)
            .seen(there)
            .next(facts.lockstep("watch", ""), "follow it"),
    )
}

/// Finds what slows a job down, the most expensive first.
pub(super) fn slow(facts: &Facts) -> Vec<Finding> {
    let Some(progress) = facts.status().progress.as_ref().filter(|_| facts.is_in(Phase::Running)) else {
        return Vec::new();
    };
    let found = [
        unsaved(facts),
        still(facts, progress),
        straggler(facts, progress),
        unequal(facts, progress),
        data(facts),
        communication(facts, progress),
        interrupted(facts, progress),
    ];
    found.into_iter().flatten().collect()
}

/// Finds saves that fail.
fn unsaved(facts: &Facts) -> Option<Finding> {
    let failing = facts.condition(ConditionType::CheckpointsFailing).filter(|condition| condition.status == "True")?;
    let finding = Finding::new(format!("{} cannot save its state.", facts.name())).seen_all(said(&failing.message));
    Some(
        finding
            .next(facts.kubectl("describe persistentvolumeclaims"), "if checkpoints go to a claim: its size and state")
            .next(facts.lockstep("logs", " --tail 50"), "what the storage answers"),
    )
}

/// Finds a group without a step for long.
fn still(facts: &Facts, progress: &JobProgress) -> Option<Finding> {
    let since = progress.last_update_time.as_ref()?.0;
    let newer =
        facts.group.as_ref().and_then(|group| group.progress.as_ref()).is_some_and(|told| told.step > progress.step);
    if newer || facts.now.duration_since(since) < STANDS_STILL || progress.step >= progress.total_steps {
        return None;
    }
    let beats = facts.workers.iter().filter(|worker| worker.heartbeat > 0.0);
    let oldest = beats.min_by(|one, other| one.heartbeat.total_cmp(&other.heartbeat));
    let name = facts.name();
    Some(
        Finding::new(format!("{name} stands still: no step for {}, at step {}.", ago(since, facts.now), progress.step))
            .seen_all(oldest.map(|worker| format!("{} ended its last step before all others.", worker.worker)))
            .seen("An evaluation or a wait for the storage can take this long; anything else is a fault.")
            .next(facts.lockstep("logs", " --tail 50"), "what the workers say")
            .next(facts.lockstep("top", ""), "what each of them does now"),
    )
}

/// Finds workers for which the others wait in every step.
fn straggler(facts: &Facts, progress: &JobProgress) -> Option<Finding> {
    let slowest = progress.stragglers.iter().max_by(|one, other| one.times.total_cmp(&other.times))?;
    let Straggler { pod, times } = slowest;
    let seen = facts.pods_seen();
    let node = seen.iter().find(|seen| seen.name == *pod).and_then(|seen| seen.node.clone());
    let beside: Vec<&str> =
        seen.iter().filter(|other| other.name != *pod && other.node == node).map(|other| other.name.as_str()).collect();
    let others: Vec<String> =
        progress.stragglers.iter().filter(|other| other.pod != *pod).map(Straggler::to_string).collect();
    let place = node.as_ref().map(|node| match beside.is_empty() {
        true => format!("It runs on node {node}, alone of this job."),
        false => format!("It runs on node {node}, beside {}.", listed(&beside)),
    });
    let cost = progress
        .load_balance
        .map(|balance| format!("The workers compute {} of the time that they could.", percent(balance)));
    let name = facts.name();
    let finding = Finding::new(format!(
        "{name} is slow: in every step it waits for {pod}, which takes {times:.1} times as long as most."
    ))
    .seen_all(place)
    .seen_all(cost)
    .seen_all(others.iter().map(|other| sentence(other)))
    .next(facts.lockstep("top", ""), "each worker's time in a step");
    Some(match &node {
        Some(node) => finding
            .next(format!("kubectl describe node {node}"), "what else runs there, and whether the node is well")
            .next(
                format!("kubectl cordon {node} && {}", facts.kubectl(&format!("delete pod {pod}"))),
                "move it to another node; the others keep the state",
            ),
        None => finding,
    })
}

/// Finds an unequal load that no single worker causes all the time.
fn unequal(facts: &Facts, progress: &JobProgress) -> Option<Finding> {
    let balance = progress.load_balance.filter(|balance| *balance < GOOD_BALANCE && progress.stragglers.is_empty())?;
    let latest =
        facts.workers.iter().max_by(|one, other| one.lag_ms.unwrap_or(0.0).total_cmp(&other.lag_ms.unwrap_or(0.0)));
    let latest = latest.filter(|worker| worker.lag_ms > Some(0.0)).map(|worker| {
        format!(
            "{} comes last, {:.1} ms after the first in a mean step.",
            worker.worker,
            worker.lag_ms.unwrap_or_default()
        )
    });
    Some(
        Finding::new(format!(
            "{} is slower than it could be: its workers need unequal times for a step.",
            facts.name()
        ))
        .seen(format!("Load balance {}: fast workers wait for slow ones for the rest.", percent(balance)))
        .seen_all(latest)
        .seen("Other pods on the same cores, or nodes of unequal speed, are the usual cause.")
        .next(facts.lockstep("top", ""), "who computes longest, and who waits")
        .next(facts.kubectl("get pods -o wide"), "which pods share a node"),
    )
}

/// Finds workers that wait for their samples.
fn data(facts: &Facts) -> Option<Finding> {
    let worst = facts.workers.iter().max_by(|one, other| one.data.total_cmp(&other.data))?;
    if worst.data < MUCH_DATA {
        return None;
    }
    let slow = facts.workers.iter().filter(|worker| worker.data >= MUCH_DATA).count();
    let matter = format!(
        "{} is slow: its workers wait for data, {} for {} of its time.",
        facts.name(),
        worst.worker,
        percent(worst.data)
    );
    Some(
        Finding::new(matter)
            .seen(format!(
                "{slow} of {} workers wait for data more than {} of the time.",
                facts.workers.len(),
                percent(MUCH_DATA)
            ))
            .seen("Reading and decoding keep up if the data is near and the worker has cores for it.")
            .seen("For the next run: spec.dataset.cache on a local disk, or more CPU for the trainer container.")
            .next(facts.lockstep("top", ""), "each worker's share of waits for data"),
    )
}

/// Finds sums that computation does not hide.
fn communication(facts: &Facts, progress: &JobProgress) -> Option<Finding> {
    let efficiency = progress.communication_efficiency.filter(|efficiency| *efficiency < GOOD_COMMUNICATION)?;
    let used = progress.communication.map(|used| {
        format!(
            "Gradients travel by {} as {}, in {} buckets, summed by algorithm {}.",
            used.link, used.wire, used.buckets, used.algorithm,
        )
    });
    let scaling = progress
        .scaling_efficiency
        .map(|scaling| format!("Scaling efficiency {} with {}.", percent(scaling), count(facts.world(), "worker")));
    let matter = format!("{} is slow: it communicates for {} of each step.", facts.name(), percent(1.0 - efficiency));
    let fewer = facts.fewer_workers(facts.spec().replicas / 2, |_| "fewer workers communicate less".to_owned());
    Some(Finding::new(matter)
        .seen_all(used)
        .seen_all(scaling)
        .seen("A small model or a small batch has too little to compute between two sums.")
        .seen("For the next run: communication.wire: bf16, which halves the bytes, or a greater training.globalBatchSize.")
        .next(facts.lockstep("top", ""), "each worker's time in a step")
        .next_if(fewer))
}

/// Finds a run whose time goes elsewhere than into steps that count.
fn interrupted(facts: &Facts, progress: &JobProgress) -> Option<Finding> {
    let run = progress.whole_run.filter(|run| run.seconds > GOODPUT_SETTLES && run.goodput_ratio < GOOD_GOODPUT)?;
    let status = facts.status();
    let lost = (run.lost_seconds > 0.0)
        .then(|| format!("{:.0} s went into steps that were lost and done again.", run.lost_seconds));
    let losses: Vec<String> = status
        .worker_restarts
        .by_reason()
        .into_iter()
        .filter(|(_, number)| *number > 0)
        .map(|(reason, number)| format!("{number} {reason}"))
        .collect();
    let losses = (!losses.is_empty()).then(|| format!("Workers lost so far: {}.", losses.join(", ")));
    let matter = format!(
        "{} makes slow progress: only {} of the run's time went into steps that count.",
        facts.name(),
        percent(run.goodput_ratio)
    );
    Some(
        Finding::new(matter)
            .seen("The rest is evaluations, checkpoints, changes of the group and lost work.")
            .seen_all(lost)
            .seen_all(losses)
            .next(facts.lockstep("top", ""), "what the workers do now, OTHER included")
            .next(
                facts.kubectl(&format!("get tg {} -o yaml", facts.name())),
                "the newest changes of the group, with their causes",
            ),
    )
}

/// Says that all is well, with the figures that show it.
pub(super) fn well(facts: &Facts) -> Finding {
    let (status, name) = (facts.status(), facts.name());
    let Some(progress) = &status.progress else {
        return Finding::new(format!(
            "{name} is at work with {}; it has not reported a step yet.",
            count(facts.world(), "worker")
        ))
        .next(facts.lockstep("watch", ""), "follow it");
    };
    let rest =
        progress.estimated_remaining_seconds.map(|rest| format!(", done in about {}", spell(rest))).unwrap_or_default();
    let speed = progress.samples_per_second.map(|speed| format!(" at {speed:.0} samples/s")).unwrap_or_default();
    let what = if status.benchmark.is_some() { "measures" } else { "trains" };
    let matter = format!(
        "{name} {what}, and nothing is wrong: step {} of {} ({}%) with {}{speed}{rest}.",
        progress.step,
        progress.total_steps,
        progress.percent,
        count(facts.world(), "worker")
    );
    let efficiency = [
        ("scaling efficiency", progress.scaling_efficiency),
        ("load balance", progress.load_balance),
        ("communication efficiency", progress.communication_efficiency),
    ];
    let efficiency: Vec<String> =
        efficiency.into_iter().filter_map(|(name, share)| Some(format!("{name} {}", percent(share?)))).collect();
    let efficiency =
        (!efficiency.is_empty()).then(|| format!("Of what its workers could do: {}.", efficiency.join(", ")));
    let saved = status.last_checkpoint.as_ref().map(|mark| match mark.time.parse() {
        Ok(time) => format!("Its newest checkpoint holds step {}, saved {} ago.", mark.step, ago(time, facts.now)),
        Err(_) => format!("Its newest checkpoint holds step {}.", mark.step),
    });
    let lost = status.worker_restarts.total();
    let lost = (lost > 0).then(|| format!("Workers that it has lost and replaced so far: {lost}."));
    Finding::new(matter)
        .seen_all(efficiency)
        .seen_all(saved)
        .seen_all(lost)
        .seen_all(progress.short_grace.map(|short| format!("Before the next drain: {}", sentence(&short.to_string()))))
        .seen_all(progress.damaged_checkpoint.as_ref().map(|damaged| sentence(&damaged.to_string())))
        .next(facts.lockstep("watch", ""), "follow it")
}

/// Describes a job that reached its end.
pub(super) fn complete(facts: &Facts) -> Finding {
    let (status, name) = (facts.status(), facts.name());
    let end = status.completion_time.as_ref().map(|end| end.0);
    let since = end.map(|end| format!(" {} ago", ago(end, facts.now))).unwrap_or_default();
    let took = status
        .start_time
        .as_ref()
        .zip(end)
        .map(|(start, end)| format!(" after {}", ago(start.0, end)))
        .unwrap_or_default();
    let progress = status.progress.as_ref();
    let result = progress.and_then(|progress| {
        let accuracy = progress.accuracy.map(|accuracy| format!("accuracy {accuracy:.4}"));
        let loss = progress.loss.map(|loss| format!("loss {loss:.4}"));
        let all: Vec<String> = accuracy.into_iter().chain(loss).collect();
        (!all.is_empty()).then(|| format!("It did {} steps: {}.", progress.total_steps, all.join(", ")))
    });
    let finding = Finding::new(format!("{name} is complete: it ended{since}{took}.")).seen_all(result);
    let lost = status.worker_restarts.total();
    let finding =
        finding.seen_all((lost > 0).then(|| format!("Workers that it lost and replaced on the way: {lost}.")));
    match &status.model_uri {
        Some(uri) => finding
            .seen(format!("The model is in {uri}."))
            .next("lockstep predict --help", "what to do with the model, once you have copied it from there"),
        None => finding,
    }
}

//! The speed of the group's sums. Every rank does the same all-reduces; rank 0 notes their times.
//!
//! Before each sum, all ranks agree to do it, in a sum of its own. So they begin together, rank 0
//! alone decides when a row has been repeated enough, and a rank that was asked to stop stops all
//! others.

use std::{
    io::Write as _,
    time::{Duration, Instant},
};

use lockstep_collective::algorithm::Algorithm;
use lockstep_collective::{Choice, CollectiveError, Costs, Group, Hosts, Reduction, SharedArena, Tag, Wire};
use lockstep_elastic::Digest;
use lockstep_launch::{
    BenchmarkReport, ChosenFrom, Collectives, CollectivesReport, Communication, CommunicationAlgorithm, Ending,
    MessageCosts, Progress,
};
use tracing::info;

use crate::{
    communication::{by_messages, named, wire},
    failure::Failure,
    membership::session::{Halt, Session},
};

/// The first sums of each row do not count: caches are cold and windows closed.
const WARM_UP: usize = 2;
/// The number of sums of each row that count, however long they take.
const LEAST: usize = 3;
/// After this time, no further sum of a row begins.
const ROW_LIMIT: Duration = Duration::from_secs(5);

/// The votes before each sum. The greatest of all ranks holds.
const GO_ON: u8 = 0;
const ENOUGH: u8 = 1;
const CHANGE: u8 = 2;
const DRAIN: u8 = 3;

/// How a sum is formed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Means {
    Memory,
    Messages(Algorithm),
}

/// A way to sum, by the name that a manifest gives it.
#[derive(Clone, Debug, PartialEq)]
struct Candidate {
    name: String,
    means: Means,
}

/// Measures all sizes by all candidates. `None` if the group changes before that.
pub(crate) fn measure(
    session: &Session<'_>,
    formed: &lockstep_elastic::Assignment,
    collectives: &Collectives,
    communication: &Communication,
) -> Result<Option<Ending>, Failure> {
    let mut group = session.form(formed)?;
    session.membership.entered();
    let (world, first) = (group.world(), group.id().rank == 0);
    let over_memory = group.shares_memory() && communication.algorithm == CommunicationAlgorithm::Auto;
    let algorithm = by_messages(communication);
    let costs = group.measure_costs().map_err(Failure::lost)?;
    let choice = named(algorithm, world).unwrap_or_else(|| Choice::Cheapest(costs.unwrap_or_default()));
    let hosts = group.hosts().clone();
    let candidates = candidates(algorithm, &hosts, over_memory);
    let chosen = |bytes: u64| chosen(&candidates, choice, &hosts, bytes);
    let sizes: Vec<u64> = collectives.sizes().collect();
    let mut report = CollectivesReport {
        workers: formed.world,
        wire: communication.wire,
        costs: costs.map(reported),
        choices: choices(collectives, chosen),
        rows: Vec::new(),
    };

    let longest = elements(sizes.iter().max().copied().unwrap_or_default());
    let arena = if over_memory { group.shared_arena(longest).map_err(Failure::lost)? } else { None };
    let memory = arena.map_or_else(|| Memory::Own(vec![0.0; longest]), Memory::Shared);
    let wire = wire(communication.wire);
    let mut ranks = Ranks { session, group, memory, wire, repetitions: collectives.repetitions as usize, row: 0 };
    let total_steps = (sizes.len() * candidates.len()) as u64;
    let progress = |report: &CollectivesReport, step| Progress {
        step,
        total_steps,
        generation: formed.generation,
        world_size: formed.world,
        benchmark: Some(Box::new(BenchmarkReport::Collectives(report.clone()))),
        time: Some(jiff::Timestamp::now().to_string()),
        ..Progress::default()
    };
    for bytes in sizes {
        for candidate in &candidates {
            let seconds = match ranks.row(candidate.means, elements(bytes)).map_err(Failure::lost)? {
                Row::Measured(seconds) => seconds,
                Row::Halted(Halt::Change) => return Ok(None),
                Row::Halted(Halt::Drain) => return session.drained(ranks.row).map_or(Ok(None), Err),
            };
            if first {
                report.add(bytes, &candidate.name, seconds, Some(candidate) == chosen(bytes));
                let progress = progress(&report, ranks.row);
                session.membership.progress(ranks.row, serde_json::to_vec(&progress).map_err(Failure::fatal)?);
            }
        }
    }
    let mut ending = Ending::default();
    if first {
        info!(rows = report.rows.len(), "measured");
        // The table is for people who read the log; the report is sent apart from it.
        let _nobody_reads = write!(std::io::stdout(), "{}", report.table());
        ending.progress = Some(progress(&report, total_steps));
    }
    session.finished(total_steps, Digest::of(b""), ending)
}

/// The result of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Row {
    /// The median time of its sums, in seconds.
    Measured(f64),
    /// All ranks stopped before its end.
    Halted(Halt),
}

/// The group, seen by one of its ranks.
struct Ranks<'a> {
    session: &'a Session<'a>,
    group: Group,
    memory: Memory,
    wire: Wire,
    repetitions: usize,
    /// The number of rows that are done.
    row: u64,
}

/// The memory that is summed.
enum Memory {
    Own(Vec<f32>),
    Shared(SharedArena),
}

impl AsMut<[f32]> for Memory {
    fn as_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Own(memory) => memory,
            Self::Shared(memory) => memory.as_mut(),
        }
    }
}

impl Ranks<'_> {
    /// Measures a row of the table on this rank.
    fn row(&mut self, means: Means, elements: usize) -> Result<Row, CollectiveError> {
        let begun = Instant::now();
        let mut seconds = Vec::new();
        loop {
            let counted = seconds.len().saturating_sub(WARM_UP);
            let slow = counted >= LEAST && begun.elapsed() >= ROW_LIMIT;
            match self.agree(counted >= self.repetitions || slow)? {
                GO_ON => seconds.push(self.sum(means, elements, seconds.len() as u32)?),
                ENOUGH => break,
                CHANGE => return Ok(Row::Halted(Halt::Change)),
                _ => return Ok(Row::Halted(Halt::Drain)),
            }
        }
        self.row += 1;
        let counted = &mut seconds[WARM_UP..];
        counted.sort_by(f64::total_cmp);
        Ok(Row::Measured(counted[counted.len() / 2]))
    }

    /// Agrees with the other ranks what to do next.
    fn agree(&mut self, enough: bool) -> Result<u8, CollectiveError> {
        let word = match (self.session.halt(), enough && self.group.id().rank == 0) {
            (Some(Halt::Drain), _) => DRAIN,
            (Some(Halt::Change), _) => CHANGE,
            (None, true) => ENOUGH,
            (None, false) => GO_ON,
        };
        let mut words = [word];
        let tag = Tag { step: self.row, bucket: u32::MAX };
        self.group.all_reduce(Algorithm::RecursiveDoubling, tag, &mut words, Reduction::Max)?;
        Ok(words[0])
    }

    fn sum(&mut self, means: Means, elements: usize, repetition: u32) -> Result<f64, CollectiveError> {
        let tag = Tag { step: self.row, bucket: repetition };
        let data = &mut self.memory.as_mut()[..elements];
        // Sums of sums would grow beyond all bounds.
        data.fill(1.0);
        let moved = match means {
            Means::Memory => self.group.all_reduce_in_memory(tag, data, Reduction::Sum)?,
            Means::Messages(algorithm) => self.group.sum(self.wire, algorithm, tag, data)?,
        };
        let seconds = moved.took.as_secs_f64();
        self.session.metrics.collective_seconds.inc_by(seconds);
        self.session.metrics.bytes_sent.inc_by(moved.bytes_sent);
        self.session.metrics.bytes_through_memory.inc_by(moved.bytes_through_memory);
        Ok(seconds)
    }
}

/// Returns the candidates: the algorithm that the job names, or every one that differs from the
/// others among the group's ranks.
fn candidates(wanted: CommunicationAlgorithm, hosts: &Hosts, over_memory: bool) -> Vec<Candidate> {
    let by_messages = |algorithm: CommunicationAlgorithm| match named(algorithm, hosts.world()) {
        Some(Choice::Always(means)) => Some(Candidate { name: algorithm.to_string(), means: Means::Messages(means) }),
        Some(Choice::Cheapest(_)) | None => None,
    };
    let memory = Candidate { name: "memory".to_owned(), means: Means::Memory };
    if let Some(only) = by_messages(wanted) {
        return std::iter::once(only).chain(over_memory.then_some(memory)).collect();
    }
    let all = std::iter::successors(after(CommunicationAlgorithm::Auto), |algorithm| after(*algorithm));
    let differs = |candidate: &Candidate| match candidate.means {
        // A torus of one column is a ring.
        Means::Messages(Algorithm::Torus { columns: 1 }) => false,
        Means::Messages(Algorithm::Hierarchical) => hosts.are_mixed(),
        // Between two hosts, the direct exchange is the ring.
        Means::Messages(Algorithm::Direct) => !hosts.are_mixed() || hosts.count() > 2,
        Means::Messages(_) | Means::Memory => true,
    };
    all.filter_map(by_messages).filter(differs).chain(over_memory.then_some(memory)).collect()
}

/// Returns the next algorithm, in the order of the rows.
fn after(algorithm: CommunicationAlgorithm) -> Option<CommunicationAlgorithm> {
    match algorithm {
        CommunicationAlgorithm::Auto => Some(CommunicationAlgorithm::Ring),
        CommunicationAlgorithm::Ring => Some(CommunicationAlgorithm::RecursiveDoubling),
        CommunicationAlgorithm::RecursiveDoubling => Some(CommunicationAlgorithm::HalvingDoubling),
        CommunicationAlgorithm::HalvingDoubling => Some(CommunicationAlgorithm::DoubleTree),
        CommunicationAlgorithm::DoubleTree => Some(CommunicationAlgorithm::Torus),
        CommunicationAlgorithm::Torus => Some(CommunicationAlgorithm::Hierarchical),
        CommunicationAlgorithm::Hierarchical => Some(CommunicationAlgorithm::Direct),
        // The canonical tree is halving and doubling with another order of the terms.
        CommunicationAlgorithm::Direct | CommunicationAlgorithm::CanonicalTree => None,
    }
}

/// Returns the candidate that training would choose for a sum of `bytes` bytes.
fn chosen<'a>(candidates: &'a [Candidate], choice: Choice, hosts: &Hosts, bytes: u64) -> Option<&'a Candidate> {
    let by_messages = Means::Messages(choice.algorithm(hosts, usize::try_from(bytes).unwrap_or(usize::MAX)));
    let with = |means: Means| candidates.iter().find(|candidate| candidate.means == means);
    with(Means::Memory).or_else(|| with(by_messages))
}

/// Returns the sizes at which the choice changes. It looks at powers of two times the shortest sum.
fn choices<'a>(collectives: &Collectives, chosen: impl Fn(u64) -> Option<&'a Candidate>) -> Vec<ChosenFrom> {
    let most = collectives.max_bytes.get();
    let twice = |bytes: &u64| Some(bytes * 2).filter(|bytes| *bytes <= most);
    let mut choices: Vec<ChosenFrom> = std::iter::successors(Some(collectives.min_bytes.get()), twice)
        .filter_map(|bytes| Some(ChosenFrom { bytes, algorithm: chosen(bytes)?.name.clone() }))
        .collect();
    choices.dedup_by(|later, earlier| later.algorithm == earlier.algorithm);
    choices
}

fn reported(costs: Costs) -> MessageCosts {
    let Costs { message, wire_byte, reduced_byte } = costs;
    MessageCosts {
        latency_microseconds: message * 1e6,
        gigabytes_per_second: 1e-9 / wire_byte,
        reduced_gigabytes_per_second: 1e-9 / reduced_byte,
    }
}

fn elements(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX) / size_of::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(wanted: CommunicationAlgorithm, world: usize, over_memory: bool) -> Vec<String> {
        candidates(wanted, &Hosts::apart(world), over_memory).into_iter().map(|candidate| candidate.name).collect()
    }

    #[test]
    fn a_torus_of_one_column_is_not_measured_beside_the_ring() {
        let auto = CommunicationAlgorithm::Auto;
        assert!(names(auto, 4, false).contains(&"torus".to_owned()));
        assert!(!names(auto, 3, false).contains(&"torus".to_owned()));
    }

    #[test]
    fn hierarchies_are_measured_if_some_workers_share_a_host() {
        let mixed = Hosts::counted(vec![0, 0, 1]).expect("counted");
        for (hosts, measured) in [(Hosts::apart(3), false), (mixed, true)] {
            let all = candidates(CommunicationAlgorithm::Auto, &hosts, false);
            assert_eq!(all.iter().any(|candidate| candidate.name == "hierarchical"), measured, "{hosts:?}");
        }
    }

    #[test]
    fn an_algorithm_that_the_job_names_is_measured_alone() {
        assert_eq!(names(CommunicationAlgorithm::Torus, 3, false), ["torus"]);
    }

    #[test]
    fn shared_memory_is_chosen() {
        let hosts = Hosts::apart(4);
        let all = candidates(CommunicationAlgorithm::Auto, &hosts, true);
        let found = chosen(&all, Choice::default(), &hosts, 1 << 20).map(|candidate| candidate.name.as_str());
        assert_eq!(found, Some("memory"));
    }

    #[test]
    fn choices_name_the_size_at_which_another_algorithm_takes_over() {
        let all = candidates(CommunicationAlgorithm::Auto, &Hosts::apart(4), false);
        let (few_messages, few_bytes) = (&all[1], &all[0]);
        let found =
            choices(&Collectives::default(), |bytes| Some(if bytes < 10_000 { few_messages } else { few_bytes }));
        let found: Vec<_> = found.iter().map(|from| (from.bytes, from.algorithm.as_str())).collect();
        assert_eq!(found, [(1024, few_messages.name.as_str()), (16_384, few_bytes.name.as_str())]);
    }
}

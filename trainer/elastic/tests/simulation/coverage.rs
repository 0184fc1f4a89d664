//! Counts the faults by kind, moment and victim.

/// A fault or a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Kill,
    Freeze,
    Stick,
    Slow,
    Cut,
    Partition,
    Deafen,
    Mute,
    UnconnectedPair,
    Leave,
    /// The process that was replaced by this one returns.
    Return,
    Join,
    Double,
    StoreLate,
    StoreDeaf,
    StoreAway,
    KillAll,
    Jump,
}

/// The stage of the group or of the victim. Several may hold at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    // Stages of the group, for any victim.
    Gathering,
    Preparing,
    /// The store has not received the membership yet.
    Activating,
    /// The store has it, and no process knows.
    Recorded,
    // Stages of a worker. If the victim is not a worker, any worker's stage counts.
    /// Its membership is recorded, and it has not started to connect.
    Committed,
    Forming,
    /// It catches up with a group that trains, or feeds a follower.
    Following,
    /// It copies, or is copied from.
    Copying,
    /// It has not contributed to its next step.
    Computing,
    /// No rank knows yet that all have done the step before.
    Exchanging,
    /// Others know it already.
    Unheard,
    /// It waits for shares of the sum.
    Adding,
    /// It waits for summed elements.
    Spreading,
    /// Others have the sum already.
    Lagging,
    /// It has the sum and has not applied it.
    Summed,
    /// It has done a step and does not know that all have.
    Done,
    /// It was asked to seal and has not sealed yet.
    Sealing,
    /// It stops with the others after a step.
    Pausing,
    Finishing,
}

/// The victim of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victim {
    RankZero,
    OtherRank,
    Source,
    Newcomer,
    Leaver,
    Coordinator,
}

impl Fault {
    pub(crate) const ALL: [Self; 18] = [
        Self::Kill,
        Self::Freeze,
        Self::Stick,
        Self::Slow,
        Self::Cut,
        Self::Partition,
        Self::Deafen,
        Self::Mute,
        Self::UnconnectedPair,
        Self::Leave,
        Self::Return,
        Self::Join,
        Self::Double,
        Self::StoreLate,
        Self::StoreDeaf,
        Self::StoreAway,
        Self::KillAll,
        Self::Jump,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill -9",
            Self::Freeze => "stopped and continued",
            Self::Stick => "training thread stuck",
            Self::Slow => "slow machine",
            Self::Cut => "connection reset",
            Self::Partition => "partition",
            Self::Deafen => "partition, hears nothing",
            Self::Mute => "partition, is not heard",
            Self::UnconnectedPair => "unconnected pair",
            Self::Leave => "planned leave",
            Self::Return => "older process returns",
            Self::Join => "new pod",
            Self::Double => "second coordinator",
            Self::StoreLate => "store late",
            Self::StoreDeaf => "store's answer lost",
            Self::StoreAway => "store away for long",
            Self::KillAll => "all killed at once",
            Self::Jump => "clock jumps ahead",
        }
    }
}

impl Moment {
    pub(crate) const ALL: [Self; 19] = [
        Self::Gathering,
        Self::Preparing,
        Self::Activating,
        Self::Recorded,
        Self::Committed,
        Self::Forming,
        Self::Following,
        Self::Copying,
        Self::Computing,
        Self::Exchanging,
        Self::Unheard,
        Self::Adding,
        Self::Spreading,
        Self::Lagging,
        Self::Summed,
        Self::Done,
        Self::Sealing,
        Self::Pausing,
        Self::Finishing,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Gathering => "gathering",
            Self::Preparing => "preparing",
            Self::Activating => "activating",
            Self::Recorded => "recorded, not announced",
            Self::Committed => "committed, not started",
            Self::Forming => "connecting",
            Self::Following => "following",
            Self::Copying => "copying",
            Self::Computing => "before its share",
            Self::Exchanging => "during the numbers",
            Self::Unheard => "others have the numbers",
            Self::Adding => "during the sum, adding",
            Self::Spreading => "during the sum, copying",
            Self::Lagging => "others have the sum",
            Self::Summed => "summed, not applied",
            Self::Done => "done, not stable",
            Self::Sealing => "asked to seal",
            Self::Pausing => "pausing for a planned change",
            Self::Finishing => "finishing",
        }
    }
}

impl Victim {
    pub(crate) const ALL: [Self; 6] =
        [Self::RankZero, Self::OtherRank, Self::Source, Self::Newcomer, Self::Leaver, Self::Coordinator];

    const fn name(self) -> &'static str {
        match self {
            Self::RankZero => "rank 0",
            Self::OtherRank => "other rank",
            Self::Source => "source",
            Self::Newcomer => "newcomer",
            Self::Leaver => "leaver",
            Self::Coordinator => "coordinator",
        }
    }
}

/// Returns the reason why a cell cannot be hit.
pub(crate) fn impossible(fault: Fault, moment: Moment, victim: Victim) -> Option<&'static str> {
    no_such_victim(fault, victim).or_else(|| match (fault, moment, victim) {
        (Fault::Return, Moment::Recorded, _) => Some("the coordinator does not know the replaced process yet"),
        (Fault::Join, ..) | (.., Victim::Coordinator) => None,
        _ => never_there(moment, victim),
    })
}

const fn no_such_victim(fault: Fault, victim: Victim) -> Option<&'static str> {
    match (fault, victim) {
        (Fault::Kill | Fault::Freeze | Fault::Slow | Fault::Jump, _) => None,
        (Fault::Stick, Victim::Coordinator) => Some("it does not train"),
        (Fault::Stick, _) => None,
        (Fault::Cut | Fault::Partition | Fault::Deafen | Fault::Mute, Victim::Coordinator) => {
            Some("a connection has a member at its other end, and counts there")
        }
        (Fault::Cut | Fault::Partition | Fault::Deafen | Fault::Mute, _) => None,
        (Fault::UnconnectedPair, Victim::Coordinator) => Some("it takes part in no sum"),
        (Fault::UnconnectedPair, _) => None,
        (Fault::Leave, Victim::Leaver) => Some("it already leaves"),
        (Fault::Leave, Victim::Coordinator) => Some("it is not a member; stopping it counts as a kill"),
        (Fault::Leave, _) => None,
        (Fault::Return, Victim::Newcomer) => Some("no process may know yet that it replaced another"),
        (Fault::Return, Victim::Coordinator) => Some("the record decides between two"),
        (Fault::Return, _) => None,
        (Fault::Join, Victim::Newcomer) => None,
        (Fault::Join, _) => Some("a joining process is a newcomer"),
        (Fault::Double | Fault::StoreLate | Fault::StoreDeaf | Fault::StoreAway, Victim::Coordinator) => None,
        (Fault::Double | Fault::StoreLate | Fault::StoreDeaf | Fault::StoreAway, _) => {
            Some("the coordinator is the victim")
        }
        (Fault::KillAll, Victim::RankZero) => None,
        (Fault::KillAll, _) => Some("it hits all and counts for rank 0"),
    }
}

const fn never_there(moment: Moment, victim: Victim) -> Option<&'static str> {
    match (moment, victim) {
        (
            Moment::Computing
            | Moment::Exchanging
            | Moment::Unheard
            | Moment::Adding
            | Moment::Spreading
            | Moment::Lagging
            | Moment::Summed
            | Moment::Done
            | Moment::Finishing,
            Victim::Newcomer,
        ) => Some("a training worker is not a newcomer"),
        (
            Moment::Unheard
            | Moment::Adding
            | Moment::Spreading
            | Moment::Lagging
            | Moment::Summed
            | Moment::Done
            | Moment::Finishing,
            Victim::Source,
        ) => Some("no sum is complete while a member copies"),
        _ => None,
    }
}

/// The number of hits of each cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Coverage {
    hits: Vec<u64>,
}

impl Default for Coverage {
    fn default() -> Self {
        Self { hits: vec![0; Fault::ALL.len() * Moment::ALL.len() * Victim::ALL.len()] }
    }
}

fn cell(fault: Fault, moment: Moment, victim: Victim) -> usize {
    (fault as usize * Moment::ALL.len() + moment as usize) * Victim::ALL.len() + victim as usize
}

impl Coverage {
    pub(crate) fn hit(&mut self, fault: Fault, moment: Moment, victim: Victim) {
        self.hits[cell(fault, moment, victim)] += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.hits.iter_mut().zip(&other.hits) {
            *mine += theirs;
        }
    }

    /// Returns the cells that can be hit and were not.
    pub(crate) fn empty(&self) -> Vec<String> {
        let mut empty = Vec::new();
        for fault in Fault::ALL {
            for moment in Moment::ALL {
                for victim in Victim::ALL {
                    if impossible(fault, moment, victim).is_none() && self.hits[cell(fault, moment, victim)] == 0 {
                        empty.push(format!("{}, {}, {}", fault.name(), moment.name(), victim.name()));
                    }
                }
            }
        }
        empty
    }

    /// Prints one row for each fault and moment, with `-` where a cell cannot exist.
    pub(crate) fn print(&self) {
        let columns: Vec<_> = Victim::ALL.iter().map(|victim| format!("{:>11}", victim.name())).collect();
        println!("{:<24} {:<28} {}", "fault", "moment", columns.join(" "));
        for fault in Fault::ALL {
            for moment in Moment::ALL {
                let hits = |victim: &Victim| match impossible(fault, moment, *victim) {
                    None => format!("{:>11}", self.hits[cell(fault, moment, *victim)]),
                    Some(_) => format!("{:>11}", "-"),
                };
                let columns: Vec<_> = Victim::ALL.iter().map(hits).collect();
                println!("{:<24} {:<28} {}", fault.name(), moment.name(), columns.join(" "));
            }
        }
        let mut reasons: Vec<_> = Fault::ALL
            .iter()
            .flat_map(|fault| Victim::ALL.iter().map(move |victim| (*fault, *victim)))
            .filter_map(|(fault, victim)| Some((fault.name(), victim.name(), no_such_victim(fault, victim)?)))
            .chain(Moment::ALL.iter().flat_map(|moment| {
                let never = |victim: &Victim| Some((moment.name(), victim.name(), never_there(*moment, *victim)?));
                Victim::ALL.iter().filter_map(never)
            }))
            .collect();
        reasons.dedup_by_key(|(fault, _, reason)| (*fault, *reason));
        for (fault, victim, reason) in reasons {
            println!("- {fault}, from {victim}: {reason}");
        }
    }
}

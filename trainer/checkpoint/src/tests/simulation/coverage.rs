//! Counts the faults by kind, moment and victim.

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Kill,
    KillAll,
    PowerOff,
    Freeze,
    Error,
    LostAnswer,
    Full,
    SyncFails,
    SyncLies,
    Flip,
}

/// The next action of the process that the fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Moment {
    Copying,
    Syncing,
    Naming,
    Noting,
    Gathering,
    Replacing,
    Publishing,
    Verifying,
    Deleting,
    Loading,
}

/// The process that the fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Victim {
    Writer,
    Committer,
    /// It was held up and goes on beside a newer generation.
    LateWriter,
    LateCommitter,
    Pruner,
    Loader,
}

impl Fault {
    pub(super) const ALL: [Self; 10] = [
        Self::Kill,
        Self::KillAll,
        Self::PowerOff,
        Self::Freeze,
        Self::Error,
        Self::LostAnswer,
        Self::Full,
        Self::SyncFails,
        Self::SyncLies,
        Self::Flip,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Kill => "process killed",
            Self::KillAll => "all killed",
            Self::PowerOff => "power failure",
            Self::Freeze => "held up",
            Self::Error => "input/output error",
            Self::LostAnswer => "error, yet done",
            Self::Full => "no space left",
            Self::SyncFails => "failed sync",
            Self::SyncLies => "lost sync",
            Self::Flip => "flipped bit",
        }
    }
}

impl Moment {
    pub(super) const ALL: [Self; 10] = [
        Self::Copying,
        Self::Syncing,
        Self::Naming,
        Self::Noting,
        Self::Gathering,
        Self::Replacing,
        Self::Publishing,
        Self::Verifying,
        Self::Deleting,
        Self::Loading,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Copying => "copying",
            Self::Syncing => "syncing",
            Self::Naming => "naming",
            Self::Noting => "noting",
            Self::Gathering => "gathering",
            Self::Replacing => "replacing",
            Self::Publishing => "publishing",
            Self::Verifying => "verifying",
            Self::Deleting => "deleting",
            Self::Loading => "loading",
        }
    }
}

impl Victim {
    pub(super) const ALL: [Self; 6] =
        [Self::Writer, Self::Committer, Self::LateWriter, Self::LateCommitter, Self::Pruner, Self::Loader];

    const fn name(self) -> &'static str {
        match self {
            Self::Writer => "writer",
            Self::Committer => "committer",
            Self::LateWriter => "late writer",
            Self::LateCommitter => "late committer",
            Self::Pruner => "pruner",
            Self::Loader => "loader",
        }
    }

    /// True if this victim ever reaches the moment.
    const fn does(self, moment: Moment) -> bool {
        match moment {
            Moment::Copying | Moment::Syncing | Moment::Naming | Moment::Noting => {
                matches!(self, Self::Writer | Self::LateWriter)
            }
            Moment::Gathering | Moment::Replacing | Moment::Publishing => {
                matches!(self, Self::Committer | Self::LateCommitter)
            }
            Moment::Verifying | Moment::Deleting => {
                matches!(self, Self::Committer | Self::LateCommitter | Self::Pruner)
            }
            Moment::Loading => matches!(self, Self::Loader),
        }
    }
}

/// Returns the reason why no process can meet the fault at this moment.
pub(super) const fn impossible(fault: Fault, moment: Moment) -> Option<&'static str> {
    match (fault, moment) {
        (Fault::LostAnswer | Fault::Full, Moment::Loading) => Some("a load only reads"),
        (Fault::Full, Moment::Syncing) => Some("it is a failed sync"),
        (Fault::Full, Moment::Gathering | Moment::Verifying | Moment::Deleting) => Some("the action needs no space"),
        (Fault::SyncFails | Fault::SyncLies, Moment::Copying | Moment::Gathering | Moment::Loading) => {
            Some("nothing is synced then")
        }
        (Fault::Freeze, Moment::Loading) => Some("no process waits for a reader"),
        _ => None,
    }
}

/// The number of hits of each cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Coverage([[[u64; Victim::ALL.len()]; Moment::ALL.len()]; Fault::ALL.len()]);

impl Coverage {
    pub(super) fn hit(&mut self, fault: Fault, moment: Moment, victim: Victim) {
        self.0[fault as usize][moment as usize][victim as usize] += 1;
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.cells_mut().zip(other.0.iter().flatten().flatten()) {
            *mine += theirs;
        }
    }

    fn cells_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        self.0.iter_mut().flatten().flatten()
    }

    pub(super) fn of(&self, fault: Fault) -> u64 {
        self.0[fault as usize].iter().flatten().sum()
    }

    pub(super) fn faults(&self) -> u64 {
        self.0.iter().flatten().flatten().sum()
    }

    /// Returns the number of hits of a cell, or `None` if it cannot exist.
    fn hits(&self, fault: Fault, moment: Moment, victim: Victim) -> Option<u64> {
        let exists = impossible(fault, moment).is_none() && victim.does(moment);
        exists.then(|| self.0[fault as usize][moment as usize][victim as usize])
    }

    /// Returns the possible cells without a hit.
    pub(super) fn empty(&self) -> Vec<String> {
        let mut empty = Vec::new();
        for fault in Fault::ALL {
            for moment in Moment::ALL {
                let unmet = Victim::ALL.into_iter().filter(|victim| self.hits(fault, moment, *victim) == Some(0));
                empty
                    .extend(unmet.map(|victim| format!("{} while {}, {}", fault.name(), moment.name(), victim.name())));
            }
        }
        empty
    }

    /// Prints one line for each fault and moment, with `-` for a cell that cannot exist.
    pub(super) fn print(&self) {
        let columns: Vec<_> = Victim::ALL.iter().map(|victim| format!("{:>14}", victim.name())).collect();
        println!("{:<18} {:<10} {}", "fault", "moment", columns.join(" "));
        for fault in Fault::ALL {
            for moment in Moment::ALL {
                if let Some(reason) = impossible(fault, moment) {
                    println!("{:<18} {:<10} {reason}", fault.name(), moment.name());
                    continue;
                }
                let hits = |victim| self.hits(fault, moment, victim).map_or("-".to_owned(), |hits| hits.to_string());
                let columns = Victim::ALL.map(|victim| format!("{:>14}", hits(victim)));
                println!("{:<18} {:<10} {}", fault.name(), moment.name(), columns.join(" "));
            }
        }
    }
}

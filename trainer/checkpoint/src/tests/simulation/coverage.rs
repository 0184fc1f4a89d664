//! Which fault was met at which moment.

/// Something that goes wrong.
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

/// What the process that it hits is about to do.
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

/// Why a cell cannot be hit.
pub(super) const fn impossible(fault: Fault, moment: Moment) -> Option<&'static str> {
    match (fault, moment) {
        (Fault::LostAnswer | Fault::Full, Moment::Loading) => Some("it only reads"),
        (Fault::Full, Moment::Syncing) => Some("that is a failed sync"),
        (Fault::Full, Moment::Gathering | Moment::Verifying | Moment::Deleting) => Some("it needs no space"),
        (Fault::SyncFails | Fault::SyncLies, Moment::Copying | Moment::Gathering | Moment::Loading) => {
            Some("nothing is synced then")
        }
        (Fault::Freeze, Moment::Loading) => Some("nobody waits for a reader"),
        _ => None,
    }
}

/// How often each cell was hit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Coverage([[u64; Moment::ALL.len()]; Fault::ALL.len()]);

impl Coverage {
    pub(super) fn hit(&mut self, fault: Fault, moment: Moment) {
        self.0[fault as usize][moment as usize] += 1;
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().flatten().zip(other.0.iter().flatten()) {
            *mine += theirs;
        }
    }

    pub(super) fn of(&self, fault: Fault) -> u64 {
        self.0[fault as usize].iter().sum()
    }

    pub(super) fn faults(&self) -> u64 {
        self.0.iter().flatten().sum()
    }

    /// Cells that can be hit and were not.
    pub(super) fn empty(&self) -> Vec<String> {
        let all = Fault::ALL.into_iter().flat_map(|fault| Moment::ALL.map(|moment| (fault, moment)));
        let empty = all.filter(|(fault, moment)| {
            impossible(*fault, *moment).is_none() && self.0[*fault as usize][*moment as usize] == 0
        });
        empty.map(|(fault, moment)| format!("{} while {}", fault.name(), moment.name())).collect()
    }

    /// One line for each fault; `-` where a cell cannot exist.
    pub(super) fn print(&self) {
        let columns: Vec<_> = Moment::ALL.iter().map(|moment| format!("{:>10}", moment.name())).collect();
        println!("{:<18} {}", "fault", columns.join(" "));
        for fault in Fault::ALL {
            let hits = |moment: Moment| match impossible(fault, moment) {
                None => format!("{:>10}", self.0[fault as usize][moment as usize]),
                Some(_) => format!("{:>10}", "-"),
            };
            println!("{:<18} {}", fault.name(), Moment::ALL.map(hits).join(" "));
        }
        for fault in Fault::ALL {
            for moment in Moment::ALL {
                if let Some(reason) = impossible(fault, moment) {
                    println!("- {} while {}: {reason}", fault.name(), moment.name());
                }
            }
        }
    }
}

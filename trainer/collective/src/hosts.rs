//! The hosts of the ranks. Bytes within a host cost less than bytes between hosts, whose ranks all
//! share one line.

/// The file that identifies the running kernel, the same in all containers of a machine.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// The name of an unknown host.
const UNKNOWN: u64 = 0;

/// The host of each rank of a group. Hosts are numbered in the order of their first ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// By rank.
    numbers: Box<[u32]>,
    count: usize,
    crossings: usize,
    /// The most ranks of any host, and the fewest.
    fullest: usize,
    emptiest: usize,
}

impl Hosts {
    /// Returns `world` ranks, each on a host of its own.
    ///
    /// # Panics
    /// If the ranks exceed 32 bits.
    #[must_use]
    pub fn apart(world: usize) -> Self {
        Self::new((0..u32::try_from(world).expect("ranks are counted in 32 bits")).collect())
    }

    /// Groups ranks by the name that they gave. Ranks with the name [`UNKNOWN`] share no host.
    pub(crate) fn named(names: &[u64]) -> Self {
        let mut first: Vec<u64> = Vec::new();
        let hosts = names.iter().map(|name| {
            let known = first.iter().position(|found| found == name && *name != UNKNOWN);
            let host = known.unwrap_or(first.len());
            if known.is_none() {
                first.push(*name);
            }
            host as u32
        });
        Self::new(hosts.collect())
    }

    fn new(numbers: Box<[u32]>) -> Self {
        let rows = rows(&numbers);
        let sizes = || rows.iter().map(Vec::len);
        let (fullest, emptiest) = (sizes().max().unwrap_or_default(), sizes().min().unwrap_or_default());
        let leaves = |rank: usize| numbers[rank] != numbers[(rank + 1) % numbers.len()];
        let leaving = rows.iter().map(|row| row.iter().filter(|rank| leaves(**rank)).count());
        Self { count: rows.len(), crossings: leaving.max().unwrap_or_default(), fullest, emptiest, numbers }
    }

    /// Returns the hosts of all ranks, if they are numbered in the order of their first ranks.
    #[must_use]
    pub fn counted(hosts: Vec<u32>) -> Option<Self> {
        let mut next = 0;
        for host in &hosts {
            if *host > next {
                return None;
            }
            next = next.max(host + 1);
        }
        Some(Self::new(hosts.into()))
    }

    /// Returns the host's number of each rank.
    #[must_use]
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn world(&self) -> usize {
        self.numbers.len()
    }

    /// Returns true if there are several hosts and one of them has several ranks.
    #[must_use]
    pub fn are_mixed(&self) -> bool {
        1 < self.count && self.count < self.world()
    }

    /// Returns the number of hosts.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns how often a ring of the ranks leaves a host, at most. It is once if the ranks of
    /// each host follow one another.
    #[must_use]
    pub fn crossings(&self) -> usize {
        self.crossings
    }

    /// Returns the number of ranks on the host that has the most.
    #[must_use]
    pub fn fullest(&self) -> usize {
        self.fullest
    }

    /// Returns the number of ranks on the host that has the fewest.
    #[must_use]
    pub fn emptiest(&self) -> usize {
        self.emptiest
    }

    /// Returns the number of ranks on the host of `rank`, including `rank`.
    pub(crate) fn beside(&self, rank: usize) -> usize {
        self.numbers.iter().filter(|host| **host == self.numbers[rank]).count()
    }

    /// Returns the number of ranks before `rank` on its host.
    pub(crate) fn before(&self, rank: usize) -> usize {
        self.numbers[..rank].iter().filter(|host| **host == self.numbers[rank]).count()
    }

    /// Returns the ranks of each host.
    #[must_use]
    pub fn ranks(&self) -> Vec<Vec<usize>> {
        rows(&self.numbers)
    }
}

fn rows(numbers: &[u32]) -> Vec<Vec<usize>> {
    let mut rows = vec![Vec::new(); numbers.iter().max().map_or(0, |last| *last as usize + 1)];
    for (rank, host) in numbers.iter().enumerate() {
        rows[*host as usize].push(rank);
    }
    rows
}

/// Returns this host's name.
pub(crate) fn this_host() -> u64 {
    std::fs::read_to_string(BOOT).map_or(UNKNOWN, |boot| named(&boot))
}

/// Folds the 128 random bits of a kernel's start into a name.
fn named(boot: &str) -> u64 {
    let digits: String = boot.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).map_or(UNKNOWN, |bits| (bits >> 64) as u64 ^ bits as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_numbered_in_the_order_of_their_first_ranks() {
        let hosts = Hosts::named(&[7, 9, 7, UNKNOWN, UNKNOWN, 9]);
        assert_eq!(hosts.numbers(), [0, 1, 0, 2, 3, 1]);
        assert_eq!(hosts.ranks(), [vec![0, 2], vec![1, 5], vec![3], vec![4]]);
        assert_eq!([0, 3, 5].map(|rank| hosts.beside(rank)), [2, 1, 2]);
        assert_eq!(Hosts::counted(hosts.numbers().to_vec()), Some(hosts));
        assert_eq!(Hosts::counted(vec![1, 0]), None);
        assert_eq!(Hosts::counted(vec![0, 2]), None);
    }

    #[test]
    fn a_ring_leaves_a_host_once_for_each_run_of_its_ranks() {
        for (names, crossings) in
            [(&[1, 1, 2, 2][..], 1), (&[1, 2, 1, 2], 2), (&[1, 1, 1], 0), (&[1, 2, 1, 1, 2], 2), (&[], 0)]
        {
            assert_eq!(Hosts::named(names).crossings(), crossings, "{names:?}");
        }
    }

    #[test]
    fn hosts_are_mixed_if_some_ranks_share_one() {
        for (names, mixed) in
            [(&[1, 2, 3][..], false), (&[1, 1, 1], false), (&[1, 2, 1], true), (&[1], false), (&[], false)]
        {
            assert_eq!(Hosts::named(names).are_mixed(), mixed, "{names:?}");
        }
    }

    #[test]
    fn a_host_is_named_by_its_digits_and_unknown_without_any() {
        assert_eq!(named("00000000-0000-0001-0000-000000000006\n"), 7);
        assert_eq!(named(""), UNKNOWN);
    }

    #[test]
    fn this_host_has_a_name() {
        assert_ne!(this_host(), UNKNOWN);
    }
}

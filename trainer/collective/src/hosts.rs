//! Which ranks share a host: bytes between those cost less than bytes between hosts, whose ranks all share one line.

/// Where the system says which start of which machine this is, to all its containers alike.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// Of a host that nobody knows.
const UNKNOWN: u64 = 0;

/// The host of each rank of a group, counted in the order of their first ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// Of each rank.
    numbers: Box<[u32]>,
    count: usize,
    crossings: usize,
    /// Ranks of the host with the most, and of that with the fewest.
    fullest: usize,
    emptiest: usize,
}

impl Hosts {
    /// So many ranks, each on a host of its own.
    ///
    /// # Panics
    /// For more ranks than 32 bits count.
    #[must_use]
    pub fn apart(world: usize) -> Self {
        Self::new((0..u32::try_from(world).expect("ranks are counted in 32 bits")).collect())
    }

    /// Ranks that gave the same name share a host, unless it is [`UNKNOWN`].
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

    /// The hosts of all ranks, if they are counted as [`Hosts`] counts.
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

    /// Of each rank.
    #[must_use]
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// The number of ranks.
    #[must_use]
    pub fn world(&self) -> usize {
        self.numbers.len()
    }

    /// Whether there are several hosts, and one of them has several ranks.
    #[must_use]
    pub fn are_mixed(&self) -> bool {
        1 < self.count && self.count < self.world()
    }

    /// The number of hosts.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// How often a ring of the ranks leaves a host, at most: once where all ranks of each host follow one another.
    #[must_use]
    pub fn crossings(&self) -> usize {
        self.crossings
    }

    /// Ranks of the host that has the most.
    #[must_use]
    pub fn fullest(&self) -> usize {
        self.fullest
    }

    /// Ranks of the host that has the fewest.
    #[must_use]
    pub fn emptiest(&self) -> usize {
        self.emptiest
    }

    /// The number of ranks on the host of `rank`, itself among them.
    pub(crate) fn beside(&self, rank: usize) -> usize {
        self.numbers.iter().filter(|host| **host == self.numbers[rank]).count()
    }

    /// The number of ranks on the host of `rank` that come before it.
    pub(crate) fn before(&self, rank: usize) -> usize {
        self.numbers[..rank].iter().filter(|host| **host == self.numbers[rank]).count()
    }

    /// The ranks of each host.
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

/// This host's name.
pub(crate) fn this_host() -> u64 {
    std::fs::read_to_string(BOOT).map_or(UNKNOWN, |boot| named(&boot))
}

/// Of the 128 random bits that a start is called by.
fn named(boot: &str) -> u64 {
    let digits: String = boot.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).map_or(UNKNOWN, |bits| (bits >> 64) as u64 ^ bits as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_counted_in_the_order_of_their_first_ranks() {
        let hosts = Hosts::named(&[7, 9, 7, UNKNOWN, UNKNOWN, 9]);
        assert_eq!(hosts.numbers(), [0, 1, 0, 2, 3, 1]);
        assert_eq!(hosts.ranks(), [vec![0, 2], vec![1, 5], vec![3], vec![4]]);
        assert_eq!([0, 3, 5].map(|rank| hosts.beside(rank)), [2, 1, 2]);
        assert_eq!(Hosts::counted(hosts.numbers().to_vec()), Some(hosts));
        assert_eq!(Hosts::counted(vec![1, 0]), None);
        assert_eq!(Hosts::counted(vec![0, 2]), None);
    }

    #[test]
    fn a_ring_leaves_each_host_as_often_as_its_ranks_are_apart() {
        for (names, crossings) in
            [(&[1, 1, 2, 2][..], 1), (&[1, 2, 1, 2], 2), (&[1, 1, 1], 0), (&[1, 2, 1, 1, 2], 2), (&[], 0)]
        {
            assert_eq!(Hosts::named(names).crossings(), crossings, "{names:?}");
        }
    }

    #[test]
    fn hosts_are_mixed_where_some_ranks_share_one() {
        for (names, mixed) in
            [(&[1, 2, 3][..], false), (&[1, 1, 1], false), (&[1, 2, 1], true), (&[1], false), (&[], false)]
        {
            assert_eq!(Hosts::named(names).are_mixed(), mixed, "{names:?}");
        }
    }

    #[test]
    fn a_start_is_named_by_its_digits_and_what_has_none_is_unknown() {
        assert_eq!(named("00000000-0000-0001-0000-000000000006\n"), 7);
        assert_eq!(named(""), UNKNOWN);
    }

    #[test]
    fn this_system_names_its_start() {
        assert_ne!(this_host(), UNKNOWN);
    }
}

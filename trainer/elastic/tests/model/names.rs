//! Names of values: 128 bits over everything that may still decide something, one for every
//! exchange of the pods.
//!
//! The product's state machines have private fields, but their derived `Debug` prints all of them.
//! Two states with one name behave the same for ever: a field is only left out if it is for
//! display, follows from the others, or is the same in every state. The names of one state are
//! those of all states that differ by an exchange of pods. Only the order of the ranks depends on
//! it, and neither the rules nor the exploration distinguish ranks.

use std::fmt::Debug;

/// The largest number of workers in any bounds.
pub(crate) const PODS: usize = 3;
/// The exchanges: each says which pod stands for which. The first n! of them leave all but the
/// first n pods alone.
pub(crate) const EXCHANGES: [[usize; PODS]; 6] = [[0, 1, 2], [1, 0, 2], [0, 2, 1], [2, 1, 0], [1, 2, 0], [2, 0, 1]];

/// One name for each exchange.
pub(crate) type Names = [u128; EXCHANGES.len()];

/// Fields that decide nothing here: texts for people, the writer and the chain of the record,
/// replaced processes (all dead), times of the last messages (no coordinator is ever silent), the
/// manner of a seal, and fields that are constant or follow from others.
const IRRELEVANT: &[(&str, &[&str])] = &[
    ("Coordinator", &["announced", "pods", "replaced", "handled", "started", "commands"]),
    ("Config", &["job", "attempt", "name", "members", "least", "shards", "drain_limit"]),
    ("Reasons", &["lost", "broken"]),
    ("Hello", &["job", "attempt", "address", "workload", "data"]),
    ("Record", &["version", "alloc_by", "history"]),
    ("Active", &["attempt", "members", "shards", "sampler", "sources", "copiers"]),
    ("FollowedGroup", &["addresses"]),
    ("HeldState", &["sampler"]),
    ("Prepare", &["planned"]),
    ("Commit", &["rank"]),
    ("Broken", &["broken"]),
    ("Break", &["reason"]),
    ("Abort", &["reason"]),
    ("Refuse", &["reason", "may_retry"]),
    ("Member", &["heard_at", "heartbeat_at", "repeated_at", "commands"]),
];

/// Returns the names of a value from its `Debug` output.
pub(crate) fn names(value: &impl Debug) -> Names {
    let text = format!("{value:?}");
    let mut rest = text.as_str();
    let mut tree = Tree::read(&mut rest);
    assert!(rest.is_empty(), "{rest} remains of {text}");
    tree.forget();
    tree.names()
}

/// Returns the names of a value that depends on no pod.
pub(crate) fn same(number: u128) -> Names {
    [number; EXCHANGES.len()]
}

pub(crate) fn by_exchange(name: impl Fn(usize) -> u128) -> Names {
    std::array::from_fn(name)
}

/// Combines two numbers in this order.
pub(crate) fn mix(one: u128, other: u128) -> u128 {
    const ODD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    const ANOTHER: u128 = 0xc2b2_ae3d_27d4_eb4f_1656_67b1_9e37_79f9;
    let mixed = (one.wrapping_mul(ODD) ^ other).wrapping_mul(ANOTHER);
    let mixed = (mixed ^ (mixed >> 59)).wrapping_mul(ODD);
    mixed ^ (mixed >> 67)
}

pub(crate) fn all(numbers: impl IntoIterator<Item = u128>) -> u128 {
    numbers.into_iter().fold(1, mix)
}

fn of_text(text: &str) -> u128 {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte));
    text.as_bytes().chunks(16).map(number).fold(text.len() as u128, mix)
}

/// The parsed output of a derived `Debug`.
enum Tree<'a> {
    Leaf(&'a str),
    Struct(&'a str, Vec<(&'a str, Tree<'a>)>),
    Tuple(&'a str, Vec<Tree<'a>>),
    List(Vec<Tree<'a>>),
    /// A map or a set.
    Map(Vec<(Tree<'a>, Option<Tree<'a>>)>),
}

impl<'a> Tree<'a> {
    fn read(rest: &mut &'a str) -> Self {
        if rest.starts_with('"') {
            let end = rest[1..].find('"').expect("a text ends") + 2;
            return Self::Leaf(take(rest, end));
        }
        let end = rest.find([',', '{', '}', '(', ')', '[', ']', ' ']).unwrap_or(rest.len());
        // A number that is a key ends with a colon. An address contains one as well.
        let end = if rest[..end].ends_with(':') { end - 1 } else { end };
        let word = take(rest, end);
        if rest.starts_with(" {") {
            take(rest, 2);
            let field = |rest: &mut &'a str| {
                let name = take(rest, rest.find(':').expect("a field"));
                take(rest, 2);
                (name.trim_start(), Self::read(rest))
            };
            return Self::Struct(word, listed(rest, '}', field));
        }
        match rest.chars().next() {
            Some('(') => Self::Tuple(word, listed(rest, ')', Self::read)),
            Some('[') => Self::List(listed(rest, ']', Self::read)),
            Some('{') => Self::Map(listed(rest, '}', |rest| {
                let key = Self::read(rest);
                let value = rest.starts_with(": ").then(|| {
                    take(rest, 2);
                    Self::read(rest)
                });
                (key, value)
            })),
            _ => Self::Leaf(word),
        }
    }

    fn field(&mut self, name: &str) -> &mut Self {
        let Self::Struct(of, fields) = self else { panic!("a value without fields has no field {name}") };
        let found = fields.iter_mut().find(|(field, _)| *field == name);
        found.map(|(_, tree)| tree).unwrap_or_else(|| panic!("{of} has no {name}"))
    }

    fn leaf(&self) -> &'a str {
        let Self::Leaf(text) = self else { panic!("not a leaf") };
        text
    }

    fn some(&mut self) -> Option<&mut Self> {
        match self {
            Self::Tuple("Some", values) => values.first_mut(),
            _ => None,
        }
    }

    /// Forgets values that the state machine never reads again because of its other fields.
    fn forget(&mut self) {
        match self {
            Self::Struct("Coordinator", _) => {
                let newest =
                    self.field("record").field("active").some().map(|active| active.field("generation").leaf());
                let starts = matches!(self.field("phase"), Self::Tuple("Gathering", of) if of[0].leaf() == "Start");
                let Self::Map(peers) = self.field("peers") else { panic!("the peers are a map") };
                for peer in peers.iter_mut().filter_map(|(_, peer)| peer.as_mut()) {
                    // Only a coordinator that has just started asks for the committed generation.
                    if !starts {
                        *peer.field("hello").field("committed_generation") = Self::Leaf("None");
                    }
                    // No process follows a group that does not exist any more.
                    let catch_up = peer.field("catch_up");
                    if catch_up.some().is_some_and(|catch_up| Some(catch_up.field("generation").leaf()) != newest) {
                        *catch_up = Self::Leaf("None");
                    }
                }
            }
            // A member whose membership is over answers no event.
            Self::Struct("Member", fields)
                if fields.iter().any(|(name, value)| *name == "over" && matches!(value, Self::Leaf("true"))) =>
            {
                *self = Self::Leaf("over");
            }
            _ => {}
        }
    }

    fn names(&self) -> Names {
        match self {
            Self::Leaf(text) => match pod(text) {
                Some(pod) => by_exchange(|exchange| EXCHANGES[exchange][pod] as u128),
                None => same(of_text(text)),
            },
            Self::Tuple("ConnectionId", number) => {
                let number: usize = number[0].leaf().parse().expect("a number");
                by_exchange(|exchange| all([(number / PODS) as u128, EXCHANGES[exchange][number % PODS] as u128]))
            }
            Self::Tuple(name, values) => in_order(of_text(name), values.iter().map(Self::names)),
            Self::List(values) => in_order(values.len() as u128, values.iter().map(Self::names)),
            Self::Map(entries) => unordered(entries.iter().map(|(key, value)| {
                let value = value.as_ref().map_or(same(0), Self::names);
                in_order(2, [key.names(), value].into_iter())
            })),
            Self::Struct(name, fields) => {
                let idle = IRRELEVANT.iter().find(|(of, _)| of == name).map_or(&[][..], |(_, idle)| *idle);
                let told = fields.iter().filter(|(field, _)| !idle.contains(field)).map(|(_, value)| value.names());
                let named = in_order(of_text(name), told);
                if *name == "Active" { in_order(3, [named, members(fields)].into_iter()) } else { named }
            }
        }
    }
}

/// Returns the names of a membership: its members, each with its state. The ranks follow from the
/// pods.
fn members(active: &[(&str, Tree<'_>)]) -> Names {
    let list = |name: &str| match active.iter().find(|(field, _)| *field == name) {
        Some((_, Tree::List(values))) => values,
        _ => panic!("a membership has no {name}"),
    };
    let is_in = |name: &str, rank: usize| list(name).iter().any(|other| other.leaf() == rank.to_string());
    unordered(list("members").iter().enumerate().map(|(rank, ranked)| {
        let Tree::Struct("RankedMember", fields) = ranked else { panic!("not a member") };
        let who = fields.iter().filter(|(field, _)| ["pod", "incarnation"].contains(field));
        let holds = same(u128::from(is_in("sources", rank)) << 1 | u128::from(is_in("copiers", rank)));
        in_order(4, who.map(|(_, value)| value.names()).chain([holds]))
    }))
}

fn in_order(first: u128, of: impl Iterator<Item = Names>) -> Names {
    of.fold(same(first), |names, next| by_exchange(|exchange| mix(names[exchange], next[exchange])))
}

fn unordered(of: impl Iterator<Item = Names>) -> Names {
    of.fold(same(5), |names, next| by_exchange(|exchange| names[exchange].wrapping_add(mix(6, next[exchange]))))
}

fn pod(text: &str) -> Option<usize> {
    text.strip_prefix("\"w-")?.strip_suffix('"')?.parse().ok()
}

fn take<'a>(rest: &mut &'a str, length: usize) -> &'a str {
    let (taken, left) = rest.split_at(length);
    *rest = left;
    taken
}

/// Reads a list between brackets, of which the opening one comes next.
fn listed<'a, T>(rest: &mut &'a str, end: char, read: impl Fn(&mut &'a str) -> T) -> Vec<T> {
    if rest.starts_with(['(', '[', '{']) {
        take(rest, 1);
    }
    let mut values = Vec::new();
    loop {
        *rest = rest.trim_start_matches([',', ' ']);
        if rest.starts_with(end) {
            take(rest, 1);
            return values;
        }
        values.push(read(rest));
    }
}

//! Names of values: 128 bits of everything that may still decide something, once for every way to exchange the pods.
//!
//! The product's state machines keep their fields to themselves; what their derived `Debug` prints is all of them. Two states of one
//! name do the same for ever: what is left out is only told to people, or follows from the rest, or is the same in every state. Two
//! names of one state are those of states that differ in which pod is which: nothing but the order of the ranks depends on that, and
//! in the rules, and in all that is explored here, every rank is as good as another.

use std::fmt::Debug;

/// As many as any bounds have workers.
pub(crate) const PODS: usize = 3;
/// Which pod stands for each. The first factorial-of-n leave all but the first n pods alone.
pub(crate) const EXCHANGES: [[usize; PODS]; 6] = [[0, 1, 2], [1, 0, 2], [0, 2, 1], [2, 1, 0], [1, 2, 0], [2, 0, 1]];

/// By exchange.
pub(crate) type Names = [u128; EXCHANGES.len()];

/// Fields that decide nothing here: texts for people, who wrote the record and how it came about, whose place was taken (none of those
/// lives), when members heard anything (no coordinator is ever silent), how a member is to seal, what is the same in every state, and what follows from other fields.
const IDLE: &[(&str, &[&str])] = &[
    ("Coordinator", &["told", "pods", "replaced", "handled", "started", "commands"]),
    ("Config", &["job", "attempt", "name", "members", "least", "shards", "drain_limit"]),
    ("Reasons", &["lost", "broken"]),
    ("Hello", &["job", "attempt", "address", "workload", "data"]),
    ("Record", &["version", "alloc_by", "history"]),
    ("Active", &["attempt", "members", "shards", "sampler", "sources", "copiers"]),
    ("Lead", &["addresses"]),
    ("State", &["sampler"]),
    ("Prepare", &["planned"]),
    ("Commit", &["rank"]),
    ("Broken", &["broken"]),
    ("Break", &["reason"]),
    ("Abort", &["reason"]),
    ("Refuse", &["reason", "may_retry"]),
    ("Member", &["heard", "beaten", "said", "commands"]),
];

/// The names of what prints like this.
pub(crate) fn names(value: &impl Debug) -> Names {
    let text = format!("{value:?}");
    let mut rest = text.as_str();
    let mut tree = Tree::read(&mut rest);
    assert!(rest.is_empty(), "{rest} is left of {text}");
    tree.forget();
    tree.names()
}

/// What depends on no pod.
pub(crate) fn same(number: u128) -> Names {
    [number; EXCHANGES.len()]
}

pub(crate) fn by_exchange(name: impl Fn(usize) -> u128) -> Names {
    std::array::from_fn(name)
}

/// Of two numbers in this order.
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

/// What the derived `Debug` prints, taken apart again.
enum Tree<'a> {
    Leaf(&'a str),
    Struct(&'a str, Vec<(&'a str, Tree<'a>)>),
    Tuple(&'a str, Vec<Tree<'a>>),
    List(Vec<Tree<'a>>),
    /// A map, or a set.
    Map(Vec<(Tree<'a>, Option<Tree<'a>>)>),
}

impl<'a> Tree<'a> {
    fn read(rest: &mut &'a str) -> Self {
        if rest.starts_with('"') {
            let end = rest[1..].find('"').expect("a text ends") + 2;
            return Self::Leaf(take(rest, end));
        }
        let end = rest.find([',', '{', '}', '(', ')', '[', ']', ' ']).unwrap_or(rest.len());
        // A number that is a key ends in a colon, which an address contains.
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
        let Self::Struct(of, fields) = self else { panic!("nothing has a field {name}") };
        let found = fields.iter_mut().find(|(field, _)| *field == name);
        found.map(|(_, tree)| tree).unwrap_or_else(|| panic!("{of} has no {name}"))
    }

    fn leaf(&self) -> &'a str {
        let Self::Leaf(text) = self else { panic!("no leaf") };
        text
    }

    fn some(&mut self) -> Option<&mut Self> {
        match self {
            Self::Tuple("Some", values) => values.first_mut(),
            _ => None,
        }
    }

    /// What a state machine never asks for again depends on its other fields.
    fn forget(&mut self) {
        match self {
            Self::Struct("Coordinator", _) => {
                let newest =
                    self.field("record").field("active").some().map(|active| active.field("generation").leaf());
                let starts = matches!(self.field("phase"), Self::Tuple("Gathering", of) if of[0].leaf() == "Start");
                let Self::Map(peers) = self.field("peers") else { panic!("peers are a map") };
                for peer in peers.iter_mut().filter_map(|(_, peer)| peer.as_mut()) {
                    // Only a coordinator that has just begun asks where those that it meets were.
                    if !starts {
                        *peer.field("hello").field("committed_generation") = Self::Leaf("None");
                    }
                    // Nobody follows a group that is no more.
                    let following = peer.field("following");
                    if following.some().is_some_and(|following| Some(following.field("generation").leaf()) != newest) {
                        *following = Self::Leaf("None");
                    }
                }
            }
            // Whoever is over answers nothing any more.
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
            Self::Tuple("Connection", number) => {
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
                let idle = IDLE.iter().find(|(of, _)| of == name).map_or(&[][..], |(_, idle)| *idle);
                let told = fields.iter().filter(|(field, _)| !idle.contains(field)).map(|(_, value)| value.names());
                let named = in_order(of_text(name), told);
                if *name == "Active" { in_order(3, [named, seated(fields)].into_iter()) } else { named }
            }
        }
    }
}

/// Who belongs to a membership, and what each of them holds. Ranks follow from the pods.
fn seated(active: &[(&str, Tree<'_>)]) -> Names {
    let list = |name: &str| match active.iter().find(|(field, _)| *field == name) {
        Some((_, Tree::List(values))) => values,
        _ => panic!("a membership has {name}"),
    };
    let is_in = |name: &str, rank: usize| list(name).iter().any(|other| other.leaf() == rank.to_string());
    unordered(list("members").iter().enumerate().map(|(rank, seat)| {
        let Tree::Struct("Seat", fields) = seat else { panic!("a member has a seat") };
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

/// What is between brackets, of which the first is next.
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

//! Parts of a state that are shared until they change, and state machines whose answers are remembered.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    fmt::{self, Debug, Formatter, Write},
    ops::Deref,
    rc::Rc,
    time::Duration,
};

use lockstep_elastic::{Coordinator, Member, coordinator, member};

/// A part of the state that most transitions leave alone, with its digest once that was asked for.
pub(crate) struct Part<T> {
    value: Rc<T>,
    digest: Cell<Option<u128>>,
}

impl<T: Clone + Debug> Part<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Rc::new(value), digest: Cell::new(None) }
    }

    pub(crate) fn change(&mut self) -> &mut T {
        self.digest.set(None);
        Rc::make_mut(&mut self.value)
    }

    pub(crate) fn digest(&self) -> u128 {
        let digest = self.digest.get().unwrap_or_else(|| digest(&*self.value));
        self.digest.set(Some(digest));
        digest
    }
}

impl<T> Clone for Part<T> {
    fn clone(&self) -> Self {
        Self { value: Rc::clone(&self.value), digest: self.digest.clone() }
    }
}

impl<T: Clone + Debug> Debug for Part<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.digest())
    }
}

/// What a state machine becomes by an event, and what it asks for. The same one is met again and again.
type Handled<T, C> = HashMap<(u128, u128), (Part<T>, Rc<Vec<C>>)>;

thread_local! {
    static MEMBERS: RefCell<Handled<Member, member::Command>> = RefCell::default();
    static COORDINATORS: RefCell<Handled<Coordinator, coordinator::Command>> = RefCell::default();
}

pub(crate) fn member_after(
    before: &Part<Member>,
    event: member::Event,
    name: u128,
) -> (Part<Member>, Rc<Vec<member::Command>>) {
    MEMBERS.with_borrow_mut(|known| {
        let handled = known.entry((before.digest(), name)).or_insert_with(|| {
            let mut after = before.clone();
            let commands = after.change().handle(event, Duration::ZERO);
            (after, Rc::new(commands))
        });
        handled.0.digest();
        handled.clone()
    })
}

pub(crate) fn coordinator_after(
    before: &Part<Coordinator>,
    event: coordinator::Event,
    now: Duration,
    name: u128,
) -> (Part<Coordinator>, Rc<Vec<coordinator::Command>>) {
    let name = name.wrapping_add(now.as_millis());
    COORDINATORS.with_borrow_mut(|known| {
        let handled = known.entry((before.digest(), name)).or_insert_with(|| {
            let mut after = before.clone();
            let commands = after.change().handle(event, now);
            (after, Rc::new(commands))
        });
        handled.0.digest();
        handled.clone()
    })
}

impl<T> Deref for Part<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// 128 bits of blake3 over what the derived `Debug` prints, which is everything that a value holds.
pub(crate) fn digest(value: &impl Debug) -> u128 {
    struct Digesting(blake3::Hasher);
    impl Write for Digesting {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.update(text.as_bytes());
            Ok(())
        }
    }
    let mut digesting = Digesting(blake3::Hasher::new());
    write!(digesting, "{value:?}").expect("hashing cannot fail");
    let bytes = digesting.0.finalize();
    bytes.as_bytes()[..16].iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}

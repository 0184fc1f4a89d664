use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::algorithm::Algorithm;
use crate::choice::Choice;
use crate::collective::Collective;
use crate::element::Reduction;
use crate::group::Group;
use crate::measure_costs::Measurement;
use crate::outcome::{Completed, Failed, Outcome, Transferred};
use crate::tag::Tag;
use crate::waiting::Waiting;
use crate::wire::Wire;
use crate::{AgreedPlan, BucketPlan, CollectiveError, Costs};

/// The orders of a communicator. Its thread carries them out in turn, or the caller does while it
/// waits.
pub(crate) struct Queue<M> {
    state: Mutex<QueueState<M>>,
    /// Wakes the thread for an order or for the end.
    ordered: Condvar,
    /// Signals that the thread has carried out an order, or panicked.
    ended: Condvar,
    /// How the caller waits for peers. The thread always blocks.
    waiting: Waiting,
}

struct QueueState<M> {
    orders: VecDeque<Order<M>>,
    /// The number of orders that the thread carries out without a waiting caller.
    urgent: usize,
    outcomes: VecDeque<Outcome<M>>,
    /// Taken by the one that carries out an order, so that only one order runs at a time.
    driver: Option<Driver>,
    closed: bool,
    panicked: bool,
}

pub(crate) enum Order<M> {
    /// A sum, or another collective.
    Operation {
        step: u64,
        bucket: u32,
        memory: M,
        /// Completes the memory before the operation.
        complete: fn(&mut M),
        other: Option<Collective>,
    },
    Silence(Duration, Duration),
    /// One length for the fit of costs.
    Measure,
}

/// An order has panicked, and the driver is lost.
pub(crate) struct Panicked;

impl<M> Queue<M> {
    pub(crate) fn new(group: Group) -> Self {
        let waiting = group.waiting();
        let driver = Driver { group, measurement: None, costs: None, broken: None };
        let state = QueueState {
            orders: VecDeque::new(),
            urgent: 0,
            outcomes: VecDeque::new(),
            driver: Some(driver),
            closed: false,
            panicked: false,
        };
        Self { state: Mutex::new(state), ordered: Condvar::new(), ended: Condvar::new(), waiting }
    }

    /// Puts an order behind all others. The thread carries out an `urgent` order, and those before
    /// it, at once.
    pub(crate) fn put(&self, order: Order<M>, urgent: bool) {
        let mut state = self.lock();
        state.orders.push_back(order);
        if urgent {
            state.urgent = state.orders.len();
            drop(state);
            self.ordered.notify_one();
        }
    }

    /// Ends the thread after its current order.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.ordered.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<M>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M: AsMut<[f32]>> Queue<M> {
    /// Carries out urgent orders until the queue is closed. It is the thread's work.
    pub(crate) fn work(&self) {
        let mut state = self.lock();
        while !state.closed && !state.panicked {
            let driver = if state.urgent > 0 { state.driver.take() } else { None };
            state = match driver {
                Some(mut driver) => {
                    // The core belongs to the caller's computation.
                    driver.group.set_waiting(Waiting::Block);
                    let state = self.carry_out_next(driver, state);
                    self.ended.notify_one();
                    state
                }
                None => self.ordered.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Returns the outcome of the oldest operation, which must have been put. It is carried out
    /// here unless the thread is at it.
    pub(crate) fn outcome(&self) -> Result<Outcome<M>, Panicked> {
        let mut state = self.lock();
        loop {
            if let Some(outcome) = state.outcomes.pop_front() {
                // The thread may have looked while orders were carried out here.
                if state.urgent > 0 && state.driver.is_some() {
                    self.ordered.notify_one();
                }
                return Ok(outcome);
            }
            if let Some(mut driver) = state.driver.take() {
                driver.group.set_waiting(self.waiting);
                state = self.carry_out_next(driver, state);
            } else if state.panicked {
                return Err(Panicked);
            } else {
                state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Sums `values` here, after all orders.
    pub(crate) fn sum_now(
        &self,
        tag: Tag,
        values: &mut [f32],
    ) -> Result<Result<Transferred, CollectiveError>, Panicked> {
        self.now(|driver| driver.sum(tag, values))
    }

    /// Agrees on a plan here, after all orders.
    pub(crate) fn agree_now(
        &self,
        propose: impl FnOnce() -> BucketPlan,
    ) -> Result<Result<AgreedPlan, CollectiveError>, Panicked> {
        self.now(|driver| driver.unless_broken(|driver| driver.group.agree(propose)))
    }

    /// Returns the fitted costs, after all orders.
    pub(crate) fn costs(&self) -> Result<Option<Costs>, Panicked> {
        self.now(|driver| driver.costs)
    }

    fn now<T>(&self, carry_out: impl FnOnce(&mut Driver) -> T) -> Result<T, Panicked> {
        let mut state = self.lock();
        loop {
            if let Some(mut driver) = state.driver.take() {
                driver.group.set_waiting(self.waiting);
                if state.orders.is_empty() {
                    drop(state);
                    let mut turn = Turn { queue: self, driver: Some(driver) };
                    let outcome = carry_out(turn.driver());
                    drop(turn.end());
                    return Ok(outcome);
                }
                state = self.carry_out_next(driver, state);
            } else if state.panicked {
                return Err(Panicked);
            } else {
                state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn carry_out_next<'a>(
        &'a self,
        driver: Driver,
        mut state: MutexGuard<'a, QueueState<M>>,
    ) -> MutexGuard<'a, QueueState<M>> {
        let order = state.orders.pop_front();
        state.urgent = state.urgent.saturating_sub(1);
        drop(state);
        let mut turn = Turn { queue: self, driver: Some(driver) };
        let outcome = order.and_then(|order| turn.driver().carry_out(order));
        let mut state = turn.end();
        state.outcomes.extend(outcome);
        state
    }
}

/// Holds the driver during an order. If the order panics, the driver and all its connections are
/// lost.
struct Turn<'a, M> {
    queue: &'a Queue<M>,
    driver: Option<Driver>,
}

impl<'a, M> Turn<'a, M> {
    fn driver(&mut self) -> &mut Driver {
        self.driver.as_mut().expect("the driver leaves its turn at the end only")
    }

    fn end(mut self) -> MutexGuard<'a, QueueState<M>> {
        let mut state = self.queue.lock();
        state.driver = self.driver.take();
        state
    }
}

impl<M> Drop for Turn<'_, M> {
    fn drop(&mut self) {
        if self.driver.take().is_some() {
            self.queue.lock().panicked = true;
            self.queue.ordered.notify_one();
            self.queue.ended.notify_one();
        }
    }
}

/// Carries out orders on the group.
struct Driver {
    group: Group,
    measurement: Option<Measurement>,
    /// The result of the last complete measurement.
    costs: Option<Costs>,
    /// The first failure. All later sums fail for its cause.
    broken: Option<CollectiveError>,
}

impl Driver {
    fn carry_out<M: AsMut<[f32]>>(&mut self, order: Order<M>) -> Option<Outcome<M>> {
        match order {
            Order::Operation { step, bucket, mut memory, complete, other } => {
                complete(&mut memory);
                let (tag, data) = (Tag { step, bucket }, memory.as_mut());
                let ended = match other {
                    None => self.sum(tag, data),
                    Some(other) => {
                        let choice = self.choice();
                        self.unless_broken(|driver| other.carry_out(&mut driver.group, choice, tag, data))
                    }
                };
                Some(match ended {
                    Ok(transferred) => Ok(Completed { step, bucket, memory, transferred }),
                    Err(error) => Err(Failed { step, bucket, memory, error }),
                })
            }
            Order::Silence(silence, unacknowledged) => {
                if let Err(error) = self.group.set_silence(silence, unacknowledged) {
                    self.broken.get_or_insert(error);
                }
                None
            }
            Order::Measure => {
                // The next operation reports a failure.
                let _ = self.unless_broken(Self::measure);
                None
            }
        }
    }

    /// Returns the choice of the agreed plan, if there is one.
    fn choice(&self) -> Choice {
        self.group.plan().map_or_else(Choice::default, AgreedPlan::choice)
    }

    /// Returns the wire format of a bucket: the plan's for the plan's buckets, `f32` for all else.
    fn wire(&self, bucket: u32) -> Wire {
        let plan = self.group.plan().filter(|plan| (bucket as usize) < plan.buckets().len());
        plan.map_or(Wire::F32, AgreedPlan::wire)
    }

    fn measure(&mut self) -> Result<(), CollectiveError> {
        let measurement = self.measurement.get_or_insert_with(Measurement::new);
        measurement.sum_next(&mut self.group)?;
        if let Some(complete) = self.measurement.take_if(|measurement| measurement.is_complete()) {
            self.costs = complete.fit(&mut self.group)?;
        }
        Ok(())
    }

    fn sum(&mut self, tag: Tag, data: &mut [f32]) -> Result<Transferred, CollectiveError> {
        let (choice, wire) = (self.choice(), self.wire(tag.bucket));
        self.unless_broken(|Self { group, .. }| {
            if group.shares_memory() && matches!(choice, Choice::Cheapest(_)) {
                return group.all_reduce_in_memory(tag, data, Reduction::Sum);
            }
            let algorithm = match (choice, wire) {
                (Choice::Cheapest(_), Wire::Bf16 | Wire::F16) => Algorithm::Direct,
                (choice, _) => choice.algorithm(group.hosts(), size_of_val(data)),
            };
            group.sum(wire, algorithm, tag, data)
        })
    }

    fn unless_broken<T>(
        &mut self,
        operation: impl FnOnce(&mut Self) -> Result<T, CollectiveError>,
    ) -> Result<T, CollectiveError> {
        match &self.broken {
            Some(cause) => Err(cause.clone()),
            None => operation(self).inspect_err(|error| self.broken = Some(error.clone())),
        }
    }
}

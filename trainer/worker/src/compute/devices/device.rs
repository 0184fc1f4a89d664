//! The thread of a further device: it does one task after the other, as long as the device is there.

use std::{
    panic::resume_unwind,
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
};

use lockstep_data::{Loader, Step};
use lockstep_elastic::ActivityMonitor;
use lockstep_nn::{Cpu, Replica, Sgd, StepResult};

use super::gathered::Announced;
use crate::{
    compute::gradients::{self, Part},
    failure::Failure,
};

/// A task of a device's thread.
#[allow(clippy::large_enum_variant, reason = "one is handed over in each step; a box would allocate in each")]
pub(super) enum Task {
    /// The gradients of its samples, announced bucket by bucket.
    Gradients { loader: Loader, step: Step, work: Arc<ActivityMonitor> },
    /// The update from all of the group's.
    Update { gradients: Arc<Vec<f32>>, optimiser: Sgd, rate: f32 },
}

/// The result of a task.
#[allow(clippy::large_enum_variant, reason = "one is handed over in each step; a box would allocate in each")]
pub(super) enum Done {
    Gradients(Loader),
    /// The totals of its own samples.
    Update(StepResult),
}

/// One device after the first. Dropping it ends its thread, after the task that this has.
pub(super) struct Device {
    /// Here between two tasks, with the thread during one.
    replica: Option<Replica<Cpu>>,
    tasks: Option<SyncSender<(Replica<Cpu>, Task)>>,
    done: Receiver<(Replica<Cpu>, Done)>,
    thread: Option<JoinHandle<()>>,
}

impl Device {
    /// Announces in the place of this number.
    pub(super) fn start(number: usize, replica: Replica<Cpu>, announced: &Arc<[Announced]>) -> Result<Self, Failure> {
        let (tasks, next) = sync_channel::<(Replica<Cpu>, Task)>(1);
        let (tell, done) = sync_channel(1);
        let announced = Arc::clone(announced);
        let work = move || {
            let announced = Ending(&announced[number]);
            for (mut replica, task) in next {
                let done = task.carry_out(&mut replica, announced.0);
                if tell.send((replica, done)).is_err() {
                    break;
                }
            }
        };
        let thread =
            thread::Builder::new().name(format!("device-{}", number + 1)).spawn(work).map_err(Failure::retry)?;
        Ok(Self { replica: Some(replica), tasks: Some(tasks), done, thread: Some(thread) })
    }

    /// Its copy of the model.
    ///
    /// # Panics
    /// During a task.
    pub(super) fn replica(&mut self) -> &mut Replica<Cpu> {
        self.replica.as_mut().expect("a device lends its replica between two tasks only")
    }

    /// Has its thread begin a task, which is to be waited for by [`Device::finish`].
    ///
    /// # Panics
    /// During another.
    pub(super) fn begin(&mut self, task: Task) {
        let replica = self.replica.take().expect("a device has one task at a time");
        let tasks = self.tasks.as_ref().expect("given up when it is dropped only");
        if tasks.send((replica, task)).is_err() {
            self.end();
        }
    }

    /// Waits for its task.
    ///
    /// # Panics
    /// As the thread has, if it has; and without a task.
    pub(super) fn finish(&mut self) -> Done {
        assert!(self.replica.is_none(), "a device that has no task");
        match self.done.recv() {
            Ok((replica, done)) => {
                self.replica = Some(replica);
                done
            }
            Err(_) => self.end(),
        }
    }

    /// Goes on as its thread has ended: in a panic.
    fn end(&mut self) -> ! {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(panic)) => resume_unwind(panic),
            Some(Ok(())) | None => unreachable!("a device's thread ends after its tasks do"),
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        drop(self.tasks.take());
        // If it has panicked, whoever waited for its task knows.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Task {
    fn carry_out(self, replica: &mut Replica<Cpu>, announced: &Announced) -> Done {
        match self {
            Self::Gradients { mut loader, step, work } => {
                let part = Part::Beside(&work);
                gradients::of_share(replica, &mut loader, step, part, &mut |_, bucket, taken| {
                    announced.put(bucket, taken);
                });
                Done::Gradients(loader)
            }
            Self::Update { gradients, optimiser, rate } => {
                let found = replica.finish_step();
                replica.take_gradients(&gradients);
                replica.update(&optimiser, rate);
                replica.finish_step();
                Done::Update(found)
            }
        }
    }
}

/// Tells when a thread ends, however it does.
struct Ending<'a>(&'a Announced);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

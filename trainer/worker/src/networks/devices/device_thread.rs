//! The thread of a further device. It does one task after another until the device is dropped.

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
use lockstep_nn::{Cpu, Replica, StepResult};

use super::gathered::Announced;
use crate::{
    failure::Failure,
    networks::gradients::{self, Part},
};

/// A task of a device's thread.
#[allow(clippy::large_enum_variant, reason = "one is handed over in each step; a box would allocate in each")]
pub(super) enum Task {
    /// Compute the gradients of the loader's samples, and announce them bucket by bucket.
    Gradients { loader: Loader, step: Step, seed: u64, work: Arc<ActivityMonitor> },
    /// Update the state with the gradients of the whole group.
    Update { gradients: Arc<Vec<f32>>, step: u64, rate: f32 },
}

/// The result of a task.
#[allow(clippy::large_enum_variant, reason = "one is handed over in each step; a box would allocate in each")]
pub(super) enum Done {
    Gradients(Loader),
    /// The totals of the device's own samples.
    Update(StepResult),
}

/// One device after the first. Dropping it ends its thread after the current task.
pub(super) struct DeviceThread {
    /// `None` during a task: the thread has it then.
    replica: Option<Replica<Cpu>>,
    tasks: Option<SyncSender<(Replica<Cpu>, Task)>>,
    done: Receiver<(Replica<Cpu>, Done)>,
    thread: Option<JoinHandle<()>>,
}

impl DeviceThread {
    /// Starts the thread. It announces its buckets in `announced[number]`.
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

    /// Returns the device's copy of the model.
    ///
    /// # Panics
    /// During a task.
    pub(super) fn replica(&mut self) -> &mut Replica<Cpu> {
        self.replica.as_mut().expect("a device lends its replica between two tasks only")
    }

    /// Begins a task on the thread. [`DeviceThread::finish`] waits for it.
    ///
    /// # Panics
    /// During another task.
    pub(super) fn begin(&mut self, task: Task) {
        let replica = self.replica.take().expect("a device has one task at a time");
        let tasks = self.tasks.as_ref().expect("only drop gives the sender up");
        if tasks.send((replica, task)).is_err() {
            self.end();
        }
    }

    /// Waits for the end of the task.
    ///
    /// # Panics
    /// If the thread has panicked, or if there is no task.
    pub(super) fn finish(&mut self) -> Done {
        assert!(self.replica.is_none(), "the device has no task");
        match self.done.recv() {
            Ok((replica, done)) => {
                self.replica = Some(replica);
                done
            }
            Err(_) => self.end(),
        }
    }

    /// Passes on the panic that ended the thread.
    fn end(&mut self) -> ! {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(panic)) => resume_unwind(panic),
            Some(Ok(())) | None => unreachable!("a device's thread ends after its tasks do"),
        }
    }
}

impl Drop for DeviceThread {
    fn drop(&mut self) {
        drop(self.tasks.take());
        // A panic was passed on to the caller that waited for the task.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Task {
    fn carry_out(self, replica: &mut Replica<Cpu>, announced: &Announced) -> Done {
        match self {
            Self::Gradients { mut loader, step, seed, work } => {
                let part = Part::Beside(&work);
                gradients::of_share(replica, &mut loader, step, seed, part, &mut |_, bucket, taken| {
                    announced.put(bucket, taken);
                });
                Done::Gradients(loader)
            }
            Self::Update { gradients, step, rate } => {
                let found = replica.finish_step();
                replica.take_gradients(&gradients);
                replica.update(step, rate);
                replica.finish_step();
                Done::Update(found)
            }
        }
    }
}

/// Ends the announcements when the thread ends, also by a panic.
struct Ending<'a>(&'a Announced);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

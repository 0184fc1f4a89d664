//! Saves while training goes on. The training thread copies its part of the state into one of two
//! buffers, at the speed of memory. A background thread writes the buffer. Meanwhile the other
//! buffer can be filled.

use std::{
    fmt, mem,
    num::NonZeroU32,
    panic,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{CheckpointError, CheckpointPart, Facts, Folder, Layout, Piece, Position, Pruned, Saved, note::Note};

/// The number of parts that wait or are being written. It bounds the memory.
const BUFFERS: usize = 2;
/// The number of commands that wait. A caller with one more waits too.
const MAX_QUEUED: usize = 8;

/// Saves while training goes on. A drop cancels what is not written yet.
/// [`finish`](Snapshotter::finish) waits for it.
pub struct Snapshotter {
    free: Vec<Vec<f32>>,
    /// `None` while the snapshotter is being dropped.
    work: Option<SyncSender<SaveCommand>>,
    answers: Receiver<Reply>,
    /// The number of commands without a reply.
    under_way: usize,
    ended: Vec<Ended>,
    /// Cancels all commands since the last cancellation.
    pub(crate) cancelled: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The outcome of [`Snapshotter::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "nothing is saved while both buffers are in use"]
pub enum Taken {
    /// The part is copied and is being written.
    Begun,
    /// Both buffers are in use. Nothing was done.
    Busy,
}

/// A command that has ended, with its result.
#[derive(Debug)]
pub enum Ended {
    /// A part was written. On success the part and its note are stored.
    Part {
        /// The position of the state.
        position: Position,
        /// The time of the work, without the wait for its turn.
        took: Duration,
        /// The outcome.
        result: Result<(), CheckpointError>,
    },
    /// A checkpoint was committed.
    Commit {
        /// The position of the state.
        position: Position,
        /// The time of the work, without the wait for its turn.
        took: Duration,
        /// The outcome.
        result: Result<Committed, CheckpointError>,
    },
    /// The parts of a checkpoint were deleted.
    Abandonment {
        /// The position of the state.
        position: Position,
        /// The outcome.
        result: Result<(), CheckpointError>,
    },
}

/// A committed checkpoint.
#[derive(Debug)]
pub struct Committed {
    /// The checkpoint.
    pub saved: Saved,
    /// The checkpoints deleted after this one was read again and verified, or the reason why none
    /// were.
    pub pruned: Result<Pruned, CheckpointError>,
}

type MakeDigest = Box<dyn FnOnce(&[f32]) -> String + Send>;
type MakeFacts = Box<dyn FnOnce(&[String]) -> Result<Facts, CheckpointError> + Send>;

pub(crate) enum SaveCommand {
    Write {
        part: CheckpointPart,
        digest: MakeDigest,
        values: Vec<f32>,
        cancelled: Arc<AtomicBool>,
    },
    Commit {
        position: Position,
        layout: Arc<Layout>,
        writers: NonZeroU32,
        facts: MakeFacts,
        cancelled: Arc<AtomicBool>,
    },
    Abandon {
        position: Position,
    },
}

pub(crate) struct Reply {
    pub(crate) ended: Ended,
    /// The buffer, to be filled again.
    buffer: Option<Vec<f32>>,
}

impl Snapshotter {
    /// Starts the background thread. A commit keeps `keep_last` checkpoints. A part has about
    /// `values` values. Memory for two parts is taken now, so that no step waits for it.
    ///
    /// # Errors
    /// [`CheckpointError::Thread`].
    pub fn start(folder: Folder, keep_last: NonZeroU32, values: usize) -> Result<Self, CheckpointError> {
        let (work, orders) = sync_channel(MAX_QUEUED);
        let (answer, answers) = channel();
        let writer = BackgroundWriter { folder, keep_last };
        let thread = thread::Builder::new().name("checkpoint".to_owned());
        let thread = thread.spawn(move || writer.work(&orders, &answer));
        let thread = Some(thread.map_err(|source| CheckpointError::Thread { source })?);
        let free = (0..BUFFERS).map(|_| with_all_pages(values)).collect();
        let (ended, cancelled) = Default::default();
        Ok(Self { free, work: Some(work), answers, under_way: 0, ended, cancelled, thread })
    }

    /// Copies one writer's part of a state and begins to write it. [`Ended::Part`] reports the end.
    /// `copy` is called for each [piece](Layout::pieces) in order, with the memory for its values.
    /// `digest` is called in the background with all copied values.
    pub fn take(
        &mut self,
        part: &CheckpointPart,
        digest: impl FnOnce(&[f32]) -> String + Send + 'static,
        copy: impl FnMut(Piece<'_>, &mut [f32]),
    ) -> Taken {
        self.look();
        let Some(mut values) = self.free.pop() else { return Taken::Busy };
        fill(&mut values, part, copy);
        let cancelled = Arc::clone(&self.cancelled);
        self.begin(SaveCommand::Write { part: part.clone(), digest: Box::new(digest), values, cancelled });
        Taken::Begun
    }

    /// Begins to commit the parts of all `writers` and then to prune. [`Ended::Commit`] reports the
    /// end. `facts` is called in the background with the digests of the parts, in order. If it
    /// fails, the commit fails. One of all members commits.
    pub fn commit(
        &mut self,
        position: Position,
        layout: &Arc<Layout>,
        writers: NonZeroU32,
        facts: impl FnOnce(&[String]) -> Result<Facts, CheckpointError> + Send + 'static,
    ) {
        let (layout, cancelled) = (Arc::clone(layout), Arc::clone(&self.cancelled));
        self.begin(SaveCommand::Commit { position, layout, writers, facts: Box::new(facts), cancelled });
    }

    /// Begins to delete the parts of a checkpoint that will not be committed.
    /// [`Ended::Abandonment`] reports the end. No member may be writing a part of it. If too many
    /// commands already wait for the storage, the parts stay until a later prune: nobody waits for
    /// this.
    pub fn abandon(&mut self, position: Position) {
        if self.under_way < MAX_QUEUED {
            self.begin(SaveCommand::Abandon { position });
        }
    }

    /// Cancels all parts that are not written yet, each before its next chunk, and a commit that
    /// still looks for its parts. Written chunks stay until the checkpoint is
    /// [abandoned](Self::abandon) or a later one prunes.
    pub fn cancel(&mut self) {
        mem::take(&mut self.cancelled).store(true, Ordering::Relaxed);
    }

    /// Returns what has ended since the last call. Does not wait.
    pub fn ended(&mut self) -> Vec<Ended> {
        self.look();
        mem::take(&mut self.ended)
    }

    /// Waits until all commands have ended. Returns those that ended since the last call.
    pub fn finish(&mut self) -> Vec<Ended> {
        while self.under_way > 0 {
            match self.answers.recv() {
                Ok(answer) => self.note(answer),
                Err(_) => self.pass_panic_on(),
            }
        }
        self.ended()
    }

    fn begin(&mut self, work: SaveCommand) {
        self.under_way += 1;
        // The thread is gone only after a panic. The next look resumes that panic.
        if let Some(orders) = &self.work {
            let _ = orders.send(work);
        }
    }

    fn look(&mut self) {
        loop {
            match self.answers.try_recv() {
                Ok(answer) => self.note(answer),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => self.pass_panic_on(),
            }
        }
    }

    fn note(&mut self, answer: Reply) {
        let Reply { ended, buffer } = answer;
        self.under_way -= 1;
        self.free.extend(buffer);
        self.ended.push(ended);
    }

    fn pass_panic_on(&mut self) {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(cause)) => panic::resume_unwind(cause),
            ended => panic!("the saving thread ended too early: {ended:?}"),
        }
    }
}

impl Drop for Snapshotter {
    fn drop(&mut self) {
        self.cancel();
        self.work = None;
        // The panic was already printed. A second panic would hide the cause of this drop.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl fmt::Debug for Snapshotter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshotter").field("under_way", &self.under_way).finish_non_exhaustive()
    }
}

/// The state of the background thread.
pub(crate) struct BackgroundWriter {
    pub(crate) folder: Folder,
    pub(crate) keep_last: NonZeroU32,
}

impl BackgroundWriter {
    fn work(&self, orders: &Receiver<SaveCommand>, answer: &Sender<Reply>) {
        for work in orders {
            if answer.send(self.perform(work)).is_err() {
                break;
            }
        }
    }

    pub(crate) fn perform(&self, work: SaveCommand) -> Reply {
        let begun = Instant::now();
        match work {
            SaveCommand::Write { part, digest, values, cancelled } => {
                let result = self.write(&part, digest, &values, &cancelled);
                let ended = Ended::Part { position: part.position, took: begun.elapsed(), result };
                Reply { ended, buffer: Some(values) }
            }
            SaveCommand::Commit { position, layout, writers, facts, cancelled } => {
                let result = self.commit(position, &layout, writers, facts, &cancelled);
                if result.is_err() {
                    // The error at hand matters more, and what is left disturbs nobody.
                    let _ = self.folder.abandon(position);
                }
                Reply { ended: Ended::Commit { position, took: begun.elapsed(), result }, buffer: None }
            }
            SaveCommand::Abandon { position } => {
                let result = self.folder.abandon(position);
                Reply { ended: Ended::Abandonment { position, result }, buffer: None }
            }
        }
    }

    fn write(
        &self,
        part: &CheckpointPart,
        digest: MakeDigest,
        values: &[f32],
        cancelled: &AtomicBool,
    ) -> Result<(), CheckpointError> {
        let receipt = self.folder.write_part_until(part, &[values], cancelled)?;
        self.folder.leave_note(part, &Note { receipt, digest: digest(values) })
    }

    fn commit(
        &self,
        position: Position,
        layout: &Layout,
        writers: NonZeroU32,
        facts: MakeFacts,
        cancelled: &AtomicBool,
    ) -> Result<Committed, CheckpointError> {
        let notes = self.folder.notes(position, writers, cancelled)?;
        let (receipts, digests): (Vec<_>, Vec<_>) =
            notes.into_iter().map(|Note { receipt, digest }| (receipt, digest)).unzip();
        let facts = facts(&digests)?;
        let saved = self.folder.commit(&facts, layout, &receipts)?;
        let pruned = self.folder.prune_saved(&saved, position.generation, self.keep_last, &facts.identity);
        Ok(Committed { saved, pruned })
    }
}

/// Allocates memory with every page present.
fn with_all_pages(values: usize) -> Vec<f32> {
    // The system makes a page of zeros only at its first use.
    vec![1.0; values]
}

fn fill(buffer: &mut Vec<f32>, part: &CheckpointPart, mut copy: impl FnMut(Piece<'_>, &mut [f32])) {
    buffer.resize(part.values().len(), 0.0);
    let mut rest = &mut buffer[..];
    for piece in part.layout.pieces(part.range()) {
        let (values, after) = rest.split_at_mut(piece.values.len());
        copy(piece, values);
        rest = after;
    }
}

//! Saving while training goes on. The training thread copies its part of the state into one of two buffers, which takes as long as
//! memory does; a thread of its own writes it. While one buffer is written the other can be filled.

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

use crate::{CheckpointError, Facts, Folder, Layout, Piece, Position, Pruned, Saved, Shard, note::Note};

/// Parts of states that wait or are being written at once; it bounds the memory.
pub const BUFFERS: usize = 2;
/// Pieces of work that wait; who begins another waits with it.
const MAX_QUEUED: usize = 8;

/// Saves while training goes on. Dropping gives up what is not written yet, [`finish`](Snapshotter::finish) waits for it.
pub struct Snapshotter {
    free: Vec<Vec<f32>>,
    /// `None` once it is being dropped.
    work: Option<SyncSender<Work>>,
    answers: Receiver<Answer>,
    /// Pieces of work of which the end is not known yet.
    under_way: usize,
    ended: Vec<Ended>,
    /// Of what was begun since it was given up last.
    pub(crate) cancelled: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Which part of which state.
#[derive(Clone, Debug)]
pub struct Part {
    /// Where training stands.
    pub position: Position,
    /// The whole state's.
    pub layout: Arc<Layout>,
    /// This writer; they are counted from 0.
    pub writer: u32,
    /// How many write.
    pub writers: NonZeroU32,
}

/// Whether a part was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "nothing is saved where both buffers are in use"]
pub enum Taken {
    /// It is copied, and being written.
    Begun,
    /// Both buffers are in use: nothing was done.
    Busy,
}

/// What has ended, well or badly.
#[derive(Debug)]
pub enum Ended {
    /// The writing of a part. Where it went well, the part and its note are stored.
    Part {
        /// Of which state.
        position: Position,
        /// How long it took, without waiting for its turn.
        took: Duration,
        /// Whether it went well.
        result: Result<(), CheckpointError>,
    },
    /// The commitment of a checkpoint.
    Commit {
        /// Of which state.
        position: Position,
        /// How long it took, without waiting for its turn.
        took: Duration,
        /// What came of it.
        result: Result<Committed, CheckpointError>,
    },
    /// The removal of a checkpoint's parts.
    Abandonment {
        /// Of which state.
        position: Position,
        /// Whether it went well.
        result: Result<(), CheckpointError>,
    },
}

/// A checkpoint that is whole.
#[derive(Debug)]
pub struct Committed {
    /// Which.
    pub saved: Saved,
    /// What was deleted after it had been read again and verified, or why nothing was.
    pub pruned: Result<Pruned, CheckpointError>,
}

type MakeDigest = Box<dyn FnOnce(&[f32]) -> String + Send>;
type MakeFacts = Box<dyn FnOnce(&[String]) -> Result<Facts, CheckpointError> + Send>;

pub(crate) enum Work {
    Write {
        part: Part,
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

pub(crate) struct Answer {
    pub(crate) ended: Ended,
    /// To be filled again.
    buffer: Option<Vec<f32>>,
}

impl Snapshotter {
    /// Starts the thread, which keeps `keep_last` checkpoints where it commits. A part has about `values` values; so much memory is
    /// taken now, twice, so that no step waits for it.
    ///
    /// # Errors
    /// [`CheckpointError::Thread`].
    pub fn start(folder: Folder, keep_last: NonZeroU32, values: usize) -> Result<Self, CheckpointError> {
        let (work, orders) = sync_channel(MAX_QUEUED);
        let (answer, answers) = channel();
        let writer = Writer { folder, keep_last };
        let thread = thread::Builder::new().name("checkpoint".to_owned());
        let thread = thread.spawn(move || writer.work(&orders, &answer));
        let thread = Some(thread.map_err(|source| CheckpointError::Thread { source })?);
        let free = (0..BUFFERS).map(|_| touched(values)).collect();
        let (ended, cancelled) = Default::default();
        Ok(Self { free, work: Some(work), answers, under_way: 0, ended, cancelled, thread })
    }

    /// Copies one writer's part of a state and begins to write it; [`Ended::Part`] tells of its end. `copy` is called for each
    /// [piece](Layout::pieces) of it, in order, with the place of its values; `digest` in the background, with all that was copied.
    pub fn take(
        &mut self,
        part: &Part,
        digest: impl FnOnce(&[f32]) -> String + Send + 'static,
        copy: impl FnMut(Piece<'_>, &mut [f32]),
    ) -> Taken {
        self.look();
        let Some(mut values) = self.free.pop() else { return Taken::Busy };
        fill(&mut values, part, copy);
        let cancelled = Arc::clone(&self.cancelled);
        self.begin(Work::Write { part: part.clone(), digest: Box::new(digest), values, cancelled });
        Taken::Begun
    }

    /// Begins to commit what all `writers` have written, and to delete the oldest; [`Ended::Commit`] tells of its end. `facts` is called in
    /// the background with the digests of the parts, in order; an error of it is one of the commitment. Of all members one commits.
    pub fn commit(
        &mut self,
        position: Position,
        layout: &Arc<Layout>,
        writers: NonZeroU32,
        facts: impl FnOnce(&[String]) -> Result<Facts, CheckpointError> + Send + 'static,
    ) {
        let (layout, cancelled) = (Arc::clone(layout), Arc::clone(&self.cancelled));
        self.begin(Work::Commit { position, layout, writers, facts: Box::new(facts), cancelled });
    }

    /// Begins to remove the parts of a checkpoint that was not to be; [`Ended::Abandonment`] tells of its end. No member may be writing one.
    /// Where too much waits for storage that takes nothing, they stay until the next one prunes: nobody waits for this.
    pub fn abandon(&mut self, position: Position) {
        if self.under_way < MAX_QUEUED {
            self.begin(Work::Abandon { position });
        }
    }

    /// Gives up the parts that are not written yet, each before its next chunk, and a commitment that still looks for its parts. What is
    /// written of them stays until it is [abandoned](Self::abandon), or a later checkpoint prunes.
    pub fn give_up(&mut self) {
        mem::take(&mut self.cancelled).store(true, Ordering::Relaxed);
    }

    /// What has ended since it was asked last; does not wait.
    pub fn ended(&mut self) -> Vec<Ended> {
        self.look();
        mem::take(&mut self.ended)
    }

    /// Waits until all that was begun has ended, and tells what has since it was asked last.
    pub fn finish(&mut self) -> Vec<Ended> {
        while self.under_way > 0 {
            match self.answers.recv() {
                Ok(answer) => self.note(answer),
                Err(_) => self.pass_panic_on(),
            }
        }
        self.ended()
    }

    fn begin(&mut self, work: Work) {
        self.under_way += 1;
        // A thread that is gone has panicked; the next look passes that on.
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

    fn note(&mut self, answer: Answer) {
        let Answer { ended, buffer } = answer;
        self.under_way -= 1;
        self.free.extend(buffer);
        self.ended.push(ended);
    }

    fn pass_panic_on(&mut self) {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(cause)) => panic::resume_unwind(cause),
            ended => panic!("the thread that saves has ended while it was needed: {ended:?}"),
        }
    }
}

impl Drop for Snapshotter {
    fn drop(&mut self) {
        self.give_up();
        self.work = None;
        // If it has panicked, its message was printed, and to panic again would hide the cause of this drop.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl fmt::Debug for Snapshotter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshotter").field("under_way", &self.under_way).finish_non_exhaustive()
    }
}

/// What the thread has.
pub(crate) struct Writer {
    pub(crate) folder: Folder,
    pub(crate) keep_last: NonZeroU32,
}

impl Writer {
    fn work(&self, orders: &Receiver<Work>, answer: &Sender<Answer>) {
        for work in orders {
            if answer.send(self.perform(work)).is_err() {
                break;
            }
        }
    }

    pub(crate) fn perform(&self, work: Work) -> Answer {
        let begun = Instant::now();
        match work {
            Work::Write { part, digest, values, cancelled } => {
                let result = self.write(&part, digest, &values, &cancelled);
                let ended = Ended::Part { position: part.position, took: begun.elapsed(), result };
                Answer { ended, buffer: Some(values) }
            }
            Work::Commit { position, layout, writers, facts, cancelled } => {
                let result = self.commit(position, &layout, writers, facts, &cancelled);
                if result.is_err() {
                    // What is left of it is in nobody's way; the error that matters is the one at hand.
                    let _ = self.folder.abandon(position);
                }
                Answer { ended: Ended::Commit { position, took: begun.elapsed(), result }, buffer: None }
            }
            Work::Abandon { position } => {
                let result = self.folder.abandon(position);
                Answer { ended: Ended::Abandonment { position, result }, buffer: None }
            }
        }
    }

    fn write(
        &self,
        part: &Part,
        digest: MakeDigest,
        values: &[f32],
        cancelled: &AtomicBool,
    ) -> Result<(), CheckpointError> {
        let Part { position, ref layout, writer, writers } = *part;
        let shard = Shard { position, layout, writer, writers, values: &[values] };
        let receipt = self.folder.write_shard_until(&shard, cancelled)?;
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

/// Memory of which every page is there.
fn touched(values: usize) -> Vec<f32> {
    // Zeros would be pages that the system makes when they are first used.
    vec![1.0; values]
}

fn fill(buffer: &mut Vec<f32>, part: &Part, mut copy: impl FnMut(Piece<'_>, &mut [f32])) {
    let Part { position: _, layout, writer, writers } = part;
    let range = layout.shard(*writer, *writers);
    buffer.resize(layout.values_of(&range).len(), 0.0);
    let mut rest = &mut buffer[..];
    for piece in layout.pieces(range) {
        let (place, after) = rest.split_at_mut(piece.values.len());
        copy(piece, place);
        rest = after;
    }
}

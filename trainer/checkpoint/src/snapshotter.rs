//! Saving while training goes on. The training thread copies its part of the state into one of two buffers, which takes as long as
//! memory does; a thread of its own writes it. While one buffer is written the other can be filled.

use std::{
    collections::VecDeque,
    fmt,
    num::NonZeroU32,
    panic,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel},
    },
    thread::{self, JoinHandle},
};

use crate::{CheckpointError, Facts, Folder, Layout, Piece, Position, Pruned, Saved, Shard, ShardReceipt};

/// Parts of states that wait or are being written at once; it bounds the memory.
pub const BUFFERS: usize = 2;
/// Pieces of work that wait; who begins another waits with it.
const MAX_QUEUED: usize = 8;

/// Saves while training goes on.
///
/// What fails in the background is returned by the next call, whichever it is; that call then does nothing else, and of several failures
/// each is returned by one call. Dropping gives up what is not written yet, [`finish`](Snapshotter::finish) waits for it.
pub struct Snapshotter {
    free: Vec<Vec<f32>>,
    /// `None` once it is being dropped.
    work: Option<SyncSender<Work>>,
    ended: Receiver<Ended>,
    /// Pieces of work of which the end is not known yet.
    under_way: usize,
    failed: VecDeque<CheckpointError>,
    done: Vec<Done>,
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
    /// Both buffers are in use: nothing was done. Skip this one, or [wait](Snapshotter::wait_for_buffer).
    Busy,
}

/// What has ended well.
#[derive(Debug)]
pub enum Done {
    /// A part is stored; its receipt goes to whoever commits.
    Written(ShardReceipt),
    /// A checkpoint is whole.
    Saved {
        /// Which.
        saved: Saved,
        /// What was deleted after it had been read again and verified, or why nothing was.
        pruned: Result<Pruned, CheckpointError>,
    },
}

type MakeFacts = Box<dyn FnOnce(&[f32]) -> Facts + Send>;

enum Work {
    Write { part: Part, values: Vec<f32> },
    Save { position: Position, layout: Arc<Layout>, facts: MakeFacts, values: Vec<f32> },
    Commit { facts: Facts, layout: Arc<Layout>, receipts: Vec<ShardReceipt> },
}

struct Ended {
    result: Result<Done, CheckpointError>,
    /// To be filled again.
    buffer: Option<Vec<f32>>,
}

impl Snapshotter {
    /// Starts the thread, which keeps `keep_last` checkpoints where it commits. A part has `most_values` values or fewer; so much memory
    /// is taken now, twice, so that no step waits for it.
    ///
    /// # Errors
    /// [`CheckpointError::Thread`].
    pub fn start(folder: Folder, keep_last: NonZeroU32, most_values: usize) -> Result<Self, CheckpointError> {
        let (work, orders) = sync_channel(MAX_QUEUED);
        let (end, ended) = channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let writer = Writer { folder, keep_last, cancelled: Arc::clone(&cancelled) };
        let thread = thread::Builder::new().name("checkpoint".to_owned());
        let thread = thread.spawn(move || writer.work(&orders, &end));
        let thread = Some(thread.map_err(|source| CheckpointError::Thread { source })?);
        let free = (0..BUFFERS).map(|_| touched(most_values)).collect();
        let (failed, done) = Default::default();
        Ok(Self { free, work: Some(work), ended, under_way: 0, failed, done, cancelled, thread })
    }

    /// Copies one writer's part of a state and begins to write it; [`Done::Written`] tells of its end. `copy` is called for each
    /// [piece](Layout::pieces) of it, in order, with the place of its values.
    ///
    /// # Errors
    /// What failed before.
    pub fn take(&mut self, part: &Part, copy: impl FnMut(Piece<'_>, &mut [f32])) -> Result<Taken, CheckpointError> {
        let Some(mut buffer) = self.buffer()? else { return Ok(Taken::Busy) };
        fill(&mut buffer, part, copy);
        self.begin(Work::Write { part: part.clone(), values: buffer });
        Ok(Taken::Begun)
    }

    /// Copies the whole state and begins to write and commit it: there is no other writer. [`Done::Saved`] tells of its end. `facts` is
    /// called in the background with the values that were copied, so that it may compute their digest.
    ///
    /// # Errors
    /// What failed before.
    pub fn save(
        &mut self,
        position: Position,
        layout: &Arc<Layout>,
        facts: impl FnOnce(&[f32]) -> Facts + Send + 'static,
        copy: impl FnMut(Piece<'_>, &mut [f32]),
    ) -> Result<Taken, CheckpointError> {
        let Some(mut buffer) = self.buffer()? else { return Ok(Taken::Busy) };
        let part = Part { position, layout: Arc::clone(layout), writer: 0, writers: NonZeroU32::MIN };
        fill(&mut buffer, &part, copy);
        self.begin(Work::Save { position, layout: part.layout, facts: Box::new(facts), values: buffer });
        Ok(Taken::Begun)
    }

    /// Begins to commit what all writers have written, and to delete the oldest; [`Done::Saved`] tells of its end.
    ///
    /// # Errors
    /// What failed before.
    pub fn commit(
        &mut self,
        facts: Facts,
        layout: &Arc<Layout>,
        receipts: Vec<ShardReceipt>,
    ) -> Result<(), CheckpointError> {
        self.look()?;
        self.begin(Work::Commit { facts, layout: Arc::clone(layout), receipts });
        Ok(())
    }

    /// What has ended since it was asked last; does not wait.
    ///
    /// # Errors
    /// What failed before.
    pub fn done(&mut self) -> Result<Vec<Done>, CheckpointError> {
        self.look()?;
        Ok(std::mem::take(&mut self.done))
    }

    /// Waits until a part can be taken.
    ///
    /// # Errors
    /// What failed before.
    pub fn wait_for_buffer(&mut self) -> Result<(), CheckpointError> {
        self.look()?;
        while self.free.is_empty() {
            self.wait();
        }
        self.look()
    }

    /// Waits until all that was begun has ended, and tells what has since it was asked last.
    ///
    /// # Errors
    /// What failed before; to be called again then.
    pub fn finish(&mut self) -> Result<Vec<Done>, CheckpointError> {
        while self.under_way > 0 {
            self.wait();
        }
        self.done()
    }

    fn begin(&mut self, work: Work) {
        self.under_way += 1;
        // A thread that is gone has panicked; the next look passes that on.
        if let Some(orders) = &self.work {
            let _ = orders.send(work);
        }
    }

    fn buffer(&mut self) -> Result<Option<Vec<f32>>, CheckpointError> {
        self.look()?;
        Ok(self.free.pop())
    }

    fn look(&mut self) -> Result<(), CheckpointError> {
        loop {
            match self.ended.try_recv() {
                Ok(ended) => self.note(ended),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => self.pass_panic_on(),
            }
        }
        self.failed.pop_front().map_or(Ok(()), Err)
    }

    fn wait(&mut self) {
        match self.ended.recv() {
            Ok(ended) => self.note(ended),
            Err(_) => self.pass_panic_on(),
        }
    }

    fn note(&mut self, ended: Ended) {
        let Ended { result, buffer } = ended;
        self.under_way -= 1;
        self.free.extend(buffer);
        match result {
            Ok(done) => self.done.push(done),
            Err(error) => self.failed.push_back(error),
        }
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
        self.cancelled.store(true, Ordering::Relaxed);
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
struct Writer {
    folder: Folder,
    keep_last: NonZeroU32,
    cancelled: Arc<AtomicBool>,
}

impl Writer {
    fn work(&self, orders: &Receiver<Work>, end: &Sender<Ended>) {
        for work in orders {
            if self.cancelled.load(Ordering::Relaxed) || end.send(self.perform(work)).is_err() {
                break;
            }
        }
    }

    fn perform(&self, work: Work) -> Ended {
        match work {
            Work::Write { part, values } => {
                let Part { position, ref layout, writer, writers } = part;
                let shard = Shard { position, layout, writer, writers, values: &[&values] };
                let result = self.folder.write_shard_until(&shard, &self.cancelled).map(Done::Written);
                Ended { result, buffer: Some(values) }
            }
            Work::Save { position, layout, facts, values } => {
                let facts = facts(&values);
                let shard =
                    Shard { position, layout: &layout, writer: 0, writers: NonZeroU32::MIN, values: &[&values] };
                let saved = self.folder.save_alone(&facts, &shard, &self.cancelled);
                Ended { result: saved.map(|saved| self.retain(saved, &facts)), buffer: Some(values) }
            }
            Work::Commit { facts, layout, receipts } => {
                let saved = self.folder.commit(&facts, &layout, &receipts);
                Ended { result: saved.map(|saved| self.retain(saved, &facts)), buffer: None }
            }
        }
    }

    fn retain(&self, saved: Saved, facts: &Facts) -> Done {
        Done::Saved { saved, pruned: self.folder.prune(self.keep_last, &facts.identity) }
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

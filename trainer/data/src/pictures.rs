//! Encoded pictures on disk that are decoded when they are wanted.

use std::{
    collections::BTreeSet,
    fmt,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::Duration,
};

use crate::{
    Augment, DataError, Shape,
    augment::View,
    contents,
    pass::Pass,
    picture::{Decoded, MAX_ENCODED_BYTES, decode},
    random::Random,
    resample::{Scratch, resample},
    stamp::Stamp,
};

/// How often a file is read that storage does not give, and the pause before another try.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);

/// An event of a picture while the training ran.
#[derive(Debug)]
pub enum PictureProblem {
    /// It is corrupt, and the next good one of its class takes its place.
    Skipped {
        /// Its place.
        place: String,
        /// The fault.
        reason: String,
        /// Corrupt pictures that this process has met.
        found: usize,
        /// The most that are accepted.
        most: usize,
    },
    /// The training cannot go on.
    Fatal(DataError),
}

/// Is told each problem. It should end the process at a fatal one.
pub type PictureReport = Arc<dyn Fn(PictureProblem) + Send + Sync>;

/// How pictures are decoded.
#[derive(Clone)]
pub struct PictureOptions {
    /// Values per pixel: 1 or 3.
    pub channels: usize,
    /// Rows and columns that each picture is resized to. Without, all must have the first one's.
    pub size: Option<(usize, usize)>,
    /// Corrupt pictures that are skipped before the training ends.
    pub max_corrupt: usize,
    /// Threads that decode a micro-batch.
    pub threads: usize,
    /// Is told of problems.
    pub report: PictureReport,
}

/// The place of an encoded picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The file, in the list of files.
    pub(crate) file: u32,
    /// The part of the file, from a byte and so many bytes; all of it without.
    pub(crate) part: Option<(u64, u64)>,
}

/// The files of pictures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Files {
    /// Paths below the folder.
    pub(crate) paths: Vec<PathBuf>,
    /// As they were when they were listed.
    pub(crate) stamps: Vec<Stamp>,
}

/// Why a picture is not read.
enum Unread {
    /// Its file is another than the one that was listed.
    Changed,
    Failed(io::Error),
}

/// Pictures, by their numbers.
pub(crate) struct Pictures {
    pub(crate) folder: PathBuf,
    pub(crate) files: Files,
    pub(crate) places: Vec<Place>,
    /// A digest that tells these pictures from others.
    pub(crate) fingerprint: [u8; 32],
    /// A digest of the files' contents, if it is known.
    pub(crate) contents: OnceLock<[u8; 32]>,
    pub(crate) options: PictureOptions,
    corrupt: Mutex<BTreeSet<usize>>,
}

impl fmt::Debug for Pictures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pictures")
            .field("folder", &self.folder)
            .field("len", &self.places.len())
            .finish_non_exhaustive()
    }
}

impl PartialEq for Pictures {
    fn eq(&self, other: &Self) -> bool {
        (&self.files.paths, &self.places, self.fingerprint) == (&other.files.paths, &other.places, other.fingerprint)
    }
}

/// How the pictures of a micro-batch become values.
pub(crate) struct Preparation<'a> {
    pub(crate) labels: &'a [u32],
    pub(crate) shape: Shape,
    pub(crate) levels: &'a [[f32; 256]],
    pub(crate) augment: &'a Augment,
    pub(crate) pass: Option<Pass>,
}

/// The memory that a thread uses for one picture after the other.
#[derive(Default)]
struct Buffers {
    encoded: Vec<u8>,
    sample: Vec<u8>,
    scratch: Scratch,
}

impl Pictures {
    pub(crate) fn new(
        folder: PathBuf,
        files: Files,
        places: Vec<Place>,
        fingerprint: [u8; 32],
        options: PictureOptions,
    ) -> Self {
        Self { folder, files, places, fingerprint, contents: OnceLock::new(), options, corrupt: Mutex::default() }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let Files { paths, stamps } = &self.files;
        let paths: usize = paths.iter().map(|path| path.as_os_str().len() + size_of::<PathBuf>()).sum();
        paths + size_of_val(stamps.as_slice()) + size_of_val(self.places.as_slice())
    }

    /// Writes the values of the pictures, one after another, and a hash of each one's bytes. Each
    /// thread takes the next picture that nobody has, so memory holds one decoded picture a thread.
    pub(crate) fn prepare(&self, ids: &[u64], preparation: &Preparation<'_>, values: &mut [f32], hashes: &mut [u64]) {
        let left = Mutex::new(ids.iter().zip(values.chunks_mut(preparation.shape.bytes())).zip(hashes));
        let work = || {
            let mut buffers = Buffers::default();
            loop {
                let next = left.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(((id, values), hash)) = next else { return };
                self.prepare_one(*id as usize, preparation, &mut buffers, values);
                *hash = contents::of_bytes(&buffers.sample);
            }
        };
        thread::scope(|scope| {
            for _ in 1..self.options.threads.min(ids.len()) {
                scope.spawn(work);
            }
            work();
        });
    }

    fn prepare_one(&self, id: usize, preparation: &Preparation<'_>, buffers: &mut Buffers, values: &mut [f32]) {
        let Preparation { labels, shape, levels, augment, pass } = *preparation;
        let picture = self.decoded(id, labels, shape, &mut buffers.encoded);
        let view = match pass {
            Some(Pass { seed, epoch }) => {
                augment.view(picture.size(), shape, &mut Random::augmenting(seed, epoch, id as u64))
            }
            None => View::centred(picture.size(), shape),
        };
        buffers.sample.resize(shape.bytes(), 0);
        resample(picture.as_picture(), &view, shape, &mut buffers.sample, &mut buffers.scratch);
        let plane = shape.height * shape.width;
        for ((values, pixels), levels) in values.chunks_mut(plane).zip(buffers.sample.chunks(plane)).zip(levels) {
            values.iter_mut().zip(pixels).for_each(|(value, pixel)| *value = levels[usize::from(*pixel)]);
        }
    }

    /// The picture, or the next good one of its class after it, from the first again after the
    /// last. Every worker finds the same one.
    fn decoded(&self, id: usize, labels: &[u32], shape: Shape, encoded: &mut Vec<u8>) -> Decoded {
        let of_class = (id..labels.len()).chain(0..id).filter(|other| labels[*other] == labels[id]);
        for candidate in of_class {
            if self.corrupt().contains(&candidate) {
                continue;
            }
            let problem = match self.read(candidate, encoded) {
                Ok(()) => match decode(encoded, shape.channels) {
                    Ok(picture) => return self.checked(candidate, picture, shape),
                    Err(reason) => reason,
                },
                Err(Unread::Failed(source)) if is_lasting(&source) => source.to_string(),
                Err(Unread::Failed(source)) => self.end(DataError::Read { path: self.path(candidate), source }),
                Err(Unread::Changed) => self.end(DataError::Changed { place: self.place(candidate) }),
            };
            self.skip(candidate, problem);
        }
        self.end(DataError::NoGoodPicture { place: self.place(id) })
    }

    /// Refuses a picture of another size where none is resized.
    fn checked(&self, id: usize, picture: Decoded, shape: Shape) -> Decoded {
        let size = (shape.height, shape.width);
        if self.options.size.is_none() && picture.size() != size {
            self.end(DataError::OtherSize { place: self.place(id), found: picture.size(), expected: size });
        }
        picture
    }

    fn skip(&self, id: usize, reason: String) {
        let most = self.options.max_corrupt;
        let (is_new, found) = {
            let mut corrupt = self.corrupt();
            (corrupt.insert(id), corrupt.len())
        };
        if found > most {
            self.end(DataError::TooManyCorrupt { place: self.place(id), reason, found, most });
        }
        if is_new {
            (self.options.report)(PictureProblem::Skipped { place: self.place(id), reason, found, most });
        }
    }

    fn end(&self, error: DataError) -> ! {
        let message = error.to_string();
        (self.options.report)(PictureProblem::Fatal(error));
        panic!("{message}");
    }

    fn read(&self, id: usize, encoded: &mut Vec<u8>) -> Result<(), Unread> {
        let stamp = self.files.stamps[self.places[id].file as usize];
        let mut tried = 0;
        loop {
            tried += 1;
            let mut read = || -> io::Result<Result<(), Unread>> {
                let file = File::open(self.path(id))?;
                if Stamp::of(&file.metadata()?) != stamp {
                    return Ok(Err(Unread::Changed));
                }
                read_open(file, self.places[id].part, encoded).map(Ok)
            };
            match read() {
                Err(error) if tried < TRIES && !is_lasting(&error) => thread::sleep(PAUSE),
                Err(error) => return Err(Unread::Failed(error)),
                Ok(read) => return read,
            }
        }
    }

    fn path(&self, id: usize) -> PathBuf {
        self.folder.join(&self.files.paths[self.places[id].file as usize])
    }

    /// The place of a picture, for people.
    fn place(&self, id: usize) -> String {
        match self.places[id].part {
            None => self.path(id).display().to_string(),
            Some((start, _)) => format!("{} at byte {start}", self.path(id).display()),
        }
    }

    fn corrupt(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.corrupt.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True if every worker at every time would fail as well.
fn is_lasting(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::FileTooLarge
    )
}

/// Replaces what `encoded` holds by a part of a file, or by all of it.
pub(crate) fn read_part(path: &Path, part: Option<(u64, u64)>, encoded: &mut Vec<u8>) -> io::Result<()> {
    read_open(File::open(path)?, part, encoded)
}

fn read_open(mut file: File, part: Option<(u64, u64)>, encoded: &mut Vec<u8>) -> io::Result<()> {
    let bytes = match part {
        Some((start, bytes)) => {
            file.seek(SeekFrom::Start(start))?;
            bytes
        }
        None => file.metadata()?.len(),
    };
    if bytes > MAX_ENCODED_BYTES {
        let told = format!("it has {bytes} bytes, accepted are {MAX_ENCODED_BYTES}");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, told));
    }
    encoded.clear();
    file.take(bytes).read_to_end(encoded)?;
    if encoded.len() as u64 == bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

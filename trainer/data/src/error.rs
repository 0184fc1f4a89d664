use std::{io, path::PathBuf};

use crate::Shape;

/// Why samples cannot be had. Each names the file or field, what was found and what is accepted.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The folder of the data set is not there.
    #[error("data set folder {} does not exist or is no folder: set spec.dataset.uri to the folder with {holds}, as the workers see it", folder.display())]
    FolderMissing {
        /// As it was given.
        folder: PathBuf,
        /// The content that it should have.
        holds: &'static str,
    },
    /// The folder holds none of the usual files.
    #[error("no IDX files in {}: looked for {looked_for}, each also with .gz; put a pair of image and label files there", folder.display())]
    NoPair {
        /// The place.
        folder: PathBuf,
        /// The names, separated by commas.
        looked_for: String,
    },
    /// Images without labels, or labels without images.
    #[error("{} has no partner: looked for {looked_for} beside it, each also with .gz; images and labels come in pairs", present.display())]
    HalfPair {
        /// The file that is there.
        present: PathBuf,
        /// The names of the missing one.
        looked_for: String,
    },
    /// Samples without labels, or labels without samples.
    #[error("{} has no partner {looked_for} beside it: samples and labels come in pairs", present.display())]
    NoPartner {
        /// The file that is there.
        present: PathBuf,
        /// The name of the missing one.
        looked_for: String,
    },
    /// A file cannot be read.
    #[error("reading {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("writing {}: {source}; choose a folder that can be written", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The compressed stream is damaged, or something follows it.
    #[error("{} is corrupt gzip: {source}; fetch the file again", path.display())]
    CorruptGzip {
        /// Which.
        path: PathBuf,
        /// The decoder's message.
        source: io::Error,
    },
    /// The file ends too early.
    #[error("{} is truncated: expected {expected} bytes (uncompressed), found {found}; fetch the file again", path.display())]
    Truncated {
        /// Which.
        path: PathBuf,
        /// Bytes that its header promises, header included.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// The file goes on after its last sample.
    #[error("{} goes on after the {expected} bytes (uncompressed) that its header promises; fetch the file again", path.display())]
    TrailingBytes {
        /// Which.
        path: PathBuf,
        /// Bytes that its header promises, header included.
        expected: u64,
    },
    /// Not an IDX file of this kind.
    #[error("{} starts with {found:#010x}, expected {accepted}; is it another file under this name?", path.display())]
    WrongMagic {
        /// Which.
        path: PathBuf,
        /// Its first four bytes, big-endian.
        found: u32,
        /// The accepted values.
        accepted: &'static str,
    },
    /// A file of records of one length has a part of one.
    #[error("{} has {found} bytes, accepted are 1 or more records of {record} bytes, {most} at most; fetch the file again", path.display())]
    NoRecords {
        /// Which.
        path: PathBuf,
        /// Its bytes.
        found: u64,
        /// Bytes of a record.
        record: u64,
        /// The most records.
        most: u64,
    },
    /// The folder holds none of the files of the format.
    #[error("no {format} files in {}: looked for {looked_for}; put them there, or set spec.dataset.uri to their folder", folder.display())]
    NoFiles {
        /// The place.
        folder: PathBuf,
        /// The file that was looked for.
        format: &'static str,
        /// The names.
        looked_for: String,
    },
    /// A dimension in the header is zero or absurd.
    #[error("{}: {dimension} is {found}, accepted are 1 to {most}; the header is damaged or the data set too large", path.display())]
    Dimension {
        /// Which file.
        path: PathBuf,
        /// Which dimension.
        dimension: &'static str,
        /// Its value.
        found: u64,
        /// The greatest that is accepted.
        most: u64,
    },
    /// A label that names no class.
    #[error("{}: label {index} is {found}, accepted are 0 to {most}; the file is damaged or belongs to another data set", path.display())]
    LabelOutOfRange {
        /// Which file.
        path: PathBuf,
        /// Which label, from 0.
        index: usize,
        /// Its value.
        found: i64,
        /// The greatest that is accepted.
        most: usize,
    },
    /// A pair that does not belong together.
    #[error("{} holds {image_count} images, {} holds {label_count} labels: the counts must be equal; fetch both files of the same data set", images.display(), labels.display())]
    CountsDiffer {
        /// The image file.
        images: PathBuf,
        /// Its number of images.
        image_count: usize,
        /// The label file.
        labels: PathBuf,
        /// Its number of labels.
        label_count: usize,
    },
    /// Training and test images of different sizes.
    #[error("{} holds images of {train_shape}, {} of {evaluation_shape} (channels × rows × columns): both must be of one size", train.display(), evaluation.display())]
    SizesDiffer {
        /// The image file for training.
        train: PathBuf,
        /// The shape of its images.
        train_shape: Shape,
        /// The image file for evaluation.
        evaluation: PathBuf,
        /// The shape of its images.
        evaluation_shape: Shape,
    },
    /// A class without pictures.
    #[error("{} holds no picture (.jpg, .jpeg or .png): put some there, or remove the folder of the class", folder.display())]
    EmptyClass {
        /// Its folder.
        folder: PathBuf,
    },
    /// A class to evaluate that is not trained.
    #[error("{} is no class to train, these are: {known}; rename or remove the folder", folder.display())]
    UnknownClass {
        /// Its folder.
        folder: PathBuf,
        /// The classes to train, separated by commas.
        known: String,
    },
    /// More folders than classes are accepted.
    #[error("{} holds {found} classes, accepted are 1 to {most}", folder.display())]
    TooManyClasses {
        /// The place.
        folder: PathBuf,
        /// How many.
        found: usize,
        /// The most that are accepted.
        most: usize,
    },
    /// More pictures than are accepted.
    #[error("{} holds more than {most} pictures, the most that are accepted", folder.display())]
    TooManyPictures {
        /// The place.
        folder: PathBuf,
        /// The most that are accepted.
        most: usize,
    },
    /// The name of a class is not readable.
    #[error("the name of {} is not UTF-8, and names a class: rename it", path.display())]
    NoText {
        /// The folder.
        path: PathBuf,
    },
    /// The picture from which all others take their size cannot be decoded.
    #[error("{}: {reason}; replace the picture, or give all of them a size by spec.dataset.image", path.display())]
    Undecodable {
        /// Which.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// A picture of another size, and none is resized.
    #[error("{place} has {}×{} pixels, the first picture {}×{}: set spec.dataset.image.height and width, to which all are resized", found.0, found.1, expected.0, expected.1)]
    OtherSize {
        /// Which.
        place: String,
        /// Its rows and columns.
        found: (usize, usize),
        /// Those of the first one.
        expected: (usize, usize),
    },
    /// Too many pictures cannot be decoded.
    #[error(
        "{place}: {reason}; this is corrupt picture {found}, and spec.dataset.maxCorrupt accepts {most}: replace them, or accept more"
    )]
    TooManyCorrupt {
        /// The last one.
        place: String,
        /// The fault.
        reason: String,
        /// How many there are.
        found: usize,
        /// The most that are accepted.
        most: usize,
    },
    /// A file of pictures was written while it was in use.
    #[error(
        "{place} was changed while a run reads it: put the file back, or begin a new run; copy data that others change"
    )]
    Changed {
        /// Which.
        place: String,
    },
    /// A class of which no picture can be decoded.
    #[error("{place} and all other pictures of its class are corrupt; replace them")]
    NoGoodPicture {
        /// One of them.
        place: String,
    },
    /// An archive that ends early or holds something else.
    #[error("{} is a damaged archive: {source}; fetch the file again", path.display())]
    DamagedArchive {
        /// Which.
        path: PathBuf,
        /// The reader's message.
        source: io::Error,
    },
    /// A sample of an archive without picture or label.
    #[error("{}: {key} has no .{missing}: a sample is a picture and a label, KEY.jpg and KEY.cls, one after the other", path.display())]
    HalfMember {
        /// Which archive.
        path: PathBuf,
        /// The sample.
        key: String,
        /// The end of the name that is missing.
        missing: &'static str,
    },
    /// A label in an archive that names no class.
    #[error("{}: {key} has the label {found}, accepted are 0 to {most}", path.display())]
    MemberLabel {
        /// Which archive.
        path: PathBuf,
        /// The sample.
        key: String,
        /// Its label.
        found: String,
        /// The greatest that is accepted.
        most: usize,
    },
    /// A file that holds no array of the accepted kind.
    #[error("{} cannot be read as an array: {reason}", path.display())]
    NoArray {
        /// Which.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// A picture without mask, or a mask without picture.
    #[error("{} has no partner: looked for {looked_for}; pictures and masks come in pairs of one name", present.display())]
    HalfMasked {
        /// The file that is there.
        present: PathBuf,
        /// The names of the missing one.
        looked_for: String,
    },
    /// A picture or a mask that does not fit the others.
    #[error("{} is {found}, expected {expected}", path.display())]
    Unlike {
        /// Which.
        path: PathBuf,
        /// Its size or kind.
        found: String,
        /// What fits.
        expected: String,
    },
    /// A pixel that names no class.
    #[error("{}: the pixel in row {} and column {} is {found}, accepted are 0 to {most}, and {ignored} for pixels that do not count", path.display(), at.0, at.1)]
    PixelOutOfRange {
        /// The mask.
        path: PathBuf,
        /// Its row and column.
        at: (usize, usize),
        /// Its value.
        found: u8,
        /// The greatest class.
        most: usize,
        /// The value of pixels that do not count.
        ignored: u8,
    },
    /// The share to hold out is no share.
    #[error("spec.dataset.evaluationFraction is {found}, accepted are 0 to {most}")]
    EvaluationFraction {
        /// As it was given.
        found: f64,
        /// The greatest that is accepted.
        most: f64,
    },
    /// A step would need more samples than there are.
    #[error(
        "{field} is {global_batch}, but the data set has only {samples} samples for training: accepted are 1 to {samples}"
    )]
    SmallerThanBatch {
        /// The field that says how many.
        field: String,
        /// Samples of one step.
        global_batch: u64,
        /// Samples for training.
        samples: u64,
    },
    /// The system gave no thread.
    #[error("starting the loader thread: {source}; raise the limit on processes")]
    Thread {
        /// Why.
        source: io::Error,
    },
}

impl DataError {
    /// True if the same may go well a moment later: storage that holds the samples did not answer,
    /// or a resource was used up.
    #[must_use]
    pub fn passes(&self) -> bool {
        let is_lasting = |source: &io::Error| {
            use io::ErrorKind::{InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied, Unsupported};
            matches!(
                source.kind(),
                InvalidInput | IsADirectory | NotADirectory | NotFound | PermissionDenied | Unsupported
            )
        };
        match self {
            Self::Read { source, .. } => !is_lasting(source),
            Self::Thread { .. } => true,
            _ => false,
        }
    }
}

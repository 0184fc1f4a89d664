//! Reads a safetensors file that anyone may have written, such as `safetensors.torch.save_file`.
//!
//! The `safetensors` crate parses the header and checks that the tensors lie one behind the other
//! up to the end of the file. This module bounds what is read, and converts numbers to `f32`.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    path::Path,
};

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensorError, SafeTensors};

use crate::OwnedTensor;

/// The greatest length of a file that is read.
pub const MAX_MODEL_BYTES: u64 = 64 << 30;
/// The greatest length of a header that is read.
pub const MAX_HEADER_BYTES: u64 = 16 << 20;
const LENGTH_BYTES: usize = size_of::<u64>();
/// The first bytes of a zip archive, as `torch.save` writes it.
const ZIP: &[u8] = b"PK\x03\x04";
/// The end of the name of a counter that PyTorch keeps beside a batch norm. No model computes with
/// it.
const COUNTER: &str = "num_batches_tracked";

/// The content of a safetensors file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReadModel {
    /// The text that it carries beside the tensors.
    pub metadata: BTreeMap<String, String>,
    /// The tensors in the order of their names, without PyTorch's counters of batches.
    pub tensors: Vec<OwnedTensor>,
}

/// Why a file cannot be read as a model.
#[derive(Debug, thiserror::Error)]
pub enum UnreadModel {
    /// The file system gives no such file.
    #[error("{0}")]
    Storage(#[from] io::Error),
    /// The path leads to a folder, a pipe or a device.
    #[error("it is no file")]
    NotAFile,
    /// The file is longer than is accepted.
    #[error("it has {0} bytes; at most {MAX_MODEL_BYTES} are read")]
    TooLong(u64),
    /// The file is one that `torch.save` wrote.
    #[error(
        "it is a pickle of torch.save, which may run code: in Python, write it with \
         safetensors.torch.save_file(model.state_dict(), FILE)"
    )]
    Pickle,
    /// The header or the bytes behind it are damaged.
    #[error("it is no whole safetensors file: {0}")]
    Damaged(String),
    /// A tensor has another type than floating-point numbers.
    #[error("tensor {name} has the type {dtype}; F64, F32, F16 and BF16 are read")]
    Type {
        /// Its name.
        name: String,
        /// Its type.
        dtype: String,
    },
    /// The tensors do not fit into memory.
    #[error("its tensors need {0} bytes of memory, which this process does not get")]
    Memory(u64),
}

/// Reads the safetensors file at `path`. F64, F16 and BF16 are converted to F32. It takes the
/// memory of the file and of the converted tensors, no more.
///
/// # Errors
/// [`UnreadModel`], without the path.
pub fn read_model(path: &Path) -> Result<ReadModel, UnreadModel> {
    // Opening a pipe would wait for its writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(UnreadModel::NotAFile);
    }
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    if length > MAX_MODEL_BYTES {
        return Err(UnreadModel::TooLong(length));
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length as usize).map_err(|_| UnreadModel::Memory(length))?;
    Read::by_ref(&mut file).take(length).read_to_end(&mut bytes)?;
    of_bytes(&bytes)
}

/// Reads a whole file from its bytes.
pub(crate) fn of_bytes(bytes: &[u8]) -> Result<ReadModel, UnreadModel> {
    if bytes.starts_with(ZIP) {
        return Err(UnreadModel::Pickle);
    }
    check_header_length(bytes)?;
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| damaged(&error))?;
    let file = SafeTensors::deserialize(bytes).map_err(|error| damaged(&error))?;
    let mut names = file.names();
    names.retain(|name| !is_counter(name));
    names.sort_unstable();
    let tensors = names.into_iter().map(|name| tensor(&file, name)).collect::<Result<_, _>>()?;
    let metadata = header.metadata().iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect();
    Ok(ReadModel { metadata, tensors })
}

/// Refuses a header whose length alone is absurd, before anything of that length is parsed.
fn check_header_length(bytes: &[u8]) -> Result<(), UnreadModel> {
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(UnreadModel::Damaged(format!("{} bytes are too few", bytes.len())));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES || length > rest.len() as u64 {
        return Err(UnreadModel::Damaged(format!(
            "its header is said to have {length} bytes; {} follow, and at most {MAX_HEADER_BYTES} are read",
            rest.len()
        )));
    }
    Ok(())
}

fn is_counter(name: &str) -> bool {
    name == COUNTER || name.strip_suffix(COUNTER).is_some_and(|module| module.ends_with('.'))
}

fn tensor(file: &SafeTensors<'_>, name: &str) -> Result<OwnedTensor, UnreadModel> {
    let view = file.tensor(name).map_err(|error| damaged(&error))?;
    let (bytes, dtype) = (view.data(), view.dtype());
    let values = match dtype {
        Dtype::F32 => converted(bytes, f32::from_le_bytes),
        Dtype::F64 => converted(bytes, |value| f64::from_le_bytes(value) as f32),
        Dtype::F16 => converted(bytes, |value| f16::from_le_bytes(value).to_f32()),
        Dtype::BF16 => converted(bytes, |value| bf16::from_le_bytes(value).to_f32()),
        other => return Err(UnreadModel::Type { name: name.to_owned(), dtype: format!("{other:?}") }),
    };
    Ok(OwnedTensor { name: name.to_owned(), shape: view.shape().to_vec(), values: values? })
}

fn converted<const N: usize>(bytes: &[u8], convert: impl Fn([u8; N]) -> f32) -> Result<Vec<f32>, UnreadModel> {
    let (numbers, _) = bytes.as_chunks::<N>();
    let mut values = Vec::new();
    let needed = numbers.len() * size_of::<f32>();
    values.try_reserve_exact(numbers.len()).map_err(|_| UnreadModel::Memory(needed as u64))?;
    values.extend(numbers.iter().map(|number| convert(*number)));
    Ok(values)
}

fn damaged(error: &SafeTensorError) -> UnreadModel {
    UnreadModel::Damaged(error.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use safetensors::{serialize, tensor::TensorView};

    use super::*;
    use crate::{Tensor, safetensors_file};

    fn file(tensors: &[(&str, Dtype, &[usize], Vec<u8>)]) -> Vec<u8> {
        let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
            (*name, TensorView::new(*dtype, shape.to_vec(), bytes).expect("the bytes fit the shape"))
        });
        serialize(views, None).expect("serialised")
    }

    fn ours() -> Vec<u8> {
        let tensors = [
            Tensor { name: "conv.weight", shape: &[2, 1, 1, 2], values: &[1.0, -2.5, 0.0, 1e-20] },
            Tensor { name: "conv.bias", shape: &[2], values: &[3.0, 4.0] },
        ];
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        safetensors_file::to_bytes(&tensors, &metadata).expect("written")
    }

    #[test]
    fn what_this_program_writes_reads_back() {
        let read = of_bytes(&ours()).expect("whole");
        assert_eq!(read.metadata["format"], "pt");
        let [bias, weight] = &read.tensors[..] else { panic!("{:?}", read.tensors) };
        assert_eq!((bias.name.as_str(), &bias.values[..]), ("conv.bias", &[3.0, 4.0][..]));
        assert_eq!((&weight.shape[..], &weight.values[..]), (&[2, 1, 1, 2][..], &[1.0, -2.5, 0.0, 1e-20][..]));
    }

    #[test]
    fn numbers_of_other_lengths_become_f32() {
        let bytes = file(&[
            ("a", Dtype::F64, &[2], [0.1_f64, -3.0].map(f64::to_le_bytes).concat()),
            ("b", Dtype::F16, &[1], f16::from_f32(1.5).to_le_bytes().to_vec()),
            ("c", Dtype::BF16, &[1], bf16::from_f32(-2.0).to_le_bytes().to_vec()),
        ]);
        let values: Vec<_> = of_bytes(&bytes).expect("whole").tensors.into_iter().map(|found| found.values).collect();
        assert_eq!(values, [vec![0.1, -3.0], vec![1.5], vec![-2.0]]);
    }

    #[test]
    fn a_counter_of_batches_is_left_out_and_other_whole_numbers_are_refused() {
        let counter = ("bn1.num_batches_tracked", Dtype::I64, &[][..], 7_i64.to_le_bytes().to_vec());
        assert_eq!(of_bytes(&file(std::slice::from_ref(&counter))).expect("whole").tensors, []);
        let error = of_bytes(&file(&[counter, ("steps", Dtype::I64, &[], vec![0; 8])])).expect_err("no weight");
        assert!(error.to_string().contains("tensor steps has the type I64"), "{error}");
    }

    #[test]
    fn a_pickle_is_refused_with_the_function_that_writes_another_file() {
        let error = of_bytes(b"PK\x03\x04archive/data.pkl").expect_err("a zip archive").to_string();
        assert!(error.contains("safetensors.torch.save_file"), "{error}");
    }

    #[test]
    fn a_header_of_absurd_length_is_refused_before_it_is_read() {
        for length in [MAX_HEADER_BYTES + 1, u64::MAX, 1000] {
            let bytes = [&length.to_le_bytes()[..], b"{}"].concat();
            assert!(matches!(of_bytes(&bytes), Err(UnreadModel::Damaged(_))), "{length}");
        }
    }

    #[test]
    fn a_folder_is_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(matches!(read_model(folder.path()), Err(UnreadModel::NotAFile)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = of_bytes(&bytes);
        }

        #[test]
        fn any_header_is_read_or_refused(header in "[{}\\[\\]\":,a-zF0-9_ ]{0,80}", behind in 0_usize..32) {
            let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; behind]].concat();
            let _ = of_bytes(&bytes);
        }

        #[test]
        fn a_changed_byte_gives_no_more_values_than_the_file_has(place in 0_usize..1000, value: u8) {
            let mut bytes = ours();
            let place = place % bytes.len();
            bytes[place] = value;
            if let Ok(read) = of_bytes(&bytes) {
                let values: usize = read.tensors.iter().map(|tensor| tensor.values.len()).sum();
                prop_assert!(values * 2 <= bytes.len(), "{values} values of {} bytes", bytes.len());
            }
        }

        #[test]
        fn a_file_that_was_cut_is_refused(end in 0_usize..1000) {
            let bytes = ours();
            prop_assert!(of_bytes(&bytes[..end % bytes.len()]).is_err());
        }
    }
}

//! Makes the bytes of a safetensors file: eight bytes with the length of a JSON header
//! (little-endian), the header, padded with spaces to a multiple of eight, then the values.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::Tensor;

/// The key of the header that is no tensor.
const METADATA: &str = "__metadata__";
const HEADER_ALIGNMENT: usize = 8;
const VALUE_BYTES: usize = size_of::<f32>();

/// An entry of the header. The library orders metadata at random. This writer makes equal weights
/// into equal bytes.
#[derive(Serialize)]
#[serde(untagged)]
enum Header<'a> {
    Metadata(&'a BTreeMap<String, String>),
    Tensor { dtype: &'static str, shape: &'a [usize], data_offsets: [usize; 2] },
}

/// Returns the file that holds `tensors`, in their order.
pub(crate) fn to_bytes(tensors: &[Tensor<'_>], metadata: &BTreeMap<String, String>) -> Result<Vec<u8>, String> {
    let mut header = BTreeMap::from([(METADATA, Header::Metadata(metadata))]);
    if metadata.is_empty() {
        header.clear();
    }
    let mut end = 0;
    for Tensor { name, shape, values } in tensors {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "values of {name} with shape {shape:?}");
        let start = end;
        end += values.len() * VALUE_BYTES;
        let entry = Header::Tensor { dtype: "F32", shape, data_offsets: [start, end] };
        if *name == METADATA {
            return Err(format!("the name {METADATA} is reserved"));
        }
        if header.insert(name, entry).is_some() {
            return Err(format!("two tensors are named {name}"));
        }
    }
    let mut header = serde_json::to_vec(&header).map_err(|error| error.to_string())?;
    header.resize(header.len().next_multiple_of(HEADER_ALIGNMENT), b' ');
    let mut bytes = Vec::with_capacity(HEADER_ALIGNMENT + header.len() + end);
    bytes.extend_from_slice(&(header.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&header);
    for tensor in tensors {
        bytes.extend(tensor.values.iter().flat_map(|value| value.to_le_bytes()));
    }
    Ok(bytes)
}

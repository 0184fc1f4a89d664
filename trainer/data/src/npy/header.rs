//! The header of an array file, versions 1 to 3 of NumPy's format: after the magic, the version and
//! the header's length stands a Python dictionary, such as
//! `{'descr': '<f4', 'fortran_order': False, 'shape': (60000, 28, 28), }`.

use std::io::Read;

/// The most bytes of a header.
pub const MAX_HEADER_BYTES: usize = 1 << 16;
/// The most values of a dimension, but the first.
pub const MAX_SIDE: usize = 1 << 20;
const MAX_DIMENSIONS: usize = 8;
pub(crate) const MAGIC: &[u8] = b"\x93NUMPY";

/// The description of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The kind of a value, as NumPy writes it without the order of its bytes: `f4`.
    pub(crate) kind: String,
    pub(crate) big_endian: bool,
    pub(crate) shape: Vec<usize>,
    /// Bytes of the file before the values.
    pub(crate) length: u64,
}

/// Reads a header. The error says why it is none, or one of an array that is not taken.
pub(crate) fn read(file: &mut impl Read) -> Result<Header, String> {
    let mut start = [0; 8];
    file.read_exact(&mut start).map_err(|_| "it ends in its header".to_owned())?;
    if start[..6] != *MAGIC {
        return Err("it does not begin as NumPy's array files do; write it with numpy.save".to_owned());
    }
    let mut size = [0; 4];
    let wide = match start[6] {
        1 => 2,
        2 | 3 => 4,
        version => return Err(format!("its format has version {version}, accepted are 1 to 3")),
    };
    file.read_exact(&mut size[..wide]).map_err(|_| "it ends in its header".to_owned())?;
    let bytes = u32::from_le_bytes(size) as usize;
    if bytes > MAX_HEADER_BYTES {
        return Err(format!("its header has {bytes} bytes, accepted are {MAX_HEADER_BYTES}"));
    }
    let mut text = vec![0; bytes];
    file.read_exact(&mut text).map_err(|_| "it ends in its header".to_owned())?;
    let text = String::from_utf8(text).map_err(|_| "its header is no text".to_owned())?;
    let (descr, shape) = dictionary(&text)?;
    let (order, kind) = descr.split_at_checked(1).unwrap_or_default();
    let big_endian = match order {
        "<" | "|" => false,
        ">" => true,
        _ => return Err(format!("its values are of kind {descr:?}, which is not taken; convert them with astype")),
    };
    Ok(Header { kind: kind.to_owned(), big_endian, shape, length: (8 + wide + bytes) as u64 })
}

/// Reads the two fields that matter, and refuses an array in Fortran's order.
fn dictionary(text: &str) -> Result<(String, Vec<usize>), String> {
    let mut rest = Rest(text.trim());
    let (mut descr, mut order, mut shape) = (None, None, None);
    rest.take("{")?;
    while !rest.takes("}") {
        let key = rest.quoted()?;
        rest.take(":")?;
        match key {
            "descr" if rest.begins("[") => {
                return Err("its values have several fields; save each as its own array".to_owned());
            }
            "descr" => descr = Some(rest.quoted()?.to_owned()),
            "fortran_order" => order = Some(rest.truth()?),
            "shape" => shape = Some(rest.numbers()?),
            other => return Err(format!("its header has a field {other:?}")),
        }
        if !rest.takes(",") && !rest.begins("}") {
            return Err("its header is damaged".to_owned());
        }
    }
    match (descr, order, shape) {
        (Some(_), Some(true), Some(_)) => {
            Err("it is in Fortran's order; save numpy.ascontiguousarray of it".to_owned())
        }
        (Some(descr), Some(false), Some(shape)) => Ok((descr, shape)),
        _ => Err("its header lacks descr, fortran_order or shape".to_owned()),
    }
}

/// The rest of a header that is being read.
struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    fn begins(&self, token: &str) -> bool {
        self.0.starts_with(token)
    }

    fn takes(&mut self, token: &str) -> bool {
        match self.0.strip_prefix(token) {
            Some(rest) => {
                self.0 = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn take(&mut self, token: &str) -> Result<(), String> {
        if self.takes(token) { Ok(()) } else { Err(format!("its header lacks a `{token}`")) }
    }

    fn quoted(&mut self) -> Result<&'a str, String> {
        let quote = if self.begins("\"") { "\"" } else { "'" };
        self.take(quote)?;
        let (inner, rest) = self.0.split_once(quote).ok_or("a text in its header has no end")?;
        self.0 = rest.trim_start();
        Ok(inner)
    }

    fn truth(&mut self) -> Result<bool, String> {
        if self.takes("True") {
            return Ok(true);
        }
        self.take("False")?;
        Ok(false)
    }

    fn numbers(&mut self) -> Result<Vec<usize>, String> {
        let mut numbers = Vec::new();
        self.take("(")?;
        while !self.takes(")") {
            let end = self.0.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(self.0.len());
            let (digits, rest) = self.0.split_at(end);
            self.0 = rest.trim_start_matches('L').trim_start();
            numbers.push(digits.parse().map_err(|_| "its shape is no list of numbers".to_owned())?);
            if numbers.len() > MAX_DIMENSIONS {
                return Err(format!("it has more than {MAX_DIMENSIONS} dimensions"));
            }
            if !self.takes(",") && !self.begins(")") {
                return Err("its shape is no list of numbers".to_owned());
            }
        }
        Ok(numbers)
    }
}

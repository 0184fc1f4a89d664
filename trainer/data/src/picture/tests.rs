use proptest::prelude::*;

use super::*;

/// Colours of the four quarters of the pictures in testdata/, as make.py prints them.
const QUARTERS: [[u8; 3]; 4] = [[200, 30, 30], [30, 180, 60], [40, 60, 220], [230, 220, 40]];

macro_rules! picture {
    ($name:literal) => {
        include_bytes!(concat!("../../testdata/", $name))
    };
}

/// Pixels near the four corners.
fn corners(picture: &Decoded) -> Vec<Vec<u8>> {
    let Decoded { pixels, height, width, channels } = picture;
    [(3, 3), (3, width - 4), (height - 4, 3), (height - 4, width - 4)]
        .into_iter()
        .map(|(row, column)| pixels[(row * width + column) * channels..][..*channels].to_vec())
        .collect()
}

fn assert_near(found: &[Vec<u8>], expected: &[[u8; 3]], name: &str) {
    for (found, expected) in found.iter().zip(expected) {
        let distance = found.iter().zip(expected).map(|(one, other)| one.abs_diff(*other)).max();
        assert!(distance <= Some(4), "{name}: {found:?}, expected {expected:?}");
    }
}

#[test]
fn every_kind_of_picture_has_the_colours_that_pillow_sees() {
    let pictures: [(&str, &[u8]); 6] = [
        ("colour.jpg", picture!("colour.jpg")),
        ("progressive.jpg", picture!("progressive.jpg")),
        ("cmyk.jpg", picture!("cmyk.jpg")),
        ("colour.png", picture!("colour.png")),
        ("palette.png", picture!("palette.png")),
        ("transparent.png", picture!("transparent.png")),
    ];
    for (name, encoded) in pictures {
        let decoded = decode(encoded, 3).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(decoded.size(), (16, 32), "{name}");
        assert_eq!(size(encoded), Ok((16, 32)), "{name}");
        assert_near(&corners(&decoded), &QUARTERS, name);
    }
}

#[test]
fn a_picture_is_turned_as_its_camera_was() {
    let encoded = picture!("rotated.jpg");
    let decoded = decode(encoded, 3).expect("whole");
    assert_eq!((decoded.size(), size(encoded)), ((32, 16), Ok((32, 16))));
    let [first, second, third, fourth] = QUARTERS;
    assert_near(&corners(&decoded), &[third, first, fourth, second], "rotated.jpg");
}

#[test]
fn grey_becomes_colour_and_colour_grey_and_sixteen_bits_become_eight() {
    let grey = decode(picture!("grey.jpg"), 3).expect("whole");
    assert_near(&corners(&grey), &[[81; 3], [121; 3], [72; 3], [202; 3]], "grey.jpg");
    assert_eq!(corners(&decode(picture!("colour.png"), 1).expect("whole"))[0].len(), 1);
    let deep = decode(picture!("grey16.png"), 1).expect("whole");
    // 51,400 of 65,535.
    assert_eq!(corners(&deep)[0], [200]);
}

#[test]
fn what_is_no_picture_is_named() {
    let whole = picture!("colour.jpg");
    for (encoded, expected) in [
        (&[][..], "empty"),
        (b"GIF89a and more", "neither JPEG nor PNG"),
        (b"a text", "neither JPEG nor PNG"),
        (&whole[..whole.len() - 30], "ends before its picture does"),
        (&whole[..40], ""),
        (&picture!("colour.png")[..60], ""),
    ] {
        let error = decode(encoded, 3).expect_err("no picture");
        assert!(error.contains(expected) && !error.is_empty() && !error.contains('\n'), "{error:?}");
    }
}

/// A PNG header that promises so many pixels of 8 bytes.
fn promise(width: u32, height: u32) -> Vec<u8> {
    let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    png.extend(width.to_be_bytes().iter().chain(&height.to_be_bytes()).chain(&[16, 6, 0, 0, 0]));
    let mut checksum = flate2::Crc::new();
    checksum.update(&png[12..]);
    png.extend(checksum.sum().to_be_bytes());
    png.extend(b"\0\0\0\x10IDAT0123456789abcdef\0\0\0\0");
    png
}

#[test]
fn a_header_that_promises_too_much_is_refused_before_memory_is_taken() {
    for (width, height) in [(16_385, 1), (1, 16_385), (16_000, 16_000), (u32::MAX, u32::MAX), (0, 5)] {
        let error = decode(&promise(width, height), 3).expect_err("too large");
        assert!(!error.is_empty(), "{width}×{height}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damaged_pictures_are_decoded_or_refused(
        which in 0_usize..6,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let pictures: [&[u8]; 6] = [
            picture!("colour.jpg"), picture!("progressive.jpg"), picture!("cmyk.jpg"),
            picture!("rotated.jpg"), picture!("palette.png"), picture!("grey16.png"),
        ];
        let mut encoded = pictures[which].to_vec();
        changes.iter().for_each(|(at, value)| { let at = at.index(encoded.len()); encoded[at] = *value; });
        if let Some(cut) = cut {
            encoded.truncate(cut.index(encoded.len()));
        }
        if let Ok(decoded) = decode(&encoded, 3) {
            let (height, width) = decoded.size();
            prop_assert_eq!(decoded.as_picture().pixels.len(), height * width * 3);
        }
        let _ = size(&encoded);
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(encoded in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(decode(&encoded, 1).is_err());
    }
}

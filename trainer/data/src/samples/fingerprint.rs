//! The digest that tells the samples of a data set from others.

use super::{Content, Dataset, Labels, Samples};
use crate::Shape;

impl Dataset {
    /// blake3 over shapes, counts, class names, contents and labels: members with equal
    /// fingerprints read the same data. Normalisation and augmentation are the manifest's.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 32] {
        let Self { train, evaluation } = self;
        let mut hash = blake3::Hasher::new_derive_key("lockstep data set v2");
        train.feed(&mut hash);
        evaluation.feed(&mut hash);
        *hash.finalize().as_bytes()
    }
}

impl Samples {
    fn feed(&self, hash: &mut blake3::Hasher) {
        let Self {
            shape,
            classes,
            class_names,
            labels,
            content,
            normalise: _,
            augment: _,
            class_weights: _,
            weights: _,
        } = self;
        let Shape { channels, height, width } = shape;
        for number in [*channels, *height, *width, *classes, self.len()] {
            hash.update(&(number as u64).to_le_bytes());
        }
        for name in class_names.iter() {
            hash.update(&(name.len() as u64).to_le_bytes());
            hash.update(name.as_bytes());
        }
        match content {
            Content::Memory(pixels) => hash.update(pixels),
            Content::Values(values) => feed_values(values, hash),
            Content::Pictures(pictures) => {
                hash.update(&pictures.fingerprint);
                hash.update(pictures.contents.get().map_or(&[], |digest| &digest[..]))
            }
            Content::Random { seed, first } => hash.update(&seed.to_le_bytes()).update(&first.to_le_bytes()),
        };
        match labels {
            Labels::Samples(labels) => {
                for labels in labels.chunks(1024) {
                    let bytes: Vec<u8> = labels.iter().flat_map(|label| label.to_le_bytes()).collect();
                    hash.update(&bytes);
                }
            }
            Labels::Pixels(masks) => {
                hash.update(&[masks.ignored()]);
                hash.update(masks.bytes());
            }
        }
    }
}

fn feed_values<'a>(values: &[f32], hash: &'a mut blake3::Hasher) -> &'a mut blake3::Hasher {
    for values in values.chunks(1024) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        hash.update(&bytes);
    }
    hash
}

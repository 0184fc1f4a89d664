use proptest::prelude::*;

use super::{newest, number, open, save_in_parts, state::SampleState};
use crate::{Layout, Piece};

/// The greatest world size.
const MOST: u32 = 8;

#[test]
fn any_number_of_writers_resumes_a_checkpoint_of_any_number_bit_for_bit() {
    let mut pairs = 0;
    for before in 1..=MOST {
        for after in 1..=MOST {
            let root = tempfile::tempdir().expect("a folder");
            let folder = open(root.path());
            save_in_parts(&folder, 1, before).expect("saved");
            assert_eq!(newest(&folder), (Some(1), vec![]), "of {before} writers");
            // Each member of the next group reads its own part and writes it again.
            let state = SampleState::at(1);
            let layout = state.layout();
            let values: Vec<u32> = (0..after)
                .flat_map(|reader| {
                    let range = layout.part(reader, number(after));
                    folder.load_range(1, &state.identity, range).expect("ours").expect("whole")
                })
                .map(f32::to_bits)
                .collect();
            assert_eq!(values, bits(&state.values()), "{before} writers, {after} readers");
            save_in_parts(&folder, 2, after).expect("saved");
            assert_eq!(newest(&folder), (Some(2), vec![]), "{before} writers, then {after}");
            pairs += 1;
        }
    }
    println!("{pairs} pairs of world sizes");
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

proptest! {
    #[test]
    fn parts_cover_the_arena_in_blocks_and_differ_by_at_most_one_block(
        values in 0_usize..1000,
        writers in 1_u32..40,
        block_values in 1_usize..9,
    ) {
        let mut layout = Layout::new([("a", &[values][..])], []).expect("fits");
        layout.block_values = block_values;
        let parts: Vec<_> = (0..writers).map(|writer| layout.part(writer, number(writers))).collect();
        prop_assert_eq!((parts[0].start, parts[parts.len() - 1].end), (0, layout.bytes()));
        prop_assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start), "{:?}", parts);
        let block = block_values as u64 * 4;
        prop_assert!(parts.iter().all(|part| part.is_empty() || part.start.is_multiple_of(block)), "{:?}", parts);
        let blocks = || parts.iter().map(|part| (part.end - part.start).div_ceil(block));
        prop_assert!(blocks().max().expect("one") - blocks().min().expect("one") <= 1, "{:?}", parts);
    }

    #[test]
    fn pieces_list_the_values_of_a_range_in_order(
        lengths in prop::collection::vec(0_usize..20, 0..12),
        cut in any::<(prop::sample::Index, prop::sample::Index)>(),
    ) {
        let names: Vec<_> = (0..lengths.len()).map(|tensor| tensor.to_string()).collect();
        let shapes = || names.iter().map(String::as_str).zip(lengths.chunks(1));
        let layout = Layout::new(shapes().take(3), shapes().skip(3)).expect("fits");
        let ends = [cut.0.index(layout.values() + 1), cut.1.index(layout.values() + 1)];
        let (start, end) = (ends[0].min(ends[1]), ends[0].max(ends[1]));
        let all: Vec<_> = lengths.iter().enumerate().flat_map(|(tensor, n)| (0..*n).map(move |at| (tensor, at))).collect();
        let pieces: Vec<_> = layout.pieces(start as u64 * 4..end as u64 * 4).collect();
        prop_assert!(pieces.iter().all(|piece| !piece.values.is_empty() && piece.name == names[piece.tensor]));
        let found: Vec<_> = pieces
            .into_iter()
            .flat_map(|Piece { tensor, values, .. }| values.map(move |at| (tensor, at)))
            .collect();
        prop_assert_eq!(&found[..], &all[start..end]);
    }
}

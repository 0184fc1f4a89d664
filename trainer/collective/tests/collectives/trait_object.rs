//! The operations of a training step, by the trait that other implementations share.

use lockstep_collective::algorithm::part;
use lockstep_collective::{Abort, Collectives, Communicator, Tag};

use crate::group::{PATIENT, ends, group};

const STEP: u64 = 1;

fn tag(bucket: u32) -> Tag {
    Tag { step: STEP, bucket }
}

/// Begins every operation, and waits for them in their order.
fn every_operation(collectives: &mut dyn Collectives<Vec<f32>>) -> Vec<Vec<f32>> {
    let (rank, world) = (collectives.rank(), collectives.world());
    let own = vec![rank as f32 + 1.0; 4];
    let begun = [
        collectives.all_reduce(tag(0), own.clone()),
        collectives.reduce_scatter(tag(1), own.clone()),
        collectives.all_gather(tag(2), own.clone()),
        match rank {
            0 => collectives.send(1, tag(3), own.clone()),
            _ => collectives.receive(0, tag(3), own.clone()),
        },
        collectives.all_reduce_with_next(tag(4), own),
    ];
    assert_eq!(world, 2);
    begun.into_iter().map(|operation| collectives.wait(operation).unwrap().memory).collect()
}

#[test]
fn each_operation_gives_its_buffer_back_with_its_result() {
    ends(|| {
        group(2, PATIENT, |mut communicator: Communicator<Vec<f32>>| {
            let rank = Collectives::rank(&communicator);
            let [sum, scattered, gathered, sent, last] = &every_operation(&mut communicator)[..] else { panic!() };
            assert_eq!([sum, last], [&vec![3.0; 4]; 2]);
            assert_eq!(scattered[part(&(0..4), 2, rank)], [3.0; 2]);
            assert_eq!(gathered, &[1.0, 1.0, 2.0, 2.0]);
            assert_eq!(sent, &[1.0; 4]);
        })
    });
}

#[test]
#[should_panic(expected = "operations are waited for in their order")]
fn an_operation_is_not_waited_for_before_an_older_one() {
    let mut alone = Communicator::alone(Abort::new());
    let [_first, second] = [0, 1].map(|bucket| alone.all_reduce(tag(bucket), vec![1.0_f32]));
    let _ = Collectives::wait(&mut alone, second);
}

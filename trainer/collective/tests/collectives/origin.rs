//! The origin of a failure. All ranks wait in the end when one is silent or gone. Together they
//! know the right rank, whichever rank each of them waits for.

use std::sync::Barrier;
use std::time::Duration;

use lockstep_collective::algorithm::{Algorithm, MAX_FRAME};
use lockstep_collective::{CollectiveError, Group, Limits, Origin, PeerFault, Reduction, Tag};

use crate::group::{PATIENT, bare_group, ends, with_sockets};

/// Elements that fill more than a frame for each of up to four ranks.
const LENGTH: usize = 4 * MAX_FRAME + 1;
const SILENCE: Duration = Duration::from_secs(2);
const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::Ring,
    Algorithm::RecursiveDoubling,
    Algorithm::HalvingDoubling,
    Algorithm::DoubleTree,
    Algorithm::Direct,
];
const SHARING: Limits = Limits { shares_memory: true, ..PATIENT };
/// The step of the first sum, in which all ranks take part.
const GOOD: u64 = 40;
/// The step of the next sum.
const BAD: u64 = 41;

/// The operations in which a rank waits for another that leaves the group.
const CHAIN: Tag = Tag { step: GOOD, bucket: 2 };

type Sum = fn(&mut Group, Algorithm, Tag, &mut [f32]) -> Result<(), CollectiveError>;

fn over_tcp(group: &mut Group, algorithm: Algorithm, tag: Tag, data: &mut [f32]) -> Result<(), CollectiveError> {
    group.all_reduce(algorithm, tag, data, Reduction::Sum).map(drop)
}

fn in_memory(group: &mut Group, _: Algorithm, tag: Tag, data: &mut [f32]) -> Result<(), CollectiveError> {
    group.all_reduce_in_memory(tag, data, Reduction::Sum).map(drop)
}

/// Returns the errors of the other ranks if rank `lost` takes no part in the second sum. It leaves,
/// or it is silent until they have failed.
fn met(
    limits: Limits,
    sum: Sum,
    algorithm: Algorithm,
    [world, lost]: [usize; 2],
    leaves: bool,
) -> Vec<(usize, CollectiveError)> {
    let all_have_failed = Barrier::new(world);
    let errors = bare_group(world, limits, |mut group| {
        let mut data = vec![1.0; LENGTH];
        sum(&mut group, algorithm, Tag { step: GOOD, bucket: 1 }, &mut data).unwrap();
        if group.id().rank == lost {
            let stays = (!leaves).then_some(group);
            all_have_failed.wait();
            drop(stays);
            return None;
        }
        group.set_silence(SILENCE, SILENCE).unwrap();
        let error = sum(&mut group, algorithm, Tag { step: BAD, bucket: 1 }, &mut data).unwrap_err();
        all_have_failed.wait();
        Some((group.id().rank, error))
    });
    errors.into_iter().flatten().collect()
}

/// Loses every rank of three and four in turn. The errors of the others together must name it.
fn assert_named(limits: Limits, sum: Sum, algorithm: Algorithm, leaves: bool, fault: PeerFault) {
    for (world, lost) in [3, 4].into_iter().flat_map(|world| (0..world).map(move |lost| (world, lost))) {
        let errors = ends(move || met(limits, sum, algorithm, [world, lost], leaves));
        let known: Vec<_> = errors.iter().map(|(rank, error)| (*rank, error.origin().unwrap())).collect();
        let said: Vec<String> = errors.iter().map(|(_, error)| error.to_string()).collect();
        let first = Origin::first(&known).unwrap();
        if fault == PeerFault::Silent {
            // All ranks have waited until nothing moved. So the first site is right by itself, even
            // without the reports of some ranks.
            let origins = known.iter().map(|(_, origin)| *origin);
            assert_eq!(origins.min(), Some(first), "{algorithm:?}, rank {lost} of {world}: {said:#?}");
        }
        let Origin { site, .. } = first;
        assert_eq!((first.rank, first.fault), (lost, fault), "{algorithm:?}, rank {lost} of {world}: {said:#?}");
        assert_eq!((site.step, site.bucket), (BAD, 1), "{said:#?}");
        assert!((1..=site.hops).contains(&site.hop), "{said:#?}");
        let within = format!("in hop {} of {} of bucket 1 of step {BAD}", site.hop, site.hops);
        assert!(said.iter().any(|said| said.contains(&within)), "{said:#?}");
    }
}

fn assert_named_over_tcp(leaves: bool, fault: PeerFault) {
    std::thread::scope(|scope| {
        for algorithm in ALGORITHMS {
            scope.spawn(move || assert_named(PATIENT, over_tcp, algorithm, leaves, fault));
        }
    });
}

#[test]
fn a_silent_rank_is_named_over_tcp() {
    assert_named_over_tcp(false, PeerFault::Silent);
}

#[test]
fn a_rank_that_has_gone_is_named_over_tcp() {
    assert_named_over_tcp(true, PeerFault::Closed);
}

#[test]
fn a_silent_rank_is_named_in_memory() {
    assert_named(SHARING, in_memory, Algorithm::Ring, false, PeerFault::Silent);
}

#[test]
fn a_rank_that_has_gone_is_named_in_memory() {
    assert_named(SHARING, in_memory, Algorithm::Ring, true, PeerFault::Closed);
}

/// Returns the error of the patient rank 2. It waits in `operation` for rank 1, which times out on
/// the lost rank 0.
fn met_behind(
    limits: Limits,
    leaves: bool,
    operation: fn(&mut Group) -> Result<(), CollectiveError>,
) -> CollectiveError {
    ends(move || {
        let rank_2_has_failed = Barrier::new(2);
        let mut errors = bare_group(3, limits, |mut group| match group.id().rank {
            0 => {
                let stays = (!leaves).then_some(group);
                rank_2_has_failed.wait();
                drop(stays);
                None
            }
            1 => {
                group.set_silence(SILENCE, SILENCE).unwrap();
                group.receive(0, CHAIN, &mut [0.0_f32; 10]).unwrap_err();
                None
            }
            _ => {
                let error = operation(&mut group).unwrap_err();
                rank_2_has_failed.wait();
                Some(error)
            }
        });
        errors.remove(2).unwrap()
    })
}

fn assert_told(limits: Limits, operation: fn(&mut Group) -> Result<(), CollectiveError>) {
    for (leaves, fault, did) in
        [(true, PeerFault::Closed, "closed its connection"), (false, PeerFault::Silent, "was silent")]
    {
        let error = met_behind(limits, leaves, operation);
        let said = error.to_string();
        assert_eq!(said, format!("rank 1 gave up because rank 0 {did} in hop 1 of 1 of bucket 2 of step {GOOD}"));
        let CollectiveError::PeerGaveUp { rank: 1, origin } = error else { panic!("{error}") };
        assert_eq!((origin.rank, origin.fault, error.peer()), (0, fault, Some(0)), "{origin:?}");
        assert_eq!((origin.site.from, origin.site.to), (0, 1), "{origin:?}");
    }
}

#[test]
fn a_receiver_learns_why_its_sender_leaves() {
    assert_told(PATIENT, |group| group.receive(1, CHAIN, &mut [0.0_f32; 10]).map(drop));
    // Less than a notice's payload, and more than a frame.
    assert_told(PATIENT, |group| group.receive(1, CHAIN, &mut [0_u8; 3]).map(drop));
    assert_told(PATIENT, |group| group.receive(1, CHAIN, &mut vec![0.0_f64; LENGTH]).map(drop));
}

#[test]
fn a_receiver_over_several_connections_learns_why_its_sender_leaves() {
    assert_told(with_sockets(3), |group| group.receive(1, CHAIN, &mut [0.0_f32; 10]).map(drop));
}

#[test]
fn a_sender_learns_why_its_receiver_leaves() {
    // More than all sockets hold.
    assert_told(PATIENT, |group| group.send(1, CHAIN, &mut vec![0.0_f32; 16 << 20]).map(drop));
}

#[test]
fn a_rank_in_shared_memory_learns_why_its_peer_leaves() {
    let error = met_behind(SHARING, false, |group| {
        group.all_reduce_in_memory(CHAIN, &mut [0.0_f32; 10], Reduction::Sum).map(drop)
    });
    assert!(matches!(error, CollectiveError::PeerGaveUp { rank: 1, .. }) && error.peer() == Some(0), "{error}");
}

#[test]
fn a_rank_passes_the_reason_on_to_the_next_one() {
    let errors = ends(|| {
        bare_group(4, PATIENT, |mut group| match group.id().rank {
            0 => None,
            rank => group.receive(rank - 1, CHAIN, &mut [0.0_f32; 10]).err(),
        })
    });
    let origins: Vec<_> = errors.iter().flatten().map(|error| error.origin().unwrap()).collect();
    assert!(origins.iter().all(|origin| *origin == origins[0] && origin.rank == 0), "{origins:?}");
    assert!(matches!(errors[3], Some(CollectiveError::PeerGaveUp { rank: 2, .. })), "{errors:?}");
}

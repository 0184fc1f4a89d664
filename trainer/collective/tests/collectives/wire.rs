//! Sums of `f32` that travel in fewer bits.

use half::{bf16, f16};
use lockstep_collective::algorithm::{Algorithm, MAX_FRAME, part};
use lockstep_collective::{Abort, BucketPlan, Choice, Communicator, Group, HEADER_BYTES, Hosts, Tag, Wire};

use crate::group::{PATIENT, bare_group, ends, id, listener, ranks_at};

const TAG: Tag = Tag { step: 2, bucket: 1 };
/// A format, and its rounding of a number.
type Narrow = (Wire, fn(f32) -> f32);

const NARROW: [Narrow; 2] =
    [(Wire::Bf16, |value| bf16::from_f32(value).to_f32()), (Wire::F16, |value| f16::from_f32(value).to_f32())];

/// Returns numbers that no narrow format can hold.
fn uneven(rank: usize, length: usize) -> Vec<f32> {
    (0..length).map(|index| 1.0 + 1.0 / (rank * 1000 + index % 977 + 3) as f32).collect()
}

/// Returns the sum of a part. Its owner adds the others' rounded terms to its own in `f32`, the
/// previous rank's first. The sum is rounded once.
fn rounded_twice(world: usize, length: usize, round: fn(f32) -> f32) -> Vec<f32> {
    let terms: Vec<Vec<f32>> = (0..world).map(|rank| uneven(rank, length)).collect();
    let mut sum = vec![0.0; length];
    for owner in 0..world {
        for index in part(&(0..length), world, owner) {
            let others = (1..world).map(|distance| terms[(owner + world - distance) % world][index]);
            let total = others.fold(terms[owner][index], |total, term| total + round(term));
            sum[index] = if world == 1 { total } else { round(total) };
        }
    }
    sum
}

#[test]
fn a_direct_sum_is_added_in_f32_and_rounded_once_as_term_and_once_as_sum() {
    for world in 1..=5 {
        for (wire, round) in NARROW {
            ends(move || {
                bare_group(world, PATIENT, |mut group| {
                    for length in [0, 1, 7, 999, world * MAX_FRAME + 1] {
                        let mut data = uneven(group.id().rank, length);
                        group.sum(wire, Algorithm::Direct, TAG, &mut data).unwrap();
                        assert!(data == rounded_twice(world, length, round), "{wire:?}, {world} ranks, {length}");
                    }
                })
            });
        }
    }
}

/// Returns the sum over mixed hosts. Hosts sum within themselves in `f32`. Then owners treat those
/// sums as ranks of separate hosts treat terms.
fn rounded_between(hosts: &Hosts, length: usize, round: fn(f32) -> f32) -> Vec<f32> {
    let terms: Vec<Vec<f32>> = (0..hosts.world()).map(|rank| uneven(rank, length)).collect();
    let (rows, count, owners) = (hosts.ranks(), hosts.count(), hosts.emptiest());
    let mut sum = vec![0.0; length];
    for (owner, host) in (0..owners).flat_map(|owner| (0..count).map(move |host| (owner, host))) {
        for index in part(&part(&(0..length), owners, owner), count, host) {
            let of = |host: usize| {
                let (row, owner) = (&rows[host], rows[host][owner]);
                let others = row.iter().filter(|rank| **rank != owner);
                others.fold(terms[owner][index], |total, rank| total + terms[*rank][index])
            };
            let others = (1..count).map(|distance| of((host + count - distance) % count));
            sum[index] = round(others.fold(of(host), |total, term| total + round(term)));
        }
    }
    sum
}

#[test]
fn on_mixed_hosts_a_direct_sum_is_rounded_between_hosts_only() {
    const LONG: usize = 6 * MAX_FRAME + 1;
    for names in [&[1, 2, 1][..], &[5, 5, 9, 9], &[1, 2, 2, 0, 0, 2], &[1, 1, 2, 2, 3, 3]] {
        for (wire, round) in NARROW {
            let listeners = names.iter().map(|name| listener().on_host(*name)).collect();
            let sent = ranks_at(listeners, |listener, rank, peers| {
                let mut group = Group::form(listener, id(rank), peers, PATIENT, &Abort::new()).unwrap();
                let mut sum = |length| {
                    let mut data = uneven(rank, length);
                    let transferred = group.sum(wire, Algorithm::Direct, TAG, &mut data).unwrap();
                    assert!(data == rounded_between(group.hosts(), length, round), "{wire:?}, {names:?}, {length}");
                    transferred.bytes_sent
                };
                for length in [0, 1, 7, 999] {
                    sum(length);
                }
                sum(LONG)
            });
            if names == [5, 5, 9, 9] {
                // Within its host a rank sends one half as terms and the other half as sums, both
                // in `f32`. It sends as much as its own half to the other host, rounded.
                let most = ((4 + 1) * LONG + 64 * HEADER_BYTES) as u64;
                assert!(sent.iter().all(|sent| *sent <= most), "{sent:?}, {most} at most");
            }
        }
    }
}

#[test]
fn all_ranks_hold_the_same_bits_near_the_sum_by_any_algorithm() {
    let alike = [Algorithm::Ring, Algorithm::RecursiveDoubling, Algorithm::HalvingDoubling, Algorithm::DoubleTree];
    // Two ranks send several frames.
    for (world, length) in [(2, 2 * MAX_FRAME + 1), (3, 10_007), (5, 10_007), (6, 10_007)] {
        for (algorithm, (wire, _)) in alike
            .into_iter()
            .chain([Algorithm::torus(world), Algorithm::Hierarchical])
            .flat_map(|one| NARROW.map(|wire| (one, wire)))
        {
            let sums = ends(move || {
                bare_group(world, PATIENT, |mut group| {
                    let mut data = uneven(group.id().rank, length);
                    group.sum(wire, algorithm, TAG, &mut data).unwrap();
                    data
                })
            });
            let terms: Vec<Vec<f32>> = (0..world).map(|rank| uneven(rank, length)).collect();
            let exact: Vec<f32> = (0..length).map(|index| terms.iter().map(|terms| terms[index]).sum()).collect();
            assert!(sums.iter().all(|sum| *sum == sums[0]), "{world} ranks, {wire:?}, {algorithm:?}");
            // Some terms are near 1, and each hop is rounded to 8 or 11 bits.
            let near = |(sum, exact): (&f32, &f32)| (sum - exact).abs() <= exact / 64.0;
            assert!(sums[0].iter().zip(&exact).all(near), "{wire:?}, {algorithm:?}");
        }
    }
}

#[test]
fn a_narrow_format_sends_half_the_bytes() {
    let length = 1 << 20;
    let sent = |wire| {
        ends(move || {
            bare_group(2, PATIENT, |mut group| {
                group.sum(wire, Algorithm::Direct, TAG, &mut vec![1.0; length]).unwrap().bytes_sent
            })
        })
    };
    // A rank of two sends half of its elements as terms and the other half as sums.
    assert!(sent(Wire::F32).iter().all(|sent| *sent >= 4 * length as u64));
    let most = 2 * length as u64 + 64 * HEADER_BYTES as u64;
    assert!(sent(Wire::Bf16).iter().all(|sent| *sent <= most), "{:?}", sent(Wire::Bf16));
}

#[test]
fn ranks_that_disagree_on_the_format_get_an_error() {
    let failures = ends(|| {
        bare_group(2, PATIENT, |mut group| {
            let wire = if group.id().rank == 0 { Wire::Bf16 } else { Wire::F16 };
            group.sum(wire, Algorithm::Direct, TAG, &mut [1.0, 2.0]).unwrap_err().to_string()
        })
    });
    let told = |failure: &String| failure.contains("f32 in bf16") && failure.contains("f32 in f16");
    assert!(failures.iter().any(told), "{failures:?}");
}

#[test]
fn the_newest_plans_buckets_travel_in_its_format_and_other_numbers_unchanged() {
    let third = 1.0_f32 / 3.0;
    ends(move || {
        bare_group(2, PATIENT, |mut group| {
            let choice = Choice::default();
            let (buckets, hosts) = (vec![0..10, 10..30], group.hosts().clone());
            let plan = group.agree(|| BucketPlan { buckets, choice, wire: Wire::Bf16, hosts }).unwrap();
            let mut communicator = Communicator::over(group).unwrap();
            for bucket in 0..3 {
                communicator.submit(1, bucket, vec![third; 20]);
            }
            let sums: Vec<Vec<f32>> = communicator.wait_all().map(|sum| sum.unwrap().memory).collect();
            let rounded = bf16::from_f32(third + bf16::from_f32(third).to_f32()).to_f32();
            assert_eq!(sums, [vec![rounded; 20], vec![rounded; 20], vec![2.0 * third; 20]]);
            let mut now = [third];
            communicator.all_reduce_now(1, &mut now).unwrap();
            assert_eq!(now, [2.0 * third]);
            let proposed = BucketPlan { wire: Wire::F32, ..plan.proposed().clone() };
            communicator.submit(2, 0, vec![third; 20]);
            let anew = communicator.agree(|| proposed.clone()).unwrap();
            assert_eq!(*anew.proposed(), proposed);
            communicator.submit(2, 0, vec![third; 20]);
            let sums: Vec<Vec<f32>> = communicator.wait_all().map(|sum| sum.unwrap().memory).collect();
            assert_eq!(sums, [vec![rounded; 20], vec![2.0 * third; 20]], "pending operations follow the earlier plan");
        })
    });
}

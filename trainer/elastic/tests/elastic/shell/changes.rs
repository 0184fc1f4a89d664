//! Groups that change, over real sockets.

use std::{borrow::Borrow, sync::mpsc, thread, time::Duration};

use lockstep_elastic::{
    Activity, Admission, Assignment, Digest, FinalReply, FollowedGroup, HeldState, JoinError, Membership,
    MembershipEvent, Outcome, Sampler, coordinator::Config,
};

use super::{PATIENCE, finish, folder, heard, join, join_all, regroup, start, start_at};
use crate::fixtures::{NOTHING, config, hello, pod};

/// Returns the settings of a group that needs two members and may have as many as `most`.
fn elastic(most: usize) -> Config {
    Config { least: 2, ..config(most) }
}

fn state(step: u64) -> HeldState {
    let sampler = Sampler { seed: 42, epoch: 0, cursor: 10 * step };
    HeldState { step, digest: Digest::of(&step.to_le_bytes()), sampler }
}

fn listen(members: &[(Membership, Assignment)]) -> Vec<mpsc::Receiver<MembershipEvent>> {
    members.iter().map(|(membership, _)| heard(membership)).collect()
}

/// Asserts that the next event of each member is `expected`.
fn all_hear(members: &[impl Borrow<mpsc::Receiver<MembershipEvent>>], expected: &MembershipEvent) {
    for events in members {
        assert_eq!(events.borrow().recv_timeout(PATIENCE).as_ref(), Ok(expected));
    }
}

/// Asserts that the next event of each member asks it to feed this pod's newcomer.
fn all_are_asked_to_feed(members: &[impl Borrow<mpsc::Receiver<MembershipEvent>>], pod: &str) {
    for events in members {
        let event = events.borrow().recv_timeout(PATIENCE);
        assert!(matches!(&event, Ok(MembershipEvent::Feed(follower)) if follower.member.pod == pod), "{event:?}");
    }
}

/// Seals all members with this state and returns them in the next group.
fn regroup_all(members: Vec<(Membership, Assignment)>, held: HeldState) -> Vec<(Membership, Assignment)> {
    let regrouping: Vec<_> = members
        .into_iter()
        .map(|(membership, _)| {
            thread::spawn(move || {
                let group = regroup(&membership, held, None);
                (membership, group.expect("regrouped"))
            })
        })
        .collect();
    regrouping.into_iter().map(|thread| thread.join().expect("no panic")).collect()
}

#[test]
fn after_a_workers_death_the_others_seal_at_once_and_go_on() {
    let (_folder, record) = folder();
    let coordinator = start(elastic(4), &record);
    let mut members = join_all(coordinator.address, 4);
    let events = listen(&members);
    drop(members.remove(2));
    all_hear(&[&events[0], &events[1], &events[3]], &MembershipEvent::Seal { planned: false });
    for (membership, _) in &members {
        assert_eq!(membership.sealing(), Some(false));
    }
    let members = regroup_all(members, state(5));
    for (rank, (membership, group)) in members.iter().enumerate() {
        assert_eq!((group.generation, group.rank as usize, group.base), (2, rank, state(5)));
        assert_eq!((&group.pods, &group.sources), (&vec![pod(0), pod(1), pod(3)], &vec![0, 1, 2]));
        assert_eq!(membership.sealing(), None);
    }
    coordinator.until(r#"[] [] [("x-worker-2", "closed its connection")]"#);
    finish(members, b"model");
    assert!(matches!(coordinator.outcome(), Outcome::Finished { .. }));
}

#[test]
fn a_worker_with_a_stuck_training_thread_leaves_and_joins_again_once_it_moves() {
    let (_folder, record) = folder();
    let coordinator = start(elastic(3), &record);
    let mut members = join_all(coordinator.address, 3);
    let events = listen(&members);
    let (stuck, _) = members.remove(1);
    let (moves, moved) = mpsc::channel::<()>();
    stuck.work().did_step(Duration::from_millis(1));
    let stuck = thread::spawn(move || {
        let moved = stuck.work().during(Activity::Computing, || moved.recv_timeout(PATIENCE));
        (moved, regroup(&stuck, state(5), Some("a peer hung up")).map(|group| (stuck, group)))
    });
    all_hear(&[&events[0], &events[2]], &MembershipEvent::Seal { planned: false });
    let members = regroup_all(members, state(5));
    coordinator.until("its training thread, computing, has not moved for 5");
    assert!(members.iter().all(|(_, group)| group.pods == [pod(0), pod(2)]), "{members:?}");
    let told = events[1].recv_timeout(PATIENCE).expect("the stuck worker gets its own message");
    assert!(matches!(&told, MembershipEvent::Stuck { reason } if reason.contains("has not moved for 5")), "{told:?}");

    moves.send(()).expect("it waits for this");
    all_are_asked_to_feed(&[&events[0], &events[2]], &pod(1));
    all_hear(&[&events[0], &events[2]], &MembershipEvent::Seal { planned: true });
    let mut members = regroup_all(members, state(6));
    let (moved, back) = stuck.join().expect("no panic");
    assert_eq!(moved, Ok(()));
    members.insert(1, back.expect("it joined again"));
    for (membership, group) in &members {
        assert_eq!((group.world, group.base, &group.sources), (3, state(6), &vec![0, 2]));
        membership.entered();
    }
    finish(members, b"model");
    assert!(matches!(coordinator.outcome(), Outcome::Finished { .. }));
}

#[test]
fn a_planned_change_lets_in_a_replacement_that_copies_the_state() {
    let (_folder, record) = folder();
    let coordinator = start(elastic(3), &record);
    let mut members = join_all(coordinator.address, 3);
    let events = listen(&members);
    drop(members.remove(1));
    all_hear(&[&events[0], &events[2]], &MembershipEvent::Seal { planned: false });
    let members = regroup_all(members, state(5));
    let joining = join(coordinator.address, hello(1, 9));
    all_are_asked_to_feed(&[&events[0], &events[2]], &pod(1));
    all_hear(&[&events[0], &events[2]], &MembershipEvent::Seal { planned: true });
    let mut members = regroup_all(members, state(6));
    let newcomer = joining.join().expect("no panic").expect("joined");
    newcomer.0.entered();
    members.insert(1, newcomer);
    for (membership, group) in &members {
        assert_eq!((group.generation, group.world, group.base), (3, 3, state(6)));
        assert_eq!((&group.sources, &group.copiers, membership.sealing()), (&vec![0, 2], &vec![1], None));
    }
    coordinator.until(r#"["x-worker-1"] [] []"#);
    finish(members, b"model");
    assert!(matches!(coordinator.outcome(), Outcome::Finished { .. }));
}

#[test]
fn a_newcomer_that_caught_up_is_let_in_without_a_copy() {
    let (_folder, record) = folder();
    let coordinator = start(Config { replicas: 2, ..elastic(3) }, &record);
    let members = join_all(coordinator.address, 2);
    let events = listen(&members);
    let address = coordinator.address.to_string();
    let (following, admission) =
        Membership::join(&address, hello(2, 9), NOTHING, PATIENCE).expect("it is told to follow");
    assert_eq!(
        admission,
        Admission::Newcomer(FollowedGroup { generation: 1, addresses: members[0].1.addresses.clone() })
    );
    all_are_asked_to_feed(&events, &pod(2));
    assert!(events[0].recv_timeout(Duration::from_secs(1)).is_err(), "the members train while it catches up");
    following.caught_up();
    all_hear(&events, &MembershipEvent::Seal { planned: true });
    while following.sealing().is_none() {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(following.sealing(), Some(true), "it follows until the step after which all seal");
    let following = thread::spawn(move || (regroup(&following, state(6), None), following));
    let mut members = regroup_all(members, state(6));
    let (group, following) = following.join().expect("no panic");
    members.push((following, group.expect("let in")));
    for (membership, group) in &members {
        assert_eq!((group.world, &group.sources, &group.copiers), (3, &vec![0, 1], &vec![]));
        membership.entered();
    }
    finish(members, b"model");
    assert!(matches!(coordinator.outcome(), Outcome::Finished { .. }));
}

#[test]
fn a_leaving_worker_is_released_once_the_others_go_on() {
    let (_folder, record) = folder();
    let coordinator = start(elastic(3), &record);
    let mut members = join_all(coordinator.address, 3);
    let events = listen(&members);
    members[1].0.leave("SIGTERM", PATIENCE);
    all_hear(&events, &MembershipEvent::Seal { planned: true });
    let (leaver, _) = members.remove(1);
    let leaving = thread::spawn(move || regroup(&leaver, state(5), None));
    let members = regroup_all(members, state(5));
    assert_eq!(leaving.join().expect("no panic"), Err(JoinError::Released));
    assert_eq!((members[1].1.rank, &members[1].1.pods), (1, &vec![pod(0), pod(2)]));
    coordinator.until(r#"[] [("x-worker-1", "SIGTERM")] []"#);
    finish(members, b"model");
    assert!(matches!(coordinator.outcome(), Outcome::Finished { .. }));
}

#[test]
fn a_failed_collective_of_one_worker_makes_all_form_a_new_group() {
    let (_folder, record) = folder();
    let coordinator = start(config(2), &record);
    let mut members = join_all(coordinator.address, 2);
    let events = listen(&members);
    let (first, _) = members.remove(0);
    let broken = thread::spawn(move || {
        let group = regroup(&first, state(5), Some("rank 1 hung up"));
        (first, group.expect("regrouped"))
    });
    all_hear(&events[1..], &MembershipEvent::Seal { planned: false });
    let mut members = regroup_all(members, state(6));
    members.insert(0, broken.join().expect("no panic"));
    for (_, group) in &members {
        assert_eq!((group.generation, group.base, &group.sources), (2, state(6), &vec![1]));
    }
    finish(members, b"model");
    assert!(matches!(coordinator.outcome(), Outcome::Finished { .. }));
}

#[test]
fn a_finished_worker_reports_again_if_the_first_rank_is_lost_before_its_report() {
    let (_folder, record) = folder();
    let coordinator = start(config(2), &record);
    let mut members = join_all(coordinator.address, 2);
    let (second, _) = members.remove(1);
    let finishing = thread::spawn(move || {
        let farewell = second.finished(9, Digest::of(b"model"), vec![1], PATIENCE);
        assert_eq!(farewell, Ok(FinalReply::Changed));
        let group = regroup(&second, state(9), None).expect("regrouped");
        assert_eq!((group.generation, group.world), (2, 1));
        second.finished(9, Digest::of(b"model"), vec![1], PATIENCE)
    });
    coordinator.until("generation 1 runs with 2 workers");
    members[0].0.progress(9, b"almost".to_vec());
    coordinator.until("step 9: almost");
    // Its report is on its way. The loss is handled first, or the report is repeated in the next
    // group.
    drop(members);
    assert_eq!(finishing.join().expect("no panic"), Ok(FinalReply::Recorded));
    assert!(matches!(coordinator.outcome(), Outcome::Finished { step: 9, .. }));
}

#[test]
fn the_next_coordinator_carries_out_a_change_of_a_killed_one() {
    let (_folder, record) = folder();
    let first = start(elastic(3), &record);
    let address = first.address;
    let mut members = join_all(address, 3);
    let events = listen(&members);
    drop(members.remove(2));
    all_hear(&events[..2], &MembershipEvent::Seal { planned: false });
    // One member has sealed and waits. The other was asked to seal and trains on.
    let (sealed, _) = members.remove(0);
    let sealed = thread::spawn(move || {
        let group = regroup(&sealed, state(5), None);
        (sealed, group.expect("regrouped"))
    });
    first.kill();
    let second = start_at(address, elastic(3), &record);
    for expected in
        [MembershipEvent::CoordinatorLost, MembershipEvent::CoordinatorFound, MembershipEvent::Seal { planned: false }]
    {
        all_hear(&events[1..2], &expected);
    }
    let mut members = regroup_all(members, state(6));
    members.insert(0, sealed.join().expect("no panic"));
    for (_, group) in &members {
        assert_eq!((group.generation, group.base, &group.sources), (3, state(6), &vec![1]));
    }
    finish(members, b"model");
    assert!(matches!(second.outcome(), Outcome::Finished { .. }));
}

#[test]
fn sealed_workers_go_on_with_the_next_coordinator_after_a_kill() {
    let (_folder, record) = folder();
    let first = start(config(3), &record);
    let address = first.address;
    let mut members = join_all(address, 3);
    drop(members.remove(2));
    first.until("waiting for x-worker-2");
    let sealed: Vec<_> = members
        .into_iter()
        .map(|(membership, _)| {
            thread::spawn(move || {
                let group = regroup(&membership, state(5), Some("rank 2 hung up"));
                (membership, group.expect("regrouped"))
            })
        })
        .collect();
    first.kill();
    let second = start_at(address, config(3), &record);
    // The killed coordinator may not have announced it.
    second.until("found generation 1");
    let replacement = join(address, hello(2, 9)).join().expect("no panic").expect("joined");
    let mut members: Vec<_> = sealed.into_iter().map(|thread| thread.join().expect("no panic")).collect();
    members.push(replacement);
    for (_, group) in &members {
        assert_eq!((group.generation, group.base, &group.sources), (2, state(5), &vec![0, 1]));
    }
    finish(members, b"model");
    assert!(matches!(second.outcome(), Outcome::Finished { .. }));
}

#[test]
fn workers_that_are_all_asked_to_leave_drain() {
    let (_folder, record) = folder();
    let coordinator = start(config(2), &record);
    let members = join_all(coordinator.address, 2);
    let events = heard(&members[0].0);
    members.iter().for_each(|(membership, _)| membership.leave("SIGTERM", PATIENCE));
    let drain =
        MembershipEvent::Drain { reason: "x-worker-0 has to leave: SIGTERM; x-worker-1 has to leave: SIGTERM".into() };
    assert_eq!(events.recv_timeout(PATIENCE), Ok(drain));
    thread::scope(|scope| {
        for (membership, _) in &members {
            scope.spawn(|| assert_eq!(membership.drained(4, PATIENCE), Ok(FinalReply::Recorded)));
        }
    });
    assert_eq!(coordinator.outcome(), Outcome::Drained { step: 4 });
}

#[test]
fn a_sealed_leaving_member_waits_for_a_coordinator_as_long_as_it_may() {
    // This is longer than the wait of a worker without a state.
    let within = Duration::from_secs(6);
    let (_folder, record) = folder();
    let coordinator = start(config(1), &record);
    let (membership, _) = join_all(coordinator.address, 1).remove(0);
    coordinator.kill();
    assert!(!membership.is_stranded());
    membership.leave("SIGTERM", within);
    let error = regroup(&membership, state(5), None).expect_err("no coordinator answers");
    let is_in_time = |waited| (within..PATIENCE / 2).contains(&waited);
    assert!(matches!(error, JoinError::Unreachable { waited, .. } if is_in_time(waited)), "{error}");
    assert!(membership.is_stranded());
}

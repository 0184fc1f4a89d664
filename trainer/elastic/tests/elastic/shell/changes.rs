//! Groups that change, over real sockets.

use std::{borrow::Borrow, sync::mpsc, thread, time::Duration};

use lockstep_elastic::{
    Activity, Digest, Event, Farewell, Group, JoinError, Lead, Membership, Outcome, Place, Sampler, State,
    coordinator::Config,
};

use super::{PATIENCE, finish, folder, heard, join, join_all, regroup, start, start_at};
use crate::given::{NOTHING, config, hello, pod};

/// As many members as `most`, of which two are enough.
fn elastic(most: usize) -> Config {
    Config { least: 2, ..config(most) }
}

fn state(step: u64) -> State {
    let sampler = Sampler { seed: 42, epoch: 0, cursor: 10 * step };
    State { step, digest: Digest::of(&step.to_le_bytes()), sampler }
}

fn listen(members: &[(Membership, Group)]) -> Vec<mpsc::Receiver<Event>> {
    members.iter().map(|(membership, _)| heard(membership)).collect()
}

/// The next thing that each of them hears.
fn all_hear(members: &[impl Borrow<mpsc::Receiver<Event>>], expected: &Event) {
    for events in members {
        assert_eq!(events.borrow().recv_timeout(PATIENCE).as_ref(), Ok(expected));
    }
}

/// The next thing that each of them hears is that this pod's newcomer follows them.
fn all_are_asked_to_feed(members: &[impl Borrow<mpsc::Receiver<Event>>], pod: &str) {
    for events in members {
        let event = events.borrow().recv_timeout(PATIENCE);
        assert!(matches!(&event, Ok(Event::Feed(follower)) if follower.member.pod == pod), "{event:?}");
    }
}

/// All members stand still with this state, and train in the next group.
fn regroup_all(members: Vec<(Membership, Group)>, held: State) -> Vec<(Membership, Group)> {
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
fn when_a_worker_dies_the_others_seal_at_once_and_go_on_without_it() {
    let (_folder, record) = folder();
    let coordinator = start(elastic(4), &record);
    let mut members = join_all(coordinator.address, 4);
    let events = listen(&members);
    drop(members.remove(2));
    all_hear(&[&events[0], &events[1], &events[3]], &Event::Seal { planned: false });
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
fn a_worker_whose_training_thread_is_stuck_leaves_and_once_it_moves_joins_again() {
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
    all_hear(&[&events[0], &events[2]], &Event::Seal { planned: false });
    let members = regroup_all(members, state(5));
    coordinator.until("its training thread, computing, has not moved for 5");
    assert!(members.iter().all(|(_, group)| group.pods == [pod(0), pod(2)]), "{members:?}");
    let told = events[1].recv_timeout(PATIENCE).expect("it hears what it said");
    assert!(matches!(&told, Event::Stuck { reason } if reason.contains("has not moved for 5")), "{told:?}");

    moves.send(()).expect("it waits for that");
    all_are_asked_to_feed(&[&events[0], &events[2]], &pod(1));
    all_hear(&[&events[0], &events[2]], &Event::Seal { planned: true });
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
fn a_replacement_is_let_in_as_planned_and_copies_the_state() {
    let (_folder, record) = folder();
    let coordinator = start(elastic(3), &record);
    let mut members = join_all(coordinator.address, 3);
    let events = listen(&members);
    drop(members.remove(1));
    all_hear(&[&events[0], &events[2]], &Event::Seal { planned: false });
    let members = regroup_all(members, state(5));
    let joining = join(coordinator.address, hello(1, 9));
    all_are_asked_to_feed(&[&events[0], &events[2]], &pod(1));
    all_hear(&[&events[0], &events[2]], &Event::Seal { planned: true });
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
fn a_newcomer_follows_the_group_until_it_holds_the_same_and_is_let_in_without_a_copy() {
    let (_folder, record) = folder();
    let coordinator = start(Config { replicas: 2, ..elastic(3) }, &record);
    let members = join_all(coordinator.address, 2);
    let events = listen(&members);
    let address = coordinator.address.to_string();
    let (following, place) = Membership::join(&address, hello(2, 9), NOTHING, PATIENCE).expect("it is told what to do");
    assert_eq!(place, Place::Newcomer(Lead { generation: 1, addresses: members[0].1.addresses.clone() }));
    all_are_asked_to_feed(&events, &pod(2));
    assert!(events[0].recv_timeout(Duration::from_secs(1)).is_err(), "it takes its time, and they train");
    following.caught_up();
    all_hear(&events, &Event::Seal { planned: true });
    while following.sealing().is_none() {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(following.sealing(), Some(true), "it goes on to the step after which all stop");
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
fn a_worker_that_has_to_go_is_released_once_the_others_go_on() {
    let (_folder, record) = folder();
    let coordinator = start(elastic(3), &record);
    let mut members = join_all(coordinator.address, 3);
    let events = listen(&members);
    members[1].0.leave("SIGTERM", PATIENCE);
    all_hear(&events, &Event::Seal { planned: true });
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
fn a_collective_that_failed_on_one_worker_makes_all_of_them_form_a_new_group() {
    let (_folder, record) = folder();
    let coordinator = start(config(2), &record);
    let mut members = join_all(coordinator.address, 2);
    let events = listen(&members);
    let (first, _) = members.remove(0);
    let broken = thread::spawn(move || {
        let group = regroup(&first, state(5), Some("rank 1 hung up"));
        (first, group.expect("regrouped"))
    });
    all_hear(&events[1..], &Event::Seal { planned: false });
    let mut members = regroup_all(members, state(6));
    members.insert(0, broken.join().expect("no panic"));
    for (_, group) in &members {
        assert_eq!((group.generation, group.base, &group.sources), (2, state(6), &vec![1]));
    }
    finish(members, b"model");
    assert!(matches!(coordinator.outcome(), Outcome::Finished { .. }));
}

#[test]
fn a_worker_that_finished_goes_once_more_when_the_first_rank_is_lost_before_its_word() {
    let (_folder, record) = folder();
    let coordinator = start(config(2), &record);
    let mut members = join_all(coordinator.address, 2);
    let (second, _) = members.remove(1);
    let finishing = thread::spawn(move || {
        let farewell = second.finished(9, Digest::of(b"model"), vec![1], PATIENCE);
        assert_eq!(farewell, Ok(Farewell::Changed));
        let group = regroup(&second, state(9), None).expect("regrouped");
        assert_eq!((group.generation, group.world), (2, 1));
        second.finished(9, Digest::of(b"model"), vec![1], PATIENCE)
    });
    coordinator.until("generation 1 runs with 2 workers");
    members[0].0.progress(9, b"almost".to_vec());
    coordinator.until("step 9: almost");
    // Its word is on its way: whichever comes first, the loss is acted on or the word is said in the next group.
    drop(members);
    assert_eq!(finishing.join().expect("no panic"), Ok(Farewell::Recorded));
    assert!(matches!(coordinator.outcome(), Outcome::Finished { step: 9, .. }));
}

#[test]
fn a_change_whose_coordinator_is_killed_is_carried_out_by_the_next() {
    let (_folder, record) = folder();
    let first = start(elastic(3), &record);
    let address = first.address;
    let mut members = join_all(address, 3);
    let events = listen(&members);
    drop(members.remove(2));
    all_hear(&events[..2], &Event::Seal { planned: false });
    // One stands still and waits, the other was asked and trains on.
    let (standing, _) = members.remove(0);
    let standing = thread::spawn(move || {
        let group = regroup(&standing, state(5), None);
        (standing, group.expect("regrouped"))
    });
    first.kill();
    let second = start_at(address, elastic(3), &record);
    for expected in [Event::CoordinatorLost, Event::CoordinatorFound, Event::Seal { planned: false }] {
        all_hear(&events[1..2], &expected);
    }
    let mut members = regroup_all(members, state(6));
    members.insert(0, standing.join().expect("no panic"));
    for (_, group) in &members {
        assert_eq!((group.generation, group.base, &group.sources), (3, state(6), &vec![1]));
    }
    finish(members, b"model");
    assert!(matches!(second.outcome(), Outcome::Finished { .. }));
}

#[test]
fn workers_that_all_stand_when_their_coordinator_is_killed_go_on_with_the_next() {
    let (_folder, record) = folder();
    let first = start(config(3), &record);
    let address = first.address;
    let mut members = join_all(address, 3);
    drop(members.remove(2));
    first.until("waiting for x-worker-2");
    let standing: Vec<_> = members
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
    // Whoever was killed may not have told of it.
    second.until("found generation 1");
    let replacement = join(address, hello(2, 9)).join().expect("no panic").expect("joined");
    let mut members: Vec<_> = standing.into_iter().map(|thread| thread.join().expect("no panic")).collect();
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
    let drain = Event::Drain { reason: "x-worker-0 has to go: SIGTERM; x-worker-1 has to go: SIGTERM".into() };
    assert_eq!(events.recv_timeout(PATIENCE), Ok(drain));
    thread::scope(|scope| {
        for (membership, _) in &members {
            scope.spawn(|| assert_eq!(membership.drained(4, PATIENCE), Ok(Farewell::Recorded)));
        }
    });
    assert_eq!(coordinator.outcome(), Outcome::Drained { step: 4 });
}

#[test]
fn a_member_that_has_to_go_and_stands_waits_for_a_coordinator_as_long_as_it_may() {
    // Longer than one waits that holds nothing.
    let within = Duration::from_secs(6);
    let (_folder, record) = folder();
    let coordinator = start(config(1), &record);
    let (membership, _) = join_all(coordinator.address, 1).remove(0);
    coordinator.kill();
    assert!(!membership.is_stranded());
    membership.leave("SIGTERM", within);
    let error = regroup(&membership, state(5), None).expect_err("nobody answers");
    let is_in_time = |waited| (within..PATIENCE / 2).contains(&waited);
    assert!(matches!(error, JoinError::Unreachable { waited, .. } if is_in_time(waited)), "{error}");
    assert!(membership.is_stranded());
}

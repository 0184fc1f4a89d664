//! Network links between hosts: cut, open in one direction, slow, or with changed bytes.

use std::{
    net::SocketAddr,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use lockstep_collective::{Abort, Group, JobId, Limits, Listener, RankId, Tag};
use rustix::process::Signal;

use crate::{
    job::{FAST, Job, SLOW, may_run, worker},
    network::{
        DATA, Host, Network,
        Way::{self, In, Out},
    },
    proxy::Proxy,
};

/// Checks that the group excludes a worker with a cut link and lets it join again once the link
/// works.
fn cut_off(name: &'static str, index: u32, ways: &[Way]) {
    let mut job = Job::start(name);
    job.wait_for_steps(30);
    job.network.cut(Host::Worker(index), ways);
    job.wait_for_workers(2, 1);
    job.wait_for_steps(20);
    let known = job.changes().len();
    // Packets that were sent into the cut link are repeated only after seconds. The others must
    // have work until then.
    Host::all().for_each(|host| job.network.shape(host, SLOW));
    job.network.heal(Host::Worker(index));
    job.wait_for_workers(3, known);
    Host::all().for_each(|host| job.network.shape(host, FAST));
    let ended = job.finished();
    assert!(ended.lost().contains(&worker(index).as_str()), "{:?}", ended.changes);
}

#[test]
fn an_unreachable_first_rank_is_excluded_and_joins_again() {
    if may_run("partition") {
        cut_off("partition", 0, &[In, Out]);
    }
}

#[test]
fn a_worker_that_receives_nothing_is_excluded_and_joins_again() {
    if may_run("deaf") {
        cut_off("deaf", 1, &[In]);
    }
}

#[test]
fn a_worker_whose_messages_are_lost_is_excluded_and_joins_again() {
    if may_run("mute") {
        cut_off("mute", 0, &[Out]);
    }
}

#[test]
fn training_goes_on_while_the_coordinator_cannot_send_or_receive_and_no_worker_is_replaced() {
    if !may_run("cut-chair") {
        return;
    }
    let mut job = Job::start("cut-chair");
    job.wait_for_steps(30);
    Host::all().for_each(|host| job.network.shape(host, SLOW));
    for ways in [&[In, Out][..], &[In], &[Out]] {
        job.network.cut(Host::Coordinator, ways);
        job.wait_for_silence();
        job.wait_for_steps(5);
        job.network.heal(Host::Coordinator);
        job.wait_for_steps(20);
    }
    Host::all().for_each(|host| job.network.shape(host, FAST));
    let ended = job.finished();
    assert!(ended.changes.iter().all(|change| change.workers == 3 && !change.rollback), "{:?}", ended.changes);
}

#[test]
fn a_worker_lost_while_the_coordinator_is_disconnected_is_replaced_afterwards() {
    if !may_run("cut-chair-kill") {
        return;
    }
    let mut job = Job::start("cut-chair-kill");
    job.wait_for_steps(30);
    job.network.cut(Host::Coordinator, &[In, Out]);
    job.wait_for_silence();
    job.wait_for_steps(5);
    job.signal(Host::Worker(1), Signal::KILL);
    job.wait_for_silence();
    let known = job.changes().len();
    job.network.heal(Host::Coordinator);
    job.wait_for_workers(3, known);
    let ended = job.finished();
    assert!(ended.lost().contains(&worker(1).as_str()), "{:?}", ended.changes);
}

#[test]
fn a_link_that_carries_only_greetings_excludes_one_of_two_workers_until_it_is_mended() {
    if !may_run("swallow") {
        return;
    }
    let mut job = Job::start("swallow");
    job.wait_for_steps(30);
    // These two exchange gradients with every algorithm.
    job.network.swallow(Host::Worker(0), Host::Worker(1));
    job.wait_for_workers(2, 1);
    job.wait_for_steps(20);
    let known = job.changes().len();
    Host::all().for_each(|host| job.network.shape(host, SLOW));
    job.network.heal(Host::Worker(0));
    job.wait_for_workers(3, known);
    Host::all().for_each(|host| job.network.shape(host, FAST));
    let ended = job.finished();
    let lost = ended.lost();
    assert!(lost == [worker(0)] || lost == [worker(1)], "{:?}", ended.changes);
}

#[test]
fn a_slow_link_slows_the_group_and_loses_no_worker() {
    if !may_run("slow") {
        return;
    }
    let mut job = Job::start("slow");
    job.wait_for_steps(30);
    job.network.shape(Host::Worker(1), 4.0);
    job.wait_for_steps(10);
    job.network.shape(Host::Worker(1), 100.0);
    let ended = job.finished();
    assert_eq!(ended.changes.len(), 1, "{:?}", ended.changes);
}

#[test]
fn a_bit_that_flips_on_the_way_is_detected_and_never_summed() {
    if !may_run("flip") {
        return;
    }
    let mut job = Job::start("flip");
    let proxy = Proxy::start(&job.network, Host::Worker(0), Host::Worker(1));
    job.wait_for_steps(10);
    // Only new connections pass the proxy.
    job.signal(Host::Worker(0), Signal::KILL);
    job.wait_for("two flipped bits", |_| proxy.flipped() == 2);
    job.wait_for_steps(10);
    let ended = job.finished();
    assert!(ended.logs.contains("checksum"), "{}", ended.logs);
}

#[test]
fn one_of_two_workers_that_cannot_reach_each_other_is_excluded_and_joins_again() {
    if !may_run("pair") {
        return;
    }
    let mut job = Job::start("pair");
    job.wait_for_steps(30);
    // The worker has to be excluded and to come back.
    Host::all().for_each(|host| job.network.shape(host, SLOW));
    job.network.part(Host::Worker(1), Host::Worker(2));
    job.wait_for_workers(2, 1);
    job.wait_for_steps(5);
    let known = job.changes().len();
    job.network.heal(Host::Worker(1));
    job.wait_for_workers(3, known);
    Host::all().for_each(|host| job.network.shape(host, FAST));
    let ended = job.finished();
    // The excluded worker is the last one, unless the other held less.
    let lost = ended.lost();
    assert!(lost == [worker(1)] || lost == [worker(2)], "{:?}", ended.changes);
    let broke = ended.changes.iter().find_map(|change| change.broken.clone()).expect("the group broke at first");
    let cut = broke.contains("nothing came from rank 1") || broke.contains("nothing came from rank 2");
    assert!(cut && broke.contains("in hop "), "{broke}");
}

/// Evaluations and saves take an unknown time, and heartbeats go to the coordinator only. A waiting
/// member must notice a cut link nevertheless.
#[test]
fn a_wait_without_a_limit_for_a_peer_still_notices_a_cut_link() {
    const ANY_TIME: Duration = Duration::from_secs(600);
    const UNACKNOWLEDGED: Duration = Duration::from_secs(12);
    const SOON: Duration = Duration::from_secs(60);
    if !may_run("cut-wait") {
        return;
    }
    for has_sent in [false, true] {
        let network = Network::of("cut-wait", FAST);
        let hosts = [Host::Worker(0), Host::Worker(1)];
        let peers = hosts.map(|host| SocketAddr::new(host.address().into(), DATA));
        let member = |rank: usize| {
            network.enter(hosts[rank]);
            let listener = Listener::bind(hosts[rank].address().into(), DATA).expect("its port");
            let seat = RankId { job: JobId([7; 16]), generation: 1, rank };
            let limits = Limits { silence: ANY_TIME, ..Limits::default() };
            let mut group = Group::form(&listener, seat, &peers, limits, &Abort::new()).expect("a group");
            group.set_silence(ANY_TIME, UNACKNOWLEDGED).expect("sockets");
            group
        };
        let (member, network) = (&member, &network);
        let (waits, is_over) = mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                let _computes = member(1);
                // The thread waits until the other one is done in any way.
                let _ = is_over.into_iter().next();
            });
            let waiting = scope.spawn(move || {
                let _waits = waits;
                let mut group = member(0);
                // Longer than an acknowledgement may be delayed.
                thread::sleep(Duration::from_millis(500));
                network.part(hosts[0], hosts[1]);
                let begun = Instant::now();
                if has_sent {
                    group.send(1, Tag { step: 0, bucket: 0 }, &mut [1.0_f32]).expect("its socket takes it");
                }
                (group.receive(1, Tag { step: 1, bucket: 0 }, &mut [0.0_f32]), begun.elapsed())
            });
            let (ended, took) = waiting.join().expect("no panic");
            let error = ended.expect_err("nothing was sent").to_string();
            assert!(error.contains("rank 1") && took < SOON, "after {took:?}: {error}");
        });
    }
}

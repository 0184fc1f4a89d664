//! Processes that are killed or frozen.

use lockstep_launch::GroupChange;
use rustix::process::Signal;

use crate::{
    job::{FAST, Job, SLOW, may_run, worker},
    network::Host,
};

#[test]
fn the_coordinator_and_the_first_rank_killed_at_once_are_replaced_and_lose_no_step() {
    if !may_run("kill") {
        return;
    }
    let mut job = Job::start("kill");
    job.wait_for_steps(30);
    // A survivor may meet the next coordinator before the other survivor, and train alone.
    Host::all().for_each(|host| job.network.shape(host, SLOW));
    job.signal(Host::Coordinator, Signal::KILL);
    job.signal(Host::Worker(0), Signal::KILL);
    job.wait_for_workers(3, 1);
    Host::all().for_each(|host| job.network.shape(host, FAST));
    let ended = job.finished();
    // The next coordinator never met the lost worker. It may have started a generation before the
    // third worker found it.
    let joined = |change: &GroupChange| change.joined.contains(&worker(0));
    assert!(ended.changes.iter().skip(1).any(joined), "{:?}", ended.changes);
}

#[test]
fn a_frozen_worker_is_excluded_and_joins_again_when_it_resumes() {
    if !may_run("freeze") {
        return;
    }
    let mut job = Job::start("freeze");
    job.wait_for_steps(30);
    // The frozen worker has to come back twice.
    Host::all().for_each(|host| job.network.shape(host, SLOW));
    // The first rank reports and saves.
    for frozen in [Host::Worker(2), Host::Worker(0)] {
        let known = job.changes().len();
        job.signal(frozen, Signal::STOP);
        job.wait_for_workers(2, known);
        job.wait_for_steps(5);
        let known = job.changes().len();
        job.signal(frozen, Signal::CONT);
        job.wait_for_workers(3, known);
    }
    Host::all().for_each(|host| job.network.shape(host, FAST));
    assert_eq!(job.finished().lost(), [worker(2), worker(0)]);
}

#[test]
fn training_goes_on_while_the_coordinator_is_frozen_and_no_worker_is_lost() {
    if !may_run("frozen-coordinator") {
        return;
    }
    let mut job = Job::start("chair");
    job.wait_for_steps(30);
    job.signal(Host::Coordinator, Signal::STOP);
    job.wait_for_silence();
    job.wait_for_steps(20);
    job.signal(Host::Coordinator, Signal::CONT);
    let ended = job.finished();
    // A worker that looked for another coordinator comes back on a new connection. That is a
    // change.
    assert!(ended.changes.iter().all(|change| change.workers == 3), "{:?}", ended.changes);
}

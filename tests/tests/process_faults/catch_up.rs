//! Newcomers catch up while the others train, and faults come between.

use rustix::process::Signal;

use crate::{
    job::{self, FAST, Job, may_run, worker},
    network::{
        Host,
        Way::{In, Out},
    },
};

/// Mb/s with which a state travels for about a second.
const SLOW: f64 = 2.0;

const HANDED_OVER: &str = "a newcomer takes over the state while the group trains";
const TAKEN_OVER: &str = "state taken over; catching up";
const GIVEN_UP: &str = "it cannot keep up";
const COPIED: &str = "state copied";

fn count(job: &Job, said: &str) -> usize {
    job.logs().matches(said).count()
}

/// Starts a job whose worker 2 is disconnected. The others train without it.
fn without_one(name: &'static str) -> Job {
    let mut job = Job::start(name);
    job.wait_for_steps(30);
    job.network.cut(Host::Worker(2), &[In, Out]);
    job.wait_for_workers(2, 1);
    job
}

#[test]
fn a_member_killed_while_it_sends_its_state_to_a_newcomer_costs_no_step() {
    if !may_run("hand-over") {
        return;
    }
    let mut job = without_one("hand-over");
    Host::all().for_each(|host| job.network.shape(host, SLOW));
    job.network.heal(Host::Worker(2));
    job.wait_for("both members to send their state", |job| count(job, HANDED_OVER) == 2);
    job.signal(Host::Worker(0), Signal::KILL);
    assert_eq!(count(&job, TAKEN_OVER), 0, "the state has arrived already");
    Host::all().for_each(|host| job.network.shape(host, job::SLOW));
    let known = job.changes().len();
    job.wait_for_workers(3, known);
    Host::all().for_each(|host| job.network.shape(host, FAST));
    let ended = job.finished();
    assert!(ended.lost().contains(&worker(0).as_str()), "{:?}", ended.changes);
}

#[test]
fn a_newcomer_that_cannot_keep_up_gets_no_more_state_and_joins_nevertheless() {
    if !may_run("keep-up") {
        return;
    }
    let mut job = without_one("keep-up");
    // Packets that were sent into the cut link are repeated only after seconds. The others must
    // have work until then.
    Host::all().for_each(|host| job.network.shape(host, job::SLOW));
    job.network.shape_towards(Host::Worker(2), SLOW);
    job.network.heal(Host::Worker(2));
    job.wait_for("the catch-up to be given up", |job| count(job, GIVEN_UP) > 0);
    let known = job.changes().len();
    job.network.shape_towards(Host::Worker(2), FAST);
    job.wait_for_workers(3, known);
    Host::all().for_each(|host| job.network.shape(host, FAST));
    let ended = job.finished();
    assert!(ended.logs.contains(COPIED), "{}", ended.logs);
}

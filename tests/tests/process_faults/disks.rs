//! The folder of checkpoints and metrics log, and that of the record, become full or read-only.
//!
//! Training goes on, and unstored data is stored later. A group that changes meanwhile waits and
//! loses no step.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use lockstep_launch::PLANS_FILE;
use rustix::process::Signal;

use crate::{
    job::{FAST, Job, Setting, may_run, succeeds, worker},
    network::Host,
};

/// The unit in which memory file systems grow files.
const PAGE: usize = 4096;
/// A coordinator logs this if it cannot store its record.
const UNRECORDED: &str = "record.json is out of reach";
/// A worker logs this while it waits for storage.
const WAITS: &str = "not stored yet; the group waits";

/// A separate disk under a job's folder. It is unmounted when this is dropped.
pub(crate) struct Disk(PathBuf);

impl Disk {
    fn under(folder: &Path, mebibytes: u32) -> Self {
        let size = format!("size={mebibytes}m");
        let mounted = succeeds(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(folder));
        assert!(mounted, "no tmpfs on {}", folder.display());
        Self(folder.to_owned())
    }

    /// Fills the disk, and returns the file whose removal frees room again.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut filler = OpenOptions::new().create(true).append(true).open(&path).expect("a file");
        while filler.write_all(&[0; PAGE]).is_ok() {}
        path
    }

    fn remount(&self, how: &str) -> bool {
        succeeds(Command::new("mount").args(["-o", &format!("remount,{how}")]).arg(&self.0))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        succeeds(Command::new("umount").arg("--lazy").arg(&self.0));
    }
}

/// Pads a file with empty lines to the end of a page. The next line then needs another page.
fn end_with_a_page(path: &Path) {
    let mut file = OpenOptions::new().append(true).open(path).expect("the file exists");
    let length = file.metadata().expect("its length").len() as usize;
    file.write_all(&vec![b'\n'; length.next_multiple_of(PAGE) - length]).expect("room");
}

/// Starts a job whose folder is on a disk of its own, and waits for a checkpoint there.
fn on_a_small_disk(name: &'static str) -> Job {
    let mut job = Job::with(name, |run| {
        let disk = Some(Disk::under(run, 8));
        fs::create_dir(run.join("checkpoints")).expect("its folder");
        Setting { disk, ..Setting::default() }
    });
    job.wait_for("a checkpoint", |job| !checkpoints(&job.run_folder()).is_empty());
    job
}

fn checkpoints(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder.join("checkpoints")).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("step-")).collect()
}

#[test]
fn a_full_disk_stops_no_training_and_a_group_without_its_reporting_worker_waits_for_room() {
    if !may_run("full disk") {
        return;
    }
    let mut job = on_a_small_disk("full");
    end_with_a_page(&job.run_folder().join(PLANS_FILE));
    job.wait_for("a save that failed", |job| {
        job.disk().fill();
        job.logs().contains("checkpoint not saved; training goes on")
    });
    assert_eq!(job.changes().len(), 1, "{:?}", job.changes());
    job.signal(Host::Worker(0), Signal::KILL);
    job.wait_for("a waiting group", |job| {
        job.disk().fill();
        job.logs().contains(WAITS)
    });
    fs::remove_file(job.disk().fill()).expect("room again");
    let full = checkpoints(&job.run_folder());
    job.wait_for("a newer checkpoint", |job| checkpoints(&job.run_folder()) != full);
    let ended = job.finished();
    assert!(ended.changes.iter().all(|change| !change.rollback), "{:?}", ended.changes);
    assert_eq!(ended.lost(), [worker(0)]);
}

#[test]
fn a_job_that_ends_on_a_full_disk_waits_for_room_and_loses_nothing() {
    if !may_run("full disk at the end") {
        return;
    }
    let mut job = on_a_small_disk("full-end");
    Host::all().for_each(|host| job.network.shape(host, FAST));
    job.wait_for("a waiting group", |job| {
        job.disk().fill();
        job.logs().contains(WAITS)
    });
    fs::remove_file(job.disk().fill()).expect("room again");
    let ended = job.finished();
    // If the parts were stored without room for the manifest, the group stores them again in its
    // next generation.
    assert_eq!(ended.lost(), [""; 0], "{:?}", ended.changes);
}

#[test]
fn a_read_only_disk_stops_no_training_and_the_end_of_the_job_waits_for_it() {
    if !may_run("read-only disk") {
        return;
    }
    let mut job = Job::with("readonly", |run| {
        let disk = Some(Disk::under(&run.join("checkpoints"), 8));
        Setting { disk, ..Setting::default() }
    });
    job.wait_for("a checkpoint", |job| !checkpoints(&job.run_folder()).is_empty());
    // This fails while a checkpoint is being written.
    job.wait_for("a read-only disk", |job| job.disk().remount("ro"));
    job.wait_for("a save that failed", |job| job.logs().contains("checkpoint not saved; training goes on"));
    assert!(job.disk().remount("rw"), "the disk stays read-only");
    let before = checkpoints(&job.run_folder());
    job.wait_for("a newer checkpoint", |job| checkpoints(&job.run_folder()) != before);
    job.wait_for("a read-only disk", |job| job.disk().remount("ro"));
    Host::all().for_each(|host| job.network.shape(host, FAST));
    job.wait_for("a waiting group", |job| job.logs().contains(WAITS));
    assert!(job.disk().remount("rw"), "the disk stays read-only");
    let ended = job.finished();
    assert_eq!(ended.lost(), [""; 0], "{:?}", ended.changes);
}

#[test]
fn a_changing_group_waits_until_its_record_can_be_stored() {
    if !may_run("record on a bad disk") {
        return;
    }
    let mut job = Job::with("record", |run| {
        let folder = run.join("record");
        fs::create_dir(&folder).expect("its folder");
        Setting { disk: Some(Disk::under(&folder, 1)), record: Some(folder), ..Setting::default() }
    });
    job.wait_for_steps(30);
    for (turn, is_full) in [(1, true), (2, false)] {
        let filler = is_full.then(|| job.disk().fill());
        // This fails while a mark is being written.
        job.wait_for("a bad disk", |job| is_full || job.disk().remount("ro"));
        let known = job.changes().len();
        job.signal(Host::Worker(turn), Signal::KILL);
        let said = |job: &Job| job.logs().matches(UNRECORDED).count();
        let before = said(&job);
        job.wait_for("a waiting coordinator", |job| said(job) > before);
        assert_eq!(job.changes().len(), known, "a group that is not recorded trains");
        match filler {
            Some(filler) => fs::remove_file(filler).expect("room again"),
            None => assert!(job.disk().remount("rw"), "the disk stays read-only"),
        }
        job.wait_for_workers(3, known);
    }
    let ended = job.finished();
    assert_eq!(ended.lost(), [worker(1), worker(2)], "{:?}", ended.changes);
}

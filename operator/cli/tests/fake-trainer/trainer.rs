//! A stand-in for `lockstep-trainer` that speaks the launch contract and trains nothing.
//!
//! `FAKE_TRAINER` holds the faults as `ROLE@START=FATE`, separated by commas:
//! `worker-1@0=killed,coordinator@1=fatal`. START is the number of earlier processes of that name.
//! A process without a fate is done once the coordinator has reported every step.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use lockstep_launch::{CheckpointMark, Ending, Exit, Launch, Progress, ScalingBaseline};
use rustix::process::{Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    signal::unix::{SignalKind, signal},
};

/// Number of steps that it reports.
const STEPS: u64 = 20;
const POLL: Duration = Duration::from_millis(10);

fn main() -> ExitCode {
    let launch = match Launch::read(|name| std::env::var(name).ok()) {
        Ok(launch) => launch,
        Err(error) => {
            eprintln!("{error}");
            return Exit::Fatal.code().into();
        }
    };
    follow_parent();
    let role = std::env::args().nth(1).unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let exit = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).expect("SIGTERM");
        tokio::select! {
            exit = live(&launch, &role) => exit,
            _ = terminate.recv() => drained(&launch),
        }
    });
    exit.code().into()
}

/// Dies with the process that started it.
fn follow_parent() {
    let Ok(parent) = std::env::var(lockstep_launch::PARENT) else { return };
    set_parent_process_death_signal(Some(Signal::KILL)).expect("parent death signal");
    let alive = getppid().map(Pid::as_raw_pid).map(|pid| pid.to_string());
    assert_eq!(alive, Some(parent), "the parent died before its death could be noticed");
}

async fn live(launch: &Launch, role: &str) -> Exit {
    eprintln!("{role} {} attempt {}", launch.member, launch.attempt);
    fs::create_dir_all(pids(launch)).expect("folder for process ids");
    fs::create_dir_all(launch.output.join("starts")).expect("folder for counts");
    let before = starts(launch);
    fs::write(pids(launch).join(&launch.member), getpid().as_raw_pid().to_string()).expect("process id");
    fs::write(launch.output.join("starts").join(&launch.member), (before + 1).to_string()).expect("count");
    match role {
        "coordinator" => coordinate(launch, before).await,
        _ => work(launch, before).await,
    }
}

/// Returns the number of earlier processes of this name.
fn starts(launch: &Launch) -> u32 {
    let path = launch.output.join("starts").join(&launch.member);
    fs::read_to_string(path).ok().and_then(|count| count.parse().ok()).unwrap_or(0)
}

async fn coordinate(launch: &Launch, start: u32) -> Exit {
    let listener = launch.control_listener().and_then(TcpListener::from_std).expect("the control port");
    say(&format!("{{\"listening\":\"{}\"}}", listener.local_addr().expect("its address")));
    if let Some(exit) = meet_fate(launch, start).await {
        return exit;
    }
    let trained = fs::exists(launch.output.join("trained")).unwrap_or(false);
    let mut heard = BTreeSet::new();
    while !trained && heard.len() < launch.replicas as usize {
        heard.insert(hear(&listener).await);
    }
    for step in 1..=STEPS {
        say(&format!("{{\"progress\":{}}}", serde_json::to_string(&report(launch, step)).expect("JSON")));
    }
    fs::write(launch.output.join("trained"), "").expect("mark");
    let all_are_done = wait_until(|| all_are_done(launch));
    tokio::select! {
        () = all_are_done => {}
        () = async { loop { hear(&listener).await; } } => {}
    }
    let ending = Ending {
        progress: Some(report(launch, STEPS)),
        model_uri: Some(format!("file://{}/model.safetensors", launch.output.display())),
        ..Ending::default()
    };
    say(&format!("{{\"ending\":{}}}", ending.to_line()));
    Exit::Done
}

async fn hear(listener: &TcpListener) -> String {
    let (mut worker, _) = listener.accept().await.expect("a worker");
    let mut member = String::new();
    worker.read_to_string(&mut member).await.expect("its name");
    say(&format!("{{\"joined\":\"{member}\"}}"));
    member
}

async fn work(launch: &Launch, start: u32) -> Exit {
    if fate(launch, start).as_deref() == Some("silent") {
        std::future::pending::<()>().await;
    }
    let address = (launch.coordinator.host.as_str(), launch.coordinator.port);
    // The worker announces itself again and again, because the coordinator that heard it may be
    // killed.
    while !fs::exists(launch.output.join("trained")).unwrap_or(false) {
        if let Ok(mut coordinator) = TcpStream::connect(address).await {
            let _it_was_killed = coordinator.write_all(launch.member.as_bytes()).await;
        }
        tokio::time::sleep(POLL).await;
    }
    if let Some(exit) = meet_fate(launch, start).await {
        return exit;
    }
    let index = launch.member.rsplit('-').next().and_then(|index| index.parse().ok()).unwrap_or(0);
    fs::write(done(launch, index), "").expect("mark");
    // No worker ends before all have finished.
    wait_until(|| all_are_done(launch)).await;
    Exit::Done
}

async fn meet_fate(launch: &Launch, start: u32) -> Option<Exit> {
    match fate(launch, start)?.as_str() {
        "killed" => {
            kill_process(getpid(), Signal::KILL).expect("end");
            None
        }
        "crash" => std::process::exit(101),
        "retry" => Some(Exit::Retry),
        "fatal" => {
            let ending = Ending { message: "labels: 12: 0 to 9".to_owned(), ..Ending::default() };
            fs::write(&launch.ending, ending.to_line()).expect("ending");
            Some(Exit::Fatal)
        }
        // It lasts until it is asked to stop.
        "endless" => std::future::pending().await,
        other => panic!("no such fate: {other}"),
    }
}

fn drained(launch: &Launch) -> Exit {
    let ending = Ending { progress: Some(report(launch, STEPS)), ..Ending::default() };
    fs::write(&launch.ending, ending.to_line()).expect("ending");
    Exit::Drained
}

fn fate(launch: &Launch, start: u32) -> Option<String> {
    let fates = std::env::var("FAKE_TRAINER").ok()?;
    let role = launch.member.strip_prefix(&format!("{}-", launch.job.name))?;
    let me = format!("{role}@{start}");
    fates
        .split(',')
        .filter_map(|fate| fate.split_once('='))
        .find(|(who, _)| *who == me)
        .map(|(_, fate)| fate.to_owned())
}

fn report(launch: &Launch, step: u64) -> Progress {
    Progress {
        step,
        total_steps: STEPS,
        epoch: step / 10,
        generation: 1,
        world_size: launch.replicas,
        loss: Some(2.0 / step as f64),
        accuracy: (step >= 10).then_some(0.9),
        accuracy_step: (step >= 10).then_some(10),
        samples_per_second: Some(1000.0),
        scaling_efficiency: Some(0.95),
        scaling_baseline: Some(ScalingBaseline::Measured),
        // Any existing path serves, because nobody reads this checkpoint.
        last_checkpoint: Some(CheckpointMark {
            step,
            uri: format!("file://{}", launch.output.display()),
            ..CheckpointMark::default()
        }),
        ..Progress::default()
    }
}

fn say(line: &str) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).expect("somebody listens");
}

fn pids(launch: &Launch) -> PathBuf {
    launch.output.join("pids")
}

fn all_are_done(launch: &Launch) -> bool {
    (0..launch.replicas).all(|index| fs::exists(done(launch, index)).unwrap_or(false))
}

fn done(launch: &Launch, index: u32) -> PathBuf {
    Path::new(&launch.output).join(format!("done-{index}"))
}

async fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::time::sleep(POLL).await;
    }
}

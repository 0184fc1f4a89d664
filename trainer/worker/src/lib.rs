//! The processes of a training job: workers train, and the coordinator decides who is a member.
//!
//! [`run_networks`] is the program `lockstep-trainer`. [`run`] makes a program of the same kind
//! that trains an [`OwnModel`], with elasticity, checkpoints and metrics. Beneath both is
//! [`Trainee`], all that a worker knows of what it trains; [`run_trainee`] is for those who
//! implement it.

mod benchmark;
mod checkpoints;
mod communication;
mod compute;
mod coordinator;
mod failure;
mod glyphs;
mod grace;
mod kubernetes_store;
mod lines;
mod membership;
mod networks;
mod own_model;
mod panics;
mod progress;
mod quick_start;
mod saving;
mod serve;
mod signals;
mod step;
mod storage;
mod trainee;
mod training;
mod worker;

use std::{cell::Cell, process::ExitCode};

use clap::{Parser, Subcommand};
use lockstep_launch::{Ending, Exit, Launch, PARENT, Replay, StandardError, Workload};
use tracing::{error, info};

use crate::{failure::leave, worker::Make};

pub use crate::{
    failure::Failure,
    own_model::{OwnModel, Parameter},
    trainee::{
        Bucket, Completion, Evaluated, Judged, Lent, Overlap, SampleCounts, Shares, StateRange, Trained, Trainee,
    },
};

/// A process of a training job. The operator and `lockstep run` set its orders in LOCKSTEP_*
/// variables.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Train one rank's share, or measure.
    Worker,
    /// Form the group and keep its record.
    Coordinator,
    /// List, verify, prune or export the checkpoints in a job's folder.
    #[command(subcommand)]
    Checkpoints(checkpoints::Action),
    /// Print the layers of a model and what they cost.
    Summary(networks::summary::Arguments),
    /// Predict the classes of pictures with a trained model.
    Predict(networks::using::predict::Arguments),
    /// Evaluate a trained model on labelled samples.
    Eval(networks::using::eval::Arguments),
    /// Write a trained model as a safetensors file, and as a module of PyTorch.
    Export(networks::using::export::Arguments),
    /// Draw glyphs and write them in one of the formats of data sets, for tests and data images.
    Glyphs(glyphs::Arguments),
}

/// Runs a process that trains the models that manifests name: the program `lockstep-trainer`.
pub fn run_networks() -> ExitCode {
    process(&networks::open)
}

/// Runs a process that trains a model of the user's own: the `main` of such a program. Called
/// without arguments, the program trains the model on this machine by `lockstep run`.
pub fn run(model: impl OwnModel + 'static) -> ExitCode {
    if std::env::args_os().len() == 1 {
        return quick_start::train();
    }
    let model = Cell::new(Some(model));
    process(&|launch, workload| match model.take() {
        Some(model) => own_model::open(model, launch, workload),
        None => unreachable!("a process has one worker"),
    })
}

/// Runs a process that trains what `make` makes of a worker's orders.
pub fn run_trainee(make: impl Fn(&Launch, &Workload) -> Result<Box<dyn Trainee>, Failure>) -> ExitCode {
    process(&make)
}

fn process(make: &Make<'_>) -> ExitCode {
    let role = Arguments::parse().role;
    // In a pod, logs are collected as JSON. `lockstep run` shows them to people.
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| StandardError).with_target(false);
    if std::env::var_os(PARENT).is_some() {
        log.with_ansi(false).init()
    } else {
        log.json().init()
    }

    match &role {
        Role::Checkpoints(action) => return checkpoints::act(action),
        Role::Summary(arguments) => return networks::summary::print(arguments),
        Role::Predict(arguments) => return networks::using::predict::predict(arguments),
        Role::Eval(arguments) => return networks::using::eval::eval(arguments),
        Role::Export(arguments) => return networks::using::export::export(arguments),
        Role::Glyphs(arguments) => return glyphs::write(arguments),
        Role::Worker | Role::Coordinator => {}
    }
    let lookup = |name: &'static str| std::env::var(name).ok();
    let (launch, replay) = match Launch::read(lookup).and_then(|launch| Ok((launch, Replay::read(lookup)?))) {
        Ok(orders) => orders,
        Err(problem) => {
            error!(%problem, "cannot start");
            return ExitCode::from(Exit::Fatal.code());
        }
    };
    panics::leave_at(launch.ending.clone());
    let (exit, ending) = match carry_out(&role, &launch, replay.as_ref(), make) {
        Ok(ending) => (Exit::Done, ending),
        Err(failure) => {
            match failure.exit() {
                Exit::Drained => info!("{failure}"),
                exit => error!(%exit, "{failure}"),
            }
            (failure.exit(), failure.ending())
        }
    };
    info!(%exit, "ended");
    leave(&launch.ending, &ending);
    ExitCode::from(exit.code())
}

fn carry_out(role: &Role, launch: &Launch, replay: Option<&Replay>, make: &Make<'_>) -> Result<Ending, Failure> {
    signals::die_with_parent().map_err(|error| Failure::fatal(format!("{error:#}")))?;
    match role {
        Role::Worker => worker::work(launch, replay, make),
        Role::Coordinator => coordinator::coordinate(launch),
        Role::Checkpoints(_)
        | Role::Glyphs(_)
        | Role::Summary(_)
        | Role::Predict(_)
        | Role::Eval(_)
        | Role::Export(_) => unreachable!("this role reads no orders"),
    }
}

//! `make bench`: nodelet beside the upstream kubelet and beside the floor, on the same machine, the
//! same containerd and the same pods, their rounds interleaved. `docs/performance.md` tells what is
//! measured and how.
//!
//! | variable | default | |
//! |---|---|---|
//! | `BENCH_ROUNDS` | 3 | how often each candidate plays the act of speed |
//! | `BENCH_SINGLES` | 5 | how often a round measures one pod, and each Deployment |
//! | `BENCH_PODS` | 110 | pods of a full node |
//! | `BENCH_IDLE` | 60 | seconds of each idle window; scrapes every 15 s have four minutes at least |
//! | `BENCH_IDLE_ROUNDS` | 1 | how often each candidate plays the act of idleness; 0 for never |
//! | `BENCH_PRESSURE_ROUNDS` | 1 | how often each candidate plays the act of pressure; 0 for never |
//! | `BENCH_CLUSTER_ROUNDS` | 1 | how often each candidate plays the act in a cluster; 0 for never |
//! | `BENCH_FEATURE_ROUNDS` | 1 | how often each candidate plays the act of features; 0 for never |
//! | `BENCH_FEATURES` | all | its parts, with commas: [`features::PARTS`] |
//! | `BENCH_ONLY` | all | candidates, with commas: `floor,nodelet,kubelet` |
//! | `BENCH_FLOOR` | measured | calls that the floor makes at a time |

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    unreachable_pub,
    reason = "a measurement that can't be taken ends the run with the reason"
)]

#[path = "../../tests/controlplane/mod.rs"]
mod controlplane;
#[expect(dead_code, reason = "the tests' objects, of which little is needed")]
#[path = "../../tests/cluster/objects.rs"]
mod objects;
#[path = "../../tests/support/mod.rs"]
mod support;
#[path = "../../tests/upstream/mod.rs"]
mod upstream;

mod api;
mod api_pod_floor;
mod api_pod_rows;
mod api_pods;
mod api_rows;
mod cluster;
mod facts;
mod features;
mod floor;
mod hog;
mod measure;
mod plot;
mod pressure;
mod probed;
mod process;
mod report;
mod requests;
mod results;
mod sightings;
mod stage;

use measure::Plan;
use results::Figures;
use stage::Candidate;
use std::{path::PathBuf, time::Duration};

fn main() {
    if std::env::args().any(|argument| argument == hog::ARGUMENT) {
        return hog::take_memory();
    }
    if std::env::args().any(|argument| argument == probed::ARGUMENT) {
        return probed::ask();
    }
    // `cargo test --benches` and `cargo bench` pass arguments of a test harness, which this is not.
    if std::env::args().any(|argument| argument == "--test") || support::skip_without_containerd() {
        return;
    }
    let only = variable("BENCH_ONLY").unwrap_or_else(|| "floor,nodelet,kubelet".to_owned());
    let wanted = |candidate: &Candidate| only.split(',').any(|name| name == candidate.name());
    let all = [Candidate::Floor, Candidate::Nodelet, Candidate::Kubelet];
    let mut candidates: Vec<Candidate> = all.into_iter().filter(wanted).collect();
    let kubelet = if wanted(&Candidate::Kubelet) { upstream::binary() } else { None };
    if kubelet.is_none() {
        candidates.retain(|candidate| *candidate != Candidate::Kubelet);
    }
    let mut plan = Plan {
        rounds: number("BENCH_ROUNDS", 3),
        singles: number("BENCH_SINGLES", 5),
        pods: number("BENCH_PODS", 110),
        idle: Duration::from_secs(number("BENCH_IDLE", 60).try_into().unwrap()),
        idle_rounds: number("BENCH_IDLE_ROUNDS", 1),
        pressure_rounds: number("BENCH_PRESSURE_ROUNDS", 1),
        cluster_rounds: number("BENCH_CLUSTER_ROUNDS", 1),
        feature_rounds: number("BENCH_FEATURE_ROUNDS", 1),
        features: parts(),
        floor_at_a_time: number("BENCH_FLOOR", 4),
    };
    let plane = if needs_control_plane(&plan) { upstream::control_plane() } else { None };
    let programs = cluster::Programs { plane: plane.as_deref(), kubelet: kubelet.as_deref() };
    let mut at_a_time = Vec::new();
    if wanted(&Candidate::Floor) && variable("BENCH_FLOOR").is_none() {
        at_a_time = measure_floor(&plan);
        plan.floor_at_a_time = best(&at_a_time);
    }
    let facts = facts::gather(&plan, &at_a_time, kubelet.as_deref());
    let mut figures = Figures::default();
    let acts = [plan.rounds, plan.idle_rounds, plan.pressure_rounds, plan.cluster_rounds];
    let rounds = acts.into_iter().chain([plan.feature_rounds]);
    for round in 0..rounds.max().unwrap() {
        // Nobody always goes first.
        candidates.rotate_left(round.min(1));
        for candidate in &candidates {
            if round < plan.rounds {
                progress(&format!("round {}, {}: speed", round + 1, candidate.name()));
                measure::speed(*candidate, &plan, kubelet.as_deref(), &mut figures);
            }
        }
        for candidate in &candidates {
            if round < plan.idle_rounds {
                progress(&format!("round {}, {}: idleness", round + 1, candidate.name()));
                measure::idleness(*candidate, &plan, kubelet.as_deref(), &mut figures);
            }
        }
        for candidate in &candidates {
            if round < plan.pressure_rounds {
                progress(&format!("round {}, {}: pressure", round + 1, candidate.name()));
                pressure::pressure(*candidate, &plan, kubelet.as_deref(), &mut figures);
            }
        }
        for candidate in &candidates {
            if round < plan.feature_rounds {
                progress(&format!("round {}, {}: features", round + 1, candidate.name()));
                features::features(*candidate, &plan, programs, &mut figures);
            }
        }
        for candidate in &candidates {
            if plane.is_some() && round < plan.cluster_rounds && *candidate != Candidate::Floor {
                progress(&format!("round {}, {}: cluster", round + 1, candidate.name()));
                cluster::cluster(*candidate, &plan, programs, &mut figures);
            }
        }
        // After each round: a run that is cut short leaves what it has.
        report::write(&figures, &plan, &facts, &directory());
    }
}

fn needs_control_plane(plan: &Plan) -> bool {
    let needs = |part: &String| features::OF_CLUSTER.contains(&part.as_str());
    plan.cluster_rounds > 0 || (plan.feature_rounds > 0 && plan.features.iter().any(needs))
}

fn parts() -> Vec<String> {
    let all = || features::PARTS.map(str::to_owned).to_vec();
    variable("BENCH_FEATURES").map_or_else(all, |t| t.split(',').map(str::to_owned).collect())
}

fn measure_floor(plan: &Plan) -> Vec<(usize, f64)> {
    progress("the floor at 1, 2, 4 and 8 calls at a time");
    let mut took = Vec::new();
    for at_a_time in [1, 2, 4, 8] {
        let seconds = measure::floor_batch(plan, at_a_time);
        progress(&format!("    {at_a_time} at a time               {seconds:.1} s"));
        took.push((at_a_time, seconds));
    }
    took
}

fn best(took: &[(usize, f64)]) -> usize {
    took.iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0
}

fn directory() -> PathBuf {
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench");
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Tells how far the run is.
pub fn progress(text: &str) {
    support::say_loudly(text);
}

fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.into_string().unwrap()).filter(|text| !text.is_empty())
}

fn number(name: &str, default: usize) -> usize {
    variable(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|err| panic!("{name}: {err}")))
}
